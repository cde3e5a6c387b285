/* SPDX-License-Identifier: Apache-2.0
 * hvdrun's command line: one row per option in run_options.c, from which parsing and --help follow.
 * The words are those of horovodrun; what hvdrun cannot do is refused with a sentence and never
 * ignored. Main thread. */
#ifndef HVI_TOOLS_RUN_OPTIONS_H
#define HVI_TOOLS_RUN_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

struct run_options {
    int ranks;
    const char *hosts;      /* as given, NULL if not */
    const char *address;    /* --address, NULL if not given */
    const char *hvdd;       /* --hvdd, NULL if not given */
    const char *output_dir; /* --output-filename, NULL if not given */
    const char *log_level;  /* NULL if not given */
    uint64_t start_timeout_ns, grace_ns;
    uint64_t stall_warn_ns; /* 0: not given */
    bool no_stall_check, no_prefix, timestamps, verbose, bind_to_core;
    bool help, version, check_build; /* one of these instead of a command */
    char **command; /* argv's tail, NULL-terminated; its first word is the program */
};

/* 0, or -1 with a sentence in text_p. Permutes nothing: everything from the first word that is no
 * option on belongs to the command. */
int run_options_parse(int argc, char **argv, struct run_options *options_p, char *text_p,
                      size_t text_size);
void run_options_help(FILE *out);
/* What this build can do, in the form of `horovodrun --check-build`. */
void run_options_check_build(FILE *out);

#endif
