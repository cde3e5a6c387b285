/* SPDX-License-Identifier: Apache-2.0
 * How a process ended, asked about a process that is not our child.
 *
 * A parent in the middle forks the subject and reaps it only when told, so that the test can look
 * at it alive, stopped, as a zombie, and gone. */
#include "base/fate.h"

#include "base/clock.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATIENCE_NS (10 * (int64_t)HVI_NS_SEC)

struct subject {
    pid_t parent;
    pid_t pid;
    int pidfd;
    int go; /* one byte makes the parent reap; end of file makes it leave */
    int said;
};

static void live_in_peace(void)
{
    for (;;)
        pause();
}

static void exit_with_3(void)
{
    _exit(3);
}

static void exit_with_0(void)
{
    _exit(0);
}

static void kill_self(void)
{
    kill(getpid(), SIGKILL);
    live_in_peace();
}

static void *wait_forever(void *unused)
{
    (void)unused;
    live_in_peace();
    return NULL;
}

/* Its first thread ends, the process does not. */
static void lose_first_thread(void)
{
    pthread_t thread;
    if (pthread_create(&thread, NULL, wait_forever, NULL) != 0)
        _exit(1);
    pthread_exit(NULL);
}

static void take_a_misleading_name(void)
{
    prctl(PR_SET_NAME, "x) Z 1 2 (");
    live_in_peace();
}

static void be_the_parent(void (*life)(void), int go, int say)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        life();
        _exit(99);
    }
    char byte;
    if (write(say, &pid, sizeof(pid)) != sizeof(pid))
        _exit(1);
    while (read(go, &byte, 1) == 1) {
        waitpid(pid, NULL, 0);
        if (write(say, &byte, 1) != 1)
            break;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    _exit(0);
}

static struct subject subject_start(void (*life)(void))
{
    struct subject subject;
    int go[2], say[2];
    ck_assert_int_eq(pipe(go), 0);
    ck_assert_int_eq(pipe(say), 0);
    subject.parent = fork();
    ck_assert_int_ge(subject.parent, 0);
    if (subject.parent == 0) {
        close(go[1]);
        close(say[0]);
        be_the_parent(life, go[0], say[1]);
    }
    close(go[0]);
    close(say[1]);
    subject.go = go[1];
    subject.said = say[0];
    ck_assert_int_eq(read(subject.said, &subject.pid, sizeof(pid_t)), sizeof(pid_t));
    subject.pidfd = hvi_pidfd_open(subject.pid);
    ck_assert_int_ge(subject.pidfd, 0);
    return subject;
}

static void subject_reap(const struct subject *subject)
{
    char byte = 'r';
    ck_assert_int_eq(write(subject->go, &byte, 1), 1);
    ck_assert_int_eq(read(subject->said, &byte, 1), 1);
}

static void subject_end(const struct subject *subject)
{
    close(subject->go);
    waitpid(subject->parent, NULL, 0);
    close(subject->said);
    close(subject->pidfd);
}

static void await_state(pid_t pid, char state)
{
    uint64_t deadline_ns = hvi_deadline_after(PATIENCE_NS);
    while (hvi_process_state(pid) != state) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "state is %c, not %c",
                      hvi_process_state(pid), state);
        sched_yield();
    }
}

/* A zombie for good: of a process with threads, the first may be a zombie while others still die.
 */
static void await_end(int pidfd)
{
    struct pollfd entry = {.fd = pidfd, .events = POLLIN};
    ck_assert_int_eq(poll(&entry, 1, (int)(PATIENCE_NS / (int64_t)HVI_NS_MS)), 1);
}

static void check_fate(pid_t pid, int pidfd, enum hvi_fate_kind kind, int code)
{
    struct hvi_fate fate = hvi_fate_look(pid, pidfd);
    ck_assert_int_eq(fate.kind, kind);
    if (kind == HVI_FATE_EXITED || kind == HVI_FATE_SIGNALED)
        ck_assert_int_eq(fate.code, code);
}

