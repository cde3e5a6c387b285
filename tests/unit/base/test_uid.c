/* SPDX-License-Identifier: Apache-2.0
 * Which user ids are one user's, seen from a user namespace that has no number for any user. */
#include "base/uid.h"

#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#define OVERFLOW 65534u

/* 0: as it should be. */
static int look_from_inside(void)
{
    if (unshare(CLONE_NEWUSER) != 0)
        return 77;
    if (geteuid() != OVERFLOW)
        return 2;
    return hvi_uid_is_known(OVERFLOW) ? 3 : hvi_uid_is_known(0) ? 0 : 4;
}

START_TEST(what_stands_for_all_others_is_no_user)
{
    int status = -1;
    pid_t child = fork();

    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(look_from_inside());
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    if (hvt_skip_if(WEXITSTATUS(status) == 77, "no user namespace can be made"))
        return;
    ck_assert_int_eq(WEXITSTATUS(status), 0);
    ck_assert(hvi_uid_is_known(0));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("uid");
    TCase *tcase = tcase_create("uid");

    tcase_add_test(tcase, what_stands_for_all_others_is_no_user);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
