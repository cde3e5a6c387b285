/* SPDX-License-Identifier: Apache-2.0
 * Groups: all or nothing, whatever the ranks make of it; and ops that fail before all have come. */
#include "base/status.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/sessions/intake.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>

static struct hvt_bench bench;

/* A group of allreduces named by the letters of `names`; a digit after a letter is its size. */
static uint64_t submit_group(int32_t rank, const char *names)
{
    struct hvi_submission ops[16];
    uint64_t cookie = 0;
    uint32_t count = 0;

    for (const char *at = names; *at; at++) {
        char name[2] = {*at, '\0'};
        uint64_t elements = 1;
        if (at[1] >= '0' && at[1] <= '9')
            elements = (uint64_t)(*++at - '0');
        ops[count++] = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, elements, name, 0);
    }
    hvt_op_group(ops, count, 100 + (uint32_t)rank);
    for (uint32_t i = 0; i < count; i++)
        cookie = hvt_op_submit(&bench, rank, ops[i]);
    return cookie;
}

static uint64_t submit_one(int32_t rank, const char *name)
{
    return hvt_op_run(&bench, rank, HVI_KIND_ALLREDUCE, 1, name, 0);
}

static void expect_times(int32_t rank, int times, int status, const char *sentence)
{
    for (int i = 0; i < times; i++)
        hvt_op_expect(&bench, rank, status, sentence);
}

/* Nothing is left over, and the names are as good as new. */
static void expect_clean(void)
{
    hvt_op_expect_nothing(&bench, 0, bench.size - 1);
    ck_assert_ptr_null(bench.engine->order.waiting_first);
    ck_assert_ptr_null(bench.engine->order.failed_first);
    for (int32_t rank = 0; rank < bench.size; rank++) {
        submit_one(rank, "A");
        submit_group(rank, "BC");
    }
    for (int32_t rank = 0; rank < bench.size; rank++)
        expect_times(rank, 3, HVI_OK, "");
    hvt_bench_fini(&bench);
}

START_TEST(nothing_runs_before_the_whole_group_is_there_on_every_rank)
{
    struct hvi_submission ops[2];

    hvt_bench_init(&bench, 2);
    submit_group(0, "AB");
    ops[0] = hvt_op(&bench, 1, HVI_KIND_ALLREDUCE, 1, "A", 0);
    ops[1] = hvt_op(&bench, 1, HVI_KIND_ALLREDUCE, 1, "B", 0);
    hvt_op_group(ops, 2, 1);
    hvt_op_submit(&bench, 1, ops[0]);
    hvt_op_expect_nothing(&bench, 0, 1);
    hvt_op_submit(&bench, 1, ops[1]);
    expect_times(0, 2, HVI_OK, "");
    expect_times(1, 2, HVI_OK, "");
    expect_clean();
}
END_TEST

START_TEST(members_may_differ_in_everything_but_the_group)
{
    struct hvi_submission ops[3];

    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        ops[0] = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 2, "A", 0);
        ops[1] = hvt_op(&bench, rank, HVI_KIND_ALLGATHER, 3, "B", 0);
        hvt_op_output(&ops[1], 0);
        ops[2] = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 2, "C", 0);
        ops[2].dtype = HVI_DTYPE_FLOAT64;
        ops[2].out_capacity = 16;
        hvt_op_group(ops, 3, 1);
        for (int i = 0; i < 3; i++)
            hvt_op_submit(&bench, rank, ops[i]);
    }
    for (int32_t rank = 0; rank < 2; rank++) { /* the group waits for the gather's outputs */
        struct hvi_completion sized = hvt_peer_complete(&bench.peers[rank], NULL, 0);
        ck_assert_uint_eq(sized.kind, HVI_COMPLETE_SIZED);
        hvt_op_expect_nothing(&bench, 0, rank);
        struct hvi_submission output = {.kind = HVI_SUBMIT_OUTPUT,
                                        .cookie = sized.cookie,
                                        .out_offset = HVT_OUT_AT,
                                        .out_capacity = sized.bytes};
        hvt_op_submit(&bench, rank, output);
    }
    expect_times(0, 3, HVI_OK, "");
    expect_times(1, 3, HVI_OK, "");
    expect_clean();
}
END_TEST

