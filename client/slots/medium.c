/* SPDX-License-Identifier: Apache-2.0
 * The order of steps: find every operand, then claim a chunk, then reduce, then say so. The claim is
 * what makes it safe: it succeeds only at the turn at which the parts were read, and while a chunk is
 * claimed the op is under way, so that no rank takes its memory back.
 *
 * What other ranks wrote is not believed: their operands must lie in regions that the engine has shown
 * us as theirs. */
#include "client/slots/medium.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/types.h"
#include "client/link/link.h"
#include "client/memory/memory.h"
#include "client/ops/ops.h"
#include "client/slots/slots.h"
#include "client/slots/watch.h"
#include "client/step.h"
#include "reduce/guarded.h"
#include "shm/abi.h"

#include <string.h>

#define CLOSE_NS (20 * (int64_t)HVI_NS_MS)

/* What a chunk works on: whole operands, and what to do with them. */
struct job {
    struct hvi_reduction reduction;
    const void *in[HVI_EXPRESS_RANKS];
    void *out[HVI_EXPRESS_RANKS];
    uint64_t bytes, chunk_bytes;
    uint32_t chunks, element, everybody;
    uint32_t rank[HVI_EXPRESS_RANKS];
};

bool client_medium_may(const struct hvd_op *op)
{
    return op->in.region != HVI_REGION_INLINE && op->out.region != HVI_REGION_INLINE &&
           op->in.region < HVI_REGION_PROCESS && op->out.region < HVI_REGION_PROCESS;
}

void client_medium_bring(const struct client_slots *slots, const struct hvd_op *op)
{
    const struct hvi_express_operands operands = {
        .in_region = op->in.region,
        .out_region = op->out.region,
        .in_offset = op->in.offset,
        .out_offset = op->out.offset,
    };
    memcpy(hvi_express_part(&slots->map, op->express.slot, slots->rank)->payload, &operands,
           sizeof(operands));
}

bool client_medium_start(struct client_slots *slots, const struct hvd_op *op, uint32_t everybody)
{
    uint64_t chunk_bytes;
    uint32_t chunks = hvi_express_cut(op->out_bytes, &chunk_bytes);
    client_step("large-before-start");
    if (!hvi_express_start(&slots->map, op->express.slot, op->express.turn, chunks, everybody))
        return false;
    client_step("large-started");
    return true;
}

/* ---- operands ---- */

static void *find_operand(struct client_slots *slots, const struct job *job, int32_t rank,
                          uint32_t region, uint64_t offset)
{
    const struct hvi_region *map = client_peers_find(&slots->ops->memory->peers, rank, region);
    if (!map || !hvi_range_fits(offset, job->bytes, map->bytes) || offset % job->element != 0)
        return NULL;
    return (char *)map->base + offset;
}

/* False: not everything of this peer is mapped. */
static bool find_peers(struct client_slots *slots, uint32_t slot, int32_t rank, struct job *job,
                       int member)
{
    struct hvi_express_operands said;
    memcpy(&said, hvi_express_part(&slots->map, slot, (uint32_t)rank)->payload, sizeof(said));
    job->in[member] = find_operand(slots, job, rank, said.in_region, said.in_offset);
    job->out[member] = find_operand(slots, job, rank, said.out_region, said.out_offset);
    return job->in[member] && job->out[member];
}

/* Asks for all that is missing before it says no. */
static bool find_all(struct client_slots *slots, const struct hvd_op *op,
                     const struct client_set *set, struct job *job)
{
    bool found = true;
    for (int i = 0; i < set->size; i++) {
        if (set->ranks[i] != slots->ops->rank) {
            found = find_peers(slots, op->express.slot, set->ranks[i], job, i) && found;
            continue;
        }
        job->in[i] = op->in.shared;
        job->out[i] = op->out.shared;
    }
    return found;
}

static void describe(const struct hvd_op *op, const struct client_set *set, struct job *job)
{
    job->bytes = op->out_bytes;
    job->chunks = hvi_express_cut(job->bytes, &job->chunk_bytes);
    job->element = hvi_dtype_bytes((uint32_t)op->result.dtype);
    job->everybody = UINT32_MAX >> (32 - set->size);
    job->reduction = (struct hvi_reduction){
        .dtype = (uint32_t)op->result.dtype,
        .reduce_op = op->express.reduce_op,
        .ranks = (uint32_t)set->size,
        .ins = (uint32_t)set->size,
        .outs = (uint32_t)set->size,
        .in = job->in,
        .out = job->out,
        .prescale = op->express.prescale,
        .postscale = op->express.postscale,
    };
    for (int i = 0; i < set->size; i++)
        job->rank[i] = (uint32_t)set->ranks[i];
}

