/* SPDX-License-Identifier: Apache-2.0
 * The socket to hvdd, descriptor 3 at start. hvdd is trusted and does not stop reading, but it may be
 * slow: what its socket does not take waits here, and is bounded by the requests that connections
 * have under way. When hvdd goes, so does the gate: at once, or, where hvdd served one job and was killed,
 * when it has told the other nodes. */
#include "daemon/gate/gate.h"

#include "base/fate.h"
#include "base/status.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <utlist.h>

#define START_NS         (5 * HVI_NS_SEC)
#define MESSAGES_AT_ONCE 64
#define OUTBOX_BYTES     (32u * 1024u * 1024u)

struct gate_outgoing {
    struct gate_outgoing *prev, *next;
    size_t length;
    unsigned char bytes[];
};

/* ---- sending ---- */

static void drop_first(struct gate *gate)
{
    struct gate_outgoing *first = gate->outbox;

    DL_DELETE(gate->outbox, first);
    gate->outbox_bytes -= first->length;
    free(first);
}

static void flush(struct gate *gate)
{
    while (gate->outbox != NULL) {
        int status =
            hvi_packet_send(gate->link_fd, gate->outbox->bytes, gate->outbox->length, NULL, 0, 0);
        if (status == HVI_ERR_TIMEOUT || status == HVI_ERR_LIMIT)
            return;
        drop_first(gate); /* sent, or the link is broken, which reading will tell */
    }
    sd_event_source_set_io_events(gate->link, EPOLLIN);
}

/* The loop ends: nothing that is still to be sent can be trusted to arrive. */
static void fail(struct gate *gate, const char *why)
{
    HVI_LOG(HVI_LOG_ERROR, "link", "link-failed", why, "");
    sd_event_exit(gate->event, 1);
}

static void queue(struct gate *gate, size_t length)
{
    struct gate_outgoing *outgoing = NULL;

    if (gate->outbox_bytes + length <= OUTBOX_BYTES)
        outgoing = malloc(sizeof(*outgoing) + length);
    if (outgoing == NULL) {
        fail(gate, "the gate has no room to queue what hvdd has to be told");
        return;
    }
    outgoing->length = length;
    memcpy(outgoing->bytes, gate->encoded, length);
    DL_APPEND(gate->outbox, outgoing);
    gate->outbox_bytes += length;
    sd_event_source_set_io_events(gate->link, EPOLLIN | EPOLLOUT);
}

void gate_link_send(struct gate *gate, const struct hvi_gate_msg *msg)
{
    size_t length;
    int status = hvi_gate_msg_encode(msg, gate->encoded, sizeof(gate->encoded), &length);

    if (status != HVI_OK) {
        fail(gate, "a message for hvdd could not be written");
        return;
    }
    if (gate->outbox == NULL)
        status = hvi_packet_send(gate->link_fd, gate->encoded, length, NULL, 0, 0);
    else
        status = HVI_ERR_TIMEOUT;
    if (status == HVI_ERR_TIMEOUT || status == HVI_ERR_LIMIT)
        queue(gate, length);
}

/* ---- receiving ---- */

/* False: hvdd says what cannot be. */
static bool handle(struct gate *gate, struct hvi_gate_msg *msg)
{
    if (msg->kind == HVI_GATE_REPLY) {
        if (!gate_mesh_answer(gate, &msg->reply))
            gate_admin_answer(gate, &msg->reply);
    } else if (msg->kind == HVI_GATE_BEAT)
        gate_link_send(gate, msg);
    else if (msg->kind == HVI_GATE_NODE_REGISTER)
        gate_mesh_register(gate, &msg->node_register);
    else if (msg->kind == HVI_GATE_NODE_WITHDRAW)
        gate_mesh_withdraw(gate, &msg->node_withdraw);
    else if (msg->kind == HVI_GATE_EVENT)
        gate_admin_event(gate, &msg->event);
    else
        return false;
    return true;
}

static void read_message(struct gate *gate)
{
    struct hvi_packet *packet = &gate->packet;
    struct hvi_gate_msg msg;
    char text[200] = "it has a descriptor";

    gate->heard_ns = hvi_clock_ns();
    if (packet->fd_count == 0 &&
        hvi_gate_msg_decode(packet->bytes, packet->length, &msg, text, sizeof(text)) == HVI_OK) {
        if (!handle(gate, &msg))
            fail(gate, "hvdd sent what it may not send");
        hvi_gate_msg_free(&msg);
    } else {
        HVI_LOG(HVI_LOG_ERROR, "link", "bad-hvdd", "hvdd sent what cannot be read", "error=\"%s\"",
                text);
        sd_event_exit(gate->event, 1);
    }
    hvi_packet_close_fds(packet);
}

/* A hvdd that ends in order waits for its gate. */
static void end(struct gate *gate)
{
    sd_event_source_set_enabled(gate->link, SD_EVENT_OFF);
    const bool in_order = gate->hvdd == 0 || !hvi_process_is_quiet(gate->hvdd, -1);
    if (in_order ? gate_mesh_is_heard(gate) : !gate_mesh_orphaned(gate))
        sd_event_exit(gate->event, 0);
}

static int on_link(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct gate *gate = user;

    (void)source;
    if ((events & EPOLLOUT) != 0)
        flush(gate);
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        int status = hvi_packet_receive(fd, &gate->packet, 0);
        if (status == HVI_ERR_TIMEOUT)
            return 0;
        if (status != HVI_OK) {
            end(gate);
            return 0;
        }
        read_message(gate);
    }
    return 0;
}

/* ---- life ---- */

int gate_link_start(struct gate *gate, int link_fd, int listen_fds_p[2])
{
    struct hvi_packet *packet = &gate->packet;
    struct hvi_gate_msg msg;
    char text[200] = "it is not there";
    int status = hvi_packet_receive(link_fd, packet, hvi_deadline_after(START_NS));

    if (status == HVI_ERR_CLOSED)
        return status; /* hvdd has gone already */
    if (status != HVI_OK ||
        hvi_gate_msg_decode(packet->bytes, packet->length, &msg, text, sizeof(text)) != HVI_OK)
        goto bad;
    /* A hvdd for all users has two; one of before root.sock has one. */
    if (msg.kind != HVI_GATE_START || packet->fd_count < 1 || packet->fd_count > 2) {
        hvi_gate_msg_free(&msg);
        goto bad;
    }
    gate->link_fd = link_fd;
    gate->heard_ns = hvi_clock_ns();
    gate->start = msg.start;
    for (uint32_t i = 0; i < 2; i++)
        listen_fds_p[i] = hvi_packet_take_fd(packet, i);
    return HVI_OK;
bad:
    HVI_LOG(HVI_LOG_ERROR, "link", "no-start", "hvdd's first message is no GateStart",
            "error=\"%s\"", text);
    hvi_packet_close_fds(packet);
    return HVI_ERR_PROTOCOL;
}

int gate_link_open(struct gate *gate)
{
    if (sd_event_add_io(gate->event, &gate->link, gate->link_fd, EPOLLIN, on_link, gate) >= 0)
        return HVI_OK;
    HVI_LOG(HVI_LOG_ERROR, "link", "no-event", "the gate cannot watch its link to hvdd", "");
    return HVI_ERR_NO_MEMORY;
}

void gate_link_close(struct gate *gate)
{
    gate->link = sd_event_source_disable_unref(gate->link);
    while (gate->outbox != NULL)
        drop_first(gate);
    close(gate->link_fd);
}
