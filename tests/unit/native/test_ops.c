/* SPDX-License-Identifier: Apache-2.0
 * The kernels as TensorFlow calls them, on three ranks of a real hvdd: values, shapes, memory, and what errors say. */
#include "fake_tensorflow.h"
#include "hvt_job.h"
#include "python/native/crew.h"
#include "python/native/heap.h"
#include "python/native/pool.h"
#include "tests/unit/hvt_main.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RANKS 3
#define FOR_S (60ll * 1000 * 1000 * 1000)

static struct hvt_job job;

/* ---- calls ---- */

static struct hvt_kernel *kernel_of(const char *op, const char *name, int set)
{
    const struct hvt_attr attrs[] = {{.name = "reduce_op", .number = HVD_SUM},
                                     {.name = "prescale_factor", .factor = 1},
                                     {.name = "postscale_factor", .factor = 1},
                                     {.name = "root_rank", .number = 1},
                                     {.name = "process_set_id", .number = set},
                                     {.name = "tensor_name", .text = name},
                                     {.name = NULL}};
    struct hvt_kernel *kernel = hvt_kernel_new(op, attrs);

    ck_assert_msg(kernel != NULL, "%s", hvt_tf_error());
    return kernel;
}

/* Runs a kernel with its inputs, and waits. */
static struct hvt_call *call_in_set(const char *op, const char *name, int set,
                                    TF_Tensor *const *inputs, int count)
{
    struct hvt_kernel *kernel = kernel_of(op, name, set);
    struct hvt_call *call = hvt_call_new(kernel, inputs, count);

    hvt_call_run(call);
    ck_assert(hvt_call_wait(call));
    hvt_kernel_free(kernel);
    return call;
}

static struct hvt_call *call_of(const char *op, const char *name, TF_Tensor *const *inputs,
                                int count)
{
    return call_in_set(op, name, 0, inputs, count);
}

static TF_Tensor *filled(int64_t rows, int64_t columns, float value, enum hvt_home home)
{
    TF_Tensor *tensor = hvt_tensor_new(TF_FLOAT, (int64_t[]){rows, columns}, 2, home);
    for (int64_t k = 0; k < rows * columns; k++)
        ((float *)TF_TensorData(tensor))[k] = value;
    return tensor;
}

/* An output's shape, and its rows that are not `values[row]` throughout. */
static void expect(const struct hvt_call *call, int output, int64_t rows, int64_t columns,
                   const float *values)
{
    TF_Tensor *tensor = hvt_call_output(call, output);
    const float *data;
    int wrong = 0;

    ck_assert_msg(hvt_call_code(call) == TF_OK, "%s", hvt_call_text(call));
    ck_assert_ptr_nonnull(tensor);
    ck_assert_int_eq(TF_NumDims(tensor), 2);
    ck_assert_int_eq(TF_Dim(tensor, 0), rows);
    ck_assert_int_eq(TF_Dim(tensor, 1), columns);
    data = TF_TensorData(tensor);
    for (int64_t k = 0; k < rows * columns; k++)
        wrong += data[k] != values[k / columns];
    ck_assert_int_eq(wrong, 0);
}

/* ---- the peers' part ---- */

