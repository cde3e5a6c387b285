/* SPDX-License-Identifier: Apache-2.0
 * The MPS control daemon of a hvdd's own, which tests/fakegpu/mps plays: a shell with a server in its session. */
#include "daemon/node/mps.h"

#include "base/file.h"
#include "base/mps.h"
#include "tests/unit/hvt_file.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <limits.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define PATIENCE_NS (20 * (int64_t)HVI_NS_SEC)
#define BROKEN      "" /* what no kernel can run */

static sd_event *event;
static struct node_config config;
static struct node_rundir rundir = NODE_RUNDIR_INIT;
static struct node_mps mps;
static char root[64], path_before[PATH_MAX];
static int ended, lost, fds_before;

static const char *in_root(const char *name)
{
    static char path[256];

    snprintf(path, sizeof(path), "%s/%s", root, name);
    return path;
}

static bool is_there(const char *name)
{
    return access(in_root(name), F_OK) == 0;
}

/* A file of the test's. */
static void write_file(const char *name, const char *text, mode_t mode)
{
    hvt_write_file(in_root(name), mode, text);
}

/* The programs of that folder of the test's are found before others. */
static void put_into_path(const char *folder)
{
    char path[2 * PATH_MAX];

    snprintf(path, sizeof(path), "%s/%s:%s", root, folder, getenv("PATH"));
    setenv("PATH", path, 1);
}

/* A program of the test's own in the folder bin, which is in PATH then. */
static void write_program(const char *text)
{
    if (!is_there("bin")) {
        ck_assert_int_eq(mkdir(in_root("bin"), 0700), 0);
        put_into_path("bin");
    }
    unlink(in_root("bin/" HVI_MPS_PROGRAM)); /* a shell may run it */
    write_file("bin/" HVI_MPS_PROGRAM, text, 0700);
}

static void on_ended(void *user)
{
    ck_assert_ptr_eq(user, &mps);
    ended++;
}

static void on_lost(void *user)
{
    ck_assert_ptr_eq(user, &mps);
    lost++;
}

static void init(void)
{
    mps = (struct node_mps){.event = event,
                            .config = &config,
                            .rundir = &rundir,
                            .private_mode = true,
                            .ended = on_ended,
                            .lost = on_lost,
                            .user = &mps};
}

static void setup(void)
{
    sigset_t set;

    hvt_log_open();
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigprocmask(SIG_BLOCK, &set, NULL);
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* to see that servers end */
    snprintf(root, sizeof(root), "/tmp/hvt-mps-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(root));
    ck_assert_int_eq(mkdir(in_root("run"), 0700), 0);
    snprintf(rundir.path, sizeof(rundir.path), "%s/run", root);
    snprintf(path_before, sizeof(path_before), "%s:%s", PLAYED_MPS, getenv("PATH"));
    setenv("PATH", path_before, 1);
    unsetenv(HVI_MPS_PIPE_VAR);
    unsetenv(HVI_MPS_LOG_VAR);
    unsetenv("CUDA_VISIBLE_DEVICES");
    unsetenv("FAKEMPS");
    node_config_defaults(&config);
    config.gpu_mps = 1;
    fds_before = hvt_count_fds();
    ck_assert_int_ge(sd_event_new(&event), 0);
    init();
}

/* Turns the loop until that is so. */
static void run_until(bool (*is_so)(void), const char *what)
{
    const uint64_t deadline_ns = hvi_deadline_after(PATIENCE_NS);

    while (!is_so()) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "never: %s", what);
        ck_assert_int_ge(sd_event_run(event, 100000), 0);
    }
}

static void show_children(void)
{
    char command[100];

    snprintf(command, sizeof(command), "ps -o pid,sid,stat,wchan:20,args --ppid %d", (int)getpid());
    (void)!system(command);
}

/* Until none is left; a server whose daemon was killed is this process's child. */
static void expect_no_process(void)
{
    const struct timespec pause = {0, 500000};
    const uint64_t deadline_ns = hvi_deadline_after(PATIENCE_NS);

    while (waitpid(-1, NULL, WNOHANG) >= 0) {
        if (hvi_deadline_passed(deadline_ns)) {
            show_children();
            ck_abort_msg("a process is left");
        }
        nanosleep(&pause, NULL);
    }
}

/* Nothing stays: no process, no descriptor, no file. */
static void teardown(void)
{
    node_mps_close(&mps);
    node_mps_close(&mps);
    sd_event_unref(event);
    expect_no_process();
    ck_assert_int_eq(hvt_count_fds(), fds_before);
    ck_assert_int_eq(rmdir(in_root("run")), 0);
    unlink(in_root("bin/" HVI_MPS_PROGRAM));
    rmdir(in_root("bin"));
    unlink(in_root("own/control.log"));
    rmdir(in_root("own"));
    ck_assert_int_eq(rmdir(root), 0);
}

