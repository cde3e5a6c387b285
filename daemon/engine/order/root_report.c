/* SPDX-License-Identifier: Apache-2.0
 * Root: where the reports of all nodes meet: what negotiate.c does with the parts of ranks.
 *
 *   report --> a new meeting, or the one of its name (meeting.c)
 *               |  root_said.c: what the node's ranks say
 *               +--all nodes have come--> root_start.c --> root_verdict.c, root_replay.c
 *               +--a node says that it has failed, or wants it to--> root_fail.c --> root_stale.c
 *
 * A node may take back what it has reported (RETRACT) while others are missing; groups stay. A node of which all members
 * have joined is present with nothing. Ops of some members only are root_partial.c's. */
#include "daemon/engine/order/root.h"

#include "base/status.h"
#include "daemon/engine/order/root_fail.h"
#include "daemon/engine/order/root_group.h"
#include "daemon/engine/order/root_partial.h"
#include "daemon/engine/order/root_replay.h"
#include "daemon/engine/order/root_said.h"
#include "daemon/engine/order/root_stale.h"
#include "daemon/engine/order/root_start.h"
#include "daemon/engine/order/root_verdict.h"
#include "daemon/engine/order/span_name.h"

#include <inttypes.h>
#include <stdlib.h>

/* The op of this name, or a new one. */
static int meet(const struct engine_root_hearing *hearing, struct engine_meeting **meeting_p)
{
    bool join = hearing->report->kind == HVI_KIND_JOIN;
    struct engine_op *op = join ? hearing->set->join : hearing->tensor->waiting;

    if (!op && hearing->root->count >= ENGINE_ROOT_WAITING_MAX)
        return HVI_ERR_LIMIT;
    if (hearing->report->kind > UINT16_MAX || !hvi_kind_is_known((uint16_t)hearing->report->kind) ||
        engine_partial_is((uint16_t)hearing->report->kind))
        return engine_root_disbelieve(hearing, "an op of kind %u", hearing->report->kind);
    *meeting_p = op ? engine_meeting_of(op)
                    : engine_meeting_new(hearing->root, hearing->set, hearing->tensor,
                                         (uint16_t)hearing->report->kind);
    if (!*meeting_p)
        return HVI_ERR_NO_MEMORY;
    if (!op && !join && hearing->set->join)
        (*meeting_p)->op.missing -= engine_meeting_of(hearing->set->join)->op.joined_count;
    return HVI_OK;
}

static int join(const struct engine_root_hearing *hearing, struct engine_meeting *meeting)
{
    struct engine_set *set = hearing->set;
    int32_t last = hearing->report->last;
    int32_t set_rank = engine_set_rank(set, last);

    if (set_rank < 0 || set->span->home[set_rank] != hearing->index)
        return engine_root_disbelieve(hearing, "rank %d is not there to join", last);
    if (meeting->shares[hearing->index].came)
        return engine_root_disbelieve(hearing, "its ranks have joined already");
    meeting->shares[hearing->index].came = true;
    meeting->last = last;
    meeting->op.joined_count++; /* nodes */
    meeting->op.missing--;
    for (struct engine_op *op = hearing->root->first; op; op = op->next) {
        if (op->set == set && op != &meeting->op && op->state == ENGINE_OP_WAITING &&
            !engine_meeting_of(op)->shares[hearing->index].came)
            op->missing--;
    }
    return engine_root_start_sweep(hearing->root, set);
}

/* All have joined. Works that have gone on without some of them start first: ranks that have joined may bring an op of
 * the same name once the join is over. */
static int end_join(struct engine_root *root, const struct engine_set *set)
{
    struct engine_op *join = set->join;

    for (const struct engine_op *op = root->first; op; op = op->next) {
        if (op->set == set && op->state == ENGINE_OP_SIZING)
            return HVI_OK;
    }
    return engine_root_start_complete(root, join);
}

/* A member of the node's group had failed before: the others do, too. */
static void fail_rest(const struct engine_root_hearing *hearing, const struct engine_tensor *leader)
{
    struct engine_root *root = hearing->root;
    struct engine_root_node *node = &root->nodes[hearing->node];
    struct engine_root_stale *stale = node->dropped;

    node->dropped = NULL;
    for (struct engine_op *op = root->first; op; op = op->next) {
        if (op->set == hearing->set && engine_meeting_has_leader(op, leader) &&
            engine_meeting_of(op)->shares[hearing->index].came) {
            engine_root_fail(root, op, stale->status,
                             stale->text ? stale->text : "its group has failed", stale->culprit);
            break;
        }
    }
    engine_root_stale_free(root, stale);
}

