/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/calls.h"

#include "base/clock.h"

#include <inttypes.h>
#include <stdio.h>

void gpu_calls_begin(struct gpu_calls *calls, const char *name, uint64_t limit_ns)
{
    /* Relaxed: .name publishes them. */
    atomic_store_explicit(&calls->since_ns, hvi_clock_ns(), memory_order_relaxed);
    atomic_store_explicit(&calls->limit_ns, limit_ns, memory_order_relaxed);
    /* Release, pairs with the acquire in gpu_calls_look. */
    atomic_store_explicit(&calls->name, name, memory_order_release);
}

void gpu_calls_end(struct gpu_calls *calls)
{
    atomic_store_explicit(&calls->name, NULL, memory_order_release); /* as above */
}

void gpu_calls_fail(struct gpu_calls *calls, const char *name, const char *text)
{
    const uint64_t batch = atomic_load_explicit(&calls->batch, memory_order_relaxed);

    gpu_calls_end(calls);
    if (calls->failed)
        return;
    calls->failed = true;
    if (batch == 0)
        snprintf(calls->why, sizeof(calls->why), "%s: %s", name, text);
    else
        snprintf(calls->why, sizeof(calls->why), "%s, at batch %" PRIu64 ": %s", name, batch, text);
}

bool gpu_calls_good(struct gpu_calls *calls, const char *name, int error)
{
    char text[100];

    gpu_calls_end(calls);
    if (error == HVI_CU_OK)
        return true;
    hvi_cuda_describe(calls->cuda, error, text, sizeof(text));
    gpu_calls_fail(calls, name, text);
    return false;
}

bool gpu_calls_look(const struct gpu_calls *calls, uint64_t from_ns, uint64_t now_ns, char *text_p,
                    size_t text_size)
{
    /* Acquire, pairs with the release in gpu_calls_begin. A call that has begun meanwhile has a later .since_ns. */
    const char *name = atomic_load_explicit(&calls->name, memory_order_acquire);
    const uint64_t since_ns = atomic_load_explicit(&calls->since_ns, memory_order_relaxed);
    const uint64_t limit_ns = atomic_load_explicit(&calls->limit_ns, memory_order_relaxed);

    const uint64_t first_ns = since_ns > from_ns ? since_ns : from_ns;

    if (name == NULL || now_ns < first_ns || now_ns - first_ns < limit_ns)
        return false;
    snprintf(text_p, text_size, "in %s for %.1f s", name,
             (double)(now_ns - first_ns) / (double)HVI_NS_SEC);
    return true;
}
