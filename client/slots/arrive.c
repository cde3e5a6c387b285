/* SPDX-License-Identifier: Apache-2.0
 * The order of steps is what makes a death at any of them harmless (the table in docs/adr/0005):
 * payload and cookie first, then the bit; the result first, then the turn; the copy of the result
 * first, then the next arrival. The steps have names for the tests that die between them. */
#include "client/slots/arrive.h"

#include "base/clock.h"
#include "client/ops/ops.h"
#include "client/ops/request.h"
#include "client/slots/combine.h"
#include "client/slots/grants.h"
#include "client/slots/medium.h"
#include "client/slots/slots.h"
#include "client/step.h"

#include <sched.h>
#include <string.h>

/* Whether the op before this one has left the slot; it may have been done without anybody looking. */
static bool is_clear(struct client_slots *slots, struct client_unnamed_slot *unnamed)
{
    if (unnamed->standing && unnamed->standing->express.active)
        client_slots_look(slots, unnamed->standing);
    return !unnamed->standing;
}

static bool fits(struct client_slots *slots, const struct client_request *request,
                 struct client_set *set, const struct client_grant *grant)
{
    struct client_said said;
    if (!request->claimed && !is_clear(slots, client_grant_unnamed(set, request->kind)))
        return false;
    if (!grant->valid || request->group_size > 0)
        return false;
    client_grant_say(request, &said);
    return memcmp(&said, &grant->said, sizeof(said)) == 0;
}

/* For the ranks that wait for this one. */
static void note_core(struct hvi_express_rank *mine)
{
    uint32_t here = (uint32_t)sched_getcpu() + 1;
    /* Relaxed: a hint; only written when it has changed, so that the line stays shared. */
    if (atomic_load_explicit(&mine->core, memory_order_relaxed) != here)
        atomic_store_explicit(&mine->core, here, memory_order_relaxed);
}

static void bring_payload(const struct client_slots *slots, const struct client_request *request,
                          struct hvd_op *op)
{
    unsigned char *payload =
        hvi_express_payload(&slots->map, op->express.slot, slots->rank, request->in_bytes);
    bool reads = request->kind != HVI_KIND_BROADCAST || request->root == (int)slots->rank;
    if (request->in_bytes > 0 && reads)
        memcpy(payload, request->in->data, request->in_bytes);
    op->out.shared = payload; /* where the result comes to if the engine takes the op over */
    op->copy_to = request->out && request->out_bytes > 0 ? request->out->data : NULL;
}

static void bring(struct client_slots *slots, const struct client_request *request,
                  struct hvd_op *op)
{
    const struct hvi_express *express = &slots->map;
    struct hvi_express_part *part = hvi_express_part(express, op->express.slot, slots->rank);
    if (op->express.medium)
        client_medium_bring(slots, op);
    else
        bring_payload(slots, request, op);
    note_core(&express->rank[slots->rank]);
    op->express.submit_ns = hvi_clock_ns();
    op->express.brought = true;
    /* Release: only for the look whether the slot is empty. */
    atomic_store_explicit(&part->cookie, client_op_cookie(op), memory_order_release);
    part->submit_ns = op->express.submit_ns;
    part->number = op->anon_seq;
}

/* Waiting ranks run the chunks. If no rank waits, the engine does. */
static void start_medium(struct client_slots *slots, struct hvd_op *op, uint32_t everybody)
{
    if (!client_medium_start(slots, op, everybody))
        op->express.active = false; /* the engine was faster */
    else if (!slots->prompt)
        client_slots_call(slots, op);
}

/* This rank came last. */
static void do_for_all(struct client_slots *slots, const struct client_set *set,
                       const struct client_said *said, struct hvd_op *op, uint32_t everybody)
{
    uint32_t slot = op->express.slot;
    client_combine_note_lags(slots, set, slot);
    if (op->express.medium) {
        start_medium(slots, op, everybody);
        return;
    }
    client_step("express-before-combining");
    client_combine(slots, set, said, slot);
    client_step("express-before-publishing");
    if (!hvi_express_publish(&slots->map, slot, op->express.turn, everybody)) {
        op->express.active = false; /* the engine was faster: it does the op from the parts */
        return;
    }
    client_step("express-published");
    client_slots_finish(slots, op);
}

/* It may be that no rank ever waits for this op, and that the others never come. */
static void ask_for_patrol(struct client_slots *slots)
{
    struct hvi_express_rank *mine = &slots->map.rank[slots->rank];
    /* Seq_cst, after the arrival: pairs with end_patrol in the engine. */
    if (atomic_load_explicit(&mine->patrolled, memory_order_seq_cst) == 0)
        client_slots_call_engine(slots);
}

/* Nothing has happened. */
static void take_back(const struct client_slots *slots, struct hvd_op *op)
{
    client_slots_leave(slots, op);
    op->name = NULL;
    if (op->express.medium)
        return; /* it stays placed */
    op->copy_to = NULL;
    op->out.shared = NULL;
}

/* In its slot, if the grant is still good. */
static bool arrive(struct client_slots *slots, struct client_set *set,
                   struct client_request *request, struct client_grant *grant)
{
    struct hvd_op *op = request->op;
    uint32_t everybody = UINT32_MAX >> (32 - set->size);
    op->express.slot = grant->slot;
    op->express.turn = grant->turn;
    if (!op->name)
        op->anon_seq = set->anon_seq[op->kind] + 1;
    bring(slots, request, op);
    client_step("express-before-arrival");
    enum hvi_express_arrival arrival =
        hvi_express_arrive(&slots->map, grant->slot, grant->turn, (uint32_t)set->rank, everybody);
    grant->valid = false; /* until this op is over */
    if (arrival == HVI_EXPRESS_STALE) {
        take_back(slots, op);
        return false;
    }
    client_step("express-arrived");
    if (!op->name) {
        set->anon_seq[op->kind] = op->anon_seq;
        client_grant_unnamed(set, op->kind)->last = op;
        client_grant_unnamed(set, op->kind)->standing = op;
    }
    op->express.active = true;
    client_op_set_state(slots->ops, op, CLIENT_OP_IN_FLIGHT);
    if (arrival == HVI_EXPRESS_LAST)
        do_for_all(slots, set, &grant->said, op, everybody);
    else
        ask_for_patrol(slots);
    return true;
}

bool client_arrive(struct client_slots *slots, struct client_set *set,
                   struct client_request *request)
{
    struct client_grant *grant = slots->on ? client_grant_for(request, set) : NULL;
    if (!grant || request->in_bytes > HVI_EXPRESS_PAYLOAD || !fits(slots, request, set, grant))
        return false;
    client_request_remember(request);
    return arrive(slots, set, request, grant);
}

bool client_arrive_medium(struct client_slots *slots, struct client_set *set,
                          struct client_request *request)
{
    struct client_grant *grant = slots->on ? client_grant_for(request, set) : NULL;
    struct hvd_op *op = request->op;
    if (!grant || !hvi_express_is_large(request->in_bytes, (uint32_t)set->size) ||
        !client_medium_may(op) || slots->ops->in_flight > 1 || !fits(slots, request, set, grant))
        return false;
    client_request_remember(request);
    op->express.medium = true;
    op->express.reduce_op = (uint32_t)request->reduce_op;
    op->express.prescale = request->prescale;
    op->express.postscale = request->postscale;
    if (arrive(slots, set, request, grant))
        return true;
    op->express.medium = false;
    return false;
}