/* The last member of a node's group is here. */
static void finish_group(const struct engine_root_hearing *hearing)
{
    struct engine_root_node *node = &hearing->root->nodes[hearing->node];
    struct engine_tensor *leader = node->open;
    struct engine_op *op;

    node->open = NULL; /* what fails now is not of the group that comes next */
    if (node->dropped)
        fail_rest(hearing, leader);
    op = leader->waiting;
    if (op && engine_meeting_of(op)->shares[hearing->index].came &&
        engine_meeting_of(op)->unfinished > 0) {
        engine_meeting_of(op)->unfinished--;
        engine_root_group_check(hearing->root, op);
    }
    engine_tensor_put(&hearing->root->tensors, leader);
}

/* A member of a group: it is judged as a whole when the last one is here. */
static int open_group(const struct engine_root_hearing *hearing)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct engine_root_node *node = &hearing->root->nodes[hearing->node];
    struct engine_tensor *leader;

    if (report->said_count == 0 || !report->said[0].has_leader)
        return report->more || node->open
                   ? engine_root_disbelieve(hearing, "a group with another op in it")
                   : HVI_OK;
    leader =
        engine_span_tensor(&hearing->root->tensors, hearing->set->serial, &report->said[0].leader);
    if (!leader)
        return engine_root_disbelieve(hearing, "a group without a name");
    if (node->open)
        engine_tensor_put(&hearing->root->tensors, leader);
    if (node->open && node->open != leader)
        return engine_root_disbelieve(hearing, "two groups at a time");
    node->open = leader;
    return HVI_OK;
}

static int bring(const struct engine_root_hearing *hearing)
{
    struct engine_root *root = hearing->root;
    const struct hvi_mesh_report *report = hearing->report;
    struct engine_meeting *meeting;
    int status = meet(hearing, &meeting);

    if (status != HVI_OK)
        return status;
    if (report->kind == HVI_KIND_JOIN)
        return join(hearing, meeting);
    struct engine_share *share = &meeting->shares[hearing->index];
    if (share->came || engine_meeting_has_joined(hearing->set, hearing->index) ||
        meeting->op.state != ENGINE_OP_WAITING)
        return engine_root_disbelieve(hearing,
                                      "it had reported this op already, or its ranks have joined");
    status = engine_root_said_take(hearing, meeting);
    if (status != HVI_OK)
        return status;
    share->came = true;
    if (meeting->room > report->room)
        meeting->room = report->room;
    if (report->said[0].has_leader && report->said[0].group_index == 0)
        meeting->unfinished++;
    return --meeting->op.missing == 0 ? engine_root_start_complete(root, &meeting->op) : HVI_OK;
}

static int brought(const struct engine_root_hearing *hearing)
{
    struct engine_root_node *node = &hearing->root->nodes[hearing->node];
    int status = open_group(hearing);

    if (status != HVI_OK)
        return status;
    struct engine_root_stale *stale = engine_root_stale_take(node, hearing->tensor);
    if (!stale)
        status = bring(hearing);
    else if (node->dropped || !node->open)
        engine_root_stale_free(hearing->root, stale);
    else
        node->dropped = stale;
    if (status == HVI_OK && node->open && !hearing->report->more)
        finish_group(hearing);
    return status;
}

static int has_sized(const struct engine_root_hearing *hearing)
{
    struct engine_op *op = hearing->tensor->waiting;

    if (!op || op->state != ENGINE_OP_SIZING || !engine_meeting_of(op)->shares[hearing->index].came)
        return HVI_OK; /* it has failed meanwhile */
    if (--engine_meeting_of(op)->unsized > 0)
        return HVI_OK;
    return engine_root_start_sized(hearing->root, op);
}

static int has_failed(const struct engine_root_hearing *hearing)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct engine_root_stale *stale =
        engine_root_stale_take(&hearing->root->nodes[hearing->node], hearing->tensor);
    struct engine_meeting *meeting;

    if (stale) {
        engine_root_stale_free(hearing->root, stale);
        return HVI_OK;
    }
    int status = meet(hearing, &meeting);
    if (status != HVI_OK)
        return status;
    if (meeting->shares[hearing->index].came || meeting->op.state != ENGINE_OP_WAITING)
        return engine_root_disbelieve(hearing, "it had reported this op already");
    meeting->shares[hearing->index].came = true;
    engine_root_fail(hearing->root, &meeting->op, report->status, report->text, report->culprit);
    return HVI_OK;
}

static int gives_up(const struct engine_root_hearing *hearing)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct engine_op *op = hearing->tensor->waiting;

    if (op && engine_meeting_of(op)->shares[hearing->index].came)
        engine_root_fail(hearing->root, op, report->status, report->text, report->culprit);
    return HVI_OK;
}

