/* SPDX-License-Identifier: Apache-2.0
 * A job of six ranks: 0, 1 on node 0 (a); 2, 3 on node 1 (b); 4, 5 on node 2 (c). */
#include "daemon/node/merge.h"
#include "tests/unit/hvt_main.h"

static struct hvi_admin_reply reply;

static struct hvi_missing_rank missing(int32_t rank, const char *process, const char *waits_in)
{
    struct hvi_missing_rank row = {.rank = rank, .pid = rank + 100};

    snprintf(row.process, sizeof row.process, "%s", process);
    snprintf(row.waits_in, sizeof row.waits_in, "%s", waits_in);
    return row;
}

/* A node's report, which has what its ranks do. */
static struct hvi_engine_report report_of(uint32_t node, const char *text)
{
    struct hvi_engine_report report = {.has_span = true, .span = {.node = node, .port = 1}};
    struct hvi_span_row *span = &report.span;

    snprintf(span->name, sizeof span->name, "%c", 'a' + (int)node);
    snprintf(span->text, sizeof span->text, "%s", text);
    span->rank_count = 2;
    span->ranks = calloc(2, sizeof *span->ranks);
    span->ranks[0] = (int32_t)(2 * node);
    span->ranks[1] = (int32_t)(2 * node + 1);
    if (text[0] != '\0')
        return report;
    span->standing_count = 2;
    span->standing = calloc(2, sizeof *span->standing);
    for (int i = 0; i < 2; i++)
        span->standing[i] = missing(span->ranks[i], "S", "standing");
    return report;
}

/* One of its ranks has brought op `w`, the other one has not; those of other nodes are said to be missing. */
static void add_stall(struct hvi_engine_report *report, int32_t ready, int32_t lacks)
{
    struct hvi_stall_row *row = calloc(1, sizeof *row);
    int32_t first = report->span.ranks[0];

    report->stalls = row;
    report->stall_count = 1;
    snprintf(row->tensor, sizeof row->tensor, "w");
    snprintf(row->op, sizeof row->op, "allreduce");
    row->age_ns = 1000 * (uint64_t)(ready + 1);
    row->ready = calloc(1, sizeof *row->ready);
    row->ready[row->ready_count++] = ready;
    row->missing = calloc(6, sizeof *row->missing);
    if (lacks >= 0)
        row->missing[row->missing_count++] = missing(lacks, "T", "");
    for (int32_t rank = 0; rank < 6; rank++) {
        if (rank != first && rank != first + 1)
            row->missing[row->missing_count++] =
                missing(rank, NODE_MERGE_ELSEWHERE, "on another node");
    }
}

static void free_report(struct hvi_engine_report *report)
{
    for (size_t i = 0; i < report->stall_count; i++) {
        free(report->stalls[i].ready);
        free(report->stalls[i].missing);
    }
    free(report->stalls);
    free(report->span.ranks);
    free(report->span.standing);
}

static void take(struct hvi_engine_report report)
{
    node_merge_stalls(&reply, &report, "train", 1000);
    node_merge_span(&reply, &report, "train", 1000);
    free_report(&report);
}

static void setup(void)
{
    memset(&reply, 0, sizeof reply);
}

static void teardown(void)
{
    hvi_admin_reply_free(&reply);
}

/* Rank 1 has not come, and nobody of node 2 has. */
static void merge_two_nodes(const char *third)
{
    struct hvi_engine_report a = report_of(0, ""), b = report_of(1, "");

    add_stall(&a, 0, 1);
    add_stall(&b, 2, -1);
    b.stalls[0].ready = realloc(b.stalls[0].ready, 2 * sizeof *b.stalls[0].ready);
    b.stalls[0].ready[b.stalls[0].ready_count++] = 3;
    take(b);
    take(a);
    take(report_of(2, third));
}

START_TEST(what_several_nodes_wait_for_is_one_row_with_the_ranks_of_all)
{
    merge_two_nodes("");
    node_merge_finish(&reply, 0);
    ck_assert_uint_eq(reply.stall_count, 1);
    const struct hvi_stall_row *row = &reply.stalls[0];
    ck_assert_uint_eq(row->age_ns, 3000);
    ck_assert_uint_eq(row->ready_count, 3);
    ck_assert_int_eq(row->ready[0], 0);
    ck_assert_int_eq(row->ready[1], 2);
    ck_assert_int_eq(row->ready[2], 3);
    ck_assert_uint_eq(row->missing_count, 3);
    ck_assert_int_eq(row->missing[0].rank, 1);
    ck_assert_str_eq(row->missing[0].process, "T"); /* its own node knows best */
    ck_assert_int_eq(row->missing[1].rank, 4);
    ck_assert_str_eq(row->missing[1].waits_in, "standing");
    ck_assert_int_eq(row->missing[2].pid, 105);
    ck_assert_str_eq(reply.text, "");
}
END_TEST

