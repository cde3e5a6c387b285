/* SPDX-License-Identifier: Apache-2.0
 * admin.sock of a real hvdd. Most requests come from the tools' own client; broken ones are written by hand in ZMTP,
 * because libzmq sends none. */
#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/node/rig.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct rig rig;
static struct hvi_admin_reply reply;
static const char *const plain[] = {"--private", NULL};

static void setup(void)
{
    unsetenv("FAKE_ENGINE");
    rig_init(&rig);
}

static void teardown(void)
{
    rig_fini(&rig);
}

static void stop(void)
{
    rig_kill(&rig, SIGTERM);
    rig_kill(&rig, SIGINT);
    ck_assert_int_eq(rig_wait(&rig), 0);
}

static struct hvi_admin_request *request_of(enum hvi_admin_kind kind, const char *job)
{
    static struct hvi_admin_request request;

    memset(&request, 0, sizeof(request));
    request.kind = kind;
    snprintf(request.job, sizeof(request.job), "%s", job);
    return &request;
}

static void ask(enum hvi_admin_kind kind, const char *job, int status)
{
    rig_ask(&rig, request_of(kind, job), &reply);
    ck_assert_msg(reply.status == status, "%s: %s", hvi_status_name(reply.status), reply.text);
}

START_TEST(status_tells_who_serves_what)
{
    struct hvi_attach_reply attach;
    int holder;

    rig_start(&rig, plain);
    holder = rig_join(&rig, "a", 0, 2);
    close(rig_attach(&rig, rig_request("a", 9, 2), HVI_ERR_BAD_RANK, &attach));
    ask(HVI_ADMIN_STATUS, "", HVI_OK);
    ck_assert(reply.has_daemon);
    ck_assert_int_eq(reply.daemon.pid, rig.pid);
    ck_assert_uint_eq(reply.daemon.uid, geteuid());
    ck_assert_str_eq(reply.daemon.runtime_dir, rig.dir);
    ck_assert_str_eq(reply.daemon.state, "running");
    ck_assert_uint_eq(reply.daemon.jobs, 1);
    ck_assert_uint_eq(reply.daemon.sessions, 1);
    ck_assert_uint_eq(reply.daemon.attaches, 1);
    ck_assert_uint_eq(reply.daemon.refused, 1);
    ck_assert_uint_gt(reply.daemon.uptime_ns, 0);
    hvi_admin_reply_free(&reply);
    rig_kill(&rig, SIGTERM);
    rig_wait_log(&rig, "draining", 1);
    ask(HVI_ADMIN_STATUS, "", HVI_OK);
    ck_assert_str_eq(reply.daemon.state, "draining");
    hvi_admin_reply_free(&reply);
    close(holder);
    rig_wait(&rig);
}
END_TEST

START_TEST(jobs_come_with_what_their_engines_have_done)
{
    int a, b;

    rig_start(&rig, plain);
    ask(HVI_ADMIN_JOBS, "", HVI_OK);
    ck_assert_uint_eq(reply.job_count, 0);
    hvi_admin_reply_free(&reply);
    a = rig_join(&rig, "a", 0, 2);
    b = rig_join(&rig, "b", 0, 1);
    ask(HVI_ADMIN_JOBS, "", HVI_OK);
    ck_assert_uint_eq(reply.job_count, 2);
    ck_assert_str_eq(reply.jobs[0].job, "a");
    ck_assert_str_eq(reply.jobs[0].state, "forming");
    ck_assert_int_eq(reply.jobs[0].size, 2);
    ck_assert_int_eq(reply.jobs[0].attached, 1);
    ck_assert_int_gt(reply.jobs[0].engine_pid, 0);
    ck_assert_uint_eq(reply.jobs[0].ops, 7); /* what the fake engine says */
    ck_assert_str_eq(reply.jobs[1].state, "running");
    hvi_admin_reply_free(&reply);
    close(a);
    close(b);
    stop();
}
END_TEST

