/* SPDX-License-Identifier: Apache-2.0
 * How often something may happen: `burst` times at once, and then once in `each_ns`. The whole state is one time, until
 * which what has happened is paid for; it is 0 at first. One thread for each state. */
#ifndef HVI_BASE_RATE_H
#define HVI_BASE_RATE_H

#include <stdint.h>

/* 0: once more now, which is counted. Else how long to wait for that, in ns; nothing is counted. */
static inline uint64_t hvi_rate_take(uint64_t *paid_ns, uint64_t now_ns, uint64_t each_ns,
                                     uint64_t burst)
{
    uint64_t from_ns = *paid_ns > now_ns ? *paid_ns : now_ns;
    uint64_t ahead_ns = from_ns - now_ns, most_ns = (burst - 1) * each_ns;

    if (ahead_ns > most_ns)
        return ahead_ns - most_ns;
    *paid_ns = from_ns + each_ns;
    return 0;
}

#endif
