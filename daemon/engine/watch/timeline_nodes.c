/* SPDX-License-Identifier: Apache-2.0
 * The timeline of a job that spans nodes is one file. The node on which it was started writes it, the host; the
 * others are guests: they keep records in their rings until the host asks.
 *
 *   host:  the file is ready --clock, 8 rounds--> --start--> all have begun: Ack --pull, each 20 ms--> ...
 *          stop --pull the rest--> all are over, or 0.8 s: the writer ends
 *   guest: --start--> records --stop--> nothing is recorded; what is left is pulled --> over
 *
 * Everything is asked by a MeshAsk and answered by a MeshAnswer, so no more than one answer of a node is under way,
 * and a slow host makes guests drop records, which they count. A guest whose host has not asked for 5 s ends.
 * The difference of the clocks is measured once: an op's times may not go back. A guest that is asked to
 * stop by its own hvdd or trainer asks the host, whose answer comes when the file is complete.
 *
 * An engine that has nothing left to do stays until its records are where they belong: a host stops first, a
 * guest says that it is over when it is asked next. Neither waits for more than 0.8 s, or for a node that is gone. */
#include "daemon/engine/watch/timeline_nodes.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"
#include "daemon/engine/mesh/mesh.h"
#include "daemon/engine/slots/slots.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OURS      (1ull << 63) /* a MeshAsk about a timeline has a number with it */
#define WISH      (1ull << 62) /* a guest's, to stop */
#define PULL_US   20000u
#define WAIT_NS   (800 * HVI_NS_MS)
#define GUEST_NS  (5 * HVI_NS_SEC)
#define PART_MAX  (HVI_MESH_PART_MAX - 4096u)
#define PART_FULL (HVI_MESH_PART_MAX / 2) /* there may be more: it is asked at once */

/* What an answer begins with. */
enum part_what { PART_GOES_ON = 1, PART_OVER, PART_REFUSED };
struct part_head {
    uint32_t what, reserved;
};

struct timeline_node {
    uint32_t node;
    uint32_t rounds; /* of the clock, that are left */
    bool asked, begun, over;
    uint64_t asked_ns;
    struct engine_mesh_clock clock;
};

void engine_timeline_nodes_name(const struct engine_watch *watch, struct engine_timeline *timeline)
{
    if (watch->mesh)
        snprintf(timeline->prefix, sizeof timeline->prefix, "%u %s: ", watch->order->roster->here,
                 watch->sessions->node);
}

void engine_timeline_nodes_free(struct engine_timeline *timeline)
{
    timeline->nodes.timer = sd_event_source_disable_unref(timeline->nodes.timer);
    free(timeline->nodes.list);
    timeline->nodes.list = NULL;
}

/* ---- the host: records of others ---- */

static bool makes_sense(const struct timeline_record *record, const unsigned char *payload)
{
    switch (record->what) {
    case TIMELINE_NAME:
        return record->payload <= TIMELINE_NAME_MAX &&
               hvi_utf8_valid((const char *)payload, record->payload);
    case TIMELINE_BEGIN:
        return record->label <= TIMELINE_WORKER && record->payload == 0;
    case TIMELINE_TOOK:
        return record->label >= TIMELINE_NCCL && record->label <= TIMELINE_KERNELS &&
               record->payload == sizeof(struct timeline_took);
    case TIMELINE_COPIED:
        return record->payload == sizeof(uint64_t);
    case TIMELINE_END:
        return record->payload == 0 || record->payload == sizeof(struct timeline_shape);
    case TIMELINE_ARRIVED:
    case TIMELINE_CYCLE:
    case TIMELINE_DROPPED:
        return record->payload == 0;
    default:
        return false;
    }
}

/* The row of another node's row: the host's own come first. */
static uint32_t row_at(uint32_t here, uint32_t node, uint32_t row)
{
    return (node < here ? node + 1 : node) * TIMELINE_ROWS + row;
}

