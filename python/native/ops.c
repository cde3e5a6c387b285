/* SPDX-License-Identifier: Apache-2.0
 * The ops that hvd adds to TensorFlow, and their kernels. python/hvd/tensorflow/_library.py loads this library
 * by tf.load_op_library.
 *
 * Ops are stateful: two of them are never merged, and none is evaluated while a graph is optimized.
 * Kernels are asynchronous: they hold no thread of TensorFlow's while other ranks are late, so ranks may
 * start their ops in any order on any number of threads. They exist for the CPU; on other devices
 * TensorFlow moves the tensors. */
#include "python/native/crew.h"
#include "python/native/heap.h"
#include "python/native/pool.h"
#include "python/native/slab.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALL_TYPES "{uint8, int8, uint16, int16, int32, int64, bool, half, bfloat16, float, double}"

/* ---- kernels: from attributes and inputs to a flight ---- */

static void destroy(void *kernel)
{
    struct flight_plan *plan = kernel;
    if (!plan)
        return;
    free(plan->name);
    free(plan->title);
    free(plan);
}

/* An attribute's text; NULL: empty, or not to be had. */
static char *attr_text(TF_OpKernelConstruction *construction, const char *name, TF_Status *status)
{
    int32_t list_size, bytes;
    TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &bytes, status);
    if (TF_GetCode(status) != TF_OK || bytes <= 0)
        return NULL;
    char *text = calloc((size_t)bytes + 1, 1);
    if (text)
        TF_OpKernelConstruction_GetAttrString(construction, name, text, (size_t)bytes, status);
    else
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "out of memory");
    return text;
}

static void read_int(TF_OpKernelConstruction *construction, const char *name, int *value_p,
                     TF_Status *status)
{
    int32_t value = 0;
    if (TF_GetCode(status) == TF_OK)
        TF_OpKernelConstruction_GetAttrInt32(construction, name, &value, status);
    *value_p = value;
}

static void read_factor(TF_OpKernelConstruction *construction, const char *name, double *value_p,
                        TF_Status *status)
{
    float value = 1.0f;
    if (TF_GetCode(status) == TF_OK)
        TF_OpKernelConstruction_GetAttrFloat(construction, name, &value, status);
    *value_p = (double)value;
}

/* "HorovodAllreduce grads/dense": what errors begin with. */
static char *title_of(TF_OpKernelConstruction *construction, const char *kind, const char *name)
{
    char *title = NULL;
    TF_StringView node = TF_OpKernelConstruction_GetName(construction);
    int rc =
        name ? asprintf(&title, "Horovod%s '%s'", kind, name)
             : asprintf(&title, "Horovod%s (unnamed, node %.*s)", kind, (int)node.len, node.data);
    return rc < 0 ? NULL : title;
}

static void *create(TF_OpKernelConstruction *construction, enum flight_kind kind, bool grouped,
                    const char *title)
{
    TF_Status *status = TF_NewStatus();
    struct flight_plan *plan = calloc(1, sizeof(*plan));
    int reduce_op = HVD_SUM;
    if (!plan) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "out of memory");
    } else {
        plan->kind = kind;
        plan->grouped = grouped;
        hvd_op_options_init(&plan->options);
        read_int(construction, "process_set_id", &plan->options.process_set, status);
        if (kind == FLIGHT_ALLREDUCE || kind == FLIGHT_REDUCESCATTER) {
            read_int(construction, "reduce_op", &reduce_op, status);
            read_factor(construction, "prescale_factor", &plan->options.prescale_factor, status);
            read_factor(construction, "postscale_factor", &plan->options.postscale_factor, status);
        }
        plan->reduce_op = (enum hvd_reduce_op)reduce_op;
        if (kind == FLIGHT_BROADCAST)
            read_int(construction, "root_rank", &plan->root, status);
        if (kind != FLIGHT_JOIN && TF_GetCode(status) == TF_OK)
            plan->name = attr_text(construction, "tensor_name", status);
        plan->title = title_of(construction, title, plan->name);
        if (!plan->title)
            TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "out of memory");
    }
    if (TF_GetCode(status) != TF_OK) {
        TF_OpKernelConstruction_Failure(construction, status);
        destroy(plan);
        plan = NULL;
    }
    TF_DeleteStatus(status);
    return plan;
}

