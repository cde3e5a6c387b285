/* SPDX-License-Identifier: Apache-2.0
 * How chunks are done: shm/run.c. What other ranks wrote is not believed: their operands must lie in
 * regions that the engine has shown us as theirs. */
#include "client/slots/medium.h"

#include "base/clock.h"
#include "client/link/link.h"
#include "client/memory/memory.h"
#include "client/ops/ops.h"
#include "client/slots/slots.h"
#include "client/slots/watch.h"
#include "client/step.h"
#include "shm/run.h"

#include <string.h>

bool client_medium_may(const struct hvd_op *op)
{
    return op->in.region != HVI_REGION_INLINE && op->out.region != HVI_REGION_INLINE &&
           op->in.region < HVI_REGION_PROCESS && op->out.region < HVI_REGION_PROCESS;
}

void client_medium_bring(const struct client_slots *slots, const struct hvd_op *op)
{
    const struct hvi_slot_operands operands = {
        .in_region = op->in.region,
        .out_region = op->out.region,
        .in_offset = op->in.offset,
        .out_offset = op->out.offset,
    };
    memcpy(hvi_slot_part(&slots->map, op->slot.index, slots->seat)->payload, &operands,
           sizeof(operands));
}

bool client_medium_start(struct client_slots *slots, const struct hvd_op *op, uint32_t everybody)
{
    client_step("medium-before-start");
    if (!hvi_slot_start(&slots->map, op->slot.index, op->slot.turn, op->out_bytes, everybody))
        return false;
    client_step("medium-started");
    return true;
}

void client_medium_close(struct client_slots *slots, struct hvd_op *op)
{
    struct client_set *set = client_sets_find(&slots->ops->sets, op->process_set);
    if (!set)
        return;
    hvi_slot_close(&slots->map, op->slot.index, op->slot.turn, op->out_bytes,
                   UINT32_MAX >> (32 - set->size), hvi_deadline_after(HVI_TUNED_CLOSE_NS));
    if (op->slot.active) /* else it was the engine's already, or a peer has closed it */
        client_slots_look(slots, op);
}

static bool is_there(const struct hvd_op *op, uint32_t slot, uint32_t turn)
{
    return op->state == CLIENT_OP_IN_FLIGHT && op->slot.active && op->slot.medium &&
           op->slot.index == slot && op->slot.turn == turn;
}

struct search {
    struct client_peers *peers;
    const struct client_set *set;
};

static const struct hvi_region *find(void *user, uint32_t member, uint32_t region)
{
    const struct search *search = user;
    return client_peers_find(search->peers, search->set->ranks[member], region);
}

/* With the lock. True: `run` can be worked on until .working is counted down. */
static bool prepare(struct client_slots *slots, struct hvd_op *op, uint32_t slot, uint32_t turn,
                    struct hvi_run *run)
{
    struct client_peers *peers = &slots->ops->memory->peers;
    if (!is_there(op, slot, turn) || hvi_slot_look(&slots->map, slot, turn) != HVI_SLOT_RUNS)
        return false;
    struct client_set *set = client_sets_find(&slots->ops->sets, op->process_set);
    if (!set)
        return false;
    struct search search = {peers, set};
    hvi_run_init(run, &slots->map, &slots->medium, slot, turn, set->seats, (uint32_t)set->size);
    run->step = CLIENT_STEP;
    if (hvi_slot_is_done(&slots->map, slot,
                         turn)) { /* the rank that did the last chunk may be dead */
        hvi_slot_publish(&slots->map, slot, turn, run->everybody);
        return false;
    }
    run->in[set->rank] = op->in.shared;
    run->out[set->rank] = op->out.shared;
    if (hvi_run_locate(run, &slots->medium, find, &search) >= 0) {
        if (!op->slot.called)
            client_slots_call(slots, op); /* which has it all mapped */
        op->slot.called = true;
        return false;
    }
    atomic_fetch_add_explicit(&peers->working, 1, memory_order_relaxed);
    return true;
}

static void call_engine(struct client_slots *slots, struct hvd_op *op,
                        const struct client_watch *watch)
{
    pthread_mutex_lock(&slots->link->mutex);
    if (is_there(op, watch->slot, watch->turn))
        client_slots_call(slots, op);
    pthread_mutex_unlock(&slots->link->mutex);
}

uint32_t client_medium_help(struct client_slots *slots, struct hvd_op *op,
                            const struct client_watch *watch, uint32_t most)
{
    struct hvi_run run;
    bool lacking;
    if (!watch->medium)
        return 0;
    pthread_mutex_lock(&slots->link->mutex);
    bool ready = prepare(slots, op, watch->slot, watch->turn, &run);
    pthread_mutex_unlock(&slots->link->mutex);
    if (!ready)
        return 0;
    uint32_t done = hvi_run_chunks(&run, slots->kernels, slots->seat + 1, most, &lacking);
    /* Release, pairs with the acquire before unmapping. */
    atomic_fetch_sub_explicit(&slots->ops->memory->peers.working, 1, memory_order_release);
    if (lacking)
        call_engine(slots, op, watch);
    return done;
}