/* What the two ranks submit, and what both get for all of it. */
START_TEST(a_disagreement_about_the_group_fails_all_of_it)
{
    static const struct {
        const char *groups[2];
        int members;
        const char *sentence;
    } rows[] = {
        {{"AB2", "AB3"},
         2,
         "allreduce 'B': ranks disagree on shape: rank 0 said [2]; rank 1 said [3]"},
        {{"AB", "AC"},
         2,
         "allreduce 'A': ranks disagree on member 2 of 2 of its group: rank 0 said 'B'; rank 1 "
         "said "
         "'C'"},
        {{"ABC", "ACB"},
         3,
         "allreduce 'C': ranks disagree on group: rank 0 said member 3 of 3 of the group of 'A'; "
         "rank 1 said member 2 of 3 of the group of 'A'"},
        {{"AB", "BA"},
         2,
         "allreduce 'B': ranks disagree on group: rank 0 said member 2 of 2 of the group of 'A'; "
         "rank 1 said member 1 of 2 of the group of 'B'"},
    };

    hvt_bench_init(&bench, 2);
    for (int32_t first = 0; first < 2; first++) {
        submit_group(first, rows[_i].groups[first]);
        hvt_op_expect_nothing(&bench, 0, 1);
        submit_group(1 - first, rows[_i].groups[1 - first]);
        for (int32_t rank = 0; rank < 2; rank++)
            expect_times(rank, rows[_i].members, HVI_ERR_MISMATCH,
                         first == 0 || _i < 2 ? rows[_i].sentence : NULL);
    }
    expect_clean();
}
END_TEST

START_TEST(groups_of_different_sizes_leave_nothing_behind)
{
    hvt_bench_init(&bench, 2);
    submit_group(0, "ABC");
    submit_group(1, "AB");
    expect_times(0, 3, HVI_ERR_MISMATCH, NULL);
    expect_times(
        1, 2, HVI_ERR_MISMATCH,
        "allreduce 'A': ranks disagree on group: rank 0 said member 1 of 3 of the group of "
        "'A'; rank 1 said member 1 of 2 of the group of 'A'");
    expect_clean();
}
END_TEST

START_TEST(a_rank_that_submits_the_members_one_by_one_gets_the_same_for_each)
{
    const char *sentence =
        "allreduce 'A': ranks disagree on group: rank 0 said member 1 of 2 of the "
        "group of 'A'; rank 1 said not grouped";

    hvt_bench_init(&bench, 2);
    submit_group(0, "AB");
    submit_one(1, "A");
    expect_times(0, 2, HVI_ERR_MISMATCH, sentence);
    expect_times(1, 1, HVI_ERR_MISMATCH, sentence);
    ck_assert_uint_eq(bench.engine->order.failed_count, 1);
    submit_one(1, "B");
    expect_times(1, 1, HVI_ERR_MISMATCH, sentence);
    expect_clean();
}
END_TEST

START_TEST(a_group_that_meets_a_failed_op_fails_with_it)
{
    hvt_bench_init(&bench, 2);
    submit_one(0, "B");
    engine_op_fail(&bench.engine->order, bench.engine->order.waiting_first, HVI_ERR_TIMEOUT,
                   "too late", 1);
    submit_group(1, "ABC");
    expect_times(0, 1, HVI_ERR_TIMEOUT, "too late");
    expect_times(1, 3, HVI_ERR_TIMEOUT, "too late");
    submit_one(0, "A"); /* its peer's group is over */
    expect_times(0, 1, HVI_ERR_TIMEOUT, "too late");
    submit_one(0, "C");
    expect_times(0, 1, HVI_ERR_TIMEOUT, "too late");
    expect_clean();
}
END_TEST

