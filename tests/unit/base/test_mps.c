/* SPDX-License-Identifier: Apache-2.0
 * Whose an MPS control daemon is, and what ends with it. The processes are shells that are called like NVIDIA's program, each
 * the leader of a session with two others in it: a server, and a process that was told of another directory. One test has a server
 * that becomes another program all the time. */
#include "base/mps.h"

#include "base/file.h"
#include "tests/unit/hvt_file.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <limits.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/stat.h>

#define PATIENCE_NS (20 * (int64_t)HVI_NS_SEC)
#define KILLED_NS   (10 * (int64_t)HVI_NS_SEC) /* less than a sleep lasts */
#define EXECS       60

static char dir[64];
static struct {
    pid_t control, server, stranger;
} started;

static const char *in_dir(const char *name)
{
    static char path[256];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static void write_file(const char *name, const char *text)
{
    hvt_write_file(in_dir(name), 0644, text);
}

static void write_pid(pid_t pid)
{
    char text[32];

    snprintf(text, sizeof text, "%d\n", (int)pid);
    write_file(HVI_MPS_PID, text);
}

static bool is_there(const char *name)
{
    return access(in_dir(name), F_OK) == 0;
}

/* As soon as it is: until then it has the command line and the environment of its parent. */
static void await_sleep(pid_t pid)
{
    const uint64_t deadline_ns = hvi_deadline_after(PATIENCE_NS);
    const struct timespec pause = {0, 500000};
    char path[64], text[64];

    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    while (hvi_file_read(path, text, sizeof text) <= 0 || strcmp(text, "sleep") != 0) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        nanosleep(&pause, NULL);
    }
}

/* A process of that name, which was told of that folder for pipes, and the two others. */
static void start(const char *name, const char *pipes)
{
    static char script[] =
        "sleep 20 & echo $!; " HVI_MPS_PIPE_VAR "=/elsewhere sleep 20 & echo $!; wait";
    char setting[PATH_MAX], title[64], option[] = "-c";
    char *argv[] = {title, option, script, NULL};
    char *variables[] = {setting, NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int ends[2];

    snprintf(title, sizeof title, "%s", name);
    snprintf(setting, sizeof setting, HVI_MPS_PIPE_VAR "=%s", pipes);
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    ck_assert_int_eq(
        posix_spawn(&started.control, "/bin/sh", &actions, &attributes, argv, variables), 0);
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
    close(ends[1]);
    FILE *said = fdopen(ends[0], "re");
    ck_assert_int_eq(fscanf(said, "%d %d", &started.server, &started.stranger), 2);
    fclose(said);
    await_sleep(started.server);
    await_sleep(started.stranger);
}

static void start_ours(void)
{
    start("/opt/" HVI_MPS_PROGRAM, in_dir(HVI_MPS_PIPES));
}

/* A server that becomes another program all the time, for 5 s at most. The leader of its session has ended: so it is this
 * process's child. */
static void start_busy(void)
{
    static const char loop[] = "exec /bin/sh -c \"$LOOP\"";
    const struct rlimit some = {.rlim_cur = 5, .rlim_max = 10};
    int ends[2];
    char byte;

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    started.control = fork();
    if (started.control == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        const pid_t server = getpid();
        const bool is_said = write(ends[1], &server, sizeof server) == sizeof server;
        setenv(HVI_MPS_PIPE_VAR, in_dir(HVI_MPS_PIPES), 1);
        setenv("LOOP", loop, 1);
        if (is_said && setrlimit(RLIMIT_CPU, &some) == 0)
            execl("/bin/sh", "sh", "-c", loop, (char *)NULL);
        _exit(1);
    }
    close(ends[1]);
    ck_assert_int_eq(read(ends[0], &started.server, sizeof started.server), sizeof started.server);
    ck_assert_int_eq(read(ends[0], &byte, 1), 0); /* it is a shell */
    close(ends[0]);
    ck_assert_int_eq(waitpid(started.control, NULL, 0), started.control);
}

static void expect_killed(pid_t pid)
{
    const uint64_t deadline_ns = hvi_deadline_after(KILLED_NS);
    const struct timespec pause = {0, 500000};
    int status = 0;

    while (waitpid(pid, &status, WNOHANG) == 0) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "a process was not killed");
        nanosleep(&pause, NULL);
    }
    ck_assert_msg(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "wait status %#x",
                  (unsigned)status);
}

static bool lives(pid_t pid)
{
    return waitpid(pid, NULL, WNOHANG) <= 0 && kill(pid, 0) == 0;
}

