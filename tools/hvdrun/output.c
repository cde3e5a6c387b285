/* SPDX-License-Identifier: Apache-2.0
 * Output of many processes on one terminal, without loss and without torn lines.
 *
 *   pipe --read--> held (unfinished line) --lines--> prefix --> sink.pending --write--> fd 1 or 2
 *
 * A stream holds back its last, unfinished line until it is complete, until PARTIAL_NS have passed
 * (prompts, dots) or until it is longer than LINE_MAX_BYTES. An unfinished line that was shown is
 * "open" in its sink; when another stream has something to show, a newline closes it first and its
 * continuation gets a prefix of its own. A line whose rest is there and has not been read is not
 * slow. A pipe of the stream's own tells. What is fed came with the bytes of other ranks: its rest
 * may be behind these as long as they are not read, and CATCH_UP_NS after that.
 *
 * Our stdout is shared with whoever started us, so O_NONBLOCK must not be set on it. A second
 * opening through /proc/self/fd has flags of its own. Where that is impossible (sockets, pipes of
 * other users) pieces of PIPE_BUF bytes are written after poll(2) has promised room for them.
 *
 * A sink that is not drained stops its streams from being read, so the processes block in write(2)
 * as they would without us. A sink whose reader is gone closes its streams: the processes get
 * SIGPIPE as they would without us. */
#include "tools/hvdrun/output.h"

#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define READ_BYTES     (256u * 1024u)
#define LINE_MAX_BYTES (1024u * 1024u)
#define PENDING_MAX    (4u * 1024u * 1024u)
#define PARTIAL_NS     (200 * HVI_NS_MS)
#define CATCH_UP_NS    (1 * HVI_NS_SEC) /* for some MiB of other ranks */

/* ---- buffer ---- */

static int make_room(struct run_buffer *buffer, size_t length)
{
    if (buffer->start + buffer->used + length <= buffer->room)
        return HVI_OK;
    if (buffer->start > 0) {
        memmove(buffer->data, buffer->data + buffer->start, buffer->used);
        buffer->start = 0;
    }
    size_t room = buffer->room == 0 ? 4096 : buffer->room;
    while (room < buffer->used + length)
        room *= 2;
    if (room == buffer->room)
        return HVI_OK;
    char *data = realloc(buffer->data, room);
    if (data == NULL)
        return HVI_ERR_NO_MEMORY;
    buffer->data = data;
    buffer->room = room;
    return HVI_OK;
}

int run_buffer_append(struct run_buffer *buffer, const char *bytes, size_t length)
{
    if (length == 0)
        return HVI_OK;
    if (make_room(buffer, length) != HVI_OK)
        return HVI_ERR_NO_MEMORY;
    memcpy(buffer->data + buffer->start + buffer->used, bytes, length);
    buffer->used += length;
    return HVI_OK;
}

void run_buffer_consume(struct run_buffer *buffer, size_t length)
{
    buffer->start += length;
    buffer->used -= length;
    if (buffer->used == 0)
        buffer->start = 0;
}

void run_buffer_fini(struct run_buffer *buffer)
{
    free(buffer->data);
    memset(buffer, 0, sizeof *buffer);
}

/* ---- prefix ---- */

void run_prefix_init(struct run_prefix *prefix_p, int rank, const char *stream, bool enabled,
                     bool timestamps)
{
    memset(prefix_p, 0, sizeof *prefix_p);
    if (enabled)
        snprintf(prefix_p->text, sizeof prefix_p->text, "[%d]<%s>:", rank, stream);
    prefix_p->timestamps = enabled && timestamps;
    prefix_p->at_start = true;
}

static int put_prefix(struct run_prefix *prefix, struct run_buffer *out)
{
    char stamp[64] = "";
    if (prefix->timestamps) {
        struct tm parts;
        const time_t now = time(NULL);
        localtime_r(&now, &parts);
        strftime(stamp, sizeof stamp, "%a %b %e %H:%M:%S %Y", &parts);
    }
    prefix->at_start = false;
    if (run_buffer_append(out, stamp, strlen(stamp)) != HVI_OK)
        return HVI_ERR_NO_MEMORY;
    return run_buffer_append(out, prefix->text, strlen(prefix->text));
}

/* Bytes up to and including the end of the line at `bytes`; `newline` is the first \n at or after
 * it, or NULL. */
static size_t line_length(const char *bytes, size_t length, const char *newline, bool *ended_p,
                          bool *returned_p)
{
    const size_t limit = newline != NULL ? (size_t)(newline - bytes) + 1 : length;
    const char *ret = memchr(bytes, '\r', limit);
    *returned_p = ret != NULL && ret + 1 != newline;
    *ended_p = newline != NULL || *returned_p;
    return *returned_p ? (size_t)(ret - bytes) + 1 : limit;
}