START_TEST(a_failed_op_is_met_by_those_who_come_later_and_goes)
{
    hvt_bench_init(&bench, 4);
    submit_one(0, "A");
    submit_one(2, "A");
    engine_op_fail(&bench.engine->order, bench.engine->order.waiting_first, HVI_ERR_TIMEOUT,
                   "too late", 1);
    hvt_bench_turn(&bench);
    hvt_op_expect(&bench, 0, HVI_ERR_TIMEOUT, "too late");
    hvt_op_expect(&bench, 2, HVI_ERR_TIMEOUT, "too late");
    submit_one(3, "A");
    ck_assert_int_eq(hvt_op_expect(&bench, 3, HVI_ERR_TIMEOUT, "too late").culprit, 1);
    hvt_op_run(&bench, 1, HVI_KIND_JOIN, 0, "join", 0); /* will never come */
    ck_assert_ptr_null(bench.engine->order.failed_first);
    for (int32_t rank = 0; rank < 4; rank++) {
        if (rank != 1)
            submit_one(rank, "A");
    }
    hvt_op_expect(&bench, 0, HVI_OK, "");
    hvt_op_expect_all(&bench, 2, 3, HVI_OK, "");
    hvt_bench_fini(&bench);
}
END_TEST

static void fail_what_waits(const char *text)
{
    engine_op_fail(&bench.engine->order, bench.engine->order.waiting_first, HVI_ERR_TIMEOUT, text,
                   1);
}

START_TEST(a_rank_that_comes_again_waits_beside_what_failed)
{
    hvt_bench_init(&bench, 2);
    submit_one(0, "A");
    fail_what_waits("too late");
    submit_one(0, "A");
    hvt_op_expect(&bench, 0, HVI_ERR_TIMEOUT, "too late");
    hvt_op_expect_nothing(&bench, 0, 1);
    submit_one(1, "A");
    hvt_op_expect(&bench, 1, HVI_ERR_TIMEOUT, "too late");
    hvt_op_expect_nothing(&bench, 0, 1);
    submit_one(1, "A");
    hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    expect_clean();
}
END_TEST

START_TEST(each_failure_is_met_once_and_in_order)
{
    hvt_bench_init(&bench, 2);
    submit_group(0, "AB");
    fail_what_waits("first");
    submit_group(0, "AB");
    fail_what_waits("second");
    submit_group(0, "AB");
    expect_times(0, 2, HVI_ERR_TIMEOUT, "first");
    expect_times(0, 2, HVI_ERR_TIMEOUT, "second");
    submit_group(1, "AB");
    expect_times(1, 2, HVI_ERR_TIMEOUT, "first");
    submit_group(1, "AB");
    expect_times(1, 2, HVI_ERR_TIMEOUT, "second");
    ck_assert_ptr_null(bench.engine->order.failed_first);
    hvt_op_expect_nothing(&bench, 0, 1);
    submit_group(1, "AB");
    expect_times(0, 2, HVI_OK, "");
    expect_times(1, 2, HVI_OK, "");
    expect_clean();
}
END_TEST

