/* SPDX-License-Identifier: Apache-2.0
 * The rank's side of express slots.
 *
 * The order of steps is what makes a death at any of them harmless (the table in docs/adr/0005):
 * payload and cookie first, then the bit; the result first, then the turn; the copy of the result
 * first, then the next arrival. The steps have names for the tests that die between them. */
#include "client/express.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/relax.h"
#include "base/types.h"
#include "client/large.h"
#include "client/link/control.h"
#include "client/ops/land.h"
#include "client/ops/names.h"
#include "client/ops/request.h"
#include "client/ops/sets.h"
#include "client/session/session.h"
#include "client/step.h"
#include "client/wait.h"

#include <sched.h>
#include <string.h>
#include <time.h>

#define SETTLE_NS     (100 * HVI_NS_MS)
#define SETTLE_NAP_NS 20000l
#define APART_SPINS   8u   /* pauses between two looks at who is missing */
#define APART_ROUNDS  100u /* looks without yielding while those are on other cores: about 10 us */
#define PROMPT_NS     (50 * 1000ull) /* between submitting an op and waiting for it */
#define CLOCK_ROUNDS  8u             /* looks between two at the clock */

/* ---- tickets ---- */

static void say(const struct client_request *request, struct client_said *said_p)
{
    memset(said_p, 0, sizeof(*said_p));
    said_p->kind = request->kind;
    said_p->reduce_op = (uint32_t)request->reduce_op;
    said_p->root = request->root;
    said_p->prescale = request->prescale;
    said_p->postscale = request->postscale;
    said_p->bytes = request->in_bytes;
    if (!request->in)
        return;
    said_p->dtype = (uint32_t)request->in->dtype;
    said_p->ndim = (uint32_t)request->in->ndim;
    for (int i = 0; i < request->in->ndim; i++)
        said_p->dims[i] = request->in->dims[i];
}

/* NULL: this kind has none. */
static struct client_lane *lane_of(struct client_set *set, uint8_t kind)
{
    int lane = hvi_express_lane(kind);
    return lane < 0 ? NULL : &set->lanes[lane];
}

/* The ticket that an op like this needs, and brings; NULL: none. */
static struct client_ticket *ticket_for(const struct client_request *request,
                                        struct client_set *set)
{
    struct client_lane *lane = lane_of(set, request->kind);
    if (!lane)
        return NULL;
    return request->claimed ? client_names_ticket(request->claimed) : &lane->ticket;
}

/* The ticket that an op in flight was noted in. NULL: none, or another unnamed op was noted there
 * since, or the set has gone: whatever this op's end says about the next is of no use then. */
static struct client_ticket *ticket_of(struct hvd_session *session, const struct hvd_op *op)
{
    if (op->name)
        return client_names_ticket(op->name);
    struct client_set *set = client_sets_find(&session->ops.sets, op->process_set);
    struct client_lane *lane = set ? lane_of(set, op->kind) : NULL;
    return lane && lane->last == op ? &lane->ticket : NULL;
}

/* Whether the op before this one has left the slot; it may have been done without anybody looking. */
static bool is_clear(struct hvd_session *session, struct client_lane *lane)
{
    if (lane->standing && lane->standing->express.active)
        client_express_look(session, lane->standing);
    return !lane->standing;
}

static bool fits(struct hvd_session *session, const struct client_request *request,
                 struct client_set *set, const struct client_ticket *ticket)
{
    struct client_said said;
    if (!request->claimed && !is_clear(session, lane_of(set, request->kind)))
        return false;
    if (!ticket->valid || request->group_size > 0 || session->link.epoll_fd >= 0)
        return false;
    say(request, &said);
    return memcmp(&said, &ticket->said, sizeof(said)) == 0;
}

void client_express_note(const struct hvd_session *session, struct client_set *set,
                         const struct client_request *request)
{
    struct client_ticket *ticket = session->express_on ? ticket_for(request, set) : NULL;
    if (!ticket)
        return;
    say(request, &ticket->said);
    ticket->valid = false; /* until this op is over */
    if (!request->claimed)
        lane_of(set, request->kind)->last = request->op;
}

