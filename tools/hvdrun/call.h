/* SPDX-License-Identifier: Apache-2.0
 * hvd.run on several hosts, seen from hvdrun: what ranks are to call is a file, `call`, of a
 * directory, and what they return becomes files `result.R` there. What is in them is not known here.
 * A file `arrivals` has a line "rank host" for each rank, in the order in which results begin to come:
 * hosts are numbered, and have clocks of their own. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_CALL_H
#define HVI_TOOLS_HVDRUN_CALL_H

#include "tools/hvdrun/link.h"

#include <stdio.h>

struct run_call {
    const char *dir; /* NULL: the job is another program */
    int fd;
    uint64_t bytes;
    int *results; /* files of what ranks return, by rank; -1: nothing has come */
    int ranks;
    FILE *arrivals; /* NULL: nothing has come */
};

/* 0, or -1 with a sentence; run_call_close in both cases. */
int run_call_open(struct run_call *call_p, const char *dir, int ranks, char *text_p,
                  size_t text_size);
/* As much of the call as there is room for on the way, from *sent_p on. What goes wrong stands in the
 * link's text. */
void run_call_send(const struct run_call *call, struct run_link *link, uint64_t *sent_p);
/* A part of what a rank of this host returns. 0, or -1 with a sentence. */
int run_call_take(struct run_call *call, size_t host, const struct hvi_launch_data *data,
                  char *text_p, size_t text_size);
void run_call_close(struct run_call *call);

#endif