START_TEST(ranks_and_stalls_come_from_the_engine)
{
    int a, b;

    rig_start(&rig, plain);
    a = rig_join(&rig, "a", 0, 2);
    b = rig_join(&rig, "b", 0, 2);
    ask(HVI_ADMIN_RANKS, "a", HVI_OK);
    ck_assert_uint_eq(reply.rank_count, 2);
    ck_assert_str_eq(reply.ranks[0].state, "attached");
    ck_assert_int_eq(reply.ranks[0].pid, getpid());
    ck_assert_str_eq(reply.ranks[1].state, "absent");
    hvi_admin_reply_free(&reply);
    ask(HVI_ADMIN_STALLS, "a", HVI_OK);
    ck_assert_uint_eq(reply.stall_count, 1);
    ck_assert_str_eq(reply.stalls[0].job, "a");
    ck_assert_uint_eq(reply.stalls[0].missing_count, 1);
    hvi_admin_reply_free(&reply);
    ask(HVI_ADMIN_STALLS, "", HVI_OK);
    ck_assert_uint_eq(reply.stall_count, 2);
    ck_assert_str_eq(reply.stalls[0].tensor, "w1");
    hvi_admin_reply_free(&reply);
    close(a);
    close(b);
    stop();
}
END_TEST

START_TEST(a_silent_engine_costs_a_second_and_is_named)
{
    char expected[160];
    uint64_t before;
    int a;

    setenv("FAKE_ENGINE", "mute", 1);
    rig_start(&rig, plain);
    a = rig_join(&rig, "a", 0, 2);
    before = hvi_clock_ns();
    ask(HVI_ADMIN_RANKS, "a", HVI_OK);
    ck_assert_uint_ge(hvi_clock_ns() - before, HVI_NS_SEC);
    ck_assert_uint_lt(hvi_clock_ns() - before, hvt_patience(5 * HVI_NS_SEC));
    ck_assert_uint_eq(reply.rank_count, 0);
    snprintf(expected, sizeof(expected), "the engine of job 'a' (pid ");
    ck_assert_ptr_eq(strstr(reply.text, expected), reply.text);
    hvi_admin_reply_free(&reply);
    close(a);
    stop();
}
END_TEST

START_TEST(an_engine_that_answers_nothing_is_killed_after_its_silence)
{
    static const char *const short_silence[] = {"--private", "--engine-silence=2s", NULL};
    struct pollfd client = {.events = POLLIN};
    char byte;

    setenv("FAKE_ENGINE", "mute", 1);
    rig_start(&rig, short_silence);
    uint64_t began_ns = hvi_clock_ns();
    client.fd = rig_join(&rig, "a", 0, 2);
    ck_assert_int_eq(poll(&client, 1, 20000), 1);
    ck_assert_int_eq(recv(client.fd, &byte, 1, 0), 0);
    ck_assert_uint_ge(hvi_clock_ns() - began_ns, 2 * HVI_NS_SEC);
    close(client.fd);
    rig_wait_log(&rig, "has not answered for engine-silence", 1);
    stop();
}
END_TEST

START_TEST(an_unknown_job_is_not_found)
{
    rig_start(&rig, plain);
    ask(HVI_ADMIN_RANKS, "nobody", HVI_ERR_NOT_FOUND);
    ck_assert_str_eq(reply.text, "no job 'nobody' runs here");
    ask(HVI_ADMIN_STALLS, "nobody", HVI_ERR_NOT_FOUND);
    ask(HVI_ADMIN_TRACE, "nobody", HVI_ERR_NOT_FOUND);
    ask(HVI_ADMIN_JOB_STOP, "nobody", HVI_ERR_NOT_FOUND);
    ask(HVI_ADMIN_PROCESS_EXITED, "nobody", HVI_ERR_NOT_FOUND);
    stop();
}
END_TEST

START_TEST(job_stop_ends_the_engine_and_the_next_attach_starts_anew)
{
    int a;

    rig_start(&rig, plain);
    a = rig_join(&rig, "a", 0, 2);
    struct hvi_admin_request *request = request_of(HVI_ADMIN_JOB_STOP, "a");
    snprintf(request->reason, sizeof(request->reason), "maintenance");
    rig_ask(&rig, request, &reply);
    ck_assert_int_eq(reply.status, HVI_OK);
    rig_wait_engines(&rig, 0);
    rig_wait_log(&rig, "maintenance", 1);
    close(a);
    close(rig_join(&rig, "a", 0, 1));
    stop();
}
END_TEST

