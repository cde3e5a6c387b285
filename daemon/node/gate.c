/* SPDX-License-Identifier: Apache-2.0
 * hvdd-gate: hvdd starts it, or has its unit start it, keeps it running and answers what it asks. The
 * gate reads what strangers send, so it may die or hang at any time:
 *
 *   running --its process ends--> waiting --back-off--> running
 *      |                             ^
 *      +--silent for gate-silence: killed
 *
 * The first restart is immediate. Each further one waits twice as long as the last, 100 ms to 5 s,
 * unless the gate has lived for 10 s. hvdd keeps the listening sockets, so whatever connects meanwhile
 * waits in them. A question that a dead gate had asked gets an answer with a ticket that no gate knows
 * any more.
 *
 * A gate of a unit has no process before its first message (unit.c); until then the end of its link is
 * its end.
 *
 * A stranger may have taken over a gate. So hvdd receives no descriptor from it: the last holder of one
 * that does not close has to wait. hvdd looks at a message before it takes it (discard.h). */
#include "daemon/node/backoff.h"
#include "daemon/node/node.h"
#include "daemon/node/unit.h"

#include "base/fate.h"
#include "base/rate.h"
#include "base/status.h"
#include "proto/gate.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utlist.h>

#define BEAT_NS          (250 * HVI_NS_MS)
#define END_MS           250              /* for the gate to end by itself */
#define UNIT_NS          (5 * HVI_NS_SEC) /* for its unit to start it */
#define UNMET            "did not start (`journalctl -u hvdd-gate.socket -u 'hvdd-gate@*'` says why)"
#define MESSAGES_AT_ONCE 64
#define OUTBOX_BYTES     (64u * 1024u * 1024u)
#define STALL_EACH_NS    (100 * HVI_NS_MS) /* between events of a generation's stalls, after a burst */
#define STALL_BURST      128

static void start_gate(struct node *node);
static void replace(struct node *node, const char *fate);
static int on_exit_of_stranger(sd_event_source *source, int fd, uint32_t events, void *user);

static void log_started(const struct node_gate *gate)
{
    HVI_LOG(HVI_LOG_DEBUG, "gate", "gate-started", "the gate was started", "pid=%d",
            (int)gate->pid);
}

static void kill_gate(struct node *node, const char *why)
{
    struct node_gate *gate = &node->gate;

    HVI_LOG(HVI_LOG_WARN, "gate", "gate-killed", why, "pid=%d", (int)gate->pid);
    gate->killed = true;
    if (gate->pidfd >= 0)
        pidfd_send_signal(gate->pidfd, SIGKILL, NULL, 0);
    else
        shutdown(gate->link_fd, SHUT_RDWR); /* on_link sees it end, and its program too */
}

/* ---- sending ---- */

static void drop_first(struct node_gate *gate)
{
    struct node_outgoing *first = gate->outbox;

    DL_DELETE(gate->outbox, first);
    gate->outbox_bytes -= first->length;
    free(first);
}

static void flush(struct node_gate *gate)
{
    while (gate->outbox != NULL) {
        int status =
            hvi_packet_send(gate->link_fd, gate->outbox->bytes, gate->outbox->length, NULL, 0, 0);
        if (status == HVI_ERR_TIMEOUT || status == HVI_ERR_LIMIT)
            return;
        drop_first(gate); /* sent, or the link is broken: its process will end */
    }
    sd_event_source_set_io_events(gate->io, EPOLLIN);
}

static void queue(struct node *node, const unsigned char *bytes, size_t length)
{
    struct node_gate *gate = &node->gate;
    struct node_outgoing *outgoing = NULL;

    if (gate->outbox_bytes + length <= OUTBOX_BYTES)
        outgoing = malloc(sizeof(*outgoing) + length);
    if (outgoing == NULL) {
        kill_gate(node, "no room to queue what the gate has to be told");
        return;
    }
    outgoing->length = length;
    outgoing->fd_count = 0;
    memcpy(outgoing->bytes, bytes, length);
    DL_APPEND(gate->outbox, outgoing);
    gate->outbox_bytes += length;
    sd_event_source_set_io_events(gate->io, EPOLLIN | EPOLLOUT);
}

