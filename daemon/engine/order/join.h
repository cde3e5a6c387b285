/* SPDX-License-Identifier: Apache-2.0
 * Join: a rank has no more data. Engine thread. */
#ifndef ENGINE_ORDER_JOIN_H
#define ENGINE_ORDER_JOIN_H

#include "daemon/engine/order/order.h"

/* A rank has no more data. As engine_negotiate_submit. */
int engine_join_submit(struct engine_order *order, struct engine_part *part);
/* Whether this member has joined and not every member has. */
bool engine_join_has(const struct engine_set *set, uint32_t place);

/* Within order/: every member has joined, here and on other nodes. */
void engine_join_end(struct engine_order *order, struct engine_set *set, int32_t last);
/* Within order/: the root hears that all members of this node have joined, once it has heard of what they had brought before. */
void engine_join_check(struct engine_order *order, struct engine_set *set);
/* Within order/: it has more data after all. */
void engine_join_undo(struct engine_op *join, uint32_t place);

#endif
