/* SPDX-License-Identifier: Apache-2.0
 * What of TensorFlow's C API the op library uses, declared here so that building it takes no TensorFlow
 * (source: tensorflow/c/kernels.h, ops.h, tf_tensor.h, tf_status.h of TensorFlow 2.15 to 2.21, whose ABI is
 * stable by TensorFlow's own rule; all of it is exported by libtensorflow_framework.so.2). */
#ifndef PYTHON_NATIVE_TENSORFLOW_C_H
#define PYTHON_NATIVE_TENSORFLOW_C_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct TF_Status TF_Status;
typedef struct TF_Tensor TF_Tensor;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_AsyncOpKernelDoneCallback TF_AsyncOpKernelDoneCallback;

typedef enum TF_Code {
    TF_OK = 0,
    TF_CANCELLED = 1,
    TF_UNKNOWN = 2,
    TF_INVALID_ARGUMENT = 3,
    TF_DEADLINE_EXCEEDED = 4,
    TF_RESOURCE_EXHAUSTED = 8,
    TF_FAILED_PRECONDITION = 9,
    TF_UNIMPLEMENTED = 12
} TF_Code;

typedef enum TF_DataType {
    TF_FLOAT = 1,
    TF_DOUBLE = 2,
    TF_INT32 = 3,
    TF_UINT8 = 4,
    TF_INT16 = 5,
    TF_INT8 = 6,
    TF_INT64 = 9,
    TF_BOOL = 10,
    TF_BFLOAT16 = 14,
    TF_UINT16 = 17,
    TF_HALF = 19
} TF_DataType;

typedef struct TF_StringView {
    const char *data;
    size_t len;
} TF_StringView;

#define TENSORFLOW_DIMS_MAX 254 /* of a tensor: TensorShape::MaxDimensions() */

TF_Status *TF_NewStatus(void);
void TF_DeleteStatus(TF_Status *status);
void TF_SetStatus(TF_Status *status, TF_Code code, const char *text);
TF_Code TF_GetCode(const TF_Status *status);
const char *TF_Message(const TF_Status *status);

TF_DataType TF_TensorType(const TF_Tensor *tensor);
int TF_NumDims(const TF_Tensor *tensor);
int64_t TF_Dim(const TF_Tensor *tensor, int dim);
void *TF_TensorData(const TF_Tensor *tensor);
size_t TF_TensorByteSize(const TF_Tensor *tensor);
void TF_DeleteTensor(TF_Tensor *tensor);
/* Memory of the caller's, at a multiple of 64, until the deallocator is called. */
TF_Tensor *TF_NewTensor(TF_DataType dtype, const int64_t *dims, int num_dims, void *data,
                        size_t bytes, void (*deallocator)(void *data, size_t bytes, void *arg),
                        void *arg);

TF_OpDefinitionBuilder *TF_NewOpDefinitionBuilder(const char *op_name);
void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder *builder, const char *spec);
void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder *builder, const char *spec);
void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder *builder, const char *spec);
void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder *builder, bool is_stateful);
void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder *builder,
    void (*infer)(TF_ShapeInferenceContext *context, TF_Status *status));
void TF_RegisterOpDefinition(TF_OpDefinitionBuilder *builder, TF_Status *status);

int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext *context);
TF_ShapeHandle *TF_NewShapeHandle(void);
void TF_DeleteShapeHandle(TF_ShapeHandle *handle);
void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext *context, int i,
                                      TF_ShapeHandle *handle, TF_Status *status);
void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext *context, int i,
                                       TF_ShapeHandle *handle, TF_Status *status);
TF_ShapeHandle *TF_ShapeInferenceContextScalar(TF_ShapeInferenceContext *context);
TF_ShapeHandle *TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext *context,
                                                       size_t size);
int TF_ShapeInferenceContextRankKnown(TF_ShapeInferenceContext *context, TF_ShapeHandle *handle);
void TF_ShapeInferenceContextWithRankAtLeast(TF_ShapeInferenceContext *context,
                                             TF_ShapeHandle *handle, int64_t rank,
                                             TF_ShapeHandle *result, TF_Status *status);
void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext *context, TF_ShapeHandle *handle,
                                      int64_t start, int64_t end, TF_ShapeHandle *result,
                                      TF_Status *status);
void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext *context,
                                               TF_ShapeHandle *first, TF_ShapeHandle *second,
                                               TF_ShapeHandle *result, TF_Status *status);

TF_KernelBuilder *TF_NewKernelBuilder(const char *op_name, const char *device_name,
                                      void *(*create)(TF_OpKernelConstruction *),
                                      void (*compute)(void *, TF_OpKernelContext *),
                                      void (*destroy)(void *));
TF_KernelBuilder *TF_NewAsyncKernelBuilder(const char *op_name, const char *device_name,
                                           void *(*create)(TF_OpKernelConstruction *),
                                           void (*compute)(void *, TF_OpKernelContext *,
                                                           TF_AsyncOpKernelDoneCallback *done),
                                           void (*destroy)(void *));
void TF_RegisterKernelBuilder(const char *name, TF_KernelBuilder *builder, TF_Status *status);
void TF_RunAsyncOpKernelDoneCallback(TF_AsyncOpKernelDoneCallback *done);

TF_StringView TF_OpKernelConstruction_GetName(TF_OpKernelConstruction *construction);
void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction *construction, TF_Status *status);
void TF_OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction *construction, const char *name,
                                          int32_t *value, TF_Status *status);
void TF_OpKernelConstruction_GetAttrFloat(TF_OpKernelConstruction *construction, const char *name,
                                          float *value, TF_Status *status);
void TF_OpKernelConstruction_GetAttrSize(TF_OpKernelConstruction *construction, const char *name,
                                         int32_t *list_size, int32_t *total_size,
                                         TF_Status *status);
void TF_OpKernelConstruction_GetAttrString(TF_OpKernelConstruction *construction, const char *name,
                                           char *value, size_t max_length, TF_Status *status);

int TF_NumInputs(TF_OpKernelContext *context);
int64_t TF_StepId(TF_OpKernelContext *context);
void TF_GetInput(TF_OpKernelContext *context, int i, TF_Tensor **tensor, TF_Status *status);
TF_Tensor *TF_AllocateOutput(TF_OpKernelContext *context, int i, TF_DataType dtype,
                             const int64_t *dims, int num_dims, size_t bytes, TF_Status *status);
/* The output's memory is that of one of the candidates when nobody else refers to it. */
TF_Tensor *TF_ForwardInputOrAllocateOutput(TF_OpKernelContext *context, const int *candidates,
                                           int num_candidates, int i, const int64_t *dims,
                                           int num_dims, int *forwarded_input, TF_Status *status);
void TF_SetOutput(TF_OpKernelContext *context, int i, const TF_Tensor *tensor, TF_Status *status);
void TF_OpKernelContext_Failure(TF_OpKernelContext *context, TF_Status *status);

#endif
