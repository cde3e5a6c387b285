/* SPDX-License-Identifier: Apache-2.0
 * Engines of two nodes without memory: of all pieces that node 0 asks for when it starts an op, one is refused, each in
 * its turn. Whatever that is, every rank has an answer: the right one, or an error with a sentence. Where the nodes are
 * connected (warm), those of the other node have theirs at once. And without timers: what would be done later is done
 * at once. */
#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/engine/hvt_nodes.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define MOST 200 /* pieces of memory */

/* ---- memory ---- */

static atomic_int countdown;       /* 0: nothing is refused */
static atomic_bool refused, armed; /* else it is check(3) that asks */
static pthread_t main_thread;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);

static bool refuse(void)
{
    if (!atomic_load(&armed) || atomic_load(&countdown) == 0 ||
        !pthread_equal(pthread_self(), main_thread))
        return false;
    bool now = atomic_fetch_sub(&countdown, 1) == 1;
    if (now)
        atomic_store(&refused, true);
    return now;
}

void *__wrap_malloc(size_t bytes)
{
    return refuse() ? NULL : __real_malloc(bytes);
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return refuse() ? NULL : __real_calloc(count, bytes);
}

void *__wrap_realloc(void *old, size_t bytes)
{
    return refuse() ? NULL : __real_realloc(old, bytes);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return refuse() ? NULL : __real_aligned_alloc(alignment, bytes);
}

/* Ready ops become works here. */
void __real_engine_dispatch_ready(struct engine_exec *exec);
void __wrap_engine_dispatch_ready(struct engine_exec *exec);

void __wrap_engine_dispatch_ready(struct engine_exec *exec)
{
    atomic_store(&armed, exec == &hvt_nodes[0].engine->exec);
    __real_engine_dispatch_ready(exec);
    atomic_store(&armed, false);
}

/* ---- an op ---- */

static void bring(uint32_t node, int32_t seat)
{
    struct hvt_bench *bench = &hvt_nodes[node];
    struct hvi_submission op = hvt_op(bench, seat, HVI_KIND_ALLREDUCE, 1, "w", 0);

    hvt_op_memory(bench, seat)[0] = 1;
    hvt_peer_submit(&bench->peers[seat], &op);
}

static bool is_answered(uint32_t node)
{
    bool all = true;

    for (int32_t seat = 0; seat < HVT_SEATS; seat++)
        all = all && hvt_peer_has_completion(&hvt_nodes[node].peers[seat]);
    return all;
}

static void turn_until_answered(uint32_t node, int number)
{
    uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (!is_answered(node)) {
        ck_assert_msg(!hvi_deadline_passed(end_ns), "piece %d: a rank has no answer", number);
        hvt_nodes_turn();
        /* A better reason than that node 0 has hung up would not come. */
        engine_dispatch_explain(&hvt_nodes[1].engine->exec);
    }
}

/* True: it has come to a good end. */
static bool expect_answer(uint32_t node, int32_t seat, int number)
{
    char text[HVI_TEXT_MAX + 1];
    struct hvi_completion done = hvt_nodes_take(node, seat, text, sizeof text);

    if (done.status == HVI_OK) {
        ck_assert_float_eq(hvt_op_memory(&hvt_nodes[node], seat)[0], 4);
        return true;
    }
    ck_assert_float_eq(hvt_op_memory(&hvt_nodes[node], seat)[0], 1);
    ck_assert_msg(done.status < 0 && text[0] != '\0', "piece %d: status %d without a sentence",
                  number, done.status);
    ck_assert_msg(strstr(text, "ranks' memory") == NULL, "piece %d: no rank's memory is slow: %s",
                  number, text);
    return false;
}

/* True: a piece was refused. */
static bool refuse_one(int number, bool warm)
{
    bool good = true;

    hvt_nodes_open(NULL, 0);
    if (warm)
        hvt_nodes_step("first");
    atomic_store(&refused, false);
    atomic_store(&countdown, number);
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++)
            bring(n, seat);
    }
    turn_until_answered(0, number);
    atomic_store(&countdown, 0);
    if (!warm && atomic_load(&refused)) /* else it would wait for the connection for 20 s */
        engine_dispatch_lost(&hvt_nodes[1].engine->exec, 0, "node 0 (h0) does not come");
    turn_until_answered(1, number);
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++)
            good = expect_answer(n, seat, number) && good;
    }
    ck_assert_int_eq(good, !atomic_load(&refused));
    hvt_nodes_close();
    return atomic_load(&refused);
}

