/* SPDX-License-Identifier: Apache-2.0
 * Groups: ops that run together or not at all.
 *
 * A rank submits the members of a group one behind the other; intake collects them here and
 * negotiates them only when the last has come, so every part in negotiation belongs to a whole
 * group. The members are ordinary ops. The first leads: its tensor, the index and the size are
 * things that ranks have to agree on. A complete and agreed member is HELD; as soon as all are, the
 * sizes of all are planned, missing outputs are asked for, and all become ready side by side. They
 * are answered together, too, when the last has been executed, all with the same status.
 *
 * When one fails, negotiate.c takes along whatever is bound to it. If the leader is complete but a
 * member is not although every rank has brought its whole group, the groups are not the same: that
 * is a mismatch like any other. */
#include "daemon/engine/order/group.h"

#include "base/status.h"
#include "daemon/engine/order/agree.h"
#include "daemon/engine/order/schedule.h"
#include "daemon/engine/order/span.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a rank's group comes in ---- */

static struct engine_part *take_all(struct engine_group *group)
{
    struct engine_part *first = group->first;

    group->first = group->last = NULL;
    return first;
}

void engine_group_drop(struct engine_order *order, struct engine_group *group)
{
    struct engine_part *next;

    for (struct engine_part *part = take_all(group); part; part = next) {
        next = part->sibling;
        order->sink->drop(part);
    }
}

void engine_group_refuse(struct engine_order *order, struct engine_group *group, int status,
                         const char *text, int32_t culprit)
{
    struct engine_part *next;

    group->refused = status;
    for (struct engine_part *part = take_all(group); part; part = next) {
        next = part->sibling;
        order->sink->answer(part, status, text, culprit);
    }
}

/* The parts of the ring that are in no op, as a list by .next. */
static struct engine_part *list_unmet(struct engine_part *first)
{
    struct engine_part *list = NULL, *part = first;

    do {
        if (!part->op) {
            part->next = list;
            list = part;
        }
        part = part->sibling;
    } while (part != first);
    return list;
}

static void answer_unmet(struct engine_order *order, struct engine_part *list, int status,
                         const char *text, int32_t culprit)
{
    struct engine_part *next;

    for (struct engine_part *part = list; part; part = next) {
        struct engine_op *op = engine_op_failed_for(part);
        next = part->next;
        if (op)
            engine_op_meet_failed(order, op, part);
        else
            order->sink->answer(part, status, text, culprit);
    }
}

/* One member cannot be negotiated, so none is. */
static void give_up(struct engine_order *order, struct engine_part *first, int status,
                    const char *text, int32_t culprit)
{
    struct engine_part *unmet = list_unmet(first), *part = first;

    while (!part->op && part->sibling != first)
        part = part->sibling;
    if (part->op)
        engine_op_fail(order, part->op, status, text, culprit);
    answer_unmet(order, unmet, status, text, culprit);
}

static void drop_unmet(struct engine_order *order, struct engine_part *first)
{
    struct engine_part *next;

    for (struct engine_part *part = list_unmet(first); part; part = next) {
        next = part->next;
        order->sink->drop(part);
    }
}

/* HVI_ERR_CANCELLED: the group is over. A member that failed on other ranks takes the rest along, but
 * all have to meet their ops first, so that ranks that come later find them failed. HVI_ERR_PROTOCOL:
 * as engine_group_take. */
static int meet_all(struct engine_order *order, struct engine_part *first)
{
    struct engine_part *part = first;
    struct engine_op *op, *failed = NULL;
    char text[HVI_TEXT_MAX + 1];

    do {
        int status = engine_op_meet(order, part, &op);
        if (status == HVI_ERR_CANCELLED) {
            failed = failed ? failed : op;
        } else if (status == HVI_ERR_PROTOCOL) {
            drop_unmet(order, first);
            return status;
        } else if (status != HVI_OK) {
            give_up(order, first, status, hvi_status_text(status), -1);
            return HVI_ERR_CANCELLED;
        }
        part = part->sibling;
    } while (part != first);
    if (!failed)
        return HVI_OK;
    snprintf(text, sizeof text, "%s", failed->text ? failed->text : "its group has failed");
    give_up(order, first, failed->status, text, failed->culprit);
    return HVI_ERR_CANCELLED;
}

static int negotiate(struct engine_order *order, struct engine_part *first)
{
    struct engine_part *part = first;
    int status = meet_all(order, first);

    if (status != HVI_OK)
        return status == HVI_ERR_PROTOCOL ? status : HVI_OK;
    do {
        if (part->op->missing == 0 && !engine_op_complete(order, part->op))
            return HVI_OK;
        part = part->sibling;
    } while (part != first);
    engine_group_check(order, first->op);
    return HVI_OK;
}

int engine_group_take(struct engine_order *order, struct engine_group *group,
                      struct engine_part *part)
{
    struct engine_part *first;

    if (group->last)
        group->last->sibling = part;
    else
        group->first = part;
    group->last = part;
    part->leader = group->first->tensor;
    part->leader->refs++;
    if (part->copy.group_index + 1 < part->copy.group_size)
        return HVI_OK;
    first = take_all(group);
    part->sibling = first;
    if (order->broken_status != HVI_OK)
        give_up(order, first, order->broken_status, order->broken_text, order->broken_culprit);
    else if (part->set->removed)
        give_up(order, first, HVI_ERR_NOT_FOUND, "the process set was removed", -1);
    else
        return negotiate(order, first);
    return HVI_OK;
}

