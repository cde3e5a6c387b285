/* SPDX-License-Identifier: Apache-2.0
 * One thread, one poll(2): the node's ranks and hvdd, our own stdout and stderr while they lag, the
 * terminal, signals. */
#include "tools/hvdrun/plain.h"

#include "base/clock.h"
#include "tools/hvdrun/display.h"
#include "tools/hvdrun/end.h"
#include "tools/hvdrun/self.h"
#include "tools/hvdrun/start.h"
#include "tools/hvdrun/stdin.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

struct plain {
    const struct run_options *options;
    struct run_heritage heritage;
    int signal_fd, ends_fd;
    struct run_display display;
    struct run_stream log;
    struct run_stdin input;
    struct run_place *places;
    char job[64], key[40];
    struct run_node_plan plan;
    struct run_node node;
    struct run_end end;
    struct run_polls polls;
    int exit_code;
};

/* ---- what node and end ask for ---- */

static void say(void *context, const char *text)
{
    struct plain *plain = context;
    run_display_say(&plain->display, "%s", text);
}

static void take_exits(void *context, const struct run_exit *exits, size_t count)
{
    struct plain *plain = context;
    run_end_exited(&plain->end, exits, count);
}

static void send_signal(void *context, int signal_number)
{
    struct plain *plain = context;
    run_node_signal(&plain->node, signal_number);
}

static void mute(void *context)
{
    struct plain *plain = context;
    plain->log.muted = !plain->options->verbose;
}

static void all_ended(void *context, bool linger)
{
    struct plain *plain = context;
    run_node_end(&plain->node, linger);
}

/* ---- the start ---- */

static bool make_places(struct plain *plain)
{
    const int ranks = plain->options->ranks;
    plain->places = calloc((size_t)ranks, sizeof *plain->places);
    for (int i = 0; plain->places != NULL && i < ranks; i++)
        plain->places[i] = (struct run_place){.rank = i, .cross_size = 1};
    return plain->places != NULL;
}

static bool prepare(struct plain *plain)
{
    const struct run_end_hands hands = {
        .context = plain, .say = say, .signal = send_signal, .mute = mute, .over = all_ended};
    run_self_raise_fds(&plain->heritage, plain->options->ranks);
    plain->signal_fd = run_self_open_signals(&plain->heritage);
    plain->ends_fd = run_self_open_ends();
    run_self_random_hex(plain->key, 32);
    memcpy(plain->job, "hvdrun-", 7);
    run_self_random_hex(plain->job + 7, 16);
    int error = plain->signal_fd < 0 || plain->ends_fd < 0 ? errno : run_stdin_init(&plain->input);
    if (error == 0 && !(run_end_init(&plain->end, plain->options, plain->options->ranks, &hands) &&
                        make_places(plain)))
        error = ENOMEM;
    if (error != 0)
        run_display_say(&plain->display, "cannot start: %s", strerror(error));
    return error == 0 && run_display_make_streams(&plain->display, plain->options->ranks);
}

static bool open_node(struct plain *plain)
{
    char text[2048];
    plain->plan = (struct run_node_plan){
        .options = plain->options,
        .heritage = &plain->heritage,
        .places = plain->places,
        .size = plain->options->ranks,
        .host = plain->options->places.count > 0 ? plain->options->places.list[0].name : NULL,
        .job = plain->job,
        .key = plain->key,
        .master_address = "127.0.0.1",
        .master_port = run_start_free_port(),
        .interrupt_fd = plain->ends_fd,
        .streams = plain->display.streams,
        .call_fd = -1,
        .log = &plain->log,
        .calls = {.context = plain, .say = say, .exited = take_exits},
    };
    if (run_node_open(&plain->node, &plain->plan, text, sizeof text) == 0)
        return true;
    run_display_say(&plain->display, "%s", text);
    const int signal_number = run_self_take_end(plain->ends_fd);
    if (signal_number != 0)
        plain->exit_code = 128 + signal_number;
    return false;
}