void client_express_take_ticket(struct hvd_session *session, const struct hvd_op *op,
                                const struct hvi_completion *completion)
{
    uint32_t slot = completion->ticket - 1;
    if (completion->ticket == 0 || !session->express_on || slot >= HVI_EXPRESS_SLOTS)
        return;
    struct client_ticket *ticket = ticket_of(session, op);
    if (!ticket || ticket->said.bytes > HVI_EXPRESS_LARGE)
        return;
    ticket->slot = slot;
    ticket->turn = completion->text_turn;
    ticket->valid = true;
}

/* ---- the last rank's work ---- */

static void reduce(const struct hvd_session *session, const struct client_set *set,
                   const struct client_said *said, uint32_t slot)
{
    const struct hvi_express *express = &session->express;
    const void *in[HVI_EXPRESS_RANKS];
    void *out = hvi_express_result(express, slot, said->bytes);
    for (int i = 0; i < set->size; i++)
        in[i] = hvi_express_payload(express, slot, (uint32_t)set->ranks[i], said->bytes);
    const struct hvi_reduction work = {
        .dtype = said->dtype,
        .reduce_op = said->reduce_op,
        .ranks = (uint32_t)set->size,
        .ins = (uint32_t)set->size,
        .outs = 1,
        .in = in,
        .out = &out,
        .prescale = said->prescale,
        .postscale = said->postscale,
    };
    session->kernels->reduce(&work, 0, said->bytes / hvi_dtype_bytes(said->dtype));
}

static void combine(const struct hvd_session *session, const struct client_set *set,
                    const struct client_said *said, uint32_t slot)
{
    const struct hvi_express *express = &session->express;
    if (said->bytes == 0)
        return;
    if (said->kind == HVI_KIND_BROADCAST)
        memcpy(hvi_express_result(express, slot, said->bytes),
               hvi_express_payload(express, slot, (uint32_t)said->root, said->bytes), said->bytes);
    else
        reduce(session, set, said, slot);
}

static void add_lag(struct hvi_express_lag *lag, uint64_t lag_ns, bool last)
{
    lag->sum_ns += lag_ns;
    lag->last += last;
    if (lag_ns > lag->max_ns)
        lag->max_ns = lag_ns;
    lag->histogram[hvi_log2_bucket(lag_ns, HVI_EXPRESS_BUCKETS)]++;
}

/* Who came how late: the one who did the op has all the times at hand. */
static void note_lags(const struct hvd_session *session, const struct client_set *set,
                      uint32_t slot)
{
    const struct hvi_express *express = &session->express;
    struct hvi_express_rank *mine = &express->rank[session->link.identity.rank];
    uint64_t first_ns = UINT64_MAX, last_ns = 0;
    for (int i = 0; i < set->size; i++) {
        uint64_t ns = hvi_express_part(express, slot, (uint32_t)set->ranks[i])->submit_ns;
        first_ns = ns < first_ns ? ns : first_ns;
        last_ns = ns > last_ns ? ns : last_ns;
    }
    for (int i = 0; i < set->size; i++) {
        uint64_t ns = hvi_express_part(express, slot, (uint32_t)set->ranks[i])->submit_ns;
        add_lag(&mine->lag[set->ranks[i]], ns - first_ns, ns == last_ns);
    }
}

/* ---- an op's end ---- */

static void note_trace(struct hvd_session *session, const struct hvd_op *op)
{
    struct hvi_express_rank *mine = &session->express.rank[session->link.identity.rank];
    uint64_t at = atomic_load_explicit(&mine->traced, memory_order_relaxed);
    uint64_t now_ns = hvi_clock_ns();
    mine->trace[at % HVI_EXPRESS_TRACE] = (struct hvi_express_trace){
        .submit_ns = op->express.submit_ns,
        .done_ns = now_ns,
        .number = op->anon_seq,
        .slot = op->express.slot,
        .bytes = (uint32_t)op->out_bytes,
    };
    /* Ops that need no engine would never tell us that it has died. */
    session->link.look_due = now_ns - session->link.looked_ns >= CLIENT_LOOK_NS;
    /* Release, pairs with the engine's acquire before it copies entries. */
    atomic_store_explicit(&mine->traced, at + 1, memory_order_release);
    /* Relaxed: sums for people. */
    atomic_store_explicit(&mine->ops, atomic_load_explicit(&mine->ops, memory_order_relaxed) + 1,
                          memory_order_relaxed);
    atomic_store_explicit(&mine->bytes,
                          atomic_load_explicit(&mine->bytes, memory_order_relaxed) + op->out_bytes,
                          memory_order_relaxed);
}

