/* SPDX-License-Identifier: Apache-2.0
 * Medium ops in slots: every chunk has one holder, late claimers get nothing, and a turn that
 * is revoked meanwhile still has one verdict. */
#include "base/clock.h"
#include "base/status.h"
#include "shm/slots.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/shm/hvt_link.h"

#include <pthread.h>
#include <sched.h>
#include <string.h>

#define RANKS     4u
#define EVERYBODY 0xfu
#define SLOT      3u
#define CHUNK     UINT64_C(16384)
#define CHUNKS    16u
#define BYTES     (CHUNKS * CHUNK)
#define ROUNDS    HVT_SCALE(20000)

static struct hvi_slots map;

static void set_up(void)
{
    ck_assert_int_eq(hvi_slots_create(RANKS, &map), HVI_OK);
}

static void tear_down(void)
{
    hvi_slots_fini(&map);
}

/* Opened, and everybody has arrived. */
static uint32_t open_full(void)
{
    uint32_t turn = hvi_slot_open(&map, SLOT, true);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        hvi_slot_arrive(&map, SLOT, turn, rank, EVERYBODY);
    return turn;
}

static void do_all(uint32_t turn)
{
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
        ck_assert_uint_eq(hvi_slot_claim(&map, SLOT, turn, CHUNKS, 1), chunk);
        ck_assert_int_eq(hvi_slot_finish(&map, SLOT, turn, chunk), chunk == CHUNKS - 1);
    }
}

START_TEST(chunks_are_taken_once_and_the_last_is_told)
{
    uint32_t turn = open_full();
    ck_assert(hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_RUNS);
    ck_assert(hvi_slot_view(&map, SLOT).open);
    do_all(turn);
    ck_assert(hvi_slot_is_done(&map, SLOT, turn));
    ck_assert(!hvi_slot_is_done(&map, SLOT, turn + 1));
    ck_assert_uint_eq(hvi_slot_claim(&map, SLOT, turn, CHUNKS, 2), HVI_SLOT_NOTHING);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_RUNS);
    hvi_slot_publish(&map, SLOT, turn, EVERYBODY);
    hvi_slot_publish(&map, SLOT, turn, EVERYBODY); /* somebody else did the same */
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_DONE);
    ck_assert_uint_eq(hvi_slot_view(&map, SLOT).turn, turn + 1);
}
END_TEST

