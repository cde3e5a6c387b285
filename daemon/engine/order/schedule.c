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
 * Unnamed ops of a kind and set come in the order of their numbers. Where a step has n of them, the next one of each is
 * n further on. The entry is the tensor of the op that was the last of it when the step was announced; its .last is the
 * number of the one that has started last. What stands for all of the kind and set (engine_tensor_get_unnamed) has in
 * .last the number of the first entry, and in .entry how many there are; each entry holds a reference of it.
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
#include <string.h>

/* The message that it will be. */
struct engine_schedule_report {
    struct engine_schedule_report *next;
    struct hvi_mesh_packet packet;
};

bool engine_schedule_may_repeat(const struct engine_op *op)
{
    return op->kind == HVI_KIND_BARRIER || op->kind == HVI_KIND_ALLREDUCE ||
           op->kind == HVI_KIND_BROADCAST || engine_sizes_asks(op->kind);
}

/* ---- memory of GPUs ---- */

/* A node takes from the last verdict where the other nodes' memory is. Every member has an input on a GPU, so every node takes
 * part in the work, and no output that comes late says where a member's memory is. Unnamed ops are negotiated. */
bool engine_schedule_may_repeat_on_gpus(const struct engine_op *op, const uint64_t *instances)
{
    if (op->tensor->anon)
        return false;
    for (uint32_t i = 0; i < op->set->size; i++) {
        if (instances[i] == 0)
            return false;
    }
    return true;
}

/* Those of the verdict, for the next op of this name. Without memory for them that is negotiated. */
static void keep_gpus(const struct engine_op *op)
{
    struct engine_tensor *tensor = op->tensor;
    const uint32_t size = op->set->size;
    const bool keeps = op->instances && engine_schedule_may_repeat_on_gpus(op, op->instances);

    if (!keeps || (tensor->gpus && tensor->gpus->count != size)) {
        free(tensor->gpus);
        tensor->gpus = NULL;
    }
    if (keeps && !tensor->gpus)
        tensor->gpus = malloc(sizeof *tensor->gpus + size * sizeof tensor->gpus->instances[0]);
    if (!keeps || !tensor->gpus)
        return;
    tensor->gpus->count = size;
    tensor->gpus->failed = false;
    memcpy(tensor->gpus->instances, op->instances, size * sizeof op->instances[0]);
}

/* Every rank here has its memory where it had it. All parts say the same of it, as the entry does. */
static bool gpus_repeat(const struct engine_op *op, const struct engine_tensor *entry)
{
    const struct engine_kept_gpus *kept = entry->gpus;

    if (entry->agreed.memory != HVI_MEMORY_DEVICE)
        return true;
    if (!kept || kept->failed || kept->count != op->set->size)
        return false;
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (op->parts[i]->instance != kept->instances[op->set->numbers[i]])
            return false;
    }
    return true;
}

void engine_schedule_ended(struct engine_op *op, int status)
{
    if (status != HVI_OK && op->tensor->gpus)
        op->tensor->gpus->failed = true;
}

/* ---- unnamed ops ---- */

static struct engine_tensor *family_of(struct engine_order *order,
                                       const struct engine_tensor *tensor)
{
    return engine_tensor_get_unnamed(&order->tensors, tensor->set, tensor->anon_kind);
}

static int join_family(struct engine_order *order, struct engine_tensor *tensor)
{
    struct engine_tensor *family = family_of(order, tensor);

    if (!family)
        return HVI_ERR_NO_MEMORY;
    if (family->entry++ == 0)
        family->last = tensor->anon_seq;
    tensor->last = tensor->anon_seq;
    return HVI_OK;
}

static void leave_family(struct engine_order *order, struct engine_tensor *tensor)
{
    struct engine_tensor *family = family_of(order, tensor);

    HVI_ASSERT(family);
    family->entry = 0;
    tensor->waiting = NULL;
    engine_tensor_put(&order->tensors, family);
    engine_tensor_put(&order->tensors, family); /* the entry's */
}

/* Of the step, for an op of this name: the caller holds one reference. NULL: there is none, or no memory. *count_p: how
 * many unnamed ones of its kind the step has. */
