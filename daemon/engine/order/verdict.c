/* SPDX-License-Identifier: Apache-2.0
 * Verdict: what the root of a job says of ops, carried out on this node.
 *
 * Order. The root numbers its verdicts for each node (1, 2, 3, ...), and numbers works job-wide. A node
 * that takes no part in a work has no verdict of it: the works it has are in the job's order all the
 * same, because links keep theirs, and it needs no others'.
 *
 * A set's removal is an op of set 0, which every node carries out in its place among the verdicts: ids
 * and serials are the same everywhere.
 *
 * A verdict that cannot be is the end of the job: this node's idea of the order is not the root's. */
#include "daemon/engine/order/verdict.h"

#include "base/status.h"
#include "daemon/engine/order/join.h"
#include "daemon/engine/order/opening.h"
#include "daemon/engine/order/pair.h"
#include "daemon/engine/order/schedule.h"
#include "daemon/engine/order/sentence.h"
#include "daemon/engine/order/set_ops.h"
#include "daemon/engine/order/sizes.h"
#include "daemon/engine/order/span.h"
#include "daemon/engine/order/span_name.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct hearing {
    struct engine_order *order;
    const struct hvi_mesh_verdict *verdict;
    struct engine_set *set;
    struct engine_tensor *tensor;
    struct engine_op *op; /* that the root knows of; NULL: there is none */
    char *text;
    size_t text_size;
};

#define disbelieve(hearing, ...)                                                                   \
    engine_sentence_bad_verdict((hearing)->text, (hearing)->text_size, (hearing)->verdict->number, \
                                __VA_ARGS__)

/* By set rank, from a list; checked against who has come here. */
static int take_joined(struct hearing *hearing)
{
    const struct hvi_mesh_verdict *verdict = hearing->verdict;
    struct engine_op *op = hearing->op;
    const struct engine_set *set = op->set;

    if (verdict->joined_count > 0) {
        op->joined = calloc(set->size, 1);
        if (!op->joined)
            return HVI_ERR_NO_MEMORY;
    }
    for (size_t i = 0; i < verdict->joined_count; i++) {
        int32_t rank = verdict->joined[i];
        if (rank < 0 || (uint32_t)rank >= set->size || op->joined[rank])
            return disbelieve(hearing, "set rank %d cannot have joined", rank);
        op->joined[rank] = 1;
    }
    op->joined_count = (uint32_t)verdict->joined_count;
    for (uint32_t i = 0; i < set->places; i++) {
        if ((op->joined && op->joined[set->numbers[i]]) != !op->parts[i])
            return disbelieve(hearing, "it is wrong about rank %d", set->ranks[i]);
    }
    return HVI_OK;
}

/* A worker is a process of one node: no member elsewhere has its memory on one of this node's. */
static int check_others(struct hearing *hearing, uint64_t mine)
{
    const struct hvi_mesh_verdict *verdict = hearing->verdict;
    const struct engine_places *span = hearing->op->set->span;

    for (uint32_t i = 0; mine != 0 && i < verdict->instance_count; i++) {
        if (verdict->instances[i] == mine && span->home[i] != span->here)
            return disbelieve(hearing, "it is wrong about the GPU of set rank %u", i);
    }
    return HVI_OK;
}

/* By set rank. Those of this node's are what it has said. */
static int take_instances(struct hearing *hearing)
{
    const struct hvi_mesh_verdict *verdict = hearing->verdict;
    struct engine_op *op = hearing->op;
    const struct engine_set *set = op->set;

    if (verdict->instance_count != 0 && verdict->instance_count != set->size)
        return disbelieve(hearing, "%zu GPU workers of %u ranks", verdict->instance_count,
                          set->size);
    for (uint32_t i = 0; i < set->places; i++) {
        const struct engine_part *part = op->parts[i];
        uint64_t mine = part && part->memory == HVI_MEMORY_DEVICE ? part->instance : 0;
        uint64_t said = verdict->instance_count > 0 ? verdict->instances[set->numbers[i]] : 0;
        if (mine != said)
            return disbelieve(hearing, "it is wrong about the GPU of rank %d", set->ranks[i]);
        int status = check_others(hearing, mine);
        if (status != HVI_OK)
            return status;
    }
    if (verdict->instance_count == 0)
        return HVI_OK;
    op->instances = malloc(set->size * sizeof *op->instances);
    if (!op->instances)
        return HVI_ERR_NO_MEMORY;
    memcpy(op->instances, verdict->instances, set->size * sizeof *op->instances);
    return HVI_OK;
}

