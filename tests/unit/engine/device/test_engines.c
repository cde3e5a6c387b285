/* SPDX-License-Identifier: Apache-2.0
 * Whole engines of two nodes, each with one rank, on a GPU of its own: rank n is on node n, on GPU n. The test is the
 * two workers. What the row does with a span is in test_nodes.c, what makes communicators in test_comm.c. */
#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/engine/device/hvt_gpus.h"
#include "tests/unit/engine/hvt_nodes.h"
#include "tests/unit/hvt_main.h"

#include <poll.h>
#include <string.h>

static struct hvt_gpus nodes[HVT_NODES];

static void turn(void)
{
    for (uint32_t n = 0; n < HVT_NODES; n++)
        hvt_gpus_turn(&nodes[n]);
}

static void turn_until(bool (*is_so)(void))
{
    const uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (!is_so()) {
        ck_assert(!hvi_deadline_passed(end_ns));
        turn();
    }
}

static bool have_met(void)
{
    return !nodes[0].bench.engine->sessions.held && !nodes[1].bench.engine->sessions.held;
}

/* Workers of node n give a communicator so long. */
static void open_nodes(const uint64_t comm_ns[HVT_NODES])
{
    struct hvt_bench *const benches[HVT_NODES] = {&nodes[0].bench, &nodes[1].bench};
    struct hvi_engine_start start = hvt_node_defaults((int32_t)HVT_NODES);

    start.seats = 1;
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        hvt_gpus_init_start(&nodes[n], &start);
        nodes[n].comm_ns = comm_ns[n];
        ck_assert_int_eq(hvt_bench_attach_seat(benches[n], 0, (int32_t)n, NULL, 0), HVI_OK);
    }
    hvt_nodes_introduce_benches(benches, 1);
    turn_until(have_met);
    for (uint32_t n = 0; n < HVT_NODES; n++)
        hvt_rank_use(&nodes[n], 0, n);
}

static void set_up(void)
{
    open_nodes((const uint64_t[]){60 * HVI_NS_SEC, 60 * HVI_NS_SEC});
}

static void tear_down(void)
{
    for (uint32_t n = 0; n < HVT_NODES; n++)
        hvt_gpus_fini(&nodes[n]);
}

/* Both ranks bring an allreduce, and their streams have come to it. */
static void bring(uint64_t of_cell)
{
    for (uint32_t n = 0; n < HVT_NODES; n++)
        hvt_gpu_run(&nodes[n], 0, HVI_KIND_ALLREDUCE, 100, "w", 1, of_cell);
}

/* Turns until the node's worker is told something, which is of this kind. */
static void hear(uint32_t node, enum hvi_gpu_kind kind, struct hvi_gpu_msg *msg_p)
{
    struct pollfd worker = {.fd = nodes[node].workers[node].socket, .events = POLLIN};
    const uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);

    while (poll(&worker, 1, 0) == 0) {
        ck_assert_msg(!hvi_deadline_passed(end_ns), "node %u: nothing of kind %d", node, (int)kind);
        turn();
    }
    ck_assert(hvt_gpu_hear(&nodes[node], node, kind, msg_p));
}

/* The node's worker is asked whether it can join, and says so, or why it cannot. */
static void say_id(uint32_t node, const char *why_not)
{
    struct hvi_gpu_msg msg, id = {.kind = HVI_GPU_COMM_ID};

    hear(node, HVI_GPU_COMM_ID, &msg);
    ck_assert_int_eq(msg.comm_id.check, node > 0);
    id.comm_id.request = msg.comm_id.request;
    id.comm_id.check = msg.comm_id.check;
    hvi_gpu_msg_free(&msg);
    memset(id.comm_id.id, node > 0 || why_not ? 0 : 7, sizeof id.comm_id.id);
    if (why_not)
        snprintf(id.comm_id.text, sizeof id.comm_id.text, "%s", why_not);
    hvt_gpu_say(&nodes[node], node, &id, NULL, 0);
}

static void make_comm(void)
{
    unsigned char due[HVI_NCCL_ID_BYTES];
    struct hvi_gpu_msg msg;

    memset(due, 7, sizeof due);
    for (uint32_t n = 0; n < HVT_NODES; n++)
        say_id(n, NULL);
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        hear(n, HVI_GPU_COMM_JOIN, &msg);
        ck_assert_uint_eq(msg.comm_join.rank, n);
        ck_assert_uint_eq(msg.comm_join.instance_count, 2);
        ck_assert_uint_eq(msg.comm_join.instances[0], 100);
        ck_assert_uint_eq(msg.comm_join.instances[1], 101);
        ck_assert(msg.comm_join.fresh);
        ck_assert_mem_eq(msg.comm_join.id, due, sizeof due);
        hvt_gpu_ack(&nodes[n], n, msg.comm_join.request, HVI_OK, "");
        hvi_gpu_msg_free(&msg);
    }
}

static bool have_batches(void)
{
    return hvt_gpu_has_batch(&nodes[0], 0) && hvt_gpu_has_batch(&nodes[1], 1);
}

static struct hvt_batch batches[HVT_NODES];

static void take_batches(void)
{
    turn_until(have_batches);
    for (uint32_t n = 0; n < HVT_NODES; n++) {
        batches[n] = hvt_gpu_take(&nodes[n], n);
        ck_assert_uint_eq(batches[n].head.comm_ranks, 2);
        ck_assert_uint_eq(batches[n].head.comm_rank, n);
        ck_assert_uint_eq(batches[n].works[0].members, 1);
        ck_assert_uint_eq(batches[n].members[0][0].place, n);
    }
}