/* False: what the node sent cannot be. */
static bool take_records(struct engine_timeline *timeline, const struct timeline_node *node,
                         const unsigned char *bytes, size_t left)
{
    const uint32_t here = timeline->watch->order->roster->here;
    struct timeline_record record;

    while (left >= sizeof record) {
        memcpy(&record, bytes, sizeof record);
        if (record.bytes < sizeof record || record.bytes > left || record.row >= TIMELINE_ROWS ||
            record.payload > record.bytes - sizeof record ||
            !makes_sense(&record, bytes + sizeof record))
            return false;
        record.ts_ns -= node->clock.ahead_ns;
        record.row = row_at(here, node->node, record.row);
        const uint32_t length = record.bytes;
        if (!engine_timeline_push(timeline, &record, bytes + sizeof record, record.payload))
            timeline->dropped++;
        bytes += length;
        left -= length;
    }
    return left == 0;
}

/* ---- the host: asking ---- */

static void lose(struct engine_timeline *timeline, struct timeline_node *node, const char *why)
{
    HVI_LOG(HVI_LOG_WARN, "timeline", "timeline-part",
            "a node's part of the timeline is missing from now on", "job=%s node=%u why=\"%s\"",
            timeline->watch->start->job, node->node, why);
    node->over = true;
}

static int send_wish(struct engine_watch *watch, uint32_t to, uint64_t number, bool start,
                     bool mark_cycles)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_TIMELINE};
    struct hvi_mesh_ask ask = {.number = number};
    unsigned char packet[128];

    msg.engine_timeline.start = start;
    msg.engine_timeline.mark_cycles = mark_cycles;
    msg.engine_timeline.gpus = true;
    int status = hvi_packet_msg_encode(&msg, packet, sizeof packet, &ask.query_bytes);
    ask.query = packet;
    return status == HVI_OK ? engine_mesh_ask(watch->mesh, to, &ask) : status;
}

static void ask_node(struct engine_timeline *timeline, struct timeline_node *node)
{
    const struct hvi_mesh_ask clock = {.number = timeline->nodes.number};
    struct engine_watch *watch = timeline->watch;
    int status;

    node->asked = true;
    node->asked_ns = hvi_clock_ns();
    if (node->rounds > 0)
        status = engine_mesh_ask(watch->mesh, node->node, &clock);
    else
        status = send_wish(watch, node->node, timeline->nodes.number, !timeline->stopping,
                           timeline->mark_cycles);
    if (status != HVI_OK)
        lose(timeline, node, hvi_status_text(status));
}

static bool all_begun(const struct timeline_nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->count; i++) {
        if (!nodes->list[i].begun && !nodes->list[i].over)
            return false;
    }
    return true;
}

static bool all_over(const struct timeline_nodes *nodes)
{
    for (uint32_t i = 0; i < nodes->count; i++) {
        if (!nodes->list[i].over)
            return false;
    }
    return true;
}

static void lose_late(struct engine_timeline *timeline)
{
    for (uint32_t i = 0; i < timeline->nodes.count; i++) {
        if (!timeline->nodes.list[i].over)
            lose(timeline, &timeline->nodes.list[i], "it did not answer within 0.8 s");
    }
}

/* Goes on, if what was waited for has come, or its time is over. */
static void settle(struct engine_timeline *timeline)
{
    struct timeline_nodes *nodes = &timeline->nodes;
    bool late = hvi_clock_ns() >= nodes->deadline_ns;

    if (timeline->start_pending && (late || all_begun(nodes)))
        engine_timeline_begun(timeline->watch, HVI_OK);
    if (!timeline->stopping || atomic_load(&timeline->writer.stop) || (!late && !all_over(nodes)))
        return;
    lose_late(timeline);
    nodes->timer = sd_event_source_disable_unref(nodes->timer);
    engine_timeline_begin_stop(timeline->watch);
}

static int on_pull(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine_timeline *timeline = user;

    (void)usec;
    sd_event_source_set_time_relative(source, PULL_US);
    sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
    for (uint32_t i = 0; i < timeline->nodes.count; i++) {
        struct timeline_node *node = &timeline->nodes.list[i];
        if (!node->asked && !node->over)
            ask_node(timeline, node);
    }
    settle(timeline);
    return 0;
}

