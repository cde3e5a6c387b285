/* SPDX-License-Identifier: Apache-2.0
 * The room slots/ by itself: the test is the ranks, and what slots call. One test per step of a slot's
 * life, those it must not take included. */
#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/order/order.h"
#include "daemon/engine/slots/express.h"
#include "daemon/engine/stats/stats.h"
#include "shm/region.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RANKS     4
#define EVERYBODY 0xfu
#define SMALL     16u
#define LARGE     65536u
#define OLD_NS    (50 * HVI_NS_MS) /* longer than an op may wait in a slot */
#define INLINE    4096u

static const struct engine_order_sink sink;
static const struct engine_order_observer observer;
static struct engine_order order;
static struct engine_roster roster;
static struct engine_stats stats;
static struct engine_express express;
static struct engine_regions regions[RANKS];
static unsigned char inline_areas[RANKS][INLINE];
static float *memory[RANKS]; /* region 1 of each rank */
static sd_event *event;

/* ---- what slots call ---- */

static struct injected {
    int32_t rank;
    uint64_t cookie, number, in_offset;
    struct engine_region *in;
} injected[16];
static uint32_t injections, violations, dooms, rings;

static void inject(void *user, int32_t rank, const struct hvi_submission *copy,
                   const struct engine_operands *operands, struct engine_set *set,
                   struct engine_tensor *tensor)
{
    (void)user;
    ck_assert_ptr_eq(set, order.sets.by_id[0]);
    ck_assert_uint_lt(injections, 16);
    injected[injections++] = (struct injected){.rank = rank,
                                               .cookie = copy->cookie,
                                               .number = copy->anon_seq,
                                               .in_offset = copy->in_offset,
                                               .in = operands->in};
    engine_tensor_put(&order.tensors, tensor);
}

static void violation(void *user, int32_t rank, const char *reason)
{
    (void)user, (void)rank, (void)reason;
    violations++;
}

static void doom(void *user, int32_t rank, const char *reason)
{
    (void)user, (void)rank, (void)reason;
    dooms++;
}

static void ring(void *user, int32_t rank)
{
    (void)user, (void)rank;
    rings++;
}

static void waited(void *user)
{
    (void)user;
}

static const struct engine_express_calls calls = {
    .inject = inject, .violation = violation, .doom = doom, .ring = ring, .waited = waited};

/* ---- the ranks ---- */

static void add_memory(int32_t rank)
{
    struct hvi_region region;

    ck_assert_int_eq(hvi_region_create("hvt", LARGE, &region), HVI_OK);
    const struct hvi_region_add add = {.region = 1, .bytes = region.bytes};
    ck_assert_int_eq(engine_regions_add(&regions[rank], &add, dup(region.fd)), HVI_OK);
    memory[rank] = engine_regions_find(&regions[rank], 1)->map.base;
    hvi_region_fini(&region);
}

static void set_up(void)
{
    memset(&express, 0, sizeof express);
    memset(&order, 0, sizeof order);
    injections = violations = dooms = rings = 0;
    ck_assert_int_eq(engine_roster_init(&roster, RANKS, NULL, RANKS), HVI_OK);
    ck_assert_int_eq(engine_order_init(&order, "job", &roster, &sink, &observer, NULL), HVI_OK);
    ck_assert_int_eq(engine_stats_init(&stats, RANKS), HVI_OK);
    ck_assert_int_ge(sd_event_new(&event), 0);
    order.now_ns = hvi_clock_ns();
    order.tensors.gone = engine_express_tensor_gone;
    order.tensors.gone_user = &express;
    express.job = "job";
    express.size = RANKS;
    express.order = &order;
    express.stats = &stats;
    express.event = event;
    express.calls = &calls;
    engine_express_start(&express);
    ck_assert(express.on);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        engine_regions_init(&regions[rank], inline_areas[rank]);
        add_memory(rank);
        engine_express_come(&express, rank, &regions[rank], getpid(), -1);
    }
}

