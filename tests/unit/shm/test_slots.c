/* SPDX-License-Identifier: Apache-2.0
 * Slots: what each step does, that a turn has one verdict for everybody, and that nobody
 * who sleeps is forgotten. */
#include "base/clock.h"
#include "base/status.h"
#include "shm/slots.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/shm/hvt_link.h"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <string.h>
#include <unistd.h>

#define RANKS     4u
#define EVERYBODY 0xfu
#define SLOT      7u
#define TURNS     HVT_SCALE(20000)

static struct hvi_slots map;

static void set_up(void)
{
    ck_assert_int_eq(hvi_slots_create(RANKS, &map), HVI_OK);
}

static void tear_down(void)
{
    hvi_slots_fini(&map);
}

START_TEST(the_last_of_the_ranks_is_told_so)
{
    uint32_t turn = hvi_slot_open(&map, SLOT, false);
    for (uint32_t rank = 0; rank < RANKS - 1; rank++)
        ck_assert_int_eq(hvi_slot_arrive(&map, SLOT, turn, rank, EVERYBODY), HVI_SLOT_ARRIVED);
    ck_assert_uint_eq(hvi_slot_view(&map, SLOT).waiting, 0x7);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_WAITS);
    ck_assert_int_eq(hvi_slot_arrive(&map, SLOT, turn, 3, EVERYBODY), HVI_SLOT_LAST);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_WAITS);
    ck_assert(hvi_slot_publish(&map, SLOT, turn, EVERYBODY));
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_DONE);
    ck_assert_uint_eq(hvi_slot_view(&map, SLOT).waiting, 0);
}
END_TEST

static uint32_t revoke_slot(void)
{
    uint32_t arrived = 0;
    ck_assert(hvi_slot_revoke(&map, SLOT, &arrived));
    return arrived;
}

/* One that arrived at `turn` and looks only now, while the engine has revoked the slot and opened it
 * again for others, any number of times. */
static void look_late(uint32_t turn, enum hvi_slot_sight expected_sight)
{
    for (int again = 0; again < 3; again++) {
        revoke_slot();
        ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), expected_sight);
        hvi_slot_open(&map, SLOT, false);
        ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), expected_sight);
    }
}

START_TEST(whoever_looks_late_can_still_tell)
{
    uint32_t turn = hvi_slot_open(&map, SLOT, false);
    for (uint32_t rank = 0; rank < RANKS; rank++)
        hvi_slot_arrive(&map, SLOT, turn, rank, EVERYBODY);
    ck_assert(hvi_slot_publish(&map, SLOT, turn, EVERYBODY));
    look_late(turn, HVI_SLOT_DONE);
    turn = hvi_slot_view(&map, SLOT).turn;
    hvi_slot_arrive(&map, SLOT, turn, 0, EVERYBODY);
    look_late(turn, HVI_SLOT_REVOKED);
}
END_TEST

START_TEST(a_stale_turn_changes_nothing)
{
    uint32_t turn = hvi_slot_open(&map, SLOT, false);
    ck_assert_int_eq(hvi_slot_arrive(&map, SLOT, turn - 1, 0, EVERYBODY), HVI_SLOT_STALE);
    ck_assert_int_eq(hvi_slot_arrive(&map, SLOT, turn + 1, 0, EVERYBODY), HVI_SLOT_STALE);
    ck_assert(!hvi_slot_publish(&map, SLOT, turn, EVERYBODY));
    ck_assert_uint_eq(hvi_slot_view(&map, SLOT).waiting, 0);
    ck_assert_uint_eq(hvi_slot_view(&map, SLOT).turn, turn);
}
END_TEST

START_TEST(a_revoked_turn_takes_nobody_and_publishes_nothing)
{
    uint32_t turn = hvi_slot_open(&map, SLOT, false);
    hvi_slot_arrive(&map, SLOT, turn, 2, EVERYBODY);
    ck_assert(hvi_slot_view(&map, SLOT).open);
    ck_assert_uint_eq(revoke_slot(), 1u << 2);
    ck_assert_uint_eq(hvi_slot_view(&map, SLOT).turn, turn);
    ck_assert(!hvi_slot_view(&map, SLOT).open);
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_REVOKED);
    ck_assert_int_eq(hvi_slot_arrive(&map, SLOT, turn, 1, EVERYBODY), HVI_SLOT_STALE);
    ck_assert(!hvi_slot_publish(&map, SLOT, turn, EVERYBODY));
    uint32_t next = hvi_slot_open(&map, SLOT, false);
    ck_assert_uint_eq(next, turn + 2);
    ck_assert_msg(hvi_slot_look(&map, SLOT, turn) == HVI_SLOT_REVOKED,
                  "a rank that looks late must not take the next turn for a result");
    ck_assert_uint_eq(hvi_slot_view(&map, SLOT).waiting, 0);
}
END_TEST

