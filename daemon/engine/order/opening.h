/* SPDX-License-Identifier: Apache-2.0
 * Sets that their members alone open and close, in a job on several nodes. Within order/; engine thread. */
#ifndef ENGINE_ORDER_OPENING_H
#define ENGINE_ORDER_OPENING_H

#include <stddef.h>
#include <stdint.h>

struct engine_order;
struct engine_op;
struct engine_set;
struct hvi_mesh_verdict;

/* Every member of the new set with a seat here has come: the root is told. */
void engine_opening_report(struct engine_order *order, struct engine_op *op);
/* Of a reported op: as engine_span_retract, engine_span_give_up. */
void engine_opening_retract(struct engine_order *order, struct engine_op *op);
void engine_opening_give_up(struct engine_order *order, struct engine_op *op, int status,
                            const char *text, int32_t culprit);
/* All members of the opened set are here, and close it now: its id is the root's again. */
void engine_opening_closed(struct engine_order *order, const struct engine_set *set);
/* As engine_verdict_hear. `set` is set 0. */
int engine_opening_hear(struct engine_order *order, struct engine_set *set,
                        const struct hvi_mesh_verdict *verdict, char *text_p, size_t text_size);

#endif