static void tear_down(void)
{
    engine_express_stop(&express);
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
    struct engine_express_share shares[RANKS];
};

static struct ended ended_op(struct engine_tensor *tensor, uint16_t kind, uint64_t bytes)
{
    struct ended ended = {
        .op = {.kind = kind, .set = order.sets.by_id[0], .tensor = tensor, .parts_present = RANKS}};

    for (int32_t rank = 0; rank < RANKS; rank++) {
        struct engine_express_share *share = &ended.shares[rank];
        share->share.in = share->share.out = (struct engine_operand){
            .kind = ENGINE_OPERAND_MAPPED, .region = engine_regions_find(&regions[rank], 1)};
        share->share.part.rank = rank;
        share->share.part.place = (uint16_t)rank;
        share->share.part.seat = engine_seat_is_rank(rank);
        share->share.part.in_bytes = bytes;
        share->share.part.set = order.sets.by_id[0];
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

/* The slot that the op's next one may use; NULL: it got no ticket. All ranks got the same. */
static struct engine_express_slot *grant(struct ended *ended)
{
    for (int32_t rank = 0; rank < RANKS; rank++)
        ended->parts[rank] = &ended->shares[rank].share.part;
    ended->op.parts = ended->parts;
    engine_express_grant(&express, &ended->op);
    uint32_t ticket = ended->shares[0].ticket;
    for (int32_t rank = 1; rank < RANKS; rank++) {
        ck_assert_uint_eq(ended->shares[rank].ticket, ticket);
        ck_assert_uint_eq(ended->shares[rank].ticket_turn, ended->shares[0].ticket_turn);
    }
    return ticket == 0 ? NULL : &express.slots[ticket - 1];
}

static struct engine_express_slot *grant_for(struct engine_tensor *tensor, uint64_t bytes)
{
    struct ended ended = ended_op(tensor, HVI_KIND_ALLREDUCE, bytes);

    return grant(&ended);
}

static struct engine_tensor *named(const char *name)
{
    return engine_tensor_get_named(&order.tensors, 0, name, (uint32_t)strlen(name));
}

static struct engine_tensor *unnamed(uint64_t number)
{
    return engine_tensor_get_anon(&order.tensors, 0, HVI_KIND_ALLREDUCE, number);
}

static uint32_t index_of(const struct engine_express_slot *slot)
{
    return (uint32_t)(slot - express.slots);
}

static enum hvi_express_arrival arrive(const struct engine_express_slot *slot, int32_t rank,
                                       uint64_t age_ns)
{
    struct hvi_express_part *part = hvi_express_part(&express.map, index_of(slot), (uint32_t)rank);
    const struct hvi_express_operands said = {.in_region = 1, .out_region = 1};

    part->submit_ns = hvi_clock_ns() - age_ns;
    part->number = slot->tensor ? 0 : 8;
    memcpy(part->payload, &said, sizeof said);
    atomic_store(&part->cookie, 100 + (uint64_t)rank);
    return hvi_express_arrive(&express.map, index_of(slot), slot->turn, (uint32_t)rank, EVERYBODY);
}

static void arrive_all(const struct engine_express_slot *slot)
{
    for (int32_t rank = 0; rank < RANKS; rank++)
        arrive(slot, rank, 0);
}

static enum hvi_express_sight sight(const struct engine_express_slot *slot)
{
    return hvi_express_look(&express.map, index_of(slot), slot->turn);
}

static void look(void)
{
    atomic_store(&express.map.head->watch, 1);
    while (engine_express_look(&express)) {
    }
}

static void seize(struct engine_tensor *tensor)
{
    const struct engine_part part = {
        .set = order.sets.by_id[0], .tensor = tensor, .copy.anon_seq = tensor->anon_seq};

    engine_express_seize(&express, &part);
}

/* ---- tickets ---- */

START_TEST(an_op_that_ends_well_opens_a_slot_once)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);

