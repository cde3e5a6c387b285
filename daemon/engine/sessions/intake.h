/* SPDX-License-Identifier: Apache-2.0
 * Intake: what clients write into their submission rings. Engine thread. */
#ifndef ENGINE_INTAKE_H
#define ENGINE_INTAKE_H

#include "daemon/engine/memory/region.h"
#include "shm/abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_fences;
struct engine_request;
struct engine_session;
struct engine_sessions;
struct engine_set;
struct engine_tensor;

#define ENGINE_GROUP_MAX 1024u /* members of a group */

/* ---- the check that every submission passes: pure, so that a fuzzer can own all of its input ---- */

/* What is known about the session when the submission arrives. */
struct engine_intake_view {
    const struct engine_regions *regions;
    const struct engine_fences *fences; /* NULL: the session has no fence page */
    uint64_t next_seq;
    uint32_t in_flight; /* ops of this session that have no completion yet */
    int32_t rank, size;
    uint32_t set_size; /* of the process set it names; 0: there is none */
    /* A group of this session lacks members: the next submission must be this one. */
    uint32_t group, group_size, group_next, group_set;
    bool cookie_known; /* an op in flight has this cookie ... */
    bool wants_output; /* ... and waits for HVI_SUBMIT_OUTPUT */
    bool tensor_known; /* tensor_id is in range and has been defined */
};

/* Validates a private copy of a submission. Names, and whether the rank may use the set, are checked
 * by the caller. HVI_OK, or HVI_ERR_PROTOCOL for what no honest library sends; then `text_p` gets
 * the reason, without subject: "seq 7 where 3 was due". */
int engine_intake_validate(const struct hvi_submission *copy, const struct engine_intake_view *view,
                           struct engine_operands *operands_p, char *text_p, size_t text_size);

/* ---- taking in ---- */

/* Takes everything out of the session's submission ring. True if there was something. The session
 * may have ended. */
bool engine_intake_drain(struct engine_session *session);
/* What the session has submitted stays in its ring for now (sessions.held), and some of it names the region. */
bool engine_intake_holds(const struct engine_session *session, uint32_t region);
/* Drains every attached session, whatever the bell says. */
bool engine_intake_drain_all(struct engine_sessions *sessions);
/* A request that was held: on to the ranks' meeting place. The session may have ended. */
void engine_intake_go_on(struct engine_request *request);
/* A submission that did not come through the ring (slots.c): everything in it but cookie, time and
 * number is the engine's own. Takes over the reference to `tensor`; NULL: there was no memory for it.
 * The session may have ended. */
void engine_intake_inject(struct engine_session *session, const struct hvi_submission *copy,
                          const struct engine_operands *operands, struct engine_set *set,
                          struct engine_tensor *tensor);

#endif
