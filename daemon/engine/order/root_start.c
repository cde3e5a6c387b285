/* SPDX-License-Identifier: Apache-2.0
 * Root: an op of which every node has come is compared, and starts.
 *
 *   WAITING --last node reported, all agree--> starts --> over
 *    |  |              |                         ^
 *    |  |              +--not every output is sure to fit--> SIZING --all nodes say SIZED--> starts
 *    |  +--the same, in a group--> HELD --its whole group is so far--^
 *    +--mismatch, or a node says so--> over, on every node (root_fail.c) */
#include "daemon/engine/order/root_start.h"

#include "base/status.h"
#include "daemon/engine/order/agree.h"
#include "daemon/engine/order/root_fail.h"
#include "daemon/engine/order/root_group.h"
#include "daemon/engine/order/root_replay.h"
#include "daemon/engine/order/root_stale.h"
#include "daemon/engine/order/root_verdict.h"
#include "daemon/engine/order/set_ops.h"
#include "daemon/engine/order/sizes.h"

#include <stdlib.h>

/* Every engine finds for itself whether there is one of these ranks already. */
static int add_set(struct engine_root *root, struct engine_op *op)
{
    const struct engine_part *part = engine_op_first_part(op);
    struct engine_set *set;

    if (engine_sets_find_ranks(&root->sets, part->integers, part->integer_count))
        return HVI_OK;
    int status = engine_sets_add(&root->sets, part->integers, part->integer_count, &set);
    if (status != HVI_OK)
        return status == HVI_ERR_LIMIT ? HVI_OK : status;
    engine_set_place_all(set);
    op->new_set = set->id;
    op->new_serial = set->serial;
    return HVI_OK;
}

/* By `op`, which may be an op of the set. */
static void end_set(struct engine_root *root, const struct engine_op *op)
{
    uint32_t id = op->kind == HVI_KIND_SET_CLOSE ? op->set->id
                                                 : (uint32_t)engine_op_first_part(op)->copy.root;
    struct engine_set *set = engine_sets_find(&root->sets, id);
    struct engine_op *next;

    for (struct engine_op *waiting = root->first; waiting; waiting = next) {
        next = waiting->next;
        if (waiting->set == set && waiting != op)
            engine_meeting_drop(root, waiting);
    }
    for (uint32_t i = 0; i < root->roster->nodes; i++) {
        if (root->nodes[i].open && root->nodes[i].open->set == set->serial)
            engine_root_stale_drop_group(root, &root->nodes[i]);
    }
    engine_sets_remove(&root->sets, set);
}

/* Of an op that has been assembled, and cannot fail any more. */
static int start_as(struct engine_root *root, struct engine_op *op, bool repeats)
{
    int status = HVI_OK;

    if (op->kind == HVI_KIND_SET_ADD)
        status = add_set(root, op);
    if (status == HVI_OK)
        status = engine_root_verdict_announce(root, op, HVI_MESH_STARTS);
    if (status == HVI_OK && (op->kind == HVI_KIND_SET_REMOVE || op->kind == HVI_KIND_SET_CLOSE))
        end_set(root, op);
    if (status == HVI_OK)
        status = engine_root_replay_watch(root, op, repeats);
    engine_meeting_drop(root, op);
    return status;
}

static int start(struct engine_root *root, struct engine_op *op)
{
    engine_meeting_assemble(root, op);
    return start_as(root, op, engine_root_replay_may(root, op));
}

/* ---- groups ---- */

static int start_group(struct engine_root *root, struct engine_op *leader)
{
    struct engine_op **members = engine_meeting_of(leader)->members;
    uint32_t count = leader->group_held;
    bool repeats = true, others = false;
    int status = HVI_OK;

    engine_meeting_of(leader)->members = NULL; /* the leader goes first */
    for (uint32_t i = 0; i < count; i++) {
        engine_meeting_assemble(root, members[i]);
        repeats = repeats && engine_root_replay_may(root, members[i]);
        others =
            (repeats && engine_root_replay_take_sizes(members[i], members[i]->tensor)) || others;
    }
    if (others) /* a step begins before the group, not within it */
        engine_steps_forget(&root->steps, &root->tensors);
    for (uint32_t i = 0; i < count && status == HVI_OK; i++) {
        engine_meeting_assemble(root, members[i]);
        status = start_as(root, members[i], repeats);
    }
    free(members);
    return status;
}

