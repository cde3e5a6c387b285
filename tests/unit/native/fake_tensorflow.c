/* SPDX-License-Identifier: Apache-2.0
 * See fake_tensorflow.h. */
#include "fake_tensorflow.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define OPS_MAX    64
#define TEXT_MAX   4096
#define PATIENCE_S 60

#define REQUIRE(what)                                                                              \
    do {                                                                                           \
        if (!(what)) {                                                                             \
            fprintf(stderr, "fake_tensorflow.c:%d: %s\n", __LINE__, #what);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

/* ---- statuses ---- */

struct TF_Status {
    TF_Code code;
    char text[TEXT_MAX];
};

TF_Status *TF_NewStatus(void)
{
    return calloc(1, sizeof(TF_Status));
}

void TF_DeleteStatus(TF_Status *status)
{
    free(status);
}

void TF_SetStatus(TF_Status *status, TF_Code code, const char *text)
{
    status->code = code;
    snprintf(status->text, sizeof status->text, "%s", text);
}

TF_Code TF_GetCode(const TF_Status *status)
{
    return status->code;
}

const char *TF_Message(const TF_Status *status)
{
    return status->text;
}

/* ---- memory that is released ---- */

struct buffer {
    unsigned char *data;
    size_t bytes, mapped;
    enum hvt_home home;
    atomic_int refs;
    void (*deallocator)(void *data, size_t bytes, void *arg); /* NULL: ours */
    void *arg;
    struct buffer *next; /* released */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct buffer *released; /* with the lock */
static size_t spoiled;          /* with the lock */
static void *(*take_heap)(size_t bytes);

static size_t spoiled_bytes(const struct buffer *buffer)
{
    const unsigned char *data = buffer->data;
    size_t count = 0;
    if (buffer->bytes == 0 ||
        (data[0] == HVT_POISON && memcmp(data, data + 1, buffer->bytes - 1) == 0))
        return 0;
    for (size_t i = 0; i < buffer->bytes; i++)
        count += buffer->data[i] != HVT_POISON;
    return count;
}

/* The pool gives the memory out again. With the lock. */
static void forget_pooled(const void *data)
{
    for (struct buffer **at = &released; *at; at = &(*at)->next) {
        struct buffer *buffer = *at;
        if (buffer->data != data)
            continue;
        spoiled += spoiled_bytes(buffer);
        *at = buffer->next;
        free(buffer);
        return;
    }
}

static void unref(struct buffer *buffer)
{
    if (atomic_fetch_sub(&buffer->refs, 1) > 1)
        return;
    memset(buffer->data, HVT_POISON, buffer->bytes);
    pthread_mutex_lock(&lock);
    buffer->next = released;
    released = buffer;
    pthread_mutex_unlock(&lock);
    if (buffer->deallocator) /* from now on somebody may take it again */
        buffer->deallocator(buffer->data, buffer->bytes, buffer->arg);
}

size_t hvt_tf_spoiled(void)
{
    pthread_mutex_lock(&lock);
    for (struct buffer **at = &released; *at;) {
        struct buffer *buffer = *at;
        size_t count = spoiled_bytes(buffer);
        spoiled += count;
        if (count) /* counts once */
            memset(buffer->data, HVT_POISON, buffer->bytes);
        if (count || buffer->deallocator || buffer->home != HVT_ORDINARY) {
            at = &buffer->next;
            continue;
        }
        *at = buffer->next;
        munmap(buffer->data, buffer->mapped);
        free(buffer);
    }
    size_t total = spoiled;
    spoiled = 0;
    pthread_mutex_unlock(&lock);
    return total;
}

void hvt_tf_set_heap(void *(*take)(size_t bytes))
{
    take_heap = take;
}

/* ---- tensors ---- */

struct TF_Tensor {
    TF_Tensor *previous, *next; /* of all that there are */
    struct buffer *buffer;
    TF_DataType dtype;
    int ndim;
    int64_t dims[TENSORFLOW_DIMS_MAX];
};

static TF_Tensor *all; /* with the lock */

int hvt_tf_tensors(void)
{
    int count = 0;
    pthread_mutex_lock(&lock);
    for (const TF_Tensor *tensor = all; tensor; tensor = tensor->next)
        count++;
    pthread_mutex_unlock(&lock);
    return count;
}

static size_t size_of(TF_DataType dtype)
{
    switch (dtype) {
    case TF_DOUBLE:
    case TF_INT64:
        return 8;
    case TF_FLOAT:
    case TF_INT32:
        return 4;
    case TF_HALF:
    case TF_BFLOAT16:
    case TF_INT16:
    case TF_UINT16:
        return 2;
    default:
        return 1;
    }
}

static TF_Tensor *tensor_of(struct buffer *buffer, TF_DataType dtype, const int64_t *dims, int ndim)
{
    TF_Tensor *tensor = calloc(1, sizeof *tensor);
    *tensor = (TF_Tensor){.buffer = buffer, .dtype = dtype, .ndim = ndim};
    for (int i = 0; i < ndim; i++)
        tensor->dims[i] = dims[i];
    pthread_mutex_lock(&lock);
    tensor->next = all;
    if (all)
        all->previous = tensor;
    all = tensor;
    pthread_mutex_unlock(&lock);
    return tensor;
}

static size_t bytes_of(TF_DataType dtype, const int64_t *dims, int ndim)
{
    size_t bytes = size_of(dtype);
    for (int i = 0; i < ndim; i++)
        bytes *= (size_t)dims[i];
    return bytes;
}

static struct buffer *buffer_new(size_t bytes, enum hvt_home home)
{
    struct buffer *buffer = calloc(1, sizeof *buffer);
    *buffer = (struct buffer){
        .bytes = bytes, .mapped = (bytes + 4096) / 4096 * 4096, .home = home, .refs = 1};
    buffer->data = home == HVT_HEAP ? take_heap(buffer->mapped)
                                    : mmap(NULL, buffer->mapped, PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(buffer->data && (void *)buffer->data != MAP_FAILED);
    return buffer;
}

TF_Tensor *hvt_tensor_new(TF_DataType dtype, const int64_t *dims, int ndim, enum hvt_home home)
{
    return tensor_of(buffer_new(bytes_of(dtype, dims, ndim), home), dtype, dims, ndim);
}

TF_Tensor *hvt_vector_new(TF_DataType dtype, int64_t count, enum hvt_home home)
{
    return hvt_tensor_new(dtype, &count, 1, home);
}

TF_Tensor *hvt_tensor_ref(const TF_Tensor *tensor)
{
    atomic_fetch_add(&tensor->buffer->refs, 1);
    return tensor_of(tensor->buffer, tensor->dtype, tensor->dims, tensor->ndim);
}

TF_Tensor *TF_NewTensor(TF_DataType dtype, const int64_t *dims, int num_dims, void *data,
                        size_t bytes, void (*deallocator)(void *data, size_t bytes, void *arg),
                        void *arg)
{
    struct buffer *buffer = calloc(1, sizeof *buffer);
    REQUIRE((uintptr_t)data % 64 == 0 && bytes == bytes_of(dtype, dims, num_dims));
    *buffer = (struct buffer){
        .data = data, .bytes = bytes, .refs = 1, .deallocator = deallocator, .arg = arg};
    pthread_mutex_lock(&lock);
    forget_pooled(data);
    pthread_mutex_unlock(&lock);
    return tensor_of(buffer, dtype, dims, num_dims);
}

void TF_DeleteTensor(TF_Tensor *tensor)
{
    pthread_mutex_lock(&lock);
    if (tensor->previous)
        tensor->previous->next = tensor->next;
    else
        all = tensor->next;
    if (tensor->next)
        tensor->next->previous = tensor->previous;
    pthread_mutex_unlock(&lock);
    unref(tensor->buffer);
    free(tensor);
}

TF_DataType TF_TensorType(const TF_Tensor *tensor)
{
    return tensor->dtype;
}

int TF_NumDims(const TF_Tensor *tensor)
{
    return tensor->ndim;
}

int64_t TF_Dim(const TF_Tensor *tensor, int dim)
{
    REQUIRE(dim >= 0 && dim < tensor->ndim);
    return tensor->dims[dim];
}

void *TF_TensorData(const TF_Tensor *tensor)
{
    return tensor->buffer->data;
}

size_t TF_TensorByteSize(const TF_Tensor *tensor)
{
    return tensor->buffer->bytes;
}

/* ---- registration ---- */

struct TF_OpDefinitionBuilder {
    char name[64];
    char specs[16][256]; /* of attributes */
    int attrs, inputs, outputs;
    bool is_stateful;
    void (*infer)(TF_ShapeInferenceContext *context, TF_Status *status);
};

struct TF_KernelBuilder {
    char op[64];
    void *(*create)(TF_OpKernelConstruction *);
    void (*compute)(void *, TF_OpKernelContext *);
    void (*compute_async)(void *, TF_OpKernelContext *, TF_AsyncOpKernelDoneCallback *done);
    void (*destroy)(void *);
};

static struct {
    TF_OpDefinitionBuilder *ops[OPS_MAX];
    TF_KernelBuilder *kernels[OPS_MAX];
    int op_count, kernel_count;
} registry;

static TF_OpDefinitionBuilder *op_named(const char *name)
{
    for (int i = 0; i < registry.op_count; i++) {
        if (strcmp(registry.ops[i]->name, name) == 0)
            return registry.ops[i];
    }
    return NULL;
}

static TF_KernelBuilder *kernel_of(const char *op)
{
    for (int i = 0; i < registry.kernel_count; i++) {
        if (strcmp(registry.kernels[i]->op, op) == 0)
            return registry.kernels[i];
    }
    return NULL;
}

int hvt_tf_op_count(void)
{
    int count = 0;
    for (int i = 0; i < registry.op_count; i++)
        count += registry.ops[i]->is_stateful && kernel_of(registry.ops[i]->name) != NULL;
    return count;
}

TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *op_name)
{
    TF_OpDefinitionBuilder *builder = calloc(1, sizeof *builder);
    snprintf(builder->name, sizeof builder->name, "%s", op_name);
    return builder;
}

void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder *builder, const char *spec)
{
    REQUIRE(builder->attrs < 16);
    snprintf(builder->specs[builder->attrs++], 256, "%s", spec);
}

void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *builder, const char *spec)
{
    builder->inputs += spec[0] != '\0';
}

void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *builder, const char *spec)
{
    builder->outputs += spec[0] != '\0';
}

void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder *builder, bool is_stateful)
{
    builder->is_stateful = is_stateful;
}

