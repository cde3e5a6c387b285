/* SPDX-License-Identifier: Apache-2.0
 * The listening side. A connection is a stranger until its handshake is over. Strangers are few, in all and
 * from one address, and have 5 s; the log has a line a second of those that are refused, and how many more
 * there were.
 *
 * Where all places are taken, the newcomer gets the place of the oldest stranger without a hello: an engine's
 * hello comes right behind its connection. Strangers with a hello wait for a round trip more. They have the
 * places of the others while they are no more than half; beyond that the oldest of them goes first, so a
 * crowd that sends hellos leaves room for newcomers, too. An engine that loses its place tries again
 * (connect.c).
 *
 * A flood, whose connections come anew as they are refused, would take all of the loop's time. So accepting
 * is paced (base/pace.h), with rests that are about as long as what they interrupt: half of the time is the
 * job's. Longer rests let the queue fill up, and the kernel drops what finds no place there: beside one process
 * that connected and closed, on two busy cores, an engine of the same address was let in at once with rests
 * of 0.3 ms, after 0.1 to 3.5 s with 1 ms, and after 2.8 s to more than 8 with 12 ms. An engine's connection costs
 * nothing once it has proved itself, so a start of many nodes is not slowed down. */
#include "daemon/engine/net/conn.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>
#include <utlist.h>

#define ACCEPTS_AT_ONCE 4 /* other sources have their turn under a flood, too */
#define REST_NS         (HVI_NS_MS * 3 / 10)
#define PAUSE_NS        (100 * HVI_NS_MS) /* without descriptors a listening socket stays readable */
#define BACKLOG         4096              /* or net.core.somaxconn, where that is less */

struct engine_net_stranger {
    struct engine_net *net;
    struct engine_net_conn conn;
    sd_event_source *timer;
    struct sockaddr_storage from;
    struct engine_net_stranger *prev, *next;
};

/* ---- strangers ---- */

static void drop(struct engine_net_stranger *stranger)
{
    struct engine_net *net = stranger->net;

    DL_DELETE(net->strangers, stranger);
    net->waiting--;
    stranger->timer = sd_event_source_disable_unref(stranger->timer);
    engine_net_conn_close(&stranger->conn);
    free(stranger);
}

static void refuse(struct engine_net_stranger *stranger, const char *why)
{
    engine_net_conn_log_refusal(stranger->net, &stranger->from, why);
    drop(stranger);
}

static void welcome(struct engine_net_stranger *stranger)
{
    struct engine_net *net = stranger->net;
    const struct engine_net_handshake handshake = stranger->conn.handshake;
    const int fd = stranger->conn.fd;

    stranger->conn.io = sd_event_source_disable_unref(stranger->conn.io);
    stranger->conn.fd = -1;
    drop(stranger);
    hvi_pace_refund(&net->accepts);
    engine_net_wish_fulfil(net, handshake.peer, handshake.purpose, handshake.lane);
    engine_net_conn_hand_over(net, fd, &handshake);
}

static int on_stranger(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct engine_net_stranger *stranger = user;
    struct engine_net *net = stranger->net;
    const char *why = "";
    int status = engine_net_conn_work(&stranger->conn, net->nodes ? &net->identity : NULL, &why);

    (void)source, (void)fd;
    if (status == HVI_OK)
        welcome(stranger);
    else if (status != HVI_INPROGRESS)
        refuse(stranger, why);
    else if (events & (EPOLLHUP | EPOLLERR))
        refuse(stranger, "it closed the connection during the handshake");
    return 0;
}

static int on_late(sd_event_source *source, uint64_t usec, void *user)
{
    const struct engine_net_stranger *stranger = user;

    (void)source, (void)usec;
    refuse(user, stranger->net->nodes ? "it has not proved itself within 5 s"
                                      : "this engine has not got its roster within 5 s");
    return 0;
}

static bool has_hello(const struct engine_net_stranger *stranger)
{
    const struct engine_net_handshake *handshake = &stranger->conn.handshake;

    return handshake->stage != ENGINE_NET_STAGE_HELLO || handshake->in_have == handshake->in_need;
}

