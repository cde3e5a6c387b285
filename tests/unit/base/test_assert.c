/* SPDX-License-Identifier: Apache-2.0
 * A broken invariant names itself and aborts; a kept one costs nothing. */
#include "base/assert.h"
#include "tests/unit/hvt_main.h"

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

int main(void)
{
    Suite *suite = suite_create("base/assert");
    TCase *tcase = tcase_create("assert");
    tcase_add_test(tcase, a_kept_invariant_is_evaluated_once);
    tcase_add_test_raise_signal(tcase, a_broken_invariant_aborts, SIGABRT);
    tcase_add_test(tcase, a_broken_invariant_says_which_and_where);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