static void start(struct plain *plain)
{
    char text[2048];
    const int code = run_node_start(&plain->node, plain->input.child_fd, text, sizeof text);
    if (plain->input.child_fd != STDIN_FILENO)
        close(plain->input.child_fd);
    for (int i = 0; i < plain->options->ranks; i++)
        if (plain->node.ranks[i].proc.pid > 0)
            run_end_started(&plain->end, i, plain->node.ranks[i].proc.pid, NULL);
    if (code == 0)
        return;
    run_display_say(&plain->display, "%s", text);
    plain->exit_code = code;
    run_end_give_up(&plain->end);
    run_end_not_started(&plain->end, plain->end.waiting);
}

/* ---- the loop ---- */

static void read_signals(void *context, int index)
{
    struct plain *plain = context;
    struct signalfd_siginfo info;
    (void)index;
    while (read(plain->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        run_end_signal(&plain->end, (int)info.ssi_signo);
}

static void relay_input(void *context, int index)
{
    struct plain *plain = context;
    (void)index;
    run_stdin_handle(&plain->input);
}

static uint64_t next_time(const struct plain *plain)
{
    uint64_t next_ns =
        run_polls_earlier(run_end_next_ns(&plain->end), run_node_next_ns(&plain->node));
    next_ns = run_polls_earlier(next_ns, run_display_next_ns(&plain->display));
    return run_polls_earlier(next_ns, plain->input.retry_ns);
}

static void poll_once(struct plain *plain)
{
    const struct pollfd input = run_stdin_poll(&plain->input, hvi_clock_ns());
    run_polls_clear(&plain->polls);
    run_polls_add(&plain->polls, plain->signal_fd, POLLIN, read_signals, plain, 0);
    run_node_poll(&plain->node, &plain->polls);
    run_display_poll(&plain->display, &plain->polls);
    run_polls_add(&plain->polls, input.fd, input.events, relay_input, plain, 0);
    if (run_polls_wait(&plain->polls, next_time(plain)))
        return;
    run_display_say(&plain->display, "out of memory");
    plain->exit_code = 1;
    plain->node.stage = RUN_DONE;
}

static void flush(struct plain *plain)
{
    const unsigned gone = run_display_flush(&plain->display);
    for (int i = 0; i < 2 * plain->options->ranks; i++)
        if ((gone & (1u << i % 2)) != 0)
            run_stream_end(&plain->display.streams[i]);
}

static void loop(struct plain *plain)
{
    while (plain->node.stage != RUN_DONE) {
        poll_once(plain);
        const uint64_t now_ns = hvi_clock_ns();
        run_display_tick(&plain->display, now_ns);
        flush(plain);
        plain->node.impatient = plain->end.impatient;
        run_end_tick(&plain->end, now_ns);
        run_node_tick(&plain->node, now_ns);
    }
}

/* ---- the end ---- */

static void report(struct plain *plain)
{
    char *text = run_end_report(&plain->end);
    if (text != NULL)
        run_sink_say(plain->display.err, text);
    free(text);
    if (plain->exit_code == 0)
        plain->exit_code = plain->end.exit_code;
    if (!run_display_report(&plain->display) && plain->exit_code == 0)
        plain->exit_code = 1;
}

static void finish(struct plain *plain)
{
    if (plain->plan.options != NULL)
        run_node_close(&plain->node);
    run_stream_fini(&plain->log);
    run_stdin_fini(&plain->input);
    if (!plain->end.impatient)
        run_display_drain(&plain->display, plain->signal_fd);
    run_display_close(&plain->display);
    run_polls_fini(&plain->polls);
    run_end_fini(&plain->end);
    free(plain->places);
}

int run_plain(const struct run_options *options)
{
    static struct plain plain;
    plain = (struct plain){.options = options, .exit_code = 1, .input = {.pipe_fd = -1}};
    run_display_open(&plain.display, options);
    run_stream_init(&plain.log, -1, plain.display.err);
    plain.log.apart = true;
    if (prepare(&plain) && open_node(&plain)) {
        plain.exit_code = 0;
        start(&plain);
        if (plain.node.alive > 0) {
            loop(&plain);
            report(&plain);
        }
    }
    finish(&plain);
    return plain.exit_code;
}
