/* SPDX-License-Identifier: Apache-2.0
 * TensorFlow's kernels in flight: from submission to the kernel's end, and the session they use.
 *
 * A kernel fills a struct flight and hands it to flight_start, which never waits for other ranks. Its
 * end is told to TensorFlow by the submitting thread, where the op is over at once, or else by the one
 * thread of this file. Flights that find no room are kept, in order, until there is some. */
#ifndef PYTHON_NATIVE_FLIGHT_H
#define PYTHON_NATIVE_FLIGHT_H

#include "hvd/hvd.h"
#include "python/native/tensorflow_c.h"

enum flight_kind {
    FLIGHT_ALLREDUCE,
    FLIGHT_ALLGATHER,
    FLIGHT_BROADCAST,
    FLIGHT_ALLTOALL,
    FLIGHT_REDUCESCATTER,
    FLIGHT_JOIN
};

/* A kernel's attributes; lives as long as the kernel, which TensorFlow keeps while it is in flight. */
struct flight_plan {
    enum flight_kind kind;
    bool grouped;
    enum hvd_reduce_op reduce_op;
    int root;
    struct hvd_op_options options;
    char *name;  /* the op's name for the ranks; NULL: unnamed */
    char *title; /* for errors: "HorovodAllreduce grads/dense_1" */
};

/* One tensor of a flight. */
struct flight_part {
    TF_Tensor *in,
        *out; /* references that keep the memory; out NULL: none, or told by the engine */
    TF_DataType dtype;
    int ndim; /* of the result that TensorFlow sees, beyond what struct hvd_tensor can say */
    struct hvd_op *op;
};

struct flight;

/* The session that kernels use from now on. Called by the thread that has opened it. */
HVD_API void hvd_tf_attach(struct hvd_session *session);
/* Before hvd_close: from the return on no thread of the library is inside the session. */
HVD_API void hvd_tf_park(void);
/* After hvd_close: kernels that were in flight fail. */
HVD_API void hvd_tf_detach(void);

/* The session, to be given back by flight_leave; NULL: there is none, or it is another process'. */
struct hvd_session *flight_enter(void);
void flight_leave(void);

/* A flight of `count` parts (zeroed). `done` is taken over. NULL: no memory. */
struct flight *flight_new(const struct flight_plan *plan, TF_OpKernelContext *context,
                          TF_AsyncOpKernelDoneCallback *done, int count);
struct flight_part *flight_parts(struct flight *flight);
/* Rows to send, of an alltoall: copied. NULL: equal parts. False: no memory. */
bool flight_set_splits(struct flight *flight, const int64_t *splits, int count);

/* Submits it and sees to its end. Takes the flight over, also when it fails. */
void flight_start(struct flight *flight);
/* Ends it with an error. */
void flight_fail(struct flight *flight, TF_Code code, const char *text);

/* The library's type for TensorFlow's, or false. */
bool flight_dtype(TF_DataType dtype, enum hvd_dtype *dtype_p);

#endif
