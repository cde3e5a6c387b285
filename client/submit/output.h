/* SPDX-License-Identifier: Apache-2.0
 * Allgathers, alltoalls and reducescatters without a given output: once all ranks have submitted, the
 * engine says how large the result is (HVI_COMPLETE_SIZED) and waits for memory (HVI_SUBMIT_OUTPUT).
 * Needs the session's lock. */
#ifndef HVD_CLIENT_OUTPUT_H
#define HVD_CLIENT_OUTPUT_H

struct client_ops;
struct client_ring;

/* Gives memory to the queued ops, as far as the ring has room. Gives up the lock while memory is
 * made. */
void client_output_feed(struct client_ops *ops, struct client_ring *ring);

#endif