/* Published: copies the result, and the next op may use the slot again. */
static void finish(struct hvd_session *session, struct hvd_op *op)
{
    struct client_ticket *ticket = ticket_of(session, op);
    client_step("express-before-copy");
    if (op->copy_to && op->out_bytes > 0 && !op->express.large)
        memcpy(op->copy_to, hvi_express_result(&session->express, op->express.slot, op->out_bytes),
               op->out_bytes);
    note_trace(session, op);
    if (!op->express.large) /* whose result is not in the slot */
        op->copy_to = NULL;
    op->status = HVD_OK;
    if (ticket) {
        ticket->slot = op->express.slot;
        ticket->turn = (op->express.turn + 1) & HVI_EXPRESS_TURN_MASK;
        ticket->valid = true;
    }
    client_express_landed(session, op);
    client_op_land(&session->ops, op);
}

static void call_engine(struct hvd_session *session)
{
    /* Seq_cst, before the bell: pairs with engine_express_look after the engine has taken the bell.
     */
    atomic_store_explicit(&session->express.head->watch, 1, memory_order_seq_cst);
    hvi_bell_ring_engine(session->link.bell, session->link.channel.channel_index,
                         session->link.engine_event_fd);
}

void client_express_take_back(struct hvd_op *op)
{
    if (!op->express.brought || !op->copy_to || op->express.large)
        return;
    memcpy(op->copy_to, op->out.shared, op->out_bytes);
    op->copy_to = NULL;
}

void client_express_look(struct hvd_session *session, struct hvd_op *op)
{
    switch (hvi_express_look(&session->express, op->express.slot, op->express.turn)) {
    case HVI_EXPRESS_WAITS:
    case HVI_EXPRESS_RUNS:
        return;
    case HVI_EXPRESS_DONE:
        finish(session, op);
        return;
    case HVI_EXPRESS_SEIZED:
        op->express.active = false;
        call_engine(session); /* in case it was a peer that wrote nonsense */
        return;
    }
}

bool client_express_look_all(struct hvd_session *session)
{
    bool waits = false;
    for (uint32_t i = 0; i < session->ops.fresh; i++) {
        struct hvd_op *op = &session->ops.slots[i];
        if (op->express.active)
            client_express_look(session, op);
        waits = waits || (op->state == CLIENT_OP_IN_FLIGHT && op->express.active);
    }
    return waits;
}

/* ---- an op's beginning ---- */

/* The output's memory is in use until the op is over, wherever the op is done. */
static void hold_output(struct hvd_session *session, const struct client_request *request,
                        struct hvd_op *op)
{
    if (!request->out || request->out_bytes == 0)
        return;
    op->out.row = client_table_find(&session->memory.table, request->out->data, request->out_bytes);
    if (op->out.row)
        op->out.row->users++;
}

/* For those who wait for this rank. */
static void note_core(struct hvi_express_rank *mine)
{
    uint32_t here = (uint32_t)sched_getcpu() + 1;
    /* Relaxed: a hint; only written when it has changed, so that the line stays shared. */
    if (atomic_load_explicit(&mine->core, memory_order_relaxed) != here)
        atomic_store_explicit(&mine->core, here, memory_order_relaxed);
}

static void bring_payload(const struct hvd_session *session, const struct client_request *request,
                          struct hvd_op *op)
{
    unsigned char *payload =
        hvi_express_payload(&session->express, op->express.slot,
                            (uint32_t)session->link.identity.rank, request->in_bytes);
    bool reads =
        request->kind != HVI_KIND_BROADCAST || request->root == session->link.identity.rank;
    if (request->in_bytes > 0 && reads)
        memcpy(payload, request->in->data, request->in_bytes);
    op->out.shared = payload; /* where the result comes to if the engine takes the op over */
    op->copy_to = request->out && request->out_bytes > 0 ? request->out->data : NULL;
}

