/* SPDX-License-Identifier: Apache-2.0
 * Express slots, seen from the engine (docs/adr/0005).
 *
 * A ticket is given when an op ends well and the next one of its name, or the next unnamed one of its
 * kind and set (they are a lane), could be done by the ranks themselves. From then on the engine
 * learns nothing of that tensor or lane until it seizes the slot, because
 *   - a rank submits something else under that name, or unnamed, through the ring,
 *   - a rank is lost, leaves or joins: everything is seized,
 *   - a rank cancels its op, or asks for it (to sleep on its event descriptor),
 *   - the op has waited for EXPRESS_AGE_NS: then it belongs into the table of waiting ops.
 * Seizing turns what the ranks brought into ordinary parts. Only a cookie, a time and an unnamed op's
 * number are taken from the slot; everything else about the op was agreed on when the ticket was
 * given and lies here.
 *
 * A slot that is full has a rank at work. If it stays full it was stopped or killed there: the
 * engine then does the op itself from the parts, which nobody changes, and never uses the slot
 * again, because the stopped rank may still write its result into it.
 *
 * Slots are looked at every EXPRESS_TICK while a rank stands in one, and as a patrol, every
 * EXPRESS_PATROL, as long as ops are done in them, because a rank that has submitted an op may never
 * wait for it. After EXPRESS_QUIET patrols that saw no change nobody looks: the next rank that has to
 * wait sets .watch and rings, and so does the next that arrives and sees .patrolled gone. */
#include "daemon/engine/slots/express.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/status.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/order/order.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(HVI_EXPRESS_LANES == ENGINE_SET_LANES, "a lane for each kind");

#define EXPRESS_AGE_NS    (20 * HVI_NS_MS)
#define EXPRESS_TICK_US   (20 * 1000)
#define EXPRESS_PATROL_US (1000 * 1000)
#define EXPRESS_QUIET     3u
#define EXPRESS_WORTH     4u   /* ops in the slot that make up for one that stood there in vain */
#define EXPRESS_PAUSE     255u /* the most tickets of a lane that are held back */

void engine_express_start(struct engine_express *express)
{
    express->map.region.fd = -1;
    if (express->size > (int32_t)HVI_EXPRESS_RANKS)
        return;
    size_t size = (size_t)express->size;
    express->seen = calloc(size, sizeof *express->seen);
    express->lags_seen = calloc(size * size, sizeof *express->lags_seen);
    int status = HVI_ERR_NO_MEMORY;
    if (express->seen && express->lags_seen)
        status = hvi_express_create((uint32_t)express->size, &express->map);
    if (status != HVI_OK) {
        HVI_LOG(HVI_LOG_WARN, "express", "off", hvi_status_text(status),
                "job=%s small ops go through the engine", express->job);
        return;
    }
    express->region.map = express->map.region;
    express->region.map.fd = -1;
    hvi_pages_open();
    express->on = true;
}

void engine_express_stop(struct engine_express *express)
{
    sd_event_source_disable_unref(express->tick);
    express->tick = NULL;
    if (express->on) {
        hvi_express_fini(&express->map);
        hvi_pages_close();
    }
    express->on = false;
    free(express->seen);
    free(express->lags_seen);
    express->seen = NULL;
    express->lags_seen = NULL;
}

/* ---- ranks ---- */

/* Ranks beyond these belong to a job without slots. */
static struct engine_express_rank *rank_at(struct engine_express *express, int32_t rank)
{
    return rank < (int32_t)HVI_EXPRESS_RANKS ? &express->ranks[rank] : NULL;
}

void engine_express_come(struct engine_express *express, int32_t rank,
                         const struct engine_regions *regions, pid_t pid, int pid_fd)
{
    struct engine_express_rank *row = rank_at(express, rank);

    if (row)
        *row = (struct engine_express_rank){.regions = regions, .pid = pid, .pid_fd = pid_fd};
}

