/* SPDX-License-Identifier: Apache-2.0
 * A small second process that cleans up when hvdrun is killed with SIGKILL: it ends the ranks'
 * process groups (the kernel's parent-death signal reaches only their leaders) and removes the
 * private daemon's directory. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_GUARD_H
#define HVI_TOOLS_HVDRUN_GUARD_H

#include <sys/types.h>

struct run_guard {
    pid_t pid; /* 0: none */
    int fd;    /* its death is how the guard learns of ours */
};

/* main's own: a guard takes its name in the place of these words. Without them its command line is hvdrun's. */
void run_guard_keep_words(int argc, char **argv);
/* Call before any thread exists. 0 or an errno. */
int run_guard_start(struct run_guard *guard_p);
/* A process group that must not outlive us, and later that it is gone. A new process says the first
 * itself, between fork and exec, so that there is no moment at which nobody knows it. */
void run_guard_add(struct run_guard *guard, pid_t group);
void run_guard_drop(struct run_guard *guard, pid_t group);
/* The private daemon's directory, said before it is made: to be removed once the daemon has gone. The
 * daemon goes by itself, because its parent-fd is closed; it is killed only if it does not. */
void run_guard_watch_dir(struct run_guard *guard, const char *dir);
void run_guard_watch_daemon(struct run_guard *guard, pid_t daemon);
/* We end in order: the guard leaves everything alone. */
void run_guard_stop(struct run_guard *guard);

#endif
