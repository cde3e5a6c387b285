/* SPDX-License-Identifier: Apache-2.0
 * What each kind of op has for operands. */
#ifndef HVD_CLIENT_OPERANDS_H
#define HVD_CLIENT_OPERANDS_H

struct client_memory;
struct client_request;

/* Gives request->op the places of its operands, and says with request->copy_in whether the input
 * must be copied to its own. Needs the session's lock and gives it up when a staging region must be
 * made. `rank` is this process's. Errors as client_staging_get; what was taken until then is the op's. */
int client_operands_place(struct client_memory *memory, struct client_request *request, int rank);

#endif
