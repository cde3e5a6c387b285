/* SPDX-License-Identifier: Apache-2.0
 * Which grant an op needs, and which one it brings. Needs the session's lock. */
#ifndef HVD_CLIENT_GRANTS_H
#define HVD_CLIENT_GRANTS_H

#include "client/ops/grant.h"

#include <stdint.h>

struct client_ops;
struct client_request;
struct client_set;
struct client_slots;
struct hvi_completion;

/* What the op says. */
void client_grant_say(const struct client_request *request, struct hvi_agreement *said_p);
/* NULL: this kind has none. */
struct client_unnamed_slot *client_grant_unnamed(struct client_set *set, uint8_t kind);
/* The grant that an op like this needs, and brings; NULL: none. */
struct client_grant *client_grant_for(const struct client_request *request, struct client_set *set);
/* The grant that an op in flight was noted in. NULL: none, or another unnamed op was noted there
 * since, or the set has gone: whatever this op's end says about the next is of no use then. */
struct client_grant *client_grant_of(struct client_ops *ops, const struct hvd_op *op);
/* The op goes to the engine, as the next one of its name or unnamed slot: what it says is what a grant that
 * comes with its completion is for. */
void client_grant_note(const struct client_request *request, struct client_set *set);
/* A completion that may have a grant for the next op of this one's name or unnamed slot. */
void client_grant_take(const struct client_slots *slots, const struct hvd_op *op,
                       const struct hvi_completion *completion);

#endif
