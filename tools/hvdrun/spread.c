/* SPDX-License-Identifier: Apache-2.0
 * The start has three steps, each for all hosts before the next: every agent greets, so that nothing
 * is told to a host while another one is out of reach or has another version; every agent gets what
 * is to run and has its hvdd ready; the ranks start. A host that fails in a step does not keep the
 * others from being heard: what is wrong on each of them is said at once.
 *
 *   GREET --all have greeted--> MEET --the first is ready--> PREPARE --all are ready--> RUN --all ranks ended--> END --agents gone--> DONE
 *     |                          |  \--a host failed--> CHECK --all have answered--\                                               ^
 *     \--a host failed, or a signal--\---------------------------------------------> ABORT --agents gone----------------------------/
 *
 * The others' hvdds meet at the first host's, which therefore starts alone. If it fails, the others start theirs in CHECK without
 * a meeting: only to hear what is wrong there, too.
 *
 * Which failure ends the job is decided in end.c as for one machine. Output comes as it was written
 * and is put into lines here; while ours is not read, theirs is not either. */
#include "tools/hvdrun/spread.h"

#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "tools/common/text.h"
#include "tools/hvdrun/call.h"
#include "tools/hvdrun/display.h"
#include "tools/hvdrun/end.h"
#include "tools/hvdrun/route.h"
#include "tools/hvdrun/self.h"
#include "tools/hvdrun/stdin.h"
#include "tools/hvdrun/task.h"
#include "tools/hvdrun/tree.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <unistd.h>

#define OBEY_NS    (3 * HVI_NS_SEC)  /* for agents to say that their ranks have been killed */
#define LEAVE_NS   (10 * HVI_NS_SEC) /* for agents to go, beside the grace time of their ranks */
#define BEATS      6u                /* in the time after which an agent is alone */
#define INPUT_PART (64u * 1024u)

enum stage {
    STAGE_GREET,
    STAGE_MEET,
    STAGE_CHECK,
    STAGE_PREPARE,
    STAGE_RUN,
    STAGE_END,
    STAGE_ABORT,
    STAGE_DONE
};

/* A host of the job. */
struct place {
    struct run_link link;
    struct run_stream log; /* of its hvdd */
    char address[64];      /* how it was reached; "": not known */
    char chosen[64];       /* of the first host, by HVD_INTERFACE there; "": none */
    uint32_t torch_port, mesh_port;
    uint64_t call_sent; /* bytes */
    size_t untaken;     /* bytes that waited to be sent when it was last looked at */
    bool greeted, told, ready, running, lost;
};

struct spread {
    const struct run_options *options;
    const struct run_hosts *hosts;
    struct run_heritage heritage;
    int signal_fd;
    struct run_display display;
    struct run_end end;
    struct run_polls polls;
    struct place *places;
    struct run_machine *machines; /* of the hosts */
    struct run_tree tree;
    char job[64], key[40];
    enum stage stage;
    uint64_t deadline_ns; /* of the start */
    uint64_t stopped_ns;  /* when a signal ended it; 0: none has */
    int exit_code;

    uint64_t beat_at_ns; /* the next one to all, who answer it */
    uint64_t looked_ns;  /* when we have last run */
    bool lost;           /* a host's ranks cannot attach any more, and the other hosts know it */
    size_t looking;      /* hosts that have not said whether a rank of theirs is being killed */

    struct run_task task;
    struct run_call call;
    struct run_stdin input;
    int input_fd;        /* what rank 0 reads */
    size_t input_window; /* bytes that rank 0 may still be sent */
    bool input_ended;
};

/* ---- sentences ---- */

__attribute__((format(printf, 3, 4))) static void blame(struct spread *spread, struct place *place,
                                                        const char *format, ...)
{
    va_list args;
    (void)spread;
    if (place->link.text[0] != '\0')
        return;
    va_start(args, format);
    vsnprintf(place->link.text, sizeof place->link.text, format, args);
    va_end(args);
}

static void say(void *context, const char *text)
{
    struct spread *spread = context;
    run_display_say(&spread->display, "%s", text);
}

/* ---- what the end of the job asks for ---- */

static void send_to_all(struct spread *spread, const struct hvi_launch_msg *msg)
{
    for (size_t i = 0; i < spread->hosts->count; i++)
        if (spread->places[i].running)
            run_link_send(&spread->places[i].link, msg);
}

static void send_signal(void *context, int signal_number)
{
    struct spread *spread = context;
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_SIGNAL,
                                       .number = {.number = (uint32_t)signal_number}};
    send_to_all(spread, &msg);
    for (size_t i = 0; i < spread->hosts->count && signal_number == SIGKILL; i++) {
        struct run_link *link = &spread->places[i].link;
        if (link->state == RUN_LINK_OPEN && link->kill_at_ns == 0)
            link->kill_at_ns = hvi_deadline_after((int64_t)OBEY_NS); /* it may stand still */
    }
}

