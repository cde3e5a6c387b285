/* SPDX-License-Identifier: Apache-2.0
 * Negotiate: where the submissions of one tensor by the ranks of one process set meet.
 *
 * There is no timer and no round: the part that comes last makes the op ready, whoever brings it
 * and in whatever order the ranks submit. Before anything moves, the parts are compared (agree.c); a
 * disagreement fails the op on every rank with one sentence that says who said what, and nothing
 * else is touched. A set shares nothing with another set but the backend, so a set that waits delays
 * nobody.
 *
 * An op is complete when every member of its set has brought a part or has joined (join.c). Members
 * of a group (group.c) are ordinary ops that are held until all of the group are complete.
 *
 * Ops of a name are counted, on each rank by itself: what one rank brings as its third is what the others
 * bring as their third. An op that fails before all have come leaves itself behind as FAILED, so that the
 * count holds: a rank that comes later meets the same sentence instead of waiting for something that is over,
 * or for something that others have brought since. Each rank gets the failure once. A tensor may
 * have several, oldest first, beside the op that waits: ranks that got the failure go on. One goes when all have
 * come, when the others join or cannot come, or as the oldest of ENGINE_FAILED_MAX.
 *
 * After a rank is lost or has left, no op can become complete any more: what waits fails
 * (engine_negotiate_fail_all), and intake fails what comes.
 *
 * Ops that wait (for ranks, groups or outputs) stand in one list, oldest first: the stall table. */
#include "daemon/engine/order/negotiate.h"

#include "base/assert.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/order/agree.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/order/join.h"
#include "daemon/engine/order/partial.h"
#include "daemon/engine/order/schedule.h"
#include "daemon/engine/order/set_ops.h"
#include "daemon/engine/order/sizes.h"
#include "daemon/engine/order/span.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- an op's life ---- */

static const char *const state_texts[ENGINE_OP_STATES] = {
    "waiting", "held", "scheduled", "reported", "sizing", "ready", "executing", "failed"};

void engine_op_set_state(struct engine_op *op, enum engine_op_state state, const char *cause)
{
    HVI_LOG(HVI_LOG_TRACE, "negotiate", "op-state", cause, "%s -> %s", state_texts[op->state],
            state_texts[state]);
    op->state = state;
}

/* The arrays have room for every seat, so that an op can serve any set. */
void engine_op_init(struct engine_op *op, int32_t seats, void *room)
{
    op->parts = room;
    op->own_sizes = (uint64_t *)(void *)(op->parts + seats);
    op->came = (uint8_t *)(op->own_sizes + seats);
}

static void list_waiting(struct engine_order *order, struct engine_op *op)
{
    struct engine_set *set = op->set;

    struct engine_op **first = op->partial ? &set->partial_first : &set->first;
    struct engine_op **last = op->partial ? &set->partial_last : &set->last;

    op->next = NULL;
    op->prev = order->waiting_last;
    if (op->prev)
        op->prev->next = op;
    else
        order->waiting_first = op;
    order->waiting_last = op;
    op->set_next = NULL;
    op->set_prev = *last;
    if (op->set_prev)
        op->set_prev->set_next = op;
    else
        *first = op;
    *last = op;
}

static void unlist_waiting(struct engine_order *order, struct engine_op *op)
{
    struct engine_set *set = op->set;
    struct engine_op **first = op->partial ? &set->partial_first : &set->first;
    struct engine_op **last = op->partial ? &set->partial_last : &set->last;

    if (op->scheduled)
        engine_schedule_leave(order, op);
    if (op->prev)
        op->prev->next = op->next;
    else
        order->waiting_first = op->next;
    if (op->next)
        op->next->prev = op->prev;
    else
        order->waiting_last = op->prev;
    if (set->cursor == op)
        set->cursor = op->set_next;
    if (op->set_prev)
        op->set_prev->set_next = op->set_next;
    else
        *first = op->set_next;
    if (op->set_next)
        op->set_next->set_prev = op->set_prev;
    else
        *last = op->set_prev;
    op->next = op->prev = op->set_next = op->set_prev = NULL;
}

static bool is_waiting(const struct engine_op *op)
{
    return op->state <= ENGINE_OP_SIZING;
}

