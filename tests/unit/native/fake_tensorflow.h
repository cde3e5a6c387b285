/* SPDX-License-Identifier: Apache-2.0
 * TensorFlow's side of its C API, as far as python/native uses it, for tests: ops and kernels are registered here, kernels are
 * called with contexts of the test's, and a call's memory is watched after its end.
 *
 * As in TensorFlow, the callback of an asynchronous kernel is a std::function<void()> of libstdc++ in the frame of the caller,
 * which is gone when the kernel's function has returned; a call's inputs, and what failed calls put out, are
 * released in that callback.
 *
 * Memory whose last reference goes is filled with POISON and kept; hvt_tf_spoiled counts the bytes that were written since. Any
 * thread may call; every wait has a deadline. */
#ifndef HVT_FAKE_TENSORFLOW_H
#define HVT_FAKE_TENSORFLOW_H

#include "python/native/tensorflow_c.h"

#define HVT_POISON     0xdb
#define HVT_INPUTS_MAX 8

/* ---- tensors ---- */

enum hvt_home { HVT_ORDINARY, HVT_HEAP }; /* of the process alone, or a slab of the heap (slab.h) */

/* A zeroed tensor; the reference is the caller's, for TF_DeleteTensor or a call. */
TF_Tensor *hvt_tensor_new(TF_DataType dtype, const int64_t *dims, int ndim, enum hvt_home home);
/* The same of one dimension. */
TF_Tensor *hvt_vector_new(TF_DataType dtype, int64_t count, enum hvt_home home);
/* Another reference. */
TF_Tensor *hvt_tensor_ref(const TF_Tensor *tensor);
/* Where slabs of the heap come from. Before the first tensor there. */
void hvt_tf_set_heap(void *(*take)(size_t bytes));

/* Bytes of released memory that were written after its end, since the last call; what was unspoiled and is not the
 * pool's is forgotten. */
size_t hvt_tf_spoiled(void);

/* How many references there are. */
int hvt_tf_tensors(void);

/* ---- kernels and their calls ---- */

struct hvt_attr {
    const char *name; /* NULL after the last */
    int32_t number;
    float factor;
    const char *text;
};

/* A kernel of a registered op on the CPU. NULL: its create refused; hvt_tf_error says why. */
struct hvt_kernel *hvt_kernel_new(const char *op, const struct hvt_attr *attrs);
void hvt_kernel_free(struct hvt_kernel *kernel);
const char *hvt_tf_error(void);

/* A call with `count` inputs, whose references it takes over. */
struct hvt_call *hvt_call_new(struct hvt_kernel *kernel, TF_Tensor *const *inputs, int count);
/* Calls the kernel in this thread. Once. */
void hvt_call_run(struct hvt_call *call);
/* The step of the call is cancelled. */
void hvt_call_cancel(struct hvt_call *call);
/* Waits until the call has ended: false after 60 seconds. */
bool hvt_call_wait(struct hvt_call *call);
bool hvt_call_has_ended(struct hvt_call *call);
/* Of an ended call. */
TF_Code hvt_call_code(const struct hvt_call *call);
const char *hvt_call_text(const struct hvt_call *call);
/* The call's own reference; NULL: there is no such output. */
TF_Tensor *hvt_call_output(const struct hvt_call *call, int i);
void hvt_call_free(struct hvt_call *call);

/* From now on the words of callbacks do not look like a std::function of a library's. */
void hvt_tf_spoil_callbacks(void);

/* Where a call keeps its step, for hvd_tf_cancellation. */
extern const size_t hvt_tf_params_offset, hvt_tf_manager_offset;

/* ---- shapes ---- */

#define HVT_UNKNOWN (-1)
struct hvt_shape {
    int ndim; /* HVT_UNKNOWN: nothing is known */
    int64_t dims[4];
};

/* The shapes of an op's outputs. The status of its function. */
TF_Code hvt_infer(const char *op, const struct hvt_shape *inputs, int count,
                  struct hvt_shape outputs_p[HVT_INPUTS_MAX]);

/* How many ops are registered with a kernel. */
int hvt_tf_op_count(void);

#endif
