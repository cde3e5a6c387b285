/* SPDX-License-Identifier: Apache-2.0
 * Works of two nodes that are under way, or about to be, when something happens to them. The backends by themselves:
 * tests/contract/. */
#include "base/status.h"
#include "daemon/engine/sessions/intake.h"
#include "tests/unit/engine/hvt_nodes.h"
#include "tests/unit/hvt_main.h"

#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MODERATE 20000u /* elements: the main thread does it in pieces */

static void set_up(void)
{
    hvt_nodes_open(NULL, 0);
    hvt_nodes_step("first");
}

static struct engine *engine_of(uint32_t node)
{
    return hvt_nodes[node].engine;
}

static void bring_all(void)
{
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++) {
            struct hvt_bench *bench = &hvt_nodes[n];
            struct hvi_submission op = hvt_op(bench, seat, HVI_KIND_ALLREDUCE, MODERATE, "w", 0);
            hvt_op_memory(bench, seat)[0] = hvt_op_memory(bench, seat)[MODERATE - 1] = 1;
            hvt_peer_submit(&bench->peers[seat], &op);
        }
    }
}

static void expect_sums(void)
{
    hvt_nodes_expect_all(HVI_OK, "");
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++) {
            ck_assert_float_eq(hvt_op_memory(&hvt_nodes[n], seat)[0], 4);
            ck_assert_float_eq(hvt_op_memory(&hvt_nodes[n], seat)[MODERATE - 1], 4);
        }
    }
}

/* The root has started it, and done nothing of it; the other node has not heard of that. */
static void start_on_node_0(void)
{
    struct engine *engine = engine_of(0);
    uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    bring_all();
    hvt_bench_turn(&hvt_nodes[1]);
    while (!engine->exec.running) {
        ck_assert(!hvi_deadline_passed(end_ns));
        sd_event_run(engine->event, 0);
        engine_intake_drain_all(&engine->sessions);
        engine_nodes_run(engine);
        engine_dispatch_ready(&engine->exec);
    }
}

START_TEST(a_work_that_the_loop_has_no_time_for_goes_on_without_it)
{
    start_on_node_0();
    engine_dispatch_busy(&engine_of(0)->exec);
    ck_assert(!engine_dispatch_help(&engine_of(0)->exec));
    expect_sums();
}
END_TEST

START_TEST(a_node_that_is_lost_fails_the_work_that_is_under_way_with_it)
{
    start_on_node_0();
    engine_dispatch_lost(&engine_of(0)->exec, 1, "node 1 (h1) is gone");
    for (int32_t seat = 0; seat < HVT_SEATS; seat++) {
        hvt_nodes_expect(0, seat, HVI_ERR_NODE_LOST, "node 1 (h1) is gone");
        ck_assert_float_eq(hvt_op_memory(&hvt_nodes[0], seat)[0], 1);
    }
}
END_TEST

/* A lane that was not agreed on, and one that is there. */
START_TEST(a_connection_that_is_not_needed_is_closed_and_the_job_goes_on)
{
    int pair[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    engine_dispatch_lane(&engine_of(0)->exec, 1, _i == 0 ? 1 : 0, pair[0], NULL, "node 1 (h1)");
    struct pollfd end = {.fd = pair[1], .events = POLLRDHUP};
    ck_assert_int_eq(poll(&end, 1, 10000), 1);
    ck_assert((end.revents & POLLHUP) != 0);
    close(pair[1]);
    bring_all();
    expect_sums();
}
END_TEST

/* ---- one node ---- */

START_TEST(what_is_ready_when_the_job_is_stopped_ends_with_the_reason)
{
    static struct hvt_bench bench;

    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 1, "w", 0);
        hvt_op_memory(&bench, rank)[0] = 1;
        hvt_peer_submit(&bench.peers[rank], &op);
    }
    engine_intake_drain_all(&bench.engine->sessions);
    ck_assert_uint_eq(bench.engine->order.ready_count, 1);
    engine_sessions_stop(&bench.engine->sessions, "enough");
    ck_assert_uint_eq(bench.engine->order.ready_count, 0);
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_JOB_STOPPED, "job 'test-job' was stopped: enough");
    ck_assert_float_eq(hvt_op_memory(&bench, 0)[0], 1);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(an_engine_that_may_use_more_processors_gets_more_threads)
{
    static struct hvt_bench bench;
    const uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    hvt_bench_init(&bench, 2);
    const uint32_t before = bench.engine->exec.threads;
    engine_dispatch_grow(&bench.engine->exec, before + 2);
    ck_assert_uint_eq(bench.engine->exec.threads, before + 2);
    engine_dispatch_grow(&bench.engine->exec, before); /* never fewer */
    ck_assert_uint_eq(bench.engine->exec.threads, before + 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, MODERATE, "w", 0);
        hvt_op_memory(&bench, rank)[MODERATE - 1] = 1;
        hvt_peer_submit(&bench.peers[rank], &op);
    }
    while (!hvt_peer_has_completion(&bench.peers[0])) {
        ck_assert(!hvi_deadline_passed(end_ns));
        hvt_bench_turn(&bench); /* threads may have it still */
    }
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, NULL);
    ck_assert_float_eq(hvt_op_memory(&bench, 1)[MODERATE - 1], 2);
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/dispatch");
    TCase *tcase = tcase_create("nodes");
    TCase *alone = tcase_create("alone");

    tcase_add_checked_fixture(tcase, set_up, hvt_nodes_close);
    tcase_add_test(tcase, a_work_that_the_loop_has_no_time_for_goes_on_without_it);
    tcase_add_test(tcase, a_node_that_is_lost_fails_the_work_that_is_under_way_with_it);
    tcase_add_loop_test(tcase, a_connection_that_is_not_needed_is_closed_and_the_job_goes_on, 0, 2);
    suite_add_tcase(suite, tcase);
    tcase_add_test(alone, what_is_ready_when_the_job_is_stopped_ends_with_the_reason);
    tcase_add_test(alone, an_engine_that_may_use_more_processors_gets_more_threads);
    suite_add_tcase(suite, alone);
    return hvt_run_suite(suite);
}