START_TEST(ranks_of_a_node_that_does_not_answer_are_named_with_it)
{
    merge_two_nodes("node 2 (c) at 10.0.0.3:9600 did not answer within 0.8 s");
    node_merge_finish(&reply, 0);
    ck_assert_uint_eq(reply.stalls[0].missing_count, 3);
    ck_assert_str_eq(reply.stalls[0].missing[1].process, NODE_MERGE_ELSEWHERE);
    ck_assert_str_eq(reply.stalls[0].missing[1].waits_in, "on node 2 (c), which did not answer");
    ck_assert_str_eq(reply.text,
                     "job 'train': node 2 (c) at 10.0.0.3:9600 did not answer within 0.8 s");
}
END_TEST

START_TEST(a_rank_that_has_joined_is_not_missing)
{
    struct hvi_engine_report a = report_of(0, ""), b = report_of(1, ""), c = report_of(2, "");

    add_stall(&a, 0, 1);
    strcpy(b.span.standing[0].process, "joined");
    strcpy(c.span.standing[1].process, "joined");
    take(a);
    take(b);
    take(c);
    node_merge_finish(&reply, 0);
    ck_assert_uint_eq(reply.stalls[0].missing_count, 3);
    ck_assert_int_eq(reply.stalls[0].missing[1].rank, 3);
    ck_assert_int_eq(reply.stalls[0].missing[2].rank, 4);
}
END_TEST

START_TEST(the_oldest_part_of_an_op_tells_its_age)
{
    merge_two_nodes("");
    node_merge_finish(&reply, 3000);
    ck_assert_uint_eq(reply.stall_count, 1);
    node_merge_finish(&reply, 3001);
    ck_assert_uint_eq(reply.stall_count, 0);
}
END_TEST

START_TEST(other_sets_and_other_jobs_have_rows_of_their_own)
{
    struct hvi_engine_report a = report_of(0, ""), b = report_of(1, ""), c = report_of(2, "");

    add_stall(&a, 0, 1);
    add_stall(&b, 2, 3);
    add_stall(&c, 4, 5);
    b.stalls[0].process_set = 1;
    take(a);
    take(b);
    node_merge_stalls(&reply, &c, "other", 1000);
    node_merge_span(&reply, &c, "other", 1000);
    free_report(&c);
    node_merge_finish(&reply, 0);
    ck_assert_uint_eq(reply.stall_count, 3);
}
END_TEST

START_TEST(ranks_are_sorted_and_what_has_no_room_is_counted)
{
    struct hvi_rank_row rows[600];
    struct hvi_engine_report report = {.ranks = rows, .rank_count = 600};

    for (int32_t i = 0; i < 600; i++)
        rows[i] = (struct hvi_rank_row){.rank = 2000 - i};
    node_merge_ranks(&reply, &report);
    for (int32_t i = 0; i < 600; i++)
        rows[i].rank = i;
    node_merge_ranks(&reply, &report);
    ck_assert_uint_eq(reply.rank_count, HVI_WIRE_ROWS_MAX);
    ck_assert_uint_eq(reply.rows_left_out, 1200 - HVI_WIRE_ROWS_MAX);
    take(report_of(1, ""));
    take(report_of(0, ""));
    node_merge_finish(&reply, 0);
    ck_assert_int_eq(reply.ranks[0].rank, 0);
    ck_assert_int_eq(reply.ranks[HVI_WIRE_ROWS_MAX - 1].rank, 2000);
    ck_assert_uint_eq(reply.spans[0].node, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node/merge");
    TCase *tcase = tcase_create("merge");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, what_several_nodes_wait_for_is_one_row_with_the_ranks_of_all);
    tcase_add_test(tcase, ranks_of_a_node_that_does_not_answer_are_named_with_it);
    tcase_add_test(tcase, a_rank_that_has_joined_is_not_missing);
    tcase_add_test(tcase, the_oldest_part_of_an_op_tells_its_age);
    tcase_add_test(tcase, other_sets_and_other_jobs_have_rows_of_their_own);
    tcase_add_test(tcase, ranks_are_sorted_and_what_has_no_room_is_counted);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
