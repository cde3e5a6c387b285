/* SPDX-License-Identifier: Apache-2.0
 * Which ticket an op needs, and which one it brings. Needs the session's lock. */
#ifndef HVD_CLIENT_TICKETS_H
#define HVD_CLIENT_TICKETS_H

#include "client/ops/ticket.h"

#include <stdint.h>

struct client_ops;
struct client_request;
struct client_set;
struct hvi_completion;

void client_ticket_say(const struct client_request *request, struct client_said *said_p);
/* NULL: this kind has none. */
struct client_lane *client_ticket_lane(struct client_set *set, uint8_t kind);
/* The ticket that an op like this needs, and brings; NULL: none. */
struct client_ticket *client_ticket_for(const struct client_request *request,
                                        struct client_set *set);
/* The ticket that an op in flight was noted in. NULL: none, or another unnamed op was noted there
 * since, or the set has gone: whatever this op's end says about the next is of no use then. */
struct client_ticket *client_ticket_of(struct client_ops *ops, const struct hvd_op *op);
/* The op goes to the engine, as the next one of its name or lane: what it says is what a ticket that
 * comes with its completion is for. */
void client_ticket_note(const struct client_request *request, struct client_set *set);
/* A completion that may have a ticket for the next op of this one's name or lane. */
void client_ticket_take(struct client_ops *ops, const struct hvd_op *op,
                        const struct hvi_completion *completion);

#endif