/* Sends now or queues; where there is no gate, nothing. */
static void send_msg(struct node *node, const struct hvi_gate_msg *msg, const int *fds,
                     uint32_t fd_count)
{
    size_t length;
    int status = hvi_gate_msg_encode(msg, node->encoded, sizeof(node->encoded), &length);

    if (node->gate.io == NULL)
        return;
    if (status != HVI_OK) {
        HVI_LOG(HVI_LOG_ERROR, "gate", "no-message", "a message for the gate cannot be written",
                "kind=%d status=%s", (int)msg->kind, hvi_status_name(status));
        return;
    }
    if (node->gate.outbox == NULL)
        status = hvi_packet_send(node->gate.link_fd, node->encoded, length, fds, fd_count, 0);
    else
        status = HVI_ERR_TIMEOUT;
    if (status == HVI_ERR_TIMEOUT || status == HVI_ERR_LIMIT)
        queue(node, node->encoded, length);
}

void node_gate_send(struct node *node, const struct hvi_gate_msg *msg)
{
    send_msg(node, msg, NULL, 0);
}

/* ---- events ---- */

static void send_event(struct node *node, const struct node_generation *generation,
                       struct hvi_event_row *row)
{
    const struct node_job_name *job = &generation->job->name;
    struct hvi_gate_msg msg = {.kind = HVI_GATE_EVENT, .event = {.uid = job->uid}};

    row->at_ns = hvi_clock_ns();
    row->uid = job->uid;
    row->generation = generation->number;
    snprintf(row->job, sizeof(row->job), "%s", job->id);
    if (hvi_event_encode(row, &msg.event.reply, &msg.event.reply_bytes) != HVI_OK)
        return;
    node_gate_send(node, &msg);
    free(msg.event.reply);
}

static bool may_tell_stall(const struct node_gate *gate, struct node_generation *generation)
{
    return gate->outbox == NULL && hvi_rate_take(&generation->stalls_paid_ns, hvi_clock_ns(),
                                                 STALL_EACH_NS, STALL_BURST) == 0;
}

void node_gate_event(struct node *node, uint32_t kind, struct node_generation *generation,
                     int32_t rank, pid_t pid, const char *text)
{
    struct hvi_event_row row = {.kind = kind, .rank = rank, .pid = (int32_t)pid};
    struct hvi_event_row lost = {
        .kind = HVI_EVENT_LOST, .rank = -1, .count = generation->stalls_lost};

    if (kind == HVI_EVENT_STALL && !may_tell_stall(&node->gate, generation)) {
        generation->stalls_lost++;
        return;
    }
    if (generation->stalls_lost > 0)
        send_event(node, generation, &lost);
    generation->stalls_lost = 0;
    snprintf(row.text, sizeof(row.text), "%s", text);
    send_event(node, generation, &row);
}

/* ---- admin requests ---- */

static void send_parts(struct node *node, uint64_t ticket, unsigned char *bytes, size_t length)
{
    struct hvi_gate_msg msg = {.kind = HVI_GATE_REPLY};
    size_t sent = 0;

    msg.reply.ticket = ticket;
    do {
        size_t left = length - sent;
        msg.reply.part = bytes + sent;
        msg.reply.part_bytes = left < HVI_GATE_PART_MAX ? left : HVI_GATE_PART_MAX;
        sent += msg.reply.part_bytes;
        msg.reply.more = sent < length;
        send_msg(node, &msg, NULL, 0);
    } while (sent < length);
}

void node_gate_reply(struct node *node, const struct node_asker *asker,
                     struct hvi_admin_reply *reply)
{
    struct hvi_admin_reply instead = {.status = HVI_ERR_DAEMON,
                                      .text = "hvdd could not write its reply; see its log"};
    unsigned char *bytes = NULL;
    size_t length;
    int status;

    reply->protocol_version = instead.protocol_version = HVI_PROTOCOL_VERSION;
    reply->request = instead.request = asker->request;
    status = hvi_admin_reply_encode(reply, &bytes, &length);
    if (status != HVI_OK) {
        HVI_LOG(HVI_LOG_ERROR, "gate", "no-reply", "an admin reply could not be written",
                "request=%llu status=%s", (unsigned long long)asker->request,
                hvi_status_name(status));
        if (hvi_admin_reply_encode(&instead, &bytes, &length) != HVI_OK)
            return;
    }
    send_parts(node, asker->ticket, bytes, length);
    free(bytes);
}

static bool handle_ask(struct node *node, const struct hvi_gate_ask *ask)
{
    struct node_asker asker = {.ticket = ask->ticket, .uid = ask->uid};
    struct hvi_admin_request request;

    if (hvi_admin_request_decode(ask->request, ask->request_bytes, &request, NULL, 0) != HVI_OK ||
        request.protocol_version != HVI_PROTOCOL_VERSION)
        return false;
    asker.request = request.request;
    node_answer_request(node, &asker, &request);
    return true;
}

/* ---- receiving ---- */

