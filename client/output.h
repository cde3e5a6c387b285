/* SPDX-License-Identifier: Apache-2.0
 * Allgathers, alltoalls and reducescatters without a given output: once all ranks have submitted, the engine says how large the
 * result is (HVI_COMPLETE_SIZED) and waits for memory (HVI_SUBMIT_OUTPUT). Needs the session's
 * lock. */
#ifndef HVD_CLIENT_OUTPUT_H
#define HVD_CLIENT_OUTPUT_H

struct hvd_op;
struct hvd_session;

/* Adds an op in SIZED to the queue; takes one out. */
void client_output_queue(struct hvd_session *session, struct hvd_op *op);
void client_output_unqueue(struct hvd_session *session, struct hvd_op *op);
/* Gives memory to the queued ops, as far as the ring has room. Gives up the lock while memory is
 * made. */
void client_output_feed(struct hvd_session *session);

#endif
