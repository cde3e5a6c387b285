/* SPDX-License-Identifier: Apache-2.0
 * What a batch does on this GPU, as steps in the order of one stream (docs/design/gpu.md, "Four ways"). Pure; any thread.
 *
 * With a communicator the NCCL steps, their order and sizes, follow from what all its workers are told alike: kind, type,
 * operation, sizes. What lies between them follows from the members here. So each worker plans alone, and all call NCCL alike. */
#ifndef HVD_GPU_PLAN_H
#define HVD_GPU_PLAN_H

#include "daemon/gpu/batch.h"
#include "daemon/gpu/kernels/kernels.h"

#define GPU_PLAN_SMALL (UINT64_C(512) << 10) /* works below it are packed */

enum gpu_step_kind {
    GPU_STEP_REDUCE, /* kernels */
    GPU_STEP_SPREAD,
    GPU_STEP_PACK,
    GPU_STEP_UNPACK,
    GPU_STEP_MOVE,
    GPU_STEP_ADASUM_DOTS,
    GPU_STEP_ADASUM_FACTORS,
    GPU_STEP_ADASUM_BLEND,
    GPU_STEP_ALL_REDUCE, /* NCCL */
    GPU_STEP_BROADCAST,
    GPU_STEP_ALL_GATHER,
    GPU_STEP_SEND,
    GPU_STEP_RECEIVE,
    GPU_STEP_GROUP,
    GPU_STEP_GROUP_END,
    GPU_STEP_KINDS
};

struct gpu_step {
    enum gpu_step_kind kind;
    uint64_t
        bytes; /* a kernel's: that it reads of one input, or moves; what its grid is made for */
    union {
        struct hvd_kernel_guard guard; /* first in those of all kernels */
        struct hvd_reduce_args reduce; /* REDUCE, SPREAD */
        struct hvd_pack_args pack;     /* PACK, UNPACK */
        struct hvd_move_args move;
        struct hvd_adasum_args adasum;
        struct {
            uint64_t in, out, count;
            int type, op, peer; /* NCCL's; peer: or the root */
        } nccl;
    };
};

struct gpu_plan_means {
    /* Memory that nothing else uses at that place of the stream, aligned to 256; as many bytes on all workers. */
    uint64_t staging, staging_bytes;
    void *user;
    /* Each step in its order. False: no further one. */
    bool (*step)(void *user, const struct gpu_step *step);
};

/* HVI_OK; HVI_ERR_LIMIT with a constant sentence: nothing has been stepped, on any worker of the communicator. */
int gpu_plan_make(const struct gpu_batch *batch, const struct gpu_plan_means *means,
                  const char **text_p);

#endif
