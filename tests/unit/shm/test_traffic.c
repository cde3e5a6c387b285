/* SPDX-License-Identifier: Apache-2.0
 * Two real processes exchange many messages; every word of every message is checked on both sides.
 * The styles differ in how often the sides find each other asleep. */
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/shm/hvt_link.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hvt_link pair;
static struct hvt_run *runs; /* shared with the child: [0] engine, [1] client */

static void set_up(void)
{
    hvt_link_open(&pair, 1023);
    runs = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(runs, MAP_FAILED);
}

static void tear_down(void)
{
    munmap(runs, 4096);
    hvt_link_close(&pair);
}

static void exchange(uint64_t total, struct hvt_client_style style)
{
    runs[0] = (struct hvt_run){.total = total,
                               .deadline_ns = hvi_deadline_after(2 * HVT_PATIENCE_NS),
                               .sleep_ns = 10 * HVI_NS_SEC};
    runs[1] = runs[0];
    hvt_random_init(&style.random, total);
    pid_t pid = hvt_fork();
    if (pid == 0) {
        hvt_client_run(&pair, &style, &runs[1]);
        _exit(0);
    }
    hvt_engine_run(&pair, &runs[0]);
    ck_assert_int_eq(hvt_wait_child(pid), 0);
    ck_assert_int_eq(runs[0].end, HVT_DONE);
    ck_assert_int_eq(runs[1].end, HVT_DONE);
    ck_assert_uint_eq(runs[0].done, total);
    ck_assert_uint_eq(runs[1].done, total);
    ck_assert_uint_eq(atomic_load(&pair.engine.header->sq_tail), (uint32_t)total);
    ck_assert_uint_eq(atomic_load(&pair.engine.header->sq_head), (uint32_t)total);
    ck_assert_uint_eq(atomic_load(&pair.engine.header->cq_tail), (uint32_t)total);
    ck_assert_uint_eq(atomic_load(&pair.engine.header->cq_head), (uint32_t)total);
}

START_TEST(two_million_messages_in_big_bursts)
{
    exchange(HVT_SCALE(2000000),
             (struct hvt_client_style){
                 .window = HVI_CQ_SLOTS, .burst = 700, .spins = 200, .yield_ns = 20000});
}
END_TEST

START_TEST(small_bursts_with_a_nap_in_between)
{
    exchange(HVT_SCALE(200000), (struct hvt_client_style){.window = 64, .burst = 5, .spins = 20});
    ck_assert_uint_gt(runs[0].sleeps + runs[1].sleeps, 0);
}
END_TEST

START_TEST(one_message_at_a_time_and_asleep_in_between)
{
    exchange(HVT_SCALE(60000), (struct hvt_client_style){.window = 1, .burst = 1});
    ck_assert_msg(runs[1].sleeps > HVT_SCALE(60000) / 10 && runs[0].system_calls > 0,
                  "the sleeping paths were not taken: %lu sleeps, %lu wake-ups", runs[1].sleeps,
                  runs[0].system_calls);
    ck_assert_msg(runs[0].sleeps > 0 && runs[1].system_calls > 0, "the engine never slept");
}
END_TEST

START_TEST(the_engine_of_a_full_window_never_lacks_completion_slots)
{
    /* The client submits all it may before it reads the first completion. */
    for (uint32_t i = 0; i < HVI_SQ_SLOTS; i++)
        hvt_fill_submission(hvi_ring_slot(&pair.client.sq, i), i + 1);
    hvi_ring_publish(&pair.client.sq, HVI_SQ_SLOTS);
    uint32_t slots = 9;
    ck_assert_int_eq(hvi_ring_space(&pair.client.sq, &slots), HVI_OK);
    ck_assert_uint_eq(slots, 0);
    hvi_bell_ring_engine(pair.page, 1023, pair.event_fd);
    struct hvt_run run = {.total = HVI_SQ_SLOTS,
                          .deadline_ns = hvi_deadline_after(HVT_PATIENCE_NS),
                          .sleep_ns = HVI_NS_SEC};
    hvt_engine_run(&pair, &run);
    ck_assert_int_eq(run.end, HVT_DONE);
    ck_assert_int_eq(hvi_ring_space(&pair.client.sq, &slots), HVI_OK);
    ck_assert_uint_eq(slots, HVI_SQ_SLOTS);
    ck_assert_int_eq(hvi_ring_available(&pair.client.cq, &slots), HVI_OK);
    ck_assert_uint_eq(slots, HVI_SQ_SLOTS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm/traffic");
    TCase *tcase = tcase_create("two processes");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, two_million_messages_in_big_bursts);
    tcase_add_test(tcase, small_bursts_with_a_nap_in_between);
    tcase_add_test(tcase, one_message_at_a_time_and_asleep_in_between);
    tcase_add_test(tcase, the_engine_of_a_full_window_never_lacks_completion_slots);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