void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder *builder,
    void (*infer)(TF_ShapeInferenceContext *context, TF_Status *status))
{
    builder->infer = infer;
}

void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *builder, TF_Status *status)
{
    REQUIRE(registry.op_count < OPS_MAX);
    if (op_named(builder->name)) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "registered twice");
        free(builder);
        return;
    }
    registry.ops[registry.op_count++] = builder;
    TF_SetStatus(status, TF_OK, "");
}

static TF_KernelBuilder *builder_of(const char *op, const char *device,
                                    void *(*create)(TF_OpKernelConstruction *),
                                    void (*destroy)(void *))
{
    TF_KernelBuilder *builder = calloc(1, sizeof *builder);
    REQUIRE(strcmp(device, "CPU") == 0);
    snprintf(builder->op, sizeof builder->op, "%s", op);
    builder->create = create;
    builder->destroy = destroy;
    return builder;
}

TF_KernelBuilder *TF_NewKernelBuilder(const char *op_name, const char *device_name,
                                      void *(*create)(TF_OpKernelConstruction *),
                                      void (*compute)(void *, TF_OpKernelContext *),
                                      void (*destroy)(void *))
{
    TF_KernelBuilder *builder = builder_of(op_name, device_name, create, destroy);
    builder->compute = compute;
    return builder;
}