START_TEST(failed_ops_are_remembered_up_to_a_limit)
{
    char name[16];

    hvt_bench_init(&bench, 2);
    for (uint32_t i = 0; i < ENGINE_FAILED_MAX + 10; i++) {
        snprintf(name, sizeof name, "n%u", i);
        submit_one(0, name);
        engine_op_fail(&bench.engine->order, bench.engine->order.waiting_first, HVI_ERR_TIMEOUT,
                       "x", -1);
        hvt_bench_turn(&bench);
        hvt_op_expect(&bench, 0, HVI_ERR_TIMEOUT, "x");
    }
    ck_assert_uint_eq(bench.engine->order.failed_count, ENGINE_FAILED_MAX);
    submit_one(1, "n9"); /* forgotten */
    hvt_op_expect_nothing(&bench, 0, 1);
    submit_one(1, "n10");
    hvt_op_expect(&bench, 1, HVI_ERR_TIMEOUT, "x");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_cancelled_op_waits_on_for_the_others)
{
    hvt_bench_init(&bench, 3);
    uint64_t cookie = submit_one(0, "A");
    submit_one(1, "A");
    hvt_op_cancel(&bench, 0, cookie);
    hvt_op_expect(&bench, 0, HVI_ERR_CANCELLED, "allreduce 'A' was cancelled on rank 0");
    hvt_op_cancel(&bench, 0, cookie); /* over: nothing happens */
    hvt_op_cancel(&bench, 0, 4711);
    submit_one(2, "A");
    hvt_op_expect_nothing(&bench, 0, 2);
    submit_one(0, "A");
    hvt_op_expect_all(&bench, 0, 2, HVI_OK, "");
    hvt_op_cancel(&bench, 0, submit_one(0, "A")); /* the last one leaves no op */
    hvt_op_expect(&bench, 0, HVI_ERR_CANCELLED, NULL);
    expect_clean();
}
END_TEST

START_TEST(cancelling_a_member_cancels_the_ranks_group)
{
    hvt_bench_init(&bench, 3);
    submit_group(1, "ABC");
    uint64_t cookie = submit_group(0, "ABC");
    hvt_op_cancel(&bench, 0, cookie);
    expect_times(0, 3, HVI_ERR_CANCELLED, NULL);
    submit_group(2, "ABC");
    hvt_op_expect_nothing(&bench, 0, 2);
    submit_group(0, "ABC");
    for (int32_t rank = 0; rank < 3; rank++)
        expect_times(rank, 3, HVI_OK, "");
    expect_clean();
}
END_TEST

START_TEST(a_group_that_is_under_way_is_not_cancelled)
{
    struct hvi_submission ops[2];
    uint64_t cookie = 0;

    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        ops[0] = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 2, "A", 0);
        ops[1] = hvt_op(&bench, rank, HVI_KIND_ALLGATHER, 3, "B", 0);
        hvt_op_output(&ops[1], rank == 0 ? 64 : 0);
        hvt_op_group(ops, 2, 1);
        cookie = hvt_op_submit(&bench, rank, ops[0]);
        hvt_op_submit(&bench, rank, ops[1]);
    }
    hvt_op_cancel(&bench, 1, cookie);
    struct hvi_completion sized = hvt_peer_complete(&bench.peers[1], NULL, 0);
    ck_assert_uint_eq(sized.kind, HVI_COMPLETE_SIZED);
    struct hvi_submission output = {.kind = HVI_SUBMIT_OUTPUT,
                                    .cookie = sized.cookie,
                                    .out_offset = HVT_OUT_AT,
                                    .out_capacity = 8}; /* too small: the group fails */
    hvt_op_submit(&bench, 1, output);
    for (int32_t rank = 0; rank < 2; rank++)
        expect_times(rank, 2, HVI_ERR_TOO_SMALL,
                     "allgather 'B': the output of rank 1 has room for 8 bytes, the result has 24");
    expect_clean();
}
END_TEST

