/* SPDX-License-Identifier: Apache-2.0
 * A libcuda.so.1 that answers the first questions as FAKE_CUDA_VERSION (13000) and FAKE_CUDA_DEVICES (0) say, and has nothing
 * else: for the tests of how probes refuse. */
#include <cuda.h>
#include <stdlib.h>

static int variable(const char *name, int otherwise)
{
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

CUresult cuDriverGetVersion(int *version)
{
    *version = variable("FAKE_CUDA_VERSION", 13000);
    return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult error, const char **name_p)
{
    *name_p = error == CUDA_ERROR_NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "CUDA_ERROR_FAKE";
    return CUDA_SUCCESS;
}

CUresult cuInit(unsigned int flags)
{
    (void)flags;
    return variable("FAKE_CUDA_DEVICES", 0) > 0 ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}
