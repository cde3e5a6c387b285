/* SPDX-License-Identifier: Apache-2.0
 * A sleep is Dekker's pattern: the sleeper counts itself in .sleepers and then reads the word, the waker
 * moves the word and then reads .sleepers. All four accesses are seq_cst, so whichever side comes second
 * sees the first. The kernel compares the word once more under its own lock. */
#include "shm/wait.h"

#include "base/clock.h"
#include "base/relax.h"
#include "base/yield.h"
#include "shm/tuning.h"

#include <limits.h>
#include <linux/futex.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static struct hvi_wait_policy policy(uint32_t spins, uint32_t rounds)
{
    return (struct hvi_wait_policy){spins, HVI_TUNED_YIELD_NS, HVI_TUNED_SLICE_NS, rounds};
}

struct hvi_wait_policy hvi_wait_policy_for_engine(void)
{
    return policy(HVI_TUNED_ENGINE_SPINS, 1);
}

struct hvi_wait_policy hvi_wait_policy_among(uint32_t ranks, uint32_t cores)
{
    return policy(ranks > cores ? 0 : HVI_TUNED_SPINS, HVI_TUNED_CLOCK_ROUNDS);
}

static inline bool has_moved(const struct hvi_wait *wait)
{
    /* Acquire, pairs with the store that moves it: what came before that is visible. */
    return atomic_load_explicit(wait->word, memory_order_acquire) != wait->seen;
}

static bool spin(const struct hvi_wait *wait, uint32_t spins)
{
    for (uint32_t i = 0; i < spins; i++) {
        if (has_moved(wait))
            return true;
        hvi_cpu_relax();
    }
    return has_moved(wait);
}

bool hvi_wait_awake(const struct hvi_wait *wait, const struct hvi_wait_policy *policy,
                    uint64_t deadline_ns)
{
    uint32_t rounds = policy->rounds == 0 ? 1 : policy->rounds;
    uint64_t start_ns = 0;

    if (spin(wait, policy->spins))
        return true;
    for (uint32_t round = 1; policy->yield_ns > 0; round++) {
        if ((!wait->yields || round > HVI_TUNED_APART_ROUNDS || wait->yields(wait->user)) &&
            !hvi_yield())
            break;
        if (spin(wait, wait->yields ? HVI_TUNED_APART_SPINS : 0))
            return true;
        if (round % rounds != 0)
            continue;
        uint64_t now_ns = hvi_clock_ns();
        if (now_ns >= deadline_ns)
            return true;
        if (start_ns == 0)
            start_ns = now_ns;
        else if (now_ns - start_ns >= policy->yield_ns)
            break;
    }
    return false;
}

void hvi_wait_asleep(const struct hvi_wait *wait, const struct hvi_wait_policy *policy,
                     uint64_t deadline_ns)
{
    uint64_t left_ns = hvi_deadline_left(deadline_ns);
    uint64_t sleep_ns = left_ns < policy->slice_ns ? left_ns : policy->slice_ns;
    const struct timespec timeout = {
        .tv_sec = (time_t)(sleep_ns / HVI_NS_SEC),
        .tv_nsec = (long)(sleep_ns % HVI_NS_SEC),
    };

    if (sleep_ns == 0)
        return;
    atomic_fetch_add_explicit(wait->sleepers, 1, memory_order_seq_cst);
    /* Not FUTEX_PRIVATE: the waker is another process. */
    if (atomic_load_explicit(wait->word, memory_order_seq_cst) == wait->seen)
        syscall(SYS_futex, wait->word, FUTEX_WAIT, wait->seen, &timeout, NULL, 0);
    /* Relaxed: a waker that still reads us makes one needless system call. */
    atomic_fetch_sub_explicit(wait->sleepers, 1, memory_order_relaxed);
}

bool hvi_wait_wake(_Atomic uint32_t *word, const _Atomic uint32_t *sleepers)
{
    if (atomic_load_explicit(sleepers, memory_order_seq_cst) == 0)
        return false;
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return true;
}
