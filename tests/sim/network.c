/* SPDX-License-Identifier: Apache-2.0
 * What mesh/link.c and mesh/peer.c see of the world: sockets (-Wl,--wrap), sd-event's sources, and net/.
 *
 *   sendmsg ──> segment, latency and jitter later ──> EPOLLIN ──> recv
 *
 * A connection keeps the order of its segments, as TCP does. Connections of different pairs are independent, so
 * messages of different nodes overtake each other. A segment that is lost is sent again after .again_ns, and those behind it
 * wait. A node's link sends one byte after the other. What a connection has under way is bounded: then the socket takes
 * nothing more, until the receiver has read. */
#include "tests/sim/sim.h"

#include "base/assert.h"
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#define FD_FIRST 1000000

struct hvt_segment {
    struct hvt_segment *next;
    uint64_t arrives_ns;
    size_t length, taken; /* 0: the end of file */
    unsigned char bytes[];
};

/* One side of a connection. */
struct hvt_end {
    struct hvt_end *next; /* of its node */
    struct hvt_node *node;
    struct hvt_end *peer;
    sd_event_source *io; /* NULL: nobody listens */
    struct hvt_segment *first, **last;
    uint64_t latest_ns; /* when the last segment arrives */
    uint64_t under_way; /* bytes that the peer has still to read */
    int fd;
    bool closed, posted, posted_room;
};

struct sd_event_source {
    struct sd_event_source *next; /* of all */
    struct hvt_node *node;
    void *user;
    sd_event_time_handler_t on_time; /* a timer */
    uint64_t at_us, turn;            /* of the event that is posted */
    bool armed;
    sd_event_io_handler_t on_io; /* else */
    struct hvt_end *end;
    uint32_t events;
};

struct hvt_network hvt_network;
struct hvt_figures hvt_figures;

static struct hvt_end **all_ends;
static uint32_t end_count, end_room;
static struct sd_event_source *all_sources;
static uint32_t cut_first, cut_end; /* nodes on one side; none */

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __wrap_recv(int fd, void *bytes, size_t room, int flags);
int __wrap_close(int fd);
int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *length);
ssize_t __real_sendmsg(int fd, const struct msghdr *message, int flags);
ssize_t __real_recv(int fd, void *bytes, size_t room, int flags);
int __real_close(int fd);
int __real_getsockopt(int fd, int level, int option, void *value, socklen_t *length);

static struct hvt_end *end_of(int fd)
{
    return fd >= FD_FIRST && (uint32_t)(fd - FD_FIRST) < end_count ? all_ends[fd - FD_FIRST] : NULL;
}

static bool is_cut(const struct hvt_node *a, const struct hvt_node *b)
{
    return (a->number >= cut_first && a->number < cut_end) !=
           (b->number >= cut_first && b->number < cut_end);
}

void hvt_network_cut(uint32_t first, uint32_t end)
{
    cut_first = first;
    cut_end = end;
}

/* ---- segments ---- */

static void on_readable(struct hvt_node *node, void *user, uint64_t value);

static void post_readable(struct hvt_end *end)
{
    if (end->posted || !end->first || !end->io)
        return;
    uint64_t now_ns = hvt_clock_now();
    end->posted = true;
    hvt_clock_post(end->node, end->first->arrives_ns > now_ns ? end->first->arrives_ns : now_ns,
                   on_readable, end, 0);
}

static void on_readable(struct hvt_node *node, void *user, uint64_t value)
{
    struct hvt_end *end = user;

    (void)node, (void)value;
    end->posted = false;
    if (end->io && end->first && end->first->arrives_ns <= hvt_clock_now())
        end->io->on_io(end->io, end->fd, EPOLLIN, end->io->user);
    post_readable(end);
}

static void on_room(struct hvt_node *node, void *user, uint64_t value)
{
    struct hvt_end *end = user;

    (void)node, (void)value;
    end->posted_room = false;
    if (end->io && (end->io->events & EPOLLOUT))
        end->io->on_io(end->io, end->fd, EPOLLOUT, end->io->user);
}

/* When what is sent now is there. */
static uint64_t arrival(struct hvt_end *end, size_t length)
{
    struct hvt_node *node = end->node;
    uint64_t now_ns = hvt_clock_now();

    if (node->wire_ns < now_ns)
        node->wire_ns = now_ns;
    node->wire_ns += length * hvt_network.byte_ps / 1000;
    uint64_t at_ns = node->wire_ns + hvt_network.latency_ns;
    if (hvt_network.jitter_ns > 0)
        at_ns += hvt_clock_random(hvt_network.jitter_ns);
    if (hvt_network.loss_ppm > 0 && hvt_clock_random(1000000) < hvt_network.loss_ppm) {
        at_ns += hvt_network.again_ns;
        hvt_figures.again++;
    }
    if (end->latest_ns < at_ns)
        end->latest_ns = at_ns;
    return end->latest_ns;
}

