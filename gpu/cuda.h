/* SPDX-License-Identifier: Apache-2.0
 * libcuda by dlopen, as one table of functions. Own types: no CUDA header is needed to build. The numbers are those of
 * cuda.h 12 and 13; unit.gpu_abi compares them where cuda.h is there. Any thread; functions block as the driver's do. */
#ifndef HVI_GPU_CUDA_H
#define HVI_GPU_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef uint64_t hvi_cu_ptr; /* CUdeviceptr */
typedef int hvi_cu_device;
typedef struct hvi_cu_context *hvi_cu_context;
typedef struct hvi_cu_stream *hvi_cu_stream; /* (void *)1: legacy, (void *)2: per thread */
typedef struct hvi_cu_library *hvi_cu_library;
typedef struct hvi_cu_kernel *hvi_cu_kernel;
typedef struct hvi_cu_event *hvi_cu_event;
typedef uint64_t hvi_cu_allocation; /* CUmemGenericAllocationHandle */
struct hvi_cu_uuid {
    unsigned char bytes[16];
};
struct hvi_cu_ipc { /* CUipcMemHandle, by value */
    unsigned char bytes[64];
};
struct hvi_cu_pool_pointer { /* CUmemPoolPtrExportData */
    unsigned char bytes[64];
};
struct hvi_cu_fabric { /* CUmemFabricHandle */
    unsigned char bytes[64];
};
struct hvi_cu_location { /* type 1: device */
    int type, id;
};
struct hvi_cu_access { /* flags 3: read and write */
    struct hvi_cu_location location;
    int flags;
};
struct hvi_cu_allocation_properties { /* CUmemAllocationProp; type 1: pinned */
    int type, handle_types;
    struct hvi_cu_location location;
    void *windows;
    unsigned char compression, rdma; /* rdma 1: GPUDirect RDMA may use it */
    unsigned short usage;
    unsigned char reserved[4];
};
struct hvi_cu_multicast_properties { /* CUmulticastObjectProp */
    unsigned devices;
    size_t bytes;
    uint64_t handle_types, flags;
};

/* CUstreamBatchMemOpParams, 48 bytes. operation 4: wait 64, 5: write 64. Wait's flags 0: cyclic >=. */
union hvi_cu_memop {
    struct {
        uint32_t operation;
        hvi_cu_ptr address;
        uint64_t value;
        uint32_t flags;
        hvi_cu_ptr alias;
    } op;
    uint64_t pad[6];
};
_Static_assert(sizeof(union hvi_cu_memop) == 48, "as cuda.h");

enum {
    HVI_CU_OK = 0,
    HVI_CU_INVALID_VALUE = 1,
    HVI_CU_OUT_OF_MEMORY = 2,
    HVI_CU_NOT_INITIALIZED = 3,
    HVI_CU_NO_DEVICE = 100,
    HVI_CU_INVALID_DEVICE = 101,
    HVI_CU_INVALID_CONTEXT = 201,
    HVI_CU_ALREADY_MAPPED = 208,
    HVI_CU_NOT_FOUND = 500,
    HVI_CU_NOT_READY = 600,
    HVI_CU_ILLEGAL_ADDRESS = 700,
    HVI_CU_NOT_PERMITTED = 800,
    HVI_CU_NOT_SUPPORTED = 801,
    HVI_CU_MPS_CONNECTION_FAILED = 805,
    HVI_CU_MPS_RPC_FAILURE = 806,
    HVI_CU_MPS_SERVER_NOT_READY = 807,
    HVI_CU_MPS_MAX_CLIENTS = 808,
    HVI_CU_MPS_MAX_CONNECTIONS = 809,
    HVI_CU_MPS_CLIENT_TERMINATED = 810,
    /* pointer attributes */
    HVI_CU_POINTER_MEMORY_TYPE = 2,
    HVI_CU_POINTER_BUFFER_ID = 7,
    HVI_CU_POINTER_IS_MANAGED = 8,
    HVI_CU_POINTER_DEVICE = 9,
    HVI_CU_POINTER_LEGACY_IPC = 10,
    HVI_CU_POINTER_RANGE_START = 11,
    HVI_CU_POINTER_RANGE_SIZE = 12,
    HVI_CU_POINTER_MAPPED = 13,
    HVI_CU_POINTER_HANDLE_TYPES = 14,
    HVI_CU_POINTER_MEMPOOL = 17,
    HVI_CU_MEMORY_DEVICE = 2,
    HVI_CU_HANDLE_FD = 1,
    HVI_CU_HANDLE_FABRIC = 8,
    /* device attributes */
    HVI_CU_DEVICE_PROCESSORS = 16,
    HVI_CU_DEVICE_CC_MAJOR = 75,
    HVI_CU_DEVICE_CC_MINOR = 76,
    HVI_CU_DEVICE_RDMA_VMM = 110,
    HVI_CU_DEVICE_MEMOPS_64 = 122,
    HVI_CU_DEVICE_MULTICAST = 132,
    HVI_CU_GRANULARITY_MINIMUM = 0, /* of allocations and of multicast objects */
    HVI_CU_GRANULARITY_RECOMMENDED = 1,
    HVI_CU_IPC_LAZY_PEER = 1,
    HVI_CU_STREAM_NON_BLOCKING = 1,
    HVI_CU_CAPTURE_RELAXED = 2,
    HVI_CU_HOST_PORTABLE = 1,
    HVI_CU_HOST_DEVICEMAP = 2,
    HVI_CU_MEMOP_WAIT_64 = 4,
    HVI_CU_MEMOP_WRITE_64 = 5,
};

struct hvi_cuda {
    void *library; /* never closed */
    int version;   /* of the driver: 12040 is CUDA 12.4 */
#define HVI_CU(member, symbol, need, parameters) int(*member) parameters;
#include "gpu/cuda.def"
#undef HVI_CU
};

#define HVI_CUDA_VERSION_MIN 12000 /* cuLibraryLoadData */

/* `loaded_only`: only if this process has the library already. HVI_OK; HVI_ERR_NOT_FOUND (loaded_only and it is not);
 * HVI_ERR_UNSUPPORTED with a sentence: what is missing, where it was looked for, which version is needed (12.0). */
int hvi_cuda_open(bool loaded_only, struct hvi_cuda *cuda_p, char *text_p, size_t text_size);
/* "CUDA_ERROR_ILLEGAL_ADDRESS (700)" */
void hvi_cuda_describe(const struct hvi_cuda *cuda, int error, char *text_p, size_t text_size);

/* "GPU-xxxxxxxx-…", 41 bytes with NUL; NVML's and nvidia-smi's form. Parse: false for another form. */
#define HVI_GPU_UUID_TEXT 41u
void hvi_gpu_uuid_format(const struct hvi_cu_uuid *uuid, char text_p[HVI_GPU_UUID_TEXT]);
bool hvi_gpu_uuid_parse(const char *text, struct hvi_cu_uuid *uuid_p);

#endif
