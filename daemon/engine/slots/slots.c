/* SPDX-License-Identifier: Apache-2.0
 * Slots, seen from the engine (docs/adr/0005).
 *
 * A grant is given when an op ends well and the next one of its name, or the next unnamed one of its
 * kind and set (which share the unnamed slot), could be done by the ranks themselves. From then on the
 * engine learns nothing of those ops until it revokes the slot, because
 *   - a rank submits something else under that name, or unnamed, through the ring,
 *   - a rank is lost, leaves or joins: everything is revoked,
 *   - a rank cancels its op, or asks for it (to sleep on its event descriptor),
 *   - the op has waited for HVI_TUNED_AGE_NS: then it belongs into the table of waiting ops.
 * Revoking turns what the ranks brought into ordinary parts. Only a cookie, a time and an unnamed op's
 * number are taken from the slot; everything else about the op was agreed on when the grant was
 * given and lies here.
 *
 * A slot that is full has a rank at work. If it stays full it was stopped or killed there: the
 * engine then does the op itself from the parts, which nobody changes. The slot is used again when
 * every rank has left it, because the stopped rank may still write its result into it.
 *
 * Slots are looked at every HVI_TUNED_TICK_US while a rank stands in one, and as a patrol, every
 * HVI_TUNED_PATROL_US, as long as ops are done in them, because a rank that has submitted an op may never
 * wait for it. After HVI_TUNED_QUIET patrols that saw no change nobody looks: the next rank that has to
 * wait sets .watch and rings, and so does the next that arrives and sees .patrolled gone. */
#include "daemon/engine/slots/slots.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/pages.h"
#include "base/status.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/order/order.h"
#include "shm/run.h"

#include <stdlib.h>
#include <string.h>

_Static_assert(HVI_SLOT_UNNAMED == ENGINE_SET_UNNAMED, "an unnamed slot for each kind");

static int on_tick(sd_event_source *source, uint64_t due_us, void *user);

void engine_slots_start(struct engine_slots *slots)
{
    slots->map.region.fd = -1;
    if (slots->seats > HVI_SLOT_RANKS)
        return;
    size_t size = slots->seats;
    slots->seen = calloc(size, sizeof *slots->seen);
    slots->lags_seen = calloc(size * size, sizeof *slots->lags_seen);
    int status = HVI_ERR_NO_MEMORY;
    if (slots->seen && slots->lags_seen &&
        sd_event_add_time_relative(slots->event, &slots->tick, CLOCK_MONOTONIC, 0, 1000, on_tick,
                                   slots) >= 0 &&
        sd_event_source_set_enabled(slots->tick, SD_EVENT_OFF) >= 0)
        status = hvi_slots_create(slots->seats, &slots->map);
    if (status != HVI_OK) {
        HVI_LOG(HVI_LOG_WARN, "express", "off", hvi_status_text(status),
                "job=%s small ops go through the engine", slots->job);
        return;
    }
    slots->region.map = slots->map.region;
    slots->region.map.fd = -1;
    hvi_pages_open();
    slots->on = true;
}

void engine_slots_stop(struct engine_slots *slots)
{
    sd_event_source_disable_unref(slots->tick);
    slots->tick = NULL;
    if (slots->on) {
        hvi_slots_fini(&slots->map);
        hvi_pages_close();
    }
    slots->on = false;
    free(slots->seen);
    free(slots->lags_seen);
    slots->seen = NULL;
    slots->lags_seen = NULL;
}

/* ---- ranks ---- */

/* Seats beyond those that slots are for share a row: their engine has no slots, and nothing reads it. */
static struct engine_slots_rank *rank_at(struct engine_slots *slots, engine_seat seat)
{
    return &slots->ranks[seat.n < HVI_SLOT_RANKS ? seat.n : HVI_SLOT_RANKS];
}

