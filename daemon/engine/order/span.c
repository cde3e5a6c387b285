/* SPDX-License-Identifier: Apache-2.0
 * Span: what this node says of ops whose process set has members on several nodes.
 *
 *   last local rank came --report BROUGHT--> root --verdict STARTS--> READY
 *                                             |
 *                                             +--verdict SIZED--> outputs asked for and checked
 *                                                                  --report SIZED--> STARTS
 *
 * Nothing is compared here, but that the members of a group say the same: a report lists what the ranks
 * of this node say, each different saying once, and the root compares all nodes' ranks as
 * negotiate.c compares those of one. So a mismatch has the same sentence, whoever disagrees.
 *
 * A work starts only when no node can refuse it any more: where sizes are known late, every node has
 * said that its outputs take the result.
 *
 * Failures. A reported op ends as the root says: who wants it to fail asks (GIVE_UP). An op that is not
 * reported yet fails here at once, with its group, and the root is told (FAILED). For each of these, and
 * for reported ops that fall with one of which the root spoke, a verdict is still under way: its
 * tensor counts them (.failing), so that the next op of this name is not taken for it. The root does
 * the same with what it hears from a node that has not seen its verdict yet: root_stale.c. */
#include "daemon/engine/order/span.h"

#include "base/status.h"
#include "daemon/engine/order/schedule.h"
#include "daemon/engine/order/span_name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* By seat: what one report points at. */
struct engine_span_scratch {
    struct hvi_mesh_report report;
    struct hvi_mesh_said *said;
    const struct engine_part **speakers; /* who said it first */
    uint32_t *says;                      /* by place: which .said */
    int32_t *places;
    uint64_t *instances;
};

int engine_span_open(struct engine_order *order, const struct engine_order_span *span, void *user)
{
    uint32_t seats = order->roster->seats;
    struct engine_span_scratch *scratch = calloc(1, sizeof *scratch);

    order->scratch = scratch;
    if (!scratch)
        return HVI_ERR_NO_MEMORY;
    scratch->said = calloc(seats, sizeof *scratch->said);
    scratch->speakers = calloc(seats, sizeof *scratch->speakers);
    scratch->says = calloc(seats, sizeof *scratch->says);
    scratch->places = calloc(seats, sizeof *scratch->places);
    scratch->instances = calloc(seats, sizeof *scratch->instances);
    order->span = span;
    order->span_user = user;
    if (!scratch->said || !scratch->speakers || !scratch->says || !scratch->places ||
        !scratch->instances)
        return HVI_ERR_NO_MEMORY;
    return engine_sets_span(&order->sets);
}

/* No verdict comes any more. */
static void forget_failing(struct engine_tensors *tensors)
{
    struct engine_tensor *next;

    for (size_t i = 0; i < ENGINE_TENSOR_BUCKETS; i++) {
        for (struct engine_tensor *tensor = tensors->buckets[i]; tensor; tensor = next) {
            next = tensor->next;
            for (uint32_t count = tensor->failing; count > 0; count--) {
                tensor->failing--;
                engine_tensor_put(tensors, tensor);
            }
        }
    }
}

void engine_span_close(struct engine_order *order)
{
    struct engine_span_scratch *scratch = order->scratch;

    if (!scratch)
        return;
    forget_failing(&order->tensors);
    engine_schedule_close(order);
    free(scratch->said);
    free(scratch->speakers);
    free(scratch->says);
    free(scratch->places);
    free(scratch->instances);
    free(scratch);
    order->scratch = NULL;
}

/* ---- reports ---- */

struct hvi_mesh_report *engine_span_begin(struct engine_order *order, const struct engine_set *set,
                                          uint16_t kind, enum hvi_mesh_what what)
{
    struct hvi_mesh_report *report = &order->scratch->report;

    *report = (struct hvi_mesh_report){
        .what = what,
        .seen = order->seen,
        .set = set->id,
        .serial = set->serial,
        .kind = kind,
        .has_tensor = true,
        .last = -1,
        .culprit = -1,
    };
    return report;
}

