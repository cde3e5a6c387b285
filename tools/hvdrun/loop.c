/* SPDX-License-Identifier: Apache-2.0
 * One thread, one poll(2): ranks' ends (pidfds), their output, our own stdout and stderr while they
 * lag, the terminal, signals, the private hvdd. The poll set is built anew each time: what must not
 * be read now is simply not in it. */
#include "base/clock.h"
#include "base/status.h"
#include "tools/hvdrun/run.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

enum item_kind { ITEM_SIGNAL, ITEM_END, ITEM_STREAM, ITEM_SINK, ITEM_STDIN, ITEM_DAEMON, ITEM_LOG };

struct item {
    enum item_kind kind;
    int index; /* rank, or 2 * rank + stream, or sink */
};

struct poll_set {
    struct pollfd *fds;
    struct item *items;
    int *ended;
    size_t count;
};

void run_say(struct run *run, const char *format, ...)
{
    char text[2048] = "hvdrun: ";
    va_list args;
    va_start(args, format);
    vsnprintf(text + strlen(text), sizeof text - strlen(text), format, args);
    va_end(args);
    run_sink_say(run->err, text);
}

static void add(struct poll_set *set, int fd, short events, enum item_kind kind, int index)
{
    if (fd < 0)
        return;
    set->fds[set->count] = (struct pollfd){.fd = fd, .events = events};
    set->items[set->count] = (struct item){.kind = kind, .index = index};
    set->count++;
}

static void add_ranks(struct run *run, struct poll_set *set)
{
    for (int i = 0; i < run->options.ranks; i++) {
        struct run_rank *rank = &run->ranks[i];
        if (!rank->ended && rank->proc.pid > 0)
            add(set, rank->proc.pidfd, POLLIN, ITEM_END, i);
        for (int s = 0; s < 2; s++)
            if (!run_sink_is_full(rank->streams[s].sink))
                add(set, rank->streams[s].fd, POLLIN, ITEM_STREAM, 2 * i + s);
    }
}

static void build(struct run *run, struct poll_set *set, uint64_t now_ns)
{
    set->count = 0;
    add(set, run->signal_fd, POLLIN, ITEM_SIGNAL, 0);
    add_ranks(run, set);
    for (int i = 0; i < 2; i++)
        if (run->sinks[i].pending.used > 0)
            add(set, run->sinks[i].fd, POLLOUT, ITEM_SINK, i);
    const struct pollfd input = run_stdin_poll(&run->input, now_ns);
    add(set, input.fd, input.events, ITEM_STDIN, 0);
    if (!run->daemon_gone)
        add(set, run->daemon.proc.pidfd, POLLIN, ITEM_DAEMON, 0);
    if (!run_sink_is_full(run->err))
        add(set, run->daemon_log.fd, POLLIN, ITEM_LOG, 0);
}

static void earlier(uint64_t *next_ns, uint64_t candidate_ns)
{
    if (candidate_ns != 0 && candidate_ns < *next_ns)
        *next_ns = candidate_ns;
}

static uint64_t next_time(const struct run *run)
{
    uint64_t next_ns = run_end_next_ns(run);
    for (int i = 0; i < 2 * run->options.ranks; i++)
        earlier(&next_ns, run->ranks[i / 2].streams[i % 2].held_until_ns);
    earlier(&next_ns, run->daemon_log.held_until_ns);
    if (run->input.pipe_fd >= 0)
        earlier(&next_ns, run->input.retry_ns);
    return next_ns;
}

static void handle_signals(struct run *run)
{
    struct signalfd_siginfo info;
    while (read(run->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        run_end_signal(run, (int)info.ssi_signo);
}

static void handle_daemon_end(struct run *run)
{
    char fate[128];
    if (!run_proc_look(&run->daemon.proc))
        return;
    run->daemon_gone = true;
    hvi_fate_describe(run->daemon.proc.fate, fate, sizeof fate);
    run_say(run, "the private hvdd (pid %d) %s; running jobs go on, but nobody can attach any more",
            (int)run->daemon.proc.pid, fate);
}

/* All but ends of ranks, which run_end_collect wants to see together. */
static void handle(struct run *run, const struct item *item)
{
    switch (item->kind) {
    case ITEM_SIGNAL:
        handle_signals(run);
        break;
    case ITEM_STREAM:
        if (run->ranks[item->index / 2].streams[item->index % 2].fd >= 0)
            run_stream_read(&run->ranks[item->index / 2].streams[item->index % 2]);
        break;
    case ITEM_STDIN:
        run_stdin_handle(&run->input);
        break;
    case ITEM_DAEMON:
        handle_daemon_end(run);
        break;
    case ITEM_LOG:
        run_stream_read(&run->daemon_log);
        break;
    case ITEM_SINK: /* flushed every time round */
    case ITEM_END:
        break;
    }
}

static void handle_ready(struct run *run, struct poll_set *set)
{
    size_t ended = 0;
    for (size_t i = 0; i < set->count; i++) {
        if (set->fds[i].revents == 0)
            continue;
        if (set->items[i].kind == ITEM_END)
            set->ended[ended++] = set->items[i].index;
        else
            handle(run, &set->items[i]);
    }
    if (ended > 0)
        run_end_collect(run, set->ended, ended);
}

/* Nobody reads our stdout or stderr any more: neither do we, and the writers get SIGPIPE. */
static void close_streams_of(struct run *run, const struct run_sink *sink)
{
    for (int i = 0; i < 2 * run->options.ranks; i++) {
        struct run_stream *stream = &run->ranks[i / 2].streams[i % 2];
        if (stream->sink == sink)
            run_stream_end(stream);
    }
}

static void flush_sinks(struct run *run)
{
    for (int i = 0; i < 2; i++) {
        struct run_sink *sink = &run->sinks[i];
        const int before = sink->error;
        run_sink_flush(sink);
        if (sink->error == before)
            continue;
        if (sink->gone)
            close_streams_of(run, sink);
        else
            run_say(run, "cannot write to %s: %s; its output is dropped from here on",
                    sink == run->out ? "stdout" : "stderr", strerror(sink->error));
    }
}

static void tick(struct run *run)
{
    const uint64_t now_ns = hvi_clock_ns();
    for (int i = 0; i < 2 * run->options.ranks; i++)
        run_stream_tick(&run->ranks[i / 2].streams[i % 2], now_ns);
    run_stream_tick(&run->daemon_log, now_ns);
    flush_sinks(run);
    run_end_tick(run, now_ns);
}

static bool make_set(struct run *run, struct poll_set *set_p)
{
    const size_t room = 3 * (size_t)run->options.ranks + 8;
    *set_p = (struct poll_set){
        .fds = calloc(room, sizeof *set_p->fds),
        .items = calloc(room, sizeof *set_p->items),
        .ended = calloc(room, sizeof *set_p->ended),
    };
    return set_p->fds != NULL && set_p->items != NULL && set_p->ended != NULL;
}

void run_loop(struct run *run)
{
    struct poll_set set;
    if (!make_set(run, &set)) {
        run_say(run, "out of memory");
        run->exit_code = 1;
        run->stage = RUN_DONE;
    }
    while (run->stage != RUN_DONE) {
        build(run, &set, hvi_clock_ns());
        const int ready = poll(set.fds, set.count, hvi_deadline_poll_ms(next_time(run)));
        if (ready > 0)
            handle_ready(run, &set);
        tick(run);
    }
    free(set.fds);
    free(set.items);
    free(set.ended);
}
