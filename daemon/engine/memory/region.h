/* SPDX-License-Identifier: Apache-2.0
 * engine_regions: the memory one rank has registered, by region id. Engine thread. */
#ifndef ENGINE_MEMORY_REGION_H
#define ENGINE_MEMORY_REGION_H

#include "proto/wire.h"
#include "shm/abi.h"
#include "shm/region.h"

#include <stdbool.h>
#include <stdint.h>

#define ENGINE_REGION_BUCKETS 256u /* clients count their regions up, so chains are short */

enum engine_region_kind {
    ENGINE_REGION_MAPPED,
    ENGINE_REGION_PROCESS, /* the trainer's own memory: HVI_REGION_PROCESS */
    ENGINE_REGION_DEVICE,  /* a GPU's: .import of .worker; nothing is mapped */
};

struct engine_region {
    struct engine_region *next;   /* in the bucket */
    enum engine_region_kind kind; /* an operand's kind is that of its region */
    struct hvi_region map;        /* .fd is kept for peers, or closed; region 0: not owned */
    uint32_t shown;               /* a bit, by channel index, for each session that was given .fd */
    uint32_t id;
    uint16_t worker;
    uint64_t instance; /* of the worker */
    uint32_t import;
    bool process_memory; /* the process's own memory, not the session's */
    bool kept; /* a transfer that was given up may still write there: it stays mapped for ever */
    uint32_t users; /* operands of ops in flight; while not 0 it stays mapped */
    uint64_t ready; /* bytes whose page tables are filled */
    struct engine_region *fresh_next;
};

struct engine_regions {
    struct engine_region inline_area; /* id 0 */
    /* The trainer's own memory: base 0, so that an offset is the address in its process, which the
     * engine must never follow itself. Only an operand may lie there, and only if it is offered. */
    struct engine_region process;
    bool process_offered;
    struct engine_region *buckets[ENGINE_REGION_BUCKETS];
    struct engine_region *fresh; /* regions that engine_regions_ready has not finished */
    uint32_t count;              /* these three: with those that were removed but are kept */
    uint64_t bytes;              /* of all but these: */
    uint64_t process_bytes;      /* of what the processes have by themselves */
    uint64_t device_bytes;       /* on GPUs */
};

/* Where the operands of a submission are. NULL without an operand. */
struct engine_operands {
    struct engine_region *in, *out, *aux;
    uint64_t in_bytes; /* payload of the input */
};

/* Empty but for region 0. `base` stays the caller's. */
void engine_regions_init(struct engine_regions *regions, void *inline_base);
/* Unmaps everything. */
void engine_regions_fini(struct engine_regions *regions);
/* NULL when there is no such region. */
struct engine_region *engine_regions_find(const struct engine_regions *regions, uint32_t id);
/* The same for an operand: also HVI_REGION_PROCESS, where that is offered. */
struct engine_region *engine_regions_find_operand(const struct engine_regions *regions,
                                                  uint32_t id);
/* Maps `fd`, which it owns on success, as `add` says. The id must be free. HVI_OK, HVI_ERR_PROTOCOL (not a sealed
 * memfd of this size), HVI_ERR_NO_MEMORY. */
int engine_regions_add(struct engine_regions *regions, const struct hvi_region_add *add, int fd);
/* Memory of a GPU, which that worker has imported; `instance`: the worker to other nodes. The id must be free. HVI_OK,
 * HVI_ERR_NO_MEMORY. */
int engine_regions_add_device(struct engine_regions *regions, uint32_t id, uint64_t bytes,
                              uint16_t worker, uint64_t instance, uint32_t import);
/* The next one of memory of a GPU, from `after` (NULL: the first) on. NULL: no more. */
struct engine_region *engine_regions_next_device(const struct engine_regions *regions,
                                                 const struct engine_region *after);
/* Fills the page tables of some more of what was added: up to 1 MiB, about a hundred microseconds.
 * False when there is nothing to do. A region may be used before; then its first use pays. */
bool engine_regions_ready(struct engine_regions *regions);
/* HVI_OK, HVI_ERR_NOT_FOUND (also region 0), HVI_ERR_BUSY. */
int engine_regions_remove(struct engine_regions *regions, uint32_t id);

#endif