int run_prefix_feed(struct run_prefix *prefix, const char *bytes, size_t length,
                    struct run_buffer *out)
{
    const char *const end = bytes + length;
    const char *newline = memchr(bytes, '\n', length);
    if (prefix->text[0] == '\0')
        return run_buffer_append(out, bytes, length);
    while (bytes < end) {
        bool ended;
        bool returned;
        const bool second_half = prefix->after_return && *bytes == '\n'; /* of a cut \r\n */
        if (newline != NULL && newline < bytes)
            newline = memchr(bytes, '\n', (size_t)(end - bytes));
        if (prefix->at_start && !second_half && put_prefix(prefix, out) != HVI_OK)
            return HVI_ERR_NO_MEMORY;
        const size_t part = line_length(bytes, (size_t)(end - bytes), newline, &ended, &returned);
        if (run_buffer_append(out, bytes, part) != HVI_OK)
            return HVI_ERR_NO_MEMORY;
        prefix->at_start = ended;
        prefix->after_return = returned;
        bytes += part;
    }
    return HVI_OK;
}

/* ---- sink ---- */

void run_sink_init(struct run_sink *sink_p, int fd)
{
    char path[64];
    struct stat st;
    memset(sink_p, 0, sizeof *sink_p);
    sink_p->fd = fd;
    if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        sink_p->regular = true;
        return;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    const int again = open(path, O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (again < 0)
        return;
    sink_p->fd = again;
    sink_p->owned = true;
    sink_p->nonblocking = true;
}

void run_sink_init_own(struct run_sink *sink_p, int fd)
{
    memset(sink_p, 0, sizeof *sink_p);
    sink_p->fd = fd;
    sink_p->owned = true;
    sink_p->nonblocking = fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK) == 0;
}

void run_sink_fini(struct run_sink *sink)
{
    if (sink->owned)
        close(sink->fd);
    run_buffer_fini(&sink->pending);
}

bool run_sink_is_full(const struct run_sink *sink)
{
    return sink->pending.used >= PENDING_MAX;
}

static ssize_t write_piece(struct run_sink *sink, const char *bytes, size_t length)
{
    if (sink->nonblocking || sink->regular)
        return write(sink->fd, bytes, length);
    const ssize_t sent = send(sink->fd, bytes, length, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0 || errno != ENOTSOCK)
        return sent;
    struct pollfd room = {.fd = sink->fd, .events = POLLOUT};
    if (poll(&room, 1, 0) <= 0) {
        errno = EAGAIN;
        return -1;
    }
    return write(sink->fd, bytes, length < PIPE_BUF ? length : PIPE_BUF);
}

static void sink_failed(struct run_sink *sink, int error)
{
    sink->gone = error == EPIPE;
    sink->error = error;
    sink->dropped += sink->pending.used;
    run_buffer_consume(&sink->pending, sink->pending.used);
}

void run_sink_flush(struct run_sink *sink)
{
    while (sink->pending.used > 0) {
        const ssize_t written =
            write_piece(sink, sink->pending.data + sink->pending.start, sink->pending.used);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0 && errno == EAGAIN)
            return;
        if (written < 0) {
            sink_failed(sink, errno);
            return;
        }
        run_buffer_consume(&sink->pending, (size_t)written);
    }
}

static void flush_ready(void *context, int index)
{
    (void)index;
    run_sink_flush(context);
}

void run_sink_poll(struct run_sink *sink, struct run_polls *polls)
{
    if (sink->pending.used > 0)
        run_polls_add(polls, sink->fd, POLLOUT, flush_ready, sink, 0);
}

static void close_open_line(struct run_sink *sink, const struct run_stream *except)
{
    struct run_stream *owner = sink->open_line;
    if (!sink->line_open || (owner != NULL && owner == except))
        return;
    run_buffer_append(&sink->pending, "\n", 1);
    sink->line_open = false;
    sink->open_line = NULL;
    if (owner == NULL)
        return;
    owner->prefix.at_start = true;
    owner->prefix.after_return = false;
}

void run_sink_say(struct run_sink *sink, const char *text)
{
    if (sink->error != 0)
        return;
    close_open_line(sink, NULL);
    run_buffer_append(&sink->pending, text, strlen(text));
    run_buffer_append(&sink->pending, "\n", 1);
    run_sink_flush(sink);
}

static void sink_put(struct run_sink *sink, struct run_stream *stream, const char *bytes,
                     size_t length)
{
    if (length == 0 || stream->muted)
        return;
    if (sink->error != 0) {
        sink->dropped += length;
        return;
    }
    if (stream->prefix.text[0] != '\0' || stream->apart)
        close_open_line(sink, stream);
    if (run_prefix_feed(&stream->prefix, bytes, length, &sink->pending) != HVI_OK)
        sink_failed(sink, ENOMEM);
    sink->line_open = bytes[length - 1] != '\n';
    sink->open_line = sink->line_open ? stream : NULL;
}

