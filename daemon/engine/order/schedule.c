/* SPDX-License-Identifier: Apache-2.0
 * Schedule: works that repeat, without a word between engines.
 *
 *   root: REPEATS --> live --> HALT (from the root) --> halted: HALTED to the root --> RESUMES --> as before
 *                      |
 *                      +--something else happens here, or nothing moves: HALT to the root
 *
 * While it is live, an op of the step, of which every rank here says what it said before, starts as soon as
 * all before it have: with the next number, and tentatively. Other nodes do the same, so all start the
 * same works in the same order; but not all may come. The backend lets nothing of a tentative work touch an
 * output before every node has started it (exec/backend.h).
 *
 * Unnamed ops of a kind have one name for all of a set, and come in the order of their numbers: so a step has one
 * of them at most.
 *
 * The members of a group stand side by side in the step, because the root starts them so. They wait for their turn
 * together and start together, so every node stops between groups and never within one: a group is withdrawn as a
 * whole.
 *
 * Whatever else happens, and would be reported, waits here, and the root is asked to halt. It halts all nodes,
 * and hears from each how far it has come. Works that all have started go on. The others are withdrawn from
 * the backend: their ops are reported as if this was the first time, in the order in which they came, and
 * then what has waited. So what differs fails, stalls or is taken back as ever.
 *
 * While works are being withdrawn no verdict is heard (mesh.c): it may be of their ops. */
#include "daemon/engine/order/schedule.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/order/agree.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/order/sentence.h"
#include "daemon/engine/order/sizes.h"
#include "daemon/engine/order/span.h"
#include "daemon/engine/order/steps.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* The message that it will be. */
struct engine_schedule_report {
    struct engine_schedule_report *next;
    struct hvi_mesh_packet packet;
};

/* ---- names ---- */

bool engine_schedule_may_repeat(const struct engine_op *op)
{
    return op->kind == HVI_KIND_BARRIER || op->kind == HVI_KIND_ALLREDUCE ||
           op->kind == HVI_KIND_BROADCAST;
}

struct engine_tensor *engine_schedule_name(struct engine_tensors *tensors,
                                           const struct engine_op *op)
{
    if (op->tensor->anon)
        return engine_tensor_get_unnamed(tensors, op->set->serial, op->kind);
    op->tensor->refs++;
    return op->tensor;
}

/* ---- the list ---- */

static void drop_list(struct engine_order *order)
{
    struct engine_schedule *schedule = &order->schedule;

    for (uint32_t i = 0; i < schedule->count; i++) {
        if (engine_tensor_is_unnamed(schedule->list[i]))
            schedule->list[i]->waiting = NULL;
        schedule->list[i]->entry = 0;
        engine_tensor_put(&order->tensors, schedule->list[i]);
    }
    free(schedule->list);
    schedule->list = NULL;
    schedule->count = 0;
}

static struct engine_schedule_report *take_report(struct engine_schedule *schedule)
{
    struct engine_schedule_report *report = schedule->reports;

    if (!report)
        return NULL;
    schedule->reports = report->next;
    if (!schedule->reports)
        schedule->reports_end = NULL;
    return report;
}

void engine_schedule_close(struct engine_order *order)
{
    struct engine_schedule *schedule = &order->schedule;
    struct engine_schedule_report *report;

    drop_list(order);
    while ((report = take_report(schedule))) {
        hvi_mesh_free(&report->packet);
        free(report);
    }
    for (; schedule->past_count > 0; schedule->past_count--) {
        uint32_t at =
            (schedule->past_at + ENGINE_STEP_MAX - schedule->past_count) % ENGINE_STEP_MAX;
        engine_tensor_put(&order->tensors, schedule->past[at]);
    }
    free(schedule->past);
    schedule->past = NULL;
    schedule->live = schedule->halted = false;
}

void engine_schedule_note(struct engine_order *order, const struct engine_op *op)
{
    struct engine_schedule *schedule = &order->schedule;

    if (!order->replay || !engine_schedule_may_repeat(op))
        return;
    if (!schedule->past)
        schedule->past = calloc(ENGINE_STEP_MAX, sizeof(struct engine_tensor *));
    struct engine_tensor *name = engine_schedule_name(&order->tensors, op);
    if (!schedule->past || !name) { /* then the root's word that it repeats is refused */
        if (name)
            engine_tensor_put(&order->tensors, name);
        return;
    }
    engine_agree_remember_as(op, name);
    if (engine_tensor_is_unnamed(name))
        name->last = op->tensor->anon_seq;
    if (schedule->past_count == ENGINE_STEP_MAX)
        engine_tensor_put(&order->tensors, schedule->past[schedule->past_at]);
    else
        schedule->past_count++;
    schedule->past[schedule->past_at] = name;
    schedule->past_at = (schedule->past_at + 1) % ENGINE_STEP_MAX;
}

