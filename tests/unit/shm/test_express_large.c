/* SPDX-License-Identifier: Apache-2.0
 * Large ops in express slots: every unit has one holder, late claimers get nothing, and a turn that
 * is seized meanwhile still has one verdict. */
#include "base/clock.h"
#include "base/status.h"
#include "shm/express.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/shm/hvt_link.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#define RANKS     4u
#define EVERYBODY 0xfu
#define SLOT      3u
#define UNITS     16u
#define ROUNDS    HVT_SCALE(20000)

static struct hvi_express express;

static void set_up(void)
{
    ck_assert_int_eq(hvi_express_create(RANKS, &express), HVI_OK);
}

static void tear_down(void)
{
    hvi_express_fini(&express);
}

/* Opened, and everybody has arrived. */
static uint32_t open_full(void)
{
    hvi_express_clear(&express, SLOT);
    uint32_t turn = hvi_express_open(&express, SLOT);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        hvi_express_arrive(&express, SLOT, turn, rank, EVERYBODY);
    return turn;
}

static void do_all(uint32_t turn)
{
    for (uint32_t unit = 0; unit < UNITS; unit++) {
        ck_assert_uint_eq(hvi_express_claim(&express, SLOT, turn, UNITS, 1), unit);
        ck_assert_int_eq(hvi_express_finish(&express, SLOT, turn, unit), unit == UNITS - 1);
    }
}

START_TEST(units_are_taken_once_and_the_last_is_told)
{
    uint32_t turn = open_full();
    ck_assert(hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_RUNS);
    ck_assert(hvi_express_is_open(&express, SLOT));
    do_all(turn);
    ck_assert(hvi_express_is_done(&express, SLOT, turn));
    ck_assert(!hvi_express_is_done(&express, SLOT, turn + 1));
    ck_assert_uint_eq(hvi_express_claim(&express, SLOT, turn, UNITS, 2), HVI_EXPRESS_NOTHING);
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_RUNS);
    hvi_express_end(&express, SLOT, turn, EVERYBODY);
    hvi_express_end(&express, SLOT, turn, EVERYBODY); /* somebody else did the same */
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_DONE);
    ck_assert_uint_eq(hvi_express_turn(&express, SLOT), turn + 1);
}
END_TEST