/* The set's places without the nodes of which all members have joined. */
static int leave_out(struct engine_op *op)
{
    const struct engine_places *span = op->set->span;
    uint32_t *left = calloc(span->nodes, sizeof *left);
    struct engine_places *without = engine_places_new(span->nodes, op->set->size);

    op->without = without;
    if (!left || !without) {
        free(left);
        return HVI_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < op->set->size; i++)
        left[span->home[i]] += !op->joined[i];
    for (uint32_t i = 0; i < span->nodes; i++) {
        if (left[i] == 0) {
            left[i] = UINT32_MAX;
            continue;
        }
        left[i] = without->nodes;
        without->node[without->nodes] = span->node[i];
        without->places[without->nodes++] = span->places[i];
    }
    for (uint32_t i = 0; i < op->set->size; i++) {
        without->home[i] = left[span->home[i]];
        without->place[i] = span->place[i];
    }
    without->here = left[span->here];
    free(left);
    return HVI_OK;
}

/* Sizes of all that takes part. */
static int size_up(struct hearing *hearing)
{
    struct engine_op *op = hearing->op;
    int status = op->sized ? HVI_OK : take_joined(hearing);

    if (status == HVI_OK && !op->sized)
        status = take_instances(hearing);
    if (status != HVI_OK || op->sized)
        return status;
    op->sized = true;
    if (op->ready_ns == 0) { /* else its work was withdrawn */
        op->ready_ns = hearing->order->now_ns;
        hearing->order->observer->op_complete(hearing->order->user, op);
    }
    if (op->joined)
        status = leave_out(op);
    if (status == HVI_OK)
        status = engine_sizes_spread(op, hearing->verdict->rows, hearing->verdict->row_count);
    return status == HVI_ERR_PROTOCOL ? disbelieve(hearing, "its sizes cannot be") : status;
}

static bool is_of_sets(uint16_t kind)
{
    return kind == HVI_KIND_SET_ADD || kind == HVI_KIND_SET_REMOVE || kind == HVI_KIND_SET_CLOSE;
}

static int change_sets(struct hearing *hearing)
{
    struct engine_op *op = hearing->op;

    op->new_set = hearing->verdict->new_set;
    op->new_serial = hearing->verdict->new_serial;
    int status = engine_set_execute(hearing->order, op);
    return status == HVI_ERR_PROTOCOL
               ? disbelieve(hearing, "process set %u cannot be new", hearing->verdict->new_set)
               : status;
}

static int start(struct hearing *hearing)
{
    struct engine_order *order = hearing->order;
    struct engine_op *op = hearing->op;

    if (hearing->verdict->sequence <= order->sequence)
        return disbelieve(hearing, "work %" PRIu64 " after %" PRIu64, hearing->verdict->sequence,
                          order->sequence);
    order->sequence = hearing->verdict->sequence;
    if (op->kind == HVI_KIND_JOIN) {
        engine_join_end(order, op->set, hearing->verdict->last);
        return HVI_OK;
    }
    if (is_of_sets(op->kind)) {
        if (op->parts_present < op->set->places)
            return disbelieve(hearing, "sets change without a rank that has joined");
        return change_sets(hearing);
    }
    int status = size_up(hearing);
    if (status != HVI_OK)
        return status;
    op->sequence = hearing->verdict->sequence;
    engine_schedule_note(order, op);
    engine_op_ready(order, op);
    return HVI_OK;
}

