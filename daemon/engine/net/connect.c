/* SPDX-License-Identifier: Apache-2.0
 * Connections that are wanted. The lower node tries until the deadline; the higher waits as long:
 *
 *   trying ──refused, closed, too slow──> pausing ──20 ms, doubling to 500──> trying
 *   trying ──handshake over──> connected            either ──deadline──> failed
 *
 * Whatever goes wrong is tried again: the other engine may not have its roster yet, may have no room, or
 * an engine of an old epoch may still hold the port. */
#include "daemon/engine/net/conn.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <utlist.h>

#define PAUSE_FIRST_NS (20 * HVI_NS_MS)
#define PAUSE_LAST_NS  (500 * HVI_NS_MS)

struct engine_net_wish {
    struct engine_net *net;
    uint32_t node, lane;
    enum engine_net_purpose purpose;
    uint64_t deadline_ns, pause_ns;
    struct engine_net_conn conn; /* .fd < 0: not trying */
    uint64_t began_ns;           /* the attempt */
    bool reached;                /* the connection is there, the handshake not over */
    bool answered;               /* an attempt has, and .why says how it ended */
    sd_event_source *timer;
    char from[ENGINE_NET_ADDRESS_TEXT], why[128]; /* of the last attempt */
    struct engine_net_wish *prev, *next;
};

static void forget(struct engine_net_wish *wish)
{
    DL_DELETE(wish->net->wishes, wish);
    wish->timer = sd_event_source_disable_unref(wish->timer);
    engine_net_conn_close(&wish->conn);
    free(wish);
}

static void describe_failure(const struct engine_net_wish *wish, char text_p[ENGINE_NET_TEXT])
{
    const struct engine_net *net = wish->net;
    const struct engine_net_node *peer = &net->nodes[wish->node];
    const struct engine_net_node *own = &net->nodes[net->identity.node];
    char who[ENGINE_NET_TEXT];

    engine_net_describe(net, wish->node, who);
    if (wish->node < net->identity.node)
        snprintf(text_p, ENGINE_NET_TEXT, "%.128s at %s has not connected to %s in time", who,
                 peer->host, own->place);
    else
        snprintf(text_p, ENGINE_NET_TEXT, "%.128s at %s cannot be reached from %s: %s", who,
                 peer->place, wish->from[0] ? wish->from : own->host, wish->why);
}

static void fail(struct engine_net_wish *wish)
{
    struct engine_net *net = wish->net;
    const uint32_t node = wish->node, lane = wish->lane;
    const enum engine_net_purpose purpose = wish->purpose;
    char text[ENGINE_NET_TEXT];

    describe_failure(wish, text);
    forget(wish);
    net->calls->failed(net->user, node, purpose, lane, text);
}

/* The timer goes off then, or at the deadline. */
static void wake_after(struct engine_net_wish *wish, uint64_t delay_ns)
{
    const uint64_t left_ns = hvi_deadline_left(wish->deadline_ns);

    if (delay_ns > left_ns)
        delay_ns = left_ns;
    sd_event_source_set_time_relative(wish->timer, delay_ns / 1000 + 1);
    sd_event_source_set_enabled(wish->timer, SD_EVENT_ONESHOT);
}

static void try_later(struct engine_net_wish *wish, const char *why)
{
    snprintf(wish->why, sizeof wish->why, "%s", why);
    wish->answered = true;
    engine_net_conn_close(&wish->conn);
    wake_after(wish, wish->pause_ns);
    wish->pause_ns = wish->pause_ns * 2 < PAUSE_LAST_NS ? wish->pause_ns * 2 : PAUSE_LAST_NS;
}

static void begin_handshake(struct engine_net_wish *wish)
{
    unsigned char nonce[ENGINE_NET_NONCE_BYTES];

    wish->reached = true;
    engine_net_nonce(nonce);
    engine_net_handshake_connect(&wish->conn.handshake, &wish->net->identity, wish->node,
                                 wish->purpose, wish->lane, nonce);
}

static void work(struct engine_net_wish *wish)
{
    struct engine_net *net = wish->net;
    const char *why = "";
    int status = engine_net_conn_work(&wish->conn, &net->identity, &why);

    if (status == HVI_INPROGRESS)
        return;
    if (status == HVI_ERR_PROTOCOL)
        engine_net_conn_log_refusal(net, &net->nodes[wish->node].address, why);
    if (status != HVI_OK) {
        try_later(wish, why);
        return;
    }
    const struct engine_net_wish done = *wish;
    wish->conn.io = sd_event_source_disable_unref(wish->conn.io);
    wish->conn.fd = -1;
    forget(wish);
    engine_net_conn_hand_over(net, done.conn.fd, &done.conn.handshake);
}

