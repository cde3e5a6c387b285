/* SPDX-License-Identifier: Apache-2.0
 * How ops end: by the engine's word in the completion ring, or with the session. Needs the session's
 * lock. */
#ifndef HVD_CLIENT_COMPLETE_H
#define HVD_CLIENT_COMPLETE_H

#include <stdint.h>

struct client_link;
struct client_ops;
struct client_slots;

struct client_complete {
    struct client_link *link;
    struct client_ops *ops;
    struct client_slots *slots;
    uint64_t seq; /* of the last completion */
};

/* Takes every completion out of the ring. Never blocks, never gives up the lock; may end the session. */
void client_complete_drain(struct client_complete *complete);
/* Fails every op in flight with the session's end. */
void client_complete_fail_all(struct client_complete *complete);

#endif
