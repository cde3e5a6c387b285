/* SPDX-License-Identifier: Apache-2.0
 * Pair: sends between nodes.
 *
 *   sender's node               root                    receiver's node
 *   a send comes --BROUGHT-----> passes it on ---------> the oldest recv meets it, or it waits: an offer
 *   READY <--------STARTS------- numbers the work <-SIZED- they agree
 *                                  +------STARTS--------> READY
 *   fails <--------FAILED------- passes it on <--FAILED--- they do not, and the recv fails
 *
 * The receiver's node decides which recv meets which send. It alone knows all recvs and, for a recv from
 * any rank, its own ranks' sends. Messages from one node to another keep their order, and so do the sends
 * of a pair. The root numbers the work, because links keep the order of works; no other op waits for it.
 *
 * The sender's node names a send by a number of its own. If it takes the send back (RETRACT) or its send
 * should fail (GIVE_UP), it asks the receiver's node. That node answers with the same, or FAILED, if no
 * recv has met the offer; else the work starts and nothing is answered. */
#include "daemon/engine/order/pair.h"

#include "base/bits.h"
#include "base/status.h"
#include "daemon/engine/order/agree.h"
#include "daemon/engine/order/sentence.h"
#include "daemon/engine/order/span.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct engine_offer {
    struct engine_offer *next;
    uint64_t id; /* the sender's node's */
    uint64_t since_ns;
    struct engine_part part; /* what the sender says: .rank, .copy, .in_bytes */
};

struct hearing {
    struct engine_order *order;
    struct engine_set *set;
    const struct hvi_mesh_verdict *verdict;
    char *text;
    size_t text_size;
};

#define disbelieve(hearing, ...)                                                                   \
    engine_sentence_bad_verdict((hearing)->text, (hearing)->text_size, (hearing)->verdict->number, \
                                __VA_ARGS__)

/* ---- reports ---- */

static struct hvi_mesh_report *begin(struct engine_order *order, const struct engine_set *set,
                                     enum hvi_mesh_what what, struct hvi_mesh_pair pair,
                                     uint64_t tag)
{
    struct hvi_mesh_report *report = engine_span_begin(order, set, HVI_KIND_SEND, what);

    report->tensor = (struct hvi_mesh_name){.kind = HVI_KIND_SEND, .number = tag};
    report->pair = pair;
    report->has_pair = true;
    return report;
}

static struct hvi_mesh_report *begin_op(struct engine_order *order, const struct engine_op *op,
                                        enum hvi_mesh_what what)
{
    struct hvi_mesh_pair pair = {op->from, op->to, op->number};

    return begin(order, op->set, what, pair, op->tensor->anon_seq);
}

static void tell_failure(struct engine_order *order, struct hvi_mesh_report *report, int status,
                         const char *text, int32_t culprit)
{
    report->status = status;
    report->culprit = culprit;
    snprintf(report->text, sizeof report->text, "%s", text);
    engine_span_tell(order, report);
}

void engine_pair_offer(struct engine_order *order, struct engine_op *op)
{
    struct engine_part *part = engine_op_first_part(op);
    const struct hvi_submission *copy = &part->copy;
    int64_t count = (int64_t)copy->count;
    struct hvi_mesh_said said = {.kind = HVI_KIND_SEND,
                                 .dtype = copy->dtype,
                                 .root = copy->root,
                                 .dims = &count,
                                 .ndim = 1,
                                 .memory = part->memory,
                                 .instances = &part->instance,
                                 .instance_count = part->memory == HVI_MEMORY_DEVICE};

    op->number = ++order->partials;
    op->reported = true;
    engine_op_set_state(op, ENGINE_OP_REPORTED, "the receiver is on another node");
    struct hvi_mesh_report *report = begin_op(order, op, HVI_MESH_BROUGHT);
    report->said = &said;
    report->said_count = 1;
    engine_span_tell(order, report);
}

void engine_pair_retract(struct engine_order *order, struct engine_op *op)
{
    if (op->retracting)
        return;
    op->retracting = true;
    engine_span_tell(order, begin_op(order, op, HVI_MESH_RETRACT));
}

void engine_pair_give_up(struct engine_order *order, struct engine_op *op, int status,
                         const char *text, int32_t culprit)
{
    if (op->given_up || op->sized) /* a recv has met it: it starts */
        return;
    op->given_up = true;
    tell_failure(order, begin_op(order, op, HVI_MESH_GIVE_UP), status, text, culprit);
}

