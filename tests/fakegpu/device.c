/* SPDX-License-Identifier: Apache-2.0
 * Devices and contexts. A device has an ordinal, which CUDA_VISIBLE_DEVICES gives it in this process, and a physical number,
 * which says who it is for all processes, as its UUID does. An instance of a device in MIG mode is a device of its own.
 *
 * Rules. No call without a current context: 201 (cuda.h). 700 stays until the process exits (driver API; P9). Ordinals of two
 * processes differ, UUIDs do not (section 1.1). A context that was released is none. CUDA shows one instance, and no device
 * beside it (NVIDIA's guide to MIG). */
#include "tests/fakegpu/stream.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hvi_cu_context contexts[FAKE_DEVICES];
static int visible; /* devices of this process */
static _Thread_local struct hvi_cu_context *current;
static _Atomic int sticky;
static _Atomic bool is_doomed;

static void show(int physical)
{
    if (fake_device_denied(physical))
        return;
    contexts[visible] = (struct hvi_cu_context){.ordinal = visible, .physical = physical};
    visible++;
}

/* A device in MIG mode is seen as its first instance. */
static int seen_as(int physical)
{
    const bool has_instances = fake_instance_total() > 0 && physical == fake_number("mig", -1);

    return has_instances ? fake_device_total() : physical;
}

/* The first name that is none hides the rest, as CUDA has it. */
static void look(void)
{
    const char *wish = getenv("CUDA_VISIBLE_DEVICES");
    const int instances = fake_device_total(); /* the first of them */

    if (wish == NULL && fake_instance_total() > 0) {
        show(instances);
        return;
    }
    for (int i = 0; wish == NULL && i < fake_device_total(); i++)
        show(i);
    while (wish != NULL && visible < FAKE_DEVICES) {
        const size_t length = strcspn(wish, ",");
        const int physical = seen_as(fake_device_named(wish, length));
        if (physical < 0)
            break;
        show(physical);
        if (physical >= instances)
            break;
        wish += length + (wish[length] == ',');
    }
}

struct hvi_cu_context *fake_context_of(int ordinal)
{
    pthread_once(&once, look);
    return ordinal >= 0 && ordinal < visible ? &contexts[ordinal] : NULL;
}

struct hvi_cu_context *fake_context(void)
{
    return current;
}

void fake_break(int error)
{
    atomic_store(&sticky, error);
}

int fake_broken(void)
{
    return atomic_load(&sticky);
}

static bool is_alive(const struct hvi_cu_context *context)
{
    pthread_mutex_lock(&lock);
    bool alive = context != NULL && context->users > 0;
    pthread_mutex_unlock(&lock);
    return alive;
}

void fake_doom(void)
{
    atomic_store(&is_doomed, true);
}

int fake_ready(void)
{
    if (atomic_load(&is_doomed))
        raise(SIGKILL);
    if (!fake_is_initialised())
        return HVI_CU_NOT_INITIALIZED;
    return is_alive(current) ? fake_broken() : HVI_CU_INVALID_CONTEXT;
}

int cu_device_count(int *count_p)
{
    fake_context_of(0);
    *count_p = visible;
    return fake_is_initialised() ? HVI_CU_OK : HVI_CU_NOT_INITIALIZED;
}

int cu_device_get(hvi_cu_device *device_p, int ordinal)
{
    if (!fake_is_initialised())
        return HVI_CU_NOT_INITIALIZED;
    if (fake_context_of(ordinal) == NULL)
        return HVI_CU_INVALID_DEVICE;
    *device_p = ordinal;
    return HVI_CU_OK;
}

int cu_device_uuid(struct hvi_cu_uuid *uuid_p, hvi_cu_device device)
{
    struct hvi_cu_context *context = fake_context_of(device);

    if (context == NULL)
        return HVI_CU_INVALID_DEVICE;
    fake_device_uuid(context->physical == 0 ? fake_number("named", 0) : context->physical,
                     uuid_p->bytes);
    return HVI_CU_OK;
}

int cu_device_name(char *name_p, int size, hvi_cu_device device)
{
    struct hvi_cu_context *context = fake_context_of(device);

    if (context == NULL)
        return HVI_CU_INVALID_DEVICE;
    snprintf(name_p, (size_t)size, "No GPU %d", context->physical);
    return HVI_CU_OK;
}

