/* SPDX-License-Identifier: Apache-2.0
 * What every check(3) program of the unit tests ends with. */
#ifndef HVT_MAIN_H
#define HVT_MAIN_H

#include <check.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef HVD_SANITIZE
#define HVT_SANITIZED true
#else
#define HVT_SANITIZED false
#endif

static const char *hvt_events; /* HVT_EVENTS; tests may clear it with the rest of the environment */

/* Says that a test is skipped, also in the file that HVT_EVENTS names (tests/harness/run-ctest). Returns true. */
static inline bool hvt_note_skip(const char *file, const char *function, const char *why)
{
    const int length = (int)(strlen(function) - strlen("_fn")); /* which START_TEST adds */
    char line[512];

    for (const char *at; (at = strstr(file, "/tests/")) != NULL;)
        file = at + strlen("/tests/");
    int bytes = snprintf(line, sizeof(line), "skip\t%s::%.*s\t%s\n", file, length, function, why);
    ck_assert_int_lt(bytes, (int)sizeof(line));
    fputs(line, stdout);
    fflush(stdout);
    if (hvt_events != NULL) {
        int fd = open(hvt_events, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
        ck_assert_msg(fd >= 0 && write(fd, line, (size_t)bytes) == bytes, "%s: not written",
                      hvt_events);
        close(fd);
    }
    return true;
}

/* Whether the test that calls it has to return at once. A line of tests/skips.txt has to allow that. */
#define hvt_skip_if(cannot, why) ((cannot) && hvt_note_skip(__FILE__, __func__, (why)))

/* A promise in milliseconds is made for a machine with a core to spare: what it is stretched to on one with more work
 * than cores (by no more than 4), or under a sanitizer. */
static inline uint64_t hvt_patience(uint64_t ns)
{
    const double slower = HVT_SANITIZED ? 5 : 1;
    double load = 0;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    if (getloadavg(&load, 1) != 1 || cores < 1 || load < (double)cores)
        return (uint64_t)((double)ns * slower);
    const double busier = load / (double)cores;
    return (uint64_t)((double)ns * slower * (busier < 4 ? busier : 4));
}

/* Runs one suite, each test in a process of its own; returns the exit status for main. */
static inline int hvt_run_suite(Suite *suite)
{
    SRunner *runner = srunner_create(suite);
    hvt_events = getenv("HVT_EVENTS");
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
