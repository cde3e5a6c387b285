/* SPDX-License-Identifier: Apache-2.0
 * What a driver is asked first. Alone it is a driver that has no other function. */
#include "tests/fakegpu/cuda_abi.h"
#include "tests/fakegpu/settings.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static _Atomic bool is_initialised;
static _Atomic bool is_forked; /* of a process that had initialised it */

bool fake_is_initialised(void);
bool fake_is_initialised(void)
{
    return atomic_load(&is_initialised) && !atomic_load(&is_forked);
}

int cu_driver_version(int *version_p)
{
    *version_p = fake_number("version", 13000);
    return HVI_CU_OK;
}

int cu_error_name(int error, const char **name_p)
{
    static const struct {
        int error;
        const char *name;
    } names[] = {
        {HVI_CU_OK, "CUDA_SUCCESS"},
        {HVI_CU_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
        {HVI_CU_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {HVI_CU_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"},
        {HVI_CU_NO_DEVICE, "CUDA_ERROR_NO_DEVICE"},
        {HVI_CU_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
        {FAKE_MAP_FAILED, "CUDA_ERROR_MAP_FAILED"},
        {HVI_CU_ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED"},
        {FAKE_PEERS_UNSUPPORTED, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"},
        {FAKE_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {HVI_CU_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
        {HVI_CU_NOT_READY, "CUDA_ERROR_NOT_READY"},
        {HVI_CU_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
        {FAKE_ALREADY_REGISTERED, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"},
        {FAKE_NOT_REGISTERED, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED"},
        {HVI_CU_NOT_PERMITTED, "CUDA_ERROR_NOT_PERMITTED"},
        {HVI_CU_NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {FAKE_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
    };

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].error == error) {
            *name_p = names[i].name;
            return HVI_CU_OK;
        }
    }
    return HVI_CU_INVALID_VALUE;
}

/* A process that forks keeps its driver; its child has none, and cannot get one (CUDA guide). */
static void forget(void)
{
    atomic_store(&is_forked, atomic_load(&is_initialised));
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, forget);
}

/* Any device that it may open, of those that CUDA_VISIBLE_DEVICES names first. */
static bool has_device(void)
{
    const char *wish = getenv("CUDA_VISIBLE_DEVICES");
    const int named = wish == NULL ? -1 : fake_device_named(wish, strcspn(wish, ","));

    for (int i = 0; wish == NULL && i < fake_device_total(); i++) {
        if (!fake_device_denied(i))
            return true;
    }
    return named >= 0 && !fake_device_denied(named);
}

int cu_init(unsigned flags)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    if (flags != 0)
        return HVI_CU_INVALID_VALUE;
    if (atomic_load(&is_forked))
        return HVI_CU_NOT_INITIALIZED;
    if (!has_device())
        return HVI_CU_NO_DEVICE;
    const int slow_ms = fake_fault("slow-init");
    nanosleep(&(struct timespec){slow_ms / 1000, slow_ms % 1000 * 1000000L}, NULL);
    pthread_once(&once, watch_forks);
    atomic_store(&is_initialised, true);
    return HVI_CU_OK;
}
