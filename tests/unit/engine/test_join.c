/* SPDX-License-Identifier: Apache-2.0
 * Ranks that have no more data: what the others' ops make of it. */
#include "base/status.h"
#include "daemon/engine/order/negotiate.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_main.h"

#include <string.h>

static struct hvt_bench bench;

static void join(int32_t rank, uint32_t set)
{
    hvt_op_run(&bench, rank, HVI_KIND_JOIN, 0, "join", set);
}

static void expect_joined(int32_t rank, int32_t last)
{
    ck_assert_int_eq(hvt_op_expect(&bench, rank, HVI_OK, "").rows, last);
}

START_TEST(it_is_over_when_all_have_joined_and_names_the_last)
{
    hvt_bench_init(&bench, 3);
    for (int round = 0; round < 2; round++) {
        join(2, 0);
        join(0, 0);
        hvt_op_expect_nothing(&bench, 0, 2);
        join(1, 0);
        for (int32_t rank = 0; rank < 3; rank++)
            expect_joined(rank, 1);
    }
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(who_submitted_last_is_the_last_though_taken_in_first)
{
    hvt_bench_init(&bench, 3);
    for (int32_t rank = 2; rank >= 0; rank--) { /* the engine drains rank 0 first */
        struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_JOIN, 0, "join", 0);
        hvt_peer_submit(&bench.peers[rank], &op);
    }
    hvt_bench_turn(&bench);
    for (int32_t rank = 0; rank < 3; rank++)
        expect_joined(rank, 0);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_joined_rank_is_neutral_in_a_reduction)
{
    static const struct {
        uint8_t reduce_op;
        float result; /* of 6 and -4; rank 1 has joined */
    } rows[] = {{HVI_REDUCE_SUM, 2},
                {HVI_REDUCE_AVERAGE, 2.0f / 3.0f},
                {HVI_REDUCE_MIN, -4},
                {HVI_REDUCE_MAX, 6},
                {HVI_REDUCE_PRODUCT, -24}};

    hvt_bench_init(&bench, 3);
    hvt_op_memory(&bench, 1)[0] = 99;
    join(1, 0);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        for (int32_t rank = 0; rank < 3; rank += 2) {
            struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 1, "w", 0);
            op.reduce_op = rows[i].reduce_op;
            hvt_op_memory(&bench, rank)[0] = rank == 0 ? 6 : -4;
            hvt_op_submit(&bench, rank, op);
        }
        for (int32_t rank = 0; rank < 3; rank += 2) {
            hvt_op_expect(&bench, rank, HVI_OK, "");
            ck_assert_float_eq(hvt_op_memory(&bench, rank)[0], rows[i].result);
        }
    }
    ck_assert_float_eq(hvt_op_memory(&bench, 1)[0], 99);
    hvt_op_expect_nothing(&bench, 1, 1);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(joining_completes_what_waited_only_for_this_rank)
{
    hvt_bench_init(&bench, 3);
    for (int32_t rank = 0; rank < 2; rank++) {
        hvt_op_run(&bench, rank, HVI_KIND_ALLREDUCE, 1, "a", 0);
        hvt_op_run(&bench, rank, HVI_KIND_BARRIER, 0, "b", 0);
    }
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "c", 0); /* waits for rank 1, too */
    hvt_op_run(&bench, 2, HVI_KIND_ALLREDUCE, 1, "d", 0); /* its own, from before: not affected */
    hvt_op_expect_nothing(&bench, 0, 2);
    join(2, 0);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_op_expect_nothing(&bench, 0, 2);
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 1, "c", 0);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "d", 0);
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 1, "d", 0);
    hvt_op_expect_all(&bench, 0, 2, HVI_OK, "");
    ck_assert_ptr_eq(bench.engine->order.waiting_first,
                     bench.engine->order.waiting_last); /* the join */
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_rank_that_has_joined_submits_nothing)
{
    hvt_bench_init(&bench, 2);
    uint32_t own = hvt_op_add_set(&bench, (int64_t[]){1}, 1);
    join(1, 0);
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 1, "w", 0);
    hvt_op_expect(&bench, 1, HVI_ERR_INVALID,
                  "allreduce 'w': rank 1 has joined process set 0 and submits nothing there until "
                  "all have");
    join(1, 0);
    hvt_op_expect(&bench, 1, HVI_ERR_INVALID, NULL);
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 1, "w", own); /* elsewhere it may */
    hvt_op_expect(&bench, 1, HVI_OK, "");
    join(0, 0);
    expect_joined(0, 0);
    expect_joined(1, 0);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_broadcast_from_a_joined_root_fails_on_all)
{
    hvt_bench_init(&bench, 3);
    join(0, 0);
    hvt_op_run(&bench, 1, HVI_KIND_BROADCAST, 1, "b", 0);
    hvt_op_run(&bench, 2, HVI_KIND_BROADCAST, 1, "b", 0);
    hvt_op_expect_all(&bench, 1, 2, HVI_ERR_INVALID,
                      "broadcast 'b': root rank 0 has joined and has nothing to send");
    struct hvi_submission op;
    for (int32_t rank = 1; rank < 3; rank++) {
        op = hvt_op(&bench, rank, HVI_KIND_BROADCAST, 1, "b", 0);
        op.root = 2;
        hvt_op_memory(&bench, rank)[0] = (float)rank;
        hvt_op_submit(&bench, rank, op);
    }
    hvt_op_expect_all(&bench, 1, 2, HVI_OK, "");
    ck_assert_float_eq(hvt_op_memory(&bench, 1)[0], 2);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(process_sets_do_not_change_during_a_join)
{
    hvt_bench_init(&bench, 2);
    struct hvi_submission op = hvt_op(&bench, 0, HVI_KIND_SET_ADD, 0, "add", 0);
    hvt_op_integers(&bench, 0, &op, (int64_t[]){0}, 1);
    hvt_op_submit(&bench, 0, op);
    join(1, 0);
    hvt_op_expect(&bench, 0, HVI_ERR_INVALID,
                  "process_set_add 'add': a rank has joined and cannot take part: process sets "
                  "change before or after a join");
    join(0, 0);
    expect_joined(0, 0);
    expect_joined(1, 0);
    ck_assert_uint_eq(hvt_op_add_set(&bench, (int64_t[]){0}, 1), 1);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(each_set_has_its_own_join)
{
    hvt_bench_init(&bench, 3);
    uint32_t pair = hvt_op_add_set(&bench, (int64_t[]){1, 2}, 2);
    join(1, pair);
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "w", 0);
    hvt_op_run(&bench, 2, HVI_KIND_ALLREDUCE, 1, "w", 0);
    hvt_op_expect_nothing(&bench, 0, 2); /* rank 1 has not joined here */
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 1, "w", 0);
    hvt_op_expect_all(&bench, 0, 2, HVI_OK, "");
    hvt_op_run(&bench, 2, HVI_KIND_ALLREDUCE, 1, "w", pair);
    hvt_op_expect(&bench, 2, HVI_OK, "");
    join(2, pair);
    expect_joined(1, 2);
    expect_joined(2, 2);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_joined_rank_gives_and_takes_no_rows)
{
    hvt_bench_init(&bench, 3);
    join(1, 0);
    for (int32_t rank = 0; rank < 3; rank += 2) {
        struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLGATHER, 2, "g", 0);
        hvt_op_output(&op, 64);
        hvt_op_memory(&bench, rank)[0] = (float)rank;
        hvt_op_memory(&bench, rank)[1] = (float)rank + 10;
        hvt_op_submit(&bench, rank, op);
    }
    for (int32_t rank = 0; rank < 3; rank += 2) {
        const float *out = hvt_op_memory(&bench, rank) + HVT_OUT_AT / 4;
        ck_assert_int_eq(hvt_op_expect(&bench, rank, HVI_OK, "").rows, 4);
        ck_assert(out[0] == 0 && out[1] == 10 && out[2] == 2 && out[3] == 12);
    }
    /* 5 rows over the two that take part: 3 and 2. */
    for (int32_t rank = 0; rank < 3; rank += 2) {
        struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_REDUCESCATTER, 5, "s", 0);
        hvt_op_output(&op, 64);
        for (int i = 0; i < 5; i++)
            hvt_op_memory(&bench, rank)[i] = (float)(i + rank);
        hvt_op_submit(&bench, rank, op);
    }
    ck_assert_int_eq(hvt_op_expect(&bench, 0, HVI_OK, "").rows, 3);
    ck_assert_int_eq(hvt_op_expect(&bench, 2, HVI_OK, "").rows, 2);
    ck_assert_float_eq(hvt_op_memory(&bench, 0)[HVT_OUT_AT / 4 + 2], 6);
    ck_assert_float_eq(hvt_op_memory(&bench, 2)[HVT_OUT_AT / 4 + 1], 10);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(rows_for_a_joined_rank_go_nowhere)
{
    static const int64_t splits[] = {1, 2, 1};

    hvt_bench_init(&bench, 3);
    join(1, 0);
    for (int32_t rank = 0; rank < 3; rank += 2) {
        struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLTOALL, 4, "x", 0);
        hvt_op_output(&op, 64);
        hvt_op_integers(&bench, rank, &op, splits, 3);
        for (int i = 0; i < 4; i++)
            hvt_op_memory(&bench, rank)[i] = (float)(10 * rank + i);
        hvt_op_submit(&bench, rank, op);
    }
    for (int32_t rank = 0; rank < 3; rank += 2) {
        const float *out = hvt_op_memory(&bench, rank) + HVT_OUT_AT / 4;
        const int64_t *received = (void *)((char *)hvt_op_memory(&bench, rank) + HVT_AUX_AT + 24);
        ck_assert_int_eq(hvt_op_expect(&bench, rank, HVI_OK, "").rows, 2);
        ck_assert_float_eq(out[0], rank == 0 ? 0 : 3);
        ck_assert_float_eq(out[1], rank == 0 ? 20 : 23);
        ck_assert(received[0] == 1 && received[1] == 0 && received[2] == 1);
    }
    hvt_bench_fini(&bench);
}
END_TEST

