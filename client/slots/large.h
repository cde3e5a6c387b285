/* SPDX-License-Identifier: Apache-2.0
 * Large ops without the engine: the ranks meet in a slot as for small ones, and waiting ranks do the
 * op together, unit by unit, in each other's memory (shm/express.h, docs/adr/0011). */
#ifndef HVD_CLIENT_LARGE_H
#define HVD_CLIENT_LARGE_H

#include <stdbool.h>
#include <stdint.h>

struct client_slots;
struct client_watch;
struct hvd_op;

/* Whether an op that has been placed lies where peers can be shown it. With the lock. */
bool client_large_may(const struct hvd_op *op);
/* Writes down where the op's operands are, in this rank's part. With the lock. */
void client_large_bring(const struct client_slots *slots, const struct hvd_op *op);
/* This rank came last: units can be taken. False: the engine was faster, the op is its now. With the
 * lock. */
bool client_large_start(struct client_slots *slots, const struct hvd_op *op, uint32_t everybody);
/* Does up to `most` units of an op that runs, and publishes it after the last one; returns how many.
 * Nothing happens if it is no large one, or over since it was what `watch` says. Takes the lock. */
uint32_t client_large_help(struct client_slots *slots, struct hvd_op *op,
                           const struct client_watch *watch, uint32_t most);

/* The engine is lost: before the op fails, its slot is closed, so that no rank begins to write to its
 * operands any more. Waits 20 ms at most for ranks that are at it. With the lock; the op may be over, and well, afterwards. */
void client_large_close(struct client_slots *slots, struct hvd_op *op);

#endif