/* Since 6.15 the kernel tells how a reaped process ended; before, "unknown" is the right answer. */
static bool kernel_tells_after_reaping(void)
{
    struct utsname name;
    int major = 0, minor = 0;
    ck_assert_int_eq(uname(&name), 0);
    ck_assert_int_eq(sscanf(name.release, "%d.%d", &major, &minor), 2);
    return major > 6 || (major == 6 && minor >= 15);
}

static void check_dead(void (*life)(void), enum hvi_fate_kind kind, int code)
{
    struct subject subject = subject_start(life);
    await_end(subject.pidfd);
    check_fate(subject.pid, -1, kind, code);
    check_fate(subject.pid, subject.pidfd, kind, code);
    subject_reap(&subject);
    ck_assert_int_eq(hvi_process_state(subject.pid), 'X');
    check_fate(subject.pid, -1, HVI_FATE_UNKNOWN, 0);
    check_fate(subject.pid, subject.pidfd, kernel_tells_after_reaping() ? kind : HVI_FATE_UNKNOWN,
               code);
    subject_end(&subject);
}

START_TEST(a_killed_stranger_is_told_before_and_after_reaping)
{
    check_dead(kill_self, HVI_FATE_SIGNALED, SIGKILL);
}
END_TEST

START_TEST(an_exited_stranger_is_told_before_and_after_reaping)
{
    check_dead(exit_with_3, HVI_FATE_EXITED, 3);
    check_dead(exit_with_0, HVI_FATE_EXITED, 0);
}
END_TEST

START_TEST(a_living_stranger_is_alive)
{
    struct subject subject = subject_start(live_in_peace);
    check_fate(subject.pid, -1, HVI_FATE_ALIVE, 0);
    check_fate(subject.pid, subject.pidfd, HVI_FATE_ALIVE, 0);
    await_state(subject.pid, 'S');
    subject_end(&subject);
}
END_TEST

START_TEST(a_stopped_stranger_is_alive)
{
    struct subject subject = subject_start(live_in_peace);
    ck_assert_int_eq(kill(subject.pid, SIGSTOP), 0);
    await_state(subject.pid, 'T');
    check_fate(subject.pid, -1, HVI_FATE_ALIVE, 0);
    check_fate(subject.pid, subject.pidfd, HVI_FATE_ALIVE, 0);
    ck_assert_int_eq(kill(subject.pid, SIGCONT), 0);
    await_state(subject.pid, 'S');
    subject_end(&subject);
}
END_TEST

START_TEST(a_process_whose_first_thread_ended_is_alive)
{
    struct subject subject = subject_start(lose_first_thread);
    await_state(subject.pid, 'Z');
    check_fate(subject.pid, -1, HVI_FATE_ALIVE, 0);
    check_fate(subject.pid, subject.pidfd, HVI_FATE_ALIVE, 0);
    subject_end(&subject);
}
END_TEST

static void check_ending(void (*life)(void), char state, bool ending, enum hvi_fate_kind kind,
                         int code)
{
    struct subject subject = subject_start(life);
    struct hvi_fate fate = {HVI_FATE_ALIVE, 0};
    await_state(subject.pid, state);
    ck_assert_int_eq(hvi_fate_is_ending(subject.pid, subject.pidfd, &fate), ending);
    ck_assert_int_eq(hvi_fate_is_ending(subject.pid, -1, &fate), ending);
    ck_assert_int_eq(fate.kind, ending ? kind : HVI_FATE_ALIVE);
    ck_assert_int_eq(fate.code, ending ? code : 0);
    subject_end(&subject);
}

START_TEST(who_is_past_the_last_instruction_is_ending_and_nobody_else)
{
    check_ending(kill_self, 'Z', true, HVI_FATE_SIGNALED, SIGKILL);
    check_ending(exit_with_3, 'Z', true, HVI_FATE_EXITED, 3);
    check_ending(live_in_peace, 'S', false, HVI_FATE_ALIVE, 0);
    /* These two look the same from outside, so neither counts. */
    check_ending(lose_first_thread, 'Z', false, HVI_FATE_ALIVE, 0);
    check_ending(exit_with_0, 'Z', false, HVI_FATE_ALIVE, 0);
}
END_TEST

