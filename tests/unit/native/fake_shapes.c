/* SPDX-License-Identifier: Apache-2.0
 * Shape inference of fake_tensorflow.h. */
#include "fake_tensorflow.h"

#include <stdlib.h>
#include <string.h>

struct TF_ShapeHandle {
    struct hvt_shape shape;
};

struct TF_ShapeInferenceContext {
    const struct hvt_shape *inputs;
    int count;
    struct hvt_shape *outputs;
};

/* Of fake_tensorflow.c. */
void (*hvt_infer_of(const char *op))(TF_ShapeInferenceContext *context, TF_Status *status);

TF_Code hvt_infer(const char *op, const struct hvt_shape *inputs, int count,
                  struct hvt_shape outputs_p[HVT_INPUTS_MAX])
{
    TF_ShapeInferenceContext context = {inputs, count, outputs_p};
    TF_Status *status = TF_NewStatus();
    hvt_infer_of(op)(&context, status);
    TF_Code code = TF_GetCode(status);
    TF_DeleteStatus(status);
    return code;
}

int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext *context)
{
    return context->count;
}

TF_ShapeHandle *TF_NewShapeHandle(void)
{
    TF_ShapeHandle *handle = calloc(1, sizeof *handle);
    handle->shape.ndim = HVT_UNKNOWN;
    return handle;
}

void TF_DeleteShapeHandle(TF_ShapeHandle *handle)
{
    free(handle);
}

void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext *context, int i,
                                      TF_ShapeHandle *handle, TF_Status *status)
{
    if (i < 0 || i >= context->count) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "no such input");
        return;
    }
    handle->shape = context->inputs[i];
    TF_SetStatus(status, TF_OK, "");
}

void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext *context, int i,
                                       TF_ShapeHandle *handle, TF_Status *status)
{
    context->outputs[i] = handle->shape;
    TF_SetStatus(status, TF_OK, "");
}

TF_ShapeHandle *TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext *context)
{
    TF_ShapeHandle *handle = TF_NewShapeHandle();
    (void)context;
    handle->shape.ndim = 0;
    return handle;
}

TF_ShapeHandle *TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext *context,
                                                       size_t size)
{
    TF_ShapeHandle *handle = TF_ShapeInferenceContextScalar(context);
    handle->shape.ndim = 1;
    handle->shape.dims[0] = (int64_t)size;
    return handle;
}

int TF_ShapeInferenceContextRankKnown(TF_ShapeInferenceContext *context, TF_ShapeHandle *handle)
{
    (void)context;
    return handle->shape.ndim != HVT_UNKNOWN;
}

void TF_ShapeInferenceContextWithRankAtLeast(TF_ShapeInferenceContext *context,
                                             TF_ShapeHandle *handle, int64_t rank,
                                             TF_ShapeHandle *result, TF_Status *status)
{
    (void)context;
    if (handle->shape.ndim < rank) {
        TF_SetStatus(status, TF_INVALID_ARGUMENT, "too few dimensions");
        return;
    }
    result->shape = handle->shape;
    TF_SetStatus(status, TF_OK, "");
}

void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext *context, TF_ShapeHandle *handle,
                                      int64_t start, int64_t end, TF_ShapeHandle *result,
                                      TF_Status *status)
{
    struct hvt_shape given = handle->shape;
    (void)context;
    int last = end > given.ndim ? given.ndim : (int)end;
    result->shape.ndim = last - (int)start;
    memmove(result->shape.dims, given.dims + start,
            (size_t)result->shape.ndim * sizeof given.dims[0]);
    TF_SetStatus(status, TF_OK, "");
}

void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext *context,
                                               TF_ShapeHandle *first, TF_ShapeHandle *second,
                                               TF_ShapeHandle *result, TF_Status *status)
{
    struct hvt_shape joined = first->shape;
    (void)context;
    for (int i = 0; i < second->shape.ndim; i++)
        joined.dims[joined.ndim++] = second->shape.dims[i];
    result->shape = joined;
    TF_SetStatus(status, TF_OK, "");
}
