/* SPDX-License-Identifier: Apache-2.0
 * What clients say over their sockets. Engine thread. */
#ifndef ENGINE_SESSIONS_CONTROL_H
#define ENGINE_SESSIONS_CONTROL_H

#include "daemon/engine/sessions/session.h"

/* Serves the client's socket. False at its end of file. The session may have ended afterwards. */
bool engine_control_read(struct engine_session *session);
/* Answers the Detach of a session that is being freed, if there was one. */
void engine_control_farewell(struct engine_session *session);

#endif