static void gather(int32_t rank, uint64_t capacity)
{
    struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLGATHER, 2, "g", 0);

    hvt_op_output(&op, capacity);
    hvt_op_submit(&bench, rank, op);
}

/* Rank 0's gather knows its size, and then the join is over: the next op of that name is another. */
START_TEST(what_went_on_without_a_joined_rank_is_not_its_next_op)
{
    uint64_t capacity = _i == 0 ? 8 : 4;

    hvt_bench_init(&bench, 2);
    gather(0, 0);
    join(1, 0);
    struct hvi_completion sized = hvt_peer_complete(&bench.peers[0], NULL, 0);
    ck_assert_uint_eq(sized.kind, HVI_COMPLETE_SIZED);
    join(0, 0);
    expect_joined(0, 0);
    expect_joined(1, 0);
    gather(1, 64);
    hvt_op_expect_nothing(&bench, 0, 1);
    struct hvi_submission output = {.kind = HVI_SUBMIT_OUTPUT,
                                    .cookie = sized.cookie,
                                    .out_offset = HVT_OUT_AT,
                                    .out_capacity = capacity};
    hvt_op_submit(&bench, 0, output);
    hvt_op_expect(&bench, 0, capacity == 8 ? HVI_OK : HVI_ERR_TOO_SMALL, NULL);
    hvt_op_expect_nothing(&bench, 1, 1);
    gather(0, 64);
    ck_assert_int_eq(hvt_op_expect(&bench, 0, HVI_OK, "").rows, 4);
    ck_assert_int_eq(hvt_op_expect(&bench, 1, HVI_OK, "").rows, 4);
    hvt_bench_fini(&bench);
}
END_TEST

