/* SPDX-License-Identifier: Apache-2.0
 * How a real hvdd starts, reloads, is restarted and ends. */
#include "base/clock.h"
#include "base/fate.h"
#include "base/status.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/node/rig.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct rig rig;
static struct hvi_attach_reply reply;
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

static void write_conf(const char *contents)
{
    FILE *out = fopen(rig.conf, "we");
    ck_assert_ptr_nonnull(out);
    fputs(contents, out);
    fclose(out);
}

static mode_t mode_of(const char *name)
{
    char path[200];
    struct stat info;

    snprintf(path, sizeof(path), "%s/%s", rig.dir, name);
    ck_assert_int_eq(lstat(path, &info), 0);
    return info.st_mode & 07777;
}

static void assert_nothing_left(void)
{
    ck_assert(!rig_exists(&rig, ""));
    ck_assert_int_eq(rig_engines(&rig), 0);
}

/* ---- start -------------------------------------------------------------------------------------------------------- */

START_TEST(sockets_have_the_modes_of_a_private_or_of_a_system_daemon)
{
    static const char *const shared[] = {"--private=no", NULL};

    rig_start(&rig, plain);
    ck_assert_int_eq(mode_of(""), 0700);
    ck_assert_int_eq(mode_of("attach.sock"), 0600);
    ck_assert_int_eq(mode_of("admin.sock"), 0600);
    ck_assert(!rig_exists(&rig, "root.sock"));
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
    rig_become(&rig, SERVICE);
    rig_start(&rig, shared);
    ck_assert_int_eq(mode_of(""), 0755);
    ck_assert_int_eq(mode_of("attach.sock"), 0666);
    ck_assert_int_eq(mode_of("admin.sock"), 0660);
    ck_assert_int_eq(mode_of("root.sock"), 0600);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
    assert_nothing_left();
}
END_TEST

START_TEST(a_second_hvdd_for_the_same_directory_says_who_serves_it)
{
    struct rig second;
    char expected[200];

    rig_start(&rig, plain);
    snprintf(expected, sizeof(expected), "another hvdd (pid %d) serves %s", (int)rig.pid, rig.dir);
    second = rig;
    second.parent_fd = -1;
    ck_assert_int_eq(rig_start_failing(&second, plain), 1);
    close(second.parent_fd);
    ck_assert_int_eq(rig_log_count(&rig, expected), 1);
    close(rig_join(&rig, "a", 0, 1)); /* the first goes on */
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
}
END_TEST

START_TEST(bad_options_end_with_code_2_and_a_bad_place_with_1)
{
    static const char *const bad_value[] = {"--private", "--max-jobs=0", NULL};
    static const char *const unknown[] = {"--no-such-option", NULL};
    static const char *const no_engine[] = {"--private", "--engine=/nonexistent", NULL};
    const char *bad_file[] = {"--config", rig.conf, NULL};

    ck_assert_int_eq(rig_start_failing(&rig, bad_value), 2);
    ck_assert_int_eq(rig_log_count(&rig, "--max-jobs: \"0\" is not a number between 1 and 65536"),
                     1);
    ck_assert_int_eq(rig_start_failing(&rig, unknown), 2);
    write_conf("max-jobs = many\n");
    ck_assert_int_eq(rig_start_failing(&rig, bad_file), 2);
    ck_assert_int_eq(rig_log_count(&rig, "conf:1: max-jobs: \"many\""), 1);
    ck_assert_int_eq(rig_start_failing(&rig, no_engine), 1);
    ck_assert_int_eq(mkdir(rig.dir, 0777), 0);
    ck_assert_int_eq(chmod(rig.dir, 0777), 0);
    ck_assert_int_eq(rig_start_failing(&rig, plain), 1);
    ck_assert_int_eq(rig_log_count(&rig, "has mode 0777"), 1);
}
END_TEST

START_TEST(root_starts_no_hvdd_for_all_users)
{
    static const char *const shared[] = {"--private=no", NULL};

    if (hvt_skip_if(geteuid() != 0, "only root can be root"))
        return;
    ck_assert_int_eq(rig_start_failing(&rig, shared), 2);
    ck_assert_int_eq(rig_log_count(&rig, "a hvdd for all users does not run as root"), 1);
    ck_assert_int_eq(rig_start_failing(&rig, NULL), 2);
    ck_assert_int_eq(rig_log_count(&rig, "or with --private=yes for root's own jobs"), 2);
    ck_assert(!rig_exists(&rig, ""));
    rig_start(&rig, plain);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
}
END_TEST

