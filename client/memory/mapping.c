/* SPDX-License-Identifier: Apache-2.0
 * /proc/self/maps and its relatives. Lists are parsed line by line, because a trainer has thousands
 * of mappings. A single mapping is asked for by ioctl where the kernel can (PROCMAP_QUERY), else by
 * the link of its exact range in /proc/self/map_files. */
#include "client/memory/mapping.h"

#include "base/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* linux/fs.h of 6.11; older headers do not have it. */
struct mapping_query {
    uint64_t size, flags, address;
    uint64_t start, end, vma_flags, page_size, offset, inode;
    uint32_t dev_major, dev_minor, name_size, build_id_size;
    uint64_t name, build_id;
};
_Static_assert(sizeof(struct mapping_query) == 104, "struct procmap_query of the kernel");
#define MAPPING_QUERY _IOWR('f', 17, struct mapping_query)

static bool parse(const char *line, struct client_mapping *mapping_p)
{
    struct client_mapping mapping;
    int at = 0;
    int fields = sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %4s %*x %x:%x %" SCNu64 " %n",
                        &mapping.range.start, &mapping.range.end, mapping.flags, &mapping.dev_major,
                        &mapping.dev_minor, &mapping.inode, &at);
    if (fields != 6 || at == 0)
        return false;
    snprintf(mapping.name, sizeof(mapping.name), "%s", line + at);
    mapping.name[strcspn(mapping.name, "\n")] = '\0';
    *mapping_p = mapping;
    return true;
}

bool client_mapping_each(bool (*visit)(void *user, const struct client_mapping *mapping),
                         void *user)
{
    FILE *file = fopen("/proc/self/maps", "re");
    struct client_mapping mapping;
    char *line = NULL;
    size_t size = 0;
    bool whole = true;
    if (!file)
        return false;
    while (whole && getline(&line, &size, file) > 0) {
        whole = parse(line, &mapping);
        if (whole && !visit(user, &mapping))
            break;
    }
    whole = whole && !ferror(file);
    free(line);
    fclose(file);
    return whole;
}

/* VmLck of /proc/self/status: 0 spares us smaps, for which the kernel walks all page tables. */
static bool nothing_is_locked(void)
{
    char text[8192];
    const char *line = NULL;
    if (hvi_file_read("/proc/self/status", text, sizeof(text)) > 0)
        line = strstr(text, "\nVmLck:");
    return line && strtoull(strchr(line, ':') + 1, NULL, 10) == 0;
}

bool client_mapping_is_locked(struct client_range range)
{
    FILE *file = nothing_is_locked() ? NULL : fopen("/proc/self/smaps", "re");
    struct client_mapping mapping = {.range = {0, 0}};
    char *line = NULL;
    size_t size = 0;
    bool locked = false;
    if (!file)
        return false;
    while (!locked && mapping.range.start < range.end && getline(&line, &size, file) > 0) {
        bool touches = mapping.range.start < range.end && mapping.range.end > range.start;
        if (strncmp(line, "VmFlags:", 8) == 0)
            locked = touches && strstr(line, " lo");
        else
            parse(line, &mapping);
    }
    free(line);
    fclose(file);
    return locked;
}

static bool link_says(struct client_range range, const char *name)
{
    char path[96], link[320], expected[320];
    snprintf(path, sizeof(path), "/proc/self/map_files/%" PRIxPTR "-%" PRIxPTR, range.start,
             range.end);
    int bytes = snprintf(expected, sizeof(expected), "/memfd:%s (deleted)", name);
    return readlink(path, link, sizeof(link)) == bytes &&
           memcmp(link, expected, (size_t)bytes) == 0;
}

bool client_mapping_is_memfd(int maps_fd, struct client_range range,
                             const struct client_memfd *memfd)
{
    struct mapping_query query = {.size = sizeof(query), .address = range.start};
    if (maps_fd < 0 || ioctl(maps_fd, MAPPING_QUERY, &query) != 0)
        return link_says(range, memfd->name);
    return query.start == range.start && query.end == range.end && query.inode == memfd->inode &&
           query.dev_major == memfd->dev_major && query.dev_minor == memfd->dev_minor;
}