/* Every op of `values`, in its order: rank r brings r + 1. */
static void peer_values(struct hvd_session *session, int number)
{
    static const int64_t columns[] = {2, 20000, 100000};
    int rank = hvd_rank(session);
    (void)number;

    for (int c = 0; c < 3; c++) {
        int64_t count = 6 * columns[c];
        float *data = calloc((size_t)count, sizeof(float));
        for (int64_t k = 0; k < count; k++)
            data[k] = (float)(rank + 1);
        struct hvd_tensor all = {.data = data, .dtype = HVD_FLOAT32, .ndim = 2};
        all.dims[0] = 6, all.dims[1] = columns[c];
        struct hvd_tensor rows = all;
        rows.dims[0] = rank;
        struct hvd_op *ops[8];
        hvd_allreduce_async(session, "sum", &all, &all, HVD_SUM, NULL, &ops[0]);
        hvd_wait(ops[0], FOR_S);
        for (int64_t k = 0; k < count; k++)
            data[k] = (float)(rank + 1);
        hvd_broadcast_async(session, "of one", &all, &all, 1, NULL, &ops[1]);
        hvd_wait(ops[1], FOR_S);
        for (int64_t k = 0; k < count; k++)
            data[k] = (float)(rank + 1);
        hvd_allgather_async(session, "rows", &rows, NULL, NULL, &ops[2]);
        hvd_reducescatter_async(session, "parts", &all, NULL, HVD_SUM, NULL, &ops[3]);
        hvd_alltoall_async(session, "exchange", &all, NULL, NULL, NULL, &ops[4]);
        hvd_alltoall_async(session, "uneven", &all, (int64_t[]){1, 2, 3}, NULL, NULL, &ops[5]);
        struct hvd_tensor group[2] = {all, rows};
        hvd_grouped_allgather_async(session, "group", group, NULL, 2, NULL, &ops[6]);
        hvd_wait_all(ops, 8, FOR_S);
        for (int i = 0; i < 8; i++)
            hvd_op_free(ops[i]);
        free(data);
    }
    hvd_join(session, NULL);
}

static void values_of(int64_t columns, enum hvt_home home)
{
    static const float six[6] = {6, 6, 6, 6, 6, 6}, two[6] = {2, 2, 2, 2, 2, 2};
    TF_Tensor *input = filled(6, columns, 1, home);
    struct hvt_call *call = call_of("HvdAllreduce", "sum", &input, 1);
    expect(call, 0, 6, columns, six);
    hvt_call_free(call);

    input = filled(6, columns, 1, home);
    call = call_of("HvdBroadcast", "of one", &input, 1);
    expect(call, 0, 6, columns, two);
    hvt_call_free(call);

    input = filled(2, columns, 1, home);
    call = call_of("HvdAllgather", "rows", &input, 1);
    expect(call, 0, 5, columns, (float[]){1, 1, 2, 3, 3});
    hvt_call_free(call);

    input = filled(6, columns, 1, home);
    call = call_of("HvdReducescatter", "parts", &input, 1);
    expect(call, 0, 2, columns, six);
    hvt_call_free(call);
}

static TF_Tensor *splits_of(int count, const int64_t *splits)
{
    TF_Tensor *tensor = hvt_vector_new(TF_INT64, count, HVT_ORDINARY);
    if (count)
        memcpy(TF_TensorData(tensor), splits, (size_t)count * sizeof *splits);
    return tensor;
}

static void exchanges_of(int64_t columns)
{
    TF_Tensor *inputs[2] = {filled(6, columns, 1, HVT_ORDINARY), splits_of(0, NULL)};
    struct hvt_call *call = call_of("HvdAlltoall", "exchange", inputs, 2);
    expect(call, 0, 6, columns, (float[]){1, 1, 2, 2, 3, 3});
    hvt_call_free(call);

    inputs[0] = filled(6, columns, 1, HVT_ORDINARY);
    inputs[1] = splits_of(RANKS, (int64_t[]){2, 0, 4});
    call = call_of("HvdAlltoall", "uneven", inputs, 2);
    expect(call, 0, 4, columns, (float[]){1, 1, 2, 3});
    const int32_t *received = TF_TensorData(hvt_call_output(call, 1));
    ck_assert(received[0] == 2 && received[1] == 1 && received[2] == 1);
    hvt_call_free(call);

    inputs[0] = filled(6, columns, 1, HVT_ORDINARY);
    inputs[1] = filled(0, columns, 1, HVT_ORDINARY);
    call = call_of("HvdGroupedAllgather", "group", inputs, 2);
    expect(call, 1, 3, columns, (float[]){2, 3, 3});
    hvt_call_free(call);
}

