/* SPDX-License-Identifier: Apache-2.0
 * One control connection: bytes out of the queue, bytes into frames. What they mean is link.c's. */
#include "daemon/engine/mesh/peer.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define QUEUE_USUAL ((size_t)65536)

const char *engine_mesh_state_text(enum engine_mesh_state state)
{
    static const char *const texts[ENGINE_MESH_STATES] = {"waiting", "connected", "up", "left",
                                                          "lost"};

    return texts[state];
}

bool engine_mesh_edge(enum engine_mesh_state from, enum engine_mesh_state to)
{
    switch (from) {
    case ENGINE_MESH_WAITING:
        return to == ENGINE_MESH_CONNECTED || to == ENGINE_MESH_LEFT || to == ENGINE_MESH_LOST;
    case ENGINE_MESH_CONNECTED:
        return to == ENGINE_MESH_WAITING || to == ENGINE_MESH_UP || to == ENGINE_MESH_LOST;
    case ENGINE_MESH_UP:
        return to == ENGINE_MESH_LEFT || to == ENGINE_MESH_LOST;
    default:
        return false;
    }
}

void engine_mesh_peer_move(struct engine_mesh_peer *peer, enum engine_mesh_state state,
                           const char *cause)
{
    HVI_ASSERT(engine_mesh_edge(peer->state, state));
    HVI_LOG(HVI_LOG_DEBUG, "mesh", "peer-state", cause, "node=%u from=%s to=%s", peer->node,
            engine_mesh_state_text(peer->state), engine_mesh_state_text(state));
    peer->state = state;
}

/* ---- the socket ---- */

int engine_mesh_peer_attach(struct engine_mesh_peer *peer, int fd, sd_event_io_handler_t on_io)
{
    HVI_ASSERT(peer->fd < 0);
    peer->fd = fd;
    peer->since_ns = peer->heard_ns = hvi_clock_ns();
    if (sd_event_add_io(peer->link->config.event, &peer->io, fd, EPOLLIN, on_io, peer) < 0) {
        errno = ENOMEM;
        return HVI_ERR_CLOSED;
    }
    return engine_mesh_peer_beat(peer, peer->since_ns);
}

/* Adds what the kernel knows of the connection. */
static void ask_kernel(int fd, struct engine_mesh_row *row)
{
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
        return;
    row->retransmits += info.tcpi_total_retrans;
    row->kernel_rtt_ns = (uint64_t)info.tcpi_rtt * 1000;
}

void engine_mesh_peer_detach(struct engine_mesh_peer *peer)
{
    peer->io = sd_event_source_disable_unref(peer->io);
    engine_mesh_frames_fini(&peer->frames);
    if (peer->fd < 0)
        return;
    ask_kernel(peer->fd, &peer->row);
    close(peer->fd);
    peer->fd = -1;
}