static struct engine_op *op_make(struct engine_order *order, struct engine_set *set,
                                 struct engine_tensor *tensor, uint16_t kind)
{
    struct engine_op *op = order->free_ops;

    if (op)
        order->free_ops = op->next;
    else
        op = order->sink->new_op(order->user);
    if (!op)
        return NULL;
    memset(op->parts, 0, set->places * sizeof *op->parts);
    op->tensor = tensor;
    op->tensor->refs++;
    op->set = engine_set_get(set);
    op->kind = kind;
    op->partial = engine_partial_is(op->kind);
    op->state = ENGINE_OP_WAITING;
    op->parts_present = 0;
    op->missing = set->places - (op->kind == HVI_KIND_JOIN ? 0 : set->joined);
    op->outputs_missing = 0;
    op->repeating = 0;
    op->replayed = op->scheduled = false;
    op->first_ns = order->now_ns;
    op->warn_ns = 0;
    op->ready_ns = 0;
    op->group = NULL;
    op->group_held = op->group_sizing = op->group_running = 0;
    op->group_started = false;
    op->status = HVI_OK;
    op->culprit = -1;
    op->reported = op->given_up = op->retracting = op->sized = false;
    op->tentative = op->withdrawn = false;
    op->joined_count = 0;
    op->new_set = 0;
    return op;
}

struct engine_op *engine_op_new(struct engine_order *order, const struct engine_part *part)
{
    struct engine_op *op = op_make(order, part->set, part->tensor, part->copy.kind);

    if (!op)
        return NULL;
    list_waiting(order, op);
    if (op->kind != HVI_KIND_JOIN && !op->partial)
        op->tensor->waiting = op;
    order->observer->op_waits(order->user);
    return op;
}

static void op_free(struct engine_order *order, struct engine_op *op)
{
    if (op->tentative)
        engine_schedule_over(order, op);
    if (op->tensor->waiting == op)
        op->tensor->waiting = NULL;
    engine_tensor_put(&order->tensors, op->tensor);
    engine_set_put(op->set);
    free(op->matrix);
    free(op->text);
    if (op->reported) {
        free(op->joined);
        free(op->without);
        free(op->instances);
        op->joined = NULL;
        op->without = NULL;
    }
    op->instances = NULL; /* else lent by the schedule */
    op->tensor = NULL;
    op->set = NULL;
    op->matrix = NULL;
    op->text = NULL;
    op->next = order->free_ops;
    order->free_ops = op;
}

static void answer_parts(struct engine_order *order, struct engine_op *op, int status,
                         const char *text, int32_t culprit)
{
    order->observer->op_over(order->user, op, status);
    for (uint32_t i = 0; i < op->set->places; i++) {
        struct engine_part *part = op->parts[i];
        op->parts[i] = NULL;
        if (part)
            order->sink->answer(part, status, text, culprit);
    }
}

struct engine_part *engine_op_first_part(const struct engine_op *op)
{
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (op->parts[i])
            return op->parts[i];
    }
    return NULL;
}

void engine_op_finish(struct engine_order *order, struct engine_op *op, int status,
                      const char *text, int32_t culprit)
{
    if (is_waiting(op))
        unlist_waiting(order, op);
    if (status == HVI_OK)
        order->observer->op_succeeds(order->user, op);
    answer_parts(order, op, status, text, culprit);
    op_free(order, op);
}

/* ---- failing before all have come ---- */

static void forget_failed(struct engine_order *order, struct engine_op *op)
{
    if (op->prev)
        op->prev->next = op->next;
    else
        order->failed_first = op->next;
    if (op->next)
        op->next->prev = op->prev;
    else
        order->failed_last = op->prev;
    order->failed_count--;
    struct engine_op **link = &op->tensor->failed;
    while (*link != op)
        link = &(*link)->fallen;
    *link = op->fallen;
    op_free(order, op);
}

static void remember_failed(struct engine_order *order, struct engine_op *op, int status,
                            const char *text, int32_t culprit)
{
    op->status = status;
    op->culprit = culprit;
    op->text = strdup(text);
    struct engine_op **link = &op->tensor->failed;
    while (*link)
        link = &(*link)->fallen;
    *link = op;
    op->fallen = NULL;
    op->next = NULL;
    op->prev = order->failed_last;
    if (op->prev)
        op->prev->next = op;
    else
        order->failed_first = op;
    order->failed_last = op;
    if (++order->failed_count > ENGINE_FAILED_MAX)
        forget_failed(order, order->failed_first);
}

