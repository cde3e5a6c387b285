/* SPDX-License-Identifier: Apache-2.0
 * Where ranks meet: every order, every kind of disagreement with its exact sentence, and the
 * allgather's second round. An engine without its loop (hvt_bench.h). */
#include "base/status.h"
#include "tests/unit/engine/hvt_bench.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>

static struct hvt_bench bench;

static void fini(void)
{
    hvt_bench_fini(&bench);
}

static struct hvi_submission make(int32_t rank, uint16_t kind, uint64_t count, const char *name)
{
    struct hvt_peer *peer = &bench.peers[rank];
    struct hvi_submission op = hvt_peer_op(peer, kind, HVI_DTYPE_FLOAT32, count, 0);

    hvt_peer_name(peer, &op, (uint32_t)(unsigned char)name[strlen(name) - 1], name);
    return op;
}

static void submit(int32_t rank, struct hvi_submission op)
{
    hvt_peer_submit(&bench.peers[rank], &op);
    hvt_bench_turn(&bench);
}

/* The next completion of every rank has this status and sentence. */
static void expect_all(int status, const char *sentence, int32_t culprit)
{
    char text[HVI_TEXT_MAX + 1];

    for (int32_t rank = 0; rank < bench.size; rank++) {
        struct hvi_completion done = hvt_peer_complete(&bench.peers[rank], text, sizeof text);
        ck_assert_int_eq(done.status, status);
        ck_assert_uint_eq(done.kind, HVI_COMPLETE_DONE);
        ck_assert_str_eq(text, sentence);
        ck_assert_int_eq(done.culprit, culprit);
    }
}

static float *memory(int32_t rank)
{
    return (float *)(void *)bench.peers[rank].channel.inline_base;
}

START_TEST(every_order_of_arrival_gives_the_same_result)
{
    hvt_bench_init(&bench, 4);
    for (int code = 0; code < 256; code++) {
        int order[4] = {code & 3, code >> 2 & 3, code >> 4 & 3, code >> 6 & 3};
        if ((1 << order[0] | 1 << order[1] | 1 << order[2] | 1 << order[3]) != 15)
            continue;
        for (int i = 0; i < 4; i++) {
            ck_assert(!hvt_peer_has_completion(&bench.peers[order[0]]));
            memory(order[i])[0] = (float)(1 << order[i]);
            submit(order[i], make(order[i], HVI_KIND_ALLREDUCE, 1, "w1"));
        }
        expect_all(HVI_OK, "", -1);
        for (int32_t rank = 0; rank < 4; rank++)
            ck_assert_float_eq(memory(rank)[0], 15);
    }
    fini();
}
END_TEST

START_TEST(ranks_may_submit_tensors_in_opposite_orders)
{
    char name[16];

    hvt_bench_init(&bench, 3);
    for (int i = 0; i < 30; i++) {
        for (int32_t rank = 0; rank < 3; rank++) {
            snprintf(name, sizeof name, "t%c", 'A' + (rank == 1 ? 29 - i : i));
            submit(rank, make(rank, HVI_KIND_BARRIER, 0, name));
        }
    }
    for (int i = 0; i < 30; i++)
        expect_all(HVI_OK, "", -1);
    ck_assert_ptr_null(bench.engine->order.waiting_first);
    fini();
}
END_TEST