void engine_express_leave(struct engine_express *express, int32_t rank)
{
    struct engine_express_rank *row = rank_at(express, rank);

    if (!row)
        return;
    row->over = true;
    row->over_ns = hvi_clock_ns();
}

void engine_express_forget(struct engine_express *express, int32_t rank)
{
    struct engine_express_rank *row = rank_at(express, rank);

    if (!row)
        return;
    row->regions = NULL;
    row->pid_fd = -1;
}

/* ---- giving tickets ---- */

static bool kind_may(const struct hvi_submission *copy)
{
    return hvi_express_lane(copy->kind) >= 0 &&
           (copy->kind != HVI_KIND_ALLREDUCE || copy->reduce_op != HVI_REDUCE_ADASUM);
}

static struct engine_lane *lane_of(struct engine_set *set, const struct engine_tensor *tensor)
{
    int lane = tensor->anon ? hvi_express_lane(tensor->anon_kind) : -1;

    return lane >= 0 ? &set->lanes[lane] : NULL;
}

/* Whose slot the op uses; NULL: nobody's, it is unnamed and of another kind. */
static uint32_t *owner_of(struct engine_set *set, struct engine_tensor *tensor)
{
    struct engine_lane *lane = lane_of(set, tensor);

    if (lane)
        return &lane->slot;
    return tensor->anon ? NULL : &tensor->slot;
}

/* A ticket for the unnamed op after one that is not the newest would come too late for whoever is
 * ahead. */
static bool is_newest(const struct engine_op *op)
{
    const struct engine_lane *lane = lane_of(op->set, op->tensor);

    return !lane || op->tensor->anon_seq >= lane->top;
}

static bool can_show(const struct engine_operand *operand)
{
    return operand->kind == ENGINE_OPERAND_MAPPED && operand->region->map.fd >= 0;
}

/* Ranks can show each other where the operands lie. */
static bool may_be_large(const struct engine_express *express, const struct engine_op *op)
{
    if (express->apart || op->parts[0]->copy.kind != HVI_KIND_ALLREDUCE ||
        !hvi_express_is_large(op->parts[0]->in_bytes, op->set->size))
        return false;
    for (uint32_t i = 0; i < op->set->size; i++) {
        const struct engine_share *share = engine_share_of(op->parts[i]);
        if (!can_show(&share->in) || !can_show(&share->out))
            return false;
    }
    return true;
}

static bool may(const struct engine_express *express, const struct engine_op *op)
{
    if (!express->on || express->withheld || express->order->broken_status != HVI_OK || op->group ||
        op->set->removed || op->set->join || op->set->size > HVI_EXPRESS_RANKS ||
        op->parts_present != op->set->size)
        return false;
    const struct hvi_submission *copy = &op->parts[0]->copy;
    return kind_may(copy) &&
           (op->parts[0]->in_bytes <= HVI_EXPRESS_PAYLOAD || may_be_large(express, op)) &&
           is_newest(op);
}

static struct engine_express_slot *slot_at(struct engine_express *express, const uint32_t *owner)
{
    return owner && *owner ? &express->slots[*owner - 1] : NULL;
}

/* A rank may not have looked yet at what was done in the slot for its last owner, or may have been
 * stopped while it did the op there: its cookie stays until it is over with the op. */
static bool is_left(const struct hvi_express *map, uint32_t index)
{
    for (uint32_t rank = 0; rank < map->ranks; rank++) {
        if (atomic_load_explicit(&hvi_express_part(map, index, rank)->cookie,
                                 memory_order_acquire) != 0)
            return false;
    }
    return true;
}

static bool is_free(const struct engine_express *express, uint32_t index)
{
    const struct engine_express_slot *slot = &express->slots[index];

    return !slot->owner && !slot->closing && is_left(&express->map, index);
}

static struct engine_express_slot *slot_take(struct engine_express *express, uint32_t *owner)
{
    uint32_t index = express->used;