static struct hvi_mesh_report *begin(struct engine_order *order, const struct engine_op *op,
                                     enum hvi_mesh_what what)
{
    struct hvi_mesh_report *report = engine_span_begin(order, op->set, op->kind, what);

    report->tensor = engine_span_name(op->tensor);
    return report;
}

static bool is_bare(uint32_t kind)
{
    return hvi_kind_is_known((uint16_t)kind) && kind != HVI_KIND_ALLREDUCE &&
           kind != HVI_KIND_ALLGATHER && kind != HVI_KIND_BROADCAST && kind != HVI_KIND_ALLTOALL &&
           kind != HVI_KIND_REDUCESCATTER;
}

static bool says_same(const struct engine_part *a, const struct engine_part *b)
{
    const struct hvi_submission *left = &a->copy, *right = &b->copy;

    return left->kind == right->kind && a->leader == b->leader && a->memory == b->memory &&
           left->group_size == right->group_size && left->group_index == right->group_index &&
           memcmp(&left->reduce_op, &right->reduce_op, HVI_AGREEMENT_TYPE) == 0 &&
           memcmp(&left->prescale, &right->prescale, HVI_AGREEMENT_SHAPE) == 0 &&
           a->integer_count == b->integer_count &&
           (a->integer_count == 0 ||
            memcmp(a->integers, b->integers, a->integer_count * sizeof *a->integers) == 0);
}

static uint64_t bits_of(double number)
{
    uint64_t bits;

    memcpy(&bits, &number, sizeof bits);
    return bits;
}

static void say(const struct engine_part *part, struct hvi_mesh_said *said_p)
{
    const struct hvi_submission *copy = &part->copy;

    *said_p = (struct hvi_mesh_said){
        .kind = copy->kind,
        .root = copy->root,
        .integers = part->integers,
        .integer_count = part->integer_count,
    };
    if (is_bare(copy->kind))
        return;
    said_p->memory = part->memory;
    said_p->dtype = copy->dtype;
    said_p->reduce_op = copy->reduce_op;
    said_p->prescale = bits_of(copy->prescale);
    said_p->postscale = bits_of(copy->postscale);
    said_p->dims = (int64_t *)(uintptr_t)copy->dims;
    said_p->ndim = copy->ndim;
    if (!part->leader)
        return;
    said_p->group_size = copy->group_size;
    said_p->group_index = copy->group_index;
    said_p->leader = engine_span_name(part->leader);
    said_p->has_leader = true;
}

/* Which of what is said already, or one more. */
static uint32_t listen(struct engine_span_scratch *scratch, size_t *count,
                       const struct engine_part *part)
{
    uint32_t which = 0;

    while (which < *count && !says_same(scratch->speakers[which], part))
        which++;
    if (which == *count) {
        scratch->speakers[which] = part;
        say(part, &scratch->said[which]);
        ++*count;
    }
    return which;
}

/* Of those that said it, with memory of GPUs. Returns where the next ones go. */
static uint64_t *name_workers(const struct engine_op *op, const uint32_t *says, uint32_t which,
                              struct hvi_mesh_said *said, uint64_t *at)
{
    said->instances = at;
    for (uint32_t i = 0; said->memory == HVI_MEMORY_DEVICE && i < op->set->places; i++) {
        if (says[i] == which)
            *at++ = op->parts[i]->instance;
    }
    said->instance_count = (size_t)(at - said->instances);
    return at;
}

/* What the ranks here say, and which of them: none are listed if all say the same. */
static void quote(struct engine_order *order, const struct engine_op *op,
                  struct hvi_mesh_report *report)
{
    struct engine_span_scratch *scratch = order->scratch;
    uint32_t places = op->set->places;
    int32_t *at = scratch->places;
    uint64_t *instance = scratch->instances;

    report->said = scratch->said;
    for (uint32_t i = 0; i < places; i++)
        scratch->says[i] =
            op->parts[i] ? listen(scratch, &report->said_count, op->parts[i]) : UINT32_MAX;
    for (uint32_t which = 0; which < report->said_count; which++)
        instance = name_workers(op, scratch->says, which, &scratch->said[which], instance);
    if (report->said_count == 1 && op->parts_present == places)
        return;
    for (uint32_t which = 0; which < report->said_count; which++) {
        struct hvi_mesh_said *said = &scratch->said[which];
        said->places = at;
        for (uint32_t i = 0; i < places; i++) {
            if (scratch->says[i] == which)
                *at++ = (int32_t)i;
        }
        said->place_count = (size_t)(at - said->places);
    }
}