/* Rank 2 says something else; with four ranks, in the order of the aspects. */
START_TEST(each_disagreement_names_who_said_what)
{
    static const struct {
        const char *text;
        uint16_t kind;
    } rows[] = {
        {"op 'w1': ranks disagree on kind: ranks 0,1,3 said allreduce; rank 2 said broadcast",
         HVI_KIND_ALLREDUCE},
        {"allreduce 'w1': ranks disagree on dtype: ranks 0,1,3 said float32; rank 2 said int32",
         HVI_KIND_ALLREDUCE},
        {"allreduce 'w1': ranks disagree on shape: ranks 0,1,3 said [10, 4]; rank 2 said [10, 5]",
         HVI_KIND_ALLREDUCE},
        {"allreduce 'w1': ranks disagree on reduce op: ranks 0,1,3 said sum; rank 2 said max",
         HVI_KIND_ALLREDUCE},
        {"broadcast 'w1': ranks disagree on root: ranks 0,1,3 said 0; rank 2 said 3",
         HVI_KIND_BROADCAST},
        {"allreduce 'w1': ranks disagree on scale factors: ranks 0,1,3 said prescale 1 postscale "
         "1; rank 2 said prescale 0.5 postscale 1",
         HVI_KIND_ALLREDUCE},
        {"allgather 'w1': ranks disagree on shape: ranks 0,1,3 said [10, 4]; rank 2 said [10, 5]",
         HVI_KIND_ALLGATHER},
        {"allreduce 'w1': ranks disagree on shape: ranks 0,1,3 said [10, 4]; rank 2 said [40]",
         HVI_KIND_ALLREDUCE},
    };

    hvt_bench_init(&bench, 4);
    for (int32_t rank = 0; rank < 4; rank++) {
        struct hvi_submission op = make(rank, rows[_i].kind, 40, "w1");
        bool other = rank == 2;
        op.ndim = 2;
        op.dims[0] = 10;
        op.dims[1] = 4;
        if (other && _i == 0)
            op.kind = HVI_KIND_BROADCAST, op.root = 0;
        op.dtype = other && _i == 1 ? HVI_DTYPE_INT32 : op.dtype;
        if (other && (_i == 2 || _i == 6))
            op.dims[1] = 5, op.count = 50, op.out_capacity = 200;
        op.reduce_op = other && _i == 3 ? HVI_REDUCE_MAX : op.reduce_op;
        op.root = other && _i == 4 ? 3 : op.root;
        op.prescale = other && _i == 5 ? 0.5 : 1.0;
        if (other && _i == 7)
            op.ndim = 1, op.dims[0] = 40, op.dims[1] = 0;
        if (_i == 6)
            op.out_offset = 4096;
        submit(rank, op);
    }
    expect_all(HVI_ERR_MISMATCH, rows[_i].text, -1);
    for (int32_t rank = 0; rank < 4; rank++) /* the session goes on, with the same name */
        submit(rank, make(rank, HVI_KIND_ALLREDUCE, 40, "w1"));
    expect_all(HVI_OK, "", -1);
    fini();
}
END_TEST

START_TEST(three_opinions_make_three_groups)
{
    hvt_bench_init(&bench, 5);
    for (int32_t rank = 0; rank < 5; rank++)
        submit(rank, make(rank, HVI_KIND_ALLREDUCE, 7 + (uint64_t)rank % 3, "w1"));
    expect_all(HVI_ERR_MISMATCH,
               "allreduce 'w1': ranks disagree on shape: ranks 0,3 said [7]; ranks 1,4 said [8]; "
               "rank 2 said [9]",
               -1);
    fini();
}
END_TEST

START_TEST(many_ranks_are_said_in_ranges)
{
    hvt_bench_init(&bench, 24);
    for (int32_t rank = 0; rank < 24; rank++)
        submit(rank, make(rank, HVI_KIND_ALLREDUCE, rank == 20 ? 3 : 2, "w1"));
    expect_all(
        HVI_ERR_MISMATCH,
        "allreduce 'w1': ranks disagree on shape: ranks 0-19,21-23 said [2]; rank 20 said [3]", -1);
    fini();
}
END_TEST

START_TEST(what_cannot_be_done_fails_on_every_rank)
{
    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = make(rank, HVI_KIND_ALLREDUCE, 4, "w1");
        op.reduce_op = HVI_REDUCE_ADASUM;
        op.dtype = HVI_DTYPE_INT32;
        submit(rank, op);
    }
    expect_all(HVI_ERR_UNSUPPORTED, "allreduce 'w1': adasum is not supported for int32", -1);
    for (int32_t rank = 0; rank < 2; rank++)
        submit(rank, make(rank, HVI_KIND_ALLREDUCE, 4, "w1"));
    expect_all(HVI_OK, "", -1);
    fini();
}
END_TEST

