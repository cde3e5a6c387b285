/* SPDX-License-Identifier: Apache-2.0
 * What reaches the ring for a call, and what comes back: the test is the engine. */
#include "base/clock.h"
#include "base/types.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;
static float memory[20000];

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static struct hvd_op *submit(const char *name, struct hvd_tensor *tensor)
{
    struct hvd_op *op = NULL;
    ck_assert_msg(hvd_allreduce_async(session, name, tensor, tensor, HVD_SUM, NULL, &op) == HVD_OK,
                  "%s", hvd_last_error());
    return op;
}

static void finish(struct hvd_op *op, uint64_t cookie)
{
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    hvd_op_free(op);
}

/* Refused with what to do instead, and nothing else has happened. */
START_TEST(no_op_takes_part_in_a_stream)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 3);
    struct hvd_op *op = submit("w1", &t);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_int_eq(hvd_op_stream_wait(op, &t), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "'w1'"));
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "call hvd_wait before"));
    ck_assert_int_eq(hvd_device_forget(session, memory), HVD_ERR_NOT_FOUND);
    finish(op, slot.cookie);
    struct hvd_op_options options;
    hvd_op_options_init(&options);
    options.stream = &t;
    op = NULL;
    ck_assert_int_eq(hvd_allreduce_async(session, "w1", &t, &t, HVD_SUM, &options, &op),
                     HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "tensors in memory of the host"));
    ck_assert_int_eq(hvd_barrier_async(session, NULL, &options, &op), HVD_ERR_UNSUPPORTED);
    ck_assert_ptr_null(op);
    ck_assert(hvt_fake_is_idle(engine));
}
END_TEST

START_TEST(an_allreduce_fills_its_slot)
{
    struct hvd_tensor t = {.data = memory, .dtype = HVD_FLOAT32, .ndim = 2, .dims = {3, 2}};
    struct hvd_op_options options;
    struct hvd_op *op;
    char name[HVI_NAME_MAX + 1];
    hvd_op_options_init(&options);
    options.prescale_factor = 0.5;
    ck_assert_int_eq(hvd_allreduce_async(session, "w1", &t, &t, HVD_MAX, &options, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.seq, 1);
    ck_assert_uint_eq(slot.kind, HVI_KIND_ALLREDUCE);
    ck_assert_uint_eq(slot.flags, HVI_SUBMIT_NAMED);
    ck_assert_uint_eq(slot.reduce_op, HVD_MAX);
    ck_assert_uint_eq(slot.dtype, HVD_FLOAT32);
    ck_assert_uint_eq(slot.ndim, 2);
    ck_assert_uint_eq(slot.reserved0, 0);
    ck_assert_int_eq(slot.root, -1);
    ck_assert_uint_eq(slot.count, 6);
    ck_assert_int_eq(slot.dims[0], 3);
    ck_assert_int_eq(slot.dims[1], 2);
    ck_assert_int_eq(slot.dims[2], 0);
    ck_assert_uint_eq(slot.in_region, HVI_REGION_INLINE);
    ck_assert_uint_eq(slot.out_region, HVI_REGION_INLINE);
    ck_assert_uint_eq(slot.in_offset, slot.out_offset);
    ck_assert_uint_eq(slot.out_capacity, 24);
    ck_assert_double_eq(slot.prescale, 0.5);
    ck_assert_double_eq(slot.postscale, 1.0);
    ck_assert(slot.fence_turn == 0 && slot.fence_cell == 0 && slot.after == 0);
    for (size_t i = 0; i < sizeof slot.reserved / sizeof slot.reserved[0]; i++)
        ck_assert_uint_eq(slot.reserved[i], 0);
    hvt_fake_name(engine, &slot, name);
    ck_assert_str_eq(name, "w1");
    finish(op, slot.cookie);
}
END_TEST

START_TEST(a_name_travels_once_and_is_free_at_once)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 1);
    uint32_t id = 0;
    for (int i = 0; i < 100; i++) {
        struct hvd_op *op = submit("again", &t);
        struct hvi_submission slot = hvt_fake_take(engine);
        ck_assert_uint_eq(slot.flags, i == 0 ? HVI_SUBMIT_NAMED : 0);
        if (i == 0)
            id = slot.tensor_id;
        ck_assert_uint_eq(slot.tensor_id, id);
        ck_assert_uint_eq(slot.seq, (uint64_t)i + 1);
        finish(op, slot.cookie);
    }
}
END_TEST