START_TEST(an_op_that_cannot_be_started_for_lack_of_memory_is_answered_on_all_nodes)
{
    int number = 1;

    main_thread = pthread_self();
    while (refuse_one(number, _i > 0))
        ck_assert_int_lt(number++, MOST);
    ck_assert_int_gt(number, 3);
}
END_TEST

/* ---- without timers ---- */

static bool no_timers;

int __real_sd_event_add_time_relative(sd_event *event, sd_event_source **source_p, clockid_t clock,
                                      uint64_t usec, uint64_t accuracy,
                                      sd_event_time_handler_t callback, void *user);
int __wrap_sd_event_add_time_relative(sd_event *event, sd_event_source **source_p, clockid_t clock,
                                      uint64_t usec, uint64_t accuracy,
                                      sd_event_time_handler_t callback, void *user);

int __wrap_sd_event_add_time_relative(sd_event *event, sd_event_source **source_p, clockid_t clock,
                                      uint64_t usec, uint64_t accuracy,
                                      sd_event_time_handler_t callback, void *user)
{
    return no_timers ? -ENOMEM
                     : __real_sd_event_add_time_relative(event, source_p, clock, usec, accuracy,
                                                         callback, user);
}

static void open_nodes(void)
{
    no_timers = false;
    hvt_nodes_open(NULL, 0);
}

static const struct engine_nodes *timers(void)
{
    return &hvt_nodes[0].engine->nodes;
}

START_TEST(a_failure_that_cannot_wait_for_its_reason_is_told_as_it_is)
{
    hvt_nodes_step("a");
    no_timers = true;
    engine_dispatch_lost(&hvt_nodes[0].engine->exec, 1, "node 1 (h1) has hung up");
    for (int32_t seat = 0; seat < HVT_SEATS; seat++) {
        for (uint32_t n = 0; n < HVT_NODES; n++)
            hvt_nodes_bring(n, seat, "a");
    }
    for (int32_t seat = 0; seat < HVT_SEATS; seat++)
        hvt_nodes_expect(0, seat, HVI_ERR_NODE_LOST, "(h1) has hung up");
    ck_assert_ptr_null(timers()->patience);
}
END_TEST

/* Node 0 has begun it tentatively, and node 1 never will. */
START_TEST(a_work_of_a_job_that_breaks_is_cancelled_where_it_cannot_be_given_time)
{
    const int due = _i == 0 ? HVI_ERR_RANK_LEFT : HVI_ERR_RANK_LOST;

    hvt_nodes_replay("w");
    no_timers = true;
    hvt_nodes_bring(0, 0, "w");
    hvt_nodes_bring(0, 1, "w");
    ck_assert_ptr_nonnull(hvt_nodes[0].engine->order.schedule.first);
    if (_i == 0)
        hvt_nodes_detach(1, 1);
    else
        hvt_nodes_lose(1, 1);
    for (int32_t seat = 0; seat < HVT_SEATS; seat++)
        ck_assert_int_eq(hvt_nodes_expect(0, seat, due, "rank 3").culprit, 3);
    ck_assert(!timers()->left && !timers()->grace);
}
END_TEST

START_TEST(a_step_is_not_replayed_where_nothing_can_be_waited_for)
{
    hvt_log_open();
    hvt_nodes_step("first"); /* connects the nodes */
    no_timers = true;
    for (int i = 0; i < 40; i++)
        hvt_nodes_step("w");
    ck_assert_int_gt(hvt_log_count("its works start without the root"), 0);
    ck_assert_int_gt(hvt_log_count("works start by the root's word again"), 0);
    ck_assert_ptr_null(timers()->still);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/no_memory");
    TCase *tcase = tcase_create("no_memory"), *timeless = tcase_create("no_timers");

    tcase_add_loop_test(
        tcase, an_op_that_cannot_be_started_for_lack_of_memory_is_answered_on_all_nodes, 0, 2);
    suite_add_tcase(suite, tcase);
    tcase_add_checked_fixture(timeless, open_nodes, hvt_nodes_close);
    tcase_add_test(timeless, a_failure_that_cannot_wait_for_its_reason_is_told_as_it_is);
    tcase_add_loop_test(
        timeless, a_work_of_a_job_that_breaks_is_cancelled_where_it_cannot_be_given_time, 0, 2);
    tcase_add_test(timeless, a_step_is_not_replayed_where_nothing_can_be_waited_for);
    suite_add_tcase(suite, timeless);
    return hvt_run_suite(suite);
}
