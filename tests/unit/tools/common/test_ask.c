/* SPDX-License-Identifier: Apache-2.0
 * A program that is asked for one answer: what it says, that it ends, and why there is no answer. */
#include "tools/common/ask.h"

#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <errno.h>
#include <sys/time.h>

#define PATIENCE_NS (20 * HVI_NS_SEC)

static char answer[64];

/* Of a shell command. */
static const char *ask(const char *command, uint64_t wait_ns, size_t size)
{
    char *const argv[] = {(char *)(uintptr_t) "sh", (char *)(uintptr_t) "-c",
                          (char *)(uintptr_t)command, NULL};
    const int fds = hvt_count_fds();
    const char *why = ask_program(argv, wait_ns, answer, size);

    ck_assert_int_eq(hvt_count_fds(), fds);
    ck_assert_int_eq(waitpid(-1, NULL, WNOHANG), -1); /* no process is left */
    return why;
}

START_TEST(what_it_says_is_the_answer)
{
    ck_assert_ptr_null(ask("echo one; sleep 0.01; echo two", PATIENCE_NS, sizeof answer));
    ck_assert_str_eq(answer, "one\ntwo\n");
    ck_assert_ptr_null(ask(":", PATIENCE_NS, sizeof answer));
    ck_assert_str_eq(answer, "");
}
END_TEST

START_TEST(a_long_answer_is_cut_and_the_program_ends_well)
{
    ck_assert_ptr_null(
        ask("i=0; while [ $i -lt 1000 ]; do echo 1234567; i=$((i + 1)); done", PATIENCE_NS, 11));
    ck_assert_str_eq(answer, "1234567\n12");
}
END_TEST

START_TEST(it_has_nothing_to_read)
{
    ck_assert_ptr_null(ask("cat; echo end", PATIENCE_NS, sizeof answer));
    ck_assert_str_eq(answer, "end\n");
}
END_TEST

START_TEST(one_that_is_not_there_fails_or_hangs_is_told_apart)
{
    char *const missing[] = {(char *)(uintptr_t) "/nonexistent/hvt-program", NULL};

    ck_assert_str_eq(ask_program(missing, PATIENCE_NS, answer, sizeof answer), strerror(ENOENT));
    ck_assert_str_eq(ask("echo one; exit 3", PATIENCE_NS, sizeof answer), "it failed");
    ck_assert_str_eq(ask("kill -KILL $$", PATIENCE_NS, sizeof answer), "it failed");
    ck_assert_str_eq(ask("exec sleep 100", 10 * HVI_NS_MS, sizeof answer),
                     "it did not answer in time");
}
END_TEST

START_TEST(without_a_descriptor_left_nothing_is_asked)
{
    char *const argv[] = {(char *)(uintptr_t) "true", NULL};
    const struct rlimit old = hvt_forbid_fds();
    const char *why = ask_program(argv, PATIENCE_NS, answer, sizeof answer);

    setrlimit(RLIMIT_NOFILE, &old);
    ck_assert_str_eq(why, strerror(EMFILE));
}
END_TEST

static volatile sig_atomic_t rings;

static void ring(int number)
{
    rings += number == SIGALRM;
}

START_TEST(a_signal_of_the_caller_changes_nothing)
{
    const struct sigaction handler = {.sa_handler = ring}; /* system calls are not restarted */
    const struct itimerval often = {.it_interval = {0, 1000}, .it_value = {0, 1000}};
    const struct itimerval never = {.it_value = {0, 0}};

    ck_assert_int_eq(sigaction(SIGALRM, &handler, NULL), 0);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &often, NULL), 0);
    const char *why =
        ask("sleep 0.03; echo here; exec >&-; sleep 0.03", PATIENCE_NS, sizeof answer);
    ck_assert_int_eq(setitimer(ITIMER_REAL, &never, NULL), 0);
    ck_assert_ptr_null(why);
    ck_assert_str_eq(answer, "here\n");
    ck_assert_int_gt(rings, 0);
}
END_TEST

START_TEST(a_number_stands_behind_its_word_at_the_beginning_of_a_line)
{
    static const char said[] = "a idle_ns 1\nidle_ns2 2\nidle_ns 34  of two\nidle_ns 5\n";
    const char *rest = NULL;

    ck_assert_uint_eq(ask_number(said, "idle_ns", &rest), 34);
    ck_assert_str_eq(rest, "of two\nidle_ns 5\n");
    ck_assert_uint_eq(ask_number(said, "idle_ns2", NULL), 2);
    ck_assert_uint_eq(ask_number(said, "busy_ns", &rest), 0);
    ck_assert_uint_eq(ask_number("", "idle_ns", NULL), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/common/ask");
    TCase *tests = tcase_create("ask");
    tcase_add_test(tests, what_it_says_is_the_answer);
    tcase_add_test(tests, a_long_answer_is_cut_and_the_program_ends_well);
    tcase_add_test(tests, it_has_nothing_to_read);
    tcase_add_test(tests, one_that_is_not_there_fails_or_hangs_is_told_apart);
    tcase_add_test(tests, without_a_descriptor_left_nothing_is_asked);
    tcase_add_test(tests, a_signal_of_the_caller_changes_nothing);
    tcase_add_test(tests, a_number_stands_behind_its_word_at_the_beginning_of_a_line);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
