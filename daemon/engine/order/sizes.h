/* SPDX-License-Identifier: Apache-2.0
 * How many bytes and rows each rank of a complete op gives and gets, among the members that have
 * a seat here. Engine thread. */
#ifndef ENGINE_ORDER_SIZES_H
#define ENGINE_ORDER_SIZES_H

#include "daemon/engine/order/op.h"

/* Bytes and rows of every operand of a complete op: .bytes and .sizes of the op, .out_bytes and .rows
 * of the parts. HVI_OK; HVI_ERR_INVALID, HVI_ERR_NO_MEMORY with a sentence. */
int engine_sizes_plan(struct engine_op *op, char *text_p, size_t text_size);
/* Whether ranks may leave it to the engine to say how large their output is. */
bool engine_sizes_asks(uint16_t kind);
/* Whether the part's output takes its result: HVI_OK, HVI_ERR_TOO_SMALL, HVI_ERR_INVALID. */
int engine_sizes_check_output(const struct engine_op *op, const struct engine_part *part,
                              char *text_p, size_t text_size);
/* alltoall: rows that `from` sends to `to`, places. */
int64_t engine_sizes_split(const struct engine_op *op, uint32_t from, uint32_t to);

#endif
