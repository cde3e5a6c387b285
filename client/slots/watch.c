/* SPDX-License-Identifier: Apache-2.0 */
#include "client/slots/watch.h"

#include "base/clock.h"
#include "base/relax.h"
#include "client/ops/op.h"
#include "client/slots/slots.h"

#include <sched.h>

#define APART_SPINS  8u   /* pauses between two looks at the missing ranks */
#define APART_ROUNDS 100u /* looks without yielding while those are on other cores: about 10 us */
#define PROMPT_NS    (50 * 1000ull) /* between submitting an op and waiting for it */
#define CLOCK_ROUNDS 8u             /* looks between two at the clock */

struct hvi_wait_policy client_watch_policy(int ranks, uint32_t cores)
{
    /* The engine needs no core here. With more ranks than cores a waiting rank stands in the way of
     * those that it waits for: every pause before the first yield costs (measured: ADR 0005). */
    struct hvi_wait_policy policy = hvi_wait_policy_for(0, 1);
    if ((uint32_t)ranks > cores)
        policy.spins = 0;
    return policy;
}

/* Whether a rank that is still missing, or holds a chunk, was last seen on this core: then it cannot come
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
static bool wait_awake(const struct client_slots *slots, const struct client_watch *watch,
                       uint64_t deadline_ns)
{
    const struct hvi_express *express = &slots->map;
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
        else if (now_ns - start_ns >= slots->policy.yield_ns)
            return false;
    }
}

struct client_watch client_watch_of(const struct hvd_op *op)
{
    return (struct client_watch){
        .slot = op->express.slot,
        .turn = op->express.turn,
        .all_ranks = op->process_set == 0,
        .medium = op->express.medium,
    };
}

bool client_watch_runs(const struct client_slots *slots, const struct client_watch *watch)
{
    return hvi_express_look(&slots->map, watch->slot, watch->turn) == HVI_EXPRESS_RUNS;
}

void client_watch_note_promptness(struct client_slots *slots, const struct hvd_op *op)
{
    if (op->express.medium)
        slots->prompt = hvi_clock_ns() - op->express.submit_ns < PROMPT_NS;
}

bool client_watch_wait(struct client_slots *slots, struct client_watch *watch, uint64_t deadline_ns)
{
    const struct hvi_wait_policy *policy = &slots->policy;
    watch->sight = hvi_express_look(&slots->map, watch->slot, watch->turn);
    if (watch->sight != HVI_EXPRESS_WAITS && watch->sight != HVI_EXPRESS_RUNS)
        return false;
    if (spin(&slots->map, watch, policy->spins) || wait_awake(slots, watch, deadline_ns))
        return false;
    client_slots_call_engine(slots); /* it sees to it that this does not last for ever */
    uint64_t now_ns = hvi_clock_ns();
    uint64_t left_ns = deadline_ns > now_ns ? deadline_ns - now_ns : 0;
    hvi_express_sleep(&slots->map, watch->slot, watch->turn, watch->sight,
                      left_ns < policy->slice_ns ? left_ns : policy->slice_ns);
    return true;
}
