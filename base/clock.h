/* SPDX-License-Identifier: Apache-2.0
 * Monotonic time and deadlines, in nanoseconds. A deadline is an absolute CLOCK_MONOTONIC time;
 * HVI_NEVER has none. Any thread. */
#ifndef HVI_BASE_CLOCK_H
#define HVI_BASE_CLOCK_H

#include <stdbool.h>
#include <stdint.h>

#define HVI_NEVER  UINT64_MAX
#define HVI_NS_MS  UINT64_C(1000000)
#define HVI_NS_SEC UINT64_C(1000000000)

uint64_t hvi_clock_ns(void);
/* now + delay, saturating at HVI_NEVER. A negative delay means HVI_NEVER. */
uint64_t hvi_deadline_after(int64_t delay_ns);
bool hvi_deadline_passed(uint64_t deadline_ns);
/* Time left; 0 when passed; HVI_NEVER when there is none. */
uint64_t hvi_deadline_left(uint64_t deadline_ns);
/* Time left as a poll(2) timeout: -1 for HVI_NEVER, rounded up, capped at INT_MAX. */
int hvi_deadline_poll_ms(uint64_t deadline_ns);

#endif
