/* SPDX-License-Identifier: Apache-2.0
 * Calls of the driver and of NCCL, which may not return. The thread that makes them says which one it is in; the main thread
 * reads that (guard.c). The first error stays: it is of the context, or of a communicator, and ends this process. */
#ifndef HVD_GPU_CALLS_H
#define HVD_GPU_CALLS_H

#include "gpu/cuda.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct gpu_calls {
    const struct hvi_cuda *cuda;
    uint64_t usual_ns; /* the longest call */
    /* Of the call that the thread is in. .name: NULL: in none; release, pairs with the acquire in gpu_calls_look. */
    _Atomic(const char *) name;
    _Atomic uint64_t since_ns, limit_ns;
    _Atomic uint64_t batch; /* that it is done for; 0: none */
    /* The thread's, and of others once it has said so. */
    bool failed;
    char why[300];
};

void gpu_calls_begin(struct gpu_calls *calls, const char *name, uint64_t limit_ns);
void gpu_calls_end(struct gpu_calls *calls);
/* False, with .why, for anything but HVI_CU_OK. */
bool gpu_calls_good(struct gpu_calls *calls, const char *name, int error);
/* In words. */
void gpu_calls_fail(struct gpu_calls *calls, const char *name, const char *text);
/* Any thread. True: the call it is in has lasted too long, counted from `from_ns` at the earliest; the sentence says which. */
bool gpu_calls_look(const struct gpu_calls *calls, uint64_t from_ns, uint64_t now_ns, char *text_p,
                    size_t text_size);

/* One call of the driver: whether it was good. */
#define GPU_CALL(calls, name, expression)                                                          \
    (gpu_calls_begin((calls), (name), (calls)->usual_ns),                                          \
     gpu_calls_good((calls), (name), (expression)))

#endif
