/* SPDX-License-Identifier: Apache-2.0
 * The order of steps is what makes a death at any of them harmless (the table in docs/adr/0005):
 * payload and cookie first, then the bit; the result first, then the turn; the copy of the result
 * first, then the next arrival. The steps have names for the tests that die between them. */
#include "client/slots/arrive.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/copy.h"
#include "client/ops/ops.h"
#include "client/ops/request.h"
#include "client/slots/grants.h"
#include "client/slots/medium.h"
#include "client/slots/slots.h"
#include "client/step.h"
#include "shm/run.h"

#include <sched.h>
#include <string.h>

/* Whether the op before this one has left the slot; it may have been done without anybody looking. */
static bool is_clear(struct client_slots *slots, struct client_unnamed_slot *unnamed)
{
    if (unnamed->standing && unnamed->standing->slot.active)
        client_slots_look(slots, unnamed->standing);
    return !unnamed->standing;
}

static bool fits(struct client_slots *slots, const struct client_request *request,
                 struct client_set *set, const struct client_grant *grant)
{
    struct hvi_agreement said;
    if (!request->claimed && !is_clear(slots, client_grant_unnamed(set, request->kind)))
        return false;
    if (!grant->valid || request->group_size > 0)
        return false;
    client_grant_say(request, &said);
    return memcmp(&said, &grant->said, sizeof(said)) == 0;
}

/* For the ranks that wait for this one. */
static void note_core(struct hvi_slot_rank *mine)
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
        hvi_slot_payload(&slots->map, op->slot.index, slots->seat, request->in_bytes);
    bool reads = request->kind != HVI_KIND_BROADCAST || request->root == slots->ops->rank;
    if (request->in_bytes > 0 && reads)
        hvi_copy(payload, request->in->data, request->in_bytes);
    op->out.shared = payload; /* where the result comes to if the engine takes the op over */
    op->copy_to = request->out && request->out_bytes > 0 ? request->out->data : NULL;
}

static void bring(struct client_slots *slots, const struct client_request *request,
                  struct hvd_op *op)
{
    const struct hvi_slots *map = &slots->map;
    struct hvi_slot_part *part = hvi_slot_part(map, op->slot.index, slots->seat);
    if (op->slot.medium)
        client_medium_bring(slots, op);
    else
        bring_payload(slots, request, op);
    note_core(&map->rank[slots->seat]);
    op->slot.submit_ns = hvi_clock_ns();
    op->slot.brought = true;
    /* Release: only for the look whether the slot is empty. */
    atomic_store_explicit(&part->cookie, client_op_cookie(op), memory_order_release);
    part->submit_ns = op->slot.submit_ns;
    part->number = op->anon_seq;
}

/* Waiting ranks run the chunks. If no rank waits, the engine does. */
static void start_medium(struct client_slots *slots, struct hvd_op *op, uint32_t everybody)
{
    if (!client_medium_start(slots, op, everybody))
        op->slot.active = false; /* the engine was faster */
    else if (!slots->prompt)
        client_slots_call(slots, op);
}

static void add_lag(struct hvi_slot_lag *lag, uint64_t lag_ns, bool last)
{
    lag->sum_ns += lag_ns;
    lag->last += last;
    if (lag_ns > lag->max_ns)
        lag->max_ns = lag_ns;
    lag->histogram[hvi_log2_bucket(lag_ns, HVI_SLOT_BUCKETS)]++;
}

/* How late each rank came: the last one has all the times at hand. */
static void note_lags(const struct client_slots *slots, const struct client_set *set, uint32_t slot)
{
    const struct hvi_slots *map = &slots->map;
    struct hvi_slot_rank *mine = &map->rank[slots->seat];
    uint64_t first_ns = UINT64_MAX, last_ns = 0;
    for (int i = 0; i < set->size; i++) {
        uint64_t ns = hvi_slot_part(map, slot, set->seats[i])->submit_ns;
        first_ns = ns < first_ns ? ns : first_ns;
        last_ns = ns > last_ns ? ns : last_ns;
    }
    for (int i = 0; i < set->size; i++) {
        uint64_t ns = hvi_slot_part(map, slot, set->seats[i])->submit_ns;
        add_lag(&mine->lag[set->seats[i]], ns - first_ns, ns == last_ns);
    }
}