    if (index == HVI_EXPRESS_SLOTS) {
        index = 0;
        while (index < HVI_EXPRESS_SLOTS && !is_free(express, index))
            index++;
    }
    if (index == HVI_EXPRESS_SLOTS)
        return NULL;
    if (index == express->used)
        express->used++;
    struct engine_express_slot *slot = &express->slots[index];
    *slot = (struct engine_express_slot){.owner = owner};
    *owner = index + 1;
    return slot;
}

/* A slot for the op's tensor, which keeps the set, or for its lane, which the set keeps. */
static struct engine_express_slot *slot_for(struct engine_express *express, struct engine_op *op)
{
    struct engine_express_slot *slot = slot_take(express, owner_of(op->set, op->tensor));

    if (!slot)
        return NULL;
    slot->tensor = op->tensor->anon ? NULL : op->tensor;
    slot->set = slot->tensor ? engine_set_get(op->set) : op->set;
    return slot;
}

/* The slot is nobody's. */
static void slot_drop(struct engine_express_slot *slot)
{
    *slot->owner = 0;
    slot->owner = NULL;
    if (slot->tensor)
        engine_set_put(slot->set);
    slot->tensor = NULL;
    slot->dropped = slot->closing; /* the op that runs still needs the set */
    if (!slot->closing)
        slot->set = NULL;
}

static bool is_paused(struct engine_lane *lane)
{
    if (!lane || lane->pause == 0)
        return false;
    lane->pause--;
    return true;
}

void engine_express_grant(struct engine_express *express, struct engine_op *op)
{
    struct engine_express_slot *slot;

    if (!may(express, op) || is_paused(lane_of(op->set, op->tensor)))
        return;
    slot = slot_at(express, owner_of(op->set, op->tensor));
    if (!slot)
        slot = slot_for(express, op);
    if (!slot || slot->open || slot->closing)
        return;
    slot->agreed = op->parts[0]->copy;
    slot->bytes = op->parts[0]->in_bytes;
    slot->everybody = UINT32_MAX >> (32 - op->set->size);
    slot->open = true;
    slot->full_ns = 0;
    slot->large = slot->bytes > HVI_EXPRESS_PAYLOAD;
    slot->doomed = slot->nonsense = false;
    slot->lacking = 0;
    slot->warn_ns = 0;
    express->open++;
    uint32_t index = (uint32_t)(slot - express->slots);
    if (slot->large)
        hvi_express_clear(&express->map, index);
    slot->turn = hvi_express_open(&express->map, index);
    for (uint32_t member = 0; member < op->set->size; member++) {
        struct engine_express_share *share = engine_express_share_of(op->parts[member]);
        share->ticket = index + 1;
        share->ticket_turn = slot->turn;
    }
}

/* ---- taking ops over ---- */

static void arm(struct engine_express *express, bool soon);

/* With a reference for the part; NULL: no memory. What number a rank claims is its own affair, as in
 * its ring: it meets who claims the same. */
static struct engine_tensor *tensor_of(struct engine_express *express,
                                       struct engine_express_slot *slot, uint64_t number)
{
    if (!slot->tensor)
        return engine_tensor_get_anon(&express->order->tensors, slot->set->serial,
                                      slot->agreed.kind, number);
    slot->tensor->refs++;
    return slot->tensor;
}

/* The operands of a large op lie where its rank says. False: where they cannot lie. */
static bool locate(const struct engine_express *express, const struct engine_express_slot *slot,
                   int32_t rank, struct hvi_submission *copy, struct engine_operands *operands)
{
    const struct engine_regions *regions = express->ranks[rank].regions;
    struct hvi_express_operands said;

    engine_express_operands(express, slot, rank, &said);
    copy->in_region = said.in_region;
    copy->in_offset = said.in_offset;
    copy->out_region = said.out_region;
    copy->out_offset = said.out_offset;
    operands->in = engine_express_region(regions, slot, said.in_region, said.in_offset);
    operands->out = engine_express_region(regions, slot, said.out_region, said.out_offset);
    return operands->in && operands->out;
}