    ck_assert_ptr_nonnull(slot);
    ck_assert(slot->open && !slot->large);
    ck_assert_uint_eq(tensor->slot, index_of(slot) + 1);
    ck_assert_ptr_null(grant_for(tensor, SMALL));
    ck_assert_uint_eq(express.open, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(an_op_that_slots_are_not_for_gets_no_ticket)
{
    struct engine_tensor *tensor = named("w");
    struct ended gather = ended_op(tensor, HVI_KIND_ALLGATHER, SMALL);
    struct ended adasum = ended_op(tensor, HVI_KIND_ALLREDUCE, SMALL);
    struct ended grouped = ended_op(tensor, HVI_KIND_ALLREDUCE, SMALL);
    struct ended joined = ended_op(tensor, HVI_KIND_ALLREDUCE, SMALL);
    struct ended broadcast = ended_op(tensor, HVI_KIND_BROADCAST, LARGE);
    struct ended unshown = ended_op(tensor, HVI_KIND_ALLREDUCE, LARGE);

    adasum.shares[0].share.part.copy.reduce_op = HVI_REDUCE_ADASUM;
    grouped.op.group = &grouped.op;
    joined.op.parts_present = RANKS - 1;
    unshown.shares[2].share.out.kind = ENGINE_OPERAND_NONE;
    struct ended *const ops[] = {&gather, &adasum, &grouped, &joined, &broadcast, &unshown};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        ck_assert_msg(grant(ops[i]) == NULL, "op %zu", i);
    ck_assert_uint_eq(express.used, 0);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_broken_job_gives_no_tickets)
{
    struct engine_tensor *tensor = named("w");

    engine_order_break(&order, HVI_ERR_RANK_LOST, 1, "rank 1 is lost");
    ck_assert_ptr_null(grant_for(tensor, SMALL));
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(ranks_that_are_apart_get_tickets_for_small_ops_only)
{
    struct engine_tensor *tensor = named("w");

    express.apart = true;
    ck_assert_ptr_null(grant_for(tensor, LARGE));
    ck_assert_ptr_nonnull(grant_for(tensor, SMALL));
    express.apart = false;
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(withheld_tickets_come_back_and_are_not_given_until_they_are_not_withheld)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 1, 0);
    engine_express_withhold(&express, true);
    ck_assert_uint_eq(injections, 1);
    ck_assert_int_eq(sight(slot), HVI_EXPRESS_SEIZED);
    ck_assert_ptr_null(grant_for(tensor, SMALL));
    engine_express_withhold(&express, false);
    ck_assert_ptr_eq(grant_for(tensor, SMALL), slot);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* ---- seizing ---- */

START_TEST(an_empty_slot_is_seized_without_a_word_and_opened_again)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);
    uint32_t turn = slot->turn;

    seize(tensor);
    ck_assert_uint_eq(injections, 0);
    ck_assert(!slot->open);
    ck_assert_int_eq(arrive(slot, 0, 0), HVI_EXPRESS_STALE);
    ck_assert_ptr_eq(grant_for(tensor, SMALL), slot);
    ck_assert_uint_ne(slot->turn, turn);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(those_who_arrived_become_parts_with_what_they_brought)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);
    const unsigned char *base = express.region.map.base;

    arrive(slot, 1, 0);
    arrive(slot, 3, 0);
    seize(tensor);
    ck_assert_uint_eq(injections, 2);
    for (uint32_t i = 0; i < 2; i++) {
        uint32_t rank = 1 + 2 * i;
        ck_assert_int_eq(injected[i].rank, (int32_t)rank);
        ck_assert_uint_eq(injected[i].cookie, 100 + rank);
        ck_assert_ptr_eq(injected[i].in, &express.region);
        ck_assert_ptr_eq(base + injected[i].in_offset,
                         hvi_express_payload(&express.map, index_of(slot), rank, SMALL));
    }
    ck_assert(!slot->retired);
    ck_assert_uint_eq(tensor->refs, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_slot_that_is_not_open_is_not_seized_again)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    seize(tensor);
    seize(tensor);
    engine_express_seize_all(&express);
    ck_assert_uint_eq(injections, 1);
    ck_assert_uint_eq(express.open, 0);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_rank_whose_session_is_over_brings_nothing)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    arrive(slot, 2, 0);
    engine_express_leave(&express, 2);
    engine_express_seize_all(&express);
    ck_assert_uint_eq(injections, 1);
    ck_assert_int_eq(injected[0].rank, 0);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* The rank that came last was stopped while it combined, and may go on at any time. */