struct engine_op *engine_op_failed_for(const struct engine_part *part)
{
    struct engine_op *op = part->tensor->failed;

    while (op && op->came[part->place])
        op = op->fallen;
    return op;
}

void engine_op_excuse(struct engine_order *order, struct engine_op *op, uint32_t place)
{
    HVI_ASSERT(op->state == ENGINE_OP_FAILED);
    if (op->came[place])
        return;
    op->came[place] = 1;
    if (--op->missing == 0)
        forget_failed(order, op);
}

void engine_op_meet_failed(struct engine_order *order, struct engine_op *op,
                           struct engine_part *part)
{
    uint32_t place = part->place;

    order->sink->answer(part, op->status, op->text ? op->text : "the op has failed on other ranks",
                        op->culprit);
    engine_op_excuse(order, op, place);
}

static void fall(struct engine_order *order, struct engine_op *op, struct engine_op ***last_p)
{
    unlist_waiting(order, op);
    if (op->tensor->waiting == op)
        op->tensor->waiting = NULL;
    engine_op_set_state(op, ENGINE_OP_FAILED, "it, or a member of its group, failed");
    op->fallen = NULL;
    **last_p = op;
    *last_p = &op->fallen;
}

/* The op and whatever is bound to it by a rank's group, and so on, as a list by .fallen. */
static struct engine_op *fall_together(struct engine_order *order, struct engine_op *origin)
{
    struct engine_op *first = NULL, **last = &first;

    if (is_waiting(origin))
        fall(order, origin, &last);
    for (struct engine_op *op = first; op; op = op->fallen) {
        for (uint32_t i = 0; i < op->set->places; i++) {
            struct engine_part *part = op->parts[i];
            if (!part || !part->leader)
                continue;
            for (struct engine_part *other = part->sibling; other != part; other = other->sibling) {
                if (other->op && is_waiting(other->op))
                    fall(order, other->op, &last);
            }
        }
    }
    return first;
}

/* Who will not come any more. A rank that has brought another group to the op where it all began
 * brings nothing more of this one. */
static void note_absence(struct engine_op *op, const struct engine_op *origin)
{
    if (op->missing == 0) /* who has no part had joined, and may have come back since */
        return;
    op->missing = 0;
    for (uint32_t i = 0; i < op->set->places; i++) {
        op->came[i] = op->parts[i] || engine_join_has(op->set, i) ||
                      (op != origin && origin->parts[i] && origin->parts[i]->leader);
        op->missing += !op->came[i];
    }
}

/* Of a group that has started, members may be at work already, and all are over together. */
static void finish_waiting(struct engine_order *order, struct engine_op *op, int status,
                           const char *text, int32_t culprit)
{
    if (op->group && op->group->group_started) {
        unlist_waiting(order, op);
        engine_op_set_state(op, ENGINE_OP_EXECUTING, "it fails with its group");
        engine_group_done(order, op, status, text, culprit);
        return;
    }
    if (op->set->join == op) {
        op->set->join = NULL;
        op->set->joined = 0;
    }
    engine_op_finish(order, op, status, text, culprit);
}

/* The ranks have not joined, then. */
static void fail_join(struct engine_order *order, struct engine_op *op, int status,
                      const char *text, int32_t culprit)
{
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (op->parts[i])
            engine_join_undo(op, i);
    }
    finish_waiting(order, op, status, text, culprit);
}

/* `decided`: what the root says, or NULL. It hears of the others, and says of each that it has failed. */
static void fail_together(struct engine_order *order, struct engine_op *origin,
                          const struct engine_op *decided, int status, const char *text,
                          int32_t culprit)
{
    struct engine_set *set = engine_set_get(origin->set);
    struct engine_op *fallen = fall_together(order, origin), *next;

    for (struct engine_op *each = fallen; each; each = each->fallen)
        note_absence(each, origin);
    for (struct engine_op *each = fallen; each; each = next) {
        next = each->fallen;
        if (each->set->span && each != decided)
            engine_span_has_failed(order, each, status, text, culprit);
        answer_parts(order, each, status, text, culprit);
        if (each->missing > 0 && !each->set->removed)
            remember_failed(order, each, status, text, culprit);
        else
            op_free(order, each);
    }
    engine_join_check(order, set);
    engine_set_put(set);
}