START_TEST(a_name_is_free_once_the_engine_is_done_though_nobody_has_looked)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 1);
    struct hvd_op *first = submit("w", &t);
    struct hvd_op *second;
    ck_assert_int_eq(hvd_allreduce_async(session, "w", &t, &t, HVD_SUM, NULL, &second),
                     HVD_ERR_DUPLICATE_NAME);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "'w' is already in flight on rank 0"));
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
    second = submit("w", &t);
    finish(second, hvt_fake_take(engine).cookie);
    ck_assert_int_eq(hvd_test(first), HVD_OK);
    hvd_op_free(first);
}
END_TEST

START_TEST(unnamed_ops_are_counted_per_kind)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 1);
    struct hvd_op *ops[4];
    ops[0] = submit(NULL, &t);
    ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &ops[1]), HVD_OK);
    ops[2] = submit(NULL, &t);
    ops[3] = submit(NULL, &t);
    static const uint64_t expected[] = {1, 1, 2, 3};
    for (int i = 0; i < 4; i++) {
        struct hvi_submission slot = hvt_fake_take(engine);
        ck_assert_uint_eq(slot.flags, HVI_SUBMIT_ANON);
        ck_assert_uint_eq(slot.anon_seq, expected[i]);
        hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    }
    ck_assert_str_eq(hvd_op_name(ops[3]), "allreduce.noname.3");
    ck_assert_str_eq(hvd_op_name(ops[1]), "barrier.noname.1");
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(hvd_test(ops[i]), HVD_OK);
        hvd_op_free(ops[i]);
    }
}
END_TEST

START_TEST(a_refused_unnamed_op_does_not_count)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 10000);
    struct hvd_tensor small = hvd_tensor_1d(memory, HVD_FLOAT32, 1);
    struct hvd_op *op;
    hvt_fake_refuse_regions(fake, HVD_ERR_LIMIT, "no more than 4096 regions");
    ck_assert_int_eq(hvd_allreduce_async(session, NULL, &t, &t, HVD_SUM, NULL, &op), HVD_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "no more than 4096 regions"));
    op = submit(NULL, &small);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.anon_seq, 1);
    finish(op, slot.cookie);
}
END_TEST

START_TEST(a_barrier_has_no_operands)
{
    struct hvd_op *op;
    struct hvd_tensor result;
    ck_assert_int_eq(hvd_barrier_async(session, "b", NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.kind, HVI_KIND_BARRIER);
    ck_assert_uint_eq(slot.in_region, HVI_REGION_NONE);
    ck_assert_uint_eq(slot.out_region, HVI_REGION_NONE);
    ck_assert_uint_eq(slot.count, 0);
    ck_assert_uint_eq(slot.out_capacity, 0);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_INPROGRESS);
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, -1), HVD_OK);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_OK);
    ck_assert_ptr_null(result.data);
    hvd_op_free(op);
}
END_TEST

/* Payload sizes around every boundary of where operands live. */
static const int64_t counts[] = {1,    2,    127,  128,  129,  1023, 1024,
                                 1025, 2048, 2049, 8192, 8193, 20000};