START_TEST(every_collective_gives_what_the_ranks_bring)
{
    static const int64_t columns[] = {2, 20000, 100000};

    hvt_job_start(&job);
    hvt_job_open(&job, RANKS, "values", 1);
    for (int c = 0; c < 3; c++) {
        values_of(columns[c], _i ? HVT_HEAP : HVT_ORDINARY);
        exchanges_of(columns[c]);
    }
    struct hvt_call *call = call_of("HvdJoin", "", NULL, 0);
    ck_assert_int_eq(hvt_call_code(call), TF_OK);
    ck_assert_int_lt(*(int32_t *)TF_TensorData(hvt_call_output(call, 0)), RANKS);
    hvt_call_free(call);
    hvt_job_close(&job);
    hvt_job_join(&job);
    ck_assert_int_eq(hvt_tf_tensors(), 0);
    ck_assert_uint_eq(hvt_tf_spoiled(), 0);
    hvt_job_stop(&job);
}
END_TEST

/* ---- types ---- */

#define COUNT 5

static const struct {
    TF_DataType theirs;
    enum hvd_dtype ours;
    size_t bytes;
} types[] = {
    {TF_DOUBLE, HVD_FLOAT64, 8}, {TF_HALF, HVD_FLOAT16, 2},  {TF_BFLOAT16, HVD_BFLOAT16, 2},
    {TF_INT32, HVD_INT32, 4},    {TF_INT64, HVD_INT64, 8},   {TF_UINT8, HVD_UINT8, 1},
    {TF_INT8, HVD_INT8, 1},      {TF_UINT16, HVD_UINT16, 2}, {TF_INT16, HVD_INT16, 2},
    {TF_BOOL, HVD_BOOL, 1},      {TF_FLOAT, HVD_FLOAT32, 4}};
#define TYPES (sizeof types / sizeof types[0])

/* Each of the types from rank 1: bytes of 1. A rank that takes one for another disagrees. */
static void peer_types(struct hvd_session *session, int number)
{
    unsigned char data[COUNT * 8];
    struct hvd_op *op;
    (void)number;

    for (size_t i = 0; i < TYPES; i++) {
        struct hvd_tensor tensor = {.data = data, .dtype = types[i].ours, .ndim = 1};
        tensor.dims[0] = COUNT;
        memset(data, 1, sizeof data);
        hvd_broadcast_async(session, "type", &tensor, &tensor, 1, NULL, &op);
        hvd_wait(op, FOR_S);
        hvd_op_free(op);
    }
}

START_TEST(every_type_is_the_peers)
{
    hvt_job_start(&job);
    hvt_job_open(&job, RANKS, "types", 1);
    for (size_t i = 0; i < TYPES; i++) {
        TF_Tensor *input = hvt_vector_new(types[i].theirs, COUNT, HVT_ORDINARY);
        struct hvt_call *call = call_of("HvdBroadcast", "type", &input, 1);
        ck_assert_msg(hvt_call_code(call) == TF_OK, "%s", hvt_call_text(call));
        const unsigned char *data = TF_TensorData(hvt_call_output(call, 0));
        for (size_t k = 0; k < COUNT * types[i].bytes; k++)
            ck_assert_uint_eq(data[k], 1);
        hvt_call_free(call);
    }
    hvt_job_close(&job);
    hvt_job_join(&job);
    hvt_job_stop(&job);
}
END_TEST

/* ---- what a rank knows by itself ---- */

static int asked(const char *op, int set, TF_Code code)
{
    struct hvt_call *call = call_in_set(op, NULL, set, NULL, 0);
    int answer = -1;

    ck_assert_msg(hvt_call_code(call) == code, "%s: %s", op, hvt_call_text(call));
    if (code == TF_OK)
        answer = *(int32_t *)TF_TensorData(hvt_call_output(call, 0));
    hvt_call_free(call);
    return answer;
}

