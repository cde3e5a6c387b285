/* SPDX-License-Identifier: Apache-2.0
 * What every check(3) program of the unit tests ends with. */
#ifndef HVT_MAIN_H
#define HVT_MAIN_H

#include <check.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* A promise in milliseconds is made for a machine with a core to spare: what it is stretched to on one with more work
 * than cores, or under a sanitizer. */
static inline uint64_t hvt_patience(uint64_t ns)
{
#ifdef HVD_SANITIZE
    const double slower = 5;
#else
    const double slower = 1;
#endif
    double load = 0;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    if (getloadavg(&load, 1) != 1 || cores < 1 || load < (double)cores)
        return (uint64_t)((double)ns * slower);
    return (uint64_t)((double)ns * slower * load / (double)cores);
}

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
