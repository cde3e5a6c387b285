/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/can.h"

#include "base/status.h"
#include "daemon/gpu/kernels/image.h"
#include "daemon/gpu/nccl.h"
#include "gpu/cuda.h"

#include <unistd.h>

#define TEXT 2048

int gpu_can(FILE *out, const char *kernels, const char *library_path)
{
    char no_driver[TEXT] = "", no_nccl[TEXT] = "";
    struct hvi_cuda cuda;
    struct gpu_nccl nccl;
    const bool has_driver = hvi_cuda_open(false, &cuda, no_driver, sizeof(no_driver)) == HVI_OK;
    const bool has_nccl = gpu_nccl_open(library_path, &nccl, no_nccl, sizeof(no_nccl)) == HVI_OK;
    const bool is_file = kernels != NULL && kernels[0] != '\0';
    const bool has_kernels = is_file ? access(kernels, R_OK) == 0 : gpu_kernels_image_bytes > 0;

    fprintf(out, "kernels %d %s\n", has_kernels,
            has_kernels ? ""
            : is_file   ? "the file of gpu-kernels cannot be read"
                        : "this build has none: nvcc was not found");
    fprintf(out, "driver %d %s\n", has_driver ? cuda.version : 0, has_driver ? "" : no_driver);
    fprintf(out, "nccl %d %s\n", has_nccl ? nccl.number : 0, has_nccl ? "" : no_nccl);
    return fflush(out) == 0 ? 0 : 1;
}