bool engine_timeline_nodes_start(struct engine_watch *watch, struct engine_timeline *timeline)
{
    struct timeline_nodes *nodes = &timeline->nodes;
    uint32_t count = watch->mesh ? watch->order->roster->nodes : 0;

    if (count < 2)
        return false;
    nodes->list = calloc(count - 1, sizeof *nodes->list);
    if (!nodes->list || sd_event_add_time_relative(watch->event, &nodes->timer, CLOCK_MONOTONIC,
                                                   PULL_US, 1000, on_pull, timeline) < 0) {
        engine_timeline_nodes_free(timeline);
        return false; /* it has this node alone, and the log says nothing of the others */
    }
    nodes->number = OURS | timeline->epoch;
    nodes->deadline_ns = hvi_clock_ns() + WAIT_NS;
    for (uint32_t node = 0; node < count; node++) {
        if (node == watch->order->roster->here)
            continue;
        nodes->list[nodes->count] =
            (struct timeline_node){.node = node, .rounds = ENGINE_MESH_CLOCK_ROUNDS};
        ask_node(timeline, &nodes->list[nodes->count++]);
    }
    settle(timeline);
    return true;
}

static int on_deadline(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec, (void)user;
    return 0; /* the loop looks after each event */
}

void engine_timeline_met(struct engine_watch *watch)
{
    struct engine_timeline *timeline = watch->timeline_alive;

    if (!timeline || timeline->nodes.guest)
        return;
    engine_timeline_nodes_name(watch, timeline);
    if (timeline->nodes.count > 0)
        return;
    timeline->nodes.deadline_ns = hvi_clock_ns() + WAIT_NS;
    if (timeline->opened && !timeline->stopping)
        engine_timeline_nodes_start(watch, timeline);
    else /* a file that is not open yet has no timer; this one ends with the loop */
        sd_event_add_time_relative(watch->event, NULL, CLOCK_MONOTONIC, WAIT_NS / 1000 + 1000, 1000,
                                   on_deadline, NULL);
}

bool engine_timeline_begins(const struct engine_watch *watch)
{
    const struct engine_timeline *timeline = watch->timeline_alive;

    if (!timeline || timeline->nodes.guest || timeline->stopping ||
        hvi_clock_ns() >= timeline->nodes.deadline_ns)
        return false;
    return timeline->nodes.count > 0 ? !all_begun(&timeline->nodes) : !timeline->opened;
}

static void hear(struct engine_timeline *timeline, struct timeline_node *node,
                 const struct hvi_mesh_answer *answer)
{
    struct part_head head = {.what = PART_REFUSED};

    node->asked = false;
    if (node->rounds > 0) {
        engine_mesh_clock_take(&node->clock, node->asked_ns, answer->heard_ns, answer->said_ns,
                               hvi_clock_ns());
        node->rounds--;
        ask_node(timeline, node);
        return;
    }
    if (answer->report_bytes >= sizeof head)
        memcpy(&head, answer->report, sizeof head);
    if (head.what != PART_GOES_ON && head.what != PART_OVER)
        lose(timeline, node, "it could not begin, or is in another timeline");
    else if (!take_records(timeline, node, answer->report + sizeof head,
                           answer->report_bytes - sizeof head))
        lose(timeline, node, "it sent what cannot be");
    node->begun = true;
    if (head.what == PART_OVER)
        node->over = true;
    if (!node->over && (timeline->stopping || answer->report_bytes > PART_FULL))
        ask_node(timeline, node);
}

/* ---- a guest ---- */

static void end_guest(struct engine_watch *watch)
{
    struct engine_timeline *timeline = watch->timeline_alive;

    if (watch->timeline)
        engine_slots_withhold(watch->slots, false);
    watch->timeline = watch->timeline_alive = NULL;
    engine_timeline_free(timeline);
}

