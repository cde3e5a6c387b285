/* SPDX-License-Identifier: Apache-2.0
 * A relay starts what it is told to, passes on bytes between these processes and hvdrun, and says how
 * they end. What the bytes mean it does not know: agents behind it are hvdrun's. When its standard
 * input ends, so does that of all its processes; they are agents and ssh's, which then end by themselves. */
#include "tools/hvdrun/relay.h"

#include "base/clock.h"
#include "base/status.h"
#include "tools/hvdrun/channel.h"
#include "tools/hvdrun/polls.h"
#include "tools/hvdrun/self.h"
#include "tools/hvdrun/words.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <utlist.h>

#define READ_BYTES  (64u * 1024u)
#define LAST_READS  64    /* of what a process has written before it ended */
#define NOT_STARTED 255   /* as an exit status */
#define PROCESSES   1024u /* more than a job has hosts */

struct process {
    struct process *prev, *next;
    uint32_t number;
    struct run_proc proc;
    struct run_sink in;
    int fds[3]; /* 1 and 2: of its stdout and stderr; -1: at its end */
    bool hung_up;
};

struct relay {
    struct run_channel channel;
    struct run_heritage heritage;
    int signal_fd;
    struct run_polls polls;
    struct process *processes;
    bool lost; /* hvdrun is gone */
    uint64_t patience_ns, silence_ns, heard_ns;
    uint64_t kill_at_ns; /* hvdrun is gone: all processes are killed then */
};

static void send_message(struct relay *relay, const struct hvi_launch_msg *msg)
{
    if (run_channel_send(&relay->channel, msg) != HVI_OK)
        relay->channel.out.error = ENOMEM;
}

/* ---- processes ---- */

static struct process *find(struct relay *relay, uint32_t number)
{
    struct process *process;
    DL_SEARCH_SCALAR(relay->processes, process, number, number);
    return process;
}

static void send_up(struct relay *relay, uint32_t number, uint32_t stream, const char *bytes,
                    size_t length)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_UP,
                                       .pass = {.number = number,
                                                .stream = stream,
                                                .data = (unsigned char *)(uintptr_t)bytes,
                                                .bytes = length}};
    send_message(relay, &msg);
}

static void send_gone(struct relay *relay, uint32_t number, struct hvi_fate fate)
{
    const struct hvi_launch_msg msg = {
        .kind = HVI_LAUNCH_GONE,
        .gone = {.number = number, .signaled = fate.kind == HVI_FATE_SIGNALED, .code = fate.code}};
    send_message(relay, &msg);
}

/* False when there is nothing (more) to read now. */
static bool read_output(struct relay *relay, struct process *process, int stream)
{
    static char bytes[READ_BYTES];
    if (process->fds[stream] < 0)
        return false;
    const ssize_t length = read(process->fds[stream], bytes, sizeof bytes);
    if (length > 0) {
        send_up(relay, process->number, (uint32_t)stream, bytes, (size_t)length);
        return true;
    }
    if (length < 0 && (errno == EINTR || errno == EAGAIN))
        return false;
    close(process->fds[stream]);
    process->fds[stream] = -1;
    return false;
}

static void hang_up(struct process *process)
{
    if (!process->hung_up)
        run_sink_fini(&process->in);
    process->hung_up = true;
}

static void free_process(struct relay *relay, struct process *process)
{
    run_proc_signal(&process->proc, SIGKILL); /* what it may have left in its group */
    run_proc_reap(&process->proc);
    hang_up(process);
    for (int stream = 1; stream <= 2; stream++)
        if (process->fds[stream] >= 0)
            close(process->fds[stream]);
    DL_DELETE(relay->processes, process);
    free(process);
}

static void end_process(struct relay *relay, struct process *process)
{
    for (int stream = 1; stream <= 2; stream++)
        for (int i = 0; i < LAST_READS && read_output(relay, process, stream); i++)
            ;
    send_gone(relay, process->number, process->proc.fate);
    free_process(relay, process);
}

