/* SPDX-License-Identifier: Apache-2.0
 * One flight: see flight.h. */
#include "python/native/flight.h"

#include "python/native/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void (*rephrase)(char *text, size_t capacity);

void hvd_tf_rephrase(void (*function)(char *text, size_t capacity))
{
    rephrase = function;
}

struct flight *flight_new(const struct flight_plan *plan, TF_OpKernelContext *context,
                          TF_AsyncOpKernelDoneCallback *done, int count)
{
    struct flight *flight =
        calloc(1, sizeof(*flight) + (size_t)(count ? count : 1) * sizeof(flight->parts[0]));
    if (!flight)
        return NULL;
    flight->plan = plan;
    flight->context = context;
    flight->count = count;
    flight->stays = !done_take(&flight->done, done);
    return flight;
}

/* Tells TensorFlow that the kernel is over. */
static void end(struct flight *flight)
{
    struct done done = flight->done;
    for (int i = 0; i < flight->count && !flight->keeps; i++) {
        if (flight->parts[i].in)
            TF_DeleteTensor(flight->parts[i].in);
        if (flight->parts[i].out)
            TF_DeleteTensor(flight->parts[i].out);
    }
    free(flight->splits);
    free(flight);
    done_run(&done);
}

static void report(struct flight *flight, TF_Code code, const char *text)
{
    char sentence[FLIGHT_TEXT_MAX];
    TF_Status *status = TF_NewStatus();
    snprintf(sentence, sizeof(sentence), "%s: %s", flight->plan->title, text);
    TF_SetStatus(status, code, sentence);
    TF_OpKernelContext_Failure(flight->context, status);
    TF_DeleteStatus(status);
}

void flight_fail(struct flight *flight, TF_Code code, const char *text)
{
    report(flight, code, text);
    end(flight);
}

/* TensorFlow's class of an error. What the ranks cannot recover from is UNKNOWN, as with Horovod, whose
 * elastic mode looks for that; ABORTED or UNAVAILABLE would make a MonitoredSession try again for ever. */
TF_Code flight_code_of(int status)
{
    switch (status) {
    case HVD_ERR_INVALID:
    case HVD_ERR_NOT_FOUND:
    case HVD_ERR_TOO_SMALL:
        return TF_INVALID_ARGUMENT;
    case HVD_ERR_MISMATCH:
    case HVD_ERR_DUPLICATE_NAME:
    case HVD_ERR_FORKED:
    case HVD_ERR_BUSY:
        return TF_FAILED_PRECONDITION;
    case HVD_ERR_UNSUPPORTED:
        return TF_UNIMPLEMENTED;
    case HVD_ERR_CANCELLED:
        return TF_CANCELLED;
    case HVD_ERR_STALLED:
        return TF_DEADLINE_EXCEEDED;
    case HVD_ERR_NO_MEMORY:
    case HVD_ERR_LIMIT:
        return TF_RESOURCE_EXHAUSTED;
    default:
        return TF_UNKNOWN;
    }
}

/* The ops take no other types. */
static enum hvd_dtype dtype_of(const TF_Tensor *tensor)
{
    switch (TF_TensorType(tensor)) {
    case TF_DOUBLE:
        return HVD_FLOAT64;
    case TF_HALF:
        return HVD_FLOAT16;
    case TF_BFLOAT16:
        return HVD_BFLOAT16;
    case TF_INT32:
        return HVD_INT32;
    case TF_INT64:
        return HVD_INT64;
    case TF_UINT8:
        return HVD_UINT8;
    case TF_INT8:
        return HVD_INT8;
    case TF_UINT16:
        return HVD_UINT16;
    case TF_INT16:
        return HVD_INT16;
    case TF_BOOL:
        return HVD_BOOL;
    case TF_FLOAT:
        break;
    }
    return HVD_FLOAT32;
}

