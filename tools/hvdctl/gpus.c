/* SPDX-License-Identifier: Apache-2.0
 * What a worker does not know itself, it is asked of NVML here: a call into it may last, and a worker's main thread makes none that
 * does. In a virtual machine or a container NVML may say nothing; then a figure stays 0, which is "not known". */
#include "tools/hvdctl/ctl.h"

#include "base/status.h"
#include "gpu/nvml.h"

#include <string.h>

#define PROCESSES 256u

/* What the process has of the device's memory; 0: not known. */
static uint64_t used_by(const struct hvi_nvml *nvml, hvi_ml_device device, int32_t pid)
{
    static struct hvi_ml_process processes[PROCESSES];
    unsigned count = PROCESSES;

    if (nvml->device_processes == NULL ||
        nvml->device_processes(device, &count, processes) != HVI_ML_OK)
        return 0;
    for (unsigned i = 0; i < count && i < PROCESSES; i++) {
        if (processes[i].pid == (unsigned)pid && processes[i].used_bytes != ~0ull)
            return processes[i].used_bytes;
    }
    return 0;
}

/* "NV4": so many links are up; "": none, or not known. */
static void count_links(const struct hvi_nvml *nvml, hvi_ml_device device, struct hvi_gpu_row *row)
{
    unsigned links = 0;

    for (unsigned i = 0; nvml->device_link != NULL && i < HVI_ML_LINKS; i++) {
        int active = 0;
        links += nvml->device_link(device, i, &active) == HVI_ML_OK && active == 1;
    }
    if (links > 0)
        snprintf(row->links, sizeof row->links, "NV%u", links);
}

static void fill_row(const struct hvi_nvml *nvml, hvi_ml_device device, struct hvi_gpu_row *row)
{
    struct hvi_ml_memory memory;
    const uint64_t used = row->pid > 0 ? used_by(nvml, device, row->pid) : 0;

    if (nvml->device_memory != NULL && nvml->device_memory(device, &memory) == HVI_ML_OK)
        row->free_bytes = memory.free;
    if (used > row->staging_bytes)
        row->own_bytes = used - row->staging_bytes;
    count_links(nvml, device, row);
}

void ctl_gpus_ask(struct hvi_admin_reply *reply)
{
    struct hvi_nvml nvml;
    char uuid[HVI_WIRE_GPU_UUID + 40], text[400];
    unsigned count = 0;

    if (reply->gpu_count == 0 || hvi_nvml_open(&nvml, text, sizeof text) != HVI_OK)
        return;
    if (nvml.device_count == NULL || nvml.device_get == NULL || nvml.device_uuid == NULL ||
        nvml.device_count(&count) != HVI_ML_OK)
        return;
    for (unsigned i = 0; i < count; i++) {
        hvi_ml_device device;
        if (nvml.device_get(i, &device) != HVI_ML_OK ||
            nvml.device_uuid(device, uuid, sizeof uuid) != HVI_ML_OK)
            continue;
        for (size_t j = 0; j < reply->gpu_count; j++) {
            if (strcmp(reply->gpus[j].uuid, uuid) == 0)
                fill_row(&nvml, device, &reply->gpus[j]);
        }
    }
}
