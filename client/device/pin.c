/* SPDX-License-Identifier: Apache-2.0
 * Memory of the host that the driver has locked, so that copies between it and a device are DMA. What is registered stays so for a
 * session's life (client/memory/staging.c): taking one back waits for all streams of the process, whose launches wait meanwhile (P2,
 * P11 of docs/design/gpu-facts.md). So there is a bound, of the process, and what is beyond it is copied as pageable memory is. */
#include "client/device/device.h"

#include <stdatomic.h>

static _Atomic uint64_t pinned; /* bytes; relaxed: a sum that orders nothing */

static bool take(uint64_t bytes)
{
    uint64_t before = atomic_load_explicit(&pinned, memory_order_relaxed);
    do {
        if (bytes > CLIENT_DEVICE_PINNED - before)
            return false;
    } while (!atomic_compare_exchange_weak_explicit(&pinned, &before, before + bytes,
                                                    memory_order_relaxed, memory_order_relaxed));
    return true;
}

static void give_back(uint64_t bytes)
{
    atomic_fetch_sub_explicit(&pinned, bytes, memory_order_relaxed);
}

bool client_device_pin(int ordinal, void *base, uint64_t bytes)
{
    struct client_driver_scope scope;
    if (!take(bytes))
        return false;
    int error = client_driver_enter(ordinal, &scope);
    if (error == HVI_CU_OK) {
        error = scope.cuda->host_register(base, bytes, HVI_CU_HOST_PORTABLE);
        client_driver_leave(&scope);
    }
    if (error != HVI_CU_OK)
        give_back(bytes);
    return error == HVI_CU_OK;
}

bool client_device_unpin(int ordinal, void *base, uint64_t bytes)
{
    struct client_driver_scope scope;
    int error = client_driver_enter(ordinal, &scope);
    if (error == HVI_CU_OK) {
        error = scope.cuda->host_unregister(base);
        client_driver_leave(&scope);
    }
    if (error == HVI_CU_OK)
        give_back(bytes);
    return error == HVI_CU_OK;
}