static void bring(struct hvd_session *session, const struct client_request *request,
                  struct hvd_op *op)
{
    const struct hvi_express *express = &session->express;
    uint32_t rank = (uint32_t)session->link.identity.rank;
    struct hvi_express_part *part = hvi_express_part(express, op->express.slot, rank);
    if (op->express.large)
        client_large_bring(session, op);
    else
        bring_payload(session, request, op);
    note_core(&express->rank[rank]);
    op->express.submit_ns = hvi_clock_ns();
    op->express.brought = true;
    /* Release: only for whoever looks whether the slot is empty. */
    atomic_store_explicit(&part->cookie, client_op_cookie(op), memory_order_release);
    part->submit_ns = op->express.submit_ns;
    part->number = op->anon_seq;
}

/* Who waits does the op. Nobody may: whoever submits and goes on with something else leaves it to the
 * engine. */
static void start_large(struct hvd_session *session, struct hvd_op *op, uint32_t everybody)
{
    if (!client_large_start(session, op, everybody))
        op->express.active = false; /* the engine was faster */
    else if (!session->express_prompt)
        client_express_call(session, op);
}

/* This rank came last. */
static void do_for_all(struct hvd_session *session, const struct client_set *set,
                       const struct client_said *said, struct hvd_op *op, uint32_t everybody)
{
    uint32_t slot = op->express.slot;
    note_lags(session, set, slot);
    if (op->express.large) {
        start_large(session, op, everybody);
        return;
    }
    client_step("express-before-combining");
    combine(session, set, said, slot);
    client_step("express-before-publishing");
    if (!hvi_express_publish(&session->express, slot, op->express.turn, everybody)) {
        op->express.active = false; /* the engine was faster: it does the op from the parts */
        return;
    }
    client_step("express-published");
    finish(session, op);
}

/* Nobody may ever wait for this op, and the others may never come. */
static void ask_for_patrol(struct hvd_session *session)
{
    struct hvi_express_rank *mine = &session->express.rank[session->link.identity.rank];
    /* Seq_cst, after the arrival: pairs with end_patrol in the engine. */
    if (atomic_load_explicit(&mine->patrolled, memory_order_seq_cst) == 0)
        call_engine(session);
}

/* Nothing of the op is in its slot any more. Release: what was there has been read. */
static void leave(const struct hvd_session *session, struct hvd_op *op)
{
    struct hvi_express_part *part = hvi_express_part(&session->express, op->express.slot,
                                                     (uint32_t)session->link.identity.rank);
    atomic_store_explicit(&part->cookie, 0, memory_order_release);
    op->express.active = false;
    op->express.brought = false;
}

/* Nothing has happened. */
static void take_back(const struct hvd_session *session, struct hvd_op *op)
{
    leave(session, op);
    op->name = NULL;
    if (op->express.large)
        return; /* it stays placed */
    op->copy_to = NULL;
    op->out.shared = NULL;
}

void client_express_landed(struct hvd_session *session, struct hvd_op *op)
{
    leave(session, op);
    struct client_set *set =
        op->name ? NULL : client_sets_find(&session->ops.sets, op->process_set);
    struct client_lane *lane = set ? lane_of(set, op->kind) : NULL;
    if (lane && lane->standing == op)
        lane->standing = NULL;
}

/* In its slot, if the ticket is still good. */
static bool arrive(struct hvd_session *session, struct client_set *set,
                   struct client_request *request, struct client_ticket *ticket)
{
    struct hvd_op *op = request->op;
    uint32_t everybody = UINT32_MAX >> (32 - set->size);
    op->express.slot = ticket->slot;
    op->express.turn = ticket->turn;
    if (!op->name)
        op->anon_seq = set->anon_seq[op->kind] + 1;
    bring(session, request, op);
    client_step("express-before-arrival");
    enum hvi_express_arrival arrival = hvi_express_arrive(
        &session->express, ticket->slot, ticket->turn, (uint32_t)set->rank, everybody);
    ticket->valid = false; /* until this op is over */
    if (arrival == HVI_EXPRESS_STALE) {
        take_back(session, op);
        return false;
    }
    client_step("express-arrived");
    if (!op->name) {
        set->anon_seq[op->kind] = op->anon_seq;
        lane_of(set, op->kind)->last = op;
        lane_of(set, op->kind)->standing = op;
    }
    if (!op->express.large)
        hold_output(session, request, op);
    op->express.active = true;
    client_op_set_state(&session->ops, op, CLIENT_OP_IN_FLIGHT);
    if (arrival == HVI_EXPRESS_LAST)
        do_for_all(session, set, &ticket->said, op, everybody);
    else
        ask_for_patrol(session);
    return true;
}