START_TEST(turns_wrap)
{
    uint32_t turn = hvi_slot_open(&map, SLOT, false);
    atomic_store(&map.slots[SLOT].word, (uint64_t)HVI_SLOT_TURN_MASK << 40);
    turn = hvi_slot_view(&map, SLOT).turn;
    ck_assert_uint_eq(turn, HVI_SLOT_TURN_MASK);
    ck_assert_int_eq(hvi_slot_arrive(&map, SLOT, turn, 0, 1), HVI_SLOT_LAST);
    ck_assert(hvi_slot_publish(&map, SLOT, turn, 1));
    ck_assert_int_eq(hvi_slot_look(&map, SLOT, turn), HVI_SLOT_DONE);
    ck_assert_uint_eq(hvi_slot_view(&map, SLOT).turn, 0);
    ck_assert_int_eq(hvi_slot_arrive(&map, SLOT, turn + 1, 0, 1), HVI_SLOT_LAST);
}
END_TEST

START_TEST(bits_of_strangers_make_a_word_that_nobody_joins)
{
    uint32_t turn = hvi_slot_open(&map, SLOT, false);
    atomic_fetch_or(&map.slots[SLOT].word, 1u << 20);
    ck_assert_int_eq(hvi_slot_arrive(&map, SLOT, turn, 0, EVERYBODY), HVI_SLOT_STALE);
}
END_TEST

START_TEST(payloads_and_results_of_any_size_lie_apart_and_inside)
{
    const uint64_t sizes[] = {1, HVI_SLOT_SHORT, HVI_SLOT_SHORT + 1, HVI_SLOT_PAYLOAD};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        for (uint32_t slot = 0; slot < HVI_SLOTS; slot += HVI_SLOTS - 1) {
            for (uint32_t rank = 0; rank < RANKS; rank++)
                memset(hvi_slot_payload(&map, slot, rank, sizes[i]), (int)(rank + 1), sizes[i]);
            memset(hvi_slot_result(&map, slot, sizes[i]), 99, sizes[i]);
            for (uint32_t rank = 0; rank < RANKS; rank++) {
                const unsigned char *at = hvi_slot_payload(&map, slot, rank, sizes[i]);
                ck_assert_uint_eq((uintptr_t)at % 16, 0);
                ck_assert(at[0] == rank + 1 && at[sizes[i] - 1] == rank + 1);
                ck_assert(at + sizes[i] <= (unsigned char *)map.region.base + map.region.bytes);
            }
        }
    }
}
END_TEST

START_TEST(only_the_right_memory_is_mapped)
{
    struct hvi_slots other;
    int fd = fcntl(map.region.fd, F_DUPFD_CLOEXEC, 3);
    ck_assert_int_eq(hvi_slots_map(fd, RANKS + 1, &other), HVI_ERR_PROTOCOL);
    map.head->abi_version++;
    ck_assert_int_eq(hvi_slots_map(fd, RANKS, &other), HVI_ERR_VERSION);
    map.head->magic++;
    ck_assert_int_eq(hvi_slots_map(fd, RANKS, &other), HVI_ERR_PROTOCOL);
    map.head->magic--;
    map.head->abi_version--;
    ck_assert_int_eq(hvi_slots_map(fd, RANKS, &other), HVI_OK);
    hvi_slot_open(&other, SLOT, false);
    ck_assert_uint_eq(hvi_slot_view(&map, SLOT).turn, 2);
    hvi_slots_fini(&other);
}
END_TEST

/* ---- races ---- */

struct rank {
    pthread_t thread;
    uint32_t number;
    struct hvt_random random;
    uint8_t *verdicts; /* per turn */
    uint32_t last;     /* times it came last */
    bool lets_revoke;  /* now and then it comes only after the engine */
};

static _Atomic bool stop_engine;

static uint64_t expected(uint32_t turn)
{
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        sum += (uint64_t)turn * 31 + rank;
    return sum;
}

static void combine(uint32_t turn)
{
    uint64_t sum = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        uint64_t value;
        memcpy(&value, hvi_slot_payload(&map, SLOT, rank, sizeof value), sizeof value);
        sum += value;
    }
    memcpy(hvi_slot_result(&map, SLOT, sizeof sum), &sum, sizeof sum);
    (void)turn;
}

static void rest(uint32_t turn)
{
    const struct hvi_wait_policy policy = {.slice_ns = 10 * HVI_NS_SEC};
    enum hvi_slot_sight sight;
    struct hvi_wait wait = hvi_slot_wait(&map, SLOT, turn, &sight);
    if (sight == HVI_SLOT_WAITS)
        hvi_wait_asleep(&wait, &policy, HVI_NEVER);
}

