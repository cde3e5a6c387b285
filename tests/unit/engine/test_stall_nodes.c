/* SPDX-License-Identifier: Apache-2.0
 * Stalls of a job on two nodes: what each node says, the root of what none of its ranks has brought. One node alone:
 * test_stall.c. */
#include "base/clock.h"
#include "base/status.h"
#include "daemon/engine/watch/stall.h"
#include "tests/unit/engine/hvt_nodes.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define WARN_S 100 /* no real time in this test */
#define ACT_S  1000

static char words[128];

static struct engine_watch *watch_of(uint32_t node)
{
    return &hvt_nodes[node].engine->watch;
}

static void set_policy(enum engine_stall_policy policy)
{
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        watch_of(n)->stall_warn_ns = WARN_S * HVI_NS_SEC;
        watch_of(n)->stall_act_ns = ACT_S * HVI_NS_SEC;
        watch_of(n)->stall_policy = policy;
    }
}

static void set_up(void)
{
    hvt_log_open();
    hvt_nodes_open(NULL, 0);
    set_policy(ENGINE_STALL_WARN);
}

static void bring(uint32_t node, int32_t seat, const char *name, uint32_t set)
{
    hvt_op_run(&hvt_nodes[node], seat, HVI_KIND_ALLREDUCE, 1, name, set);
}

/* What nodes have said to each other has come. */
static void settle(void)
{
    uint64_t end_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_MS);

    while (!hvi_deadline_passed(end_ns))
        hvt_nodes_turn();
}

/* As if so many seconds had passed. */
static void look_after(uint32_t node, uint64_t seconds)
{
    engine_stall_look(watch_of(node), hvi_clock_ns() + seconds * HVI_NS_SEC);
}

static void expect_notice(uint32_t node, int32_t seat, const char *text)
{
    struct hvi_packet_msg msg;

    ck_assert(hvt_peer_expect(&hvt_nodes[node].peers[seat], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, HVI_INPROGRESS);
    ck_assert_msg(
        strstr(msg.notice.text, "waiting for remainder of ranks for more than 100 seconds"), "%s",
        msg.notice.text);
    ck_assert_msg(strstr(msg.notice.text, text), "'%s' is not in '%s'", text, msg.notice.text);
    hvi_packet_msg_free(&msg);
}

static void expect_log(const char *text)
{
    ck_assert_msg(hvt_log_count(text) == 1, "%d times in the log: %s", hvt_log_count(text), text);
}

/* ---- warnings ---- */

START_TEST(a_node_says_which_of_its_ranks_are_missing_and_the_root_which_of_others)
{
    bring(0, 0, "w", 0);
    settle();
    look_after(0, WARN_S + 1);
    snprintf(words, sizeof words, "allreduce waits for rank 2 (pid %d, ", (int)getpid());
    expect_log(words);
    expect_notice(0, 0, "\n2: [w] (pid ");
    expect_notice(0, 1, "\n2: [w] (pid ");
    bring(0, 1, "w", 0);
    bring(1, 0, "w", 0); /* its node has said nothing yet: rank 3 is missing there */
    settle();
    look_after(0, 2 * WARN_S + 3);
    expect_log("allreduce waits for ranks 1,3 on node 1 (h1)");
    expect_notice(0, 0, "\nranks 1,3 on node 1 (h1): [w]");
    look_after(1, WARN_S + 1);
    snprintf(words, sizeof words, "allreduce waits for rank 3 (pid %d, ", (int)getpid());
    expect_log(words);
    expect_notice(1, 1, "\n3: [w] (pid ");
    bring(1, 1, "w", 0);
    hvt_nodes_expect_all(HVI_OK, "");
}
END_TEST

START_TEST(another_node_knows_that_it_waits_for_nodes_and_the_root_for_which)
{
    bring(1, 0, "w", 0);
    bring(1, 1, "w", 0);
    settle();
    look_after(1, WARN_S + 1);
    expect_log("allreduce waits for ranks on node 0 (h0) (the log of rank 0's node and hvdctl "
               "stalls say which)");
    expect_notice(1, 0, "\nranks on node 0 (h0) (the log of rank 0's node");
    look_after(0, WARN_S / 2);
    ck_assert(!hvt_peer_has_message(&hvt_nodes[0].peers[0]));
    look_after(0, WARN_S + 1);
    expect_log("allreduce of ranks on other nodes waits for ranks 0,2 on node 0 (h0)");
    for (int32_t seat = 0; seat < HVT_SEATS; seat++)
        expect_notice(0, seat, "\nranks 0,2 on node 0 (h0): [w]");
    look_after(0, WARN_S + 2);
    ck_assert(!hvt_peer_has_message(&hvt_nodes[0].peers[0]));
    look_after(0, 2 * WARN_S + 3);
    expect_notice(0, 0, "\nranks 0,2 on node 0 (h0): [w]");
    bring(0, 0, "w", 0); /* now it is an op of this node */
    settle();
    look_after(0, 4 * WARN_S);
    expect_notice(0, 1, "\nranks 0,2 on node 0 (h0): [w]");
    expect_notice(0, 1, "\n2: [w] (pid ");
    ck_assert(!hvt_peer_has_message(&hvt_nodes[0].peers[1]));
}
END_TEST

static void add_set(const int64_t *ranks, uint32_t count)
{
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++) {
            struct hvi_submission op = hvt_op(&hvt_nodes[n], seat, HVI_KIND_SET_ADD, 0, "add", 0);
            hvt_op_integers(&hvt_nodes[n], seat, &op, ranks, count);
            hvt_op_submit(&hvt_nodes[n], seat, op);
        }
    }
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        for (int32_t seat = 0; seat < HVT_SEATS; seat++)
            ck_assert_int_eq(hvt_nodes_expect(n, seat, HVI_OK, "").rows, 1);
    }
}