static void log_failure(const struct engine_order *order, int status, const char *text)
{
    HVI_LOG(HVI_LOG_WARN, "negotiate", "op-failed", text, "job=%s status=%s", order->job,
            hvi_status_name(status));
}

void engine_op_fail_here(struct engine_order *order, struct engine_op *op, int status,
                         const char *text, int32_t culprit)
{
    log_failure(order, status, text);
    if (op->partial)
        finish_waiting(order, op, status, text, culprit);
    else
        fail_together(order, op, op, status, text, culprit);
}

void engine_op_fail_unseen(struct engine_order *order, struct engine_set *set,
                           struct engine_tensor *tensor, uint16_t kind, int status,
                           const char *text, int32_t culprit)
{
    struct engine_op *op = op_make(order, set, tensor, kind);

    if (!op)
        return;
    engine_op_set_state(op, ENGINE_OP_FAILED, "it failed on another node");
    note_absence(op, op);
    if (op->missing > 0)
        remember_failed(order, op, status, text, culprit);
    else
        op_free(order, op);
}

void engine_op_fail(struct engine_order *order, struct engine_op *op, int status, const char *text,
                    int32_t culprit)
{
    if (op->reported && op->partial) {
        engine_partial_give_up(order, op, status, text, culprit);
        return;
    }
    if (op->reported) {
        engine_span_give_up(order, op, status, text, culprit);
        return;
    }
    log_failure(order, status, text);
    if (op == op->set->join)
        fail_join(order, op, status, text, culprit);
    else if (op->partial) /* whoever comes later does not come to this one */
        finish_waiting(order, op, status, text, culprit);
    else
        fail_together(order, op, NULL, status, text, culprit);
}

void engine_negotiate_fail_all(struct engine_order *order, int status, const char *text,
                               int32_t culprit)
{
    while (order->waiting_first)
        finish_waiting(order, order->waiting_first, status, text, culprit);
    while (order->failed_first)
        forget_failed(order, order->failed_first);
}

static void fail_removed(struct engine_order *order, struct engine_op *op)
{
    char text[ENGINE_LABEL + 96], label[ENGINE_LABEL];

    engine_tensor_label(op->tensor, label);
    snprintf(text, sizeof text, "%s '%s': process set %u was removed while the op waited",
             hvi_kind_text(op->kind), label, op->set->id);
    finish_waiting(order, op, HVI_ERR_NOT_FOUND, text, -1);
}

void engine_op_fail_set(struct engine_order *order, struct engine_set *set,
                        const struct engine_op *except)
{
    struct engine_op *next;

    for (struct engine_op *op = set->first; op; op = next) {
        next = op->set_next;
        if (op != except)
            fail_removed(order, op);
    }
    while (set->partial_first)
        fail_removed(order, set->partial_first);
    for (struct engine_op *op = order->failed_first; op; op = next) {
        next = op->next;
        if (op->set == set)
            forget_failed(order, op);
    }
}

/* ---- from waiting to ready ---- */

void engine_op_ready(struct engine_order *order, struct engine_op *op)
{
    unlist_waiting(order, op);
    if (op->tensor->waiting == op && !op->tentative) /* that may come back */
        op->tensor->waiting = NULL;
    engine_op_set_state(op, ENGINE_OP_READY, "every rank has come");
    if (order->ready_last)
        order->ready_last->next = op;
    else
        order->ready_first = op;
    order->ready_last = op;
    order->ready_count++;
    order->observer->op_ready(order->user, op);
}

static void outputs_known(struct engine_order *order, struct engine_op *op)
{
    if (op->reported)
        engine_span_sized(order, op);
    else if (op->group)
        engine_group_sized(order, op);
    else if (op->scheduled)
        engine_schedule_sized(order, op);
    else if (op->set->span) /* the step does not repeat any more */
        engine_span_report(order, op, false);
    else
        engine_op_ready(order, op);
}

