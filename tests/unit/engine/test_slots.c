/* SPDX-License-Identifier: Apache-2.0
 * The room slots/ by itself: the test is the ranks, and what slots call. One test per step of a slot's
 * life, those it must not take included.
 *
 * Every test is done twice: on a node that has the whole job, whose seats are the ranks, and on one of many
 * whose seats 0 to 3 are the ranks 5, 2, 900000 and 7 of a million, in a set of these. In the tests a number
 * is a member's place. */
#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/order/order.h"
#include "daemon/engine/slots/slots.h"
#include "daemon/engine/stats/stats.h"
#include "shm/region.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS     4
#define EVERYBODY 0xfu
#define SMALL     16u
#define MEDIUM    65536u
#define OLD_NS    (50 * HVI_NS_MS) /* longer than an op may wait in a slot */
#define INLINE    4096u

static const struct engine_order_sink sink;
static const struct engine_order_observer observer;
static struct engine_order order;
static struct engine_roster roster;
static struct engine_stats stats;
static struct engine_slots slots;
static struct engine_regions regions[RANKS];
static unsigned char inline_areas[RANKS][INLINE];
static float *memory[RANKS]; /* region 1 of each rank */
static struct engine_set *members;
static sd_event *event;

/* ---- what slots call ---- */

static struct injected {
    uint16_t seat;
    uint64_t cookie, number, in_offset;
    struct engine_region *in;
} injected[16];
static uint32_t injections, violations, dooms, rings, waits;
static int32_t lacking; /* as the last part that was injected has met it */
static void (*on_inject)(struct engine_tensor *tensor);

static void inject(void *user, engine_seat seat, const struct hvi_submission *copy,
                   const struct engine_operands *operands, struct engine_set *set,
                   struct engine_tensor *tensor)
{
    (void)user;
    ck_assert_ptr_eq(set, members);
    ck_assert_uint_lt(injections, 16);
    injected[injections++] = (struct injected){.seat = seat.n,
                                               .cookie = copy->cookie,
                                               .number = copy->anon_seq,
                                               .in_offset = copy->in_offset,
                                               .in = operands->in};
    lacking = slots.lacking;
    if (on_inject)
        on_inject(tensor);
    engine_tensor_put(&order.tensors, tensor);
}

static void violation(void *user, engine_seat seat, const char *reason)
{
    (void)user, (void)seat, (void)reason;
    violations++;
}

static void doom(void *user, engine_seat seat, const char *reason)
{
    (void)user, (void)seat, (void)reason;
    dooms++;
}

static void ring(void *user, engine_seat seat)
{
    (void)user, (void)seat;
    rings++;
}

static void waited(void *user)
{
    (void)user;
    waits++;
}

static const struct engine_slots_calls calls = {
    .inject = inject, .violation = violation, .doom = doom, .ring = ring, .waited = waited};

/* ---- the ranks ---- */

/* Of a member. */
static engine_seat seat_of(int32_t member)
{
    return members->seats[member];
}

static void add_memory(int32_t rank)
{
    struct hvi_region region;

    ck_assert_int_eq(hvi_region_create("hvt", MEDIUM, &region), HVI_OK);
    const struct hvi_region_add add = {.region = 1, .bytes = region.bytes};
    ck_assert_int_eq(engine_regions_add(&regions[rank], &add, dup(region.fd)), HVI_OK);
    memory[rank] = engine_regions_find(&regions[rank], 1)->map.base;
    hvi_region_fini(&region);
}

static void set_up(int32_t size, const int32_t *ranks)
{
    memset(&slots, 0, sizeof slots);
    memset(&order, 0, sizeof order);
    injections = violations = dooms = rings = waits = 0;
    on_inject = NULL;
    ck_assert_int_eq(engine_roster_init(&roster, size, ranks, RANKS), HVI_OK);
    ck_assert_int_eq(engine_order_init(&order, "job", &roster, &sink, &observer, NULL), HVI_OK);
    ck_assert_int_eq(engine_stats_init(&stats, RANKS), HVI_OK);
    ck_assert_int_ge(sd_event_new(&event), 0);
    order.now_ns = hvi_clock_ns();
    order.tensors.gone = engine_slots_tensor_gone;
    order.tensors.gone_user = &slots;
    slots.job = "job";
    slots.seats = RANKS;
    slots.order = &order;
    slots.stats = &stats;
    slots.event = event;
    slots.calls = &calls;
    engine_slots_start(&slots);
    ck_assert(slots.on);
}

static void come(void)
{
    for (int32_t i = 0; i < RANKS; i++) {
        engine_regions_init(&regions[i], inline_areas[i]);
        add_memory(i);
        engine_slots_come(&slots, seat_of(i), members->ranks[i], &regions[i], getpid(), -1);
        ck_assert_int_eq(hvi_slots_find_seat(&slots.map, members->ranks[i]), seat_of(i).n);
    }
}

