/* SPDX-License-Identifier: Apache-2.0
 * hvdrun inside: one launch. Main thread only. */
#ifndef HVI_TOOLS_HVDRUN_RUN_H
#define HVI_TOOLS_HVDRUN_RUN_H

#include "tools/common/admin_client.h"
#include "tools/hvdrun/daemon.h"
#include "tools/hvdrun/guard.h"
#include "tools/hvdrun/options.h"
#include "tools/hvdrun/output.h"
#include "tools/hvdrun/procs.h"
#include "tools/hvdrun/stdin.h"

#include <stdio.h>

struct run_rank {
    struct run_proc proc;
    struct run_stream streams[2]; /* stdout, stderr */
    bool ended;
    bool group_gone;
};

/* What hvdrun is doing; only forward, see end.c. */
enum run_stage {
    RUN_RUNNING,  /* ranks run */
    RUN_LINGER,   /* all have ended; what they left running may finish its output */
    RUN_LEFTOVER, /* leftovers have got SIGTERM */
    RUN_DRAIN,    /* nothing runs any more; the last output is on its way */
    RUN_DONE,
};

struct run {
    struct run_options options;
    struct run_heritage heritage;
    struct run_guard guard;
    struct run_daemon daemon; /* dir "": not ours */
    bool daemon_gone, daemon_silent;
    struct run_stream daemon_log;
    char address[ADDRESS_DIR_MAX + 1];
    struct admin_client *admin;
    char job[64], key[40];
    int torch_port; /* where rank 0 may listen for torch.distributed; 0: none was free */

    struct run_sink sinks[2];
    struct run_sink *out, *err; /* the same one when fd 1 and 2 are the same file */
    struct run_stdin input;
    int signal_fd;

    struct run_rank *ranks;
    int alive;
    int first_failed; /* rank, -1: none */
    int exit_code;
    int stop_signal; /* the first one from outside that asks to end; 0: none */
    enum run_stage stage;
    uint64_t stage_ends_ns;          /* LINGER, LEFTOVER, DRAIN */
    uint64_t term_at_ns, kill_at_ns; /* for ranks that still run; 0: not planned */
    bool killed;
    bool impatient; /* a second signal asked to end: output that cannot be written is given up */
};

/* A line "hvdrun: ..." on stderr, between the ranks' lines. */
void run_say(struct run *run, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* start.c: options, environment and processes. An exit code, 0 when all ranks were started. */
int run_start_ranks(struct run *run);

/* loop.c: relays output and signals until everything has ended. */
void run_loop(struct run *run);

/* end.c: */
/* Looks which of the ranks in `ended` (their indices) have ended how, tells hvdd, and acts on the
 * first failure. */
void run_end_collect(struct run *run, const int *ended, size_t count);
/* A signal from outside. */
void run_end_signal(struct run *run, int signal_number);
/* What time alone brings: SIGTERM, SIGKILL, the next stage. */
void run_end_tick(struct run *run, uint64_t now_ns);
/* The next time for run_end_tick; HVI_NEVER for none. */
uint64_t run_end_next_ns(const struct run *run);
/* SIGTERM to everything that runs, SIGKILL after the grace time. */
void run_end_all(struct run *run);
/* Who ended how, grouped, for people. */
void run_end_summary(FILE *out, const struct run_rank *ranks, int count, int first_failed);
/* Whose failure ended the job, in Horovod's words. */
void run_end_verdict(FILE *out, const char *program, int rank, int exit_code);
/* 128 + signal, or the exit status. */
int run_end_exit_code(struct hvi_fate fate);

#endif
