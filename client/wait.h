/* SPDX-License-Identifier: Apache-2.0
 * Reading completions. Needs the session's lock. */
#ifndef HVD_CLIENT_WAIT_H
#define HVD_CLIENT_WAIT_H

struct hvd_op;
struct hvd_session;
struct client_operand;

/* Takes every completion out of the ring. Never blocks, never gives up the lock. */
void client_wait_drain(struct hvd_session *session);
/* Fails every op in flight with the session's end; for client_session_end. */
void client_wait_fail_all(struct hvd_session *session);
/* Gives back what an operand holds; harmless twice. */
void client_operand_put(struct hvd_session *session, struct client_operand *operand);
/* Everything but the lock of hvd_op_free. */
void client_op_release(struct hvd_session *session, struct hvd_op *op);

#endif
