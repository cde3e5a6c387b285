/* SPDX-License-Identifier: Apache-2.0
 * An agent greets, gets what is to run, starts hvdd, says that it is ready, starts its ranks when
 * every host is ready, and sends on what they print and how they end. It decides nothing but one
 * thing: when its standard input ends before the job does, or nothing comes for too long, hvdrun or
 * the way to it is gone, and it ends everything that it has started. */
#include "tools/hvdrun/agent.h"

#include "base/clock.h"
#include "base/interface.h"
#include "base/status.h"
#include "base/utf8.h"
#include "tools/hvdrun/channel.h"
#include "tools/hvdrun/divide.h"
#include "tools/hvdrun/end.h"
#include "tools/hvdrun/node.h"
#include "tools/hvdrun/route.h"
#include "tools/hvdrun/self.h"
#include "tools/hvdrun/start.h"
#include "tools/hvdrun/words.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#define LAST_WORDS_NS (5 * HVI_NS_SEC) /* for output on its way when everything has ended */

struct agent {
    struct run_channel channel;
    struct run_heritage heritage;
    int signal_fd;
    struct run_polls polls;

    struct hvi_launch_start start; /* what is to run; its kind of message comes once */
    bool has_start, opened, gone_on, failed;
    struct run_options options;
    char **command, **environment, **settings;
    char **login_environment, **whole_environment; /* before and after the start */
    struct run_place *places;
    struct run_stream *streams;
    struct run_stream *results; /* NULL: not of hvd.run */
    struct run_stream log;
    int call_fd;         /* a file in memory with what is to be called */
    uint64_t call_bytes; /* that have come */
    char master_address[256];
    struct run_node_plan plan;
    struct run_node node;

    int input_fd; /* the pipe to rank 0; -1: none (any more) */
    int input_read_fd;
    struct run_buffer input;
    bool input_ends;

    uint64_t silence_ns;              /* without a message for so long we are alone; 0: never */
    uint64_t heard_ns, looked_ns;     /* when a message came, and when we have last run */
    bool paused;                      /* hvdrun has been stopped by the user, as its ranks have */
    bool lost;                        /* hvdrun is gone */
    uint64_t kill_at_ns, stuck_at_ns; /* SIGKILL, and the end without what that does not end */
};

static void send_message(struct agent *agent, const struct hvi_launch_msg *msg)
{
    if (run_channel_send(&agent->channel, msg) != HVI_OK)
        agent->channel.out.error = ENOMEM;
}

/* Messages carry UTF-8, and names of files may be anything. */
static void put_text(struct hvi_launch_msg *msg, const char *text)
{
    char *at = msg->text.text;
    const size_t length = hvi_utf8_cut(text, strlen(text), sizeof msg->text.text - 1);
    snprintf(at, sizeof msg->text.text, "%.*s", (int)length, text);
    if (hvi_utf8_valid(at, strlen(at)))
        return;
    for (; *at != '\0'; at++)
        *at = (unsigned char)*at < 0x80 ? *at : '?';
}

static void say(void *context, const char *text)
{
    struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_SAY};
    put_text(&msg, text);
    send_message(context, &msg);
}

static void fail(struct agent *agent, int code, const char *text)
{
    struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_FAILED, .text = {.code = (uint32_t)code}};
    put_text(&msg, text);
    send_message(agent, &msg);
    agent->failed = true;
}

/* ---- what the node tells ---- */

static void send_data(struct agent *agent, int place, uint32_t stream, const char *bytes,
                      size_t length)
{
    const struct hvi_launch_msg msg = {
        .kind = HVI_LAUNCH_OUTPUT,
        .data = {.rank = agent->places[place].rank,
                 .stream = stream,
                 .data = (unsigned char *)(uintptr_t)bytes,
                 .bytes = length},
    };
    send_message(agent, &msg);
}

