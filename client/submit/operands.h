/* SPDX-License-Identifier: Apache-2.0
 * What each kind of op has for operands. */
#ifndef HVD_CLIENT_OPERANDS_H
#define HVD_CLIENT_OPERANDS_H

struct client_request;
struct hvd_session;

/* Gives request->op the places of its operands, and says with request->copy_in whether the input
 * must be copied to its own. Needs the session's lock and gives it up when a staging region must be
 * made. Errors as client_staging_get; what was taken until then is the op's. */
int client_operands_place(struct hvd_session *session, struct client_request *request);

#endif
