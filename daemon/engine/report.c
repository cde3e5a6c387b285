/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/report.h"

#include "base/clock.h"
#include "base/status.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/sessions/control.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/sessions/quota.h"
#include "daemon/engine/watch/stall.h"
#include "daemon/engine/watch/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fill_ranks(struct engine *engine, struct hvi_engine_report *report)
{
    if (engine_rank_rows(&engine->sessions, &report->ranks, &report->rank_count) != HVI_OK)
        report->ranks = NULL;
    for (size_t i = 0; i < report->rank_count; i++)
        report->ranks[i].node = engine->roster.here;
}

static void fill_stalls(struct engine *engine, struct hvi_engine_report *report,
                        uint64_t min_age_ns)
{
    size_t count = 0;

    engine_intake_drain_all(&engine->sessions); /* what has come already is not missing */
    if (engine->sessions.held) {
        report->stalls = calloc(1, sizeof *report->stalls);
        if (report->stalls && hvi_clock_ns() - engine->started_ns >= min_age_ns)
            count = engine_rendezvous_row(engine, report->stalls) == HVI_OK;
    } else if (engine_stall_rows(&engine->watch, min_age_ns, HVI_WIRE_STALLS_MAX, &report->stalls,
                                 &count, &report->rows_left_out) != HVI_OK)
        report->stalls = NULL;
    report->stall_count = count;
}

static void fill_trace(struct engine *engine, struct hvi_engine_report *report,
                       const struct hvi_engine_query *query)
{
    engine_intake_drain_all(&engine->sessions);
    if (engine_trace_rows(&engine->watch, query->rank, query->limit, query->before, &report->traces,
                          &report->trace_count, &report->rows_left_out) != HVI_OK)
        report->traces = NULL;
}

/* How much of its limits (base/limits.def) the job has used up. */
static void fill_limits(struct engine *engine, struct hvi_engine_report *report)
{
    struct engine_sessions *sessions = &engine->sessions;
    uint64_t registered = engine_control_region_bytes(sessions, false);
    uint64_t of_processes = engine_control_region_bytes(sessions, true);

    report->region_bytes = registered > of_processes ? registered : of_processes;
    for (uint32_t seat = 0; seat < sessions->seats; seat++) {
        const struct engine_session *session = sessions->ranks[seat].session;
        if (session && session->regions.count > report->regions)
            report->regions = session->regions.count;
    }
    report->process_sets = engine->order.sets.count;
    report->regions_granted = engine_quota_keep(sessions);
}

void engine_report_fill(struct engine *engine, const struct hvi_engine_query *query,
                        struct hvi_engine_report *report_p)
{
    memset(report_p, 0, sizeof *report_p);
    report_p->request = query->request;
    if (query->what == HVI_QUERY_RANKS)
        fill_ranks(engine, report_p);
    else if (query->what == HVI_QUERY_STALLS)
        fill_stalls(engine, report_p, query->min_age_ns);
    else if (query->what == HVI_QUERY_TRACE)
        fill_trace(engine, report_p, query);
    else
        fill_limits(engine, report_p);
}

int engine_report_send(struct engine *engine, struct hvi_packet_msg *msg)
{
    int status;

    do
        status = engine_link_send(engine, msg);
    while (status == HVI_ERR_LIMIT && engine_gather_halve(&msg->engine_report));
    return status;
}

/* ---- of a job that spans nodes ---- */

static void fill_members(const struct engine *engine, uint32_t node, struct hvi_span_row *span)
{
    const struct engine_roster *roster = &engine->roster;
    size_t count = roster->first[node + 1] - roster->first[node];

    span->ranks = calloc(count, sizeof *span->ranks);
    if (!span->ranks)
        return;
    memcpy(span->ranks, roster->of_nodes + roster->first[node], count * sizeof *span->ranks);
    span->rank_count = count;
}

void engine_report_name(const struct engine *engine, uint32_t node, struct hvi_span_row *span_p)
{
    const struct engine_nodes_row *row = &engine->nodes.rows[node];

    span_p->node = node;
    snprintf(span_p->job, sizeof span_p->job, "%s", engine->start.job);
    snprintf(span_p->name, sizeof span_p->name, "%s", row->name);
    snprintf(span_p->address, sizeof span_p->address, "%s", row->address);
    span_p->port = row->port;
    fill_members(engine, node, span_p);
}

static void add_control(const struct engine *engine, struct hvi_span_row *span)
{
    struct engine_mesh_row row;

    for (size_t i = 0;
         span->link_count < HVI_WIRE_ROWS_MAX && engine_mesh_link_row(&engine->nodes.link, i, &row);
         i++)
        span->links[span->link_count++] = (struct hvi_link_row){
            .to = row.node,
            .purpose = HVI_LINK_CONTROL,
            .bytes_sent = row.bytes_sent,
            .bytes_received = row.bytes_received,
            .messages_sent = row.messages_sent,
            .messages_received = row.messages_received,
            .retransmits = row.retransmits,
            .rtt_ns = row.kernel_rtt_ns,
        };
}

static void add_data(struct engine *engine, struct hvi_span_row *span)
{
    struct engine_lane_row row;

    for (size_t i = 0;
         span->link_count < HVI_WIRE_ROWS_MAX && engine_dispatch_lane_row(&engine->exec, i, &row);
         i++) {
        struct hvi_link_row *link = &span->links[span->link_count++];
        *link = (struct hvi_link_row){
            .to = row.node,
            .purpose = HVI_LINK_DATA,
            .lane = row.lane,
            .bytes_sent = row.bytes_sent,
            .bytes_received = row.bytes_received,
            .retransmits = row.retransmits,
            .rtt_ns = row.rtt_ns,
        };
        snprintf(link->transport, sizeof link->transport, "%s", row.transport);
    }
}

void engine_report_fill_part(struct engine *engine, const struct hvi_engine_query *query,
                             struct hvi_engine_report *report_p)
{
    struct hvi_engine_query all = *query;
    struct hvi_span_row *span = &report_p->span;

    all.min_age_ns =
        0; /* an op may be old on one node and new on another: hvdd puts them together */
    engine_report_fill(engine, &all, report_p);
    report_p->has_span = true;
    engine_report_name(engine, engine->roster.here, span);
    if (query->what == HVI_QUERY_STALLS)
        engine_stall_standing(&engine->watch, &span->standing, &span->standing_count);
    if (query->what == HVI_QUERY_RANKS)
        span->links = calloc(HVI_WIRE_ROWS_MAX, sizeof *span->links);
    if (!span->links)
        return;
    add_control(engine, span);
    add_data(engine, span);
}