static void set_up_alone(void)
{
    set_up(RANKS, NULL);
    members = order.sets.by_id[0];
    come();
}

static void set_up_among_others(void)
{
    static const int32_t ranks[RANKS] = {5, 2, 900000, 7};
    static const int64_t ascending[RANKS] = {2, 5, 7, 900000};

    set_up(1000000, ranks);
    ck_assert_int_eq(engine_sets_add(&order.sets, ascending, RANKS, &members), HVI_OK);
    come();
}

static void tear_down(void)
{
    engine_slots_stop(&slots);
    engine_order_fini(&order);
    engine_roster_fini(&roster);
    engine_stats_fini(&stats);
    sd_event_unref(event);
    for (int32_t rank = 0; rank < RANKS; rank++)
        engine_regions_fini(&regions[rank]);
}

/* An op that is about to end well, as exec/ would hand it over. */
struct ended {
    struct engine_op op;
    struct engine_part *parts[RANKS];
    struct engine_slots_share shares[RANKS];
};

static struct ended ended_op(struct engine_tensor *tensor, uint16_t kind, uint64_t bytes)
{
    struct ended ended = {
        .op = {.kind = kind, .set = members, .tensor = tensor, .parts_present = RANKS}};

    for (int32_t rank = 0; rank < RANKS; rank++) {
        struct engine_slots_share *share = &ended.shares[rank];
        share->share.in = share->share.out = (struct engine_operand){
            .kind = ENGINE_OPERAND_MAPPED, .region = engine_regions_find(&regions[rank], 1)};
        share->share.part.rank = members->ranks[rank];
        share->share.part.place = (uint16_t)rank;
        share->share.part.seat = seat_of(rank);
        share->share.part.in_bytes = bytes;
        share->share.part.set = members;
        share->share.part.tensor = tensor;
        share->share.part.copy.kind = kind;
        share->share.part.copy.dtype = HVI_DTYPE_FLOAT32;
        share->share.part.copy.reduce_op = HVI_REDUCE_SUM;
        share->share.part.copy.prescale = share->share.part.copy.postscale = 1;
        share->share.part.copy.count = bytes / sizeof(float);
        share->share.part.copy.anon_seq = tensor->anon_seq;
    }
    return ended;
}

/* The slot that the op's next one may use; NULL: it got no grant. All ranks got the same. */
static struct engine_slot *grant(struct ended *ended)
{
    for (int32_t rank = 0; rank < RANKS; rank++)
        ended->parts[rank] = &ended->shares[rank].share.part;
    ended->op.parts = ended->parts;
    engine_slots_grant(&slots, &ended->op);
    uint32_t grant = ended->shares[0].grant;
    for (int32_t rank = 1; rank < RANKS; rank++) {
        ck_assert_uint_eq(ended->shares[rank].grant, grant);
        ck_assert_uint_eq(ended->shares[rank].grant_turn, ended->shares[0].grant_turn);
    }
    return grant == 0 ? NULL : &slots.slot[grant - 1];
}

static struct engine_slot *grant_for(struct engine_tensor *tensor, uint64_t bytes)
{
    struct ended ended = ended_op(tensor, HVI_KIND_ALLREDUCE, bytes);

    return grant(&ended);
}

static struct engine_tensor *named(const char *name)
{
    return engine_tensor_get_named(&order.tensors, members->serial, name, (uint32_t)strlen(name));
}

static struct engine_tensor *unnamed(uint64_t number)
{
    return engine_tensor_get_anon(&order.tensors, members->serial, HVI_KIND_ALLREDUCE, number);
}

static uint32_t index_of(const struct engine_slot *slot)
{
    return engine_slot_index(&slots, slot);
}

static struct hvi_slot_part *part_of(const struct engine_slot *slot, int32_t member)
{
    return hvi_slot_part(&slots.map, index_of(slot), seat_of(member).n);
}

static enum hvi_slot_arrival arrive(const struct engine_slot *slot, int32_t rank, uint64_t age_ns)
{
    struct hvi_slot_part *part = part_of(slot, rank);
    const struct hvi_slot_operands said = {.in_region = 1, .out_region = 1};

    part->submit_ns = hvi_clock_ns() - age_ns;
    part->number = slot->tensor ? 0 : 8;
    memcpy(part->payload, &said, sizeof said);
    atomic_store(&part->cookie, 100 + (uint64_t)rank);
    return hvi_slot_arrive(&slots.map, index_of(slot), slot->turn, (uint32_t)rank, EVERYBODY);
}

static void arrive_all(const struct engine_slot *slot)
{
    for (int32_t rank = 0; rank < RANKS; rank++)
        arrive(slot, rank, 0);
}

static enum hvi_slot_sight sight(const struct engine_slot *slot)
{
    return hvi_slot_look(&slots.map, index_of(slot), slot->turn);
}

static void look(void)
{
    atomic_store(&slots.map.head->watch, 1);
    while (engine_slots_look(&slots)) {
    }
}

