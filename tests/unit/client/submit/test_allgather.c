/* SPDX-License-Identifier: Apache-2.0
 * Allgather: given outputs, and the conversation about outputs that the library provides. */
#include "base/clock.h"
#include "base/types.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;
static float in_data[2 * 3] = {1, 2, 3, 4, 5, 6};
static struct hvd_tensor in;

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
    in = (struct hvd_tensor){.data = in_data, .dtype = HVD_FLOAT32, .ndim = 2, .dims = {2, 3}};
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static void size_up(uint64_t cookie, int64_t rows)
{
    hvt_fake_completion(engine, (struct hvi_completion){.cookie = cookie,
                                                        .kind = HVI_COMPLETE_SIZED,
                                                        .text_cell = HVI_TEXT_NONE,
                                                        .bytes = (uint64_t)rows * 12,
                                                        .rows = rows});
}

static void done(uint64_t cookie, int64_t rows)
{
    hvt_fake_completion(engine, (struct hvi_completion){.cookie = cookie,
                                                        .kind = HVI_COMPLETE_DONE,
                                                        .text_cell = HVI_TEXT_NONE,
                                                        .bytes = (uint64_t)rows * 12,
                                                        .rows = rows,
                                                        .culprit = -1});
}

static const int64_t row_counts[] = {0, 1, 5, 341, 342, 100000};

START_TEST(the_library_provides_the_memory)
{
    int64_t rows = row_counts[_i];
    struct hvd_op *op;
    struct hvd_tensor result;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, NULL, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.out_region, HVI_REGION_NONE);
    ck_assert_uint_eq(slot.out_capacity, 0);
    ck_assert_int_eq(memcmp(hvt_fake_memory(engine, slot.in_region, slot.in_offset), in_data, 24),
                     0);
    size_up(slot.cookie, rows);
    ck_assert_int_eq(hvd_test(op), HVD_INPROGRESS);
    struct hvi_submission answer = hvt_fake_take(engine);
    ck_assert_uint_eq(answer.kind, HVI_SUBMIT_OUTPUT);
    ck_assert_uint_eq(answer.cookie, slot.cookie);
    ck_assert_uint_eq(answer.seq, 2);
    ck_assert_uint_eq(answer.out_capacity, (uint64_t)rows * 12);
    float *out = hvt_fake_memory(engine, answer.out_region, answer.out_offset);
    for (int64_t i = 0; i < 3 * rows; i++)
        out[i] = (float)i;
    done(slot.cookie, rows);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_OK);
    ck_assert_int_eq(result.ndim, 2);
    ck_assert_int_eq(result.dims[0], rows);
    ck_assert_int_eq(result.dims[1], 3);
    ck_assert_int_eq(result.dtype, HVD_FLOAT32);
    int64_t wrong = 0;
    for (int64_t i = 0; i < 3 * rows; i++)
        wrong += ((float *)result.data)[i] != (float)i;
    ck_assert_int_eq(wrong, 0);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_result_lives_until_its_op_is_freed)
{
    struct hvd_op *ops[8];
    struct hvd_tensor results[8];
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(hvd_allgather_async(session, NULL, &in, NULL, NULL, &ops[i]), HVD_OK);
        struct hvi_submission slot = hvt_fake_take(engine);
        size_up(slot.cookie, 1000);
        ck_assert_int_eq(hvd_test(ops[i]), HVD_INPROGRESS);
        struct hvi_submission answer = hvt_fake_take(engine);
        float *out = hvt_fake_memory(engine, answer.out_region, answer.out_offset);
        out[2999] = (float)(i + 1);
        done(slot.cookie, 1000);
        ck_assert_int_eq(hvd_wait(ops[i], 1000000000), HVD_OK);
        ck_assert_int_eq(hvd_op_result(ops[i], &results[i]), HVD_OK);
    }
    for (int i = 0; i < 8; i++) {
        ck_assert(((float *)results[i].data)[2999] == (float)(i + 1));
        hvd_op_free(ops[i]);
    }
    ck_assert_uint_eq(hvt_fake_regions(engine), 1); /* 16 KiB blocks share one */
}
END_TEST

