/* SPDX-License-Identifier: Apache-2.0
 * Ops on a bench in a line each. Every rank's operands lie in its inline area: the input at 0, the
 * output of an op that has one of another size at HVT_OUT_AT, integers at HVT_AUX_AT. */
#ifndef HVT_OPS_H
#define HVT_OPS_H

#include "tests/unit/engine/hvt_bench.h"

#define HVT_OUT_AT 65536u
#define HVT_AUX_AT 131072u

/* A float32 op of one dimension, in place, with this name, in process set `set`. */
struct hvi_submission hvt_op(struct hvt_bench *bench, int32_t rank, uint16_t kind, uint64_t count,
                             const char *name, uint32_t set);
/* Puts integers into the rank's memory and the op. */
void hvt_op_integers(struct hvt_bench *bench, int32_t rank, struct hvi_submission *op,
                     const int64_t *integers, uint32_t count);
/* Gives it an output of its own: `capacity` bytes, or none when that is 0. */
void hvt_op_output(struct hvi_submission *op, uint64_t capacity);
/* Makes `count` ops a group. */
void hvt_op_group(struct hvi_submission *ops, uint32_t count, uint32_t group);
/* Submits and lets the engine work; returns the cookie. */
uint64_t hvt_op_submit(struct hvt_bench *bench, int32_t rank, struct hvi_submission op);
/* hvt_op and hvt_op_submit. */
uint64_t hvt_op_run(struct hvt_bench *bench, int32_t rank, uint16_t kind, uint64_t count,
                    const char *name, uint32_t set);
void hvt_op_cancel(struct hvt_bench *bench, int32_t rank, uint64_t cookie);
/* The rank's next completion is DONE with this status and, unless NULL, this sentence. */
struct hvi_completion hvt_op_expect(struct hvt_bench *bench, int32_t rank, int status,
                                    const char *sentence);
/* The same for ranks first .. last. */
void hvt_op_expect_all(struct hvt_bench *bench, int32_t first, int32_t last, int status,
                       const char *sentence);
void hvt_op_expect_nothing(struct hvt_bench *bench, int32_t first, int32_t last);
/* All ranks of the job add the set; returns its id. */
uint32_t hvt_op_add_set(struct hvt_bench *bench, const int64_t *ranks, uint32_t count);
void hvt_op_remove_set(struct hvt_bench *bench, uint32_t id);
float *hvt_op_memory(struct hvt_bench *bench, int32_t rank);

#endif