static void heard(struct node_gate *gate, const struct hvi_gate_beat *beat)
{
    if (beat->number != gate->next_beat)
        return;
    gate->asked = false;
    gate->silent_ns = 0;
}

/* False: the gate says what cannot be. */
static bool handle(struct node *node, const struct hvi_gate_msg *msg)
{
    switch (msg->kind) {
    case HVI_GATE_BEAT:
        heard(&node->gate, &msg->beat);
        return true;
    case HVI_GATE_STATE:
        node_mesh_state(node, &msg->state);
        return true;
    case HVI_GATE_ASK:
        return handle_ask(node, &msg->ask);
    case HVI_GATE_NODE_ROSTER:
        return node_mesh_roster(node, &msg->node_roster);
    default:
        return false;
    }
}

/* The first message of a gate of a unit. False: it is not what the unit should start. */
static bool meet(struct node *node, const struct hvi_packet *packet)
{
    struct node_gate *gate = &node->gate;
    const int off = 0;
    char text[160];

    setsockopt(gate->link_fd, SOL_SOCKET, SO_PASSCRED, &off, sizeof(off)); /* see receive() */
    gate->pidfd = node_unit_meet(packet, gate->link_fd, "hvdd-gate", text, sizeof(text));
    gate->pid = gate->pidfd < 0 ? 0 : packet->sender_pid;
    if (gate->pidfd >= 0 && sd_event_add_io(node->event, &gate->exit, gate->pidfd, EPOLLIN,
                                            on_exit_of_stranger, node) < 0) {
        snprintf(text, sizeof(text), "no memory to watch it");
        close(gate->pidfd);
        gate->pidfd = -1;
    }
    if (gate->pidfd < 0) {
        HVI_LOG(HVI_LOG_ERROR, "gate", "bad-gate-unit", text, "socket=%s",
                node->config.gate_socket);
        return false;
    }
    sd_event_source_set_time_relative(gate->beat, BEAT_NS / 1000);
    log_started(gate);
    return true;
}

static void read_message(struct node *node)
{
    struct hvi_packet *packet = &node->packet;
    struct hvi_gate_msg msg;
    bool good = false;

    if (node->gate.pidfd < 0) {
        good = meet(node, packet);
    } else if (hvi_gate_msg_decode(packet->bytes, packet->length, &msg, NULL, 0) == HVI_OK) {
        good = handle(node, &msg);
        hvi_gate_msg_free(&msg);
    }
    hvi_packet_close_fds(packet);
    if (!good)
        kill_gate(node, "the gate broke the protocol");
}

/* The next message into node->packet; one with a descriptor stays in the socket and is HVI_ERR_PROTOCOL. The first
 * message of a unit's gate says whose it is, by what the kernel adds to it: no stranger has reached that gate yet. */
static int receive(struct node *node)
{
    int fd = node->gate.link_fd, status;
    bool has_fds;

    if (node->gate.pidfd < 0)
        return hvi_packet_receive(fd, &node->packet, 0);
    status = hvi_packet_peek(fd, &node->packet, &has_fds);
    if (has_fds)
        return HVI_ERR_PROTOCOL;
    if (status == HVI_OK)
        hvi_packet_drop(fd);
    return status;
}

/* What the gate has said by now. False: its link is broken, or it has been killed. */
static bool read_link(struct node *node)
{
    for (int i = 0; i < MESSAGES_AT_ONCE && !node->gate.killed; i++) {
        int status = receive(node);
        if (status == HVI_ERR_TIMEOUT)
            return true;
        if (status == HVI_ERR_PROTOCOL)
            kill_gate(node, "the gate sent a descriptor, or a message that is too long");
        if (status != HVI_OK)
            return false;
        read_message(node);
    }
    return !node->gate.killed;
}

static int on_link(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node *node = user;

    (void)fd;
    if ((events & EPOLLOUT) != 0)
        flush(&node->gate);
    if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0 || read_link(node))
        return 0;
    sd_event_source_set_enabled(source, SD_EVENT_OFF);
    if (node->gate.pidfd >= 0)
        pidfd_send_signal(node->gate.pidfd, SIGKILL, NULL, 0);
    else
        replace(node, UNMET);
    return 0;
}

/* ---- whether it lives ---- */

/* Ticks are counted, not time: where hvdd or the machine stood still, that is one tick. What the gate
 * has said already is read before it is judged. */
