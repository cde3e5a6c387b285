/* SPDX-License-Identifier: Apache-2.0
 * What a worker does not know itself, it is asked of NVML here: a call into it may last, and a worker's main thread makes none that
 * does. In a virtual machine or a container NVML may say nothing; then a figure stays 0, which is "not known". */
#include "tools/hvdctl/ctl.h"

#include "base/status.h"
#include "gpu/nvml.h"

#include <stdlib.h>
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
static void count_links(const struct hvi_nvml *nvml, hvi_ml_device device,
                        struct hvd_admin_gpu *row)
{
    static char names[HVI_ML_LINKS + 1][16];
    unsigned links = 0;

    for (unsigned i = 0; nvml->device_link != NULL && i < HVI_ML_LINKS; i++) {
        int active = 0;
        links += nvml->device_link(device, i, &active) == HVI_ML_OK && active == 1;
    }
    if (links == 0)
        return;
    snprintf(names[links], sizeof names[links], "NV%u", links);
    row->links = names[links];
}

static void fill_row(const struct hvi_nvml *nvml, hvi_ml_device device, struct hvd_admin_gpu *row)
{
    struct hvi_ml_memory memory;
    const uint64_t used = row->pid > 0 ? used_by(nvml, device, row->pid) : 0;

    if (nvml->device_memory != NULL && nvml->device_memory(device, &memory) == HVI_ML_OK)
        row->free_bytes = memory.free;
    if (used > row->staging_bytes)
        row->own_bytes = used - row->staging_bytes;
    count_links(nvml, device, row);
}

static void fill_rows(struct hvd_admin_gpu *rows, size_t row_count)
{
    struct hvi_nvml nvml;
    char uuid[96], text[400];
    unsigned count = 0;

    if (row_count == 0 || hvi_nvml_open(&nvml, text, sizeof text) != HVI_OK)
        return;
    if (nvml.device_count == NULL || nvml.device_get == NULL || nvml.device_uuid == NULL ||
        nvml.device_count(&count) != HVI_ML_OK)
        return;
    for (unsigned i = 0; i < count; i++) {
        hvi_ml_device device;
        if (nvml.device_get(i, &device) != HVI_ML_OK ||
            nvml.device_uuid(device, uuid, sizeof uuid) != HVI_ML_OK)
            continue;
        for (size_t j = 0; j < row_count; j++) {
            if (strcmp(rows[j].uuid, uuid) == 0)
                fill_row(&nvml, device, &rows[j]);
        }
    }
}

struct hvd_admin_gpu *ctl_gpus_ask(const struct hvd_admin_answer *reply)
{
    struct hvd_admin_gpu *rows = calloc(reply->gpu_count + 1, sizeof *rows);
    if (rows == NULL) {
        fputs("hvdctl: out of memory\n", stderr);
        exit(CTL_REFUSED);
    }
    for (size_t i = 0; i < reply->gpu_count; i++)
        rows[i] = *reply->gpus[i];
    fill_rows(rows, reply->gpu_count);
    return rows;
}