static void inject(struct engine_express *express, struct engine_express_slot *slot, int32_t rank)
{
    uint32_t index = (uint32_t)(slot - express->slots);
    const struct hvi_express_part *brought = hvi_express_part(&express->map, index, (uint32_t)rank);
    struct hvi_submission copy = slot->agreed;
    bool bare = slot->bytes == 0;
    struct engine_operands operands = {
        .in = bare ? NULL : &express->region,
        .out = bare ? NULL : &express->region,
        .in_bytes = slot->bytes,
    };

    if (!engine_express_is_here(express, rank))
        return;
    copy.cookie = atomic_load_explicit(&brought->cookie, memory_order_relaxed);
    copy.submit_ns = brought->submit_ns;
    copy.anon_seq = slot->tensor ? 0 : brought->number;
    copy.in_region = copy.out_region = HVI_REGION_NONE;
    copy.in_offset = copy.out_offset =
        (uint64_t)(hvi_express_payload(&express->map, index, (uint32_t)rank, slot->bytes) -
                   (unsigned char *)express->region.map.base);
    copy.out_capacity = slot->bytes;
    if (slot->large && !locate(express, slot, rank, &copy, &operands)) {
        express->calls->violation(express->user, rank, "an impossible operand in an express slot");
        return;
    }
    express->calls->inject(express->user, rank, &copy, &operands, slot->set,
                           tensor_of(express, slot, copy.anon_seq));
}

/* Those who arrived go on as if they had come through their rings. */
static void inject_all(struct engine_express *express, struct engine_express_slot *slot,
                       uint32_t arrived)
{
    struct engine_tensor *tensor = slot->tensor;

    if (tensor)
        tensor->refs++; /* the last part may end the op */
    for (uint32_t member = 0; member < slot->set->size; member++) {
        if (arrived >> member & 1)
            inject(express, slot, engine_express_row(slot->set, member));
    }
    if (slot->retired && !slot->dropped)
        slot_drop(slot);
    if (tensor)
        engine_tensor_put(&express->order->tensors, tensor);
}

/* A large op that ran while its slot was seized is over. If it could not end well, its parts learn
 * that from the engine: they meet what broke the job, or each other as an op that is not done
 * (engine_missing_mark). */
static void settle(struct engine_express *express, struct engine_express_slot *slot)
{
    struct engine_set *set = slot->set;

    slot->closing = false;
    express->closing--;
    if (slot->doomed || slot->nonsense) {
        uint32_t arrived = hvi_express_fail(&express->map, (uint32_t)(slot - express->slots));
        slot->retired = slot->lacking == 0;
        express->lacking = slot->lacking;
        inject_all(express, slot, arrived & slot->everybody);
        express->lacking = 0;
    }
    if (slot->dropped)
        slot->set = NULL;
    slot->dropped = false;
    engine_set_put(set);
}

/* True while ranks hold units of the op, or it is not known yet what became of one that did: parts of
 * an op that has changed its inputs must not be done again. */
static bool still_runs(struct engine_express *express, struct engine_express_slot *slot)
{
    return !engine_express_run(express, slot, slot->closing) ||
           (slot->doomed && slot->lacking == 0 && express->order->broken_status == HVI_OK);
}

/* Seized, but a large op runs in it. */
static void close_slot(struct engine_express *express, struct engine_express_slot *slot)
{
    slot->closing = true;
    express->closing++;
    engine_set_get(slot->set);
    if (still_runs(express, slot))
        arm(express, true);
    else
        settle(express, slot);
}

