/* SPDX-License-Identifier: Apache-2.0
 * What each kind of op has for operands. */
#ifndef HVD_CLIENT_OPERANDS_H
#define HVD_CLIENT_OPERANDS_H

#include <stdbool.h>

struct client_memory;
struct client_request;

/* Says what memory the operands of request->op are. Needs the session's lock, as below. False: on_device.h is to
 * look closer. */
bool client_operands_classify(struct client_memory *memory, const struct client_request *request);
/* Finds places for the operands once they are classified, and says with request->copy_in whether the
 * input must be copied to its own. May give up the lock. `rank` is this process's. Errors as
 * client_staging_get; what was taken until then is the op's. */
int client_operands_locate(struct client_memory *memory, struct client_request *request, int rank);

#endif