START_TEST(an_unknown_process_set_fails_that_op_only)
{
    char text[HVI_TEXT_MAX + 1];

    hvt_bench_init(&bench, 2);
    struct hvi_submission op = make(0, HVI_KIND_ALLREDUCE, 4, "w1");
    op.process_set = 9;
    submit(0, op);
    ck_assert_int_eq(hvt_peer_complete(&bench.peers[0], text, sizeof text).status,
                     HVI_ERR_NOT_FOUND);
    ck_assert_str_eq(text, "allreduce 'w1': process set 9 does not exist");
    op = make(0, HVI_KIND_ALLREDUCE, 4, "w1");
    op.flags = 0; /* the failed op has defined the name all the same */
    submit(0, op);
    submit(1, make(1, HVI_KIND_ALLREDUCE, 4, "w1"));
    expect_all(HVI_OK, "", -1);
    fini();
}
END_TEST

START_TEST(unnamed_ops_meet_by_number)
{
    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        for (uint64_t i = 1; i <= 3; i++) {
            struct hvi_submission op =
                hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_INT32, i, 0);
            op.flags = HVI_SUBMIT_ANON;
            op.anon_seq = rank == 0 ? i : 4 - i;
            op.count = op.anon_seq;
            op.dims[0] = (int64_t)op.count;
            op.out_capacity = 4 * op.count;
            submit(rank, op);
        }
    }
    for (int i = 0; i < 3; i++)
        expect_all(HVI_OK, "", -1);
    fini();
}
END_TEST

START_TEST(one_name_twice_on_a_rank_breaks_the_protocol)
{
    struct hvi_packet_msg msg;

    hvt_bench_init(&bench, 2);
    submit(0, make(0, HVI_KIND_ALLREDUCE, 4, "w1"));
    submit(0, make(0, HVI_KIND_ALLREDUCE, 4, "w1"));
    ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_NOTICE, &msg));
    ck_assert_int_eq(msg.notice.status, HVI_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(msg.notice.text, "one tensor name in flight twice"));
    fini();
}
END_TEST

/* ---- allgather ---- */

static struct hvi_submission gather(int32_t rank, uint64_t rows, bool with_output)
{
    struct hvi_submission op = make(rank, HVI_KIND_ALLGATHER, rows * 2, "g1");

    op.ndim = 2;
    op.dims[0] = (int64_t)rows;
    op.dims[1] = 2;
    op.out_region = with_output ? 0 : HVI_REGION_NONE;
    op.out_offset = with_output ? 65536 : 0;
    op.out_capacity = with_output ? 4096 : 0;
    for (uint64_t i = 0; i < rows * 2; i++)
        memory(rank)[i] = (float)(100 * rank) + (float)i;
    return op;
}

static void answer(int32_t rank, uint64_t cookie, uint64_t capacity)
{
    struct hvi_submission op = {.cookie = cookie, .kind = HVI_SUBMIT_OUTPUT};

    op.out_offset = 65536;
    op.out_capacity = capacity;
    submit(rank, op);
}

static void expect_sized(int32_t rank, uint64_t *cookie_p)
{
    struct hvi_completion sized = hvt_peer_complete(&bench.peers[rank], NULL, 0);

    ck_assert_uint_eq(sized.kind, HVI_COMPLETE_SIZED);
    ck_assert_int_eq(sized.rows, 6);
    ck_assert_uint_eq(sized.bytes, 48);
    *cookie_p = sized.cookie;
}

START_TEST(an_allgather_asks_those_without_output_and_copies_once_all_have_one)
{
    uint64_t cookies[2];

    hvt_bench_init(&bench, 3);
    submit(0, gather(0, 1, false));
    submit(1, gather(1, 0, true));
    submit(2, gather(2, 5, false));
    expect_sized(0, &cookies[0]);
    expect_sized(2, &cookies[1]);
    ck_assert(!hvt_peer_has_completion(&bench.peers[1]));
    answer(2, cookies[1], 48);
    ck_assert(!hvt_peer_has_completion(&bench.peers[1]));
    answer(0, cookies[0], 48);
    for (int32_t rank = 0; rank < 3; rank++) {
        struct hvi_completion done = hvt_peer_complete(&bench.peers[rank], NULL, 0);
        const float *out = memory(rank) + 65536 / 4;
        ck_assert_int_eq(done.status, HVI_OK);
        ck_assert_int_eq(done.rows, 6);
        ck_assert_uint_eq(done.bytes, 48);
        ck_assert_float_eq(out[0], 0);
        ck_assert_float_eq(out[2], 200);
        ck_assert_float_eq(out[11], 209);
    }
    fini();
}
END_TEST

