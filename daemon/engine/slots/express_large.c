/* SPDX-License-Identifier: Apache-2.0
 * Large ops in express slots (docs/adr/0011), seen from the engine. As a rule it learns nothing of
 * them. It is asked to lend a hand when ranks submit and go on with other things, or have not mapped
 * each other's memory yet; and it ends what the ranks cannot end any more because one of them died
 * with a unit in its hands.
 *
 * Where operands lie is what ranks wrote into their parts: each is looked up in the table of that
 * rank's own regions, as if it had come through its ring. */
#include "daemon/engine/slots/express.h"

#include "base/bits.h"
#include "base/clock.h"
#include "base/fate.h"
#include "base/status.h"
#include "base/types.h"
#include "reduce/guarded.h"

#include <string.h>

#define UNITS_AT_ONCE 16u        /* a megabyte of each rank at most: others have to live too */
#define GONE_NS       HVI_NS_SEC /* after a session's end */

/* What a unit works on: whole operands. */
struct places {
    const void *in[HVI_EXPRESS_RANKS];
    void *out[HVI_EXPRESS_RANKS];
};

static uint32_t index_of(const struct engine_express *express,
                         const struct engine_express_slot *slot)
{
    return (uint32_t)(slot - express->slots);
}

void engine_express_operands(const struct engine_express *express,
                             const struct engine_express_slot *slot, int32_t rank,
                             struct hvi_express_operands *operands_p)
{
    memcpy(operands_p,
           hvi_express_part(&express->map, index_of(express, slot), (uint32_t)rank)->payload,
           sizeof(*operands_p));
}

struct engine_region *engine_express_region(const struct engine_regions *regions,
                                            const struct engine_express_slot *slot, uint32_t id,
                                            uint64_t offset)
{
    struct engine_region *region =
        id == HVI_REGION_INLINE ? NULL : engine_regions_find(regions, id);

    return region && hvi_range_fits(offset, slot->bytes, region->map.bytes) &&
                   offset % hvi_dtype_bytes(slot->agreed.dtype) == 0
               ? region
               : NULL;
}

/* False: the member has no memory here any more, or has told nonsense. A rank that is gone may still have
 * some: while large ops run, ended sessions are kept, with their regions. */
static bool find_place(const struct engine_express *express, const struct engine_express_slot *slot,
                       uint32_t member, struct places *places)
{
    int32_t rank = engine_express_row(slot->set, member);
    const struct engine_regions *regions = express->ranks[rank].regions;
    struct hvi_express_operands said;

    if (!regions)
        return false;
    engine_express_operands(express, slot, rank, &said);
    const struct engine_region *in =
        engine_express_region(regions, slot, said.in_region, said.in_offset);
    const struct engine_region *out =
        engine_express_region(regions, slot, said.out_region, said.out_offset);
    if (!in || !out)
        return false;
    places->in[member] = (const char *)in->map.base + said.in_offset;
    places->out[member] = (char *)out->map.base + said.out_offset;
    return true;
}

/* -1, or a member for whom find_place is false. */
static int32_t find_places(const struct engine_express *express,
                           const struct engine_express_slot *slot, struct places *places)
{
    for (uint32_t member = 0; member < slot->set->size; member++) {
        if (!find_place(express, slot, member, places))
            return (int32_t)member;
    }
    return -1;
}

/* -1, or the member of whose operands a page could not be had. */
static int reduce(const struct engine_express_slot *slot, const struct places *places,
                  uint64_t first, uint64_t bytes)
{
    uint32_t element = hvi_dtype_bytes(slot->agreed.dtype);
    const struct hvi_reduction work = {
        .dtype = slot->agreed.dtype,
        .reduce_op = slot->agreed.reduce_op,
        .ranks = slot->set->size,
        .ins = slot->set->size,
        .outs = slot->set->size,
        .in = places->in,
        .out = places->out,
        .prescale = slot->agreed.prescale,
        .postscale = slot->agreed.postscale,
    };

    return hvi_reduce_guarded(hvi_kernels_best(), &work, first / element, bytes / element);
}

/* One op, as it was when it was looked at. */
struct run {
    struct engine_express_slot *slot;
    uint32_t index, turn, units;
    uint64_t unit_bytes;
};

static bool still_is(const struct engine_express *express, const struct run *run)
{
    uint32_t turn, arrived;

    return hvi_express_runs(&express->map, run->index, &turn, &arrived) && turn == run->turn;
}

static void do_unit(const struct engine_express *express, const struct run *run,
                    const struct places *places, uint32_t unit)
{
    uint64_t first = unit * run->unit_bytes, left = run->slot->bytes - first;

    int lacking = reduce(run->slot, places, first, left < run->unit_bytes ? left : run->unit_bytes);
    if (lacking < 0)
        hvi_express_finish(&express->map, run->index, run->turn, unit);
    else
        hvi_express_give_up(&express->map, run->index, run->turn, unit,
                            (uint32_t)engine_express_row(run->slot->set, (uint32_t)lacking));
}

