/* SPDX-License-Identifier: Apache-2.0
 * Where the submissions of one tensor by the ranks of one process set meet. Engine thread. */
#ifndef ENGINE_ORDER_NEGOTIATE_H
#define ENGINE_ORDER_NEGOTIATE_H

#include "daemon/engine/order/order.h"

/* Adds an ungrouped part to its tensor's op. HVI_OK, HVI_ERR_PROTOCOL (in flight twice on this
 * rank), HVI_ERR_NO_MEMORY; the part is the caller's again unless HVI_OK. */
int engine_negotiate_submit(struct engine_order *order, struct engine_part *part);
/* The output that the sink was asked for has been set in the part. */
void engine_negotiate_output(struct engine_order *order, struct engine_part *part);
/* Takes the part, and its group, back from ops that still wait for other ranks: they end with
 * `status` on this rank, and the others go on waiting. False when it is too late. Where the root of the
 * job has to be asked, it ends later, as cancelled, or as the root had decided before. */
bool engine_negotiate_withdraw(struct engine_order *order, struct engine_part *part, int status,
                               const char *text);
/* "allreduce 'w1' was cancelled on rank 3" */
void engine_negotiate_cancel_text(const struct engine_part *part, char *text_p, size_t text_size);
/* Fails every op that waits. */
void engine_negotiate_fail_all(struct engine_order *order, int status, const char *text,
                               int32_t culprit);

#endif
