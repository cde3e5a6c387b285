/* SPDX-License-Identifier: Apache-2.0
 * Operands in a trainer's own memory: whether, and what is said when it fails. Engine thread. */
#ifndef ENGINE_SESSIONS_REMOTE_H
#define ENGINE_SESSIONS_REMOTE_H

#include "daemon/engine/exec/exec.h"
#include "daemon/engine/sessions/sessions.h"

/* Offers HVI_FEATURE_PROCESS to the session if the kernel lets us reach its process. */
void engine_remote_offer(struct engine_session *session);
/* The op's batch has ended with this status and fault: it is over on every rank, or waits for news of
 * the rank that is to blame. */
void engine_remote_failed(struct engine_sessions *sessions, struct engine_op *op, int status,
                          const struct engine_fault *fault);
/* Ends the ops whose rank is gone for good. */
void engine_remote_settle(struct engine_sessions *sessions);

#endif
