/* SPDX-License-Identifier: Apache-2.0 */
#include "base/yield.h"

#include "base/available.h"

#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#define WATCHED_MOST 256u

static _Thread_local struct hvi_yields own;

/* Those below the count do not change any more. */
static clockid_t watched[WATCHED_MOST];
static _Atomic uint32_t watched_count;

bool hvi_yields_pay(const struct hvi_yields *yields, uint64_t now_ns)
{
    return now_ns >= yields->rest_ns;
}

void hvi_yields_note(struct hvi_yields *yields, uint64_t before_ns, uint64_t after_ns,
                     uint64_t used_ns, uint32_t cores)
{
    const uint64_t passed_ns = after_ns - yields->since_ns;
    uint64_t took_ns = after_ns - before_ns;

    if (took_ns > HVI_YIELD_MOST_NS)
        took_ns = HVI_YIELD_MOST_NS;
    const bool known = yields->since_ns != 0 && passed_ns <= HVI_YIELD_FORGET_NS;
    if (known && passed_ns < HVI_YIELD_JUDGE_NS)
        return;
    /* What has ended is not counted any more: then there is less than there was. */
    const bool computes = used_ns > yields->used_ns &&
                          used_ns - yields->used_ns >= passed_ns / HVI_YIELD_PART * cores;
    yields->since_ns = after_ns;
    yields->used_ns = used_ns;
    if (known && !computes)
        yields->rest_ns = after_ns + HVI_YIELD_REST * took_ns;
}

/* False: that process has ended. */
static bool add_used(clockid_t clock, uint64_t *used_ns_p)
{
    struct timespec used;

    if (clock_gettime(clock, &used) != 0)
        return false;
    *used_ns_p += (uint64_t)used.tv_sec * HVI_NS_SEC + (uint64_t)used.tv_nsec;
    return true;
}

static void note(uint64_t before_ns, uint64_t after_ns)
{
    const uint32_t count = atomic_load_explicit(&watched_count, memory_order_acquire);
    const uint32_t cores = hvi_cores_available();
    uint64_t used_ns = 0;
    uint32_t alive = 0;

    if (count == 0)
        alive = add_used(CLOCK_PROCESS_CPUTIME_ID, &used_ns);
    for (uint32_t i = 0; i < count; i++)
        alive += add_used(watched[i], &used_ns);
    hvi_yields_note(&own, before_ns, after_ns, used_ns, alive < cores ? alive : cores);
}

bool hvi_yield(void)
{
    const uint64_t before_ns = hvi_clock_ns();

    if (!hvi_yields_pay(&own, before_ns))
        return false;
    sched_yield();
    const uint64_t after_ns = hvi_clock_ns();
    if (after_ns - before_ns >= HVI_YIELD_LONG_NS)
        note(before_ns, after_ns);
    return true;
}

void hvi_yields_watch(pid_t pid)
{
    const uint32_t count = atomic_load_explicit(&watched_count, memory_order_relaxed);

    if (count < WATCHED_MOST && pid > 0 && clock_getcpuclockid(pid, &watched[count]) == 0)
        atomic_store_explicit(&watched_count, count + 1, memory_order_release);
}
