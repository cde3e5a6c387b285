/* SPDX-License-Identifier: Apache-2.0 */
#include "client/slots/slots.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/status.h"
#include "client/error.h"
#include "client/link/link.h"
#include "client/ops/ops.h"
#include "client/slots/grants.h"
#include "client/step.h"
#include "reduce/reduce.h"
#include "shm/bell.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void client_slots_init(struct client_slots *slots, struct client_link *link, struct client_ops *ops)
{
    slots->link = link;
    slots->ops = ops;
    slots->map.region = (struct hvi_region)HVI_REGION_INIT;
}

void client_slots_fini(struct client_slots *slots)
{
    hvi_slots_fini(&slots->map);
}

int client_slots_map(struct client_slots *slots, int fd)
{
    int seats = client_identity_seats(&slots->link->identity);
    int rc = seats <= (int)HVI_SLOT_RANKS ? hvi_slots_map(fd, (uint32_t)seats, &slots->map)
                                          : HVD_ERR_PROTOCOL;
    if (rc == HVD_OK && slots->link->channel.channel_index >= slots->map.ranks) {
        hvi_slots_fini(&slots->map);
        return client_error(HVD_ERR_PROTOCOL,
                            "hvd_open: the engine (pid %d) gave this rank seat %u of %d",
                            slots->link->engine_pid, slots->link->channel.channel_index, seats);
    }
    if (rc != HVD_OK) {
        close(fd);
        return client_error(rc, "hvd_open: the express slots that the engine (pid %d) sent: %s%s",
                            slots->link->engine_pid, hvi_status_text(rc),
                            rc == HVD_ERR_NO_MEMORY ? "; small ops go through the engine" : "");
    }
    hvi_region_close_fd(&slots->map.region);
    madvise(slots->map.region.base, slots->map.region.bytes, MADV_DONTFORK);
    slots->kernels = hvi_kernels_best();
    slots->seat = slots->link->channel.channel_index;
    const char *wish = getenv("HVD_EXPRESS");
    slots->on = !(wish && strcmp(wish, "0") == 0);
    return HVD_OK;
}

void client_slots_call_engine(struct client_slots *slots)
{
    /* Seq_cst, before the bell: pairs with engine_slots_look after the engine has taken the bell.
     */
    atomic_store_explicit(&slots->map.head->watch, 1, memory_order_seq_cst);
    hvi_bell_ring_engine(slots->link->bell, slots->link->channel.channel_index,
                         slots->link->engine_event_fd);
}

void client_slots_call(struct client_slots *slots, const struct hvd_op *op)
{
    /* Release: only a wish, for this turn; the bell orders it. */
    atomic_store_explicit(&slots->map.slots[op->slot.index].called, op->slot.turn + 1,
                          memory_order_release);
    client_slots_call_engine(slots);
}

void client_slots_leave(const struct client_slots *slots, struct hvd_op *op)
{
    struct hvi_slot_part *part = hvi_slot_part(&slots->map, op->slot.index, slots->seat);
    /* Release: what was there has been read. */
    atomic_store_explicit(&part->cookie, 0, memory_order_release);
    op->slot.active = false;
    op->slot.brought = false;
}

void client_slots_landed(struct client_slots *slots, struct hvd_op *op)
{
    client_slots_leave(slots, op);
    struct client_set *set = op->name ? NULL : client_sets_find(&slots->ops->sets, op->process_set);
    struct client_unnamed_slot *unnamed = set ? client_grant_unnamed(set, op->kind) : NULL;
    if (unnamed && unnamed->standing == op)
        unnamed->standing = NULL;
}

/* Relaxed: sums for people, of one writer. */
static void add(_Atomic uint64_t *sum, uint64_t more)
{
    atomic_store_explicit(sum, atomic_load_explicit(sum, memory_order_relaxed) + more,
                          memory_order_relaxed);
}