static void send_output(void *context, int index, const char *bytes, size_t length)
{
    send_data(context, index / 2, 1 + (uint32_t)index % 2, bytes, length);
}

static void send_result(void *context, int index, const char *bytes, size_t length)
{
    send_data(context, index, HVI_LAUNCH_RESULT, bytes, length);
}

static void send_log(void *context, int index, const char *bytes, size_t length)
{
    const struct hvi_launch_msg msg = {
        .kind = HVI_LAUNCH_LOG,
        .data = {.data = (unsigned char *)(uintptr_t)bytes, .bytes = length},
    };
    (void)index;
    send_message(context, &msg);
}

static void send_exits(void *context, const struct run_exit *exits, size_t count)
{
    static struct hvi_launch_exit rows[HVI_RANKS_MAX + 1];
    struct agent *agent = context;
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_EXITED,
                                       .exited = {.exits = rows, .exit_count = count}};
    for (size_t i = 0; i < count; i++)
        rows[i] = (struct hvi_launch_exit){
            .rank = agent->places[exits[i].index].rank,
            .pid = exits[i].pid,
            .signaled = exits[i].fate.kind == HVI_FATE_SIGNALED,
            .code = exits[i].fate.code,
            .dying = exits[i].dying,
        };
    send_message(agent, &msg);
}

/* Without a hvdd no rank can begin; those that run do not need it. */
static void tell_gone(void *context, const char *how)
{
    struct agent *agent = context;
    struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_LOST};
    char text[256];
    if (!agent->gone_on) {
        snprintf(text, sizeof text, "%s before the ranks were started", how);
        fail(agent, 1, text);
        return;
    }
    put_text(&msg, how);
    send_message(agent, &msg);
}

/* ---- start ---- */

static bool take_settings(struct agent *agent)
{
    const struct hvi_launch_start *start = &agent->start;
    size_t count = 0;
    for (; agent->settings[count] != NULL; count++) {
        const bool export = count < start->exports;
        if ((export && count >= RUN_EXPORTS_MAX) ||
            (!export && agent->options.variable_count >= RUN_VARIABLES_MAX + RUN_VARIABLES_OURS))
            return false;
        if (export)
            agent->options.exports[agent->options.export_count++] = agent->settings[count];
        else
            agent->options.variables[agent->options.variable_count++] = agent->settings[count];
    }
    return true;
}

/* A node's options are those of the job, but for the number of ranks. */
static const char *take_options(struct agent *agent)
{
    const struct hvi_launch_start *start = &agent->start;
    agent->command = run_words_unpack(start->command, start->command_bytes);
    agent->environment = run_words_unpack(start->environment, start->environment_bytes);
    agent->settings = run_words_unpack(start->settings, start->settings_bytes);
    agent->options = (struct run_options){
        .ranks = (int)start->rank_count,
        .command = agent->command,
        .address = start->address[0] != '\0' ? start->address : NULL,
        .hvdd = start->hvdd[0] != '\0' ? start->hvdd : NULL,
        .log_level = start->log_level[0] != '\0' ? start->log_level : NULL,
        .start_timeout_ns = start->start_timeout_ns,
        .grace_ns = start->grace_ns,
        .verbose = start->verbose,
        .bind_to_core = start->bind_to_core,
        .gpu_mps = start->gpu_mps,
        .compat = start->compat,
    };
    if (agent->command == NULL || agent->environment == NULL || agent->settings == NULL)
        return "out of memory";
    return take_settings(agent) ? NULL : "too many settings for the ranks";
}

/* The streams of `count` pipes, which go to hvdrun as they are. */
static struct run_stream *make_relays(struct agent *agent, size_t count, run_stream_take *relay)
{
    struct run_stream *streams = calloc(count, sizeof *streams);
    for (size_t i = 0; streams != NULL && i < count; i++) {
        run_stream_init(&streams[i], -1, &agent->channel.out);
        streams[i].take = relay;
        streams[i].take_context = agent;
        streams[i].take_index = (int)i;
    }
    return streams;
}