static const char *description(void)
{
    static char text[600];

    node_mps_describe(&mps, text, sizeof(text));
    return text;
}

static void expect_text(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "'%s' is not in '%s'", part, text);
}

/* Where it can run. A machine on which a shell does not get to listen within 3 s is late: it is tried again. */
static void open_it(void)
{
    for (int i = 0; i < 3; i++) {
        node_mps_open(&mps);
        if (mps.on || strstr(mps.why, "does not listen after 3 s") == NULL)
            break;
    }
    ck_assert_msg(mps.on, "%s", mps.why);
}

/* It runs, and hvdd says so. */
static void expect_running(void)
{
    char text[HVI_WIRE_PATH + 64];

    ck_assert(mps.on);
    snprintf(text, sizeof(text), "pid %d, in %s/mps", (int)mps.pid, rundir.path);
    ck_assert_str_eq(description(), text);
    ck_assert_int_eq(hvi_mps_find(rundir.path), mps.pid);
    snprintf(text, sizeof(text), "%s/mps", rundir.path);
    ck_assert_str_eq(getenv(HVI_MPS_PIPE_VAR), text);
}

static void expect_none(const char *why)
{
    ck_assert(!mps.on);
    expect_text(description(), why);
    ck_assert_int_eq(hvt_log_count("there is no MPS, and jobs run without it"), 1);
    ck_assert(!is_there("run/mps"));
    ck_assert(!is_there("run/mps-log"));
    ck_assert(!is_there("run/mps.pid"));
}

static bool has_ended(void)
{
    return ended > 0;
}

/* The process that tells it to quit. */
static bool has_told(void)
{
    return mps.quitting == 0;
}

static bool is_lost(void)
{
    return lost > 0;
}

static bool runs(void)
{
    return mps.pid != 0 && is_there("run/mps/control");
}

/* What the played daemon has logged, from then on one that is running. */
static const char *log_of_it(void)
{
    static char text[4096];

    ck_assert_int_gt(hvi_file_read(in_root("run/mps-log/control.log"), text, sizeof(text)), 0);
    return text;
}

/* ---- its start ---- */

START_TEST(without_the_option_there_is_none_and_nothing_is_said)
{
    config.gpu_mps = 0;
    node_mps_open(&mps);
    ck_assert(!mps.on);
    ck_assert_str_eq(description(), "");
    ck_assert_ptr_null(getenv(HVI_MPS_PIPE_VAR));
    ck_assert(!node_mps_stop(&mps));
    ck_assert_int_eq(hvt_log_count("MPS"), 0);
}
END_TEST

static const struct {
    const char *set, *sees;
} devices[] = {
    {NULL, "devices: all\n"},
    {"0,1", "devices: all\n"}, /* a client would count again from its server's */
    {"GPU-8f2b", "devices: GPU-8f2b\n"},
};

START_TEST(it_runs_before_hvdd_is_ready_and_sees_all_gpus_unless_they_are_named)
{
    struct stat info;

    if (devices[_i].set != NULL)
        setenv("CUDA_VISIBLE_DEVICES", devices[_i].set, 1);
    open_it();
    expect_running();
    ck_assert(is_there("run/mps/control"));
    ck_assert_int_eq(stat(in_root("run/mps"), &info), 0);
    ck_assert_uint_eq(info.st_mode & 07777, 0700);
    ck_assert_str_eq(log_of_it(), devices[_i].sees);
    node_mps_close(&mps);
    expect_no_process();
    ck_assert_ptr_null(getenv(HVI_MPS_PIPE_VAR));
    ck_assert_ptr_null(getenv(HVI_MPS_LOG_VAR));
    ck_assert_int_eq(ended + lost, 0);
}
END_TEST

START_TEST(the_users_own_folders_are_named_again_when_it_has_gone)
{
    char own[PATH_MAX];

    ck_assert_int_eq(mkdir(in_root("own"), 0700), 0);
    snprintf(own, sizeof(own), "%s", in_root("own"));
    setenv(HVI_MPS_PIPE_VAR, "/run/own", 1);
    setenv(HVI_MPS_LOG_VAR, own, 1);
    open_it();
    expect_running();
    ck_assert_str_eq(getenv(HVI_MPS_LOG_VAR), own); /* who has named one wants the log there */
    ck_assert(is_there("own/control.log"));
    node_mps_close(&mps);
    ck_assert_str_eq(getenv(HVI_MPS_PIPE_VAR), "/run/own");
    ck_assert_str_eq(getenv(HVI_MPS_LOG_VAR), own);
}
END_TEST