/* Who arrived. */
static uint32_t seize(struct engine_express *express, struct engine_express_slot *slot)
{
    uint32_t index = (uint32_t)(slot - express->slots), arrived = 0;

    if (!slot->open)
        return 0;
    slot->open = false;
    express->open--;
    if (!hvi_express_seize(&express->map, index, &arrived)) {
        close_slot(express, slot);
        return 0;
    }
    arrived &= slot->everybody;
    if (arrived == slot->everybody) {
        slot->retired = true;
        HVI_LOG(HVI_LOG_INFO, "express", "slot-given-up", "a rank was stopped while it did an op",
                "job=%s slot=%u", express->job, index);
    }
    inject_all(express, slot, arrived);
    return arrived;
}

void engine_express_give_up(struct engine_express *express)
{
    for (uint32_t i = 0; express->closing > 0 && i < express->used; i++) {
        struct engine_express_slot *slot = &express->slots[i];
        if (!slot->closing)
            continue;
        slot->doomed = still_runs(express, slot) || slot->doomed;
        settle(express, slot);
    }
}

/* Ranks that have several unnamed ops in flight overtake those in the slot, who came in vain then: the
 * less a ticket was good for, the more are held back. */
static void seize_lane(struct engine_express *express, struct engine_lane *lane,
                       struct engine_express_slot *slot)
{
    if (!slot->open)
        return;
    uint32_t index = (uint32_t)(slot - express->slots);
    uint32_t ops = (hvi_express_turn(&express->map, index) - slot->turn) & HVI_EXPRESS_TURN_MASK;
    uint32_t worth = seize(express, slot) != 0 ? EXPRESS_WORTH : 1;

    lane->pauses = ops >= worth ? 0 : 2 * lane->pauses + 1;
    if (lane->pauses > EXPRESS_PAUSE)
        lane->pauses = EXPRESS_PAUSE;
    lane->pause = lane->pauses;
}

void engine_express_seize(struct engine_express *express, const struct engine_part *part)
{
    struct engine_lane *lane = lane_of(part->set, part->tensor);
    struct engine_express_slot *slot = slot_at(express, owner_of(part->set, part->tensor));

    if (lane && part->copy.anon_seq > lane->top)
        lane->top = part->copy.anon_seq;
    if (lane && slot)
        seize_lane(express, lane, slot);
    else if (slot)
        seize(express, slot);
}

void engine_express_seize_all(struct engine_express *express)
{
    if (express->open == 0 && express->closing == 0)
        return;
    express->order->now_ns = hvi_clock_ns();
    for (uint32_t i = 0; i < express->used; i++) {
        struct engine_express_slot *slot = &express->slots[i];
        if (slot->closing && !still_runs(express, slot))
            settle(express, slot);
        else
            seize(express, slot);
    }
}

void engine_express_withhold(struct engine_express *express, bool withheld)
{
    express->withheld = withheld;
    if (withheld)
        engine_express_seize_all(express);
}

void engine_express_seize_set(struct engine_express *express, const struct engine_set *set)
{
    for (uint32_t i = 0; express->open > 0 && i < express->used; i++) {
        if (express->slots[i].set == set)
            seize(express, &express->slots[i]);
    }
}

static bool waits_in(const struct engine_express *express, uint32_t index, int32_t rank,
                     uint64_t cookie)
{
    const struct hvi_express *map = &express->map;
    const struct engine_express_slot *slot = &express->slots[index];
    int32_t member = slot->open ? engine_set_place(slot->set, engine_seat_is_rank(rank)) : -1;

    if (member < 0)
        return false;
    uint32_t arrived = hvi_express_arrived(map, index) & slot->everybody;
    return arrived != slot->everybody && (arrived >> member & 1) != 0 &&
           atomic_load_explicit(&hvi_express_part(map, index, (uint32_t)rank)->cookie,
                                memory_order_relaxed) == cookie;
}

void engine_express_seize_op(struct engine_express *express, int32_t rank, uint64_t cookie)
{
    for (uint32_t i = 0; express->open > 0 && i < express->used; i++) {
        if (waits_in(express, i, rank, cookie))
            seize(express, &express->slots[i]);
    }
}