START_TEST(a_directory_too_deep_for_sockets_is_a_clear_error)
{
    char deep[160];
    const char *arguments[] = {"--private", "--runtime-dir", deep, NULL};

    snprintf(deep, sizeof(deep), "%s/%.*s", rig.base, 90,
             "ddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd"
             "ddddddd");
    ck_assert_int_eq(rig_start_failing(&rig, arguments), 2);
    ck_assert_int_eq(rig_log_count(&rig, "too long for a socket"), 1);
    ck_assert_int_ne(access(deep, F_OK), 0);
}
END_TEST

/* ---- reload ------------------------------------------------------------------------------------------------------- */

START_TEST(a_reload_applies_what_it_can_and_names_what_needs_a_restart)
{
    const char *arguments[] = {"--private", "--config", rig.conf, NULL};
    int holder;

    write_conf("max-jobs = 1\n");
    rig_start(&rig, arguments);
    holder = rig_join(&rig, "a", 0, 1);
    close(rig_attach(&rig, rig_request("b", 0, 1), HVI_ERR_DAEMON_LIMIT, &reply));
    write_conf("max-jobs = 2\nengine-linger = 3s\nthreads = 2\nadmin-mode = 0600\n");
    rig_kill(&rig, SIGHUP);
    rig_wait_log(&rig, "admin-mode: 0660 -> 0600", 1);
    ck_assert_int_eq(rig_log_count(&rig, "option-needs-restart"), 1);
    ck_assert_int_eq(rig_log_count(&rig, "max-jobs: 1 -> 2"), 1);
    ck_assert_int_eq(rig_log_count(&rig, "for engines that start from now on threads: 0 -> 2"), 1);
    ck_assert_int_eq(rig_log_count(&rig, "engines that run keep what they were started with "
                                         "engine-linger: 2s -> 3s"),
                     1);
    close(rig_join(&rig, "b", 0, 1));
    rig_wait_log(&rig, "job=b", 1);
    rig_wait_log(&rig, "-> ended", 1);
    write_conf("max-jobs = nonsense\n");
    rig_kill(&rig, SIGHUP);
    rig_wait_log(&rig, "reload-failed", 1);
    close(rig_join(&rig, "c", 0, 1)); /* as before: two */
    close(holder);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
}
END_TEST

/* ---- the end ------------------------------------------------------------------------------------------------------ */

START_TEST(a_drain_refuses_newcomers_and_waits_for_the_jobs)
{
    int holder;

    rig_start(&rig, plain);
    holder = rig_join(&rig, "a", 0, 1);
    rig_kill(&rig, SIGTERM);
    rig_wait_log(&rig, "running -> draining", 1);
    close(rig_attach(&rig, rig_request("b", 0, 1), HVI_ERR_DRAINING, &reply));
    ck_assert_int_eq(rig_engines(&rig), 1);
    rig_detach(holder);
    ck_assert_int_eq(rig_wait(&rig), 0);
    assert_nothing_left();
}
END_TEST

START_TEST(a_second_signal_stops_the_jobs_at_once)
{
    int holder;

    rig_start(&rig, plain);
    holder = rig_join(&rig, "a", 0, 1);
    rig_kill(&rig, SIGTERM);
    rig_kill(&rig, SIGINT);
    ck_assert_int_eq(rig_wait(&rig), 0);
    close(holder);
    assert_nothing_left();
}
END_TEST

START_TEST(the_drain_timeout_stops_the_jobs)
{
    static const char *const hasty[] = {"--private", "--drain-timeout=200ms", NULL};
    int holder;

    rig_start(&rig, hasty);
    holder = rig_join(&rig, "a", 0, 1);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
    ck_assert_int_eq(rig_log_count(&rig, "drain timeout has passed"), 1);
    close(holder);
    assert_nothing_left();
}
END_TEST