void engine_slots_come(struct engine_slots *slots, engine_seat seat, int32_t rank,
                       const struct engine_regions *regions, pid_t pid, int pid_fd)
{
    *rank_at(slots, seat) =
        (struct engine_slots_rank){.regions = regions, .pid = pid, .pid_fd = pid_fd};
    if (slots->on)
        hvi_slots_seat(&slots->map, seat.n, rank);
}

void engine_slots_leave(struct engine_slots *slots, engine_seat seat)
{
    rank_at(slots, seat)->over = true;
    rank_at(slots, seat)->over_ns = hvi_clock_ns();
}

void engine_slots_forget(struct engine_slots *slots, engine_seat seat)
{
    rank_at(slots, seat)->regions = NULL;
    rank_at(slots, seat)->pid_fd = -1;
}

/* ---- a slot's state ---- */

static const char *const state_texts[ENGINE_SLOT_STATES] = {"free", "idle", "open", "closing",
                                                            "failing"};

bool engine_slot_edge(enum engine_slot_state from, enum engine_slot_state to)
{
#define BIT(state) (1u << ENGINE_SLOT_##state)
    static const unsigned next[ENGINE_SLOT_STATES] = {
        [ENGINE_SLOT_FREE] = BIT(IDLE),
        [ENGINE_SLOT_IDLE] = BIT(OPEN) | BIT(FREE),
        [ENGINE_SLOT_OPEN] = BIT(IDLE) | BIT(CLOSING),
        [ENGINE_SLOT_CLOSING] = BIT(IDLE) | BIT(FAILING),
        [ENGINE_SLOT_FAILING] = BIT(IDLE),
    };
#undef BIT
    return (next[from] >> to & 1u) != 0;
}

static void set_state(struct engine_slots *slots, struct engine_slot *slot,
                      enum engine_slot_state state, const char *cause)
{
    HVI_ASSERT(engine_slot_edge(slot->state, state));
    HVI_LOG(HVI_LOG_DEBUG, "express", "slot-state", cause, "job=%s slot=%u %s -> %s", slots->job,
            engine_slot_index(slots, slot), state_texts[slot->state], state_texts[state]);
    if (state == ENGINE_SLOT_OPEN)
        slots->open++;
    if (slot->state == ENGINE_SLOT_OPEN)
        slots->open--;
    if (state == ENGINE_SLOT_CLOSING)
        slots->closing++;
    if (slot->state >= ENGINE_SLOT_CLOSING && state == ENGINE_SLOT_IDLE)
        slots->closing--;
    slot->state = state;
}

/* ---- giving grants ---- */

static bool kind_may(const struct hvi_submission *copy)
{
    return hvi_slot_unnamed(copy->kind) >= 0 &&
           (copy->kind != HVI_KIND_ALLREDUCE || copy->reduce_op != HVI_REDUCE_ADASUM);
}

static struct engine_unnamed *unnamed_of(struct engine_set *set, const struct engine_tensor *tensor)
{
    int kind = tensor->anon ? hvi_slot_unnamed(tensor->anon_kind) : -1;

    return kind >= 0 ? &set->unnamed[kind] : NULL;
}

/* Whose slot the op uses; NULL: nobody's, it is unnamed and of another kind. */
static uint32_t *owner_of(struct engine_set *set, struct engine_tensor *tensor)
{
    struct engine_unnamed *unnamed = unnamed_of(set, tensor);

    if (unnamed)
        return &unnamed->slot;
    return tensor->anon ? NULL : &tensor->slot;
}

/* A grant for the unnamed op after one that is not the newest would come too late for whoever is
 * ahead. */
static bool is_newest(const struct engine_op *op)
{
    const struct engine_unnamed *unnamed = unnamed_of(op->set, op->tensor);

    return !unnamed || op->tensor->anon_seq >= unnamed->top;
}

static bool can_show(const struct engine_operand *operand)
{
    return operand->kind == ENGINE_OPERAND_MAPPED && operand->region->map.fd >= 0;
}