/* The host will not write any more of it. */
static void abandon(struct engine_watch *watch, const char *why)
{
    struct engine_timeline *timeline = watch->timeline_alive;

    HVI_LOG(HVI_LOG_WARN, "timeline", "timeline-left", why, "job=%s node=%u", watch->start->job,
            timeline->nodes.host);
    if (timeline->stop_pending)
        engine_timeline_answer(watch, &timeline->stopper, HVI_ERR_TIMEOUT,
                               "the node that writes the timeline does not answer");
    end_guest(watch);
}

static int on_guest(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine_watch *watch = user;
    struct engine_timeline *timeline = watch->timeline_alive;

    (void)usec;
    if (!timeline->nodes.leaving && hvi_clock_ns() - timeline->nodes.heard_ns < GUEST_NS) {
        sd_event_source_set_time_relative(source, GUEST_NS / 1000);
        sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
        return 0;
    }
    abandon(watch,
            timeline->nodes.leaving
                ? "the node that writes the timeline has not asked for the last of this one's part"
                : "the node that writes the timeline has not asked for 5 s: this one's part ends");
    return 0;
}

/* NULL without memory. */
static struct engine_timeline *begin_guest(struct engine_watch *watch, uint32_t host,
                                           uint64_t number,
                                           const struct hvi_engine_timeline *wanted)
{
    struct engine_timeline *timeline = calloc(1, sizeof *timeline);

    if (!timeline)
        return NULL;
    timeline->writer = (struct timeline_writer){
        .ring = aligned_alloc(64, sizeof *timeline->writer.ring), .wake_fd = -1, .done_fd = -1};
    if (!timeline->writer.ring ||
        sd_event_add_time_relative(watch->event, &timeline->nodes.timer, CLOCK_MONOTONIC,
                                   GUEST_NS / 1000, 1000, on_guest, watch) < 0) {
        engine_timeline_free(timeline);
        return NULL;
    }
    atomic_init(&timeline->writer.ring->head, 0);
    atomic_init(&timeline->writer.ring->tail, 0);
    timeline->watch = watch;
    timeline->epoch = ++watch->timeline_epochs;
    timeline->mark_cycles = wanted->mark_cycles;
    timeline->takes_gpus = wanted->gpus;
    timeline->nodes.guest = true;
    timeline->nodes.host = host;
    timeline->nodes.number = number;
    snprintf(timeline->path, sizeof timeline->path, "a file on node %u", host);
    engine_timeline_nodes_name(watch, timeline);
    watch->timeline = watch->timeline_alive = timeline;
    engine_slots_withhold(watch->slots, true); /* what ranks do by themselves is not seen */
    engine_timeline_take_waiting(watch);
    return timeline;
}

/* Takes records out of the ring, as many as fit; the rest stays. */
static size_t take_out(struct timeline_ring *ring, unsigned char *bytes_p, size_t room)
{
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_relaxed);
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    size_t used = 0;

    while (tail != head) {
        const struct timeline_record *record =
            (const void *)(ring->bytes + (tail & (TIMELINE_RING_BYTES - 1)));
        const uint32_t length = record->bytes;
        if (record->what != TIMELINE_SKIP && used + length > room)
            break;
        if (record->what != TIMELINE_SKIP) {
            memcpy(bytes_p + used, record, length);
            used += length;
        }
        tail += length;
    }
    atomic_store_explicit(&ring->tail, tail, memory_order_relaxed); /* one thread has both ends */
    return used;
}

static bool is_empty(const struct timeline_ring *ring)
{
    return atomic_load_explicit(&ring->tail, memory_order_relaxed) ==
           atomic_load_explicit(&ring->head, memory_order_relaxed);
}

static void stop_recording(struct engine_watch *watch, struct engine_timeline *timeline)
{
    if (!watch->timeline)
        return;
    watch->timeline = NULL;
    engine_slots_withhold(watch->slots, false);
    engine_timeline_tell_dropped(timeline, hvi_clock_ns());
}

