/* SPDX-License-Identifier: Apache-2.0
 * Trainers that die: a child process stands for each rank, so that the engine meets a real pid, a
 * real pidfd and a real end. The peers learn who, which pid and how, within 100 ms. */
#include "base/status.h"
#include "tests/unit/engine/hvt_peer.h"
#include "tests/unit/hvt_main.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define LIMIT_NS (100 * HVI_NS_MS)

static struct hvt_node node;
static struct hvt_peer peers[3];

static pid_t sleeper(void)
{
    pid_t pid = fork();

    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (int fd = 3; fd < 1024; fd++) /* the socket of its rank is held by the test alone */
            close(fd);
        for (;;)
            pause();
    }
    return pid;
}

/* The first `count` ranks come. */
static void start_some(int32_t count)
{
    struct hvi_engine_start engine_start = hvt_node_defaults(3);

    hvt_node_start(&node, &engine_start);
    for (int32_t rank = 0; rank < 3; rank++) {
        hvt_peer_init(&peers[rank], rank, 3, sleeper());
        ck_assert_int_ge(peers[rank].pid_fd, 0);
        if (rank < count)
            ck_assert_int_eq(hvt_node_adopt(&node, &peers[rank], NULL, 0), HVI_OK);
    }
}

static void start(void)
{
    start_some(3);
}

static void fini(void)
{
    for (int32_t rank = 0; rank < 3; rank++) {
        kill(peers[rank].pid, SIGKILL);
        waitpid(peers[rank].pid, NULL, 0);
        hvt_peer_fini(&peers[rank]);
    }
    hvt_node_fini(&node);
}

static void submit(int32_t rank, const char *name)
{
    struct hvi_submission op =
        hvt_peer_op(&peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 4, 0);

    hvt_peer_name(&peers[rank], &op, (uint32_t)(unsigned char)name[0], name);
    hvt_peer_submit(&peers[rank], &op);
}

static void expect_lost(int32_t rank, uint64_t since_ns, const char *how)
{
    char text[HVI_TEXT_MAX + 1], expected[256];
    struct hvi_completion done = hvt_peer_complete(&peers[rank], text, sizeof text);

    ck_assert_uint_lt(hvi_clock_ns() - since_ns, hvt_patience(LIMIT_NS));
    snprintf(expected, sizeof expected, "rank 2 (pid %d) %s", (int)peers[2].pid, how);
    ck_assert_str_eq(text, expected);
    ck_assert_int_eq(done.status, HVI_ERR_RANK_LOST);
    ck_assert_int_eq(done.culprit, 2);
}

static void expect_told(const char *how)
{
    char expected[256];
    struct hvi_packet_msg msg;

    snprintf(expected, sizeof expected, "rank 2 (pid %d) %s", (int)peers[2].pid, how);
    ck_assert(hvt_peer_expect(&peers[1], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, HVI_ERR_RANK_LOST);
    ck_assert_int_eq(msg.notice.rank, 2);
    ck_assert_int_eq(msg.notice.pid, peers[2].pid);
    ck_assert_str_eq(msg.notice.text, expected);
    ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_SESSION, &msg));
    ck_assert_uint_eq(msg.engine_session.state, HVI_SESSION_STATE_LOST);
    ck_assert_int_eq(msg.engine_session.rank, 2);
    ck_assert_str_eq(msg.engine_session.text, expected);
}

/* Its socket stays open in another process: the pidfd tells. */
START_TEST(a_killed_rank_fails_the_others_ops_by_name_pid_and_signal)
{
    static const char how[] = "was killed by signal 9 (SIGKILL)";

    start();
    submit(0, "w");
    submit(1, "w");
    uint64_t now_ns = hvi_clock_ns();
    kill(peers[2].pid, SIGKILL);
    expect_lost(0, now_ns, how);
    expect_lost(1, now_ns, how);
    expect_told(how);
    submit(0, "x"); /* and whatever comes later */
    expect_lost(0, hvi_clock_ns(), how);
    fini();
}
END_TEST

START_TEST(a_rank_that_submitted_before_it_died_fails_the_same)
{
    static const char how[] = "was killed by signal 10 (SIGUSR1)";

    start();
    submit(2, "w");
    submit(0, "w");
    uint64_t now_ns = hvi_clock_ns();
    kill(peers[2].pid, SIGUSR1);
    expect_lost(0, now_ns, how);
    fini();
}
END_TEST

START_TEST(the_last_submission_of_a_dead_rank_still_counts)
{
    start();
    submit(0, "w");
    submit(1, "w");
    kill(node.pid, SIGSTOP); /* so that the engine sees submission and death together */
    submit(2, "w");
    kill(peers[2].pid, SIGKILL);
    waitid(P_PID, (id_t)peers[2].pid, NULL, WEXITED | WNOWAIT);
    kill(node.pid, SIGCONT);
    ck_assert_int_eq(hvt_peer_complete(&peers[0], NULL, 0).status, HVI_OK);
    ck_assert_int_eq(hvt_peer_complete(&peers[1], NULL, 0).status, HVI_OK);
    submit(0, "x");
    expect_lost(0, hvi_clock_ns(), "was killed by signal 9 (SIGKILL)");
    fini();
}
END_TEST

