/* SPDX-License-Identifier: Apache-2.0
 * An agent as hvdrun sees it: what it refuses and why, what its ranks are given, print and return, and that none is left
 * when hvdrun goes. Its hvdd is a socket that listens and says nothing, or a script. */
#include "tools/hvdrun/agent.h"

#include "base/clock.h"
#include "base/fate.h"
#include "tests/unit/hvt_listen.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdrun/hvt_talk.h"
#include "tools/hvdrun/divide.h"

#include <dirent.h>
#include <signal.h>
#include <sys/stat.h>

static struct hvt_talk talk;
static struct hvi_launch_msg start;
static struct hvi_launch_rank ranks[2];
static char root[64];
static int listener;

static void setup(void)
{
    static const char settings[] = "HOROVOD_CYCLE_TIME=9\0FOO=bar";
    signal(SIGPIPE, SIG_IGN);
    snprintf(root, sizeof root, "/tmp/hvt-agent-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    listener = hvt_listen(root, "admin.sock", SOCK_STREAM);
    setenv("XDG_RUNTIME_DIR", root, 1);
    unsetenv("HVD_ADDRESS");
    ranks[0] = (struct hvi_launch_rank){.rank = 2, .cross_rank = 1, .cross_size = 2};
    ranks[1] = (struct hvi_launch_rank){.rank = 3, .cross_rank = 0, .cross_size = 1};
    start = (struct hvi_launch_msg){
        .kind = HVI_LAUNCH_START,
        .start = {.launch_version = HVI_LAUNCH_VERSION,
                  .job = "hvt-job",
                  .job_key = "hvt-key",
                  .size = 4,
                  .ranks = ranks,
                  .rank_count = 2,
                  .settings = (unsigned char *)(uintptr_t)settings,
                  .settings_bytes = sizeof settings,
                  .exports = 1,
                  .directory = "/",
                  .start_timeout_ns = 20 * HVI_NS_SEC,
                  .grace_ns = 20 * HVI_NS_SEC},
    };
    snprintf(start.start.address, sizeof start.start.address, "%s", root);
}

static void teardown(void)
{
    DIR *stream = opendir(root);
    const struct dirent *entry;
    while ((entry = readdir(stream)) != NULL)
        unlinkat(dirfd(stream), entry->d_name, 0);
    closedir(stream);
    ck_assert_int_eq(rmdir(root), 0); /* a private hvdd's directory has gone with it */
    close(listener);
}

/* One rank, which is rank 0. */
static void be_first(void)
{
    ranks[0] = (struct hvi_launch_rank){.rank = 0, .cross_rank = 0, .cross_size = 1};
    start.start.rank_count = 1;
}

static void send_start(const char *script)
{
    start.start.command_bytes = hvt_talk_words(&start.start.command, "/bin/sh", "-c", script, NULL);
    hvt_talk_start(&talk, run_agent);
    hvt_talk_send(&talk, &start);
}

static void send_kind(enum hvi_launch_kind kind)
{
    const struct hvi_launch_msg msg = {.kind = kind};
    hvt_talk_send(&talk, &msg);
}

static void send_number(enum hvi_launch_kind kind, uint32_t number)
{
    const struct hvi_launch_msg msg = {.kind = kind, .number = {.number = number}};
    hvt_talk_send(&talk, &msg);
}

static void send_data(enum hvi_launch_kind kind, const char *text)
{
    const struct hvi_launch_msg msg = {
        .kind = kind, .data = {.data = (unsigned char *)(uintptr_t)text, .bytes = strlen(text)}};
    hvt_talk_send(&talk, &msg);
}

/* The first rank's process. */
static pid_t go(void)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_GO,
                                       .go = {.master_address = "192.0.2.1", .master_port = 2900}};
    hvt_talk_send(&talk, &msg);
    struct hvi_launch_msg started = hvt_talk_expect(&talk, HVI_LAUNCH_STARTED);
    ck_assert_uint_eq(started.started.pid_count, start.start.rank_count);
    const pid_t pid = started.started.pids[0];
    hvi_launch_msg_free(&started);
    return pid;
}

static pid_t run(const char *script)
{
    send_start(script);
    hvt_talk_expect(&talk, HVI_LAUNCH_READY);
    return go();
}

