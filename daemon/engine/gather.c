/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/gather.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/event/event.h"
#include "daemon/engine/mesh/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#define GATHERS_MAX 64u

enum part_state {
    PART_WAITS, /* the node has been asked */
    PART_CAME,  /* it has answered; of this node: it is made when it is sent */
    PART_SILENT,
    PART_SENT, /* hvdd has it */
};

struct part {
    uint32_t node;
    enum part_state state;
    uint32_t rounds; /* of the clock, that are left */
    uint64_t asked_ns;
    struct engine_mesh_clock clock;
    const char *why; /* SILENT */
    unsigned char *bytes;
    size_t length;
};

struct engine_gather {
    struct engine_gathers *gathers;
    struct engine_gather *prev, *next;
    uint64_t number; /* of the MeshAsk */
    struct hvi_engine_query query;
    unsigned char packet[256]; /* the same, as others are asked */
    size_t packet_bytes;
    sd_event_source *timer;
    uint32_t count, unsent;
    struct part parts[];
};

/* ---- to hvdd ---- */

static void gather_free(struct engine_gather *gather)
{
    struct engine_gathers *gathers = gather->gathers;

    DL_DELETE(gathers->first, gather);
    gathers->count--;
    sd_event_source_disable_unref(gather->timer);
    for (uint32_t i = 0; i < gather->count; i++)
        free(gather->parts[i].bytes);
    free(gather);
}

static void to_our_clock(const struct part *part, uint64_t *ns)
{
    if (*ns != 0)
        *ns -= part->clock.ahead_ns;
}

/* The other engine is one of our job; still, what it sent is looked at. False: it makes no sense. */
static bool unpack(const struct engine_gather *gather, const struct part *part,
                   struct hvi_packet_msg *msg_p)
{
    if (hvi_packet_msg_decode(part->bytes, part->length, msg_p, NULL, 0) != HVI_OK)
        return false;
    if (msg_p->kind != HVI_PACKET_ENGINE_REPORT || !msg_p->engine_report.has_span ||
        msg_p->engine_report.span.node != part->node) {
        hvi_packet_msg_free(msg_p);
        return false;
    }
    struct hvi_engine_report *report = &msg_p->engine_report;
    report->span.ahead_ns = part->clock.ahead_ns;
    report->span.here = false;
    for (size_t i = 0; i < report->rank_count; i++)
        report->ranks[i].node = part->node;
    report->span.ahead_error_ns = (part->clock.way_ns + 1) / 2;
    for (size_t i = 0; i < report->trace_count; i++) {
        to_our_clock(part, &report->traces[i].submit_ns);
        to_our_clock(part, &report->traces[i].ready_ns);
        to_our_clock(part, &report->traces[i].done_ns);
    }
    snprintf(report->span.job, sizeof report->span.job, "%s", gather->gathers->job);
    return true;
}

/* Instead of the node's part. */
static void make_silent(const struct engine_gather *gather, const struct part *part,
                        struct hvi_engine_report *report)
{
    const struct engine_gathers *gathers = gather->gathers;
    struct hvi_span_row *span = &report->span;

    memset(report, 0, sizeof *report);
    report->has_span = true;
    gathers->calls->name(gathers->user, part->node, span);
    snprintf(span->text, sizeof span->text,
             strchr(span->address, ':') != NULL ? "node %u (%s) at [%s]:%u %s"
                                                : "node %u (%s) at %s:%u %s",
             part->node, span->name, span->address, span->port, part->why);
}

static void make(struct engine_gather *gather, struct part *part, struct hvi_packet_msg *msg)
{
    const struct engine_gathers *gathers = gather->gathers;

    memset(msg, 0, sizeof *msg);
    if (part->bytes && !unpack(gather, part, msg)) {
        part->state = PART_SILENT;
        part->why = "answered what cannot be read";
    }
    msg->kind = HVI_PACKET_ENGINE_REPORT;
    if (part->state == PART_SILENT) {
        make_silent(gather, part, &msg->engine_report);
    } else if (part->node == gathers->roster->here) {
        gathers->calls->fill(gathers->user, &gather->query, &msg->engine_report);
        msg->engine_report.span.here = true;
    }
    msg->engine_report.request = gather->query.request;
    msg->engine_report.more = gather->unsent > 1;
}

/* HVI_ERR_TIMEOUT: the link is full, and nothing has changed. */
static int send_part(struct engine_gather *gather, struct part *part)
{
    struct hvi_packet_msg msg;

    make(gather, part, &msg);
    int status = gather->gathers->calls->send(gather->gathers->user, &msg);
    hvi_packet_msg_free(&msg);
    if (status == HVI_ERR_TIMEOUT)
        return status;
    if (status != HVI_OK && status != HVI_ERR_CLOSED)
        HVI_LOG(HVI_LOG_WARN, "link", "report-lost", hvi_status_text(status), "job=%s node=%u",
                gather->gathers->job, part->node);
    part->state = PART_SENT;
    gather->unsent--;
    return HVI_OK;
}

