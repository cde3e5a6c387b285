/* SPDX-License-Identifier: Apache-2.0
 * Who is connected to whom, and who is gone.
 *
 * A node is gone when its connection ends without a goodbye, or when nothing has come from it for 1.5 s by
 * our own clock. Every 300 ms each side sends a beat where there is nothing else to send, so silence means
 * that the node, its engine or the way to it stands still; clocks of different nodes are never compared.
 * One timer looks at all connections: at the next beat, or when the first of them may be silent for too
 * long. Beats that are due within 50 ms go with what wakes the loop. If more than a second has passed since it
 * last looked, we stood still ourselves (a stopped process, a stopped machine), and the count starts anew for
 * all. What lies in the socket is read before a node is given up: it may be a goodbye. A node that is given up
 * is told so by a reset: it may be that it hears us and we do not hear it.
 *
 * Calls upward come from the event loop alone: a failure that engine_mesh_send meets is told by the timer.
 *
 * The lower node connects. A node that first has something for a lower one without an edge asks it by a
 * CALL, which goes along the tree. */
#include "daemon/engine/mesh/link.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/mesh/peer.h"
#include "daemon/engine/mesh/tree.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>

#define READS_AT_ONCE 4
#define LAST_READS    256 /* of a node that is given up; a goodbye may follow what it has sent */
#define SOON_NS       (ENGINE_MESH_BEAT_NS / 6)  /* a beat that is due then may go now */
#define EARLY_NS      (ENGINE_MESH_BEAT_NS / 30) /* by which the next one is due sooner */

static int on_timer(sd_event_source *source, uint64_t usec, void *user);
static int on_io(sd_event_source *source, int fd, uint32_t events, void *user);
static void beat_together(struct engine_mesh_link *link);

static bool is_connected(const struct engine_mesh_peer *peer)
{
    return peer->state == ENGINE_MESH_CONNECTED || peer->state == ENGINE_MESH_UP;
}

static void wake_at(struct engine_mesh_link *link, uint64_t at_ns)
{
    sd_event_source_set_time(link->timer, at_ns / 1000);
    sd_event_source_set_enabled(link->timer, SD_EVENT_ONESHOT);
}

/* ---- what becomes of a node ---- */

static void detach(struct engine_mesh_peer *peer)
{
    struct engine_mesh_link *link = peer->link;

    if (peer->fd < 0)
        return;
    engine_mesh_peer_detach(peer);
    engine_net_gone(link->config.net, peer->node, ENGINE_NET_CONTROL, 0);
}

static void lose_with(struct engine_mesh_peer *peer, const char *text)
{
    struct engine_mesh_link *link = peer->link;

    engine_mesh_peer_give_up(peer);
    detach(peer);
    peer->why = NULL;
    engine_mesh_peer_move(peer, ENGINE_MESH_LOST, text);
    HVI_LOG(HVI_LOG_WARN, "mesh", "node-lost", text, "node=%u", peer->node);
    link->config.calls->node_lost(link->config.user, peer->node, text);
}

static void lose(struct engine_mesh_peer *peer, const char *how)
{
    char who[ENGINE_NET_TEXT], text[ENGINE_NET_TEXT];

    engine_net_describe(peer->link->config.net, peer->node, who);
    snprintf(text, sizeof text, "%.128s is lost: %.256s", who, how);
    lose_with(peer, text);
}

/* It is lost, and the timer says so at once. */
static void doom(struct engine_mesh_peer *peer, const char *why)
{
    if (!peer->why)
        peer->why = why;
    wake_at(peer->link, 0);
}

static void leave(struct engine_mesh_peer *peer, const char *cause)
{
    struct engine_mesh_link *link = peer->link;

    detach(peer);
    peer->why = NULL;
    engine_mesh_peer_move(peer, ENGINE_MESH_LEFT, cause);
    link->config.calls->node_left(link->config.user, peer->node);
}

static const char *why_not_put(int status)
{
    if (status == HVI_ERR_LIMIT)
        return "it does not read: 8 MiB wait to be sent to it";
    return status == HVI_ERR_NO_MEMORY ? "this node has no memory for what is to be sent to it"
                                       : strerrordesc_np(errno);
}

static void put(struct engine_mesh_peer *peer, enum engine_mesh_kind kind,
                const unsigned char *body, size_t length)
{
    int status = engine_mesh_peer_put(peer, kind, body, length);

    if (status != HVI_OK)
        doom(peer, why_not_put(status));
}