START_TEST(how_a_process_ended_reaches_the_engine_that_had_it_or_waits_for_it)
{
    struct hvi_admin_request *request;
    int a;

    rig_start(&rig, plain);
    a = rig_join(&rig, "a", 0, 2);
    request = request_of(HVI_ADMIN_PROCESS_EXITED, "a");
    request->pid = getpid();
    request->signaled = true;
    request->code = SIGKILL;
    rig_ask(&rig, request, &reply);
    ck_assert_int_eq(reply.status, HVI_OK);
    ask(HVI_ADMIN_RANKS, "a", HVI_OK);
    ck_assert_str_eq(reply.ranks[0].text, "fate 1 9");
    hvi_admin_reply_free(&reply);
    request = request_of(HVI_ADMIN_PROCESS_EXITED, "a");
    request->rank = 1;
    request->pid = 4711;
    rig_ask(&rig, request, &reply);
    ck_assert_int_eq(reply.status, HVI_ERR_RANK_LOST);
    ask(HVI_ADMIN_RANKS, "a", HVI_OK);
    ck_assert_str_eq(reply.ranks[1].text, "fate 0 0");
    hvi_admin_reply_free(&reply);
    close(a);
    stop();
}
END_TEST

START_TEST(another_user_may_see_that_a_job_runs_and_no_more)
{
    static const char *const shared[] = {"--private=no", "--admin-mode=0666", NULL};
    static const enum hvi_admin_kind kinds[] = {HVI_ADMIN_RANKS, HVI_ADMIN_STALLS, HVI_ADMIN_TRACE,
                                                HVI_ADMIN_JOB_STOP};
    int a, status;
    pid_t child;

    if (hvt_skip_if(geteuid() != 0, "only root can be two users"))
        return;
    rig_become(&rig, SERVICE);
    rig_start(&rig, shared);
    a = rig_join(&rig, "a", 0, 2);
    child = fork();
    if (child == 0) {
        if (setuid(12345) != 0)
            _exit(3);
        rig_ask(&rig, request_of(HVI_ADMIN_JOBS, ""), &reply);
        if (reply.job_count != 1 || reply.jobs[0].engine_pid == 0 || !reply.jobs[0].withheld)
            _exit(1);
        for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
            rig_ask(&rig, request_of(kinds[i], "a"), &reply);
            if (reply.status != HVI_ERR_REFUSED)
                _exit(2);
        }
        rig_ask(&rig, request_of(HVI_ADMIN_STALLS, ""), &reply);
        _exit(reply.status == HVI_OK && reply.stall_count == 0 ? 0 : 4);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_int_eq(status, 0);
    ck_assert_int_eq(rig_engines(&rig), 1);
    ck_assert_int_eq(rig_log_count(&rig, "admin-refused"), 4);
    close(a);
    stop();
}
END_TEST

START_TEST(many_requests_at_once_are_all_answered)
{
    enum { CHILDREN = 8, ROUNDS = 50 };
    int a = -1, status;

    rig_start(&rig, plain);
    a = rig_join(&rig, "a", 0, 2);
    for (int i = 0; i < CHILDREN; i++) {
        if (fork() != 0)
            continue;
        for (int round = 0; round < ROUNDS; round++) {
            rig_ask(&rig, request_of(round % 2 ? HVI_ADMIN_STATUS : HVI_ADMIN_RANKS, "a"), &reply);
            if (reply.status != HVI_OK)
                _exit(1);
            hvi_admin_reply_free(&reply);
        }
        _exit(0);
    }
    for (int i = 0; i < CHILDREN; i++) {
        ck_assert_int_gt(wait(&status), 0);
        ck_assert_int_eq(status, 0);
    }
    close(a);
    stop();
}
END_TEST

/* ---- a gate that dies ---- */

/* The pid that follows the last "gate-started" in the log. */
static pid_t gate_pid(void)
{
    char line[512], pid[16] = "";
    FILE *in = fopen(rig.log, "re");

    ck_assert_ptr_nonnull(in);
    while (fgets(line, sizeof(line), in) != NULL)
        if (strstr(line, "gate-started") != NULL)
            snprintf(pid, sizeof(pid), "%s", strstr(line, "pid=") + 4);
    fclose(in);
    ck_assert_int_gt(atoi(pid), 0);
    return (pid_t)atoi(pid);
}

/* Sends the gate a signal; how long the next answer then takes. */
static uint64_t answer_after(int signal_number)
{
    uint64_t began_ns;

    ck_assert_int_eq(kill(gate_pid(), signal_number), 0);
    began_ns = hvi_clock_ns();
    ask(HVI_ADMIN_RANKS, "a", HVI_OK);
    ck_assert_uint_eq(reply.rank_count, 2);
    hvi_admin_reply_free(&reply);
    return hvi_clock_ns() - began_ns;
}

