/* SPDX-License-Identifier: Apache-2.0
 * What the files of the fake libcuda.so.1 share. Device memory is memfds, mapped where the "device" pointer says, so the CPU
 * is the device; a stream's work runs on the thread of its hardware queue. */
#ifndef HVD_GPU_FAKE_CUDA_H
#define HVD_GPU_FAKE_CUDA_H
#if __has_include(<cuda.h>)
#include <cuda.h>
#include <stddef.h>
#include <stdint.h>

union fake_arg {
    uint64_t u64;
    uint32_t u32;
    float f32;
    void *p;
    void *buffers[8];
};

struct fake_kernel {
    const char *prefix;    /* of the kernel's name */
    const char *arguments; /* '8': eight bytes, '4': four, 'b': eight pointers */
    void (*run)(const char *name, union fake_arg *a);
};
const struct fake_kernel *fake_kernel_find(const char *name);

/* A number from the environment. */
int fake_variable(const char *name, int otherwise);
/* The context's sticky error, CUDA_SUCCESS while there is none. */
CUresult fake_error(void);
void fake_break(CUresult error);
/* CUDA_SUCCESS if this thread may call: initialised, context current, not broken. */
CUresult fake_ready(void);
/* Appends work to a stream; also called by the fake NCCL, by name. */
void fake_cuda_enqueue(CUstream s, void (*run)(void *), const void *data, size_t bytes);
/* How much work is in all streams of this process. */
int fake_pending(void);
/* Whether this is registered or pinned host memory. */
int fake_is_host(uint64_t p);
/* Naps while a stream's work waits for something. */
void fake_nap(void);
#endif
#endif