/* Threads end one after the other, and a sanitizer may have one of its own. */
static bool becomes_quiet(pid_t pid, int pidfd)
{
    const struct timespec nap = {.tv_nsec = 1000000};
    for (int i = 0; i < 5000 && !hvi_process_is_quiet(pid, pidfd); i++)
        nanosleep(&nap, NULL);
    return hvi_process_is_quiet(pid, pidfd);
}

static void check_quiet(void (*life)(void), char state, bool quiet)
{
    struct subject subject = subject_start(life);
    await_state(subject.pid, state);
    if (quiet)
        ck_assert(becomes_quiet(subject.pid, -1) && becomes_quiet(subject.pid, subject.pidfd));
    else
        ck_assert(!hvi_process_is_quiet(subject.pid, -1) &&
                  !hvi_process_is_quiet(subject.pid, subject.pidfd));
    subject_end(&subject);
}

START_TEST(who_has_no_thread_left_that_runs_is_quiet)
{
    check_quiet(kill_self, 'Z', true);
    check_quiet(exit_with_0, 'Z', true);
    check_quiet(live_in_peace, 'S', false);
    check_quiet(lose_first_thread, 'Z', false);
    struct subject subject = subject_start(live_in_peace);
    kill(subject.pid, SIGSTOP);
    await_state(subject.pid, 'T');
    ck_assert_msg(!hvi_process_is_quiet(subject.pid, subject.pidfd), "who was stopped may go on");
    subject_end(&subject);
    subject = subject_start(kill_self);
    await_end(subject.pidfd);
    subject_reap(&subject);
    ck_assert(hvi_process_is_quiet(subject.pid, subject.pidfd));
    ck_assert(hvi_process_is_quiet(subject.pid, -1));
    subject_end(&subject);
}
END_TEST

START_TEST(who_was_reaped_is_not_ending)
{
    struct subject subject = subject_start(kill_self);
    struct hvi_fate fate;
    await_end(subject.pidfd);
    subject_reap(&subject);
    ck_assert(!hvi_fate_is_ending(subject.pid, subject.pidfd, &fate));
    ck_assert(!hvi_fate_is_ending(subject.pid, -1, &fate));
    subject_end(&subject);
}
END_TEST

START_TEST(a_misleading_command_name_does_not_mislead)
{
    struct subject subject = subject_start(take_a_misleading_name);
    await_state(subject.pid, 'S');
    check_fate(subject.pid, -1, HVI_FATE_ALIVE, 0);
    subject_end(&subject);
}
END_TEST

START_TEST(our_own_child_is_told_and_stays_reapable)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        kill_self();
    int pidfd = hvi_pidfd_open(pid);
    await_end(pidfd);
    check_fate(pid, pidfd, HVI_FATE_SIGNALED, SIGKILL);
    check_fate(pid, -1, HVI_FATE_SIGNALED, SIGKILL);
    int status = 0;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status));
    close(pidfd);
}
END_TEST

/* Without ptrace rights the kernel shows exit code 0 for everybody; that must not become "exited
 * with code 0". */
START_TEST(who_may_not_look_does_not_claim_success)
{
    if (hvt_skip_if(geteuid() != 0, "only root can be two users"))
        return;
    struct subject subject = subject_start(kill_self);
    await_end(subject.pidfd);
    pid_t observer = fork();
    ck_assert_int_ge(observer, 0);
    if (observer == 0) {
        if (setgid(65534) != 0 || setuid(65534) != 0)
            _exit(2);
        _exit(hvi_fate_look(subject.pid, -1).kind == HVI_FATE_UNKNOWN ? 0 : 1);
    }
    int status = -1;
    ck_assert_int_eq(waitpid(observer, &status, 0), observer);
    ck_assert_int_eq(status, 0);
    subject_end(&subject);
}
END_TEST