static void revoke_slot(struct engine_tensor *tensor)
{
    const struct engine_part part = {
        .set = members, .tensor = tensor, .copy.anon_seq = tensor->anon_seq};

    engine_slots_revoke(&slots, &part);
}

/* There is no slot left but this one, if it is free. */
static void take_all_but(const struct engine_slot *slot)
{
    slots.used = HVI_SLOTS;
    for (uint32_t i = 0; i < HVI_SLOTS; i++) {
        if (i != index_of(slot) && slots.slot[i].state == ENGINE_SLOT_FREE)
            slots.slot[i].state = ENGINE_SLOT_IDLE;
    }
}

/* ---- grants ---- */

START_TEST(an_op_that_ends_well_opens_a_slot_once)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    ck_assert_ptr_nonnull(slot);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_OPEN);
    ck_assert(!engine_slot_is_medium(slot));
    ck_assert_uint_eq(tensor->slot, index_of(slot) + 1);
    ck_assert_ptr_null(grant_for(tensor, SMALL));
    ck_assert_uint_eq(slots.open, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(an_op_that_slots_are_not_for_gets_no_grant)
{
    struct engine_tensor *tensor = named("w");
    struct ended gather = ended_op(tensor, HVI_KIND_ALLGATHER, SMALL);
    struct ended adasum = ended_op(tensor, HVI_KIND_ALLREDUCE, SMALL);
    struct ended grouped = ended_op(tensor, HVI_KIND_ALLREDUCE, SMALL);
    struct ended joined = ended_op(tensor, HVI_KIND_ALLREDUCE, SMALL);
    struct ended broadcast = ended_op(tensor, HVI_KIND_BROADCAST, MEDIUM);
    struct ended unshown = ended_op(tensor, HVI_KIND_ALLREDUCE, MEDIUM);

    adasum.shares[0].share.part.copy.reduce_op = HVI_REDUCE_ADASUM;
    grouped.op.group = &grouped.op;
    joined.op.parts_present = RANKS - 1;
    unshown.shares[2].share.out.kind = ENGINE_OPERAND_NONE;
    struct ended *const ops[] = {&gather, &adasum, &grouped, &joined, &broadcast, &unshown};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        ck_assert_msg(grant(ops[i]) == NULL, "op %zu", i);
    ck_assert_uint_eq(slots.used, 0);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_broken_job_gives_no_grants)
{
    struct engine_tensor *tensor = named("w");

    engine_order_break(&order, HVI_ERR_RANK_LOST, 1, "rank 1 is lost");
    ck_assert_ptr_null(grant_for(tensor, SMALL));
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(ranks_that_are_apart_get_grants_for_small_ops_only)
{
    struct engine_tensor *tensor = named("w");

    slots.apart = true;
    ck_assert_ptr_null(grant_for(tensor, MEDIUM));
    ck_assert_ptr_nonnull(grant_for(tensor, SMALL));
    slots.apart = false;
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(withheld_grants_come_back_and_are_not_given_until_they_are_not_withheld)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 1, 0);
    engine_slots_withhold(&slots, true);
    ck_assert_uint_eq(injections, 1);
    ck_assert_int_eq(sight(slot), HVI_SLOT_REVOKED);
    ck_assert_ptr_null(grant_for(tensor, SMALL));
    engine_slots_withhold(&slots, false);
    ck_assert_ptr_eq(grant_for(tensor, SMALL), slot);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* ---- the steps of a slot's life ---- */

static const struct {
    enum engine_slot_state from, to;
} steps[] = {
    {ENGINE_SLOT_FREE, ENGINE_SLOT_IDLE},       {ENGINE_SLOT_IDLE, ENGINE_SLOT_OPEN},
    {ENGINE_SLOT_IDLE, ENGINE_SLOT_FREE},       {ENGINE_SLOT_OPEN, ENGINE_SLOT_IDLE},
    {ENGINE_SLOT_OPEN, ENGINE_SLOT_CLOSING},    {ENGINE_SLOT_CLOSING, ENGINE_SLOT_IDLE},
    {ENGINE_SLOT_CLOSING, ENGINE_SLOT_FAILING}, {ENGINE_SLOT_FAILING, ENGINE_SLOT_IDLE},
};

static bool is_step(int from, int to)
{
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        if ((int)steps[i].from == from && (int)steps[i].to == to)
            return true;
    }
    return false;
}

/* One test for each pair of states. */
START_TEST(a_slot_takes_the_steps_of_the_picture_and_no_other)
{
    int from = _i / ENGINE_SLOT_STATES, to = _i % ENGINE_SLOT_STATES;

    ck_assert_int_eq(engine_slot_edge((enum engine_slot_state)from, (enum engine_slot_state)to),
                     is_step(from, to));
}
END_TEST

/* ---- revoking ---- */

START_TEST(an_empty_slot_is_revoked_without_a_word_and_opened_again)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);
    uint32_t turn = slot->turn;

    revoke_slot(tensor);
    ck_assert_uint_eq(injections, 0);
    ck_assert_int_ne(slot->state, ENGINE_SLOT_OPEN);
    ck_assert_int_eq(arrive(slot, 0, 0), HVI_SLOT_STALE);
    ck_assert_ptr_eq(grant_for(tensor, SMALL), slot);
    ck_assert_uint_ne(slot->turn, turn);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(those_who_arrived_become_parts_with_what_they_brought)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);
    const unsigned char *base = slots.region.map.base;

    arrive(slot, 1, 0);
    arrive(slot, 3, 0);
    revoke_slot(tensor);
    ck_assert_uint_eq(injections, 2);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t rank = 1 + 2 * i;
        ck_assert_uint_eq(injected[i].seat, seat_of((int32_t)rank).n);
        ck_assert_uint_eq(injected[i].cookie, 100 + rank);
        ck_assert_ptr_eq(injected[i].in, &slots.region);
        ck_assert_ptr_eq(
            base + injected[i].in_offset,
            hvi_slot_payload(&slots.map, index_of(slot), seat_of((int32_t)rank).n, SMALL));
    }
    ck_assert_int_eq(slot->state, ENGINE_SLOT_IDLE);
    ck_assert_uint_eq(tensor->refs, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_slot_that_is_not_open_is_not_revoked_again)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    revoke_slot(tensor);
    revoke_slot(tensor);
    engine_slots_revoke_all(&slots);
    ck_assert_uint_eq(injections, 1);
    ck_assert_uint_eq(slots.open, 0);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_rank_whose_session_is_over_brings_nothing)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    arrive(slot, 2, 0);
    engine_slots_leave(&slots, seat_of(2));
    engine_slots_revoke_all(&slots);
    ck_assert_uint_eq(injections, 1);
    ck_assert_uint_eq(injected[0].seat, seat_of(0).n);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* The rank that came last was stopped while it combined, and may go on at any time. */