/* Frees it after the last part. False: the link is full. */
static bool flush(struct engine_gather *gather)
{
    for (uint32_t i = 0; i < gather->count; i++) {
        struct part *part = &gather->parts[i];
        if (part->state != PART_CAME && part->state != PART_SILENT)
            continue;
        if (send_part(gather, part) == HVI_ERR_TIMEOUT) {
            gather->gathers->calls->await_room(gather->gathers->user);
            return false;
        }
    }
    if (gather->unsent == 0)
        gather_free(gather);
    return true;
}

bool engine_gather_flush(struct engine_gathers *gathers)
{
    struct engine_gather *gather, *next;

    DL_FOREACH_SAFE(gathers->first, gather, next)
    {
        if (!flush(gather))
            return false;
    }
    return true;
}

/* ---- asking ---- */

static void miss(struct part *part, const char *why)
{
    part->state = PART_SILENT;
    part->why = why;
}

static void ask(struct engine_gather *gather, struct part *part)
{
    struct hvi_mesh_ask ask = {.number = gather->number};

    if (part->rounds == 0) {
        ask.query = gather->packet;
        ask.query_bytes = gather->packet_bytes;
    }
    part->asked_ns = hvi_clock_ns();
    int status = engine_mesh_ask(gather->gathers->mesh, part->node, &ask);
    if (status != HVI_OK)
        miss(part, status == HVI_ERR_NODE_LOST ? "is lost, or has ended already"
                                               : "cannot be asked: this engine is out of memory");
}

static int on_deadline(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine_gather *gather = user;

    (void)source, (void)usec;
    for (uint32_t i = 0; i < gather->count; i++) {
        if (gather->parts[i].state == PART_WAITS)
            miss(&gather->parts[i], "did not answer within 0.8 s");
    }
    flush(gather);
    return 0;
}

static bool is_on(const struct engine_roster *roster, int32_t rank, uint32_t node)
{
    for (uint32_t i = roster->first[node]; i < roster->first[node + 1]; i++) {
        if (roster->of_nodes[i] == rank)
            return true;
    }
    return false;
}

/* A trace of one rank needs one node. */
static void choose_nodes(struct engine_gather *gather)
{
    const struct engine_roster *roster = gather->gathers->roster;
    const struct hvi_engine_query *query = &gather->query;
    bool one = query->what == HVI_QUERY_TRACE && query->rank >= 0;

    for (uint32_t node = 0; node < roster->nodes; node++) {
        if (one && !is_on(roster, query->rank, node))
            continue;
        struct part *part = &gather->parts[gather->count++];
        part->node = node;
        part->state = node == roster->here ? PART_CAME : PART_WAITS;
        part->rounds = query->what == HVI_QUERY_TRACE ? ENGINE_MESH_CLOCK_ROUNDS : 0;
    }
    if (gather->count == 0) /* there is no such rank */
        gather->parts[gather->count++] = (struct part){.node = roster->here, .state = PART_CAME};
    gather->unsent = gather->count;
}

static struct engine_gather *gather_new(struct engine_gathers *gathers,
                                        const struct hvi_engine_query *query)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_ENGINE_QUERY, .engine_query = *query};
    struct engine_gather *gather = NULL;

    if (gathers->count < GATHERS_MAX)
        gather = calloc(1, sizeof *gather + gathers->roster->nodes * sizeof gather->parts[0]);
    if (!gather)
        return NULL;
    gather->gathers = gathers;
    gather->query = *query;
    if (hvi_packet_msg_encode(&msg, gather->packet, sizeof gather->packet, &gather->packet_bytes) !=
            HVI_OK ||
        sd_event_add_time_relative(gathers->event, &gather->timer, CLOCK_MONOTONIC,
                                   ENGINE_GATHER_NS / 1000, 1000, on_deadline, gather) < 0) {
        free(gather);
        return NULL;
    }
    gather->number = ++gathers->last_number;
    DL_APPEND(gathers->first, gather);
    gathers->count++;
    return gather;
}

void engine_gather_start(struct engine_gathers *gathers, const struct hvi_engine_query *query)
{
    struct engine_gather *gather = gather_new(gathers, query);

    if (!gather) {
        HVI_LOG(HVI_LOG_WARN, "gather", "no-gather",
                "too many questions wait for other nodes, or there is no memory for one more",
                "job=%s", gathers->job);
        return; /* hvdd says after its time that this engine did not answer */
    }
    choose_nodes(gather);
    for (uint32_t i = 0; i < gather->count; i++) {
        if (gather->parts[i].state == PART_WAITS)
            ask(gather, &gather->parts[i]);
    }
    flush(gather);
}