START_TEST(a_gate_that_is_killed_is_started_again_and_jobs_do_not_notice)
{
    int a, b;

    rig_start(&rig, plain);
    a = rig_join(&rig, "a", 0, 2);
    ck_assert_uint_lt(answer_after(SIGKILL), hvt_patience(HVI_NS_SEC));
    ck_assert_uint_lt(answer_after(SIGKILL), hvt_patience(HVI_NS_SEC)); /* after a back-off */
    ck_assert_int_eq(kill(gate_pid(), SIGKILL), 0);
    b = rig_join(&rig, "a", 1, 2);
    rig_wait_log(&rig, "gate-ended", 3);
    ck_assert_int_eq(rig_log_count(&rig, "engine-started"), 1);
    close(a);
    close(b);
    stop();
}
END_TEST

START_TEST(a_gate_that_stands_still_is_killed_and_attaches_go_on)
{
    int a, b;

    rig_start(&rig, plain);
    a = rig_join(&rig, "a", 0, 2);
    ck_assert_int_eq(kill(gate_pid(), SIGSTOP), 0);
    uint64_t began_ns = hvi_clock_ns();
    b = rig_join(&rig, "a", 1, 2);
    ck_assert_uint_lt(hvi_clock_ns() - began_ns, hvt_patience(HVI_NS_SEC));
    ask(HVI_ADMIN_RANKS, "a", HVI_OK);
    ck_assert_uint_lt(hvi_clock_ns() - began_ns, hvt_patience(4 * HVI_NS_SEC));
    hvi_admin_reply_free(&reply);
    ck_assert_int_eq(rig_log_count(&rig, "gate-killed"), 1);
    close(a);
    close(b);
    stop();
}
END_TEST

START_TEST(a_gate_ends_with_hvdd_even_where_it_stands_still)
{
    pid_t gate;
    uint64_t end = hvi_deadline_after(RIG_MS * (int64_t)HVI_NS_MS);

    rig_start(&rig, plain);
    ask(HVI_ADMIN_STATUS, "", HVI_OK);
    hvi_admin_reply_free(&reply);
    gate = gate_pid();
    ck_assert_int_eq(kill(gate, SIGSTOP), 0);
    rig_kill(&rig, SIGKILL);
    ck_assert_int_eq(rig_wait(&rig), 128 + SIGKILL);
    while (kill(gate, 0) == 0 && !hvi_deadline_passed(end))
        waitpid(gate, NULL, WNOHANG), usleep(2000);
    ck_assert_int_ne(kill(gate, 0), 0);
}
END_TEST

START_TEST(a_question_that_waits_when_the_gate_dies_is_asked_again)
{
    char word[16];
    int a;

    setenv("FAKE_ENGINE", "mute", 1); /* the answer takes a second */
    rig_start(&rig, plain);
    a = rig_join(&rig, "a", 0, 2);
    ask(HVI_ADMIN_STATUS, "", HVI_OK);
    snprintf(word, sizeof(word), "%d", (int)gate_pid());
    pid_t killer = fork();
    if (killer == 0) {
        usleep(300000);
        _exit(kill((pid_t)atoi(word), SIGKILL));
    }
    ask(HVI_ADMIN_RANKS, "a", HVI_OK);
    ck_assert_ptr_nonnull(strstr(reply.text, "did not answer within a second"));
    hvi_admin_reply_free(&reply);
    ck_assert_int_eq(waitpid(killer, NULL, 0), killer);
    ck_assert_int_eq(rig_log_count(&rig, "gate-ended"), 1);
    close(a);
    stop();
}
END_TEST

/* ---- by hand ------------------------------------------------------------------------------------------------------ */

static void put(int fd, const void *bytes, size_t length)
{
    ck_assert_int_eq(send(fd, bytes, length, MSG_NOSIGNAL), (ssize_t)length);
}

static void get(int fd, void *bytes_p, size_t length)
{
    struct pollfd poll_fd = {.fd = fd, .events = POLLIN};
    unsigned char *at = bytes_p;

    while (length > 0) {
        ck_assert_int_eq(poll(&poll_fd, 1, RIG_MS), 1);
        ssize_t got = recv(fd, at, length, 0);
        ck_assert_int_gt(got, 0);
        at += got;
        length -= (size_t)got;
    }
}

static int connect_admin(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof(address.sun_path), "%s/admin.sock", rig.dir);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof(address)), 0);
    return fd;
}

/* One frame of at most 255 bytes; its flags. */
static int get_frame(int fd, unsigned char *bytes_p, size_t *length_p)
{
    unsigned char head[2];

    get(fd, head, 2);
    if (head[0] & 2) { /* long: eight bytes of length */
        unsigned char rest[7];
        get(fd, rest, 7);
        *length_p = (size_t)rest[5] << 8 | rest[6];
    } else {
        *length_p = head[1];
    }
    get(fd, bytes_p, *length_p);
    return head[0];
}

