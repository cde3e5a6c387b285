/* SPDX-License-Identifier: Apache-2.0
 * Yields of a thread that looks for something to do.
 *
 * What it waits for may need its core, so it yields between two looks. Where other work wants the core
 * as well, a yield lasts until the time slice of that work is over, which is milliseconds; a thread that
 * sleeps gets a core as soon as it is woken. So after a long yield a thread yields no more for
 * HVI_YIELD_REST times as long, and sleeps instead. Yields cost at most that part of its time. */
#ifndef HVI_BASE_YIELD_H
#define HVI_BASE_YIELD_H

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>

/* About a time slice of Linux (2.8 ms with 8 cores and more). The engine's own workers keep a core for as long as a large op
 * takes: with 0.05 and 0.5 ms, ops of 16 MiB of 2 and 4 ranks (0.6 and 1.2 ms) took 8 to 16 % more time. */
#define HVI_YIELD_LONG_NS (2 * HVI_NS_MS)
#define HVI_YIELD_REST    16u /* chosen */
/* What a yield counts for at most. Chosen: some time slices; a process that was stopped meanwhile, or its machine, yields
 * again a third of a second later. */
#define HVI_YIELD_MOST_NS (20 * HVI_NS_MS)

/* Of one thread; all 0 at first. */
struct hvi_yields {
    uint64_t rest_ns; /* no yields until then; monotonic */
};

bool hvi_yields_pay(const struct hvi_yields *yields, uint64_t now_ns);
/* A yield took from `before_ns` to `after_ns`. */
void hvi_yields_note(struct hvi_yields *yields, uint64_t before_ns, uint64_t after_ns);

/* Yields the core, if that pays for the calling thread. False, at once: it does not, so sleep. */
bool hvi_yield(void);

#endif