START_TEST(questions_are_answered_while_there_is_a_session)
{
    static const char *const ops[] = {"HvdRank", "HvdSize", "HvdLocalRank", "HvdLocalSize",
                                      "HvdProcessSetIncluded"};
    static const int answers[] = {0, 1, 0, 1, 1};

    ck_assert_int_eq(hvt_tf_op_count(), 14);
    for (int i = 0; i < 5; i++)
        asked(ops[i], 0, TF_FAILED_PRECONDITION);
    hvt_job_start(&job);
    hvt_job_open(&job, 1, NULL, 2);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(asked(ops[i], 0, TF_OK), answers[i]);
    asked("HvdSize", 77, TF_INVALID_ARGUMENT);
    asked("HvdProcessSetIncluded", 77, TF_INVALID_ARGUMENT);
    hvt_job_close(&job);
    asked("HvdRank", 0, TF_FAILED_PRECONDITION);
    hvt_job_stop(&job);
}
END_TEST

/* ---- errors ---- */

static void refused(struct hvt_call *call, TF_Code code, const char *text)
{
    ck_assert_msg(hvt_call_code(call) == code, "%d %s", hvt_call_code(call), hvt_call_text(call));
    ck_assert_msg(strstr(hvt_call_text(call), text) != NULL, "%s", hvt_call_text(call));
    ck_assert_ptr_null(hvt_call_output(call, 0));
    hvt_call_free(call);
}

START_TEST(wrong_arguments_are_told_with_the_op_and_its_name)
{
    TF_Tensor *inputs[2] = {filled(4, 1, 1, HVT_ORDINARY), NULL};

    refused(call_of("HvdAllreduce", "early", inputs, 1), TF_FAILED_PRECONDITION,
            "HorovodAllreduce 'early': Horovod has not been initialized");
    hvt_job_start(&job);
    hvt_job_open(&job, 1, NULL, 3);
    inputs[0] = hvt_tensor_new(TF_FLOAT, NULL, 0, HVT_ORDINARY);
    refused(call_of("HvdAllgather", "dot", inputs, 1), TF_INVALID_ARGUMENT,
            "HorovodAllgather 'dot': a scalar has no rows");
    inputs[0] = filled(4, 1, 1, HVT_ORDINARY);
    inputs[1] = filled(2, 2, 1, HVT_ORDINARY);
    refused(call_of("HvdAlltoall", "flat", inputs, 2), TF_INVALID_ARGUMENT,
            "expects a 1D splits tensor");
    inputs[0] = filled(4, 1, 1, HVT_ORDINARY);
    inputs[1] = splits_of(2, (int64_t[]){1, 1});
    refused(call_of("HvdAlltoall", "long", inputs, 2), TF_INVALID_ARGUMENT,
            "Number of entries in splits does not equal number of workers.");
    inputs[0] = filled(4, 1, 1, HVT_ORDINARY);
    refused(call_of("HvdBroadcast", NULL, inputs, 1), TF_INVALID_ARGUMENT,
            "HorovodBroadcast (unnamed, node HvdBroadcast): ");
    inputs[0] = filled(4, 1, 1, HVT_ORDINARY);
    refused(call_in_set("HvdAllreduce", "elsewhere", 9, inputs, 1), TF_INVALID_ARGUMENT, "set");
    hvt_job_close(&job);
    ck_assert_int_eq(hvt_tf_tensors(), 0);
    ck_assert_uint_eq(hvt_tf_spoiled(), 0);
    hvt_job_stop(&job);
}
END_TEST

START_TEST(a_kernel_without_its_attributes_is_refused)
{
    static const char *const ops[] = {"HvdAllreduce", "HvdBroadcast", "HvdJoin", "HvdSize"};

    for (int i = 0; i < 4; i++) {
        ck_assert_ptr_null(hvt_kernel_new(ops[i], NULL));
        ck_assert_ptr_nonnull(strstr(hvt_tf_error(), "process_set_id"));
    }
}
END_TEST

static void peer_mismatch(struct hvd_session *session, int number)
{
    float data[5] = {0};
    struct hvd_tensor tensor = hvd_tensor_1d(data, HVD_FLOAT32, 5);
    struct hvd_op *op;
    (void)number;

    hvd_allreduce_async(session, "grad", &tensor, &tensor, HVD_SUM, NULL, &op);
    hvd_wait(op, FOR_S);
    hvd_op_free(op);
}