START_TEST(a_full_slot_that_is_seized_is_used_again_when_every_rank_has_left_it)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);

    arrive_all(slot);
    seize(tensor);
    ck_assert_uint_eq(injections, RANKS);
    ck_assert(slot->retired);
    ck_assert_ptr_null(slot->owner);
    ck_assert_uint_eq(tensor->slot, 0);
    struct engine_tensor *other = named("v");
    ck_assert_ptr_ne(grant_for(tensor, SMALL), slot);
    express.used = HVI_EXPRESS_SLOTS;
    uint32_t taken = 1;
    for (uint32_t i = 0; i < HVI_EXPRESS_SLOTS; i++)
        express.slots[i].owner = i == index_of(slot) ? NULL : &taken;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        ck_assert_ptr_null(grant_for(other, SMALL));
        atomic_store(&hvi_express_part(&express.map, index_of(slot), rank)->cookie, 0);
    }
    ck_assert_ptr_eq(grant_for(other, SMALL), slot);
    engine_tensor_put(&order.tensors, other);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_rank_takes_back_its_own_op_and_only_while_others_are_missing)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    engine_express_seize_op(&express, 0, 77);
    engine_express_seize_op(&express, 1, 100);
    ck_assert(slot->open);
    for (int32_t rank = 1; rank < RANKS; rank++)
        arrive(slot, rank, 0);
    engine_express_seize_op(&express, 0, 100);
    ck_assert_msg(slot->open, "a full slot has a rank at work");
    ck_assert(hvi_express_publish(&express.map, index_of(slot), slot->turn, EVERYBODY));
    slot->turn = hvi_express_turn(&express.map, index_of(slot));
    arrive(slot, 0, 0);
    engine_express_seize_op(&express, 0, 100);
    ck_assert_uint_eq(injections, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* ---- the end of a slot ---- */

START_TEST(a_tensor_that_goes_takes_its_ticket_with_it)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);
    uint32_t refs = order.sets.by_id[0]->refs;

    engine_tensor_put(&order.tensors, tensor);
    ck_assert_ptr_null(slot->owner);
    ck_assert_int_eq(sight(slot), HVI_EXPRESS_SEIZED);
    ck_assert_uint_eq(express.open, 0);
    ck_assert_uint_eq(order.sets.by_id[0]->refs, refs - 1);
}
END_TEST

START_TEST(a_slot_is_given_to_others_when_every_rank_has_left_it)
{
    struct engine_tensor *tensor = named("w"), *other = named("v");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);
    uint32_t taken = 1;

    arrive(slot, 2, 0);
    engine_tensor_put(&order.tensors, tensor);
    express.used = HVI_EXPRESS_SLOTS;
    for (uint32_t i = 0; i < HVI_EXPRESS_SLOTS; i++)
        express.slots[i].owner = i == index_of(slot) ? NULL : &taken;
    ck_assert_ptr_null(grant_for(other, SMALL));
    atomic_store(&hvi_express_part(&express.map, index_of(slot), 2)->cookie, 0);
    ck_assert_ptr_eq(grant_for(other, SMALL), slot);
    engine_tensor_put(&order.tensors, other);
}
END_TEST

/* ---- lanes ---- */

