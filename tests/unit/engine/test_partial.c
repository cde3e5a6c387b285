/* SPDX-License-Identifier: Apache-2.0
 * Ops of which only some members of a set are part: who meets whom, and in which order. */
#include "base/status.h"
#include "daemon/engine/watch/stall.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_main.h"

#include <string.h>

static struct hvt_bench bench;

#define ANY (-1)

static struct hvi_submission pair_op(int32_t rank, uint16_t kind, int32_t peer, uint64_t tag,
                                     uint64_t count, uint32_t set)
{
    struct hvi_submission op = hvt_op(&bench, rank, kind, count, "x", set);

    op.flags = HVI_SUBMIT_ANON;
    op.anon_seq = tag;
    op.root = peer;
    if (kind == HVI_KIND_RECV)
        op.in_region = HVI_REGION_NONE;
    if (kind == HVI_KIND_SEND)
        hvt_op_output(&op, 0);
    return op;
}

/* One float, from and to place `at` of the rank's memory. */
static uint64_t run(int32_t rank, uint16_t kind, int32_t peer, uint64_t tag, uint32_t at)
{
    struct hvi_submission op = pair_op(rank, kind, peer, tag, 1, 0);

    if (kind == HVI_KIND_SEND)
        op.in_offset = at * sizeof(float);
    else
        op.out_offset = at * sizeof(float);
    return hvt_op_submit(&bench, rank, op);
}

