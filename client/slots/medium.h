/* SPDX-License-Identifier: Apache-2.0
 * Medium ops without the engine: the ranks meet in a slot as for small ones, and waiting ranks do the
 * op together, chunk by chunk, in each other's memory (shm/slots.h, docs/adr/0011). */
#ifndef HVD_CLIENT_MEDIUM_H
#define HVD_CLIENT_MEDIUM_H

#include <stdbool.h>
#include <stdint.h>

struct client_slots;
struct client_watch;
struct hvd_op;

/* Whether an op that has been placed lies where peers can be shown it. With the lock. */
bool client_medium_may(const struct hvd_op *op);
/* Writes down where the op's operands are, in this rank's part. With the lock. */
void client_medium_bring(const struct client_slots *slots, const struct hvd_op *op);
/* This rank came last: chunks can be taken. False: the engine was faster, the op is its now. With the
 * lock. */
bool client_medium_start(struct client_slots *slots, const struct hvd_op *op, uint32_t everybody);
/* Does up to `most` chunks of an op that runs, and publishes it after the last one; returns how many.
 * Nothing happens if it is no medium one, or over since it was what `watch` says. Takes the lock. */
uint32_t client_medium_help(struct client_slots *slots, struct hvd_op *op,
                            const struct client_watch *watch, uint32_t most);

/* The engine is lost: before the op fails, its slot is closed, so that no rank begins to write to its
 * operands any more. Waits 20 ms at most for ranks that are at it. With the lock; the op may be over,
 * and well, afterwards. */
void client_medium_close(struct client_slots *slots, struct hvd_op *op);

#endif
