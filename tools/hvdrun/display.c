/* SPDX-License-Identifier: Apache-2.0 */
#include "tools/hvdrun/display.h"

#include "base/clock.h"
#include "tools/hvdrun/self.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const stream_names[] = {"stdout", "stderr"};

static bool same_file(int a, int b)
{
    struct stat one;
    struct stat two;
    return fstat(a, &one) == 0 && fstat(b, &two) == 0 && one.st_dev == two.st_dev &&
           one.st_ino == two.st_ino;
}

void run_display_open(struct run_display *display_p, const struct run_options *options)
{
    memset(display_p, 0, sizeof *display_p);
    display_p->options = options;
    run_sink_init(&display_p->sinks[0], STDOUT_FILENO);
    display_p->out = &display_p->sinks[0];
    if (same_file(STDOUT_FILENO, STDERR_FILENO)) {
        display_p->err = display_p->out;
        return;
    }
    run_sink_init(&display_p->sinks[1], STDERR_FILENO);
    display_p->err = &display_p->sinks[1];
}

void run_display_say(struct run_display *display, const char *format, ...)
{
    char text[4096] = "hvdrun: ";
    va_list args;
    va_start(args, format);
    vsnprintf(text + strlen(text), sizeof text - strlen(text), format, args);
    va_end(args);
    run_sink_say(display->err, text);
}

/* ---- files ---- */

static int make_parents(const char *path)
{
    char part[PATH_MAX];
    const int length = snprintf(part, sizeof part, "%s", path);
    if (length < 0 || (size_t)length >= sizeof part)
        return ENAMETOOLONG;
    for (char *slash = strchr(part + 1, '/');; slash = strchr(slash + 1, '/')) {
        if (slash != NULL)
            *slash = '\0';
        if (mkdir(part, 0777) != 0 && errno != EEXIST)
            return errno;
        if (slash == NULL)
            return 0;
        *slash = '/';
    }
}

static int digits(int number)
{
    int count = 1;
    for (; number >= 10; number /= 10)
        count++;
    return count;
}

/* DIR/rank.03/stdout and stderr. False after a complaint. */
static bool open_files(struct run_display *display, int rank)
{
    char dir[PATH_MAX - 16];
    char path[PATH_MAX];
    if (display->options->output_dir == NULL)
        return true;
    const int length = snprintf(dir, sizeof dir, "%s/rank.%0*d", display->options->output_dir,
                                digits(display->ranks - 1), rank);
    int error = length >= (int)sizeof dir ? ENAMETOOLONG : make_parents(dir);
    for (int i = 0; i < 2 && error == 0; i++) {
        struct run_stream *stream = &display->streams[2 * rank + i];
        snprintf(path, sizeof path, "%s/%s", dir, stream_names[i]);
        stream->file_fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
        if (stream->file_fd < 0)
            error = errno;
    }
    if (error != 0)
        run_display_say(display, "cannot keep the output of rank %d in %s: %s", rank, dir,
                        strerror(error));
    return error == 0;
}

bool run_display_make_streams(struct run_display *display, int ranks)
{
    const struct run_options *options = display->options;
    display->streams = calloc(2 * (size_t)ranks, sizeof *display->streams);
    if (display->streams == NULL) {
        run_display_say(display, "cannot start: %s", strerror(ENOMEM));
        return false;
    }
    display->ranks = ranks;
    for (int i = 0; i < 2 * ranks; i++) {
        struct run_stream *stream = &display->streams[i];
        run_stream_init(stream, -1, i % 2 == 0 ? display->out : display->err);
        run_prefix_init(&stream->prefix, i / 2, stream_names[i % 2], !options->no_prefix,
                        options->timestamps);
    }
    for (int rank = 0; rank < ranks; rank++)
        if (!open_files(display, rank))
            return false;
    return true;
}

/* ---- in the loop ---- */

static void do_nothing(void *context, int index)
{
    (void)context; /* sinks are flushed every time round */
    (void)index;
}

void run_display_poll(struct run_display *display, struct run_polls *polls)
{
    for (int i = 0; i < 2; i++)
        if (display->sinks[i].pending.used > 0)
            run_polls_add(polls, display->sinks[i].fd, POLLOUT, do_nothing, display, i);
}

bool run_display_is_full(const struct run_display *display)
{
    return run_sink_is_full(display->out) || run_sink_is_full(display->err);
}

bool run_display_is_empty(const struct run_display *display)
{
    for (int i = 0; i < 2 * display->ranks; i++)
        if (display->streams[i].held.used > 0)
            return false;
    return display->out->pending.used == 0 && display->err->pending.used == 0;
}

void run_display_tick(struct run_display *display, uint64_t now_ns)
{
    if (run_display_is_full(display))
        display->sinks[0].unread_ns = display->sinks[1].unread_ns = now_ns;
    for (int i = 0; i < 2 * display->ranks; i++)
        run_stream_tick(&display->streams[i], now_ns);
}

uint64_t run_display_next_ns(const struct run_display *display)
{
    uint64_t next_ns = HVI_NEVER;
    for (int i = 0; i < 2 * display->ranks; i++)
        next_ns = run_polls_earlier(next_ns, display->streams[i].held_until_ns);
    return next_ns;
}

unsigned run_display_flush(struct run_display *display)
{
    unsigned gone = 0;
    for (int i = 0; i < 2; i++) {
        struct run_sink *sink = &display->sinks[i];
        run_sink_flush(sink);
        if (sink->error == 0 || sink->told)
            continue;
        sink->told = true; /* a sentence of our own may have met it before */
        if (!sink->gone)
            run_display_say(display, "cannot write to %s: %s; its output is dropped from here on",
                            sink == display->out ? "stdout" : "stderr", strerror(sink->error));
        else
            gone |= (sink == display->out ? 1u : 0u) | (sink == display->err ? 2u : 0u);
    }
    return gone;
}

/* ---- the end ---- */

bool run_display_report(struct run_display *display)
{
    bool complete = true;
    for (int i = 0; i < 2 * display->ranks; i++) {
        const struct run_stream *stream = &display->streams[i];
        if (stream->file_error == 0)
            continue;
        complete = false;
        run_display_say(display, "the file with %s of rank %d is not complete: %s",
                        stream_names[i % 2], i / 2, strerror(stream->file_error));
    }
    return complete && (display->out->error == 0 || display->out->gone);
}

/* True: hvdrun is to end. */
static bool read_signals(int signal_fd)
{
    struct signalfd_siginfo info;
    while (read(signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        if (run_self_asks_to_end((int)info.ssi_signo))
            return true;
        if (info.ssi_signo == SIGTSTP)
            raise(SIGSTOP);
    }
    return false;
}

void run_display_drain(struct run_display *display, int signal_fd)
{
    struct run_polls polls = {.count = 0};
    bool asked = false;
    while (!asked && (display->out->pending.used > 0 || display->err->pending.used > 0)) {
        run_polls_clear(&polls);
        run_polls_add(&polls, signal_fd, POLLIN, do_nothing, display, 0);
        run_display_poll(display, &polls);
        if (!run_polls_wait(&polls, HVI_NEVER))
            break;
        run_display_flush(display);
        asked = read_signals(signal_fd);
    }
    run_polls_fini(&polls);
}

void run_display_close(struct run_display *display)
{
    for (int i = 0; i < 2 * display->ranks; i++)
        run_stream_fini(&display->streams[i]);
    run_sink_flush(display->out);
    run_sink_flush(display->err);
    run_sink_fini(display->out);
    if (display->err != display->out)
        run_sink_fini(display->err);
    free(display->streams);
    memset(display, 0, sizeof *display);
}