static void release(struct engine_express *express, const uint32_t *owner)
{
    struct engine_express_slot *slot = slot_at(express, owner);
    uint32_t arrived;

    if (!slot)
        return;
    if (slot->open) { /* only ranks that forgot the name held tickets */
        if (!hvi_express_seize(&express->map, *owner - 1, &arrived))
            hvi_express_fail(&express->map, *owner - 1);
        express->open--;
    }
    slot->open = false;
    slot_drop(slot);
}

void engine_express_tensor_gone(void *user, struct engine_tensor *tensor)
{
    release(user, &tensor->slot);
}

void engine_express_release_set(struct engine_express *express, struct engine_set *set)
{
    for (int lane = 0; lane < HVI_EXPRESS_LANES; lane++)
        release(express, &set->lanes[lane].slot);
}

/* ---- looking at those that wait ---- */

uint64_t engine_express_oldest_ns(const struct engine_express *express, uint32_t index,
                                  uint32_t arrived)
{
    uint64_t oldest = UINT64_MAX;

    for (uint32_t member = 0; arrived != 0; member++, arrived >>= 1) {
        uint32_t rank = (uint32_t)engine_express_row(express->slots[index].set, member);
        uint64_t ns = hvi_express_part(&express->map, index, rank)->submit_ns;
        if ((arrived & 1) && ns < oldest)
            oldest = ns;
    }
    return oldest;
}

/* A full slot is given time: its last rank has just come, as a rule. */
static bool stays_full(struct engine_express *express, struct engine_express_slot *slot,
                       uint32_t turn)
{
    if (slot->full_ns == 0 || slot->full_turn != turn) {
        slot->full_turn = turn;
        slot->full_ns = express->order->now_ns;
    }
    return slot->full_ns + EXPRESS_AGE_NS <= express->order->now_ns;
}

static bool is_stuck(struct engine_express *express, uint32_t index, uint32_t arrived)
{
    const struct hvi_express *map = &express->map;
    struct engine_express_slot *slot = &express->slots[index];
    uint32_t turn = hvi_express_turn(map, index);

    if (arrived == slot->everybody)
        return stays_full(express, slot, turn);
    return atomic_load_explicit(&map->slots[index].called, memory_order_acquire) == turn + 1 ||
           engine_express_oldest_ns(express, index, arrived) + EXPRESS_AGE_NS <=
               express->order->now_ns;
}

static bool is_running(const struct engine_express *express, uint32_t index)
{
    uint32_t turn, arrived;

    return express->slots[index].open && hvi_express_runs(&express->map, index, &turn, &arrived);
}

/* Whoever sleeps on its event descriptor hears of ops that end in completions. One that was held up in
 * its slot may have ended since without. */
static void ring_events(struct engine_express *express, const struct engine_express_slot *slot)
{
    for (uint32_t member = 0; slot->set && member < slot->set->size; member++) {
        int32_t rank = engine_express_row(slot->set, member);
        if (engine_express_is_here(express, rank))
            express->calls->ring(express->user, rank);
    }
}

/* After each look: whether ranks still hold units. */
static void watch(struct engine_express *express, struct engine_express_slot *slot, bool held)
{
    uint32_t turn = hvi_express_turn(&express->map, (uint32_t)(slot - express->slots));

    if (slot->watched && (!held || turn != slot->watched_turn))
        ring_events(express, slot);
    slot->watched = held;
    slot->watched_turn = turn;
}

/* True while there is something to do or to wait for. */
static bool look_at_large(struct engine_express *express, struct engine_express_slot *slot)
{
    bool runs = still_runs(express, slot);

    watch(express, slot, runs);
    if (runs)
        return true;
    if (slot->closing)
        settle(express, slot);
    else if (slot->doomed || slot->nonsense)
        seize(express, slot);
    return false;
}

