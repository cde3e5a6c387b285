/* SPDX-License-Identifier: Apache-2.0
 * Where the operands of an op lie. Needs the session's lock. */
#ifndef HVD_CLIENT_PLACE_H
#define HVD_CLIENT_PLACE_H

#include <stdint.h>

/* Ordinary memory from this size on stays where it is. */
#define CLIENT_FOREIGN_MIN 32768u

struct client_operand;
struct client_request;
struct hvd_session;

/* Gives request->op the places of its operands, and says with request->copy_in whether the input
 * must be copied to its own. Gives up the lock when a staging region must be made. Errors as
 * client_staging_get; what was taken until then is the op's. */
int client_place(struct hvd_session *session, struct client_request *request);

/* Shared memory for `bytes` of ordinary memory: inline cells or a staging block. Gives up the lock
 * and fails as above. */
int client_place_scratch(struct hvd_session *session, uint64_t bytes, const char *what,
                         struct client_operand *operand_p);

#endif
