/* SPDX-License-Identifier: Apache-2.0
 * Doorbells: what each call does, how long a wait may take, and that no wake-up is lost when both
 * sides go to sleep as often as they can. */
#include "shm/bell.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/shm/hvt_link.h"

#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hvt_link pair;

static void set_up(void)
{
    hvt_link_open(&pair, 5);
}

static void tear_down(void)
{
    hvt_link_close(&pair);
}

static bool event_is_set(void)
{
    uint64_t count = 0;
    return read(pair.event_fd, &count, sizeof(count)) == sizeof(count) && count > 0;
}

/* --- client -> engine --- */

START_TEST(ringing_an_awake_engine_sets_one_bit_and_calls_nobody)
{
    const uint32_t indices[] = {0, 1, 63, 64, 127, 500, 1022, 1023};
    for (size_t i = 0; i < sizeof(indices) / sizeof(indices[0]); i++) {
        uint32_t index = indices[i];
        ck_assert(!hvi_bell_ring_engine(pair.page, index, pair.event_fd));
        for (uint32_t word = 0; word < 16; word++) {
            uint64_t expected = word == index / 64 ? UINT64_C(1) << (index % 64) : 0;
            ck_assert(hvi_bell_take(pair.page, word) == expected);
            ck_assert_msg(hvi_bell_take(pair.page, word) == 0, "a bit was taken twice");
        }
    }
    ck_assert(!event_is_set());
}
END_TEST

START_TEST(bits_of_one_word_are_taken_together)
{
    hvi_bell_ring_engine(pair.page, 3, pair.event_fd);
    hvi_bell_ring_engine(pair.page, 3, pair.event_fd);
    hvi_bell_ring_engine(pair.page, 9, pair.event_fd);
    ck_assert(hvi_bell_take(pair.page, 0) == (1u << 3 | 1u << 9));
}
END_TEST

START_TEST(an_engine_with_work_cannot_arm)
{
    for (uint32_t index = 0; index < HVI_BELL_CHANNELS; index += 31) {
        hvi_bell_ring_engine(pair.page, index, pair.event_fd);
        ck_assert(!hvi_bell_arm(pair.page));
        ck_assert_uint_eq(atomic_load(&pair.page->engine_sleeping), 0);
        hvi_bell_take(pair.page, index / 64);
        ck_assert(hvi_bell_arm(pair.page));
        hvi_bell_disarm(pair.page);
    }
    ck_assert(!event_is_set());
}
END_TEST

START_TEST(ringing_a_sleeping_engine_writes_the_eventfd)
{
    ck_assert(hvi_bell_arm(pair.page));
    ck_assert_uint_eq(atomic_load(&pair.page->engine_sleeping), 1);
    ck_assert(hvi_bell_ring_engine(pair.page, 7, pair.event_fd));
    ck_assert(event_is_set());
    hvi_bell_disarm(pair.page);
    ck_assert(!hvi_bell_ring_engine(pair.page, 7, pair.event_fd));
    ck_assert(!event_is_set());
}
END_TEST

START_TEST(a_full_eventfd_does_not_block_the_client)
{
    const uint64_t most = UINT64_MAX - 1;
    ck_assert_int_eq(write(pair.event_fd, &most, sizeof(most)), sizeof(most));
    ck_assert(hvi_bell_arm(pair.page));
    ck_assert(hvi_bell_ring_engine(pair.page, 7, pair.event_fd));
    ck_assert(event_is_set());
}
END_TEST

START_TEST(a_closed_eventfd_does_not_harm_the_client)
{
    ck_assert(hvi_bell_arm(pair.page));
    ck_assert(hvi_bell_ring_engine(pair.page, 7, -1));
    ck_assert(hvi_bell_take(pair.page, 0) == 1u << 7);
}
END_TEST

START_TEST(an_index_out_of_range_stays_inside_the_page)
{
    struct hvi_bell_page before;
    hvi_bell_ring_engine(pair.page, 4000000000u, pair.event_fd);
    hvi_bell_take(pair.page, 4000000000u / 64 % 16);
    memset(&before, 0, sizeof(before));
    before.magic = HVI_BELL_MAGIC;
    before.abi_version = HVI_ABI_VERSION;
    ck_assert_int_eq(memcmp(&before, pair.page, sizeof(before)), 0);
}
END_TEST

