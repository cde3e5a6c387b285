/* SPDX-License-Identifier: Apache-2.0
 * The real hvdd-engine from its first message to its end, with the test as hvdd and as trainers. */
#include "base/status.h"
#include "tests/unit/engine/hvt_peer.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hvt_node node;
static struct hvt_peer peers[4];
static int32_t size;

static void start(int32_t ranks, const struct hvi_engine_start *engine_start)
{
    size = ranks;
    hvt_node_start(&node, engine_start);
    for (int32_t rank = 0; rank < ranks; rank++) {
        hvt_peer_init(&peers[rank], rank, ranks, 0);
        ck_assert_int_eq(hvt_node_adopt(&node, &peers[rank], NULL, 0), HVI_OK);
    }
}

static void start_default(int32_t ranks)
{
    struct hvi_engine_start engine_start = hvt_node_defaults(ranks);

    start(ranks, &engine_start);
}

static void fini(void)
{
    for (int32_t rank = 0; rank < size; rank++)
        hvt_peer_fini(&peers[rank]);
    hvt_node_fini(&node);
}

static void detach(struct hvt_peer *peer)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};

    msg.detach.request = ++peer->request;
    hvt_peer_send(peer, &msg, -1);
    ck_assert(hvt_peer_expect(peer, HVI_PACKET_ACK, &msg));
}

static void submit(int32_t rank, uint16_t kind, uint64_t count, uint32_t region, const char *name)
{
    struct hvi_submission op = hvt_peer_op(&peers[rank], kind, HVI_DTYPE_FLOAT32, count, region);

    hvt_peer_name(&peers[rank], &op, (uint32_t)(unsigned char)name[0], name);
    hvt_peer_submit(&peers[rank], &op);
}

static void expect_all(int status)
{
    for (int32_t rank = 0; rank < size; rank++)
        ck_assert_int_eq(hvt_peer_complete(&peers[rank], NULL, 0).status, status);
}

START_TEST(small_ops_flow_and_the_engine_ends_with_the_last_rank)
{
    start_default(4);
    for (int i = 0; i < 2000; i++) {
        for (int32_t rank = 0; rank < 4; rank++) {
            *(float *)hvt_peer_memory(&peers[rank], 0) = (float)(rank + i);
            submit(rank, HVI_KIND_ALLREDUCE, 1, 0, "w");
        }
        expect_all(HVI_OK);
        for (int32_t rank = 0; rank < 4; rank++) {
            if (*(float *)hvt_peer_memory(&peers[rank], 0) != (float)(4 * i + 6))
                ck_abort_msg("round %d, rank %d", i, rank);
        }
    }
    for (int32_t rank = 0; rank < 4; rank++)
        detach(&peers[rank]);
    ck_assert_int_eq(hvt_node_wait(&node), 0);
    fini();
}
END_TEST

/* Odd sizes around the borders of chunks and of the inline path, through the worker threads. */
START_TEST(large_ops_are_cut_in_pieces_and_put_together)
{
    static const uint64_t counts[] = {16383, 16384, 16385, 65536, 65537, 1 << 20, 1234567};

    start_default(3);
    for (int32_t rank = 0; rank < 3; rank++)
        ck_assert_int_eq(hvt_peer_add_region(&peers[rank], 1, 5 << 20), HVI_OK);
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (int32_t rank = 0; rank < 3; rank++) {
            float *data = hvt_peer_memory(&peers[rank], 1);
            for (uint64_t i = 0; i < counts[c]; i++)
                data[i] = (float)((i % 1000) * (uint64_t)(rank + 1));
            data[counts[c]] = -1;
            submit(rank, HVI_KIND_ALLREDUCE, counts[c], 1, "w");
        }
        expect_all(HVI_OK);
        for (int32_t rank = 0; rank < 3; rank++) {
            const float *data = hvt_peer_memory(&peers[rank], 1);
            for (uint64_t i = 0; i < counts[c]; i++) {
                if (data[i] != (float)(6 * (i % 1000)))
                    ck_abort_msg("rank %d element %lu of %lu", rank, (unsigned long)i,
                                 (unsigned long)counts[c]);
            }
            ck_assert_float_eq(data[counts[c]], -1);
        }
    }
    fini();
}
END_TEST

START_TEST(broadcast_brings_the_roots_bytes_everywhere)
{
    start_default(3);
    for (int32_t rank = 0; rank < 3; rank++)
        ck_assert_int_eq(hvt_peer_add_region(&peers[rank], 1, 1 << 20), HVI_OK);
    for (int32_t rank = 0; rank < 3; rank++) {
        uint8_t *data = hvt_peer_memory(&peers[rank], 1);
        for (uint32_t i = 0; i < 1 << 20; i++)
            data[i] = (uint8_t)(i * 7 + (uint32_t)rank);
        struct hvi_submission op =
            hvt_peer_op(&peers[rank], HVI_KIND_BROADCAST, HVI_DTYPE_UINT8, 1 << 20, 1);
        op.root = 2;
        hvt_peer_name(&peers[rank], &op, 1, "b");
        hvt_peer_submit(&peers[rank], &op);
    }
    expect_all(HVI_OK);
    ck_assert_mem_eq(hvt_peer_memory(&peers[0], 1), hvt_peer_memory(&peers[2], 1), 1 << 20);
    ck_assert_mem_eq(hvt_peer_memory(&peers[1], 1), hvt_peer_memory(&peers[2], 1), 1 << 20);
    ck_assert_int_eq(((uint8_t *)hvt_peer_memory(&peers[0], 1))[1], 9);
    fini();
}
END_TEST