START_TEST(a_late_claimer_gets_nothing)
{
    uint32_t turn = open_full();
    ck_assert(hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    do_all(turn);
    hvi_express_end(&express, SLOT, turn, EVERYBODY);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        hvi_express_arrive(&express, SLOT, turn + 1, rank, EVERYBODY);
    ck_assert(hvi_express_start(&express, SLOT, turn + 1, UNITS, EVERYBODY));
    ck_assert_uint_eq(hvi_express_claim(&express, SLOT, turn, UNITS, 1), HVI_EXPRESS_NOTHING);
    ck_assert_uint_eq(hvi_express_claim(&express, SLOT, turn + 1, UNITS, 2), 0);
    ck_assert_msg(hvi_express_claim(&express, SLOT, turn, UNITS, 1) == HVI_EXPRESS_NOTHING,
                  "a unit that was taken at a later turn is not free at an earlier one");
    ck_assert_int_eq(hvi_express_holder(&express, SLOT, turn + 1, 0), 1);
}
END_TEST

/* The engine may publish as soon as every unit's word says "done": who has not counted his yet must
 * not count it at the next turn. */
START_TEST(a_late_count_is_no_count_of_the_next_turn)
{
    uint32_t turn = open_full(), at, arrived;
    ck_assert(hvi_express_start(&express, SLOT, turn, 1, EVERYBODY));
    uint32_t unit = hvi_express_claim(&express, SLOT, turn, 1, 1);
    hvi_express_end(&express, SLOT, turn, EVERYBODY);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        hvi_express_arrive(&express, SLOT, turn + 1, rank, EVERYBODY);
    ck_assert(hvi_express_start(&express, SLOT, turn + 1, 1, EVERYBODY));
    ck_assert(!hvi_express_finish(&express, SLOT, turn, unit));
    ck_assert(!hvi_express_is_done(&express, SLOT, turn + 1));
    ck_assert(hvi_express_runs(&express, SLOT, &at, &arrived));
}
END_TEST

START_TEST(holders_are_those_with_a_unit_in_hand)
{
    uint32_t turn = open_full();
    ck_assert(hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    ck_assert_uint_eq(hvi_express_holders(&express, SLOT, turn), 0);
    uint32_t first = hvi_express_claim(&express, SLOT, turn, UNITS, 1 + 2);
    uint32_t second = hvi_express_claim(&express, SLOT, turn, UNITS, 1 + 3);
    hvi_express_claim(&express, SLOT, turn, UNITS, HVI_EXPRESS_ENGINE);
    ck_assert_uint_eq(hvi_express_holders(&express, SLOT, turn), 0xc);
    hvi_express_finish(&express, SLOT, turn, first);
    ck_assert_uint_eq(hvi_express_holders(&express, SLOT, turn), 0x8);
    ck_assert_uint_eq(hvi_express_holders(&express, SLOT, turn + 1), 0);
    hvi_express_finish(&express, SLOT, turn, second);
    ck_assert_uint_eq(hvi_express_holders(&express, SLOT, turn), 0);
}
END_TEST

START_TEST(what_a_holder_gave_up_is_never_published)
{
    uint32_t turn = open_full();
    ck_assert(hvi_express_start(&express, SLOT, turn, 2, EVERYBODY));
    uint32_t unit = hvi_express_claim(&express, SLOT, turn, 2, 1);
    ck_assert_int_eq(hvi_express_lacking(&express, SLOT, turn), -1);
    hvi_express_give_up(&express, SLOT, turn, unit, 3);
    ck_assert_int_eq(hvi_express_lacking(&express, SLOT, turn), 3);
    ck_assert_int_eq(hvi_express_lacking(&express, SLOT, turn + 1), -1);
    ck_assert_uint_eq(hvi_express_holders(&express, SLOT, turn), 0);
    unit = hvi_express_claim(&express, SLOT, turn, 2, 2);
    ck_assert_uint_eq(unit, 1);
    ck_assert(!hvi_express_finish(&express, SLOT, turn, unit));
    ck_assert_uint_eq(hvi_express_claim(&express, SLOT, turn, 2, 2), HVI_EXPRESS_NOTHING);
    ck_assert(!hvi_express_is_done(&express, SLOT, turn));
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_RUNS);
}
END_TEST

/* Any rank may write any word. */
START_TEST(who_is_said_to_lack_memory_is_a_rank)
{
    uint32_t turn = open_full();
    ck_assert(hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    hvi_express_give_up(&express, SLOT, turn, 0, RANKS);
    hvi_express_give_up(&express, SLOT, turn, 1, HVI_EXPRESS_ENGINE - HVI_EXPRESS_LACKS);
    ck_assert_int_eq(hvi_express_lacking(&express, SLOT, turn), -1);
}
END_TEST

START_TEST(what_runs_is_not_seized_before_it_is_over)
{
    uint32_t turn = open_full(), at, arrived = 0;
    ck_assert(hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    ck_assert(!hvi_express_seize(&express, SLOT, &arrived));
    ck_assert(hvi_express_runs(&express, SLOT, &at, &arrived));
    ck_assert_uint_eq(arrived, EVERYBODY);
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_RUNS);
    do_all(turn);
    hvi_express_end(&express, SLOT, turn, EVERYBODY);
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_DONE);
    ck_assert_msg(hvi_express_arrive(&express, SLOT, turn + 1, 0, EVERYBODY) == HVI_EXPRESS_STALE,
                  "nobody arrives where the engine has seized");
    hvi_express_clear(&express, SLOT);
    ck_assert_uint_eq(hvi_express_open(&express, SLOT), turn + 3);
    ck_assert_msg(hvi_express_look(&express, SLOT, turn) == HVI_EXPRESS_DONE,
                  "who looks late can still tell");
}
END_TEST

START_TEST(what_fails_is_the_engines)
{
    uint32_t turn = open_full();
    ck_assert(hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    ck_assert_uint_eq(hvi_express_fail(&express, SLOT), EVERYBODY);
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_SEIZED);
    hvi_express_end(&express, SLOT, turn, EVERYBODY);
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_SEIZED);
    ck_assert_uint_eq(hvi_express_open(&express, SLOT), turn + 2);
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_SEIZED);
}
END_TEST

START_TEST(who_came_last_may_be_too_late_to_start)
{
    uint32_t turn = open_full(), arrived = 0;
    ck_assert(hvi_express_seize(&express, SLOT, &arrived));
    ck_assert_uint_eq(arrived, EVERYBODY);
    ck_assert(!hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_SEIZED);
}
END_TEST

/* ---- the engine is lost ---- */

static bool close_slot(uint32_t turn, int64_t wait_ns)
{
    return hvi_express_close(&express, SLOT, turn, UNITS, EVERYBODY, hvi_deadline_after(wait_ns));
}

START_TEST(an_op_that_was_not_started_cannot_be_once_it_is_closed)
{
    uint32_t turn = open_full();
    ck_assert(close_slot(turn, 0));
    ck_assert(!hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_SEIZED);
}
END_TEST

