/* SPDX-License-Identifier: Apache-2.0
 * The slot path: ops without the engine. The ranks meet in a slot of job-shared memory, and the last one
 * does the op (shm/slots.h, docs/adr/0005).
 *
 * An op that has arrived is IN_FLIGHT like any other, with .slot.active set. It ends in one of
 * two ways: a peer (or this rank) publishes the result, which client_slots_look copies out; or
 * the engine revokes the slot, and a completion comes through the ring. */
#ifndef HVD_CLIENT_SLOTS_H
#define HVD_CLIENT_SLOTS_H

#include "shm/agreement.h"
#include "shm/slots.h"

#include <stdbool.h>
#include <stdint.h>

struct client_link;
struct client_ops;
struct client_set;
struct hvd_op;
struct hvi_kernels;

struct client_slots {
    struct client_link *link;
    struct client_ops *ops;
    bool
        on; /* else the job has none, or HVD_EXPRESS=0, or the caller polls a descriptor that no slot
                sets: hvd_event_fd */
    uint32_t seat;
    struct hvi_slots map;
    struct hvi_wait_policy policy; /* between ranks: the engine needs no core */
    const struct hvi_kernels *kernels;
    struct hvi_agreement medium; /* what the medium op in flight says: there is one at most */
    bool prompt;        /* the last medium op was waited for at once: so will the next be */
    uint64_t called_ns; /* when the engine was told last that a caller polls */
};

/* Of zeroed memory; there are no slots yet. */
void client_slots_init(struct client_slots *slots, struct client_link *link,
                       struct client_ops *ops);
void client_slots_fini(struct client_slots *slots);
/* Maps the job's slots and takes `fd`. HVD_OK, or the last error is set. HVD_ERR_NO_MEMORY: the session can do without. */
int client_slots_map(struct client_slots *slots, int fd);

/* The functions below need the session's lock where they do not say otherwise. */

/* Whether every member of the set has a seat at this engine, which the engine says before it gives a grant:
 * then the set knows their seats. */
bool client_slots_seat(const struct client_slots *slots, struct client_set *set);
/* Whether the op is over or the engine's; the first is landed here. */
void client_slots_look(struct client_slots *slots, struct hvd_op *op);
/* The same for every op. True: some still wait. */
bool client_slots_look_all(struct client_slots *slots);
/* The result is published: copies it out and lands the op. The next op may use the slot again. */
void client_slots_finish(struct client_slots *slots, struct hvd_op *op);
/* Nothing of the op is in its slot any more. */
void client_slots_leave(const struct client_slots *slots, struct hvd_op *op);
/* The op is over, and its result not in the slot any more. */
void client_slots_landed(struct client_slots *slots, struct hvd_op *op);
/* The completion of an op that was in a slot, before its name is free: the result comes out of the
 * slot at once, because the next op of that name may use it. */
void client_slots_take_back(struct hvd_op *op);
/* Its owner has released an op in flight. */
void client_slots_abandoned(struct client_slots *slots, struct hvd_op *op);
/* The op has been looked at without waiting: one that has stood in its slot for long is the engine's
 * to watch, and a caller that polls says so in no other way. Asks every CLIENT_LOOK_NS at most. */
void client_slots_polled(struct client_slots *slots, const struct hvd_op *op);
/* Asks the engine to take the op over; does not wait for it. Any thread. */
void client_slots_call(struct client_slots *slots, const struct hvd_op *op);
/* Asks the engine to look at the slots. Any thread. */
void client_slots_call_engine(struct client_slots *slots);

#endif