START_TEST(waiting_for_another_op_feeds_this_one)
{
    struct hvd_op *gather, *barrier;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, NULL, NULL, &gather), HVD_OK);
    ck_assert_int_eq(hvd_barrier_async(session, "b", NULL, &barrier), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    hvt_fake_take(engine);
    size_up(slot.cookie, 4);
    ck_assert_int_eq(hvd_wait(barrier, 0), HVD_ERR_TIMEOUT);
    ck_assert_uint_eq(hvt_fake_take(engine).kind, HVI_SUBMIT_OUTPUT);
    done(slot.cookie, 4);
    ck_assert_int_eq(hvd_wait(gather, 1000000000), HVD_OK);
    hvd_op_free(gather);
    hvd_op_free(barrier);
}
END_TEST

START_TEST(no_memory_for_a_result_is_told_to_the_engine)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, NULL, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    hvt_fake_refuse_regions(fake, HVD_ERR_LIMIT, "enough");
    size_up(slot.cookie, 100000);
    ck_assert_int_eq(hvd_test(op), HVD_INPROGRESS);
    struct hvi_submission answer = hvt_fake_take(engine);
    ck_assert_uint_eq(answer.kind, HVI_SUBMIT_OUTPUT);
    ck_assert_uint_eq(answer.out_region, HVI_REGION_NONE);
    ck_assert_uint_eq(answer.out_capacity, 0);
    hvt_fake_done(engine, slot.cookie, HVD_ERR_TOO_SMALL, "rank 0 has room for 0 bytes", 0);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_TOO_SMALL);
    hvd_op_free(op);
}
END_TEST

START_TEST(an_op_that_fails_after_it_was_sized_is_not_fed)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, NULL, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    size_up(slot.cookie, 100000);
    hvt_fake_done(engine, slot.cookie, HVD_ERR_RANK_LOST, "gone", 1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_RANK_LOST);
    ck_assert(hvt_fake_is_idle(engine));
    hvd_op_free(op);
}
END_TEST

START_TEST(a_given_output_gets_the_rows_that_came)
{
    float out[10 * 3] = {0};
    struct hvd_tensor given = {.data = out, .dtype = HVD_FLOAT32, .ndim = 2, .dims = {10, 3}};
    struct hvd_tensor result;
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, &given, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.out_capacity, sizeof out);
    ck_assert_int_eq(slot.dims[0], 2);
    float *shared = hvt_fake_memory(engine, slot.out_region, slot.out_offset);
    for (int i = 0; i < 30; i++)
        shared[i] = 7;
    done(slot.cookie, 4);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_OK);
    ck_assert_int_eq(result.dims[0], 4);
    ck_assert_ptr_eq(result.data, out);
    ck_assert(out[11] == 7 && out[12] == 0);
    hvd_op_free(op);
}
END_TEST

static void *answer_one(void *unused)
{
    (void)unused;
    struct hvi_submission slot = hvt_fake_take(engine);
    size_up(slot.cookie, 5);
    struct hvi_submission answer = hvt_fake_take(engine);
    memset(hvt_fake_memory(engine, answer.out_region, answer.out_offset), 0x11, 60);
    done(slot.cookie, 5);
    return NULL;
}

START_TEST(the_blocking_form_returns_malloc_memory)
{
    struct hvd_tensor result;
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, answer_one, NULL), 0);
    ck_assert_int_eq(hvd_allgather(session, "g", &in, &result), HVD_OK);
    pthread_join(thread, NULL);
    ck_assert_int_eq(result.dims[0], 5);
    ck_assert_int_eq(((unsigned char *)result.data)[59], 0x11);
    free(result.data);
}
END_TEST

START_TEST(close_with_a_sized_op_is_clean)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, NULL, NULL, &op), HVD_OK);
    size_up(hvt_fake_take(engine).cookie, 100000);
}
END_TEST