static int read_dims(const TF_Tensor *tensor, int64_t dims[TENSORFLOW_DIMS_MAX])
{
    int ndim = TF_NumDims(tensor);
    for (int i = 0; i < ndim; i++)
        dims[i] = TF_Dim(tensor, i);
    return ndim;
}

static void give_back(void *data, size_t bytes, void *unused)
{
    (void)unused;
    pool_give(data, bytes);
}

/* An output in memory that the engine can write to; NULL: there is none. */
static TF_Tensor *shared_output(TF_OpKernelContext *context, int i, TF_DataType dtype,
                                const int64_t *dims, int ndim, size_t bytes, TF_Status *status)
{
    void *data = bytes >= POOL_BYTES_MIN ? pool_take(bytes) : NULL;
    TF_Tensor *out = data ? TF_NewTensor(dtype, dims, ndim, data, bytes, give_back, NULL) : NULL;
    if (out)
        TF_SetOutput(context, i, out, status);
    else if (data)
        pool_give(data, bytes);
    return out;
}

/* Whether the result of input `in` goes to the pool at once, without a try to put it in the input's place.
 *
 * In memory that is shared already the engine writes as it does in the pool, so that is always tried. In memory of the
 * rank's own an allreduce tries it: the kernel copies the sum there, but TensorFlow then owns the memory of the sum and an
 * optimizer overwrites it, where for one in the pool it takes a third piece of memory. If the input has other users the
 * copy would be for nothing, and they are a matter of the graph: a kernel that has met them does not try again. */
static bool goes_to_pool(const struct flight_plan *plan, const TF_Tensor *in)
{
    if (slab_is_shared_heap(TF_TensorData(in)))
        return false;
    return plan->kind != FLIGHT_ALLREDUCE ||
           atomic_load_explicit(&plan->uses_pool, memory_order_relaxed);
}

/* Output `i` has the shape of input `i`, and its memory where TensorFlow says that nobody else uses that. The shape is
 * read first: as long as we refer to the input, somebody else uses it. */
static void take_pair(TF_OpKernelContext *context, struct flight_plan *plan, int i,
                      struct flight_part *part, TF_Status *status)
{
    int64_t dims[TENSORFLOW_DIMS_MAX];
    TF_Tensor *in = NULL;
    TF_GetInput(context, i, &in, status);
    if (TF_GetCode(status) != TF_OK)
        return;
    int ndim = read_dims(in, dims);
    size_t bytes = TF_TensorByteSize(in);
    if (plan->kind == FLIGHT_ALLREDUCE)
        heap_note_gradient(TF_TensorData(in), bytes);
    if (goes_to_pool(plan, in))
        part->out = shared_output(context, i, TF_TensorType(in), dims, ndim, bytes, status);
    TF_DeleteTensor(in);
    if (!part->out) {
        int forwarded = -1;
        part->out =
            TF_ForwardInputOrAllocateOutput(context, &i, 1, i, dims, ndim, &forwarded, status);
        if (forwarded < 0 && bytes >= POOL_BYTES_MIN)
            atomic_store_explicit(&plan->uses_pool, true, memory_order_relaxed);
    }
    if (TF_GetCode(status) == TF_OK)
        TF_GetInput(context, i, &part->in, status);
}

static void take_input(TF_OpKernelContext *context, int i, struct flight_part *part,
                       TF_Status *status)
{
    TF_GetInput(context, i, &part->in, status);
    if (TF_GetCode(status) == TF_OK && TF_NumDims(part->in) == 0)
        TF_SetStatus(status, TF_INVALID_ARGUMENT,
                     "a scalar has no rows; give it a first dimension with tf.reshape(t, [1])");
}

/* The library copies one entry per member, so there must be as many. Without a session the submission says
 * what is wrong. */
