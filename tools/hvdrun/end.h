/* SPDX-License-Identifier: Apache-2.0
 * Which failure ends a job, when the other ranks are ended, and what is said about it. Knows ranks of
 * one node and of many alike; acts through run_end_hands. Main thread; waits nowhere. */
#ifndef HVI_TOOLS_HVDRUN_END_H
#define HVI_TOOLS_HVDRUN_END_H

#include "base/clock.h"
#include "tools/hvdrun/node.h"

#include <stdio.h>

/* Two signals that ask to end and are closer together than this do not kill: timeout(1) sends its own to
 * the process and to its group, and what passes on Ctrl-C may be in the terminal's group with hvdrun. */
#define RUN_END_APART_NS (200 * HVI_NS_MS)

/* What SIGKILL has not ended after this time is stuck in the kernel; as for what ranks leave: node.c. */
#define RUN_END_STUCK_NS (5 * HVI_NS_SEC)

struct run_outcome {
    pid_t pid; /* 0: not started */
    bool ended;
    bool told; /* we asked it to end */
    struct hvi_fate fate;
    const char *host; /* NULL: this machine, where all ranks are */
};

struct run_end_hands {
    void *context;
    void (*say)(void *context, const char *text);
    /* To every process of the job and what it has started. */
    void (*signal)(void *context, int signal_number);
    /* What hvdd reports from here on is a consequence, no news. */
    void (*mute)(void *context);
    /* Looks on every host for a rank that is being killed, which is to be told by run_end_exited;
     * run_end_looked follows. NULL: whoever tells of ends has looked before. */
    void (*look)(void *context);
    /* All ranks have ended. */
    void (*over)(void *context, bool linger);
};

struct run_end {
    const struct run_options *options;
    struct run_end_hands hands;
    struct run_outcome *ranks;
    int count, alive;
    int waiting;      /* ranks that are still to be started */
    int first_failed; /* rank, -1: none */
    int exit_code;
    int stop_signal;                 /* the first one from outside that asks to end; 0: none */
    uint64_t stopped_ns;             /* when it came */
    uint64_t term_at_ns, kill_at_ns; /* for ranks that still run; 0: not planned */
    uint64_t stuck_at_ns;            /* what SIGKILL has not ended then is given up; 0: not sent */
    struct run_exit suspect; /* has failed; another rank, that was killed, may be the reason */
    uint64_t look_until_ns;  /* 0: nobody is looking */
    bool killed, over;
    bool given_up;  /* the job ends for another reason than a rank's failure */
    bool impatient; /* a second signal asked to end: output that cannot be written is given up */
};

/* False without memory. */
bool run_end_init(struct run_end *end_p, const struct run_options *options, int ranks,
                  const struct run_end_hands *hands);
void run_end_fini(struct run_end *end);

void run_end_started(struct run_end *end, int rank, pid_t pid, const char *host);
/* So many ranks will never be started; run_end_give_up goes before. */
void run_end_not_started(struct run_end *end, int ranks);
/* These have ended together (their indices are ranks). Acts on the first failure. */
void run_end_exited(struct run_end *end, const struct run_exit *exits, size_t count);
void run_end_looked(struct run_end *end);
/* The job cannot go on, which is no rank's fault: SIGTERM to everything that runs, SIGKILL after the
 * grace time. */
void run_end_give_up(struct run_end *end);
/* A signal from outside. */
void run_end_signal(struct run_end *end, int signal_number);
/* What time alone brings: SIGTERM, SIGKILL, and the end of the job without ranks that it does not end. */
void run_end_tick(struct run_end *end, uint64_t now_ns);
/* The next time for run_end_tick; HVI_NEVER for none. */
uint64_t run_end_next_ns(const struct run_end *end);

/* Summary and verdict, without the last newline; NULL where there is nothing to say. For free. */
char *run_end_report(const struct run_end *end);
/* Who ended how, grouped, for people. */
void run_end_summary(FILE *out, const struct run_outcome *ranks, int count, int first_failed);
/* 128 + signal, or the exit status. */
int run_end_exit_code(struct hvi_fate fate);

#endif
