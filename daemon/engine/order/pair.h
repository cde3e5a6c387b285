/* SPDX-License-Identifier: Apache-2.0
 * Sends between nodes. Within order/; engine thread. */
#ifndef ENGINE_ORDER_PAIR_H
#define ENGINE_ORDER_PAIR_H

#include <stddef.h>
#include <stdint.h>

struct engine_order;
struct engine_op;
struct engine_part;
struct engine_set;
struct hvi_mesh_verdict;

/* A send of another node's rank that has met no recv here. */
struct engine_offer;

/* A new send whose receiver is on another node: that node is told. */
void engine_pair_offer(struct engine_order *order, struct engine_op *op);
/* The oldest offer that a recv takes, and since when it is here. NULL: there is none. */
struct engine_offer *engine_pair_find(const struct engine_part *recv, uint64_t *since_ns_p);
/* The recv's op, which waits, meets the offer. It fails if they disagree; else it starts when the root says so. */
void engine_pair_take(struct engine_order *order, struct engine_op *op, struct engine_offer *offer);
/* Of a reported op: as engine_span_retract, engine_span_give_up. */
void engine_pair_retract(struct engine_order *order, struct engine_op *op);
void engine_pair_give_up(struct engine_order *order, struct engine_op *op, int status,
                         const char *text, int32_t culprit);
/* All offers of a set. */
void engine_pair_forget(struct engine_order *order, struct engine_set *set);
/* As engine_verdict_hear, for a set with members on several nodes. */
int engine_pair_hear(struct engine_order *order, struct engine_set *set,
                     const struct hvi_mesh_verdict *verdict, char *text_p, size_t text_size);

#endif
