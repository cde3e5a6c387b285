/* SPDX-License-Identifier: Apache-2.0
 * Join: a rank that has no more data says so, and its peers need not wait for it any more.
 *
 * A JOIN is an op of its set that is complete when every member has joined; there is one at a time.
 * Until then a member that has joined counts as present in every other op of the set, without a
 * part: neutral in a reduction, zero rows elsewhere. What it had submitted before is not affected.
 * Each set has its own join. */
#include "daemon/engine/order/join.h"

#include "base/status.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/order/span.h"

bool engine_join_has(const struct engine_set *set, uint32_t place)
{
    return set->join && set->join->parts[place];
}

/* Nobody waits for this rank any more. Completing an op may take others along. */
static void sweep(struct engine_order *order, struct engine_set *set, uint32_t place)
{
    struct engine_op *op;

    for (set->cursor = set->first; (op = set->cursor);) {
        set->cursor = op->set_next;
        if (op != set->join && !op->parts[place] && op->state == ENGINE_OP_WAITING &&
            --op->missing == 0)
            engine_op_complete(order, op);
    }
    for (set->cursor = set->first; (op = set->cursor);) {
        set->cursor = op->set_next;
        if (op->state == ENGINE_OP_HELD && op->group == op)
            engine_group_check(order, op);
    }
}

static void excuse(struct engine_order *order, const struct engine_set *set, uint32_t place)
{
    struct engine_op *next;

    for (struct engine_op *op = order->failed_first; op; op = next) {
        next = op->next;
        if (op->set == set)
            engine_op_excuse(order, op, place);
    }
}

/* It goes on by itself, whatever its number means. */
static bool waits_for_outputs(const struct engine_op *op)
{
    return op->state == ENGINE_OP_SIZING ||
           (op->state == ENGINE_OP_HELD && op->group->group_started);
}

/* The root has yet to hear of it: its outputs are to come first, or it may come back. */
static bool owes(const struct engine_op *op)
{
    return (!op->reported && waits_for_outputs(op)) ||
           (op->retracting && op->state == ENGINE_OP_REPORTED && !op->sized);
}

/* Who submitted last, in doubt `last`: the engine may take several ranks' submissions in at once. */
static int32_t last_of(const struct engine_set *set, uint32_t last)
{
    struct engine_part **parts = set->join->parts;

    for (uint32_t i = 0; i < set->places; i++) {
        if (parts[i]->arrived_ns > parts[last]->arrived_ns)
            last = i;
    }
    return set->ranks[last];
}

/* To the root, behind all that the ranks of this node had brought before. */
static void report(struct engine_order *order, struct engine_set *set, uint32_t last)
{
    if (!set->join || set->join->reported)
        return;
    for (const struct engine_op *op = set->first; op; op = op->set_next) {
        if (op != set->join && owes(op))
            return;
    }
    engine_span_report_join(order, set->join, last_of(set, last));
}

void engine_join_check(struct engine_order *order, struct engine_set *set)
{
    if (set->span && !set->sweeping && set->joined == set->places && order->broken_status == HVI_OK)
        report(order, set, 0);
}

static void everybody_has(struct engine_order *order, struct engine_set *set, uint32_t last)
{
    if (set->span)
        report(order, set, last);
    else
        engine_join_end(order, set, last_of(set, last));
}

/* The op is no longer what its number means. */
static void let_go_of_number(struct engine_op *op)
{
    if (op->tensor->anon && op->tensor->waiting == op)
        op->tensor->waiting = NULL;
}

/* Unnamed ops count from 1 again. On several nodes all that was brought before the join is decided; what the schedule has
 * started goes on, and cannot come back any more. */
static void count_anew(struct engine_order *order, struct engine_set *set)
{
    for (struct engine_op *op = set->first; op && !set->span; op = op->set_next) {
        if (waits_for_outputs(op))
            let_go_of_number(op);
    }
    for (struct engine_op *op = order->schedule.first; op; op = op->set_next) {
        if (op->set == set && !op->withdrawn)
            let_go_of_number(op);
    }
    engine_set_restart(set);
}

void engine_join_end(struct engine_order *order, struct engine_set *set, int32_t last)
{
    struct engine_op *join = set->join;

    for (uint32_t i = 0; i < set->places; i++)
        join->parts[i]->rows = last;
    set->join = NULL;
    set->joined = 0;
    count_anew(order, set);
    engine_op_finish(order, join, HVI_OK, NULL, -1);
}

int engine_join_submit(struct engine_order *order, struct engine_part *part)
{
    struct engine_set *set = part->set;
    struct engine_op *op;
    int status = engine_op_meet(order, part, &op);

    if (status != HVI_OK)
        return status;
    set->join = op;
    set->joined++;
    set->sweeping = true;
    excuse(order, set, part->place);
    sweep(order, set, part->place);
    set->sweeping = false;
    if (set->joined == set->places)
        everybody_has(order, set, part->place);
    return HVI_OK;
}

void engine_join_undo(struct engine_op *join, uint32_t place)
{
    struct engine_set *set = join->set;

    set->joined--;
    for (struct engine_op *op = set->first; op; op = op->set_next) {
        if (op == join || op->parts[place])
            continue;
        if (op->state == ENGINE_OP_HELD && !op->group->group_started)
            engine_group_unhold(op);
        if (op->state == ENGINE_OP_WAITING)
            op->missing++;
    }
}