/* What every output here takes, whatever the result is. */
static uint64_t room_of(const struct engine_op *op)
{
    uint64_t room = UINT64_MAX;

    for (uint32_t i = 0; i < op->set->places; i++) {
        const struct engine_part *part = op->parts[i];
        if (!part)
            continue;
        if (part->copy.out_region == HVI_REGION_NONE || part->output_made ||
            part->copy.out_region == part->copy.in_region)
            return 0;
        if (room > part->copy.out_capacity)
            room = part->copy.out_capacity;
    }
    return room;
}

void engine_span_tell(struct engine_order *order, const struct hvi_mesh_report *report)
{
    if (!engine_schedule_holds(order, report))
        order->span->report(order->span_user, report);
}

static void tell(struct engine_order *order)
{
    engine_span_tell(order, &order->scratch->report);
}

static void tell_brought(struct engine_order *order, struct engine_op *op, bool more)
{
    struct hvi_mesh_report *report = begin(order, op, HVI_MESH_BROUGHT);

    op->reported = true;
    quote(order, op, report);
    report->room = room_of(op);
    report->more = more;
    tell(order);
}

void engine_span_report(struct engine_order *order, struct engine_op *op, bool more)
{
    engine_op_set_state(op, ENGINE_OP_REPORTED, "every rank of this node has come");
    tell_brought(order, op, more);
}

void engine_span_report_again(struct engine_order *order, struct engine_op *op)
{
    const struct hvi_submission *copy = &engine_op_first_part(op)->copy;

    tell_brought(order, op, op->group && copy->group_index + 1 < copy->group_size);
}

void engine_span_report_group(struct engine_order *order, struct engine_op *leader)
{
    struct engine_part *first = engine_op_first_part(leader), *part = first;

    do {
        engine_span_report(order, part->op, part->sibling != first);
        part = part->sibling;
    } while (part != first);
}

void engine_span_report_join(struct engine_order *order, struct engine_op *join, int32_t last)
{
    join->reported = true;
    engine_op_set_state(join, ENGINE_OP_REPORTED, "every rank of this node has joined");
    begin(order, join, HVI_MESH_BROUGHT)->last = last;
    tell(order);
}

void engine_span_sized(struct engine_order *order, struct engine_op *op)
{
    engine_op_set_state(op, ENGINE_OP_REPORTED, "its outputs are known");
    begin(order, op, HVI_MESH_SIZED);
    tell(order);
}

static void tell_failure(struct engine_order *order, const struct engine_op *op,
                         enum hvi_mesh_what what, int status, const char *text, int32_t culprit)
{
    struct hvi_mesh_report *report = begin(order, op, what);

    report->status = status;
    report->culprit = culprit;
    snprintf(report->text, sizeof report->text, "%s", text);
    tell(order);
}

void engine_span_give_up(struct engine_order *order, struct engine_op *op, int status,
                         const char *text, int32_t culprit)
{
    if (op->given_up)
        return;
    op->given_up = true;
    if (op->state == ENGINE_OP_SIZING)
        engine_op_set_state(op, ENGINE_OP_REPORTED, "the root is asked to fail it");
    tell_failure(order, op, HVI_MESH_GIVE_UP, status, text, culprit);
}

void engine_span_retract(struct engine_order *order, struct engine_op *op)
{
    if (op->retracting)
        return;
    op->retracting = true;
    begin(order, op, HVI_MESH_RETRACT);
    tell(order);
}

void engine_span_has_failed(struct engine_order *order, struct engine_op *op, int status,
                            const char *text, int32_t culprit)
{
    if (!op->reported)
        tell_failure(order, op, HVI_MESH_FAILED, status, text, culprit);
    op->tensor->failing++;
    op->tensor->refs++;
}