/* ---- offers ---- */

static void append(struct engine_set *set, struct engine_offer *offer)
{
    if (set->offers_last)
        set->offers_last->next = offer;
    else
        set->offers = offer;
    set->offers_last = offer;
}

static void unlist(struct engine_order *order, struct engine_set *set, struct engine_offer *offer)
{
    struct engine_offer *before = NULL;

    for (struct engine_offer *at = set->offers; at != offer; at = at->next)
        before = at;
    if (before)
        before->next = offer->next;
    else
        set->offers = offer->next;
    if (set->offers_last == offer)
        set->offers_last = before;
    order->offers--;
}

void engine_pair_forget(struct engine_order *order, struct engine_set *set)
{
    while (set->offers) {
        struct engine_offer *offer = set->offers;
        unlist(order, set, offer);
        free(offer);
    }
}

struct engine_offer *engine_pair_find(const struct engine_part *recv, uint64_t *since_ns_p)
{
    struct engine_offer *offer = recv->set->offers;

    while (offer && !(offer->part.copy.root == recv->rank &&
                      offer->part.copy.anon_seq == recv->copy.anon_seq &&
                      (recv->copy.root < 0 || recv->copy.root == offer->part.rank)))
        offer = offer->next;
    if (offer)
        *since_ns_p = offer->since_ns;
    return offer;
}

/* The oldest recv that takes it. */
static struct engine_op *find_recv(const struct engine_set *set, const struct engine_offer *offer)
{
    struct engine_op *op = set->partial_first;

    while (op && !(op->kind == HVI_KIND_RECV && !op->reported && op->to == offer->part.copy.root &&
                   op->tensor->anon_seq == offer->part.copy.anon_seq &&
                   (op->from < 0 || op->from == offer->part.rank)))
        op = op->set_next;
    return op;
}

/* A recv from any rank has its sender. Without memory it keeps its name. */
static void name_sender(struct engine_order *order, struct engine_op *op, int32_t from)
{
    struct engine_pair pair = {from, op->to};
    struct engine_tensor *tensor = NULL;

    if (op->from < 0)
        tensor =
            engine_tensor_get_pair(&order->tensors, op->set->serial, pair, op->tensor->anon_seq);
    op->from = from;
    if (!tensor)
        return;
    engine_tensor_put(&order->tensors, op->tensor);
    op->tensor = tensor;
}

/* It starts when the root says so, to both nodes. Of memory of GPUs that says where both members have it. */
static void tell_met(struct engine_order *order, struct engine_op *op, uint64_t sender)
{
    uint64_t instances[2] = {sender, engine_op_first_part(op)->instance};
    struct hvi_mesh_said said = {.kind = HVI_KIND_SEND,
                                 .instances = instances,
                                 .instance_count = instances[0] != 0 || instances[1] != 0 ? 2 : 0};
    struct hvi_mesh_report *report = begin_op(order, op, HVI_MESH_SIZED);

    report->said = &said;
    report->said_count = 1;
    engine_span_tell(order, report);
}

/* They meet. The offer is in no list, and goes. */
static void meet(struct engine_order *order, struct engine_op *op, struct engine_offer *offer)
{
    struct engine_part *recv = engine_op_first_part(op);
    const uint64_t sender = offer->part.instance;
    char text[HVI_TEXT_MAX + 1];

    name_sender(order, op, offer->part.rank);
    op->number = offer->id;
    int status = engine_agree_pair(op->tensor, &offer->part, recv, text, sizeof text);
    free(offer);
    if (status != HVI_OK) {
        tell_failure(order, begin_op(order, op, HVI_MESH_FAILED), status, text, -1);
        engine_op_fail(order, op, status, text, -1);
        return;
    }
    op->missing = 0;
    op->reported = true;
    op->sized = true;
    recv->rows = op->from;
    recv->out_bytes = recv->in_bytes;
    engine_op_set_state(op, ENGINE_OP_REPORTED, "it has met a send of another node");
    tell_met(order, op, sender);
}

void engine_pair_take(struct engine_order *order, struct engine_op *op, struct engine_offer *offer)
{
    unlist(order, op->set, offer);
    meet(order, op, offer);
}

/* ---- verdicts ---- */

