/* SPDX-License-Identifier: Apache-2.0
 * Ops whose outputs have another size than their inputs: who gets how many rows, who is asked for
 * memory, and what is refused. */
#include "base/status.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>

static struct hvt_bench bench;

/* rows x 2 floats: 100 * rank + i. */
static struct hvi_submission make(int32_t rank, uint16_t kind, uint64_t rows, uint64_t capacity)
{
    struct hvi_submission op = hvt_op(&bench, rank, kind, rows * 2, "x", 0);

    op.ndim = 2;
    op.dims[0] = (int64_t)rows;
    op.dims[1] = 2;
    hvt_op_output(&op, capacity);
    for (uint64_t i = 0; i < rows * 2; i++)
        hvt_op_memory(&bench, rank)[i] = (float)(100 * rank) + (float)i;
    return op;
}

static const float *output(int32_t rank)
{
    return hvt_op_memory(&bench, rank) + HVT_OUT_AT / 4;
}

static const int64_t *received(int32_t rank, uint32_t given)
{
    char *at = (char *)hvt_op_memory(&bench, rank) + HVT_AUX_AT;

    return (const int64_t *)(void *)at + given;
}

static void submit_all(uint16_t kind, const uint64_t *rows, uint64_t capacity)
{
    for (int32_t rank = 0; rank < bench.size; rank++)
        hvt_op_submit(&bench, rank, make(rank, kind, rows[rank], capacity));
}

/* ---- reducescatter ---- */

START_TEST(the_first_ranks_get_a_row_more)
{
    static const int64_t rows[3] = {3, 3, 2};
    int64_t before = 0;

    hvt_bench_init(&bench, 3);
    submit_all(HVI_KIND_REDUCESCATTER, (uint64_t[]){8, 8, 8}, 64);
    for (int32_t rank = 0; rank < 3; rank++) {
        struct hvi_completion done = hvt_op_expect(&bench, rank, HVI_OK, "");
        ck_assert_int_eq(done.rows, rows[rank]);
        ck_assert_uint_eq(done.bytes, (uint64_t)rows[rank] * 8);
        for (int64_t i = 0; i < 2 * rows[rank]; i++)
            ck_assert_float_eq(output(rank)[i], (float)(300 + 3 * (2 * before + i)));
        before += rows[rank];
    }
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_rank_may_get_nothing_and_is_asked_for_nothings_place)
{
    hvt_bench_init(&bench, 2);
    submit_all(HVI_KIND_REDUCESCATTER, (uint64_t[]){1, 1}, 0);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_completion sized = hvt_peer_complete(&bench.peers[rank], NULL, 0);
        ck_assert_uint_eq(sized.kind, HVI_COMPLETE_SIZED);
        ck_assert_int_eq(sized.rows, rank == 0 ? 1 : 0);
        ck_assert_uint_eq(sized.bytes, rank == 0 ? 8 : 0);
        struct hvi_submission op = {.kind = HVI_SUBMIT_OUTPUT, .cookie = sized.cookie};
        hvt_op_output(&op, sized.bytes);
        hvt_op_submit(&bench, rank, op);
    }
    ck_assert_int_eq(hvt_op_expect(&bench, 0, HVI_OK, "").rows, 1);
    ck_assert_uint_eq(hvt_op_expect(&bench, 1, HVI_OK, "").bytes, 0);
    ck_assert_float_eq(output(0)[1], 102);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(an_output_may_be_the_own_slice_of_the_input_and_nothing_else_of_it)
{
    struct hvi_submission op;

    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        op = make(rank, HVI_KIND_REDUCESCATTER, 4, 16);
        op.out_offset = rank == 0 ? 0 : 16;
        hvt_op_submit(&bench, rank, op);
    }
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    ck_assert_float_eq(hvt_op_memory(&bench, 1)[4], 108);
    for (int32_t rank = 0; rank < 2; rank++) {
        op = make(rank, HVI_KIND_REDUCESCATTER, 4, 16);
        op.out_offset = 0;
        hvt_op_submit(&bench, rank, op);
    }
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_INVALID,
                      "reducescatter 'x': rank 1's output lies inside its input");
    hvt_bench_fini(&bench);
}
END_TEST