/* 0: the living subject is neither quiet nor gone, although /proc does not show it. */
static int look_from_where_it_is_hidden(const struct subject *subject)
{
    char path[32];

    if (unshare(CLONE_NEWNS) != 0 || mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("proc", "/proc", "proc", 0, "hidepid=2") != 0)
        return 77;
    if (setgroups(0, NULL) != 0 || setgid(65534) != 0 || setuid(65534) != 0)
        return 2;
    snprintf(path, sizeof path, "/proc/%d", (int)subject->pid);
    if (access(path, F_OK) == 0)
        return 3;
    if (hvi_process_is_quiet(subject->pid, subject->pidfd) ||
        hvi_process_is_quiet(subject->pid, -1))
        return 4;
    return hvi_process_state(subject->pid) == '?' ? 0 : 5;
}

START_TEST(a_process_that_is_hidden_is_not_taken_for_gone)
{
    if (hvt_skip_if(geteuid() != 0, "only root can be two users"))
        return;
    struct subject subject = subject_start(live_in_peace);
    pid_t observer = fork();
    ck_assert_int_ge(observer, 0);
    if (observer == 0)
        _exit(look_from_where_it_is_hidden(&subject));
    int status = -1;
    ck_assert_int_eq(waitpid(observer, &status, 0), observer);
    if (!hvt_skip_if(WEXITSTATUS(status) == 77, "/proc cannot be mounted here"))
        ck_assert_int_eq(WEXITSTATUS(status), 0);
    kill(subject.pid, SIGKILL);
    subject_reap(&subject);
    ck_assert(hvi_process_is_quiet(subject.pid, subject.pidfd));
    ck_assert(hvi_process_is_quiet(subject.pid, -1));
    subject_end(&subject);
}
END_TEST

START_TEST(a_process_is_called_by_its_pid_and_by_its_own)
{
    static const struct {
        pid_t pid, own;
        const char *text;
    } names[] = {
        {4711, 0, "pid 4711"},
        {4711, 4711, "pid 4711"},
        {4711, 7, "pid 4711, 7 in its own pid namespace"},
        {0, 7, "pid 7 in its own pid namespace"},
        {0, 0, "in another pid namespace"},
    };
    char text[HVI_PROCESS_TEXT];

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        hvi_process_describe(names[i].pid, names[i].own, text);
        ck_assert_str_eq(text, names[i].text);
    }
    ck_assert_int_eq(hvi_process_state(0), '?');
}
END_TEST

START_TEST(a_process_has_a_place_and_a_state_in_words)
{
    static const char letters[] = "RSDTtZXI?";
    static const char *const words[] = {"running", "sleeping", "in kernel",
                                        "stopped", "traced",   "zombie",
                                        "gone",    "idle",     "in an unknown state"};
    struct subject subject = subject_start(live_in_peace);
    char where[64];

    for (int i = 0; letters[i] != '\0'; i++)
        ck_assert_str_eq(hvi_process_state_text(letters[i]), words[i]);
    await_state(subject.pid, 'S');
    hvi_process_waits_in(subject.pid, where, sizeof where);
    ck_assert_uint_lt(strlen(where), sizeof where); /* "" where the kernel does not tell */
    kill(subject.pid, SIGKILL);
    subject_reap(&subject);
    hvi_process_waits_in(subject.pid, where, sizeof where);
    ck_assert_str_eq(where, "");
    subject_end(&subject);
}
END_TEST

START_TEST(nobody_is_gone_in_an_unknown_way)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0)
        _exit(0);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
    ck_assert_int_eq(hvi_process_state(pid), 'X');
    check_fate(pid, -1, HVI_FATE_UNKNOWN, 0);
    errno = 0;
    ck_assert_int_eq(hvi_pidfd_open(pid), -1);
    ck_assert_int_eq(errno, ESRCH);
}
END_TEST

static const char *describe(enum hvi_fate_kind kind, int code)
{
    static char text[128];
    hvi_fate_describe((struct hvi_fate){kind, code}, text, sizeof(text));
    return text;
}

