/* SPDX-License-Identifier: Apache-2.0
 * `hvdctl top`: what is asked for two looks, and when it ends. The shortest interval is 10 ms. */
#include "base/status.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdctl/hvt_program.h"

static struct hvi_rank_row before[] = {
    {.rank = 0,
     .pid = 4711,
     .state = "attached",
     .process = "S",
     .ops = 100,
     .lag_ops = 10,
     .last_ops = 1,
     .lag_sum_ns = 50},
    {.rank = 1, .pid = 4712, .state = "attached", .process = "S", .ops = 100, .lag_ops = 9},
};
static struct hvi_rank_row after[] = {
    {.rank = 0,
     .pid = 4711,
     .state = "attached",
     .process = "S",
     .ops = 100,
     .lag_ops = 14,
     .last_ops = 4,
     .lag_sum_ns = 4050},
    {.rank = 1, .pid = 4999, .state = "attached", .process = "S", .ops = 100, .lag_ops = 9},
};

static double number(const cJSON *object, const char *name)
{
    return cJSON_GetNumberValue(cJSON_GetObjectItem(object, name));
}

START_TEST(two_looks_are_subtracted_and_a_new_process_starts_from_nothing)
{
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = before, .rank_count = 2}},
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = after, .rank_count = 2}},
    };
    HVT_RUN(lines, "top digits --interval 0.001 --json");
    hvt_expect_end(0, "");
    ck_assert_str_eq(hvt_asked[0].job, "digits");
    ck_assert_str_eq(hvt_asked[1].job, "digits");
    cJSON *document = hvt_document();
    ck_assert(number(document, "interval_ns") >= 1e7);
    const cJSON *rows = cJSON_GetObjectItem(document, "ranks");
    const cJSON *same = cJSON_GetArrayItem(rows, 0), *anew = cJSON_GetArrayItem(rows, 1);
    ck_assert(number(same, "ops_per_s") == 0);
    ck_assert(number(same, "lag_ops") == 4);
    ck_assert(number(same, "last_ops") == 3);
    ck_assert(number(same, "lag_mean_ns") == 1000);
    ck_assert(number(anew, "ops_per_s") > 0);
    ck_assert(number(anew, "lag_ops") == 9);
    cJSON_Delete(document);
}
END_TEST

START_TEST(once_is_one_table)
{
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = before, .rank_count = 2}},
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = before, .rank_count = 2}},
    };
    HVT_RUN(lines, "top digits --once --interval 0.01");
    hvt_expect_end(0, "");
    ck_assert_ptr_eq(strstr(hvt_out, "JOB     RANK   PID  PROCESS "), hvt_out);
    ck_assert_ptr_nonnull(strstr(hvt_out, "\ndigits     1  4712  "));
    ck_assert_ptr_null(strstr(hvt_out, "\n\n"));
    ck_assert_ptr_null(strchr(hvt_out, '\033'));
}
END_TEST

/* Two generations of a job are asked for once, and another user's job is not. A job that ends between the questions does not end top. */
START_TEST(without_a_job_every_job_is_looked_at)
{
    struct hvi_job_row jobs[] = {
        {.job = "digits", .size = 2, .generation = 1, .state = "failed"},
        {.job = "gone", .size = 2, .generation = 1, .state = "running"},
        {.job = "theirs", .size = 2, .generation = 1, .state = "running", .withheld = true},
        {.job = "digits", .size = 2, .generation = 2, .state = "running"},
    };
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_JOBS, .reply = {.jobs = jobs, .job_count = 4}},
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = before, .rank_count = 2}},
        {.kind = HVI_ADMIN_RANKS, .reply = {.status = HVI_ERR_NOT_FOUND, .text = "gone has ended"}},
        {.kind = HVI_ADMIN_JOBS, .reply = {.jobs = jobs, .job_count = 1}},
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = before, .rank_count = 1}},
    };
    HVT_RUN(lines, "top --once --interval 0.01");
    hvt_expect_end(0, "hvdctl: gone has ended\n");
    ck_assert_str_eq(hvt_asked[1].job, "digits");
    ck_assert_str_eq(hvt_asked[2].job, "gone");
    ck_assert_str_eq(hvt_asked[4].job, "digits");
    ck_assert_ptr_nonnull(strstr(hvt_out, "\ndigits     0  4711  "));
    ck_assert_ptr_null(strstr(hvt_out, "4712"));
}
END_TEST

