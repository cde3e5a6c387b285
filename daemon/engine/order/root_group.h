/* SPDX-License-Identifier: Apache-2.0
 * The root of a job: whether all nodes mean the same group. Within order/; one thread. */
#ifndef ENGINE_ORDER_ROOT_GROUP_H
#define ENGINE_ORDER_ROOT_GROUP_H

#include "daemon/engine/order/meeting.h"

/* The op, which has this part, among the members of its leader. False: another one is there, or the ranks disagree on
 * how many there are. */
bool engine_root_group_take(struct engine_op *leader, const struct engine_part *part,
                            struct engine_op *op);
/* A held leader whose nodes have all reported their groups: fails if they are not the same. */
void engine_root_group_check(struct engine_root *root, struct engine_op *leader);

#endif