/* ---- stream ---- */

void run_stream_init(struct run_stream *stream_p, int fd, struct run_sink *sink)
{
    memset(stream_p, 0, sizeof *stream_p);
    stream_p->fd = fd;
    stream_p->file_fd = -1;
    stream_p->sink = sink;
    stream_p->prefix.at_start = true;
}

static void copy_to_file(struct run_stream *stream, const char *bytes, size_t length)
{
    while (stream->file_fd >= 0 && length > 0) {
        const ssize_t written = write(stream->file_fd, bytes, length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0) {
            stream->file_error = errno;
            close(stream->file_fd);
            stream->file_fd = -1;
            return;
        }
        bytes += written;
        length -= (size_t)written;
    }
}

void run_stream_show(struct run_stream *stream)
{
    if (stream->held.used == 0)
        return;
    sink_put(stream->sink, stream, stream->held.data + stream->held.start, stream->held.used);
    run_buffer_consume(&stream->held, stream->held.used);
    stream->held_until_ns = 0;
}

/* Bytes up to and including the last line end. */
static size_t complete_bytes(const char *bytes, size_t length)
{
    const char *newline = memrchr(bytes, '\n', length);
    const size_t after = newline != NULL ? (size_t)(newline - bytes) + 1 : 0;
    const char *ret = memrchr(bytes + after, '\r', length - after);
    return ret != NULL ? (size_t)(ret - bytes) + 1 : after;
}

void run_stream_feed(struct run_stream *stream, const char *bytes, size_t length)
{
    const size_t complete = complete_bytes(bytes, length);
    copy_to_file(stream, bytes, length);
    if (complete > 0) {
        run_stream_show(stream);
        sink_put(stream->sink, stream, bytes, complete);
    }
    if (complete == length)
        return;
    if (run_buffer_append(&stream->held, bytes + complete, length - complete) != HVI_OK) {
        run_stream_show(stream);
        sink_put(stream->sink, stream, bytes + complete, length - complete);
    } else if (stream->held.used > LINE_MAX_BYTES) {
        run_stream_show(stream);
    } else if (stream->held_until_ns == 0) {
        stream->held_until_ns = hvi_deadline_after((int64_t)PARTIAL_NS);
    }
}

void run_stream_read(struct run_stream *stream)
{
    static char bytes[READ_BYTES];
    const ssize_t length = read(stream->fd, bytes, sizeof bytes);
    if (length > 0 && stream->take != NULL)
        stream->take(stream->take_context, stream->take_index, bytes, (size_t)length);
    else if (length > 0)
        run_stream_feed(stream, bytes, (size_t)length);
    else if (length == 0 || (errno != EINTR && errno != EAGAIN))
        run_stream_end(stream);
}

static void read_ready(void *context, int index)
{
    struct run_stream *stream = context;
    (void)index;
    if (stream->fd >= 0)
        run_stream_read(stream);
}

void run_stream_poll(struct run_stream *stream, struct run_polls *polls)
{
    if (!run_sink_is_full(stream->sink))
        run_polls_add(polls, stream->fd, POLLIN, read_ready, stream, 0);
}

/* The rest of the line may be there already, unread because the sink is full. */
static bool has_unread(const struct run_stream *stream, uint64_t now_ns)
{
    struct pollfd item = {.fd = stream->fd, .events = POLLIN};
    const uint64_t unread_ns = stream->sink->unread_ns;
    if (stream->fd >= 0)
        return poll(&item, 1, 0) > 0;
    return unread_ns != 0 && now_ns < unread_ns + CATCH_UP_NS;
}

void run_stream_tick(struct run_stream *stream, uint64_t now_ns)
{
    if (stream->held_until_ns == 0 || now_ns < stream->held_until_ns)
        return;
    if (has_unread(stream, now_ns))
        stream->held_until_ns = hvi_deadline_after((int64_t)PARTIAL_NS);
    else
        run_stream_show(stream);
}

void run_stream_end(struct run_stream *stream)
{
    if (stream->fd < 0)
        return;
    run_stream_show(stream);
    close(stream->fd);
    stream->fd = -1;
}

void run_stream_fini(struct run_stream *stream)
{
    run_stream_show(stream);
    run_stream_end(stream);
    if (stream->sink != NULL && stream->sink->open_line == stream)
        stream->sink->open_line = NULL;
    if (stream->file_fd >= 0)
        close(stream->file_fd);
    run_buffer_fini(&stream->held);
}
