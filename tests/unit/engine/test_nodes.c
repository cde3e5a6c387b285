/* SPDX-License-Identifier: Apache-2.0
 * Whole engines of two nodes that have met: what the loop does between the links, the mesh, order and the backends.
 * What each of those does by itself is in test_mesh.c, test_span.c, test_root.c and tests/contract/test_span.c. */
#include "base/clock.h"
#include "base/status.h"
#include "daemon/engine/mesh/peer.h"
#include "daemon/engine/sessions/intake.h"
#include "tests/unit/engine/hvt_nodes.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static void set_up(void)
{
    hvt_nodes_open(NULL, 0);
}

static struct engine *engine_of(uint32_t node)
{
    return hvt_nodes[node].engine;
}

static uint64_t ms_since(uint64_t ns)
{
    return (hvi_clock_ns() - ns) / HVI_NS_MS;
}

/* ---- ops ---- */

START_TEST(an_op_of_all_nodes_gives_every_rank_the_same)
{
    hvt_nodes_step("a");
    hvt_nodes_replay("w");
    hvt_nodes_step("b"); /* ends the replay */
    ck_assert(!hvt_nodes_are_replaying());
    hvt_nodes_step("w");
}
END_TEST

/* The loop looks at sockets then, and not only when nothing has happened for a while. */
START_TEST(an_engine_awaits_other_nodes_while_an_op_waits)
{
    ck_assert(!engine_nodes_await(engine_of(0)));
    hvt_nodes_bring(0, 0, "w");
    hvt_nodes_bring(0, 1, "w");
    ck_assert(engine_nodes_await(engine_of(0)));
    ck_assert(!engine_nodes_await(engine_of(1)));
    hvt_nodes_bring(1, 0, "w");
    hvt_nodes_bring(1, 1, "w");
    hvt_nodes_expect_sums();
    ck_assert(!engine_nodes_await(engine_of(0)) && !engine_nodes_await(engine_of(1)));
}
END_TEST

/* ---- a step that repeats ---- */

static bool is_taken_back(void)
{
    return !engine_of(0)->order.schedule.first;
}

START_TEST(a_work_to_which_a_rank_does_not_come_is_asked_back_and_done_when_it_does)
{
    hvt_nodes_replay("w");
    hvt_nodes_bring(0, 0, "w");
    hvt_nodes_bring(0, 1, "w");
    hvt_nodes_bring(1, 0, "w");
    ck_assert_ptr_nonnull(engine_of(0)->order.schedule.first); /* it has been started */
    ck_assert_ptr_null(engine_of(0)->order.waiting_first);
    hvt_nodes_until(is_taken_back);
    ck_assert(!hvt_nodes_are_replaying());
    ck_assert_ptr_nonnull(engine_of(0)->order.waiting_first);
    ck_assert_float_eq(hvt_op_memory(&hvt_nodes[0], 1)[0], 2); /* nothing of it was done */
    hvt_nodes_bring(1, 1, "w");
    hvt_nodes_expect_sums();
    hvt_nodes_step("w");
}
END_TEST

/* A rank of the other node is 20 ms late in each step, for longer than a work may stand still. */
START_TEST(a_step_that_moves_is_not_asked_back)
{
    const uint64_t start_ns = hvi_clock_ns();
    uint64_t longest_ms = 0;

    hvt_nodes_replay("w");
    while (ms_since(start_ns) < 250) {
        const uint64_t step_ns = hvi_clock_ns();
        hvt_nodes_bring(0, 0, "w");
        hvt_nodes_bring(0, 1, "w");
        hvt_nodes_bring(1, 0, "w");
        while (ms_since(step_ns) < 20)
            hvt_nodes_turn();
        hvt_nodes_bring(1, 1, "w");
        hvt_nodes_expect_sums();
        if (ms_since(step_ns) > longest_ms)
            longest_ms = ms_since(step_ns);
    }
    ck_assert(hvt_nodes_are_replaying() || longest_ms >= 100); /* this machine has stood still */
}
END_TEST

/* ---- ranks and nodes that go ---- */