/* What an engine would never say. */
struct lie {
    uint32_t kind;
    int64_t rows;
    uint64_t bytes;
};

static const struct lie lies[] = {
    {HVI_COMPLETE_SIZED, -1, 0},
    {HVI_COMPLETE_SIZED, 3, 35},
    {HVI_COMPLETE_SIZED, INT64_MAX, 12},
    {HVI_COMPLETE_DONE, 2, 24}, /* without having asked for memory */
    {77, 0, 0},
};

START_TEST(impossible_sizes_end_the_session)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, NULL, NULL, &op), HVD_OK);
    hvt_fake_completion(engine, (struct hvi_completion){.cookie = hvt_fake_take(engine).cookie,
                                                        .kind = lies[_i].kind,
                                                        .text_cell = HVI_TEXT_NONE,
                                                        .bytes = lies[_i].bytes,
                                                        .rows = lies[_i].rows});
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_PROTOCOL);
    ck_assert_ptr_nonnull(strstr(hvd_op_error(op), "impossible completion"));
    ck_assert_int_eq(hvd_session_status(session), HVD_ERR_PROTOCOL);
}
END_TEST

/* As on several nodes, where a step that repeats has stopped. */
START_TEST(an_engine_may_ask_again_for_memory_of_another_size)
{
    static const int64_t rows[] = {5, 100000, 2};
    struct hvi_submission output;
    struct hvd_tensor result;
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, NULL, NULL, &op), HVD_OK);
    uint64_t cookie = hvt_fake_take(engine).cookie;
    for (int i = 0; i < 3; i++) {
        size_up(cookie, rows[i]);
        ck_assert_int_eq(hvd_wait(op, 0), HVD_ERR_TIMEOUT);
        output = hvt_fake_take(engine);
        ck_assert_uint_eq(output.kind, HVI_SUBMIT_OUTPUT);
        ck_assert_uint_eq(output.out_capacity, (uint64_t)rows[i] * 12);
    }
    done(cookie, 2);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_OK);
    ck_assert_int_eq(result.dims[0], 2);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_result_without_memory_ends_the_session)
{
    struct hvd_tensor result;
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, NULL, NULL, &op), HVD_OK);
    uint64_t cookie = hvt_fake_take(engine).cookie;
    size_up(cookie, 5);
    done(cookie, 5);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_PROTOCOL);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_ERR_PROTOCOL);
}
END_TEST

START_TEST(more_than_was_given_ends_the_session)
{
    float out[3] = {0};
    struct hvd_tensor given = {.data = out, .dtype = HVD_FLOAT32, .ndim = 2, .dims = {1, 3}};
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allgather_async(session, "g", &in, &given, NULL, &op), HVD_OK);
    done(hvt_fake_take(engine).cookie, 2);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_PROTOCOL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client allgather");
    TCase *tcase = tcase_create("allgather");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_loop_test(tcase, the_library_provides_the_memory, 0,
                        (int)(sizeof row_counts / sizeof row_counts[0]));
    tcase_add_test(tcase, a_result_lives_until_its_op_is_freed);
    tcase_add_test(tcase, waiting_for_another_op_feeds_this_one);
    tcase_add_test(tcase, no_memory_for_a_result_is_told_to_the_engine);
    tcase_add_test(tcase, an_op_that_fails_after_it_was_sized_is_not_fed);
    tcase_add_test(tcase, a_given_output_gets_the_rows_that_came);
    tcase_add_test(tcase, the_blocking_form_returns_malloc_memory);
    tcase_add_test(tcase, close_with_a_sized_op_is_clean);
    tcase_add_loop_test(tcase, impossible_sizes_end_the_session, 0,
                        (int)(sizeof lies / sizeof lies[0]));
    tcase_add_test(tcase, an_engine_may_ask_again_for_memory_of_another_size);
    tcase_add_test(tcase, a_result_without_memory_ends_the_session);
    tcase_add_test(tcase, more_than_was_given_ends_the_session);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