START_TEST(an_engine_that_will_not_stop_is_killed_after_a_grace)
{
    int holder;

    setenv("FAKE_ENGINE", "stubborn", 1);
    rig_start(&rig, plain);
    holder = rig_join(&rig, "a", 0, 1);
    rig_kill(&rig, SIGTERM);
    rig_kill(&rig, SIGINT);
    ck_assert_int_eq(rig_wait(&rig), 0);
    ck_assert_int_eq(rig_log_count(&rig, "engine-killed"), 1);
    close(holder);
    assert_nothing_left();
}
END_TEST

START_TEST(hvdd_ends_with_its_parent)
{
    int holder;

    rig_start(&rig, plain);
    holder = rig_join(&rig, "a", 0, 1);
    close(rig.parent_fd);
    rig.parent_fd = -1;
    ck_assert_int_eq(rig_wait(&rig), 0);
    close(holder);
    assert_nothing_left();
}
END_TEST

START_TEST(what_its_parent_says_of_another_host_is_heard_and_ends_nothing)
{
    static const char words[] = "h2: it is gone\n\xff\n";
    int holder;

    rig_start(&rig, plain);
    holder = rig_join(&rig, "a", 0, 1);
    ck_assert_int_eq(write(rig.parent_fd, words, sizeof(words) - 1), sizeof(words) - 1);
    rig_wait_log(&rig, "h2: it is gone", 1);
    close(rig_join(&rig, "b", 0, 1));
    rig_detach(holder);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
}
END_TEST

START_TEST(an_idle_hvdd_ends_by_itself_but_not_while_somebody_is_attached)
{
    static const char *const idle[] = {"--private", "--idle-exit=300ms", NULL};
    struct pollfd nothing = {.fd = -1};
    int holder;

    rig_start(&rig, idle);
    holder = rig_join(&rig, "a", 0, 1);
    poll(&nothing, 1, 600); /* the time under test, not a wait for something */
    ck_assert_int_eq(rig_log_count(&rig, "idle-exit time"), 0);
    close(holder);
    ck_assert_int_eq(rig_wait(&rig), 0);
    ck_assert_int_eq(rig_log_count(&rig, "idle-exit time"), 1);
    assert_nothing_left();
}
END_TEST

/* A process that attaches as rank 0 of two, leaves, says so, and ends when *gate_p is closed. */
static pid_t leaver(int *gate_p)
{
    int ends[2];
    char byte = 0;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        close(ends[0]);
        rig_detach(rig_join(&rig, "a", 0, 2));
        _exit(write(ends[1], &byte, 1) == 1 && read(ends[1], &byte, 1) == 0 ? 0 : 1);
    }
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], &byte, 1), 1);
    *gate_p = ends[0];
    return pid;
}