bool client_express_submit(struct hvd_session *session, struct client_set *set,
                           struct client_request *request)
{
    struct client_ticket *ticket = session->express_on ? ticket_for(request, set) : NULL;
    if (!ticket || request->in_bytes > HVI_EXPRESS_PAYLOAD || !fits(session, request, set, ticket))
        return false;
    client_request_remember(request);
    return arrive(session, set, request, ticket);
}

bool client_express_submit_large(struct hvd_session *session, struct client_set *set,
                                 struct client_request *request)
{
    struct client_ticket *ticket = session->express_on ? ticket_for(request, set) : NULL;
    struct hvd_op *op = request->op;
    if (!ticket || !hvi_express_is_large(request->in_bytes, (uint32_t)set->size) ||
        !client_large_may(op) || session->ops.in_flight > 1 || !fits(session, request, set, ticket))
        return false;
    client_request_remember(request);
    op->express.large = true;
    op->express.reduce_op = (uint32_t)request->reduce_op;
    op->express.prescale = request->prescale;
    op->express.postscale = request->postscale;
    if (arrive(session, set, request, ticket))
        return true;
    op->express.large = false;
    return false;
}

void client_express_abandoned(struct hvd_session *session, struct hvd_op *op)
{
    if (op->express.active)
        client_express_look(session, op);
    if (op->state != CLIENT_OP_IN_FLIGHT || !op->express.active)
        return;
    op->express.orphan = true;
    session->ops.orphans++;
    client_express_call(session, op);
}

/* ---- waiting ---- */

void client_express_call(struct hvd_session *session, const struct hvd_op *op)
{
    /* Release: only a wish, for this turn; the bell orders it. */
    atomic_store_explicit(&session->express.slots[op->express.slot].called, op->express.turn + 1,
                          memory_order_release);
    call_engine(session);
}

static bool still_waits(struct hvd_session *session, struct hvd_op *op, uint32_t generation)
{
    if (op->generation != generation || op->state != CLIENT_OP_IN_FLIGHT || !op->express.active)
        return false;
    client_express_look(session, op);
    return op->generation == generation && op->state == CLIENT_OP_IN_FLIGHT && op->express.active;
}

static void settle(struct hvd_session *session, struct hvd_op *op)
{
    const struct timespec nap = {.tv_nsec = SETTLE_NAP_NS};
    uint64_t deadline_ns = hvi_clock_ns() + SETTLE_NS;
    uint32_t generation = op->generation;
    while (still_waits(session, op, generation) && session->link.end_status == HVD_OK) {
        client_express_call(session, op);
        pthread_mutex_unlock(&session->link.mutex);
        nanosleep(&nap, NULL);
        pthread_mutex_lock(&session->link.mutex);
        client_wait_drain(session);
        client_control_look(&session->link);
        if (hvi_deadline_passed(deadline_ns))
            return; /* a stopped engine: the op ends when it goes on, or by its death */
    }
}

void client_express_polled(struct hvd_session *session, const struct hvd_op *op)
{
    if (!op->express.active)
        return;
    uint64_t now_ns = hvi_clock_ns();
    if (now_ns - op->express.submit_ns < CLIENT_LOOK_NS ||
        now_ns - session->express_called_ns < CLIENT_LOOK_NS)
        return;
    session->express_called_ns = now_ns;
    client_express_call(session, op);
}

void client_express_settle(struct hvd_session *session, struct hvd_op *op)
{
    if (op && op->express.active)
        settle(session, op);
    for (uint32_t i = 0; !op && i < session->ops.fresh; i++) {
        if (session->ops.slots[i].express.active)
            settle(session, &session->ops.slots[i]);
    }
}

