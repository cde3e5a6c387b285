/* SPDX-License-Identifier: Apache-2.0
 * Within the plan: what makes its steps, for plan.c and plan_adasum.c. Pure. */
#ifndef HVD_GPU_MAKER_H
#define HVD_GPU_MAKER_H

#include "daemon/gpu/plan.h"

struct gpu_maker {
    const struct gpu_batch *batch;
    const struct gpu_plan_means *means;
    struct hvd_kernel_guard guard;
    bool is_over; /* the taker of steps has had enough */
    struct gpu_step step;
};

/* ---- plan.c ---- */

/* Hands .step out. */
void gpu_maker_emit(struct gpu_maker *maker);
/* Bytes of an element. */
uint32_t gpu_maker_element(const struct gpu_maker *maker);
/* The member here at this place, or NULL. */
const struct gpu_member *gpu_maker_member(const struct gpu_work *work, uint32_t place);
/* Moves between begin and end are independent of each other, and go together. */
void gpu_maker_begin_moves(struct gpu_maker *maker);
void gpu_maker_move(struct gpu_maker *maker, uint64_t to, uint64_t from, uint64_t bytes);
void gpu_maker_end_moves(struct gpu_maker *maker);
/* A call of NCCL on bytes. */
void gpu_maker_call(struct gpu_maker *maker, enum gpu_step_kind kind, uint64_t in, uint64_t out,
                    uint64_t bytes, int peer);
/* One worker sends, and `peer` (HVI_DEVICE_NOWHERE: no one) receives, in the same order. */
void gpu_maker_letter(struct gpu_maker *maker, bool is_sent, uint64_t address, uint64_t bytes,
                      uint64_t peer);

/* A reduction of one member: its input, scaled, to its output. */
void gpu_maker_sole(struct gpu_maker *maker, const struct gpu_work *work);

/* ---- plan_adasum.c ---- */

/* As gpu_plan_make, for a batch of adasums. HVI_OK; HVI_ERR_LIMIT with a constant sentence. */
int gpu_maker_adasum(struct gpu_maker *maker, const char **text_p);

#endif
