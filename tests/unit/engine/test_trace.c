/* SPDX-License-Identifier: Apache-2.0
 * The trace: what a rank did last, in flight or finished, also when it is gone. */
#include "base/status.h"
#include "daemon/engine/watch/trace.h"
#include "tests/unit/engine/hvt_bench.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct hvt_bench bench;
static struct hvi_trace_row *rows;
static size_t count;
static uint64_t left_out;

static void read_trace(int32_t rank, uint32_t limit, uint64_t before)
{
    free(rows);
    ck_assert_int_eq(
        engine_trace_rows(&bench.engine->watch, rank, limit, before, &rows, &count, &left_out),
        HVI_OK);
}

static void submit(int32_t rank, const char *name)
{
    struct hvi_submission op =
        hvt_peer_op(&bench.peers[rank], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 3, 0);

    if (name)
        hvt_peer_name(&bench.peers[rank], &op, 1, name);
    hvt_peer_submit(&bench.peers[rank], &op);
    hvt_bench_turn(&bench);
}

static void complete(int32_t rank)
{
    hvt_peer_complete(&bench.peers[rank], NULL, 0);
}

START_TEST(an_op_in_flight_is_a_row_without_a_number)
{
    hvt_bench_init(&bench, 2);
    submit(1, "w");
    read_trace(1, 0, 0);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(rows[0].tensor, "w");
    ck_assert_str_eq(rows[0].op, "allreduce");
    ck_assert_str_eq(rows[0].dtype, "float32");
    ck_assert_uint_eq(rows[0].bytes, 12);
    ck_assert_uint_eq(rows[0].number, 0);
    ck_assert_int_eq(rows[0].status, HVI_INPROGRESS);
    ck_assert_uint_eq(rows[0].ready_ns, 0);
    ck_assert_uint_eq(rows[0].done_ns, 0);
    ck_assert_uint_gt(rows[0].submit_ns, 0);
    read_trace(0, 0, 0);
    ck_assert_uint_eq(count, 0);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_finished_op_has_its_times_in_order)
{
    hvt_bench_init(&bench, 2);
    submit(1, "w");
    submit(0, "w");
    read_trace(-1, 0, 0);
    ck_assert_uint_eq(count, 2);
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(rows[i].rank, (int)i);
        ck_assert_uint_eq(rows[i].number, 1);
        ck_assert_int_eq(rows[i].status, HVI_OK);
        ck_assert_uint_ge(rows[i].ready_ns, rows[i].submit_ns);
        ck_assert_uint_ge(rows[i].done_ns, rows[i].ready_ns);
    }
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(the_ring_keeps_the_newest_and_pages_go_backwards)
{
    char name[32];

    hvt_bench_init(&bench, 1);
    for (uint32_t i = 1; i <= ENGINE_TRACE_OPS + 100; i++) {
        snprintf(name, sizeof name, "t%u", i);
        submit(0, name);
        complete(0);
    }
    read_trace(0, 3, 0);
    ck_assert_uint_eq(count, 3);
    ck_assert_uint_eq(left_out, ENGINE_TRACE_OPS - 3);
    ck_assert_str_eq(rows[0].tensor, "t1124");
    ck_assert_uint_eq(rows[2].number, 1122);
    read_trace(0, 0, 1122);
    ck_assert_uint_eq(count, HVI_WIRE_TRACES_MAX);
    ck_assert_str_eq(rows[0].tensor, "t1121");
    read_trace(0, 0, 103);
    ck_assert_uint_eq(count, 2); /* 1..100 have been overwritten */
    ck_assert_str_eq(rows[1].tensor, "t101");
    ck_assert_uint_eq(left_out, 0);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(the_trace_of_a_rank_that_is_gone_can_be_read)
{
    hvt_bench_init(&bench, 2);
    submit(0, "ok");
    submit(1, "ok");
    submit(1, "cut");
    engine_session_end(bench.engine->sessions.ranks[1].session, ENGINE_RANK_LOST,
                       "rank 1 was killed");
    hvt_bench_turn(&bench);
    read_trace(1, 0, 0);
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(rows[0].tensor, "cut");
    ck_assert_int_eq(rows[0].status, HVI_ERR_RANK_LOST);
    ck_assert_uint_eq(rows[0].ready_ns, 0);
    ck_assert_uint_gt(rows[0].done_ns, 0);
    ck_assert_str_eq(rows[1].tensor, "ok");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(unnamed_ops_have_the_name_of_their_sequence)
{
    struct hvi_submission op;

    hvt_bench_init(&bench, 1);
    op = hvt_peer_op(&bench.peers[0], HVI_KIND_BARRIER, HVI_DTYPE_FLOAT32, 0, HVI_REGION_NONE);
    op.flags = HVI_SUBMIT_ANON;
    op.anon_seq = 7;
    hvt_peer_submit(&bench.peers[0], &op);
    hvt_bench_turn(&bench);
    read_trace(0, 0, 0);
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(rows[0].tensor, "barrier.noname.7");
    ck_assert_str_eq(rows[0].dtype, "");
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(a_long_name_is_shortened_between_characters)
{
    char name[512];
    const struct engine_trace_op op = {.tensor = name};

    hvt_bench_init(&bench, 1);
    for (size_t i = 0; i < 255; i++)
        memcpy(name + 2 * i, "\xc3\xa4", 2);
    name[510] = 'z';
    name[511] = '\0';
    engine_trace_add(&bench.engine->stats, (engine_seat){0}, &op);
    read_trace(0, 0, 0);
    size_t bytes = strlen(rows[0].tensor);
    ck_assert_uint_le(bytes, HVI_WIRE_TRACE_NAME - 1);
    ck_assert_uint_ge(bytes, HVI_WIRE_TRACE_NAME - 6);
    ck_assert_ptr_nonnull(strstr(rows[0].tensor, "\xa4...\xc3"));
    ck_assert_int_eq(rows[0].tensor[bytes - 1], 'z');
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/trace");
    TCase *tcase = tcase_create("trace");

    tcase_add_test(tcase, an_op_in_flight_is_a_row_without_a_number);
    tcase_add_test(tcase, a_finished_op_has_its_times_in_order);
    tcase_add_test(tcase, the_ring_keeps_the_newest_and_pages_go_backwards);
    tcase_add_test(tcase, the_trace_of_a_rank_that_is_gone_can_be_read);
    tcase_add_test(tcase, unnamed_ops_have_the_name_of_their_sequence);
    tcase_add_test(tcase, a_long_name_is_shortened_between_characters);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