/* Ranks can show each other where the operands lie. */
static bool may_be_medium(const struct engine_slots *slots, const struct engine_op *op)
{
    if (slots->apart || op->parts[0]->copy.kind != HVI_KIND_ALLREDUCE ||
        !hvi_slot_is_medium(op->parts[0]->in_bytes, op->set->size))
        return false;
    for (uint32_t i = 0; i < op->set->size; i++) {
        const struct engine_share *share = engine_share_of(op->parts[i]);
        if (!can_show(&share->in) || !can_show(&share->out))
            return false;
    }
    return true;
}

static bool may(const struct engine_slots *slots, const struct engine_op *op)
{
    if (!slots->on || slots->withheld || slots->order->broken_status != HVI_OK || op->group ||
        op->set->removed || op->set->join || op->set->places != op->set->size ||
        op->set->size > HVI_SLOT_RANKS || op->parts_present != op->set->size)
        return false;
    const struct hvi_submission *copy = &op->parts[0]->copy;
    return kind_may(copy) && op->parts[0]->memory != HVI_MEMORY_DEVICE &&
           (op->parts[0]->in_bytes <= HVI_SLOT_PAYLOAD || may_be_medium(slots, op)) &&
           is_newest(op);
}

static struct engine_slot *slot_at(struct engine_slots *slots, const uint32_t *owner)
{
    return owner && *owner ? &slots->slot[*owner - 1] : NULL;
}

/* A rank may not have looked yet at what was done in the slot for its last owner, or may have been
 * stopped while it did the op there: its cookie stays until it is over with the op. */
static bool is_left(const struct hvi_slots *map, uint32_t index)
{
    for (uint32_t seat = 0; seat < map->ranks; seat++) {
        if (atomic_load_explicit(&hvi_slot_part(map, index, seat)->cookie, memory_order_acquire) !=
            0)
            return false;
    }
    return true;
}

/* A slot for the op's tensor, which keeps the set, or for its unnamed slot, which the set keeps. */
static struct engine_slot *slot_take(struct engine_slots *slots, struct engine_op *op)
{
    uint32_t *owner = owner_of(op->set, op->tensor);
    uint32_t index = slots->used;

    if (index == HVI_SLOTS) {
        index = 0;
        while (index < HVI_SLOTS &&
               (slots->slot[index].state != ENGINE_SLOT_FREE || !is_left(&slots->map, index)))
            index++;
    }
    if (index == HVI_SLOTS)
        return NULL;
    if (index == slots->used)
        slots->used++;
    struct engine_slot *slot = &slots->slot[index];
    *slot = (struct engine_slot){
        .owner = owner, .tensor = op->tensor->anon ? NULL : op->tensor, .set = op->set};
    if (slot->tensor)
        engine_set_get(slot->set);
    *owner = index + 1;
    set_state(slots, slot, ENGINE_SLOT_IDLE, "an op may use it next time");
    return slot;
}

/* The slot is nobody's: free, unless it has an end to come to first. */
static void slot_drop(struct engine_slots *slots, struct engine_slot *slot, const char *cause)
{
    if (slot->owner)
        *slot->owner = 0;
    if (slot->tensor)
        engine_set_put(slot->set);
    slot->owner = NULL;
    slot->tensor = NULL;
    if (slot->state != ENGINE_SLOT_IDLE)
        return;
    slot->set = NULL;
    set_state(slots, slot, ENGINE_SLOT_FREE, cause);
}

static bool is_held_back(struct engine_unnamed *unnamed)
{
    if (!unnamed || unnamed->held_back == 0)
        return false;
    unnamed->held_back--;
    return true;
}