static void expect_end(pid_t pid, int gate)
{
    int status;

    close(gate);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

static void expect_end_of_job(void)
{
    rig_wait_engines(&rig, 0);
    rig_wait_log(&rig, "closing -> ended", 1);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
}

START_TEST(a_job_that_nobody_is_attached_to_waits_for_the_linger_time)
{
    static const char *const linger[] = {"--private", "--engine-linger=200ms", NULL};
    int gate;

    rig_start(&rig, linger);
    const pid_t pid = leaver(&gate);
    expect_end(pid, gate);
    ck_assert_int_eq(rig_engines(&rig), 1);
    expect_end_of_job();
}
END_TEST

/* A rank that comes late begins with it, as those have that are in the next one by now. */
START_TEST(a_job_that_somebody_has_left_waits_for_the_others_as_long_as_he_lives)
{
    static const char *const linger[] = {"--private", "--engine-linger=50ms", NULL};
    struct pollfd nothing = {.fd = -1};
    int gate;

    rig_start(&rig, linger);
    const pid_t pid = leaver(&gate);
    poll(&nothing, 1, 400); /* the time under test, not a wait for something */
    ck_assert_int_eq(rig_engines(&rig), 1);
    expect_end(pid, gate);
    expect_end_of_job();
}
END_TEST

/* ---- restart ------------------------------------------------------------------------------------------------------ */

static void crash(void)
{
    rig_kill(&rig, SIGKILL);
    ck_assert_int_eq(rig_wait(&rig), 128 + SIGKILL);
}

START_TEST(jobs_outlive_hvdd_and_the_next_one_knows_them)
{
    struct hvi_attach_request *request;
    int first, second;

    rig_start(&rig, plain);
    request = rig_request("a", 0, 2);
    strcpy(request->job_key, "secret");
    first = rig_attach(&rig, request, HVI_OK, &reply);
    int engine = reply.engine_pid;
    crash();
    ck_assert_int_eq(rig_engines(&rig), 1);
    ck_assert(rig_exists(&rig, "attach.sock")); /* stale */
    rig_start(&rig, plain);
    rig_wait_log(&rig, "engine-back", 1);
    request = rig_request("a", 0, 2);
    strcpy(request->job_key, "secret");
    close(rig_attach(&rig, request, HVI_ERR_DUPLICATE_RANK, &reply));
    request = rig_request("a", 1, 2);
    strcpy(request->job_key, "guess");
    close(rig_attach(&rig, request, HVI_ERR_REFUSED, &reply));
    strcpy(request->job_key, "secret");
    second = rig_attach(&rig, request, HVI_OK, &reply);
    ck_assert_int_eq(reply.engine_pid, engine);
    ck_assert_uint_eq(reply.generation, 1);
    close(first);
    close(second);
    rig_wait_engines(&rig, 0);
    rig_wait_log(&rig, "failed -> ended", 1); /* seen, though it was no child */
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
}
END_TEST

/* What the engine is told; questions are passed over. */
static void expect_roster(int fd, struct hvi_packet_msg *msg_p)
{
    static struct hvi_packet packet;
    uint64_t end = hvi_deadline_after(RIG_MS * (int64_t)HVI_NS_MS);

    do {
        ck_assert_int_eq(hvi_packet_receive(fd, &packet, end), HVI_OK);
        ck_assert_int_eq(hvi_packet_msg_decode(packet.bytes, packet.length, msg_p, NULL, 0),
                         HVI_OK);
    } while (msg_p->kind != HVI_PACKET_ENGINE_ROSTER);
}

/* The test is the engine. */
START_TEST(
    an_engine_of_a_job_on_several_nodes_comes_back_with_its_seats_and_hears_that_there_is_no_mesh)
{
    int32_t ranks[4] = {5, 2, 900000, 7};
    struct hvi_rank_row rows[3] = {{.rank = 5, .seat = 0, .pid = 100, .state = "attached"},
                                   {.rank = 900000, .seat = 2, .pid = 102, .state = "attached"},
                                   {.rank = 7, .seat = 9, .pid = 103, .state = "attached"}};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_HELLO,
                                 .engine_hello = {.protocol_version = HVI_PROTOCOL_VERSION,
                                                  .job = "wide",
                                                  .generation = 3,
                                                  .size = 1000000,
                                                  .seats = 4,
                                                  .uid = (uint32_t)getuid(),
                                                  .pid = (int32_t)getpid(),
                                                  .ranks = rows,
                                                  .rank_count = 3}};
    int fd;

    rig_start(&rig, plain);
    fd = rig_connect(&rig);
    rig_send(fd, &msg);
    rig_wait_log(&rig, "engine-back", 1);
    rig_wait_log(&rig, "rank=5 pid=100 attaching -> attached", 1);
    rig_wait_log(&rig, "rank=900000 pid=102 attaching -> attached", 1);
    ck_assert_int_eq(rig_log_count(&rig, "rank=7 "), 0);
    msg = (struct hvi_packet_msg){.kind = HVI_PACKET_ENGINE_NODE,
                                  .engine_node = {.size = 1000000,
                                                  .ranks = ranks,
                                                  .rank_count = 4,
                                                  .port = 4000,
                                                  .wire_oldest = 1,
                                                  .wire_newest = 1}};
    rig_send(fd, &msg);
    expect_roster(fd, &msg);
    ck_assert_int_eq(msg.engine_roster.status, HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(msg.engine_roster.text, "cannot bring job 'wide' together"));
    hvi_packet_msg_free(&msg);
    rig_kill(&rig, SIGKILL); /* before it sees the link of its engine break */
    rig_wait(&rig);
    close(fd);
}
END_TEST