START_TEST(a_burst_larger_than_one_batch_is_done_completely)
{
    char name[16];

    start_default(2);
    for (int i = 0; i < 1000; i++) {
        snprintf(name, sizeof name, "t%d", i);
        for (int32_t rank = 0; rank < 2; rank++) {
            struct hvi_submission op =
                hvt_peer_op(&peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_INT32, 128, 0);
            op.in_offset = op.out_offset = 512 * (uint64_t)i;
            ((int32_t *)hvt_peer_memory(&peers[rank], 0))[128 * i + 127] = i * (rank + 1);
            hvt_peer_name(&peers[rank], &op, (uint32_t)i, name);
            hvt_peer_submit(&peers[rank], &op);
        }
    }
    for (int i = 0; i < 1000; i++)
        expect_all(HVI_OK);
    for (int i = 0; i < 1000; i++)
        ck_assert_int_eq(((int32_t *)hvt_peer_memory(&peers[1], 0))[128 * i + 127], 3 * i);
    fini();
}
END_TEST

/* The engine sleeps in epoll between these. */
START_TEST(an_engine_that_sleeps_is_woken)
{
    start_default(2);
    for (int i = 0; i < 20; i++) {
        uint64_t until_ns = hvi_clock_ns() + 3 * HVI_NS_MS;
        uint64_t deadline_ns = hvi_clock_ns() + HVT_DEADLINE_NS;
        while (hvi_clock_ns() < until_ns || !atomic_load(&peers[0].bell->engine_sleeping)) {
            ck_assert_msg(hvi_clock_ns() < deadline_ns, "an idle engine does not sleep");
            usleep(500);
        }
        submit(0, HVI_KIND_BARRIER, 0, 0, "b");
        usleep(1000);
        submit(1, HVI_KIND_BARRIER, 0, 0, "b");
        expect_all(HVI_OK);
    }
    fini();
}
END_TEST

static long cpu_ticks(pid_t pid)
{
    char path[64], text[1024];
    long user = 0, system = 0;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(text, sizeof text, file));
    fclose(file);
    ck_assert_int_eq(sscanf(strrchr(text, ')') + 2,
                            "%*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %ld %ld", &user, &system),
                     2);
    return user + system;
}

START_TEST(an_idle_engine_uses_no_processor_time)
{
    start_default(2);
    submit(0, HVI_KIND_BARRIER, 0, 0, "b");
    submit(1, HVI_KIND_BARRIER, 0, 0, "b");
    expect_all(HVI_OK);
    usleep(20 * 1000);
    long before = cpu_ticks(node.pid);
    usleep(500 * 1000); /* the measured span */
    ck_assert_int_le(cpu_ticks(node.pid) - before, 1);
    fini();
}
END_TEST

START_TEST(a_query_is_answered_with_ranks_and_stalls)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_QUERY};

    start_default(2);
    submit(1, HVI_KIND_ALLREDUCE, 4, 0, "w1");
    msg.engine_query.request = 5;
    msg.engine_query.what = HVI_QUERY_RANKS;
    hvt_node_send(&node, &msg, NULL, 0);
    ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_REPORT, &msg));
    ck_assert_uint_eq(msg.engine_report.request, 5);
    ck_assert_uint_eq(msg.engine_report.rank_count, 2);
    ck_assert_str_eq(msg.engine_report.ranks[0].state, "attached");
    ck_assert_ptr_nonnull(strstr("RS", msg.engine_report.ranks[0].process));
    ck_assert_int_eq(msg.engine_report.ranks[1].pid, getpid());
    hvi_packet_msg_free(&msg);
    for (size_t found = 0; found == 0;) { /* until the submission has been taken in */
        msg = (struct hvi_packet_msg){.kind = HVI_PACKET_ENGINE_QUERY};
        msg.engine_query.request = 6;
        msg.engine_query.what = HVI_QUERY_STALLS;
        hvt_node_send(&node, &msg, NULL, 0);
        ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_REPORT, &msg));
        found = msg.engine_report.stall_count;
        if (found > 0) {
            ck_assert_str_eq(msg.engine_report.stalls[0].tensor, "w1");
            ck_assert_int_eq(msg.engine_report.stalls[0].missing[0].rank, 0);
        }
        hvi_packet_msg_free(&msg);
    }
    fini();
}
END_TEST