START_TEST(ordinary_memory_is_copied_in_and_out)
{
    int64_t count = counts[_i];
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, count);
    for (int64_t i = 0; i < count; i++)
        memory[i] = (float)i;
    struct hvd_op *op = submit("w", &t);
    struct hvi_submission slot = hvt_fake_take(engine);
    float *shared = hvt_fake_memory(engine, slot.in_region, slot.in_offset);
    ck_assert_int_eq(slot.in_region == HVI_REGION_INLINE, count <= 1024);
    ck_assert_uint_eq(slot.in_offset % 64, 0);
    int64_t wrong = 0;
    for (int64_t i = 0; i < count; i++) {
        wrong += shared[i] != (float)i;
        shared[i] *= 2;
    }
    ck_assert(memory[count - 1] == (float)(count - 1));
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_test(op), HVD_OK);
    for (int64_t i = 0; i < count; i++)
        wrong += memory[i] != 2 * (float)i;
    ck_assert_int_eq(wrong, 0);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_separate_input_is_not_written)
{
    float in[4] = {1, 2, 3, 4};
    float out[4] = {0};
    struct hvd_tensor a = hvd_tensor_1d(in, HVD_FLOAT32, 4);
    struct hvd_tensor b = hvd_tensor_1d(out, HVD_FLOAT32, 4);
    struct hvd_tensor result;
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allreduce_async(session, "w", &a, &b, HVD_SUM, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    float *shared = hvt_fake_memory(engine, slot.out_region, slot.out_offset);
    ck_assert(shared[3] == 4);
    shared[3] = 40;
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, -1), HVD_OK);
    ck_assert(in[3] == 4 && out[3] == 40 && out[0] == 1);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_OK);
    ck_assert_ptr_eq(result.data, out);
    ck_assert_int_eq(result.dims[0], 4);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_failed_op_leaves_ordinary_output_alone)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 4);
    memory[0] = 5;
    struct hvd_op *op = submit("w", &t);
    struct hvi_submission slot = hvt_fake_take(engine);
    *(float *)hvt_fake_memory(engine, slot.out_region, slot.out_offset) = 99;
    hvt_fake_done(engine, slot.cookie, HVD_ERR_MISMATCH, "ranks disagree", 1);
    ck_assert_int_eq(hvd_wait(op, -1), HVD_ERR_MISMATCH);
    ck_assert(memory[0] == 5);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_failed_op_leaves_shared_output_alone)
{
    float in[4] = {1, 2, 3, 4};
    float *out;
    struct hvd_op *op;
    ck_assert_int_eq(hvd_alloc(session, sizeof in, (void **)&out), HVD_OK);
    out[3] = 5;
    struct hvd_tensor a = hvd_tensor_1d(in, HVD_FLOAT32, 4);
    struct hvd_tensor b = hvd_tensor_1d(out, HVD_FLOAT32, 4);
    ck_assert_int_eq(hvd_allreduce_async(session, "w", &a, &b, HVD_SUM, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert(((float *)hvt_fake_memory(engine, slot.in_region, slot.in_offset))[3] == 4);
    hvt_fake_done(engine, slot.cookie, HVD_ERR_MISMATCH, "ranks disagree", 1);
    ck_assert_int_eq(hvd_wait(op, -1), HVD_ERR_MISMATCH);
    ck_assert(out[3] == 5);
    hvd_op_free(op);
    ck_assert_int_eq(hvd_free(session, out), HVD_OK);
}
END_TEST

START_TEST(a_failure_brings_sentence_and_culprit)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 4);
    struct hvd_tensor result;
    struct hvd_op *op = submit("w", &t);
    ck_assert_str_eq(hvd_op_error(op), "");
    ck_assert_int_eq(hvd_op_culprit(op), -1);
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_ERR_RANK_LOST,
                  "rank 2 (pid 4711) was killed by signal 9 (SIGKILL)", 2);
    ck_assert_int_eq(hvd_wait(op, -1), HVD_ERR_RANK_LOST);
    ck_assert_str_eq(hvd_last_error(), "rank 2 (pid 4711) was killed by signal 9 (SIGKILL)");
    ck_assert_str_eq(hvd_op_error(op), hvd_last_error());
    ck_assert_int_eq(hvd_op_culprit(op), 2);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_ERR_RANK_LOST);
    ck_assert_int_eq(hvd_test(op), HVD_ERR_RANK_LOST);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_sentence_that_was_overwritten_is_replaced)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 4);
    struct hvd_op *op = submit("w", &t);
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_ERR_RANK_LOST, "the real story", 2);
    hvt_fake_reuse_texts(engine);
    ck_assert_int_eq(hvd_wait(op, -1), HVD_ERR_RANK_LOST);
    ck_assert_str_eq(hvd_op_error(op), "a rank died or dropped its connection");
    hvd_op_free(op);
}
END_TEST

START_TEST(empty_tensors_are_submitted_like_others)
{
    struct hvd_tensor t = hvd_tensor_1d(NULL, HVD_FLOAT64, 0);
    struct hvd_op *op = submit("nothing", &t);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.count, 0);
    ck_assert_uint_eq(slot.ndim, 1);
    ck_assert_uint_eq(slot.out_capacity, 0);
    ck_assert_uint_eq(slot.in_region, HVI_REGION_INLINE);
    finish(op, slot.cookie);
}
END_TEST

START_TEST(only_the_root_of_a_broadcast_copies_in)
{
    struct hvd_session *other;
    struct hvd_options options;
    struct hvd_op *op;
    float x[2] = {1, 2};
    struct hvd_tensor t = hvd_tensor_1d(x, HVD_FLOAT32, 2);
    struct hvd_tensor shape = hvd_tensor_1d(NULL, HVD_FLOAT32, 2);
    hvd_options_init(&options);
    options.address = hvt_fake_dir(fake);
    options.rank = 1;
    options.size = 2;
    ck_assert_int_eq(hvd_open(&options, &other), HVD_OK);
    struct hvt_fake_session *second = hvt_fake_session(fake, 1);
    ck_assert_int_eq(hvd_broadcast_async(other, "w", &shape, &t, 0, NULL, &op), HVD_OK);
    struct hvi_submission slot = hvt_fake_take(second);
    ck_assert_int_eq(slot.root, 0);
    ck_assert_uint_eq(slot.kind, HVI_KIND_BROADCAST);
    float *shared = hvt_fake_memory(second, slot.out_region, slot.out_offset);
    ck_assert(shared[0] == 0);
    shared[0] = 10;
    shared[1] = 20;
    hvt_fake_done(second, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, -1), HVD_OK);
    ck_assert(x[0] == 10 && x[1] == 20);
    hvd_op_free(op);
    hvd_close(other);
}
END_TEST