/* Until all have ended; how the last one did. */
static struct hvi_launch_exit await_exits(void)
{
    struct hvi_launch_exit last = {.rank = -1};
    for (size_t ended = 0; ended < start.start.rank_count;) {
        struct hvi_launch_msg msg = hvt_talk_expect(&talk, HVI_LAUNCH_EXITED);
        for (size_t i = 0; i < msg.exited.exit_count; i++)
            ended += !msg.exited.exits[i].dying;
        last = msg.exited.exits[msg.exited.exit_count - 1];
        hvi_launch_msg_free(&msg);
    }
    return last;
}

static void end_well(void)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_END};
    hvt_talk_send(&talk, &msg);
    ck_assert_int_eq(hvt_talk_end(&talk), 0);
}

static void expect_failure(int code, const char *sentence)
{
    const struct hvi_launch_msg msg = hvt_talk_expect(&talk, HVI_LAUNCH_FAILED);
    ck_assert_str_eq(msg.text.text, sentence);
    ck_assert_uint_eq(msg.text.code, (unsigned)code);
    ck_assert_int_eq(hvt_talk_end(&talk), 1);
}

/* ---- what ranks get and give ---- */

START_TEST(ranks_know_their_place_and_print_to_hvdrun)
{
    char wanted[256];
    setenv("HVD_CYCLE_TIME", "1", 1); /* what was asked for wins over what is inherited */
    start.start.rank_count = 1;
    run("echo $HVD_RANK/$HVD_SIZE $HOROVOD_LOCAL_RANK/$HVD_LOCAL_SIZE "
        "$HVD_CROSS_RANK/$HOROVOD_CROSS_SIZE $HVD_JOB_ID $HVD_JOB_KEY $HVD_ADDRESS;"
        "echo $RANK/$WORLD_SIZE $MASTER_ADDR $MASTER_PORT [$HVD_CYCLE_TIME] "
        "$HOROVOD_CYCLE_TIME $FOO $PWD;"
        "echo to stderr >&2");
    const struct hvi_launch_exit last = await_exits();
    ck_assert_int_eq(last.rank, 2);
    ck_assert(!last.signaled && last.code == 0);
    snprintf(wanted, sizeof wanted,
             "2/4 0/1 1/2 hvt-job hvt-key %s\n2/4 192.0.2.1 2900 [] 9 bar /\n", root);
    ck_assert_str_eq(talk.output[0], wanted);
    ck_assert_str_eq(talk.output[1], "to stderr\n");
    end_well();
}
END_TEST

START_TEST(ranks_of_horovodrun_have_horovods_variables_alone)
{
    start.start.rank_count = 1;
    start.start.compat = true;
    snprintf(start.start.host, sizeof start.start.host, "user@h2");
    setenv("MASTER_ADDR", "the-users-own", 1);
    run("echo ${RANK-no} ${WORLD_SIZE-no} ${LOCAL_RANK-no} ${LOCAL_WORLD_SIZE-no} $MASTER_ADDR "
        "${MASTER_PORT-no}; echo $HOROVOD_RANK $HOROVOD_HOSTNAME $HOROVOD_CONTROLLER");
    await_exits();
    ck_assert_str_eq(talk.output[0], "no no no no the-users-own no\n2 user@h2 gloo\n");
    end_well();
}
END_TEST

START_TEST(all_that_it_starts_keeps_to_its_cores)
{
    char cores[HVI_CPUSET_TEXT], wanted[HVI_CPUSET_TEXT + 128];
    cpu_set_t set;
    ck_assert_int_eq(sched_getaffinity(0, sizeof set, &set), 0);
    start.start.ranks_before = 1;
    start.start.ranks_there = 2;
    start.start.rank_count = 1;
    start.start.verbose = true;
    run_divide_cut("", 1, 1, 2, &set);
    hvi_cpuset_print(&set, cores, sizeof cores);
    send_start("grep Cpus_allowed_list /proc/self/status");
    struct hvi_launch_msg said = hvt_talk_expect(&talk, HVI_LAUNCH_SAY);
    snprintf(
        wanted, sizeof wanted,
        "keeps to the cores %s: other hosts of the job are the same machine (--bind-to none: all "
        "cores)",
        cores);
    ck_assert_str_eq(said.text.text, wanted);
    hvi_launch_msg_free(&said);
    hvt_talk_expect(&talk, HVI_LAUNCH_READY);
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_GO};
    hvt_talk_send(&talk, &msg);
    said = hvt_talk_expect(&talk, HVI_LAUNCH_SAY); /* the rank's pid */
    hvi_launch_msg_free(&said);
    said = hvt_talk_expect(&talk, HVI_LAUNCH_STARTED);
    hvi_launch_msg_free(&said);
    ck_assert_int_eq(await_exits().code, 0);
    snprintf(wanted, sizeof wanted, "Cpus_allowed_list:\t%s\n", cores);
    ck_assert_str_eq(talk.output[0], wanted);
    end_well();
}
END_TEST