/* The seat of a broadcast's root, which is a member. */
static uint32_t root_seat(const struct client_set *set, const struct hvi_agreement *said)
{
    return said->kind == HVI_KIND_BROADCAST ? set->seats[client_set_place(set, said->root)] : 0;
}

/* This rank came last. */
static void do_for_all(struct client_slots *slots, const struct client_set *set,
                       const struct hvi_agreement *said, struct hvd_op *op, uint32_t everybody)
{
    uint32_t slot = op->slot.index;
    note_lags(slots, set, slot);
    if (op->slot.medium) {
        start_medium(slots, op, everybody);
        return;
    }
    client_step("slot-before-combining");
    hvi_run_small(&slots->map, slots->kernels, said, slot, set->seats, (uint32_t)set->size,
                  root_seat(set, said));
    client_step("slot-before-publishing");
    if (!hvi_slot_publish(&slots->map, slot, op->slot.turn, everybody)) {
        op->slot.active = false; /* the engine was faster: it does the op from the parts */
        return;
    }
    client_step("slot-published");
    client_slots_finish(slots, op);
}

/* It may be that no rank ever waits for this op, and that the others never come. */
static void ask_for_patrol(struct client_slots *slots)
{
    struct hvi_slot_rank *mine = &slots->map.rank[slots->seat];
    /* Seq_cst, after the arrival: pairs with end_patrol in the engine. */
    if (atomic_load_explicit(&mine->patrolled, memory_order_seq_cst) == 0)
        client_slots_call_engine(slots);
}

/* Nothing has happened. */
static void take_back(const struct client_slots *slots, struct hvd_op *op)
{
    client_slots_leave(slots, op);
    op->name = NULL;
    if (op->slot.medium)
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
    op->slot.index = grant->slot;
    op->slot.turn = grant->turn;
    if (!op->name)
        op->anon_seq = set->anon_seq[op->kind] + 1;
    bring(slots, request, op);
    client_step("slot-before-arrival");
    enum hvi_slot_arrival arrival =
        hvi_slot_arrive(&slots->map, grant->slot, grant->turn, (uint32_t)set->rank, everybody);
    grant->valid = false; /* until this op is over */
    if (arrival == HVI_SLOT_STALE) {
        take_back(slots, op);
        return false;
    }
    client_step("slot-arrived");
    if (!op->name) {
        set->anon_seq[op->kind] = op->anon_seq;
        client_grant_unnamed(set, op->kind)->last = op;
        client_grant_unnamed(set, op->kind)->standing = op;
    }
    op->slot.active = true;
    client_op_set_state(slots->ops, op, CLIENT_OP_IN_FLIGHT);
    if (arrival == HVI_SLOT_LAST)
        do_for_all(slots, set, &grant->said, op, everybody);
    else
        ask_for_patrol(slots);
    return true;
}

bool client_arrive(struct client_slots *slots, struct client_set *set,
                   struct client_request *request)
{
    struct client_grant *grant = slots->on ? client_grant_for(request, set) : NULL;
    if (!grant || request->in_bytes > HVI_SLOT_PAYLOAD || !fits(slots, request, set, grant))
        return false;
    client_request_remember(request);
    return arrive(slots, set, request, grant);
}

bool client_arrive_medium(struct client_slots *slots, struct client_set *set,
                          struct client_request *request)
{
    struct client_grant *grant = slots->on ? client_grant_for(request, set) : NULL;
    struct hvd_op *op = request->op;
    if (!grant || !hvi_slot_is_medium(request->in_bytes, (uint32_t)set->size) ||
        !client_medium_may(op) || slots->ops->in_flight > 1 || !fits(slots, request, set, grant))
        return false;
    client_request_remember(request);
    op->slot.medium = true;
    slots->medium = grant->said;
    if (arrive(slots, set, request, grant))
        return true;
    op->slot.medium = false;
    return false;
}
