/* SPDX-License-Identifier: Apache-2.0
 * The second half of an op whose result the library provides. All queued ops are fed by
 * whichever call comes first, not only the one that is waited for: a peer may wait for this op
 * while our caller waits for another one.
 *
 * Where a step repeats on several nodes, the engine asks for memory of the size that the result had last. If a rank
 * elsewhere brings something else then, it asks again: nothing has been written to what it was given before. */
#include "client/submit/output.h"

#include "client/memory/memory.h"
#include "client/ops/ops.h"
#include "client/submit/entry.h"

#include <stdbool.h>

/* Memory for the result; the op may be gone when this returns, because the lock was given up. */
static struct client_operand find_memory(struct client_memory *memory, uint64_t bytes)
{
    struct client_operand operand = {0};
    if (client_operand_scratch(memory, "hvd_wait", bytes, &operand) == HVD_OK)
        return operand;
    return (struct client_operand){.region =
                                       HVI_REGION_NONE}; /* capacity 0: the engine fails the op */
}

/* False when the ring is full: the op stays queued. */
static bool feed(struct client_ops *ops, struct client_ring *ring, struct hvd_op *op)
{
    uint32_t generation = op->generation;
    struct client_operand operand = find_memory(ops->memory, op->out_bytes);
    if (op->generation != generation || op->state != CLIENT_OP_SIZED) {
        client_memory_put(ops->memory, &operand);
        return true;
    }
    if (client_entry_output(ring, op, &operand) != HVD_OK) {
        client_memory_put(ops->memory, &operand);
        if (op->generation == generation && op->state == CLIENT_OP_SIZED) /* else: all is over */
            client_ops_queue(ops, op);
        return false;
    }
    if (operand.region == HVI_REGION_NONE)
        op->out_bytes = 0;
    client_memory_put(ops->memory, &op->out);
    op->out = operand;
    op->result.data = operand.shared;
    client_op_set_state(ops, op, CLIENT_OP_IN_FLIGHT);
    return true;
}

void client_output_feed(struct client_ops *ops, struct client_ring *ring)
{
    struct hvd_op *op;
    do {
        op = ops->sized_first;
        if (!op)
            return;
        client_ops_unqueue(ops, op);
    } while (feed(ops, ring, op));
}
