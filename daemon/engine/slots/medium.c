/* SPDX-License-Identifier: Apache-2.0
 * Medium ops in slots (docs/adr/0011), seen from the engine. As a rule it learns nothing of
 * them. It is asked to lend a hand when ranks submit and go on with other things, or have not mapped
 * each other's memory yet; and it ends what the ranks cannot end any more because one of them died
 * with a chunk in its hands.
 *
 * Where operands lie is what ranks wrote into their parts: each is looked up in the table of that
 * rank's own regions, as if it had come through its ring. */
#include "daemon/engine/slots/slots.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/status.h"
#include "shm/run.h"

struct engine_region *engine_slots_region(const struct engine_slots *slots, engine_seat seat,
                                          uint32_t id)
{
    const struct engine_regions *regions = slots->ranks[seat.n].regions;
    struct engine_region *region =
        regions && id != HVI_REGION_INLINE ? engine_regions_find(regions, id) : NULL;

    return region && region->kind == ENGINE_REGION_MAPPED ? region : NULL;
}

struct search {
    const struct engine_slots *slots;
    const struct engine_set *set;
};

static const struct hvi_region *find(void *user, uint32_t member, uint32_t id)
{
    const struct search *search = user;
    const struct engine_region *region =
        engine_slots_region(search->slots, search->set->seats[member], id);

    return region ? &region->map : NULL;
}

static bool still_is(const struct hvi_run *run)
{
    struct hvi_slot_view view = hvi_slot_view(run->map, run->slot);

    return view.runs && view.turn == run->turn;
}

/* The op cannot end well any more: nobody takes another chunk. */
static void fail(struct engine_slots *slots, const struct hvi_run *run, int32_t member)
{
    engine_seat seat = slots->slot[run->slot].set->seats[member];

    if (!still_is(run)) /* what was read were parts of the next */
        return;
    hvi_slot_exhaust(run->map, run->slot, run->turn, run->chunks);
    engine_slots_fail(slots, &slots->slot[run->slot], "an operand is not to be found");
    if (engine_slots_is_here(slots, seat))
        slots->calls->doom(slots->user, seat, "an impossible operand in an express slot");
}

/* Does up to `most` chunks that nobody has taken. True if all are taken. */
static bool take_chunks(struct engine_slots *slots, struct hvi_run *run, uint32_t most)
{
    const struct engine_slot *slot = &slots->slot[run->slot];
    struct search search = {slots, slot->set};
    bool lacking;

    if (slot->state == ENGINE_SLOT_FAILING)
        return true;
    int32_t missing = hvi_run_locate(run, &slot->agreed, find, &search);
    if (missing >= 0) {
        fail(slots, run, missing);
        return true;
    }
    return hvi_run_chunks(run, hvi_kernels_best(), HVI_SLOT_ENGINE, most, &lacking) < most &&
           !lacking;
}

/* ---- who holds chunks ---- */

/* A rank whose session ended long ago without its process: no thread of it can still be at work (it
 * has become another program, for one). */
static bool is_long_gone(const struct engine_slots_rank *row)
{
    return row->over && (!row->regions || hvi_clock_ns() - row->over_ns >= HVI_TUNED_GONE_NS);
}

static bool is_over(const struct engine_slots_rank *row)
{
    return hvi_process_is_quiet(row->pid, row->regions ? row->pid_fd : -1) || is_long_gone(row);
}

static uint32_t dead_among(const struct engine_slots *slots, uint32_t holders)
{
    uint32_t dead = 0;

    for (uint32_t seat = 0; seat < slots->seats; seat++) {
        if ((holders >> seat & 1u) != 0 && is_over(&slots->ranks[seat]))
            dead |= 1u << seat;
    }
    return dead;
}

/* ---- an op that runs ---- */

enum engine_slot_outcome engine_slots_run(struct engine_slots *slots, struct engine_slot *slot,
                                          bool all)
{
    uint32_t index = engine_slot_index(slots, slot);
    struct hvi_slot_view view = hvi_slot_view(&slots->map, index);
    uint8_t seats[HVI_SLOT_RANKS];
    struct hvi_run run;
    int32_t lacking;

    if (slot->state < ENGINE_SLOT_OPEN || !view.runs)
        return ENGINE_SLOT_OVER;
    if (!engine_slot_is_medium(slot) || view.arrived != slot->everybody)
        return ENGINE_SLOT_NONSENSE;
    for (uint32_t i = 0; i < slot->set->size; i++)
        seats[i] = (uint8_t)slot->set->seats[i].n;
    hvi_run_init(&run, &slots->map, &slot->agreed, index, view.turn, seats, slot->set->size);
    if (!take_chunks(slots, &run, all ? UINT32_MAX : HVI_TUNED_AT_ONCE)) {
        slots->busy = true;
        return ENGINE_SLOT_RUNS;
    }
    uint32_t holders = hvi_slot_holders(&slots->map, index, run.turn, &lacking);
    if (holders != dead_among(slots, holders))
        return ENGINE_SLOT_RUNS; /* somebody is at work, or was stopped there */
    if (!still_is(&run))
        return ENGINE_SLOT_OVER;
    if (slot->state == ENGINE_SLOT_FAILING)
        return ENGINE_SLOT_FAILED;
    slot->lacking = holders == 0 ? 1 + lacking : 0;
    if (holders != 0 || lacking >= 0)
        return ENGINE_SLOT_FAILED;
    hvi_slot_publish(&slots->map, index, run.turn, slot->everybody);
    return ENGINE_SLOT_OVER;
}

/* ---- for those who watch ---- */

static void describe(const struct engine_slots *slots, struct engine_held *held)
{
    const struct engine_slot *slot = held->slot;
    uint32_t index = engine_slot_index(slots, slot);
    const struct engine_tensor unnamed = {
        .anon = true,
        .anon_kind = (uint16_t)slot->agreed.kind,
        .anon_seq = hvi_slot_part(&slots->map, index, slot->set->seats[0].n)->number,
    };

    held->since_ns = engine_slots_oldest_ns(slots, index, slot->everybody);
    engine_tensor_name(slot->tensor ? slot->tensor : &unnamed, held->name);
}

bool engine_slots_next_held(struct engine_slots *slots, uint32_t *cursor_p,
                            struct engine_held *held_p)
{
    while (slots->on && *cursor_p < slots->used) {
        uint32_t index = (*cursor_p)++;
        struct engine_slot *slot = &slots->slot[index];
        struct hvi_slot_view view = hvi_slot_view(&slots->map, index);
        if (slot->state < ENGINE_SLOT_OPEN || !engine_slot_is_medium(slot) || !view.runs)
            continue;
        held_p->slot = slot;
        held_p->holders = hvi_slot_holders(&slots->map, index, view.turn, NULL);
        if (held_p->holders == 0)
            continue;
        describe(slots, held_p);
        return true;
    }
    return false;
}