static bool is_there(const struct hvd_op *op, uint32_t slot, uint32_t turn)
{
    return op->state == CLIENT_OP_IN_FLIGHT && op->express.active && op->express.medium &&
           op->express.slot == slot && op->express.turn == turn;
}

/* With the lock. True: `job` can be worked on until .working is counted down. */
static bool prepare(struct client_slots *slots, struct hvd_op *op, uint32_t slot, uint32_t turn,
                    struct job *job)
{
    if (!is_there(op, slot, turn) || hvi_express_look(&slots->map, slot, turn) != HVI_EXPRESS_RUNS)
        return false;
    struct client_set *set = client_sets_find(&slots->ops->sets, op->process_set);
    if (!set)
        return false;
    describe(op, set, job);
    if (hvi_express_is_done(&slots->map, slot,
                            turn)) { /* the rank that did the last chunk may be dead */
        hvi_express_end(&slots->map, slot, turn, job->everybody);
        return false;
    }
    if (!find_all(slots, op, set, job)) {
        if (!op->express.called)
            client_slots_call(slots, op); /* which has it all mapped */
        op->express.called = true;
        return false;
    }
    atomic_fetch_add_explicit(&slots->ops->memory->peers.working, 1, memory_order_relaxed);
    return true;
}

/* ---- the end ---- */

void client_medium_close(struct client_slots *slots, struct hvd_op *op)
{
    struct client_set *set = client_sets_find(&slots->ops->sets, op->process_set);
    uint64_t chunk_bytes;
    if (!set)
        return;
    hvi_express_close(&slots->map, op->express.slot, op->express.turn,
                      hvi_express_cut(op->out_bytes, &chunk_bytes), UINT32_MAX >> (32 - set->size),
                      hvi_deadline_after(CLOSE_NS));
    if (op->express.active) /* else it was the engine's already, or a peer has closed it */
        client_slots_look(slots, op);
}

/* ---- chunks ---- */

/* -1, or the member of whose operands a page could not be had. */
static int reduce(const struct client_slots *slots, const struct job *job, uint32_t chunk)
{
    uint64_t first = chunk * job->chunk_bytes, left = job->bytes - first;
    uint64_t bytes = left < job->chunk_bytes ? left : job->chunk_bytes;
    return hvi_reduce_guarded(slots->kernels, &job->reduction, first / job->element,
                              bytes / job->element);
}

/* True: a chunk could not be done, and the engine has to end the op. */
static bool work(struct client_slots *slots, const struct job *job, uint32_t slot, uint32_t turn,
                 uint32_t most, uint32_t *done_p)
{
    const struct hvi_express *express = &slots->map;
    uint32_t me = slots->rank + 1, chunk;
    while (*done_p < most && (chunk = hvi_express_claim(express, slot, turn, job->chunks, me)) !=
                                 HVI_EXPRESS_NOTHING) {
        client_step("large-claimed");
        int lacking = reduce(slots, job, chunk);
        client_step("large-reduced");
        if (lacking >= 0) {
            hvi_express_give_up(express, slot, turn, chunk, job->rank[lacking]);
            return true;
        }
        bool last = hvi_express_finish(express, slot, turn, chunk);
        client_step("large-finished");
        if (last)
            hvi_express_end(express, slot, turn, job->everybody);
        ++*done_p;
    }
    return false;
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
    struct job job;
    if (!watch->medium)
        return 0;
    pthread_mutex_lock(&slots->link->mutex);
    bool ready = prepare(slots, op, watch->slot, watch->turn, &job);
    pthread_mutex_unlock(&slots->link->mutex);
    if (!ready)
        return 0;
    uint32_t done = 0;
    bool lacking = work(slots, &job, watch->slot, watch->turn, most, &done);
    /* Release, pairs with the acquire before unmapping. */
    atomic_fetch_sub_explicit(&slots->ops->memory->peers.working, 1, memory_order_release);
    if (lacking)
        call_engine(slots, op, watch);
    return done;
}
