/* SPDX-License-Identifier: Apache-2.0
 * libnccl by dlopen, as one table of functions. Own types: nccl.h is not needed to build. The numbers are those of nccl.h
 * 2.18 and newer; unit.gpu_abi compares them where nccl.h is there. One thread for all calls of a communicator. */
#ifndef GPU_NCCL_H
#define GPU_NCCL_H

#include <stddef.h>

struct gpu_nccl_id { /* ncclUniqueId, by value */
    char bytes[128];
};
typedef struct gpu_nccl_comm *gpu_nccl_comm;

enum {
    GPU_NCCL_OK = 0,
    GPU_NCCL_CUDA_ERROR = 1,
    GPU_NCCL_IN_PROGRESS = 7,
};
enum {
    GPU_NCCL_INT8,
    GPU_NCCL_UINT8,
    GPU_NCCL_INT32,
    GPU_NCCL_UINT32,
    GPU_NCCL_INT64,
    GPU_NCCL_UINT64,
    GPU_NCCL_FLOAT16,
    GPU_NCCL_FLOAT32,
    GPU_NCCL_FLOAT64,
    GPU_NCCL_BFLOAT16,
    GPU_NCCL_E4M3, /* from 2.24 on */
    GPU_NCCL_E5M2,
};
enum {
    GPU_NCCL_SUM,
    GPU_NCCL_PRODUCT,
    GPU_NCCL_MAX,
    GPU_NCCL_MIN,
};

struct gpu_nccl {
    void *library; /* never closed */
    int number;    /* of its version: 21805 is 2.18.5 */
#define GPU_NCCL(member, symbol, need, result, parameters) result(*member) parameters;
#include "daemon/gpu/nccl.def"
#undef GPU_NCCL
};

#define GPU_NCCL_VERSION_MIN 21800
/* From 2.26 on NCCL binds to a multicast object what is a multiple of the allocation's granularity (nvls.cc), as
 * hvd_device_alloc's memory is; before, it wanted a multiple of the object's recommended one. */
#define GPU_NCCL_REGISTER_MIN 22600

/* Looks at: HVD_NCCL_LIB, and where that is set at nothing else; libnccl.so.2 by the loader; nvidia/nccl/lib below each folder
 * of `path`, with colons between them: gpu-library-path (hvdd.conf), which has site-packages of the system's Pythons; and where
 * this program has come with Python's package hvd, there below the site-packages that have it. At least 2.18; what is older is passed over. HVI_OK; HVI_ERR_UNSUPPORTED with a sentence: what is missing, where it was looked for,
 * which version is needed. */
int gpu_nccl_open(const char *path, struct gpu_nccl *nccl_p, char *text_p, size_t text_size);

#endif