START_TEST(a_late_claimer_gets_nothing)
{
    uint32_t turn = open_full();
    ck_assert(hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    do_all(turn);
    hvi_slot_publish(&map, SLOT, turn, EVERYBODY);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        hvi_slot_arrive(&map, SLOT, turn + 1, rank, EVERYBODY);
    ck_assert(hvi_slot_start(&map, SLOT, turn + 1, BYTES, EVERYBODY));
    ck_assert_uint_eq(hvi_slot_claim(&map, SLOT, turn, CHUNKS, 1), HVI_SLOT_NOTHING);
    ck_assert_uint_eq(hvi_slot_claim(&map, SLOT, turn + 1, CHUNKS, 2), 0);
    ck_assert_msg(hvi_slot_claim(&map, SLOT, turn, CHUNKS, 1) == HVI_SLOT_NOTHING,
                  "a chunk that was taken at a later turn is not free at an earlier one");
    ck_assert_uint_eq(hvi_slot_holders(&map, SLOT, turn + 1, NULL), 1u << 1);
}
END_TEST

/* The engine may publish as soon as every chunk's word says "done": who has not counted his yet must
 * not count it at the next turn. */
START_TEST(a_late_count_is_no_count_of_the_next_turn)
{
    uint32_t turn = open_full();
    ck_assert(hvi_slot_start(&map, SLOT, turn, 1 * CHUNK, EVERYBODY));
    uint32_t chunk = hvi_slot_claim(&map, SLOT, turn, 1, 1);
    hvi_slot_publish(&map, SLOT, turn, EVERYBODY);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        hvi_slot_arrive(&map, SLOT, turn + 1, rank, EVERYBODY);
    ck_assert(hvi_slot_start(&map, SLOT, turn + 1, 1 * CHUNK, EVERYBODY));
    ck_assert(!hvi_slot_finish(&map, SLOT, turn, chunk));
    ck_assert(!hvi_slot_is_done(&map, SLOT, turn + 1));
    ck_assert(hvi_slot_view(&map, SLOT).runs);
}
END_TEST

START_TEST(holders_are_those_with_a_chunk_in_hand)
{
    uint32_t turn = open_full();
    ck_assert(hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    ck_assert_uint_eq(hvi_slot_holders(&map, SLOT, turn, NULL), 0);
    uint32_t first = hvi_slot_claim(&map, SLOT, turn, CHUNKS, 1 + 2);
    uint32_t second = hvi_slot_claim(&map, SLOT, turn, CHUNKS, 1 + 3);
    hvi_slot_claim(&map, SLOT, turn, CHUNKS, HVI_SLOT_ENGINE);
    ck_assert_uint_eq(hvi_slot_holders(&map, SLOT, turn, NULL), 0xc);
    hvi_slot_finish(&map, SLOT, turn, first);
    ck_assert_uint_eq(hvi_slot_holders(&map, SLOT, turn, NULL), 0x8);
    ck_assert_uint_eq(hvi_slot_holders(&map, SLOT, turn + 1, NULL), 0);
    hvi_slot_finish(&map, SLOT, turn, second);
    ck_assert_uint_eq(hvi_slot_holders(&map, SLOT, turn, NULL), 0);
}
END_TEST

static int32_t lacking(uint32_t turn)
{
    int32_t rank;
    hvi_slot_holders(&map, SLOT, turn, &rank);
    return rank;
}

START_TEST(what_a_holder_gave_up_is_never_published)
{
    uint32_t turn = open_full();
    ck_assert(hvi_slot_start(&map, SLOT, turn, 2 * CHUNK, EVERYBODY));
    uint32_t chunk = hvi_slot_claim(&map, SLOT, turn, 2, 1);
    ck_assert_int_eq(lacking(turn), -1);
    hvi_slot_give_up(&map, SLOT, turn, chunk, 3);
    ck_assert_int_eq(lacking(turn), 3);
    ck_assert_int_eq(lacking(turn + 1), -1);
    ck_assert_uint_eq(hvi_slot_holders(&map, SLOT, turn, NULL), 0);
    chunk = hvi_slot_claim(&map, SLOT, turn, 2, 2);
    ck_assert_uint_eq(chunk, 1);
    ck_assert(!hvi_slot_finish(&map, SLOT, turn, chunk));
    ck_assert_uint_eq(hvi_slot_claim(&map, SLOT, turn, 2, 2), HVI_SLOT_NOTHING);
    ck_assert(!hvi_slot_is_done(&map, SLOT, turn));
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_RUNS);
}
END_TEST

/* Any rank may write any word. */
START_TEST(who_is_said_to_lack_memory_is_a_rank)
{
    uint32_t turn = open_full();
    ck_assert(hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    hvi_slot_give_up(&map, SLOT, turn, 0, RANKS);
    hvi_slot_give_up(&map, SLOT, turn, 1, HVI_SLOT_ENGINE - HVI_SLOT_LACKS);
    ck_assert_int_eq(lacking(turn), -1);
}
END_TEST

START_TEST(what_runs_is_not_revoked_before_it_is_over)
{
    uint32_t turn = open_full(), arrived = 0;
    ck_assert(hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    ck_assert(!hvi_slot_revoke(&map, SLOT, &arrived));
    ck_assert(hvi_slot_view(&map, SLOT).runs);
    ck_assert_uint_eq(hvi_slot_view(&map, SLOT).arrived, EVERYBODY);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_RUNS);
    do_all(turn);
    hvi_slot_publish(&map, SLOT, turn, EVERYBODY);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_DONE);
    ck_assert_msg(hvi_slot_arrive(&map, SLOT, turn + 1, 0, EVERYBODY) == HVI_SLOT_STALE,
                  "nobody arrives where the engine has revoked");
    ck_assert_uint_eq(hvi_slot_open(&map, SLOT, true), turn + 3);
    ck_assert_msg(hvi_slot_look(&map, SLOT, turn) == HVI_SLOT_DONE,
                  "who looks late can still tell");
}
END_TEST

START_TEST(what_fails_is_the_engines)
{
    uint32_t turn = open_full();
    ck_assert(hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    ck_assert_uint_eq(hvi_slot_fail(&map, SLOT), EVERYBODY);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_REVOKED);
    hvi_slot_publish(&map, SLOT, turn, EVERYBODY);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_REVOKED);
    ck_assert_uint_eq(hvi_slot_open(&map, SLOT, true), turn + 2);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_REVOKED);
}
END_TEST

