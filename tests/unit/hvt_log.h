/* SPDX-License-Identifier: Apache-2.0
 * What this process has logged: stderr goes to a file that is nobody else's. */
#ifndef HVT_LOG_H
#define HVT_LOG_H

#include "base/log.h"

#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int hvt_log_fd = -1;

/* An assertion writes its sentence to stderr, and the file goes with the process. */
static inline void hvt_log_on_abort(int signum)
{
    char last[4096];
    off_t end = lseek(hvt_log_fd, 0, SEEK_END);
    ssize_t length = pread(hvt_log_fd, last, sizeof(last),
                           end > (off_t)sizeof(last) ? end - (off_t)sizeof(last) : 0);

    (void)signum;
    if (length > 0)
        length = write(STDOUT_FILENO, last, (size_t)length);
}

static inline void hvt_log_open(void)
{
    hvt_log_fd = memfd_create("log", MFD_CLOEXEC);
    ck_assert_int_ge(hvt_log_fd, 0);
    unsetenv("JOURNAL_STREAM");
    signal(SIGABRT, hvt_log_on_abort);
    ck_assert_int_eq(dup2(hvt_log_fd, STDERR_FILENO), STDERR_FILENO);
    hvi_log_init("test", HVI_LOG_DEBUG);
}

/* How often the log has that text. */
static inline int hvt_log_count(const char *text)
{
    static char log[256 * 1024];
    ssize_t length = pread(hvt_log_fd, log, sizeof(log) - 1, 0);
    int count = 0;

    ck_assert_int_ge(length, 0);
    log[length] = '\0';
    for (const char *at = strstr(log, text); at != NULL; at = strstr(at + 1, text))
        count++;
    return count;
}

#endif
