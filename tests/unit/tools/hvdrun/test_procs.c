/* SPDX-License-Identifier: Apache-2.0
 * Starting and ending real processes. */
#include "tools/hvdrun/procs.h"

#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static struct run_heritage heritage;

static void setup(void)
{
    struct rlimit limit;
    sigprocmask(SIG_BLOCK, NULL, &heritage.mask);
    sigaction(SIGPIPE, NULL, &heritage.pipe_action);
    getrlimit(RLIMIT_NOFILE, &limit);
    heritage.nofile_soft = limit.rlim_cur;
}

static int start(const char *program, const char *script, int out_fd, struct run_proc *proc)
{
    char *argv[] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "-c", (char *)(uintptr_t)script,
                    NULL};
    const struct run_spawn plan = {
        .argv = argv,
        .envp = environ,
        .stdin_fd = 0,
        .stdout_fd = out_fd,
        .stderr_fd = 2,
        .death_signal = SIGKILL,
        .heritage = &heritage,
    };
    return run_proc_start(&plan, proc);
}

static void await(struct run_proc *proc)
{
    struct pollfd item = {.fd = proc->pidfd, .events = POLLIN};
    ck_assert_int_eq(poll(&item, 1, 20000), 1);
    ck_assert(run_proc_look(proc));
}

START_TEST(an_exit_status_is_learned_and_only_then_reaped)
{
    struct run_proc proc;
    ck_assert_int_eq(start("/bin/sh", "exit 7", 1, &proc), 0);
    await(&proc);
    ck_assert_int_eq(proc.fate.kind, HVI_FATE_EXITED);
    ck_assert_int_eq(proc.fate.code, 7);
    ck_assert_int_eq(hvi_process_state(proc.pid), 'Z');
    run_proc_reap(&proc);
    ck_assert_int_eq(hvi_process_state(proc.pid), 'X');
    run_proc_reap(&proc); /* harmless */
}
END_TEST

START_TEST(a_signal_reaches_the_grandchildren)
{
    struct run_proc proc;
    int fds[2];
    char byte;
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_eq(start("/bin/sh", "sleep 100 & echo; wait", fds[1], &proc), 0);
    close(fds[1]);
    ck_assert_int_eq(read(fds[0], &byte, 1), 1); /* the grandchild exists */
    ck_assert_int_eq(getpgid(proc.pid), proc.pid);
    run_proc_signal(&proc, SIGTERM);
    await(&proc);
    ck_assert_int_eq(proc.fate.kind, HVI_FATE_SIGNALED);
    ck_assert_int_eq(proc.fate.code, SIGTERM);
    struct pollfd item = {.fd = fds[0], .events = POLLIN};
    ck_assert_int_eq(poll(&item, 1, 20000), 1);
    ck_assert_int_eq(read(fds[0], &byte, 1), 0); /* nobody holds the pipe any more */
    run_proc_reap(&proc);
    close(fds[0]);
}
END_TEST

START_TEST(a_program_that_does_not_run_leaves_its_errno_and_no_process)
{
    struct run_proc proc = {.pid = 77};
    ck_assert_int_eq(start("hvt-no-such-program", "", 1, &proc), ENOENT);
    ck_assert_int_eq(start("/etc/passwd", "", 1, &proc), EACCES);
    ck_assert_int_eq(proc.pid, 77);
}
END_TEST

START_TEST(a_child_gets_signals_back_as_they_were)
{
    struct run_proc proc;
    sigset_t blocked;
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGTERM);
    sigprocmask(SIG_BLOCK, &blocked, NULL); /* as hvdrun does, after noting the heritage */
    signal(SIGPIPE, SIG_IGN);
    ck_assert_int_eq(start("/bin/sh", "kill -TERM $$; exit 3", 1, &proc), 0);
    await(&proc);
    ck_assert_int_eq(proc.fate.kind, HVI_FATE_SIGNALED);
    run_proc_reap(&proc);
    ck_assert_int_eq(start("/bin/sh", "kill -PIPE $$; exit 3", 1, &proc), 0);
    await(&proc);
    ck_assert_int_eq(proc.fate.code, SIGPIPE);
    run_proc_reap(&proc);
}
END_TEST

START_TEST(a_guard_that_is_stopped_keeps_nobody)
{
    struct run_guard guard;
    ck_assert_int_eq(run_guard_start(&guard), 0);
    const pid_t pid = guard.pid;
    ck_assert_int_eq(kill(pid, SIGSTOP), 0);
    run_guard_stop(&guard);
    ck_assert_int_eq(hvi_process_state(pid), 'X');
}
END_TEST

START_TEST(settings_replace_add_and_remove)
{
    char *base[] = {(char *)(uintptr_t) "A=1", (char *)(uintptr_t) "AB=2",
                    (char *)(uintptr_t) "C=3", (char *)(uintptr_t) "=odd", NULL};
    char *settings[] = {(char *)(uintptr_t) "A=9", (char *)(uintptr_t) "C",
                        (char *)(uintptr_t) "D=", NULL};
    char **env = run_env_make(base, settings);
    ck_assert_str_eq(env[0], "AB=2");
    ck_assert_str_eq(env[1], "=odd");
    ck_assert_str_eq(env[2], "A=9");
    ck_assert_str_eq(env[3], "D=");
    ck_assert_ptr_null(env[4]);
    run_env_free(env);
}
END_TEST

/* getenv takes the first of two, a shell the last. */
START_TEST(of_several_settings_of_one_name_the_last_counts)
{
    char *base[] = {(char *)(uintptr_t) "A=1", NULL};
    char *settings[] = {(char *)(uintptr_t) "A=2", (char *)(uintptr_t) "B=1",
                        (char *)(uintptr_t) "A=3", (char *)(uintptr_t) "B", NULL};
    char **env = run_env_make(base, settings);
    ck_assert_str_eq(env[0], "A=3");
    ck_assert_ptr_null(env[1]);
    run_env_free(env);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/procs");
    TCase *tests = tcase_create("procs");
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, an_exit_status_is_learned_and_only_then_reaped);
    tcase_add_test(tests, a_signal_reaches_the_grandchildren);
    tcase_add_test(tests, a_program_that_does_not_run_leaves_its_errno_and_no_process);
    tcase_add_test(tests, a_child_gets_signals_back_as_they_were);
    tcase_add_test(tests, a_guard_that_is_stopped_keeps_nobody);
    tcase_add_test(tests, settings_replace_add_and_remove);
    tcase_add_test(tests, of_several_settings_of_one_name_the_last_counts);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
