/* SPDX-License-Identifier: Apache-2.0
 * libnvidia-ml by dlopen, as one table of functions, and as cuda.h with own types. It makes no context and needs no GPU
 * memory. In a virtual machine any function may answer HVI_ML_NOT_SUPPORTED: that is "not known". Any thread. */
#ifndef HVI_GPU_NVML_H
#define HVI_GPU_NVML_H

#include <stddef.h>

typedef struct hvi_ml_device *hvi_ml_device;
struct hvi_ml_memory { /* nvmlMemory_t, in bytes */
    unsigned long long total, free, used;
};
struct hvi_ml_process { /* nvmlProcessInfo_t */
    unsigned pid;
    unsigned long long used_bytes; /* ~0: not known */
    unsigned gpu_instance, compute_instance;
};

enum {
    HVI_ML_OK = 0,
    HVI_ML_UNINITIALIZED = 1,
    HVI_ML_INVALID_ARGUMENT = 2,
    HVI_ML_NOT_SUPPORTED = 3,
    HVI_ML_NO_PERMISSION = 4,
    HVI_ML_NOT_FOUND = 6,
    HVI_ML_INSUFFICIENT_SIZE = 7,
    HVI_ML_DRIVER_NOT_LOADED = 9,
    HVI_ML_GPU_IS_LOST = 15,
    HVI_ML_P2P_NVLINK = 2,
    HVI_ML_P2P_OK = 0,
    HVI_ML_LINKS = 18, /* of one device at most */
    HVI_ML_UUID_BYTES = 96,
};

struct hvi_nvml {
    void *library; /* never closed */
#define HVI_ML(member, symbol, need, parameters) int(*member) parameters;
#include "gpu/nvml.def"
#undef HVI_ML
};

/* HVI_OK, and .init has succeeded. HVI_ERR_UNSUPPORTED with a sentence: what is missing and where it was looked for. */
int hvi_nvml_open(struct hvi_nvml *nvml_p, char *text_p, size_t text_size);
/* Each GPU, and behind it each of its instances in MIG mode, with its name: "GPU-…", "MIG-…". Those of which NVML does not tell it
 * are left out. */
void hvi_nvml_for_each(const struct hvi_nvml *nvml,
                       void (*each)(void *user, hvi_ml_device device, const char *name),
                       void *user);

#endif