static void mute(void *context)
{
    struct spread *spread = context;
    for (size_t i = 0; i < spread->hosts->count; i++)
        spread->places[i].log.muted = !spread->options->verbose;
}

static void look(void *context)
{
    struct spread *spread = context;
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_LOOK};
    for (size_t i = 0; i < spread->hosts->count; i++)
        spread->looking += spread->places[i].running;
    send_to_all(spread, &msg);
}

/* When an agent that has been told that the job is over must have gone. */
static uint64_t leave_until(const struct spread *spread)
{
    return hvi_deadline_after((int64_t)(spread->options->grace_ns + LEAVE_NS));
}

static void all_ended(void *context, bool linger)
{
    struct spread *spread = context;
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_END, .end = {.linger = linger}};
    send_to_all(spread, &msg);
    spread->stage = STAGE_END;
    for (size_t i = 0; i < spread->hosts->count; i++) {
        struct run_link *link = &spread->places[i].link;
        if (link->state == RUN_LINK_OPEN)
            link->kill_at_ns = leave_until(spread);
    }
}

/* ---- the start: greet ---- */

static void abort_start(struct spread *spread)
{
    if (spread->stage >= STAGE_RUN)
        return;
    spread->stage = STAGE_ABORT;
    if (spread->exit_code == 0)
        spread->exit_code = 1;
    for (size_t i = 0; i < spread->hosts->count; i++)
        run_link_close(&spread->places[i].link, spread->places[i].greeted ? LEAVE_NS : 0);
}

/* One sentence for each host that has failed, in their order. */
static void tell_failures(struct spread *spread)
{
    for (size_t i = 0; i < spread->hosts->count; i++)
        if (spread->places[i].link.text[0] != '\0')
            run_display_say(&spread->display, "%s: %s", spread->hosts->list[i].name,
                            spread->places[i].link.text);
}

static void take_hello(struct spread *spread, struct place *place,
                       const struct hvi_launch_hello *hello)
{
    struct utsname names;
    char version[64];
    char machine[64];
    place->greeted = true;
    snprintf(place->address, sizeof place->address, "%s", hello->address);
    run_divide_note(&spread->machines[place - spread->places], hello);
    text_safe(hello->version, version, sizeof version);
    text_safe(hello->machine, machine, sizeof machine);
    if (hello->launch_version != HVI_LAUNCH_VERSION ||
        strcmp(hello->version, HVD_VERSION_TEXT) != 0)
        blame(spread, place,
              "hvdrun there is version %s (launch protocol %u), the one here is version %s (launch "
              "protocol %u); install the same one",
              version, hello->launch_version, HVD_VERSION_TEXT, HVI_LAUNCH_VERSION);
    else if (uname(&names) == 0 && strcmp(hello->machine, names.machine) != 0)
        blame(
            spread, place,
            "the host is of another architecture (%s) than this one (%s); a job's hosts are alike",
            machine, names.machine);
}

/* ---- the start: prepare ---- */

/* One of the other hosts, by its numeric address, if possible one that is no loopback; NULL: none is known. */
static const char *find_peer(const struct spread *spread)
{
    const char *peer = NULL;
    for (size_t i = 0; i < spread->hosts->count; i++) {
        const char *address = spread->places[i].address;
        if (spread->hosts->list[i].here || address[0] == '\0')
            continue;
        if (!run_route_is_loopback(address))
            return address;
        peer = peer != NULL ? peer : address;
    }
    return peer;
}

static bool all_here(const struct spread *spread)
{
    for (size_t i = 0; i < spread->hosts->count; i++)
        if (!spread->hosts->list[i].here)
            return false;
    return true;
}

static void put(char *text_p, size_t size, const char *text)
{
    snprintf(text_p, size, "%s", text);
}

/* The first host is this machine, also one that ssh reaches by loopback where it reaches another one
 * otherwise ("me@server1" on server1). */
static bool first_is_here(const struct spread *spread, const char *peer)
{
    return spread->hosts->list[0].here ||
           (peer != NULL && run_route_is_loopback(spread->places[0].address) &&
            !run_route_is_loopback(peer));
}

/* The host of rank 0, which is another machine. */
static const char *first_of_others(const struct spread *spread)
{
    const struct place *place = &spread->places[0];
    const char *name = spread->hosts->list[0].name;
    const char *at = strchr(name, '@');
    if (place->chosen[0] != '\0')
        return place->chosen;
    if (place->address[0] != '\0')
        return place->address;
    return at != NULL ? at + 1 : name;
}