/* ---- alltoall ---- */

START_TEST(rows_go_where_the_splits_say)
{
    static const int64_t splits[3][3] = {{1, 0, 2}, {0, 0, 0}, {2, 1, 1}};

    hvt_bench_init(&bench, 3);
    for (int32_t rank = 0; rank < 3; rank++) {
        struct hvi_submission op =
            make(rank, HVI_KIND_ALLTOALL, rank == 1 ? 0 : 5, 64); /* more rows than are sent */
        hvt_op_integers(&bench, rank, &op, splits[rank], 3);
        hvt_op_submit(&bench, rank, op);
    }
    for (int32_t to = 0; to < 3; to++) {
        struct hvi_completion done = hvt_op_expect(&bench, to, HVI_OK, "");
        int64_t rows = 0;
        for (int32_t from = 0; from < 3; from++) {
            ck_assert_int_eq(received(to, 3)[from], splits[from][to]);
            int64_t at = 0;
            for (int32_t before = 0; before < to; before++)
                at += splits[from][before];
            for (int64_t i = 0; i < 2 * splits[from][to]; i++)
                ck_assert_float_eq(output(to)[2 * rows + i], (float)(100 * from + 2 * at + i));
            rows += splits[from][to];
        }
        ck_assert_int_eq(done.rows, rows);
        ck_assert_uint_eq(done.bytes, (uint64_t)rows * 8);
    }
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(without_splits_the_parts_are_equal_and_the_received_may_be_told)
{
    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = make(rank, HVI_KIND_ALLTOALL, rank == 0 ? 4 : 2, 64);
        if (rank == 0)
            hvt_op_integers(&bench, rank, &op, NULL, 0);
        hvt_op_submit(&bench, rank, op);
    }
    for (int32_t rank = 0; rank < 2; rank++) {
        ck_assert_int_eq(hvt_op_expect(&bench, rank, HVI_OK, "").rows, 3);
        ck_assert_float_eq(output(rank)[4], rank == 0 ? 100 : 102);
    }
    ck_assert(received(0, 0)[0] == 2 && received(0, 0)[1] == 1);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(splits_that_make_no_sense_fail_on_every_rank)
{
    static const struct {
        int64_t splits[2];
        const char *sentence;
    } rows[] = {
        {{3, 2}, "alltoall 'x': the splits of rank 1 add up to more than its 4 rows"},
        {{-1, 2}, "alltoall 'x': rank 1 wants to send -1 rows to rank 0"},
        {{INT64_MAX, INT64_MAX},
         "alltoall 'x': the splits of rank 1 add up to more than its 4 rows"},
    };

    hvt_bench_init(&bench, 2);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        struct hvi_submission op = make(1, HVI_KIND_ALLTOALL, 4, 64);
        hvt_op_integers(&bench, 1, &op, rows[i].splits, 2);
        hvt_op_submit(&bench, 0, make(0, HVI_KIND_ALLTOALL, 4, 64));
        hvt_op_submit(&bench, 1, op);
        hvt_op_expect_all(&bench, 0, 1, HVI_ERR_INVALID, rows[i].sentence);
    }
    submit_all(HVI_KIND_ALLTOALL, (uint64_t[]){3, 4}, 64);
    hvt_op_expect_all(
        &bench, 0, 1, HVI_ERR_INVALID,
        "alltoall 'x': rank 0 gave no splits, and its 3 rows cannot be cut into 2 equal "
        "parts");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(splits_are_read_once)
{
    int64_t *shared;

    hvt_bench_init(&bench, 2);
    struct hvi_submission op = make(0, HVI_KIND_ALLTOALL, 4, 64);
    hvt_op_integers(&bench, 0, &op, (int64_t[]){2, 2}, 2);
    hvt_op_submit(&bench, 0, op);
    shared = (int64_t *)(uintptr_t)received(0, 0);
    shared[0] = INT64_MAX; /* too late */
    shared[1] = -5;
    hvt_op_submit(&bench, 1, make(1, HVI_KIND_ALLTOALL, 4, 64));
    for (int32_t rank = 0; rank < 2; rank++)
        ck_assert_int_eq(hvt_op_expect(&bench, rank, HVI_OK, "").rows, 4);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(an_alltoall_is_never_in_place)
{
    hvt_bench_init(&bench, 2);
    struct hvi_submission op = make(1, HVI_KIND_ALLTOALL, 4, 32);
    op.out_offset = 0;
    hvt_op_submit(&bench, 0, make(0, HVI_KIND_ALLTOALL, 4, 32));
    hvt_op_submit(&bench, 1, op);
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_INVALID,
                      "alltoall 'x': rank 1's output lies inside its input");
    hvt_bench_fini(&bench);
}
END_TEST

/* ---- all of them ---- */

START_TEST(a_tensor_without_dimensions_has_no_rows)
{
    static const uint16_t kinds[] = {HVI_KIND_ALLGATHER, HVI_KIND_ALLTOALL, HVI_KIND_REDUCESCATTER};
    char sentence[128];

    hvt_bench_init(&bench, 2);
    for (int i = 0; i < 3; i++) {
        for (int32_t rank = 0; rank < 2; rank++) {
            struct hvi_submission op = hvt_op(&bench, rank, kinds[i], 1, "x", 0);
            op.ndim = 0;
            op.dims[0] = 0;
            hvt_op_output(&op, 64);
            hvt_op_submit(&bench, rank, op);
        }
        snprintf(sentence, sizeof sentence, "%s 'x': a tensor without dimensions has no rows",
                 hvi_kind_text(kinds[i]));
        hvt_op_expect_all(&bench, 0, 1, HVI_ERR_INVALID, sentence);
    }
    hvt_bench_fini(&bench);
}
END_TEST

/* Rows beyond anything that can be moved, of elements that are not there. */
START_TEST(sizes_that_overflow_are_refused)
{
    hvt_bench_init(&bench, 3);
    for (int32_t rank = 0; rank < 3; rank++) {
        struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLGATHER, 0, "x", 0);
        op.ndim = 2;
        op.dims[0] = INT64_MAX / 2;
        op.dims[1] = 0;
        hvt_op_output(&op, 64);
        hvt_op_submit(&bench, rank, op);
    }
    hvt_op_expect_all(&bench, 0, 2, HVI_ERR_INVALID,
                      "allgather 'x': the size of the result overflows");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_gathers_input_may_be_its_own_place_in_the_output)
{
    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = make(rank, HVI_KIND_ALLGATHER, 2, 32);
        op.out_offset = 0;
        op.in_offset = rank == 0 ? 0 : 16;
        hvt_op_memory(&bench, rank)[4] = 77;
        hvt_op_submit(&bench, rank, op);
    }
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    for (int32_t rank = 0; rank < 2; rank++) {
        ck_assert_float_eq(hvt_op_memory(&bench, rank)[1], 1);
        ck_assert_float_eq(hvt_op_memory(&bench, rank)[4], 77);
    }
    hvt_bench_fini(&bench);
}
END_TEST

