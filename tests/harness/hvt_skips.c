/* SPDX-License-Identifier: Apache-2.0
 * A suite that skips, for test_rules.py. */
#include "tests/unit/hvt_main.h"

START_TEST(it_is_skipped)
{
    clearenv();
    if (hvt_skip_if(true, "it has to"))
        return;
    ck_abort();
}
END_TEST

START_TEST(it_is_not_skipped)
{
    ck_assert(!hvt_skip_if(false, "it has not to"));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("skips");
    TCase *tcase = tcase_create("skips");
    tcase_add_test(tcase, it_is_skipped);
    tcase_add_test(tcase, it_is_not_skipped);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
