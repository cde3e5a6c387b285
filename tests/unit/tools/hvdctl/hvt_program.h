/* SPDX-License-Identifier: Apache-2.0
 * hvdctl as a user starts it, beside a hvdd that a thread plays. */
#ifndef HVT_TOOLS_HVDCTL_PROGRAM_H
#define HVT_TOOLS_HVDCTL_PROGRAM_H

#include "tests/unit/tools/hvt_play.h"

#include <cjson/cJSON.h>
#include <stdbool.h>
#include <sys/types.h>

extern char hvt_root[64];                  /* HVD_ADDRESS */
extern int hvt_code;                       /* the exit status */
extern char hvt_out[32768], hvt_err[8192]; /* what hvdctl has printed */
extern const char *hvt_out_path;           /* where stdout goes; NULL: to hvt_out */
extern const char *hvt_in_path;            /* stdin; NULL: nothing */

void hvt_program_setup(void);
void hvt_program_teardown(void);

/* Runs hvdctl with words that are separated by blanks; @ is the folder. No hvdd answers. */
void hvt_run(const char *words);
/* The same, with a hvdd; fails unless it is asked each line of the script. */
void hvt_run_played(const struct hvt_line *lines, size_t count, const char *words);

/* Starts it, and goes on: what it prints goes to the files NAME.out and NAME.err in the folder. */
pid_t hvt_start(const char *words, const char *name);

/* A path in the folder; the text lives until the next call. */
const char *hvt_path(const char *name);
/* The whole file, which has to fit. */
void hvt_read(const char *path, char *text_p, size_t size);
/* Fails unless hvdctl has ended with that status, and has said that on stderr ("": nothing at all). */
void hvt_expect_end(int code, const char *complaint);
/* The one document on stdout, to be deleted by the caller. */
cJSON *hvt_document(void);
/* Fails unless stdout is {"error": {...}} of that status. */
void hvt_expect_error(int status);

/* The document of doctor --json, to be deleted by the caller. Fails unless the exit status is as it says. */
cJSON *hvt_findings(void);
/* What it has of that check, or NULL. */
const cJSON *hvt_finding(const cJSON *document, const char *check);
/* Fails unless that check has come to that result, with that in its value and, unless "", its advice. */
void hvt_expect_finding(const cJSON *document, const char *check, const char *result,
                        const char *value, const char *next);

#define HVT_RUN(lines, words) hvt_run_played((lines), sizeof(lines) / sizeof((lines)[0]), (words))

#endif
