/* SPDX-License-Identifier: Apache-2.0
 * From the caller's tensors to slots in the submission ring. */
#ifndef HVD_CLIENT_SUBMIT_H
#define HVD_CLIENT_SUBMIT_H

#include <stdint.h>

struct client_operand;
struct client_request;
struct hvd_op;
struct hvd_session;

/* Checks, places, copies in, publishes `count` ops of one process set, all or none. Does not need
 * the lock. */
int client_submit(struct hvd_session *session, struct client_request *requests, uint32_t count,
                  struct hvd_op **ops_p);

/* The functions below need the lock. */

/* HVI_SUBMIT_OUTPUT for `op`. HVD_OK, HVD_ERR_RING_FULL or the session's end. */
int client_submit_output(struct hvd_session *session, const struct hvd_op *op,
                         const struct client_operand *operand);
/* HVI_SUBMIT_CANCEL for `op`. Likewise. */
int client_submit_cancel(struct hvd_session *session, const struct hvd_op *op, const char *what);

#endif