/* By which rank 0's host is reached by the others. False with a sentence. */
static bool find_master(const struct spread *spread, char *address_p, size_t size, char *text_p,
                        size_t text_size)
{
    const char *peer = find_peer(spread);
    if (all_here(spread))
        put(address_p, size, "127.0.0.1");
    else if (!first_is_here(spread, peer))
        put(address_p, size, first_of_others(spread));
    else if (peer != NULL)
        return run_route_own(peer, run_route_wish(), address_p, size, text_p, text_size) == 0;
    else
        return gethostname(address_p, size) == 0;
    return true;
}

/* Private hvdds of several hosts have to meet. */
static bool meets(const struct spread *spread)
{
    return spread->hosts->count > 1 && spread->options->address == NULL;
}

/* Which address is wished for, the agent of another machine finds out. */
static bool make_meeting(struct spread *spread)
{
    char address[256], text[512] = "this host has no name";
    const char *why = text;
    const bool found = find_master(spread, address, sizeof address, text, sizeof text);
    if (run_route_wish() != NULL && !first_is_here(spread, find_peer(spread)))
        put(address, sizeof address, "*");
    if (found && run_task_meet(&spread->task, address, &why) == 0)
        return true;
    run_display_say(&spread->display, "the hosts' hvdds cannot meet: %s", why);
    return false;
}

/* A hvdd that does not get ready is given up early enough for its host to say why. */
static void tell_hosts(struct spread *spread, size_t first, size_t end)
{
    const uint64_t now_ns = hvi_clock_ns();
    const uint64_t left_ns = spread->deadline_ns > now_ns ? spread->deadline_ns - now_ns : 0;
    for (size_t i = first; i < end; i++) {
        spread->places[i].told = true;
        run_task_send(&spread->task, i, left_ns / 4 * 3, &spread->machines[i],
                      &spread->places[i].link);
    }
}

/* The first host's hvdd is where the others' meet. */
static void begin_prepare(struct spread *spread)
{
    const bool meet = meets(spread);
    if (!spread->options->bind_to_nothing)
        run_divide(spread->machines, spread->hosts);
    if (run_task_init(&spread->task, spread->options, spread->job, spread->key,
                      spread->call.bytes) != HVI_OK) {
        run_display_say(&spread->display, "out of memory");
        abort_start(spread);
    } else if (meet && !make_meeting(spread)) {
        abort_start(spread);
    } else {
        spread->stage = meet ? STAGE_MEET : STAGE_PREPARE;
        tell_hosts(spread, 0, meet ? 1 : spread->hosts->count);
    }
}

static void prepare_others(struct spread *spread)
{
    char address[256], text[512];
    if (!find_master(spread, address, sizeof address, text, sizeof text))
        snprintf(address, sizeof address, "localhost"); /* it has been found before */
    run_task_join(&spread->task, address, spread->places[0].mesh_port);
    spread->stage = STAGE_PREPARE;
    tell_hosts(spread, 1, spread->hosts->count);
}

/* The job does not start. Without run_task_join the hvdds of the others do not wait for the first. */
static void check_others(struct spread *spread)
{
    spread->stage = STAGE_CHECK;
    tell_hosts(spread, 1, spread->hosts->count);
}

/* ---- the start: run ---- */

static void run_all(struct spread *spread)
{
    char text[512] = "this host has no name";
    struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_GO,
                                 .go = {.master_port = spread->places[0].torch_port}};
    if (!find_master(spread, msg.go.master_address, sizeof msg.go.master_address, text,
                     sizeof text)) {
        run_display_say(&spread->display, "%s", text);
        abort_start(spread);
        return;
    }
    spread->stage = STAGE_RUN;
    for (size_t i = 0; i < spread->hosts->count; i++) {
        spread->places[i].running = true;
        run_link_settle(&spread->places[i].link);
    }
    run_tree_settle(&spread->tree);
    send_to_all(spread, &msg);
}

/* The first host's hvdd is gone: those of the others would wait for it in vain. */
static bool has_no_meeting(const struct spread *spread)
{
    return spread->stage == STAGE_PREPARE && meets(spread) &&
           spread->places[0].link.text[0] != '\0';
}