/* Node 0 has begun it tentatively, and node 1 never will. */
START_TEST(a_work_that_repeats_ends_with_the_reason_when_a_rank_of_another_node_goes)
{
    hvt_nodes_replay("w");
    hvt_nodes_bring(0, 0, "w");
    hvt_nodes_bring(0, 1, "w");
    ck_assert_ptr_nonnull(engine_of(0)->order.schedule.first);
    if (_i == 0)
        hvt_nodes_detach(1, 1);
    else
        hvt_nodes_lose(1, 1);
    for (int32_t seat = 0; seat < HVT_SEATS; seat++) {
        const int due = _i == 0 ? HVI_ERR_RANK_LEFT : HVI_ERR_RANK_LOST;
        ck_assert_int_eq(hvt_nodes_expect(0, seat, due, "rank 3").culprit, 3);
    }
    hvt_op_run(&hvt_nodes[0], 0, HVI_KIND_ALLREDUCE, 1, "x", 0);
    hvt_nodes_expect(0, 0, _i == 0 ? HVI_ERR_RANK_LEFT : HVI_ERR_RANK_LOST, "rank 3");
}
END_TEST

#define EARLY_MS 400 /* until then no failure is explained by itself */

/* The data connection ends first, and the reason comes a little later, or never. */
START_TEST(a_connection_that_ends_waits_for_its_reason)
{
    char text[HVI_TEXT_MAX + 1];

    hvt_nodes_step("a");
    const uint64_t start_ns = hvi_clock_ns();
    engine_dispatch_lost(&engine_of(0)->exec, 1, "node 1 (h1) has hung up");
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++)
            hvt_nodes_bring(n, seat, "a");
    }
    while (ms_since(start_ns) < 50)
        hvt_nodes_turn();
    bool answered = hvt_peer_has_completion(&hvt_nodes[0].peers[0]);
    ck_assert(!answered || ms_since(start_ns) >= EARLY_MS);
    if (_i > 0)
        hvt_nodes_lose(1, 1);
    for (int32_t seat = 0; seat < HVT_SEATS; seat++) {
        struct hvi_completion done = hvt_nodes_take(0, seat, text, sizeof text);
        bool early = ms_since(start_ns) < EARLY_MS;
        const char *words = done.status == HVI_ERR_RANK_LOST ? "rank 3 on h1" : "(h1) has hung up";
        ck_assert(done.status == HVI_ERR_RANK_LOST || done.status == HVI_ERR_NODE_LOST);
        ck_assert(done.status == (_i > 0 ? HVI_ERR_RANK_LOST : HVI_ERR_NODE_LOST) ||
                  (_i > 0 && !early));
        ck_assert_msg(strstr(text, words), "%s", text);
    }
}
END_TEST

static bool is_puzzled(void)
{
    return engine_of(0)->nodes.patience != NULL;
}

/* The reason has come, among other things, when the engine goes on after its patience is over. */
START_TEST(an_engine_that_stood_still_hears_the_reason_first)
{
    const uint64_t one = 1;

    hvt_nodes_step("a");
    engine_dispatch_lost(&engine_of(0)->exec, 1, "node 1 (h1) has hung up");
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++)
            hvt_nodes_bring(n, seat, "a");
    }
    hvt_nodes_until(is_puzzled);
    const uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(write(engine_of(0)->engine_fd, &one, sizeof one), sizeof one);
    ck_assert_int_eq(write(engine_of(0)->worker_fd, &one, sizeof one), sizeof one);
    close(hvt_nodes[1].peers[1].socket);
    hvt_nodes[1].peers[1].socket = -1;
    while (ms_since(start_ns) < 520)
        hvt_bench_turn(&hvt_nodes[1]);
    for (int32_t seat = 0; seat < HVT_SEATS; seat++)
        hvt_nodes_expect(0, seat, HVI_ERR_RANK_LOST, "rank 3 on h1");
}
END_TEST

START_TEST(a_node_whose_control_connection_ends_is_lost)
{
    hvt_op_run(&hvt_nodes[0], 0, HVI_KIND_ALLREDUCE, 1, "w", 0);
    hvt_op_run(&hvt_nodes[1], 0, HVI_KIND_ALLREDUCE, 1, "v", 0);
    shutdown(engine_of(1)->nodes.link.by_node[0]->fd, SHUT_RDWR);
    hvt_nodes_expect(0, 0, HVI_ERR_NODE_LOST, "node 1 (h1)");
    hvt_nodes_expect(1, 0, HVI_ERR_NODE_LOST, "node 0 (h0)");
    hvt_op_run(&hvt_nodes[0], 1, HVI_KIND_ALLREDUCE, 1, "later", 0);
    hvt_nodes_expect(0, 1, HVI_ERR_NODE_LOST, "node 1 (h1)");
}
END_TEST