static void set_up(void)
{
    snprintf(dir, sizeof dir, "/tmp/hvt-mps-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ck_assert_int_eq(prctl(PR_SET_CHILD_SUBREAPER, 1), 0); /* to wait for servers, too */
    started.control = 0;
}

static void tear_down(void)
{
    if (started.control > 0)
        kill(-started.control, SIGKILL);
    while (waitpid(-1, NULL, 0) > 0) {
    }
    unlink(in_dir(HVI_MPS_PID));
    ck_assert_int_eq(rmdir(dir), 0);
}

START_TEST(the_file_of_the_pid_leads_to_the_daemon_of_the_directory)
{
    start_ours();
    ck_assert_int_eq(hvi_mps_find(dir), 0);
    write_pid(started.control);
    ck_assert_int_eq(hvi_mps_find(dir), started.control);
}
END_TEST

static const struct {
    const char *name, *pipes; /* below the directory */
} others[] = {
    {"another-program", HVI_MPS_PIPES},
    {HVI_MPS_PROGRAM, HVI_MPS_PIPES "2"},
    {HVI_MPS_PROGRAM, "more/" HVI_MPS_PIPES},
};

START_TEST(a_process_with_another_name_or_directory_is_none)
{
    start(others[_i].name, in_dir(others[_i].pipes));
    write_pid(started.control);
    ck_assert_int_eq(hvi_mps_find(dir), 0);
    hvi_mps_kill(dir, started.control);
    hvi_mps_remove(dir);
    ck_assert(lives(started.control));
    ck_assert(lives(started.server));
    ck_assert(!is_there(HVI_MPS_PID));
}
END_TEST

START_TEST(a_file_that_names_no_process_leads_to_none)
{
    static const char *const texts[] = {"", "0\n", "-1\n", "1\n", "x\n"};

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        write_file(HVI_MPS_PID, texts[i]);
        ck_assert_int_eq(hvi_mps_find(dir), 0);
    }
}
END_TEST

START_TEST(it_is_killed_with_its_servers_and_nothing_else_of_its_session_is)
{
    start_ours();
    hvi_mps_kill(dir, started.control);
    expect_killed(started.control);
    expect_killed(started.server);
    ck_assert(lives(started.stranger));
}
END_TEST

START_TEST(servers_that_have_outlived_it_are_killed)
{
    start_ours();
    kill(started.control, SIGKILL);
    expect_killed(started.control);
    ck_assert(lives(started.server));
    hvi_mps_kill(dir, started.control);
    expect_killed(started.server);
    ck_assert(lives(started.stranger));
}
END_TEST

/* At some moment of that the kernel shows no environment. Without another look this failed in five runs of seven. */
START_TEST(a_server_that_is_becoming_another_program_is_killed)
{
    for (int i = 0; i < EXECS; i++) {
        start_busy();
        hvi_mps_kill(dir, started.control);
        expect_killed(started.server);
    }
}
END_TEST

static void make_folders(void)
{
    static const char *const folders[] = {HVI_MPS_PIPES, HVI_MPS_LOGS, HVI_MPS_LOGS "/old"};

    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++)
        ck_assert_int_eq(mkdir(in_dir(folders[i]), 0700), 0);
    write_file(HVI_MPS_PIPES "/control", "");
    write_file("mps-log/old/server.log", "said\n");
    ck_assert_int_eq(symlink("/etc", in_dir(HVI_MPS_LOGS "/link")), 0);
}

START_TEST(its_folders_are_removed_with_it_and_stay_where_no_file_says_that_they_are_its)
{
    start_ours();
    make_folders();
    hvi_mps_remove(dir);
    ck_assert(is_there(HVI_MPS_PIPES "/control"));
    ck_assert(lives(started.control));
    write_pid(started.control);
    hvi_mps_remove(dir);
    expect_killed(started.control);
    expect_killed(started.server);
    ck_assert(!is_there(HVI_MPS_PIPES));
    ck_assert(!is_there(HVI_MPS_LOGS));
    ck_assert(!is_there(HVI_MPS_PID));
    ck_assert_int_eq(access("/etc/passwd", F_OK), 0); /* a link is not followed */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/mps");
    TCase *tcase = tcase_create("mps");

    tcase_set_tags(tcase, "programs");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, the_file_of_the_pid_leads_to_the_daemon_of_the_directory);
    tcase_add_loop_test(tcase, a_process_with_another_name_or_directory_is_none, 0,
                        sizeof others / sizeof others[0]);
    tcase_add_test(tcase, a_file_that_names_no_process_leads_to_none);
    tcase_add_test(tcase, it_is_killed_with_its_servers_and_nothing_else_of_its_session_is);
    tcase_add_test(tcase, servers_that_have_outlived_it_are_killed);
    tcase_add_test(tcase, a_server_that_is_becoming_another_program_is_killed);
    tcase_add_test(tcase,
                   its_folders_are_removed_with_it_and_stay_where_no_file_says_that_they_are_its);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