void engine_mesh_peer_give_up(struct engine_mesh_peer *peer)
{
    const struct linger at_once = {.l_onoff = 1};

    if (peer->fd >= 0)
        setsockopt(peer->fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

void engine_mesh_peer_row(const struct engine_mesh_peer *peer, struct engine_mesh_row *row_p)
{
    *row_p = peer->row;
    row_p->node = peer->node;
    if (peer->fd >= 0)
        ask_kernel(peer->fd, row_p);
}

void engine_mesh_peer_free(struct engine_mesh_peer *peer)
{
    engine_mesh_peer_detach(peer);
    free(peer->queue);
    free(peer);
}

/* ---- out ---- */

static bool queue_is_empty(const struct engine_mesh_peer *peer)
{
    return peer->queue_head == peer->queue_tail;
}

/* Bytes that the socket has taken, or -1. */
static ssize_t send_parts(struct engine_mesh_peer *peer, const struct iovec *parts, size_t count)
{
    const struct msghdr msg = {.msg_iov = (struct iovec *)parts, .msg_iovlen = count};
    ssize_t sent = sendmsg(peer->fd, &msg, MSG_NOSIGNAL);

    if (sent < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (sent > 0)
        peer->row.bytes_sent += (uint64_t)sent;
    return sent;
}

static int make_room(struct engine_mesh_peer *peer, size_t more)
{
    const size_t queued = peer->queue_tail - peer->queue_head;
    size_t room = peer->queue_room ? peer->queue_room : QUEUE_USUAL;

    if (queued + more > ENGINE_MESH_QUEUE_MAX)
        return HVI_ERR_LIMIT;
    if (more <= peer->queue_room - peer->queue_tail)
        return HVI_OK;
    if (peer->queue_head > 0) {
        memmove(peer->queue, peer->queue + peer->queue_head, queued);
        peer->queue_head = 0;
        peer->queue_tail = queued;
    }
    while (room < queued + more)
        room *= 2;
    if (room == peer->queue_room)
        return HVI_OK;
    unsigned char *queue = realloc(peer->queue, room);
    if (!queue)
        return HVI_ERR_NO_MEMORY;
    peer->queue = queue;
    peer->queue_room = room;
    return HVI_OK;
}

/* Queues both parts without their first `sent` bytes. */
static int enqueue(struct engine_mesh_peer *peer, const struct iovec *parts, size_t count,
                   size_t sent)
{
    size_t total = 0;

    for (size_t i = 0; i < count; i++)
        total += parts[i].iov_len;
    int status = make_room(peer, total - sent);
    for (size_t i = 0; status == HVI_OK && i < count; i++) {
        const size_t skip = sent < parts[i].iov_len ? sent : parts[i].iov_len;
        if (parts[i].iov_len > skip)
            memcpy(peer->queue + peer->queue_tail, (const unsigned char *)parts[i].iov_base + skip,
                   parts[i].iov_len - skip);
        peer->queue_tail += parts[i].iov_len - skip;
        sent -= skip;
    }
    return status;
}

static void listen_for(struct engine_mesh_peer *peer)
{
    const bool sends = peer->state == ENGINE_MESH_UP && !queue_is_empty(peer);

    if (peer->io)
        sd_event_source_set_io_events(peer->io, sends ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

int engine_mesh_peer_put(struct engine_mesh_peer *peer, enum engine_mesh_kind kind,
                         const unsigned char *body, size_t length)
{
    unsigned char head[ENGINE_MESH_HEAD_BYTES];
    const struct iovec parts[2] = {{.iov_base = head, .iov_len = sizeof head},
                                   {.iov_base = (unsigned char *)body, .iov_len = length}};
    const size_t count = length > 0 ? 2 : 1;
    ssize_t sent = 0;

    HVI_ASSERT(length <= ENGINE_MESH_BODY_MAX);
    engine_mesh_frame_head(head, kind, (uint32_t)length);
    if (peer->state == ENGINE_MESH_UP && queue_is_empty(peer))
        sent = send_parts(peer, parts, count);
    if (sent < 0)
        return HVI_ERR_CLOSED;
    peer->row.messages_sent += kind == ENGINE_MESH_MESSAGE;
    if ((size_t)sent == sizeof head + length)
        return HVI_OK;
    int status = enqueue(peer, parts, count, (size_t)sent);
    listen_for(peer);
    return status;
}

int engine_mesh_peer_beat(struct engine_mesh_peer *peer, uint64_t now_ns)
{
    unsigned char beat[ENGINE_MESH_HEAD_BYTES + 8];
    const struct iovec part = {.iov_base = beat, .iov_len = sizeof beat};

    engine_mesh_put_u64(beat + ENGINE_MESH_HEAD_BYTES, now_ns);
    if (peer->state == ENGINE_MESH_UP)
        return queue_is_empty(peer)
                   ? engine_mesh_peer_put(peer, ENGINE_MESH_BEAT, beat + ENGINE_MESH_HEAD_BYTES, 8)
                   : HVI_OK;
    /* Messages that wait for "up" come after it. A new connection takes a few beats whole. */
    engine_mesh_frame_head(beat, ENGINE_MESH_BEAT, 8);
    errno = EAGAIN;
    return send_parts(peer, &part, 1) == (ssize_t)sizeof beat ? HVI_OK : HVI_ERR_CLOSED;
}

int engine_mesh_peer_flush(struct engine_mesh_peer *peer)
{
    while (!queue_is_empty(peer)) {
        const struct iovec part = {.iov_base = peer->queue + peer->queue_head,
                                   .iov_len = peer->queue_tail - peer->queue_head};
        ssize_t sent = send_parts(peer, &part, 1);
        if (sent < 0)
            return HVI_ERR_CLOSED;
        if (sent == 0)
            break;
        peer->queue_head += (size_t)sent;
    }
    if (queue_is_empty(peer)) {
        peer->queue_head = peer->queue_tail = 0;
        if (peer->queue_room > QUEUE_USUAL) {
            free(peer->queue);
            peer->queue = NULL;
            peer->queue_room = 0;
        }
    }
    listen_for(peer);
    return HVI_OK;
}

/* ---- in ---- */

int engine_mesh_peer_read(struct engine_mesh_peer *peer)
{
    size_t room = 0;

    engine_mesh_frames_borrow(&peer->frames, &peer->link->spare);
    unsigned char *into = engine_mesh_frames_room(&peer->frames, &room);
    if (!into)
        return HVI_ERR_NO_MEMORY;
    ssize_t got = recv(peer->fd, into, room, MSG_DONTWAIT);
    if (got < 0)
        return errno == EAGAIN || errno == EINTR ? HVI_INPROGRESS : HVI_ERR_CLOSED;
    if (got == 0) {
        errno = 0;
        return HVI_ERR_CLOSED;
    }
    engine_mesh_frames_filled(&peer->frames, (size_t)got);
    peer->row.bytes_received += (uint64_t)got;
    peer->heard_ns = hvi_clock_ns();
    return HVI_OK;
}
