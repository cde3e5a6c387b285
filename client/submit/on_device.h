/* SPDX-License-Identifier: Apache-2.0
 * Ops of which a tensor may lie in memory of a CUDA device. Need the session's lock and give it up. */
#ifndef HVD_CLIENT_ON_DEVICE_H
#define HVD_CLIENT_ON_DEVICE_H

#include <stdbool.h>
#include <stdint.h>

struct client_request;
struct hvd_session;

/* For classified requests that own their ops. Asks the driver what the tensors are; those of a device get a fence, whose
 * first half is enqueued in their stream, and must not go to a slot: *may_arrive_p becomes false. HVD_OK, or an error
 * with the last error set; what was taken until then is the op's. */
int client_on_device_look(struct hvd_session *session, struct client_request *requests,
                          uint32_t count, bool *may_arrive_p);
/* Copies a staged input to where the op finds it. */
int client_on_device_copy_in(struct hvd_session *session, struct client_request *request);

#endif
