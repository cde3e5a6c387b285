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

#include <sys/eventfd.h>

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
    (void)eventfd_write(event_fd, 1); /* EAGAIN: it is full, so it is readable already */
    return true;
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
    /* Seq_cst, pairs with hvi_wait_asleep; as a release also with hvi_bell_read. */
    atomic_fetch_add_explicit(&channel->cq_bell, 1, memory_order_seq_cst);
    return hvi_wait_wake(&channel->cq_bell, &channel->cq_sleepers);
}

uint32_t hvi_bell_read(const struct hvi_channel_header *channel)
{
    /* Acquire, pairs with the fetch_add in hvi_bell_ring_client: completions published before it
     * are visible. */
    return atomic_load_explicit(&channel->cq_bell, memory_order_acquire);
}

bool hvi_bell_wait(struct hvi_channel_header *channel, uint32_t seen,
                   const struct hvi_wait_policy *policy, uint64_t deadline_ns)
{
    const struct hvi_wait wait = {
        .word = &channel->cq_bell, .sleepers = &channel->cq_sleepers, .seen = seen};

    if (!hvi_wait_awake(&wait, policy, deadline_ns))
        hvi_wait_asleep(&wait, policy, deadline_ns);
    return hvi_bell_read(channel) != seen;
}
