/* SPDX-License-Identifier: Apache-2.0
 * What every check(3) program of the unit tests ends with. */
#ifndef HVT_MAIN_H
#define HVT_MAIN_H

#include <check.h>
#include <stdlib.h>

/* Runs one suite, each test in a process of its own; returns the exit status for main. */
static inline int hvt_run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