TF_KernelBuilder *TF_NewAsyncKernelBuilder(const char *op_name, const char *device_name,
                                           void *(*create)(TF_OpKernelConstruction *),
                                           void (*compute)(void *, TF_OpKernelContext *,
                                                           TF_AsyncOpKernelDoneCallback *done),
                                           void (*destroy)(void *))
{
    TF_KernelBuilder *builder = builder_of(op_name, device_name, create, destroy);
    builder->compute_async = compute;
    return builder;
}

void TF_RegisterKernelBuilder(const char *name, TF_KernelBuilder *builder, TF_Status *status)
{
    REQUIRE(registry.kernel_count < OPS_MAX && op_named(name));
    registry.kernels[registry.kernel_count++] = builder;
    TF_SetStatus(status, TF_OK, "");
}

/* For fake_shapes.c. */
void (*hvt_infer_of(const char *op))(TF_ShapeInferenceContext *context, TF_Status *status);

void (*hvt_infer_of(const char *op))(TF_ShapeInferenceContext *context, TF_Status *status)
{
    return op_named(op)->infer;
}

/* ---- kernels ---- */

struct TF_OpKernelConstruction {
    const TF_OpDefinitionBuilder *op;
    const struct hvt_attr *attrs;
};

struct hvt_kernel {
    const TF_KernelBuilder *builder;
    void *state;
};

