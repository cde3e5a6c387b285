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

/* Last is who submitted last: the engine may take several ranks' submissions in at once. */
static void everybody_has(struct engine_order *order, struct engine_set *set, uint32_t last)
{
    struct engine_op *join = set->join;

    for (uint32_t i = 0; i < set->places; i++) {
        if (join->parts[i]->arrived_ns > join->parts[last]->arrived_ns)
            last = i;
    }
    if (set->span)
        engine_span_report_join(order, join, set->ranks[last]);
    else
        engine_join_end(order, set, set->ranks[last]);
}

/* Complete on this node, which is all there is: it goes on by itself, whatever its number means. */
static bool waits_for_outputs(const struct engine_op *op)
{
    return op->state == ENGINE_OP_SIZING ||
           (op->state == ENGINE_OP_HELD && op->group->group_started);
}

/* Unnamed ops count from 1 again. The root of several nodes still means older ones by their numbers. */
static void count_anew(struct engine_set *set)
{
    for (struct engine_op *op = set->first; op && !set->span; op = op->set_next) {
        if (op->tensor->anon && op->tensor->waiting == op && waits_for_outputs(op))
            op->tensor->waiting = NULL;
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
    count_anew(set);
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
    excuse(order, set, part->place);
    sweep(order, set, part->place);
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
