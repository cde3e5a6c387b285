/* SPDX-License-Identifier: Apache-2.0
 * What clients say over their sockets. Engine thread. */
#ifndef ENGINE_SESSIONS_CONTROL_H
#define ENGINE_SESSIONS_CONTROL_H

#include "daemon/engine/sessions/sessions.h"

/* Serves the client's socket. False at its end of file. The session may have ended afterwards. */
bool engine_control_read(struct engine_session *session);
/* Sends an Ack. */
void engine_control_ack(struct engine_session *session, uint64_t request, int status,
                        const char *text);
/* Sends an Ack to the rank that asked, unless its session is over. */
void engine_control_answer(struct engine_sessions *sessions, const struct engine_asker *asker,
                           int status, const char *text);
/* Whether the session may have one more region, beside `waiting` ones that are not in its table yet, with this id. HVI_OK,
 * or an error with a sentence. */
int engine_control_check_id(const struct engine_session *session, uint32_t region, uint32_t waiting,
                            char *text_p, size_t text_size);
/* Ends a RegionAdd: maps `fd`, which it owns, or refuses it with `status` and `text`. */
void engine_control_settle(struct engine_session *session, const struct hvi_region_add *add, int fd,
                           int status, const char *text);
/* What all ranks here have registered, or of hvd_mem_alloc's memory. */
uint64_t engine_control_region_bytes(const struct engine_sessions *sessions, bool process_memory);
/* Ranks that have said Detach leave now; while sessions are held they stay (sessions.held). */
void engine_control_let_go(struct engine_sessions *sessions);
/* Answers the Detach of a session that is over, if there was one. */
void engine_control_farewell(struct engine_session *session);
/* Closes the socket. What the rank has sent while nothing was read is thrown away first: otherwise the
 * kernel would reset the connection, and the rank would miss the last message. */
void engine_control_hang_up(struct engine_session *session);

#endif
