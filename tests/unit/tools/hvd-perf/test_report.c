/* SPDX-License-Identifier: Apache-2.0
 * Statistics and both forms of a row. */
#include "tools/hvd-perf/perf.h"

#include "tests/unit/hvt_main.h"

#include <string.h>

START_TEST(median_percentile_and_minimum_are_the_usual_ones)
{
    struct perf_row row = {0};
    int64_t odd[] = {3000, 1000, 2000};
    perf_row_times(&row, odd, 3, 1);
    ck_assert_double_eq(row.time_us, 2);
    ck_assert_double_eq(row.p99_us, 3);
    ck_assert_double_eq(row.min_us, 1);
    ck_assert_double_eq(row.mean_us, 2);
    int64_t even[] = {4000, 1000, 2000, 3000};
    perf_row_times(&row, even, 4, 2);
    ck_assert_double_eq(row.time_us, 1.25); /* 2.5 / 2 */
    int64_t many[200];
    for (int i = 0; i < 200; i++)
        many[i] = (200 - i) * 1000;
    perf_row_times(&row, many, 200, 1);
    ck_assert_double_eq(row.p99_us, 198);
    int64_t one[] = {5000};
    perf_row_times(&row, one, 1, 1);
    ck_assert_double_eq(row.time_us, 5);
    ck_assert_double_eq(row.p99_us, 5);
}
END_TEST

START_TEST(bus_bandwidth_is_nccl_tests_definition)
{
    ck_assert_double_eq(perf_bus_factor(PERF_ALLREDUCE, 4), 1.5);
    ck_assert_double_eq(perf_bus_factor(PERF_ALLREDUCE, 1), 0);
    ck_assert_double_eq(perf_bus_factor(PERF_ALLGATHER, 4), 0.75);
    ck_assert_double_eq(perf_bus_factor(PERF_BROADCAST, 4), 1);
    ck_assert_double_eq(perf_bus_factor(PERF_BARRIER, 4), 0);
}
END_TEST

static char *print(bool json, const struct perf_row *row)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    perf_print_row(stream, json, row);
    fclose(stream);
    return text;
}

START_TEST(the_heading_says_where_the_ranks_are_and_how_ops_are_measured)
{
    struct perf_options options = {.op = PERF_BARRIER};
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    ck_assert_ptr_nonnull(out);
    perf_print_header(out, &options, 4, 1);
    perf_print_header(out, &options, 4, 2);
    options.unnamed = options.no_barrier = options.out_of_place = true;
    options.outstanding = 3;
    perf_print_header(out, &options, 4, 1);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(text, ", 4 ranks, buffers in shared memory\n"));
    ck_assert_ptr_nonnull(strstr(text, ", 4 ranks on 2 nodes, buffers in shared memory\n"));
    ck_assert_ptr_nonnull(
        strstr(text, " memory, out of place, no barrier, unnamed, 3 ops at a time "));
    free(text);
}
END_TEST

START_TEST(a_row_is_json_or_a_table_line)
{
    struct perf_row row = {
        .op = "allreduce",
        .bytes = 64u << 20,
        .count = 16u << 20,
        .np = 4,
        .dtype = "float32",
        .memory = "shared",
        .reduce_op = "sum",
        .time_us = 16777.216,
        .p99_us = 20000,
        .min_us = 15000.5,
        .mean_us = 17000,
        .bus_factor = 1.5,
        .errors = 0,
        .iterations = 60,
        .outstanding = 1,
        .nodes = 2,
        .barrier = true,
        .names = "new",
        .warmup = 5,
    };
    char *text = print(true, &row);
    ck_assert_str_eq(text, "{\"op\": \"allreduce\", \"bytes\": 67108864, \"count\": 16777216, "
                           "\"np\": 4, \"dtype\": \"float32\", \"memory\": \"shared\", "
                           "\"reduce_op\": \"sum\", \"time_us\": 16777.216, \"time_us_p99\": "
                           "20000.000, \"time_us_min\": 15000.500, \"time_us_mean\": 17000.000, "
                           "\"algbw_GBps\": 4.0000, "
                           "\"busbw_GBps\": 6.0000, \"errors\": 0, \"iterations\": 60, "
                           "\"outstanding\": 1, \"threads\": 0, \"nodes\": 2, "
                           "\"out_of_place\": false, \"barrier\": true, \"names\": \"new\", "
                           "\"warmup\": 5, \"version\": \"" HVD_VERSION_TEXT "\"}\n");
    free(text);
    text = print(false, &row);
    ck_assert_str_eq(text, " allreduce      67108864     16777216   16777.22   20000.00   15000.50"
                           "    4.000    6.000        0      60\n");
    free(text);
    row.errors = -1;
    text = print(true, &row);
    ck_assert_ptr_nonnull(strstr(text, "\"errors\": null"));
    free(text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvd-perf/report");
    TCase *tests = tcase_create("report");
    tcase_add_test(tests, median_percentile_and_minimum_are_the_usual_ones);
    tcase_add_test(tests, bus_bandwidth_is_nccl_tests_definition);
    tcase_add_test(tests, the_heading_says_where_the_ranks_are_and_how_ops_are_measured);
    tcase_add_test(tests, a_row_is_json_or_a_table_line);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