START_TEST(each_rank_ends_on_its_own)
{
    bool seen[2] = {false, false};
    run("exit $HVD_RANK");
    for (int ended = 0; ended < 2;) {
        struct hvi_launch_msg msg = hvt_talk_expect(&talk, HVI_LAUNCH_EXITED);
        for (size_t i = 0; i < msg.exited.exit_count; i++, ended++) {
            const struct hvi_launch_exit *row = &msg.exited.exits[i];
            ck_assert(row->rank == 2 || row->rank == 3);
            ck_assert(!row->signaled && row->code == row->rank && !seen[row->rank - 2]);
            seen[row->rank - 2] = true;
        }
        hvi_launch_msg_free(&msg);
    }
    end_well();
}
END_TEST

START_TEST(only_rank_0_reads_what_hvdrun_reads)
{
    be_first();
    run("cat");
    send_data(HVI_LAUNCH_INPUT, "line 1\n");
    const struct hvi_launch_msg taken = hvt_talk_expect(&talk, HVI_LAUNCH_INPUT_TAKEN);
    ck_assert_uint_eq(taken.number.number, 7);
    hvt_talk_gather(&talk, 1, 7);
    send_kind(HVI_LAUNCH_INPUT_END);
    ck_assert_int_eq(await_exits().code, 0);
    ck_assert_str_eq(talk.output[0], "line 1\n");
    end_well();
}
END_TEST

START_TEST(the_others_read_nothing)
{
    run("wc -c");
    ck_assert_int_eq(await_exits().code, 0);
    ck_assert_str_eq(talk.output[0], "0\n0\n");
    end_well();
}
END_TEST

START_TEST(a_rank_is_called_and_returns)
{
    start.start.rank_count = 1;
    start.start.call_bytes = 10;
    send_start("cat $HVD_RUN_CALL; echo returned > /proc/self/fd/$HVD_RUN_RESULT");
    hvt_talk_expect(&talk, HVI_LAUNCH_READY);
    send_data(HVI_LAUNCH_CALL, "hello ");
    send_data(HVI_LAUNCH_CALL, "call");
    go();
    ck_assert_int_eq(await_exits().code, 0);
    ck_assert_str_eq(talk.output[0], "hello call");
    ck_assert_str_eq(talk.output[2], "returned\n");
    end_well();
}
END_TEST

START_TEST(a_signal_reaches_the_ranks)
{
    start.start.rank_count = 1;
    run("exec sleep 100");
    send_number(HVI_LAUNCH_SIGNAL, SIGUSR1);
    const struct hvi_launch_exit last = await_exits();
    ck_assert(last.signaled && last.code == SIGUSR1);
    end_well();
}
END_TEST

START_TEST(a_stream_that_nobody_reads_is_closed)
{
    start.start.rank_count = 1;
    run("trap 'exit 5' TERM; echo; while :; do sleep 0.01; echo x 2>/dev/null || kill -TERM $$; "
        "done");
    hvt_talk_gather(&talk, 1, 1);
    send_number(HVI_LAUNCH_CLOSE, 1);
    const struct hvi_launch_exit last = await_exits();
    ck_assert(last.signaled ? last.code == SIGPIPE : last.code == 5);
    end_well();
}
END_TEST

