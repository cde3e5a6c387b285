/* SPDX-License-Identifier: Apache-2.0
 * The last cache before memory, as the kernel describes it. Not by sysconf: for AMD's processors glibc
 * answers with the last-level caches of a whole socket, which may be ten times what one core can use. */
#include "daemon/engine/exec/host.h"

#include <inttypes.h>
#include <stdio.h>

#define INDEXES_MAX 16u

static FILE *open_property(const char *directory, uint32_t index, const char *name)
{
    char path[256];

    snprintf(path, sizeof path, "%s/index%" PRIu32 "/%s", directory, index, name);
    return fopen(path, "re");
}

static uint32_t read_level(const char *directory, uint32_t index)
{
    FILE *file = open_property(directory, index, "level");
    uint32_t level = 0;

    if (!file)
        return 0;
    if (fscanf(file, "%" SCNu32, &level) != 1)
        level = 0;
    fclose(file);
    return level;
}

/* "32768K" */
static uint64_t read_size(const char *directory, uint32_t index)
{
    FILE *file = open_property(directory, index, "size");
    uint32_t kilobytes = 0;
    char unit = '\0';

    if (!file)
        return 0;
    if (fscanf(file, "%" SCNu32 "%c", &kilobytes, &unit) != 2 || unit != 'K')
        kilobytes = 0;
    fclose(file);
    return (uint64_t)kilobytes * 1024;
}

/* "0-3,8" */
static uint32_t count_sharers(const char *directory, uint32_t index)
{
    FILE *file = open_property(directory, index, "shared_cpu_list");
    uint32_t cores = 0, first = 0, last = 0;

    if (!file)
        return 0;
    while (fscanf(file, "%" SCNu32, &first) == 1) {
        last = first;
        if (fscanf(file, "-%" SCNu32, &last) == 1 && last < first)
            last = first;
        cores += last - first + 1;
        if (fgetc(file) != ',')
            break;
    }
    fclose(file);
    return cores;
}

struct engine_host_cache engine_host_cache_find(const char *directory)
{
    struct engine_host_cache cache = {0, 0};
    uint32_t highest = 0;

    for (uint32_t index = 0; index < INDEXES_MAX; index++) {
        uint32_t level = read_level(directory, index);
        if (level <= highest)
            continue;
        highest = level;
        cache.bytes = read_size(directory, index);
        cache.sharers = count_sharers(directory, index);
    }
    return cache;
}
