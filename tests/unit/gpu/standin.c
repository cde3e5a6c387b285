/* SPDX-License-Identifier: Apache-2.0
 * Stands in for NVIDIA's libraries: the functions that a table needs, of which none works, but those that a test asks. It says
 * the version of STANDIN_VERSION. Without STANDIN_WHOLE the last function that is needed is missing. */
#include <stdlib.h>

__attribute__((unused)) static int number(const char *name, int otherwise)
{
    const char *text = getenv(name);

    return text == NULL ? otherwise : atoi(text);
}

#define STUB(name)                                                                                 \
    int name(void);                                                                                \
    int name(void)                                                                                 \
    {                                                                                              \
        return 999;                                                                                \
    }

#ifdef STANDIN_CUDA
int cuDriverGetVersion(int *version_p);
int cuGetErrorName(int error, const char **name_p);

int cuDriverGetVersion(int *version_p)
{
    *version_p = number("STANDIN_VERSION", 12040);
    return number("STANDIN_ERROR", 0);
}

int cuGetErrorName(int error, const char **name_p)
{
    *name_p = "CUDA_ERROR_ILLEGAL_ADDRESS";
    return error == 700 ? 0 : 1;
}

STUB(cuInit)
STUB(cuDeviceGetCount)
STUB(cuDeviceGet)
STUB(cuDeviceGetUuid_v2)
STUB(cuDeviceGetName)
STUB(cuDeviceGetAttribute)
STUB(cuDevicePrimaryCtxRetain)
STUB(cuDevicePrimaryCtxRelease_v2)
STUB(cuCtxSetCurrent)
STUB(cuCtxGetCurrent)
STUB(cuCtxGetDevice)
STUB(cuStreamCreate)
STUB(cuStreamDestroy_v2)
STUB(cuStreamQuery)
STUB(cuStreamSynchronize)
STUB(cuStreamIsCapturing)
STUB(cuStreamGetCtx)
STUB(cuEventCreate)
STUB(cuEventDestroy_v2)
STUB(cuEventRecord)
STUB(cuEventElapsedTime)
STUB(cuStreamWriteValue64_v2)
STUB(cuStreamWaitValue64_v2)
STUB(cuStreamBatchMemOp_v2)
STUB(cuMemAlloc_v2)
STUB(cuMemFree_v2)
STUB(cuMemGetInfo_v2)
STUB(cuPointerGetAttributes)
STUB(cuMemHostRegister_v2)
STUB(cuMemHostUnregister)
STUB(cuMemHostGetDevicePointer_v2)
STUB(cuMemcpyHtoDAsync_v2)
STUB(cuMemcpyDtoHAsync_v2)
STUB(cuMemcpyDtoDAsync_v2)
STUB(cuMemsetD8Async)
STUB(cuIpcGetMemHandle)
STUB(cuIpcOpenMemHandle_v2)
STUB(cuIpcCloseMemHandle)
STUB(cuMemGetAddressRange_v2)
STUB(cuLibraryLoadData)
STUB(cuLibraryGetKernel)
#ifdef STANDIN_WHOLE
STUB(cuLaunchKernel)
#endif
#endif

#ifdef STANDIN_NVML
#ifdef STANDIN_WHOLE
int nvmlInit_v2(void);
int nvmlInit_v2(void)
{
    return number("STANDIN_ERROR", 0);
}
#endif
STUB(nvmlShutdown)
#endif

#ifdef STANDIN_NCCL
int ncclGetVersion(int *version_p);
int ncclGetVersion(int *version_p)
{
    *version_p = number("STANDIN_VERSION", 22809);
    return number("STANDIN_ERROR", 0);
}

STUB(ncclGetErrorString)
STUB(ncclGetUniqueId)
STUB(ncclCommInitRank)
STUB(ncclCommDestroy)
STUB(ncclCommAbort)
STUB(ncclCommGetAsyncError)
STUB(ncclGroupStart)
STUB(ncclGroupEnd)
STUB(ncclAllReduce)
STUB(ncclBroadcast)
STUB(ncclAllGather)
STUB(ncclReduceScatter)
STUB(ncclSend)
#ifdef STANDIN_WHOLE
STUB(ncclRecv)
#endif
#endif
