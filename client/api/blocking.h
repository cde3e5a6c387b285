/* SPDX-License-Identifier: Apache-2.0
 * What the public functions that block have in common. */
#ifndef HVD_CLIENT_API_BLOCKING_H
#define HVD_CLIENT_API_BLOCKING_H

struct client_request;
struct hvd_op;
struct hvd_session;

/* Submits one op; a full ring is waited out. HVD_ERR_LIMIT where most of the ops are finished ones that were not released,
 * and no other has ended for a second. */
int client_api_submit(struct hvd_session *session, struct client_request *request,
                      struct hvd_op **op_p);
/* Waits without limit, and releases. */
int client_api_wait(struct hvd_op *op);

#endif