/* The sender says it. */
static int take_said(const struct hearing *hearing, struct engine_part *part)
{
    const struct hvi_mesh_verdict *verdict = hearing->verdict;
    const struct hvi_mesh_said *said = &verdict->said;
    uint32_t element = said->dtype <= UINT8_MAX ? hvi_dtype_bytes((uint8_t)said->dtype) : 0;

    if (!verdict->has_said || element == 0 || said->ndim != 1 || said->dims[0] < 0 ||
        !hvi_mul_checked((uint64_t)said->dims[0], element, &part->in_bytes) ||
        verdict->tensor.number > INT32_MAX ||
        (said->memory > HVI_MEMORY_DEVICE && said->memory != ENGINE_MEMORY_ANY) ||
        said->instance_count != (said->memory == HVI_MEMORY_DEVICE))
        return disbelieve(hearing, "rank %d cannot send that", verdict->pair.from);
    part->memory = (uint8_t)said->memory;
    part->instance = said->instance_count > 0 ? said->instances[0] : 0;
    part->rank = verdict->pair.from;
    part->copy.kind = HVI_KIND_SEND;
    part->copy.root = verdict->pair.to;
    part->copy.anon_seq = verdict->tensor.number;
    part->copy.dtype = (uint8_t)said->dtype;
    part->copy.count = (uint64_t)said->dims[0];
    return HVI_OK;
}

static int offered(const struct hearing *hearing)
{
    struct engine_order *order = hearing->order;
    struct engine_offer *offer = calloc(1, sizeof *offer);

    if (!offer)
        return HVI_ERR_NO_MEMORY;
    int status = take_said(hearing, &offer->part);
    if (status == HVI_OK && order->offers >= (uint64_t)order->roster->size * HVI_CQ_SLOTS)
        status = disbelieve(hearing, "more sends than ranks can have in flight");
    if (status != HVI_OK) {
        free(offer);
        return status;
    }
    offer->id = hearing->verdict->pair.id;
    offer->since_ns = order->now_ns;
    struct engine_op *op = find_recv(hearing->set, offer);
    if (op) {
        meet(order, op, offer);
        return HVI_OK;
    }
    append(hearing->set, offer);
    order->offers++;
    return HVI_OK;
}

/* The sender's node takes it back, or lets it fail: it can, if no recv has met it. */
static int answer(const struct hearing *hearing)
{
    const struct hvi_mesh_verdict *verdict = hearing->verdict;
    bool fails = verdict->what == HVI_MESH_GIVE_UP;
    struct engine_offer *offer = hearing->set->offers;
    struct hvi_mesh_report *report;

    if (fails && verdict->status >= HVI_OK)
        return disbelieve(hearing, "a failure with status %d", verdict->status);
    while (offer && !(offer->id == verdict->pair.id && offer->part.rank == verdict->pair.from))
        offer = offer->next;
    if (!offer)
        return HVI_OK;
    report = begin(hearing->order, hearing->set, fails ? HVI_MESH_FAILED : HVI_MESH_RETRACT,
                   verdict->pair, offer->part.copy.anon_seq);
    unlist(hearing->order, hearing->set, offer);
    free(offer);
    if (fails)
        tell_failure(hearing->order, report, verdict->status, verdict->text, verdict->culprit);
    else
        engine_span_tell(hearing->order, report);
    return HVI_OK;
}

/* A work of two members, the sender and the receiver, is the same on both nodes. */
static struct engine_places *two_nodes(const struct engine_op *op)
{
    const struct engine_places *span = op->set->span;
    const uint32_t ranks[2] = {(uint32_t)engine_set_rank(op->set, op->from),
                               (uint32_t)engine_set_rank(op->set, op->to)};
    struct engine_places *two = engine_places_new(2, 2);
    uint32_t first = span->home[ranks[0]] > span->home[ranks[1]];

    if (!two)
        return NULL;
    two->nodes = 2;
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t home = span->home[ranks[i]], index = i ^ first;
        two->home[i] = index;
        two->place[i] = span->place[ranks[i]];
        two->node[index] = span->node[home];
        two->places[index] = span->places[home];
        if (home == span->here)
            two->here = index;
    }
    return two;
}