/* ---- to whom ---- */

static struct engine_mesh_peer *add_peer(struct engine_mesh_link *link, uint32_t node,
                                         uint64_t deadline_ns)
{
    struct engine_mesh_peer *peer = calloc(1, sizeof *peer);

    if (!peer)
        return NULL;
    peer->link = link;
    peer->node = node;
    peer->deadline_ns = deadline_ns;
    peer->fd = -1;
    DL_APPEND(link->peers, peer);
    link->by_node[node] = peer;
    return peer;
}

static int want(struct engine_mesh_peer *peer)
{
    return engine_net_connect(peer->link->config.net, peer->node, ENGINE_NET_CONTROL, 0,
                              peer->deadline_ns);
}

static void call(struct engine_mesh_link *link, uint32_t from, uint32_t to)
{
    struct engine_mesh_peer *hop = link->by_node[engine_mesh_next_hop(link->config.node, to)];
    unsigned char body[8];

    engine_mesh_put_u32(body, from);
    engine_mesh_put_u32(body + 4, to);
    /* Without that hop the deadline of the node that calls decides. */
    if (hop && hop->state != ENGINE_MESH_LEFT && hop->state != ENGINE_MESH_LOST)
        put(hop, ENGINE_MESH_CALL, body, sizeof body);
}

/* The connection to a node, which may be about to be made; NULL: out of memory. */
static struct engine_mesh_peer *reach(struct engine_mesh_link *link, uint32_t node)
{
    struct engine_mesh_peer *peer = link->by_node[node];

    if (peer)
        return peer;
    peer = add_peer(link, node, hvi_deadline_after((int64_t)ENGINE_MESH_REACH_NS));
    if (!peer)
        return NULL;
    if (want(peer) != HVI_OK)
        doom(peer, "this node has no memory for a connection to it");
    else if (node < link->config.node)
        call(link, link->config.node, node);
    return peer;
}

static bool take_call(struct engine_mesh_link *link, const unsigned char *body)
{
    const uint32_t here = link->config.node, nodes = link->config.nodes;
    const uint32_t from = engine_mesh_get_u32(body), to = engine_mesh_get_u32(body + 4);

    if (from >= nodes || to >= from)
        return false;
    if (to == here)
        reach(link, from);
    else
        call(link, from, to);
    return true;
}

/* ---- what comes ---- */

static void come_up(struct engine_mesh_peer *peer)
{
    struct engine_mesh_link *link = peer->link;

    engine_mesh_peer_move(peer, ENGINE_MESH_UP, "its first frame has come");
    if (engine_mesh_peer_flush(peer) != HVI_OK)
        doom(peer, strerrordesc_np(errno));
    if (peer->edge && --link->edges_missing == 0)
        link->config.calls->ready(link->config.user);
}

static void take_echo(struct engine_mesh_peer *peer, const unsigned char *body)
{
    const uint64_t sent_ns = engine_mesh_get_u64(body), now_ns = hvi_clock_ns();

    if (sent_ns < peer->since_ns || sent_ns > now_ns) /* none of ours */
        return;
    peer->row.rtt_ns = now_ns - sent_ns;
    if (peer->row.rtt_ns > peer->row.rtt_most_ns)
        peer->row.rtt_most_ns = peer->row.rtt_ns;
}

/* Returns false when the frame makes no sense. */
static bool take(struct engine_mesh_peer *peer, const struct engine_mesh_frame *frame)
{
    struct engine_mesh_link *link = peer->link;

    if (peer->state == ENGINE_MESH_CONNECTED)
        come_up(peer);
    switch (frame->kind) {
    case ENGINE_MESH_MESSAGE:
        peer->row.messages_received++;
        link->config.calls->message(link->config.user, peer->node, frame->body, frame->length);
        return true;
    case ENGINE_MESH_BEAT:
        if (peer->row.beats++ % ENGINE_MESH_ECHO_EVERY == 0)
            put(peer, ENGINE_MESH_ECHO, frame->body, frame->length);
        return true;
    case ENGINE_MESH_ECHO:
        take_echo(peer, frame->body);
        return true;
    case ENGINE_MESH_CALL:
        return take_call(link, frame->body);
    default:
        leave(peer, "its engine has ended in order");
        return true;
    }
}

