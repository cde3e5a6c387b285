/* SPDX-License-Identifier: Apache-2.0
 * The process leads a group of its own, so that Ctrl-C does not reach it. ssh dies with hvdrun; an
 * agent here is left to see the end of its input, and to clean up. */
#include "tools/hvdrun/link.h"

#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRIES_MAX   6u
#define RETRY_NS    (200 * HVI_NS_MS) /* doubles with each try */
#define STRAGGLE_NS (5 * HVI_NS_SEC)  /* between the end of the agent and that of ssh */
#define LAST_READS  4096

/* ---- stderr ---- */

/* Of much only the end is kept. */
static void keep_words(void *context, int index, const char *bytes, size_t length)
{
    struct run_link *link = context;
    const size_t room = sizeof link->words - 1;
    size_t used = strlen(link->words);
    (void)index;
    if (length > room) {
        bytes += length - room;
        length = room;
    }
    if (used + length > room) {
        const size_t drop = used + length - room;
        memmove(link->words, link->words + drop, used - drop);
        used -= drop;
    }
    memcpy(link->words + used, bytes, length);
    link->words[used + length] = '\0';
}

void run_link_settle(struct run_link *link)
{
    link->settled = true;
    link->errors.take = NULL;
    if (link->words[0] != '\0')
        run_stream_feed(&link->errors, link->words, strlen(link->words));
    link->words[0] = '\0';
}

/* ---- the start ---- */

void run_link_init(struct run_link *link_p, const struct run_options *options,
                   const struct run_heritage *heritage, const struct run_host *host,
                   struct run_sink *err)
{
    memset(link_p, 0, sizeof *link_p);
    link_p->options = options;
    link_p->heritage = heritage;
    link_p->host = host;
    link_p->proc.pidfd = -1;
    link_p->channel.fd = -1;
    link_p->channel.out.error = EPIPE;
    run_stream_init(&link_p->errors, -1, err);
    link_p->errors.apart = true;
    link_p->errors.take = keep_words;
    link_p->errors.take_context = link_p;
}

/* Its stdin, stdout and stderr. */
static int spawn(struct run_link *link)
{
    int fds[3];
    struct run_spawn plan = {
        .argv = link->ssh.argv,
        .envp = environ,
        .death_signal = link->host->here ? 0 : SIGKILL,
        .heritage = link->heritage,
    };
    const int error = run_proc_start_piped(&plan, fds, &link->proc);
    if (error != 0)
        return error;
    link->channel.fd = fds[1];
    run_sink_init_own(&link->channel.out, fds[0]);
    link->errors.fd = fds[2];
    return 0;
}

void run_link_start(struct run_link *link)
{
    int error = 0;
    link->state = RUN_LINK_GONE;
    link->tries++;
    if (run_ssh_make(link->options, link->host, link->role, &link->ssh, link->text,
                     sizeof link->text) != 0)
        return;
    link->channel = (struct run_channel){.fd = -1, .out = {.fd = -1}};
    link->words[0] = '\0';
    link->passed = 0;
    if (link->way != NULL)
        link->way->open(link->way->context, link->number, link->ssh.argv);
    else
        error = spawn(link);
    if (error == 0) {
        link->state = RUN_LINK_OPEN;
        return;
    }
    snprintf(link->text, sizeof link->text, "cannot start %s: %s", link->ssh.argv[0],
             strerror(error));
    link->channel.out.error = EPIPE;
    run_ssh_fini(&link->ssh);
}

/* ---- what is said ---- */

bool run_link_is_heard(const struct run_link *link)
{
    return link->state == RUN_LINK_OPEN && !link->closed &&
           (link->way != NULL || link->channel.fd >= 0);
}

static int pass(struct run_link *link, const struct hvi_launch_msg *msg)
{
    unsigned char *frame;
    size_t bytes;
    if (link->channel.out.error != 0)
        return HVI_OK;
    const int status = hvi_launch_encode(msg, &frame, &bytes);
    if (status != HVI_OK)
        return status;
    link->passed += bytes;
    link->way->send(link->way->context, link->number, frame, bytes);
    free(frame);
    return HVI_OK;
}

