/* SPDX-License-Identifier: Apache-2.0
 * Transfers over a stream socket. What is posted is moved by as few calls as possible: head and body in
 * one, and a receive also asks for the bytes behind it, so that a small message and the head of the
 * next need one call. Small messages are copied to one piece of memory first, which goes in one call. Where the
 * bytes are sealed, net_seal.c stands between what is posted and the socket.
 *
 * The socket is watched edge-triggered. A call that moved less than it was asked for has emptied or filled
 * the kernel's buffer, and none follows before epoll says so; but once the other end has said that it is
 * closing, every receive asks the kernel. */
#include "daemon/engine/exec/net_seal.h"

#include <errno.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

/* Behind what is posted. Larger would copy more of a large message twice. */
#define AHEAD_BYTES 8192u

struct tcp {
    int fd;
    bool readable, writable;
    bool closing;                  /* the other end */
    struct engine_wire_seal *seal; /* NULL: bytes go as they are */
    struct iovec out[3];           /* what is packed, a head, a body */
    unsigned char *to;
    uint64_t wanted;
    uint32_t ahead_at, ahead_end;
    unsigned char ahead[AHEAD_BYTES];
    unsigned char pack[ENGINE_WIRE_PACK_BYTES];
};

enum { PACK, HEAD, BODY, PIECES };

static void *tcp_open(void *shared, int fd, const struct hvi_seal_keys *keys)
{
    struct tcp *tcp = calloc(1, sizeof *tcp);
    const int one = 1;

    (void)shared;
    if (tcp && keys)
        tcp->seal = engine_wire_seal_new(keys);
    if (!tcp || (keys && !tcp->seal)) {
        free(tcp);
        close(fd);
        return NULL;
    }
    /* Harmless for sockets that are not TCP. */
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    tcp->fd = fd;
    tcp->readable = tcp->writable = true;
    return tcp;
}

static void tcp_close(void *port)
{
    struct tcp *tcp = port;

    shutdown(tcp->fd, SHUT_RDWR); /* a forked child may still hold it */
    close(tcp->fd);
    engine_wire_seal_free(tcp->seal);
    free(tcp);
}

static int tcp_fd(const void *port)
{
    return ((const struct tcp *)port)->fd;
}

static void tcp_ready(void *port, uint32_t events)
{
    struct tcp *tcp = port;

    if (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        tcp->readable = true;
    if (events & (EPOLLOUT | EPOLLHUP | EPOLLERR))
        tcp->writable = true;
    if (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR))
        tcp->closing = true;
}

static void tcp_post_send(void *port, const void *head, uint64_t head_bytes, const void *body,
                          uint64_t body_bytes)
{
    struct tcp *tcp = port;

    tcp->out[HEAD] = (struct iovec){(void *)(uintptr_t)head, head_bytes};
    tcp->out[BODY] = (struct iovec){(void *)(uintptr_t)body, body_bytes};
}

static bool tcp_packed(const void *port)
{
    const struct tcp *tcp = port;

    return tcp->out[PACK].iov_len > 0 || (tcp->seal && engine_wire_seal_unsent(tcp->seal));
}

static bool tcp_pack(void *port, const void *head, uint64_t head_bytes, const void *body,
                     uint64_t body_bytes)
{
    struct tcp *tcp = port;
    struct iovec *pack = &tcp->out[PACK];

    if (pack->iov_len == 0)
        pack->iov_base = tcp->pack;
    unsigned char *end = (unsigned char *)pack->iov_base + pack->iov_len;
    uint64_t room = (uint64_t)(tcp->pack + sizeof tcp->pack - end);
    if (tcp->out[HEAD].iov_len + tcp->out[BODY].iov_len > 0 || head_bytes > room ||
        body_bytes > room - head_bytes)
        return false;
    memcpy(end, head, head_bytes);
    if (body_bytes > 0)
        memcpy(end + head_bytes, body, body_bytes);
    pack->iov_len += head_bytes + body_bytes;
    return true;
}

static void tcp_post_receive(void *port, void *to, uint64_t bytes)
{
    struct tcp *tcp = port;

    tcp->to = to;
    tcp->wanted = bytes;
}

static bool tcp_divert(void *port, void *to)
{
    ((struct tcp *)port)->to = to;
    return true;
}

static uint64_t tcp_missing(const void *port)
{
    return ((const struct tcp *)port)->wanted;
}