static int ask(struct hearing *hearing)
{
    if (!engine_sizes_asks(hearing->op->kind) || hearing->op->sized)
        return disbelieve(hearing, "there are no outputs to ask for");
    int status = size_up(hearing);
    if (status == HVI_OK)
        engine_op_ask_for_outputs(hearing->order, hearing->op);
    return status;
}

static int give_back(struct hearing *hearing)
{
    if (!hearing->op->retracting || hearing->op->sized)
        return disbelieve(hearing, "it was not asked for");
    engine_op_return(hearing->order, hearing->op);
    return HVI_OK;
}

static int end(struct hearing *hearing)
{
    const struct hvi_mesh_verdict *verdict = hearing->verdict;
    struct engine_tensor *tensor = hearing->tensor;
    struct engine_op *op = hearing->op ? hearing->op : tensor->waiting;

    if (verdict->status >= HVI_OK || verdict->kind > UINT16_MAX ||
        !hvi_kind_is_known((uint16_t)verdict->kind) || verdict->kind == HVI_KIND_JOIN)
        return disbelieve(hearing, "a failure of kind %u with status %d", verdict->kind,
                          verdict->status);
    if (tensor->failing > 0) {
        tensor->failing--;
        engine_tensor_put(&hearing->order->tensors, tensor);
        return HVI_OK;
    }
    if (op && !op->tentative)
        engine_op_fail_here(hearing->order, op, verdict->status, verdict->text, verdict->culprit);
    else /* a work that all have started goes on: the failure is that of the next op of its name */
        engine_op_fail_unseen(hearing->order, hearing->set, tensor, (uint16_t)verdict->kind,
                              verdict->status, verdict->text, verdict->culprit);
    return HVI_OK;
}

static int carry_out(struct hearing *hearing)
{
    uint32_t what = hearing->verdict->what;
    const struct engine_op *op = hearing->op;

    if (what == HVI_MESH_FAILED)
        return end(hearing);
    if (what != HVI_MESH_STARTS && what != HVI_MESH_SIZED && what != HVI_MESH_RETRACT)
        return disbelieve(hearing, "there is no verdict of kind %u", what);
    if (!op || op->state != ENGINE_OP_REPORTED)
        return disbelieve(hearing, "nothing of this name was reported");
    if (what == HVI_MESH_RETRACT)
        return give_back(hearing);
    return what == HVI_MESH_STARTS ? start(hearing) : ask(hearing);
}

int engine_verdict_hear(struct engine_order *order, const struct hvi_mesh_verdict *verdict,
                        char *text_p, size_t text_size)
{
    struct hearing hearing = {order,    verdict, engine_sets_find(&order->sets, verdict->set),
                              NULL,     NULL,    text_p,
                              text_size};

    if (verdict->number != order->seen + 1)
        return disbelieve(&hearing, "%" PRIu64 " was due", order->seen + 1);
    order->seen++;
    if (engine_schedule_is_meant(verdict->what))
        return engine_schedule_hear(order, verdict, text_p, text_size);
    if (!hearing.set || hearing.set->serial != verdict->serial || !hearing.set->span ||
        hearing.set->places == 0)
        return disbelieve(&hearing, "process set %u is not there", verdict->set);
    if (verdict->kind == HVI_KIND_SEND)
        return engine_pair_hear(order, hearing.set, verdict, text_p, text_size);
    if (verdict->kind == HVI_KIND_SET_OPEN)
        return engine_opening_hear(order, hearing.set, verdict, text_p, text_size);
    hearing.tensor = engine_span_tensor(&order->tensors, verdict->serial, &verdict->tensor);
    if (!hearing.tensor)
        return disbelieve(&hearing, "it has no name");
    hearing.op = verdict->kind == HVI_KIND_JOIN ? hearing.set->join : hearing.tensor->waiting;
    if (hearing.op && !hearing.op->reported)
        hearing.op = NULL;
    engine_set_get(hearing.set); /* it may be what goes */
    int status = carry_out(&hearing);
    engine_join_check(order, hearing.set);
    engine_tensor_put(&order->tensors, hearing.tensor);
    engine_set_put(hearing.set);
    return status;
}
