/* SPDX-License-Identifier: Apache-2.0
 * The own types and numbers of gpu/cuda.h and daemon/gpu/nccl.h beside NVIDIA's headers, where those are: the compiler compares. */
#include "daemon/gpu/nccl.h"
#include "gpu/cuda.h"
#include "tests/fakegpu/cuda_abi.h"
#include "tests/unit/hvt_main.h"

#if __has_include(<cuda.h>)
#include <cuda.h>
#include <stddef.h>

#define SAME(own, theirs)                                                                          \
    _Static_assert((long long)(own) == (long long)(theirs), #own " is not " #theirs)
#define SIZE(own, theirs) _Static_assert(sizeof(own) == sizeof(theirs), #own " is not " #theirs)

SIZE(hvi_cu_ptr, CUdeviceptr);
SIZE(hvi_cu_device, CUdevice);
SIZE(hvi_cu_context, CUcontext);
SIZE(hvi_cu_stream, CUstream);
SIZE(hvi_cu_library, CUlibrary);
SIZE(hvi_cu_kernel, CUkernel);
SIZE(hvi_cu_event, CUevent);
SIZE(hvi_cu_kernel, CUfunction);
SIZE(hvi_cu_allocation, CUmemGenericAllocationHandle);
SIZE(struct hvi_cu_uuid, CUuuid);
SIZE(struct hvi_cu_ipc, CUipcMemHandle);
SIZE(struct hvi_cu_pool_pointer, CUmemPoolPtrExportData);
SIZE(struct hvi_cu_location, CUmemLocation);
SIZE(struct hvi_cu_access, CUmemAccessDesc);
SIZE(union hvi_cu_memop, CUstreamBatchMemOpParams);
SIZE(struct hvi_cu_allocation_properties, CUmemAllocationProp);
SAME(offsetof(struct hvi_cu_allocation_properties, handle_types),
     offsetof(CUmemAllocationProp, requestedHandleTypes));
SAME(offsetof(struct hvi_cu_allocation_properties, location),
     offsetof(CUmemAllocationProp, location));
SAME(offsetof(struct hvi_cu_allocation_properties, rdma),
     offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
SAME(offsetof(struct hvi_cu_location, id), offsetof(CUmemLocation, id));
SAME(offsetof(struct hvi_cu_access, flags), offsetof(CUmemAccessDesc, flags));
SAME(offsetof(union hvi_cu_memop, op.address),
     offsetof(CUstreamBatchMemOpParams, waitValue.address));
SAME(offsetof(union hvi_cu_memop, op.value), offsetof(CUstreamBatchMemOpParams, waitValue.value64));
SAME(offsetof(union hvi_cu_memop, op.flags), offsetof(CUstreamBatchMemOpParams, waitValue.flags));
SAME(offsetof(union hvi_cu_memop, op.alias), offsetof(CUstreamBatchMemOpParams, waitValue.alias));
SAME(offsetof(union hvi_cu_memop, op.value),
     offsetof(CUstreamBatchMemOpParams, writeValue.value64));

SAME(HVI_CU_OK, CUDA_SUCCESS);
SAME(HVI_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(HVI_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(HVI_CU_NOT_INITIALIZED, CUDA_ERROR_NOT_INITIALIZED);
SAME(HVI_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(HVI_CU_INVALID_DEVICE, CUDA_ERROR_INVALID_DEVICE);
SAME(HVI_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(HVI_CU_ALREADY_MAPPED, CUDA_ERROR_ALREADY_MAPPED);
SAME(HVI_CU_NOT_FOUND, CUDA_ERROR_NOT_FOUND);
SAME(HVI_CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(HVI_CU_ILLEGAL_ADDRESS, CUDA_ERROR_ILLEGAL_ADDRESS);
SAME(HVI_CU_NOT_PERMITTED, CUDA_ERROR_NOT_PERMITTED);
SAME(HVI_CU_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED);
SAME(HVI_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(HVI_CU_POINTER_BUFFER_ID, CU_POINTER_ATTRIBUTE_BUFFER_ID);
SAME(HVI_CU_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(HVI_CU_POINTER_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(HVI_CU_POINTER_LEGACY_IPC, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
SAME(HVI_CU_POINTER_RANGE_START, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
SAME(HVI_CU_POINTER_RANGE_SIZE, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
SAME(HVI_CU_POINTER_MAPPED, CU_POINTER_ATTRIBUTE_MAPPED);
SAME(HVI_CU_POINTER_HANDLE_TYPES, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
SAME(HVI_CU_POINTER_MEMPOOL, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
SAME(HVI_CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME(HVI_CU_HANDLE_FD, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
SAME(HVI_CU_HANDLE_FABRIC, CU_MEM_HANDLE_TYPE_FABRIC);
SAME(HVI_CU_DEVICE_CC_MAJOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
SAME(HVI_CU_DEVICE_CC_MINOR, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
#if CUDA_VERSION >= 12000
SAME(HVI_CU_MPS_CONNECTION_FAILED, CUDA_ERROR_MPS_CONNECTION_FAILED);
SAME(HVI_CU_MPS_RPC_FAILURE, CUDA_ERROR_MPS_RPC_FAILURE);
SAME(HVI_CU_MPS_SERVER_NOT_READY, CUDA_ERROR_MPS_SERVER_NOT_READY);
SAME(HVI_CU_MPS_MAX_CLIENTS, CUDA_ERROR_MPS_MAX_CLIENTS_REACHED);
SAME(HVI_CU_MPS_MAX_CONNECTIONS, CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED);
SAME(HVI_CU_MPS_CLIENT_TERMINATED, CUDA_ERROR_MPS_CLIENT_TERMINATED);
SAME(HVI_CU_DEVICE_PROCESSORS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(HVI_CU_DEVICE_MEMOPS_64, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS);
#endif
#if CUDA_VERSION >= 12010
SIZE(struct hvi_cu_multicast_properties, CUmulticastObjectProp);
SAME(offsetof(struct hvi_cu_multicast_properties, bytes), offsetof(CUmulticastObjectProp, size));
SAME(HVI_CU_DEVICE_MULTICAST, CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED);
SAME(HVI_CU_GRANULARITY_MINIMUM, CU_MULTICAST_GRANULARITY_MINIMUM);
SAME(HVI_CU_GRANULARITY_RECOMMENDED, CU_MULTICAST_GRANULARITY_RECOMMENDED);
#endif
SAME(HVI_CU_DEVICE_RDMA_VMM, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED);
SAME(HVI_CU_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
SAME(HVI_CU_GRANULARITY_RECOMMENDED, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
SAME(HVI_CU_IPC_LAZY_PEER, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
SAME(HVI_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(HVI_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(FAKE_CAPTURE_GLOBAL, CU_STREAM_CAPTURE_MODE_GLOBAL);
SAME(HVI_CU_HOST_PORTABLE, CU_MEMHOSTREGISTER_PORTABLE);
SAME(HVI_CU_HOST_DEVICEMAP, CU_MEMHOSTREGISTER_DEVICEMAP);
SAME(HVI_CU_MEMOP_WAIT_64, CU_STREAM_MEM_OP_WAIT_VALUE_64);
SAME(HVI_CU_MEMOP_WRITE_64, CU_STREAM_MEM_OP_WRITE_VALUE_64);
SAME(0, CU_STREAM_WAIT_VALUE_GEQ);
SAME(1, CU_MEM_LOCATION_TYPE_DEVICE);
SAME(3, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);

/* What the fake libcuda has beyond it. */
SIZE(struct hvi_cu_ipc, CUipcEventHandle);
SIZE(struct fake_pool_properties, CUmemPoolProps);
SAME(offsetof(struct fake_pool_properties, handle_types), offsetof(CUmemPoolProps, handleTypes));
SAME(offsetof(struct fake_pool_properties, location), offsetof(CUmemPoolProps, location));
SAME(FAKE_INVALID_IMAGE, CUDA_ERROR_INVALID_IMAGE);
SAME(FAKE_MAP_FAILED, CUDA_ERROR_MAP_FAILED);
SAME(FAKE_PEERS_UNSUPPORTED, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
SAME(FAKE_INVALID_HANDLE, CUDA_ERROR_INVALID_HANDLE);
SAME(FAKE_ALREADY_REGISTERED, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
SAME(FAKE_NOT_REGISTERED, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
SAME(FAKE_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(FAKE_UNKNOWN, CUDA_ERROR_UNKNOWN);
SAME(FAKE_EVENT_NO_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(FAKE_EVENT_IPC, CU_EVENT_INTERPROCESS);
SAME(FAKE_MEMORY_HOST, CU_MEMORYTYPE_HOST);
SAME(FAKE_DEVICE_SMS, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
SAME(FAKE_DEVICE_MODE, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
#if CUDA_VERSION >= 12030
SIZE(struct hvi_cu_fabric, CUmemFabricHandle);
SAME(FAKE_DEVICE_FABRIC, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);
SAME(FAKE_DEVICE_MPS, CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
#endif
SAME(1, CU_MEM_ALLOCATION_TYPE_PINNED);
SAME(1, CU_MEM_ATTACH_GLOBAL);

#if __has_include(<nccl.h>)
#include <nccl.h>
SIZE(struct gpu_nccl_id, ncclUniqueId);
SIZE(gpu_nccl_comm, ncclComm_t);
SAME(GPU_NCCL_OK, ncclSuccess);
SAME(GPU_NCCL_IN_PROGRESS, ncclInProgress);
SAME(GPU_NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(GPU_NCCL_INT8, ncclInt8);
SAME(GPU_NCCL_UINT8, ncclUint8);
SAME(GPU_NCCL_INT32, ncclInt32);
SAME(GPU_NCCL_UINT32, ncclUint32);
SAME(GPU_NCCL_INT64, ncclInt64);
SAME(GPU_NCCL_UINT64, ncclUint64);
SAME(GPU_NCCL_FLOAT16, ncclFloat16);
SAME(GPU_NCCL_FLOAT32, ncclFloat32);
SAME(GPU_NCCL_FLOAT64, ncclFloat64);
SAME(GPU_NCCL_BFLOAT16, ncclBfloat16);
#if NCCL_VERSION_CODE >= 22400
SAME(GPU_NCCL_E4M3, ncclFloat8e4m3);
SAME(GPU_NCCL_E5M2, ncclFloat8e5m2);
#endif
SAME(GPU_NCCL_SUM, ncclSum);
SAME(GPU_NCCL_PRODUCT, ncclProd);
SAME(GPU_NCCL_MAX, ncclMax);
SAME(GPU_NCCL_MIN, ncclMin);
#endif
#endif

START_TEST(the_uuid_of_a_device_fits_its_text)
{
    ck_assert_uint_eq(HVI_GPU_UUID_TEXT, sizeof("GPU-00000000-0000-0000-0000-000000000000"));
}
END_TEST

/* Casts of numbers, which are no constants for every compiler. */
START_TEST(the_default_streams_have_their_numbers)
{
#if __has_include(<cuda.h>)
    ck_assert_uint_eq((uintptr_t)CU_STREAM_LEGACY, 1);
    ck_assert_uint_eq((uintptr_t)CU_STREAM_PER_THREAD, 2);
#endif
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu abi");
    TCase *tcase = tcase_create("abi");

    tcase_add_test(tcase, the_uuid_of_a_device_fits_its_text);
    tcase_add_test(tcase, the_default_streams_have_their_numbers);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