/* --- engine -> client --- */

static const struct hvi_wait_policy sleep_at_once = {0, 0, 5 * HVI_NS_SEC, 1};

START_TEST(ringing_a_client_moves_its_word)
{
    uint32_t seen = hvi_bell_read(pair.client.header);
    ck_assert(!hvi_bell_ring_client(pair.engine.header));
    ck_assert_uint_eq(hvi_bell_read(pair.client.header), seen + 1);
    ck_assert(hvi_bell_wait(pair.client.header, seen, &sleep_at_once, HVI_NEVER));
}
END_TEST

START_TEST(a_wait_ends_with_its_slice)
{
    const struct hvi_wait_policy policy = {10, 1000, 3 * HVI_NS_MS, 1};
    uint64_t start_ns = hvi_clock_ns();
    ck_assert(!hvi_bell_wait(pair.client.header, 0, &policy, HVI_NEVER));
    uint64_t took_ns = hvi_clock_ns() - start_ns;
    ck_assert(took_ns >= 3 * HVI_NS_MS);
    ck_assert(took_ns < 3 * HVI_NS_SEC);
    ck_assert_uint_eq(atomic_load(&pair.client.header->cq_sleepers), 0);
}
END_TEST

START_TEST(a_wait_ends_with_its_deadline)
{
    const struct hvi_wait_policy policies[] = {
        {0, 0, 5 * HVI_NS_SEC, 1},               /* in the kernel */
        {10, 5 * HVI_NS_SEC, 5 * HVI_NS_SEC, 1}, /* while yielding */
    };
    for (int i = 0; i < 2; i++) {
        uint64_t deadline_ns = hvi_deadline_after(4 * (int64_t)HVI_NS_MS);
        ck_assert(!hvi_bell_wait(pair.client.header, 0, &policies[i], deadline_ns));
        ck_assert(hvi_deadline_passed(deadline_ns));
        ck_assert(hvi_clock_ns() < deadline_ns + 3 * HVI_NS_SEC);
    }
    ck_assert(!hvi_bell_wait(pair.client.header, 0, &sleep_at_once, 0));
}
END_TEST

static void await_sleeper(void)
{
    uint64_t deadline_ns = hvi_deadline_after(HVT_PATIENCE_NS);
    while (atomic_load(&pair.engine.header->cq_sleepers) == 0) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        sched_yield();
    }
}

static void *wait_long(void *moved_p)
{
    const struct hvi_wait_policy policy = {0, 0, 15 * HVI_NS_SEC, 1};
    *(bool *)moved_p = hvi_bell_wait(pair.client.header, 0, &policy, HVI_NEVER);
    return NULL;
}

START_TEST(a_ring_wakes_every_sleeper_at_once)
{
    pthread_t threads[3];
    bool moved[3] = {false, false, false};
    uint64_t start_ns = hvi_clock_ns();
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, wait_long, &moved[i]), 0);
    await_sleeper();
    ck_assert(hvi_bell_ring_client(pair.engine.header));
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        ck_assert(moved[i]);
    }
    ck_assert_msg(hvi_clock_ns() - start_ns < 10 * HVI_NS_SEC, "they woke by their slice only");
    ck_assert_uint_eq(atomic_load(&pair.client.header->cq_sleepers), 0);
}
END_TEST

static void ignore_signal(int number)
{
    (void)number;
}

START_TEST(a_signal_ends_a_wait)
{
    struct sigaction action = {.sa_handler = ignore_signal};
    const struct hvi_wait_policy policy = {0, 0, 15 * HVI_NS_SEC, 1};
    /* Repeats, so that one that comes before the sleep does not matter. */
    const struct itimerval often = {{0, 5000}, {0, 5000}};
    const struct itimerval never = {{0, 0}, {0, 0}};
    ck_assert_int_eq(sigaction(SIGALRM, &action, NULL), 0);
    uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
    ck_assert(!hvi_bell_wait(pair.client.header, 0, &policy, HVI_NEVER));
    ck_assert_int_eq(setitimer(ITIMER_REAL, &never, NULL), 0);
    ck_assert(hvi_clock_ns() - start_ns < 10 * HVI_NS_SEC);
}
END_TEST

