/* SPDX-License-Identifier: Apache-2.0
 * The stall table: who is missing, what its process does, how old; and the settings. */
#include "base/status.h"
#include "tests/unit/engine/hvt_bench.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct hvt_bench bench;

static void submit(int32_t rank, const char *name)
{
    struct hvi_submission op =
        hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 1, 0);

    hvt_peer_name(&bench.peers[rank], &op, (uint32_t)(unsigned char)name[0], name);
    hvt_peer_submit(&bench.peers[rank], &op);
    hvt_bench_turn(&bench);
}

START_TEST(a_waiting_op_lists_who_is_there_and_who_is_not)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init(&bench, 3);
    submit(1, "w1");
    ck_assert_int_eq(engine_stall_rows(bench.engine, 0, 10, &rows, &count, &left_out), HVI_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(left_out, 0);
    ck_assert_str_eq(rows[0].tensor, "w1");
    ck_assert_str_eq(rows[0].op, "allreduce");
    ck_assert_str_eq(rows[0].job, HVT_JOB);
    ck_assert_uint_gt(rows[0].age_ns, 0);
    ck_assert_uint_eq(rows[0].ready_count, 1);
    ck_assert_int_eq(rows[0].ready[0], 1);
    ck_assert_uint_eq(rows[0].missing_count, 2);
    ck_assert_int_eq(rows[0].missing[0].rank, 0);
    ck_assert_int_eq(rows[0].missing[0].pid, getpid());
    ck_assert_ptr_nonnull(strstr("RS", rows[0].missing[0].process));
    ck_assert_int_eq(rows[0].missing[1].rank, 2);
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(rows_come_oldest_first_and_the_rest_is_counted)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init(&bench, 2);
    submit(0, "a");
    submit(1, "b");
    submit(0, "c");
    ck_assert_int_eq(engine_stall_rows(bench.engine, 0, 2, &rows, &count, &left_out), HVI_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(left_out, 1);
    ck_assert_str_eq(rows[0].tensor, "a");
    ck_assert_str_eq(rows[1].tensor, "b");
    ck_assert_uint_ge(rows[0].age_ns, rows[1].age_ns);
    engine_stall_rows_free(rows, count);
    ck_assert_int_eq(
        engine_stall_rows(bench.engine, HVI_NS_SEC * 1000, 2, &rows, &count, &left_out), HVI_OK);
    ck_assert_uint_eq(count + left_out, 0);
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_finished_op_is_in_no_row)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init(&bench, 2);
    submit(0, "a");
    submit(1, "a");
    ck_assert_int_eq(engine_stall_rows(bench.engine, 0, 2, &rows, &count, &left_out), HVI_OK);
    ck_assert_uint_eq(count, 0);
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_rank_that_never_came_is_absent)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init_empty(&bench, 2);
    ck_assert_int_eq(hvt_bench_attach(&bench, 0), HVI_OK);
    submit(0, "a");
    ck_assert_int_eq(engine_stall_rows(bench.engine, 0, 2, &rows, &count, &left_out), HVI_OK);
    ck_assert_int_eq(rows[0].missing[0].pid, 0);
    ck_assert_str_eq(rows[0].missing[0].process, "absent");
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(an_allgather_that_waits_for_an_output_says_whose)
{
    struct hvi_stall_row *rows;
    uint64_t left_out;
    size_t count;

    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op =
            hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLGATHER, HVI_DTYPE_FLOAT32, 1, 0);
        hvt_peer_name(&bench.peers[rank], &op, 1, "g");
        op.out_region = rank == 0 ? 0 : HVI_REGION_NONE;
        op.out_offset = 4096;
        op.out_capacity = rank == 0 ? 64 : 0;
        hvt_peer_submit(&bench.peers[rank], &op);
    }
    hvt_bench_turn(&bench);
    ck_assert_int_eq(engine_stall_rows(bench.engine, 0, 2, &rows, &count, &left_out), HVI_OK);
    ck_assert_uint_eq(count, 1);
    ck_assert_uint_eq(rows[0].missing_count, 1);
    ck_assert_int_eq(rows[0].missing[0].rank, 1);
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

static uint64_t configured(const char *name, const char *value, const char *name2,
                           const char *value2)
{
    static struct engine engine;
    struct hvi_setting settings[2];

    snprintf(settings[0].name, sizeof settings[0].name, "%s", name);
    snprintf(settings[0].value, sizeof settings[0].value, "%s", value);
    snprintf(settings[1].name, sizeof settings[1].name, "%s", name2);
    snprintf(settings[1].value, sizeof settings[1].value, "%s", value2);
    engine.stall_warn_ns = 77;
    engine_stall_configure(&engine, settings, 2);
    return engine.stall_warn_ns;
}

START_TEST(settings_of_the_job_override_the_daemons)
{
    ck_assert_uint_eq(configured("HVD_LOG_LEVEL", "x", "A", "b"), 77);
    ck_assert_uint_eq(configured("HVD_STALL_CHECK_TIME_SECONDS", "2.5", "A", "b"),
                      2500 * HVI_NS_MS);
    ck_assert_uint_eq(
        configured("HOROVOD_STALL_CHECK_TIME_SECONDS", "9", "HVD_STALL_CHECK_TIME_SECONDS", "3"),
        3 * HVI_NS_SEC);
    ck_assert_uint_eq(configured("HOROVOD_STALL_CHECK_TIME_SECONDS", "9", "A", "b"),
                      9 * HVI_NS_SEC);
    ck_assert_uint_eq(configured("HOROVOD_STALL_CHECK_DISABLE", "1", "A", "b"), 0);
    ck_assert_uint_eq(configured("HVD_STALL_CHECK_DISABLE", "0", "A", "b"), 77);
    ck_assert_uint_eq(configured("HVD_STALL_CHECK_TIME_SECONDS", "soon", "A", "b"), 77);
    ck_assert_uint_eq(configured("HVD_STALL_CHECK_TIME_SECONDS", "-1", "A", "b"), 77);
    ck_assert_uint_eq(configured("HVD_STALL_CHECK_TIME_SECONDS", "nan", "A", "b"), 77);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/stall");
    TCase *tcase = tcase_create("stall");

    tcase_add_test(tcase, a_waiting_op_lists_who_is_there_and_who_is_not);
    tcase_add_test(tcase, rows_come_oldest_first_and_the_rest_is_counted);
    tcase_add_test(tcase, a_finished_op_is_in_no_row);
    tcase_add_test(tcase, a_rank_that_never_came_is_absent);
    tcase_add_test(tcase, an_allgather_that_waits_for_an_output_says_whose);
    tcase_add_test(tcase, settings_of_the_job_override_the_daemons);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