/* ---- a group becomes complete ---- */

static void start(struct engine_order *order, struct engine_op *leader)
{
    struct engine_part *first = engine_op_first_part(leader), *part = first;

    leader->group_started = true;
    leader->group_sizing = leader->group_running = leader->group_held;
    if (leader->set->span) {
        if (!engine_schedule_take_group(order, leader))
            engine_span_report_group(order, leader);
        return;
    }
    do {
        if (!engine_op_proceed(order, part->op))
            return;
        part = part->sibling;
    } while (part != first);
}

static bool still_waits(const struct engine_op *leader)
{
    return leader && leader->state <= ENGINE_OP_HELD && !leader->group_started;
}

/* Whether the op is of the group of its leader's first rank. Without joined ranks it is, as every rank has brought it. */
static bool leads(const struct engine_op *leader, const struct engine_op *op)
{
    const struct engine_part *first, *part;

    if (!still_waits(leader))
        return false;
    if (!leader->set->join)
        return true;
    part = first = engine_op_first_part(leader);
    do {
        if (part->op == op)
            return true;
        part = part->sibling;
    } while (part != first);
    return false;
}

/* The op, and its leader's group where that still waits. */
static void fail_differing(struct engine_order *order, struct engine_op *op,
                           struct engine_op *leader)
{
    char text[HVI_TEXT_MAX + 1], label[ENGINE_LABEL];
    const bool waits = still_waits(leader);

    engine_tensor_label(op->tensor, label);
    snprintf(text, sizeof text, "%s '%s': ranks disagree on the members of its group",
             hvi_kind_text(engine_op_first_part(op)->copy.kind), label);
    if (waits)
        engine_agree_describe_group(leader, text, sizeof text);
    engine_op_fail(order, waits ? leader : op, HVI_ERR_MISMATCH, text, -1);
}

bool engine_group_hold(struct engine_order *order, struct engine_op *op)
{
    const struct engine_part *part = engine_op_first_part(op);
    struct engine_op *leader = part->leader->waiting;

    if (!leads(leader, op)) {
        fail_differing(order, op, leader);
        return false;
    }
    engine_op_set_state(op, ENGINE_OP_HELD, "complete; its group is not");
    op->group = leader;
    leader->group_held++;
    if (leader->group_held < part->copy.group_size)
        return true;
    if (leader->set->join && !engine_agree_on_group(leader))
        fail_differing(order, op, leader);
    else
        start(order, leader);
    return false;
}

void engine_group_unhold(struct engine_op *op)
{
    op->group->group_held--;
    op->group = NULL;
    engine_op_set_state(op, ENGINE_OP_WAITING, "a rank takes its part back");
}

bool engine_group_check(struct engine_order *order, struct engine_op *leader)
{
    if (leader->state != ENGINE_OP_HELD || leader->group_started ||
        leader->group_held == engine_op_first_part(leader)->copy.group_size)
        return true;
    fail_differing(order, leader, leader);
    return false;
}

void engine_group_sized(struct engine_order *order, struct engine_op *op)
{
    struct engine_op *leader = op->group;
    struct engine_part *first = engine_op_first_part(leader), *part = first;

    if (op->state == ENGINE_OP_SIZING)
        engine_op_set_state(op, ENGINE_OP_HELD, "its outputs are known; its group's are not");
    if (--leader->group_sizing > 0)
        return;
    if (leader->scheduled) {
        engine_schedule_group_sized(order, leader);
        return;
    }
    if (leader->set->span) { /* the step does not repeat any more */
        engine_span_report_group(order, leader);
        return;
    }
    do {
        engine_op_ready(order, part->op);
        part = part->sibling;
    } while (part != first);
}

/* ---- a group is done ---- */

static void note_failure(struct engine_op *leader, int status, const char *text, int32_t culprit)
{
    if (status == HVI_OK || leader->status != HVI_OK)
        return;
    leader->status = status;
    leader->culprit = culprit;
    leader->text = text ? strdup(text) : NULL;
}

static void finish_all(struct engine_order *order, struct engine_op *leader)
{
    struct engine_part *part = engine_op_first_part(leader);
    int32_t culprit = leader->culprit;
    int status = leader->status;
    char *why = leader->text;

    leader->text = NULL;
    for (uint32_t left = part->copy.group_size; left > 0; left--) {
        struct engine_part *next = part->sibling;
        engine_op_finish(order, part->op, status, why, culprit);
        part = next;
    }
    free(why);
}

void engine_group_done(struct engine_order *order, struct engine_op *op, int status,
                       const char *text, int32_t culprit)
{
    struct engine_op *leader = op->group;

    if (op->tentative)
        engine_schedule_over(order, op);
    note_failure(leader, status, text, culprit);
    if (--leader->group_running == 0)
        finish_all(order, leader);
}

/* ---- its works are withdrawn ---- */

void engine_group_returned(struct engine_order *order, struct engine_op *op)
{
    struct engine_op *leader = op->group;

    if (--leader->group_running > 0)
        return;
    note_failure(leader, order->broken_status, order->broken_text, order->broken_culprit);
    if (leader->status != HVI_OK) {
        finish_all(order, leader);
        return;
    }
    struct engine_part *first = engine_op_first_part(leader), *part = first;
    do {
        leader->group_running++;
        order->observer->op_returns(order->user, part->op);
        engine_op_come_back(order, part->op);
        part = part->sibling;
    } while (part != first);
}