void run_link_send(struct run_link *link, const struct hvi_launch_msg *msg)
{
    const int status = link->way != NULL ? pass(link, msg) : run_channel_send(&link->channel, msg);
    if (status == HVI_OK || link->text[0] != '\0')
        return;
    snprintf(link->text, sizeof link->text,
             "what is to run there cannot be told: it is too long, or a name in it is not UTF-8");
    run_link_close(link, 0);
}

size_t run_link_queued(const struct run_link *link)
{
    return link->way != NULL ? link->passed : link->channel.out.pending.used;
}

/* ---- the end ---- */

void run_link_close(struct run_link *link, uint64_t patience_ns)
{
    if (link->state == RUN_LINK_WAITING)
        link->state = RUN_LINK_GONE;
    if (link->state == RUN_LINK_GONE)
        return;
    link->closed = true;
    if (link->way != NULL)
        link->way->hang_up(link->way->context, link->number, false);
    run_channel_fini(&link->channel);
    if (link->kill_at_ns == 0)
        link->kill_at_ns = hvi_deadline_after((int64_t)patience_ns);
}

/* What has come so far. */
static void read_rest(struct run_link *link)
{
    char text[1024] = "";
    for (int i = 0; i < LAST_READS && link->channel.fd >= 0; i++) {
        struct pollfd item = {.fd = link->channel.fd, .events = POLLIN};
        if (poll(&item, 1, 0) <= 0 || run_channel_read(&link->channel, link->take, link->context,
                                                       text, sizeof text) != RUN_CHANNEL_OPEN)
            break;
    }
    for (int i = 0; i < LAST_READS && link->errors.fd >= 0; i++) {
        struct pollfd item = {.fd = link->errors.fd, .events = POLLIN};
        if (poll(&item, 1, 0) <= 0)
            break;
        run_stream_read(&link->errors);
    }
}

/* A relay may lack the key or the way that we have. */
static void go_oneself(struct run_link *link)
{
    link->way = NULL;
    link->role = RUN_SSH_AGENT;
    link->tries = 0;
    link->retry_ns = 0;
    link->text[0] = '\0';
}

/* sshd refuses connections at random when there are many that have not logged in yet. */
static bool tries_again(struct run_link *link)
{
    if (link->closed || link->settled || link->channel.marked)
        return false;
    if (link->way != NULL) {
        go_oneself(link);
        return true;
    }
    if (link->tries >= TRIES_MAX || !run_ssh_was_dropped(link->fate, link->words))
        return false;
    link->retry_ns = hvi_deadline_after((int64_t)(RETRY_NS << link->tries));
    return true;
}

/* Its process is over: what it has sent is taken to the end, and what is said of it is decided. */
static void finish(struct run_link *link, struct hvi_fate fate)
{
    read_rest(link);
    link->fate = fate;
    run_channel_fini(&link->channel);
    run_stream_show(&link->errors);
    run_stream_end(&link->errors);
    if (link->proc.pid > 0) {
        run_proc_signal(&link->proc, SIGKILL); /* what it may have left in its group */
        run_proc_reap(&link->proc);
    }
    link->proc = (struct run_proc){.pidfd = -1};
    link->kill_at_ns = 0;
    link->state = tries_again(link) ? RUN_LINK_WAITING : RUN_LINK_GONE;
    if (link->state == RUN_LINK_GONE && !link->closed && !link->settled && link->text[0] == '\0')
        run_ssh_explain(&link->ssh, link->host, link->fate, link->words, link->text,
                        sizeof link->text);
    run_ssh_fini(&link->ssh);
}

static void look_at_process(void *context, int index)
{
    struct run_link *link = context;
    (void)index;
    if (link->state == RUN_LINK_OPEN && run_proc_look(&link->proc))
        finish(link, link->proc.fate);
}

void run_link_gone(struct run_link *link, struct hvi_fate fate)
{
    if (link->state == RUN_LINK_OPEN)
        finish(link, fate);
}

