/* SPDX-License-Identifier: Apache-2.0
 * What the fake libnccl.so.2 and tests ask of the fake libcuda.so.1: fakegpu_api, by dlsym. */
#ifndef FAKEGPU_API_H
#define FAKEGPU_API_H

#include "daemon/gpu/kernels/kernels.h"
#include "gpu/cuda.h"

struct fakegpu_span {
    uint64_t address;
    size_t bytes;
};

struct fakegpu_api {
    /* As a driver's call, on the current context: the work runs in the stream, with a copy of data. */
    int (*enqueue)(hvi_cu_stream stream, void (*run)(void *), const void *data, size_t bytes,
                   const struct fakegpu_span *spans, size_t count);
    /* The current context's device, which all processes number alike; -1: there is none. */
    int (*device)(void);
    /* Whether work in streams is still run: nothing has broken the context. */
    bool (*is_alive)(void);
    /* NCCL has registered this memory (`change` 1), or no longer (-1): freeing or unmapping it in between is a fault. False: it is
     * no memory of devices. */
    bool (*note_registered)(uint64_t address, size_t bytes, int change);
    /* Rows are looked at before all others, the newest first; the last has no name. They stay the caller's, for ever. */
    void (*add_kernels)(const struct hvd_kernel_row *rows);
};
__attribute__((visibility("default"))) const struct fakegpu_api *fakegpu_api(void);

#endif
