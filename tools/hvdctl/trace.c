/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl trace`: a reply holds HVI_WIRE_TRACES_MAX rows, a job may have kept a thousand for each
 * of its ranks, so they are fetched rank by rank and backwards page by page. A page may repeat what
 * is in flight, or miss what was overwritten meanwhile; nothing is shown twice, because the next
 * page asks for smaller numbers only. */
#include "base/status.h"
#include "tools/hvdctl/ctl.h"

#include <stdlib.h>

struct rows {
    struct hvi_trace_row *all;
    size_t count;
    struct hvi_span_row *spans; /* one for each node; without lists */
    size_t span_count;
};

static void *more(void *memory, size_t bytes)
{
    void *grown = realloc(memory, bytes);
    if (grown == NULL) {
        fputs("hvdctl: out of memory\n", stderr);
        exit(CTL_REFUSED);
    }
    return grown;
}

/* A node that was asked several times stays with its least certain clock. */
static void note_span(struct rows *rows, const struct hvi_span_row *span)
{
    size_t at = 0;
    while (at < rows->span_count && rows->spans[at].node != span->node)
        at++;
    if (at < rows->span_count && rows->spans[at].ahead_error_ns >= span->ahead_error_ns)
        return;
    if (at == rows->span_count)
        rows->spans = more(rows->spans, ++rows->span_count * sizeof *rows->spans);
    rows->spans[at] = *span;
    rows->spans[at].ranks = NULL, rows->spans[at].rank_count = 0;
    rows->spans[at].links = NULL, rows->spans[at].link_count = 0;
    rows->spans[at].standing = NULL, rows->spans[at].standing_count = 0;
}

static void append(struct rows *rows, const struct hvi_admin_reply *reply)
{
    struct hvi_trace_row *all =
        more(rows->all, (rows->count + reply->trace_count + 1) * sizeof *all);
    rows->all = all;
    for (size_t i = 0; i < reply->span_count; i++)
        note_span(rows, &reply->spans[i]);
    for (size_t i = 0; i < reply->trace_count; i++)
        all[rows->count++] = reply->traces[i];
}

/* The smallest number of a page; 0 when it had no finished op. */
static uint64_t oldest(const struct hvi_admin_reply *reply)
{
    uint64_t number = 0;
    for (size_t i = 0; i < reply->trace_count; i++) {
        if (reply->traces[i].number > 0 && (number == 0 || reply->traces[i].number < number))
            number = reply->traces[i].number;
    }
    return number;
}

static int fetch_rank(const struct ctl *ctl, struct hvi_admin_request *request, int32_t rank,
                      struct rows *rows)
{
    uint32_t left = ctl->last;
    request->rank = rank;
    request->before = 0;
    while (left > 0) {
        struct hvi_admin_reply reply;
        request->limit = left;
        const int code = ctl_ask(ctl, request, &reply);
        if (code != CTL_OK)
            return code;
        ctl_say_silent(ctl, &reply);
        append(rows, &reply);
        left -= reply.trace_count < left ? (uint32_t)reply.trace_count : left;
        request->before = oldest(&reply);
        const bool goes_on = reply.rows_left_out > 0 && request->before > 1;
        hvi_admin_reply_free(&reply);
        if (!goes_on)
            break;
    }
    return CTL_OK;
}

static int fetch(const struct ctl *ctl, struct hvi_admin_request *request, struct rows *rows)
{
    struct hvi_admin_request ranks = {.kind = HVI_ADMIN_RANKS};
    struct hvi_admin_reply reply;
    if (ctl->rank >= 0)
        return fetch_rank(ctl, request, ctl->rank, rows);
    snprintf(ranks.job, sizeof ranks.job, "%s", request->job);
    ranks.of_owner = request->of_owner;
    ranks.owner = request->owner;
    int code = ctl_ask(ctl, &ranks, &reply);
    if (code != CTL_OK)
        return code;
    ctl_say_silent(ctl, &reply);
    for (size_t i = 0; i < reply.span_count; i++)
        note_span(rows, &reply.spans[i]);
    for (size_t i = 0; i < reply.rank_count && code == CTL_OK; i++)
        code = fetch_rank(ctl, request, reply.ranks[i].rank, rows);
    hvi_admin_reply_free(&reply);
    return code;
}

int ctl_trace(const struct ctl *ctl, char **args, int count)
{
    struct hvi_admin_request request = {.kind = HVI_ADMIN_TRACE};
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
    free(rows.spans);
    free(rows.all);
    return code;
}