static void flush(struct relay *relay, struct process *process)
{
    const size_t before = process->in.pending.used;
    run_sink_flush(&process->in);
    const struct hvi_launch_msg taken = {
        .kind = HVI_LAUNCH_TAKEN,
        .taken = {.number = process->number,
                  .bytes = (uint32_t)(before - process->in.pending.used)}};
    if (taken.taken.bytes > 0)
        send_message(relay, &taken);
}

static int spawn(struct relay *relay, struct process *process, char **argv)
{
    struct run_spawn plan = {.argv = argv, .envp = environ, .heritage = &relay->heritage};
    const int error = run_proc_start_piped(&plan, process->fds, &process->proc);
    if (error == 0)
        run_sink_init_own(&process->in, process->fds[0]);
    return error;
}

/* ---- messages ---- */

static bool take_open(struct relay *relay, const struct hvi_launch_open *open)
{
    char text[4300];
    struct process *others;
    size_t count;
    DL_COUNT(relay->processes, others, count);
    if (find(relay, open->number) != NULL || count >= PROCESSES)
        return false;
    relay->patience_ns = open->patience_ns;
    relay->silence_ns = open->silence_ns;
    struct process *process = calloc(1, sizeof *process);
    char **argv = run_words_unpack(open->command, open->command_bytes);
    const int error = process != NULL && argv != NULL ? spawn(relay, process, argv) : ENOMEM;
    if (error == 0) {
        process->number = open->number;
        DL_APPEND(relay->processes, process);
    } else {
        snprintf(text, sizeof text, "cannot start %.4000s: %s\n",
                 argv != NULL ? argv[0] : "a process", strerror(error));
        send_up(relay, open->number, 2, text, strlen(text));
        send_gone(relay, open->number, (struct hvi_fate){HVI_FATE_EXITED, NOT_STARTED});
        free(process);
    }
    free(argv);
    return true;
}

/* For one that has just ended it comes too late. */
static bool take_down(struct relay *relay, const struct hvi_launch_pass *down)
{
    struct process *process = find(relay, down->number);
    if (process == NULL || process->hung_up || process->in.error != 0)
        return true;
    if (run_buffer_append(&process->in.pending, (const char *)down->data, down->bytes) != HVI_OK)
        return false;
    flush(relay, process);
    return true;
}

static bool take_hang_up(struct relay *relay, const struct hvi_launch_hang_up *asked)
{
    struct process *process = find(relay, asked->number);
    if (process == NULL)
        return true;
    hang_up(process);
    if (asked->kill)
        run_proc_signal(&process->proc, SIGKILL);
    return true;
}

static bool take(void *context, struct hvi_launch_msg *msg, char *text_p, size_t text_size)
{
    struct relay *relay = context;
    if (msg->kind == HVI_LAUNCH_OPEN && take_open(relay, &msg->open))
        return true;
    if (msg->kind == HVI_LAUNCH_DOWN && take_down(relay, &msg->pass))
        return true;
    if (msg->kind == HVI_LAUNCH_HANG_UP && take_hang_up(relay, &msg->hang_up))
        return true;
    snprintf(text_p, text_size, "message %d has no place here", (int)msg->kind);
    return false;
}

/* ---- the end ---- */

static void lose(struct relay *relay)
{
    struct process *process;
    if (relay->lost)
        return;
    relay->lost = true;
    relay->channel.out.error = EPIPE;
    run_buffer_consume(&relay->channel.out.pending, relay->channel.out.pending.used);
    if (relay->channel.fd >= 0)
        close(relay->channel.fd);
    relay->channel.fd = -1;
    relay->kill_at_ns = hvi_deadline_after((int64_t)relay->patience_ns);
    DL_FOREACH(relay->processes, process)
    hang_up(process);
}

static void kill_all(struct relay *relay)
{
    struct process *process;
    relay->kill_at_ns = HVI_NEVER;
    DL_FOREACH(relay->processes, process)
    run_proc_signal(&process->proc, SIGKILL);
}

