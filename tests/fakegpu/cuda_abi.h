/* SPDX-License-Identifier: Apache-2.0
 * Every function of the fake libcuda.so.1 under the symbol that cuda.h gives it: of gpu/cuda.def, so with the very parameters
 * that the product calls, and of more.def. unit.gpu_abi compares the types here with cuda.h. */
#ifndef FAKEGPU_CUDA_ABI_H
#define FAKEGPU_CUDA_ABI_H

#include "gpu/cuda.h"

struct fake_pool_properties { /* CUmemPoolProps */
    int type, handle_types;
    struct hvi_cu_location location;
    void *windows;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
};

enum { /* errors that the product has no name for */
       FAKE_INVALID_IMAGE = 200,
       FAKE_MAP_FAILED = 205,
       FAKE_PEERS_UNSUPPORTED = 217,
       FAKE_INVALID_HANDLE = 400,
       FAKE_ALREADY_REGISTERED = 712,
       FAKE_NOT_REGISTERED = 713,
       FAKE_CAPTURE_UNSUPPORTED = 900,
       FAKE_UNKNOWN = 999,
};
enum {
    FAKE_EVENT_NO_TIMING = 2,
    FAKE_EVENT_IPC = 4,
    FAKE_CAPTURE_GLOBAL = 0,
    FAKE_READ_WRITE = 3,
    FAKE_MEMORY_HOST = 1,
    FAKE_DEVICE_SMS = 16,
    FAKE_DEVICE_MODE = 20,
    FAKE_DEVICE_FABRIC = 128,
    FAKE_DEVICE_MPS = 133,
};

#define HVI_CU(member, symbol, need, parameters)                                                   \
    __attribute__((visibility("default"))) int cu_##member parameters __asm__(symbol);
#include "gpu/cuda.def"
#include "tests/fakegpu/more.def"
#undef HVI_CU

#endif