static bool node_0_has_heard(void)
{
    return hvt_log_count("a node of the job has ended in order") > 0;
}

START_TEST(a_node_whose_ranks_have_all_left_ends_in_order)
{
    hvt_log_open();
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++)
            hvt_nodes_detach(n, seat);
    }
    hvt_nodes_end(1);
    hvt_nodes_until(node_0_has_heard);
    ck_assert_int_eq(hvt_log_count("job=test-job node=1"), 1);
    ck_assert(engine_sessions_are_over(&engine_of(0)->sessions));
}
END_TEST

static bool node_0_stops(void)
{
    return engine_of(0)->sessions.stopping;
}

START_TEST(a_job_that_is_stopped_on_one_node_ends_on_all)
{
    const struct hvi_packet_msg stop = {.kind = HVI_PACKET_ENGINE_STOP,
                                        .engine_stop = {.reason = "enough"}};
    struct hvt_node hvdd = {.link = hvt_nodes[1].link};
    struct hvi_packet_msg msg;

    hvt_op_run(&hvt_nodes[0], 0, HVI_KIND_ALLREDUCE, 1, "w", 0);
    hvt_node_send(&hvdd, &stop, NULL, 0);
    hvt_nodes_until(node_0_stops);
    hvt_nodes_expect(0, 0, HVI_ERR_JOB_STOPPED, "job 'test-job' was stopped on h1: enough");
    ck_assert(hvt_peer_expect(&hvt_nodes[0].peers[1], HVI_PACKET_NOTICE, &msg));
    ck_assert(msg.notice.session_ended);
    ck_assert_int_eq(msg.notice.status, HVI_ERR_JOB_STOPPED);
    ck_assert_str_eq(msg.notice.text, "job 'test-job' was stopped on h1: enough");
    hvi_packet_msg_free(&msg);
}
END_TEST

/* ---- what hvdd asks of all ---- */

static struct hvi_packet_msg msgs[HVT_NODES];

static const struct hvi_engine_report *report_of(uint32_t node)
{
    return &msgs[node].engine_report;
}

static void ask(uint32_t node, uint32_t what)
{
    const struct hvi_engine_query query = {.request = 7, .what = what, .rank = -1, .limit = 100};

    hvt_nodes_ask(node, &query, msgs);
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        const struct hvi_span_row *span = &report_of(n)->span;
        char name[8];
        ck_assert_uint_eq(report_of(n)->request, 7);
        ck_assert(report_of(n)->has_span);
        ck_assert_int_eq(span->here, n == node);
        ck_assert_str_eq(span->text, "");
        snprintf(name, sizeof name, "h%u", n);
        ck_assert_str_eq(span->name, name);
        ck_assert_str_eq(span->job, HVT_JOB);
        ck_assert_uint_eq(span->rank_count, HVT_SEATS);
        ck_assert_int_eq(span->ranks[0], (int32_t)n);
        ck_assert_int_eq(span->ranks[1], (int32_t)n + 2);
    }
}

static void free_reports(void)
{
    for (uint32_t n = 0; n < HVT_NODES; n++)
        hvi_packet_msg_free(&msgs[n]);
}

START_TEST(hvdd_is_told_of_the_ranks_of_all_nodes_and_of_their_connections)
{
    hvt_nodes_step("a");
    ask((uint32_t)_i, HVI_QUERY_RANKS);
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        const struct hvi_span_row *span = &report_of(n)->span;
        ck_assert_uint_eq(report_of(n)->rank_count, HVT_SEATS);
        ck_assert_int_eq(report_of(n)->ranks[1].rank, (int32_t)n + 2);
        ck_assert_uint_eq(report_of(n)->ranks[1].node, n);
        ck_assert_uint_eq(report_of(n)->ranks[1].ops, 1);
        ck_assert_uint_eq(span->link_count, 2);
        for (uint32_t i = 0; i < 2; i++) {
            ck_assert_uint_eq(span->links[i].to, 1 - n);
            ck_assert_uint_eq(span->links[i].purpose, i == 0 ? HVI_LINK_CONTROL : HVI_LINK_DATA);
            ck_assert_uint_gt(span->links[i].bytes_sent, 0);
            ck_assert_uint_gt(span->links[i].bytes_received, 0);
        }
        ck_assert_uint_gt(span->links[0].messages_sent, 0);
        ck_assert_uint_eq(span->links[1].lane, 0);
    }
    free_reports();
}
END_TEST