START_TEST(looks_and_signs_of_life_are_answered)
{
    start.start.rank_count = 1;
    const pid_t pid = run("exec sleep 100");
    send_kind(HVI_LAUNCH_LOOK);
    hvt_talk_expect(&talk, HVI_LAUNCH_LOOKED);
    send_kind(HVI_LAUNCH_BEAT);
    hvt_talk_expect(&talk, HVI_LAUNCH_BEAT);
    send_number(HVI_LAUNCH_SIGNAL, SIGKILL);
    const struct hvi_launch_exit last = await_exits();
    ck_assert(last.signaled && last.code == SIGKILL && last.pid == pid);
    end_well();
}
END_TEST

/* ---- what cannot be ---- */

START_TEST(another_version_of_the_protocol_is_refused)
{
    start.start.launch_version = HVI_LAUNCH_VERSION + 1;
    send_start("true");
    expect_failure(1, "the hvdrun here speaks version 1 of the launch protocol, the one that calls "
                      "it version 2");
}
END_TEST

START_TEST(an_address_where_no_hvdd_is_is_told)
{
    snprintf(start.start.address, sizeof start.start.address, "/nonexistent/hvdd");
    send_start("true");
    expect_failure(1, "no hvdd answers at /nonexistent/hvdd (nothing there); start one, or leave "
                      "out --address and HVD_ADDRESS to get a private one");
}
END_TEST

START_TEST(a_directory_that_is_not_there_is_told)
{
    snprintf(start.start.directory, sizeof start.start.directory, "/nonexistent");
    send_start("true");
    expect_failure(1, "cannot enter /nonexistent: No such file or directory; --remote-dir names "
                      "another directory");
}
END_TEST

/* A command cannot say it with a sentence of its own. */
static void expect_no_start(const char *program, int code, const char *sentence)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_GO};
    start.start.command_bytes = hvt_talk_words(&start.start.command, program, NULL);
    hvt_talk_start(&talk, run_agent);
    hvt_talk_send(&talk, &start);
    hvt_talk_expect(&talk, HVI_LAUNCH_READY);
    hvt_talk_send(&talk, &msg);
    expect_failure(code, sentence);
}

START_TEST(a_command_that_is_not_there_has_the_shells_exit_codes)
{
    expect_no_start("/nonexistent/train", 127,
                    "cannot start rank 2: /nonexistent/train: command not found");
    expect_no_start("/etc/passwd", 126, "cannot start rank 2: /etc/passwd: Permission denied");
}
END_TEST

START_TEST(a_message_out_of_place_is_refused)
{
    const struct hvi_launch_msg early = {.kind = HVI_LAUNCH_GO};
    hvt_talk_start(&talk, run_agent);
    hvt_talk_send(&talk, &early);
    expect_failure(1, "message 21 has no place here");
}
END_TEST

START_TEST(more_of_a_call_than_was_announced_is_refused)
{
    start.start.call_bytes = 3;
    send_start("true");
    hvt_talk_expect(&talk, HVI_LAUNCH_READY);
    send_data(HVI_LAUNCH_CALL, "more");
    expect_failure(1, "message 27 has no place here");
}
END_TEST

START_TEST(ranks_do_not_start_before_the_call_is_whole)
{
    const struct hvi_launch_msg early = {.kind = HVI_LAUNCH_GO};
    start.start.call_bytes = 3;
    send_start("true");
    hvt_talk_expect(&talk, HVI_LAUNCH_READY);
    send_data(HVI_LAUNCH_CALL, "mo");
    hvt_talk_send(&talk, &early);
    expect_failure(1, "message 21 has no place here");
}
END_TEST

START_TEST(an_end_while_ranks_run_is_refused_and_ends_them)
{
    const struct hvi_launch_msg early = {.kind = HVI_LAUNCH_END};
    start.start.rank_count = 1;
    const pid_t pid = run("exec sleep 100");
    hvt_talk_send(&talk, &early);
    ck_assert_int_eq(hvt_talk_end(&talk), 1);
    ck_assert(hvt_talk_is_over(pid));
}
END_TEST

/* ---- hvdrun is gone ---- */

START_TEST(without_hvdrun_the_ranks_get_time_and_are_killed)
{
    start.start.rank_count = 1;
    start.start.grace_ns = 50 * HVI_NS_MS;
    const pid_t pid = run("trap '' TERM; echo; while :; do sleep 1; done");
    hvt_talk_gather(&talk, 1, 1);
    const uint64_t before_ns = hvi_clock_ns();
    hvt_talk_go(&talk);
    ck_assert_int_eq(hvt_talk_end(&talk), 1);
    ck_assert_uint_ge(hvi_clock_ns() - before_ns, 50 * HVI_NS_MS);
    ck_assert(hvt_talk_is_over(pid));
}
END_TEST

