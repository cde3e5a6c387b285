/* SPDX-License-Identifier: Apache-2.0
 * Shared memory for the payloads of ordinary memory that are too large for the inline area, and for
 * allgather results. Blocks have power-of-two sizes; small ones share a region. Free blocks stay
 * announced to the engine and are used again; when more than CLIENT_STAGING_CACHE bytes of regions
 * lie idle, a region goes as soon as it is idle.
 *
 * A region through which memory of a device is staged is registered with the driver, at the first copy and once. Then it stays the
 * session's, used or not, and is not counted among the idle ones; and it stays mapped until the process ends. */
#ifndef HVD_CLIENT_STAGING_H
#define HVD_CLIENT_STAGING_H

#include <stdint.h>

#define CLIENT_STAGING_CACHE   (256ull * 1024 * 1024)
#define CLIENT_STAGING_MIN_LOG 13u /* the smallest block: 8 KiB */
#define CLIENT_STAGING_CLASSES 35u /* the largest: 2^47 bytes, an address space */

struct client_link;
struct client_staging_region;

struct client_staging_block {
    struct client_staging_region *owner;
    uint32_t region; /* the owner's, as the engine knows it */
    uint64_t offset; /* in there */
    void *address;
    struct client_staging_block *prev, *next; /* free list */
};

struct client_staging {
    struct client_link *link;
    struct client_staging_block *free_first[CLIENT_STAGING_CLASSES];
    struct client_staging_region *regions;
    uint64_t idle_bytes; /* of regions without a used block */
};

/* A block of at least `bytes` (>= 1). Needs the session's lock and gives it up while a new region
 * is made: look again at everything afterwards. HVD_ERR_NO_MEMORY, _LIMIT, _TIMEOUT or the
 * session's end, with the last error set. */
int client_staging_get(struct client_staging *staging, uint64_t bytes, const char *what,
                       struct client_staging_block **block_p);
/* Needs the lock. */
void client_staging_put(struct client_staging *staging, struct client_staging_block *block);
/* No block of this one's region is given out any more, and the region goes with its last used block: the
 * engine may still write to this block after it was put. Needs the lock. */
void client_staging_withdraw(struct client_staging *staging,
                             const struct client_staging_block *block);
/* Before a copy between the block and the device: has the driver lock its region, if that was not tried before. Where the driver does
 * not, copies go on without. Needs the lock, and gives it up. */
void client_staging_pin(struct client_staging *staging, const struct client_staging_block *block,
                        int device);

/* Session end: unmaps everything, used or not, but what is registered with the driver. */
void client_staging_fini(struct client_staging *staging);

#endif