static bool splits_fit(const struct flight_plan *plan, int64_t count)
{
    struct hvd_session *session = crew_enter();
    if (!session)
        return true;
    int members = hvd_process_set_size(session, plan->options.process_set);
    crew_leave();
    return members < 0 || count == members;
}

/* Rows to send. An empty vector means equal parts. */
static void take_splits(TF_OpKernelContext *context, const struct flight_plan *plan,
                        struct flight *flight, TF_Status *status)
{
    TF_Tensor *tensor = NULL;
    TF_GetInput(context, 1, &tensor, status);
    if (TF_GetCode(status) != TF_OK)
        return;
    int64_t count = TF_NumDims(tensor) == 1 ? TF_Dim(tensor, 0) : -1;
    const void *given = TF_TensorData(tensor);
    bool wide = TF_TensorType(tensor) == TF_INT64;
    if (count < 0)
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "alltoall expects a 1D splits tensor");
    else if (count > 0 && !splits_fit(plan, count))
        TF_SetStatus(status, TF_INVALID_ARGUMENT,
                     "Number of entries in splits does not equal number of workers.");
    else if (count > 0)
        flight->splits = calloc((size_t)count, sizeof(*flight->splits));
    if (TF_GetCode(status) == TF_OK && count > 0 && !flight->splits)
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "out of memory");
    for (int64_t i = 0; flight->splits && i < count; i++)
        flight->splits[i] = wide ? ((const int64_t *)given)[i] : ((const int32_t *)given)[i];
    TF_DeleteTensor(tensor);
}

static void take_tensors(TF_OpKernelContext *context, struct flight_plan *plan,
                         struct flight *flight, int count, TF_Status *status)
{
    bool keeps_shape = plan->kind == FLIGHT_ALLREDUCE || plan->kind == FLIGHT_BROADCAST;
    struct flight_part *parts = flight->parts;
    for (int i = 0; i < count && TF_GetCode(status) == TF_OK; i++) {
        if (keeps_shape)
            take_pair(context, plan, i, &parts[i], status);
        else
            take_input(context, i, &parts[i], status);
    }
}

static void compute(void *kernel, TF_OpKernelContext *context, TF_AsyncOpKernelDoneCallback *done)
{
    struct flight_plan *plan = kernel;
    TF_Status *status = TF_NewStatus();
    int count = plan->kind == FLIGHT_JOIN ? 0 : plan->grouped ? TF_NumInputs(context) : 1;
    struct flight *flight = flight_new(plan, context, done, count);
    if (!flight) {
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "out of memory");
        TF_OpKernelContext_Failure(context, status);
        TF_RunAsyncOpKernelDoneCallback(done);
        TF_DeleteStatus(status);
        return;
    }
    crew_share();
    take_tensors(context, plan, flight, count, status);
    if (plan->kind == FLIGHT_ALLTOALL && TF_GetCode(status) == TF_OK)
        take_splits(context, plan, flight, status);
    if (TF_GetCode(status) == TF_OK)
        crew_start(flight);
    else
        flight_fail(flight, TF_GetCode(status), TF_Message(status));
    TF_DeleteStatus(status);
}

/* ---- what a rank knows by itself, evaluated when the graph runs ---- */

static void put_int(TF_OpKernelContext *context, int value)
{
    TF_Status *status = TF_NewStatus();
    TF_Tensor *out = TF_AllocateOutput(context, 0, TF_INT32, NULL, 0, sizeof(int32_t), status);
    if (TF_GetCode(status) == TF_OK) {
        *(int32_t *)TF_TensorData(out) = value;
        TF_DeleteTensor(out);
    } else {
        TF_OpKernelContext_Failure(context, status);
    }
    TF_DeleteStatus(status);
}

static void fail(TF_OpKernelContext *context, TF_Code code, const char *text)
{
    TF_Status *status = TF_NewStatus();
    TF_SetStatus(status, code, text);
    TF_OpKernelContext_Failure(context, status);
    TF_DeleteStatus(status);
}