int cu_device_total(size_t *bytes_p, hvi_cu_device device)
{
    if (fake_context_of(device) == NULL)
        return HVI_CU_INVALID_DEVICE;
    *bytes_p = fake_device_memory();
    return HVI_CU_OK;
}

static int is_under_mps(void)
{
    const char *folder = getenv("CUDA_MPS_PIPE_DIRECTORY");
    char path[512];

    snprintf(path, sizeof(path), "%s/nvidia-cuda-mps-control.pid", folder == NULL ? "" : folder);
    return folder != NULL && access(path, R_OK) == 0;
}

int cu_device_attribute(int *value_p, int attribute, hvi_cu_device device)
{
    const char *capability = fake_setting("cc");

    if (fake_context_of(device) == NULL)
        return HVI_CU_INVALID_DEVICE;
    if (capability == NULL || strchr(capability, '.') == NULL)
        capability = "9.0";
    switch (attribute) {
    case HVI_CU_DEVICE_CC_MAJOR:
        *value_p = atoi(capability);
        break;
    case HVI_CU_DEVICE_CC_MINOR:
        *value_p = atoi(strchr(capability, '.') + 1);
        break;
    case HVI_CU_DEVICE_MEMOPS_64:
        *value_p = fake_fault("no-memops") == 0;
        break;
    case FAKE_DEVICE_SMS:
        *value_p = 2;
        break;
    case FAKE_DEVICE_MODE:
        *value_p = 0;
        break;
    case FAKE_DEVICE_FABRIC:
        *value_p = fake_fault("no-fabric") == 0;
        break;
    case HVI_CU_DEVICE_MULTICAST:
        *value_p = fake_says("multicast", "on");
        break;
    case FAKE_DEVICE_MPS:
        *value_p = is_under_mps();
        break;
    default:
        *value_p = 1;
    }
    return HVI_CU_OK;
}

int cu_context_retain(hvi_cu_context *context_p, hvi_cu_device device)
{
    struct hvi_cu_context *context = fake_context_of(device);

    if (!fake_is_initialised())
        return HVI_CU_NOT_INITIALIZED;
    if (context == NULL)
        return HVI_CU_INVALID_DEVICE;
    fake_stream_connect();
    pthread_mutex_lock(&lock);
    context->users++;
    pthread_mutex_unlock(&lock);
    *context_p = context;
    return HVI_CU_OK;
}

int cu_context_release(hvi_cu_device device)
{
    struct hvi_cu_context *context = fake_context_of(device);

    if (!is_alive(context))
        return HVI_CU_INVALID_CONTEXT;
    pthread_mutex_lock(&lock);
    context->users--;
    pthread_mutex_unlock(&lock);
    return HVI_CU_OK;
}

int cu_context_set(hvi_cu_context context)
{
    if (!fake_is_initialised())
        return HVI_CU_NOT_INITIALIZED;
    if (context != NULL && !is_alive(context))
        return HVI_CU_INVALID_CONTEXT;
    current = context;
    return HVI_CU_OK;
}

int cu_context_get(hvi_cu_context *context_p)
{
    *context_p = current;
    return fake_is_initialised() ? HVI_CU_OK : HVI_CU_NOT_INITIALIZED;
}

int cu_context_device(hvi_cu_device *device_p)
{
    int error = fake_ready();

    if (error == HVI_CU_OK)
        *device_p = current->ordinal;
    return error;
}

static int current_device(void)
{
    return fake_ready() == HVI_CU_OK ? current->physical : -1;
}

static bool is_whole(void)
{
    return fake_broken() == HVI_CU_OK;
}

/* NCCL's work is kernels. */
static int enqueue_kernels(hvi_cu_stream stream, void (*run)(void *), const void *data,
                           size_t bytes, const struct fakegpu_span *spans, size_t count)
{
    fake_await_closes();
    return fake_enqueue(stream, run, data, bytes, spans, count);
}

const struct fakegpu_api *fakegpu_api(void)
{
    static const struct fakegpu_api api = {enqueue_kernels, current_device, is_whole,
                                           fake_note_registered, fake_add_kernels};

    return &api;
}
