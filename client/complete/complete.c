/* SPDX-License-Identifier: Apache-2.0 */
#include "client/complete/complete.h"

#include "base/bits.h"
#include "base/status.h"
#include "client/link/link.h"
#include "client/ops/ops.h"
#include "client/slots/grants.h"
#include "client/slots/medium.h"
#include "client/slots/slots.h"

#include <limits.h>
#include <string.h>

static void land(struct client_complete *complete, struct hvd_op *op)
{
    if (op->slot.brought)
        client_slots_landed(complete->slots, op);
    client_op_land(complete->ops, op);
}

/* An engine that lives sees to it itself that ranks leave the operands alone. So does one that stands still and
 * could not be killed, when it goes on. */
static void close_medium(struct client_complete *complete, struct hvd_op *op)
{
    if (complete->link->end_status == HVD_ERR_ENGINE_LOST && !complete->link->engine_remains &&
        op->state == CLIENT_OP_IN_FLIGHT && op->slot.brought && op->slot.medium)
        client_medium_close(complete->slots, op);
}

void client_complete_fail_all(struct client_complete *complete)
{
    for (uint32_t i = 0; i < complete->ops->fresh; i++) {
        struct hvd_op *op = &complete->ops->slots[i];
        close_medium(complete, op);
        if (op->state != CLIENT_OP_IN_FLIGHT && op->state != CLIENT_OP_SIZED)
            continue;
        op->status = complete->link->end_status;
        op->error = complete->link->end_text;
        op->copy_to = NULL;
        land(complete, op);
    }
}

static void take_text(struct client_complete *complete, struct hvd_op *op,
                      const struct hvi_completion *completion)
{
    char text[HVI_TEXT_MAX + 1];
    op->error = hvi_status_text(op->status);
    if (completion->text_cell == HVI_TEXT_NONE ||
        !hvi_channel_read_text(&complete->link->channel, completion->text_cell,
                               completion->text_turn, text, sizeof(text)) ||
        !text[0])
        return;
    op->error_owned = strdup(text);
    if (op->error_owned)
        op->error = op->error_owned;
}

/* Whether the engine's numbers for a result make sense. One that has no place yet is only a size. */
static bool rows_fit(const struct hvd_op *op, const struct hvi_completion *completion)
{
    uint64_t bytes;
    return completion->rows >= 0 &&
           hvi_mul_checked((uint64_t)completion->rows, op->row_bytes, &bytes) &&
           bytes == completion->bytes;
}

/* Whether an engine could say that this op has succeeded so. One that still waits for its memory
 * cannot have a result. */
static bool result_fits(struct client_complete *complete, const struct hvd_op *op,
                        const struct hvi_completion *completion)
{
    if (completion->status != HVD_OK)
        return true;
    if (op->kind == HVI_KIND_JOIN)
        return completion->rows >= 0 && completion->rows < complete->link->identity.size;
    if (op->kind == HVI_KIND_RECV)
        return completion->rows >= 0 && completion->rows < complete->link->identity.size &&
               (op->peer < 0 || completion->rows == op->peer);
    if (client_kind_makes_set(op->kind))
        return completion->rows > 0 && completion->rows <= INT_MAX &&
               !client_sets_find(&complete->ops->sets, (int)completion->rows);
    if (!client_kind_sizes_late(op->kind))
        return true;
    return op->state != CLIENT_OP_SIZED && rows_fit(op, completion) &&
           completion->bytes <= op->out_bytes;
}

static void complete_done(struct client_complete *complete, struct hvd_op *op,
                          const struct hvi_completion *completion)
{
    op->status = completion->status;
    op->culprit = completion->culprit;
    op->number = completion->rows;
    if (op->status != HVD_OK) {
        take_text(complete, op, completion);
        op->copy_to = NULL;
    } else if (client_kind_sizes_late(op->kind)) {
        op->out_bytes = completion->bytes;
        op->result.dims[0] = completion->rows;
    }
    client_slots_take_back(op);
    if (complete->slots->on)
        client_grant_take(complete->slots, op, completion);
    land(complete, op);
}

static void complete_sized(struct client_complete *complete, struct hvd_op *op,
                           const struct hvi_completion *completion)
{
    op->out_bytes = completion->bytes;
    client_op_set_state(complete->ops, op, CLIENT_OP_SIZED);
    client_ops_queue(complete->ops, op);
}

/* False when an engine would never send this. */
static bool take(struct client_complete *complete, const struct hvi_completion *completion)
{
    struct hvd_op *op = client_ops_find(complete->ops, completion->cookie);
    if (completion->seq != complete->seq + 1 || !op)
        return false;
    complete->seq++;
    if (completion->kind == HVI_COMPLETE_SIZED) {
        /* On several nodes once more, where the result turned out to have another size: see submit/output.c. */
        if (!op->owns_output || op->state != CLIENT_OP_IN_FLIGHT || !rows_fit(op, completion))
            return false;
        complete_sized(complete, op, completion);
        return true;
    }
    if (completion->kind != HVI_COMPLETE_DONE || completion->status > 0 ||
        !result_fits(complete, op, completion))
        return false;
    complete_done(complete, op, completion);
    return true;
}

void client_complete_drain(struct client_complete *complete)
{
    struct hvi_completion completion;
    uint32_t available = 0;
    if (complete->link->end_status != HVD_OK)
        return;
    bool sane = hvi_ring_available(&complete->link->channel.cq, &available) == HVD_OK;
    for (uint32_t i = 0; sane && i < available; i++) {
        hvi_ring_copy(&complete->link->channel.cq, i, &completion);
        sane = take(complete, &completion);
    }
    if (available > 0)
        hvi_ring_release(&complete->link->channel.cq, available);
    if (!sane)
        client_link_end(complete->link, HVD_ERR_PROTOCOL,
                        "the engine of job '%s' (pid %d) wrote an impossible completion; close "
                        "this session and open a new one",
                        complete->link->identity.job, complete->link->engine_pid);
    else if (complete->ops->orphans > 0)
        client_slots_look_all(complete->slots);
}