/* The same memory for the library. Dimensions beyond HVD_DIMS_MAX become one. */
static struct hvd_tensor describe(const TF_Tensor *tensor)
{
    struct hvd_tensor described = {.data = TF_TensorData(tensor), .dtype = dtype_of(tensor)};
    int ndim = TF_NumDims(tensor);
    described.ndim = ndim < HVD_DIMS_MAX ? ndim : HVD_DIMS_MAX;
    for (int i = 0; i < ndim; i++) {
        int64_t dim = TF_Dim(tensor, i);
        if (i < HVD_DIMS_MAX)
            described.dims[i] = dim;
        else
            described.dims[HVD_DIMS_MAX - 1] *= dim;
    }
    return described;
}

/* ---- submission ---- */

static int submit_one(struct flight *flight, struct hvd_session *session)
{
    const struct flight_plan *plan = flight->plan;
    struct flight_part *part = &flight->parts[0];
    struct hvd_tensor in = {0}, out = {0};
    if (part->in)
        in = describe(part->in);
    if (part->out)
        out = describe(part->out);
    switch (plan->kind) {
    case FLIGHT_ALLREDUCE:
        return hvd_allreduce_async(session, plan->name, &in, &out, plan->reduce_op, &plan->options,
                                   &part->op);
    case FLIGHT_BROADCAST:
        return hvd_broadcast_async(session, plan->name, &in, &out, plan->root, &plan->options,
                                   &part->op);
    case FLIGHT_ALLGATHER:
        return hvd_allgather_async(session, plan->name, &in, NULL, &plan->options, &part->op);
    case FLIGHT_REDUCESCATTER:
        return hvd_reducescatter_async(session, plan->name, &in, NULL, plan->reduce_op,
                                       &plan->options, &part->op);
    case FLIGHT_ALLTOALL:
        return hvd_alltoall_async(session, plan->name, &in, flight->splits, NULL, &plan->options,
                                  &part->op);
    case FLIGHT_JOIN:
        return hvd_join_async(session, &plan->options, &part->op);
    }
    return HVD_ERR_UNSUPPORTED;
}

static int submit_group(struct flight *flight, struct hvd_session *session)
{
    const struct flight_plan *plan = flight->plan;
    size_t count = (size_t)flight->count;
    struct hvd_tensor *in = calloc(count * 2, sizeof(*in)), *out = in + count;
    struct hvd_op **ops = calloc(count, sizeof(struct hvd_op *));
    int rc = in && ops ? HVD_OK : HVD_ERR_NO_MEMORY;
    for (int i = 0; rc == HVD_OK && i < flight->count; i++) {
        in[i] = describe(flight->parts[i].in);
        if (flight->parts[i].out)
            out[i] = describe(flight->parts[i].out);
    }
    if (rc == HVD_OK && plan->kind == FLIGHT_ALLREDUCE)
        rc = hvd_grouped_allreduce_async(session, plan->name, in, out, flight->count,
                                         plan->reduce_op, &plan->options, ops);
    else if (rc == HVD_OK && plan->kind == FLIGHT_ALLGATHER)
        rc = hvd_grouped_allgather_async(session, plan->name, in, NULL, flight->count,
                                         &plan->options, ops);
    else if (rc == HVD_OK)
        rc = hvd_grouped_reducescatter_async(session, plan->name, in, NULL, flight->count,
                                             plan->reduce_op, &plan->options, ops);
    for (int i = 0; rc == HVD_OK && i < flight->count; i++)
        flight->parts[i].op = ops[i];
    free(in);
    free(ops);
    return rc;
}

int flight_submit(struct flight *flight, struct hvd_session *session)
{
    return flight->plan->grouped ? submit_group(flight, session) : submit_one(flight, session);
}

bool flight_is_submitted(const struct flight *flight)
{
    return flight->parts[0].op != NULL;
}

/* ---- the end of a flight ---- */

/* The result of a finished op whose size the engine has told: into memory of TensorFlow's. */
static bool fetch(struct flight *flight, int i, TF_Status *status)
{
    struct flight_part *part = &flight->parts[i];
    struct hvd_tensor result;
    int64_t dims[TENSORFLOW_DIMS_MAX];
    int ndim = TF_NumDims(part->in);
    if (hvd_op_result(part->op, &result) != HVD_OK) {
        TF_SetStatus(status, TF_UNKNOWN, hvd_last_error());
        return false;
    }
    for (int k = 0; k < ndim; k++)
        dims[k] = TF_Dim(part->in, k);
    dims[0] = result.dims[0];
    size_t bytes = hvd_dtype_size(result.dtype);
    for (int k = 0; k < ndim; k++)
        bytes *= (size_t)dims[k];
    part->out =
        TF_AllocateOutput(flight->context, i, TF_TensorType(part->in), dims, ndim, bytes, status);
    if (TF_GetCode(status) != TF_OK)
        return false;
    if (bytes)
        memcpy(TF_TensorData(part->out), result.data, bytes);
    return true;
}