int engine_root_start_sized(struct engine_root *root, struct engine_op *op)
{
    if (!op->group)
        return start(root, op);
    return --op->group->group_sizing == 0 ? start_group(root, op->group) : HVI_OK;
}

/* Complete and agreed, and so is its group. Here outputs are asked for if they have to be. */
static int proceed(struct engine_root *root, struct engine_op *op)
{
    struct engine_meeting *meeting = engine_meeting_of(op);
    char text[HVI_TEXT_MAX + 1];
    uint64_t most = 0;
    int status;

    if (!engine_sizes_asks(op->kind))
        return engine_root_start_sized(root, op);
    engine_meeting_assemble(root, op);
    status = engine_sizes_whole(op, &most, text, sizeof text);
    if (status != HVI_OK) {
        engine_root_fail(root, op, status, text, -1);
        return HVI_OK;
    }
    if (most <= meeting->room && meeting->room > 0)
        return engine_root_start_sized(root, op);
    for (uint32_t i = 0; i < op->set->span->nodes; i++)
        meeting->unsized += meeting->shares[i].came;
    status = engine_root_verdict_announce(root, op, HVI_MESH_SIZED);
    op->state = ENGINE_OP_SIZING;
    return status;
}

/* All members are there. */
static int proceed_group(struct engine_root *root, struct engine_op *leader)
{
    struct engine_op **members = engine_meeting_of(leader)->members;
    uint32_t count = leader->group_held, before = root->count;
    int status = HVI_OK;

    leader->group_started = true;
    leader->group_sizing = count;
    for (uint32_t i = 0; i < count && status == HVI_OK && root->count == before; i++)
        status = proceed(root, members[i]); /* the group goes as a whole, if it goes */
    return status;
}

static int hold(struct engine_root *root, struct engine_op *op)
{
    const struct engine_part *part = engine_op_first_part(op);
    struct engine_op *leader = part->leader->waiting;

    if (!leader || leader->state > ENGINE_OP_HELD || !engine_root_group_take(leader, part, op)) {
        engine_root_fail(root, op, HVI_ERR_MISMATCH, "the ranks disagree on the members of a group",
                         -1);
        return HVI_OK;
    }
    op->state = ENGINE_OP_HELD;
    op->group = leader;
    leader->group_held++;
    return leader->group_held == part->copy.group_size ? proceed_group(root, leader) : HVI_OK;
}

/* ---- from waiting to a verdict ---- */

int engine_root_start_complete(struct engine_root *root, struct engine_op *op)
{
    char text[HVI_TEXT_MAX + 1];
    int status;

    if (op->kind == HVI_KIND_JOIN)
        return start(root, op);
    engine_meeting_assemble(root, op);
    op->kind = engine_op_first_part(op)->copy.kind;
    status = engine_agree_check(op, text, sizeof text);
    if (status == HVI_OK && op->kind == HVI_KIND_SET_REMOVE)
        status = engine_set_check_removal(&root->sets, op, text, sizeof text);
    if (status != HVI_OK) {
        engine_root_fail(root, op, status, text, -1);
        return HVI_OK;
    }
    return engine_op_first_part(op)->leader ? hold(root, op) : proceed(root, op);
}

/* Completing an op may take others along: then from the start. */
int engine_root_start_sweep(struct engine_root *root, const struct engine_set *set)
{
    struct engine_op *op = root->first;
    int status = HVI_OK;

    while (op && status == HVI_OK) {
        struct engine_op *next = op->next;
        if (op->set == set && op != set->join && op->state == ENGINE_OP_WAITING &&
            op->missing == 0) {
            status = engine_root_start_complete(root, op);
            next = root->first;
        }
        op = next;
    }
    for (op = root->first; op && status == HVI_OK;) {
        uint32_t before = root->count;
        if (op->set == set && op->group == op)
            engine_root_group_check(root, op);
        op = root->count < before ? root->first : op->next;
    }
    return status;
}