START_TEST(unnamed_ops_share_a_slot_and_an_overtaken_one_gets_no_ticket)
{
    struct engine_tensor *first = unnamed(1), *second = unnamed(2);
    struct engine_set *set = order.sets.by_id[0];

    seize(second); /* a rank has submitted number 2 through its ring */
    ck_assert_ptr_null(grant_for(first, SMALL));
    struct engine_express_slot *slot = grant_for(second, SMALL);
    ck_assert_ptr_nonnull(slot);
    ck_assert_ptr_null(slot->tensor);
    arrive(slot, 0, 0);
    engine_express_seize_set(&express, set);
    ck_assert_uint_eq(injected[0].number, 8);
    engine_tensor_put(&order.tensors, first);
    engine_tensor_put(&order.tensors, second);
    engine_express_release_set(&express, set);
    ck_assert_ptr_null(slot->owner);
}
END_TEST

START_TEST(a_lane_whose_ticket_was_of_no_use_is_paused_for_longer_each_time)
{
    struct engine_set *set = order.sets.by_id[0];
    uint32_t held_back[3] = {0};
    uint64_t number = 1;

    for (int i = 0; i < 3; i++) {
        struct engine_tensor *tensor = unnamed(number);
        while (!grant_for(tensor, SMALL)) {
            ck_assert_uint_lt(++held_back[i], 100);
        }
        seize(tensor); /* nobody has used it */
        engine_tensor_put(&order.tensors, tensor);
        number++;
    }
    ck_assert_uint_eq(held_back[0], 0);
    ck_assert_uint_lt(held_back[1], held_back[2]);
    engine_express_release_set(&express, set);
}
END_TEST

/* ---- looking at slots ---- */

START_TEST(an_op_that_waits_is_left_alone_until_it_is_old)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    look();
    ck_assert(slot->open);
    arrive(slot, 1, OLD_NS);
    look();
    ck_assert(!slot->open);
    ck_assert_uint_eq(injections, 2);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(an_op_that_a_rank_calls_for_is_taken_at_once)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    atomic_store(&express.map.slots[index_of(slot)].called, slot->turn + 1);
    look();
    ck_assert_uint_eq(injections, 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_full_slot_is_given_time_and_then_up)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);

    arrive_all(slot);
    look();
    ck_assert(slot->open);
    slot->full_ns -= OLD_NS;
    look();
    ck_assert(slot->retired);
    ck_assert_uint_eq(injections, RANKS);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_word_that_a_rank_has_made_up_ends_the_slot_and_nothing_else)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = grant_for(tensor, SMALL);

    arrive(slot, 0, 0);
    atomic_store(&express.map.slots[index_of(slot)].word, UINT64_MAX);
    look();
    ck_assert(!slot->open);
    ck_assert_uint_le(injections, RANKS);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* ---- large ops ---- */

static uint32_t units;

/* Every rank has come, and the last one has started it. */
static struct engine_express_slot *start_large(struct engine_tensor *tensor)
{
    struct engine_express_slot *slot = grant_for(tensor, LARGE);
    uint64_t unit_bytes = 0;

    ck_assert(slot && slot->large);
    for (int32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t i = 0; i < LARGE / sizeof(float); i++)
            memory[rank][i] = (float)(rank + 1);
    }
    arrive_all(slot);
    units = hvi_express_cut(LARGE, &unit_bytes);
    ck_assert(hvi_express_start(&express.map, index_of(slot), slot->turn, units, EVERYBODY));
    return slot;
}

static uint32_t claim(const struct engine_express_slot *slot, uint32_t rank)
{
    return hvi_express_claim(&express.map, index_of(slot), slot->turn, units, 1 + rank);
}

static void expect_sum(void)
{
    for (int32_t rank = 0; rank < RANKS; rank++) {
        ck_assert_float_eq(memory[rank][0], 10);
        ck_assert_float_eq(memory[rank][LARGE / sizeof(float) - 1], 10);
    }
}