START_TEST(a_signal_ends_the_ranks_at_once)
{
    start.start.rank_count = 1;
    const pid_t pid = run("exec sleep 100");
    ck_assert_int_eq(kill(talk.pid, SIGHUP), 0);
    ck_assert_int_eq(hvt_talk_end(&talk), 1);
    ck_assert(hvt_talk_is_over(pid));
}
END_TEST

START_TEST(a_silent_hvdrun_is_taken_for_gone)
{
    start.start.rank_count = 1;
    start.start.silence_ns = 200 * HVI_NS_MS;
    const pid_t pid = run("exec sleep 100");
    const uint64_t before_ns = hvi_clock_ns();
    ck_assert_int_eq(hvt_talk_end(&talk), 1);
    ck_assert_uint_lt(hvi_clock_ns() - before_ns, 15 * HVI_NS_SEC);
    ck_assert(hvt_talk_is_over(pid));
}
END_TEST

/* As when the cable is cut before hvdrun has told what to run. */
START_TEST(a_hvdrun_that_is_silent_from_the_first_is_taken_for_gone)
{
    const uint64_t before_ns = hvi_clock_ns();
    hvt_talk_start_for(&talk, run_agent, 200 * HVI_NS_MS);
    ck_assert_int_eq(hvt_talk_end(&talk), 1);
    ck_assert_uint_lt(hvi_clock_ns() - before_ns, 15 * HVI_NS_SEC);
}
END_TEST

START_TEST(what_is_to_run_comes_with_another_silence_time)
{
    start.start.rank_count = 1;
    start.start.command_bytes =
        hvt_talk_words(&start.start.command, "/bin/sh", "-c", "sleep 0.4", NULL);
    hvt_talk_start_for(&talk, run_agent, 200 * HVI_NS_MS);
    hvt_talk_send(&talk, &start);
    hvt_talk_expect(&talk, HVI_LAUNCH_READY);
    go();
    ck_assert_int_eq(await_exits().code, 0);
    end_well();
}
END_TEST

/* ---- a private hvdd ---- */

/* Written as a script, with its options in $ready, $parent and $dir. */
static void write_hvdd(const char *body)
{
    const char *head = "#!/bin/sh\nfor word; do case $last in --ready-fd) ready=$word;; "
                       "--parent-fd) parent=$word;; --runtime-dir) dir=$word;; esac; "
                       "last=$word; done\n";
    snprintf(start.start.hvdd, sizeof start.start.hvdd, "%s/hvdd-script", root);
    FILE *file = fopen(start.start.hvdd, "we");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "%s%s", head, body);
    fclose(file);
    ck_assert_int_eq(chmod(start.start.hvdd, 0700), 0);
    start.start.address[0] = '\0';
}

START_TEST(a_private_hvdd_is_started_heard_and_ended)
{
    start.start.rank_count = 1;
    start.start.verbose = true;
    snprintf(start.start.mesh_listen, sizeof start.start.mesh_listen, "*:0");
    snprintf(start.start.mesh_key, sizeof start.start.mesh_key, "the key");
    write_hvdd("test \"$(cat $dir/mesh.key)\" = 'the key' || exit 1\n"
               "case \"$*\" in *--private=yes*--mesh-listen\\ \\*:0*) ;; *) exit 1;; esac\n"
               "echo 9612 >$dir/mesh.port\necho a word of hvdd >&2\n"
               "echo >/proc/self/fd/$ready\nexec cat /proc/self/fd/$parent\n");
    send_start("echo $HVD_ADDRESS");
    struct hvi_launch_msg msg = hvt_talk_expect(&talk, HVI_LAUNCH_SAY);
    ck_assert_int_eq(strncmp(msg.text.text, "private hvdd: pid ", 18), 0);
    const pid_t daemon = (pid_t)strtol(msg.text.text + 18, NULL, 10);
    msg = hvt_talk_expect(&talk, HVI_LAUNCH_READY);
    ck_assert_uint_eq(msg.ready.mesh_port, 9612);
    send_kind(HVI_LAUNCH_GO);
    bool logged = false, started = false, exited = false;
    while (!logged || !exited) {
        msg = hvt_talk_next(&talk);
        logged |= msg.kind == HVI_LAUNCH_LOG && msg.data.bytes == 15 &&
                  memcmp(msg.data.data, "a word of hvdd\n", 15) == 0;
        started |= msg.kind == HVI_LAUNCH_STARTED;
        exited |= msg.kind == HVI_LAUNCH_EXITED;
        ck_assert_int_ne((int)msg.kind, HVI_LAUNCH_FAILED);
        hvi_launch_msg_free(&msg);
    }
    ck_assert(started);
    ck_assert_int_eq(strncmp(talk.output[0], root, strlen(root)), 0);
    ck_assert_ptr_nonnull(strstr(talk.output[0], "/hvdrun-"));
    end_well();
    ck_assert(hvt_talk_is_over(daemon));
}
END_TEST