START_TEST(a_full_slot_that_is_revoked_is_used_again_when_every_rank_has_left_it)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    arrive_all(slot);
    revoke_slot(tensor);
    ck_assert_uint_eq(injections, RANKS);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FREE);
    ck_assert_ptr_null(slot->owner);
    ck_assert_uint_eq(tensor->slot, 0);
    struct engine_tensor *other = named("v");
    ck_assert_ptr_ne(grant_for(tensor, SMALL), slot);
    take_all_but(slot);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        ck_assert_ptr_null(grant_for(other, SMALL));
        atomic_store(&part_of(slot, (int32_t)rank)->cookie, 0);
    }
    ck_assert_ptr_eq(grant_for(other, SMALL), slot);
    engine_tensor_put(&order.tensors, other);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_rank_takes_back_its_own_op_and_only_while_others_are_missing)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    engine_slots_revoke_op(&slots, seat_of(0), 77);
    engine_slots_revoke_op(&slots, seat_of(1), 100);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_OPEN);
    for (int32_t rank = 1; rank < RANKS; rank++)
        arrive(slot, rank, 0);
    engine_slots_revoke_op(&slots, seat_of(0), 100);
    ck_assert_msg(slot->state == ENGINE_SLOT_OPEN, "a full slot has a rank at work");
    ck_assert(hvi_slot_publish(&slots.map, index_of(slot), slot->turn, EVERYBODY));
    slot->turn = hvi_slot_view(&slots.map, index_of(slot)).turn;
    arrive(slot, 0, 0);
    engine_slots_revoke_op(&slots, seat_of(0), 100);
    ck_assert_uint_eq(injections, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* ---- the end of a slot ---- */

START_TEST(a_tensor_that_goes_takes_its_grant_with_it)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);
    uint32_t refs = members->refs;

    engine_tensor_put(&order.tensors, tensor);
    ck_assert_ptr_null(slot->owner);
    ck_assert_int_eq(sight(slot), HVI_SLOT_REVOKED);
    ck_assert_uint_eq(slots.open, 0);
    ck_assert_uint_eq(members->refs, refs - 1);
}
END_TEST

START_TEST(a_slot_is_given_to_others_when_every_rank_has_left_it)
{
    struct engine_tensor *tensor = named("w"), *other = named("v");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 2, 0);
    engine_tensor_put(&order.tensors, tensor);
    take_all_but(slot);
    ck_assert_ptr_null(grant_for(other, SMALL));
    atomic_store(&part_of(slot, 2)->cookie, 0);
    ck_assert_ptr_eq(grant_for(other, SMALL), slot);
    engine_tensor_put(&order.tensors, other);
}
END_TEST

/* ---- unnamed slots ---- */

