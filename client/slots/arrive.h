/* SPDX-License-Identifier: Apache-2.0
 * An op goes into its slot, and the last rank to arrive starts or does it. Needs the session's lock. */
#ifndef HVD_CLIENT_ARRIVE_H
#define HVD_CLIENT_ARRIVE_H

#include <stdbool.h>

struct client_request;
struct client_set;
struct client_slots;

/* Takes the grant of the op's name, or of the unnamed slot if it has none, if there is one that fits. True:
 * the op has arrived in its slot, or is even done. False: it has to go to the engine. */
bool client_arrive(struct client_slots *slots, struct client_set *set,
                   struct client_request *request);
/* The same for an op that is too large for a slot's own memory, once it has been placed. */
bool client_arrive_medium(struct client_slots *slots, struct client_set *set,
                          struct client_request *request);

#endif
