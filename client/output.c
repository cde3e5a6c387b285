/* SPDX-License-Identifier: Apache-2.0
 * The second half of an op whose result the library provides. All queued ops are fed by
 * whichever call comes first, not only the one that is waited for: a peer may wait for this op
 * while our caller waits for another one. */
#include "client/output.h"

#include "client/memory/place.h"
#include "client/session/session.h"
#include "client/submit.h"
#include "client/wait.h"

#include <stdbool.h>

/* Memory for the result; the op may be gone when this returns, because the lock was given up. */
static struct client_operand find_memory(struct hvd_session *session, uint64_t bytes)
{
    struct client_operand operand = {.region = HVI_REGION_INLINE};
    if (client_place_scratch(&session->memory, bytes, "hvd_wait", &operand) != HVD_OK)
        operand.region = HVI_REGION_NONE; /* capacity 0: the engine fails the op on every rank */
    return operand;
}

/* False when the ring is full: the op stays queued. */
static bool feed(struct hvd_session *session, struct hvd_op *op)
{
    uint32_t generation = op->generation;
    struct client_operand operand = find_memory(session, op->out_bytes);
    if (op->generation != generation || op->state != CLIENT_OP_SIZED) {
        client_memory_put(&session->memory, &operand);
        return true;
    }
    if (client_submit_output(session, op, &operand) != HVD_OK) {
        client_memory_put(&session->memory, &operand);
        if (op->generation == generation && op->state == CLIENT_OP_SIZED) /* else: all is over */
            client_ops_queue(&session->ops, op);
        return false;
    }
    if (operand.region == HVI_REGION_NONE)
        op->out_bytes = 0;
    op->out = operand;
    op->result.data = operand.shared;
    client_op_set_state(&session->ops, op, CLIENT_OP_IN_FLIGHT);
    return true;
}

void client_output_feed(struct hvd_session *session)
{
    struct hvd_op *op;
    do {
        op = session->ops.sized_first;
        if (!op)
            return;
        client_ops_unqueue(&session->ops, op);
    } while (feed(session, op));
}