START_TEST(an_output_that_is_too_small_fails_on_every_rank)
{
    uint64_t cookie;

    hvt_bench_init(&bench, 2);
    submit(0, gather(0, 1, true));
    submit(1, gather(1, 5, false));
    expect_sized(1, &cookie);
    answer(1, cookie, 44);
    expect_all(HVI_ERR_TOO_SMALL,
               "allgather 'g1': the output of rank 1 has room for 44 bytes, the result has 48", 1);
    struct hvi_submission op = gather(0, 5, true);
    op.out_capacity = 8;
    submit(0, op);
    submit(1, gather(1, 1, true));
    expect_all(HVI_ERR_TOO_SMALL,
               "allgather 'g1': the output of rank 0 has room for 8 bytes, the result has 48", 0);
    fini();
}
END_TEST

START_TEST(an_output_that_crosses_its_ops_failure_is_forgiven_once)
{
    uint64_t cookies[2];
    struct hvi_packet_msg msg;

    hvt_bench_init(&bench, 2);
    submit(0, gather(0, 1, false));
    submit(1, gather(1, 5, false));
    expect_sized(0, &cookies[0]);
    expect_sized(1, &cookies[1]);
    answer(1, cookies[1], 0);
    for (int32_t rank = 0; rank < 2; rank++)
        ck_assert_int_eq(hvt_peer_complete(&bench.peers[rank], NULL, 0).status, HVI_ERR_TOO_SMALL);
    answer(0, cookies[0], 48); /* was under way */
    submit(0, make(0, HVI_KIND_BARRIER, 0, "b"));
    submit(1, make(1, HVI_KIND_BARRIER, 0, "b"));
    expect_all(HVI_OK, "", -1);
    answer(0, cookies[0], 48); /* a lie */
    ck_assert(hvt_peer_expect(&bench.peers[0], HVI_PACKET_NOTICE, &msg));
    ck_assert_ptr_nonnull(strstr(msg.notice.text, "which was not asked for"));
    fini();
}
END_TEST

START_TEST(an_input_inside_the_output_of_an_allgather_is_refused_on_every_rank)
{
    hvt_bench_init(&bench, 2);
    struct hvi_submission op = gather(1, 1, true);
    op.out_offset = 0;
    submit(0, gather(0, 5, true));
    submit(1, op);
    expect_all(HVI_ERR_INVALID, "allgather 'g1': rank 1's input lies inside its output", 1);
    fini();
}
END_TEST

START_TEST(an_empty_allgather_goes_through_both_rounds)
{
    hvt_bench_init(&bench, 2);
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_submission op = gather(rank, 0, false);
        op.in_region = HVI_REGION_NONE;
        submit(rank, op);
    }
    for (int32_t rank = 0; rank < 2; rank++) {
        struct hvi_completion sized = hvt_peer_complete(&bench.peers[rank], NULL, 0);
        ck_assert_uint_eq(sized.kind, HVI_COMPLETE_SIZED);
        ck_assert_uint_eq(sized.bytes, 0);
        struct hvi_submission op = {.cookie = sized.cookie, .kind = HVI_SUBMIT_OUTPUT};
        op.out_region = HVI_REGION_NONE;
        submit(rank, op);
    }
    expect_all(HVI_OK, "", -1);
    fini();
}
END_TEST

/* ---- completion ---- */