void run_link_cut(struct run_link *link, const char *why)
{
    if (link->state == RUN_LINK_WAITING)
        go_oneself(link);
    if (link->state != RUN_LINK_OPEN)
        return;
    if (!link->closed && link->text[0] == '\0')
        snprintf(link->text, sizeof link->text, "%s", why);
    finish(link, (struct hvi_fate){.kind = HVI_FATE_UNKNOWN});
}

/* ---- in the loop ---- */

static void make_no_sense(struct run_link *link, const char *text)
{
    if (link->text[0] == '\0')
        snprintf(link->text, sizeof link->text, "what comes from there makes no sense: %s", text);
    run_link_close(link, STRAGGLE_NS);
}

void run_link_feed(struct run_link *link, uint32_t stream, const char *bytes, size_t length)
{
    char text[1024];
    if (link->state != RUN_LINK_OPEN)
        return;
    if (stream == 1)
        link->heard_ns = hvi_clock_ns();
    if (stream != 1 && link->errors.take != NULL)
        keep_words(link, 0, bytes, length);
    else if (stream != 1)
        run_stream_feed(&link->errors, bytes, length);
    else if (!link->closed &&
             run_channel_feed(&link->channel, bytes, length, link->take, link->context, text,
                              sizeof text) == RUN_CHANNEL_BROKEN)
        make_no_sense(link, text);
}

void run_link_taken(struct run_link *link, size_t bytes)
{
    link->passed -= bytes < link->passed ? bytes : link->passed;
}

static void read_channel(void *context, int index)
{
    struct run_link *link = context;
    char text[1024];
    (void)index;
    if (link->channel.fd < 0)
        return;
    link->heard_ns = hvi_clock_ns();
    const enum run_channel_state state =
        run_channel_read(&link->channel, link->take, link->context, text, sizeof text);
    if (state == RUN_CHANNEL_OPEN)
        return;
    if (state == RUN_CHANNEL_BROKEN) {
        make_no_sense(link, text);
    } else { /* the agent has gone; its process says how */
        close(link->channel.fd);
        link->channel.fd = -1;
    }
    if (link->kill_at_ns == 0)
        link->kill_at_ns = hvi_deadline_after((int64_t)STRAGGLE_NS);
}

void run_link_poll(struct run_link *link, struct run_polls *polls, bool reading)
{
    if (link->state != RUN_LINK_OPEN)
        return;
    if (reading)
        run_polls_add(polls, link->channel.fd, POLLIN, read_channel, link, 0);
    run_sink_poll(&link->channel.out, polls);
    run_stream_poll(&link->errors, polls);
    run_polls_add(polls, link->proc.pidfd, POLLIN, look_at_process, link, 0);
}

void run_link_tick(struct run_link *link, uint64_t now_ns)
{
    if (link->state != RUN_LINK_OPEN)
        return;
    run_stream_tick(&link->errors, now_ns);
    if (link->kill_at_ns != 0 && now_ns >= link->kill_at_ns) {
        link->kill_at_ns = HVI_NEVER;
        if (link->way != NULL)
            link->way->hang_up(link->way->context, link->number, true);
        else
            run_proc_signal(&link->proc, SIGKILL);
    }
}

uint64_t run_link_next_ns(const struct run_link *link)
{
    const uint64_t next_ns = run_polls_earlier(HVI_NEVER, link->errors.held_until_ns);
    if (link->state == RUN_LINK_WAITING)
        return run_polls_earlier(next_ns, link->retry_ns);
    return link->state == RUN_LINK_OPEN ? run_polls_earlier(next_ns, link->kill_at_ns) : next_ns;
}

void run_link_fini(struct run_link *link)
{
    if (link->state == RUN_LINK_OPEN && link->proc.pid > 0) {
        run_proc_signal(&link->proc, SIGKILL);
        run_proc_reap(&link->proc);
    }
    if (link->state == RUN_LINK_OPEN)
        run_ssh_fini(&link->ssh);
    run_channel_fini(&link->channel);
    run_stream_fini(&link->errors);
    link->state = RUN_LINK_GONE;
}
