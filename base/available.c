/* SPDX-License-Identifier: Apache-2.0
 * /proc/self/cgroup says where the process is, below the place where the hierarchy is mounted:
 *
 *     4:memory:/jobs/a     version 1: /sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes
 *     0::/jobs/a           version 2: /sys/fs/cgroup/jobs/a/memory.max
 *
 * Every cgroup on the way up may have a limit. In a container the mount may show only its own part, under a
 * path that the file does not say: what is not there is left out, and the top is looked at in any case. */
#include "base/available.h"

#include "base/cgroup.h"
#include "base/file.h"

#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The names of one version. */
struct version {
    const char *mount, *limit, *used, *inactive, *active;
};

static const struct version first = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                                     "memory.usage_in_bytes", "total_inactive_file ",
                                     "total_active_file "};
static const struct version second = {"/sys/fs/cgroup", "memory.max", "memory.current",
                                      "inactive_file ", "active_file "};

/* The number of the line that begins with `key`; 0: there is none. */
static uint64_t number_of(const char *text, const char *key)
{
    size_t length = strlen(key);

    for (const char *line = text; line != NULL; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0)
            return strtoull(line + length, NULL, 10);
    }
    return 0;
}

/* "max" is no number. */
static bool read_number(const char *folder, const char *name, uint64_t *number_p)
{
    char path[3 * HVI_CGROUP_PATH], text[HVI_CGROUP_TEXT];

    snprintf(path, sizeof path, "%s/%s", folder, name);
    return hvi_file_read(path, text, sizeof text) > 0 && sscanf(text, "%" SCNu64, number_p) == 1;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* What the cgroup in this folder leaves to take. */
static uint64_t left_in(const char *folder, const struct version *version)
{
    char path[3 * HVI_CGROUP_PATH], text[HVI_CGROUP_TEXT];
    uint64_t limit = 0, used = 0;

    if (!read_number(folder, version->limit, &limit) || !read_number(folder, version->used, &used))
        return UINT64_MAX;
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    uint64_t reclaimable = 0;
    if (hvi_file_read(path, text, sizeof text) > 0)
        reclaimable = number_of(text, version->inactive) + number_of(text, version->active) +
                      number_of(text, "slab_reclaimable "); /* version 2 alone says it */
    used -= least(reclaimable, used);
    return limit > used ? limit - used : 0;
}

/* Of the cgroup at `at`, which is used up, and all above it. NULL: there is no such hierarchy. */
static uint64_t left_above(const char *root, const struct version *version, char *at)
{
    char folder[2 * HVI_CGROUP_PATH];
    uint64_t left = UINT64_MAX;

    if (!at || !hvi_cgroup_cut(at))
        return left;
    do {
        snprintf(folder, sizeof folder, "%s%s%s", root, version->mount, at);
        left = least(left, left_in(folder, version));
    } while (hvi_cgroup_up(at));
    return left;
}

static uint64_t left_by_cgroups(const char *root)
{
    char path[HVI_CGROUP_PATH], text[HVI_CGROUP_TEXT];

    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (hvi_file_read(path, text, sizeof text) <= 0)
        return UINT64_MAX;
    char *at = hvi_cgroup_find(text, "memory"), *second_at = hvi_cgroup_find(text, "");
    return least(left_above(root, &first, at), left_above(root, &second, second_at));
}

uint64_t hvi_memory_available(const char *root)
{
    char path[HVI_CGROUP_PATH], text[HVI_CGROUP_TEXT];

    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    bool known = hvi_file_read(path, text, sizeof text) > 0 && strstr(text, "MemAvailable:");
    uint64_t machine = known ? number_of(text, "MemAvailable:") * 1024 : UINT64_MAX;
    return least(machine, left_by_cgroups(root));
}

/* Of the cgroup at `at`, which is used up, or one above it. "max" and -1 are none. */
static bool has_quota(const char *root, const char *mount, const char *name, char *at)
{
    char folder[2 * HVI_CGROUP_PATH];
    uint64_t quota;

    if (!at || !hvi_cgroup_cut(at))
        return false;
    do {
        snprintf(folder, sizeof folder, "%s%s%s", root, mount, at);
        if (read_number(folder, name, &quota) && quota <= INT64_MAX)
            return true;
    } while (hvi_cgroup_up(at));
    return false;
}

bool hvi_cores_have_quota(const char *root)
{
    char path[HVI_CGROUP_PATH], text[HVI_CGROUP_TEXT];

    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    if (hvi_file_read(path, text, sizeof text) <= 0)
        return false;
    char *at = hvi_cgroup_find(text, "cpu,cpuacct"), *second_at = hvi_cgroup_find(text, "");
    return has_quota(root, "/sys/fs/cgroup/cpu,cpuacct", "cpu.cfs_quota_us", at) ||
           has_quota(root, "/sys/fs/cgroup", "cpu.max", second_at);
}

uint32_t hvi_cores_available(void)
{
    cpu_set_t set;

    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return (uint32_t)CPU_COUNT(&set);
    long online = sysconf(_SC_NPROCESSORS_ONLN); /* more than such a set can hold */
    return online > 0 ? (uint32_t)online : 1;
}