static _Thread_local char error[TEXT_MAX + 16];

const char *hvt_tf_error(void)
{
    return error;
}

struct hvt_kernel *hvt_kernel_new(const char *op, const struct hvt_attr *attrs)
{
    static const struct hvt_attr none[1];
    TF_OpKernelConstruction construction = {op_named(op), attrs ? attrs : none};
    struct hvt_kernel *kernel = calloc(1, sizeof *kernel);
    REQUIRE(construction.op && kernel_of(op));
    kernel->builder = kernel_of(op);
    error[0] = '\0';
    kernel->state = kernel->builder->create ? kernel->builder->create(&construction) : NULL;
    if (error[0] == '\0')
        return kernel;
    if (kernel->state)
        kernel->builder->destroy(kernel->state);
    free(kernel);
    return NULL;
}

void hvt_kernel_free(struct hvt_kernel *kernel)
{
    kernel->builder->destroy(kernel->state);
    free(kernel);
}

TF_StringView TF_OpKernelConstruction_GetName(TF_OpKernelConstruction *construction)
{
    return (TF_StringView){construction->op->name, strlen(construction->op->name)};
}

void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction *construction, TF_Status *status)
{
    (void)construction;
    snprintf(error, sizeof error, "%d %s", status->code, status->text);
}

/* The op must have said that it has the attribute; what the test does not give has no value. */
static const struct hvt_attr *attr_of(const TF_OpKernelConstruction *construction, const char *name,
                                      TF_Status *status)
{
    bool declared = false;
    for (int i = 0; i < construction->op->attrs; i++) {
        const char *spec = construction->op->specs[i];
        declared |= strncmp(spec, name, strlen(name)) == 0 && spec[strlen(name)] == ':';
    }
    REQUIRE(declared);
    TF_SetStatus(status, TF_OK, "");
    for (const struct hvt_attr *attr = construction->attrs; attr->name; attr++) {
        if (strcmp(attr->name, name) == 0)
            return attr;
    }
    TF_SetStatus(status, TF_INVALID_ARGUMENT, name);
    return NULL;
}

void TF_OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction *construction, const char *name,
                                          int32_t *value, TF_Status *status)
{
    const struct hvt_attr *attr = attr_of(construction, name, status);
    if (attr)
        *value = attr->number;
}

void TF_OpKernelConstruction_GetAttrFloat(TF_OpKernelConstruction *construction, const char *name,
                                          float *value, TF_Status *status)
{
    const struct hvt_attr *attr = attr_of(construction, name, status);
    if (attr)
        *value = attr->factor;
}

void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction *construction, const char *name,
                                         int32_t *list_size, int32_t *total_size, TF_Status *status)
{
    const struct hvt_attr *attr = attr_of(construction, name, status);
    *list_size = -1;
    *total_size = attr && attr->text ? (int32_t)strlen(attr->text) : 0;
}

void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction *construction, const char *name,
                                           char *value, size_t max_length, TF_Status *status)
{
    const struct hvt_attr *attr = attr_of(construction, name, status);
    if (attr)
        memcpy(value, attr->text,
               strlen(attr->text) < max_length ? strlen(attr->text) : max_length);
}

/* ---- calls ---- */