/* What has become of the hosts decides the next step. */
static void tick_start(struct spread *spread, uint64_t now_ns)
{
    const bool late = now_ns >= spread->deadline_ns;
    const size_t asked = spread->stage == STAGE_MEET ? 1 : spread->hosts->count;
    size_t failed = 0;
    size_t done = 0;
    for (size_t i = 0; i < spread->hosts->count; i++) {
        struct place *place = &spread->places[i];
        if (i >= asked && place->link.text[0] == '\0')
            continue;
        const bool answered = spread->stage == STAGE_GREET ? place->greeted : place->ready;
        if (spread->stage == STAGE_PREPARE && answered)
            run_call_send(&spread->call, &place->link, &place->call_sent);
        const bool there = spread->stage != STAGE_PREPARE
                               ? answered
                               : answered && place->call_sent == spread->call.bytes;
        if (late && !answered)
            blame(spread, place, "%s within %g s (--start-timeout)",
                  place->greeted ? "its hvdd did not get ready" : "did not answer",
                  (double)spread->options->start_timeout_ns / 1e9);
        failed += place->link.text[0] != '\0';
        done += there || place->link.text[0] != '\0';
    }
    if (done < asked && !has_no_meeting(spread))
        return;
    if (failed > 0 && spread->stage == STAGE_MEET && !late) {
        check_others(spread);
    } else if (failed > 0) {
        tell_failures(spread);
        abort_start(spread);
    } else if (spread->stage == STAGE_GREET) {
        begin_prepare(spread);
    } else if (spread->stage == STAGE_MEET) {
        prepare_others(spread);
    } else {
        run_all(spread);
    }
}

/* ---- ranks ---- */

static bool has_rank(const struct run_host *host, int32_t rank)
{
    return rank >= host->first_rank && rank < host->first_rank + host->ranks;
}

static bool take_started(struct spread *spread, struct place *place,
                         const struct hvi_launch_started *started)
{
    const struct run_host *host = place->link.host;
    if (place->lost || started->pid_count != (size_t)host->ranks ||
        spread->end.ranks[host->first_rank].pid != 0)
        return false;
    for (int i = 0; i < host->ranks; i++) {
        if (started->pids[i] <= 0)
            return false;
        run_end_started(&spread->end, host->first_rank + i, started->pids[i], host->name);
    }
    return true;
}

static bool take_exited(struct spread *spread, const struct place *place,
                        const struct hvi_launch_exited *exited)
{
    static struct run_exit exits[HVI_RANKS_MAX + 1];
    size_t count = 0;
    for (size_t i = 0; i < exited->exit_count; i++) {
        const struct hvi_launch_exit *row = &exited->exits[i];
        if (!has_rank(place->link.host, row->rank))
            return false;
        const pid_t pid = spread->end.ranks[row->rank].pid;
        if (pid == 0 && place->lost) /* not all of this host's ranks could be started */
            continue;
        if (pid != row->pid)
            return false;
        exits[count++] = (struct run_exit){
            .index = row->rank,
            .pid = row->pid,
            .fate = {row->signaled ? HVI_FATE_SIGNALED : HVI_FATE_EXITED, row->code},
            .dying = row->dying,
        };
    }
    run_end_exited(&spread->end, exits, count);
    return true;
}

static bool take_output(struct spread *spread, const struct place *place,
                        const struct hvi_launch_data *data)
{
    char text[512];
    const size_t host = (size_t)(place - spread->places);
    if (data->stream == HVI_LAUNCH_RESULT) {
        if (run_call_take(&spread->call, host, data, text, sizeof text) == 0)
            return true;
        run_display_say(&spread->display, "%s", text);
        return false;
    }
    struct run_stream *stream = &spread->display.streams[2 * (size_t)data->rank + data->stream - 1];
    if (!spread->end.impatient)
        run_stream_feed(stream, (const char *)data->data, data->bytes);
    return true;
}

/* No rank of that host attaches any more: ranks elsewhere do not wait for it. The first one counts. */
__attribute__((format(printf, 3, 4))) static void
tell_lost(struct spread *spread, const struct place *place, const char *format, ...)
{
    struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_LOST};
    char how[HVI_TEXT_MAX + 1], text[sizeof how + 512];
    va_list args;
    if (spread->lost || spread->end.over)
        return;
    spread->lost = true;
    va_start(args, format);
    vsnprintf(how, sizeof how, format, args);
    va_end(args);
    snprintf(text, sizeof text, "%.300s: %s; ranks there cannot take part in the job any more",
             place->link.host->name, how);
    text_safe(text, msg.text.text, sizeof msg.text.text);
    for (size_t i = 0; i < spread->hosts->count; i++)
        if (spread->places[i].running && &spread->places[i] != place)
            run_link_send(&spread->places[i].link, &msg);
}

/* The job cannot go on, and this host's ranks, if they have not been started, never will be. */
static void give_up(struct spread *spread, const struct run_host *host)
{
    const bool started = spread->end.ranks[host->first_rank].pid != 0;
    run_end_give_up(&spread->end);
    if (!started)
        run_end_not_started(&spread->end, host->ranks);
}