void engine_slots_grant(struct engine_slots *slots, struct engine_op *op)
{
    struct engine_slot *slot;

    if (!may(slots, op) || is_held_back(unnamed_of(op->set, op->tensor)))
        return;
    slot = slot_at(slots, owner_of(op->set, op->tensor));
    if (!slot)
        slot = slot_take(slots, op);
    if (!slot || slot->state != ENGINE_SLOT_IDLE)
        return;
    hvi_agreement_of(&op->parts[0]->copy, op->parts[0]->in_bytes, &slot->agreed);
    slot->everybody = UINT32_MAX >> (32 - op->set->size);
    slot->full_ns = slot->warn_ns = 0;
    slot->lacking = 0;
    uint32_t index = engine_slot_index(slots, slot);
    slot->turn = hvi_slot_open(&slots->map, index, engine_slot_is_medium(slot));
    set_state(slots, slot, ENGINE_SLOT_OPEN, "an op has ended well");
    for (uint32_t member = 0; member < op->set->size; member++) {
        struct engine_slots_share *share = engine_slots_share_of(op->parts[member]);
        share->grant = index + 1;
        share->grant_turn = slot->turn;
    }
}

/* ---- taking ops over ---- */

static void arm(struct engine_slots *slots, bool soon);

/* With a reference for the part; NULL: no memory. What number a rank claims is its own affair, as in
 * its ring: it meets who claims the same. */
static struct engine_tensor *tensor_of(struct engine_slots *slots, struct engine_slot *slot,
                                       uint64_t number)
{
    if (!slot->tensor)
        return engine_tensor_get_anon(&slots->order->tensors, slot->set->serial,
                                      (uint16_t)slot->agreed.kind, number);
    slot->tensor->refs++;
    return slot->tensor;
}

/* The operands of a medium op lie where its rank says. False: where they cannot lie. */
static bool locate(const struct engine_slots *slots, const struct engine_slot *slot,
                   engine_seat seat, struct hvi_submission *copy, struct engine_operands *operands)
{
    const struct hvi_slot_operands at =
        hvi_run_operands(&slots->map, engine_slot_index(slots, slot), seat.n);

    copy->in_region = at.in_region;
    copy->in_offset = at.in_offset;
    copy->out_region = at.out_region;
    copy->out_offset = at.out_offset;
    operands->in = engine_slots_region(slots, seat, at.in_region);
    operands->out = engine_slots_region(slots, seat, at.out_region);
    return operands->in && operands->out &&
           hvi_run_fits(&slot->agreed, &operands->in->map, at.in_offset) &&
           hvi_run_fits(&slot->agreed, &operands->out->map, at.out_offset);
}

static void inject(struct engine_slots *slots, struct engine_slot *slot, engine_seat seat)
{
    uint32_t index = engine_slot_index(slots, slot);
    const struct hvi_slot_part *brought = hvi_slot_part(&slots->map, index, seat.n);
    const uint64_t bytes = slot->agreed.bytes;
    struct hvi_submission copy;
    struct engine_operands operands = {
        .in = bytes == 0 ? NULL : &slots->region,
        .out = bytes == 0 ? NULL : &slots->region,
        .in_bytes = bytes,
    };

    if (!engine_slots_is_here(slots, seat))
        return;
    hvi_agreement_submit(&slot->agreed, &copy);
    copy.cookie = atomic_load_explicit(&brought->cookie, memory_order_relaxed);
    copy.submit_ns = brought->submit_ns;
    copy.anon_seq = slot->tensor ? 0 : brought->number;
    copy.in_offset = copy.out_offset =
        (uint64_t)(hvi_slot_payload(&slots->map, index, seat.n, bytes) -
                   (unsigned char *)slots->region.map.base);
    if (engine_slot_is_medium(slot) && !locate(slots, slot, seat, &copy, &operands)) {
        slots->calls->violation(slots->user, seat, "an impossible operand in an express slot");
        return;
    }
    slots->calls->inject(slots->user, seat, &copy, &operands, slot->set,
                         tensor_of(slots, slot, copy.anon_seq));
}

/* Those who arrived go on as if they had come through their rings. `retire`: a rank that was stopped may
 * still write to the slot, so its owner gets another one. */