/* ZMTP 3.0, mechanism NULL, as a DEALER. */
static int connect_zmtp(void)
{
    static const unsigned char ready[] = "\x04\x1c\x05READY\x0bSocket-Type\x00\x00\x00\x06"
                                         "DEALER";
    unsigned char greeting[64] = {0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0x7f, 3, 0, 'N', 'U', 'L', 'L'},
                  peer[300];
    size_t length;
    int fd = connect_admin();

    put(fd, greeting, sizeof(greeting));
    get(fd, peer, 64);
    put(fd, ready, sizeof(ready) - 1);
    ck_assert_int_eq(get_frame(fd, peer, &length) & 4, 4);
    return fd;
}

static void expect_protocol_error(int fd, bool delimiter)
{
    unsigned char bytes[2000];
    size_t length;
    char text[200];

    if (delimiter) {
        ck_assert_int_eq(get_frame(fd, bytes, &length), 1);
        ck_assert_uint_eq(length, 0);
    }
    ck_assert_int_eq(get_frame(fd, bytes, &length) & 1, 0);
    ck_assert_int_eq(hvi_admin_reply_decode(bytes, length, &reply, text, sizeof(text)), HVI_OK);
    ck_assert_int_eq(reply.status, HVI_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(reply.text, "cannot read this request"));
    hvi_admin_reply_free(&reply);
}

START_TEST(a_request_that_is_no_protobuf_gets_a_sentence)
{
    int fd;

    rig_start(&rig, plain);
    fd = connect_zmtp();
    put(fd, "\x01\x00\x00\x07nonsens", 11);
    expect_protocol_error(fd, true);
    put(fd, "\x00\x03xyz", 5); /* as a DEALER without delimiter */
    expect_protocol_error(fd, false);
    put(fd, "\x01\x00\x01\x01x\x00\x01y", 8); /* two bodies */
    expect_protocol_error(fd, true);
    put(fd, "\x01\x00\x00\x00", 4); /* an empty body */
    expect_protocol_error(fd, true);
    close(fd);
    ask(HVI_ADMIN_STATUS, "", HVI_OK);
    stop();
}
END_TEST

START_TEST(bytes_that_are_no_zmtp_hurt_nobody)
{
    static unsigned char noise[4096];
    int fd;

    rig_start(&rig, plain);
    for (size_t i = 0; i < sizeof(noise); i++)
        noise[i] = (unsigned char)(i * 131 + 7);
    fd = connect_admin();
    put(fd, noise, sizeof(noise));
    ask(HVI_ADMIN_STATUS, "", HVI_OK);
    close(fd);
    fd = connect_zmtp();
    put(fd, "\x02\x00\x00\x00\xff\xff\xff\xff\xff", 9); /* a frame of a terabyte */
    ask(HVI_ADMIN_STATUS, "", HVI_OK);
    close(fd);
    stop();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hvdd admin");
    TCase *tcase = tcase_create("admin");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, status_tells_who_serves_what);
    tcase_add_test(tcase, jobs_come_with_what_their_engines_have_done);
    tcase_add_test(tcase, ranks_and_stalls_come_from_the_engine);
    tcase_add_test(tcase, a_silent_engine_costs_a_second_and_is_named);
    tcase_add_test(tcase, an_engine_that_answers_nothing_is_killed_after_its_silence);
    tcase_add_test(tcase, an_unknown_job_is_not_found);
    tcase_add_test(tcase, job_stop_ends_the_engine_and_the_next_attach_starts_anew);
    tcase_add_test(tcase, how_a_process_ended_reaches_the_engine_that_had_it_or_waits_for_it);
    tcase_add_test(tcase, another_user_may_see_that_a_job_runs_and_no_more);
    tcase_add_test(tcase, a_gate_that_is_killed_is_started_again_and_jobs_do_not_notice);
    tcase_add_test(tcase, a_gate_that_stands_still_is_killed_and_attaches_go_on);
    tcase_add_test(tcase, a_gate_ends_with_hvdd_even_where_it_stands_still);
    tcase_add_test(tcase, a_question_that_waits_when_the_gate_dies_is_asked_again);
    tcase_add_test(tcase, many_requests_at_once_are_all_answered);
    tcase_add_test(tcase, a_request_that_is_no_protobuf_gets_a_sentence);
    tcase_add_test(tcase, bytes_that_are_no_zmtp_hurt_nobody);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
