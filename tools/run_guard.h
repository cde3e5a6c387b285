/* SPDX-License-Identifier: Apache-2.0
 * A small second process that cleans up when hvdrun is killed with SIGKILL: it ends the ranks'
 * process groups (the kernel's parent-death signal reaches only their leaders) and removes the
 * private daemon's directory. Main thread. */
#ifndef HVI_TOOLS_RUN_GUARD_H
#define HVI_TOOLS_RUN_GUARD_H

#include <sys/types.h>

struct run_guard {
    pid_t pid; /* 0: none */
    int fd;    /* its death is how the guard learns of ours */
};

/* Call before any thread exists. 0 or an errno. */
int run_guard_start(struct run_guard *guard_p);
/* A process group that must not outlive us, and later that it is gone. */
void run_guard_add(struct run_guard *guard, pid_t group);
void run_guard_drop(struct run_guard *guard, pid_t group);
/* The private daemon's directory, to be removed once the daemon has gone; it goes by itself. */
void run_guard_watch_daemon(struct run_guard *guard, pid_t daemon, const char *dir);
/* We end in order: the guard leaves everything alone. */
void run_guard_stop(struct run_guard *guard);

#endif