/* ---- what was agreed on ---- */

static void expect_counts(uint64_t negotiated, uint64_t replayed)
{
    for (int32_t rank = 0; rank < bench.size; rank++) {
        ck_assert_uint_eq(bench.engine->stats.rows[rank].negotiated, negotiated);
        ck_assert_uint_eq(bench.engine->stats.rows[rank].replayed, replayed);
    }
}

START_TEST(what_repeats_is_not_checked_again_until_it_differs)
{
    hvt_bench_init(&bench, 2);
    for (int i = 0; i < 5; i++) {
        submit_all(HVI_KIND_REDUCESCATTER, (uint64_t[]){4, 4}, 64);
        hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    }
    expect_counts(1, 4);
    submit_all(HVI_KIND_REDUCESCATTER, (uint64_t[]){4, 6}, 64); /* one rank differs */
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_MISMATCH,
                      "reducescatter 'x': ranks disagree on shape: rank 0 said [4, 2]; rank 1 said "
                      "[6, 2]");
    submit_all(HVI_KIND_REDUCESCATTER, (uint64_t[]){6, 6}, 64); /* both do, alike */
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    expect_counts(2, 4);
    submit_all(HVI_KIND_REDUCESCATTER, (uint64_t[]){6, 6}, 64);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    expect_counts(2, 5);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_missing_rank_or_the_setting_makes_every_op_a_checked_one)
{
    hvt_bench_init(&bench, 2);
    submit_all(HVI_KIND_REDUCESCATTER, (uint64_t[]){4, 4}, 64);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_op_run(&bench, 1, HVI_KIND_JOIN, 0, "j", 0);
    hvt_op_submit(&bench, 0, make(0, HVI_KIND_REDUCESCATTER, 4, 64));
    ck_assert_int_eq(hvt_op_expect(&bench, 0, HVI_OK, "").rows, 4);
    ck_assert_uint_eq(bench.engine->stats.rows[0].negotiated, 2);
    hvt_bench_fini(&bench);
    hvt_bench_init(&bench, 2);
    bench.engine->order.replay = false;
    for (int i = 0; i < 3; i++) {
        submit_all(HVI_KIND_REDUCESCATTER, (uint64_t[]){4, 4}, 64);
        hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    }
    expect_counts(3, 0);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_repeated_op_that_lost_a_part_is_not_taken_for_agreed)
{
    hvt_bench_init(&bench, 2);
    submit_all(HVI_KIND_REDUCESCATTER, (uint64_t[]){4, 4}, 64);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    uint64_t cookie = hvt_op_submit(&bench, 0, make(0, HVI_KIND_REDUCESCATTER, 4, 64));
    hvt_op_cancel(&bench, 0, cookie);
    hvt_op_expect(&bench, 0, HVI_ERR_CANCELLED, NULL);
    submit_all(HVI_KIND_REDUCESCATTER, (uint64_t[]){6, 4}, 64);
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_MISMATCH, NULL);
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/resize");
    TCase *tcase = tcase_create("resize");

    tcase_add_test(tcase, the_first_ranks_get_a_row_more);
    tcase_add_test(tcase, a_rank_may_get_nothing_and_is_asked_for_nothings_place);
    tcase_add_test(tcase, an_output_may_be_the_own_slice_of_the_input_and_nothing_else_of_it);
    tcase_add_test(tcase, rows_go_where_the_splits_say);
    tcase_add_test(tcase, without_splits_the_parts_are_equal_and_the_received_may_be_told);
    tcase_add_test(tcase, splits_that_make_no_sense_fail_on_every_rank);
    tcase_add_test(tcase, splits_are_read_once);
    tcase_add_test(tcase, an_alltoall_is_never_in_place);
    tcase_add_test(tcase, a_tensor_without_dimensions_has_no_rows);
    tcase_add_test(tcase, sizes_that_overflow_are_refused);
    tcase_add_test(tcase, a_gathers_input_may_be_its_own_place_in_the_output);
    tcase_add_test(tcase, what_repeats_is_not_checked_again_until_it_differs);
    tcase_add_test(tcase, a_missing_rank_or_the_setting_makes_every_op_a_checked_one);
    tcase_add_test(tcase, a_repeated_op_that_lost_a_part_is_not_taken_for_agreed);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
