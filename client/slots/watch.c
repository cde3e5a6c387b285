/* SPDX-License-Identifier: Apache-2.0 */
#include "client/slots/watch.h"

#include "base/clock.h"
#include "client/ops/ops.h"
#include "client/slots/slots.h"

#include <sched.h>

struct in_the_way {
    const struct hvi_slots *map;
    const struct client_watch *watch;
    const uint8_t *seats; /* of all ranks */
};

/* Whether a rank that is still missing, or holds a chunk, was last seen on this core: then it cannot come
 * before the core is given up. Only known for ops of all ranks. */
static bool is_in_the_way(const void *user)
{
    const struct in_the_way *way = user;
    const struct hvi_slots *map = way->map;
    const struct client_watch *watch = way->watch;
    bool runs = watch->sight == HVI_SLOT_RUNS;
    uint32_t missing = runs ? hvi_slot_holders(map, watch->slot, watch->turn, NULL)
                            : ~hvi_slot_view(map, watch->slot).waiting;
    uint32_t here = (uint32_t)sched_getcpu() + 1;
    for (uint32_t i = 0; i < map->ranks; i++) {
        if ((missing >> i & 1) != 0 &&
            atomic_load_explicit(&map->rank[runs ? i : way->seats[i]].core, memory_order_relaxed) ==
                here)
            return true;
    }
    return false;
}

struct client_watch client_watch_of(const struct hvd_op *op)
{
    return (struct client_watch){
        .slot = op->slot.index,
        .turn = op->slot.turn,
        .all_ranks = op->process_set == 0,
        .medium = op->slot.medium,
    };
}

bool client_watch_runs(const struct client_slots *slots, const struct client_watch *watch)
{
    return hvi_slot_look(&slots->map, watch->slot, watch->turn) == HVI_SLOT_RUNS;
}

void client_watch_note_promptness(struct client_slots *slots, const struct hvd_op *op)
{
    if (op->slot.medium)
        slots->prompt = hvi_clock_ns() - op->slot.submit_ns < HVI_TUNED_PROMPT_NS;
}

bool client_watch_wait(struct client_slots *slots, struct client_watch *watch, uint64_t deadline_ns)
{
    const struct in_the_way way = {&slots->map, watch, slots->ops->sets.first->seats};
    struct hvi_wait wait = hvi_slot_wait(&slots->map, watch->slot, watch->turn, &watch->sight);
    if (watch->sight != HVI_SLOT_WAITS && watch->sight != HVI_SLOT_RUNS)
        return false;
    if (watch->all_ranks) {
        wait.yields = is_in_the_way;
        wait.user = &way;
    }
    if (hvi_wait_awake(&wait, &slots->policy, deadline_ns))
        return false;
    client_slots_call_engine(slots); /* it sees to it that this does not last for ever */
    hvi_wait_asleep(&wait, &slots->policy, deadline_ns);
    return true;
}