static void shout(char *text, size_t capacity)
{
    snprintf(text, capacity, "rephrased");
}

START_TEST(ranks_that_disagree_fail_and_the_sentence_may_be_rephrased)
{
    TF_Tensor *input = filled(4, 1, 1, HVT_ORDINARY);

    hvd_tf_rephrase(shout);
    hvt_job_start(&job);
    hvt_job_open(&job, 2, "mismatch", 4);
    refused(call_of("HvdAllreduce", "grad", &input, 1), TF_FAILED_PRECONDITION,
            "HorovodAllreduce 'grad': rephrased");
    hvt_job_close(&job);
    hvt_job_join(&job);
    ck_assert_int_eq(hvt_tf_tensors(), 0);
    ck_assert_uint_eq(hvt_tf_spoiled(), 0);
    hvt_job_stop(&job);
}
END_TEST

/* ---- memory ---- */

static void *place_of_sum(TF_Tensor *input, bool is_wanted_later)
{
    TF_Tensor *kept = is_wanted_later ? hvt_tensor_ref(input) : NULL;
    struct hvt_call *call = call_of("HvdAllreduce", "place", &input, 1);
    void *place = TF_TensorData(hvt_call_output(call, 0));

    ck_assert_int_eq(hvt_call_code(call), TF_OK);
    hvt_call_free(call);
    if (kept)
        TF_DeleteTensor(kept);
    return place;
}

START_TEST(a_sum_takes_the_place_of_an_input_that_nobody_else_has)
{
    TF_Tensor *input;
    void *data;

    hvt_job_start(&job);
    hvt_job_open(&job, 1, NULL, 5);
    for (int i = 0; i < 2; i++) { /* the session is told of a slab by the next op */
        input = filled(512, 1024, 1, HVT_HEAP);
        data = TF_TensorData(input);
        ck_assert(place_of_sum(hvt_tensor_ref(input), false) != data); /* the test has it */
        ck_assert(place_of_sum(input, false) == data);
    }
    for (int64_t rows = 4; rows <= 512; rows *= 128) {
        for (enum hvt_home home = HVT_ORDINARY; home <= HVT_HEAP; home++) {
            input = filled(rows, 1024, 1, home);
            data = TF_TensorData(input);
            ck_assert(place_of_sum(input, true) != data);
            input = filled(rows, 1024, 1, home);
            data = TF_TensorData(input);
            ck_assert(place_of_sum(input, false) == data);
        }
    }
    hvt_job_close(&job);
    ck_assert_int_eq(hvt_tf_tensors(), 0);
    ck_assert_uint_eq(hvt_tf_spoiled(), 0);
    hvt_job_stop(&job);
}
END_TEST

#define SUM_CALLS 6

/* Sums of all ranks, and what rank 1 has. Rank r brings r + 1. */
static void peer_sums(struct hvd_session *session, int number)
{
    static float data[2][512 * 1024];
    struct hvd_tensor tensors[2];
    struct hvd_op *ops[2];
    (void)number;

    for (int i = 0; i < SUM_CALLS; i++) {
        for (int t = 0; t < 2; t++) {
            tensors[t] = (struct hvd_tensor){.data = data[t], .dtype = HVD_FLOAT32, .ndim = 2};
            tensors[t].dims[0] = 512, tensors[t].dims[1] = 1024;
            for (int64_t k = 0; k < 512 * 1024; k++)
                data[t][k] = (float)(hvd_rank(session) + 1);
        }
        if (i == SUM_CALLS - 1)
            hvd_broadcast_async(session, "one", tensors, tensors, 1, NULL, ops);
        else
            hvd_grouped_allreduce_async(session, "sums", tensors, tensors, 2, HVD_SUM, NULL, ops);
        for (int t = 0; t < (i == SUM_CALLS - 1 ? 1 : 2); t++) {
            hvd_wait(ops[t], FOR_S);
            hvd_op_free(ops[t]);
        }
    }
}

