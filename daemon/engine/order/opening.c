/* SPDX-License-Identifier: Apache-2.0
 * Opening: sets that their members alone open and close, in a job on several nodes.
 *
 *   last member here comes --BROUGHT {ranks, tag}--> root: all nodes of these ranks? a new id
 *   the set is made <-------STARTS {id, serial}-----+
 *
 * Ids and serials are the root's, which alone knows all sets. A node without members of the set hears
 * nothing of it. A set on one node is opened in this way, too; then its ops are that node's own affair.
 * The node closes it at once and tells the root afterwards: nobody else knows the set, and the root gives
 * its id to no other before. A set with members on several nodes is closed by an op like others (root_start.c). */
#include "daemon/engine/order/opening.h"

#include "base/status.h"
#include "daemon/engine/order/set_ops.h"
#include "daemon/engine/order/span.h"
#include "daemon/engine/order/span_name.h"

#include <inttypes.h>
#include <stdio.h>

static struct hvi_mesh_report *begin(struct engine_order *order, const struct engine_op *op,
                                     enum hvi_mesh_what what)
{
    struct hvi_mesh_report *report = engine_span_begin(order, op->set, HVI_KIND_SET_OPEN, what);

    report->tensor = engine_span_name(op->tensor);
    report->id = op->number;
    return report;
}

void engine_opening_report(struct engine_order *order, struct engine_op *op)
{
    const struct engine_part *part = engine_op_first_part(op);
    struct hvi_mesh_said said = {.kind = HVI_KIND_SET_OPEN,
                                 .root = -1,
                                 .integers = part->integers,
                                 .integer_count = part->integer_count};

    op->number = ++order->partials;
    op->reported = true;
    engine_op_set_state(op, ENGINE_OP_REPORTED, "every member of this node has come");
    struct hvi_mesh_report *report = begin(order, op, HVI_MESH_BROUGHT);
    report->said = &said;
    report->said_count = 1;
    engine_span_tell(order, report);
}

void engine_opening_retract(struct engine_order *order, struct engine_op *op)
{
    if (op->retracting)
        return;
    op->retracting = true;
    engine_span_tell(order, begin(order, op, HVI_MESH_RETRACT));
}

void engine_opening_give_up(struct engine_order *order, struct engine_op *op, int status,
                            const char *text, int32_t culprit)
{
    if (op->given_up)
        return;
    op->given_up = true;
    struct hvi_mesh_report *report = begin(order, op, HVI_MESH_GIVE_UP);
    report->status = status;
    report->culprit = culprit;
    snprintf(report->text, sizeof report->text, "%s", text);
    engine_span_tell(order, report);
}

void engine_opening_closed(struct engine_order *order, const struct engine_set *set)
{
    struct hvi_mesh_report *report =
        engine_span_begin(order, set, HVI_KIND_SET_CLOSE, HVI_MESH_BROUGHT);

    report->tensor = (struct hvi_mesh_name){.kind = HVI_KIND_SET_CLOSE};
    engine_span_tell(order, report);
}

static struct engine_op *find_reported(const struct engine_set *set, uint64_t id)
{
    struct engine_op *op = set->partial_first;

    while (op && !(op->reported && op->kind == HVI_KIND_SET_OPEN && op->number == id))
        op = op->set_next;
    return op;
}

static int carry_out(struct engine_order *order, struct engine_op *op,
                     const struct hvi_mesh_verdict *verdict)
{
    if (verdict->what == HVI_MESH_STARTS && verdict->new_set > 0) {
        op->new_set = verdict->new_set;
        op->new_serial = verdict->new_serial;
        op->ready_ns = order->now_ns;
        return engine_set_execute(order, op);
    }
    if (verdict->what == HVI_MESH_RETRACT && op->retracting)
        engine_op_return(order, op);
    else if (verdict->what == HVI_MESH_FAILED && verdict->status < HVI_OK)
        engine_op_fail_here(order, op, verdict->status, verdict->text, verdict->culprit);
    else
        return HVI_ERR_PROTOCOL;
    return HVI_OK;
}

int engine_opening_hear(struct engine_order *order, struct engine_set *set,
                        const struct hvi_mesh_verdict *verdict, char *text_p, size_t text_size)
{
    struct engine_op *op = find_reported(set, verdict->id);
    int status = op ? carry_out(order, op, verdict) : HVI_ERR_PROTOCOL;

    if (status == HVI_ERR_PROTOCOL)
        snprintf(text_p, text_size,
                 "verdict %" PRIu64 ": of kind %u, about opening %" PRIu64
                 " of process set %u as it cannot be",
                 verdict->number, verdict->what, verdict->id, verdict->new_set);
    return status;
}