/* ---- what starts ---- */

static void link_tentative(struct engine_schedule *schedule, struct engine_op *op)
{
    op->set_next = NULL;
    op->set_prev = schedule->last;
    if (op->set_prev)
        op->set_prev->set_next = op;
    else
        schedule->first = op;
    schedule->last = op;
}

static void unlink_tentative(struct engine_schedule *schedule, struct engine_op *op)
{
    if (op->set_prev)
        op->set_prev->set_next = op->set_next;
    else
        schedule->first = op->set_next;
    if (op->set_next)
        op->set_next->set_prev = op->set_prev;
    else
        schedule->last = op->set_prev;
    op->set_next = op->set_prev = NULL;
    schedule->progress++;
}

static void start(struct engine_order *order, struct engine_op *op)
{
    struct engine_schedule *schedule = &order->schedule;

    schedule->at = (schedule->at + 1) % schedule->count;
    schedule->progress++;
    op->sequence = ++order->sequence;
    op->tentative = op->replayed = true;
    op->ready_ns = order->now_ns;
    order->observer->op_complete(order->user, op);
    int status = engine_sizes_spread(op, NULL, 0);
    HVI_ASSERT(status == HVI_OK); /* of kinds that have all one size */
    engine_op_ready(order, op);
    link_tentative(schedule, op);
}

static void start_all(struct engine_order *order)
{
    struct engine_schedule *schedule = &order->schedule;
    struct engine_tensor *name = schedule->list[schedule->at];

    while (name->waiting && name->waiting->state == ENGINE_OP_SCHEDULED) {
        if (engine_tensor_is_unnamed(name))
            name->last = name->waiting->tensor->anon_seq;
        start(order, name->waiting);
        name = schedule->list[schedule->at];
    }
}

/* Every rank here says what all said of the last unnamed op of its kind. */
static bool repeats_unnamed(const struct engine_op *op, const struct engine_tensor *name)
{
    if (name->waiting || op->tensor->anon_seq != name->last + 1)
        return false;
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (!engine_agree_repeats_as(op->parts[i], name))
            return false;
    }
    return true;
}

static bool repeats(const struct engine_op *op, const struct engine_tensor *name)
{
    if (name->entry == 0 || op->parts_present < op->set->places)
        return false;
    return engine_tensor_is_unnamed(name) ? repeats_unnamed(op, name)
                                          : op->repeating == op->set->places;
}

bool engine_schedule_take(struct engine_order *order, struct engine_op *op)
{
    struct engine_schedule *schedule = &order->schedule;

    if (!schedule->live || schedule->asked || !engine_schedule_may_repeat(op))
        return false;
    struct engine_tensor *name = engine_schedule_name(&order->tensors, op);
    bool takes = name && repeats(op, name);
    if (takes) {
        engine_op_set_state(op, ENGINE_OP_SCHEDULED,
                            "every rank of this node repeats what it said");
        name->waiting = op;
        schedule->waiting++;
    }
    if (name)
        engine_tensor_put(&order->tensors, name);
    if (takes)
        start_all(order);
    return takes;
}

/* The entry of each follows that of the one before it. */
static bool is_in_list(const struct engine_schedule *schedule, const struct engine_part *first)
{
    const struct engine_part *part = first;
    uint32_t due = first->op->tensor->entry;

    do {
        const struct engine_op *op = part->op;
        if (!engine_schedule_may_repeat(op) || !repeats(op, op->tensor) || op->tensor->entry != due)
            return false;
        due = due % schedule->count + 1;
        part = part->sibling;
    } while (part != first);
    return true;
}

bool engine_schedule_take_group(struct engine_order *order, struct engine_op *leader)
{
    struct engine_schedule *schedule = &order->schedule;
    struct engine_part *first = engine_op_first_part(leader), *part = first;

    if (!schedule->live || schedule->asked || !is_in_list(schedule, first))
        return false;
    do {
        engine_op_set_state(part->op, ENGINE_OP_SCHEDULED,
                            "every rank of this node repeats its group");
        schedule->waiting++;
        part = part->sibling;
    } while (part != first);
    start_all(order);
    return true;
}