static void inject_all(struct engine_slots *slots, struct engine_slot *slot, uint32_t arrived,
                       bool retire)
{
    struct engine_tensor *tensor = slot->tensor;
    struct engine_set *set = engine_set_get(slot->set);

    if (tensor)
        tensor->refs++;          /* the last part may end the op, */
    if (retire && slot->owner) { /* whose grant must not be for this slot */
        *slot->owner = 0;
        slot->owner = NULL;
    }
    for (uint32_t member = 0; member < set->size; member++) {
        if (arrived >> member & 1)
            inject(slots, slot, set->seats[member]);
    }
    if (!slot->owner)
        slot_drop(slots, slot, retire ? "a rank may still write to it" : "its owner has gone");
    if (tensor)
        engine_tensor_put(&slots->order->tensors, tensor);
    engine_set_put(set);
}

/* The grant is void. If a medium op runs, the slot is closing; else who arrived is a part now, and
 * returned. */
static uint32_t take_back(struct engine_slots *slots, struct engine_slot *slot)
{
    uint32_t index = engine_slot_index(slots, slot), arrived = 0;

    if (!hvi_slot_revoke(&slots->map, index, &arrived)) {
        engine_set_get(slot->set);
        set_state(slots, slot, ENGINE_SLOT_CLOSING, "revoked while a medium op runs");
        return 0;
    }
    arrived &= slot->everybody;
    set_state(slots, slot, ENGINE_SLOT_IDLE, "revoked");
    if (arrived == slot->everybody)
        HVI_LOG(HVI_LOG_INFO, "express", "slot-given-up", "a rank was stopped while it did an op",
                "job=%s slot=%u", slots->job, index);
    inject_all(slots, slot, arrived, arrived == slot->everybody);
    return arrived;
}

void engine_slots_fail(struct engine_slots *slots, struct engine_slot *slot, const char *cause)
{
    if (slot->state == ENGINE_SLOT_OPEN)
        take_back(slots, slot);
    if (slot->state == ENGINE_SLOT_CLOSING) /* else it has ended well meanwhile */
        set_state(slots, slot, ENGINE_SLOT_FAILING, cause);
}

/* A medium op that ran while its slot was revoked is over. If it could not end well, its parts learn
 * that from the engine: they meet what broke the job, or each other as an op that is not done
 * (engine_missing_mark). */
static void end(struct engine_slots *slots, struct engine_slot *slot, bool well)
{
    struct engine_set *set = slot->set;
    uint32_t arrived = well ? 0 : hvi_slot_fail(&slots->map, engine_slot_index(slots, slot));

    set_state(slots, slot, ENGINE_SLOT_IDLE, well ? "its medium op is done" : "it has failed");
    slots->lacking = slot->lacking;
    inject_all(slots, slot, arrived & slot->everybody, !well && slot->lacking == 0);
    slots->lacking = 0;
    engine_set_put(set);
}

static void watch(struct engine_slots *slots, struct engine_slot *slot, bool held);

/* Goes on with the medium op of a slot, if one runs there. True while ranks hold chunks of it, or it is
 * not known yet what became of one that did: parts of an op that has changed its inputs must not be done
 * again. */
static bool go_on(struct engine_slots *slots, struct engine_slot *slot)
{
    enum engine_slot_outcome outcome = engine_slots_run(slots, slot, false);

    if (outcome == ENGINE_SLOT_FAILED)
        engine_slots_fail(slots, slot, "ranks are lost, or a page is missing");
    bool waits = outcome == ENGINE_SLOT_RUNS ||
                 (outcome == ENGINE_SLOT_FAILED && slot->state == ENGINE_SLOT_FAILING &&
                  slot->lacking == 0 && slots->order->broken_status == HVI_OK);
    watch(slots, slot, waits);
    if (waits)
        return true;
    if (outcome == ENGINE_SLOT_NONSENSE)
        engine_slots_fail(slots, slot, "a rank wrote nonsense");
    if (slot->state >= ENGINE_SLOT_CLOSING)
        end(slots, slot, outcome == ENGINE_SLOT_OVER);
    return false;
}