START_TEST(unnamed_ops_share_a_slot_and_an_overtaken_one_gets_no_grant)
{
    struct engine_tensor *first = unnamed(1), *second = unnamed(2);
    struct engine_set *set = members;

    revoke_slot(second); /* a rank has submitted number 2 through its ring */
    ck_assert_ptr_null(grant_for(first, SMALL));
    struct engine_slot *slot = grant_for(second, SMALL);
    ck_assert_ptr_nonnull(slot);
    ck_assert_ptr_null(slot->tensor);
    arrive(slot, 0, 0);
    engine_slots_revoke_set(&slots, set);
    ck_assert_uint_eq(injected[0].number, 8);
    engine_tensor_put(&order.tensors, first);
    engine_tensor_put(&order.tensors, second);
    engine_slots_release_set(&slots, set);
    ck_assert_ptr_null(slot->owner);
}
END_TEST

START_TEST(an_unnamed_slot_whose_grant_was_of_no_use_is_paused_for_longer_each_time)
{
    struct engine_set *set = members;
    uint32_t held_back[3] = {0};
    uint64_t number = 1;

    for (int i = 0; i < 3; i++) {
        struct engine_tensor *tensor = unnamed(number);
        while (!grant_for(tensor, SMALL)) {
            ck_assert_uint_lt(++held_back[i], 100);
        }
        revoke_slot(tensor); /* nobody has used it */
        engine_tensor_put(&order.tensors, tensor);
        number++;
    }
    ck_assert_uint_eq(held_back[0], 0);
    ck_assert_uint_lt(held_back[1], held_back[2]);
    engine_slots_release_set(&slots, set);
}
END_TEST

/* ---- looking at slots ---- */

START_TEST(an_op_that_waits_is_left_alone_until_it_is_old)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    look();
    ck_assert_int_eq(slot->state, ENGINE_SLOT_OPEN);
    arrive(slot, 1, OLD_NS);
    look();
    ck_assert_int_ne(slot->state, ENGINE_SLOT_OPEN);
    ck_assert_uint_eq(injections, 2);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(an_op_that_a_rank_calls_for_is_taken_at_once)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    atomic_store(&slots.map.slots[index_of(slot)].called, slot->turn + 1);
    look();
    ck_assert_uint_eq(injections, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_full_slot_is_given_time_and_then_up)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    arrive_all(slot);
    look();
    ck_assert_int_eq(slot->state, ENGINE_SLOT_OPEN);
    slot->full_ns -= OLD_NS;
    look();
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FREE);
    ck_assert_uint_eq(injections, RANKS);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_word_that_a_rank_has_made_up_ends_the_slot_and_nothing_else)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    atomic_store(&slots.map.slots[index_of(slot)].word, UINT64_MAX);
    look();
    ck_assert_int_ne(slot->state, ENGINE_SLOT_OPEN);
    ck_assert_uint_le(injections, RANKS);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

static void make_up_that_it_runs(const struct engine_slot *slot, uint32_t arrived)
{
    atomic_store(&slots.map.slots[index_of(slot)].word,
                 (uint64_t)slot->turn << 40 | UINT64_C(2) << 32 | arrived);
}

