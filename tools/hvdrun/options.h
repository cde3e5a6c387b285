/* SPDX-License-Identifier: Apache-2.0
 * hvdrun's command line and configuration file: what they say, checked. The options are the rows of
 * flags.def; the words are those of horovodrun. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_OPTIONS_H
#define HVI_TOOLS_HVDRUN_OPTIONS_H

#include "tools/hvdrun/hosts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define RUN_EXPORTS_MAX   32
#define RUN_VARIABLES_MAX 64

/* On other hosts --network-interfaces adds two variables, and --tcp one. */
#define RUN_VARIABLES_OURS 3
#define RUN_VARIABLE_TCP   "NCCL_IB_DISABLE=1"
#define RUN_IDLE_MAX       64

struct run_flag;

struct run_options {
    int ranks;
    const char *hosts, *hostfile; /* as given; NULL: not given, like the others here */
    struct run_hosts places;      /* what they come to, filled with the ranks; none: this machine */
    const char *ssh_command, *ssh_port, *ssh_identity; /* how other hosts are reached */
    const char *fan_out;                    /* hosts that this one reaches itself, "0": all */
    const char *remote_hvdrun, *remote_dir; /* where hvdrun and the ranks are there */
    const char *call_dir;                   /* hvd.run's, with the files that call.h names */
    char *interfaces; /* on the heap: which of this host's addresses the others are told */
    const char *address;
    const char *hvdd;
    const char *output_dir;
    const char *config_file;
    const char *log_level;
    uint64_t start_timeout_ns, report_ns, grace_ns, silence_ns;
    bool no_prefix, timestamps, verbose, bind_to_core, bind_to_nothing, gpu_mps, tcp;
    bool gloo, mpi, jsrun, autotune;
    bool help, help_man, version, check_build; /* one of these instead of a command */
    bool compat;    /* called horovodrun: it goes by that name, and ranks get what Horovod gives */
    char **command; /* argv's tail, NULL-terminated; its first word is the program */

    /* "HOROVOD_X=value" for the ranks, one per X, on the heap. */
    char *exports[RUN_EXPORTS_MAX];
    size_t export_count;
    /* "NAME=value" for the ranks, as asked for, on the heap. */
    char *variables[RUN_VARIABLES_MAX + RUN_VARIABLES_OURS];
    size_t variable_count;
    /* What was asked for without effect, in the order in which it was last given. */
    const struct run_flag *idle[RUN_IDLE_MAX];
    size_t idle_count;
    char unknown[512]; /* keys of the configuration file that mean nothing; "" for none */
};

/* 0, or -1 with a sentence in text_p and nothing to free. Permutes nothing: everything from the
 * first word that is no option on belongs to the command. Reads the files that are named. */
int run_options_parse(int argc, char **argv, struct run_options *options_p, char *text_p,
                      size_t text_size);
void run_options_fini(struct run_options *options);
/* "horovodrun" or "hvdrun". */
const char *run_options_program(const struct run_options *options);
/* A sentence for each reason why something that was asked for has no effect, and for what the
 * configuration file has that nobody knows. */
void run_options_tell_idle(const struct run_options *options, FILE *out);

#endif
