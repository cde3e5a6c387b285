/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/cuda.h"

#include "base/status.h"
#include "base/uuid.h"
#include "gpu/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define LIBRARY "libcuda.so.1"
#define NEEDED  "hvdd needs an NVIDIA driver for CUDA 12.0 or newer (525)"

static const struct hvi_gpu_symbol symbols[] = {
#define HVI_CU(member, symbol, need, parameters) {symbol, offsetof(struct hvi_cuda, member), need},
#include "gpu/cuda.def"
#undef HVI_CU
};

int hvi_cuda_open(bool loaded_only, struct hvi_cuda *cuda_p, char *text_p, size_t text_size)
{
    struct hvi_cuda cuda = {
        .library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | (loaded_only ? RTLD_NOLOAD : 0))};

    if (cuda.library == NULL && loaded_only)
        return HVI_ERR_NOT_FOUND;
    if (cuda.library == NULL) {
        snprintf(text_p, text_size,
                 "no NVIDIA driver: " LIBRARY ", looked for by the loader (LD_LIBRARY_PATH, "
                 "/etc/ld.so.conf): %s; " NEEDED,
                 hvi_gpu_library_error(LIBRARY));
        return HVI_ERR_UNSUPPORTED;
    }
    const char *missing =
        hvi_gpu_library_fill(cuda.library, symbols, sizeof(symbols) / sizeof(symbols[0]), &cuda);
    if (cuda.driver_version == NULL || cuda.driver_version(&cuda.version) != HVI_CU_OK)
        snprintf(text_p, text_size, "%s does not say its version; " NEEDED,
                 hvi_gpu_library_path(cuda.library));
    else if (cuda.version < HVI_CUDA_VERSION_MIN)
        snprintf(text_p, text_size, "%s is of CUDA %d.%d; " NEEDED,
                 hvi_gpu_library_path(cuda.library), cuda.version / 1000, cuda.version % 1000 / 10);
    else if (missing != NULL)
        snprintf(text_p, text_size, "%s, of CUDA %d.%d, has no %s; " NEEDED,
                 hvi_gpu_library_path(cuda.library), cuda.version / 1000, cuda.version % 1000 / 10,
                 missing);
    else {
        *cuda_p = cuda;
        return HVI_OK;
    }
    return HVI_ERR_UNSUPPORTED; /* the library stays: drivers do not survive being closed */
}

void hvi_cuda_describe(const struct hvi_cuda *cuda, int error, char *text_p, size_t text_size)
{
    const char *name = NULL;

    if (cuda->error_name(error, &name) != HVI_CU_OK || name == NULL)
        name = "CUDA error";
    snprintf(text_p, text_size, "%s (%d)", name, error);
}

void hvi_gpu_uuid_format(const struct hvi_cu_uuid *uuid, char text_p[HVI_GPU_UUID_TEXT])
{
    hvi_uuid_format(uuid->bytes, text_p);
}

bool hvi_gpu_uuid_parse(const char *text, struct hvi_cu_uuid *uuid_p)
{
    return hvi_uuid_parse(text, uuid_p->bytes);
}
