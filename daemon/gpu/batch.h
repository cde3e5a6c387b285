/* SPDX-License-Identifier: Apache-2.0
 * A batch as its engine has said it: read once, from a private copy of its slots, and checked. Pure; any thread.
 *
 * Untrusted: every number of a slot. What is read here names memory by addresses that lie in open imports and registered
 * pages as a whole, so whatever an engine says, the steps of plan.h touch nothing else. */
#ifndef HVD_GPU_BATCH_H
#define HVD_GPU_BATCH_H

#include "shm/device.h"
#include "shm/fence.h"

#include <stdbool.h>
#include <stdint.h>

/* One slot of a ring of commands, of whatever kind. */
union gpu_slot {
    struct hvi_device_batch batch;
    struct hvi_device_work work;
    struct hvi_device_member member;
    struct hvi_device_sizes sizes;
};

/* What the slots of one engine may name. False: it has nothing of that number. */
struct gpu_batch_names {
    void *user;
    bool (*import)(void *user, uint32_t number, uint64_t *address_p, uint64_t *bytes_p);
    /* The address is a stream's; *page_p is the same for CPUs, NULL: none. */
    bool (*page)(void *user, uint32_t number, uint64_t *address_p,
                 const struct hvi_fence_page **page_p);
    bool (*comm)(void *user, uint32_t number, uint32_t *ranks_p, uint32_t *rank_p);
};

struct gpu_member {
    uint64_t in, out; /* addresses; 0: there is none, or nothing of it is touched */
    uint64_t fence;   /* address of the fence's cell; 0: none */
    const struct hvi_fence_page *page; /* where a CPU sees it; NULL: nowhere */
    uint32_t cell;
    uint64_t turn;
    uint32_t place;
};

struct gpu_work {
    struct hvi_device_work said;
    const struct gpu_member *members; /* [said.members], by place */
    const uint64_t *sizes;            /* by kind: engine_work.sizes */
    const uint64_t *homes;            /* [said.ranks]; NULL: it has none */
};

struct gpu_batch {
    uint64_t number;
    uint32_t comm, comm_ranks, comm_rank; /* comm 0: all members are here */
    uint32_t stream;
    bool is_timed; /* its answer says what the stream took */
    uint32_t work_count, member_count;
    struct gpu_work works[HVI_DEVICE_WORKS];
    struct gpu_member members[HVI_DEVICE_SLOTS]; /* of all works */
};

/* Reads a batch of `count` slots, which stay the caller's and have to live as long as the batch. NULL, or the lie: a clause
 * that says what cannot be. */
const char *gpu_batch_read(const union gpu_slot *slots, uint32_t count,
                           const struct gpu_batch_names *names, struct gpu_batch *batch_p);

#endif
