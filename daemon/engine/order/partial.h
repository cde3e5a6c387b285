/* SPDX-License-Identifier: Apache-2.0
 * Ops of which only some members of a set are part: SEND, RECV, SET_OPEN. Engine thread. */
#ifndef ENGINE_ORDER_PARTIAL_H
#define ENGINE_ORDER_PARTIAL_H

#include "daemon/engine/order/order.h"
#include "daemon/engine/order/partial_name.h"

/* The part's tensor in its set. As engine_tensor_get_anon. */
struct engine_tensor *engine_partial_tensor(struct engine_tensors *tensors,
                                            const struct engine_part *part);
/* What a user can get wrong: HVI_OK, HVI_ERR_INVALID with a sentence. */
int engine_partial_check(const struct engine_part *part, char *text_p, size_t text_size);
/* Meets the oldest op that lacks such a part, or waits for its others. As engine_negotiate_submit. */
int engine_partial_submit(struct engine_order *order, struct engine_part *part);
/* Whether the op, which has no part of this member, waits for it. */
bool engine_partial_awaits(const struct engine_op *op, uint32_t member);
/* Whether it waits for ranks on other nodes. */
bool engine_partial_awaits_others(const struct engine_op *op);
/* Those, ascending and at most `most` of them. The count of all: 0 if this node does not know. */
uint32_t engine_partial_others(const struct engine_order *order, const struct engine_op *op,
                               int32_t *ranks_p, uint32_t most);

/* ---- within order/ ---- */

/* Of a reported op: as engine_span_retract, engine_span_give_up. */
void engine_partial_retract(struct engine_order *order, struct engine_op *op);
void engine_partial_give_up(struct engine_order *order, struct engine_op *op, int status,
                            const char *text, int32_t culprit);

#endif
