/* SPDX-License-Identifier: Apache-2.0
 * From the caller's tensors to slots in the submission ring. */
#ifndef HVD_CLIENT_SUBMIT_H
#define HVD_CLIENT_SUBMIT_H

#include <stdint.h>

struct client_request;
struct hvd_op;
struct hvd_session;

/* Checks, classifies, copies in, publishes `count` ops of one process set, all or none. Does not need
 * the lock. */
int client_submit(struct hvd_session *session, struct client_request *requests, uint32_t count,
                  struct hvd_op **ops_p);

#endif