/* The connection has ended, or cannot go on. */
static void end(struct engine_mesh_peer *peer, int status)
{
    const char *how = "its engine closed the control connection without a goodbye";

    if (status == HVI_ERR_CLOSED && peer->state == ENGINE_MESH_CONNECTED) {
        /* The other side may have given it up in the handshake, and make another. */
        detach(peer);
        engine_mesh_peer_move(peer, ENGINE_MESH_WAITING, "closed before the first frame");
        if (want(peer) != HVI_OK)
            doom(peer, "this node has no memory for a connection to it");
        return;
    }
    if (status == HVI_ERR_PROTOCOL)
        how = "it sent what is no frame of the protocol";
    else if (status == HVI_ERR_NO_MEMORY)
        how = "this node has no memory for what it sent";
    else if (errno == ECONNRESET)
        how = "its engine has given up the control connection, or has ended";
    else if (errno != 0)
        how = strerrordesc_np(errno);
    lose(peer, how);
}

static int take_all(struct engine_mesh_peer *peer)
{
    struct engine_mesh_frame frame;
    int status = HVI_INPROGRESS;

    while (is_connected(peer) &&
           (status = engine_mesh_frames_next(&peer->frames, &frame)) == HVI_OK) {
        if (!take(peer, &frame))
            return HVI_ERR_PROTOCOL;
    }
    return status == HVI_ERR_PROTOCOL ? status : HVI_OK;
}

/* Returns false when nothing has come. */
static bool read_once(struct engine_mesh_peer *peer)
{
    int status = engine_mesh_peer_read(peer);

    if (status == HVI_OK)
        status = take_all(peer);
    if (status != HVI_OK && status != HVI_INPROGRESS)
        end(peer, status);
    engine_mesh_frames_lend(&peer->frames, &peer->link->spare);
    return status != HVI_INPROGRESS;
}

static void read_from(struct engine_mesh_peer *peer)
{
    for (int i = 0; i < READS_AT_ONCE && is_connected(peer) && read_once(peer); i++)
        continue;
}

static int on_io(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct engine_mesh_peer *peer = user;

    (void)source, (void)fd;
    if ((events & EPOLLOUT) && engine_mesh_peer_flush(peer) != HVI_OK)
        doom(peer, strerrordesc_np(errno));
    if (is_connected(peer))
        read_once(peer); /* the loop comes again if there is more */
    beat_together(peer->link);
    return 0;
}

/* ---- the timer ---- */

/* Reads what has come, so that a goodbye is heard. */
static void conclude(struct engine_mesh_peer *peer)
{
    const char *why = peer->why;
    uint64_t received = UINT64_MAX;

    for (int i = 0; i < LAST_READS && peer->row.bytes_received != received; i++) {
        received = peer->row.bytes_received;
        read_from(peer);
    }
    if (peer->state != ENGINE_MESH_LEFT && peer->state != ENGINE_MESH_LOST)
        lose(peer, why);
}

static void check_silence(struct engine_mesh_peer *peer, uint64_t now_ns)
{
    if (!is_connected(peer) || now_ns < peer->heard_ns + ENGINE_MESH_SILENT_NS)
        return;
    read_from(peer);
    if (is_connected(peer) && now_ns >= peer->heard_ns + ENGINE_MESH_SILENT_NS)
        lose(peer, "nothing has come from it for 1.5 s");
}

static void beat_all(struct engine_mesh_link *link, uint64_t now_ns)
{
    struct engine_mesh_peer *peer;

    DL_FOREACH(link->peers, peer)
    {
        if (is_connected(peer) && engine_mesh_peer_beat(peer, now_ns) != HVI_OK)
            doom(peer, strerrordesc_np(errno));
    }
    link->beat_ns = now_ns + ENGINE_MESH_BEAT_NS;
}

static void suspect_oneself(struct engine_mesh_link *link, uint64_t now_ns)
{
    struct engine_mesh_peer *peer;

    if (link->looked_ns != 0 && now_ns - link->looked_ns > ENGINE_MESH_GAP_NS) {
        HVI_LOG(HVI_LOG_INFO, "mesh", "stood-still",
                "this engine stood still; it blames no other node for that", "ms=%llu",
                (unsigned long long)((now_ns - link->looked_ns) / HVI_NS_MS));
        DL_FOREACH(link->peers, peer)
        peer->heard_ns = now_ns;
    }
    link->looked_ns = now_ns;
}