/* The agent cannot go on: before the ranks run that is its host's failure, later the job's. */
static void take_failed(struct spread *spread, struct place *place,
                        const struct hvi_launch_text *failed)
{
    char text[2200];
    text_safe(failed->text, text, sizeof text);
    if (spread->exit_code == 0)
        spread->exit_code = (int)failed->code;
    if (spread->stage < STAGE_RUN) {
        blame(spread, place, "%s", text);
        return;
    }
    run_display_say(&spread->display, "%s: %s", place->link.host->name, text);
    if (place->lost)
        return;
    place->lost = true;
    give_up(spread, place->link.host);
}

/* ---- messages ---- */

static bool take_running(struct spread *spread, struct place *place,
                         const struct hvi_launch_msg *msg)
{
    switch (msg->kind) {
    case HVI_LAUNCH_STARTED:
        return take_started(spread, place, &msg->started);
    case HVI_LAUNCH_OUTPUT:
        return has_rank(place->link.host, msg->data.rank) && take_output(spread, place, &msg->data);
    case HVI_LAUNCH_EXITED:
        return take_exited(spread, place, &msg->exited);
    case HVI_LAUNCH_LOST:
        tell_lost(spread, place, "%s", msg->text.text);
        return true;
    case HVI_LAUNCH_LOOKED:
        if (spread->looking > 0 && --spread->looking == 0)
            run_end_looked(&spread->end);
        return true;
    case HVI_LAUNCH_INPUT_TAKEN:
        if (place != &spread->places[0] ||
            msg->number.number > HVI_LAUNCH_DATA_MAX - spread->input_window)
            return false;
        spread->input_window += msg->number.number;
        return true;
    default:
        return false;
    }
}

static bool take_any(struct spread *spread, struct place *place, const struct hvi_launch_msg *msg)
{
    char text[2200];
    switch (msg->kind) {
    case HVI_LAUNCH_READY:
        place->torch_port = msg->ready.torch_port;
        place->mesh_port = msg->ready.mesh_port;
        put(place->chosen, sizeof place->chosen, msg->ready.address);
        place->ready = true;
        return spread->stage >= STAGE_MEET && spread->stage <= STAGE_PREPARE;
    case HVI_LAUNCH_BEAT: /* of one that was told nothing yet it may come when that is on its way */
        return true;
    case HVI_LAUNCH_LOG:
        run_stream_feed(&place->log, (const char *)msg->data.data, msg->data.bytes);
        return true;
    case HVI_LAUNCH_SAY:
        text_safe(msg->text.text, text, sizeof text);
        run_display_say(&spread->display, "%s: %s", place->link.host->name, text);
        return true;
    case HVI_LAUNCH_FAILED:
        take_failed(spread, place, &msg->text);
        return true;
    default:
        return place->running && take_running(spread, place, msg);
    }
}

struct take_context {
    struct spread *spread;
    struct place *place;
};

static bool take(void *context, struct hvi_launch_msg *msg, char *text_p, size_t text_size)
{
    struct take_context *at = context;
    if (msg->kind == HVI_LAUNCH_HELLO && !at->place->greeted) {
        take_hello(at->spread, at->place, &msg->hello);
        return true;
    }
    if (at->place->greeted && take_any(at->spread, at->place, msg))
        return true;
    snprintf(text_p, text_size, "message %d has no place here", (int)msg->kind);
    return false;
}

/* ---- hosts that are gone ---- */

static void lose_ranks(struct spread *spread, const struct run_host *host)
{
    static struct run_exit exits[HVI_RANKS_MAX + 1];
    size_t count = 0;
    for (int rank = host->first_rank; rank < host->first_rank + host->ranks; rank++)
        if (spread->end.ranks[rank].pid != 0 && !spread->end.ranks[rank].ended)
            exits[count++] = (struct run_exit){.index = rank,
                                               .pid = spread->end.ranks[rank].pid,
                                               .fate = {.kind = HVI_FATE_UNKNOWN}};
    if (count > 0)
        run_end_exited(&spread->end, exits, count);
}

/* While the job runs, a link that goes takes its ranks along. */
static void check_links(struct spread *spread)
{
    char how[128];
    for (size_t i = 0; i < spread->hosts->count; i++) {
        struct place *place = &spread->places[i];
        struct run_link *link = &place->link;
        if (link->state != RUN_LINK_GONE || !place->running)
            continue;
        place->running = false;
        if (!spread->end.over && !place->lost) {
            hvi_fate_describe(link->fate, how, sizeof how);
            const char *who = link->text[0] != '\0' ? ""
                              : link->host->here    ? "hvdrun --node "
                                                    : "ssh ";
            const char *what = link->text[0] != '\0' ? link->text : how;
            run_display_say(&spread->display, "lost the agent on %s: %s%s; it ends its ranks",
                            link->host->name, who, what);
            tell_lost(spread, place, "hvdrun has lost its agent: %s%s", who, what);
            if (spread->exit_code == 0)
                spread->exit_code = 1;
            if (spread->end.ranks[link->host->first_rank].pid == 0)
                give_up(spread, link->host);
        }
        lose_ranks(spread, link->host);
    }
}

