/* SPDX-License-Identifier: Apache-2.0
 * One side is killed or stopped at points chosen by a seed. The other side must find whole messages
 * in order up to the last published one, must never wait beyond its deadline, and must not notice a
 * stop at all. */
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/shm/hvt_link.h"

#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KILLS HVT_SCALE(60)
#define STOPS HVT_SCALE(150)

static struct hvt_link pair;
static struct hvt_run *runs; /* shared with the child: [0] engine, [1] client */
static struct hvt_random dice;

static void set_up(void)
{
    runs = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(runs, MAP_FAILED);
    hvt_random_init(&dice, 77);
}

static void tear_down(void)
{
    munmap(runs, 4096);
}

static void begin(uint64_t total)
{
    hvt_link_open(&pair, 3);
    runs[0] = (struct hvt_run){.total = total,
                               .deadline_ns = hvi_deadline_after(HVT_PATIENCE_NS),
                               .sleep_ns = 10 * HVI_NS_SEC};
    runs[1] = runs[0];
}

static struct hvt_client_style random_style(void)
{
    return (struct hvt_client_style){
        .window = (uint32_t)hvt_random_below(&dice, 2000) + 1,
        .burst = (uint32_t)hvt_random_below(&dice, 300) + 1,
        .spins = (uint32_t)hvt_random_below(&dice, 50),
        .yield_ns = hvt_random_below(&dice, 20000),
        .random = {hvt_random_next(&dice)},
    };
}

static pid_t fork_client(struct hvt_client_style style)
{
    pid_t pid = hvt_fork();
    if (pid == 0) {
        hvt_client_run(&pair, &style, &runs[1]);
        _exit(0);
    }
    return pid;
}

static pid_t fork_engine(void)
{
    pid_t pid = hvt_fork();
    if (pid == 0) {
        hvt_engine_run(&pair, &runs[0]);
        _exit(0);
    }
    return pid;
}

/* A short stretch of the survivor's own running time, so that the victim dies anywhere in its loop.
 */
static void dawdle(void)
{
    for (uint64_t n = hvt_random_below(&dice, 30000); n > 0; n--)
        __asm__ volatile("");
}

/* Until so many submissions lie in the ring: the client goes on until its window is full. */
static void await_submissions(uint32_t count)
{
    uint32_t here = 0;
    uint64_t deadline_ns = hvi_deadline_after(HVT_PATIENCE_NS);
    while (hvi_ring_available(&pair.engine.sq, &here) == HVI_OK && here < count) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        sched_yield();
    }
}