static size_t fill_part(struct engine_watch *watch, struct engine_timeline *guest, bool goes_on,
                        unsigned char *bytes_p)
{
    struct part_head head = {.what = PART_GOES_ON};
    size_t used;

    guest->nodes.heard_ns = hvi_clock_ns();
    goes_on = goes_on && !guest->nodes.leaving;
    if (!goes_on)
        stop_recording(watch, guest);
    used = take_out(guest->writer.ring, bytes_p + sizeof head, PART_MAX);
    if (!goes_on && is_empty(guest->writer.ring)) {
        head.what = PART_OVER;
        if (!guest->stop_pending) /* else the host's answer ends it */
            end_guest(watch);
    }
    memcpy(bytes_p, &head, sizeof head);
    return sizeof head + used;
}

/* ---- questions of other nodes ---- */

static bool is_host_of(const struct engine_timeline *timeline, uint32_t from, uint64_t number)
{
    return timeline && timeline->nodes.guest && timeline->nodes.host == from &&
           timeline->nodes.number == number;
}

/* A guest has been asked to stop. True: the answer follows. */
static bool take_wish(struct engine_watch *watch, uint32_t from, uint64_t number)
{
    struct engine_timeline *timeline = watch->timeline_alive;

    if (!timeline || timeline->nodes.guest || timeline->stopping)
        return false;
    timeline->nodes.has_stopper = true;
    timeline->nodes.stopper = from;
    timeline->nodes.stopper_number = number;
    timeline->stopping = true;
    if (!engine_timeline_nodes_stop(watch, timeline))
        engine_timeline_begin_stop(watch);
    return true;
}

static size_t answer_host(struct engine_watch *watch, uint32_t from, uint64_t number,
                          const struct hvi_engine_timeline *wanted, unsigned char *bytes_p)
{
    const struct part_head refused = {.what = PART_REFUSED};
    struct engine_timeline *guest = watch->timeline_alive;

    if (!guest && wanted->start)
        guest = begin_guest(watch, from, number, wanted);
    if (is_host_of(guest, from, number))
        return fill_part(watch, guest, wanted->start, bytes_p);
    memcpy(bytes_p, &refused, sizeof refused);
    return sizeof refused;
}

static bool decode(const struct hvi_mesh_ask *ask, struct hvi_engine_timeline *wanted_p)
{
    struct hvi_packet_msg msg;

    if (hvi_packet_msg_decode(ask->query, ask->query_bytes, &msg, NULL, 0) != HVI_OK)
        return false;
    bool good = msg.kind == HVI_PACKET_ENGINE_TIMELINE;
    if (good)
        *wanted_p = msg.engine_timeline;
    hvi_packet_msg_free(&msg);
    return good;
}

bool engine_timeline_asked(struct engine_watch *watch, uint32_t from,
                           const struct hvi_mesh_ask *ask)
{
    struct hvi_mesh_answer answer = {.number = ask->number, .heard_ns = hvi_clock_ns()};
    struct hvi_engine_timeline wanted;

    if ((ask->number & OURS) == 0 || ask->query_bytes == 0 || !decode(ask, &wanted))
        return false;
    if ((ask->number & WISH) != 0 && take_wish(watch, from, ask->number))
        return true;
    answer.report = malloc(HVI_MESH_PART_MAX);
    if (answer.report && (ask->number & WISH) == 0)
        answer.report_bytes = answer_host(watch, from, ask->number, &wanted, answer.report);
    answer.said_ns = hvi_clock_ns();
    engine_mesh_answer(watch->mesh, from, &answer);
    free(answer.report);
    return true;
}

/* ---- answers ---- */

/* The host has written the file, or does not know of it. */
static void end_wish(struct engine_watch *watch, const struct hvi_mesh_answer *answer)
{
    struct engine_timeline *guest = watch->timeline_alive;

    if (!guest || !guest->nodes.guest || !guest->stop_pending)
        return;
    bool good = answer->report_bytes > 0;
    engine_timeline_answer(watch, &guest->stopper, good ? HVI_OK : HVI_ERR_BUSY,
                           good ? "" : "the timeline is being stopped already");
    guest->stop_pending = false;
    guest->stopping = false;
    if (!watch->timeline)
        end_guest(watch);
}

