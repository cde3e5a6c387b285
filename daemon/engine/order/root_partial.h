/* SPDX-License-Identifier: Apache-2.0
 * The root of a job: ops of which only some members of a set are part (partial.h), and sets on one
 * node. One thread. */
#ifndef ENGINE_ORDER_ROOT_PARTIAL_H
#define ENGINE_ORDER_ROOT_PARTIAL_H

#include "daemon/engine/order/root.h"

/* Whether engine_root_partial is for the report, which is of the set. */
bool engine_root_is_partial(const struct engine_set *set, const struct hvi_mesh_report *report);
/* As engine_root_report. */
int engine_root_partial(struct engine_root *root, uint32_t node, struct engine_set *set,
                        const struct hvi_mesh_report *report, char *text_p, size_t text_size);
/* As engine_root_missing, for a SET_OPEN that the node has reported as `id`. */
uint32_t engine_root_missing_openers(const struct engine_root *root, uint32_t node, uint64_t id,
                                     int32_t *ranks_p, uint32_t most);
void engine_root_partial_fini(struct engine_root *root);

#endif