/* One turn; what this rank found it to be. */
static enum hvi_slot_sight play(struct rank *rank, uint32_t turn)
{
    uint64_t value = (uint64_t)turn * 31 + rank->number;
    memcpy(hvi_slot_payload(&map, SLOT, rank->number, sizeof value), &value, sizeof value);
    switch (hvi_slot_arrive(&map, SLOT, turn, rank->number, EVERYBODY)) {
    case HVI_SLOT_STALE:
        return HVI_SLOT_REVOKED;
    case HVI_SLOT_LAST:
        rank->last++;
        combine(turn);
        if (!hvi_slot_publish(&map, SLOT, turn, EVERYBODY))
            return HVI_SLOT_REVOKED;
        break;
    case HVI_SLOT_ARRIVED:
        break;
    }
    enum hvi_slot_sight sight;
    while ((sight = hvi_slot_look(&map, SLOT, turn)) == HVI_SLOT_WAITS) {
        if (hvt_random_below(&rank->random, 8) == 0)
            rest(turn);
        else
            sched_yield();
    }
    if (sight == HVI_SLOT_DONE) {
        uint64_t sum;
        memcpy(&sum, hvi_slot_result(&map, SLOT, sizeof sum), sizeof sum);
        ck_assert_uint_eq(sum, expected(turn));
    }
    return sight;
}

static pthread_barrier_t round_over;

static void *run_rank(void *user)
{
    struct rank *rank = user;
    for (uint32_t round = 0; round < TURNS; round++) {
        uint32_t turn = hvi_slot_view(&map, SLOT).turn;
        pthread_barrier_wait(&round_over);
        while (rank->lets_revoke && round % 50 == 49 &&
               hvi_slot_look(&map, SLOT, turn) == HVI_SLOT_WAITS)
            sched_yield();
        rank->verdicts[round] = (uint8_t)play(rank, turn);
        pthread_barrier_wait(&round_over);
        if (rank->number == 0 && rank->verdicts[round] == HVI_SLOT_REVOKED)
            hvi_slot_open(&map, SLOT, false);
        pthread_barrier_wait(&round_over);
    }
    return NULL;
}

static void *run_engine(void *user)
{
    struct hvt_random *random = user;
    while (!atomic_load(&stop_engine)) {
        uint64_t pause = hvt_random_below(random, 40);
        for (uint64_t i = 0; i < pause; i++)
            sched_yield();
        if (hvi_slot_view(&map, SLOT).waiting != 0)
            revoke_slot();
    }
    return NULL;
}

static void race(bool with_engine, uint32_t *published_p, uint32_t *last_p)
{
    struct rank ranks[RANKS];
    struct hvt_random engine_random;
    pthread_t engine;
    hvt_random_init(&engine_random, 5);
    hvi_slot_open(&map, SLOT, false);
    pthread_barrier_init(&round_over, NULL, RANKS);
    atomic_store(&stop_engine, false);
    for (uint32_t i = 0; i < RANKS; i++) {
        ranks[i] = (struct rank){
            .number = i, .verdicts = calloc(TURNS, 1), .lets_revoke = with_engine && i == 0};
        hvt_random_init(&ranks[i].random, i + 1);
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
    }
    if (with_engine)
        ck_assert_int_eq(pthread_create(&engine, NULL, run_engine, &engine_random), 0);
    *published_p = *last_p = 0;
    for (uint32_t i = 0; i < RANKS; i++) {
        pthread_join(ranks[i].thread, NULL);
        *last_p += ranks[i].last;
    }
    atomic_store(&stop_engine, true);
    if (with_engine)
        pthread_join(engine, NULL);
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        for (uint32_t i = 1; i < RANKS; i++)
            ck_assert_msg(ranks[i].verdicts[turn] == ranks[0].verdicts[turn],
                          "round %u has two verdicts", turn);
        *published_p += ranks[0].verdicts[turn] == HVI_SLOT_DONE;
    }
    for (uint32_t i = 0; i < RANKS; i++)
        free(ranks[i].verdicts);
    pthread_barrier_destroy(&round_over);
}

START_TEST(every_turn_has_one_last_rank_and_the_right_sum)
{
    uint32_t published, last;
    race(false, &published, &last);
    ck_assert_uint_eq(published, TURNS);
    ck_assert_uint_eq(last, TURNS);
}
END_TEST

START_TEST(whoever_revokes_in_between_a_turn_has_one_verdict)
{
    uint32_t published, last;
    race(true, &published, &last);
    ck_assert_uint_gt(published, 0);
    ck_assert_uint_le(published, TURNS - TURNS / 50);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm/slots");
    TCase *tcase = tcase_create("slots");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, the_last_of_the_ranks_is_told_so);
    tcase_add_test(tcase, whoever_looks_late_can_still_tell);
    tcase_add_test(tcase, a_stale_turn_changes_nothing);
    tcase_add_test(tcase, a_revoked_turn_takes_nobody_and_publishes_nothing);
    tcase_add_test(tcase, turns_wrap);
    tcase_add_test(tcase, bits_of_strangers_make_a_word_that_nobody_joins);
    tcase_add_test(tcase, payloads_and_results_of_any_size_lie_apart_and_inside);
    tcase_add_test(tcase, only_the_right_memory_is_mapped);
    tcase_add_test(tcase, every_turn_has_one_last_rank_and_the_right_sum);
    tcase_add_test(tcase, whoever_revokes_in_between_a_turn_has_one_verdict);
    tcase_set_timeout(tcase, 120);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
