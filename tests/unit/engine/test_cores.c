/* SPDX-License-Identifier: Apache-2.0
 * On which processors an engine's threads are. With real cpusets: tests/fault/test_cpuset_cgroup.py. */
#include "base/cpuset.h"
#include "daemon/engine/cores.h"
#include "tests/unit/hvt_log.h"
#include "tests/unit/hvt_main.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct engine_cores cores;
static cpu_set_t before;

static void set_up(void)
{
    hvt_log_open();
    ck_assert_int_eq(sched_getaffinity(0, sizeof before, &before), 0);
}

static void check_unmoved(void)
{
    cpu_set_t now;

    ck_assert_int_eq(sched_getaffinity(0, sizeof now, &now), 0);
    ck_assert(CPU_EQUAL(&now, &before));
}

START_TEST(without_a_trainer_it_stays_where_it_was_started)
{
    engine_cores_open(&cores, -1);
    ck_assert(CPU_EQUAL(&cores.may, &before));
    ck_assert(CPU_EQUAL(&cores.now, &before));
    check_unmoved();
}
END_TEST

/* Of our own, which is where we are already. */
START_TEST(a_rank_with_the_same_processors_changes_nothing)
{
    cpu_set_t own;
    int ends[2];

    if (hvt_skip_if(!hvi_cpuset_of("", getpid(), &own), "no cpusets here"))
        return;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    engine_cores_open(&cores, ends[0]);
    const int pid_fd = (int)syscall(SYS_pidfd_open, getpid(), 0);
    ck_assert(!engine_cores_add(&cores, getpid(), pid_fd));
    ck_assert(CPU_EQUAL(&cores.ranks, &cores.now));
    check_unmoved();
    close(pid_fd);
    close(ends[0]);
    close(ends[1]);
}
END_TEST

START_TEST(a_rank_of_which_nothing_is_known_may_run_anywhere)
{
    engine_cores_open(&cores, -1);
    ck_assert(!engine_cores_add(&cores, 0, -1));
    ck_assert(CPU_EQUAL(&cores.ranks, &before));
    ck_assert_int_eq(hvt_log_count("which processors a rank's control group has is not known"), 1);
}
END_TEST

/* Its pid may be another process' by now. */
START_TEST(a_rank_that_has_ended_does_not_count)
{
    const pid_t pid = fork();

    if (pid == 0)
        _exit(0);
    const int pid_fd = (int)syscall(SYS_pidfd_open, pid, 0);
    siginfo_t info;
    ck_assert_int_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    engine_cores_open(&cores, -1);
    ck_assert(!engine_cores_add(&cores, pid, pid_fd));
    ck_assert_int_eq(CPU_COUNT(&cores.ranks), 0);
    waitpid(pid, NULL, 0);
    close(pid_fd);
}
END_TEST

START_TEST(where_it_had_fewer_its_threads_move)
{
    cpu_set_t one;

    if (hvt_skip_if(CPU_COUNT(&before) < 2, "one processor"))
        return;
    engine_cores_open(&cores, -1);
    CPU_ZERO(&one);
    for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++)
        if (CPU_ISSET(cpu, &before))
            CPU_SET(cpu, &one);
    ck_assert_int_eq(sched_setaffinity(0, sizeof one, &one), 0);
    cores.now = one; /* as if its first rank had had that one alone */
    ck_assert(engine_cores_add(&cores, 0, -1));
    check_unmoved();
    ck_assert_int_eq(
        hvt_log_count("the engine keeps to the processors of its ranks' control groups"), 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/cores");
    TCase *tcase = tcase_create("cores");

    tcase_add_checked_fixture(tcase, set_up, NULL);
    tcase_add_test(tcase, without_a_trainer_it_stays_where_it_was_started);
    tcase_add_test(tcase, a_rank_with_the_same_processors_changes_nothing);
    tcase_add_test(tcase, a_rank_of_which_nothing_is_known_may_run_anywhere);
    tcase_add_test(tcase, a_rank_that_has_ended_does_not_count);
    tcase_add_test(tcase, where_it_had_fewer_its_threads_move);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