/* Calls a kernel with two inputs; whether each sum has its input's place. `kept` stays the test's. */
static void sum_two(struct hvt_kernel *kernel, TF_Tensor *kept, bool in_place_p[2])
{
    static const float six[512] = {[0 ... 511] = 6};
    TF_Tensor *inputs[2] = {filled(512, 1024, 1, HVT_ORDINARY),
                            kept ? hvt_tensor_ref(kept) : filled(512, 1024, 1, HVT_ORDINARY)};
    const void *data[2] = {TF_TensorData(inputs[0]), TF_TensorData(inputs[1])};
    struct hvt_call *call = hvt_call_new(kernel, inputs, 2);

    hvt_call_run(call);
    ck_assert(hvt_call_wait(call));
    for (int i = 0; i < 2; i++) {
        expect(call, i, 512, 1024, six);
        in_place_p[i] = TF_TensorData(hvt_call_output(call, i)) == data[i];
    }
    hvt_call_free(call);
}

/* In memory of the rank's own. A kernel that has met such an input does not ask TensorFlow again. */
START_TEST(an_input_that_is_wanted_elsewhere_stays_as_it_is)
{
    TF_Tensor *kept = filled(512, 1024, 1, HVT_ORDINARY), *input;
    bool in_place[2];

    hvt_job_start(&job);
    hvt_job_open(&job, RANKS, "sums", 8);
    struct hvt_kernel *kernel = kernel_of("HvdGroupedAllreduce", "sums", 0);
    for (int i = 0; i < 2; i++) {
        sum_two(kernel, NULL, in_place);
        ck_assert(in_place[0] && in_place[1]);
    }
    sum_two(kernel, kept, in_place);
    ck_assert(in_place[0] && !in_place[1]);
    for (int i = 0; i < 2; i++) {
        sum_two(kernel, i ? kept : NULL, in_place);
        ck_assert(!in_place[0] && !in_place[1]);
    }
    for (int64_t k = 0; k < 512 * 1024; k++)
        ck_assert(((float *)TF_TensorData(kept))[k] == 1);
    TF_DeleteTensor(kept);
    hvt_kernel_free(kernel);
    input =
        filled(512, 1024, 1, HVT_ORDINARY); /* a broadcast of ordinary memory is never in place */
    const void *data = TF_TensorData(input);
    struct hvt_call *call = call_of("HvdBroadcast", "one", &input, 1);
    ck_assert_msg(hvt_call_code(call) == TF_OK, "%s", hvt_call_text(call));
    ck_assert(TF_TensorData(hvt_call_output(call, 0)) != data);
    hvt_call_free(call);
    hvt_job_close(&job);
    hvt_job_join(&job);
    ck_assert_int_eq(hvt_tf_tensors(), 0);
    ck_assert_uint_eq(hvt_tf_spoiled(), 0);
    hvt_job_stop(&job);
}
END_TEST

static atomic_int told;

static void tell(void)
{
    atomic_fetch_add(&told, 1);
}

static void reduce(int64_t rows, enum hvt_home home, int times)
{
    for (int i = 0; i < times; i++) {
        TF_Tensor *input = filled(rows, 1024, 1, home);
        place_of_sum(input, false);
    }
}

START_TEST(large_gradients_in_ordinary_memory_are_told_of_once)
{
    hvd_tf_tell_of_copies(tell);
    hvt_job_start(&job);
    hvt_job_open(&job, 1, NULL, 6);
    reduce(63, HVT_ORDINARY, HEAP_COPIES_TOLD * 2); /* 252 KiB */
    reduce(64, HVT_HEAP, HEAP_COPIES_TOLD);
    reduce(64, HVT_ORDINARY, HEAP_COPIES_TOLD - 1);
    ck_assert_int_eq(atomic_load(&told), 0);
    reduce(64, HVT_ORDINARY, 1);
    ck_assert_int_eq(atomic_load(&told), 1);
    reduce(64, HVT_ORDINARY, HEAP_COPIES_TOLD);
    ck_assert_int_eq(atomic_load(&told), 1);
    hvt_job_close(&job);
    hvt_job_stop(&job);
}
END_TEST

/* ---- callbacks ---- */

