/* SPDX-License-Identifier: Apache-2.0
 * A broken invariant names itself and aborts; a kept one costs nothing. */
#include "base/assert.h"
#include "tests/unit/hvt_main.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

START_TEST(a_kept_invariant_is_evaluated_once)
{
    int calls = 0;
    HVI_ASSERT(++calls == 1);
    ck_assert_int_eq(calls, 1);
}
END_TEST

START_TEST(a_broken_invariant_aborts)
{
    HVI_ASSERT(1 + 1 == 3);
}
END_TEST

START_TEST(a_broken_invariant_says_which_and_where)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(ends[1], STDERR_FILENO);
        signal(SIGABRT, SIG_DFL);
        hvi_assert_failed("slots == 3", "shm/ring.c", 42);
    }
    close(ends[1]);
    char text[600] = "";
    ck_assert_int_gt(read(ends[0], text, sizeof(text) - 1), 0);
    ck_assert_ptr_nonnull(strstr(text, "shm/ring.c:42"));
    ck_assert_ptr_nonnull(strstr(text, "slots == 3"));
    close(ends[0]);
}
END_TEST

static sigjmp_buf place;

/* As in a program that looks at its own end. */
static void go_back(int number)
{
    siglongjmp(place, number);
}

/* What a broken invariant says where the program handles SIGABRT. */
static void break_one(const char *expression, char *text_p, size_t size)
{
    const struct sigaction handler = {.sa_handler = go_back};
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    const int own = dup(STDERR_FILENO);
    dup2(ends[1], STDERR_FILENO);
    ck_assert_int_eq(sigaction(SIGABRT, &handler, NULL), 0);
    const int number = sigsetjmp(place, 1);
    if (number == 0)
        hvi_assert_failed(expression, "shm/ring.c", 42);
    dup2(own, STDERR_FILENO);
    ck_assert_int_eq(number, SIGABRT);
    const ssize_t length = read(ends[0], text_p, size - 1);
    ck_assert_int_gt(length, 0);
    text_p[length] = '\0';
    close(own);
    close(ends[0]);
    close(ends[1]);
}

START_TEST(a_program_that_handles_the_signal_is_asked_after_it_was_said)
{
    char text[600];

    break_one("slots == 3", text, sizeof text);
    ck_assert_str_eq(text, "shm/ring.c:42: internal invariant broken: slots == 3\n");
}
END_TEST

START_TEST(a_long_expression_is_cut)
{
    char expression[700], text[900];

    memset(expression, 'x', sizeof expression);
    expression[sizeof expression - 1] = '\0';
    break_one(expression, text, sizeof text);
    ck_assert_uint_eq(strlen(text), 511);
    ck_assert_ptr_eq(strstr(text, "shm/ring.c:42: internal invariant broken: xxx"), text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/assert");
    TCase *tcase = tcase_create("assert");
    tcase_add_test(tcase, a_kept_invariant_is_evaluated_once);
    tcase_add_test_raise_signal(tcase, a_broken_invariant_aborts, SIGABRT);
    tcase_add_test(tcase, a_broken_invariant_says_which_and_where);
    tcase_add_test(tcase, a_program_that_handles_the_signal_is_asked_after_it_was_said);
    tcase_add_test(tcase, a_long_expression_is_cut);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