/* Of the sender and the receiver. */
static int take_instances(const struct hearing *hearing, struct engine_op *op)
{
    const struct hvi_mesh_verdict *verdict = hearing->verdict;
    const uint64_t mine = engine_op_first_part(op)->instance;
    const bool sends = engine_set_find(op->set, op->from) >= 0;

    if (verdict->instance_count != 0 && verdict->instance_count != 2)
        return disbelieve(hearing, "%zu GPU workers of two ranks", verdict->instance_count);
    if (mine != (verdict->instance_count > 0 ? verdict->instances[sends ? 0 : 1] : 0))
        return disbelieve(hearing, "it is wrong about the GPU of rank %d",
                          sends ? op->from : op->to);
    if (mine != 0 && verdict->instances[sends ? 1 : 0] == mine) /* a worker is of one node */
        return disbelieve(hearing, "it is wrong about the GPU of rank %d",
                          sends ? op->to : op->from);
    if (verdict->instance_count == 0)
        return HVI_OK;
    op->instances = malloc(2 * sizeof *op->instances);
    if (!op->instances)
        return HVI_ERR_NO_MEMORY;
    memcpy(op->instances, verdict->instances, 2 * sizeof *op->instances);
    return HVI_OK;
}

static int start(const struct hearing *hearing, struct engine_op *op)
{
    struct engine_order *order = hearing->order;
    const struct engine_part *part = engine_op_first_part(op);

    if (hearing->verdict->sequence <= order->sequence)
        return disbelieve(hearing, "work %" PRIu64 " after %" PRIu64, hearing->verdict->sequence,
                          order->sequence);
    order->sequence = hearing->verdict->sequence;
    op->without = two_nodes(op);
    if (!op->without)
        return HVI_ERR_NO_MEMORY;
    int status = take_instances(hearing, op);
    if (status != HVI_OK)
        return status;
    op->sequence = order->sequence;
    op->kind = HVI_KIND_SEND;
    op->sized = true;
    op->missing = 0;
    op->bytes = part->in_bytes;
    op->ready_ns = order->now_ns;
    order->observer->op_complete(order->user, op);
    engine_op_ready(order, op);
    return HVI_OK;
}

static int give_back(const struct hearing *hearing, struct engine_op *op)
{
    if (!op->retracting)
        return disbelieve(hearing, "it was not asked for");
    engine_op_return(hearing->order, op);
    return HVI_OK;
}

static int end(const struct hearing *hearing, struct engine_op *op)
{
    const struct hvi_mesh_verdict *verdict = hearing->verdict;

    if (verdict->status >= HVI_OK)
        return disbelieve(hearing, "a failure with status %d", verdict->status);
    engine_op_fail_here(hearing->order, op, verdict->status, verdict->text, verdict->culprit);
    return HVI_OK;
}

static struct engine_op *find_reported(const struct engine_set *set,
                                       const struct hvi_mesh_pair *pair)
{
    struct engine_op *op = set->partial_first;

    while (op && !(op->reported && op->kind != HVI_KIND_SET_OPEN && op->number == pair->id &&
                   op->from == pair->from && op->to == pair->to))
        op = op->set_next;
    return op;
}

int engine_pair_hear(struct engine_order *order, struct engine_set *set,
                     const struct hvi_mesh_verdict *verdict, char *text_p, size_t text_size)
{
    struct hearing hearing = {order, set, verdict, text_p, text_size};
    const struct hvi_mesh_pair *pair = &verdict->pair;
    bool sends = engine_set_find(set, pair->from) >= 0;
    uint32_t what = verdict->what;

    if (!verdict->has_pair || engine_set_rank(set, pair->from) < 0 ||
        engine_set_rank(set, pair->to) < 0 || sends == (engine_set_find(set, pair->to) >= 0))
        return disbelieve(&hearing, "rank %d sends nothing to rank %d between this node and others",
                          pair->from, pair->to);
    if (!sends && what == HVI_MESH_BROUGHT)
        return offered(&hearing);
    if (!sends && (what == HVI_MESH_RETRACT || what == HVI_MESH_GIVE_UP))
        return answer(&hearing);
    struct engine_op *op = find_reported(set, pair);
    if (!op)
        return disbelieve(&hearing, "nothing of this number was reported");
    if (what == HVI_MESH_STARTS)
        return start(&hearing, op);
    if (sends && what == HVI_MESH_RETRACT)
        return give_back(&hearing, op);
    if (sends && what == HVI_MESH_FAILED)
        return end(&hearing, op);
    return disbelieve(&hearing, "there is no verdict of kind %u for a send", what);
}