static bool links_are_gone(const struct spread *spread)
{
    if (!run_tree_is_gone(&spread->tree))
        return false;
    for (size_t i = 0; i < spread->hosts->count; i++)
        if (spread->places[i].link.state != RUN_LINK_GONE)
            return false;
    return true;
}

/* ---- input of rank 0 ---- */

static void end_input(struct spread *spread)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_INPUT_END};
    spread->input_ended = true;
    run_link_send(&spread->places[0].link, &msg);
}

static void read_input(void *context, int index)
{
    struct spread *spread = context;
    static unsigned char bytes[INPUT_PART];
    const size_t most = spread->input_window < sizeof bytes ? spread->input_window : sizeof bytes;
    (void)index;
    ssize_t length = recv(spread->input_fd, bytes, most, MSG_DONTWAIT);
    if (length < 0 && errno == ENOTSOCK)
        length = read(spread->input_fd, bytes, most);
    if (length == 0 || (length < 0 && errno != EINTR && errno != EAGAIN))
        end_input(spread);
    if (length <= 0)
        return;
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_INPUT,
                                       .data = {.data = bytes, .bytes = (size_t)length}};
    spread->input_window -= (size_t)length;
    run_link_send(&spread->places[0].link, &msg);
}

/* A terminal is read through a pipe, see stdin.h. */
static void relay_input(void *context, int index)
{
    struct spread *spread = context;
    (void)index;
    run_stdin_handle(&spread->input);
}

static void poll_input(struct spread *spread)
{
    const struct pollfd terminal = run_stdin_poll(&spread->input, hvi_clock_ns());
    if (spread->stage != STAGE_RUN || spread->end.ranks[0].pid == 0)
        return;
    run_polls_add(&spread->polls, terminal.fd, terminal.events, relay_input, spread, 0);
    if (!spread->input_ended && spread->input_window > 0)
        run_polls_add(&spread->polls, spread->input_fd, POLLIN, read_input, spread, 0);
}

/* ---- the loop ---- */

/* Agents get the time to end what they have started; a second signal takes it from them. */
static void interrupt_start(struct spread *spread, int signal_number)
{
    const uint64_t now_ns = hvi_clock_ns();
    if (spread->stopped_ns != 0 && now_ns - spread->stopped_ns < RUN_END_APART_NS)
        return;
    for (size_t i = 0; i < spread->hosts->count && spread->stage == STAGE_ABORT; i++)
        spread->places[i].link.kill_at_ns = now_ns;
    if (spread->stage == STAGE_ABORT)
        return;
    spread->stopped_ns = now_ns;
    run_display_say(&spread->display, "interrupted while the hosts were starting");
    spread->exit_code = 128 + signal_number;
    abort_start(spread);
}

static void read_signals(void *context, int index)
{
    struct spread *spread = context;
    struct signalfd_siginfo info;
    (void)index;
    while (read(spread->signal_fd, &info, sizeof info) == (ssize_t)sizeof info) {
        const int number = (int)info.ssi_signo;
        if (spread->stage >= STAGE_RUN && spread->stage != STAGE_ABORT)
            run_end_signal(&spread->end, number);
        else if (number == SIGTSTP)
            raise(SIGSTOP);
        else if (run_self_asks_to_end(number))
            interrupt_start(spread, number);
    }
}

static uint64_t next_time(const struct spread *spread)
{
    uint64_t next_ns =
        run_polls_earlier(run_end_next_ns(&spread->end), run_display_next_ns(&spread->display));
    if (spread->stage < STAGE_RUN && hvi_clock_ns() < spread->deadline_ns)
        next_ns = run_polls_earlier(next_ns, spread->deadline_ns);
    next_ns = run_polls_earlier(next_ns, spread->beat_at_ns);
    next_ns = run_polls_earlier(next_ns, spread->input.retry_ns);
    next_ns = run_polls_earlier(next_ns, run_tree_next_ns(&spread->tree));
    for (size_t i = 0; i < spread->hosts->count; i++) {
        next_ns = run_polls_earlier(next_ns, run_link_next_ns(&spread->places[i].link));
        next_ns = run_polls_earlier(next_ns, spread->places[i].log.held_until_ns);
    }
    return next_ns;
}

