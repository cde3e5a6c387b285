/* SPDX-License-Identifier: Apache-2.0
 * The ring of ring.h.
 *
 * Indices run freely, so full and empty need no spare slot: tail - head (mod 2^32) is the number of
 * published slots, right through the wrap of the index. The peer's index is believed only as far as
 * it is possible: it lies between the last value we accepted and the other end's limit. A peer that
 * moves it backwards or too far breaks the protocol; a peer that lies inside the limits only
 * corrupts its own messages, which the reader validates anyway.
 *
 * An index is loaded from shared memory exactly once per call. On an error the view does not
 * change, so asking again gives the same answer as long as the peer says the same. */
#include "shm/ring.h"

#include "base/assert.h"
#include "base/status.h"

#include <stddef.h>
#include <string.h>

static unsigned char *slot_at(const struct hvi_ring *ring, uint32_t index)
{
    return ring->slots + (size_t)(index & (ring->slot_count - 1)) * ring->slot_bytes;
}

void hvi_ring_init(struct hvi_ring *ring, void *slots, uint32_t slot_bytes, uint32_t slot_count,
                   _Atomic uint32_t *head, _Atomic uint32_t *tail)
{
    HVI_ASSERT(slot_count > 0 && (slot_count & (slot_count - 1)) == 0 && slot_bytes > 0);
    *ring = (struct hvi_ring){
        .slots = slots,
        .head = head,
        .tail = tail,
        .slot_bytes = slot_bytes,
        .slot_count = slot_count,
    };
}

int hvi_ring_space(struct hvi_ring *ring, uint32_t *slots_p)
{
    /* Acquire, pairs with the release in hvi_ring_release: the consumer has finished reading what
     * it gave back. */
    uint32_t head = atomic_load_explicit(ring->head, memory_order_acquire);
    /* The head goes from the last accepted one up to our tail. */
    if (head - ring->peer > ring->own - ring->peer)
        return HVI_ERR_PROTOCOL;
    ring->peer = head;
    *slots_p = ring->slot_count - (ring->own - head);
    return HVI_OK;
}

void *hvi_ring_slot(struct hvi_ring *ring, uint32_t ahead)
{
    HVI_ASSERT(ahead < ring->slot_count - (ring->own - ring->peer));
    return slot_at(ring, ring->own + ahead);
}

void hvi_ring_publish(struct hvi_ring *ring, uint32_t count)
{
    HVI_ASSERT(count <= ring->slot_count - (ring->own - ring->peer));
    ring->own += count;
    /* Release, pairs with the acquire in hvi_ring_available: the slots are filled before the tail
     * covers them. */
    atomic_store_explicit(ring->tail, ring->own, memory_order_release);
}

int hvi_ring_available(struct hvi_ring *ring, uint32_t *slots_p)
{
    /* Acquire, pairs with the release in hvi_ring_publish: slots up to this tail are filled. */
    uint32_t tail = atomic_load_explicit(ring->tail, memory_order_acquire);
    /* The tail goes from the last accepted one up to a full ring after our head. */
    uint32_t most = ring->own + ring->slot_count;
    if (tail - ring->peer > most - ring->peer)
        return HVI_ERR_PROTOCOL;
    ring->peer = tail;
    *slots_p = tail - ring->own;
    return HVI_OK;
}

void hvi_ring_copy(const struct hvi_ring *ring, uint32_t ahead, void *slot_copy)
{
    HVI_ASSERT(ahead < ring->peer - ring->own);
    memcpy(slot_copy, slot_at(ring, ring->own + ahead), ring->slot_bytes);
    /* Compiler only: nothing after this may be answered by reading the shared slot a second time.
     */
    atomic_signal_fence(memory_order_seq_cst);
}

void hvi_ring_release(struct hvi_ring *ring, uint32_t count)
{
    HVI_ASSERT(count <= ring->peer - ring->own);
    ring->own += count;
    /* Release, pairs with the acquire in hvi_ring_space: our reads are done before the producer
     * overwrites. */
    atomic_store_explicit(ring->head, ring->own, memory_order_release);
}
