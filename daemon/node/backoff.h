/* SPDX-License-Identifier: Apache-2.0
 * How soon a process of hvdd's that has ended is started again. Pure; any thread. */
#ifndef HVD_NODE_BACKOFF_H
#define HVD_NODE_BACKOFF_H

#include "base/clock.h"

#include <stdint.h>

#define NODE_BACKOFF_LEAST_NS (100 * HVI_NS_MS)
#define NODE_BACKOFF_MOST_NS  (5 * HVI_NS_SEC)
#define NODE_BACKOFF_STEADY_NS                                                                     \
    (10 * HVI_NS_SEC) /* who has lived so long is started again at once */

/* Nanoseconds from now until its next start. *backoff_ns_p, 0 at first, is the time of the one after that: it doubles. */
static inline uint64_t node_backoff_next(uint64_t *backoff_ns_p, uint64_t started_ns)
{
    const uint64_t lived_ns = hvi_clock_ns() - started_ns;
    const uint64_t delay_ns = lived_ns >= NODE_BACKOFF_STEADY_NS ? 0 : *backoff_ns_p;
    const uint64_t next_ns = delay_ns == 0 ? NODE_BACKOFF_LEAST_NS : delay_ns * 2;

    *backoff_ns_p = next_ns < NODE_BACKOFF_MOST_NS ? next_ns : NODE_BACKOFF_MOST_NS;
    return delay_ns;
}

#endif
