/* SPDX-License-Identifier: Apache-2.0
 * Memory and streams of GPUs for a trainer of the tests, by the libcuda that the loader finds: tests/fakegpu where LD_LIBRARY_PATH
 * says so. One thread. What the driver refuses ends the program with 3 and a sentence. */
#ifndef HVT_GPU_H
#define HVT_GPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HVT_GPU_STREAMS 16

enum hvt_gpu_kind {
    HVT_GPU_ARENA,   /* a part of the GPU's arena */
    HVT_GPU_OWN,     /* an allocation of its own */
    HVT_GPU_SEGMENT, /* a part of a segment that grows by chunks, as PyTorch's; unmapped when nothing in it is used any more */
    HVT_GPU_POOL,    /* out of a pool of this process whose memory can be shared */
    HVT_GPU_MADE,    /* a part of another arena, which hvd_device_alloc has made */
    HVT_GPU_FABRIC   /* as SEGMENT, another one, with fabric handles alone */
};
/* Memory of this GPU. */
void *hvt_gpu_alloc(int gpu, size_t bytes, enum hvt_gpu_kind kind);
/* `forget` tells the library before an own allocation goes, or one of a pool. */
void hvt_gpu_free(void *data, void (*forget)(void *user, void *data), void *user);

/* A new stream of this GPU: its number. */
int hvt_gpu_stream(int gpu);
/* What hvd_op_options.stream takes; NULL for -1. */
void *hvt_gpu_handle(int stream);
/* The stream stands at what is enqueued from now on, until it is opened. */
void hvt_gpu_gate(int stream);
void hvt_gpu_open(int stream);
/* Whether the stream has nothing left to do within this time. */
bool hvt_gpu_drain(int stream, int64_t timeout_ms);

/* Copies, in the stream's order; they wait for the copy with -1 alone. Else host memory is lent until the stream has drained. */
void hvt_gpu_copy_in(int stream, void *to, const void *from, size_t bytes);
void hvt_gpu_copy_out(int stream, void *to, const void *from, size_t bytes);

#endif