static void gather_unnamed(int32_t rank, uint64_t number, uint64_t capacity)
{
    struct hvi_submission op = hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLGATHER,
                                           HVI_DTYPE_FLOAT32, 2, HVI_REGION_INLINE);

    op.flags = HVI_SUBMIT_ANON;
    op.aux_region = HVI_REGION_NONE;
    op.anon_seq = number;
    hvt_op_output(&op, capacity);
    hvt_op_submit(&bench, rank, op);
}

static void give_output(int32_t rank, const struct hvi_completion *sized)
{
    struct hvi_submission output = {.kind = HVI_SUBMIT_OUTPUT,
                                    .cookie = sized->cookie,
                                    .out_offset = HVT_OUT_AT,
                                    .out_capacity = 64};
    hvt_op_submit(&bench, rank, output);
}

/* Both gave it before they joined, and its outputs are given after. */
START_TEST(an_unnamed_op_that_waits_for_outputs_is_not_the_first_one_after_the_join)
{
    struct hvi_completion sized[2];

    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        gather_unnamed(rank, 1, 0);
        join(rank, 0);
    }
    for (int32_t rank = 0; rank < 2; rank++) {
        sized[rank] = hvt_peer_complete(&bench.peers[rank], NULL, 0);
        ck_assert_uint_eq(sized[rank].kind, HVI_COMPLETE_SIZED);
        expect_joined(rank, 1);
    }
    give_output(0, &sized[0]);
    gather_unnamed(0, 1, 64);
    hvt_op_expect_nothing(&bench, 0, 1);
    give_output(1, &sized[1]);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    gather_unnamed(1, 1, 64);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_failed_output_concerns_nobody_who_had_joined)
{
    hvt_bench_init(&bench, 2);
    gather(0, 0);
    join(1, 0);
    struct hvi_completion sized = hvt_peer_complete(&bench.peers[0], NULL, 0);
    join(0, 0);
    expect_joined(0, 0);
    expect_joined(1, 0);
    struct hvi_submission output = {.kind = HVI_SUBMIT_OUTPUT,
                                    .cookie = sized.cookie,
                                    .out_offset = HVT_OUT_AT,
                                    .out_capacity = 4};
    hvt_op_submit(&bench, 0, output);
    hvt_op_expect(&bench, 0, HVI_ERR_TOO_SMALL, NULL);
    gather(1, 64);
    hvt_op_expect_nothing(&bench, 1, 1);
    gather(0, 64);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_cancelled_join_never_was)
{
    hvt_bench_init(&bench, 3);
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "a", 0);
    uint64_t cookie = hvt_op_run(&bench, 1, HVI_KIND_JOIN, 0, "join", 0);
    hvt_op_cancel(&bench, 1, cookie);
    hvt_op_expect(&bench, 1, HVI_ERR_CANCELLED, "join 'join' was cancelled on rank 1");
    hvt_op_run(&bench, 2, HVI_KIND_ALLREDUCE, 1, "a", 0);
    hvt_op_expect_nothing(&bench, 0, 2);
    hvt_op_run(&bench, 1, HVI_KIND_ALLREDUCE, 1, "a", 0);
    hvt_op_expect_all(&bench, 0, 2, HVI_OK, "");
    ck_assert_ptr_null(bench.engine->order.waiting_first);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_group_needs_no_joined_rank_until_it_has_not_joined)
{
    struct hvi_submission ops[2];

    hvt_bench_init(&bench, 3);
    uint64_t cookie = hvt_op_run(&bench, 1, HVI_KIND_JOIN, 0, "join", 0);
    for (int32_t rank = 0; rank < 3; rank += 2) {
        ops[0] = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 1, "a", 0);
        ops[1] = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 1, "b", 0);
        hvt_op_group(ops, 2, 5);
        hvt_op_submit(&bench, rank, ops[0]);
        hvt_op_submit(&bench, rank, ops[1]);
        if (rank == 0)
            hvt_op_cancel(&bench, 1, cookie);
    }
    hvt_op_expect(&bench, 1, HVI_ERR_CANCELLED, NULL);
    hvt_op_expect_nothing(&bench, 0, 2);
    join(1, 0);
    for (int32_t rank = 0; rank < 3; rank += 2) {
        hvt_op_expect(&bench, rank, HVI_OK, "");
        hvt_op_expect(&bench, rank, HVI_OK, "");
    }
    hvt_bench_fini(&bench);
}
END_TEST