START_TEST(a_sleeper_that_died_costs_a_call_and_nothing_else)
{
    pid_t pid = hvt_fork();
    if (pid == 0) {
        bool moved;
        wait_long(&moved);
        _exit(0);
    }
    await_sleeper();
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    ck_assert(WIFSIGNALED(hvt_wait_child(pid)));
    ck_assert(hvi_bell_ring_client(pair.engine.header));
    ck_assert(hvi_bell_ring_client(pair.engine.header));
}
END_TEST

START_TEST(the_policy_keeps_a_core_only_where_nothing_waited_for_needs_it)
{
    struct hvi_wait_policy engine = hvi_wait_policy_for_engine();
    ck_assert_uint_le(engine.spins, 100);
    /* The engine needs no core while ranks wait for each other. */
    struct hvi_wait_policy roomy = hvi_wait_policy_among(2, 2);
    ck_assert_uint_gt(roomy.spins, engine.spins);
    ck_assert_uint_eq(hvi_wait_policy_among(4, 64).spins, roomy.spins);
    struct hvi_wait_policy crowded = hvi_wait_policy_among(3, 2);
    ck_assert_uint_eq(crowded.spins, 0);
    ck_assert_uint_eq(hvi_wait_policy_among(1, 0).spins, 0);
    ck_assert_uint_eq(hvi_wait_policy_among(UINT32_MAX, 4).spins, 0);
    const struct hvi_wait_policy *policies[] = {&engine, &roomy, &crowded};
    for (int i = 0; i < 3; i++) {
        ck_assert(policies[i]->yield_ns <= HVI_NS_MS);
        ck_assert_msg(policies[i]->slice_ns <= 50 * HVI_NS_MS,
                      "a dead engine must be noticed within 100 ms");
    }
}
END_TEST

/* --- nobody oversleeps --- */

static void *engine_thread(void *run)
{
    hvt_engine_run(&pair, run);
    return NULL;
}

/* Returns how often the engine woke a sleeping client. */
static uint64_t exchange(uint64_t total, uint32_t window, uint32_t spins, uint64_t yield_ns)
{
    struct hvt_run engine = {.total = total,
                             .deadline_ns = hvi_deadline_after(HVT_PATIENCE_NS),
                             .sleep_ns = 8 * HVI_NS_SEC};
    struct hvt_run client = engine;
    struct hvt_client_style style = {window, window, spins, yield_ns, {total}};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, engine_thread, &engine), 0);
    hvt_client_run(&pair, &style, &client);
    pthread_join(thread, NULL);
    ck_assert_int_eq(client.end, HVT_DONE);
    ck_assert_int_eq(engine.end, HVT_DONE);
    ck_assert_uint_eq(engine.done, total);
    ck_assert_uint_gt(client.sleeps, 0);
    return engine.system_calls;
}

START_TEST(ping_pong_that_always_sleeps_loses_no_wake_up)
{
    ck_assert_uint_gt(exchange(HVT_SCALE(40000), 1, 0, 0), 0);
}
END_TEST

START_TEST(ping_pong_around_the_moment_of_sleep_loses_no_wake_up)
{
    exchange(HVT_SCALE(40000), 2, 50, 3000);
}
END_TEST

/* Many clients and one engine: a bit per client, most of them in one word, one eventfd for all. */
#define CLIENTS 6u
#define RINGS   HVT_SCALE(20000u)

struct crowd {
    _Atomic uint32_t rung[CLIENTS];
    _Atomic uint32_t seen[CLIENTS];
    _Atomic bool late;
};
static struct crowd crowd;

static uint32_t bit_of(uint32_t client)
{
    return client < CLIENTS - 1 ? client * 9 : HVI_BELL_CHANNELS - 1;
}