void engine_schedule_leave(struct engine_order *order, const struct engine_op *op)
{
    struct engine_schedule *schedule = &order->schedule;

    schedule->waiting--;
    for (uint32_t i = 0; op->tensor->anon && i < schedule->count; i++) {
        if (schedule->list[i]->waiting == op)
            schedule->list[i]->waiting = NULL;
    }
}

void engine_schedule_over(struct engine_order *order, struct engine_op *op)
{
    unlink_tentative(&order->schedule, op);
    order->schedule.returning -= op->withdrawn;
    op->tentative = op->withdrawn = false;
}

/* ---- to the root ---- */

static void tell(struct engine_order *order, enum hvi_mesh_what what, uint64_t sequence)
{
    const struct hvi_mesh_report report = {
        .what = what,
        .seen = order->seen,
        .serial = order->sets.by_id[0]->serial,
        .has_tensor = true,
        .last = -1,
        .culprit = -1,
        .sequence = sequence,
    };

    order->span->report(order->span_user, &report);
}

void engine_schedule_halt(struct engine_order *order)
{
    struct engine_schedule *schedule = &order->schedule;

    if (!schedule->live || schedule->asked)
        return;
    schedule->asked = true;
    tell(order, HVI_MESH_HALT, 0);
}

/* With everything that it points at. */
static int copy_report(const struct hvi_mesh_report *report, struct hvi_mesh_packet *packet_p)
{
    const struct hvi_mesh_packet packet = {.has_report = true, .report = *report};
    unsigned char *bytes;
    size_t length;
    char text[128];
    int status = hvi_mesh_encode(&packet, &bytes, &length);

    if (status != HVI_OK)
        return status;
    status = hvi_mesh_decode(bytes, length, packet_p, text, sizeof text);
    free(bytes);
    return status;
}

bool engine_schedule_holds(struct engine_order *order, const struct hvi_mesh_report *report)
{
    struct engine_schedule *schedule = &order->schedule;

    if (!schedule->live && !schedule->halted)
        return false;
    struct engine_schedule_report *held = calloc(1, sizeof *held);
    if (!held || copy_report(report, &held->packet) != HVI_OK) {
        free(held);
        return false; /* the root gets it too early, and ends the job if it cannot be */
    }
    if (schedule->reports)
        *schedule->reports_end = held;
    else
        schedule->reports = held;
    schedule->reports_end = &held->next;
    engine_schedule_halt(order);
    return true;
}

/* ---- from the root ---- */

/* False: a tensor is in it twice. */
static bool take_list(struct engine_schedule *schedule, uint32_t count)
{
    uint32_t first = schedule->past_at + ENGINE_STEP_MAX - count;

    for (uint32_t i = 0; i < count; i++) {
        struct engine_tensor *tensor = schedule->past[(first + i) % ENGINE_STEP_MAX];
        if (tensor->entry > 0)
            return false;
        tensor->refs++;
        tensor->entry = ++schedule->count;
        schedule->list[i] = tensor;
    }
    return true;
}

static int begin(struct engine_order *order, const struct hvi_mesh_verdict *verdict, char *text_p,
                 size_t text_size)
{
    struct engine_schedule *schedule = &order->schedule;
    uint32_t count = verdict->count;

    if (schedule->live || schedule->halted || count == 0 || count > schedule->past_count ||
        verdict->sequence <= order->sequence)
        return engine_sentence_bad_verdict(text_p, text_size, verdict->number,
                                           "the last %u works cannot repeat as %" PRIu64, count,
                                           verdict->sequence);
    schedule->list = calloc(count, sizeof(struct engine_tensor *));
    if (!schedule->list)
        return HVI_ERR_NO_MEMORY;
    if (!take_list(schedule, count))
        return engine_sentence_bad_verdict(text_p, text_size, verdict->number,
                                           "a tensor comes twice in a step");
    HVI_LOG(HVI_LOG_DEBUG, "schedule", "step-repeats", "its works start without the root",
            "job=%s works=%" PRIu32, order->job, count);
    schedule->at = 0;
    schedule->live = true;
    schedule->asked = false;
    order->sequence = verdict->sequence - 1;
    return HVI_OK;
}