START_TEST(a_full_ring_is_an_error_and_room_comes_back)
{
    static struct hvd_op *ops[HVI_SQ_SLOTS];
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 1);
    struct hvd_op *op;
    for (uint32_t i = 0; i < HVI_SQ_SLOTS; i++)
        ops[i] = submit(NULL, &t);
    ck_assert_int_eq(hvd_allreduce_async(session, NULL, &t, &t, HVD_SUM, NULL, &op),
                     HVD_ERR_RING_FULL);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "ring is full"));
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
    op = submit(NULL, &t);
    hvd_op_free(op);
    for (uint32_t i = 0; i < HVI_SQ_SLOTS; i++)
        hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
    for (uint32_t i = 0; i < HVI_SQ_SLOTS; i++) {
        ck_assert_int_eq(hvd_wait(ops[i], 0), HVD_OK);
        hvd_op_free(ops[i]);
    }
}
END_TEST

/* Seven digits at the start of a name. */
static void number(char *name, int n)
{
    for (int i = 6; i >= 0; i--, n /= 10)
        name[i] = (char)('0' + n % 10);
}

START_TEST(the_area_for_names_can_be_full_and_is_freed_with_the_ring)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 1);
    struct hvd_op *op;
    char name[1001];
    int submitted = 0;
    int rc;
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    for (;;) {
        number(name, submitted);
        rc = hvd_allreduce_async(session, name, &t, &t, HVD_SUM, NULL, &op);
        if (rc != HVD_OK)
            break;
        hvd_op_free(op);
        submitted++;
    }
    ck_assert_int_eq(rc, HVD_ERR_RING_FULL);
    ck_assert_int_eq(submitted, HVI_NAMES_BYTES / 1000);
    for (int i = 0; i < submitted; i++) {
        struct hvi_submission slot = hvt_fake_take(engine);
        char read[HVI_NAME_MAX + 1];
        hvt_fake_name(engine, &slot, read);
        ck_assert_uint_eq(slot.name_bytes, 1000);
        ck_assert_int_eq(atoi(read), i);
        hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    }
    for (int i = 0; i < 3 * submitted; i++) { /* round and round */
        number(name, 10000 + i);
        op = submit(name, &t);
        struct hvi_submission slot = hvt_fake_take(engine);
        char read[HVI_NAME_MAX + 1];
        hvt_fake_name(engine, &slot, read);
        ck_assert_str_eq(read, name);
        finish(op, slot.cookie);
    }
}
END_TEST

START_TEST(finished_ops_that_nobody_releases_are_a_limit_of_their_own)
{
    static struct hvd_op *ops[HVD_OPS_MAX];
    struct hvd_op *op;
    for (int i = 0; i < HVD_OPS_MAX; i++) {
        ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &ops[i]), HVD_OK);
        hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
        if (i % 1000 == 999)
            ck_assert_int_eq(hvd_test(ops[i]), HVD_OK);
    }
    ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &op), HVD_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "hvd_op_free"));
    hvd_op_free(ops[7]);
    struct hvd_tensor pair[2] = {hvd_tensor_1d(memory, HVD_FLOAT32, 1),
                                 hvd_tensor_1d(memory + 64, HVD_FLOAT32, 1)};
    struct hvd_op *both[2];
    ck_assert_msg(hvd_grouped_allreduce_async(session, "g", pair, pair, 2, HVD_SUM, NULL, both) ==
                      HVD_ERR_LIMIT,
                  "there is nothing to wait for");
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "4095 finished ops"));
    ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &ops[7]), HVD_OK);
    ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &op), HVD_ERR_RING_FULL);
    ck_assert_msg(hvd_barrier(session, NULL) == HVD_ERR_LIMIT, "it may never end");
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "hvd_op_free"));
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
    for (int i = 0; i < HVD_OPS_MAX; i++) {
        ck_assert_int_eq(hvd_wait(ops[i], 1000000000), HVD_OK);
        hvd_op_free(ops[i]);
    }
}
END_TEST

START_TEST(all_ops_in_flight_is_a_full_ring)
{
    struct hvd_op *op;
    for (int i = 0; i < HVD_OPS_MAX; i++) {
        ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &op), HVD_OK);
        hvt_fake_take(engine);
    }
    ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &op), HVD_ERR_RING_FULL);
}
END_TEST

