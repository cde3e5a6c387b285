/* SPDX-License-Identifier: Apache-2.0
 * hvi_ring: one end's private view of a single-producer single-consumer ring of fixed-size slots in
 * shared memory.
 *
 * Head and tail run freely (mod 2^32) and are each written by one side only. The view holds mask,
 * slot size and the own index in private memory; from the peer only its index is read, and it is
 * checked: a peer that claims more than the ring holds is reported as HVI_ERR_PROTOCOL, never
 * believed. Not thread-safe: one thread (or lock) per end. Nothing here blocks, allocates or
 * logs. */
#ifndef HVI_SHM_RING_H
#define HVI_SHM_RING_H

#include <stdatomic.h>
#include <stdint.h>

struct hvi_ring {
    unsigned char *slots;   /* first slot, in shared memory */
    _Atomic uint32_t *head; /* consumer's index, in shared memory */
    _Atomic uint32_t *tail; /* producer's index, in shared memory */
    uint32_t slot_bytes;
    uint32_t slot_count; /* power of two */
    uint32_t own;        /* this end's index: tail for the producer, head for the consumer */
    uint32_t peer;       /* last checked value of the other side's index */
};

/* Binds a view. `slot_count` must be a power of two. `own`/`peer` start from 0: rings are never
 * re-entered. */
void hvi_ring_init(struct hvi_ring *ring, void *slots, uint32_t slot_bytes, uint32_t slot_count,
                   _Atomic uint32_t *head, _Atomic uint32_t *tail);

/* Producer: *slots_p becomes the number of free slots. HVI_OK or HVI_ERR_PROTOCOL (the peer's head
 * is impossible). */
int hvi_ring_space(struct hvi_ring *ring, uint32_t *slots_p);
/* Producer: the slot `ahead` places after the last published one, to be filled. ahead < free
 * slots. */
void *hvi_ring_slot(struct hvi_ring *ring, uint32_t ahead);
/* Producer: makes the next `count` filled slots visible (one release store). */
void hvi_ring_publish(struct hvi_ring *ring, uint32_t count);

/* Consumer: *slots_p becomes the number of published slots. HVI_OK or HVI_ERR_PROTOCOL. */
int hvi_ring_available(struct hvi_ring *ring, uint32_t *slots_p);
/* Consumer: copies the slot `ahead` places after the last released one into private memory,
 * once. */
void hvi_ring_copy(const struct hvi_ring *ring, uint32_t ahead, void *slot_copy);
/* Consumer: gives `count` slots back to the producer (one release store). */
void hvi_ring_release(struct hvi_ring *ring, uint32_t count);

#endif