static int on_beat(sd_event_source *source, uint64_t usec, void *user)
{
    struct node *node = user;
    struct node_gate *gate = &node->gate;
    struct hvi_gate_msg msg = {.kind = HVI_GATE_BEAT};

    (void)usec;
    sd_event_source_set_time_relative(source, BEAT_NS / 1000);
    sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
    if (gate->pidfd < 0) {
        replace(node, UNMET);
        return 0;
    }
    if (gate->asked)
        read_link(node);
    if (gate->asked) {
        gate->silent_ns += BEAT_NS;
        if (gate->silent_ns >= (uint64_t)node->config.gate_silence && !gate->killed)
            kill_gate(node, "the gate has not answered for gate-silence: it was stopped, or is "
                            "stuck");
        return 0;
    }
    msg.beat.number = ++gate->next_beat;
    gate->asked = true;
    send_msg(node, &msg, NULL, 0);
    return 0;
}

/* ---- its process ---- */

static void forget(struct node *node)
{
    struct node_gate *gate = &node->gate;

    gate->io = sd_event_source_disable_unref(gate->io);
    gate->exit = sd_event_source_disable_unref(gate->exit);
    gate->beat = sd_event_source_disable_unref(gate->beat);
    while (gate->outbox != NULL)
        drop_first(gate);
    if (gate->link_fd >= 0)
        hvi_discard(&node->discard, gate->link_fd, false);
    if (gate->pidfd >= 0)
        close(gate->pidfd);
    gate->link_fd = gate->pidfd = -1;
    gate->pid = 0;
}

static int on_again(sd_event_source *source, uint64_t usec, void *user)
{
    struct node *node = user;

    (void)source, (void)usec;
    node->gate.again = sd_event_source_disable_unref(node->gate.again);
    start_gate(node);
    return 0;
}

/* Starts the next gate, at once or later. */
static void start_later(struct node *node)
{
    struct node_gate *gate = &node->gate;
    const uint64_t delay_ns = node_backoff_next(&gate->backoff_ns, gate->started_ns);

    if (sd_event_add_time_relative(node->event, &gate->again, CLOCK_MONOTONIC, delay_ns / 1000, 1,
                                   on_again, node) < 0)
        HVI_LOG(HVI_LOG_ERROR, "gate", "no-gate",
                "the gate is not started again: no memory for a timer", "");
}

/* This one has ended. */
static void replace(struct node *node, const char *fate)
{
    char sentence[200];

    snprintf(sentence, sizeof(sentence), "the gate %s and is started again", fate);
    HVI_LOG(HVI_LOG_WARN, "gate", "gate-ended", sentence, "pid=%d", (int)node->gate.pid);
    forget(node);
    start_later(node);
}

static int on_exit_of_stranger(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node *node = user;
    struct hvi_fate fate = hvi_fate_of_gone(node->gate.pid, fd);
    char text[128];

    (void)source, (void)events;
    hvi_fate_describe(fate, text, sizeof(text));
    replace(node, text);
    return 0;
}

static int on_exit_of_gate(sd_event_source *source, const siginfo_t *info, void *user)
{
    struct node *node = user;
    struct hvi_fate fate = hvi_fate_from_child(info);
    char text[128];

    (void)source;
    hvi_fate_describe(fate, text, sizeof(text));
    replace(node, text);
    return 0;
}

static void send_start(struct node *node)
{
    struct hvi_gate_msg msg = {.kind = HVI_GATE_START};

    msg.start.private_mode = node->private_mode;
    msg.start.uid = node->uid;
    msg.start.log_level = (int32_t)hvi_log_level();
    msg.start.max_admin = (uint32_t)node->config.max_admin;
    msg.start.max_admin_per_user = (uint32_t)node->config.max_admin_per_user;
    msg.start.admin_rate_per_user = (uint32_t)node->config.admin_rate_per_user;
    node_mesh_fill_start(node, &msg.start);
    send_msg(node, &msg, (const int[]){node->admin_fd, node->root_fd}, node->root_fd < 0 ? 1 : 2);
    node_mesh_tell_all(node);
}

/* Its link and its time; a negative errno. */
static int watch_link(struct node *node, uint64_t first_beat_ns)
{
    struct node_gate *gate = &node->gate;
    int r = sd_event_add_io(node->event, &gate->io, gate->link_fd, EPOLLIN, on_link, node);

    if (r >= 0)
        r = sd_event_add_time_relative(node->event, &gate->beat, CLOCK_MONOTONIC,
                                       first_beat_ns / 1000, 1, on_beat, node);
    return r < 0 ? r : 0;
}

static int watch_child(struct node *node)
{
    struct node_gate *gate = &node->gate;
    int r;

    gate->pidfd = hvi_pidfd_open(gate->pid);
    if (gate->pidfd < 0)
        return -errno;
    r = sd_event_add_child_pidfd(node->event, &gate->exit, gate->pidfd, WEXITED, on_exit_of_gate,
                                 node);
    return r < 0 ? r : watch_link(node, BEAT_NS);
}