START_TEST(of_a_closed_op_no_unit_can_be_taken)
{
    uint32_t turn = open_full();
    ck_assert(hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    ck_assert_uint_eq(hvi_express_claim(&express, SLOT, turn, UNITS, 2), 0);
    hvi_express_finish(&express, SLOT, turn, 0);
    ck_assert(close_slot(turn, 0));
    ck_assert_uint_eq(hvi_express_claim(&express, SLOT, turn, UNITS, 2), HVI_EXPRESS_NOTHING);
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_SEIZED);
    ck_assert(close_slot(turn, 0)); /* another rank does the same */
}
END_TEST

START_TEST(who_closes_waits_for_holders_as_long_as_it_is_told_to)
{
    uint32_t turn = open_full();
    ck_assert(hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    uint32_t unit = hvi_express_claim(&express, SLOT, turn, UNITS, 2);
    uint64_t began_ns = hvi_clock_ns();
    ck_assert(!close_slot(turn, 20 * (int64_t)HVI_NS_MS));
    ck_assert_uint_ge(hvi_clock_ns() - began_ns, 20 * HVI_NS_MS);
    ck_assert(!close_slot(turn, 0)); /* nor is it over for the next that closes */
    hvi_express_finish(&express, SLOT, turn, unit);
    ck_assert(close_slot(turn, 0));
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_SEIZED);
}
END_TEST

START_TEST(an_op_of_which_all_units_are_done_is_done_when_it_is_closed)
{
    uint32_t turn = open_full();
    ck_assert(hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY));
    do_all(turn);
    ck_assert(close_slot(turn, 0));
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_DONE);
    ck_assert(close_slot(turn, 0));
    ck_assert_int_eq(hvi_express_look(&express, SLOT, turn), HVI_EXPRESS_DONE);
}
END_TEST

START_TEST(units_cover_an_op_and_are_few)
{
    for (uint64_t bytes = HVI_EXPRESS_PAYLOAD + 1; bytes <= HVI_EXPRESS_LARGE;
         bytes += bytes < 100000 ? 1 : 4093) {
        uint64_t unit;
        uint32_t units = hvi_express_cut(bytes, &unit);
        ck_assert_uint_ge(units, 1);
        ck_assert_uint_le(units, HVI_EXPRESS_UNITS);
        ck_assert_uint_eq(unit % 4096, 0);
        ck_assert(units * unit >= bytes && (units - 1) * unit < bytes);
    }
}
END_TEST

/* ---- races ---- */

static pthread_barrier_t round_over;
static _Atomic uint32_t taken[UNITS];
static _Atomic bool stop_engine;

/* Units while there are any, then until the op is over. */
static enum hvi_express_sight work(uint32_t rank, uint32_t turn)
{
    enum hvi_express_sight sight;
    while ((sight = hvi_express_look(&express, SLOT, turn)) == HVI_EXPRESS_WAITS ||
           sight == HVI_EXPRESS_RUNS) {
        uint32_t unit = sight == HVI_EXPRESS_RUNS
                            ? hvi_express_claim(&express, SLOT, turn, UNITS, rank + 1)
                            : HVI_EXPRESS_NOTHING;
        if (unit == HVI_EXPRESS_NOTHING) {
            hvi_express_sleep(&express, SLOT, turn, sight, 10000);
            continue;
        }
        atomic_fetch_add_explicit(&taken[unit], 1, memory_order_relaxed);
        if (hvi_express_finish(&express, SLOT, turn, unit))
            hvi_express_end(&express, SLOT, turn, EVERYBODY);
    }
    return sight;
}

struct rank {
    pthread_t thread;
    uint32_t number;
    uint32_t done; /* rounds that were published */
    uint8_t *verdicts;
};

static void *run_rank(void *user)
{
    struct rank *rank = user;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint32_t turn = hvi_express_turn(&express, SLOT);
        pthread_barrier_wait(&round_over);
        enum hvi_express_sight sight = HVI_EXPRESS_SEIZED;
        switch (hvi_express_arrive(&express, SLOT, turn, rank->number, EVERYBODY)) {
        case HVI_EXPRESS_STALE:
            break;
        case HVI_EXPRESS_LAST:
            hvi_express_start(&express, SLOT, turn, UNITS, EVERYBODY);
            sight = work(rank->number, turn);
            break;
        case HVI_EXPRESS_ARRIVED:
            sight = work(rank->number, turn);
            break;
        }
        rank->verdicts[round] = (uint8_t)sight;
        rank->done += sight == HVI_EXPRESS_DONE;
        pthread_barrier_wait(&round_over);
        if (rank->number == 0 && !hvi_express_is_open(&express, SLOT)) {
            hvi_express_clear(&express, SLOT);
            hvi_express_open(&express, SLOT);
        }
        pthread_barrier_wait(&round_over);
    }
    return NULL;
}