START_TEST(a_rank_that_makes_up_that_an_op_runs_ends_the_slot_and_nothing_else)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, _i == 0 ? SMALL : MEDIUM);

    arrive(slot, 0, 0);
    make_up_that_it_runs(slot, 1);
    look();
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FREE);
    ck_assert_uint_eq(injections, 1);
    make_up_that_it_runs(slot, EVERYBODY); /* in nobody's slot */
    slot->held_turn = 1;
    look();
    ck_assert_uint_eq(injections, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

static struct engine_slot *granted;

static void grant_again(struct engine_tensor *tensor)
{
    if (injections == RANKS)
        granted = grant_for(tensor, 0);
}

/* What has no bytes may end as soon as its last part goes on. */
START_TEST(an_op_that_ends_while_its_slot_is_given_up_gets_a_grant_for_another_one)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, 0);

    on_inject = grant_again;
    arrive_all(slot);
    revoke_slot(tensor);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FREE);
    ck_assert_ptr_ne(granted, slot);
    ck_assert_int_eq(granted->state, ENGINE_SLOT_OPEN);
    ck_assert_uint_eq(tensor->slot, index_of(granted) + 1);
    ck_assert_uint_eq(slots.open, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* ---- the tick ---- */

static void tick(void)
{
    ck_assert_int_ge(sd_event_source_set_time_relative(slots.tick, 0), 0);
    ck_assert_int_gt(sd_event_run(event, 1000 * 1000), 0);
}

START_TEST(slots_in_which_ranks_stand_are_looked_at_until_none_does_any_more)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);
    int enabled = SD_EVENT_OFF;

    arrive(slot, 0, 0);
    part_of(slot, 0)->submit_ns += 60 * HVI_NS_SEC; /* it stays young */
    look();
    tick();
    ck_assert_uint_eq(waits, 1);
    ck_assert_uint_eq(atomic_load(&slots.map.rank[3].patrolled), 1);
    part_of(slot, 0)->submit_ns -= 60 * HVI_NS_SEC + OLD_NS;
    tick();
    ck_assert_uint_eq(injections, 1);
    for (uint32_t i = 0; i < HVI_TUNED_QUIET; i++)
        tick();
    ck_assert_int_ge(sd_event_source_get_enabled(slots.tick, &enabled), 0);
    ck_assert_int_eq(enabled, SD_EVENT_OFF);
    ck_assert_uint_eq(atomic_load(&slots.map.rank[3].patrolled), 0);
    look();
    ck_assert_uint_eq(atomic_load(&slots.map.rank[3].patrolled), 1);
    ck_assert_uint_eq(waits, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* ---- what ranks have done ---- */

START_TEST(what_ranks_did_in_slots_is_added_once)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = grant_for(tensor, SMALL);
    struct hvi_slot_rank *block = &slots.map.rank[1];

    for (uint32_t i = 0; i < HVI_SLOT_TRACE + 5; i++) {
        block->trace[i % HVI_SLOT_TRACE] =
            (struct hvi_slot_trace){.slot = index_of(slot), .bytes = SMALL};
        atomic_store(&block->traced, i + 1);
    }
    atomic_store(&block->ops, 7);
    atomic_store(&block->bytes, 7 * SMALL);
    block->lag[2] = (struct hvi_slot_lag){.sum_ns = 90, .max_ns = 50, .last = 2};
    block->lag[2].histogram[3] = 4;
    for (int i = 0; i < 2; i++)
        engine_slots_fold(&slots);
    ck_assert_uint_eq(stats.rows[1].ops, 7);
    ck_assert_uint_eq(stats.rows[1].bytes, 7 * SMALL);
    ck_assert_uint_eq(stats.rows[2].lag.ops, 4);
    ck_assert_uint_eq(stats.rows[2].lag.last_ops, 2);
    ck_assert_uint_eq(stats.rows[2].lag.max_ns, 50);
    ck_assert_uint_eq(slots.seen[1].traced, HVI_SLOT_TRACE + 5);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* ---- medium ops ---- */

static uint32_t chunks;

/* Every rank has come, and the last one has started it. */
static struct engine_slot *start_medium(struct engine_tensor *tensor)
{
    struct engine_slot *slot = grant_for(tensor, MEDIUM);
    uint64_t unit_bytes = 0;

    ck_assert(slot && engine_slot_is_medium(slot));
    for (int32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t i = 0; i < MEDIUM / sizeof(float); i++)
            memory[rank][i] = (float)(rank + 1);
    }
    arrive_all(slot);
    chunks = hvi_slot_cut(MEDIUM, &unit_bytes);
    ck_assert(hvi_slot_start(&slots.map, index_of(slot), slot->turn, MEDIUM, EVERYBODY));
    return slot;
}

static uint32_t claim(const struct engine_slot *slot, uint32_t rank)
{
    return hvi_slot_claim(&slots.map, index_of(slot), slot->turn, chunks,
                          1u + seat_of((int32_t)rank).n);
}

static void expect_sum(void)
{
    for (int32_t rank = 0; rank < RANKS; rank++) {
        ck_assert_float_eq(memory[rank][0], 10);
        ck_assert_float_eq(memory[rank][MEDIUM / sizeof(float) - 1], 10);
    }
}

START_TEST(the_engine_does_the_chunks_that_nobody_takes)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);

    look();
    ck_assert_int_eq(sight(slot), HVI_SLOT_DONE);
    expect_sum();
    ck_assert_int_eq(slot->state, ENGINE_SLOT_OPEN);
    ck_assert_uint_eq(injections, 0);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_medium_op_that_runs_ends_before_its_slot_is_revoked)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);
    uint32_t chunk = claim(slot, 1);

    ck_assert_uint_ne(chunk, HVI_SLOT_NOTHING);
    engine_slots_revoke_all(&slots);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_CLOSING);
    ck_assert_uint_eq(slots.closing, 1);
    ck_assert_ptr_null(grant_for(tensor, SMALL));
    look();
    ck_assert_msg(slot->state == ENGINE_SLOT_CLOSING, "rank 1 holds a chunk");
    hvi_slot_finish(&slots.map, index_of(slot), slot->turn, chunk);
    look();
    ck_assert_int_eq(slot->state, ENGINE_SLOT_IDLE);
    ck_assert_uint_eq(slots.closing, 0);
    ck_assert_int_eq(sight(slot), HVI_SLOT_DONE);
    ck_assert_uint_eq(injections, 0);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(who_holds_a_chunk_is_found_by_those_who_watch)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);
    struct engine_held held;
    uint32_t cursor = 0;

    ck_assert(!engine_slots_next_held(&slots, &cursor, &held));
    uint32_t chunk = claim(slot, 2);
    cursor = 0;
    ck_assert(engine_slots_next_held(&slots, &cursor, &held));
    ck_assert_ptr_eq(held.slot, slot);
    ck_assert_uint_eq(held.holders, 1u << seat_of(2).n);
    ck_assert_str_eq(held.name, "w");
    ck_assert(!engine_slots_next_held(&slots, &cursor, &held));
    look();
    hvi_slot_finish(&slots.map, index_of(slot), slot->turn, chunk);
    look();
    ck_assert_uint_eq(rings, RANKS); /* of what ended while it was held up */
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* Rank 3 is lost while it holds a chunk. */
static void expect_failure(struct engine_slot *slot)
{
    engine_slots_revoke_all(&slots);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FAILING);
    ck_assert_uint_eq(injections, 0);
    engine_order_break(&order, HVI_ERR_RANK_LOST, members->ranks[3], "rank 3 is lost");
    engine_slots_revoke_all(&slots);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FREE);
    ck_assert_uint_eq(injections, RANKS - 1);
    ck_assert_int_eq(sight(slot), HVI_SLOT_REVOKED);
}

