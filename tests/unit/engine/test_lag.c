/* SPDX-License-Identifier: Apache-2.0
 * Arrival lag: what a histogram of powers of two still knows, and who came last. */
#include "base/status.h"
#include "tests/unit/engine/hvt_bench.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>

static struct hvt_bench bench;

START_TEST(a_histogram_without_ops_is_all_zero)
{
    struct engine_lag lag = {0};

    ck_assert_uint_eq(engine_lag_quantile(&lag, 500), 0);
    ck_assert_uint_eq(engine_lag_quantile(&lag, 1000), 0);
}
END_TEST

START_TEST(quantiles_are_right_within_a_factor_of_two)
{
    static const uint64_t lags_ns[] = {1, 2, 3, 999, 1000, 1024, 123456789, 1ull << 41};

    for (size_t i = 0; i < sizeof lags_ns / sizeof lags_ns[0]; i++) {
        struct engine_lag lag = {0};
        for (int j = 0; j < 90; j++)
            engine_lag_count(&lag, lags_ns[i]);
        for (int j = 0; j < 10; j++)
            engine_lag_count(&lag, 1ull << 42);
        ck_assert_uint_ge(engine_lag_quantile(&lag, 500), lags_ns[i] / 2);
        ck_assert_uint_le(engine_lag_quantile(&lag, 500), lags_ns[i] * 2);
        ck_assert_uint_eq(engine_lag_quantile(&lag, 1000), 1ull << 42);
    }
}
END_TEST

START_TEST(one_late_op_in_a_hundred_shows_in_p99_and_not_in_p50)
{
    struct engine_lag lag = {0};

    for (int i = 0; i < 98; i++)
        engine_lag_count(&lag, 0);
    engine_lag_count(&lag, 1000000);
    engine_lag_count(&lag, 1000000);
    ck_assert_uint_eq(engine_lag_quantile(&lag, 500), 0);
    ck_assert_uint_ge(engine_lag_quantile(&lag, 990), 500000);
    ck_assert_uint_eq(lag.max_ns, 1000000);
    ck_assert_uint_eq(lag.sum_ns, 2000000);
}
END_TEST

START_TEST(a_lag_beyond_the_last_bucket_is_counted_there)
{
    struct engine_lag lag = {0};

    engine_lag_count(&lag, UINT64_MAX);
    ck_assert_uint_eq(lag.buckets[ENGINE_LAG_BUCKETS - 1], 1);
    ck_assert_uint_eq(engine_lag_quantile(&lag, 1000), UINT64_MAX);
}
END_TEST

static void submit(int32_t rank, uint64_t submit_ns)
{
    struct hvi_submission op =
        hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 1, 0);

    hvt_peer_name(&bench.peers[rank], &op, 1, "w");
    op.submit_ns = submit_ns;
    hvt_peer_submit(&bench.peers[rank], &op);
}

START_TEST(the_rank_that_comes_last_is_counted_as_last)
{
    struct hvi_rank_row *rows;
    size_t count = 0;

    hvt_bench_init(&bench, 3);
    uint64_t now_ns = hvi_clock_ns();
    for (int i = 0; i < 4; i++) {
        submit(0, now_ns + 10);
        submit(1, now_ns + (i == 3 ? 2000 : 1000));
        submit(2, now_ns + (i == 3 ? 1000 : 2000));
        while (hvi_clock_ns() < now_ns + 2000) {
        }
        hvt_bench_turn(&bench);
    }
    ck_assert_int_eq(engine_rank_rows(&bench.engine->sessions, &rows, &count), HVI_OK);
    ck_assert_uint_eq(rows[0].lag_ops, 4);
    ck_assert_uint_eq(rows[0].last_ops, 0);
    ck_assert_uint_eq(rows[0].lag_sum_ns, 0);
    ck_assert_uint_eq(rows[1].last_ops, 1);
    ck_assert_uint_eq(rows[2].last_ops, 3);
    ck_assert_uint_eq(rows[2].lag_sum_ns, 3 * 1990 + 990);
    ck_assert_uint_eq(rows[2].lag_max_ns, 1990);
    free(rows);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(ops_of_one_rank_are_not_counted)
{
    struct hvi_rank_row *rows;
    size_t count = 0;

    hvt_bench_init(&bench, 1);
    submit(0, hvi_clock_ns());
    hvt_bench_turn(&bench);
    ck_assert_int_eq(engine_rank_rows(&bench.engine->sessions, &rows, &count), HVI_OK);
    ck_assert_uint_eq(rows[0].ops, 1);
    ck_assert_uint_eq(rows[0].lag_ops, 0);
    free(rows);
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/lag");
    TCase *tcase = tcase_create("lag");

    tcase_add_test(tcase, a_histogram_without_ops_is_all_zero);
    tcase_add_test(tcase, quantiles_are_right_within_a_factor_of_two);
    tcase_add_test(tcase, one_late_op_in_a_hundred_shows_in_p99_and_not_in_p50);
    tcase_add_test(tcase, a_lag_beyond_the_last_bucket_is_counted_there);
    tcase_add_test(tcase, the_rank_that_comes_last_is_counted_as_last);
    tcase_add_test(tcase, ops_of_one_rank_are_not_counted);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