START_TEST(a_kernel_waits_where_its_callback_cannot_be_kept)
{
    hvt_tf_spoil_callbacks();
    hvt_job_start(&job);
    hvt_job_open(&job, RANKS, "values", 7);
    values_of(2, HVT_ORDINARY);
    hvt_job_close(&job);
    hvt_job_join(&job);
    ck_assert_int_eq(hvt_tf_tensors(), 0);
    ck_assert_uint_eq(hvt_tf_spoiled(), 0);
    hvt_job_stop(&job);
}
END_TEST

/* ---- shapes ---- */

static void shape_is(const struct hvt_shape *shape, int ndim, int64_t first, int64_t second)
{
    ck_assert_int_eq(shape->ndim, ndim);
    if (ndim > 0)
        ck_assert_int_eq(shape->dims[0], first);
    if (ndim > 1)
        ck_assert_int_eq(shape->dims[1], second);
}

START_TEST(shapes_are_those_of_the_ops)
{
    static const char *const of_rows[] = {"HvdAllgather", "HvdReducescatter", "HvdAlltoall"};
    static const char *const scalars[] = {"HvdJoin", "HvdSize", "HvdRank", "HvdLocalSize"};
    const struct hvt_shape given[2] = {{2, {4, 7}}, {1, {3}}}, unknown = {.ndim = HVT_UNKNOWN},
                           scalar = {.ndim = 0};
    struct hvt_shape shapes[HVT_INPUTS_MAX];

    ck_assert_int_eq(hvt_infer("HvdGroupedAllreduce", given, 2, shapes), TF_OK);
    shape_is(&shapes[0], 2, 4, 7);
    shape_is(&shapes[1], 1, 3, 0);
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(hvt_infer(of_rows[i], given, i == 2 ? 2 : 1, shapes), TF_OK);
        shape_is(&shapes[0], 2, -1, 7);
        ck_assert_int_eq(hvt_infer(of_rows[i], &unknown, 1, shapes), TF_OK);
        shape_is(&shapes[0], HVT_UNKNOWN, 0, 0);
    }
    ck_assert_int_eq(hvt_infer("HvdAlltoall", given, 2, shapes), TF_OK);
    shape_is(&shapes[1], 1, -1, 0);
    ck_assert_int_eq(hvt_infer("HvdAllgather", &scalar, 1, shapes), TF_INVALID_ARGUMENT);
    for (int i = 0; i < 4; i++) {
        ck_assert_int_eq(hvt_infer(scalars[i], NULL, 0, shapes), TF_OK);
        shape_is(&shapes[0], 0, 0, 0);
    }
}
END_TEST

int main(int argc, char **argv)
{
    static const struct hvt_script scripts[] = {{"values", peer_values},
                                                {"mismatch", peer_mismatch},
                                                {"types", peer_types},
                                                {"sums", peer_sums}};

    hvt_job_peer(argc, argv, scripts, 4);
    Suite *suite = suite_create("native/ops");
    TCase *tcase = tcase_create("ops");
    tcase_set_timeout(tcase, 120);
    tcase_add_loop_test(tcase, every_collective_gives_what_the_ranks_bring, 0, 2);
    tcase_add_test(tcase, every_type_is_the_peers);
    tcase_add_test(tcase, questions_are_answered_while_there_is_a_session);
    tcase_add_test(tcase, wrong_arguments_are_told_with_the_op_and_its_name);
    tcase_add_test(tcase, a_kernel_without_its_attributes_is_refused);
    tcase_add_test(tcase, ranks_that_disagree_fail_and_the_sentence_may_be_rephrased);
    tcase_add_test(tcase, a_sum_takes_the_place_of_an_input_that_nobody_else_has);
    tcase_add_test(tcase, an_input_that_is_wanted_elsewhere_stays_as_it_is);
    tcase_add_test(tcase, large_gradients_in_ordinary_memory_are_told_of_once);
    tcase_add_test(tcase, a_kernel_waits_where_its_callback_cannot_be_kept);
    tcase_add_test(tcase, shapes_are_those_of_the_ops);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