static void poll_once(struct spread *spread)
{
    const bool reading = spread->end.impatient || !run_display_is_full(&spread->display);
    run_polls_clear(&spread->polls);
    run_polls_add(&spread->polls, spread->signal_fd, POLLIN, read_signals, spread, 0);
    for (size_t i = 0; i < spread->hosts->count; i++)
        run_link_poll(&spread->places[i].link, &spread->polls, reading);
    run_tree_poll(&spread->tree, &spread->polls, reading);
    run_display_poll(&spread->display, &spread->polls);
    poll_input(spread);
    if (run_polls_wait(&spread->polls, next_time(spread)))
        return;
    run_display_say(&spread->display, "out of memory");
    spread->exit_code = 1;
    spread->stage = STAGE_DONE;
}

/* Nobody reads our stdout or stderr any more: neither is theirs read. */
static void flush(struct spread *spread)
{
    const unsigned gone = run_display_flush(&spread->display);
    for (uint32_t stream = 1; stream <= HVI_LAUNCH_STREAMS; stream++) {
        const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_CLOSE, .number = {.number = stream}};
        if ((gone & (1u << (stream - 1))) != 0)
            send_to_all(spread, &msg);
    }
}

/* An agent that has not been told what to run does not know --silence-time. */
static uint64_t beat_ns(const struct spread *spread)
{
    const uint64_t silence_ns = spread->options->silence_ns;
    return (silence_ns != 0 && silence_ns < RUN_SILENCE_NS ? silence_ns : RUN_SILENCE_NS) / BEATS;
}

/* An agent that is starting its hvdd takes what comes as a sign that all is over: none goes there. Nor to one of
 * another version. What is on its way is a beat, too. */
static void send_beats(struct spread *spread, uint64_t now_ns)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_BEAT};
    if (now_ns < spread->beat_at_ns)
        return;
    spread->beat_at_ns = now_ns + beat_ns(spread);
    for (size_t i = 0; i < spread->hosts->count; i++) {
        struct place *place = &spread->places[i];
        const bool untold = place->greeted && !place->told && place->link.text[0] == '\0';
        if ((untold || place->ready) && run_link_queued(&place->link) == 0)
            run_link_send(&place->link, &msg);
    }
}

/* Silence counts only while we run ourselves, and read what comes. An agent that takes much is no silent one; the
 * last bytes are those that ssh or a relay takes in its place. */
static void check_silence(struct spread *spread, uint64_t now_ns, bool unread)
{
    const uint64_t silence_ns = spread->options->silence_ns;
    const bool deaf = unread || now_ns - spread->looked_ns > silence_ns / 2;
    spread->looked_ns = now_ns;
    if (silence_ns == 0 || spread->stage > STAGE_RUN)
        return;
    for (size_t i = 0; i < spread->hosts->count; i++) {
        struct place *place = &spread->places[i];
        struct run_link *link = &place->link;
        const size_t untaken = run_link_queued(link);
        if (deaf || !place->ready || (untaken > 0 && untaken < place->untaken))
            link->heard_ns = now_ns;
        place->untaken = untaken;
        if (!run_link_is_heard(link) || now_ns - link->heard_ns < silence_ns)
            continue;
        blame(spread, place, "it has said nothing for %g s (--silence-time)",
              (double)silence_ns / 1e9);
        run_link_close(link, 0);
    }
}

static void tick(struct spread *spread)
{
    const uint64_t now_ns = hvi_clock_ns();
    run_display_tick(&spread->display, now_ns);
    const bool unread = !spread->end.impatient && run_display_is_full(&spread->display);
    check_silence(spread, now_ns, unread);
    for (size_t i = 0; i < spread->hosts->count; i++) {
        struct run_link *link = &spread->places[i].link;
        if (unread && spread->stage == STAGE_END && link->state == RUN_LINK_OPEN)
            link->kill_at_ns = leave_until(spread); /* its output waits for our reader */
        run_link_tick(link, now_ns);
        run_stream_tick(&spread->places[i].log, now_ns);
    }
    run_tree_tick(&spread->tree, now_ns);
    if (spread->stage == STAGE_GREET)
        run_tree_start(&spread->tree, now_ns);
    if (spread->stage < STAGE_RUN)
        tick_start(spread, now_ns);
    check_links(spread);
    send_beats(spread, now_ns);
    flush(spread);
    run_end_tick(&spread->end, now_ns);
    if (spread->stage == STAGE_ABORT && links_are_gone(spread))
        spread->stage = STAGE_DONE;
    if (spread->stage == STAGE_END && links_are_gone(spread) &&
        (spread->end.impatient || run_display_is_empty(&spread->display)))
        spread->stage = STAGE_DONE;
}

/* ---- the whole ---- */

