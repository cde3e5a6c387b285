/* SPDX-License-Identifier: Apache-2.0
 * How a rank waits for the others in a slot. */
#ifndef HVD_CLIENT_WATCH_H
#define HVD_CLIENT_WATCH_H

#include "shm/slots.h"

#include <stdbool.h>
#include <stdint.h>

struct client_slots;
struct hvd_op;

/* What a waiting thread looks at. */
struct client_watch {
    uint32_t slot, turn;
    bool all_ranks; /* the op is of set 0 */
    bool medium;
    enum hvi_slot_sight sight;
};
/* For an op that is in a slot. */
struct client_watch client_watch_of(const struct hvd_op *op);
/* Whether it is a medium one that runs. No lock needed. */
bool client_watch_runs(const struct client_slots *slots, const struct client_watch *watch);
/* A thread begins to wait for an op in a slot: notes whether that is as soon as it was submitted. */
void client_watch_note_promptness(struct client_slots *slots, const struct hvd_op *op);
/* Without the lock: spins, yields, then sleeps until the slot moves. True when the socket should be
 * looked at before waiting on. */
bool client_watch_wait(struct client_slots *slots, struct client_watch *watch,
                       uint64_t deadline_ns);

#endif