struct hvi_wait_policy client_express_policy(int ranks, uint32_t cores)
{
    /* The engine needs no core here. With more ranks than cores whoever waits stands in the way of
     * those that are waited for: every pause before the first yield costs (measured: ADR 0005). */
    struct hvi_wait_policy policy = hvi_wait_policy_for(0, 1);
    if ((uint32_t)ranks > cores)
        policy.spins = 0;
    return policy;
}

/* Whether a rank that is still missing, or holds a unit, was last seen on this core: then it cannot come
 * before the core is given up. Only known for ops of all ranks. */
static bool is_in_the_way(const struct hvi_express *express, const struct client_watch *watch)
{
    uint32_t missing = watch->sight == HVI_EXPRESS_RUNS
                           ? hvi_express_holders(express, watch->slot, watch->turn)
                           : ~hvi_express_arrived(express, watch->slot);
    uint32_t here = (uint32_t)sched_getcpu() + 1;
    for (uint32_t rank = 0; rank < express->ranks; rank++) {
        if ((missing >> rank & 1) != 0 &&
            atomic_load_explicit(&express->rank[rank].core, memory_order_relaxed) == here)
            return true;
    }
    return false;
}

static bool has_moved(const struct hvi_express *express, const struct client_watch *watch)
{
    return hvi_express_look(express, watch->slot, watch->turn) != watch->sight;
}

/* True when the slot has moved. */
static bool spin(const struct hvi_express *express, const struct client_watch *watch,
                 uint32_t spins)
{
    for (uint32_t i = 0; i < spins; i++) {
        if (has_moved(express, watch))
            return true;
        hvi_cpu_relax();
    }
    return has_moved(express, watch);
}

/* Until policy->yield_ns have passed since the first look at the clock, which is looked at now and
 * then only. True when the slot has moved or it is too late. */
static bool wait_awake(const struct hvd_session *session, const struct client_watch *watch,
                       uint64_t deadline_ns)
{
    const struct hvi_express *express = &session->express;
    uint64_t start_ns = 0;
    for (uint32_t round = 1;; round++) {
        if (!watch->all_ranks || round > APART_ROUNDS || is_in_the_way(express, watch))
            sched_yield();
        if (spin(express, watch, watch->all_ranks ? APART_SPINS : 0))
            return true;
        if (round % CLOCK_ROUNDS != 0)
            continue;
        uint64_t now_ns = hvi_clock_ns();
        if (now_ns >= deadline_ns)
            return true;
        if (start_ns == 0)
            start_ns = now_ns;
        else if (now_ns - start_ns >= session->express_policy.yield_ns)
            return false;
    }
}

struct client_watch client_express_watch(const struct hvd_op *op)
{
    return (struct client_watch){
        .slot = op->express.slot,
        .turn = op->express.turn,
        .all_ranks = op->process_set == 0,
        .large = op->express.large,
    };
}

bool client_express_runs(const struct hvd_session *session, const struct client_watch *watch)
{
    return hvi_express_look(&session->express, watch->slot, watch->turn) == HVI_EXPRESS_RUNS;
}

void client_express_note_promptness(struct hvd_session *session, const struct hvd_op *op)
{
    if (op->express.large)
        session->express_prompt = hvi_clock_ns() - op->express.submit_ns < PROMPT_NS;
}

bool client_express_wait(struct hvd_session *session, struct client_watch *watch,
                         uint64_t deadline_ns)
{
    const struct hvi_wait_policy *policy = &session->express_policy;
    watch->sight = hvi_express_look(&session->express, watch->slot, watch->turn);
    if (watch->sight != HVI_EXPRESS_WAITS && watch->sight != HVI_EXPRESS_RUNS)
        return false;
    if (spin(&session->express, watch, policy->spins) || wait_awake(session, watch, deadline_ns))
        return false;
    call_engine(session); /* it sees to it that this does not last for ever */
    uint64_t now_ns = hvi_clock_ns();
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    hvi_express_sleep(&session->express, watch->slot, watch->turn, watch->sight,
                      left_ns < policy->slice_ns ? left_ns : policy->slice_ns);
    return true;
}