static int halt(struct engine_order *order, const struct hvi_mesh_verdict *verdict, char *text_p,
                size_t text_size)
{
    struct engine_schedule *schedule = &order->schedule;

    if (!schedule->live)
        return engine_sentence_bad_verdict(text_p, text_size, verdict->number, "nothing repeats");
    drop_list(order);
    schedule->live = false;
    schedule->halted = true;
    tell(order, HVI_MESH_HALTED, order->sequence + 1);
    return HVI_OK;
}

static void unlist_ready(struct engine_order *order, struct engine_op *op)
{
    struct engine_op **link = &order->ready_first, *before = NULL;

    while (*link != op) {
        before = *link;
        link = &before->next;
    }
    *link = op->next;
    if (order->ready_last == op)
        order->ready_last = before;
    order->ready_count--;
}

void engine_schedule_returned(struct engine_order *order, struct engine_op *op)
{
    HVI_ASSERT(op->withdrawn);
    engine_schedule_over(order, op);
    op->replayed = false;
    if (op->group) {
        engine_group_returned(order, op);
    } else if (order->broken_status == HVI_OK) {
        order->observer->op_returns(order->user, op);
        engine_op_come_back(order, op);
    } else {
        engine_op_finish(order, op, order->broken_status, order->broken_text,
                         order->broken_culprit);
    }
}

/* The works from `least` on. */
static void withdraw(struct engine_order *order, uint64_t least, uint64_t top)
{
    struct engine_schedule *schedule = &order->schedule;
    struct engine_op *next;

    for (struct engine_op *op = schedule->first; op; op = next) {
        next = op->set_next;
        if (op->sequence < least)
            continue;
        engine_span_report_again(order, op);
        op->withdrawn = true;
        schedule->returning++;
        if (op->state != ENGINE_OP_READY)
            continue;
        unlist_ready(order, op);
        engine_schedule_returned(order, op);
    }
    if (schedule->returning > 0)
        order->span->withdraw(order->span_user, least, top);
}

static void report_group(struct engine_order *order, struct engine_op *leader)
{
    struct engine_part *first = engine_op_first_part(leader), *part = first;

    do {
        engine_schedule_leave(order, part->op);
        part = part->sibling;
    } while (part != first);
    engine_span_report_group(order, leader);
}

/* Those whose turn has not come. */
static void report_waiting(struct engine_order *order)
{
    struct engine_op *op = order->waiting_first;

    for (; op && order->schedule.waiting > 0; op = op->next) {
        if (op->state != ENGINE_OP_SCHEDULED)
            continue;
        if (op->group) {
            report_group(order, op->group);
            continue;
        }
        engine_schedule_leave(order, op);
        engine_span_report(order, op, false);
    }
}

static int resume(struct engine_order *order, const struct hvi_mesh_verdict *verdict, char *text_p,
                  size_t text_size)
{
    struct engine_schedule *schedule = &order->schedule;
    struct engine_schedule_report *report;
    uint64_t next = order->sequence + 1;

    if (!schedule->halted || verdict->least > next || verdict->sequence < next)
        return engine_sentence_bad_verdict(text_p, text_size, verdict->number,
                                           "works %" PRIu64 " to %" PRIu64 " cannot be, as %" PRIu64
                                           " was next",
                                           verdict->least, verdict->sequence, next);
    HVI_LOG(HVI_LOG_DEBUG, "schedule", "step-differs", "works start by the root's word again",
            "job=%s withdrawn=%" PRIu64, order->job, next - verdict->least);
    schedule->halted = false;
    order->sequence = verdict->sequence - 1;
    withdraw(order, verdict->least, verdict->sequence);
    report_waiting(order);
    while ((report = take_report(schedule))) {
        order->span->report(order->span_user, &report->packet.report);
        hvi_mesh_free(&report->packet);
        free(report);
    }
    return HVI_OK;
}

bool engine_schedule_is_meant(uint32_t what)
{
    return what >= HVI_MESH_REPEATS && what <= HVI_MESH_RESUMES;
}

int engine_schedule_hear(struct engine_order *order, const struct hvi_mesh_verdict *verdict,
                         char *text_p, size_t text_size)
{
    switch (verdict->what) {
    case HVI_MESH_REPEATS:
        return begin(order, verdict, text_p, text_size);
    case HVI_MESH_HALT:
        return halt(order, verdict, text_p, text_size);
    case HVI_MESH_RESUMES:
        return resume(order, verdict, text_p, text_size);
    default:
        return engine_sentence_bad_verdict(text_p, text_size, verdict->number, "it is no verdict");
    }
}