/* hvd.run's: what is to be called, and what it returns. */
static const char *make_call(struct agent *agent)
{
    if (agent->start.call_bytes == 0)
        return NULL;
    agent->call_fd = memfd_create("hvdrun-call", MFD_CLOEXEC);
    agent->results = make_relays(agent, agent->start.rank_count, send_result);
    return agent->call_fd < 0 || agent->results == NULL ? "no memory for the call" : NULL;
}

static const char *make_streams(struct agent *agent)
{
    const size_t ranks = agent->start.rank_count;
    agent->places = calloc(ranks, sizeof *agent->places);
    agent->streams = make_relays(agent, 2 * ranks, send_output);
    if (agent->places == NULL || agent->streams == NULL)
        return "out of memory";
    for (size_t i = 0; i < ranks; i++)
        agent->places[i] = (struct run_place){
            .rank = agent->start.ranks[i].rank,
            .cross_rank = agent->start.ranks[i].cross_rank,
            .cross_size = agent->start.ranks[i].cross_size,
        };
    agent->log.take = send_log;
    agent->log.take_context = agent;
    return make_call(agent);
}

/* Everything that is started here, hvdd included, has what travelled over what this login has. */
static const char *take_environment(struct agent *agent)
{
    char directory[sizeof agent->start.directory + 4];
    char *const settings[] = {directory, NULL};
    snprintf(directory, sizeof directory, "PWD=%s", agent->start.directory);
    char **env = run_env_make(environ, agent->environment);
    if (env != NULL)
        agent->whole_environment = run_env_make(env, settings);
    run_env_free(env);
    if (agent->whole_environment == NULL)
        return "out of memory";
    agent->login_environment = environ;
    environ = agent->whole_environment;
    return NULL;
}

/* NULL: none is wanted. */
static const char *if_any(const char *text)
{
    return text[0] != '\0' ? text : NULL;
}

/* The address by which the others reach the host of rank 0, where there is a wish: hvdrun, which is on
 * another machine as a rule, cannot know it. There its hvdd listens, unless hvdrun says where. False with
 * a sentence. */
static bool choose_address(struct agent *agent, char *address_p, size_t size, char *text_p,
                           size_t text_size)
{
    char *listen = agent->start.mesh_listen;
    const bool needed = strcmp(listen, RUN_ROUTE_ANYWHERE) == 0;
    const char *wish = run_route_wish();
    struct hvi_interface chosen;
    if (agent->places[0].rank != 0 || wish == NULL || (listen[0] != '\0' && !needed))
        return true;
    if (hvi_interface_find(wish, AF_UNSPEC, &chosen, text_p, text_size) != HVI_OK)
        return !needed;
    snprintf(address_p, size, "%s", chosen.address);
    if (needed)
        run_route_place(listen, sizeof agent->start.mesh_listen, chosen.address, 0);
    return true;
}

static void open_node(struct agent *agent)
{
    char text[2048];
    struct hvi_launch_msg ready = {.kind = HVI_LAUNCH_READY};
    struct hvi_launch_ready *said = &ready.ready;
    if (!choose_address(agent, said->address, sizeof said->address, text, sizeof text)) {
        fail(agent, 1, text);
        return;
    }
    agent->plan = (struct run_node_plan){
        .options = &agent->options,
        .heritage = &agent->heritage,
        .places = agent->places,
        .size = agent->start.size,
        .host = if_any(agent->start.host),
        .job = agent->start.job,
        .key = agent->start.job_key,
        .mesh = {.listen = if_any(agent->start.mesh_listen),
                 .join = if_any(agent->start.mesh_join),
                 .key = if_any(agent->start.mesh_key)},
        .interrupt_fd = agent->channel.fd, /* hvdrun says nothing more until we are ready */
        .streams = agent->streams,
        .results = agent->results,
        .call_fd = agent->call_fd,
        .log = &agent->log,
        .calls = {.context = agent, .say = say, .exited = send_exits, .daemon_gone = tell_gone},
    };
    agent->opened = true;
    if (run_node_open(&agent->node, &agent->plan, text, sizeof text) != 0) {
        fail(agent, 1, text);
        return;
    }
    if (agent->places[0].rank == 0)
        said->torch_port = (uint32_t)run_start_free_port();
    said->mesh_port = run_daemon_mesh_port(&agent->node.daemon);
    send_message(agent, &ready);
}

