/* SPDX-License-Identifier: Apache-2.0
 * hvi_region: a sealed memfd and its mapping. Sealed against shrinking, growing and further seals,
 * so that no peer can turn an access into SIGBUS by truncating it; a passed descriptor without
 * these seals is refused (fail closed). Pages are reserved at creation, so running out of memory is
 * an error here and not a fault later. */
#ifndef HVI_SHM_REGION_H
#define HVI_SHM_REGION_H

#include <stdint.h>

struct hvi_region {
    void *base;
    uint64_t bytes; /* as mapped: a multiple of the page size */
    uint64_t guard; /* bytes on either side of it that are mapped and cannot be touched */
    int fd;         /* -1 once given away or closed; the mapping outlives it */
};

/* Creates, reserves, seals and maps. `label` shows in /proc/PID/maps. `bytes` is rounded up to pages.
 * From 2 MiB on the mapping begins at a multiple of that where there is room, and the whole pieces
 * of 2 MiB are huge pages where the kernel gives any. HVI_OK, HVI_ERR_INVALID (0 or absurd size),
 * HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT (descriptors, RLIMIT_FSIZE). May block while pages are zeroed. */
int hvi_region_create(const char *label, uint64_t bytes, struct hvi_region *region_p);
/* The same without reserving: pages come when they are touched first, like those of malloc. For
 * large tables of which little is used; never as huge ones. Never blocks. */
int hvi_region_create_sparse(const char *label, uint64_t bytes, struct hvi_region *region_p);
/* The same for memory that may be used whole: aligned like hvi_region_create's, and pages are huge where the
 * kernel gives any at the first touch. */
int hvi_region_create_lazy(const char *label, uint64_t bytes, struct hvi_region *region_p);
/* Maps a descriptor from a peer that claims `bytes`. Checks that it is a memfd of ordinary pages,
 * writable, with all three seals and exactly that size. Aligned as above. On success the region owns
 * `fd`; on failure the caller keeps it. HVI_OK,
 * HVI_ERR_PROTOCOL (not sealed, wrong size), HVI_ERR_NO_MEMORY. */
int hvi_region_map(int fd, uint64_t bytes, struct hvi_region *region_p);
/* The same between 2 MiB on either side that nobody may touch: for what is only lent. */
int hvi_region_map_guarded(int fd, uint64_t bytes, struct hvi_region *region_p);
/* As hvi_region_map, for what a peer created sparse. */
int hvi_region_map_sparse(int fd, uint64_t bytes, struct hvi_region *region_p);
/* Closes the descriptor, keeps the mapping. */
void hvi_region_close_fd(struct hvi_region *region);
/* Unmaps and closes. Harmless on a zeroed region or twice. A zeroed region has fd 0: set fd to -1
 * or use HVI_REGION_INIT. */
void hvi_region_fini(struct hvi_region *region);

#define HVI_REGION_INIT                                                                            \
    {                                                                                              \
        .base = 0, .bytes = 0, .fd = -1                                                            \
    }

#endif
