/* SPDX-License-Identifier: Apache-2.0
 * Reducescatter and alltoall: whose rows go where, and the splits that travel beside them. */
#include "base/types.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>

#define RANK 1
#define SIZE 3

static struct hvt_fake *fake;
static struct hvd_session *session; /* rank 1 of 3 */
static struct hvt_fake_session *engine;
static float in_data[10 * 2];
static struct hvd_tensor in; /* 10 rows of 2 */

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open_as(fake, RANK, SIZE);
    engine = hvt_fake_session(fake, 0);
    for (int i = 0; i < 20; i++)
        in_data[i] = (float)i;
    in = (struct hvd_tensor){.data = in_data, .dtype = HVD_FLOAT32, .ndim = 2, .dims = {10, 2}};
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static const float *input_of(const struct hvi_submission *slot)
{
    return hvt_fake_memory(engine, slot->in_region, slot->in_offset);
}

/* ---- reducescatter ---- */

START_TEST(a_reducescatter_gets_memory_for_the_rows_the_engine_tells)
{
    struct hvd_op *op;
    struct hvd_tensor result;
    ck_assert_int_eq(hvd_reducescatter_async(session, "r", &in, NULL, HVD_SUM, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.kind, HVI_KIND_REDUCESCATTER);
    ck_assert_uint_eq(slot.reduce_op, HVD_SUM);
    ck_assert_uint_eq(slot.count, 20);
    ck_assert_uint_eq(slot.ndim, 2);
    ck_assert_int_eq(slot.dims[0], 10);
    ck_assert_uint_eq(slot.out_region, HVI_REGION_NONE);
    ck_assert_uint_eq(slot.out_capacity, 0);
    ck_assert(input_of(&slot)[19] == 19);
    hvt_fake_sized(engine, slot.cookie, 5, 40); /* more than a third: a rank has joined */
    ck_assert_int_eq(hvd_test(op), HVD_INPROGRESS);
    struct hvi_submission answer = hvt_fake_take(engine);
    ck_assert_uint_eq(answer.kind, HVI_SUBMIT_OUTPUT);
    ck_assert_uint_eq(answer.out_capacity, 40);
    float *out = hvt_fake_memory(engine, answer.out_region, answer.out_offset);
    for (int i = 0; i < 10; i++)
        out[i] = (float)(100 + i);
    hvt_fake_done_rows(engine, slot.cookie, 5, 40);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_OK);
    ck_assert_int_eq(result.dims[0], 5);
    ck_assert_int_eq(result.dims[1], 2);
    ck_assert(((float *)result.data)[9] == 109);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_given_output_of_a_reducescatter_has_room_for_its_rows)
{
    float out_data[12] = {0};
    struct hvd_tensor out = {.data = out_data, .dtype = HVD_FLOAT32, .ndim = 2, .dims = {3, 2}};
    struct hvd_tensor result;
    struct hvd_op *op;
    for (out.dims[0] = 0; out.dims[0] < 3; out.dims[0]++) {
        ck_assert_int_eq(hvd_reducescatter_async(session, "r", &in, &out, HVD_SUM, NULL, &op),
                         HVD_ERR_INVALID);
        ck_assert_ptr_nonnull(strstr(hvd_last_error(), "this one gets 3"));
    }
    ck_assert(hvt_fake_is_idle(engine));
    for (; out.dims[0] <= 6; out.dims[0]++) {
        ck_assert_int_eq(hvd_reducescatter_async(session, "r", &in, &out, HVD_MAX, NULL, &op),
                         HVD_OK);
        struct hvi_submission slot = hvt_fake_take(engine);
        ck_assert_uint_eq(slot.out_capacity, (uint64_t)out.dims[0] * 8);
        ((float *)hvt_fake_memory(engine, slot.out_region, slot.out_offset))[5] = 7;
        hvt_fake_done_rows(engine, slot.cookie, 3, 24);
        ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
        ck_assert_int_eq(hvd_op_result(op, &result), HVD_OK);
        ck_assert_ptr_eq(result.data, out_data);
        ck_assert_int_eq(result.dims[0], 3);
        ck_assert(out_data[5] == 7 && out_data[6] == 0);
        hvd_op_free(op);
    }
}
END_TEST

