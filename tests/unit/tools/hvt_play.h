/* SPDX-License-Identifier: Apache-2.0
 * A hvdd that a thread plays: it answers the questions that are asked of the admin socket, one line of a script each. */
#ifndef HVT_TOOLS_PLAY_H
#define HVT_TOOLS_PLAY_H

#include "proto/wire.h"

#include <stdbool.h>

#define HVT_LINES_MAX 16

/* What a hvdd of that version says of itself. */
#define HVT_DAEMON(version_text)                                                                   \
    {                                                                                              \
        .version = version_text, .pid = 17, .state = "running", .runtime_dir = "/run/there"        \
    }

/* A question that is expected, and what becomes of it. */
struct hvt_line {
    enum hvi_admin_kind kind;
    struct hvi_admin_reply reply;
    size_t cut;  /* so many bytes are missing at the answer's end */
    bool silent; /* no answer */
    bool gone;   /* no answer, and hvdd is not there any more */
    bool more; /* not asked for: the last asker gets it as an event; with .gone hvdd goes unasked */
};

extern struct hvi_admin_request hvt_asked[HVT_LINES_MAX]; /* by line */

/* It is there, in the folder `root`, while `act` runs; fails unless it is asked each line. */
void hvt_play(const char *root, const struct hvt_line *lines, size_t count,
              void (*act)(const void *context), const void *context);

/* Programs that are started from now on may leak what libzmq does, as this one may. Writes a file into `root`. */
void hvt_forgive_libzmq(const char *root);

#endif