/* The output that the part has, if any, takes the result. */
static bool output_fits(struct engine_order *order, struct engine_op *op,
                        const struct engine_part *part)
{
    char text[HVI_TEXT_MAX + 1];
    int32_t rank = op->set->ranks[part->place];
    int status = engine_sizes_check_output(op, part, text, sizeof text);

    if (status != HVI_OK)
        engine_op_fail(order, op, status, text, rank);
    return status == HVI_OK;
}

/* Ranks that gave no output are asked for one, now that the size is known; again, if it was another when they were asked
 * before. */
bool engine_op_ask_for_outputs(struct engine_order *order, struct engine_op *op)
{
    for (uint32_t i = 0; i < op->set->places; i++) {
        struct engine_part *part = op->parts[i];
        if (part && part->output_made && part->copy.out_capacity != part->out_bytes)
            part->copy.out_region = HVI_REGION_NONE;
        if (part && part->copy.out_region != HVI_REGION_NONE && !output_fits(order, op, part))
            return false;
    }
    engine_op_set_state(op, ENGINE_OP_SIZING, "the size of the result is known");
    for (uint32_t i = 0; i < op->set->places; i++) {
        struct engine_part *part = op->parts[i];
        if (!part || part->copy.out_region != HVI_REGION_NONE)
            continue;
        op->outputs_missing++;
        part->output_asked = part->output_made = true;
        order->sink->ask_output(part);
    }
    if (op->outputs_missing == 0)
        outputs_known(order, op);
    return true;
}

bool engine_op_proceed(struct engine_order *order, struct engine_op *op)
{
    char text[HVI_TEXT_MAX + 1];
    int status = engine_sizes_plan(op, text, sizeof text);

    if (status != HVI_OK) {
        engine_op_fail(order, op, status, text, -1);
        return false;
    }
    if (engine_sizes_asks(op->kind))
        return engine_op_ask_for_outputs(order, op);
    outputs_known(order, op);
    return true;
}

/* Every rank of this node has come. The root compares; but a group is reported as one, so its members
 * have to say the same here. */
static bool complete_here(struct engine_order *order, struct engine_op *op)
{
    char text[HVI_TEXT_MAX + 1];
    bool grouped = false;

    op->kind = engine_op_first_part(op)->copy.kind;
    for (uint32_t i = 0; i < op->set->places; i++)
        grouped = grouped || (op->parts[i] && op->parts[i]->leader);
    if (!grouped) {
        if (!engine_schedule_take(order, op))
            engine_span_report(order, op, false);
        return true;
    }
    int status = engine_agree_compare(op, text, sizeof text);
    if (status == HVI_OK)
        return engine_group_hold(order, op);
    engine_op_fail(order, op, status, text, -1);
    return false;
}

bool engine_op_complete(struct engine_order *order, struct engine_op *op)
{
    char text[HVI_TEXT_MAX + 1];
    int status = HVI_OK;

    HVI_ASSERT(op->state == ENGINE_OP_WAITING && op->missing == 0);
    if (op->set->span)
        return complete_here(order, op);
    op->ready_ns = order->now_ns;
    order->observer->op_complete(order->user, op);
    op->kind = engine_op_first_part(op)->copy.kind;
    op->replayed = op->repeating == op->set->places;
    if (!op->replayed)
        status = engine_agree_check(op, text, sizeof text);
    if (status != HVI_OK) {
        engine_op_fail(order, op, status, text, -1);
        return false;
    }
    if (!op->replayed && order->replay)
        engine_agree_remember(op);
    if (op->kind == HVI_KIND_SET_ADD || op->kind == HVI_KIND_SET_REMOVE ||
        op->kind == HVI_KIND_SET_CLOSE) {
        engine_set_execute(order, op);
        return false;
    }
    if (engine_op_first_part(op)->leader)
        return engine_group_hold(order, op);
    return engine_op_proceed(order, op);
}

void engine_op_add_part(struct engine_order *order, struct engine_op *op, struct engine_part *part)
{
    op->parts[part->place] = part;
    op->parts_present++;
    op->missing--;
    part->op = op;
    order->observer->part_came(order->user, part);
}