START_TEST(who_came_last_may_be_too_late_to_start)
{
    uint32_t turn = open_full(), arrived = 0;
    ck_assert(hvi_slot_revoke(&map, SLOT, &arrived));
    ck_assert_uint_eq(arrived, EVERYBODY);
    ck_assert(!hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_REVOKED);
}
END_TEST

/* ---- the engine is lost ---- */

static bool close_slot(uint32_t turn, int64_t wait_ns)
{
    return hvi_slot_close(&map, SLOT, turn, BYTES, EVERYBODY, hvi_deadline_after(wait_ns));
}

START_TEST(an_op_that_was_not_started_cannot_be_once_it_is_closed)
{
    uint32_t turn = open_full();
    ck_assert(close_slot(turn, 0));
    ck_assert(!hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_REVOKED);
}
END_TEST

START_TEST(of_a_closed_op_no_chunk_can_be_taken)
{
    uint32_t turn = open_full();
    ck_assert(hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    ck_assert_uint_eq(hvi_slot_claim(&map, SLOT, turn, CHUNKS, 2), 0);
    hvi_slot_finish(&map, SLOT, turn, 0);
    ck_assert(close_slot(turn, 0));
    ck_assert_uint_eq(hvi_slot_claim(&map, SLOT, turn, CHUNKS, 2), HVI_SLOT_NOTHING);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_REVOKED);
    ck_assert(close_slot(turn, 0)); /* another rank does the same */
}
END_TEST

START_TEST(who_closes_waits_for_holders_as_long_as_it_is_told_to)
{
    uint32_t turn = open_full();
    ck_assert(hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    uint32_t chunk = hvi_slot_claim(&map, SLOT, turn, CHUNKS, 2);
    uint64_t began_ns = hvi_clock_ns();
    ck_assert(!close_slot(turn, 20 * (int64_t)HVI_NS_MS));
    ck_assert_uint_ge(hvi_clock_ns() - began_ns, 20 * HVI_NS_MS);
    ck_assert(!close_slot(turn, 0)); /* nor is it over for the next that closes */
    hvi_slot_finish(&map, SLOT, turn, chunk);
    ck_assert(close_slot(turn, 0));
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_REVOKED);
}
END_TEST

START_TEST(an_op_of_which_all_chunks_are_done_is_done_when_it_is_closed)
{
    uint32_t turn = open_full();
    ck_assert(hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY));
    do_all(turn);
    ck_assert(close_slot(turn, 0));
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_DONE);
    ck_assert(close_slot(turn, 0));
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_DONE);
}
END_TEST

START_TEST(chunks_cover_an_op_and_are_few)
{
    for (uint64_t bytes = HVI_SLOT_PAYLOAD + 1; bytes <= HVI_TUNED_MEDIUM;
         bytes += bytes < 100000 ? 1 : 4093) {
        uint64_t chunk;
        uint32_t chunks = hvi_slot_cut(bytes, &chunk);
        ck_assert_uint_ge(chunks, 1);
        ck_assert_uint_le(chunks, HVI_SLOT_CHUNKS);
        ck_assert_uint_eq(chunk % 4096, 0);
        ck_assert(chunks * chunk >= bytes && (chunks - 1) * chunk < bytes);
    }
}
END_TEST

/* ---- races ---- */

static pthread_barrier_t round_over;
static _Atomic uint32_t taken[CHUNKS];
static _Atomic bool stop_engine;

/* Units while there are any, then until the op is over. */
static enum hvi_slot_sight work(uint32_t rank, uint32_t turn)
{
    enum hvi_slot_sight sight;
    while ((sight = hvi_slot_look(&map, SLOT, turn)) == HVI_SLOT_WAITS || sight == HVI_SLOT_RUNS) {
        uint32_t chunk = sight == HVI_SLOT_RUNS ? hvi_slot_claim(&map, SLOT, turn, CHUNKS, rank + 1)
                                                : HVI_SLOT_NOTHING;
        if (chunk == HVI_SLOT_NOTHING) {
            const struct hvi_wait_policy policy = {.slice_ns = 10000};
            struct hvi_wait wait = hvi_slot_wait(&map, SLOT, turn, &sight);
            if (sight == HVI_SLOT_WAITS || sight == HVI_SLOT_RUNS)
                hvi_wait_asleep(&wait, &policy, HVI_NEVER);
            continue;
        }
        atomic_fetch_add_explicit(&taken[chunk], 1, memory_order_relaxed);
        if (hvi_slot_finish(&map, SLOT, turn, chunk))
            hvi_slot_publish(&map, SLOT, turn, EVERYBODY);
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
        uint32_t turn = hvi_slot_view(&map, SLOT).turn;
        pthread_barrier_wait(&round_over);
        enum hvi_slot_sight sight = HVI_SLOT_REVOKED;
        switch (hvi_slot_arrive(&map, SLOT, turn, rank->number, EVERYBODY)) {
        case HVI_SLOT_STALE:
            break;
        case HVI_SLOT_LAST:
            hvi_slot_start(&map, SLOT, turn, BYTES, EVERYBODY);
            sight = work(rank->number, turn);
            break;
        case HVI_SLOT_ARRIVED:
            sight = work(rank->number, turn);
            break;
        }
        rank->verdicts[round] = (uint8_t)sight;
        rank->done += sight == HVI_SLOT_DONE;
        pthread_barrier_wait(&round_over);
        if (rank->number == 0 && !hvi_slot_view(&map, SLOT).open) {
            hvi_slot_open(&map, SLOT, true);
        }
        pthread_barrier_wait(&round_over);
    }
    return NULL;
}

