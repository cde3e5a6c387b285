/* SPDX-License-Identifier: Apache-2.0
 * When a rank takes its engine for ended. Children of this process are the engines. */
#include "client/link/liveness.h"

#include "base/clock.h"
#include "base/fate.h"
#include "client/link/link.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static struct hvi_bell_page bell; /* silence is no failure */
static struct client_link to_engine;
static int drained, ended;

static void drain(struct client_complete *complete)
{
    (void)complete;
    ck_assert_int_eq(ended, 0);
    drained++;
}

static void on_end(struct client_complete *complete)
{
    (void)complete;
    ended++;
}

static const struct client_link_calls calls = {.drain = drain, .ended = on_end};

static void *live(void *unused)
{
    (void)unused;
    for (;;)
        pause();
    return NULL;
}

/* The first thread ends as that of a killed process does, and another one goes on. */
static void end_first_thread(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, live, NULL) == 0)
        syscall(SYS_exit, 3);
}

static void start_engine(bool loses_first_thread)
{
    int fds[2];
    pid_t pid;

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        if (loses_first_thread)
            end_first_thread();
        live(NULL);
    }
    to_engine = (struct client_link){
        .calls = &calls, .socket_fd = fds[0], .engine_pid = pid, .engine_here = pid, .bell = &bell};
    close(fds[1]);
}

static void look(void)
{
    to_engine.engine_looked_ns = 0;
    client_liveness_look(&to_engine);
}

static void kill_engine(void)
{
    uint64_t deadline_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_SEC);

    ck_assert_int_eq(kill(to_engine.engine_here, SIGKILL), 0);
    while (to_engine.end_status == HVD_OK) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "the end of the engine is not seen");
        look();
        sched_yield();
    }
    ck_assert_int_eq(to_engine.end_status, HVD_ERR_ENGINE_LOST);
    ck_assert_int_eq(drained, 1);
    ck_assert_int_eq(ended, 1);
    ck_assert_int_eq(waitpid(to_engine.engine_here, NULL, 0), to_engine.engine_here);
    close(to_engine.socket_fd);
}

START_TEST(an_engine_that_was_killed_has_ended)
{
    start_engine(false);
    look();
    ck_assert_int_eq(to_engine.end_status, HVD_OK);
    kill_engine();
    ck_assert_ptr_nonnull(strstr(to_engine.end_text, "was killed by signal 9 (SIGKILL)"));
}
END_TEST

static bool first_thread_has_ended(void)
{
    struct hvi_fate fate;

    return hvi_fate_is_ending(to_engine.engine_here, -1, &fate);
}

/* It may still write to memory of ops. */
START_TEST(an_engine_of_which_only_the_first_thread_has_ended_has_not)
{
    uint64_t deadline_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_SEC);

    start_engine(true);
    while (!first_thread_has_ended()) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "the first thread does not end");
        sched_yield();
    }
    look();
    ck_assert_int_eq(to_engine.end_status, HVD_OK);
    kill_engine();
}
END_TEST

/* In another pid namespace the engine's own pid is that of another process here, or of none. */
START_TEST(what_has_the_number_of_an_engine_elsewhere_is_not_taken_for_it)
{
    siginfo_t info;
    pid_t other = fork();

    ck_assert_int_ge(other, 0);
    if (other == 0)
        _exit(3);
    ck_assert_int_eq(waitid(P_PID, (id_t)other, &info, WEXITED | WNOWAIT), 0);
    start_engine(false);
    pid_t engine = to_engine.engine_here;
    to_engine.engine_pid = other;
    to_engine.engine_here = 0;
    client_liveness_gone(&to_engine);
    ck_assert_ptr_nonnull(
        strstr(to_engine.end_text, "in its own pid namespace) is gone; hvdd's log"));
    kill(engine, SIGKILL);
    ck_assert_int_eq(waitpid(engine, NULL, 0), engine);
    ck_assert_int_eq(waitpid(other, NULL, 0), other);
    close(to_engine.socket_fd);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client/liveness");
    TCase *tcase = tcase_create("liveness");

    tcase_add_test(tcase, an_engine_that_was_killed_has_ended);
    tcase_add_test(tcase, an_engine_of_which_only_the_first_thread_has_ended_has_not);
    tcase_add_test(tcase, what_has_the_number_of_an_engine_elsewhere_is_not_taken_for_it);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
