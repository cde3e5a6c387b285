/* SPDX-License-Identifier: Apache-2.0
 * The writing end of the submission ring and of the area for tensor names. A call fills as many slots
 * as it has ops and publishes them by one store. Needs the session's lock. */
#ifndef HVD_CLIENT_RING_H
#define HVD_CLIENT_RING_H

#include "shm/abi.h"

#include <stddef.h>
#include <stdint.h>

struct client_link;

struct client_ring {
    struct client_link *link;
    uint64_t seq;        /* of the last published slot */
    uint64_t waited_seq; /* of the newest op that a stream of this session waits for */
    uint32_t names_tail; /* free-running byte index into the name area */
    /* names_tail after each slot: frees the area with the ring */
    uint32_t slot_names_end[HVI_SQ_SLOTS];
};

/* The session takes ops: HVD_OK or its end, with the last error set. The engine's state word is looked
 * at, so that a submitter that never waits learns the end. */
int client_ring_ready(struct client_ring *ring, const char *what);
/* Room for `slots` slots and `name_bytes` of names: HVD_OK, HVD_ERR_RING_FULL, HVD_ERR_LIMIT or the
 * session's end, with the last error set. */
int client_ring_room(struct client_ring *ring, const char *what, uint32_t slots, size_t name_bytes);
/* HVD_ERR_RING_FULL, with `why` in the last error. */
int client_ring_full(const char *what, const char *why);

/* The slot `ahead` of the next one to be published, to be filled. */
struct hvi_submission *client_ring_slot(struct client_ring *ring, uint32_t ahead);
/* Writes a name; returns its offset in the name area. */
uint32_t client_ring_write_name(struct client_ring *ring, const char *name, uint32_t bytes);
/* That slot has its names. */
void client_ring_filled(struct client_ring *ring, uint32_t ahead);
/* The engine may take the next `slots` slots. */
void client_ring_publish(struct client_ring *ring, uint32_t slots);

#endif