START_TEST(a_hvdd_that_fails_is_told_with_its_words)
{
    write_hvdd("echo no memory for anything >&2; exit 1\n");
    send_start("true");
    expect_failure(1, "the private hvdd failed to start: no memory for anything");
}
END_TEST

START_TEST(a_hvdd_that_hangs_is_given_up)
{
    start.start.start_timeout_ns = 100 * HVI_NS_MS;
    write_hvdd("exec cat /proc/self/fd/$parent\n");
    send_start("true");
    expect_failure(1, "the private hvdd did not get ready in time");
}
END_TEST

START_TEST(a_hvdd_that_is_not_there_is_told)
{
    start.start.address[0] = '\0';
    snprintf(start.start.hvdd, sizeof start.start.hvdd, "/nonexistent/hvdd");
    send_start("true");
    expect_failure(1, "cannot start /nonexistent/hvdd: No such file or directory (name it with "
                      "--hvdd, or use a running one with --address)");
}
END_TEST

START_TEST(the_end_of_hvdrun_interrupts_the_start_of_hvdd)
{
    write_hvdd("exec cat /proc/self/fd/$parent\n");
    send_start("true");
    hvt_talk_go(&talk);
    expect_failure(1, "interrupted while hvdd was starting");
}
END_TEST

START_TEST(a_hvdd_that_ends_before_the_ranks_are_started_is_told)
{
    write_hvdd("echo a last word >&2\necho >/proc/self/fd/$ready\nexit 3\n");
    send_start("true");
    hvt_talk_expect(&talk, HVI_LAUNCH_READY);
    const struct hvi_launch_msg msg = hvt_talk_expect(&talk, HVI_LAUNCH_FAILED);
    ck_assert_ptr_nonnull(strstr(msg.text.text, "the private hvdd (pid "));
    ck_assert_ptr_nonnull(strstr(msg.text.text, "with code 3 before the ranks were started"));
    ck_assert_uint_eq(msg.text.code, 1);
    ck_assert_int_eq(hvt_talk_end(&talk), 1);
}
END_TEST

START_TEST(jobs_go_on_when_hvdd_has_ended)
{
    be_first();
    write_hvdd("echo >/proc/self/fd/$ready\nsleep 0.1\nexit 3\n");
    run("read line; echo $line");
    struct hvi_launch_msg msg = hvt_talk_expect(&talk, HVI_LAUNCH_SAY);
    ck_assert_msg(strstr(msg.text.text, "exited with code 3; running jobs go on, but nobody can "
                                        "attach any more") != NULL,
                  "%s", msg.text.text);
    msg = hvt_talk_expect(&talk, HVI_LAUNCH_LOST);
    ck_assert_ptr_nonnull(strstr(msg.text.text, "the private hvdd (pid "));
    ck_assert_ptr_nonnull(strstr(msg.text.text, ") exited with code 3"));
    send_data(HVI_LAUNCH_INPUT, "still here\n");
    hvt_talk_expect(&talk, HVI_LAUNCH_INPUT_TAKEN);
    ck_assert_int_eq(await_exits().code, 0);
    ck_assert_str_eq(talk.output[0], "still here\n");
    end_well();
}
END_TEST