/* Which stranger loses its place. from: of this address; NULL: of all. NULL: they are fewer than `limit`. */
static struct engine_net_stranger *find_oldest(const struct engine_net *net,
                                               const struct sockaddr_storage *from, uint32_t limit)
{
    struct engine_net_stranger *stranger, *oldest[2] = {NULL, NULL}; /* without and with a hello */
    uint32_t count[2] = {0, 0};

    DL_FOREACH(net->strangers, stranger)
    {
        if (from && !engine_net_address_near(&stranger->from, from))
            continue;
        if (count[has_hello(stranger)]++ == 0)
            oldest[has_hello(stranger)] = stranger;
    }
    if (count[false] + count[true] < limit)
        return NULL;
    return oldest[count[true] > limit / 2];
}

static void make_room(struct engine_net *net, const struct sockaddr_storage *from)
{
    struct engine_net_stranger *near = find_oldest(net, from, ENGINE_NET_PER_ADDRESS);

    if (near)
        refuse(near, "too many connections of this address have not proved themselves");
    else if (net->waiting >= ENGINE_NET_WAITING_MAX)
        refuse(find_oldest(net, NULL, ENGINE_NET_WAITING_MAX),
               "too many connections have not proved themselves");
}

static void take(struct engine_net *net, int fd, const struct sockaddr_storage *from)
{
    unsigned char nonce[ENGINE_NET_NONCE_BYTES];
    struct engine_net_stranger *stranger = calloc(1, sizeof *stranger);

    if (!stranger) {
        engine_net_conn_log_refusal(net, from, "out of memory");
        close(fd);
        return;
    }
    make_room(net, from);
    stranger->net = net;
    stranger->conn.fd = fd;
    stranger->from = *from;
    engine_net_nonce(nonce);
    engine_net_handshake_accept(&stranger->conn.handshake, nonce);
    DL_APPEND(net->strangers, stranger);
    net->waiting++;
    if (sd_event_add_io(net->event, &stranger->conn.io, fd, EPOLLIN, on_stranger, stranger) < 0 ||
        sd_event_add_time_relative(net->event, &stranger->timer, CLOCK_MONOTONIC,
                                   ENGINE_NET_HANDSHAKE_NS / 1000, 1000, on_late, stranger) < 0)
        refuse(stranger, "out of memory");
}

void engine_net_listen_resume(struct engine_net *net)
{
    struct engine_net_stranger *stranger, *next;

    DL_FOREACH_SAFE(net->strangers, stranger, next)
    {
        if (sd_event_source_set_io_events(stranger->conn.io, EPOLLIN | EPOLLOUT) < 0)
            refuse(stranger, "out of memory");
    }
}

/* ---- accepting ---- */

static int on_pause_over(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine_net *net = user;

    (void)source, (void)usec;
    net->pause = sd_event_source_disable_unref(net->pause);
    sd_event_source_set_enabled(net->listening, SD_EVENT_ON);
    return 0;
}

static void rest(struct engine_net *net, uint64_t rest_ns)
{
    if (sd_event_add_time_relative(net->event, &net->pause, CLOCK_MONOTONIC, rest_ns / 1000, 1,
                                   on_pause_over, net) >= 0)
        sd_event_source_set_enabled(net->listening, SD_EVENT_OFF);
}

static void pause_accepting(struct engine_net *net)
{
    const uint64_t now_ns = hvi_clock_ns();

    if (net->paused_ns == 0 || now_ns - net->paused_ns >= HVI_NS_SEC) {
        net->paused_ns = now_ns;
        HVI_LOG(HVI_LOG_WARN, "net", "cannot-accept", "an engine's connection waits",
                "error=\"%s\"", strerror(errno));
    }
    rest(net, PAUSE_NS);
}