static struct run_link *link_of(void *context, size_t host)
{
    const struct spread *spread = context;
    return &spread->places[host].link;
}

static bool make_links(struct spread *spread, struct take_context *contexts)
{
    for (size_t i = 0; i < spread->hosts->count; i++) {
        struct place *place = &spread->places[i];
        contexts[i] = (struct take_context){.spread = spread, .place = place};
        run_link_init(&place->link, spread->options, &spread->heritage, &spread->hosts->list[i],
                      spread->display.err);
        place->link.take = take;
        place->link.context = &contexts[i];
        run_stream_init(&place->log, -1, spread->display.err);
        place->log.apart = true;
    }
    spread->tree = (struct run_tree){
        .options = spread->options, .hosts = spread->hosts, .say = say, .context = spread};
    return run_tree_init(&spread->tree, link_of, spread->display.err) == HVI_OK &&
           run_display_make_streams(&spread->display, spread->options->ranks);
}

static bool prepare(struct spread *spread)
{
    const struct run_end_hands hands = {.context = spread,
                                        .say = say,
                                        .signal = send_signal,
                                        .mute = mute,
                                        .look = look,
                                        .over = all_ended};
    run_self_raise_fds(&spread->heritage, spread->options->ranks);
    spread->signal_fd = run_self_open_signals(&spread->heritage);
    run_self_random_hex(spread->key, 32);
    memcpy(spread->job, "hvdrun-", 7);
    run_self_random_hex(spread->job + 7, 16);
    int error = spread->signal_fd < 0 ? errno : run_stdin_init(&spread->input);
    if (error == 0)
        spread->input_fd = run_stdin_reopen(&spread->input);
    error = error == 0 && spread->input_fd < 0 ? errno : error;
    if (error == 0 && !run_end_init(&spread->end, spread->options, spread->options->ranks, &hands))
        error = ENOMEM;
    if (error != 0)
        run_display_say(&spread->display, "cannot start: %s", strerror(error));
    return error == 0;
}

static bool open_call(struct spread *spread)
{
    char text[512];
    if (run_call_open(&spread->call, spread->options->call_dir, spread->options->ranks, text,
                      sizeof text) == 0)
        return true;
    run_display_say(&spread->display, "%s", text);
    return false;
}

static void report(struct spread *spread)
{
    char *text = run_end_report(&spread->end);
    if (text != NULL && spread->end.over)
        run_sink_say(spread->display.err, text);
    free(text);
    if (spread->end.exit_code != 0)
        spread->exit_code = spread->end.exit_code;
    if (!run_display_report(&spread->display) && spread->exit_code == 0)
        spread->exit_code = 1;
}

static void finish(struct spread *spread)
{
    run_task_fini(&spread->task);
    run_tree_fini(&spread->tree);
    for (size_t i = 0; i < spread->hosts->count; i++) {
        run_link_fini(&spread->places[i].link);
        run_stream_fini(&spread->places[i].log);
    }
    if (spread->input_fd >= 0)
        close(spread->input_fd);
    run_stdin_fini(&spread->input);
    run_call_close(&spread->call);
    if (!spread->end.impatient)
        run_display_drain(&spread->display, spread->signal_fd);
    run_display_close(&spread->display);
    run_polls_fini(&spread->polls);
    run_end_fini(&spread->end);
}

int run_spread(const struct run_options *options)
{
    static struct spread spread;
    const size_t hosts = options->places.count;
    struct take_context *contexts = calloc(hosts, sizeof *contexts);
    spread = (struct spread){.options = options,
                             .call = {.fd = -1},
                             .hosts = &options->places,
                             .input = {.pipe_fd = -1},
                             .input_fd = -1,
                             .input_window = HVI_LAUNCH_DATA_MAX,
                             .exit_code = 1};
    if (options->interfaces != NULL)
        setenv("HVD_INTERFACE", options->interfaces, 1); /* for every host */
    spread.places = calloc(hosts, sizeof *spread.places);
    spread.machines = calloc(hosts, sizeof *spread.machines);
    run_display_open(&spread.display, options);
    if (spread.places == NULL || spread.machines == NULL || contexts == NULL) {
        run_display_say(&spread.display, "out of memory");
        return 1;
    }
    if (prepare(&spread) && make_links(&spread, contexts) && open_call(&spread)) {
        spread.exit_code = 0;
        spread.deadline_ns = hvi_deadline_after((int64_t)options->start_timeout_ns);
        run_tree_start(&spread.tree, hvi_clock_ns());
        while (spread.stage != STAGE_DONE) {
            poll_once(&spread);
            tick(&spread);
        }
        report(&spread);
    }
    finish(&spread);
    free(contexts);
    free(spread.places);
    free(spread.machines);
    return spread.exit_code;
}