/* Who arrived, unless a medium op runs: that ends first. */
static uint32_t revoke_slot(struct engine_slots *slots, struct engine_slot *slot)
{
    if (slot->state != ENGINE_SLOT_OPEN)
        return 0;
    uint32_t arrived = take_back(slots, slot);
    if (slot->state == ENGINE_SLOT_CLOSING && go_on(slots, slot))
        arm(slots, true);
    return arrived;
}

void engine_slots_give_up(struct engine_slots *slots)
{
    for (uint32_t i = 0; slots->closing > 0 && i < slots->used; i++) {
        struct engine_slot *slot = &slots->slot[i];
        if (slot->state >= ENGINE_SLOT_CLOSING && go_on(slots, slot))
            end(slots, slot, false);
    }
}

/* Ranks that have several unnamed ops in flight overtake those in the slot, who came in vain then: the
 * less a grant was good for, the more are held back. */
static void revoke_unnamed(struct engine_slots *slots, struct engine_unnamed *unnamed,
                           struct engine_slot *slot)
{
    if (slot->state != ENGINE_SLOT_OPEN)
        return;
    uint32_t turn = hvi_slot_view(&slots->map, engine_slot_index(slots, slot)).turn;
    uint32_t ops = (turn - slot->turn) & HVI_SLOT_TURN_MASK;
    uint32_t worth = revoke_slot(slots, slot) != 0 ? HVI_TUNED_WORTH : 1;

    unnamed->penalty = ops >= worth ? 0 : 2 * unnamed->penalty + 1;
    if (unnamed->penalty > HVI_TUNED_PAUSE)
        unnamed->penalty = HVI_TUNED_PAUSE;
    unnamed->held_back = unnamed->penalty;
}

void engine_slots_revoke(struct engine_slots *slots, const struct engine_part *part)
{
    struct engine_unnamed *unnamed = unnamed_of(part->set, part->tensor);
    struct engine_slot *slot = slot_at(slots, owner_of(part->set, part->tensor));

    if (unnamed && part->copy.anon_seq > unnamed->top)
        unnamed->top = part->copy.anon_seq;
    if (unnamed && slot)
        revoke_unnamed(slots, unnamed, slot);
    else if (slot)
        revoke_slot(slots, slot);
}

void engine_slots_revoke_all(struct engine_slots *slots)
{
    if (slots->open == 0 && slots->closing == 0)
        return;
    slots->order->now_ns = hvi_clock_ns();
    for (uint32_t i = 0; i < slots->used; i++) {
        struct engine_slot *slot = &slots->slot[i];
        if (slot->state >= ENGINE_SLOT_CLOSING)
            go_on(slots, slot);
        else
            revoke_slot(slots, slot);
    }
}

void engine_slots_withhold(struct engine_slots *slots, bool withheld)
{
    slots->withheld = withheld;
    if (withheld)
        engine_slots_revoke_all(slots);
}

void engine_slots_revoke_set(struct engine_slots *slots, const struct engine_set *set)
{
    for (uint32_t i = 0; slots->open > 0 && i < slots->used; i++) {
        if (slots->slot[i].set == set)
            revoke_slot(slots, &slots->slot[i]);
    }
}

static bool waits_in(const struct engine_slots *slots, uint32_t index, engine_seat seat,
                     uint64_t cookie)
{
    const struct hvi_slots *map = &slots->map;
    const struct engine_slot *slot = &slots->slot[index];
    int32_t member = slot->state == ENGINE_SLOT_OPEN ? engine_set_place(slot->set, seat) : -1;

    if (member < 0)
        return false;
    uint32_t arrived = hvi_slot_view(map, index).waiting & slot->everybody;
    return arrived != slot->everybody && (arrived >> member & 1) != 0 &&
           atomic_load_explicit(&hvi_slot_part(map, index, seat.n)->cookie, memory_order_relaxed) ==
               cookie;
}

void engine_slots_revoke_op(struct engine_slots *slots, engine_seat seat, uint64_t cookie)
{
    for (uint32_t i = 0; slots->open > 0 && i < slots->used; i++) {
        if (waits_in(slots, i, seat, cookie))
            revoke_slot(slots, &slots->slot[i]);
    }
}