static void lend_a_hand(uint32_t turn)
{
    uint32_t unit;
    while ((unit = hvi_express_claim(&express, SLOT, turn, UNITS, HVI_EXPRESS_ENGINE)) !=
           HVI_EXPRESS_NOTHING) {
        atomic_fetch_add_explicit(&taken[unit], 1, memory_order_relaxed);
        hvi_express_finish(&express, SLOT, turn, unit);
    }
    if (hvi_express_holders(&express, SLOT, turn) == 0)
        hvi_express_end(&express, SLOT, turn, EVERYBODY);
}

/* Seizes now and then, whatever happens there, and forgets about it; or helps. */
static void *run_engine(void *user)
{
    struct hvt_random *random = user;
    while (!atomic_load(&stop_engine)) {
        uint64_t pause = hvt_random_below(random, 40);
        uint32_t turn, arrived;
        for (uint64_t i = 0; i < pause; i++)
            sched_yield();
        bool runs = hvi_express_runs(&express, SLOT, &turn, &arrived);
        if (runs && hvt_random_below(random, 2) == 0)
            lend_a_hand(turn);
        else if (runs || hvi_express_arrived(&express, SLOT) != 0)
            hvi_express_seize(&express, SLOT, &arrived);
    }
    return NULL;
}

static uint32_t race(bool with_engine)
{
    struct rank ranks[RANKS];
    struct hvt_random random;
    pthread_t engine;
    hvt_random_init(&random, 6);
    hvi_express_clear(&express, SLOT);
    hvi_express_open(&express, SLOT);
    memset(taken, 0, sizeof taken);
    pthread_barrier_init(&round_over, NULL, RANKS);
    atomic_store(&stop_engine, false);
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){.number = i, .verdicts = calloc(ROUNDS, 1)};
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    if (with_engine)
        ck_assert_int_eq(pthread_create(&engine, NULL, run_engine, &random), 0);
    for (uint32_t i = 0; i < RANKS; i++)
        pthread_join(ranks[i].thread, NULL);
    atomic_store(&stop_engine, true);
    if (with_engine)
        pthread_join(engine, NULL);
    pthread_barrier_destroy(&round_over);
    for (uint32_t i = 0; i < RANKS; i++) {
        for (uint32_t round = 0; round < ROUNDS; round++)
            ck_assert_msg(ranks[i].verdicts[round] == ranks[0].verdicts[round],
                          "round %u has two verdicts: %u, %u", round, ranks[i].verdicts[round],
                          ranks[0].verdicts[round]);
    }
    for (uint32_t i = 0; i < RANKS; i++)
        free(ranks[i].verdicts);
    for (uint32_t unit = 0; unit < UNITS; unit++)
        ck_assert_msg(atomic_load(&taken[unit]) == ranks[0].done,
                      "unit %u was taken %u times in %u rounds", unit, atomic_load(&taken[unit]),
                      ranks[0].done);
    return ranks[0].done;
}

START_TEST(every_unit_of_every_turn_has_one_holder)
{
    ck_assert_uint_eq(race(false), ROUNDS);
}
END_TEST

START_TEST(whoever_seizes_in_between_a_turn_has_one_verdict)
{
    ck_assert_uint_gt(race(true), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm/express_large");
    TCase *tcase = tcase_create("large");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, units_are_taken_once_and_the_last_is_told);
    tcase_add_test(tcase, a_late_claimer_gets_nothing);
    tcase_add_test(tcase, a_late_count_is_no_count_of_the_next_turn);
    tcase_add_test(tcase, holders_are_those_with_a_unit_in_hand);
    tcase_add_test(tcase, what_a_holder_gave_up_is_never_published);
    tcase_add_test(tcase, who_is_said_to_lack_memory_is_a_rank);
    tcase_add_test(tcase, what_runs_is_not_seized_before_it_is_over);
    tcase_add_test(tcase, what_fails_is_the_engines);
    tcase_add_test(tcase, who_came_last_may_be_too_late_to_start);
    tcase_add_test(tcase, an_op_that_was_not_started_cannot_be_once_it_is_closed);
    tcase_add_test(tcase, of_a_closed_op_no_unit_can_be_taken);
    tcase_add_test(tcase, who_closes_waits_for_holders_as_long_as_it_is_told_to);
    tcase_add_test(tcase, an_op_of_which_all_units_are_done_is_done_when_it_is_closed);
    tcase_add_test(tcase, units_cover_an_op_and_are_few);
    tcase_add_test(tcase, every_unit_of_every_turn_has_one_holder);
    tcase_add_test(tcase, whoever_seizes_in_between_a_turn_has_one_verdict);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
