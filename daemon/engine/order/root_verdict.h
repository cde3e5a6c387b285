/* SPDX-License-Identifier: Apache-2.0
 * The root of a job: its verdicts. Within order/; one thread. */
#ifndef ENGINE_ORDER_ROOT_VERDICT_H
#define ENGINE_ORDER_ROOT_VERDICT_H

#include "daemon/engine/order/meeting.h"

/* root->verdict, about the op. It is there until the next one. */
struct hvi_mesh_verdict *engine_root_verdict_begin(struct engine_root *root,
                                                   const struct engine_op *op,
                                                   enum hvi_mesh_what what);
/* root->verdict, to a node. */
void engine_root_verdict_send(struct engine_root *root, uint32_t node);
/* root->verdict, to every node of the job. */
void engine_root_verdict_send_to_all(struct engine_root *root);
/* SIZED, STARTS: to every node that takes part. The op has been assembled. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_root_verdict_announce(struct engine_root *root, const struct engine_op *op,
                                 enum hvi_mesh_what what);

#endif