struct cancellation {
    atomic_bool is_cancelled;
};

struct params { /* as OpKernelContext::Params begins */
    int64_t step_id;
    char other[160];
    struct cancellation *manager;
};

struct TF_OpKernelContext {
    char other[24];
    struct params *params;
    struct hvt_call *call;
};

const size_t hvt_tf_params_offset = offsetof(struct TF_OpKernelContext, params);
const size_t hvt_tf_manager_offset = offsetof(struct params, manager);

struct hvt_call {
    struct TF_OpKernelContext context;
    struct params params;
    struct cancellation cancellation;
    struct hvt_kernel *kernel;
    TF_Tensor *inputs[HVT_INPUTS_MAX], *outputs[HVT_INPUTS_MAX];
    int count;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int ended; /* with the lock; as is what follows */
    TF_Code code;
    char text[TEXT_MAX];
};

struct hvt_call *hvt_call_new(struct hvt_kernel *kernel, TF_Tensor *const *inputs, int count)
{
    static atomic_int steps;
    struct hvt_call *call = calloc(1, sizeof *call);
    REQUIRE(count <= HVT_INPUTS_MAX);
    call->context.params = &call->params;
    call->context.call = call;
    call->params.step_id = 1000 + atomic_fetch_add(&steps, 1);
    call->params.manager = &call->cancellation;
    call->kernel = kernel;
    call->count = count;
    for (int i = 0; i < count; i++)
        call->inputs[i] = inputs[i];
    pthread_mutex_init(&call->lock, NULL);
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&call->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    return call;
}

static void drop(TF_Tensor *tensors[HVT_INPUTS_MAX])
{
    for (int i = 0; i < HVT_INPUTS_MAX; i++) {
        if (tensors[i])
            TF_DeleteTensor(tensors[i]);
        tensors[i] = NULL;
    }
}

/* What TensorFlow does when a kernel is over. */
static void end(struct hvt_call *call)
{
    drop(call->inputs);
    pthread_mutex_lock(&call->lock);
    if (call->code != TF_OK)
        drop(call->outputs);
    call->ended++;
    REQUIRE(call->ended == 1);
    pthread_cond_broadcast(&call->changed);
    pthread_mutex_unlock(&call->lock);
}

/* ---- the callback: std::function<void()> of a closure on the heap ---- */

struct TF_AsyncOpKernelDoneCallback {
    void *functor[2];
    void (*manager)(void *functor, const void *source, int operation);
    void (*invoker)(const void *functor);
};

struct closure {
    struct hvt_call *call;
};

static void manage(void *functor, const void *source, int operation)
{
    REQUIRE(operation == 3 && functor == source);
    free(*(void **)functor);
}

static void invoke(const void *functor)
{
    end((*(struct closure *const *)functor)->call);
}

static bool are_spoilt;

void hvt_tf_spoil_callbacks(void)
{
    are_spoilt = true;
}

void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback *done)
{
    if (are_spoilt)
        end((*(struct closure **)done->functor)->call);
    else
        done->invoker(done->functor);
}

/* The frame of CAsyncOpKernel::ComputeAsync. */
__attribute__((noinline)) static void compute_async(struct hvt_call *call)
{
    struct closure *closure = malloc(sizeof *closure);
    TF_AsyncOpKernelDoneCallback done = {
        .functor = {closure}, .manager = manage, .invoker = invoke};
    void (*nothing)(void) = NULL;
    closure->call = call;
    if (are_spoilt) {
        memset(&nothing, 0x7a, sizeof nothing);
        memcpy(&done.manager, &nothing, sizeof nothing);
    }
    call->kernel->builder->compute_async(call->kernel->state, &call->context, &done);
    if (are_spoilt)
        free(closure);
    else if (done.manager)
        done.manager(done.functor, done.functor, 3);
    memset(&done, 0xdd, sizeof done);
    __asm__ volatile("" : : "r"(&done) : "memory");
}

void hvt_call_run(struct hvt_call *call)
{
    if (call->kernel->builder->compute) {
        call->kernel->builder->compute(call->kernel->state, &call->context);
        end(call);
    } else {
        compute_async(call);
    }
}