START_TEST(an_op_whose_holder_is_lost_fails_once_it_is_known_what_broke_the_job)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);

    claim(slot, 3);
    engine_slots_leave(&slots, seat_of(3));
    engine_slots_revoke_all(&slots);
    ck_assert_msg(slot->state == ENGINE_SLOT_CLOSING, "a thread of rank 3 may still be at work");
    slots.ranks[seat_of(3).n].over_ns -= 2 * HVI_NS_SEC;
    expect_failure(slot);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(an_op_whose_memory_is_gone_fails_once_it_is_known_what_broke_the_job)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);

    engine_slots_leave(&slots, seat_of(3));
    engine_slots_forget(&slots, seat_of(3));
    expect_failure(slot);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_holder_that_is_given_up_fails_its_op_and_costs_its_slot)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);

    claim(slot, 1);
    engine_slots_revoke_all(&slots);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_CLOSING);
    engine_order_break(&order, HVI_ERR_RANK_LOST, members->ranks[0], "rank 0 broke the protocol");
    engine_slots_give_up(&slots);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FREE);
    ck_assert_uint_eq(injections, RANKS);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(an_op_of_which_a_page_is_missing_fails_at_once_and_its_slot_is_good_again)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);

    hvi_slot_give_up(&slots.map, index_of(slot), slot->turn, claim(slot, 1), seat_of(2).n);
    look();
    ck_assert_uint_eq(injections, RANKS);
    ck_assert_int_eq(lacking, 1 + seat_of(2).n);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_IDLE);
    ck_assert_int_eq(sight(slot), HVI_SLOT_REVOKED);
    ck_assert_ptr_eq(grant_for(tensor, MEDIUM), slot);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_rank_that_goes_leaves_no_chunk_that_can_be_done)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);

    engine_slots_finish(&slots);
    ck_assert_int_eq(sight(slot), HVI_SLOT_DONE);
    expect_sum();
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_tensor_that_goes_while_its_op_runs_ends_it)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);

    engine_tensor_put(&order.tensors, tensor);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FREE);
    ck_assert_int_eq(sight(slot), HVI_SLOT_REVOKED);
}
END_TEST

static const struct hvi_slot_operands impossible[] = {
    {.in_region = 9, .out_region = 1},
    {.in_region = 1, .out_region = HVI_REGION_INLINE},
    {.in_region = 1, .out_region = 1, .in_offset = MEDIUM},
    {.in_region = 1, .out_region = 1, .out_offset = UINT64_MAX},
};

START_TEST(an_impossible_operand_is_its_ranks_end_and_the_ops)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);

    memcpy(part_of(slot, 1)->payload, &impossible[_i], sizeof impossible[_i]);
    look();
    ck_assert_uint_ge(dooms, 1);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FAILING);
    engine_order_break(&order, HVI_ERR_RANK_LOST, 1, "rank 1 broke the protocol");
    engine_slots_revoke_all(&slots);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FREE);
    ck_assert_uint_eq(violations, 1);
    ck_assert_uint_eq(injections, RANKS - 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_slot_whose_tensor_goes_while_it_closes_is_nobodys_afterwards)
{
    struct engine_tensor *tensor = named("w");
    struct engine_slot *slot = start_medium(tensor);
    uint32_t chunk = claim(slot, 0);

    engine_slots_revoke_all(&slots);
    engine_tensor_put(&order.tensors, tensor);
    ck_assert_int_eq(slot->state, ENGINE_SLOT_CLOSING);
    ck_assert_ptr_null(slot->owner);
    hvi_slot_finish(&slots.map, index_of(slot), slot->turn, chunk);
    look();
    ck_assert_int_eq(slot->state, ENGINE_SLOT_FREE);
    ck_assert_ptr_null(slot->set);
    ck_assert_ptr_null(slot->owner);
}
END_TEST

