/* SPDX-License-Identifier: Apache-2.0
 * Regions that ranks map of each other, for medium ops in slots. Engine thread. */
#ifndef ENGINE_SESSIONS_PEER_H
#define ENGINE_SESSIONS_PEER_H

#include "daemon/engine/sessions/sessions.h"

/* A rank asks for a peer's region. */
void engine_peer_show(struct engine_session *session, const struct hvi_peer_ask *ask);
/* The region goes: those who were shown it forget it. */
void engine_peer_forget(const struct engine_session *owner, const struct engine_region *region);
void engine_peer_forget_all(const struct engine_session *owner);

#endif
