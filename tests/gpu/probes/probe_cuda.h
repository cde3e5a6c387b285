/* SPDX-License-Identifier: Apache-2.0
 * The CUDA driver as the probes use it: a table of functions found in libcuda.so.1 at run time, so that the programs start
 * anywhere, and the kernels of kernels.cu. Empty where the toolkit's cuda.h is not to be found.
 *
 * A row of probe_cuda.def names a function as cuda.h does; the macros of cuda.h turn it into the symbol that has the type this header saw
 * (cuMemAlloc -> cuMemAlloc_v2), both here and in a call. */
#ifndef HVD_GPU_PROBE_CUDA_H
#define HVD_GPU_PROBE_CUDA_H
#if __has_include(<cuda.h>)
#include "probe.h"

#include <cuda.h>
#include <stddef.h>

struct cu_api {
    __typeof__(cuDriverGetVersion) *cuDriverGetVersion;
    __typeof__(cuGetErrorName) *cuGetErrorName;
#define HVI_ROW(f) __typeof__(f) *f;
#include "probe_cuda.def"
#undef HVI_ROW
};
extern struct cu_api cu;
extern CUdevice cu_device;

/* CU(cuMemFree, p): calls, or fails with the name of the function and of the error. */
#define CU(f, ...) cu_must(cu.f(__VA_ARGS__), #f)
void cu_must(CUresult result, const char *what);
const char *cu_error(CUresult result);

enum cu_needs {
    CU_NEEDS_IPC = 1,
    CU_NEEDS_VMM = 2,
    CU_NEEDS_POOLS = 4,
    CU_NEEDS_TWO_PROCESSES = 8,
};

/* Loads the driver, makes the primary context of device o->device current in this thread, and loads the kernels; refuses if
 * the machine cannot. Records facts about it. With o->is_check it ends the role with PROBE_OK at the end. */
void cu_attach(const struct probe_options *o, unsigned needs);

/* Makes the context that cu_attach made current in another thread, or fails. */
void cu_enter(void);

/* cuStreamQuery until the stream is done: 1, or 0 when wait_s has passed. Any error of the stream fails. */
int cu_wait(CUstream s, double wait_s);
/* cu_wait, or fails: a stream that never gets done is no result here. */
void cu_settle(CUstream s, const char *what);
CUstream cu_stream(void);           /* non-blocking, so that it never waits for the null stream */
CUdeviceptr cu_alloc(size_t bytes); /* cuMemAlloc: the kind of memory that legacy IPC exports */
double cu_free_mib(void);           /* of the device, as seen by all processes */
int cu_attribute(CUdevice_attribute a);
/* Maps another process's memory; flags and errors as cuIpcOpenMemHandle has them, or fails. */
CUdeviceptr cu_ipc_open(const void *handle_bytes);

/* --- kernels.cu --- */
struct cu_buffers {
    CUdeviceptr p[8];
};
struct cu_tile { /* of the pack kernel; in 16-byte units */
    uint32_t from, to, count, unused;
};
CUfunction cu_kernel(const char *name);
void cu_launch(CUfunction f, unsigned grid, unsigned block, CUstream s, void **arguments);
void cu_touch(CUstream s, CUdeviceptr word); /* one thread adds 1 to a uint64 */
void cu_work(CUstream s, unsigned iterations,
             CUdeviceptr sink);                    /* fills the device with arithmetic */
unsigned cu_work_for(double us, CUdeviceptr sink); /* iterations that take about us */
void cu_fill(CUstream s, CUdeviceptr p, size_t words, uint32_t seed); /* a pattern of uint32 */
void cu_check(CUstream s, CUdeviceptr p, size_t words, uint32_t seed,
              CUdeviceptr bad); /* adds mismatches to *bad */
/* Fills *bad anew, runs cu_check and waits: how many words are wrong. */
uint64_t cu_mismatches(CUdeviceptr p, size_t words, uint32_t seed);
#endif
#endif