static void forget_sent(struct tcp *tcp, size_t bytes)
{
    for (int i = 0; i < PIECES; i++) {
        size_t now = bytes < tcp->out[i].iov_len ? bytes : tcp->out[i].iov_len;
        if (now == 0)
            continue;
        tcp->out[i].iov_base = (char *)tcp->out[i].iov_base + now;
        tcp->out[i].iov_len -= now;
        bytes -= now;
    }
}

static int tcp_send(void *port)
{
    struct tcp *tcp = port;
    struct msghdr message = {.msg_iov = tcp->out, .msg_iovlen = PIECES};
    size_t all = tcp->out[PACK].iov_len + tcp->out[HEAD].iov_len + tcp->out[BODY].iov_len;

    if (tcp->seal)
        return engine_wire_seal_send(tcp->seal, tcp->fd, tcp->out, PIECES, &tcp->writable);
    if (!tcp->writable)
        return ENGINE_WIRE_WAITS;
    ssize_t sent = sendmsg(tcp->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0)
        return engine_wire_stopped(&tcp->writable);
    forget_sent(tcp, (size_t)sent);
    return (size_t)sent == all ? ENGINE_WIRE_OVER : ENGINE_WIRE_MOVED;
}

/* Bytes that were asked for together with earlier ones. */
static bool take_ahead(struct tcp *tcp)
{
    uint64_t now = tcp->ahead_end - tcp->ahead_at;

    if (now > tcp->wanted)
        now = tcp->wanted;
    memcpy(tcp->to, tcp->ahead + tcp->ahead_at, now);
    tcp->ahead_at += (uint32_t)now;
    tcp->to += now;
    tcp->wanted -= now;
    return now > 0;
}

static void take_received(struct tcp *tcp, uint64_t bytes)
{
    uint64_t own = bytes < tcp->wanted ? bytes : tcp->wanted;

    tcp->to += own;
    tcp->wanted -= own;
    tcp->ahead_at = 0;
    tcp->ahead_end = (uint32_t)(bytes - own);
}

/* The memory that is posted may lack a page: only the kernel touches it, but for take_ahead, which the
 * caller of receive() has to expect; sealed bytes are opened there. */
static int tcp_receive(void *port)
{
    struct tcp *tcp = port;

    if (tcp->seal)
        return engine_wire_seal_receive(tcp->seal, tcp->fd, &tcp->to, &tcp->wanted, &tcp->readable,
                                        tcp->closing);
    bool moved = take_ahead(tcp);
    if (tcp->wanted == 0)
        return ENGINE_WIRE_OVER;
    if (!tcp->readable)
        return moved ? ENGINE_WIRE_MOVED : ENGINE_WIRE_WAITS;
    struct iovec in[2] = {{tcp->to, tcp->wanted}, {tcp->ahead, AHEAD_BYTES}};
    struct msghdr message = {.msg_iov = in, .msg_iovlen = 2};
    uint64_t all = tcp->wanted + AHEAD_BYTES;
    ssize_t received = recvmsg(tcp->fd, &message, MSG_DONTWAIT);
    if (received < 0) {
        int stopped = engine_wire_stopped(&tcp->readable);
        return stopped == ENGINE_WIRE_WAITS && moved ? ENGINE_WIRE_MOVED : stopped;
    }
    if (received == 0)
        return -ECONNRESET;
    if ((uint64_t)received < all && !tcp->closing)
        tcp->readable = false;
    take_received(tcp, (uint64_t)received);
    return tcp->wanted == 0 ? ENGINE_WIRE_OVER : ENGINE_WIRE_MOVED;
}

static void tcp_count(const void *port, struct engine_lane_row *row_p)
{
    const struct tcp *tcp = port;
    struct tcp_info info = {0};
    socklen_t length = sizeof info;

    if (getsockopt(tcp->fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0)
        return;
    row_p->bytes_sent += info.tcpi_bytes_acked;
    row_p->bytes_received += info.tcpi_bytes_received;
    row_p->retransmits += info.tcpi_total_retrans;
    row_p->rtt_ns = (uint64_t)info.tcpi_rtt * 1000;
}

const struct engine_wire_transport engine_wire_tcp = {
    .name = "tcp",
    .patience_ns = ENGINE_SILENT_NS,
    .open = tcp_open,
    .close = tcp_close,
    .fd = tcp_fd,
    .ready = tcp_ready,
    .post_send = tcp_post_send,
    .pack = tcp_pack,
    .packed = tcp_packed,
    .post_receive = tcp_post_receive,
    .divert = tcp_divert,
    .missing = tcp_missing,
    .send = tcp_send,
    .receive = tcp_receive,
    .count = tcp_count,
};