static int on_io(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct engine_net_wish *wish = user;
    int error = 0;
    socklen_t length = sizeof error;

    (void)source, (void)events;
    if (!wish->reached) {
        if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) {
            try_later(wish, strerror(error));
            return 0;
        }
        begin_handshake(wish);
    }
    work(wish);
    return 0;
}

static void note_from(struct engine_net_wish *wish)
{
    static const char *const unknown[] = {"0.0.0.0", "::"};
    struct sockaddr_storage own;
    socklen_t length = sizeof own;

    wish->from[0] = '\0';
    if (getsockname(wish->conn.fd, (struct sockaddr *)&own, &length) != 0)
        return;
    engine_net_address_host(&own, wish->from);
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        if (strcmp(wish->from, unknown[i]) == 0)
            wish->from[0] = '\0';
    }
}

static void attempt(struct engine_net_wish *wish)
{
    const struct sockaddr_storage *to = &wish->net->nodes[wish->node].address;
    int fd = socket(to->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    wish->conn.fd = fd;
    wish->began_ns = hvi_clock_ns();
    wish->reached = false;
    if (fd < 0) {
        try_later(wish, strerror(errno));
        return;
    }
    engine_net_pace_begin(wish->net, fd);
    int failed = connect(fd, (const struct sockaddr *)to, engine_net_address_length(to));
    int error = failed ? errno : 0;
    note_from(wish);
    if (error != 0 && error != EINPROGRESS)
        try_later(wish, strerror(error));
    else if (sd_event_add_io(wish->net->event, &wish->conn.io, fd, EPOLLOUT, on_io, wish) < 0)
        try_later(wish, "out of memory");
    else
        wake_after(wish, ENGINE_NET_HANDSHAKE_NS);
}

static int on_timer(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine_net_wish *wish = user;

    (void)source, (void)usec;
    /* What the attempt at the deadline has met is what people need to know, where it had time to meet something. */
    if (wish->conn.fd >= 0 && (!wish->answered || hvi_clock_ns() - wish->began_ns >= PAUSE_LAST_NS))
        snprintf(wish->why, sizeof wish->why, "%s",
                 wish->reached ? "its engine does not go on with the handshake" : "no answer");
    if (hvi_deadline_passed(wish->deadline_ns)) {
        fail(wish);
    } else if (wish->node < wish->net->identity.node) {
        wake_after(wish, HVI_NEVER);
    } else {
        engine_net_conn_close(&wish->conn);
        attempt(wish);
    }
    return 0;
}

static struct engine_net_wish *find(const struct engine_net *net, uint32_t node,
                                    enum engine_net_purpose purpose, uint32_t lane)
{
    struct engine_net_wish *wish;

    DL_FOREACH(net->wishes, wish)
    {
        if (wish->node == node && wish->purpose == purpose && wish->lane == lane)
            return wish;
    }
    return NULL;
}

int engine_net_connect(struct engine_net *net, uint32_t node, enum engine_net_purpose purpose,
                       uint32_t lane, uint64_t deadline_ns)
{
    HVI_ASSERT(net->nodes && node < net->identity.nodes && node != net->identity.node);
    HVI_ASSERT(lane < ENGINE_NET_LANES && (purpose == ENGINE_NET_DATA || lane == 0));
    const uint16_t bit = engine_net_conn_bit(purpose, lane);
    /* One that did not last is not made again in a hurry. */
    const uint64_t first_ns = (net->nodes[node].gone & bit) ? PAUSE_LAST_NS : 0;
    if ((net->nodes[node].handed & bit) || find(net, node, purpose, lane))
        return HVI_OK;
    struct engine_net_wish *wish = calloc(1, sizeof *wish);
    if (!wish)
        return HVI_ERR_NO_MEMORY;
    *wish = (struct engine_net_wish){.net = net,
                                     .node = node,
                                     .purpose = purpose,
                                     .lane = lane,
                                     .deadline_ns = deadline_ns,
                                     .pause_ns = PAUSE_FIRST_NS,
                                     .why = "no time was given"};
    wish->conn.fd = -1;
    if (sd_event_add_time_relative(net->event, &wish->timer, CLOCK_MONOTONIC, first_ns / 1000, 1000,
                                   on_timer, wish) < 0) {
        free(wish);
        return HVI_ERR_NO_MEMORY;
    }
    DL_APPEND(net->wishes, wish);
    return HVI_OK;
}

void engine_net_wish_fulfil(struct engine_net *net, uint32_t node, enum engine_net_purpose purpose,
                            uint32_t lane)
{
    struct engine_net_wish *wish = find(net, node, purpose, lane);

    if (wish)
        forget(wish);
}

void engine_net_wish_close_all(struct engine_net *net)
{
    while (net->wishes)
        forget(net->wishes);
}
