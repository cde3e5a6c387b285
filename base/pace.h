/* SPDX-License-Identifier: Apache-2.0
 * How fast connections are accepted. The kernel does not say whose a connection is before it is accepted, so a flood of
 * them costs the one that accepts, and whatever shares a core with it, as much as the stranger spends. Hence a burst, as
 * large as two jobs of a node, is accepted as it comes. From then on, until half of it is paid for, whoever accepts takes
 * what waits, HVI_PACE_BACKLOG at most, and rests:
 *
 *   free --a burst is used up--> flooded: accept what is there, rest, accept what is there, rest ...
 *     ^                            |
 *     +------- half is paid -------+
 *
 * Where the queue is no longer than what is accepted between two rests, a connection that has found a place in it waits for
 * one rest; in a longer one, for a rest more with each HVI_PACE_BACKLOG before it. One thread for each state. */
#ifndef HVI_BASE_PACE_H
#define HVI_BASE_PACE_H

#include "base/clock.h"
#include "base/rate.h"
#include "base/types.h"

#include <stdbool.h>

#define HVI_PACE_BACKLOG 32
#define HVI_PACE_REST_NS (12 * HVI_NS_MS)
#define HVI_PACE_BURST   (2u * HVI_RANKS_MAX)
#define HVI_PACE_EACH_NS (HVI_NS_SEC / 320)

/* Zero at first. */
struct hvi_pace {
    uint64_t paid_ns; /* base/rate.h */
    uint32_t since;   /* accepted since the last rest */
    bool flooded;
};

/* A connection was accepted. True: a rest is due before the next one. */
static inline bool hvi_pace_accepted(struct hvi_pace *pace, uint64_t now_ns)
{
    if (hvi_rate_take(&pace->paid_ns, now_ns, HVI_PACE_EACH_NS, HVI_PACE_BURST) != 0)
        pace->flooded = true;
    else if (pace->paid_ns <= now_ns + HVI_PACE_BURST / 2 * HVI_PACE_EACH_NS)
        pace->flooded = false;
    pace->since = pace->flooded ? (pace->since + 1) % HVI_PACE_BACKLOG : 0;
    return pace->flooded && pace->since == 0;
}

/* One that was accepted turns out to be welcome: it costs nothing. */
static inline void hvi_pace_refund(struct hvi_pace *pace)
{
    pace->paid_ns -= pace->paid_ns < HVI_PACE_EACH_NS ? pace->paid_ns : HVI_PACE_EACH_NS;
}

/* None is left to accept. True: a rest is due before this is looked at again. */
static inline bool hvi_pace_empty(struct hvi_pace *pace)
{
    pace->since = 0;
    return pace->flooded;
}

#endif