static void note_trace(struct client_slots *slots, const struct hvd_op *op)
{
    struct hvi_slot_rank *mine = &slots->map.rank[slots->seat];
    uint64_t at = atomic_load_explicit(&mine->traced, memory_order_relaxed);
    uint64_t now_ns = hvi_clock_ns();
    mine->trace[at % HVI_SLOT_TRACE] = (struct hvi_slot_trace){
        .submit_ns = op->slot.submit_ns,
        .done_ns = now_ns,
        .number = op->anon_seq,
        .slot = op->slot.index,
        .bytes = (uint32_t)op->out_bytes,
    };
    /* Ops that need no engine would never tell us that it has died. */
    slots->link->look_due = now_ns - slots->link->looked_ns >= CLIENT_LOOK_NS;
    /* Release, pairs with the engine's acquire before it copies entries. */
    atomic_store_explicit(&mine->traced, at + 1, memory_order_release);
    add(&mine->ops, 1);
    add(&mine->bytes, op->out_bytes);
}

void client_slots_finish(struct client_slots *slots, struct hvd_op *op)
{
    struct client_grant *grant = client_grant_of(slots->ops, op);
    client_step("slot-before-copy");
    if (op->copy_to && op->out_bytes > 0 && !op->slot.medium)
        hvi_copy(op->copy_to, hvi_slot_result(&slots->map, op->slot.index, op->out_bytes),
                 op->out_bytes);
    note_trace(slots, op);
    if (!op->slot.medium) /* whose result is not in the slot */
        op->copy_to = NULL;
    op->status = HVD_OK;
    if (grant) {
        grant->slot = op->slot.index;
        grant->turn = (op->slot.turn + 1) & HVI_SLOT_TURN_MASK;
        grant->valid = true;
    }
    client_slots_landed(slots, op);
    client_op_land(slots->ops, op);
}

void client_slots_take_back(struct hvd_op *op)
{
    if (!op->slot.brought || !op->copy_to || op->slot.medium)
        return;
    hvi_copy(op->copy_to, op->out.shared, op->out_bytes);
    op->copy_to = NULL;
}

void client_slots_look(struct client_slots *slots, struct hvd_op *op)
{
    switch (hvi_slot_look(&slots->map, op->slot.index, op->slot.turn)) {
    case HVI_SLOT_WAITS:
    case HVI_SLOT_RUNS:
        return;
    case HVI_SLOT_DONE:
        client_slots_finish(slots, op);
        return;
    case HVI_SLOT_REVOKED:
        op->slot.active = false;
        client_slots_call_engine(slots); /* in case it was a peer that wrote nonsense */
        return;
    }
}

bool client_slots_seat(const struct client_slots *slots, struct client_set *set)
{
    if (set->seated || set->size > (int)slots->map.ranks)
        return set->seated;
    for (int i = 0; i < set->size; i++) {
        int32_t seat = hvi_slots_find_seat(&slots->map, set->ranks[i]);
        if (seat < 0)
            return false;
        set->seats[i] = (uint8_t)seat;
    }
    set->seated = true;
    return true;
}

bool client_slots_look_all(struct client_slots *slots)
{
    bool waits = false;
    for (uint32_t i = 0; i < slots->ops->fresh; i++) {
        struct hvd_op *op = &slots->ops->slots[i];
        if (op->slot.active)
            client_slots_look(slots, op);
        waits = waits || (op->state == CLIENT_OP_IN_FLIGHT && op->slot.active);
    }
    return waits;
}

void client_slots_abandoned(struct client_slots *slots, struct hvd_op *op)
{
    if (op->slot.active)
        client_slots_look(slots, op);
    if (op->state != CLIENT_OP_IN_FLIGHT || !op->slot.active)
        return;
    op->slot.orphan = true;
    slots->ops->orphans++;
    client_slots_call(slots, op);
}

void client_slots_polled(struct client_slots *slots, const struct hvd_op *op)
{
    if (!op->slot.active)
        return;
    uint64_t now_ns = hvi_clock_ns();
    if (now_ns - op->slot.submit_ns < CLIENT_LOOK_NS || now_ns - slots->called_ns < CLIENT_LOOK_NS)
        return;
    slots->called_ns = now_ns;
    client_slots_call(slots, op);
}
