/* SPDX-License-Identifier: Apache-2.0
 * Memory of the host that the driver has locked, so that copies between it and a device are DMA.
 *
 * What is registered stays so until the process ends. The end of a registration waits for all streams of the process, whose launches
 * wait meanwhile (P2, P11 of docs/design/gpu-facts.md), and a stream may stand for ever. So there is a bound, of the process, and
 * what is beyond it is copied as pageable memory is.
 *
 * A capture in "global" mode, of any thread, forbids a registration to all threads but relaxed ones, and breaks by it (cuda.h). */
#include "client/device/device.h"

#include <stdatomic.h>

static _Atomic uint64_t pinned; /* bytes; relaxed: a sum that orders nothing */

static bool take(uint64_t bytes)
{
    uint64_t before = atomic_load_explicit(&pinned, memory_order_relaxed);
    do {
        if (bytes > CLIENT_DEVICE_PIN_MAX || bytes > CLIENT_DEVICE_PINNED - before)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&pinned, &before, before + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

static void give_back(uint64_t bytes)
{
    atomic_fetch_sub_explicit(&pinned, bytes, memory_order_relaxed);
}

/* The thread's mode becomes *mode, which is the one before then. False: it stays as it is. */
static bool exchange_mode(const struct hvi_cuda *cuda, int *mode)
{
    return cuda->capture_mode && cuda->capture_mode(mode) == HVI_CU_OK;
}

int client_host_register(const struct hvi_cuda *cuda, void *base, uint64_t bytes, unsigned flags)
{
    int mode = HVI_CU_CAPTURE_RELAXED;
    bool changed = exchange_mode(cuda, &mode);
    int error = cuda->host_register(base, bytes, flags);
    if (changed)
        exchange_mode(cuda, &mode);
    return error;
}

void client_host_unregister(const struct hvi_cuda *cuda, void *base)
{
    int mode = HVI_CU_CAPTURE_RELAXED;
    bool changed = exchange_mode(cuda, &mode);
    cuda->host_unregister(base);
    if (changed)
        exchange_mode(cuda, &mode);
}

bool client_device_pin(int ordinal, void *base, uint64_t bytes)
{
    struct client_driver_scope scope;
    if (!take(bytes))
        return false;
    int error = client_driver_enter(ordinal, &scope);
    if (error == HVI_CU_OK) {
        error = client_host_register(scope.cuda, base, bytes, HVI_CU_HOST_PORTABLE);
        client_driver_leave(&scope);
    }
    if (error != HVI_CU_OK)
        give_back(bytes);
    return error == HVI_CU_OK;
}