START_TEST(a_rank_hears_of_ops_of_its_own_sets_alone)
{
    const int64_t ranks[] = {1, 2, 3};

    add_set(ranks, 3);
    bring(1, 0, "w", 1);
    bring(1, 1, "w", 1);
    settle();
    look_after(0, WARN_S + 1);
    expect_notice(0, 1, "\nrank 2 on node 0 (h0): [w]");
    ck_assert(!hvt_peer_has_message(&hvt_nodes[0].peers[0]));
}
END_TEST

/* Of each node one rank has joined, and does not miss the others. That rank 3 has, the root does not know: a node
 * reports a join when all its ranks have joined. */
START_TEST(a_rank_that_has_joined_is_not_missed_on_its_node_and_its_join_is_no_stall)
{
    for (uint32_t n = 0; n < HVT_NODES; n++)
        hvt_op_run(&hvt_nodes[n], 1, HVI_KIND_JOIN, 0, "join", 0);
    settle();
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        look_after(n, WARN_S + 1);
        ck_assert(!hvt_peer_has_message(&hvt_nodes[n].peers[0]));
    }
    bring(0, 0, "w", 0);
    settle();
    look_after(0, 2 * WARN_S + 3);
    expect_log("allreduce waits for ranks 1,3 on node 1 (h1)");
    set_policy(ENGINE_STALL_FAIL_OP);
    look_after(0, ACT_S + 1);
    hvt_nodes_expect(0, 0, HVI_ERR_STALLED, "for ranks 1,3 on node 1 (h1): more than the 1000 s");
    settle();
    hvt_op_expect_nothing(&hvt_nodes[0], 1, 1);
    hvt_op_expect_nothing(&hvt_nodes[1], 1, 1);
}
END_TEST

