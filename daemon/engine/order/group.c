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
#include "daemon/engine/engine.h"

#include "base/assert.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- a rank's group comes in ---- */

void engine_group_drop(struct engine_session *session)
{
    struct engine_part *part = session->group_first, *next;

    session->group_first = session->group_last = NULL;
    for (; part; part = next) {
        next = part->sibling;
        engine_part_free(part);
    }
}

void engine_group_refuse(struct engine_session *session, int status, const char *text,
                         int32_t culprit)
{
    struct engine_part *part = session->group_first, *next;

    session->group_refused = status;
    session->group_first = session->group_last = NULL;
    for (; part; part = next) {
        next = part->sibling;
        engine_complete_part(part, status, text, culprit, 0, 0);
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

static void answer_unmet(struct engine *engine, struct engine_part *list, int status,
                         const char *text, int32_t culprit)
{
    struct engine_part *next;

    for (struct engine_part *part = list; part; part = next) {
        struct engine_op *op = part->tensor->waiting;
        next = part->next;
        if (op && op->state == ENGINE_OP_FAILED && !op->came[part->set_rank])
            engine_op_meet_failed(engine, op, part);
        else
            engine_complete_part(part, status, text, culprit, 0, 0);
    }
}

/* One member cannot be negotiated, so none is. */
static void give_up(struct engine *engine, struct engine_part *first, int status, const char *text,
                    int32_t culprit)
{
    struct engine_part *unmet = list_unmet(first), *part = first;

    while (!part->op && part->sibling != first)
        part = part->sibling;
    if (part->op)
        engine_negotiate_fail(engine, part->op, status, text, culprit);
    answer_unmet(engine, unmet, status, text, culprit);
}

static void break_off(struct engine_session *session, struct engine_part *first)
{
    struct engine_part *next;

    for (struct engine_part *part = list_unmet(first); part; part = next) {
        next = part->next;
        engine_part_free(part);
    }
    engine_session_violation(session, "one tensor name in flight twice");
}

/* False: the group is over. A member that failed on other ranks takes the rest along, but all have
 * to meet their ops first, so that who comes later finds them failed. */
static bool meet_all(struct engine *engine, struct engine_part *first)
{
    struct engine_part *part = first;
    struct engine_op *op, *failed = NULL;
    char text[HVI_TEXT_MAX + 1];

    do {
        int status = engine_op_meet(engine, part, &op);
        if (status == HVI_ERR_CANCELLED) {
            failed = failed ? failed : op;
        } else if (status == HVI_ERR_PROTOCOL) {
            break_off(part->session, first);
            return false;
        } else if (status != HVI_OK) {
            give_up(engine, first, status, hvi_status_text(status), -1);
            return false;
        }
        part = part->sibling;
    } while (part != first);
    if (!failed)
        return true;
    snprintf(text, sizeof text, "%s", failed->text ? failed->text : "its group has failed");
    give_up(engine, first, failed->status, text, failed->culprit);
    return false;
}

static void negotiate(struct engine *engine, struct engine_part *first)
{
    struct engine_part *part = first;

    if (!meet_all(engine, first))
        return;
    do {
        if (part->op->missing == 0 && !engine_op_complete(engine, part->op))
            return;
        part = part->sibling;
    } while (part != first);
    engine_group_check(engine, first->op);
}

void engine_group_take(struct engine_session *session, struct engine_part *part)
{
    struct engine *engine = session->engine;
    struct engine_part *first;

    if (session->group_last)
        session->group_last->sibling = part;
    else
        session->group_first = part;
    session->group_last = part;
    first = session->group_first;
    part->leader = first->tensor;
    part->leader->refs++;
    if (part->copy.group_index + 1 < part->copy.group_size)
        return;
    part->sibling = first;
    session->group_first = session->group_last = NULL;
    if (engine->broken_status != HVI_OK)
        give_up(engine, first, engine->broken_status, engine->broken_text, engine->broken_culprit);
    else if (part->set->removed)
        give_up(engine, first, HVI_ERR_NOT_FOUND, "the process set was removed", -1);
    else
        negotiate(engine, first);
}

/* ---- a group becomes complete ---- */

static void start(struct engine *engine, struct engine_op *leader)
{
    struct engine_part *first = engine_op_first_part(leader), *part = first;

    leader->group_started = true;
    leader->group_sizing = leader->group_running = leader->group_held;
    do {
        if (!engine_op_proceed(engine, part->op))
            return;
        part = part->sibling;
    } while (part != first);
}

bool engine_group_hold(struct engine *engine, struct engine_op *op)
{
    const struct engine_part *part = engine_op_first_part(op);
    struct engine_op *leader = part->leader->waiting;

    HVI_ASSERT(leader && leader->state <= ENGINE_OP_HELD);
    engine_op_set_state(op, ENGINE_OP_HELD, "complete; its group is not");
    op->group = leader;
    leader->group_held++;
    if (leader->group_held < part->copy.group_size)
        return true;
    start(engine, leader);
    return false;
}

void engine_group_unhold(struct engine_op *op)
{
    op->group->group_held--;
    op->group = NULL;
    engine_op_set_state(op, ENGINE_OP_WAITING, "a rank takes its part back");
}

bool engine_group_check(struct engine *engine, struct engine_op *leader)
{
    char text[HVI_TEXT_MAX + 1];

    if (leader->state != ENGINE_OP_HELD || leader->group_started ||
        leader->group_held == engine_op_first_part(leader)->copy.group_size)
        return true;
    engine_agree_describe_group(leader, text, sizeof text);
    engine_negotiate_fail(engine, leader, HVI_ERR_MISMATCH, text, -1);
    return false;
}

void engine_group_sized(struct engine *engine, struct engine_op *op)
{
    struct engine_op *leader = op->group;
    struct engine_part *first = engine_op_first_part(leader), *part = first;

    if (op->state == ENGINE_OP_SIZING)
        engine_op_set_state(op, ENGINE_OP_HELD, "its outputs are known; its group's are not");
    if (--leader->group_sizing > 0)
        return;
    do {
        engine_op_ready(engine, part->op);
        part = part->sibling;
    } while (part != first);
}

/* ---- a group is done ---- */

void engine_group_done(struct engine *engine, struct engine_op *op, int status, const char *text,
                       int32_t culprit)
{
    struct engine_op *leader = op->group;
    uint32_t left;

    if (status != HVI_OK && leader->status == HVI_OK) {
        leader->status = status;
        leader->culprit = culprit;
        leader->text = text ? strdup(text) : NULL;
    }
    if (--leader->group_running > 0)
        return;
    struct engine_part *part = engine_op_first_part(leader);
    char *why = leader->text;
    status = leader->status;
    culprit = leader->culprit;
    leader->text = NULL;
    for (left = part->copy.group_size; left > 0; left--) {
        struct engine_part *next = part->sibling;
        engine_op_finish(engine, part->op, status, why, culprit);
        part = next;
    }
    free(why);
}