static TCase *tests(const char *name, void (*begin)(void))
{
    TCase *tcase = tcase_create(name);

    tcase_add_checked_fixture(tcase, begin, tear_down);
    tcase_add_test(tcase, an_op_that_ends_well_opens_a_slot_once);
    tcase_add_test(tcase, an_op_that_slots_are_not_for_gets_no_grant);
    tcase_add_test(tcase, a_broken_job_gives_no_grants);
    tcase_add_test(tcase, ranks_that_are_apart_get_grants_for_small_ops_only);
    tcase_add_test(tcase, withheld_grants_come_back_and_are_not_given_until_they_are_not_withheld);
    tcase_add_loop_test(tcase, a_slot_takes_the_steps_of_the_picture_and_no_other, 0,
                        ENGINE_SLOT_STATES * ENGINE_SLOT_STATES);
    tcase_add_test(tcase, an_empty_slot_is_revoked_without_a_word_and_opened_again);
    tcase_add_test(tcase, those_who_arrived_become_parts_with_what_they_brought);
    tcase_add_test(tcase, a_slot_that_is_not_open_is_not_revoked_again);
    tcase_add_test(tcase, a_rank_whose_session_is_over_brings_nothing);
    tcase_add_test(tcase, a_full_slot_that_is_revoked_is_used_again_when_every_rank_has_left_it);
    tcase_add_test(tcase, a_rank_takes_back_its_own_op_and_only_while_others_are_missing);
    tcase_add_test(tcase, a_tensor_that_goes_takes_its_grant_with_it);
    tcase_add_test(tcase, a_slot_is_given_to_others_when_every_rank_has_left_it);
    tcase_add_test(tcase, unnamed_ops_share_a_slot_and_an_overtaken_one_gets_no_grant);
    tcase_add_test(tcase, an_unnamed_slot_whose_grant_was_of_no_use_is_paused_for_longer_each_time);
    tcase_add_test(tcase, an_op_that_waits_is_left_alone_until_it_is_old);
    tcase_add_test(tcase, an_op_that_a_rank_calls_for_is_taken_at_once);
    tcase_add_test(tcase, a_full_slot_is_given_time_and_then_up);
    tcase_add_test(tcase, a_word_that_a_rank_has_made_up_ends_the_slot_and_nothing_else);
    tcase_add_loop_test(tcase, a_rank_that_makes_up_that_an_op_runs_ends_the_slot_and_nothing_else,
                        0, 2);
    tcase_add_test(tcase, an_op_that_ends_while_its_slot_is_given_up_gets_a_grant_for_another_one);
    tcase_add_test(tcase, slots_in_which_ranks_stand_are_looked_at_until_none_does_any_more);
    tcase_add_test(tcase, what_ranks_did_in_slots_is_added_once);
    tcase_add_test(tcase,
                   an_op_of_which_a_page_is_missing_fails_at_once_and_its_slot_is_good_again);
    tcase_add_test(tcase, a_rank_that_goes_leaves_no_chunk_that_can_be_done);
    tcase_add_test(tcase, a_tensor_that_goes_while_its_op_runs_ends_it);
    tcase_add_test(tcase, the_engine_does_the_chunks_that_nobody_takes);
    tcase_add_test(tcase, a_medium_op_that_runs_ends_before_its_slot_is_revoked);
    tcase_add_test(tcase, who_holds_a_chunk_is_found_by_those_who_watch);
    tcase_add_test(tcase, an_op_whose_holder_is_lost_fails_once_it_is_known_what_broke_the_job);
    tcase_add_test(tcase, an_op_whose_memory_is_gone_fails_once_it_is_known_what_broke_the_job);
    tcase_add_test(tcase, a_holder_that_is_given_up_fails_its_op_and_costs_its_slot);
    tcase_add_loop_test(tcase, an_impossible_operand_is_its_ranks_end_and_the_ops, 0,
                        sizeof impossible / sizeof impossible[0]);
    tcase_add_test(tcase, a_slot_whose_tensor_goes_while_it_closes_is_nobodys_afterwards);
    return tcase;
}

START_TEST(a_set_with_members_on_other_nodes_gets_no_grant)
{
    static const int64_t ranks[] = {2, 3, 5, 7, 900000};
    struct engine_tensor *tensor = named("w");
    struct ended ended = ended_op(tensor, HVI_KIND_ALLREDUCE, SMALL);

    ck_assert_int_eq(engine_sets_add(&order.sets, ranks, RANKS + 1, &ended.op.set), HVI_OK);
    ended.op.parts_present = RANKS + 1;
    ck_assert_ptr_null(grant(&ended));
    ck_assert_ptr_nonnull(grant_for(tensor, SMALL));
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/slots");
    TCase *among_others = tests("among others", set_up_among_others);

    suite_add_tcase(suite, tests("alone", set_up_alone));
    tcase_add_test(among_others, a_set_with_members_on_other_nodes_gets_no_grant);
    suite_add_tcase(suite, among_others);
    return hvt_run_suite(suite);
}