START_TEST(what_is_no_program_in_path_is_passed_over)
{
    char path[3 * PATH_MAX];

    ck_assert_int_eq(mkdir(in_root("bin"), 0700), 0);
    ck_assert_int_eq(mkdir(in_root("own"), 0700), 0);
    ck_assert_int_eq(mkdir(in_root("own/" HVI_MPS_PROGRAM), 0700), 0);
    write_file("bin/" HVI_MPS_PROGRAM, "#!/bin/sh\n", 0600);
    snprintf(path, sizeof(path), "bin:/nonexistent:%s/bin:%s/own::%s", root, root, path_before);
    setenv("PATH", path, 1);
    open_it();
    expect_running();
    ck_assert_str_eq(mps.program, PLAYED_MPS "/" HVI_MPS_PROGRAM);
    ck_assert_int_eq(rmdir(in_root("own/" HVI_MPS_PROGRAM)), 0);
}
END_TEST

static const struct {
    bool shared, without_gpus, by_unit, too_long;
    const char *why;
} obstacles[] = {
    {true, false, false, false, "this hvdd serves several users"},
    {false, true, false, false, "hvdd starts no workers for GPUs (gpu = no)"},
    {false, false, true, false, "workers are started by their unit (gpu-socket)"},
    {false, false, false, true, "the path of its sockets would be too long"},
};

START_TEST(where_there_can_be_none_a_sentence_says_why)
{
    mps.private_mode = !obstacles[_i].shared;
    config.gpu = obstacles[_i].without_gpus ? 0 : config.gpu;
    snprintf(config.gpu_socket, sizeof(config.gpu_socket), "%s",
             obstacles[_i].by_unit ? "/run/hvdd-gpu.sock" : "");
    if (obstacles[_i].too_long)
        snprintf(rundir.path, sizeof(rundir.path), "%s/%080d", root, 0);
    node_mps_open(&mps);
    ck_assert_int_eq(strncmp(description(), "none: ", strlen("none: ")), 0);
    expect_none(obstacles[_i].why);
}
END_TEST

START_TEST(one_that_ends_at_once_is_told_with_its_last_words)
{
    setenv("FAKEMPS", "ends", 1);
    node_mps_open(&mps);
    expect_none("has ended at its start: there is no  GPU  here");
    ck_assert_ptr_null(getenv(HVI_MPS_PIPE_VAR));
}
END_TEST

START_TEST(what_it_has_said_as_a_program_counts_where_it_has_no_log)
{
    write_program("#!/bin/sh\ni=0\nwhile [ $i -lt 100 ]; do echo filling; i=$((i + 1)); done\n"
                  "echo cannot find a driver\necho\n");
    node_mps_open(&mps);
    expect_none("has ended at its start: cannot find a driver");
}
END_TEST

START_TEST(a_program_that_cannot_be_run_is_told)
{
    write_program(BROKEN);
    node_mps_open(&mps);
    expect_none("bin/" HVI_MPS_PROGRAM " cannot be started");
    ck_assert_int_eq(hvt_log_count("cannot start MPS"), 1);
}
END_TEST

START_TEST(a_folder_that_is_not_hvdds_is_left_alone)
{
    ck_assert_int_eq(mkdir(in_root("run/mps"), 0700), 0);
    node_mps_open(&mps);
    expect_text(description(), "cannot make the folders mps and mps-log in /tmp/hvt-mps-");
    expect_text(description(), ": File exists");
    ck_assert(is_there("run/mps"));
    ck_assert(!is_there("run/mps.pid"));
    ck_assert_int_eq(rmdir(in_root("run/mps")), 0);
}
END_TEST

START_TEST(what_a_hvdd_has_left_that_was_killed_is_removed)
{
    ck_assert_int_eq(mkdir(in_root("run/mps"), 0700), 0);
    write_file("run/mps/old", "", 0600);
    write_file("run/mps.pid", "0\n", 0600);
    open_it();
    expect_running();
    ck_assert(!is_there("run/mps/old"));
}
END_TEST

/* ---- its end ---- */

START_TEST(it_is_told_to_quit)
{
    open_it();
    ck_assert(node_mps_stop(&mps));
    ck_assert(node_mps_stop(&mps)); /* it has been told */
    run_until(has_ended, "its end");
    run_until(has_told, "the end of the process that tells it");
    expect_text(log_of_it(), "quit -t 1\n");
    ck_assert_int_eq(ended, 1);
    ck_assert_int_eq(lost, 0);
    ck_assert(!node_mps_stop(&mps));
    ck_assert_int_eq(hvt_log_count("mps-killed"), 0);
    expect_no_process(); /* of its session neither */
}
END_TEST

