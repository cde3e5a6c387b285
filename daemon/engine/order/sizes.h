/* SPDX-License-Identifier: Apache-2.0
 * How many bytes and rows each rank of a complete op gives and gets, among the members that have
 * a seat here. Engine thread. */
#ifndef ENGINE_ORDER_SIZES_H
#define ENGINE_ORDER_SIZES_H

#include "daemon/engine/order/op.h"

/* Bytes and rows of every operand of a complete op: .bytes and .sizes of the op, .out_bytes and .rows
 * of the parts. HVI_OK; HVI_ERR_INVALID, HVI_ERR_NO_MEMORY with a sentence. */
int engine_sizes_plan(struct engine_op *op, char *text_p, size_t text_size);
/* The op of meeting.c, by set rank: that all sizes can be had, and the most bytes that an output gets. As
 * engine_sizes_plan; the parts keep nothing. */
int engine_sizes_whole(struct engine_op *op, uint64_t *most_p, char *text_p, size_t text_size);
/* As engine_sizes_plan, of an op that has members on other nodes: from the `count` rows that the root
 * has told (struct hvi_mesh_verdict). HVI_OK; HVI_ERR_NO_MEMORY; HVI_ERR_PROTOCOL: they cannot be. */
int engine_sizes_spread(struct engine_op *op, const int64_t *rows, size_t count);
/* alltoall, after engine_sizes_spread: the rows that our member at place `to` gets from a set rank. */
int64_t engine_sizes_received(const struct engine_op *op, uint32_t to, uint32_t from);
/* Whether ranks may leave it to the engine to say how large their output is. */
bool engine_sizes_asks(uint16_t kind);
/* Whether the part's output takes its result: HVI_OK, HVI_ERR_TOO_SMALL, HVI_ERR_NO_MEMORY (the library was to make one),
 * HVI_ERR_INVALID. */
int engine_sizes_check_output(const struct engine_op *op, const struct engine_part *part,
                              char *text_p, size_t text_size);
/* alltoall: rows that `from` sends to `to`, places. */
int64_t engine_sizes_split(const struct engine_op *op, uint32_t from, uint32_t to);

#define ENGINE_SIZES_KEPT_MAX 16384u /* numbers for a tensor */

/* How many numbers say what sizes such an op has, on a node with so many places. */
size_t engine_sizes_kept(uint16_t kind, uint32_t members, uint32_t places);
/* Of a work that starts on several nodes: keeps its sizes. If that cannot be, the tensor has none. */
void engine_sizes_keep(const struct engine_op *op, struct engine_tensor *tensor);
/* Whether what the ranks here bring is of the sizes that `tensor`, which stands for the op's, has kept. */
bool engine_sizes_repeat(const struct engine_op *op, const struct engine_tensor *tensor);
/* Then: as engine_sizes_spread, with these. False: they cannot be, or an output that was given does not take the
 * result. */
bool engine_sizes_spread_kept(struct engine_op *op, const struct engine_tensor *tensor);

#endif