static struct engine_tensor *entry_of(struct engine_order *order, struct engine_tensor *tensor,
                                      uint32_t *count_p)
{
    struct engine_tensor *entry = NULL;

    *count_p = 0;
    if (!tensor->anon) {
        tensor->refs++;
        return tensor;
    }
    struct engine_tensor *family = family_of(order, tensor);
    if (!family)
        return NULL;
    if (family->entry > 0) {
        uint64_t place = (tensor->anon_seq - family->last) % family->entry;
        entry = engine_tensor_get_anon(&order->tensors, tensor->set, tensor->anon_kind,
                                       family->last + place);
        *count_p = family->entry;
    }
    engine_tensor_put(&order->tensors, family);
    return entry;
}

/* ---- the list ---- */

static void drop_list(struct engine_order *order)
{
    struct engine_schedule *schedule = &order->schedule;

    for (uint32_t i = 0; i < schedule->count; i++) {
        if (schedule->list[i]->anon)
            leave_family(order, schedule->list[i]);
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

    /* Steps are the root's to find, and whether they are replayed is its node's setting. */
    if ((order->root && !order->replay) || !engine_schedule_may_repeat(op))
        return;
    if (!schedule->past)
        schedule->past = calloc(ENGINE_STEP_MAX, sizeof(struct engine_tensor *));
    if (!schedule->past) /* then the root's word that it repeats is refused */
        return;
    engine_agree_remember(op);
    engine_sizes_keep(op, op->tensor);
    keep_gpus(op);
    op->tensor->refs++;
    if (schedule->past_count == ENGINE_STEP_MAX)
        engine_tensor_put(&order->tensors, schedule->past[schedule->past_at]);
    else
        schedule->past_count++;
    schedule->past[schedule->past_at] = op->tensor;
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
    if (op->parts[0]->memory == HVI_MEMORY_DEVICE)
        op->instances =
            op->tensor->gpus->instances; /* lent: the next verdict of this name comes later */
    op->ready_ns = order->now_ns;
    order->observer->op_complete(order->user, op);
    if (!engine_sizes_asks(op->kind)) {
        int status = engine_sizes_spread(op, NULL, 0);
        HVI_ASSERT(status == HVI_OK); /* of kinds that have all one size */
    }
    engine_op_ready(order, op);
    link_tentative(schedule, op);
}

static void start_all(struct engine_order *order)
{
    struct engine_schedule *schedule = &order->schedule;
    struct engine_tensor *name = schedule->list[schedule->at];

    while (name->waiting && name->waiting->state == ENGINE_OP_SCHEDULED) {
        if (name->anon)
            name->last = name->waiting->tensor->anon_seq;
        start(order, name->waiting);
        name = schedule->list[schedule->at];
    }
}

/* Every rank here says what all said of the entry. */
static bool all_repeat(const struct engine_op *op, const struct engine_tensor *entry)
{
    bool rows_are_own = op->kind == HVI_KIND_ALLGATHER || op->kind == HVI_KIND_ALLTOALL;

    for (uint32_t i = 0; i < op->set->places; i++) {
        if (rows_are_own ? !engine_agree_repeats_but_rows(op->parts[i], entry)
                         : !engine_agree_repeats_as(op->parts[i], entry))
            return false;
    }
    return engine_sizes_repeat(op, entry) && gpus_repeat(op, entry);
}

/* The op is the next one of its entry. */
static bool repeats(const struct engine_op *op, const struct engine_tensor *entry, uint32_t count)
{
    if (entry->entry == 0 || op->parts_present < op->set->places)
        return false;
    if (entry->anon && (entry->waiting || op->tensor->anon_seq != entry->last + count))
        return false;
    return all_repeat(op, entry);
}

bool engine_schedule_take(struct engine_order *order, struct engine_op *op)
{
    struct engine_schedule *schedule = &order->schedule;
    uint32_t count;

    if (!schedule->live || schedule->asked || !engine_schedule_may_repeat(op))
        return false;
    struct engine_tensor *entry = entry_of(order, op->tensor, &count);
    bool takes = entry && repeats(op, entry, count) &&
                 (!engine_sizes_asks(op->kind) || engine_sizes_spread_kept(op, entry));
    if (takes) {
        op->scheduled = true;
        entry->waiting = op;
        schedule->waiting++;
    }
    if (entry)
        engine_tensor_put(&order->tensors, entry);
    if (takes && engine_sizes_asks(op->kind))
        engine_op_ask_for_outputs(order, op);
    else if (takes)
        engine_schedule_sized(order, op);
    return takes;
}

void engine_schedule_sized(struct engine_order *order, struct engine_op *op)
{
    engine_op_set_state(op, ENGINE_OP_SCHEDULED, "every rank of this node repeats what it said");
    if (order->schedule.live && !order->schedule.asked)
        start_all(order);
}

/* The entry of each follows that of the one before it. */
static bool is_in_list(const struct engine_schedule *schedule, const struct engine_part *first)
{
    const struct engine_part *part = first;
    uint32_t due = first->op->tensor->entry;

    do {
        struct engine_op *op = part->op;
        if (!engine_schedule_may_repeat(op) || op->tensor->anon || !repeats(op, op->tensor, 0) ||
            op->tensor->entry != due)
            return false;
        if (engine_sizes_asks(op->kind) && !engine_sizes_spread_kept(op, op->tensor))
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
        part->op->scheduled = true;
        schedule->waiting++;
        part = part->sibling;
    } while (part != first);
    do {
        struct engine_op *op = part->op;
        part = part->sibling;
        if (!engine_sizes_asks(op->kind))
            engine_group_sized(order, op);
        else if (!engine_op_ask_for_outputs(order, op)) /* it has failed, with its group */
            return true;
    } while (part != first);
    return true;
}

void engine_schedule_group_sized(struct engine_order *order, struct engine_op *leader)
{
    struct engine_part *first = engine_op_first_part(leader), *part = first;

    do {
        engine_op_set_state(part->op, ENGINE_OP_SCHEDULED,
                            "every rank of this node repeats its group");
        part = part->sibling;
    } while (part != first);
    if (order->schedule.live && !order->schedule.asked)
        start_all(order);
}

void engine_schedule_leave(struct engine_order *order, struct engine_op *op)
{
    uint32_t count;

    op->scheduled = false;
    order->schedule.waiting--;
    struct engine_tensor *entry = entry_of(order, op->tensor, &count);
    if (!entry)
        return;
    if (entry->anon && entry->waiting == op)
        entry->waiting = NULL;
    engine_tensor_put(&order->tensors, entry);
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

/* HVI_ERR_PROTOCOL: a tensor is in it twice. */
static int take_list(struct engine_order *order, uint32_t count)
{
    struct engine_schedule *schedule = &order->schedule;
    uint32_t first = schedule->past_at + ENGINE_STEP_MAX - count;

    for (uint32_t i = 0; i < count; i++) {
        struct engine_tensor *tensor = schedule->past[(first + i) % ENGINE_STEP_MAX];
        if (tensor->entry > 0)
            return HVI_ERR_PROTOCOL;
        if (tensor->anon && join_family(order, tensor) != HVI_OK)
            return HVI_ERR_NO_MEMORY;
        tensor->refs++;
        tensor->entry = ++schedule->count;
        schedule->list[i] = tensor;
    }
    return HVI_OK;
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
    int status = take_list(order, count);
    if (status == HVI_ERR_PROTOCOL)
        return engine_sentence_bad_verdict(text_p, text_size, verdict->number,
                                           "a tensor comes twice in a step");
    if (status != HVI_OK)
        return status;
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
        op->instances = NULL;
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
    if (leader->group_sizing == 0) /* else its outputs are to come first */
        engine_span_report_group(order, leader);
}

/* Those whose turn has not come. */
static void report_waiting(struct engine_order *order)
{
    struct engine_op *op = order->waiting_first;

    for (; op && order->schedule.waiting > 0; op = op->next) {
        if (!op->scheduled)
            continue;
        if (op->group) {
            report_group(order, op->group);
            continue;
        }
        engine_schedule_leave(order, op);
        if (op->state == ENGINE_OP_SCHEDULED) /* else its outputs are to come first */
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