START_TEST(a_job_that_ends_between_the_questions_is_no_second_document)
{
    struct hvi_job_row jobs[] = {{.job = "gone", .size = 2, .generation = 1, .state = "running"}};
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_JOBS, .reply = {.jobs = jobs, .job_count = 1}},
        {.kind = HVI_ADMIN_RANKS, .reply = {.status = HVI_ERR_NOT_FOUND, .text = "gone has ended"}},
        {.kind = HVI_ADMIN_JOBS},
    };
    HVT_RUN(lines, "top --json --interval 0.01");
    hvt_expect_end(0, "hvdctl: gone has ended\n");
    ck_assert_ptr_eq(strstr(hvt_out, "{"), hvt_out);
    ck_assert_ptr_nonnull(strstr(hvt_out, "\"interval_ns\""));
    ck_assert_ptr_null(strstr(hvt_out, "error"));
}
END_TEST

START_TEST(no_jobs_are_told_in_words)
{
    const struct hvt_line lines[] = {{.kind = HVI_ADMIN_JOBS}, {.kind = HVI_ADMIN_JOBS}};
    HVT_RUN(lines, "top --once --interval 0.01");
    hvt_expect_end(0, "");
    ck_assert_str_eq(hvt_out, "no jobs\n");
}
END_TEST

START_TEST(top_goes_on_until_the_job_has_ended)
{
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = before, .rank_count = 1}},
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = before, .rank_count = 1}},
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = after, .rank_count = 1}},
        {.kind = HVI_ADMIN_RANKS, .reply = {.status = HVI_ERR_NOT_FOUND, .text = "it has ended"}},
    };
    HVT_RUN(lines, "top digits --interval 0.01");
    hvt_expect_end(1, "hvdctl: it has ended\n");
    const char *second = strstr(hvt_out, "\n\nJOB ");
    ck_assert_ptr_nonnull(second);
    ck_assert_ptr_null(strstr(second + 2, "\n\nJOB "));
    ck_assert_ptr_null(strchr(hvt_out, '\033')); /* no terminal */
}
END_TEST

START_TEST(top_ends_when_its_output_cannot_be_written)
{
    const struct hvt_line lines[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = before, .rank_count = 1}},
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = before, .rank_count = 1}},
    };
    hvt_out_path = "/dev/full";
    HVT_RUN(lines, "top digits --interval 0.01");
    hvt_expect_end(1, "");
}
END_TEST

START_TEST(the_first_look_may_fail)
{
    const struct hvt_line cut[] = {
        {.kind = HVI_ADMIN_RANKS, .reply = {.ranks = before, .rank_count = 2}, .cut = 1}};
    const struct hvt_line refused[] = {
        {.kind = HVI_ADMIN_JOBS, .reply = {.status = HVI_ERR_REFUSED, .text = "not you"}}};
    HVT_RUN(cut, "top digits");
    hvt_expect_end(1, "makes no sense");
    HVT_RUN(refused, "top --json");
    hvt_expect_end(1, "not you");
    hvt_expect_error(HVI_ERR_REFUSED);
    hvt_run("top dig/its");
    hvt_expect_end(2, "'dig/its' is no job id");
    hvt_run("top");
    hvt_expect_end(3, "no hvdd is running");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/top");
    TCase *tests = tcase_create("top");
    tcase_add_checked_fixture(tests, hvt_program_setup, hvt_program_teardown);
    tcase_add_test(tests, two_looks_are_subtracted_and_a_new_process_starts_from_nothing);
    tcase_add_test(tests, once_is_one_table);
    tcase_add_test(tests, without_a_job_every_job_is_looked_at);
    tcase_add_test(tests, a_job_that_ends_between_the_questions_is_no_second_document);
    tcase_add_test(tests, no_jobs_are_told_in_words);
    tcase_add_test(tests, top_goes_on_until_the_job_has_ended);
    tcase_add_test(tests, top_ends_when_its_output_cannot_be_written);
    tcase_add_test(tests, the_first_look_may_fail);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