bool engine_timeline_answered(struct engine_watch *watch, uint32_t from,
                              const struct hvi_mesh_answer *answer)
{
    struct engine_timeline *timeline = watch->timeline_alive;

    if ((answer->number & OURS) == 0)
        return false;
    if ((answer->number & WISH) != 0) {
        end_wish(watch, answer);
        return true;
    }
    if (!timeline || timeline->nodes.guest || timeline->nodes.number != answer->number)
        return true;
    for (uint32_t i = 0; i < timeline->nodes.count; i++) {
        struct timeline_node *node = &timeline->nodes.list[i];
        if (node->node != from || !node->asked || node->over)
            continue;
        hear(timeline, node, answer);
        settle(timeline);
        return true;
    }
    return true;
}

/* ---- the end ---- */

void engine_timeline_node_gone(struct engine_watch *watch, uint32_t node)
{
    struct engine_timeline *timeline = watch->timeline_alive;

    if (timeline && timeline->nodes.guest && timeline->nodes.host == node) {
        abandon(watch, "the node that writes the timeline is gone");
        return;
    }
    for (uint32_t i = 0; timeline && i < timeline->nodes.count; i++) {
        if (timeline->nodes.list[i].node != node || timeline->nodes.list[i].over)
            continue;
        lose(timeline, &timeline->nodes.list[i], "it is gone");
        settle(timeline);
        return;
    }
}

static void leave(struct engine_watch *watch, struct engine_timeline *guest)
{
    if (guest->nodes.leaving)
        return;
    guest->nodes.leaving = true;
    stop_recording(watch, guest);
    if (sd_event_source_set_time_relative(guest->nodes.timer, WAIT_NS / 1000) < 0 ||
        sd_event_source_set_enabled(guest->nodes.timer, SD_EVENT_ONESHOT) < 0)
        end_guest(watch);
}

bool engine_timeline_stays(struct engine_watch *watch)
{
    struct engine_timeline *timeline = watch->timeline_alive;

    if (!timeline)
        return false;
    if (timeline->nodes.guest) {
        leave(watch, timeline);
        return watch->timeline_alive;
    }
    if (timeline->nodes.count == 0)
        return false;
    if (!timeline->stopping) {
        timeline->stopping = true;
        engine_timeline_nodes_stop(watch, timeline);
    }
    return !atomic_load(&timeline->writer.stop);
}

bool engine_timeline_nodes_stop(struct engine_watch *watch, struct engine_timeline *timeline)
{
    struct timeline_nodes *nodes = &timeline->nodes;

    if (nodes->guest) {
        if (send_wish(watch, nodes->host, OURS | WISH | timeline->epoch, false, false) == HVI_OK)
            return true;
        engine_timeline_answer(watch, &timeline->stopper, HVI_ERR_NODE_LOST,
                               "the node that writes the timeline is lost");
        end_guest(watch);
        return true;
    }
    if (nodes->count == 0)
        return false;
    nodes->deadline_ns = hvi_clock_ns() + WAIT_NS;
    for (uint32_t i = 0; i < nodes->count; i++) {
        if (!nodes->list[i].asked && !nodes->list[i].over)
            ask_node(timeline, &nodes->list[i]);
    }
    settle(timeline);
    return true;
}

void engine_timeline_nodes_over(struct engine_watch *watch, struct engine_timeline *timeline)
{
    struct part_head head = {.what = PART_OVER};
    struct hvi_mesh_answer answer = {.number = timeline->nodes.stopper_number,
                                     .report = (unsigned char *)&head,
                                     .report_bytes = sizeof head};

    if (timeline->nodes.has_stopper)
        engine_mesh_answer(watch->mesh, timeline->nodes.stopper, &answer);
}