START_TEST(the_engine_does_the_units_that_nobody_takes)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = start_large(tensor);

    look();
    ck_assert_int_eq(sight(slot), HVI_EXPRESS_DONE);
    expect_sum();
    ck_assert(slot->open);
    ck_assert_uint_eq(injections, 0);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_large_op_that_runs_ends_before_its_slot_is_seized)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = start_large(tensor);
    uint32_t unit = claim(slot, 1);

    ck_assert_uint_ne(unit, HVI_EXPRESS_NOTHING);
    engine_express_seize_all(&express);
    ck_assert(slot->closing && !slot->open);
    ck_assert_uint_eq(express.closing, 1);
    ck_assert_ptr_null(grant_for(tensor, SMALL));
    look();
    ck_assert_msg(slot->closing, "rank 1 holds a unit");
    hvi_express_finish(&express.map, index_of(slot), slot->turn, unit);
    look();
    ck_assert(!slot->closing && !slot->retired);
    ck_assert_uint_eq(express.closing, 0);
    ck_assert_int_eq(sight(slot), HVI_EXPRESS_DONE);
    ck_assert_uint_eq(injections, 0);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(who_holds_a_unit_is_found_by_those_who_watch)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = start_large(tensor);
    struct engine_held held;
    uint32_t cursor = 0;

    ck_assert(!engine_express_next_held(&express, &cursor, &held));
    uint32_t unit = claim(slot, 2);
    cursor = 0;
    ck_assert(engine_express_next_held(&express, &cursor, &held));
    ck_assert_ptr_eq(held.slot, slot);
    ck_assert_uint_eq(held.holders, 1u << 2);
    ck_assert_str_eq(held.name, "w");
    ck_assert(!engine_express_next_held(&express, &cursor, &held));
    look();
    hvi_express_finish(&express.map, index_of(slot), slot->turn, unit);
    look();
    ck_assert_uint_eq(rings, RANKS); /* of what ended while it was held up */
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

/* Rank 3 is lost while it holds a unit. */
static void expect_failure(struct engine_express_slot *slot)
{
    engine_express_seize_all(&express);
    ck_assert(slot->doomed && slot->closing);
    ck_assert_uint_eq(injections, 0);
    engine_order_break(&order, HVI_ERR_RANK_LOST, 3, "rank 3 is lost");
    engine_express_seize_all(&express);
    ck_assert(!slot->closing && slot->retired);
    ck_assert_uint_eq(injections, RANKS - 1);
    ck_assert_int_eq(sight(slot), HVI_EXPRESS_SEIZED);
}

START_TEST(an_op_whose_holder_is_lost_fails_once_it_is_known_what_broke_the_job)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = start_large(tensor);

    claim(slot, 3);
    engine_express_leave(&express, 3);
    engine_express_seize_all(&express);
    ck_assert_msg(slot->closing && !slot->doomed, "a thread of rank 3 may still be at work");
    express.ranks[3].over_ns -= 2 * HVI_NS_SEC;
    expect_failure(slot);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(an_op_whose_memory_is_gone_fails_once_it_is_known_what_broke_the_job)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = start_large(tensor);

    engine_express_leave(&express, 3);
    engine_express_forget(&express, 3);
    expect_failure(slot);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_holder_that_is_given_up_fails_its_op_and_costs_its_slot)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = start_large(tensor);

    claim(slot, 1);
    engine_express_seize_all(&express);
    ck_assert(slot->closing);
    engine_order_break(&order, HVI_ERR_RANK_LOST, 0, "rank 0 broke the protocol");
    engine_express_give_up(&express);
    ck_assert(!slot->closing && slot->retired);
    ck_assert_uint_eq(injections, RANKS);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

static const struct hvi_express_operands impossible[] = {
    {.in_region = 9, .out_region = 1},
    {.in_region = 1, .out_region = HVI_REGION_INLINE},
    {.in_region = 1, .out_region = 1, .in_offset = LARGE},
    {.in_region = 1, .out_region = 1, .out_offset = UINT64_MAX},
};

