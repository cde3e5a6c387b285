/* SPDX-License-Identifier: Apache-2.0
 * The listening side. A connection is a stranger until its handshake is over. Strangers are few, in all and
 * from one address, and have 5 s; the log has a line a second of those that are refused, and how many more
 * there were. An engine that is refused for want of room tries again (connect.c). */
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

#define ACCEPTS_AT_ONCE 4                 /* other sources have their turn under a flood, too */
#define PAUSE_NS        (100 * HVI_NS_MS) /* without descriptors a listening socket stays readable */
#define BACKLOG         1024

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

static const char *find_room(const struct engine_net *net, const struct sockaddr_storage *from)
{
    const struct engine_net_stranger *other;
    uint32_t near = 0;

    if (net->waiting >= ENGINE_NET_WAITING_MAX)
        return "too many connections have not proved themselves";
    DL_FOREACH(net->strangers, other)
    near += engine_net_address_near(&other->from, from);
    return near >= ENGINE_NET_PER_ADDRESS
               ? "too many connections of this address have not proved themselves"
               : NULL;
}

static void take(struct engine_net *net, int fd, const struct sockaddr_storage *from)
{
    unsigned char nonce[ENGINE_NET_NONCE_BYTES];
    const char *why = find_room(net, from);
    struct engine_net_stranger *stranger = why ? NULL : calloc(1, sizeof *stranger);

    if (!stranger) {
        engine_net_conn_log_refusal(net, from, why ? why : "out of memory");
        close(fd);
        return;
    }
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

static void pause_accepting(struct engine_net *net)
{
    const uint64_t now_ns = hvi_clock_ns();

    if (net->paused_ns == 0 || now_ns - net->paused_ns >= HVI_NS_SEC) {
        net->paused_ns = now_ns;
        HVI_LOG(HVI_LOG_WARN, "net", "cannot-accept", "an engine's connection waits",
                "error=\"%s\"", strerror(errno));
    }
    if (sd_event_add_time_relative(net->event, &net->pause, CLOCK_MONOTONIC, PAUSE_NS / 1000, 1000,
                                   on_pause_over, net) >= 0)
        sd_event_source_set_enabled(net->listening, SD_EVENT_OFF);
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
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
            pause_accepting(net);
            break;
        } else if (errno == EAGAIN) {
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