int engine_op_meet(struct engine_order *order, struct engine_part *part, struct engine_op **op_p)
{
    struct engine_op *op = engine_op_failed_for(part);

    if (op) {
        *op_p = op;
        return HVI_ERR_CANCELLED;
    }
    op = part->copy.kind == HVI_KIND_JOIN ? part->set->join : part->tensor->waiting;
    if (op && op->parts[part->place])
        return HVI_ERR_PROTOCOL;
    if (op && op->state != ENGINE_OP_WAITING) /* it goes on without this rank, which had joined */
        op = NULL;
    if (!op)
        op = engine_op_new(order, part);
    if (!op)
        return HVI_ERR_NO_MEMORY;
    engine_op_add_part(order, op, part);
    part->repeats = engine_agree_repeats(part);
    op->repeating += part->repeats;
    *op_p = op;
    return HVI_OK;
}

int engine_negotiate_submit(struct engine_order *order, struct engine_part *part)
{
    struct engine_op *op;
    int status = engine_op_meet(order, part, &op);

    if (status == HVI_ERR_CANCELLED) {
        engine_op_meet_failed(order, op, part);
        return HVI_OK;
    }
    if (status == HVI_OK && op->missing == 0)
        engine_op_complete(order, op);
    return status;
}

/* The other nodes know of a GPU what the part's input has said of it. */
static int check_nodes(const struct engine_op *op, const struct engine_part *part, char *text_p,
                       size_t text_size)
{
    const bool here = part->memory == HVI_MEMORY_DEVICE;
    char label[ENGINE_LABEL];

    if (!op->set->span || part->memory == ENGINE_MEMORY_ANY ||
        (here ? op->instances && op->instances[op->set->numbers[part->place]] == part->instance
              : !op->instances))
        return HVI_OK;
    engine_tensor_label(op->tensor, label);
    snprintf(
        text_p, text_size,
        "%s '%s': rank %d has no input, and its output is memory of a %s, which the other nodes "
        "were not told: where a job has several nodes, give an output together with the op",
        hvi_kind_text(op->kind), label, part->rank, hvi_memory_text(part->memory));
    return HVI_ERR_UNSUPPORTED;
}

/* A part without an input has said nothing of its memory before. */
static bool memory_fits(struct engine_order *order, struct engine_op *op,
                        const struct engine_part *part)
{
    char text[HVI_TEXT_MAX + 1];
    int status = engine_agree_memory(op, text, sizeof text);

    if (status == HVI_OK)
        status = check_nodes(op, part, text, sizeof text);
    if (status != HVI_OK)
        engine_op_fail(order, op, status, text, -1);
    return status == HVI_OK;
}

void engine_negotiate_output(struct engine_order *order, struct engine_part *part)
{
    struct engine_op *op = part->op;
    struct engine_set *set = op->set;

    if (op->state == ENGINE_OP_REPORTED) /* another output did not fit */
        return;
    HVI_ASSERT(op->state == ENGINE_OP_SIZING && op->outputs_missing > 0);
    engine_set_get(set); /* the op may be what keeps it */
    if ((part->in_bytes != 0 || memory_fits(order, op, part)) && output_fits(order, op, part) &&
        --op->outputs_missing == 0)
        outputs_known(order, op);
    engine_join_check(order, set);
    engine_set_put(set);
}

/* ---- taking a part back ---- */

void engine_negotiate_cancel_text(const struct engine_part *part, char *text_p, size_t text_size)
{
    char label[ENGINE_LABEL];

    engine_tensor_label(part->tensor, label);
    snprintf(text_p, text_size, "%s '%s' was cancelled on rank %d", hvi_kind_text(part->copy.kind),
             label, part->rank);
}