static void tell(TF_OpKernelContext *context, int (*question)(const struct hvd_session *session))
{
    struct hvd_session *session = crew_enter();
    if (!session) {
        fail(context, TF_FAILED_PRECONDITION, CREW_NOT_OPEN);
        return;
    }
    int answer = question(session);
    crew_leave();
    put_int(context, answer);
}

static void tell_of_set(void *kernel, TF_OpKernelContext *context,
                        int (*question)(struct hvd_session *session, int id))
{
    const int *id = kernel;
    struct hvd_session *session = crew_enter();
    if (!session) {
        fail(context, TF_FAILED_PRECONDITION, CREW_NOT_OPEN);
        return;
    }
    int answer = question(session, *id);
    crew_leave();
    if (answer >= 0)
        put_int(context, answer);
    else
        fail(context, TF_INVALID_ARGUMENT, hvd_last_error());
}

static int is_included(struct hvd_session *session, int id)
{
    int size = hvd_process_set_size(session, id);
    return size < 0 ? size : hvd_process_set_rank(session, id) >= 0;
}

static void *create_of_set(TF_OpKernelConstruction *construction)
{
    TF_Status *status = TF_NewStatus();
    int *id = calloc(1, sizeof(*id));
    if (id)
        read_int(construction, "process_set_id", id, status);
    else
        TF_SetStatus(status, TF_RESOURCE_EXHAUSTED, "out of memory");
    if (TF_GetCode(status) != TF_OK)
        TF_OpKernelConstruction_Failure(construction, status);
    TF_DeleteStatus(status);
    return id;
}

static void compute_size(void *kernel, TF_OpKernelContext *context)
{
    tell_of_set(kernel, context, hvd_process_set_size);
}

static void compute_included(void *kernel, TF_OpKernelContext *context)
{
    tell_of_set(kernel, context, is_included);
}

static void compute_rank(void *kernel, TF_OpKernelContext *context)
{
    (void)kernel;
    tell(context, hvd_rank);
}

static void compute_local_rank(void *kernel, TF_OpKernelContext *context)
{
    (void)kernel;
    tell(context, hvd_local_rank);
}

static void compute_local_size(void *kernel, TF_OpKernelContext *context)
{
    (void)kernel;
    tell(context, hvd_local_size);
}

/* ---- shapes, for graphs ---- */

