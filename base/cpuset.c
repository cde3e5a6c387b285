/* SPDX-License-Identifier: Apache-2.0
 * /proc/PID/cgroup says where the process is, below the place where the hierarchy is mounted:
 *
 *     3:cpuset:/jobs/a     version 1: /sys/fs/cgroup/cpuset/jobs/a/cpuset.effective_cpus
 *     0::/jobs/a           version 2: /sys/fs/cgroup/jobs/a/cpuset.cpus.effective
 *
 * Where both are there, version 1 has the cpusets. In version 2 a cgroup has the file only if the one above it hands the
 * controller on; else it has what the nearest one above has. A container's mount may show only its own part, under a
 * path that the file does not say: the way up ends at its top, which is the container's. A path with ".." lies outside
 * of what is mounted here. */
#include "base/cpuset.h"

#include "base/cgroup.h"
#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool hvi_cpuset_parse(const char *text, cpu_set_t *set_p)
{
    CPU_ZERO(set_p);
    for (char *end; *text >= '0' && *text <= '9'; text = *end == ',' ? end + 1 : end) {
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (*end == '-')
            last = strtoul(end + 1, &end, 10);
        for (; first <= last && first < CPU_SETSIZE; first++)
            CPU_SET(first, set_p);
    }
    return (*text == '\n' || *text == '\0') && CPU_COUNT(set_p) > 0;
}

bool hvi_cpuset_print(const cpu_set_t *set, char *text_p, size_t size)
{
    size_t used = 0;

    *text_p = '\0';
    for (size_t first = 0, end; first < CPU_SETSIZE; first = end + 1) {
        for (end = first; end < CPU_SETSIZE && CPU_ISSET(end, set);)
            end++;
        if (end == first)
            continue;
        const char *comma = used > 0 ? "," : "";
        const int length =
            end - first == 1
                ? snprintf(text_p + used, size - used, "%s%zu", comma, first)
                : snprintf(text_p + used, size - used, "%s%zu-%zu", comma, first, end - 1);
        used += (size_t)length;
        if (used >= size) {
            *text_p = '\0';
            return false;
        }
    }
    return true;
}

/* Of the cgroup at `at`, which is used up, or the nearest one above it that says it. */
static bool read_above(const char *root, const char *mount, const char *name, char *at,
                       cpu_set_t *set_p)
{
    char path[3 * HVI_CGROUP_PATH], text[HVI_CGROUP_TEXT];

    do {
        snprintf(path, sizeof path, "%s%s%s/%s", root, mount, at, name);
        if (hvi_file_read(path, text, sizeof text) > 0)
            return hvi_cpuset_parse(text, set_p);
    } while (hvi_cgroup_up(at));
    return false;
}

bool hvi_cpuset_of(const char *root, pid_t pid, cpu_set_t *set_p)
{
    char path[HVI_CGROUP_PATH], text[HVI_CGROUP_TEXT];

    snprintf(path, sizeof path, "%s/proc/%d/cgroup", root, (int)pid);
    if (pid <= 0 || hvi_file_read(path, text, sizeof text) <= 0)
        return false;
    char *first = hvi_cgroup_find(text, "cpuset"), *at = first ? first : hvi_cgroup_find(text, "");
    if (!at || !hvi_cgroup_cut(at) || strstr(at, "/.."))
        return false;
    return first ? read_above(root, "/sys/fs/cgroup/cpuset", "cpuset.effective_cpus", at, set_p)
                 : read_above(root, "/sys/fs/cgroup", "cpuset.cpus.effective", at, set_p);
}

/* The first task is the main thread: what it starts meanwhile is bound already. */
int hvi_cpuset_bind(const cpu_set_t *set)
{
    DIR *tasks = opendir("/proc/self/task");
    int error = 0;

    if (!tasks)
        return errno;
    for (const struct dirent *task = readdir(tasks); task && error == 0; task = readdir(tasks)) {
        const pid_t thread = (pid_t)atoi(task->d_name);
        if (thread > 0 && sched_setaffinity(thread, sizeof *set, set) != 0 && errno != ESRCH)
            error = errno;
    }
    closedir(tasks);
    return error;
}
