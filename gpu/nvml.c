/* SPDX-License-Identifier: Apache-2.0 */
#include "gpu/nvml.h"

#include "base/status.h"
#include "gpu/library.h"

#include <dlfcn.h>
#include <stdio.h>

#define LIBRARY "libnvidia-ml.so.1"

static const struct hvi_gpu_symbol symbols[] = {
#define HVI_ML(member, symbol, need, parameters) {symbol, offsetof(struct hvi_nvml, member), need},
#include "gpu/nvml.def"
#undef HVI_ML
};

int hvi_nvml_open(struct hvi_nvml *nvml_p, char *text_p, size_t text_size)
{
    struct hvi_nvml nvml = {.library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL)};

    if (nvml.library == NULL) {
        snprintf(text_p, text_size,
                 "no NVIDIA driver: " LIBRARY ", looked for by the loader (LD_LIBRARY_PATH, "
                 "/etc/ld.so.conf): %s",
                 hvi_gpu_library_error(LIBRARY));
        return HVI_ERR_UNSUPPORTED;
    }
    const char *missing =
        hvi_gpu_library_fill(nvml.library, symbols, sizeof(symbols) / sizeof(symbols[0]), &nvml);
    const int error = missing == NULL ? nvml.init() : HVI_ML_OK;
    if (missing == NULL && error == HVI_ML_OK) {
        *nvml_p = nvml;
        return HVI_OK;
    }
    if (missing != NULL)
        snprintf(text_p, text_size, "%s has no %s", hvi_gpu_library_path(nvml.library), missing);
    else
        snprintf(text_p, text_size, "nvmlInit_v2 of %s: NVML's error %d%s",
                 hvi_gpu_library_path(nvml.library), error,
                 error == HVI_ML_DRIVER_NOT_LOADED ? ", the kernel's driver is not loaded" : "");
    return HVI_ERR_UNSUPPORTED;
}

typedef void each_device(void *user, hvi_ml_device device, const char *name);

static void visit(const struct hvi_nvml *nvml, hvi_ml_device device, each_device *each, void *user)
{
    char name[HVI_ML_UUID_BYTES];

    if (nvml->device_uuid(device, name, sizeof(name)) == HVI_ML_OK)
        each(user, device, name);
}

static void visit_instances(const struct hvi_nvml *nvml, hvi_ml_device device, each_device *each,
                            void *user)
{
    unsigned count = 0;

    if (nvml->device_mig_count == NULL || nvml->device_mig_get == NULL ||
        nvml->device_mig_count(device, &count) != HVI_ML_OK)
        return;
    for (unsigned i = 0; i < count; i++) {
        hvi_ml_device instance;
        if (nvml->device_mig_get(device, i, &instance) == HVI_ML_OK)
            visit(nvml, instance, each, user);
    }
}

void hvi_nvml_for_each(const struct hvi_nvml *nvml, each_device *each, void *user)
{
    unsigned count = 0;

    if (nvml->device_count == NULL || nvml->device_get == NULL || nvml->device_uuid == NULL ||
        nvml->device_count(&count) != HVI_ML_OK)
        return;
    for (unsigned i = 0; i < count; i++) {
        hvi_ml_device device;
        if (nvml->device_get(i, &device) != HVI_ML_OK)
            continue;
        visit(nvml, device, each, user);
        visit_instances(nvml, device, each, user);
    }
}
