/* SPDX-License-Identifier: Apache-2.0
 * What the ranks print, line by line with "[rank]<stdout>:" before each, to hvdrun's own stdout and
 * stderr and to files. One thread. Nothing here blocks, except writing to a regular file. */
#ifndef HVI_TOOLS_HVDRUN_OUTPUT_H
#define HVI_TOOLS_HVDRUN_OUTPUT_H

#include "tools/hvdrun/polls.h"

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A byte queue: [data + start, data + start + used). */
struct run_buffer {
    char *data;
    size_t start, used, room;
};

/* HVI_OK or HVI_ERR_NO_MEMORY. */
int run_buffer_append(struct run_buffer *buffer, const char *bytes, size_t length);
void run_buffer_consume(struct run_buffer *buffer, size_t length);
void run_buffer_fini(struct run_buffer *buffer);

/* Puts a prefix before each line. Lines end with \n, \r\n or (progress bars) \r. Binary-safe:
 * removing the prefixes gives the input. */
struct run_prefix {
    char text[48]; /* "[3]<stderr>:"; "" turns it off */
    bool timestamps;
    bool at_start, after_return;
};

void run_prefix_init(struct run_prefix *prefix_p, int rank, const char *stream, bool enabled,
                     bool timestamps);
/* HVI_OK or HVI_ERR_NO_MEMORY. */
int run_prefix_feed(struct run_prefix *prefix, const char *bytes, size_t length,
                    struct run_buffer *out);

struct run_stream;

/* Where lines go. */
struct run_sink {
    int fd;
    bool owned;       /* fd is ours to close: a second, non-blocking opening of the same file */
    bool nonblocking; /* otherwise: small pieces, and only when poll(2) says so */
    bool regular;
    bool gone;          /* the reader is gone (EPIPE) */
    int error;          /* errno of another failed write; what comes after is dropped */
    bool told;          /* run_display_flush has told of the error */
    uint64_t dropped;   /* bytes */
    uint64_t unread_ns; /* when that which feeds its streams was last seen left unread; 0: never */
    struct run_buffer pending;
    bool line_open;               /* it shows an unfinished line */
    struct run_stream *open_line; /* of this stream; NULL: it is gone, or there is none */
};

void run_sink_init(struct run_sink *sink_p, int fd);
/* A pipe or socket of our own, which run_sink_fini closes. */
void run_sink_init_own(struct run_sink *sink_p, int fd);
void run_sink_fini(struct run_sink *sink);
/* Writes what can be written now. */
void run_sink_flush(struct run_sink *sink);
/* Does so in run_polls_wait, while something waits. */
void run_sink_poll(struct run_sink *sink, struct run_polls *polls);
/* True while so much is waiting that its streams must not be read. */
bool run_sink_is_full(const struct run_sink *sink);
/* A message of hvdrun itself: always on a line of its own. */
void run_sink_say(struct run_sink *sink, const char *text);

/* What was read, as it is. */
typedef void run_stream_take(void *context, int index, const char *bytes, size_t length);

/* One output pipe of one process. */
struct run_stream {
    int fd;         /* -1 once it has ended */
    int file_fd;    /* copy without prefixes, -1 for none */
    int file_error; /* errno of the write that ended the copy */
    bool muted;     /* what comes is not shown */
    bool apart;     /* no rank's: begins a line of its own, prefix or not */
    struct run_prefix prefix;
    struct run_buffer held; /* the unfinished line */
    uint64_t held_until_ns; /* when the unfinished line is shown; 0: nothing held */
    struct run_sink *sink;  /* also of `take`: while it is full nothing is read */
    run_stream_take *take;  /* gets what is read, instead of lines to the sink; NULL: none */
    void *take_context;
    int take_index;
};

void run_stream_init(struct run_stream *stream_p, int fd, struct run_sink *sink);
/* Reads once if there is something, and hands complete lines to the sink. At end of file the rest
 * follows and fd is closed. */
void run_stream_read(struct run_stream *stream);
/* The same for bytes that came another way; `fd` is -1. */
void run_stream_feed(struct run_stream *stream, const char *bytes, size_t length);
/* Reads in run_polls_wait, unless the sink is full. */
void run_stream_poll(struct run_stream *stream, struct run_polls *polls);
/* Shows an unfinished line that has waited long enough, unless its rest may wait for us to read it. */
void run_stream_tick(struct run_stream *stream, uint64_t now_ns);
/* Shows what is held, whether there is a pipe or not. */
void run_stream_show(struct run_stream *stream);
/* Shows what is held and closes the pipe: its writer gets SIGPIPE from now on. */
void run_stream_end(struct run_stream *stream);
void run_stream_fini(struct run_stream *stream);

#endif
