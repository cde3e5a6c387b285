/* SPDX-License-Identifier: Apache-2.0
 * The root of a job: from an op that every node has reported to the verdict that it starts. Within order/; one thread.
 * All return HVI_OK, also where the op has failed instead; HVI_ERR_NO_MEMORY. */
#ifndef ENGINE_ORDER_ROOT_START_H
#define ENGINE_ORDER_ROOT_START_H

#include "daemon/engine/order/meeting.h"

/* Every node has reported it, or has joined. */
int engine_root_start_complete(struct engine_root *root, struct engine_op *op);
/* Its outputs take the result on every node. */
int engine_root_start_sized(struct engine_root *root, struct engine_op *op);
/* A node of the set is not waited for any more. */
int engine_root_start_sweep(struct engine_root *root, const struct engine_set *set);

#endif
