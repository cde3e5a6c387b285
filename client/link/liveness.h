/* SPDX-License-Identifier: Apache-2.0
 * Whether the session's engine lives. Needs the session's lock. */
#ifndef HVD_CLIENT_LIVENESS_H
#define HVD_CLIENT_LIVENESS_H

#include "client/link/patience.h"

struct client_link;
struct hvi_bell_page;

/* How long the engine of this bell page may stand still. */
struct client_patience client_liveness_patience(const struct hvi_bell_page *bell);
/* Looks at the engine's process and at its beat, every CLIENT_LOOK_NS at most. Never blocks; may end the
 * session, or an engine that stands still. */
void client_liveness_look(struct client_link *link);
/* The engine's socket has ended: ends the session, after what is in the completion ring has been read. */
void client_liveness_gone(struct client_link *link);

#endif
