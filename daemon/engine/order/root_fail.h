/* SPDX-License-Identifier: Apache-2.0
 * The root of a job: an op fails on every node. Within order/; one thread. */
#ifndef ENGINE_ORDER_ROOT_FAIL_H
#define ENGINE_ORDER_ROOT_FAIL_H

#include "daemon/engine/order/meeting.h"

/* The op and whatever is bound to it by a group, on every node of the set: they are gone. */
void engine_root_fail(struct engine_root *root, struct engine_op *origin, int status,
                      const char *text, int32_t culprit);

#endif