static void bring_group(int32_t rank, const char *first, const char *second)
{
    struct hvi_submission ops[2] = {hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 1, first, 0),
                                    hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 1, second, 0)};

    hvt_op_group(ops, 2, 5);
    hvt_op_submit(&bench, rank, ops[0]);
    hvt_op_submit(&bench, rank, ops[1]);
}

/* 0: the third rank joins last, which completes all of them; 1: the second brings its group behind the first one's join. */
START_TEST(groups_that_differ_are_a_mismatch_where_ranks_have_joined)
{
    const int32_t size = _i == 0 ? 3 : 2;

    hvt_bench_init(&bench, size);
    bring_group(0, "a", "b");
    if (_i == 1)
        join(0, 0);
    bring_group(1, "a", "c");
    for (int32_t rank = _i == 0 ? 0 : 1; rank < size; rank++)
        join(rank, 0);
    for (int32_t rank = 0; rank < 2; rank++) {
        for (int i = 0; i < 2; i++)
            hvt_op_expect(&bench, rank, HVI_ERR_MISMATCH,
                          "allreduce 'a': ranks disagree on member 2 of 2 of its group: rank 0 "
                          "said 'b'; rank 1 said 'c'");
    }
    for (int32_t rank = 0; rank < size; rank++)
        expect_joined(rank, size - 1);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_joined_rank_that_leaves_ends_it_for_all)
{
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};

    hvt_bench_init(&bench, 3);
    join(1, 0);
    join(2, 0);
    hvt_peer_send(&bench.peers[1], &msg, -1);
    hvt_bench_turn(&bench);
    ck_assert_int_eq(hvt_op_expect(&bench, 2, HVI_ERR_RANK_LEFT, NULL).culprit, 1);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_failed_join_is_undone)
{
    hvt_bench_init(&bench, 2);
    join(1, 0);
    engine_op_fail(&bench.engine->order, bench.engine->order.sets.by_id[0]->join, HVI_ERR_TIMEOUT,
                   "too long", -1);
    hvt_bench_turn(&bench);
    hvt_op_expect(&bench, 1, HVI_ERR_TIMEOUT, "too long");
    hvt_op_run(&bench, 0, HVI_KIND_BARRIER, 0, "b", 0);
    hvt_op_expect_nothing(&bench, 0, 1);
    hvt_op_run(&bench, 1, HVI_KIND_BARRIER, 0, "b", 0);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/join");
    TCase *tcase = tcase_create("join");

    tcase_add_test(tcase, it_is_over_when_all_have_joined_and_names_the_last);
    tcase_add_test(tcase, who_submitted_last_is_the_last_though_taken_in_first);
    tcase_add_test(tcase, a_joined_rank_is_neutral_in_a_reduction);
    tcase_add_test(tcase, joining_completes_what_waited_only_for_this_rank);
    tcase_add_test(tcase, a_rank_that_has_joined_submits_nothing);
    tcase_add_test(tcase, a_broadcast_from_a_joined_root_fails_on_all);
    tcase_add_test(tcase, process_sets_do_not_change_during_a_join);
    tcase_add_test(tcase, each_set_has_its_own_join);
    tcase_add_test(tcase, a_joined_rank_gives_and_takes_no_rows);
    tcase_add_test(tcase, rows_for_a_joined_rank_go_nowhere);
    tcase_add_loop_test(tcase, what_went_on_without_a_joined_rank_is_not_its_next_op, 0, 2);
    tcase_add_test(tcase, an_unnamed_op_that_waits_for_outputs_is_not_the_first_one_after_the_join);
    tcase_add_test(tcase, a_failed_output_concerns_nobody_who_had_joined);
    tcase_add_test(tcase, a_cancelled_join_never_was);
    tcase_add_test(tcase, a_group_needs_no_joined_rank_until_it_has_not_joined);
    tcase_add_loop_test(tcase, groups_that_differ_are_a_mismatch_where_ranks_have_joined, 0, 2);
    tcase_add_test(tcase, a_joined_rank_that_leaves_ends_it_for_all);
    tcase_add_test(tcase, a_failed_join_is_undone);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