static bool put_numbers(struct flight *flight, int output, const int64_t *numbers, int count,
                        int ndim, TF_Status *status)
{
    int64_t dim = count;
    TF_Tensor *tensor = TF_AllocateOutput(flight->context, output, TF_INT32, &dim, ndim,
                                          (size_t)count * sizeof(int32_t), status);
    if (TF_GetCode(status) != TF_OK)
        return false;
    int32_t *values = TF_TensorData(tensor);
    for (int i = 0; i < count; i++)
        values[i] = (int32_t)numbers[i];
    TF_DeleteTensor(tensor);
    return true;
}

static bool put_received_splits(struct flight *flight, struct hvd_session *session,
                                TF_Status *status)
{
    int count = hvd_process_set_size(session, flight->plan->options.process_set);
    int64_t *splits = calloc(count > 0 ? (size_t)count : 1, sizeof(*splits));
    bool good = splits && hvd_op_received_splits(flight->parts[0].op, splits, count) == HVD_OK;
    if (good)
        good = put_numbers(flight, 1, splits, count, 1, status);
    else
        TF_SetStatus(status, TF_UNKNOWN, hvd_last_error());
    free(splits);
    return good;
}

static void put_results(struct flight *flight, struct hvd_session *session, TF_Status *status)
{
    int64_t rank;
    switch (flight->plan->kind) {
    case FLIGHT_ALLREDUCE:
    case FLIGHT_BROADCAST:
        return;
    case FLIGHT_JOIN:
        rank = hvd_op_joined_rank(flight->parts[0].op);
        put_numbers(flight, 0, &rank, 1, 0, status);
        return;
    case FLIGHT_ALLTOALL:
        if (fetch(flight, 0, status))
            put_received_splits(flight, session, status);
        return;
    case FLIGHT_ALLGATHER:
    case FLIGHT_REDUCESCATTER:
        for (int i = 0; i < flight->count && fetch(flight, i, status); i++)
            continue;
        return;
    }
}

/* A join has an op and no tensor. */
int flight_op_count(const struct flight *flight)
{
    return flight->count > 0 ? flight->count : 1;
}

/* Results to TensorFlow, or why there are none, and its ops freed; inside the session. `status`: of its first op. */
TF_Status *flight_settle(struct flight *flight, struct hvd_session *session, int status)
{
    char text[FLIGHT_TEXT_MAX];
    TF_Status *failure = TF_NewStatus();
    int count = flight_op_count(flight);
    for (int i = 1; i < count && status == HVD_OK; i++) /* a group finishes together */
        status = hvd_wait(flight->parts[i].op, -1);
    if (status == HVD_OK) {
        put_results(flight, session, failure);
    } else {
        snprintf(text, sizeof(text), "%s", hvd_last_error());
        if (status == HVD_ERR_MISMATCH && rephrase)
            rephrase(text, sizeof(text));
        if (status == HVD_ERR_CANCELLED && flight->interrupted)
            snprintf(text, sizeof(text), STEP_INTERRUPTED);
        TF_SetStatus(failure, flight_code_of(status), text);
        flight->keeps = status == HVD_ERR_ENGINE_LOST; /* peers may be at work without it */
    }
    for (int i = 0; i < count; i++)
        hvd_op_free(flight->parts[i].op);
    return failure;
}

/* The end of a settled flight, outside the session, because TensorFlow may go on in this thread. */
void flight_land(struct flight *flight, TF_Status *failure)
{
    if (TF_GetCode(failure) != TF_OK)
        report(flight, TF_GetCode(failure), TF_Message(failure));
    TF_DeleteStatus(failure);
    end(flight);
}