START_TEST(what_another_host_has_lost_is_passed_to_hvdd)
{
    struct hvi_launch_msg lost = {.kind = HVI_LAUNCH_LOST};
    be_first();
    write_hvdd("echo >/proc/self/fd/$ready\nread line </proc/self/fd/$parent\necho \"heard $line\" "
               ">&2\nexec cat /proc/self/fd/$parent\n");
    run("read line");
    snprintf(lost.text.text, sizeof lost.text.text, "h2: it is gone");
    hvt_talk_send(&talk, &lost);
    struct hvi_launch_msg msg = hvt_talk_expect(&talk, HVI_LAUNCH_LOG);
    ck_assert_uint_eq(msg.data.bytes, strlen("heard h2: it is gone\n"));
    ck_assert_mem_eq(msg.data.data, "heard h2: it is gone\n", msg.data.bytes);
    hvi_launch_msg_free(&msg);
    send_data(HVI_LAUNCH_INPUT, "\n");
    hvt_talk_expect(&talk, HVI_LAUNCH_INPUT_TAKEN);
    ck_assert_int_eq(await_exits().code, 0);
    end_well();
}
END_TEST

static TCase *make_ranks_case(void)
{
    TCase *tests = tcase_create("ranks");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, ranks_know_their_place_and_print_to_hvdrun);
    tcase_add_test(tests, ranks_of_horovodrun_have_horovods_variables_alone);
    tcase_add_test(tests, all_that_it_starts_keeps_to_its_cores);
    tcase_add_test(tests, each_rank_ends_on_its_own);
    tcase_add_test(tests, only_rank_0_reads_what_hvdrun_reads);
    tcase_add_test(tests, the_others_read_nothing);
    tcase_add_test(tests, a_rank_is_called_and_returns);
    tcase_add_test(tests, a_signal_reaches_the_ranks);
    tcase_add_test(tests, a_stream_that_nobody_reads_is_closed);
    tcase_add_test(tests, looks_and_signs_of_life_are_answered);
    tcase_add_test(tests, without_hvdrun_the_ranks_get_time_and_are_killed);
    tcase_add_test(tests, a_signal_ends_the_ranks_at_once);
    tcase_add_test(tests, a_silent_hvdrun_is_taken_for_gone);
    tcase_add_test(tests, a_hvdrun_that_is_silent_from_the_first_is_taken_for_gone);
    tcase_add_test(tests, what_is_to_run_comes_with_another_silence_time);
    return tests;
}

static TCase *make_refusals_case(void)
{
    TCase *tests = tcase_create("refusals");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, another_version_of_the_protocol_is_refused);
    tcase_add_test(tests, an_address_where_no_hvdd_is_is_told);
    tcase_add_test(tests, a_directory_that_is_not_there_is_told);
    tcase_add_test(tests, a_command_that_is_not_there_has_the_shells_exit_codes);
    tcase_add_test(tests, a_message_out_of_place_is_refused);
    tcase_add_test(tests, more_of_a_call_than_was_announced_is_refused);
    tcase_add_test(tests, ranks_do_not_start_before_the_call_is_whole);
    tcase_add_test(tests, an_end_while_ranks_run_is_refused_and_ends_them);
    return tests;
}

static TCase *make_daemon_case(void)
{
    TCase *tests = tcase_create("daemon");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_private_hvdd_is_started_heard_and_ended);
    tcase_add_test(tests, a_hvdd_that_fails_is_told_with_its_words);
    tcase_add_test(tests, a_hvdd_that_hangs_is_given_up);
    tcase_add_test(tests, a_hvdd_that_is_not_there_is_told);
    tcase_add_test(tests, the_end_of_hvdrun_interrupts_the_start_of_hvdd);
    tcase_add_test(tests, a_hvdd_that_ends_before_the_ranks_are_started_is_told);
    tcase_add_test(tests, jobs_go_on_when_hvdd_has_ended);
    tcase_add_test(tests, what_another_host_has_lost_is_passed_to_hvdd);
    return tests;
}

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/agent");
    suite_add_tcase(suite, make_ranks_case());
    suite_add_tcase(suite, make_refusals_case());
    suite_add_tcase(suite, make_daemon_case());
    return hvt_run_suite(suite);
}