/* In time, while other nodes are missing. Else the node will have another verdict. */
static int retracts(const struct engine_root_hearing *hearing)
{
    struct engine_root *root = hearing->root;
    struct engine_op *op = hearing->tensor->waiting;
    struct engine_share *share = op ? &engine_meeting_of(op)->shares[hearing->index] : NULL;
    bool left = false;

    if (!op || !share->came || op->state != ENGINE_OP_WAITING || op->kind == HVI_KIND_JOIN)
        return HVI_OK;
    if (engine_meeting_has_joined(hearing->set, hearing->index))
        return engine_root_disbelieve(hearing, "it takes an op back, and its ranks have joined");
    free(share->each);
    free(share->instances);
    *share = (struct engine_share){0};
    op->missing++;
    engine_root_verdict_begin(root, op, HVI_MESH_RETRACT);
    engine_root_verdict_send(root, hearing->node);
    for (uint32_t i = 0; i < op->set->span->nodes; i++)
        left = left || engine_meeting_of(op)->shares[i].came;
    if (!left)
        engine_meeting_drop(root, op);
    return HVI_OK;
}

static int hear(const struct engine_root_hearing *hearing)
{
    const struct hvi_mesh_report *report = hearing->report;
    bool fails = report->what == HVI_MESH_FAILED || report->what == HVI_MESH_GIVE_UP;

    if (fails && (report->status >= HVI_OK || report->kind == HVI_KIND_JOIN))
        return engine_root_disbelieve(hearing, "a failure with status %d", report->status);
    switch (report->what) {
    case HVI_MESH_BROUGHT:
        return brought(hearing);
    case HVI_MESH_SIZED:
        return has_sized(hearing);
    case HVI_MESH_FAILED:
        return has_failed(hearing);
    case HVI_MESH_GIVE_UP:
        return gives_up(hearing);
    case HVI_MESH_RETRACT:
        return retracts(hearing);
    default:
        return engine_root_disbelieve(hearing, "there is no report of kind %u", report->what);
    }
}

static int judge(struct engine_root *root, uint32_t node, const struct hvi_mesh_report *report,
                 char *text_p, size_t text_size)
{
    struct engine_root_hearing hearing = {
        root, node, 0, report, engine_sets_find(&root->sets, report->set), NULL, text_p, text_size};

    engine_root_stale_forget(root, &root->nodes[node], report->seen);
    if (!hearing.set || hearing.set->serial != report->serial)
        return report->serial < root->sets.serials
                   ? HVI_OK /* it has been removed */
                   : engine_root_disbelieve(&hearing, "process set %u is not there", report->set);
    if (engine_root_is_partial(hearing.set, report))
        return engine_root_partial(root, node, hearing.set, report, text_p, text_size);
    if (hearing.set->span)
        hearing.index = engine_places_find(hearing.set->span, node);
    if (!hearing.set->span || hearing.index == UINT32_MAX)
        return engine_root_disbelieve(&hearing, "it has no members in process set %u", report->set);
    hearing.tensor = engine_span_tensor(&root->tensors, report->serial, &report->tensor);
    if (!hearing.tensor)
        return engine_root_disbelieve(&hearing, "an op without a name");
    engine_set_get(hearing.set);
    int status = hear(&hearing);
    if (status == HVI_OK && hearing.set->join && hearing.set->join->missing == 0)
        status = end_join(root, hearing.set);
    engine_tensor_put(&root->tensors, hearing.tensor);
    engine_set_put(hearing.set);
    return status;
}

/* ---- reports while works repeat ---- */

static int judge_late(struct engine_root *root, const struct engine_root_late *late, char *text_p,
                      size_t text_size)
{
    struct hvi_mesh_packet packet;
    int status = hvi_mesh_decode(late->bytes, late->length, &packet, text_p, text_size);

    if (status != HVI_OK)
        return status;
    status = judge(root, packet.from, &packet.report, text_p, text_size);
    hvi_mesh_free(&packet);
    return status;
}

static int has_halted(struct engine_root *root, uint32_t node, uint64_t next, char *text_p,
                      size_t text_size)
{
    int status = HVI_OK;

    root->nodes[node].halted = true;
    if (root->halted == 0 || root->least > next)
        root->least = next;
    if (root->top < next)
        root->top = next;
    if (++root->halted < root->roster->nodes)
        return HVI_OK;
    engine_root_replay_resume(root, root->least);
    while (root->late && !root->live && status == HVI_OK) {
        struct engine_root_late *late = engine_root_late_take(root);
        status = judge_late(root, late, text_p, text_size);
        engine_root_late_free(late);
    }
    if (root->late && root->live)
        engine_root_replay_halt(root);
    return status;
}

