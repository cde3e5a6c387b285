/* SPDX-License-Identifier: Apache-2.0 */
#include "base/yield.h"

#include <sched.h>

static _Thread_local struct hvi_yields own;

bool hvi_yields_pay(const struct hvi_yields *yields, uint64_t now_ns)
{
    return now_ns >= yields->rest_ns;
}

void hvi_yields_note(struct hvi_yields *yields, uint64_t before_ns, uint64_t after_ns)
{
    uint64_t took_ns = after_ns - before_ns;

    if (took_ns > HVI_YIELD_MOST_NS)
        took_ns = HVI_YIELD_MOST_NS;
    if (took_ns >= HVI_YIELD_LONG_NS)
        yields->rest_ns = after_ns + HVI_YIELD_REST * took_ns;
}

bool hvi_yield(void)
{
    const uint64_t before_ns = hvi_clock_ns();

    if (!hvi_yields_pay(&own, before_ns))
        return false;
    sched_yield();
    hvi_yields_note(&own, before_ns, hvi_clock_ns());
    return true;
}