START_TEST(stopping_the_job_tells_everybody_and_ends_the_engine)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_STOP};
    char text[HVI_TEXT_MAX + 1];

    start_default(2);
    submit(0, HVI_KIND_BARRIER, 0, 0, "b");
    snprintf(msg.engine_stop.reason, sizeof msg.engine_stop.reason, "the operator said so");
    hvt_node_send(&node, &msg, NULL, 0);
    for (int32_t rank = 0; rank < 2; rank++) {
        ck_assert(hvt_peer_expect(&peers[rank], HVI_PACKET_NOTICE, &msg));
        ck_assert_int_eq(msg.notice.status, HVI_ERR_JOB_STOPPED);
        ck_assert(msg.notice.session_ended);
        ck_assert_str_eq(msg.notice.text, "job 'test-job' was stopped: the operator said so");
        ck_assert(!hvt_peer_expect(&peers[rank], HVI_PACKET_NOTICE, &msg));
    }
    struct hvi_completion done = hvt_peer_complete(&peers[0], text, sizeof text);
    ck_assert_int_eq(done.status, HVI_ERR_JOB_STOPPED);
    ck_assert_int_eq(hvt_node_wait(&node), 0);
    fini();
}
END_TEST

START_TEST(terminating_the_engine_stops_the_job)
{
    struct hvi_packet_msg msg;

    start_default(1);
    kill(node.pid, SIGTERM);
    ck_assert(hvt_peer_expect(&peers[0], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, HVI_ERR_JOB_STOPPED);
    ck_assert_int_eq(hvt_node_wait(&node), 0);
    fini();
}
END_TEST

START_TEST(nobody_coming_ends_the_engine_by_itself)
{
    struct hvi_engine_start engine_start = hvt_node_defaults(2);
    uint64_t start_ns = hvi_clock_ns();

    hvt_node_start(&node, &engine_start);
    ck_assert_int_eq(hvt_node_wait(&node), 0);
    ck_assert_uint_ge(hvi_clock_ns() - start_ns, HVI_NS_SEC);
    size = 0;
    fini();
}
END_TEST

/* ---- hvdd gone ---- */

START_TEST(a_job_survives_its_hvdd_and_finds_the_next_one)
{
    struct hvi_engine_start engine_start = hvt_node_defaults(2);
    char directory[] = "/tmp/hvt-engine-XXXXXX", path[64];
    struct hvi_packet_msg msg;

    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/attach.sock", directory);
    snprintf(engine_start.attach_path, sizeof engine_start.attach_path, "%s", path);
    start(2, &engine_start);
    close(node.link);
    for (int i = 0; i < 100; i++) {
        submit(0, HVI_KIND_ALLREDUCE, 4, 0, "w");
        submit(1, HVI_KIND_ALLREDUCE, 4, 0, "w");
        expect_all(HVI_OK);
    }
    int listener = hvt_listen(directory, "attach.sock", SOCK_SEQPACKET);
    node.link = accept(listener, NULL, NULL);
    ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_HELLO, &msg));
    ck_assert_str_eq(msg.engine_hello.job, HVT_JOB);
    ck_assert_int_eq(msg.engine_hello.pid, node.pid);
    ck_assert_uint_eq(msg.engine_hello.generation, 1);
    ck_assert_uint_eq(msg.engine_hello.rank_count, 2);
    ck_assert_str_eq(msg.engine_hello.ranks[1].state, "attached");
    hvi_packet_msg_free(&msg);
    detach(&peers[1]);
    ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_SESSION, &msg));
    ck_assert_uint_eq(msg.engine_session.state, HVI_SESSION_STATE_LEFT);
    detach(&peers[0]);
    ck_assert_int_eq(hvt_node_wait(&node), 0);
    close(listener);
    unlink(path);
    rmdir(directory);
    fini();
}
END_TEST

START_TEST(without_hvdd_and_ranks_the_engine_ends)
{
    struct hvi_engine_start engine_start = hvt_node_defaults(2);
    uint64_t start_ns = hvi_clock_ns();

    size = 0;
    hvt_node_start(&node, &engine_start);
    close(node.link);
    node.link = -1;
    ck_assert_int_eq(hvt_node_wait(&node), 0);
    ck_assert_uint_lt(hvi_clock_ns() - start_ns, hvt_patience(1500 * HVI_NS_MS));
    fini();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/process");
    TCase *tcase = tcase_create("process");

    tcase_add_test(tcase, small_ops_flow_and_the_engine_ends_with_the_last_rank);
    tcase_add_test(tcase, large_ops_are_cut_in_pieces_and_put_together);
    tcase_add_test(tcase, broadcast_brings_the_roots_bytes_everywhere);
    tcase_add_test(tcase, a_burst_larger_than_one_batch_is_done_completely);
    tcase_add_test(tcase, an_engine_that_sleeps_is_woken);
    tcase_add_test(tcase, an_idle_engine_uses_no_processor_time);
    tcase_add_test(tcase, a_query_is_answered_with_ranks_and_stalls);
    tcase_add_test(tcase, stopping_the_job_tells_everybody_and_ends_the_engine);
    tcase_add_test(tcase, terminating_the_engine_stops_the_job);
    tcase_add_test(tcase, nobody_coming_ends_the_engine_by_itself);
    tcase_add_test(tcase, a_job_survives_its_hvdd_and_finds_the_next_one);
    tcase_add_test(tcase, without_hvdd_and_ranks_the_engine_ends);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