/* The op cannot end well any more: nobody takes another unit. Those taken here are never done, so that
 * no rank can think that the op is. */
static void doom(struct engine_express *express, const struct run *run, int32_t member)
{
    int32_t rank = engine_express_row(run->slot->set, (uint32_t)member);

    if (!still_is(express, run)) /* what was read were parts of the next */
        return;
    run->slot->doomed = true;
    /* Each once: a rank that gives units back, which none may, could keep us here. */
    for (uint32_t left = run->units; left > 0; left--) {
        if (hvi_express_claim(&express->map, run->index, run->turn, run->units,
                              HVI_EXPRESS_ENGINE) == HVI_EXPRESS_NOTHING)
            break;
    }
    if (engine_express_is_here(express, rank))
        express->calls->doom(express->user, rank, "an impossible operand in an express slot");
}

/* Does up to `most` units that nobody has taken. True if all are taken. */
static bool take_units(struct engine_express *express, const struct run *run, uint32_t most)
{
    struct places places;
    uint32_t unit = 0;
    int32_t lacking = run->slot->doomed ? -1 : find_places(express, run->slot, &places);

    if (lacking >= 0)
        doom(express, run, lacking);
    if (lacking >= 0 || run->slot->doomed)
        return true;
    for (uint32_t done = 0; done < most && done < run->units; done++) {
        unit =
            hvi_express_claim(&express->map, run->index, run->turn, run->units, HVI_EXPRESS_ENGINE);
        if (unit == HVI_EXPRESS_NOTHING)
            return true;
        do_unit(express, run, &places, unit);
    }
    return false;
}

/* ---- who holds units ---- */

/* A rank whose session ended long ago without its process: no thread of it can still be at work (it
 * has become another program, for one). */
static bool is_long_gone(const struct engine_express_rank *row)
{
    return row->over && (!row->regions || hvi_clock_ns() - row->over_ns >= GONE_NS);
}

static bool is_over(const struct engine_express_rank *row)
{
    return hvi_process_is_quiet(row->pid, row->regions ? row->pid_fd : -1) || is_long_gone(row);
}

static uint32_t dead_among(const struct engine_express *express, uint32_t holders)
{
    uint32_t dead = 0;

    for (int32_t rank = 0; rank < express->size; rank++) {
        if ((holders >> rank & 1u) != 0 && is_over(&express->ranks[rank]))
            dead |= 1u << rank;
    }
    return dead;
}

/* ---- an op that runs ---- */

bool engine_express_run(struct engine_express *express, struct engine_express_slot *slot, bool all)
{
    const struct hvi_express *map = &express->map;
    struct run run = {.slot = slot, .index = index_of(express, slot)};
    uint32_t arrived = 0;

    if (!hvi_express_runs(map, run.index, &run.turn, &arrived))
        return true;
    slot->nonsense = !slot->large || arrived != slot->everybody;
    if (slot->nonsense) /* a rank wrote it */
        return true;
    run.units = hvi_express_cut(slot->bytes, &run.unit_bytes);
    if (!take_units(express, &run, all ? UINT32_MAX : UNITS_AT_ONCE)) {
        express->busy = true;
        return false;
    }
    uint32_t holders = hvi_express_holders(map, run.index, run.turn);
    if (holders != dead_among(express, holders))
        return false; /* somebody is at work, or was stopped there */
    if (!still_is(express, &run))
        return true;
    slot->doomed = slot->doomed || holders != 0;
    if (!slot->doomed)
        slot->lacking = 1 + hvi_express_lacking(map, run.index, run.turn);
    slot->doomed = slot->doomed || slot->lacking != 0;
    if (!slot->doomed)
        hvi_express_end(map, run.index, run.turn, slot->everybody);
    return true;
}

/* ---- for those who watch ---- */

static void describe(const struct engine_express *express, struct engine_held *held)
{
    const struct engine_express_slot *slot = held->slot;
    uint32_t index = index_of(express, slot);
    const struct engine_tensor unnamed = {
        .anon = true,
        .anon_kind = slot->agreed.kind,
        .anon_seq =
            hvi_express_part(&express->map, index, (uint32_t)engine_express_row(slot->set, 0))
                ->number,
    };

    held->since_ns = engine_express_oldest_ns(express, index, slot->everybody);
    engine_tensor_name(slot->tensor ? slot->tensor : &unnamed, held->name);
}

bool engine_express_next_held(struct engine_express *express, uint32_t *cursor_p,
                              struct engine_held *held_p)
{
    uint32_t turn, arrived;

    while (express->on && *cursor_p < express->used) {
        uint32_t index = (*cursor_p)++;
        struct engine_express_slot *slot = &express->slots[index];
        if (!slot->large || !slot->set || !(slot->open || slot->closing) ||
            !hvi_express_runs(&express->map, index, &turn, &arrived))
            continue;
        held_p->slot = slot;
        held_p->holders = hvi_express_holders(&express->map, index, turn);
        if (held_p->holders == 0)
            continue;
        describe(express, held_p);
        return true;
    }
    return false;
}
