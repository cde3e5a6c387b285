/* SPDX-License-Identifier: Apache-2.0
 * A session's fence page (shm/fence.h), and ops that are held until others have started. Engine thread.
 *
 * A stream that waits for op A and then makes the memory of op B ready must not gate a worker before A has
 * started: a worker's stream that is gated by B might be the one that A needs. So the submission of B
 * names A (.after), and B is held, alone, until every op of its session up to A has started or is over.
 * Of a group the whole is held. */
#ifndef ENGINE_SESSIONS_FENCE_H
#define ENGINE_SESSIONS_FENCE_H

#include "daemon/engine/sessions/sessions.h"
#include "shm/fence.h"

struct engine_op;

struct engine_fences {
    struct hvi_fence_page page;
    uint32_t number;                                   /* device/'s */
    uint64_t ticket;                                   /* of its FenceAdd */
    struct engine_request *unstarted, *unstarted_last; /* ops that have not started, by .seq */
    struct engine_request *held, *held_last;           /* by request->next */
    uint64_t group_after; /* of the members so far of the group that comes in */
    bool busy[HVI_FENCE_CELLS];
    uint64_t turns[HVI_FENCE_CELLS]; /* used last */
};

/* NULL: a submission may use this cell with this turn; else why not. Pure. */
const char *engine_fences_refuse(const struct engine_fences *fences, uint32_t cell, uint64_t turn);
/* A new request of a session with a page. */
void engine_fence_take(struct engine_request *request);
/* It is over: whoever waits for it goes on, and its cell is free. Idempotent. */
void engine_fence_over(struct engine_request *request);
/* The op's batch starts. */
void engine_fence_started(struct engine_op *op);
/* True: the request, or the group that it completes, is held. */
bool engine_fence_hold(struct engine_request *request);
/* True: it was held, and is cancelled with its group. */
bool engine_fence_cancel(struct engine_request *request);
/* Those that wait no longer go on (sessions.releasable). */
void engine_fence_release(struct engine_sessions *sessions);
/* No op can finish any more. */
void engine_fence_fail_held(struct engine_sessions *sessions, int status, const char *text,
                            int32_t culprit);
/* Nothing of the session comes any more: nobody waits for its streams. */
void engine_fence_close(struct engine_session *session, bool process_over);
/* No op uses its memory any more. */
void engine_fence_poison(struct engine_session *session);
void engine_fence_fini(struct engine_session *session);

#endif
