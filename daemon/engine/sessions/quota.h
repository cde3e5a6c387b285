/* SPDX-License-Identifier: Apache-2.0
 * The job's share of what its user may register (region-bytes-per-user, region-bytes). hvdd counts for the jobs of all
 * users, so an engine asks it before its ranks hold more than hvdd has granted. Engine thread; nothing blocks. */
#ifndef ENGINE_SESSIONS_QUOTA_H
#define ENGINE_SESSIONS_QUOTA_H

#include "proto/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct engine_session;
struct engine_sessions;

/* The region needs no further grant. */
bool engine_quota_has(const struct engine_sessions *sessions, uint64_t bytes);
/* Asks hvdd, after the claims before; the RegionAdd is answered when it has answered, or a second later.
 * HVI_INPROGRESS: `fd` is the claim's.
 * HVI_ERR_NO_MEMORY, or HVI_ERR_LIMIT: the session's regions and claims together would be too many. */
int engine_quota_ask(struct engine_session *session, const struct hvi_region_add *add, int fd);
/* hvdd's answer. */
void engine_quota_told(struct engine_sessions *sessions, const struct hvi_engine_regions *told);
/* hvdd has gone: what waits for it is granted. */
void engine_quota_alone(struct engine_sessions *sessions);
/* The rank gives up a region before it was told that it has it. False: no claim is for that. */
bool engine_quota_remove(struct engine_session *session, const struct hvi_region_remove *remove);
/* Drops the session's claims. */
void engine_quota_close_session(struct engine_session *session);
/* What the job needs of its grant; the rest of it is given back with this number, which hvdd is told. */
uint64_t engine_quota_keep(struct engine_sessions *sessions);

#endif
