/* SPDX-License-Identifier: Apache-2.0
 * How a rank waits for a word of shared memory to move, and how it is woken: for the engine (bell.h) and
 * for other ranks in a slot (slots.h) alike. Any thread. */
#ifndef HVI_SHM_WAIT_H
#define HVI_SHM_WAIT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* How a waiting rank passes its time. */
struct hvi_wait_policy {
    uint32_t spins;    /* pauses before the first yield; few when ranks outnumber cores */
    uint64_t yield_ns; /* how long to yield before sleeping in the kernel; see base/yield.h */
    uint64_t slice_ns; /* longest single sleep; between slices the caller looks at its socket */
    uint32_t rounds;   /* yields for each look at the clock; 0: one */
};
/* For the engine, which may need the core that the rank has. */
struct hvi_wait_policy hvi_wait_policy_for_engine(void);
/* For each other: `ranks` local ranks on `cores` cores. */
struct hvi_wait_policy hvi_wait_policy_among(uint32_t ranks, uint32_t cores);

/* What is waited for. */
struct hvi_wait {
    _Atomic uint32_t *word, *sleepers;
    uint32_t seen; /* until .word is something else */
    /* Whether what is waited for may need the core that this thread has; asked before each of the first
     * yields, which are left out if it does not. NULL: it may. */
    bool (*yields)(const void *user);
    const void *user;
};

/* Spins, then yields for as long as that pays. True: the word has moved, or the deadline (monotonic) has passed. */
bool hvi_wait_awake(const struct hvi_wait *wait, const struct hvi_wait_policy *policy,
                    uint64_t deadline_ns);
/* One sleep in the kernel: until the word moves, a slice or the deadline has passed, or on a signal. */
void hvi_wait_asleep(const struct hvi_wait *wait, const struct hvi_wait_policy *policy,
                     uint64_t deadline_ns);
/* After the word was moved with a seq_cst access: wakes all that sleep. True if it made a system call. */
bool hvi_wait_wake(_Atomic uint32_t *word, const _Atomic uint32_t *sleepers);

#endif