static struct part *part_of(struct engine_gathers *gathers, uint64_t number, uint32_t node,
                            struct engine_gather **gather_p)
{
    struct engine_gather *gather = NULL;

    DL_SEARCH_SCALAR(gathers->first, gather, number, number);
    for (uint32_t i = 0; gather && i < gather->count; i++) {
        *gather_p = gather;
        if (gather->parts[i].node == node && gather->parts[i].state == PART_WAITS)
            return &gather->parts[i];
    }
    return NULL;
}

static void keep(struct part *part, const struct hvi_mesh_answer *answer)
{
    part->bytes = malloc(answer->report_bytes);
    if (!part->bytes) {
        miss(part, "has answered, and this engine has no memory for it");
        return;
    }
    memcpy(part->bytes, answer->report, answer->report_bytes);
    part->length = answer->report_bytes;
    part->state = PART_CAME;
}

void engine_gather_answered(struct engine_gathers *gathers, uint32_t from,
                            const struct hvi_mesh_answer *answer)
{
    struct engine_gather *gather;
    struct part *part = part_of(gathers, answer->number, from, &gather);

    if (!part)
        return; /* it comes late */
    if (part->rounds > 0) {
        engine_mesh_clock_take(&part->clock, part->asked_ns, answer->heard_ns, answer->said_ns,
                               hvi_clock_ns());
        part->rounds--;
        ask(gather, part);
    } else if (answer->report_bytes > 0) {
        keep(part, answer);
    } else {
        miss(part, "could not say what it knows");
    }
    flush(gather);
}

/* ---- being asked ---- */

/* Leaves rows out until it fits. */
static int pack(struct hvi_packet_msg *msg, unsigned char *bytes_p, size_t size, size_t *length_p)
{
    int status;

    do
        status = hvi_packet_msg_encode(msg, bytes_p, size, length_p);
    while (status == HVI_ERR_LIMIT && engine_gather_halve(&msg->engine_report));
    return status;
}

/* The part of this node, as a Packet; *length_p 0: it could not be made. */
static unsigned char *pack_own(struct engine_gathers *gathers, const struct hvi_mesh_ask *ask,
                               size_t *length_p)
{
    struct hvi_packet_msg asked, msg = {.kind = HVI_PACKET_ENGINE_REPORT};
    unsigned char *bytes = NULL;

    *length_p = 0;
    if (hvi_packet_msg_decode(ask->query, ask->query_bytes, &asked, NULL, 0) != HVI_OK)
        return NULL;
    if (asked.kind == HVI_PACKET_ENGINE_QUERY)
        bytes = malloc(HVI_MESH_PART_MAX);
    if (bytes) {
        gathers->calls->fill(gathers->user, &asked.engine_query, &msg.engine_report);
        /* hvdd gets it in one packet, with a little more. */
        if (pack(&msg, bytes, HVI_MESH_PART_MAX - 1024, length_p) != HVI_OK)
            *length_p = 0;
        hvi_packet_msg_free(&msg);
    }
    hvi_packet_msg_free(&asked);
    return bytes;
}

void engine_gather_asked(struct engine_gathers *gathers, uint32_t from,
                         const struct hvi_mesh_ask *ask)
{
    struct hvi_mesh_answer answer = {.number = ask->number, .heard_ns = hvi_clock_ns()};

    if (ask->query_bytes > 0)
        answer.report = pack_own(gathers, ask, &answer.report_bytes);
    answer.said_ns = hvi_clock_ns();
    engine_mesh_answer(gathers->mesh, from, &answer); /* else the asker's time runs out */
    free(answer.report);
}

static void free_stalls(struct hvi_engine_report *report, size_t from)
{
    for (size_t i = from; i < report->stall_count; i++) {
        free(report->stalls[i].ready);
        free(report->stalls[i].missing);
    }
    report->stall_count = from;
}

bool engine_gather_halve(struct hvi_engine_report *report)
{
    size_t before = report->stall_count + report->rank_count + report->trace_count;

    if (report->stall_count > 0)
        free_stalls(report, report->stall_count / 2);
    else if (report->trace_count > 0)
        report->trace_count /= 2;
    else
        report->rank_count /= 2;
    size_t after = report->stall_count + report->rank_count + report->trace_count;
    report->rows_left_out += before - after;
    return after < before;
}

void engine_gather_close(struct engine_gathers *gathers)
{
    struct engine_gather *gather, *next;

    DL_FOREACH_SAFE(gathers->first, gather, next)
    gather_free(gather);
}