static void finish(uint32_t node)
{
    hvt_gpu_finish(&nodes[node], node, &batches[node]);
}

/* The rank of this node is answered. */
static void expect(uint32_t node, int status, const char *words)
{
    struct hvt_peer *peer = &nodes[node].bench.peers[0];
    const uint64_t end_ns = hvi_deadline_after(HVT_DEADLINE_NS);
    char text[HVI_TEXT_MAX + 1];

    while (!hvt_peer_has_completion(peer)) {
        ck_assert_msg(!hvi_deadline_passed(end_ns), "rank %u has no answer", node);
        turn();
    }
    struct hvi_completion done = hvt_peer_complete(peer, text, sizeof text);
    ck_assert_msg(done.status == status && strstr(text, words), "rank %u: status %d: %s", node,
                  done.status, text);
}

static void expect_both(int status, const char *words)
{
    for (uint32_t n = 0; n < HVT_NODES; n++)
        expect(n, status, words);
}

/* ---- ops ---- */

START_TEST(an_op_is_over_when_the_workers_of_both_nodes_have_done_it)
{
    for (uint64_t of_cell = 1; of_cell <= 2; of_cell++) {
        bring(of_cell);
        if (of_cell == 1) /* once */
            make_comm();
        take_batches();
        finish((uint32_t)_i);
        for (int i = 0; i < 10; i++)
            turn();
        for (uint32_t n = 0; n < HVT_NODES; n++)
            hvt_op_expect_nothing(&nodes[n].bench, 0, 0);
        finish(1 - (uint32_t)_i);
        expect_both(HVI_OK, "");
    }
}
END_TEST

START_TEST(what_fails_on_the_gpu_of_one_node_fails_on_both)
{
    const uint32_t bad = (uint32_t)_i;

    bring(1);
    make_comm();
    take_batches();
    finish(1 - bad);
    hvt_gpu_done(&nodes[bad], bad, batches[bad].head.number, HVI_ERR_NO_MEMORY,
                 "64 MiB of staging memory");
    expect_both(HVI_ERR_NO_MEMORY, "64 MiB of staging memory");
    for (uint32_t n = 0; n < HVT_NODES; n++)
        ck_assert_int_eq(nodes[n].bench.engine->order.broken_status, HVI_OK);
}
END_TEST

/* ---- communicators ---- */

START_TEST(a_communicator_that_one_node_cannot_make_fails_the_op_on_both)
{
    const uint32_t bad = (uint32_t)_i;

    bring(1);
    say_id(1 - bad, NULL);
    say_id(bad, "the communicator needs NCCL, and libnccl.so.2 is not there");
    expect_both(HVI_ERR_UNSUPPORTED, "libnccl.so.2 is not there");
    for (uint32_t n = 0; n < HVT_NODES; n++)
        ck_assert_int_eq(nodes[n].bench.engine->order.broken_status, HVI_OK);
}
END_TEST

/* The workers of node 0 have no more time than this for the other node's. */
START_TEST(a_node_that_says_nothing_of_a_communicator_is_named)
{
    tear_down();
    open_nodes((const uint64_t[]){500 * HVI_NS_MS, 60 * HVI_NS_SEC});
    bring(1);
    say_id(0, NULL);
    expect_both(HVI_ERR_TIMEOUT, "node 1 (h1) has not answered in time: a communicator of 2 GPUs");
}
END_TEST

/* ---- the job breaks ---- */

START_TEST(a_worker_that_is_lost_breaks_the_job_on_both_nodes)
{
    bring(1);
    make_comm();
    take_batches();
    hvt_gpu_die(&nodes[1], 1);
    hvt_gpu_is_gone(&nodes[1], 1, "it was killed by signal 9 (SIGKILL)");
    finish(0); /* it has what the other worker did not bring */
    expect_both(HVI_ERR_WORKER_LOST, "is lost: it was killed by signal 9 (SIGKILL)");
}
END_TEST

START_TEST(an_op_that_waits_for_its_communicator_ends_with_the_job)
{
    struct hvi_gpu_msg msg;

    bring(1);
    hear(0, HVI_GPU_COMM_ID, &msg); /* which has no answer */
    hvi_gpu_msg_free(&msg);
    close(nodes[1].bench.peers[0].socket);
    nodes[1].bench.peers[0].socket = -1;
    expect(0, HVI_ERR_RANK_LOST, "rank 1 on h1");
    hear(0, HVI_GPU_COMM_DROP, &msg);
    ck_assert(msg.comm_drop.abort);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/device/engines");
    TCase *tcase = tcase_create("engines");

    tcase_set_timeout(tcase, 30);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, an_op_is_over_when_the_workers_of_both_nodes_have_done_it, 0, 2);
    tcase_add_loop_test(tcase, what_fails_on_the_gpu_of_one_node_fails_on_both, 0, 2);
    tcase_add_loop_test(tcase, a_communicator_that_one_node_cannot_make_fails_the_op_on_both, 0, 2);
    tcase_add_test(tcase, a_node_that_says_nothing_of_a_communicator_is_named);
    tcase_add_test(tcase, a_worker_that_is_lost_breaks_the_job_on_both_nodes);
    tcase_add_test(tcase, an_op_that_waits_for_its_communicator_ends_with_the_job);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
