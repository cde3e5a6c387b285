/* SPDX-License-Identifier: Apache-2.0
 * What a worker does not know itself, it is asked of NVML here: a call into it may last, and a worker's main thread makes none that
 * does. In a virtual machine or a container NVML may say nothing; then a figure stays 0, which is "not known". */
#include "tools/hvdctl/ctl.h"

#include "base/status.h"
#include "base/uuid.h"
#include "gpu/nvml.h"
#include "tools/hvdctl/table.h"

#include <stdio.h>
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

struct rows {
    const struct hvi_nvml *nvml;
    struct hvd_admin_gpu *rows;
    char (*names)[HVI_UUID_TEXT]; /* of instances: hvdd does not know that they are none of GPUs */
    size_t count;
};

static void fill_rows(void *user, hvi_ml_device device, const char *name)
{
    const struct rows *all = user;
    unsigned char uuid[HVI_UUID_BYTES], of_row[HVI_UUID_BYTES];

    if (!hvi_uuid_parse(name, uuid))
        return;
    for (size_t i = 0; i < all->count; i++) {
        struct hvd_admin_gpu *row = &all->rows[i];
        if (!hvi_uuid_parse(row->uuid, of_row) || memcmp(uuid, of_row, sizeof uuid) != 0)
            continue;
        fill_row(all->nvml, device, row);
        snprintf(all->names[i], sizeof all->names[i], "%s", name);
        row->uuid = all->names[i];
    }
}

static void ask_nvml(struct rows *all)
{
    struct hvi_nvml nvml;
    char text[400];

    if (all->count == 0 || hvi_nvml_open(&nvml, text, sizeof text) != HVI_OK)
        return;
    all->nvml = &nvml;
    hvi_nvml_for_each(&nvml, fill_rows, all);
}

struct hvd_admin_gpu *ctl_gpus_ask(const struct hvd_admin_answer *reply)
{
    const size_t most = reply->gpu_count + 1;
    struct hvd_admin_gpu *rows = ctl_must(calloc(most, sizeof *rows + HVI_UUID_TEXT));
    struct rows all = {.rows = rows, .count = reply->gpu_count};

    all.names = (char(*)[HVI_UUID_TEXT])(rows + most);
    for (size_t i = 0; i < reply->gpu_count; i++)
        rows[i] = *reply->gpus[i];
    ask_nvml(&all);
    return rows;
}