static void kill_child(pid_t pid)
{
    ck_assert_int_eq(kill(pid, SIGKILL), 0);
    int status = hvt_wait_child(pid);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

START_TEST(a_killed_client_leaves_whole_messages)
{
    uint64_t echoed = 0;
    for (int round = 0; round < KILLS; round++) {
        begin(1 + hvt_random_below(&dice, 5000)); /* the engine stops here and looks away */
        runs[1].total = UINT64_MAX;
        struct hvt_client_style style = random_style();
        uint32_t window = style.window < HVI_SQ_SLOTS ? style.window : HVI_SQ_SLOTS;
        pid_t pid = fork_client(style);
        hvt_engine_run(&pair, &runs[0]);
        ck_assert_int_eq(runs[0].end, HVT_DONE);
        await_submissions((uint32_t)hvt_random_below(&dice, window + 1));
        dawdle();
        kill_child(pid);
        /* Everything published is whole and in order; then there is silence, and the engine gives
         * up in time. */
        uint32_t here = 0;
        ck_assert_int_eq(hvi_ring_available(&pair.engine.sq, &here), HVI_OK);
        ck_assert_uint_le(here, HVI_SQ_SLOTS);
        echoed += here;
        hvi_bell_ring_engine(pair.page, 3,
                             pair.event_fd); /* it may have died before its own ring */
        runs[0].total = runs[0].done + here;
        hvt_engine_run(&pair, &runs[0]);
        ck_assert_int_eq(runs[0].end, HVT_DONE);
        runs[0] = (struct hvt_run){.total = UINT64_MAX,
                                   .done = runs[0].done,
                                   .sleep_ns = HVI_NS_MS,
                                   .deadline_ns = hvi_deadline_after(2 * (int64_t)HVI_NS_MS)};
        hvt_engine_run(&pair, &runs[0]);
        ck_assert_int_eq(runs[0].end, HVT_LATE);
        hvt_link_close(&pair);
    }
    ck_assert_uint_gt(echoed, 0);
}
END_TEST

START_TEST(a_dead_client_that_reads_nothing_does_not_block_the_engine)
{
    begin(1);
    runs[1].total = UINT64_MAX;
    pid_t pid = fork_client((struct hvt_client_style){.window = 1, .burst = 1});
    hvt_engine_run(&pair, &runs[0]);
    kill_child(pid);
    uint64_t written = 0;
    uint64_t deadline_ns = hvi_deadline_after(HVT_PATIENCE_NS);
    uint32_t space = 0;
    while (hvi_ring_space(&pair.engine.cq, &space) == HVI_OK && space > 0) {
        hvi_ring_publish(&pair.engine.cq, 1);
        hvi_bell_ring_client(pair.engine.header);
        ck_assert_uint_le(++written, HVI_CQ_SLOTS);
    }
    ck_assert_uint_ge(written, HVI_CQ_SLOTS - 1);
    ck_assert(!hvi_deadline_passed(deadline_ns));
    hvt_link_close(&pair);
}
END_TEST

START_TEST(a_killed_engine_leaves_whole_completions)
{
    for (int round = 0; round < KILLS; round++) {
        uint64_t until = 1 + hvt_random_below(&dice, 5000);
        begin(until);
        runs[0].total = UINT64_MAX;
        pid_t pid = fork_engine();
        struct hvt_client_style style = random_style();
        hvt_client_run(&pair, &style, &runs[1]);
        ck_assert_int_eq(runs[1].end, HVT_DONE);
        /* Some more ops, of which the engine may answer any number before it dies. */
        for (uint32_t i = 0; i < 20; i++)
            hvt_fill_submission(hvi_ring_slot(&pair.client.sq, i), until + i + 1);
        hvi_ring_publish(&pair.client.sq, 20);
        hvi_bell_ring_engine(pair.page, 3, pair.event_fd);
        dawdle();
        kill_child(pid);
        uint32_t here = 0;
        ck_assert_int_eq(hvi_ring_available(&pair.client.cq, &here), HVI_OK);
        ck_assert_uint_le(here, 20);
        for (uint32_t i = 0; i < here; i++) {
            struct hvi_completion completion;
            hvi_ring_copy(&pair.client.cq, i, &completion);
            ck_assert(hvt_completion_is(&completion, until + i + 1));
        }
        hvi_ring_release(&pair.client.cq, here);
        /* A wait for a dead engine ends with its slice. */
        const struct hvi_wait_policy policy = {20, 1000, 2 * HVI_NS_MS, 1};
        uint32_t seen = hvi_bell_read(pair.client.header);
        uint64_t start_ns = hvi_clock_ns();
        ck_assert(!hvi_bell_wait(pair.client.header, seen, &policy, HVI_NEVER));
        ck_assert(hvi_clock_ns() - start_ns < 5 * HVI_NS_SEC);
        hvt_link_close(&pair);
    }
}
END_TEST

/* Stops and continues the child all along the exchange; the survivor's loop is in the parent's
 * other child. */
static void stop_and_go(pid_t victim, const struct hvt_run *progress)
{
    for (int i = 0; i < STOPS && progress->done < progress->total; i++) {
        ck_assert_int_eq(kill(victim, SIGSTOP), 0);
        for (uint64_t n = hvt_random_below(&dice, 5); n > 0; n--) {
            struct timespec moment = {0, (long)hvt_random_below(&dice, 400000)};
            nanosleep(&moment, NULL);
        }
        ck_assert_int_eq(kill(victim, SIGCONT), 0);
        struct timespec moment = {0, (long)hvt_random_below(&dice, 2000000)};
        nanosleep(&moment, NULL);
    }
}

static void exchange_with_stops(bool stop_client)
{
    begin(HVT_SCALE(400000));
    struct hvt_client_style style = {.window = 40, .burst = 9, .spins = 10, .random = {4}};
    pid_t engine = fork_engine();
    pid_t client = fork_client(style);
    stop_and_go(stop_client ? client : engine, &runs[1]);
    ck_assert_int_eq(hvt_wait_child(client), 0);
    ck_assert_int_eq(hvt_wait_child(engine), 0);
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(runs[i].end, HVT_DONE);
        ck_assert_uint_eq(runs[i].done, runs[i].total);
    }
    hvt_link_close(&pair);
}

START_TEST(a_client_that_is_stopped_and_continued_loses_nothing)
{
    exchange_with_stops(true);
}
END_TEST

START_TEST(an_engine_that_is_stopped_and_continued_loses_nothing)
{
    exchange_with_stops(false);
}
END_TEST

START_TEST(a_stopped_engine_does_not_hold_a_wait_beyond_its_deadline)
{
    begin(UINT64_MAX);
    pid_t pid = fork_engine();
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, WUNTRACED), pid);
    ck_assert(WIFSTOPPED(status));
    struct hvt_client_style style = {.window = 1, .burst = 1};
    runs[1].sleep_ns = 2 * HVI_NS_MS;
    runs[1].deadline_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_MS);
    hvt_client_run(&pair, &style, &runs[1]);
    ck_assert_int_eq(runs[1].end, HVT_LATE);
    ck_assert(hvi_clock_ns() < runs[1].deadline_ns + 5 * HVI_NS_SEC);
    kill_child(pid);
    hvt_link_close(&pair);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm/death");
    TCase *tcase = tcase_create("killed and stopped");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_killed_client_leaves_whole_messages);
    tcase_add_test(tcase, a_dead_client_that_reads_nothing_does_not_block_the_engine);
    tcase_add_test(tcase, a_killed_engine_leaves_whole_completions);
    tcase_add_test(tcase, a_client_that_is_stopped_and_continued_loses_nothing);
    tcase_add_test(tcase, an_engine_that_is_stopped_and_continued_loses_nothing);
    tcase_add_test(tcase, a_stopped_engine_does_not_hold_a_wait_beyond_its_deadline);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
