/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl trace` asks rank by rank and page by page. */
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdctl/hvt_program.h"

static struct hvi_rank_row ranks[] = {
    {.rank = 3, .pid = 4711, .state = "attached", .process = "S"},
    {.rank = 5, .pid = 4712, .state = "lost", .process = "X"},
};
static struct hvi_trace_row new_ops[] = {
    {.rank = 3, .number = 9, .tensor = "i", .op = "allreduce"},
    {.rank = 3, .number = 8, .tensor = "h", .op = "allreduce"},
    {.rank = 3, .number = 0, .tensor = "open", .op = "barrier", .status = HVI_INPROGRESS},
};
static struct hvi_trace_row old_ops[] = {
    {.rank = 3, .number = 7, .tensor = "g", .op = "allgather"},
    {.rank = 3, .number = 6, .tensor = "f", .op = "allgather"},
};
static struct hvi_trace_row other_ops[] = {
    {.rank = 5, .number = 2, .tensor = "b", .op = "allreduce", .status = HVI_ERR_RANK_LOST},
    {.rank = 5, .number = 1, .tensor = "a", .op = "allreduce"},
};

/* Of row `index`; -1: there is none. */
static int number_of(const cJSON *document, int index, const char *name)
{
    const cJSON *row = cJSON_GetArrayItem(cJSON_GetObjectItem(document, "trace"), index);
    return row != NULL ? (int)cJSON_GetNumberValue(cJSON_GetObjectItem(row, name)) : -1;
}

static void expect_numbers(const cJSON *document, const int *numbers, int count)
{
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(number_of(document, i, "number"), numbers[i]);
    ck_assert_int_eq(number_of(document, count, "number"), -1);
}

START_TEST(every_rank_is_asked_and_its_ops_are_sorted)
{
    static const int numbers[] = {8, 9, 0, 1, 2};
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = ranks, .rank_count = 2}},
        {.kind = HVI_ADMIN_TRACE, .reply = {.traces = new_ops, .trace_count = 3}},
        {.kind = HVI_ADMIN_TRACE, .reply = {.traces = other_ops, .trace_count = 2}},
    };
    HVT_RUN(lines, "trace digits --json");
    hvt_expect_end(0, "");
    for (int i = 0; i < 3; i++)
        ck_assert_str_eq(hvt_asked[i].job, "digits");
    ck_assert_int_eq(hvt_asked[1].rank, 3);
    ck_assert_int_eq(hvt_asked[2].rank, 5);
    ck_assert_uint_eq(hvt_asked[1].limit, 20);
    ck_assert_uint_eq(hvt_asked[2].before, 0);
    cJSON *document = hvt_document();
    expect_numbers(document, numbers, 5);
    ck_assert_int_eq(number_of(document, 4, "status"), HVI_ERR_RANK_LOST);
    cJSON_Delete(document);
    HVT_RUN(lines, "trace digits");
    hvt_expect_end(0, "");
    ck_assert_ptr_nonnull(strstr(hvt_out, "ERR_RANK_LOST\n"));
}
END_TEST

START_TEST(the_next_page_is_asked_from_the_oldest_op_on)
{
    static const int numbers[] = {6, 7, 8, 9, 0};
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_TRACE,
         .reply = {.traces = new_ops, .trace_count = 3, .rows_left_out = 2}},
        {.kind = HVI_ADMIN_TRACE, .reply = {.traces = old_ops, .trace_count = 2}},
    };
    HVT_RUN(lines, "trace digits --rank 3 --last 7 --json");
    hvt_expect_end(0, "");
    ck_assert_int_eq(hvt_asked[0].rank, 3);
    ck_assert_uint_eq(hvt_asked[0].limit, 7);
    ck_assert_uint_eq(hvt_asked[0].before, 0);
    ck_assert_uint_eq(hvt_asked[1].limit, 4);
    ck_assert_uint_eq(hvt_asked[1].before, 8);
    cJSON *document = hvt_document();
    expect_numbers(document, numbers, 5);
    cJSON_Delete(document);
}
END_TEST

START_TEST(no_page_is_asked_when_there_are_enough_ops_or_none_is_older)
{
    const struct hvt_line enough[] = {{
        .kind = HVI_ADMIN_TRACE,
        .reply = {.traces = new_ops, .trace_count = 3, .rows_left_out = 9},
    }};
    const struct hvt_line first[] = {{
        .kind = HVI_ADMIN_TRACE,
        .reply = {.traces = other_ops, .trace_count = 2, .rows_left_out = 9},
    }};
    const struct hvt_line open_alone[] = {{
        .kind = HVI_ADMIN_TRACE,
        .reply = {.traces = &new_ops[2], .trace_count = 1, .rows_left_out = 9},
    }};
    HVT_RUN(enough, "trace digits --rank 3 --last 2");
    hvt_expect_end(0, "");
    HVT_RUN(first, "trace digits --rank 5");
    hvt_expect_end(0, "");
    HVT_RUN(open_alone, "trace digits --rank 3");
    hvt_expect_end(0, "");
    ck_assert_ptr_nonnull(strstr(hvt_out, "waiting\n"));
}
END_TEST

START_TEST(what_keeps_the_rows_from_being_all_is_in_the_document)
{
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = ranks, .rank_count = 2, .rows_left_out = 4}},
        {.kind = HVI_ADMIN_TRACE,
         .reply = {.traces = &new_ops[2], .trace_count = 1, .rows_left_out = 2, .text = "silent"}},
        {.kind = HVI_ADMIN_TRACE,
         .reply = {.traces = other_ops, .trace_count = 2, .text = "still silent"}},
    };
    HVT_RUN(lines, "trace digits --json");
    hvt_expect_end(0, "");
    cJSON *document = hvt_document();
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(document, "note")), "silent");
    ck_assert_int_eq((int)cJSON_GetNumberValue(cJSON_GetObjectItem(document, "rows_left_out")), 6);
    cJSON_Delete(document);
    HVT_RUN(lines, "trace digits");
    hvt_expect_end(0, "hvdctl: silent\nhvdctl: still silent\n");
    ck_assert_ptr_nonnull(strstr(hvt_out, "(6 more not shown)\n"));
}
END_TEST

START_TEST(an_error_in_the_middle_shows_nothing)
{
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = ranks, .rank_count = 2}},
        {.kind = HVI_ADMIN_TRACE, .reply = {.traces = new_ops, .trace_count = 3}},
        {.kind = HVI_ADMIN_TRACE, .reply = {.status = HVI_ERR_NOT_FOUND, .text = "it has ended"}},
    };
    HVT_RUN(lines, "trace digits");
    hvt_expect_end(1, "hvdctl: it has ended\n");
    ck_assert_str_eq(hvt_out, "");
    HVT_RUN(lines, "trace digits --json");
    hvt_expect_end(1, "it has ended");
    hvt_expect_error(HVI_ERR_NOT_FOUND);
}
END_TEST

START_TEST(a_job_that_is_not_known_or_a_page_that_is_cut_off_is_an_error)
{
    const struct hvt_line unknown[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.status = HVI_ERR_NOT_FOUND, .text = "no such job"}}};
    const struct hvt_line cut[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = ranks, .rank_count = 2}},
        {.kind = HVI_ADMIN_TRACE, .reply = {.traces = new_ops, .trace_count = 3}, .cut = 2},
    };
    HVT_RUN(unknown, "trace digits");
    hvt_expect_end(1, "hvdctl: no such job\n");
    HVT_RUN(cut, "trace digits");
    hvt_expect_end(1, "makes no sense");
    ck_assert_str_eq(hvt_out, "");
    hvt_run("trace dig/its");
    hvt_expect_end(2, "'dig/its' is no job id");
}
END_TEST

START_TEST(a_job_without_ops_is_told_in_words)
{
    const struct hvt_line lines[] = {{.kind = HVI_ADMIN_TRACE}};
    HVT_RUN(lines, "trace digits --rank 0");
    hvt_expect_end(0, "");
    ck_assert_str_eq(hvt_out, "no ops yet\n");
}
END_TEST

/* The clock of node 1 was asked for twice; a node is there once, as it was least certain. */
START_TEST(a_nodes_clock_is_as_certain_as_in_the_worst_answer)
{
    static int32_t nodes_ranks[] = {3};
    struct hvi_span_row good[] = {
        {.job = "digits",
         .node = 0,
         .name = "a",
         .address = "192.0.2.1",
         .port = 9600,
         .here = true},
        {.job = "digits",
         .node = 1,
         .name = "b",
         .address = "192.0.2.1",
         .port = 9600,
         .ahead_error_ns = 5000,
         .ranks = nodes_ranks,
         .rank_count = 1},
    };
    struct hvi_span_row bad[] = {{.job = "digits",
                                  .node = 1,
                                  .name = "b",
                                  .address = "192.0.2.1",
                                  .port = 9600,
                                  .ahead_error_ns = 9000,
                                  .text = "late"}};
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_RANKS,
         .reply = {.ranks = ranks, .rank_count = 2, .spans = good, .span_count = 2}},
        {.kind = HVI_ADMIN_TRACE,
         .reply = {.traces = new_ops, .trace_count = 3, .spans = bad, .span_count = 1}},
        {.kind = HVI_ADMIN_TRACE,
         .reply = {.traces = other_ops, .trace_count = 2, .spans = good, .span_count = 2}},
    };
    HVT_RUN(lines, "trace digits");
    hvt_expect_end(0, "hvdctl: job 'digits': late\n");
    ck_assert_ptr_nonnull(strstr(hvt_out, "node 1, b, are right to within 9.0 µs)\n"));
    HVT_RUN(lines, "trace digits --json");
    hvt_expect_end(0, "");
    ck_assert_ptr_nonnull(strstr(hvt_out, "9000"));
    ck_assert_ptr_null(strstr(hvt_out, "5000"));
    cJSON *document = hvt_document();
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(document, "note")), "late");
    cJSON_Delete(document);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/trace");
    TCase *tests = tcase_create("trace");
    tcase_add_checked_fixture(tests, hvt_program_setup, hvt_program_teardown);
    tcase_add_test(tests, every_rank_is_asked_and_its_ops_are_sorted);
    tcase_add_test(tests, the_next_page_is_asked_from_the_oldest_op_on);
    tcase_add_test(tests, no_page_is_asked_when_there_are_enough_ops_or_none_is_older);
    tcase_add_test(tests, what_keeps_the_rows_from_being_all_is_in_the_document);
    tcase_add_test(tests, an_error_in_the_middle_shows_nothing);
    tcase_add_test(tests, a_job_that_is_not_known_or_a_page_that_is_cut_off_is_an_error);
    tcase_add_test(tests, a_job_without_ops_is_told_in_words);
    tcase_add_test(tests, a_nodes_clock_is_as_certain_as_in_the_worst_answer);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