static int on_listening(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct engine_net *net = user;

    (void)source, (void)events;
    for (int i = 0; i < ACCEPTS_AT_ONCE; i++) {
        struct sockaddr_storage from = {0};
        socklen_t length = sizeof from;
        int peer = accept4(fd, (struct sockaddr *)&from, &length, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (peer >= 0) {
            engine_net_address_plain(&from);
            take(net, peer, &from);
            if (!hvi_pace_accepted(&net->accepts, hvi_clock_ns()))
                continue;
            rest(net, REST_NS);
            break;
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting(net);
            break;
        } else if (errno == EAGAIN) {
            if (hvi_pace_empty(&net->accepts))
                rest(net, REST_NS);
            break;
        }
    }
    return 0;
}

/* ---- the port ---- */

/* The socket, or -1 with errno. */
static int listen_at(const struct sockaddr_storage *address, bool all)
{
    const int on = 1, off = 0;
    int fd = socket(address->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on,
               sizeof on); /* past TIME_WAIT, not past a listener */
    if (address->ss_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, all ? &off : &on, sizeof on);
    if (bind(fd, (const struct sockaddr *)address, engine_net_address_length(address)) == 0 &&
        listen(fd, BACKLOG) == 0)
        return fd;
    int error = errno;
    close(fd);
    errno = error;
    return -1;
}

static int listen_on(const char *address, uint16_t port)
{
    struct sockaddr_storage at;

    if (address)
        return engine_net_address_parse(address, port, &at) == HVI_OK ? listen_at(&at, false) : -1;
    engine_net_address_parse("::", port, &at);
    int fd = listen_at(&at, true);
    if (fd >= 0 || (errno != EAFNOSUPPORT && errno != EADDRNOTAVAIL))
        return fd;
    engine_net_address_parse("0.0.0.0", port, &at); /* a kernel without IPv6 */
    return listen_at(&at, true);
}

/* From the last one down: a gate, which searches from the first one, is to find its port free when it comes
 * back after its death. */
static int find_port(struct engine_net *net, const char *address, uint16_t port_first,
                     uint16_t port_last, char *text_p)
{
    int error = EADDRINUSE;

    for (int port = port_last; port >= port_first && error == EADDRINUSE; port--) {
        net->fd = listen_on(address, (uint16_t)port);
        if (net->fd >= 0)
            return HVI_OK;
        error = errno;
    }
    if (error == EADDRINUSE)
        snprintf(text_p, ENGINE_NET_TEXT,
                 "none of the ports %u to %u is free at %s: give HVD_PORT_RANGE (port-range of "
                 "hvdd.conf) a wider range",
                 (unsigned)port_first, (unsigned)port_last, address ? address : "this node");
    else
        snprintf(text_p, ENGINE_NET_TEXT, "cannot listen for other engines at %s, port %u: %s",
                 address ? address : "this node", (unsigned)port_first, strerror(error));
    return HVI_ERR_LIMIT;
}

int engine_net_listen(struct engine_net *net, sd_event *event, const char *address,
                      uint16_t port_first, uint16_t port_last, uint16_t *port_p,
                      char text_p[ENGINE_NET_TEXT])
{
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;

    *net = (struct engine_net){.fd = -1, .event = event};
    if (engine_net_crypto_open() != HVI_OK) {
        snprintf(text_p, ENGINE_NET_TEXT, "the system has no random numbers");
        return HVI_ERR_DAEMON;
    }
    if (address && engine_net_address_parse(address, 0, &bound) != HVI_OK) {
        snprintf(text_p, ENGINE_NET_TEXT, "'%s' is no numeric address", address);
        return HVI_ERR_INVALID;
    }
    int status = find_port(net, address, port_first, port_last, text_p);
    if (status != HVI_OK)
        return status;
    engine_net_pace_begin(net, net->fd);
    if (getsockname(net->fd, (struct sockaddr *)&bound, &length) != 0 ||
        sd_event_add_io(event, &net->listening, net->fd, EPOLLIN, on_listening, net) < 0) {
        snprintf(text_p, ENGINE_NET_TEXT, "out of memory");
        engine_net_listen_close(net);
        return HVI_ERR_NO_MEMORY;
    }
    *port_p = engine_net_address_port(&bound);
    return HVI_OK;
}

void engine_net_listen_close(struct engine_net *net)
{
    while (net->strangers)
        drop(net->strangers);
    net->listening = sd_event_source_disable_unref(net->listening);
    net->pause = sd_event_source_disable_unref(net->pause);
    if (net->fd >= 0)
        close(net->fd);
    net->fd = -1;
}