/* One generation would have two engines, each of which waits for ranks that are at the other. */
START_TEST(a_rank_that_comes_before_its_engine_has_said_hello_meets_it_all_the_same)
{
    int first, second, engine;

    rig_start(&rig, plain);
    first = rig_attach(&rig, rig_request("a", 0, 2), HVI_OK, &reply);
    engine = reply.engine_pid;
    crash();
    /* Not before: the kernel continues what is stopped when hvdd dies. */
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    rig_start(&rig, plain);
    second = rig_connect(&rig);
    rig_send_attach(second, rig_request("a", 1, 2));
    ck_assert_int_eq(poll(&(struct pollfd){.fd = second, .events = POLLIN}, 1, 100), 0);
    ck_assert_int_eq(kill(engine, SIGCONT), 0);
    ck_assert(rig_read_reply(second, &reply));
    ck_assert_int_eq(reply.status, HVI_OK);
    ck_assert_int_eq(reply.engine_pid, engine);
    close(first);
    close(second);
    rig_wait_engines(&rig, 0);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
}
END_TEST

/* The kernel sends it SIGHUP and SIGCONT: it is in the session of hvdd and a process group of its own. */
START_TEST(an_engine_that_is_stopped_while_hvdd_dies_lives_on)
{
    int rank, engine;

    rig_start(&rig, plain);
    rank = rig_attach(&rig, rig_request("a", 0, 2), HVI_OK, &reply);
    engine = reply.engine_pid;
    ck_assert_int_eq(kill(engine, SIGSTOP), 0);
    while (hvi_process_state(engine) != 'T') /* the test's own time limit ends this */
        usleep(1000);
    crash();
    rig_start(&rig, plain);
    rig_wait_log(&rig, "engine-back", 1);
    ck_assert_int_eq(kill(engine, 0), 0);
    close(rank);
    rig_wait_engines(&rig, 0);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
}
END_TEST

/* True: none, of more than hvdd's queue usually holds, was turned away. */
static bool all_find_a_place(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    bool all = true;
    int fds[64];

    snprintf(address.sun_path, sizeof(address.sun_path), "%s/attach.sock", rig.dir);
    for (int i = 0; i < 64; i++) {
        fds[i] = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        all = connect(fds[i], (struct sockaddr *)&address, sizeof(address)) == 0 && all;
    }
    for (int i = 0; i < 64; i++)
        close(fds[i]);
    return all;
}

/* Engines do not wait in connect(). */
START_TEST(after_a_crash_the_queue_has_a_place_for_each_engine_for_a_while)
{
    uint64_t began_ns;

    rig_start(&rig, plain);
    do { /* a busy machine may take longer than that while */
        crash();
        began_ns = hvi_clock_ns();
        rig_start(&rig, plain);
        rig_kill(&rig, SIGSTOP);
    } while (hvi_clock_ns() - began_ns > 450 * HVI_NS_MS);
    ck_assert(all_find_a_place());
    rig_kill(&rig, SIGCONT);
    poll(NULL, 0, 600);
    rig_kill(&rig, SIGSTOP);
    ck_assert(!all_find_a_place());
    rig_kill(&rig, SIGCONT);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
}
END_TEST

/* The test is the engine that comes too late. A fresh hvdd counts generations from 1, whatever number it has. */
START_TEST(of_two_engines_whose_ranks_wait_the_late_one_is_told_to_end_its_sessions)
{
    struct hvi_rank_row row = {.rank = 1, .pid = (int32_t)getpid(), .state = "attached"};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_HELLO,
                                 .engine_hello = {.protocol_version = HVI_PROTOCOL_VERSION,
                                                  .job = "a",
                                                  .generation = _i == 0 ? 1 : 5,
                                                  .size = 2,
                                                  .uid = (uint32_t)getuid(),
                                                  .pid = (int32_t)getpid(),
                                                  .ranks = &row,
                                                  .rank_count = 1}};
    static struct hvi_packet packet;
    int fd, first, second, engine;

    rig_start(&rig, plain);
    first = rig_attach(&rig, rig_request("a", 0, 2), HVI_OK, &reply);
    engine = reply.engine_pid;
    fd = rig_connect(&rig);
    rig_send(fd, &msg);
    ck_assert_int_eq(
        hvi_packet_receive(fd, &packet, hvi_deadline_after(RIG_MS * (int64_t)HVI_NS_MS)), HVI_OK);
    ck_assert_int_eq(hvi_packet_msg_decode(packet.bytes, packet.length, &msg, NULL, 0), HVI_OK);
    ck_assert_int_eq(msg.kind, HVI_PACKET_ENGINE_STOP);
    ck_assert_ptr_nonnull(strstr(msg.engine_stop.reason, "has started another engine"));
    hvi_packet_msg_free(&msg);
    close(fd);
    second = rig_attach(&rig, rig_request("a", 1, 2), HVI_OK, &reply);
    ck_assert_int_eq(reply.engine_pid, engine);
    close(first);
    close(second);
    rig_wait_engines(&rig, 0);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
}
END_TEST

