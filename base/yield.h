/* SPDX-License-Identifier: Apache-2.0
 * Yields of a thread that looks for something to do.
 *
 * What it waits for may need its core, so it yields between two looks. Where other work wants the core
 * as well, a yield lasts until the time slice of that work is over, which is milliseconds. Whose work it
 * is decides:
 *
 *   the job's own   What waits would take a core from the computation at each wake, and the computation
 *                   is what the op is for: yields go on. A step of Keras of two ranks that have two
 *                   cores takes 8 to 10 % longer without them.
 *   a stranger's    A thread that sleeps gets a core as soon as it is woken. So after a long yield a
 *                   thread yields no more for HVI_YIELD_REST times as long, and sleeps instead: 1 MiB
 *                   of two ranks beside two busy loops on two cores takes 0.4 ms and not 4.
 *
 * Told apart by the processors' time that the job's processes have had between two long yields. */
#ifndef HVI_BASE_YIELD_H
#define HVI_BASE_YIELD_H

#include "base/clock.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* About a time slice of Linux (2.8 ms with 8 cores and more). The engine's own workers keep a core for as long as a large op
 * takes: with 0.05 and 0.5 ms, ops of 16 MiB of 2 and 4 ranks (0.6 and 1.2 ms) took 8 to 16 % more time. */
#define HVI_YIELD_LONG_NS (2 * HVI_NS_MS)
#define HVI_YIELD_REST    16u /* chosen */
/* What a yield counts for at most. Chosen: some time slices; a process that was stopped meanwhile, or its machine, yields
 * again a third of a second later. */
#define HVI_YIELD_MOST_NS (20 * HVI_NS_MS)
/* Over how much time it is judged whose work it is: a part of a step says little (a rank that waits for another one's
 * computation of 3 ms has computed nothing then), and what was longer ago says nothing about now. Chosen. */
#define HVI_YIELD_JUDGE_NS  (20 * HVI_NS_MS)
#define HVI_YIELD_FORGET_NS (1 * HVI_NS_SEC)
/* The job computes if it has had one of that many parts of the cores that it can use. A quarter: ranks that compute and
 * wait for each other have half of a core and more, ranks that do ops beside busy loops some percent. */
#define HVI_YIELD_PART 4u

/* Of one thread; all 0 at first. */
struct hvi_yields {
    uint64_t rest_ns;  /* no yields until then; monotonic */
    uint64_t since_ns; /* judged from here on; 0: no long yield yet */
    uint64_t used_ns;  /* processors' time that the job had had by then */
};

bool hvi_yields_pay(const struct hvi_yields *yields, uint64_t now_ns);
/* A yield took from `before_ns` to `after_ns`, a long time; by then the job had had `used_ns` of processors' time, of at
 * most `cores` at once. */
void hvi_yields_note(struct hvi_yields *yields, uint64_t before_ns, uint64_t after_ns,
                     uint64_t used_ns, uint32_t cores);

/* Yields the core, if that pays for the calling thread. False, at once: it does not, so sleep. */
bool hvi_yield(void);

/* The job is this process, unless this says which ones it is, one at a time; those after the first 256 do not count. From
 * one thread. Another process may take the pid after its end. Ignores what does not exist. */
void hvi_yields_watch(pid_t pid);

#endif