static void lend_a_hand(uint32_t turn)
{
    uint32_t chunk;
    while ((chunk = hvi_slot_claim(&map, SLOT, turn, CHUNKS, HVI_SLOT_ENGINE)) !=
           HVI_SLOT_NOTHING) {
        atomic_fetch_add_explicit(&taken[chunk], 1, memory_order_relaxed);
        hvi_slot_finish(&map, SLOT, turn, chunk);
    }
    if (hvi_slot_holders(&map, SLOT, turn, NULL) == 0)
        hvi_slot_publish(&map, SLOT, turn, EVERYBODY);
}

/* Revokes now and then, whatever happens there, and forgets about it; or helps. */
static void *run_engine(void *user)
{
    struct hvt_random *random = user;
    while (!atomic_load(&stop_engine)) {
        uint64_t pause = hvt_random_below(random, 40);
        uint32_t arrived;
        for (uint64_t i = 0; i < pause; i++)
            sched_yield();
        struct hvi_slot_view view = hvi_slot_view(&map, SLOT);
        if (view.runs && hvt_random_below(random, 2) == 0)
            lend_a_hand(view.turn);
        else if (view.runs || view.waiting != 0)
            hvi_slot_revoke(&map, SLOT, &arrived);
    }
    return NULL;
}

static uint32_t race(bool with_engine)
{
    struct rank ranks[RANKS];
    struct hvt_random random;
    pthread_t engine;
    hvt_random_init(&random, 6);
    hvi_slot_open(&map, SLOT, true);
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
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
        ck_assert_msg(atomic_load(&taken[chunk]) == ranks[0].done,
                      "chunk %u was taken %u times in %u rounds", chunk, atomic_load(&taken[chunk]),
                      ranks[0].done);
    return ranks[0].done;
}

START_TEST(every_chunk_of_every_turn_has_one_holder)
{
    ck_assert_uint_eq(race(false), ROUNDS);
}
END_TEST

START_TEST(whoever_revokes_in_between_a_turn_has_one_verdict)
{
    ck_assert_uint_gt(race(true), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm/slots_medium");
    TCase *tcase = tcase_create("large");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, chunks_are_taken_once_and_the_last_is_told);
    tcase_add_test(tcase, a_late_claimer_gets_nothing);
    tcase_add_test(tcase, a_late_count_is_no_count_of_the_next_turn);
    tcase_add_test(tcase, holders_are_those_with_a_chunk_in_hand);
    tcase_add_test(tcase, what_a_holder_gave_up_is_never_published);
    tcase_add_test(tcase, who_is_said_to_lack_memory_is_a_rank);
    tcase_add_test(tcase, what_runs_is_not_revoked_before_it_is_over);
    tcase_add_test(tcase, what_fails_is_the_engines);
    tcase_add_test(tcase, who_came_last_may_be_too_late_to_start);
    tcase_add_test(tcase, an_op_that_was_not_started_cannot_be_once_it_is_closed);
    tcase_add_test(tcase, of_a_closed_op_no_chunk_can_be_taken);
    tcase_add_test(tcase, who_closes_waits_for_holders_as_long_as_it_is_told_to);
    tcase_add_test(tcase, an_op_of_which_all_chunks_are_done_is_done_when_it_is_closed);
    tcase_add_test(tcase, chunks_cover_an_op_and_are_few);
    tcase_add_test(tcase, every_chunk_of_every_turn_has_one_holder);
    tcase_add_test(tcase, whoever_revokes_in_between_a_turn_has_one_verdict);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