void hvt_call_cancel(struct hvt_call *call)
{
    atomic_store(&call->cancellation.is_cancelled, true);
}

bool try_deregister(struct cancellation *manager,
                    int64_t token) __asm__("_ZN3tsl19CancellationManager21TryDeregisterCallbackEl");

bool try_deregister(struct cancellation *manager, int64_t token)
{
    REQUIRE(token == -1);
    return !atomic_load(&manager->is_cancelled);
}

bool hvt_call_wait(struct hvt_call *call)
{
    struct timespec until;
    int rc = 0;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PATIENCE_S;
    pthread_mutex_lock(&call->lock);
    while (!call->ended && rc == 0)
        rc = pthread_cond_timedwait(&call->changed, &call->lock, &until);
    bool ended = call->ended;
    pthread_mutex_unlock(&call->lock);
    return ended;
}

bool hvt_call_has_ended(struct hvt_call *call)
{
    pthread_mutex_lock(&call->lock);
    bool ended = call->ended;
    pthread_mutex_unlock(&call->lock);
    return ended;
}

TF_Code hvt_call_code(const struct hvt_call *call)
{
    return call->code;
}

const char *hvt_call_text(const struct hvt_call *call)
{
    return call->text;
}

TF_Tensor *hvt_call_output(const struct hvt_call *call, int i)
{
    return call->outputs[i];
}

void hvt_call_free(struct hvt_call *call)
{
    drop(call->inputs);
    drop(call->outputs);
    pthread_mutex_lock(&call->lock); /* whoever told of the end is out */
    pthread_mutex_unlock(&call->lock);
    pthread_mutex_destroy(&call->lock);
    pthread_cond_destroy(&call->changed);
    free(call);
}

int TF_NumInputs(TF_OpKernelContext *context)
{
    return context->call->count;
}

int64_t TF_StepId(TF_OpKernelContext *context)
{
    return context->params->step_id;
}

void TF_GetInput(TF_OpKernelContext *context, int i, TF_Tensor **tensor, TF_Status *status)
{
    REQUIRE(i >= 0 && i < context->call->count);
    *tensor = hvt_tensor_ref(context->call->inputs[i]);
    TF_SetStatus(status, TF_OK, "");
}

void TF_SetOutput(TF_OpKernelContext *context, int i, const TF_Tensor *tensor, TF_Status *status)
{
    REQUIRE(i < HVT_INPUTS_MAX && !context->call->outputs[i]);
    context->call->outputs[i] = hvt_tensor_ref(tensor);
    TF_SetStatus(status, TF_OK, "");
}

TF_Tensor *TF_AllocateOutput(TF_OpKernelContext *context, int i, TF_DataType dtype,
                             const int64_t *dims, int num_dims, size_t bytes, TF_Status *status)
{
    TF_Tensor *tensor = hvt_tensor_new(dtype, dims, num_dims, HVT_ORDINARY);
    REQUIRE(bytes == tensor->buffer->bytes);
    TF_SetOutput(context, i, tensor, status);
    return tensor;
}

TF_Tensor *TF_ForwardInputOrAllocateOutput(TF_OpKernelContext *context, const int *candidates,
                                           int num_candidates, int i, const int64_t *dims,
                                           int num_dims, int *forwarded_input, TF_Status *status)
{
    TF_Tensor *input = context->call->inputs[candidates[0]];
    REQUIRE(num_candidates == 1);
    *forwarded_input = -1;
    if (atomic_load(&input->buffer->refs) > 1)
        return TF_AllocateOutput(context, i, input->dtype, dims, num_dims, input->buffer->bytes,
                                 status);
    *forwarded_input = candidates[0];
    TF_SetOutput(context, i, input, status);
    return hvt_tensor_ref(input);
}

void TF_OpKernelContext_Failure(TF_OpKernelContext *context, TF_Status *status)
{
    struct hvt_call *call = context->call;
    pthread_mutex_lock(&call->lock);
    REQUIRE(!call->ended && status->code != TF_OK);
    call->code = status->code;
    snprintf(call->text, sizeof call->text, "%s", status->text);
    pthread_mutex_unlock(&call->lock);
}
