/* SPDX-License-Identifier: Apache-2.0
 * The ranks' processes: starting, signalling, reaping. Each rank leads a process group of its own,
 * so that everything it has started can be ended with it. Main thread only, and only the main
 * thread may fork: PR_SET_PDEATHSIG is tied to the thread that forked. */
#ifndef HVI_TOOLS_HVDRUN_PROCS_H
#define HVI_TOOLS_HVDRUN_PROCS_H

#include "base/fate.h"
#include "tools/hvdrun/guard.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What a child must get back before exec: hvdrun blocks signals, ignores SIGPIPE and does not ignore
 * SIGCHLD. */
struct run_heritage {
    sigset_t mask;
    struct sigaction pipe_action, child_action;
    uint64_t nofile_soft; /* RLIMIT_NOFILE before hvdrun raised it */
};

struct run_proc {
    pid_t pid; /* 0: not started */
    int pidfd; /* -1 once it has ended */
    bool reaped;
    struct hvi_fate fate;
};

struct run_spawn {
    char **argv;
    char **envp;
    int stdin_fd, stdout_fd, stderr_fd; /* the child's ends; stay the caller's */
    const int *keep_fds; /* stay open in the child beside 0, 1, 2; ends with -1; NULL: none */
    int death_signal;    /* when hvdrun dies; 0: none */
    int core;            /* 1 + the only core it may use; 0: those of hvdrun */
    const struct run_heritage *heritage;
    /* Called in the child before exec with its pid; NULL: nobody needs to know. */
    void (*announce)(struct run_guard *guard, pid_t pid);
    struct run_guard *guard;
};

/* Starts a process in its own group. 0, or an errno (ENOENT, EACCES, ... from exec; EAGAIN, EMFILE
 * from fork). Returns once exec(2) has succeeded or failed. */
int run_proc_start(const struct run_spawn *spawn, struct run_proc *proc_p);
/* The same with three pipes in the place of the child's ends; *fds_p: ours of its stdin, stdout and stderr, the two
 * that are read non-blocking. */
int run_proc_start_piped(struct run_spawn *spawn, int fds_p[3], struct run_proc *proc_p);
/* To the process and everything in its group. Harmless once it is reaped. */
void run_proc_signal(const struct run_proc *proc, int signal_number);
/* Learns how it ended, without reaping. False if it still runs. */
bool run_proc_look(struct run_proc *proc);
/* Reaps an ended process and closes its pidfd. */
void run_proc_reap(struct run_proc *proc);
/* Whether a child is one of these, and not reaped: no orphan of theirs. */
bool run_proc_is_started(pid_t pid);

/* A copy of `base` with `settings` (NULL-terminated) applied: "NAME=value" replaces or adds, "NAME"
 * removes; of several for one name the last counts. NULL without memory. Free with run_env_free. */
char **run_env_make(char **base, char *const *settings);
void run_env_free(char **env);

#endif
