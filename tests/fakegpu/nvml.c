/* SPDX-License-Identifier: Apache-2.0
 * A libnvidia-ml.so.1 without GPUs: what FAKEGPU says is there (settings.h). Any function but init may answer NOT_SUPPORTED, as in a
 * virtual machine (section 7): with nvml-holes=SEED every fourth does. CUDA_VISIBLE_DEVICES is nothing to it. */
#include "gpu/nvml.h"

#include "gpu/cuda.h"
#include "tests/fakegpu/settings.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define HVI_ML(member, symbol, need, parameters)                                                   \
    __attribute__((visibility("default"))) int ml_##member parameters __asm__(symbol);
#include "gpu/nvml.def"
#undef HVI_ML

struct hvi_ml_device {
    int physical;
};

static struct hvi_ml_device devices[FAKE_DEVICES];
static _Atomic bool is_initialised;
static _Atomic uint32_t calls;

/* Whether this call has no answer. */
static int hole(void)
{
    uint32_t seed = (uint32_t)fake_number("nvml-holes", 0);

    if (!atomic_load(&is_initialised))
        return HVI_ML_UNINITIALIZED;
    if (seed == 0)
        return HVI_ML_OK;
    seed = (seed ^ atomic_fetch_add(&calls, 1)) * 2654435761u;
    return seed >> 30 == 0 ? HVI_ML_NOT_SUPPORTED : HVI_ML_OK;
}

static int copy(char *to, unsigned size, const char *text)
{
    return (unsigned)snprintf(to, size, "%s", text) < size ? HVI_ML_OK : HVI_ML_INSUFFICIENT_SIZE;
}

int ml_init(void)
{
    for (int i = 0; i < FAKE_DEVICES; i++)
        devices[i].physical = i;
    atomic_store(&is_initialised, true);
    return HVI_ML_OK;
}

int ml_shutdown(void)
{
    atomic_store(&is_initialised, false);
    return HVI_ML_OK;
}

int ml_driver_version(char *version_p, unsigned size)
{
    const int error = hole();
    return error != HVI_ML_OK ? error : copy(version_p, size, "580.0.fake");
}

int ml_device_count(unsigned *count_p)
{
    const int error = hole();

    *count_p = (unsigned)fake_device_total();
    return error;
}

int ml_device_get(unsigned index, hvi_ml_device *device_p)
{
    const int error = hole();

    if (error != HVI_ML_OK)
        return error;
    if (index >= (unsigned)fake_device_total())
        return HVI_ML_INVALID_ARGUMENT;
    *device_p = &devices[index];
    return HVI_ML_OK;
}

int ml_device_uuid(hvi_ml_device device, char *uuid_p, unsigned size)
{
    const int error = hole();
    char text[HVI_GPU_UUID_TEXT];

    fake_device_name(device->physical, text, sizeof(text));
    return error != HVI_ML_OK ? error : copy(uuid_p, size, text);
}

int ml_device_name(hvi_ml_device device, char *name_p, unsigned size)
{
    const int error = hole();
    char text[32];

    snprintf(text, sizeof(text), "No GPU %d", device->physical);
    return error != HVI_ML_OK ? error : copy(name_p, size, text);
}

int ml_device_memory(hvi_ml_device device, struct hvi_ml_memory *memory_p)
{
    const int error = hole();

    (void)device;
    memory_p->total = fake_device_memory();
    memory_p->used = (unsigned long long)fake_number("used", 0) << 20;
    memory_p->free = memory_p->total - memory_p->used;
    return error;
}

/* A device that cannot do it says so. */
int ml_device_mig(hvi_ml_device device, unsigned *current_p, unsigned *pending_p)
{
    const int error = hole();

    if (error != HVI_ML_OK || fake_setting("mig") == NULL)
        return error != HVI_ML_OK ? error : HVI_ML_NOT_SUPPORTED;
    *current_p = *pending_p = fake_number("mig", -1) == device->physical;
    return HVI_ML_OK;
}

/* Seven, as an H200 has; not all of them are made. */
int ml_device_mig_count(hvi_ml_device device, unsigned *count_p)
{
    const int error = hole();

    *count_p = fake_number("mig", -1) == device->physical ? 7 : 0;
    return error;
}

int ml_device_mig_get(hvi_ml_device device, unsigned index, hvi_ml_device *instance_p)
{
    const int error = hole();

    if (error != HVI_ML_OK || fake_number("mig", -1) != device->physical)
        return error != HVI_ML_OK ? error : HVI_ML_NOT_SUPPORTED;
    if (index >= (unsigned)fake_instance_total())
        return HVI_ML_NOT_FOUND;
    *instance_p = &devices[fake_device_total() + (int)index];
    return HVI_ML_OK;
}

int ml_device_p2p(hvi_ml_device one, hvi_ml_device other, int index, int *status_p)
{
    const int error = hole();

    if (error != HVI_ML_OK || one == other)
        return error != HVI_ML_OK ? error : HVI_ML_INVALID_ARGUMENT;
    *status_p = index == HVI_ML_P2P_NVLINK && !fake_linked(one->physical, other->physical)
                    ? 5 /* NVML_P2P_STATUS_NOT_SUPPORTED */
                    : HVI_ML_P2P_OK;
    return HVI_ML_OK;
}

/* One link to each device that it is linked with. */
int ml_device_link(hvi_ml_device device, unsigned link, int *active_p)
{
    const int error = hole();
    unsigned links = 0;

    for (int i = 0; i < fake_device_total(); i++)
        links += i != device->physical && fake_linked(device->physical, i);
    if (error != HVI_ML_OK || link >= HVI_ML_LINKS)
        return error != HVI_ML_OK ? error : HVI_ML_INVALID_ARGUMENT;
    *active_p = link < links;
    return HVI_ML_OK;
}

/* One, on each device. */
int ml_device_processes(hvi_ml_device device, unsigned *count_p, struct hvi_ml_process *processes_p)
{
    const int error = hole();
    const char *told = fake_setting("process");
    struct hvi_ml_process process = {0};

    (void)device;
    if (error != HVI_ML_OK || told == NULL ||
        sscanf(told, "%u:%llu", &process.pid, &process.used_bytes) != 2) {
        *count_p = 0;
        return error;
    }
    if (*count_p < 1) {
        *count_p = 1;
        return HVI_ML_INSUFFICIENT_SIZE;
    }
    process.used_bytes <<= 20;
    processes_p[0] = process;
    *count_p = 1;
    return HVI_ML_OK;
}