START_TEST(hvdd_is_told_which_ops_wait_on_each_node_and_where_its_ranks_stand)
{
    hvt_op_run(&hvt_nodes[0], 0, HVI_KIND_ALLREDUCE, 1, "w", 0);
    hvt_op_run(&hvt_nodes[1], 0, HVI_KIND_ALLREDUCE, 1, "v", 0);
    hvt_op_run(&hvt_nodes[1], 1, HVI_KIND_JOIN, 0, "join", 0);
    ask(0, HVI_QUERY_STALLS);
    ck_assert_uint_ge(report_of(0)->stall_count, 1);
    const struct hvi_stall_row *row = &report_of(0)->stalls[0];
    ck_assert_str_eq(row->tensor, "w");
    ck_assert_uint_eq(row->ready_count, 1);
    ck_assert_int_eq(row->ready[0], 0);
    ck_assert_uint_ge(row->missing_count, 1);
    ck_assert_int_eq(row->missing[0].rank, 2);
    ck_assert_uint_eq(report_of(1)->span.standing_count, HVT_SEATS);
    const struct hvi_missing_rank *standing = report_of(1)->span.standing;
    ck_assert_int_eq(standing[0].rank, 1);
    ck_assert_int_eq(standing[0].pid, getpid());
    ck_assert_str_eq(standing[0].waits_in, "allreduce 'v'");
    ck_assert_int_eq(standing[1].rank, 3);
    ck_assert_str_eq(standing[1].process, "joined");
    free_reports();
}
END_TEST

START_TEST(hvdd_gets_the_ops_of_all_nodes_by_one_clock)
{
    const uint64_t before_ns = hvi_clock_ns();

    hvt_nodes_step("a");
    ask(0, HVI_QUERY_TRACE);
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        ck_assert_uint_eq(report_of(n)->trace_count, HVT_SEATS);
        for (int32_t seat = 0; seat < HVT_SEATS; seat++) {
            const struct hvi_trace_row *row = &report_of(n)->traces[seat];
            ck_assert_str_eq(row->tensor, "a");
            ck_assert_str_eq(row->op, "allreduce");
            ck_assert_int_eq(row->status, HVI_OK);
            ck_assert_uint_ge(row->done_ns, row->submit_ns);
            /* By this node's clock, as far as the way there and back lets know. */
            ck_assert_uint_gt(row->done_ns + HVI_NS_SEC, before_ns);
            ck_assert_uint_lt(row->submit_ns, hvi_clock_ns() + HVI_NS_SEC);
        }
    }
    free_reports();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/nodes");
    TCase *tcase = tcase_create("nodes"), *figures = tcase_create("figures");

    tcase_add_checked_fixture(tcase, set_up, hvt_nodes_close);
    tcase_add_test(tcase, an_op_of_all_nodes_gives_every_rank_the_same);
    tcase_add_test(tcase, an_engine_awaits_other_nodes_while_an_op_waits);
    tcase_add_test(tcase, a_work_to_which_a_rank_does_not_come_is_asked_back_and_done_when_it_does);
    tcase_add_test(tcase, a_step_that_moves_is_not_asked_back);
    tcase_add_loop_test(
        tcase, a_work_that_repeats_ends_with_the_reason_when_a_rank_of_another_node_goes, 0, 2);
    tcase_add_loop_test(tcase, a_connection_that_ends_waits_for_its_reason, 0, 2);
    tcase_add_test(tcase, an_engine_that_stood_still_hears_the_reason_first);
    tcase_add_test(tcase, a_node_whose_control_connection_ends_is_lost);
    tcase_add_test(tcase, a_node_whose_ranks_have_all_left_ends_in_order);
    tcase_add_test(tcase, a_job_that_is_stopped_on_one_node_ends_on_all);
    tcase_add_test(tcase, hvdd_is_told_which_ops_wait_on_each_node_and_where_its_ranks_stand);
    tcase_add_test(tcase, hvdd_gets_the_ops_of_all_nodes_by_one_clock);
    suite_add_tcase(suite, tcase);
    tcase_set_tags(figures, "tcp-info"); /* an emulated kernel gives less of it: scripts/arm.sh */
    tcase_add_checked_fixture(figures, set_up, hvt_nodes_close);
    tcase_add_loop_test(figures, hvdd_is_told_of_the_ranks_of_all_nodes_and_of_their_connections, 0,
                        HVT_NODES);
    suite_add_tcase(suite, figures);
    return hvt_run_suite(suite);
}