START_TEST(ranks_are_told_by_their_nodes_and_the_rest_is_counted)
{
    const int32_t ranks[] = {0, 1, 2, 3, 4};
    char text[128];

    engine_stall_describe_ranks(watch_of(1), ranks, 4, 9, text, sizeof text);
    ck_assert_str_eq(text, "ranks 0,2 on node 0 (h0), ranks 1,3 on node 1 (h1) and 5 more");
    engine_stall_describe_ranks(watch_of(0), ranks + 2, 3, 3, text, sizeof text);
    ck_assert_str_eq(text, "rank 2 on node 0 (h0), rank 3 on node 1 (h1), rank 4");
    engine_stall_describe_ranks(watch_of(0), ranks, 4, 4, text, 17); /* what does not fit is cut */
    ck_assert_str_eq(text, "ranks 0,2 on nod");
}
END_TEST

/* ---- policies ---- */

START_TEST(fail_op_on_one_node_fails_the_op_on_all)
{
    set_policy(ENGINE_STALL_FAIL_OP);
    bring(0, 0, "w", 0);
    bring(0, 1, "w", 0);
    bring(1, 0, "w", 0);
    settle();
    look_after(0, ACT_S + 1);
    for (int32_t seat = 0; seat < HVT_SEATS; seat++)
        hvt_nodes_expect(0, seat, HVI_ERR_STALLED,
                         "s for ranks 1,3 on node 1 (h1): more than the 1000 s that "
                         "HVD_STALL_POLICY=fail-op allows");
    hvt_nodes_expect(1, 0, HVI_ERR_STALLED, "allreduce 'w' has waited ");
    hvt_nodes_step("v"); /* the job goes on */
}
END_TEST

START_TEST(stop_job_on_one_node_ends_the_job_on_all)
{
    set_policy(ENGINE_STALL_STOP_JOB);
    bring(1, 0, "w", 0);
    bring(0, 0, "v", 0);
    settle();
    look_after(1, ACT_S + 1);
    for (uint32_t n = 0; n < HVT_NODES; n++)
        hvt_nodes_expect(n, 0, HVI_ERR_JOB_STOPPED,
                         "job 'test-job' was stopped on h1: allreduce 'w' has waited 100");
}
END_TEST

/* ---- rows ---- */

static void expect_elsewhere(uint32_t node)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    ck_assert_int_eq(engine_stall_rows(watch_of(node), 0, 9, &rows, &count, &left_out), HVI_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(rows[0].ready_count, HVT_SEATS);
    ck_assert_uint_eq(rows[0].missing_count, HVT_SEATS);
    for (int32_t i = 0; i < HVT_SEATS; i++) {
        ck_assert_int_eq(rows[0].missing[i].rank, 1 - (int32_t)node + 2 * i);
        ck_assert_str_eq(rows[0].missing[i].process, "elsewhere");
        ck_assert_str_eq(rows[0].missing[i].waits_in, "on another node");
    }
    engine_stall_rows_free(rows, count);
}

START_TEST(a_row_has_the_ranks_of_other_nodes)
{
    const uint32_t node = (uint32_t)_i;

    bring(node, 0, "w", 0);
    bring(node, 1, "w", 0);
    settle();
    expect_elsewhere(node);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/stall_nodes");
    TCase *tcase = tcase_create("stall_nodes");

    tcase_add_checked_fixture(tcase, set_up, hvt_nodes_close);
    tcase_add_test(tcase, a_node_says_which_of_its_ranks_are_missing_and_the_root_which_of_others);
    tcase_add_test(tcase, another_node_knows_that_it_waits_for_nodes_and_the_root_for_which);
    tcase_add_test(tcase, a_rank_hears_of_ops_of_its_own_sets_alone);
    tcase_add_test(tcase, ranks_are_told_by_their_nodes_and_the_rest_is_counted);
    tcase_add_test(tcase,
                   a_rank_that_has_joined_is_not_missed_on_its_node_and_its_join_is_no_stall);
    tcase_add_test(tcase, fail_op_on_one_node_fails_the_op_on_all);
    tcase_add_test(tcase, stop_job_on_one_node_ends_the_job_on_all);
    tcase_add_loop_test(tcase, a_row_has_the_ranks_of_other_nodes, 0, HVT_NODES);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
