/* SPDX-License-Identifier: Apache-2.0
 * Steps of a start, each of which the driver may refuse, or not return from: hvdd's gpu-start ends that.
 *
 * Where a GPU is in MIG mode, CUDA shows a process one instance, and no whole GPU beside it. Which one, CUDA_VISIBLE_DEVICES says
 * before cuInit; and only NVML knows whether a UUID is that of an instance. */
#include "daemon/gpu/device.h"

#include "base/status.h"
#include "base/uuid.h"
#include "gpu/nvml.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static void ring(struct gpu_device *device)
{
    (void)eventfd_write(device->event_fd, 1);
}

static void begin(struct gpu_device *device, const char *step)
{
    atomic_store_explicit(&device->step, step, memory_order_relaxed);
    ring(device);
}

/* False, with .why, for anything but HVI_CU_OK. */
static bool is_good(struct gpu_device *device, int error)
{
    char text[100];

    if (error == HVI_CU_OK)
        return true;
    hvi_cuda_describe(&device->cuda, error, text, sizeof(text));
    snprintf(device->why, sizeof(device->why), "%s: %s",
             atomic_load_explicit(&device->step, memory_order_relaxed), text);
    return false;
}

/* ---- what NVML knows ---- */

struct search {
    const unsigned char *uuid;
    char name[HVI_ML_UUID_BYTES]; /* "": NVML does not know it */
    bool has_instances;           /* of any GPU */
    char why[200];                /* NVML cannot be asked; "": it can */
};

static void look_at(void *user, hvi_ml_device handle, const char *name)
{
    struct search *search = user;
    unsigned char uuid[HVI_UUID_BYTES];

    (void)handle;
    search->has_instances = search->has_instances || strncmp(name, "MIG-", 4) == 0;
    if (hvi_uuid_parse(name, uuid) && memcmp(uuid, search->uuid, sizeof(uuid)) == 0)
        snprintf(search->name, sizeof(search->name), "%s", name);
}

/* No other thread reads the environment: main does not, and neither CUDA nor NCCL has one yet. */
static void choose_visible(struct search *search_p)
{
    struct hvi_nvml nvml;

    if (hvi_nvml_open(&nvml, search_p->why, sizeof(search_p->why)) == HVI_OK)
        hvi_nvml_for_each(&nvml, look_at, search_p);
    if (search_p->has_instances && search_p->name[0] != '\0')
        setenv("CUDA_VISIBLE_DEVICES", search_p->name, 1);
}

/* CUDA does not show it. */
static const char *why_hidden(const struct search *search)
{
    if (search->name[0] != '\0')
        return "NVML knows it, so this process may not open it: see its device file, and the "
               "device cgroup of Slurm or of its unit";
    return search->why[0] != '\0' ? search->why : "NVML does not know it either";
}

/* ---- CUDA ---- */

static bool init(struct gpu_device *device, const struct search *search)
{
    begin(device, "cuInit");
    const int error = device->cuda.init(0);
    if (is_good(device, error))
        return true;
    const size_t length = strlen(device->why);
    if (error == HVI_CU_NO_DEVICE)
        snprintf(device->why + length, sizeof(device->why) - length, "; %s", why_hidden(search));
    return false;
}

static bool has_uuid(struct gpu_device *device, int index, bool *found_p)
{
    struct hvi_cu_uuid uuid;

    if (!is_good(device, device->cuda.device_get(&device->ordinal, index)) ||
        !is_good(device, device->cuda.device_uuid(&uuid, device->ordinal)))
        return false;
    *found_p = memcmp(uuid.bytes, device->uuid, sizeof(device->uuid)) == 0;
    return true;
}

static bool find_device(struct gpu_device *device, const struct search *search)
{
    int count = 0;
    bool found = false;

    begin(device, "cuDeviceGetCount");
    if (!is_good(device, device->cuda.device_count(&count)))
        return false;
    begin(device, "cuDeviceGetUuid");
    for (int i = 0; i < count && !found; i++) {
        if (!has_uuid(device, i, &found))
            return false;
    }
    if (!found)
        snprintf(device->why, sizeof(device->why),
                 "the driver shows hvdd's worker %d GPUs, and this is none of them; %s", count,
                 why_hidden(search));
    return found;
}

static bool start(struct gpu_device *device)
{
    struct hvi_cuda *cuda = &device->cuda;
    struct search search = {.uuid = device->uuid};
    int memops = 0, multicast = 0;

    begin(device, "dlopen of libcuda.so.1");
    if (hvi_cuda_open(false, cuda, device->why, sizeof(device->why)) != HVI_OK)
        return false;
    begin(device, "NVML's list of GPUs");
    choose_visible(&search);
    if (!init(device, &search) || !find_device(device, &search))
        return false;
    begin(device, "cuDeviceGetAttribute");
    if (!is_good(device,
                 cuda->device_attribute(&memops, HVI_CU_DEVICE_MEMOPS_64, device->ordinal)) ||
        !is_good(device, cuda->device_name(device->name, sizeof(device->name), device->ordinal)))
        return false;
    device->can_multicast =
        cuda->device_attribute(&multicast, HVI_CU_DEVICE_MULTICAST, device->ordinal) == HVI_CU_OK &&
        multicast != 0; /* drivers before 12.1 do not know it */
    if (memops == 0) {
        snprintf(device->why, sizeof(device->why),
                 "%s has no 64-bit memory operations of streams, which fences need", device->name);
        return false;
    }
    begin(device, "cuDevicePrimaryCtxRetain");
    if (!is_good(device, cuda->context_retain(&device->context, device->ordinal)) ||
        !is_good(device, cuda->context_set(device->context)))
        return false;
    begin(device, "its streams, kernels, staging memory and NCCL");
    return device->prepare == NULL ||
           device->prepare(device->user, cuda, device->why, sizeof(device->why));
}

static void *run(void *user)
{
    struct gpu_device *device = user;
    int state;

    pthread_setname_np(pthread_self(), "hvd-launch");
    state = start(device) ? HVI_OK : HVI_ERR_UNSUPPORTED;
    /* Release, pairs with gpu_device_state: what the thread has written is there. */
    atomic_store_explicit(&device->state, state, memory_order_release);
    ring(device);
    if (state == HVI_OK && device->serve != NULL)
        device->serve(device->user);
    return NULL;
}

int gpu_device_open(struct gpu_device *device, const unsigned char uuid[HVI_UUID_BYTES])
{
    memcpy(device->uuid, uuid, sizeof(device->uuid));
    atomic_store(&device->step, "none");
    atomic_store(&device->state, HVI_INPROGRESS);
    device->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (device->event_fd < 0)
        return HVI_ERR_NO_MEMORY;
    if (pthread_create(&device->thread, NULL, run, device) == 0)
        return HVI_OK;
    close(device->event_fd);
    device->event_fd = -1;
    return HVI_ERR_NO_MEMORY;
}

int gpu_device_state(struct gpu_device *device)
{
    /* Acquire, pairs with the store in run(). */
    return atomic_load_explicit(&device->state, memory_order_acquire);
}

bool gpu_device_close(struct gpu_device *device)
{
    if (device->event_fd < 0)
        return true; /* it was never opened */
    if (gpu_device_state(device) == HVI_INPROGRESS)
        return false;
    pthread_join(device->thread, NULL);
    if (gpu_device_state(device) == HVI_OK)
        device->cuda.context_release(device->ordinal);
    close(device->event_fd);
    device->event_fd = -1;
    return true;
}