/* This process does, and so all that it starts. */
static void keep_to_cores(struct agent *agent)
{
    const struct hvi_launch_start *start = &agent->start;
    char cores[HVI_CPUSET_TEXT], text[HVI_CPUSET_TEXT + 128];
    cpu_set_t set;
    if (start->ranks_there == 0 || sched_getaffinity(0, sizeof set, &set) != 0)
        return;
    run_divide_cut("", start->ranks_before, start->rank_count, start->ranks_there, &set);
    const int error = hvi_cpuset_bind(&set);
    hvi_cpuset_print(&set, cores, sizeof cores);
    if (error != 0)
        snprintf(text, sizeof text,
                 "cannot keep to the cores %s, which are its part of the machine's: %s", cores,
                 strerror(error));
    else
        snprintf(
            text, sizeof text,
            "keeps to the cores %s: other hosts of the job are the same machine (--bind-to none: "
            "all cores)",
            cores);
    if (error != 0 || start->verbose)
        say(agent, text);
}

static void take_start(struct agent *agent)
{
    char text[4400];
    const struct hvi_launch_start *start = &agent->start;
    if (start->launch_version != HVI_LAUNCH_VERSION) {
        snprintf(text, sizeof text,
                 "the hvdrun here speaks version %u of the launch protocol, "
                 "the one that calls it version %u",
                 HVI_LAUNCH_VERSION, start->launch_version);
        fail(agent, 1, text);
        return;
    }
    run_self_raise_fds(&agent->heritage, (int)start->rank_count);
    const char *why = take_options(agent);
    if (why == NULL)
        why = make_streams(agent);
    if (why == NULL)
        why = take_environment(agent);
    if (why != NULL) {
        fail(agent, 1, why);
        return;
    }
    if (chdir(start->directory) != 0) {
        snprintf(text, sizeof text, "cannot enter %s: %s; --remote-dir names another directory",
                 start->directory, strerror(errno));
        fail(agent, 1, text);
        return;
    }
    keep_to_cores(agent);
    open_node(agent);
}

/* ---- go ---- */

static void open_input(struct agent *agent)
{
    int fds[2];
    if (agent->places[0].rank != 0 || pipe2(fds, O_CLOEXEC) != 0)
        return;
    fcntl(fds[1], F_SETFL, O_NONBLOCK);
    agent->input_read_fd = fds[0];
    agent->input_fd = fds[1];
}

static void send_started(struct agent *agent)
{
    static int32_t pids[HVI_RANKS_MAX];
    const struct hvi_launch_msg msg = {
        .kind = HVI_LAUNCH_STARTED,
        .started = {.pids = pids, .pid_count = agent->start.rank_count},
    };
    for (size_t i = 0; i < agent->start.rank_count; i++)
        pids[i] = agent->node.ranks[i].proc.pid;
    send_message(agent, &msg);
}

static void end_ranks(struct agent *agent);

static bool take_call(struct agent *agent, const struct hvi_launch_data *data)
{
    if (data->bytes > agent->start.call_bytes - agent->call_bytes)
        return false;
    agent->call_bytes += data->bytes;
    for (size_t at = 0; at < data->bytes && !agent->failed;) {
        const ssize_t written = write(agent->call_fd, data->data + at, data->bytes - at);
        if (written <= 0 && errno != EINTR)
            fail(agent, 1, "no memory for what hvd.run is to call");
        at += written > 0 ? (size_t)written : 0;
    }
    return true;
}