static void *ring_often(void *argument)
{
    uint32_t index = (uint32_t)(uintptr_t)argument;
    uint64_t deadline_ns = hvi_deadline_after(HVT_PATIENCE_NS);
    for (uint32_t i = 1; i <= RINGS; i++) {
        atomic_store_explicit(&crowd.rung[index], i, memory_order_release);
        hvi_bell_ring_engine(pair.page, bit_of(index), pair.event_fd);
        while (atomic_load_explicit(&crowd.seen[index], memory_order_acquire) != i) {
            if (hvi_deadline_passed(deadline_ns)) {
                atomic_store(&crowd.late, true);
                return NULL;
            }
            sched_yield();
        }
    }
    return NULL;
}

/* Answers exactly the clients whose bits were set. Returns how many have heard their last ring. */
static uint32_t answer(void)
{
    uint64_t words[HVI_BELL_CHANNELS / 64];
    uint32_t finished = 0;
    for (uint32_t word = 0; word < HVI_BELL_CHANNELS / 64; word++)
        words[word] = hvi_bell_take(pair.page, word);
    for (uint32_t index = 0; index < CLIENTS; index++) {
        uint32_t bit = bit_of(index);
        uint32_t rung = atomic_load_explicit(&crowd.rung[index], memory_order_acquire);
        if ((words[bit / 64] >> (bit % 64) & 1) != 0)
            atomic_store_explicit(&crowd.seen[index], rung, memory_order_release);
        finished += atomic_load(&crowd.seen[index]) == RINGS;
    }
    return finished;
}

START_TEST(one_engine_hears_many_clients)
{
    pthread_t threads[CLIENTS];
    uint64_t sleeps = 0;
    for (uint32_t i = 0; i < CLIENTS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, ring_often, (void *)(uintptr_t)i), 0);
    while (answer() < CLIENTS && !atomic_load(&crowd.late)) {
        if (!hvi_bell_arm(pair.page))
            continue;
        struct pollfd entry = {.fd = pair.event_fd, .events = POLLIN};
        ck_assert_msg(poll(&entry, 1, 8000) == 1, "a wake-up was lost");
        hvi_bell_disarm(pair.page);
        ck_assert(event_is_set());
        sleeps++;
    }
    for (uint32_t i = 0; i < CLIENTS; i++)
        pthread_join(threads[i], NULL);
    ck_assert(!atomic_load(&crowd.late));
    ck_assert_uint_gt(sleeps, 0);
}
END_TEST

static void add_client_side(TCase *tcase)
{
    tcase_add_test(tcase, ringing_a_client_moves_its_word);
    tcase_add_test(tcase, a_wait_ends_with_its_slice);
    tcase_add_test(tcase, a_wait_ends_with_its_deadline);
    tcase_add_test(tcase, a_ring_wakes_every_sleeper_at_once);
    tcase_add_test(tcase, a_signal_ends_a_wait);
    tcase_add_test(tcase, a_sleeper_that_died_costs_a_call_and_nothing_else);
    tcase_add_test(tcase, the_policy_keeps_a_core_only_where_nothing_waited_for_needs_it);
}

int main(void)
{
    Suite *suite = suite_create("shm/bell");
    TCase *calls = tcase_create("calls");
    tcase_add_checked_fixture(calls, set_up, tear_down);
    tcase_add_test(calls, ringing_an_awake_engine_sets_one_bit_and_calls_nobody);
    tcase_add_test(calls, bits_of_one_word_are_taken_together);
    tcase_add_test(calls, an_engine_with_work_cannot_arm);
    tcase_add_test(calls, ringing_a_sleeping_engine_writes_the_eventfd);
    tcase_add_test(calls, a_full_eventfd_does_not_block_the_client);
    tcase_add_test(calls, a_closed_eventfd_does_not_harm_the_client);
    tcase_add_test(calls, an_index_out_of_range_stays_inside_the_page);
    add_client_side(calls);
    suite_add_tcase(suite, calls);
    TCase *stress = tcase_create("stress");
    tcase_add_checked_fixture(stress, set_up, tear_down);
    tcase_add_test(stress, ping_pong_that_always_sleeps_loses_no_wake_up);
    tcase_add_test(stress, ping_pong_around_the_moment_of_sleep_loses_no_wake_up);
    tcase_add_test(stress, one_engine_hears_many_clients);
    suite_add_tcase(suite, stress);
    return hvt_run_suite(suite);
}