/* `last`: no other part of the op is taken back with this one. */
static void withdraw_one(struct engine_order *order, struct engine_part *part, bool last,
                         int status, const char *text)
{
    struct engine_op *op = part->op;

    op->parts[part->place] = NULL;
    op->parts_present--;
    op->repeating -= part->repeats;
    if (op == op->set->join)
        engine_join_undo(op, part->place);
    /* A rank that has joined meanwhile will not come again, and is not waited for. */
    if (op == op->set->join || op->partial || !engine_join_has(op->set, part->place))
        op->missing++;
    bool complete = last && op->missing == 0 && op->state == ENGINE_OP_WAITING && !part->leader;
    if (op->parts_present == 0)
        finish_waiting(order, op, HVI_ERR_CANCELLED, "nobody is left", -1);
    else if (complete)
        engine_op_complete(order, op);
    order->sink->answer(part, status, text, part->rank);
}

static uint32_t count_withdrawn(const struct engine_op *op)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < op->set->places; i++)
        count += op->parts[i] && op->parts[i]->withdrawn;
    return count;
}

void engine_op_return(struct engine_order *order, struct engine_op *op)
{
    char text[HVI_TEXT_MAX + 1];

    op->reported = op->retracting = op->given_up = false;
    engine_op_set_state(op, ENGINE_OP_WAITING, "a rank takes its part back");
    for (uint32_t left = count_withdrawn(op), i = 0; left > 0; i++) {
        struct engine_part *part = op->parts[i];
        if (!part || !part->withdrawn)
            continue;
        left--;
        engine_negotiate_cancel_text(part, text, sizeof text);
        withdraw_one(order, part, left == 0, HVI_ERR_CANCELLED, text);
    }
}

/* The root has heard that this node's members have joined, and of all that they had brought before. */
static bool is_behind_join(const struct engine_op *op)
{
    return op->set->span && !op->partial && op->set->join && op->set->join->reported;
}

/* A group is reported as one and stays so. */
static bool may_retract(const struct engine_part *part)
{
    const struct engine_op *op = part->op;

    return op && op->state == ENGINE_OP_REPORTED && !op->sized && !part->sibling &&
           op != op->set->join && !is_behind_join(op);
}

static bool may_withdraw(const struct engine_part *part)
{
    const struct engine_op *op = part->op;

    if (!op || op->state > ENGINE_OP_SCHEDULED)
        return false;
    if (op->set->span && op == op->set->join) /* other nodes may count on it */
        return false;
    if (is_behind_join(op))
        return false;
    return !op->group || !op->group->group_started;
}

static void unschedule(struct engine_order *order, struct engine_op *op)
{
    engine_schedule_leave(order, op);
    engine_op_set_state(op, ENGINE_OP_WAITING, "a rank takes its part back");
}

bool engine_negotiate_withdraw(struct engine_order *order, struct engine_part *part, int status,
                               const char *text)
{
    struct engine_part *next = part, *each;

    if (may_retract(part)) {
        part->withdrawn = true;
        if (part->op->partial)
            engine_partial_retract(order, part->op);
        else
            engine_span_retract(order, part->op);
        return true;
    }
    if (!may_withdraw(part))
        return false;
    /* First all, because they count at the group's first op, which may go. */
    do {
        if (next->op->state == ENGINE_OP_HELD)
            engine_group_unhold(next->op);
        else if (next->op->state == ENGINE_OP_SCHEDULED)
            unschedule(order, next->op);
        next = next->sibling;
    } while (next && next != part);
    next = part;
    do {
        each = next;
        next = each->sibling;
        withdraw_one(order, each, true, status, text);
    } while (next && next != part);
    return true;
}

/* Among the others that wait, where it was. */
void engine_op_come_back(struct engine_order *order, struct engine_op *op)
{
    struct engine_op *newer;

    engine_op_set_state(op, ENGINE_OP_REPORTED, "its work was withdrawn");
    list_waiting(order, op);
    newer = order->waiting_first;
    while (newer != op && newer->first_ns <= op->first_ns)
        newer = newer->next;
    if (newer == op)
        return;
    order->waiting_last = op->prev;
    op->prev->next = NULL;
    op->next = newer;
    op->prev = newer->prev;
    if (op->prev)
        op->prev->next = op;
    else
        order->waiting_first = op;
    newer->prev = op;
}

void engine_op_done(struct engine_order *order, struct engine_op *op, int status, const char *text,
                    int32_t culprit)
{
    engine_schedule_ended(op, status);
    if (op->group)
        engine_group_done(order, op, status, text, culprit);
    else
        engine_op_finish(order, op, status, text, culprit);
}
