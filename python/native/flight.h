/* SPDX-License-Identifier: Apache-2.0
 * One kernel of TensorFlow's in flight: its tensors, its ops in the library, and its end. Made by ops.c,
 * flown by crew.c. */
#ifndef PYTHON_NATIVE_FLIGHT_H
#define PYTHON_NATIVE_FLIGHT_H

#include "hvd/hvd.h"
#include "python/native/done.h"
#include "python/native/tensorflow_c.h"

#include <stdatomic.h>

#define FLIGHT_TEXT_MAX 4096

enum flight_kind {
    FLIGHT_ALLREDUCE,
    FLIGHT_ALLGATHER,
    FLIGHT_BROADCAST,
    FLIGHT_ALLTOALL,
    FLIGHT_REDUCESCATTER,
    FLIGHT_JOIN
};

/* A kernel's attributes, and what it has learnt; lives as long as the kernel, which TensorFlow keeps while it is in flight. */
struct flight_plan {
    enum flight_kind kind;
    bool grouped;
    enum hvd_reduce_op reduce_op;
    int root;
    struct hvd_op_options options;
    char *name;  /* the op's name for the ranks; NULL: unnamed */
    char *title; /* for errors: "HorovodAllreduce 'grads/dense_1'" */
    /* Results lie in the pool: when the kernel ran before, an input had other users. */
    atomic_bool uses_pool;
};

/* One tensor. */
struct flight_part {
    TF_Tensor *in, *out; /* references that keep the memory; out NULL: the engine tells its size */
    struct hvd_op *op;
};

struct flight {
    const struct flight_plan *plan;
    TF_OpKernelContext *context;
    struct done done;
    int64_t *splits;     /* rows to send, of an alltoall; from malloc; NULL: equal parts */
    bool stays;          /* done cannot be kept: the submitting thread waits */
    bool cancelled;      /* was taken back */
    bool interrupted;    /* by the user */
    bool keeps;          /* its memory for ever: somebody may still write there */
    struct flight *next; /* in the inbox, or waiting for room */
    int count;
    struct flight_part parts[];
};

/* A flight of `count` parts (zeroed). `done` is taken over. NULL: no memory. */
struct flight *flight_new(const struct flight_plan *plan, TF_OpKernelContext *context,
                          TF_AsyncOpKernelDoneCallback *done, int count);
/* Submits its ops; an hvd_status. Inside the session. */
int flight_submit(struct flight *flight, struct hvd_session *session);
/* Whether it was, with success. */
bool flight_is_submitted(const struct flight *flight);
/* The number of its ops, 1 at least. */
int flight_op_count(const struct flight *flight);
/* A finished flight's results to TensorFlow, or why there are none; its ops are freed. Inside the session. `status`: of its
 * first op. For flight_land. */
TF_Status *flight_settle(struct flight *flight, struct hvd_session *session, int status);
/* Tells TensorFlow that a settled flight is over, and frees it with `failure`. Outside the session, because TensorFlow may
 * go on in this thread. */
void flight_land(struct flight *flight, TF_Status *failure);
/* Ends it with an error; frees it. Outside the session. */
void flight_fail(struct flight *flight, TF_Code code, const char *text);

/* TensorFlow's class of an error. */
TF_Code flight_code_of(int status);

/* Who may rephrase, in place, what the engine says of ranks that disagree. Called by any thread. */
HVD_API void hvd_tf_rephrase(void (*rephrase)(char *text, size_t capacity));

#endif