/* The deadline has passed as soon as the test says so. */
static void let_it_be_late(void)
{
    ck_assert_ptr_nonnull(mps.late);
    ck_assert_int_ge(sd_event_source_set_time_relative(mps.late, 0), 0);
}

START_TEST(one_that_is_deaf_to_quit_is_killed)
{
    setenv("FAKEMPS", "deaf", 1);
    open_it();
    ck_assert(node_mps_stop(&mps));
    let_it_be_late();
    run_until(has_ended, "its end");
    ck_assert_int_eq(hvt_log_count("MPS has not ended 3.5 s after"), 1);
    ck_assert_int_eq(hvt_log_count("MPS was killed by signal 9 (SIGKILL)"), 1);
    ck_assert_int_eq(hvt_log_count("is started again"), 0);
    ck_assert_int_eq(lost, 0);
}
END_TEST

/* As one that hangs in the driver: its end is not seen. */
START_TEST(one_that_no_signal_ends_is_waited_for_no_longer)
{
    setenv("FAKEMPS", "deaf", 1);
    open_it();
    ck_assert(node_mps_stop(&mps));
    ck_assert_int_ge(sd_event_source_set_enabled(mps.exit, SD_EVENT_OFF), 0);
    let_it_be_late();
    while (hvt_log_count("MPS has not ended 3.5 s after") == 0)
        ck_assert_int_ge(sd_event_run(event, 100000), 0);
    ck_assert_int_eq(ended, 0);
    let_it_be_late();
    run_until(has_ended, "the end of the wait");
    ck_assert_int_eq(hvt_log_count("MPS does not end by SIGKILL; hvdd waits no longer"), 1);
    ck_assert_int_eq(ended, 1);
}
END_TEST

START_TEST(one_that_cannot_be_told_is_killed_at_once)
{
    open_it();
    snprintf(mps.program, sizeof(mps.program), "%s", in_root("none"));
    ck_assert(node_mps_stop(&mps));
    run_until(has_ended, "its end");
    ck_assert_int_eq(hvt_log_count("MPS was killed by signal 9 (SIGKILL)"), 1);
}
END_TEST

/* False: node_mps_close has not waited for the end of the process that tells it. */
static bool ends_while_it_is_told(void)
{
    pid_t quitting;

    open_it();
    ck_assert(node_mps_stop(&mps));
    quitting = mps.quitting;
    ck_assert_int_gt(quitting, 0);
    node_mps_close(&mps);
    init();
    return waitpid(quitting, NULL, WNOHANG) < 0;
}

START_TEST(hvdd_may_end_while_it_is_told)
{
    bool has_waited = false;

    setenv("FAKEMPS", "deaf", 1);
    for (int i = 0; i < 3 && !has_waited; i++) /* on a late machine 0.1 s may be too short */
        has_waited = ends_while_it_is_told();
    ck_assert(has_waited);
    expect_no_process();
    ck_assert_int_eq(ended, 0);
}
END_TEST

START_TEST(one_that_ends_by_itself_is_started_again)
{
    pid_t before;

    open_it();
    before = mps.pid;
    kill(before, SIGKILL);
    run_until(is_lost, "its end");
    ck_assert_str_eq(description(), "none: it has ended, and is about to be started again");
    ck_assert_int_eq(hvt_log_count("was killed by signal 9 (SIGKILL) and is started again; CUDA "
                                   "fails in every process that was in it"),
                     1);
    ck_assert_int_eq(hvt_log_count("said=\"devices: all\""), 1);
    run_until(runs, "the next one");
    ck_assert_int_ne(mps.pid, before);
    expect_running();
    ck_assert_int_eq(lost, 1);
    ck_assert_int_eq(ended, 0);
}
END_TEST

START_TEST(one_that_cannot_be_started_again_yet_is_tried_until_it_can)
{
    char text[PATH_MAX];

    snprintf(text, sizeof(text), "#!/bin/sh\nexec /bin/sh %s/%s \"$@\"\n", PLAYED_MPS,
             HVI_MPS_PROGRAM);
    write_program(text);
    open_it();
    expect_running();
    write_program(BROKEN);
    kill(mps.pid, SIGKILL);
    run_until(is_lost, "its end");
    while (hvt_log_count("cannot start MPS") == 0)
        ck_assert_int_ge(sd_event_run(event, 100000), 0);
    ck_assert(mps.on);
    write_program(text);
    run_until(runs, "the next one");
    expect_running();
}
END_TEST