int engine_root_report(struct engine_root *root, uint32_t node,
                       const struct hvi_mesh_report *report, char *text_p, size_t text_size)
{
    const struct engine_root_hearing hearing = {root, node, 0,      report,
                                                NULL, NULL, text_p, text_size};

    if (node >= root->roster->nodes || report->seen > root->nodes[node].number)
        return engine_root_disbelieve(&hearing, "it has seen verdict %" PRIu64, report->seen);
    if (report->what == HVI_MESH_HALTED) {
        if (!root->halting || root->nodes[node].halted || report->sequence <= root->sequence ||
            report->sequence > INT64_MAX)
            return engine_root_disbelieve(&hearing, "it cannot have halted before work %" PRIu64,
                                          report->sequence);
        return has_halted(root, node, report->sequence, text_p, text_size);
    }
    if (report->what == HVI_MESH_HALT) {
        if (root->live && report->seen >= root->nodes[node].announced)
            engine_root_replay_halt(root);
        return HVI_OK;
    }
    if (!root->live)
        return judge(root, node, report, text_p, text_size);
    engine_root_replay_halt(root);
    return engine_root_late_keep(root, node, report);
}

/* ---- what several nodes say alike ---- */

/* Of none of them is an op stale, or a group open, and none has joined: they are judged together. */
static bool are_plain(struct engine_root *root, const struct engine_set *set, const uint32_t *nodes,
                      uint32_t count, const struct hvi_mesh_report *report)
{
    if (root->live || !set || set->serial != report->serial || !set->span || set->join)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        struct engine_root_node *node = &root->nodes[nodes[i]];
        engine_root_stale_forget(root, node, report->seen);
        if (node->first || node->open)
            return false;
    }
    return true;
}

static int bring_alike(const struct engine_root_hearing *hearing, const uint32_t *nodes,
                       uint32_t count)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct engine_meeting *meeting;
    int status = meet(hearing, &meeting);

    if (status == HVI_OK && meeting->op.state != ENGINE_OP_WAITING)
        return engine_root_disbelieve(hearing, "it had reported this op already");
    struct engine_part *part =
        status == HVI_OK ? engine_root_said_listen(hearing, meeting, &report->said[0], &status)
                         : NULL;
    for (uint32_t i = 0; part && i < count; i++) {
        uint32_t index = engine_places_find(hearing->set->span, nodes[i]);
        if (index == UINT32_MAX || meeting->shares[index].came)
            return engine_root_disbelieve(hearing, "node %u had reported this op already",
                                          nodes[i]);
        meeting->shares[index].came = true;
        meeting->shares[index].one = part;
        meeting->op.missing--;
    }
    if (part && meeting->room > report->room)
        meeting->room = report->room;
    return part && meeting->op.missing == 0
               ? engine_root_start_complete(hearing->root, &meeting->op)
               : status;
}

static int judge_alike(struct engine_root_hearing *hearing, const uint32_t *nodes, uint32_t count)
{
    struct engine_root *root = hearing->root;

    hearing->tensor =
        engine_span_tensor(&root->tensors, hearing->report->serial, &hearing->report->tensor);
    if (!hearing->tensor)
        return engine_root_disbelieve(hearing, "an op without a name");
    engine_set_get(hearing->set);
    int status = bring_alike(hearing, nodes, count);
    engine_tensor_put(&root->tensors, hearing->tensor);
    engine_set_put(hearing->set);
    return status;
}

int engine_root_report_alike(struct engine_root *root, const uint32_t *nodes, uint32_t count,
                             const struct hvi_mesh_report *report, char *text_p, size_t text_size)
{
    struct engine_root_hearing hearing = {.root = root,
                                          .node = nodes[0],
                                          .report = report,
                                          .set = engine_sets_find(&root->sets, report->set),
                                          .text = text_p,
                                          .text_size = text_size};
    int status = HVI_OK;

    for (uint32_t i = 0; i < count; i++) {
        if (report->seen > root->nodes[nodes[i]].number)
            return engine_root_disbelieve(&hearing, "node %u has seen verdict %" PRIu64, nodes[i],
                                          report->seen);
    }
    if (are_plain(root, hearing.set, nodes, count, report))
        return judge_alike(&hearing, nodes, count);
    for (uint32_t i = 0; i < count && status == HVI_OK; i++)
        status = engine_root_report(root, nodes[i], report, text_p, text_size);
    return status;
}