static void release(struct engine_slots *slots, const uint32_t *owner)
{
    struct engine_slot *slot = slot_at(slots, owner);
    uint32_t arrived;

    if (!slot)
        return;
    if (slot->state == ENGINE_SLOT_OPEN) { /* only ranks that forgot the name held grants */
        if (!hvi_slot_revoke(&slots->map, *owner - 1, &arrived))
            hvi_slot_fail(&slots->map, *owner - 1);
        set_state(slots, slot, ENGINE_SLOT_IDLE, "its owner goes");
    }
    slot_drop(slots, slot, "its owner has gone");
}

void engine_slots_tensor_gone(void *user, struct engine_tensor *tensor)
{
    release(user, &tensor->slot);
}

void engine_slots_release_set(struct engine_slots *slots, struct engine_set *set)
{
    for (int kind = 0; kind < HVI_SLOT_UNNAMED; kind++)
        release(slots, &set->unnamed[kind].slot);
}

/* ---- looking at those that wait ---- */

uint64_t engine_slots_oldest_ns(const struct engine_slots *slots, uint32_t index, uint32_t arrived)
{
    uint64_t oldest = UINT64_MAX;

    for (uint32_t member = 0; arrived != 0; member++, arrived >>= 1) {
        if ((arrived & 1) == 0)
            continue;
        engine_seat seat = slots->slot[index].set->seats[member];
        uint64_t ns = hvi_slot_part(&slots->map, index, seat.n)->submit_ns;
        if (ns < oldest)
            oldest = ns;
    }
    return oldest;
}

/* A full slot is given time: its last rank has just come, as a rule. */
static bool stays_full(struct engine_slots *slots, struct engine_slot *slot, uint32_t turn)
{
    if (slot->full_ns == 0 || slot->full_turn != turn) {
        slot->full_turn = turn;
        slot->full_ns = slots->order->now_ns;
    }
    return slot->full_ns + HVI_TUNED_AGE_NS <= slots->order->now_ns;
}

static bool is_stuck(struct engine_slots *slots, uint32_t index, uint32_t arrived)
{
    const struct hvi_slots *map = &slots->map;
    struct engine_slot *slot = &slots->slot[index];
    uint32_t turn = hvi_slot_view(map, index).turn;

    if (arrived == slot->everybody)
        return stays_full(slots, slot, turn);
    return atomic_load_explicit(&map->slots[index].called, memory_order_acquire) == turn + 1 ||
           engine_slots_oldest_ns(slots, index, arrived) + HVI_TUNED_AGE_NS <= slots->order->now_ns;
}

static bool is_running(const struct engine_slots *slots, uint32_t index)
{
    return slots->slot[index].state == ENGINE_SLOT_OPEN && hvi_slot_view(&slots->map, index).runs;
}

/* Whoever sleeps on its event descriptor hears of ops that end in completions. One that was held up in
 * its slot may have ended since without. */
static void ring_events(struct engine_slots *slots, const struct engine_slot *slot)
{
    for (uint32_t member = 0; slot->set && member < slot->set->size; member++) {
        engine_seat seat = slot->set->seats[member];
        if (engine_slots_is_here(slots, seat))
            slots->calls->ring(slots->user, seat);
    }
}

/* After each look: whether ranks still hold chunks. */
static void watch(struct engine_slots *slots, struct engine_slot *slot, bool held)
{
    uint32_t turn = 1 + hvi_slot_view(&slots->map, engine_slot_index(slots, slot)).turn;

    if (slot->held_turn != 0 && (!held || turn != slot->held_turn))
        ring_events(slots, slot);
    slot->held_turn = held ? turn : 0;
}

