/* SPDX-License-Identifier: Apache-2.0
 * What the kernel says about this process's own address space. Any thread; nothing here changes a
 * mapping. */
#ifndef HVD_CLIENT_MAPPING_H
#define HVD_CLIENT_MAPPING_H

#include <stdbool.h>
#include <stdint.h>

struct client_range {
    uintptr_t start, end; /* [start, end) */
};

/* One line of /proc/self/maps. */
struct client_mapping {
    struct client_range range;
    char flags[5]; /* "rw-p" */
    unsigned dev_major, dev_minor;
    uint64_t inode;  /* 0: anonymous */
    char name[4096]; /* path, "[heap]", or "" */
};

/* Calls `visit` for every mapping, by address, until it returns false. False when the list cannot
 * be read to where it is needed. */
bool client_mapping_each(bool (*visit)(void *user, const struct client_mapping *mapping),
                         void *user);

/* Whether any of `range` is locked into memory (mlock). Slow when the process has locked anything.
 */
bool client_mapping_is_locked(struct client_range range);

/* Of a memfd, as fstat and memfd_create know it. */
struct client_memfd {
    unsigned dev_major, dev_minor;
    uint64_t inode;
    char name[48];
};

/* Whether `range` is exactly one mapping of `memfd`. `maps_fd` is /proc/self/maps, opened by this
 * process, or -1. Half a microsecond with it on Linux 6.11 and newer, otherwise some three; safe in a
 * forked child with -1. */
bool client_mapping_is_memfd(int maps_fd, struct client_range range,
                             const struct client_memfd *memfd);

#endif