/* True while somebody waits in a slot. */
static bool look_at_slots(struct engine_express *express)
{
    bool waits = false;

    express->order->now_ns = hvi_clock_ns();
    for (uint32_t i = 0; i < express->used; i++) {
        struct engine_express_slot *slot = &express->slots[i];
        if (slot->closing || slot->watched || is_running(express, i)) {
            waits = look_at_large(express, slot) || waits;
            if (slot->closing || is_running(express, i))
                continue;
        }
        if (slot->open && !hvi_express_is_open(&express->map, i))
            seize(express, slot); /* a rank wrote nonsense: who is there is helped */
        uint32_t arrived = slot->open ? hvi_express_arrived(&express->map, i) : 0;
        if ((arrived & slot->everybody) == 0)
            continue;
        if (is_stuck(express, i, arrived & slot->everybody))
            seize(express, slot);
        else
            waits = true;
    }
    return waits;
}

static bool is_quiet(struct engine_express *express)
{
    uint64_t turns = 0;

    for (uint32_t i = 0; i < express->used; i++)
        turns += hvi_express_turn(&express->map, i);
    express->quiet = turns == express->turns ? express->quiet + 1 : 0;
    express->turns = turns;
    return express->quiet >= EXPRESS_QUIET;
}

static void set_patrolled(struct engine_express *express, uint32_t patrolled)
{
    /* Seq_cst, pairs with the look of a rank that has just arrived. */
    for (uint32_t rank = 0; rank < express->map.ranks; rank++)
        atomic_store_explicit(&express->map.rank[rank].patrolled, patrolled, memory_order_seq_cst);
}

/* False if a rank has come meanwhile. */
static bool end_patrol(struct engine_express *express)
{
    set_patrolled(express, 0);
    if (!look_at_slots(express))
        return true;
    set_patrolled(express, 1);
    return false;
}

static int on_tick(sd_event_source *source, uint64_t due_us, void *user)
{
    struct engine_express *express = user;

    (void)due_us;
    express->soon = look_at_slots(express);
    if (express->soon)
        express->calls->waited(express->user);
    if (!express->soon && is_quiet(express) && end_patrol(express))
        return sd_event_source_set_enabled(source, SD_EVENT_OFF);
    sd_event_source_set_time_relative(source, express->soon ? EXPRESS_TICK_US : EXPRESS_PATROL_US);
    return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

static bool has_tick(struct engine_express *express)
{
    struct sd_event_source **tick = &express->tick;

    if (*tick)
        return true;
    if (sd_event_add_time_relative(express->event, tick, CLOCK_MONOTONIC, 0, 1000, on_tick,
                                   express) < 0)
        return false;
    sd_event_source_set_enabled(*tick, SD_EVENT_OFF);
    return true;
}

/* Ranks may ask often: what is armed for as soon stays. */
static void arm(struct engine_express *express, bool soon)
{
    int enabled = SD_EVENT_OFF;

    if (!has_tick(express)) {
        engine_express_seize_all(express); /* better slow than unwatched */
        return;
    }
    express->quiet = 0;
    sd_event_source_get_enabled(express->tick, &enabled);
    if (enabled != SD_EVENT_OFF && (express->soon || !soon))
        return;
    express->soon = soon;
    sd_event_source_set_time_relative(express->tick, soon ? EXPRESS_TICK_US : EXPRESS_PATROL_US);
    sd_event_source_set_enabled(express->tick, SD_EVENT_ONESHOT);
    set_patrolled(express, 1);
}

void engine_express_finish(struct engine_express *express)
{
    for (uint32_t i = 0; express->on && i < express->used; i++) {
        if (is_running(express, i))
            engine_express_run(express, &express->slots[i], true);
    }
}

bool engine_express_look(struct engine_express *express)
{
    /* Relaxed: whoever sets it rings the bell afterwards. */
    if (!express->on || (!express->busy && atomic_load_explicit(&express->map.head->watch,
                                                                memory_order_relaxed) == 0))
        return false;
    express->busy = false;
    atomic_store_explicit(&express->map.head->watch, 0, memory_order_seq_cst);
    arm(express, look_at_slots(express));
    return express->busy;
}
