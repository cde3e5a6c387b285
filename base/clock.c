/* SPDX-License-Identifier: Apache-2.0
 * Deadlines saturate: adding to or subtracting from them never wraps. */
#include "base/clock.h"

#include "base/bits.h"

#include <limits.h>
#include <time.h>

uint64_t hvi_clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * HVI_NS_SEC + (uint64_t)now.tv_nsec;
}

uint64_t hvi_deadline_after(int64_t delay_ns)
{
    uint64_t deadline_ns = HVI_NEVER;
    if (delay_ns >= 0)
        (void)hvi_add_checked(hvi_clock_ns(), (uint64_t)delay_ns, &deadline_ns);
    return deadline_ns;
}

bool hvi_deadline_passed(uint64_t deadline_ns)
{
    return deadline_ns != HVI_NEVER && hvi_clock_ns() >= deadline_ns;
}

uint64_t hvi_deadline_left(uint64_t deadline_ns)
{
    if (deadline_ns == HVI_NEVER)
        return HVI_NEVER;
    uint64_t now_ns = hvi_clock_ns();
    return now_ns < deadline_ns ? deadline_ns - now_ns : 0;
}

int hvi_deadline_poll_ms(uint64_t deadline_ns)
{
    uint64_t left_ns = hvi_deadline_left(deadline_ns);
    if (left_ns == HVI_NEVER)
        return -1;
    /* Rounded up: a poll that returns just before the deadline would spin until it. */
    uint64_t left_ms = left_ns / HVI_NS_MS + (left_ns % HVI_NS_MS != 0);
    return left_ms < INT_MAX ? (int)left_ms : INT_MAX;
}
