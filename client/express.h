/* SPDX-License-Identifier: Apache-2.0
 * Small ops without the engine: the ranks meet in a slot of job-shared memory and the last one does
 * the op (shm/express.h, docs/adr/0005).
 *
 * An op that has arrived is IN_FLIGHT like any other, with .express.active set. It ends in one of
 * two ways: a peer (or this rank) publishes the result, which client_express_look copies out; or
 * the engine seizes the slot, and a completion comes through the ring. */
#ifndef HVD_CLIENT_EXPRESS_H
#define HVD_CLIENT_EXPRESS_H

#include "client/ops/ops.h"
#include "shm/bell.h"
#include "shm/express.h"

#include <stdbool.h>
#include <stdint.h>

struct client_request;
struct client_set;
struct hvd_session;
struct hvi_completion;

/* The functions need the session's lock where they do not say otherwise. */

/* Takes the ticket of the op's name, or of its lane if it has none, if there is one that fits. True:
 * the op has arrived in its slot, or is even done. False: it has to go to the engine. */
bool client_express_submit(struct hvd_session *session, struct client_set *set,
                           struct client_request *request);
/* The same for an op that is too large for a slot's own memory, once it has been placed. */
bool client_express_submit_large(struct hvd_session *session, struct client_set *set,
                                 struct client_request *request);
/* The op goes to the engine, as the next one of its name or lane: what it says is what a ticket that
 * comes with its completion is for. */
void client_express_note(const struct hvd_session *session, struct client_set *set,
                         const struct client_request *request);
/* The op is over, and its result not in the slot any more. */
void client_express_landed(struct hvd_session *session, struct hvd_op *op);
/* Its owner has released an op in flight. */
void client_express_abandoned(struct hvd_session *session, struct hvd_op *op);
/* Whether the op is over or the engine's; the first is landed here. */
void client_express_look(struct hvd_session *session, struct hvd_op *op);
/* The same for every op. True: some still wait. */
bool client_express_look_all(struct hvd_session *session);
/* The completion of an op that was in a slot, before its name is free: the result comes out of the
 * slot at once, because the next op of that name may use it. */
void client_express_take_back(struct hvd_op *op);
/* The op has been looked at without waiting: one that has stood in its slot for long is the engine's
 * to watch, and nobody who polls says so otherwise. Asks every CLIENT_LOOK_NS at most. */
void client_express_polled(struct hvd_session *session, const struct hvd_op *op);
/* A completion that may have a ticket for the next op of this one's name or lane. */
void client_express_take_ticket(struct hvd_session *session, const struct hvd_op *op,
                                const struct hvi_completion *completion);
/* Asks the engine to take the op over; does not wait for it. Any thread. */
void client_express_call(struct hvd_session *session, const struct hvd_op *op);
/* As above, and waits until each op that was in a slot is done or the engine's, 100 ms at most: for
 * who is going to sleep on something that only the engine rings. `op` NULL: all. Gives up the lock;
 * the session may have ended. */
void client_express_settle(struct hvd_session *session, struct hvd_op *op);
/* How ranks wait for each other. Pure. */
struct hvi_wait_policy client_express_policy(int ranks, uint32_t cores);
/* What a waiting thread looks at. */
struct client_watch {
    uint32_t slot, turn;
    bool all_ranks; /* the op is of set 0 */
    bool large;
    enum hvi_express_sight sight;
};
/* For an op that is in a slot. */
struct client_watch client_express_watch(const struct hvd_op *op);
/* Whether it is a large one that runs. No lock needed. */
bool client_express_runs(const struct hvd_session *session, const struct client_watch *watch);
/* Somebody begins to wait for an op in a slot: whether he does so as soon as it was submitted. */
void client_express_note_promptness(struct hvd_session *session, const struct hvd_op *op);
/* Without the lock: spins, yields, then sleeps until the slot moves. True when the socket should be
 * looked at before waiting on. */
bool client_express_wait(struct hvd_session *session, struct client_watch *watch,
                         uint64_t deadline_ns);

#endif
