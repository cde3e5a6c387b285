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
    const struct hvd_admin_trace **all;
    size_t count;
    const struct hvd_admin_span **spans; /* one for each node */
    size_t span_count;
    struct hvd_admin_answer **replies; /* to which all of these belong */
    size_t reply_count;
};

/* A node that was asked several times stays with its least certain clock. */
static void note_span(struct rows *rows, const struct hvd_admin_span *span)
{
    size_t at = 0;
    while (at < rows->span_count && rows->spans[at]->node != span->node)
        at++;
    if (at < rows->span_count && rows->spans[at]->clock_error_ns >= span->clock_error_ns)
        return;
    if (at == rows->span_count)
        rows->spans = ctl_must(realloc(rows->spans, ++rows->span_count * sizeof *rows->spans));
    rows->spans[at] = span;
}

/* Takes the reply, which may have no ops. */
static void append(struct rows *rows, struct hvd_admin_answer *reply)
{
    rows->all =
        ctl_must(realloc(rows->all, (rows->count + reply->trace_count + 1) * sizeof *rows->all));
    for (size_t i = 0; i < reply->span_count; i++)
        note_span(rows, reply->spans[i]);
    for (size_t i = 0; i < reply->trace_count; i++)
        rows->all[rows->count++] = reply->traces[i];
    rows->replies =
        ctl_must(realloc(rows->replies, (rows->reply_count + 1) * sizeof *rows->replies));
    rows->replies[rows->reply_count++] = reply;
}

static void rows_free(struct rows *rows)
{
    for (size_t i = 0; i < rows->reply_count; i++)
        hvd_admin_answer_free(rows->replies[i]);
    free(rows->replies);
    free(rows->spans);
    free(rows->all);
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
        if (reply->rows_left_out == 0 || request->before <= 1)
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
    for (size_t i = 0; i < reply->rank_count && code == CTL_OK; i++)
        code = fetch_rank(ctl, request, reply->ranks[i]->rank, rows);
    return code;
}

int ctl_trace(const struct ctl *ctl, char **args, int count)
{
    struct hvd_admin_request request = ctl_request(HVD_ADMIN_TRACE);
    struct rows rows = {0};
    (void)count;
    int code = ctl_copy_job(ctl, args[0], &request);
    if (code == CTL_OK)
        code = fetch(ctl, &request, &rows);
    if (code == CTL_OK) {
        ctl_sort_trace(rows.all, rows.count);
        if (ctl->json)
            ctl_json_trace(ctl, args[0], rows.all, rows.count, rows.spans, rows.span_count);
        else
            ctl_show_trace(ctl, rows.all, rows.count, rows.spans, rows.span_count);
    }
    rows_free(&rows);
    return code;
}