START_TEST(a_closed_socket_with_a_living_process_is_said_to_be_that)
{
    static const char how[] = "is alive but dropped its connection";

    start();
    submit(0, "w");
    uint64_t now_ns = hvi_clock_ns();
    close(peers[2].socket);
    peers[2].socket = -1;
    expect_lost(0, now_ns, how);
    expect_told(how);
    fini();
}
END_TEST

static void tell_fate(int32_t code)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_FATE};

    msg.engine_fate.rank = 2;
    msg.engine_fate.pid = peers[2].pid;
    msg.engine_fate.signaled = false;
    msg.engine_fate.code = code;
    hvt_node_send(&node, &msg, NULL, 0);
}

START_TEST(what_hvdrun_saw_is_believed_when_nobody_else_knows)
{
    start();
    submit(0, "w");
    tell_fate(3);
    uint64_t now_ns = hvi_clock_ns();
    close(peers[2].socket);
    peers[2].socket = -1;
    expect_lost(0, now_ns, "exited with code 3");
    fini();
}
END_TEST

START_TEST(a_rank_whose_process_ends_before_it_comes_is_lost)
{
    static const char how[] = "exited with code 0 before it had called hvd.init (hvd_open): job "
                              "'" HVT_JOB "' cannot go on without it";

    start_some(2);
    submit(0, "w");
    uint64_t now_ns = hvi_clock_ns();
    tell_fate(0);
    expect_lost(0, now_ns, how);
    expect_told(how);
    tell_fate(0); /* once more changes nothing */
    submit(1, "x");
    expect_lost(1, hvi_clock_ns(), how);
    fini();
}
END_TEST

START_TEST(a_stopped_rank_is_only_waited_for)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_QUERY};

    start();
    submit(0, "w");
    submit(1, "w");
    kill(peers[2].pid, SIGSTOP);
    waitid(P_PID, (id_t)peers[2].pid, NULL, WSTOPPED | WNOWAIT);
    msg.engine_query.request = 1;
    msg.engine_query.what = HVI_QUERY_STALLS;
    hvt_node_send(&node, &msg, NULL, 0);
    ck_assert(hvt_node_expect(&node, HVI_PACKET_ENGINE_REPORT, &msg));
    ck_assert_uint_eq(msg.engine_report.stall_count, 1);
    ck_assert_uint_eq(msg.engine_report.stalls[0].missing_count, 1);
    ck_assert_int_eq(msg.engine_report.stalls[0].missing[0].rank, 2);
    ck_assert_int_eq(msg.engine_report.stalls[0].missing[0].pid, peers[2].pid);
    ck_assert_str_eq(msg.engine_report.stalls[0].missing[0].process, "T");
    hvi_packet_msg_free(&msg);
    kill(peers[2].pid, SIGCONT);
    submit(2, "w");
    for (int32_t rank = 0; rank < 3; rank++)
        ck_assert_int_eq(hvt_peer_complete(&peers[rank], NULL, 0).status, HVI_OK);
    fini();
}
END_TEST

/* The reduction of a large op goes on in memory whose owner has died, and the others get it. */
START_TEST(an_op_that_executes_survives_the_death_of_a_rank)
{
    enum { BYTES = 64 << 20 };
    int finished = 0;

    start();
    for (int32_t rank = 0; rank < 3; rank++)
        ck_assert_int_eq(hvt_peer_add_region(&peers[rank], 1, BYTES), HVI_OK);
    for (int32_t rank = 0; rank < 3; rank++) {
        struct hvi_submission op =
            hvt_peer_op(&peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, BYTES / 4, 1);
        ((float *)hvt_peer_memory(&peers[rank], 1))[BYTES / 4 - 1] = 1;
        hvt_peer_name(&peers[rank], &op, 1, "w");
        hvt_peer_submit(&peers[rank], &op);
    }
    usleep(2000); /* in the middle of it, most likely; any moment must do */
    kill(peers[2].pid, SIGKILL);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_completion done = hvt_peer_complete(&peers[rank], NULL, 0);
        finished += done.status == HVI_OK;
        if (done.status == HVI_OK)
            ck_assert_float_eq(((float *)hvt_peer_memory(&peers[rank], 1))[BYTES / 4 - 1], 3);
        else
            ck_assert_int_eq(done.status, HVI_ERR_RANK_LOST);
    }
    ck_assert(finished == 0 || finished == 2);
    fini();
}
END_TEST

START_TEST(the_engine_ends_when_everybody_has_died)
{
    start();
    for (int32_t rank = 0; rank < 3; rank++)
        kill(peers[rank].pid, SIGKILL);
    ck_assert_int_eq(hvt_node_wait(&node), 0);
    fini();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/death");
    TCase *tcase = tcase_create("death");

    tcase_add_test(tcase, a_killed_rank_fails_the_others_ops_by_name_pid_and_signal);
    tcase_add_test(tcase, a_rank_that_submitted_before_it_died_fails_the_same);
    tcase_add_test(tcase, the_last_submission_of_a_dead_rank_still_counts);
    tcase_add_test(tcase, a_closed_socket_with_a_living_process_is_said_to_be_that);
    tcase_add_test(tcase, what_hvdrun_saw_is_believed_when_nobody_else_knows);
    tcase_add_test(tcase, a_rank_whose_process_ends_before_it_comes_is_lost);
    tcase_add_test(tcase, a_stopped_rank_is_only_waited_for);
    tcase_add_test(tcase, an_op_that_executes_survives_the_death_of_a_rank);
    tcase_add_test(tcase, the_engine_ends_when_everybody_has_died);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