START_TEST(fewer_rows_than_ranks_leave_some_with_none)
{
    struct hvd_op *op;
    struct hvd_tensor result;
    in.dims[0] = 1; /* for rank 0 */
    ck_assert_int_eq(hvd_reducescatter_async(session, "r", &in, NULL, HVD_SUM, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    hvt_fake_sized(engine, slot.cookie, 0, 0);
    ck_assert_int_eq(hvd_test(op), HVD_INPROGRESS);
    ck_assert_uint_eq(hvt_fake_take(engine).kind, HVI_SUBMIT_OUTPUT);
    hvt_fake_done_rows(engine, slot.cookie, 0, 0);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_OK);
    ck_assert_int_eq(result.dims[0], 0);
    hvd_op_free(op);
}
END_TEST

START_TEST(failed_ops_give_their_memory_back)
{
    in.dims[0] = 9;
    for (int i = 0; i < 3000; i++) {
        struct hvd_op *op;
        struct hvd_op *other;
        ck_assert_int_eq(hvd_reducescatter_async(session, "r", &in, NULL, HVD_SUM, NULL, &op),
                         HVD_OK);
        ck_assert_int_eq(hvd_alltoall_async(session, "a", &in, NULL, NULL, NULL, &other), HVD_OK);
        hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_ERR_MISMATCH, "no", 0);
        hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_ERR_MISMATCH, "no", 0);
        ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_MISMATCH);
        hvd_op_free(op);
        hvd_op_free(other);
    }
    ck_assert_uint_eq(hvt_fake_regions(engine), 0); /* all inline */
}
END_TEST

/* ---- alltoall ---- */

static void check_alltoall_slot(const struct hvi_submission *slot, const int64_t *splits)
{
    ck_assert_uint_eq(slot->kind, HVI_KIND_ALLTOALL);
    ck_assert_uint_eq(slot->aux_count, SIZE);
    ck_assert_uint_eq(slot->aux_offset % 8, 0);
    const int64_t *aux = hvt_fake_memory(engine, slot->aux_region, slot->aux_offset);
    for (int i = 0; i < SIZE; i++) {
        ck_assert_int_eq(aux[i], splits[i]);
        ck_assert_int_eq(aux[SIZE + i], 0);
    }
}

START_TEST(an_alltoall_brings_splits_and_fetches_received_ones)
{
    const int64_t splits[SIZE] = {5, 0, 4}; /* the last row is not sent */
    int64_t received[SIZE];
    struct hvd_op *op;
    struct hvd_tensor result;
    ck_assert_int_eq(hvd_alltoall_async(session, "a", &in, splits, NULL, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    check_alltoall_slot(&slot, splits);
    ck_assert_uint_eq(slot.out_region, HVI_REGION_NONE);
    ck_assert_int_eq(hvd_op_received_splits(op, received, SIZE), HVD_INPROGRESS);
    hvt_fake_sized(engine, slot.cookie, 6, 48);
    ck_assert_int_eq(hvd_test(op), HVD_INPROGRESS);
    struct hvi_submission answer = hvt_fake_take(engine);
    ck_assert_uint_eq(answer.kind, HVI_SUBMIT_OUTPUT);
    ck_assert_uint_eq(answer.out_capacity, 48);
    int64_t *aux = hvt_fake_memory(engine, slot.aux_region, slot.aux_offset);
    aux[SIZE] = 1;
    aux[SIZE + 1] = 2;
    aux[SIZE + 2] = 3;
    ((float *)hvt_fake_memory(engine, answer.out_region, answer.out_offset))[11] = 42;
    hvt_fake_done_rows(engine, slot.cookie, 6, 48);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_OK);
    ck_assert_int_eq(result.dims[0], 6);
    ck_assert(((float *)result.data)[11] == 42);
    ck_assert_int_eq(hvd_op_received_splits(op, received, SIZE), HVD_OK);
    ck_assert(received[0] == 1 && received[1] == 2 && received[2] == 3);
    ck_assert_int_eq(hvd_op_received_splits(op, received, SIZE - 1), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_op_received_splits(op, NULL, SIZE), HVD_ERR_INVALID);
    hvd_op_free(op);
}
END_TEST

START_TEST(without_splits_the_parts_are_equal)
{
    const int64_t splits[SIZE] = {3, 3, 3};
    float out_data[9 * 2];
    struct hvd_tensor out = {.data = out_data, .dtype = HVD_FLOAT32, .ndim = 2, .dims = {9, 2}};
    struct hvd_op *op;
    in.dims[0] = 9;
    ck_assert_int_eq(hvd_alltoall_async(session, "a", &in, NULL, &out, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    check_alltoall_slot(&slot, splits);
    ck_assert_uint_eq(slot.out_capacity, 72);
    ((float *)hvt_fake_memory(engine, slot.out_region, slot.out_offset))[15] = 1;
    hvt_fake_done_rows(engine, slot.cookie, 8, 64);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert(out_data[15] == 1);
    hvd_op_free(op);
}
END_TEST

START_TEST(received_splits_belong_to_alltoalls)
{
    int64_t received[SIZE];
    struct hvd_op *op;
    ck_assert_int_eq(hvd_barrier_async(session, "b", NULL, &op), HVD_OK);
    ck_assert_int_eq(hvd_op_received_splits(op, received, SIZE), HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "no alltoall"));
    hvd_op_free(op);
}
END_TEST

START_TEST(a_failed_alltoall_has_no_received_splits)
{
    int64_t received[SIZE];
    struct hvd_op *op;
    in.dims[0] = 9;
    ck_assert_int_eq(hvd_alltoall_async(session, "a", &in, NULL, NULL, NULL, &op), HVD_OK);
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_ERR_MISMATCH, "they disagree", 2);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_MISMATCH);
    ck_assert_int_eq(hvd_op_received_splits(op, received, SIZE), HVD_ERR_MISMATCH);
    ck_assert_str_eq(hvd_last_error(), "they disagree");
    hvd_op_free(op);
}
END_TEST