static struct hvt_segment *segment_new(struct hvt_end *end, size_t length)
{
    struct hvt_segment *segment = hvt_memory_new(sizeof *segment + length);
    struct hvt_end *to = end->peer;

    segment->length = length;
    segment->arrives_ns = arrival(end, length);
    hvt_figures.segments++;
    if (to->closed || is_cut(end->node, to->node)) { /* it is on its way for ever */
        hvt_memory_free(segment);
        return NULL;
    }
    *to->last = segment;
    to->last = &segment->next;
    post_readable(to);
    return segment;
}

static void drop_first(struct hvt_end *end)
{
    struct hvt_segment *segment = end->first;

    end->first = segment->next;
    if (!end->first)
        end->last = &end->first;
    hvt_memory_free(segment);
}

/* ---- sockets ---- */

ssize_t __wrap_sendmsg(int fd, const struct msghdr *message, int flags)
{
    struct hvt_end *end = end_of(fd);
    size_t length = 0, at = 0;

    if (!end)
        return __real_sendmsg(fd, message, flags);
    for (size_t i = 0; i < message->msg_iovlen; i++)
        length += message->msg_iov[i].iov_len;
    hvt_clock_pay(hvt_costs.send_ns);
    if (end->under_way >= hvt_network.window) {
        errno = EAGAIN;
        return -1;
    }
    if (length > hvt_network.window - end->under_way)
        length = hvt_network.window - end->under_way;
    hvt_clock_pay(length * hvt_costs.byte_ps / 1000);
    hvt_figures.bytes += length;
    end->under_way += length;
    struct hvt_segment *segment = segment_new(end, length);
    for (size_t i = 0; segment && at < length; i++) {
        size_t part = message->msg_iov[i].iov_len;
        part = part < length - at ? part : length - at;
        memcpy(segment->bytes + at, message->msg_iov[i].iov_base, part);
        at += part;
    }
    return (ssize_t)length;
}

/* The sender may have waited for room. */
static void make_room(struct hvt_end *from, size_t bytes)
{
    from->under_way -= bytes;
    if (from->closed || !from->io || !(from->io->events & EPOLLOUT) || from->posted_room)
        return;
    from->posted_room = true;
    hvt_clock_post(from->node, hvt_clock_now() + hvt_network.latency_ns, on_room, from, 0);
}

ssize_t __wrap_recv(int fd, void *bytes, size_t room, int flags)
{
    struct hvt_end *end = end_of(fd);
    size_t got = 0;

    if (!end)
        return __real_recv(fd, bytes, room, flags);
    hvt_clock_pay(hvt_costs.receive_ns);
    while (end->first && end->first->arrives_ns <= hvt_clock_now() && got < room) {
        struct hvt_segment *segment = end->first;
        size_t part = segment->length - segment->taken;
        if (segment->length == 0)
            return (ssize_t)got;
        part = part < room - got ? part : room - got;
        if (bytes)
            memcpy((unsigned char *)bytes + got, segment->bytes + segment->taken, part);
        segment->taken += part;
        got += part;
        if (segment->taken == segment->length)
            drop_first(end);
    }
    hvt_clock_pay(got * hvt_costs.byte_ps / 1000);
    make_room(end->peer, got);
    if (got > 0)
        return (ssize_t)got;
    errno = EAGAIN;
    return -1;
}

int __wrap_close(int fd)
{
    struct hvt_end *end = end_of(fd);

    if (!end)
        return __real_close(fd);
    if (end->closed)
        return 0;
    end->closed = true;
    while (end->first)
        drop_first(end);
    segment_new(end, 0);
    return 0;
}

/* The kernel has nothing to say of a connection. */
int __wrap_getsockopt(int fd, int level, int option, void *value, socklen_t *length)
{
    return end_of(fd) ? -1 : __real_getsockopt(fd, level, option, value, length);
}

void hvt_network_close_all(struct hvt_node *node)
{
    for (struct hvt_end *end = node->ends; end; end = end->next) {
        end->io = NULL;
        if (!end->closed)
            __wrap_close(end->fd);
    }
}

/* ---- sources ---- */

static sd_event_source *source_new(sd_event *event, void *user)
{
    struct sd_event_source *source = hvt_memory_new(sizeof *source);

    source->node = event->node;
    source->user = user;
    source->next = all_sources;
    all_sources = source;
    return source;
}

int sd_event_add_io(sd_event *event, sd_event_source **source_p, int fd, uint32_t events,
                    sd_event_io_handler_t on_io, void *user)
{
    sd_event_source *source = source_new(event, user);

    source->on_io = on_io;
    source->events = events;
    source->end = end_of(fd);
    source->end->io = source;
    *source_p = source;
    post_readable(source->end);
    return 0;
}

int sd_event_source_set_io_events(sd_event_source *source, uint32_t events)
{
    source->events = events;
    if ((events & EPOLLOUT) && source->end->under_way < hvt_network.window)
        make_room(source->end, 0);
    return 0;
}

