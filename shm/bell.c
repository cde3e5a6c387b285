/* SPDX-License-Identifier: Apache-2.0
 * The doorbells of bell.h.
 *
 * Both directions are Dekker's pattern: each side writes its own word and then reads the other's,
 * and all four accesses are sequentially consistent, so in their one total order the side that
 * comes second sees the first.
 *
 *   client -> engine                                engine -> client
 *   client              engine                      engine               client
 *   publish tail        sleeping = 1      (S)       publish tail         sleepers += 1     (S)
 *   active |= bit  (S)  read active       (S)       bell += 1      (S)   read bell         (S)
 *   read sleeping  (S)  set: drain again            read sleepers  (S)   moved: return
 *   set: eventfd        not: epoll_wait             set: wake            not: futex wait
 *
 * So either the engine sees the bit and does not sleep, or the client sees that it sleeps and
 * writes the eventfd. The tail travels with the bit: whoever reads the bit or the moved bell also
 * reads the tail published before it. The futex wait is not part of the proof's second read alone:
 * the kernel compares the word again under its own lock, so a bell between our read and the sleep
 * makes the wait return at once.
 *
 * No atomic_thread_fence: ThreadSanitizer does not see it, and x86 pays the same for a locked
 * instruction.
 *
 * The words are writable by the peer. One that lies about them can only cause extra wake-ups, or
 * miss its own; every sleep is bounded by the caller. */
#include "shm/bell.h"

#include "base/clock.h"
#include "base/relax.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define BELL_WORDS 16u

/* --- client -> engine --- */

bool hvi_bell_ring_engine(struct hvi_bell_page *page, uint32_t index, int event_fd)
{
    /* Seq_cst, pairs with the load in hvi_bell_arm; as a release also with the exchange in
     * hvi_bell_take. */
    atomic_fetch_or_explicit(&page->active[index / 64 % BELL_WORDS], UINT64_C(1) << (index % 64),
                             memory_order_seq_cst);
    /* Seq_cst, pairs with the store in hvi_bell_arm. */
    if (atomic_load_explicit(&page->engine_sleeping, memory_order_seq_cst) == 0)
        return false;
    const uint64_t one = 1;
    ssize_t written;
    do
        written = write(event_fd, &one, sizeof(one));
    while (written < 0 && errno == EINTR);
    return true; /* EAGAIN: the counter is full, so the descriptor is readable already */
}

uint64_t hvi_bell_take(struct hvi_bell_page *page, uint32_t word)
{
    _Atomic uint64_t *active = &page->active[word % BELL_WORDS];
    /* Relaxed: only a hint, so that an idle pass does not take the line from the clients. */
    if (atomic_load_explicit(active, memory_order_relaxed) == 0)
        return 0;
    /* Acquire, pairs with the fetch_or in hvi_bell_ring_engine: the tail published before it is
     * visible. */
    return atomic_exchange_explicit(active, 0, memory_order_seq_cst);
}

bool hvi_bell_arm(struct hvi_bell_page *page)
{
    /* Seq_cst, pairs with the load in hvi_bell_ring_engine. */
    atomic_store_explicit(&page->engine_sleeping, 1, memory_order_seq_cst);
    for (uint32_t word = 0; word < BELL_WORDS; word++) {
        /* Seq_cst, pairs with the fetch_or in hvi_bell_ring_engine. */
        if (atomic_load_explicit(&page->active[word], memory_order_seq_cst) != 0) {
            hvi_bell_disarm(page);
            return false;
        }
    }
    return true;
}

void hvi_bell_disarm(struct hvi_bell_page *page)
{
    /* Relaxed: a client that still reads 1 makes one needless system call. */
    atomic_store_explicit(&page->engine_sleeping, 0, memory_order_relaxed);
}

/* --- engine -> client --- */

bool hvi_bell_ring_client(struct hvi_channel_header *channel)
{
    /* Seq_cst, pairs with the second load in sleep_slice; as a release also with hvi_bell_read. */
    atomic_fetch_add_explicit(&channel->cq_bell, 1, memory_order_seq_cst);
    /* Seq_cst, pairs with the fetch_add in sleep_slice. */
    if (atomic_load_explicit(&channel->cq_sleepers, memory_order_seq_cst) == 0)
        return false;
    syscall(SYS_futex, &channel->cq_bell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
    return true;
}

struct hvi_wait_policy hvi_wait_policy_for(uint32_t ranks, uint32_t cores)
{
    /* The engine needs a core too. When it has to share one with a waiter, spinning delays the very
     * thing that is waited for. */
    bool crowded = ranks >= cores;
    return (struct hvi_wait_policy){
        .spins = crowded ? 20 : 2000,
        .yield_ns = 100 * 1000,
        .slice_ns = 50 * HVI_NS_MS,
    };
}

uint32_t hvi_bell_read(const struct hvi_channel_header *channel)
{
    /* Acquire, pairs with the fetch_add in hvi_bell_ring_client: completions published before it
     * are visible. */
    return atomic_load_explicit(&channel->cq_bell, memory_order_acquire);
}

/* Spins, then yields. True when the word has moved. */
static bool wait_awake(const struct hvi_channel_header *channel, uint32_t seen,
                       const struct hvi_wait_policy *policy, uint64_t deadline_ns)
{
    for (uint32_t i = 0; i < policy->spins; i++) {
        if (hvi_bell_read(channel) != seen)
            return true;
        hvi_cpu_relax();
    }
    uint64_t start_ns = hvi_clock_ns();
    uint64_t now_ns = start_ns;
    while (now_ns - start_ns < policy->yield_ns && now_ns < deadline_ns) {
        if (hvi_bell_read(channel) != seen)
            return true;
        sched_yield();
        now_ns = hvi_clock_ns();
    }
    return hvi_bell_read(channel) != seen;
}

/* One sleep in the kernel. Not FUTEX_PRIVATE: the waker is another process. */
static void sleep_slice(struct hvi_channel_header *channel, uint32_t seen, uint64_t sleep_ns)
{
    const struct timespec timeout = {
        .tv_sec = (time_t)(sleep_ns / HVI_NS_SEC),
        .tv_nsec = (long)(sleep_ns % HVI_NS_SEC),
    };
    /* Seq_cst, pairs with the load in hvi_bell_ring_client. */
    atomic_fetch_add_explicit(&channel->cq_sleepers, 1, memory_order_seq_cst);
    /* Seq_cst, pairs with the fetch_add in hvi_bell_ring_client. */
    if (atomic_load_explicit(&channel->cq_bell, memory_order_seq_cst) == seen)
        syscall(SYS_futex, &channel->cq_bell, FUTEX_WAIT, seen, &timeout, NULL, 0);
    /* Relaxed: a waker that still reads us makes one needless system call. */
    atomic_fetch_sub_explicit(&channel->cq_sleepers, 1, memory_order_relaxed);
}

bool hvi_bell_wait(struct hvi_channel_header *channel, uint32_t seen,
                   const struct hvi_wait_policy *policy, uint64_t deadline_ns)
{
    if (wait_awake(channel, seen, policy, deadline_ns))
        return true;
    uint64_t sleep_ns = hvi_deadline_left(deadline_ns);
    if (sleep_ns > policy->slice_ns)
        sleep_ns = policy->slice_ns;
    if (sleep_ns > 0)
        sleep_slice(channel, seen, sleep_ns);
    return hvi_bell_read(channel) != seen;
}