START_TEST(an_impossible_operand_is_its_ranks_end_and_the_ops)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = start_large(tensor);

    memcpy(hvi_express_part(&express.map, index_of(slot), 1)->payload, &impossible[_i],
           sizeof impossible[_i]);
    look();
    ck_assert_uint_ge(dooms, 1);
    ck_assert(slot->doomed);
    engine_order_break(&order, HVI_ERR_RANK_LOST, 1, "rank 1 broke the protocol");
    engine_express_seize_all(&express);
    ck_assert(!slot->closing && slot->retired);
    ck_assert_uint_eq(violations, 1);
    ck_assert_uint_eq(injections, RANKS - 1);
    engine_tensor_put(&order.tensors, tensor);
}
END_TEST

START_TEST(a_slot_whose_tensor_goes_while_it_closes_is_nobodys_afterwards)
{
    struct engine_tensor *tensor = named("w");
    struct engine_express_slot *slot = start_large(tensor);
    uint32_t unit = claim(slot, 0);

    engine_express_seize_all(&express);
    engine_tensor_put(&order.tensors, tensor);
    ck_assert(slot->closing && slot->dropped);
    hvi_express_finish(&express.map, index_of(slot), slot->turn, unit);
    look();
    ck_assert(!slot->closing && !slot->dropped);
    ck_assert_ptr_null(slot->set);
    ck_assert_ptr_null(slot->owner);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/slots");
    TCase *tcase = tcase_create("slots");

    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, an_op_that_ends_well_opens_a_slot_once);
    tcase_add_test(tcase, an_op_that_slots_are_not_for_gets_no_ticket);
    tcase_add_test(tcase, a_broken_job_gives_no_tickets);
    tcase_add_test(tcase, ranks_that_are_apart_get_tickets_for_small_ops_only);
    tcase_add_test(tcase, withheld_tickets_come_back_and_are_not_given_until_they_are_not_withheld);
    tcase_add_test(tcase, an_empty_slot_is_seized_without_a_word_and_opened_again);
    tcase_add_test(tcase, those_who_arrived_become_parts_with_what_they_brought);
    tcase_add_test(tcase, a_slot_that_is_not_open_is_not_seized_again);
    tcase_add_test(tcase, a_rank_whose_session_is_over_brings_nothing);
    tcase_add_test(tcase, a_full_slot_that_is_seized_is_used_again_when_every_rank_has_left_it);
    tcase_add_test(tcase, a_rank_takes_back_its_own_op_and_only_while_others_are_missing);
    tcase_add_test(tcase, a_tensor_that_goes_takes_its_ticket_with_it);
    tcase_add_test(tcase, a_slot_is_given_to_others_when_every_rank_has_left_it);
    tcase_add_test(tcase, unnamed_ops_share_a_slot_and_an_overtaken_one_gets_no_ticket);
    tcase_add_test(tcase, a_lane_whose_ticket_was_of_no_use_is_paused_for_longer_each_time);
    tcase_add_test(tcase, an_op_that_waits_is_left_alone_until_it_is_old);
    tcase_add_test(tcase, an_op_that_a_rank_calls_for_is_taken_at_once);
    tcase_add_test(tcase, a_full_slot_is_given_time_and_then_up);
    tcase_add_test(tcase, a_word_that_a_rank_has_made_up_ends_the_slot_and_nothing_else);
    tcase_add_test(tcase, the_engine_does_the_units_that_nobody_takes);
    tcase_add_test(tcase, a_large_op_that_runs_ends_before_its_slot_is_seized);
    tcase_add_test(tcase, who_holds_a_unit_is_found_by_those_who_watch);
    tcase_add_test(tcase, an_op_whose_holder_is_lost_fails_once_it_is_known_what_broke_the_job);
    tcase_add_test(tcase, an_op_whose_memory_is_gone_fails_once_it_is_known_what_broke_the_job);
    tcase_add_test(tcase, a_holder_that_is_given_up_fails_its_op_and_costs_its_slot);
    tcase_add_loop_test(tcase, an_impossible_operand_is_its_ranks_end_and_the_ops, 0,
                        sizeof impossible / sizeof impossible[0]);
    tcase_add_test(tcase, a_slot_whose_tensor_goes_while_it_closes_is_nobodys_afterwards);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