/* The test is the engine. */
START_TEST(a_late_engine_whose_ranks_have_all_come_is_welcome_beside_a_generation_that_forms)
{
    struct hvi_rank_row rows[2] = {{.rank = 0, .pid = (int32_t)getpid(), .state = "attached"},
                                   {.rank = 1, .pid = (int32_t)getpid(), .state = "attached"}};
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_HELLO,
                                 .engine_hello = {.protocol_version = HVI_PROTOCOL_VERSION,
                                                  .job = "a",
                                                  .generation = 5,
                                                  .size = 2,
                                                  .uid = (uint32_t)getuid(),
                                                  .pid = (int32_t)getpid(),
                                                  .ranks = rows,
                                                  .rank_count = 2}};
    int fd, first;

    rig_start(&rig, plain);
    first = rig_attach(&rig, rig_request("a", 0, 2), HVI_OK, &reply);
    fd = rig_connect(&rig);
    rig_send(fd, &msg);
    rig_wait_log(&rig, "engine-back", 1);
    ck_assert_int_eq(rig_log_count(&rig, "hello-refused"), 0);
    rig_kill(&rig, SIGKILL); /* before it sees the link of its engine break */
    rig_wait(&rig);
    close(fd);
    close(first);
    rig_wait_engines(&rig, 0);
}
END_TEST

START_TEST(an_engine_without_clients_ends_with_a_crashed_hvdd)
{
    rig_start(&rig, plain);
    rig_detach(rig_join(&rig, "a", 0, 2));
    crash();
    rig_wait_engines(&rig, 0);
}
END_TEST

/* ---- systemd ------------------------------------------------------------------------------------------------------ */