/* These return 0 or a negative errno. */
static int start_child(struct node *node)
{
    struct node_gate *gate = &node->gate;
    int link[2], error;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, link) != 0)
        return -errno;
    gate->link_fd = link[0];
    error = -node_spawn_program(gate->path, gate->program_fd, "hvdd-gate", link[1], &gate->pid);
    close(link[1]);
    if (error != 0)
        return error;
    error = watch_child(node);
    if (error == 0) {
        log_started(gate);
    } else {
        kill(gate->pid, SIGKILL);
        waitpid(gate->pid, NULL, 0);
    }
    return error;
}

static int ask_unit(struct node *node)
{
    node->gate.link_fd = node_unit_connect(node->config.gate_socket);
    return node->gate.link_fd < 0 ? -errno : watch_link(node, UNIT_NS);
}

static void start_gate(struct node *node)
{
    struct node_gate *gate = &node->gate;
    bool by_unit = node->config.gate_socket[0] != '\0';
    int error;

    gate->started_ns = hvi_clock_ns();
    gate->asked = gate->killed = false;
    gate->silent_ns = 0;
    error = by_unit ? ask_unit(node) : start_child(node);
    if (error == 0) {
        send_start(node);
        return;
    }
    HVI_LOG(HVI_LOG_ERROR, "gate", "no-gate", "cannot start hvdd-gate", "path=%s error=\"%s\"",
            by_unit ? node->config.gate_socket : gate->path, strerror(-error));
    forget(node);
    start_later(node);
}

/* ---- life ---- */

/* Its descriptor, and its path in path_p[HVI_WIRE_PATH]; -1 after logging. */
static int make_socket(struct node *node, const char *name, mode_t mode, char *path_p)
{
    if (node_rundir_socket_path(&node->rundir, name, path_p, HVI_WIRE_PATH))
        return node_listen_bind(path_p, SOCK_STREAM, mode);
    HVI_LOG(HVI_LOG_ERROR, "gate", "no-admin", "the admin socket's path is too long", "dir=%s",
            node->rundir.path);
    return -1;
}

/* admin.sock may be systemd's already. */
static bool has_sockets(struct node *node)
{
    if (node->admin_fd < 0)
        node->admin_fd = make_socket(node, "admin.sock",
                                     node->private_mode ? 0600 : (mode_t)node->config.admin_mode,
                                     node->admin_path);
    if (node->admin_fd >= 0 && !node->private_mode)
        node->root_fd = make_socket(node, "root.sock", 0600, node->root_path);
    return node->admin_fd >= 0 && (node->root_fd >= 0 || node->private_mode);
}

int node_gate_open(struct node *node)
{
    node->gate.link_fd = node->gate.pidfd = -1;
    if (!has_sockets(node))
        return HVI_ERR_DAEMON;
    hvi_packet_let_fds(node->admin_fd, false); /* ZeroMQ sends none */
    if (node->root_fd >= 0)
        hvi_packet_let_fds(node->root_fd, false);
    start_gate(node);
    return HVI_OK;
}

/* The end of its link ends it; it sends first what it has been told. */
static void end_gate(struct node *node)
{
    struct node_gate *gate = &node->gate;
    struct pollfd ended = {.fd = gate->pidfd, .events = POLLIN};

    if (gate->pid == 0)
        return;
    gate->exit = sd_event_source_disable_unref(gate->exit);
    gate->io = sd_event_source_disable_unref(gate->io);
    hvi_discard(&node->discard, gate->link_fd, false);
    gate->link_fd = -1;
    if (poll(&ended, 1, END_MS) != 1)
        pidfd_send_signal(gate->pidfd, SIGKILL, NULL, 0);
    /* One of a unit is not ours to wait for, and this returns at once. */
    waitid(P_PIDFD, (id_t)gate->pidfd, &(siginfo_t){0}, WEXITED);
}

void node_gate_close(struct node *node)
{
    node_answer_close(node);
    node_mesh_close(node);
    node->gate.again = sd_event_source_disable_unref(node->gate.again);
    end_gate(node);
    if (node->gate.started_ns != 0)
        forget(node);
    if (node->root_fd >= 0) {
        close(node->root_fd);
        unlink(node->root_path);
        node->root_fd = -1;
    }
    if (node->admin_fd < 0)
        return;
    close(node->admin_fd);
    if (!node->admin_inherited)
        unlink(node->admin_path);
    node->admin_fd = -1;
}