START_TEST(an_engine_that_contradicts_itself_about_rows_ends_the_session)
{
    struct hvd_op *op;
    in.dims[0] = 9;
    ck_assert_int_eq(hvd_alltoall_async(session, "a", &in, NULL, NULL, NULL, &op), HVD_OK);
    hvt_fake_sized(engine, hvt_fake_take(engine).cookie, 6, 47);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_PROTOCOL);
}
END_TEST

/* ---- alignment ---- */

START_TEST(a_place_that_is_not_aligned_to_the_element_is_copied)
{
    char *shared;
    float value;
    struct hvd_op *op;
    ck_assert_int_eq(hvd_alloc(session, 4096, (void **)&shared), HVD_OK);
    for (int offset = 0; offset < 8; offset++) {
        struct hvd_tensor t = hvd_tensor_1d(shared + offset, HVD_FLOAT32, 100);
        value = 3;
        memcpy(shared + offset + 4 * 99, &value, sizeof value);
        ck_assert_int_eq(hvd_allreduce_async(session, "w", &t, &t, HVD_SUM, NULL, &op), HVD_OK);
        struct hvi_submission slot = hvt_fake_take(engine);
        ck_assert_int_eq(slot.out_region == HVI_REGION_INLINE, offset % 4 != 0);
        ck_assert_uint_eq(slot.in_offset % 4, 0);
        float *place = hvt_fake_memory(engine, slot.out_region, slot.out_offset);
        ck_assert(place[99] == 3);
        place[99] = 9;
        hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
        ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
        memcpy(&value, shared + offset + 4 * 99, sizeof value);
        ck_assert(value == 9);
        hvd_op_free(op);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client rows");
    TCase *tcase = tcase_create("rows");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, a_reducescatter_gets_memory_for_the_rows_the_engine_tells);
    tcase_add_test(tcase, a_given_output_of_a_reducescatter_has_room_for_its_rows);
    tcase_add_test(tcase, fewer_rows_than_ranks_leave_some_with_none);
    tcase_add_test(tcase, failed_ops_give_their_memory_back);
    tcase_add_test(tcase, an_alltoall_brings_splits_and_fetches_received_ones);
    tcase_add_test(tcase, without_splits_the_parts_are_equal);
    tcase_add_test(tcase, received_splits_belong_to_alltoalls);
    tcase_add_test(tcase, a_failed_alltoall_has_no_received_splits);
    tcase_add_test(tcase, an_engine_that_contradicts_itself_about_rows_ends_the_session);
    tcase_add_test(tcase, a_place_that_is_not_aligned_to_the_element_is_copied);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