static void open_notify(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    rig.notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof(address.sun_path), "%s/notify", rig.base);
    ck_assert_int_eq(bind(rig.notify_fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

/* Reads notifications until one has `needle`; the descriptor that came with it, or -1. */
static int expect_notify(const char *needle)
{
    union {
        struct cmsghdr align;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control;
    char text[512];
    struct iovec iov = {text, sizeof(text) - 1};

    for (;;) {
        struct msghdr msg = {.msg_iov = &iov,
                             .msg_iovlen = 1,
                             .msg_control = &control,
                             .msg_controllen = sizeof(control)};
        struct pollfd poll_fd = {.fd = rig.notify_fd, .events = POLLIN};
        int fd = -1;
        ck_assert_msg(poll(&poll_fd, 1, RIG_MS) == 1, "no notification with %s", needle);
        ssize_t length = recvmsg(rig.notify_fd, &msg, MSG_CMSG_CLOEXEC);
        ck_assert_int_ge(length, 0);
        text[length] = '\0';
        struct cmsghdr *cmsg = CMSG_FIRSTHDR(&msg);
        if (cmsg != NULL && cmsg->cmsg_type == SCM_RIGHTS)
            memcpy(&fd, CMSG_DATA(cmsg), sizeof(fd));
        if (strstr(text, needle) != NULL)
            return fd;
        if (fd >= 0)
            close(fd);
    }
}

START_TEST(systemd_hears_ready_status_watchdog_reload_and_stop)
{
    open_notify();
    setenv("WATCHDOG_USEC", "200000", 1);
    rig_start(&rig, plain);
    unsetenv("WATCHDOG_USEC");
    expect_notify("READY=1");
    expect_notify("WATCHDOG=1");
    close(rig_join(&rig, "a", 0, 1));
    expect_notify("1 ranks attached");
    rig_kill(&rig, SIGHUP);
    expect_notify("RELOADING=1\nMONOTONIC_USEC=");
    expect_notify("READY=1");
    rig_kill(&rig, SIGTERM);
    expect_notify("STOPPING=1\nEXTEND_TIMEOUT_USEC=50000000\n"); /* drain-timeout, and 20 s */
    ck_assert_int_eq(rig_wait(&rig), 0);
}
END_TEST

START_TEST(a_connection_made_while_hvdd_was_dead_is_served_from_the_fd_store)
{
    int stored, client;

    open_notify();
    rig_start(&rig, plain);
    stored = expect_notify("FDSTORE=1\nFDNAME=attach");
    ck_assert_int_ge(stored, 0);
    crash();
    client = rig_connect(&rig); /* nobody accepts, but the socket lives in the store */
    rig_send_attach(client, rig_request("a", 0, 1));
    rig.listen_fd = stored;
    rig_start(&rig, plain);
    ck_assert(rig_read_reply(client, &reply));
    ck_assert_int_eq(reply.status, HVI_OK);
    close(client);
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
    ck_assert(!rig_exists(&rig, "attach.sock"));
    close(stored);
}
END_TEST

START_TEST(a_socket_from_a_socket_unit_is_used_and_not_removed)
{
    ck_assert_int_eq(mkdir(rig.dir, 0700), 0);
    int fd = rig.listen_fd = hvt_listen(rig.dir, "attach.sock", SOCK_SEQPACKET);
    rig_start(&rig, plain);
    ck_assert_int_eq(rig_log_count(&rig, "socket-inherited"), 1);
    close(rig_join(&rig, "a", 0, 1));
    rig_kill(&rig, SIGTERM);
    ck_assert_int_eq(rig_wait(&rig), 0);
    ck_assert(rig_exists(&rig, "attach.sock"));
    ck_assert(!rig_exists(&rig, "admin.sock"));
    close(rig_connect(&rig)); /* it still listens: the unit's next start serves it */
    close(fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hvdd life");
    TCase *tcase = tcase_create("life");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, sockets_have_the_modes_of_a_private_or_of_a_system_daemon);
    tcase_add_test(tcase, a_second_hvdd_for_the_same_directory_says_who_serves_it);
    tcase_add_test(tcase, bad_options_end_with_code_2_and_a_bad_place_with_1);
    tcase_add_test(tcase, root_starts_no_hvdd_for_all_users);
    tcase_add_test(tcase, a_directory_too_deep_for_sockets_is_a_clear_error);
    tcase_add_test(tcase, a_reload_applies_what_it_can_and_names_what_needs_a_restart);
    tcase_add_test(tcase, a_drain_refuses_newcomers_and_waits_for_the_jobs);
    tcase_add_test(tcase, a_second_signal_stops_the_jobs_at_once);
    tcase_add_test(tcase, the_drain_timeout_stops_the_jobs);
    tcase_add_test(tcase, an_engine_that_will_not_stop_is_killed_after_a_grace);
    tcase_add_test(tcase, hvdd_ends_with_its_parent);
    tcase_add_test(tcase, what_its_parent_says_of_another_host_is_heard_and_ends_nothing);
    tcase_add_test(tcase, an_idle_hvdd_ends_by_itself_but_not_while_somebody_is_attached);
    tcase_add_test(tcase, a_job_that_nobody_is_attached_to_waits_for_the_linger_time);
    tcase_add_test(tcase, a_job_that_somebody_has_left_waits_for_the_others_as_long_as_he_lives);
    tcase_add_test(tcase, jobs_outlive_hvdd_and_the_next_one_knows_them);
    tcase_add_test(
        tcase,
        an_engine_of_a_job_on_several_nodes_comes_back_with_its_seats_and_hears_that_there_is_no_mesh);
    tcase_add_test(tcase, after_a_crash_the_queue_has_a_place_for_each_engine_for_a_while);
    tcase_add_test(tcase, a_rank_that_comes_before_its_engine_has_said_hello_meets_it_all_the_same);
    tcase_add_test(tcase, an_engine_that_is_stopped_while_hvdd_dies_lives_on);
    tcase_add_loop_test(
        tcase, of_two_engines_whose_ranks_wait_the_late_one_is_told_to_end_its_sessions, 0, 2);
    tcase_add_test(
        tcase, a_late_engine_whose_ranks_have_all_come_is_welcome_beside_a_generation_that_forms);
    tcase_add_test(tcase, an_engine_without_clients_ends_with_a_crashed_hvdd);
    tcase_add_test(tcase, systemd_hears_ready_status_watchdog_reload_and_stop);
    tcase_add_test(tcase, a_connection_made_while_hvdd_was_dead_is_served_from_the_fd_store);
    tcase_add_test(tcase, a_socket_from_a_socket_unit_is_used_and_not_removed);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