START_TEST(one_that_ends_where_there_may_be_none_any_more_is_forgotten)
{
    open_it();
    config.gpu = 0;
    kill(mps.pid, SIGKILL);
    run_until(is_lost, "its end");
    ck_assert_int_eq(hvt_log_count("and is not started again"), 1);
    ck_assert(!mps.on);
    ck_assert_str_eq(description(), "none: hvdd starts no workers for GPUs (gpu = no)");
    ck_assert_ptr_null(getenv(HVI_MPS_PIPE_VAR));
    ck_assert(!is_there("run/mps.pid"));
    expect_no_process();
}
END_TEST

/* ---- of a hvdd that was killed ---- */

/* Starts one as a hvdd does that ends at once; its pid. */
static pid_t leave_one(void)
{
    static sd_event *own; /* a child cannot use its parent's */
    const pid_t earlier = fork();

    if (earlier == 0) {
        if (sd_event_new(&own) < 0)
            exit(1);
        init();
        mps.event = own;
        open_it();
        exit(0);
    }
    ck_assert_int_eq(hvt_wait_child(earlier), 0);
    const pid_t pid = hvi_mps_find(rundir.path);
    ck_assert_int_gt(pid, 0);
    return pid;
}

START_TEST(that_of_a_hvdd_that_was_killed_goes_on_and_can_be_told_to_quit)
{
    const pid_t pid = leave_one();

    node_mps_open(&mps);
    ck_assert_int_eq(mps.pid, pid);
    expect_running();
    ck_assert_int_ge(hvt_log_count("MPS of an earlier hvdd goes on"), 1);
    ck_assert(node_mps_stop(&mps));
    run_until(has_ended, "its end");
    expect_text(log_of_it(), "quit -t 1\n");
}
END_TEST

START_TEST(a_hvdd_that_wants_none_keeps_it_and_does_not_start_another)
{
    const pid_t pid = leave_one();

    config.gpu_mps = 0;
    node_mps_open(&mps);
    expect_running();
    kill(pid, SIGKILL);
    run_until(is_lost, "its end");
    ck_assert_int_eq(hvt_log_count("and is not started again"), 1);
    ck_assert(!mps.on);
    ck_assert_str_eq(description(), "");
    ck_assert(!is_there("run/mps.pid"));
    ck_assert(!is_there("run/mps"));
    expect_no_process(); /* its server, too */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node/mps");
    TCase *tcase = tcase_create("mps");

    tcase_set_tags(tcase, "programs");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, without_the_option_there_is_none_and_nothing_is_said);
    tcase_add_loop_test(tcase, it_runs_before_hvdd_is_ready_and_sees_all_gpus_unless_they_are_named,
                        0, sizeof(devices) / sizeof(devices[0]));
    tcase_add_test(tcase, the_users_own_folders_are_named_again_when_it_has_gone);
    tcase_add_test(tcase, what_is_no_program_in_path_is_passed_over);
    tcase_add_loop_test(tcase, where_there_can_be_none_a_sentence_says_why, 0,
                        sizeof(obstacles) / sizeof(obstacles[0]));
    tcase_add_test(tcase, one_that_ends_at_once_is_told_with_its_last_words);
    tcase_add_test(tcase, what_it_has_said_as_a_program_counts_where_it_has_no_log);
    tcase_add_test(tcase, a_program_that_cannot_be_run_is_told);
    tcase_add_test(tcase, a_folder_that_is_not_hvdds_is_left_alone);
    tcase_add_test(tcase, what_a_hvdd_has_left_that_was_killed_is_removed);
    tcase_add_test(tcase, it_is_told_to_quit);
    tcase_add_test(tcase, one_that_is_deaf_to_quit_is_killed);
    tcase_add_test(tcase, one_that_no_signal_ends_is_waited_for_no_longer);
    tcase_add_test(tcase, one_that_cannot_be_told_is_killed_at_once);
    tcase_add_test(tcase, hvdd_may_end_while_it_is_told);
    tcase_add_test(tcase, one_that_ends_by_itself_is_started_again);
    tcase_add_test(tcase, one_that_cannot_be_started_again_yet_is_tried_until_it_can);
    tcase_add_test(tcase, one_that_ends_where_there_may_be_none_any_more_is_forgotten);
    tcase_add_test(tcase, that_of_a_hvdd_that_was_killed_goes_on_and_can_be_told_to_quit);
    tcase_add_test(tcase, a_hvdd_that_wants_none_keeps_it_and_does_not_start_another);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
