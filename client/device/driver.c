/* SPDX-License-Identifier: Apache-2.0
 * libcuda as the process has it.
 *
 * A process with device memory has libcuda loaded, whoever has done that. Whether it is loaded is asked of
 * the loader; as long as the loader has loaded nothing new since the last answer, a "no" is still true. The
 * answers of memory of the host belong to an era: another one begins when the library is found, and when it
 * says for the first time that it is initialised. */
#include "client/device/device.h"

#include "base/status.h"
#include "base/types.h"

#include <dlfcn.h>
#include <link.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#define DEVICES 64

enum driver_state { UNKNOWN, READY, USELESS };

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER; /* guards the writing of what follows */
static struct hvi_cuda table;
static char why[HVI_TEXT_MAX + 1];
/* Release, pairs with the acquire loads: the table and the sentence are complete. */
static _Atomic int state;
/* What the loader had loaded when there was no libcuda; relaxed, only equality counts. */
static _Atomic unsigned long long looked_at;
static hvi_cu_context contexts[DEVICES]; /* primary ones that we hold; under `opening` */
static _Atomic int used = -1; /* a device on which memory was seen; relaxed, any will do */

static int first_object(struct dl_phdr_info *info, size_t bytes, void *adds_p)
{
    (void)bytes;
    *(unsigned long long *)adds_p = info->dlpi_adds;
    return 1;
}

static unsigned long long objects_loaded(void)
{
    unsigned long long adds = 0;
    dl_iterate_phdr(first_object, &adds);
    return adds;
}

bool client_driver_is_absent(void)
{
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (now != UNKNOWN)
        return now == USELESS;
    return objects_loaded() == atomic_load_explicit(&looked_at, memory_order_relaxed);
}

/* With `opening`. */
static void look_for_library(void)
{
    unsigned long long adds = objects_loaded();
    int rc = hvi_cuda_open(true, &table, why, sizeof(why));
    if (rc == HVI_ERR_NOT_FOUND)
        atomic_store_explicit(&looked_at, adds, memory_order_relaxed);
    else
        atomic_store_explicit(&state, rc == HVI_OK ? READY : USELESS, memory_order_release);
}

const struct hvi_cuda *client_driver_get(const char **why_p)
{
    int now = atomic_load_explicit(&state, memory_order_acquire);
    if (now == UNKNOWN) {
        pthread_mutex_lock(&opening);
        if (atomic_load_explicit(&state, memory_order_relaxed) == UNKNOWN)
            look_for_library();
        pthread_mutex_unlock(&opening);
        now = atomic_load_explicit(&state, memory_order_acquire);
    }
    *why_p = now == USELESS ? why : "";
    return now == READY ? &table : NULL;
}

/* The primary context, held from its first use on: our registrations live in it. */
static int primary(const struct hvi_cuda *cuda, int device, hvi_cu_context *context_p)
{
    hvi_cu_device number;
    if (device < 0 || device >= DEVICES)
        return HVI_CU_INVALID_VALUE;
    pthread_mutex_lock(&opening);
    int error = HVI_CU_OK;
    if (contexts[device] == NULL && (error = cuda->device_get(&number, device)) == HVI_CU_OK)
        error = cuda->context_retain(&contexts[device], number);
    *context_p = contexts[device];
    pthread_mutex_unlock(&opening);
    return error;
}

/* Whether the thread's context is one of the device. */
static bool is_current(const struct hvi_cuda *cuda, int device)
{
    hvi_cu_device here, there;
    return cuda->context_device(&here) == HVI_CU_OK &&
           cuda->device_get(&there, device) == HVI_CU_OK && here == there;
}

/* Nothing to do if it is the thread's already. */
static int make_current(struct client_driver_scope *scope, hvi_cu_context context)
{
    if (context == scope->before)
        return HVI_CU_OK;
    int error = scope->cuda->context_set(context);
    scope->changed |= error == HVI_CU_OK;
    return error;
}

static int begin(struct client_driver_scope *scope_p)
{
    const char *sentence;
    *scope_p = (struct client_driver_scope){.cuda = client_driver_get(&sentence)};
    return scope_p->cuda ? scope_p->cuda->context_get(&scope_p->before) : HVI_CU_NOT_INITIALIZED;
}

int client_driver_enter(int device, struct client_driver_scope *scope_p)
{
    hvi_cu_context context = NULL;
    int error = begin(scope_p);
    if (error != HVI_CU_OK || (scope_p->before && is_current(scope_p->cuda, device)))
        return error;
    error = primary(scope_p->cuda, device, &context);
    return error == HVI_CU_OK ? make_current(scope_p, context) : error;
}

void client_driver_note(int device)
{
    atomic_store_explicit(&used, device, memory_order_relaxed);
}

/* A device whose primary context is there, whoever has made it; -1: none. */
static int active_device(const struct hvi_cuda *cuda)
{
    int (*get_state)(hvi_cu_device device, unsigned *flags_p, int *active_p);
    void *symbol = dlsym(cuda->library, "cuDevicePrimaryCtxGetState");
    int count = 0, active = 0;
    if (cuda->device_count(&count) != HVI_CU_OK)
        return -1;
    for (int i = 0; i < count && i < DEVICES; i++) {
        hvi_cu_device device;
        unsigned flags;
        memcpy(&get_state, &symbol, sizeof(get_state));
        if (symbol && cuda->device_get(&device, i) == HVI_CU_OK &&
            get_state(device, &flags, &active) == HVI_CU_OK && active)
            return i;
    }
    return -1;
}

int client_driver_enter_any(struct client_driver_scope *scope_p)
{
    int error = begin(scope_p);
    if (error != HVI_CU_OK || scope_p->before)
        return error;
    int device = atomic_load_explicit(&used, memory_order_relaxed);
    if (device < 0)
        device = active_device(scope_p->cuda);
    return device < 0 ? HVI_CU_INVALID_CONTEXT : client_driver_enter(device, scope_p);
}

/* One of the default streams: that of the thread's context. */
static bool is_default(const void *stream)
{
    return (uintptr_t)stream <= 2;
}

int client_driver_enter_stream(int device, void *stream, struct client_driver_scope *scope_p)
{
    hvi_cu_context context = NULL;
    int error = begin(scope_p);
    if (error == HVI_CU_OK &&
        !scope_p->before) /* even what a stream's context is may be asked in one only */
        error = device == CLIENT_DEVICE_ANY ? client_driver_enter_any(scope_p)
                                            : client_driver_enter(device, scope_p);
    if (error == HVI_CU_OK && !is_default(stream))
        error = scope_p->cuda->stream_context(stream, &context);
    if (error == HVI_CU_OK && !is_default(stream))
        error = make_current(scope_p, context);
    if (error == HVI_CU_OK && device != CLIENT_DEVICE_ANY && !is_current(scope_p->cuda, device))
        error = HVI_CU_INVALID_VALUE;
    if (error != HVI_CU_OK)
        client_driver_leave(scope_p);
    return error;
}

void client_driver_leave(const struct client_driver_scope *scope)
{
    if (scope->changed)
        scope->cuda->context_set(scope->before);
}