static void take_go(struct agent *agent, const struct hvi_launch_go *go)
{
    char text[2048];
    agent->gone_on = true;
    snprintf(agent->master_address, sizeof agent->master_address, "%s", go->master_address);
    agent->plan.master_address = agent->master_address;
    agent->plan.master_port = (int)go->master_port;
    open_input(agent);
    const int code = run_node_start(&agent->node, agent->input_read_fd, text, sizeof text);
    if (agent->input_read_fd >= 0)
        close(agent->input_read_fd);
    agent->input_read_fd = -1;
    if (code == 0) {
        send_started(agent);
        return;
    }
    fail(agent, code, text);
    end_ranks(agent);
}

/* ---- input of rank 0 ---- */

static void write_input(struct agent *agent)
{
    struct hvi_launch_msg taken = {.kind = HVI_LAUNCH_INPUT_TAKEN};
    while (agent->input_fd >= 0 && agent->input.used > 0) {
        const ssize_t written =
            write(agent->input_fd, agent->input.data + agent->input.start, agent->input.used);
        if (written > 0) {
            run_buffer_consume(&agent->input, (size_t)written);
            taken.number.number += (uint32_t)written;
        } else if (errno == EAGAIN) {
            break;
        } else if (errno != EINTR) { /* rank 0 reads no more: nor does hvdrun, without our word */
            close(agent->input_fd);
            agent->input_fd = -1;
        }
    }
    if (taken.number.number > 0)
        send_message(agent, &taken);
    if (agent->input_ends && agent->input.used == 0 && agent->input_fd >= 0) {
        close(agent->input_fd);
        agent->input_fd = -1;
    }
}

static void input_is_wanted(void *context, int index)
{
    (void)index;
    write_input(context);
}

/* hvdrun never has more than HVI_LAUNCH_DATA_MAX bytes on the way. */
static bool take_input(struct agent *agent, const struct hvi_launch_data *data)
{
    if (agent->input.used + data->bytes > HVI_LAUNCH_DATA_MAX)
        return false;
    if (agent->input_fd < 0)
        return true;
    if (run_buffer_append(&agent->input, (const char *)data->data, data->bytes) != HVI_OK)
        return false;
    write_input(agent);
    return true;
}

/* ---- the end ---- */

/* SIGTERM now, SIGKILL after the grace time, and then what they have left running. */
static void end_ranks(struct agent *agent)
{
    if (agent->kill_at_ns != 0)
        return;
    run_node_signal(&agent->node, SIGTERM);
    run_node_signal(&agent->node, SIGCONT);
    agent->kill_at_ns = hvi_deadline_after((int64_t)agent->options.grace_ns);
}

static void lose(struct agent *agent)
{
    agent->lost = true;
    agent->channel.out.error = EPIPE;
    run_buffer_consume(&agent->channel.out.pending, agent->channel.out.pending.used);
    if (agent->channel.fd >= 0)
        close(agent->channel.fd);
    agent->channel.fd = -1;
    if (agent->gone_on)
        end_ranks(agent);
}

static bool is_ending(const struct agent *agent)
{
    return agent->lost || agent->failed;
}

static void tick_end(struct agent *agent, uint64_t now_ns)
{
    if (!is_ending(agent) || !agent->gone_on)
        return;
    if (agent->kill_at_ns != 0 && now_ns >= agent->kill_at_ns && agent->node.alive > 0) {
        agent->kill_at_ns = HVI_NEVER;
        agent->stuck_at_ns = hvi_deadline_after((int64_t)RUN_END_STUCK_NS);
        run_node_signal(&agent->node, SIGKILL);
    }
    if (agent->node.alive == 0 || (agent->stuck_at_ns != 0 && now_ns >= agent->stuck_at_ns))
        run_node_end(&agent->node, false);
}

