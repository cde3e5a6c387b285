/* SPDX-License-Identifier: Apache-2.0
 * Pure. An op that waits has a row from each node whose ranks have brought it. Each lists its own ranks, which it
 * knows, and as "elsewhere" those of other nodes that may be missing. Only all parts together tell: a rank
 * that its own node calls ready is ready, and one that its own node does not mention has brought nothing; what it
 * does instead is in the node's .standing. */
#include "daemon/node/merge.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Makes room for as many more as may be there, and counts the others; NULL: for none. */
static void *grow(void *rows, size_t row_bytes, size_t count, size_t most, size_t *more,
                  uint64_t *left_out)
{
    size_t wanted = *more;
    void *grown = NULL;

    if (*more > most - count)
        *more = most - count;
    if (*more > 0)
        grown = realloc(rows, (count + *more) * row_bytes);
    if (grown == NULL)
        *more = 0;
    *left_out += wanted - *more;
    return grown;
}

void node_merge_ranks(struct hvi_admin_reply *reply, const struct hvi_engine_report *report)
{
    size_t more = report->rank_count;
    struct hvi_rank_row *rows = grow(reply->ranks, sizeof(*rows), reply->rank_count,
                                     HVI_WIRE_ROWS_MAX, &more, &reply->rows_left_out);

    if (rows == NULL)
        return;
    reply->ranks = rows;
    memcpy(rows + reply->rank_count, report->ranks, more * sizeof(*rows));
    reply->rank_count += more;
}

void node_merge_traces(struct hvi_admin_reply *reply, const struct hvi_engine_report *report)
{
    size_t more = report->trace_count;
    struct hvi_trace_row *rows = grow(reply->traces, sizeof(*rows), reply->trace_count,
                                      HVI_WIRE_TRACES_MAX, &more, &reply->rows_left_out);

    if (rows == NULL)
        return;
    reply->traces = rows;
    memcpy(rows + reply->trace_count, report->traces, more * sizeof(*rows));
    reply->trace_count += more;
}

void node_merge_span(struct hvi_admin_reply *reply, struct hvi_engine_report *report,
                     const char *job, uint32_t uid)
{
    size_t more = 1;
    struct hvi_span_row *rows = grow(reply->spans, sizeof(*rows), reply->span_count,
                                     HVI_WIRE_ROWS_MAX, &more, &reply->rows_left_out);

    if (rows == NULL)
        return;
    reply->spans = rows;
    rows[reply->span_count] = report->span;
    snprintf(rows[reply->span_count].job, sizeof(rows->job), "%s", job);
    rows[reply->span_count].uid = uid;
    reply->span_count++;
    report->span = (struct hvi_span_row){.node = 0};
    report->has_span = false;
}

/* ---- stalls ---- */

static bool is_same_op(const struct hvi_stall_row *a, const struct hvi_stall_row *b)
{
    return a->uid == b->uid && strcmp(a->job, b->job) == 0 && a->process_set == b->process_set &&
           strcmp(a->op, b->op) == 0 && strcmp(a->tensor, b->tensor) == 0;
}

static struct hvi_stall_row *find_row(const struct hvi_admin_reply *reply,
                                      const struct hvi_stall_row *row)
{
    for (size_t i = 0; i < reply->stall_count; i++) {
        if (is_same_op(&reply->stalls[i], row))
            return &reply->stalls[i];
    }
    return NULL;
}

static void join_rows(struct hvi_stall_row *row, const struct hvi_stall_row *other,
                      uint64_t *left_out)
{
    size_t more = other->ready_count;
    int32_t *ready =
        grow(row->ready, sizeof(*ready), row->ready_count, HVI_RANKS_MAX, &more, left_out);

    if (other->age_ns > row->age_ns)
        row->age_ns = other->age_ns;
    if (ready != NULL) {
        row->ready = ready;
        memcpy(ready + row->ready_count, other->ready, more * sizeof(*ready));
        row->ready_count += more;
    }
    more = other->missing_count;
    struct hvi_missing_rank *missing =
        grow(row->missing, sizeof(*missing), row->missing_count, HVI_RANKS_MAX, &more, left_out);
    if (missing != NULL) {
        row->missing = missing;
        memcpy(missing + row->missing_count, other->missing, more * sizeof(*missing));
        row->missing_count += more;
    }
}

/* The row's lists are moved. */
static void add_row(struct hvi_admin_reply *reply, struct hvi_stall_row *row)
{
    size_t more = 1;
    struct hvi_stall_row *rows = grow(reply->stalls, sizeof(*rows), reply->stall_count,
                                      HVI_WIRE_STALLS_MAX, &more, &reply->rows_left_out);

    if (rows == NULL)
        return;
    reply->stalls = rows;
    rows += reply->stall_count++;
    *rows = *row;
    row->ready = NULL;
    row->ready_count = 0;
    row->missing = NULL;
    row->missing_count = 0;
}

void node_merge_stalls(struct hvi_admin_reply *reply, struct hvi_engine_report *report,
                       const char *job, uint32_t uid)
{
    for (size_t i = 0; i < report->stall_count; i++) {
        struct hvi_stall_row *part = &report->stalls[i];
        snprintf(part->job, sizeof(part->job), "%s", job);
        part->uid = uid;
        struct hvi_stall_row *row = report->has_span ? find_row(reply, part) : NULL;
        if (row != NULL)
            join_rows(row, part, &reply->rows_left_out);
        else
            add_row(reply, part);
    }
}