/* Without processes there is nothing whose silence time would end this one. */
static uint64_t silent_at_ns(const struct relay *relay)
{
    return relay->processes == NULL && relay->silence_ns != 0 && !relay->lost
               ? relay->heard_ns + relay->silence_ns
               : HVI_NEVER;
}

static void tick(struct relay *relay, uint64_t now_ns)
{
    struct process *process, *next;
    DL_FOREACH_SAFE(relay->processes, process, next)
    {
        if (run_proc_look(&process->proc))
            end_process(relay, process);
    }
    if (now_ns >= silent_at_ns(relay))
        lose(relay);
    if (relay->lost && now_ns >= relay->kill_at_ns)
        kill_all(relay);
}

/* ---- the loop ---- */

static void read_channel(void *context, int index)
{
    struct relay *relay = context;
    char text[512];
    (void)index;
    relay->heard_ns = hvi_clock_ns();
    if (run_channel_read(&relay->channel, take, relay, text, sizeof text) != RUN_CHANNEL_OPEN)
        lose(relay);
}

static void read_signals(void *context, int index)
{
    struct relay *relay = context;
    struct signalfd_siginfo info;
    (void)index;
    while (read(relay->signal_fd, &info, sizeof info) == (ssize_t)sizeof info)
        if (run_self_asks_to_end((int)info.ssi_signo))
            lose(relay);
}

/* `number` is that of a process, which may have ended in this very pass. */
static void room_below(void *context, int number)
{
    struct process *process = find(context, (uint32_t)number);
    if (process != NULL && !process->hung_up)
        flush(context, process);
}

static void output(void *context, int number)
{
    struct process *process = find(context, (uint32_t)number);
    if (process != NULL)
        read_output(context, process, 1);
}

static void errors(void *context, int number)
{
    struct process *process = find(context, (uint32_t)number);
    if (process != NULL)
        read_output(context, process, 2);
}

/* The tick looks at all of them. */
static void ended(void *context, int number)
{
    (void)context, (void)number;
}

static bool poll_once(struct relay *relay)
{
    struct run_polls *polls = &relay->polls;
    const bool reading = relay->lost || !run_sink_is_full(&relay->channel.out);
    struct process *process;
    run_polls_clear(polls);
    run_polls_add(polls, relay->signal_fd, POLLIN, read_signals, relay, 0);
    run_polls_add(polls, relay->channel.fd, POLLIN, read_channel, relay, 0);
    run_sink_poll(&relay->channel.out, polls);
    DL_FOREACH(relay->processes, process)
    {
        const int number = (int)process->number;
        run_polls_add(polls, process->proc.pidfd, POLLIN, ended, relay, number);
        if (!process->hung_up && process->in.pending.used > 0)
            run_polls_add(polls, process->in.fd, POLLOUT, room_below, relay, number);
        if (reading) {
            run_polls_add(polls, process->fds[1], POLLIN, output, relay, number);
            run_polls_add(polls, process->fds[2], POLLIN, errors, relay, number);
        }
    }
    const uint64_t silent_ns = silent_at_ns(relay);
    const uint64_t kill_ns = relay->lost ? relay->kill_at_ns : HVI_NEVER;
    return run_polls_wait(polls, silent_ns < kill_ns ? silent_ns : kill_ns);
}

int run_relay(uint64_t silence_ns)
{
    static struct relay relay;
    relay = (struct relay){.silence_ns = silence_ns, .heard_ns = hvi_clock_ns()};
    relay.channel.fd = STDIN_FILENO;
    relay.channel.marked = true;
    run_sink_init(&relay.channel.out, STDOUT_FILENO);
    relay.signal_fd = run_self_open_signals(&relay.heritage);
    run_self_raise_fds(&relay.heritage, PROCESSES);
    run_channel_greet(&relay.channel);
    while (!relay.lost || relay.processes != NULL) {
        if (!poll_once(&relay))
            lose(&relay);
        tick(&relay, hvi_clock_ns());
    }
    run_channel_fini(&relay.channel);
    run_polls_fini(&relay.polls);
    return 0;
}
