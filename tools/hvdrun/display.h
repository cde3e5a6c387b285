/* SPDX-License-Identifier: Apache-2.0
 * What hvdrun shows: every rank's lines with their prefixes, on its own stdout and stderr and in
 * files, and its own sentences between them. Main thread. */
#ifndef HVI_TOOLS_HVDRUN_DISPLAY_H
#define HVI_TOOLS_HVDRUN_DISPLAY_H

#include "tools/hvdrun/options.h"
#include "tools/hvdrun/output.h"
#include "tools/hvdrun/polls.h"

struct run_display {
    const struct run_options *options;
    struct run_sink sinks[2];
    struct run_sink *out, *err; /* the same one when fd 1 and 2 are the same file */
    struct run_stream *streams; /* stdout and stderr of each rank: 2 * rank + (0 or 1) */
    int ranks;
};

/* Sinks alone, so that sentences can be said. */
void run_display_open(struct run_display *display_p, const struct run_options *options);
/* Streams and files for `ranks` ranks. False after a sentence. */
bool run_display_make_streams(struct run_display *display, int ranks);
/* A line "hvdrun: ..." on stderr, between the ranks' lines. */
void run_display_say(struct run_display *display, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

void run_display_poll(struct run_display *display, struct run_polls *polls);
/* While it is, that which feeds the streams must not be read. */
bool run_display_is_full(const struct run_display *display);
/* Nothing waits to be written. */
bool run_display_is_empty(const struct run_display *display);
/* Shows unfinished lines whose time has come. */
void run_display_tick(struct run_display *display, uint64_t now_ns);
uint64_t run_display_next_ns(const struct run_display *display);
/* Writes what can be written; complains of what cannot. The streams, 1 stdout and 2 stderr as bits,
 * whose reader has gone just now: their writers are to get SIGPIPE. */
unsigned run_display_flush(struct run_display *display);
/* What went to files or was dropped deserves a word. False if there was such. */
bool run_display_report(struct run_display *display);
/* Waits until the reader has taken what is left, or a signal that asks to end comes through `signal_fd`. */
void run_display_drain(struct run_display *display, int signal_fd);
/* Writes what can be written now, and drops the rest. */
void run_display_close(struct run_display *display);

#endif