static void shapes_kept(TF_ShapeInferenceContext *context, TF_Status *status)
{
    int64_t count = TF_ShapeInferenceContextNumInputs(context);
    for (int i = 0; i < count && TF_GetCode(status) == TF_OK; i++) {
        TF_ShapeHandle *shape = TF_NewShapeHandle();
        TF_ShapeInferenceContextGetInput(context, i, shape, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextSetOutput(context, i, shape, status);
        TF_DeleteShapeHandle(shape);
    }
}

/* Output `i` is input `i` with another number of rows. An input of unknown rank tells nothing. */
static void rows_differ(TF_ShapeInferenceContext *context, int i, TF_Status *status)
{
    TF_ShapeHandle *shape = TF_NewShapeHandle(), *rest = TF_NewShapeHandle();
    TF_ShapeHandle *rows =
        TF_ShapeInferenceContextVectorFromSize(context, SIZE_MAX); /* -1: unknown */
    TF_ShapeInferenceContextGetInput(context, i, shape, status);
    if (TF_GetCode(status) == TF_OK && TF_ShapeInferenceContextRankKnown(context, shape)) {
        TF_ShapeInferenceContextWithRankAtLeast(context, shape, 1, shape, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextSubshape(context, shape, 1, INT64_MAX, rest, status);
        if (TF_GetCode(status) == TF_OK)
            TF_ShapeInferenceContextConcatenateShapes(context, rows, rest, shape, status);
    }
    if (TF_GetCode(status) == TF_OK)
        TF_ShapeInferenceContextSetOutput(context, i, shape, status);
    TF_DeleteShapeHandle(rows);
    TF_DeleteShapeHandle(rest);
    TF_DeleteShapeHandle(shape);
}

static void shapes_of_rows(TF_ShapeInferenceContext *context, TF_Status *status)
{
    int64_t count = TF_ShapeInferenceContextNumInputs(context);
    for (int i = 0; i < count && TF_GetCode(status) == TF_OK; i++)
        rows_differ(context, i, status);
}

static void shapes_of_alltoall(TF_ShapeInferenceContext *context, TF_Status *status)
{
    rows_differ(context, 0, status);
    TF_ShapeHandle *rows = TF_ShapeInferenceContextVectorFromSize(context, SIZE_MAX);
    if (TF_GetCode(status) == TF_OK)
        TF_ShapeInferenceContextSetOutput(context, 1, rows, status);
    TF_DeleteShapeHandle(rows);
}

static void shape_of_scalar(TF_ShapeInferenceContext *context, TF_Status *status)
{
    TF_ShapeHandle *scalar = TF_ShapeInferenceContextScalar(context);
    TF_ShapeInferenceContextSetOutput(context, 0, scalar, status);
    TF_DeleteShapeHandle(scalar);
}

/* ---- registration ---- */

#define CREATE(function, kind, grouped, title)                                                     \
    static void *function(TF_OpKernelConstruction *construction)                                   \
    {                                                                                              \
        return create(construction, kind, grouped, title);                                         \
    }
CREATE(create_allreduce, FLIGHT_ALLREDUCE, false, "Allreduce")
CREATE(create_grouped_allreduce, FLIGHT_ALLREDUCE, true, "GroupedAllreduce")
CREATE(create_allgather, FLIGHT_ALLGATHER, false, "Allgather")
CREATE(create_grouped_allgather, FLIGHT_ALLGATHER, true, "GroupedAllgather")
CREATE(create_broadcast, FLIGHT_BROADCAST, false, "Broadcast")
CREATE(create_alltoall, FLIGHT_ALLTOALL, false, "Alltoall")
CREATE(create_reducescatter, FLIGHT_REDUCESCATTER, false, "Reducescatter")
CREATE(create_grouped_reducescatter, FLIGHT_REDUCESCATTER, true, "GroupedReducescatter")
CREATE(create_join, FLIGHT_JOIN, false, "Join")

#define TYPE    "T: " ALL_TYPES
#define TYPES   "T: list(" ALL_TYPES ") >= 1"
#define REDUCES "reduce_op: int", "prescale_factor: float = 1.0", "postscale_factor: float = 1.0"
#define NAMED   "tensor_name: string = ''"
#define OF_SET  "process_set_id: int = 0"

struct op {
    const char *name;
    const char *inputs[3], *outputs[3], *attrs[8]; /* NULL after the last */
    void *(*create)(TF_OpKernelConstruction *construction);
    void (*compute)(void *kernel, TF_OpKernelContext *context); /* NULL: a collective */
    void (*shapes)(TF_ShapeInferenceContext *context, TF_Status *status);
};

static const struct op OPS[] = {
    {.name = "HvdAllreduce",
     .inputs = {"tensor: T"},
     .outputs = {"output: T"},
     .attrs = {TYPE, REDUCES, OF_SET, NAMED},
     .create = create_allreduce,
     .shapes = shapes_kept},
    {.name = "HvdGroupedAllreduce",
     .inputs = {"tensors: T"},
     .outputs = {"outputs: T"},
     .attrs = {TYPES, REDUCES, OF_SET, NAMED},
     .create = create_grouped_allreduce,
     .shapes = shapes_kept},
    {.name = "HvdAllgather",
     .inputs = {"tensor: T"},
     .outputs = {"output: T"},
     .attrs = {TYPE, OF_SET, NAMED},
     .create = create_allgather,
     .shapes = shapes_of_rows},
    {.name = "HvdGroupedAllgather",
     .inputs = {"tensors: T"},
     .outputs = {"outputs: T"},
     .attrs = {TYPES, OF_SET, NAMED},
     .create = create_grouped_allgather,
     .shapes = shapes_of_rows},
    {.name = "HvdBroadcast",
     .inputs = {"tensor: T"},
     .outputs = {"output: T"},
     .attrs = {TYPE, "root_rank: int", OF_SET, NAMED},
     .create = create_broadcast,
     .shapes = shapes_kept},
    {.name = "HvdAlltoall",
     .inputs = {"tensor: T", "splits: S"},
     .outputs = {"output: T", "received_splits: int32"},
     .attrs = {TYPE, "S: {int32, int64} = DT_INT32", OF_SET, NAMED},
     .create = create_alltoall,
     .shapes = shapes_of_alltoall},
    {.name = "HvdReducescatter",
     .inputs = {"tensor: T"},
     .outputs = {"output: T"},
     .attrs = {TYPE, REDUCES, OF_SET, NAMED},
     .create = create_reducescatter,
     .shapes = shapes_of_rows},
    {.name = "HvdGroupedReducescatter",
     .inputs = {"tensors: T"},
     .outputs = {"outputs: T"},
     .attrs = {TYPES, REDUCES, OF_SET, NAMED},
     .create = create_grouped_reducescatter,
     .shapes = shapes_of_rows},
    {.name = "HvdJoin",
     .outputs = {"last_rank: int32"},
     .attrs = {OF_SET},
     .create = create_join,
     .shapes = shape_of_scalar},
    {.name = "HvdSize",
     .outputs = {"size: int32"},
     .attrs = {OF_SET},
     .create = create_of_set,
     .compute = compute_size,
     .shapes = shape_of_scalar},
    {.name = "HvdProcessSetIncluded",
     .outputs = {"included: int32"},
     .attrs = {OF_SET},
     .create = create_of_set,
     .compute = compute_included,
     .shapes = shape_of_scalar},
    {.name = "HvdRank",
     .outputs = {"rank: int32"},
     .compute = compute_rank,
     .shapes = shape_of_scalar},
    {.name = "HvdLocalRank",
     .outputs = {"local_rank: int32"},
     .compute = compute_local_rank,
     .shapes = shape_of_scalar},
    {.name = "HvdLocalSize",
     .outputs = {"local_size: int32"},
     .compute = compute_local_size,
     .shapes = shape_of_scalar},
};

static void define(const struct op *op, TF_Status *status)
{
    TF_OpDefinitionBuilder *builder = TF_NewOpDefinitionBuilder(op->name);
    for (int i = 0; op->attrs[i]; i++)
        TF_OpDefinitionBuilderAddAttr(builder, op->attrs[i]);
    for (int i = 0; op->inputs[i]; i++)
        TF_OpDefinitionBuilderAddInput(builder, op->inputs[i]);
    for (int i = 0; op->outputs[i]; i++)
        TF_OpDefinitionBuilderAddOutput(builder, op->outputs[i]);
    TF_OpDefinitionBuilderSetIsStateful(builder, true);
    TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, op->shapes);
    TF_RegisterOpDefinition(builder, status);
}

static void implement(const struct op *op, TF_Status *status)
{
    void (*end)(void *) = op->compute ? free : destroy;
    TF_KernelBuilder *builder =
        op->compute ? TF_NewKernelBuilder(op->name, "CPU", op->create, op->compute, end)
                    : TF_NewAsyncKernelBuilder(op->name, "CPU", op->create, compute, end);
    TF_RegisterKernelBuilder(op->name, builder, status);
}

/* TensorFlow takes what a library registers while it is loaded. */
__attribute__((constructor)) static void register_ops(void)
{
    TF_Status *status = TF_NewStatus();
    for (size_t i = 0; i < sizeof(OPS) / sizeof(OPS[0]) && TF_GetCode(status) == TF_OK; i++) {
        define(&OPS[i], status);
        if (TF_GetCode(status) == TF_OK)
            implement(&OPS[i], status);
    }
    if (TF_GetCode(status) != TF_OK)
        fprintf(stderr, "hvd: TensorFlow refused an op: %s\n", TF_Message(status));
    TF_DeleteStatus(status);
}