/* True while somebody waits in it. */
static bool look_at(struct engine_slots *slots, struct engine_slot *slot)
{
    uint32_t index = engine_slot_index(slots, slot);
    bool waits = false;

    if (slot->state >= ENGINE_SLOT_CLOSING || slot->held_turn != 0 || is_running(slots, index)) {
        waits = go_on(slots, slot);
        if (slot->state >= ENGINE_SLOT_CLOSING || is_running(slots, index))
            return waits;
    }
    if (slot->state != ENGINE_SLOT_OPEN)
        return waits;
    struct hvi_slot_view view = hvi_slot_view(&slots->map, index);
    uint32_t arrived = view.waiting & slot->everybody;
    /* In a word that is not open a rank wrote nonsense: who is there is helped. */
    if (!view.open || (arrived != 0 && is_stuck(slots, index, arrived)))
        revoke_slot(slots, slot);
    else
        waits = waits || arrived != 0;
    return waits;
}

/* True while somebody waits in a slot. */
static bool look_at_slots(struct engine_slots *slots)
{
    bool waits = false;

    slots->order->now_ns = hvi_clock_ns();
    for (uint32_t i = 0; i < slots->used; i++)
        waits = look_at(slots, &slots->slot[i]) || waits;
    return waits;
}

static bool is_quiet(struct engine_slots *slots)
{
    uint64_t turns = 0;

    for (uint32_t i = 0; i < slots->used; i++)
        turns += hvi_slot_view(&slots->map, i).turn;
    slots->quiet = turns == slots->turns ? slots->quiet + 1 : 0;
    slots->turns = turns;
    return slots->quiet >= HVI_TUNED_QUIET;
}

static void set_patrolled(struct engine_slots *slots, uint32_t patrolled)
{
    /* Seq_cst, pairs with the look of a rank that has just arrived. */
    for (uint32_t seat = 0; seat < slots->map.ranks; seat++)
        atomic_store_explicit(&slots->map.rank[seat].patrolled, patrolled, memory_order_seq_cst);
}

/* False if a rank has come meanwhile. */
static bool end_patrol(struct engine_slots *slots)
{
    set_patrolled(slots, 0);
    if (!look_at_slots(slots))
        return true;
    set_patrolled(slots, 1);
    return false;
}

static int on_tick(sd_event_source *source, uint64_t due_us, void *user)
{
    struct engine_slots *slots = user;

    (void)due_us;
    slots->soon = look_at_slots(slots);
    if (slots->soon)
        slots->calls->waited(slots->user);
    if (!slots->soon && is_quiet(slots) && end_patrol(slots))
        return sd_event_source_set_enabled(source, SD_EVENT_OFF);
    sd_event_source_set_time_relative(source,
                                      slots->soon ? HVI_TUNED_TICK_US : HVI_TUNED_PATROL_US);
    return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

/* Ranks may ask often: what is armed for as soon stays. */
static void arm(struct engine_slots *slots, bool soon)
{
    int enabled = SD_EVENT_OFF;

    slots->quiet = 0;
    sd_event_source_get_enabled(slots->tick, &enabled);
    if (enabled != SD_EVENT_OFF && (slots->soon || !soon))
        return;
    slots->soon = soon;
    sd_event_source_set_time_relative(slots->tick, soon ? HVI_TUNED_TICK_US : HVI_TUNED_PATROL_US);
    sd_event_source_set_enabled(slots->tick, SD_EVENT_ONESHOT);
    set_patrolled(slots, 1);
}

void engine_slots_finish(struct engine_slots *slots)
{
    for (uint32_t i = 0; slots->on && i < slots->used; i++) {
        if (is_running(slots, i))
            engine_slots_run(slots, &slots->slot[i], true);
    }
}

bool engine_slots_look(struct engine_slots *slots)
{
    /* Relaxed: whoever sets it rings the bell afterwards. */
    if (!slots->on ||
        (!slots->busy && atomic_load_explicit(&slots->map.head->watch, memory_order_relaxed) == 0))
        return false;
    slots->busy = false;
    atomic_store_explicit(&slots->map.head->watch, 0, memory_order_seq_cst);
    arm(slots, look_at_slots(slots));
    return slots->busy;
}