START_TEST(something_else_inside_a_group_breaks_the_protocol)
{
    struct hvi_submission ops[2];
    struct hvi_packet_msg msg;

    hvt_bench_init(&bench, 2);
    ops[0] = hvt_op(&bench, 0, HVI_KIND_ALLREDUCE, 1, "A", 0);
    ops[1] = hvt_op(&bench, 0, HVI_KIND_ALLREDUCE, 1, "B", 0);
    hvt_op_group(ops, 2, 9);
    hvt_op_submit(&bench, 0, ops[0]);
    submit_one(0, "C");
    ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_NOTICE, &msg));
    ck_assert_ptr_nonnull(
        strstr(msg.notice.text, "something else where member 2 of 2 of group 9 was due"));
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(one_tensor_twice_in_a_group_breaks_the_protocol)
{
    struct hvi_packet_msg msg;

    hvt_bench_init(&bench, 2);
    submit_group(1, "AB");
    submit_group(0, "ABA");
    ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_NOTICE, &msg));
    ck_assert_ptr_nonnull(strstr(msg.notice.text, "one tensor name in flight twice"));
    expect_times(1, 2, HVI_ERR_RANK_LOST, NULL);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_set_that_goes_while_a_group_comes_takes_it_along)
{
    struct hvi_submission ops[3];

    hvt_bench_init(&bench, 2);
    uint32_t set = hvt_op_add_set(&bench, (int64_t[]){0}, 1);
    for (int i = 0; i < 3; i++)
        ops[i] = hvt_op(&bench, 0, HVI_KIND_ALLREDUCE, 1, (char[]){(char)('A' + i), '\0'}, set);
    hvt_op_group(ops, 3, 1);
    hvt_op_submit(&bench, 0, ops[0]);
    hvt_op_submit(&bench, 0, ops[1]);
    struct engine_set *gone = engine_sets_find(&bench.engine->order.sets, set);
    engine_op_fail_set(&bench.engine->order, gone, NULL);
    engine_sets_remove(&bench.engine->order.sets, gone);
    hvt_op_submit(&bench, 0, ops[2]);
    expect_times(0, 3, HVI_ERR_NOT_FOUND, "allreduce 'C': process set 1 does not exist");
    expect_clean();
}
END_TEST

START_TEST(a_large_group_is_held_and_run_at_once)
{
    char name[16];

    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        for (uint32_t i = 0; i < ENGINE_GROUP_MAX; i++) {
            snprintf(name, sizeof name, "g%u", i);
            struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 1, name, 0);
            op.in_offset = op.out_offset = 4 * i;
            op.group = 1;
            op.group_size = ENGINE_GROUP_MAX;
            op.group_index = i;
            hvt_peer_submit(&bench.peers[rank], &op);
            hvt_op_memory(&bench, rank)[i] = (float)i;
        }
        hvt_bench_turn(&bench);
    }
    for (int32_t rank = 0; rank < 2; rank++)
        expect_times(rank, ENGINE_GROUP_MAX, HVI_OK, "");
    ck_assert_float_eq(hvt_op_memory(&bench, 1)[1000], 2000);
    expect_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/group");
    TCase *tcase = tcase_create("group");

    tcase_add_test(tcase, nothing_runs_before_the_whole_group_is_there_on_every_rank);
    tcase_add_test(tcase, members_may_differ_in_everything_but_the_group);
    tcase_add_loop_test(tcase, a_disagreement_about_the_group_fails_all_of_it, 0, 4);
    tcase_add_test(tcase, groups_of_different_sizes_leave_nothing_behind);
    tcase_add_test(tcase, a_rank_that_submits_the_members_one_by_one_gets_the_same_for_each);
    tcase_add_test(tcase, a_group_that_meets_a_failed_op_fails_with_it);
    tcase_add_test(tcase, a_failed_op_is_met_by_those_who_come_later_and_goes);
    tcase_add_test(tcase, a_rank_that_comes_again_waits_beside_what_failed);
    tcase_add_test(tcase, each_failure_is_met_once_and_in_order);
    tcase_add_test(tcase, failed_ops_are_remembered_up_to_a_limit);
    tcase_add_test(tcase, a_cancelled_op_waits_on_for_the_others);
    tcase_add_test(tcase, cancelling_a_member_cancels_the_ranks_group);
    tcase_add_test(tcase, a_group_that_is_under_way_is_not_cancelled);
    tcase_add_test(tcase, something_else_inside_a_group_breaks_the_protocol);
    tcase_add_test(tcase, one_tensor_twice_in_a_group_breaks_the_protocol);
    tcase_add_test(tcase, a_set_that_goes_while_a_group_comes_takes_it_along);
    tcase_add_test(tcase, a_large_group_is_held_and_run_at_once);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