static bool is_done(const struct agent *agent)
{
    if (agent->gone_on)
        return agent->node.stage == RUN_DONE;
    return is_ending(agent);
}

/* ---- messages ---- */

static void look(struct agent *agent)
{
    struct run_exit dying;
    const struct hvi_launch_msg looked = {.kind = HVI_LAUNCH_LOOKED};
    if (run_node_find_dying(&agent->node, &dying))
        send_exits(agent, &dying, 1);
    send_message(agent, &looked);
}

static bool take_running(struct agent *agent, const struct hvi_launch_msg *msg)
{
    switch (msg->kind) {
    case HVI_LAUNCH_INPUT:
        return take_input(agent, &msg->data);
    case HVI_LAUNCH_INPUT_END:
        agent->input_ends = true;
        write_input(agent);
        return true;
    case HVI_LAUNCH_SIGNAL:
        run_node_signal(&agent->node, (int)msg->number.number);
        agent->paused = msg->number.number == SIGTSTP;
        return true;
    case HVI_LAUNCH_CLOSE:
        for (size_t i = msg->number.number - 1; i < 2 * agent->start.rank_count; i += 2)
            run_stream_end(&agent->streams[i]);
        return true;
    case HVI_LAUNCH_LOOK:
        look(agent);
        return true;
    case HVI_LAUNCH_LOST:
        run_daemon_tell_lost(&agent->node.daemon, msg->text.text);
        return true;
    case HVI_LAUNCH_END:
        if (agent->failed) /* what could be started is being ended already */
            return true;
        if (agent->node.alive > 0)
            return false;
        run_node_end(&agent->node, msg->end.linger);
        return true;
    default:
        return false;
    }
}

static bool take(void *context, struct hvi_launch_msg *msg, char *text_p, size_t text_size)
{
    struct agent *agent = context;
    if (msg->kind == HVI_LAUNCH_START && !agent->has_start) {
        agent->start = msg->start;
        msg->start = (struct hvi_launch_start){.size = 0}; /* its lists are ours now */
        agent->has_start = true;
        agent->silence_ns = agent->start.silence_ns;
        take_start(agent);
        return true;
    }
    const bool prepared = agent->opened && !agent->failed && !agent->gone_on;
    if (msg->kind == HVI_LAUNCH_CALL && prepared && take_call(agent, &msg->data))
        return true;
    if (msg->kind == HVI_LAUNCH_GO && prepared && agent->call_bytes == agent->start.call_bytes) {
        take_go(agent, &msg->go);
        return true;
    }
    if (msg->kind == HVI_LAUNCH_BEAT) { /* hvdrun asks whether we live */
        send_message(agent, msg);
        return true;
    }
    if (agent->gone_on && take_running(agent, msg))
        return true;
    snprintf(text_p, text_size, "message %d has no place here", (int)msg->kind);
    return false;
}

static void read_channel(void *context, int index)
{
    struct agent *agent = context;
    char text[512];
    (void)index;
    agent->heard_ns = hvi_clock_ns();
    agent->paused = false;
    const enum run_channel_state state =
        run_channel_read(&agent->channel, take, agent, text, sizeof text);
    if (state == RUN_CHANNEL_BROKEN)
        fail(agent, 1, text);
    if (state != RUN_CHANNEL_OPEN)
        lose(agent);
}