START_TEST(sentences_are_the_promised_ones)
{
    ck_assert_str_eq(describe(HVI_FATE_SIGNALED, SIGKILL), "was killed by signal 9 (SIGKILL)");
    ck_assert_str_eq(describe(HVI_FATE_SIGNALED, SIGSEGV), "was killed by signal 11 (SIGSEGV)");
    ck_assert_str_eq(describe(HVI_FATE_SIGNALED, 40), "was killed by signal 40");
    ck_assert_str_eq(describe(HVI_FATE_EXITED, 3), "exited with code 3");
    ck_assert_str_eq(describe(HVI_FATE_UNKNOWN, 0), "is gone (how is not known)");
    ck_assert_str_eq(describe(HVI_FATE_ALIVE, 0), "is alive but dropped its connection");
}
END_TEST

START_TEST(a_short_buffer_cuts_the_sentence)
{
    char text[8] = "1234567";
    hvi_fate_describe((struct hvi_fate){HVI_FATE_EXITED, 3}, text, sizeof(text));
    ck_assert_str_eq(text, "exited ");
}
END_TEST

START_TEST(a_wait_status_becomes_a_fate)
{
    struct hvi_fate fate = hvi_fate_from_wait(3 << 8);
    ck_assert(fate.kind == HVI_FATE_EXITED && fate.code == 3);
    fate = hvi_fate_from_wait(SIGSEGV | 0x80); /* with a core dump */
    ck_assert(fate.kind == HVI_FATE_SIGNALED && fate.code == SIGSEGV);
    fate = hvi_fate_from_wait(SIGSTOP << 8 | 0x7f);
    ck_assert_int_eq(fate.kind, HVI_FATE_UNKNOWN);
}
END_TEST

START_TEST(a_childs_end_becomes_a_fate)
{
    struct hvi_fate fate = hvi_fate_from_child(&(siginfo_t){.si_code = CLD_EXITED, .si_status = 3});
    ck_assert(fate.kind == HVI_FATE_EXITED && fate.code == 3);
    fate = hvi_fate_from_child(&(siginfo_t){.si_code = CLD_DUMPED, .si_status = SIGSEGV});
    ck_assert(fate.kind == HVI_FATE_SIGNALED && fate.code == SIGSEGV);
}
END_TEST

START_TEST(what_has_gone_is_never_alive)
{
    ck_assert_int_eq(hvi_fate_look(getpid(), -1).kind, HVI_FATE_ALIVE);
    ck_assert_int_eq(hvi_fate_of_gone(getpid(), -1).kind, HVI_FATE_UNKNOWN);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/fate");
    TCase *tcase = tcase_create("fate");
    tcase_add_test(tcase, a_killed_stranger_is_told_before_and_after_reaping);
    tcase_add_test(tcase, an_exited_stranger_is_told_before_and_after_reaping);
    tcase_add_test(tcase, a_living_stranger_is_alive);
    tcase_add_test(tcase, a_stopped_stranger_is_alive);
    tcase_add_test(tcase, a_process_whose_first_thread_ended_is_alive);
    tcase_add_test(tcase, who_is_past_the_last_instruction_is_ending_and_nobody_else);
    tcase_add_test(tcase, who_has_no_thread_left_that_runs_is_quiet);
    tcase_add_test(tcase, who_was_reaped_is_not_ending);
    tcase_add_test(tcase, a_misleading_command_name_does_not_mislead);
    tcase_add_test(tcase, our_own_child_is_told_and_stays_reapable);
    tcase_add_test(tcase, who_may_not_look_does_not_claim_success);
    tcase_add_test(tcase, a_process_that_is_hidden_is_not_taken_for_gone);
    tcase_add_test(tcase, a_process_is_called_by_its_pid_and_by_its_own);
    tcase_add_test(tcase, a_process_has_a_place_and_a_state_in_words);
    tcase_add_test(tcase, nobody_is_gone_in_an_unknown_way);
    tcase_add_test(tcase, sentences_are_the_promised_ones);
    tcase_add_test(tcase, a_short_buffer_cuts_the_sentence);
    tcase_add_test(tcase, a_wait_status_becomes_a_fate);
    tcase_add_test(tcase, a_childs_end_becomes_a_fate);
    tcase_add_test(tcase, what_has_gone_is_never_alive);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
