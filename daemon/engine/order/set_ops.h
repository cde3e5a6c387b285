/* SPDX-License-Identifier: Apache-2.0
 * Adding, removing, opening and closing process sets, and which rank may use one. Engine thread. */
#ifndef ENGINE_ORDER_SET_OPS_H
#define ENGINE_ORDER_SET_OPS_H

#include "daemon/engine/order/order.h"

/* Why this rank may not submit the part's op to the set that it names: HVI_OK, HVI_ERR_NOT_FOUND,
 * HVI_ERR_INVALID, HVI_ERR_UNSUPPORTED with a sentence. `set` NULL: there is none. */
int engine_set_check(const struct engine_set *set, const struct engine_part *part, char *text_p,
                     size_t text_size);

/* Within order/: carries out a complete, agreed SET_ADD, SET_REMOVE, SET_OPEN or SET_CLOSE and
 * finishes it. HVI_OK; HVI_ERR_NO_MEMORY: the set could not be made, which on several nodes this one has
 * alone; HVI_ERR_PROTOCOL: what the root says that it has made cannot be. */
int engine_set_execute(struct engine_order *order, struct engine_op *op);
/* Whether the set of a SET_REMOVE, in which all ranks agree, can be removed: HVI_OK, HVI_ERR_INVALID or
 * HVI_ERR_NOT_FOUND with a sentence. */
int engine_set_check_removal(const struct engine_sets *sets, const struct engine_op *op,
                             char *text_p, size_t text_size);

#endif