static void read_signals(void *context, int index)
{
    struct agent *agent = context;
    struct signalfd_siginfo info;
    (void)index;
    while (read(agent->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (run_self_asks_to_end((int)info.ssi_signo))
            lose(agent);
}

/* ---- the loop ---- */

/* Silence counts only while we run ourselves. */
static void check_silence(struct agent *agent, uint64_t now_ns)
{
    const uint64_t silence_ns = agent->silence_ns;
    if (now_ns - agent->looked_ns > silence_ns / 2)
        agent->heard_ns = now_ns;
    agent->looked_ns = now_ns;
    if (silence_ns != 0 && !agent->paused && !agent->lost && now_ns - agent->heard_ns >= silence_ns)
        lose(agent);
}

static uint64_t next_time(const struct agent *agent)
{
    const uint64_t silence_ns = agent->lost ? 0 : agent->silence_ns;
    uint64_t next_ns = agent->gone_on ? run_node_next_ns(&agent->node) : HVI_NEVER;
    next_ns = run_polls_earlier(next_ns, agent->kill_at_ns);
    if (agent->node.stage == RUN_RUNNING)
        next_ns = run_polls_earlier(next_ns, agent->stuck_at_ns);
    return silence_ns != 0 ? run_polls_earlier(next_ns, agent->looked_ns + silence_ns / 4)
                           : next_ns;
}

static bool poll_once(struct agent *agent)
{
    struct run_polls *polls = &agent->polls;
    run_polls_clear(polls);
    run_polls_add(polls, agent->signal_fd, POLLIN, read_signals, agent, 0);
    run_polls_add(polls, agent->channel.fd, POLLIN, read_channel, agent, 0);
    run_sink_poll(&agent->channel.out, polls);
    if (agent->input.used > 0)
        run_polls_add(polls, agent->input_fd, POLLOUT, input_is_wanted, agent, 0);
    if (agent->gone_on)
        run_node_poll(&agent->node, polls);
    else if (agent->opened)
        run_node_poll_daemon(&agent->node, polls);
    return run_polls_wait(polls, next_time(agent));
}

static void loop(struct agent *agent)
{
    while (!is_done(agent)) {
        if (!poll_once(agent))
            lose(agent);
        const uint64_t now_ns = hvi_clock_ns();
        check_silence(agent, now_ns);
        if (agent->gone_on)
            run_node_tick(&agent->node, now_ns);
        tick_end(agent, now_ns);
    }
}

/* What is still to be written, while hvdrun reads it. */
static void finish_output(struct agent *agent)
{
    struct run_sink *out = &agent->channel.out;
    const uint64_t deadline_ns = hvi_deadline_after((int64_t)LAST_WORDS_NS);
    run_sink_flush(out);
    while (out->pending.used > 0 && out->error == 0 && !hvi_deadline_passed(deadline_ns)) {
        struct pollfd item = {.fd = out->fd, .events = POLLOUT};
        poll(&item, 1, hvi_deadline_poll_ms(deadline_ns));
        run_sink_flush(out);
    }
}

static void finish(struct agent *agent)
{
    if (agent->opened)
        run_node_close(&agent->node);
    finish_output(agent);
    struct hvi_launch_msg start = {.kind = HVI_LAUNCH_START, .start = agent->start};
    hvi_launch_msg_free(&start);
    if (agent->input_fd >= 0)
        close(agent->input_fd);
    run_buffer_fini(&agent->input);
    run_channel_fini(&agent->channel);
    run_polls_fini(&agent->polls);
    if (agent->login_environment != NULL)
        environ = agent->login_environment;
    run_env_free(agent->whole_environment);
    free(agent->command);
    free(agent->environment);
    free(agent->settings);
    free(agent->places);
    free(agent->streams);
    free(agent->results);
    if (agent->call_fd >= 0)
        close(agent->call_fd);
}

int run_agent(uint64_t silence_ns)
{
    static struct agent agent;
    agent = (struct agent){
        .input_fd = -1, .input_read_fd = -1, .call_fd = -1, .silence_ns = silence_ns};
    agent.channel.fd = STDIN_FILENO;
    agent.channel.marked = true;
    run_sink_init(&agent.channel.out, STDOUT_FILENO);
    run_stream_init(&agent.log, -1, &agent.channel.out);
    agent.signal_fd = run_self_open_signals(&agent.heritage);
    run_channel_greet(&agent.channel);
    loop(&agent);
    finish(&agent);
    return agent.lost || agent.failed ? 1 : 0;
}