/* At the next beat, or when the first node may be silent for too long; never without a connection. */
static void sleep_on(struct engine_mesh_link *link)
{
    uint64_t next_ns = HVI_NEVER;
    struct engine_mesh_peer *peer;

    DL_FOREACH(link->peers, peer)
    {
        if (peer->why) {
            wake_at(link, 0);
            return;
        }
        if (!is_connected(peer))
            continue;
        if (link->beat_ns < next_ns)
            next_ns = link->beat_ns;
        if (peer->heard_ns + ENGINE_MESH_SILENT_NS < next_ns)
            next_ns = peer->heard_ns + ENGINE_MESH_SILENT_NS;
    }
    if (next_ns != HVI_NEVER) {
        wake_at(link, next_ns + 1000);
        return;
    }
    link->looked_ns = 0;
    sd_event_source_set_enabled(link->timer, SD_EVENT_OFF);
}

/* Awake for what has come: beats that are due soon go now, since waking up for them costs more. The next ones
 * are early, so that nodes take turns in waking up first. */
static void beat_together(struct engine_mesh_link *link)
{
    const uint64_t now_ns = hvi_clock_ns();

    if (link->beat_ns > now_ns + SOON_NS)
        return;
    suspect_oneself(link, now_ns);
    beat_all(link, now_ns);
    link->beat_ns -= EARLY_NS;
    sleep_on(link);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine_mesh_link *link = user;
    struct engine_mesh_peer *peer;
    const uint64_t now_ns = hvi_clock_ns();

    (void)source, (void)usec;
    suspect_oneself(link, now_ns);
    DL_FOREACH(link->peers, peer)
    {
        if (peer->why)
            conclude(peer);
        else
            check_silence(peer, now_ns);
    }
    if (now_ns >= link->beat_ns)
        beat_all(link, now_ns);
    sleep_on(link);
    return 0;
}

/* ---- what net says ---- */

void engine_mesh_link_connected(struct engine_mesh_link *link, uint32_t node, int fd)
{
    struct engine_mesh_peer *peer = link->by_node[node];

    if (!peer)
        peer = add_peer(link, node, hvi_deadline_after((int64_t)ENGINE_MESH_REACH_NS));
    if (!peer || peer->state == ENGINE_MESH_UP || peer->state == ENGINE_MESH_LEFT ||
        peer->state == ENGINE_MESH_LOST) {
        close(fd);
        if (!peer)
            engine_net_gone(link->config.net, node, ENGINE_NET_CONTROL, 0);
        else if (peer->state == ENGINE_MESH_UP)
            lose(peer, "its engine opened a second control connection");
        return;
    }
    if (peer->state ==
        ENGINE_MESH_CONNECTED) /* given up by the other side, which has made this one */
        engine_mesh_peer_detach(peer);
    else
        engine_mesh_peer_move(peer, ENGINE_MESH_CONNECTED, "net has handed the connection over");
    if (engine_mesh_peer_attach(peer, fd, on_io) != HVI_OK) {
        end(peer, HVI_ERR_CLOSED);
        return;
    }
    if (link->looked_ns == 0) {
        link->looked_ns = hvi_clock_ns();
        link->beat_ns = link->looked_ns + ENGINE_MESH_BEAT_NS;
    }
    sleep_on(link);
}

void engine_mesh_link_failed(struct engine_mesh_link *link, uint32_t node, const char *text)
{
    struct engine_mesh_peer *peer = link->by_node[node];

    if (!peer || peer->state != ENGINE_MESH_WAITING)
        return;
    if (link->leaving && !peer->edge)
        leave(peer, "it was not reached, and nodes leave");
    else
        lose_with(peer, text);
}

/* ---- life ---- */

static int add_edge(struct engine_mesh_link *link, uint32_t node)
{
    struct engine_mesh_peer *peer;

    if (node == link->config.node || link->by_node[node])
        return HVI_OK;
    peer = add_peer(link, node, link->config.deadline_ns);
    if (!peer)
        return HVI_ERR_NO_MEMORY;
    peer->edge = true;
    link->edges_missing++;
    return want(peer);
}

static int add_edges(struct engine_mesh_link *link)
{
    const uint32_t here = link->config.node, nodes = link->config.nodes;
    int status = add_edge(link, (here + 1) % nodes);

    if (status == HVI_OK)
        status = add_edge(link, (here + nodes - 1) % nodes);
    if (status == HVI_OK && here > 0)
        status = add_edge(link, engine_mesh_parent(here));
    for (uint32_t i = 1; status == HVI_OK && i <= ENGINE_MESH_RADIX; i++) {
        if (here * ENGINE_MESH_RADIX + i < nodes)
            status = add_edge(link, here * ENGINE_MESH_RADIX + i);
    }
    return status;
}

