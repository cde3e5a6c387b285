/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl trace`: a reply holds some hundred rows, a job may have kept a thousand for each
 * of its ranks, so they are fetched rank by rank and backwards page by page. A page may repeat what
 * is in flight, or miss what was overwritten meanwhile; nothing is shown twice, because the next
 * page asks for smaller numbers only. */
#include "base/status.h"
#include "tools/hvdctl/ctl.h"
#include "tools/hvdctl/table.h"

#include <stdlib.h>

struct rows {
    struct ctl_trace trace;
    struct hvd_admin_answer **replies; /* to which all of these belong */
    size_t reply_count;
};

/* A node that was asked several times stays with its least certain clock. */
static void note_span(struct ctl_trace *trace, const struct hvd_admin_span *span)
{
    size_t at = 0;
    while (at < trace->span_count && trace->spans[at]->node != span->node)
        at++;
    if (at < trace->span_count && trace->spans[at]->clock_error_ns >= span->clock_error_ns)
        return;
    if (at == trace->span_count)
        trace->spans = ctl_must(realloc(trace->spans, ++trace->span_count * sizeof *trace->spans));
    trace->spans[at] = span;
}

/* The first sentence stays: of the engine, or of a node that did not answer this time. */
static void note_text(struct ctl_trace *trace, const char *text)
{
    if (trace->note[0] == '\0')
        trace->note = text;
}

/* Takes the reply, which may have no ops. */
static void append(struct rows *rows, struct hvd_admin_answer *reply)
{
    struct ctl_trace *trace = &rows->trace;
    trace->rows = ctl_must(
        realloc(trace->rows, (trace->count + reply->trace_count + 1) * sizeof *trace->rows));
    note_text(trace, reply->text);
    for (size_t i = 0; i < reply->span_count; i++) {
        note_text(trace, reply->spans[i]->text);
        note_span(trace, reply->spans[i]);
    }
    for (size_t i = 0; i < reply->trace_count; i++)
        trace->rows[trace->count++] = reply->traces[i];
    rows->replies =
        ctl_must(realloc(rows->replies, (rows->reply_count + 1) * sizeof *rows->replies));
    rows->replies[rows->reply_count++] = reply;
}

static void rows_free(struct rows *rows)
{
    for (size_t i = 0; i < rows->reply_count; i++)
        hvd_admin_answer_free(rows->replies[i]);
    free(rows->replies);
    free(rows->trace.spans);
    free(rows->trace.rows);
}

/* The smallest number of a page; 0 when it had no finished op. */
static uint64_t oldest(const struct hvd_admin_answer *reply)
{
    uint64_t number = 0;
    for (size_t i = 0; i < reply->trace_count; i++) {
        if (reply->traces[i]->number > 0 && (number == 0 || reply->traces[i]->number < number))
            number = reply->traces[i]->number;
    }
    return number;
}

static int fetch_rank(const struct ctl *ctl, struct hvd_admin_request *request, int32_t rank,
                      struct rows *rows)
{
    uint32_t left = ctl->last;
    request->rank = rank;
    request->before = 0;
    while (left > 0) {
        struct hvd_admin_answer *reply;
        request->limit = left;
        const int code = ctl_ask(ctl, request, &reply);
        if (code != CTL_OK)
            return code;
        ctl_say_silent(ctl, reply);
        append(rows, reply);
        left -= reply->trace_count < left ? (uint32_t)reply->trace_count : left;
        request->before = oldest(reply);
        if (reply->rows_left_out > 0 && request->before > 1)
            continue;
        rows->trace.rows_left_out += left > 0 ? reply->rows_left_out : 0;
        break;
    }
    return CTL_OK;
}

static int fetch(const struct ctl *ctl, struct hvd_admin_request *request, struct rows *rows)
{
    struct hvd_admin_request ranks = ctl_request(HVD_ADMIN_RANKS);
    struct hvd_admin_answer *reply;
    if (ctl->rank >= 0)
        return fetch_rank(ctl, request, ctl->rank, rows);
    ranks.job = request->job;
    ranks.owner = request->owner;
    int code = ctl_ask(ctl, &ranks, &reply);
    if (code != CTL_OK)
        return code;
    ctl_say_silent(ctl, reply);
    append(rows, reply);
    rows->trace.rows_left_out += reply->rows_left_out;
    for (size_t i = 0; i < reply->rank_count && code == CTL_OK; i++)
        code = fetch_rank(ctl, request, reply->ranks[i]->rank, rows);
    return code;
}

int ctl_trace(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_TRACE);
    struct rows rows = {.trace = {.note = ""}};
    (void)count;
    int code = ctl_copy_job(ctl, args[0], &request);
    if (code == CTL_OK)
        code = fetch(ctl, &request, &rows);
    if (code == CTL_OK) {
        ctl_sort_trace(rows.trace.rows, rows.trace.count);
        if (ctl->json)
            ctl_json_trace(ctl, args[0], &rows.trace);
        else
            ctl_show_trace(ctl, &rows.trace);
    }
    rows_free(&rows);
    return code;
}
