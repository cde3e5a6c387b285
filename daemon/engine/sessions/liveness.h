/* SPDX-License-Identifier: Apache-2.0
 * Whether trainers live, and how they ended. Engine thread. */
#ifndef ENGINE_SESSIONS_LIVENESS_H
#define ENGINE_SESSIONS_LIVENESS_H

#include "base/clock.h"
#include "daemon/engine/sessions/sessions.h"

#define ENGINE_FATE_NS  (20 * HVI_NS_MS) /* how long to ask how a process ended */
#define ENGINE_WATCH_NS (20 * HVI_NS_MS) /* between looks at processes that ops wait for */

/* Watches socket and process. */
int engine_liveness_open(struct engine_session *session);
void engine_liveness_close(struct engine_session *session);
/* Looks at once, and again for up to ENGINE_FATE_NS, how the process ended; then loses the rank. */
void engine_liveness_ask(struct engine_session *session);
/* Loses ranks whose process is ending, some at a time; for a timer while ops wait. */
void engine_liveness_watch(struct engine_sessions *sessions);
/* hvdd knows how the process ended. A rank that has not come is lost by that. */
void engine_liveness_told(struct engine_sessions *sessions, const struct hvi_engine_fate *fate);
/* Exits now or later if nobody is attached; takes the exit back if somebody is. */
void engine_liveness_check_empty(struct engine_sessions *sessions);

#endif
