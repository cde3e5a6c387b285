/* SPDX-License-Identifier: Apache-2.0
 * This process's descriptors and threads, and the end of a child. */
#ifndef HVT_PROCESS_H
#define HVT_PROCESS_H

#include "base/clock.h"

#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* Entries of a folder, and two more: "." and "..". */
static inline int hvt_count_entries(const char *path)
{
    int count = 0;
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

/* Open descriptors and three more: the same number means that none was left open. */
static inline int hvt_count_fds(void)
{
    return hvt_count_entries("/proc/self/fd");
}

/* Threads and two more: a thread counts until the kernel has ended it. */
static inline int hvt_count_threads(void)
{
    return hvt_count_entries("/proc/self/task");
}

/* No descriptor can be opened until the limit that is returned is set again. */
static inline struct rlimit hvt_forbid_fds(void)
{
    struct rlimit old, limit;
    int lowest = dup(0);
    close(lowest);
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
    limit = old;
    limit.rlim_cur = (rlim_t)lowest;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return old;
}

/* The child's wait status: 0 if it ended well. Killed after 20 seconds. */
static inline int hvt_wait_child(pid_t pid)
{
    int status = 0;
    uint64_t deadline_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_SEC);
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (hvi_deadline_passed(deadline_ns))
            kill(pid, SIGKILL);
        struct timespec pause = {0, 200000};
        nanosleep(&pause, NULL);
    }
    return status;
}

#endif