/* ---- when all parts are there ---- */

static bool is_elsewhere(const struct hvi_missing_rank *rank)
{
    return strcmp(rank->process, NODE_MERGE_ELSEWHERE) == 0;
}

static bool has_rank(const int32_t *ranks, size_t count, int32_t rank)
{
    for (size_t i = 0; i < count; i++) {
        if (ranks[i] == rank)
            return true;
    }
    return false;
}

/* Among those that are listed already, or by its own node. */
static bool is_listed(const struct hvi_stall_row *row, size_t kept, size_t at)
{
    int32_t rank = row->missing[at].rank;

    for (size_t i = 0; i < row->missing_count; i++) {
        bool counts = i < kept || (i > at && !is_elsewhere(&row->missing[i]));
        if (counts && row->missing[i].rank == rank)
            return true;
    }
    return has_rank(row->ready, row->ready_count, rank);
}

static const struct hvi_span_row *span_of(const struct hvi_admin_reply *reply,
                                          const struct hvi_stall_row *row, int32_t rank)
{
    for (size_t i = 0; i < reply->span_count; i++) {
        const struct hvi_span_row *span = &reply->spans[i];
        if (span->uid == row->uid && strcmp(span->job, row->job) == 0 &&
            has_rank(span->ranks, span->rank_count, rank))
            return span;
    }
    return NULL;
}

/* What its own node says of a rank that another one misses. False: it is not missing. */
static bool look_up(const struct hvi_admin_reply *reply, const struct hvi_stall_row *row,
                    struct hvi_missing_rank *rank)
{
    const struct hvi_span_row *span = span_of(reply, row, rank->rank);

    if (span == NULL)
        return true;
    for (size_t i = 0; i < span->standing_count; i++) {
        if (span->standing[i].rank == rank->rank) {
            *rank = span->standing[i];
            return strcmp(rank->process, "joined") != 0;
        }
    }
    snprintf(rank->waits_in, sizeof(rank->waits_in), "on node %u (%s), %s", span->node, span->name,
             span->text[0] != '\0' ? "which did not answer" : "which does not know it");
    return true;
}

static void settle_row(const struct hvi_admin_reply *reply, struct hvi_stall_row *row)
{
    size_t kept = 0;

    for (size_t i = 0; i < row->missing_count; i++) {
        struct hvi_missing_rank rank = row->missing[i];
        if (is_elsewhere(&rank) && (is_listed(row, kept, i) || !look_up(reply, row, &rank)))
            continue;
        row->missing[kept++] = rank;
    }
    row->missing_count = kept;
}

static int by_number(const void *a, const void *b)
{
    int32_t one = *(const int32_t *)a, two = *(const int32_t *)b;

    return (one > two) - (one < two);
}

static int by_missing(const void *a, const void *b)
{
    return by_number(&((const struct hvi_missing_rank *)a)->rank,
                     &((const struct hvi_missing_rank *)b)->rank);
}

static int by_rank(const void *a, const void *b)
{
    return by_number(&((const struct hvi_rank_row *)a)->rank,
                     &((const struct hvi_rank_row *)b)->rank);
}

static int by_node(const void *a, const void *b)
{
    const struct hvi_span_row *one = a, *two = b;
    int order = strcmp(one->job, two->job);

    return order != 0 ? order : (one->node > two->node) - (one->node < two->node);
}

static void sort(void *rows, size_t count, size_t bytes, int (*compare)(const void *, const void *))
{
    if (count > 0)
        qsort(rows, count, bytes, compare);
}

static void settle_stalls(struct hvi_admin_reply *reply, uint64_t min_age_ns)
{
    size_t kept = 0;

    for (size_t i = 0; i < reply->stall_count; i++) {
        struct hvi_stall_row *row = &reply->stalls[i];
        if (row->age_ns < min_age_ns) {
            free(row->ready);
            free(row->missing);
            continue;
        }
        settle_row(reply, row);
        sort(row->ready, row->ready_count, sizeof(*row->ready), by_number);
        sort(row->missing, row->missing_count, sizeof(*row->missing), by_missing);
        reply->stalls[kept++] = *row;
    }
    reply->stall_count = kept;
}

/* One sentence for each node whose part is missing. */
static void add_silent(struct hvi_admin_reply *reply)
{
    size_t used = strlen(reply->text);

    for (size_t i = 0; i < reply->span_count && used < sizeof(reply->text); i++) {
        const struct hvi_span_row *span = &reply->spans[i];
        if (span->text[0] != '\0')
            used += (size_t)snprintf(reply->text + used, sizeof(reply->text) - used,
                                     "%sjob '%s': %s", used > 0 ? "; " : "", span->job, span->text);
    }
}

void node_merge_finish(struct hvi_admin_reply *reply, uint64_t min_age_ns)
{
    if (reply->span_count == 0)
        return;
    sort(reply->ranks, reply->rank_count, sizeof(*reply->ranks), by_rank);
    sort(reply->spans, reply->span_count, sizeof(*reply->spans), by_node);
    settle_stalls(reply, min_age_ns);
    add_silent(reply);
}