static void *late_barrier(void *rc_p)
{
    *(int *)rc_p = hvd_barrier(session, "late");
    return NULL;
}

START_TEST(a_blocking_call_that_waits_for_room_ends_with_the_session)
{
    const struct timespec nap = {.tv_nsec = 20 * 1000 * 1000}; /* it tries every 50 us */
    pthread_t thread;
    struct hvd_op *op;
    int rc = HVD_OK;
    for (int i = 0; i < HVD_OPS_MAX; i++) {
        ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &op), HVD_OK);
        hvt_fake_take(engine);
    }
    ck_assert_int_eq(pthread_create(&thread, NULL, late_barrier, &rc), 0);
    nanosleep(&nap, NULL);
    hvt_fake_die(engine);
    ck_assert_int_eq(pthread_join(thread, NULL), 0);
    ck_assert_int_eq(rc, HVD_ERR_ENGINE_LOST);
}
END_TEST

START_TEST(an_abandoned_op_is_released_by_its_completion)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 1);
    for (int i = 0; i < 3 * HVD_OPS_MAX; i++) {
        hvd_op_free(submit("w", &t));
        hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
    }
}
END_TEST

START_TEST(a_released_op_is_told_from_a_live_one)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 1);
    struct hvd_op *op = submit("w", &t);
    hvd_op_free(op);
    ck_assert_int_eq(hvd_test(op), HVD_ERR_INVALID);
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_session_status(session), HVD_OK);
    ck_assert_int_eq(hvd_test(op), HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "hvd_op_free"));
}
END_TEST

START_TEST(a_null_result_pointer_is_refused)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 1);
    ck_assert_int_eq(hvd_allreduce_async(session, "w", &t, &t, HVD_SUM, NULL, NULL),
                     HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_allgather(session, "w", &t, NULL), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_event_fd(session, NULL), HVD_ERR_INVALID);
    ck_assert(hvt_fake_is_idle(engine));
}
END_TEST

START_TEST(a_bad_name_reaches_nobody)
{
    struct hvd_tensor t = hvd_tensor_1d(memory, HVD_FLOAT32, 1);
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allreduce_async(session, "", &t, &t, HVD_SUM, NULL, &op), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_allreduce_async(session, "\xff\xfe", &t, &t, HVD_SUM, NULL, &op),
                     HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "UTF-8"));
    ck_assert(hvt_fake_is_idle(engine));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client ops");
    TCase *tcase = tcase_create("ops");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, an_allreduce_fills_its_slot);
    tcase_add_test(tcase, no_op_takes_part_in_a_stream);
    tcase_add_test(tcase, a_name_travels_once_and_is_free_at_once);
    tcase_add_test(tcase, a_name_is_free_once_the_engine_is_done_though_nobody_has_looked);
    tcase_add_test(tcase, unnamed_ops_are_counted_per_kind);
    tcase_add_test(tcase, a_refused_unnamed_op_does_not_count);
    tcase_add_test(tcase, a_barrier_has_no_operands);
    tcase_add_loop_test(tcase, ordinary_memory_is_copied_in_and_out, 0,
                        (int)(sizeof counts / sizeof counts[0]));
    tcase_add_test(tcase, a_separate_input_is_not_written);
    tcase_add_test(tcase, a_failed_op_leaves_ordinary_output_alone);
    tcase_add_test(tcase, a_failed_op_leaves_shared_output_alone);
    tcase_add_test(tcase, a_failure_brings_sentence_and_culprit);
    tcase_add_test(tcase, a_sentence_that_was_overwritten_is_replaced);
    tcase_add_test(tcase, empty_tensors_are_submitted_like_others);
    tcase_add_test(tcase, only_the_root_of_a_broadcast_copies_in);
    tcase_add_test(tcase, a_full_ring_is_an_error_and_room_comes_back);
    tcase_add_test(tcase, the_area_for_names_can_be_full_and_is_freed_with_the_ring);
    tcase_add_test(tcase, finished_ops_that_nobody_releases_are_a_limit_of_their_own);
    tcase_add_test(tcase, all_ops_in_flight_is_a_full_ring);
    tcase_add_test(tcase, a_blocking_call_that_waits_for_room_ends_with_the_session);
    tcase_add_test(tcase, an_abandoned_op_is_released_by_its_completion);
    tcase_add_test(tcase, a_released_op_is_told_from_a_live_one);
    tcase_add_test(tcase, a_null_result_pointer_is_refused);
    tcase_add_test(tcase, a_bad_name_reaches_nobody);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
