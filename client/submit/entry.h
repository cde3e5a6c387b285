/* SPDX-License-Identifier: Apache-2.0
 * What an entry of the submission ring says. Needs the session's lock. */
#ifndef HVD_CLIENT_ENTRY_H
#define HVD_CLIENT_ENTRY_H

#include <stdint.h>

struct client_operand;
struct client_request;
struct client_ring;
struct client_set;
struct hvd_op;

/* Fills the entry `ahead` of the next one for a request that has its op; there is room for it and its
 * name. `group` is what the members of a group have in common. */
void client_entry_fill(struct client_ring *ring, struct client_set *set,
                       const struct client_request *request, uint32_t group, uint32_t ahead);
/* HVI_SUBMIT_OUTPUT for `op`. HVD_OK, HVD_ERR_RING_FULL or the session's end. */
int client_entry_output(struct client_ring *ring, const struct hvd_op *op,
                        const struct client_operand *operand);
/* HVI_SUBMIT_CANCEL for `op`. Likewise. */
int client_entry_cancel(struct client_ring *ring, const struct hvd_op *op, const char *what);

#endif
