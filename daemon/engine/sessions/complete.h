/* SPDX-License-Identifier: Apache-2.0
 * Answers to ranks. Engine thread. */
#ifndef ENGINE_SESSIONS_COMPLETE_H
#define ENGINE_SESSIONS_COMPLETE_H

#include "daemon/engine/sessions/sessions.h"

/* The part is over: its completion goes to the ring, or is owed to it, and the request is free. As the
 * sink's answer. */
void engine_complete_part(struct engine_part *part, int status, const char *text, int32_t culprit);
/* As the sink's ask_output and drop. */
void engine_complete_sized(struct engine_part *part);
void engine_complete_drop(struct engine_part *part);
/* Writes the received splits where an alltoall's ranks want them. */
void engine_complete_splits(const struct engine_op *op);
/* Gives owed completions to readers that have made room. */
void engine_complete_owed(struct engine_sessions *sessions);
/* Wakes a client that sleeps on the session's event descriptor. */
void engine_complete_ring_event(struct engine_session *session);
/* Rings every session that has new completions, once. */
void engine_complete_ring(struct engine_sessions *sessions);

#endif