int sd_event_add_time(sd_event *event, sd_event_source **source_p, clockid_t clock, uint64_t usec,
                      uint64_t accuracy, sd_event_time_handler_t on_time, void *user)
{
    sd_event_source *source = source_new(event, user);

    (void)clock, (void)accuracy;
    source->on_time = on_time;
    source->at_us = usec;
    *source_p = source;
    return 0;
}

int sd_event_source_set_time(sd_event_source *source, uint64_t usec)
{
    source->at_us = usec;
    return 0;
}

static void on_time(struct hvt_node *node, void *user, uint64_t turn)
{
    sd_event_source *source = user;

    (void)node;
    if (!source->armed || source->turn != turn)
        return;
    source->armed = false;
    source->on_time(source, source->at_us, source->user);
}

/* Not on the node's thread: most of these have been put off. */
static void on_due(struct hvt_node *node, void *user, uint64_t turn)
{
    sd_event_source *source = user;

    (void)node;
    if (source->armed && source->turn == turn)
        hvt_clock_post(source->node, hvt_clock_now(), on_time, source, turn);
}

int sd_event_source_set_enabled(sd_event_source *source, int enabled)
{
    uint64_t at_ns = source->at_us * 1000;

    source->armed = enabled == SD_EVENT_ONESHOT;
    source->turn++;
    if (source->armed)
        hvt_clock_post(NULL, at_ns > hvt_clock_now() ? at_ns : hvt_clock_now(), on_due, source,
                       source->turn);
    return 0;
}

sd_event_source *sd_event_source_disable_unref(sd_event_source *source)
{
    if (!source)
        return NULL;
    source->armed = false;
    if (source->end && source->end->io == source)
        source->end->io = NULL;
    return NULL;
}

/* ---- net/ ---- */

static struct hvt_node *node_of(const struct engine_net *net)
{
    return (struct hvt_node *)(uintptr_t)((const unsigned char *)net -
                                          offsetof(struct hvt_node, net));
}

static struct hvt_end *end_new(struct hvt_node *node)
{
    struct hvt_end *end = hvt_memory_new(sizeof *end);

    if (end_count == end_room) {
        uint32_t room = end_room ? 2 * end_room : 256;
        struct hvt_end **ends = hvt_memory_new(room * sizeof(struct hvt_end *));
        if (end_count > 0)
            memcpy(ends, all_ends, end_count * sizeof(struct hvt_end *));
        hvt_memory_free(all_ends);
        all_ends = ends;
        end_room = room;
    }
    end->node = node;
    end->last = &end->first;
    end->fd = FD_FIRST + (int)end_count;
    end->next = node->ends;
    node->ends = end;
    all_ends[end_count++] = end;
    return end;
}

/* Of two nodes the lower connects: TCP's two segments, and then a hello and a proof each. */
int engine_net_connect(struct engine_net *net, uint32_t to, enum engine_net_purpose purpose,
                       uint32_t lane, uint64_t deadline_ns)
{
    struct hvt_node *here = node_of(net), *there = &here->job->node[to];

    (void)purpose, (void)lane, (void)deadline_ns;
    here->wants[to] = 1;
    if (!there->wants || !there->wants[here->number] || is_cut(here, there))
        return HVI_OK;
    struct hvt_node *low = here->number < to ? here : there, *high = low == here ? there : here;
    struct hvt_end *connects = end_new(low), *accepts = end_new(high);
    uint64_t way_ns = hvt_network.latency_ns;
    connects->peer = accepts;
    accepts->peer = connects;
    hvt_figures.connections++;
    hvt_clock_post(high, hvt_clock_now() + 5 * way_ns, hvt_node_connected, low,
                   (uint64_t)accepts->fd);
    hvt_clock_post(low, hvt_clock_now() + 6 * way_ns, hvt_node_connected, high,
                   (uint64_t)connects->fd);
    return HVI_OK;
}

void engine_net_gone(struct engine_net *net, uint32_t node, enum engine_net_purpose purpose,
                     uint32_t lane)
{
    (void)purpose, (void)lane;
    node_of(net)->wants[node] = 0;
}

void engine_net_describe(const struct engine_net *net, uint32_t node, char text_p[ENGINE_NET_TEXT])
{
    (void)net;
    snprintf(text_p, ENGINE_NET_TEXT, "node %u (h%u)", node, node);
}

void hvt_network_reset(void)
{
    for (uint32_t i = 0; i < end_count; i++) {
        while (all_ends[i]->first)
            drop_first(all_ends[i]);
        hvt_memory_free(all_ends[i]);
    }
    hvt_memory_free(all_ends);
    all_ends = NULL;
    end_count = end_room = 0;
    while (all_sources) {
        struct sd_event_source *source = all_sources;
        all_sources = source->next;
        hvt_memory_free(source);
    }
    cut_first = cut_end = 0;
    hvt_figures = (struct hvt_figures){0};
}