/* All 4096 slots hold unread SIZED completions when the ops fail: the other 4096 are owed. */
START_TEST(completions_that_do_not_fit_are_owed_and_paid_in_order)
{
    char name[16], text[HVI_TEXT_MAX + 1];
    struct hvi_packet_msg msg = {.kind = HVI_PACKET_DETACH};

    hvt_bench_init(&bench, 2);
    for (int i = 0; i < (int)HVI_CQ_SLOTS; i++) {
        snprintf(name, sizeof name, "%d", i);
        for (int32_t rank = 0; rank < 2; rank++) {
            struct hvi_submission op = gather(rank, 1, rank == 1);
            hvt_peer_name(&bench.peers[rank], &op, (uint32_t)i, name);
            submit(rank, op);
        }
    }
    ck_assert_uint_eq(bench.engine->sessions.owed, 0);
    hvt_peer_send(&bench.peers[1], &msg, -1);
    hvt_bench_turn(&bench);
    ck_assert_uint_eq(bench.engine->sessions.owed, HVI_CQ_SLOTS);
    for (int i = 0; i < (int)HVI_CQ_SLOTS; i++) {
        struct hvi_completion sized = hvt_peer_complete(&bench.peers[0], NULL, 0);
        if (sized.kind != HVI_COMPLETE_SIZED)
            ck_abort_msg("completion %d has kind %u", i, sized.kind);
    }
    hvt_bench_turn(&bench);
    ck_assert_uint_eq(bench.engine->sessions.owed, 0);
    struct hvi_completion first = hvt_peer_complete(&bench.peers[0], text, sizeof text);
    ck_assert_int_eq(first.status, HVI_ERR_RANK_LEFT);
    ck_assert_int_eq(first.culprit, 1);
    ck_assert_ptr_nonnull(strstr(text, "rank 1 (pid "));
    ck_assert_ptr_nonnull(strstr(text, ") closed its session"));
    for (int i = 1; i < (int)HVI_CQ_SLOTS; i++) {
        if (hvt_peer_complete(&bench.peers[0], NULL, 0).status != HVI_ERR_RANK_LEFT)
            ck_abort_msg("completion %d", i);
    }
    fini();
}
END_TEST

START_TEST(ops_bytes_and_lag_are_counted_per_rank)
{
    struct hvi_rank_row *rows;
    size_t count = 0;

    hvt_bench_init(&bench, 2);
    struct hvi_submission early = make(0, HVI_KIND_ALLREDUCE, 8, "w1");
    submit(0, early);
    struct hvi_submission late = make(1, HVI_KIND_ALLREDUCE, 8, "w1");
    late.submit_ns = early.submit_ns + 12345;
    while (hvi_clock_ns() < late.submit_ns) {
    }
    submit(1, late);
    ck_assert_int_eq(engine_rank_rows(&bench.engine->sessions, &rows, &count), HVI_OK);
    ck_assert_uint_eq(count, 2);
    ck_assert_uint_eq(rows[0].ops, 1);
    ck_assert_uint_eq(rows[1].bytes, 32);
    ck_assert_uint_eq(rows[0].lag_max_ns, 0);
    ck_assert_uint_eq(rows[1].lag_max_ns, 12345);
    ck_assert_uint_eq(rows[1].lag_mean_ns, 12345);
    ck_assert_str_eq(rows[1].state, "attached");
    ck_assert_str_eq(rows[1].origin, "test");
    free(rows);
    fini();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/negotiate");
    TCase *tcase = tcase_create("negotiate");

    tcase_add_test(tcase, every_order_of_arrival_gives_the_same_result);
    tcase_add_test(tcase, ranks_may_submit_tensors_in_opposite_orders);
    tcase_add_loop_test(tcase, each_disagreement_names_who_said_what, 0, 8);
    tcase_add_test(tcase, three_opinions_make_three_groups);
    tcase_add_test(tcase, many_ranks_are_said_in_ranges);
    tcase_add_test(tcase, what_cannot_be_done_fails_on_every_rank);
    tcase_add_test(tcase, an_unknown_process_set_fails_that_op_only);
    tcase_add_test(tcase, unnamed_ops_meet_by_number);
    tcase_add_test(tcase, one_name_twice_on_a_rank_breaks_the_protocol);
    tcase_add_test(tcase, an_allgather_asks_those_without_output_and_copies_once_all_have_one);
    tcase_add_test(tcase, an_output_that_is_too_small_fails_on_every_rank);
    tcase_add_test(tcase, an_output_that_crosses_its_ops_failure_is_forgiven_once);
    tcase_add_test(tcase, an_input_inside_the_output_of_an_allgather_is_refused_on_every_rank);
    tcase_add_test(tcase, an_empty_allgather_goes_through_both_rounds);
    tcase_add_test(tcase, completions_that_do_not_fit_are_owed_and_paid_in_order);
    tcase_add_test(tcase, ops_bytes_and_lag_are_counted_per_rank);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
