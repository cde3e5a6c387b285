/* SPDX-License-Identifier: Apache-2.0
 * What a process has: descriptors, mappings, bytes of malloc. */
#ifndef HVT_CLIENT_COUNT_H
#define HVT_CLIENT_COUNT_H

#include "tests/unit/hvt_process.h"

#include <check.h>
#include <malloc.h>
#include <stdio.h>
#include <string.h>

struct hvt_count {
    int fds;
    int shared_mappings; /* of our memfds */
    size_t heap_bytes;
};

static inline int hvt_count_mappings(void)
{
    char line[512];
    int count = 0;
    FILE *file = fopen("/proc/self/maps", "r");
    ck_assert_ptr_nonnull(file);
    while (fgets(line, sizeof line, file))
        count += strstr(line, "memfd:hvd") != NULL;
    fclose(file);
    return count;
}

static inline struct hvt_count hvt_count_take(void)
{
    struct hvt_count count = {.fds = hvt_count_fds(), .shared_mappings = hvt_count_mappings()};
    struct mallinfo2 info = mallinfo2();
    count.heap_bytes = info.uordblks + info.hblkhd;
    return count;
}

#endif
