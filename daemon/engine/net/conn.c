/* SPDX-License-Identifier: Apache-2.0
 * One connection in its handshake: bytes between the socket and handshake.c. No byte beyond the handshake
 * is read: it belongs to the receiver. */
#include "daemon/engine/net/conn.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define LOG_EVERY_NS            HVI_NS_SEC
#define CONTROL_USER_TIMEOUT_MS 1500

/* Of a connection on which nothing is under way. The kernel asks the other one after .idle_s, and each .each_s until there is an
 * answer; .count questions without one end the connection. */
struct keepalive {
    int idle_s, each_s, count;
};
static const struct keepalive of_control = {1, 1, 1};
/* Firewalls that forget silent connections give them minutes. Six questions, as a way that loses a tenth in each direction
 * loses six of them one time in 20,000. */
static const struct keepalive of_data = {30, 10, 6};

static int blame_errno(const char **why_p)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)
        return HVI_INPROGRESS;
    *why_p = strerror(errno);
    return HVI_ERR_CLOSED;
}

/* HVI_OK: nothing is left to send. */
static int flush(struct engine_net_conn *conn, const char **why_p)
{
    struct engine_net_handshake *handshake = &conn->handshake;

    while (handshake->out_sent < handshake->out_length) {
        ssize_t sent = send(conn->fd, handshake->out + handshake->out_sent,
                            handshake->out_length - handshake->out_sent, MSG_NOSIGNAL);
        if (sent < 0)
            return blame_errno(why_p);
        handshake->out_sent += (size_t)sent;
    }
    return HVI_OK;
}

/* HVI_OK: a message is there. */
static int fill(struct engine_net_conn *conn, const char **why_p)
{
    struct engine_net_handshake *handshake = &conn->handshake;

    while (handshake->in_have < handshake->in_need) {
        ssize_t got = recv(conn->fd, handshake->in + handshake->in_have,
                           handshake->in_need - handshake->in_have, 0);
        if (got < 0)
            return blame_errno(why_p);
        if (got == 0) {
            *why_p = "it closed the connection during the handshake; its log says why";
            return HVI_ERR_CLOSED;
        }
        handshake->in_have += (size_t)got;
    }
    return HVI_OK;
}

static int work(struct engine_net_conn *conn, const struct engine_net_identity *identity,
                const char **why_p)
{
    for (;;) {
        int status = flush(conn, why_p);
        if (status != HVI_OK || conn->handshake.stage == ENGINE_NET_STAGE_DONE)
            return status;
        status = fill(conn, why_p);
        if (status != HVI_OK || !identity)
            return status == HVI_OK ? HVI_INPROGRESS : status;
        status = engine_net_handshake_step(&conn->handshake, identity, why_p);
        if (status != HVI_OK && status != HVI_INPROGRESS)
            return status;
    }
}

int engine_net_conn_work(struct engine_net_conn *conn, const struct engine_net_identity *identity,
                         const char **why_p)
{
    const struct engine_net_handshake *handshake = &conn->handshake;
    uint32_t events = 0; /* a hello that waits for the start: the end of the connection alone */
    int status = work(conn, identity, why_p);

    if (status != HVI_INPROGRESS)
        return status;
    if (handshake->out_sent < handshake->out_length)
        events = EPOLLOUT;
    else if (handshake->in_have < handshake->in_need)
        events = EPOLLIN;
    if (sd_event_source_set_io_events(conn->io, events) < 0) {
        *why_p = "out of memory";
        return HVI_ERR_CLOSED;
    }
    return HVI_INPROGRESS;
}

void engine_net_conn_log_refusal(struct engine_net *net, const struct sockaddr_storage *peer,
                                 const char *why)
{
    const uint64_t now_ns = hvi_clock_ns();
    char place[ENGINE_NET_ADDRESS_TEXT];

    if (net->logged_ns != 0 && now_ns - net->logged_ns < LOG_EVERY_NS) {
        net->unlogged++;
        return;
    }
    engine_net_address_place(peer, place);
    HVI_LOG(HVI_LOG_WARN, "net", "connection-refused", why, "peer=%s more=%u", place,
            net->unlogged);
    net->logged_ns = now_ns;
    net->unlogged = 0;
}

void engine_net_conn_close(struct engine_net_conn *conn)
{
    conn->io = sd_event_source_disable_unref(conn->io);
    if (conn->fd >= 0)
        close(conn->fd);
    conn->fd = -1;
}

static void keep_alive(int fd, const struct keepalive *keepalive)
{
    const int on = 1;

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &keepalive->idle_s, sizeof keepalive->idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &keepalive->each_s, sizeof keepalive->each_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &keepalive->count, sizeof keepalive->count);
}

/* A receiver of data may pause for long, and TCP_USER_TIMEOUT would take that for a loss. Its kernel answers keepalive. */
static void tune(int fd, enum engine_net_purpose purpose)
{
    const int on = 1, timeout_ms = CONTROL_USER_TIMEOUT_MS;

    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    keep_alive(fd, purpose == ENGINE_NET_CONTROL ? &of_control : &of_data);
    if (purpose == ENGINE_NET_CONTROL)
        setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout_ms, sizeof timeout_ms);
}

uint16_t engine_net_conn_bit(enum engine_net_purpose purpose, uint32_t lane)
{
    return (uint16_t)(purpose == ENGINE_NET_CONTROL ? 1u : 2u << lane);
}

void engine_net_conn_hand_over(struct engine_net *net, int fd,
                               const struct engine_net_handshake *handshake)
{
    const uint32_t node = handshake->peer;
    const bool sealed = net->identity.encrypts && handshake->purpose == ENGINE_NET_DATA;
    struct hvi_seal_keys keys = {.send = {0}};

    tune(fd, handshake->purpose);
    engine_net_pace_settle(net, fd, engine_net_pace_round_trip(fd));
    net->nodes[node].handed |= engine_net_conn_bit(handshake->purpose, handshake->lane);
    if (sealed)
        engine_net_handshake_keys(handshake, &net->identity, &keys);
    net->calls->connected(net->user, node, handshake->purpose, handshake->lane, fd,
                          sealed ? &keys : NULL);
    explicit_bzero(&keys, sizeof keys);
}
