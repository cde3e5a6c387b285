/* SPDX-License-Identifier: Apache-2.0
 * What the supervisor has heard so far. One thread. A record is one line:
 *   F name value unit | A name text | I name text | N text | S step | R why refused | E why failed
 * The first R or E decides `outcome` and `reason`; later ones are its consequences in other roles. */
#ifndef HVD_GPU_PROBE_REPORT_H
#define HVD_GPU_PROBE_REPORT_H
#include <stdio.h>

#define REPORT_ROWS 400

enum outcome { MEASURED, REFUSED, FAILED, CRASHED, HUNG };

struct report_row {
    char kind; /* of the record: F, A, I or N */
    char name[128];
    char value[256]; /* number or text */
    char unit[32];
};

struct report {
    enum outcome outcome;
    char reason[512];
    char step[256];  /* the last one named */
    char prefix[32]; /* of this variant's figures */
    int is_error_known;
    int count;
    struct report_row rows[REPORT_ROWS];
};

const char *report_outcome(const struct report *r);
/* Keeps a row and prints its line on standard output. */
void report_add(struct report *r, char kind, const char *name, const char *value, const char *unit);
/* Takes one record without its newline; changes the text. A line that is no record is ignored. */
void report_take(struct report *r, char *line);
/* The JSON object, on one line. */
void report_json(FILE *f, const struct report *r, int is_quick, double seconds);
#endif