START_TEST(sends_meet_recvs_in_order_whoever_comes_first)
{
    float *from, *to;

    hvt_bench_init(&bench, 3);
    from = hvt_op_memory(&bench, 0);
    to = hvt_op_memory(&bench, 2);
    for (uint32_t i = 0; i < 4; i++)
        from[i] = 10.0f + (float)i;
    run(0, HVI_KIND_SEND, 2, 5, 0);
    run(0, HVI_KIND_SEND, 2, 6, 1);
    run(0, HVI_KIND_SEND, 2, 5, 2);
    run(2, HVI_KIND_RECV, 0, 5, 10);
    run(2, HVI_KIND_RECV, 0, 5, 11);
    run(2, HVI_KIND_RECV, 0, 6, 12);
    run(2, HVI_KIND_RECV, 0, 7, 13);
    run(0, HVI_KIND_SEND, 2, 7, 3);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(hvt_op_expect(&bench, 0, HVI_OK, "").rows, 0);
        ck_assert_int_eq(hvt_op_expect(&bench, 2, HVI_OK, "").rows, 0);
    }
    ck_assert(to[10] == 10 && to[11] == 12 && to[12] == 11 && to[13] == 13);
    hvt_op_expect_nothing(&bench, 0, 2);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(both_ways_tags_and_sets_are_apart)
{
    hvt_bench_init(&bench, 3);
    uint32_t set = hvt_op_add_set(&bench, (int64_t[]){0, 2}, 2);
    run(0, HVI_KIND_SEND, 2, 1, 0);
    run(2, HVI_KIND_SEND, 0, 1, 0);
    run(2, HVI_KIND_RECV, 0, 2, 1);
    run(2, HVI_KIND_RECV, 1, 1, 1);
    hvt_op_submit(&bench, 2, pair_op(2, HVI_KIND_RECV, 0, 1, 1, set));
    hvt_op_expect_nothing(&bench, 0, 2);
    run(0, HVI_KIND_RECV, 2, 1, 1);
    hvt_op_expect(&bench, 0, HVI_OK, "");
    hvt_op_expect(&bench, 2, HVI_OK, "");
    hvt_op_expect_nothing(&bench, 0, 2);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(who_takes_from_anybody_takes_the_oldest_send_and_is_told_whose)
{
    hvt_bench_init(&bench, 3);
    hvt_op_memory(&bench, 0)[0] = 7;
    hvt_op_memory(&bench, 1)[0] = 8;
    run(1, HVI_KIND_SEND, 2, 0, 0);
    run(0, HVI_KIND_SEND, 2, 0, 0);
    for (int32_t from = 1; from >= 0; from--) {
        run(2, HVI_KIND_RECV, ANY, 0, 1);
        ck_assert_int_eq(hvt_op_expect(&bench, 2, HVI_OK, "").rows, from);
        ck_assert(hvt_op_memory(&bench, 2)[1] == (from == 0 ? 7 : 8));
        hvt_op_expect(&bench, from, HVI_OK, "");
    }
    /* It waits, too, and neither its own nor other tags come to it. */
    run(2, HVI_KIND_RECV, ANY, 0, 1);
    run(2, HVI_KIND_SEND, 0, 0, 0);
    run(0, HVI_KIND_SEND, 2, 1, 0);
    hvt_op_expect_nothing(&bench, 0, 2);
    run(0, HVI_KIND_SEND, 2, 0, 0);
    ck_assert_int_eq(hvt_op_expect(&bench, 2, HVI_OK, "").rows, 0);
    hvt_op_expect(&bench, 0, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(ends_that_disagree_both_hear_why)
{
    hvt_bench_init(&bench, 3);
    hvt_op_submit(&bench, 0, pair_op(0, HVI_KIND_SEND, 1, 3, 5, 0));
    hvt_op_submit(&bench, 1, pair_op(1, HVI_KIND_RECV, 0, 3, 6, 0));
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_MISMATCH,
                      "send '0-to-1.tag-3': ranks disagree on number of elements: rank 0 said 5; "
                      "rank 1 said 6");
    struct hvi_submission op = pair_op(1, HVI_KIND_RECV, ANY, 3, 5, 0);
    op.dtype = HVI_DTYPE_INT32;
    hvt_op_submit(&bench, 1, op);
    hvt_op_submit(&bench, 0, pair_op(0, HVI_KIND_SEND, 1, 3, 5, 0));
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_MISMATCH,
                      "send '0-to-1.tag-3': ranks disagree on dtype: rank 0 said float32; rank 1 "
                      "said int32");
    run(0, HVI_KIND_SEND, 1, 3, 0); /* the next ones are not concerned */
    run(1, HVI_KIND_RECV, 0, 3, 1);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(what_is_taken_back_never_was)
{
    hvt_bench_init(&bench, 2);
    hvt_op_memory(&bench, 0)[1] = 4;
    uint64_t first = run(0, HVI_KIND_SEND, 1, 0, 0);
    run(0, HVI_KIND_SEND, 1, 0, 1);
    hvt_op_cancel(&bench, 0, first);
    hvt_op_expect(&bench, 0, HVI_ERR_CANCELLED, "send '0-to-1.tag-0' was cancelled on rank 0");
    run(1, HVI_KIND_RECV, 0, 0, 5);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    ck_assert(hvt_op_memory(&bench, 1)[5] == 4);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_join_does_not_concern_them)
{
    hvt_bench_init(&bench, 3);
    run(0, HVI_KIND_RECV, 1, 0, 1);
    run(2, HVI_KIND_SEND, 1, 0, 1);
    hvt_op_run(&bench, 2, HVI_KIND_JOIN, 0, "join", 0);
    hvt_op_expect_nothing(&bench, 0, 2);
    run(1, HVI_KIND_SEND, 0, 0, 0);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    run(1, HVI_KIND_RECV, 2, 0, 0); /* sent before it joined */
    hvt_op_expect_all(&bench, 1, 2, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_stalled_pair_misses_its_other_end_alone)
{
    struct hvi_stall_row *rows = NULL;
    uint64_t left_out = 0;
    size_t count = 0;

    hvt_bench_init(&bench, 3);
    run(2, HVI_KIND_RECV, 0, 9, 0);
    run(1, HVI_KIND_RECV, ANY, 9, 0);
    ck_assert_int_eq(engine_stall_rows(&bench.engine->watch, 0, 8, &rows, &count, &left_out),
                     HVI_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(rows[0].tensor, "0-to-2.tag-9");
    ck_assert_uint_eq(rows[0].missing_count, 1);
    ck_assert_int_eq(rows[0].missing[0].rank, 0);
    ck_assert_str_eq(rows[1].tensor, "any-to-1.tag-9");
    ck_assert_uint_eq(rows[1].missing_count, 2);
    engine_stall_rows_free(rows, count);
    hvt_bench_fini(&bench);
}
END_TEST

/* ---- sets that their members open ---- */

static uint64_t open_set(int32_t rank, uint64_t tag, const int64_t *ranks, uint32_t count)
{
    struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_SET_OPEN, 0, "x", 0);

    op.flags = HVI_SUBMIT_ANON;
    op.anon_seq = tag;
    hvt_op_integers(&bench, rank, &op, ranks, count);
    return hvt_op_submit(&bench, rank, op);
}

static void close_set(int32_t rank, uint32_t set)
{
    hvt_op_run(&bench, rank, HVI_KIND_SET_CLOSE, 0, "close", set);
}

START_TEST(members_open_a_set_without_the_others)
{
    hvt_bench_init(&bench, 3);
    open_set(2, 4, (int64_t[]){2, 0}, 2);
    open_set(0, 5, (int64_t[]){0, 2}, 2);
    open_set(0, 4, (int64_t[]){0, 1}, 2);
    hvt_op_expect_nothing(&bench, 0, 2);
    open_set(0, 4, (int64_t[]){0, 2}, 2);
    ck_assert_int_eq(hvt_op_expect(&bench, 0, HVI_OK, "").rows, 1);
    ck_assert_int_eq(hvt_op_expect(&bench, 2, HVI_OK, "").rows, 1);
    open_set(2, 5, (int64_t[]){0, 2}, 2); /* the same ranks once more */
    ck_assert_int_eq(hvt_op_expect(&bench, 0, HVI_OK, "").rows, 2);
    ck_assert_int_eq(hvt_op_expect(&bench, 2, HVI_OK, "").rows, 2);
    hvt_op_memory(&bench, 0)[0] = 4;
    hvt_op_memory(&bench, 2)[0] = 8;
    hvt_op_run(&bench, 2, HVI_KIND_ALLREDUCE, 1, "w", 2);
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "w", 1);
    hvt_op_expect_nothing(&bench, 0, 2);
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "w", 2);
    hvt_op_expect(&bench, 0, HVI_OK, "");
    hvt_op_expect(&bench, 2, HVI_OK, "");
    ck_assert(hvt_op_memory(&bench, 2)[0] == 12);
    /* The others may add a set of the same ranks, and all ranks may open one. */
    ck_assert_uint_eq(hvt_op_add_set(&bench, (int64_t[]){0, 2}, 2), 3);
    for (int32_t rank = 0; rank < 3; rank++)
        open_set(rank, 4, (int64_t[]){0, 1, 2}, 3);
    hvt_op_expect_all(&bench, 0, 2, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_set_is_closed_when_all_members_have_said_so_and_fails_what_waits_there)
{
    hvt_bench_init(&bench, 3);
    for (int32_t rank = 0; rank < 2; rank++)
        open_set(rank, 0, (int64_t[]){0, 1}, 2);
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_op_run(&bench, 0, HVI_KIND_ALLREDUCE, 1, "w", 1);
    hvt_op_submit(&bench, 1, pair_op(1, HVI_KIND_RECV, 0, 0, 1, 1));
    close_set(0, 1);
    hvt_op_expect_nothing(&bench, 0, 2);
    close_set(1, 1);
    hvt_op_expect(&bench, 0, HVI_ERR_NOT_FOUND,
                  "allreduce 'w': process set 1 was removed while the op waited");
    hvt_op_expect(&bench, 1, HVI_ERR_NOT_FOUND,
                  "recv '0-to-1.tag-0': process set 1 was removed while the op waited");
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    hvt_op_run(&bench, 0, HVI_KIND_BARRIER, 0, "b", 1);
    hvt_op_expect(&bench, 0, HVI_ERR_NOT_FOUND, "barrier 'b': process set 1 does not exist");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(who_ends_a_set_is_who_made_it)
{
    hvt_bench_init(&bench, 2);
    uint32_t added = hvt_op_add_set(&bench, (int64_t[]){0}, 1);
    open_set(0, 0, (int64_t[]){0}, 1);
    ck_assert_int_eq(hvt_op_expect(&bench, 0, HVI_OK, "").rows, 2);
    close_set(0, added);
    hvt_op_expect(&bench, 0, HVI_ERR_INVALID,
                  "process_set_close 'close': process set 1 was not opened by its members alone: "
                  "all ranks remove it");
    hvt_op_remove_set(&bench, 2);
    hvt_op_expect_all(&bench, 0, 1, HVI_ERR_INVALID,
                      "process_set_remove 'remove': process set 2 was opened by its members, who "
                      "close it");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(what_makes_no_set_or_pair_is_told_at_once)
{
    hvt_bench_init(&bench, 3);
    uint32_t set = hvt_op_add_set(&bench, (int64_t[]){0, 2}, 2);
    open_set(0, 0, (int64_t[]){1, 2}, 2);
    hvt_op_expect(&bench, 0, HVI_ERR_INVALID,
                  "process_set_open: rank 0 is not among the ranks it gave");
    open_set(0, 0, (int64_t[]){0, 0}, 2);
    hvt_op_expect(&bench, 0, HVI_ERR_INVALID,
                  "process_set_open: the ranks of a set are different ones of 0 to 2, and rank 0 "
                  "gave 0");
    open_set(0, 0, NULL, 0);
    hvt_op_expect(&bench, 0, HVI_ERR_INVALID, NULL);
    hvt_op_submit(&bench, 0, pair_op(0, HVI_KIND_SEND, 1, 0, 1, set));
    hvt_op_expect(&bench, 0, HVI_ERR_INVALID, "send: rank 1 is not a member of process set 1");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(an_opening_that_is_taken_back_waits_for_that_rank_again)
{
    static const int64_t ranks[] = {0, 1, 2};

    hvt_bench_init(&bench, 3);
    uint64_t cookie = open_set(0, 0, ranks, 3);
    open_set(1, 0, ranks, 3);
    hvt_op_cancel(&bench, 0, cookie);
    hvt_op_expect(&bench, 0, HVI_ERR_CANCELLED, NULL);
    open_set(2, 0, ranks, 3);
    hvt_op_expect_nothing(&bench, 0, 2);
    open_set(0, 0, ranks, 3);
    hvt_op_expect_all(&bench, 0, 2, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/partial");
    TCase *tcase = tcase_create("partial");

    tcase_add_test(tcase, sends_meet_recvs_in_order_whoever_comes_first);
    tcase_add_test(tcase, both_ways_tags_and_sets_are_apart);
    tcase_add_test(tcase, who_takes_from_anybody_takes_the_oldest_send_and_is_told_whose);
    tcase_add_test(tcase, ends_that_disagree_both_hear_why);
    tcase_add_test(tcase, what_is_taken_back_never_was);
    tcase_add_test(tcase, a_join_does_not_concern_them);
    tcase_add_test(tcase, a_stalled_pair_misses_its_other_end_alone);
    tcase_add_test(tcase, members_open_a_set_without_the_others);
    tcase_add_test(tcase, a_set_is_closed_when_all_members_have_said_so_and_fails_what_waits_there);
    tcase_add_test(tcase, who_ends_a_set_is_who_made_it);
    tcase_add_test(tcase, what_makes_no_set_or_pair_is_told_at_once);
    tcase_add_test(tcase, an_opening_that_is_taken_back_waits_for_that_rank_again);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