int engine_mesh_link_open(struct engine_mesh_link *link,
                          const struct engine_mesh_link_config *config)
{
    HVI_ASSERT(config->nodes >= 2 && config->node < config->nodes);
    *link = (struct engine_mesh_link){.config = *config};
    link->by_node = calloc(config->nodes, sizeof(struct engine_mesh_peer *));
    if (!link->by_node)
        return HVI_ERR_NO_MEMORY;
    if (sd_event_add_time(config->event, &link->timer, CLOCK_MONOTONIC, UINT64_MAX, 1000, on_timer,
                          link) < 0 ||
        sd_event_source_set_enabled(link->timer, SD_EVENT_OFF) < 0 || add_edges(link) != HVI_OK) {
        engine_mesh_link_close(link);
        return HVI_ERR_NO_MEMORY;
    }
    return HVI_OK;
}

int engine_mesh_send(struct engine_mesh_link *link, uint32_t node, const unsigned char *bytes,
                     size_t length)
{
    struct engine_mesh_peer *peer;

    HVI_ASSERT(node < link->config.nodes && node != link->config.node);
    peer = reach(link, node);
    if (!peer)
        return HVI_ERR_NO_MEMORY;
    if (peer->why || peer->state == ENGINE_MESH_LEFT || peer->state == ENGINE_MESH_LOST)
        return HVI_ERR_NODE_LOST;
    put(peer, ENGINE_MESH_MESSAGE, bytes, length);
    return peer->why ? HVI_ERR_NODE_LOST : HVI_OK;
}

int engine_mesh_link_use(struct engine_mesh_link *link, uint32_t node)
{
    HVI_ASSERT(node < link->config.nodes && node != link->config.node);
    return reach(link, node) ? HVI_OK : HVI_ERR_NO_MEMORY;
}

void engine_mesh_link_let_leave(struct engine_mesh_link *link)
{
    link->leaving = true;
}

bool engine_mesh_link_row(const struct engine_mesh_link *link, size_t index,
                          struct engine_mesh_row *row_p)
{
    const struct engine_mesh_peer *peer;

    DL_FOREACH(link->peers, peer)
    {
        if (index-- == 0) {
            engine_mesh_peer_row(peer, row_p);
            return true;
        }
    }
    return false;
}

static void say_goodbye(struct engine_mesh_peer *peer)
{
    if (peer->state != ENGINE_MESH_UP || engine_mesh_peer_flush(peer) != HVI_OK)
        return;
    engine_mesh_peer_put(peer, ENGINE_MESH_BYE, NULL, 0);
    /* A socket that is closed with something unread in it drops what it has not sent. */
    while (recv(peer->fd, NULL, ENGINE_MESH_QUEUE_MAX, MSG_TRUNC | MSG_DONTWAIT) > 0)
        ;
}

static void log_figures(const struct engine_mesh_row *row)
{
    HVI_LOG(HVI_LOG_INFO, "mesh", "link-figures", "a control connection has ended",
            "node=%u bytes_out=%llu bytes_in=%llu messages_out=%llu messages_in=%llu beats=%llu "
            "rtt_us=%llu rtt_most_us=%llu retransmits=%llu",
            row->node, (unsigned long long)row->bytes_sent, (unsigned long long)row->bytes_received,
            (unsigned long long)row->messages_sent, (unsigned long long)row->messages_received,
            (unsigned long long)row->beats, (unsigned long long)(row->rtt_ns / 1000),
            (unsigned long long)(row->rtt_most_ns / 1000), (unsigned long long)row->retransmits);
}

void engine_mesh_link_close(struct engine_mesh_link *link)
{
    struct engine_mesh_peer *peer, *next;
    struct engine_mesh_row row;

    DL_FOREACH(link->peers, peer)
    say_goodbye(peer);
    for (size_t i = 0; engine_mesh_link_row(link, i, &row); i++)
        log_figures(&row);
    DL_FOREACH_SAFE(link->peers, peer, next)
    {
        DL_DELETE(link->peers, peer);
        engine_mesh_peer_free(peer);
    }
    link->timer = sd_event_source_disable_unref(link->timer);
    free(link->by_node);
    free(link->spare);
    link->by_node = NULL;
    link->spare = NULL;
}
