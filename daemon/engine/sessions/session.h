/* SPDX-License-Identifier: Apache-2.0
 * Ranks and their sessions: how a rank comes and goes, and what it owns meanwhile. Engine thread. */
#ifndef ENGINE_SESSIONS_SESSION_H
#define ENGINE_SESSIONS_SESSION_H

#include "base/fate.h"
#include "base/types.h"
#include "daemon/engine/memory/region.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/sessions/request.h"
#include "proto/wire.h"
#include "shm/abi.h"
#include "shm/channel.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct engine;
struct sd_event_source;

/* A rank's slot.
 *
 *   absent --attach--> attached --Detach-----------------------> left
 *                         |------EOF, pidfd--> dying --fate----> lost
 *                         |                      |-----Detach--> left
 *                         |      protocol, job stopped---------> ended
 *
 * One setter: set_state in session.c. */
enum engine_rank_state {
    ENGINE_RANK_ABSENT,
    ENGINE_RANK_ATTACHED,
    ENGINE_RANK_DYING, /* gone; how is being found out */
    ENGINE_RANK_LEFT,
    ENGINE_RANK_LOST,
    ENGINE_RANK_ENDED,
    ENGINE_RANK_STATES
};

struct engine_rank {
    enum engine_rank_state state;
    struct engine_session *session; /* while attached or dying */
    pid_t pid;
    uid_t uid;
    char origin[HVI_WIRE_SHORT_TEXT];
    char text[HVI_TEXT_MAX + 1]; /* why it is gone */
    bool fate_told;              /* by hvdrun, through hvdd */
    bool untold;                 /* hvdd does not know of its state: the link was full */
    struct hvi_fate fate;
};

/* What an attached rank owns: everything is released when it ends. */
struct engine_session {
    struct engine *engine;
    struct engine_session *gone_next; /* ended, waiting for ops that still use its memory */
    struct engine_session *bell_next;
    int32_t rank;
    uint64_t id;
    int socket_fd, pid_fd, event_fd;
    struct engine_process process; /* the trainer's, with .pid_fd */
    int farewell_fd;               /* where a Detach waits for its answer, or -1 */
    uint64_t farewell_request;
    struct sd_event_source *socket_source, *pid_source, *fate_source;
    uint64_t dying_ns;
    struct hvi_channel channel;
    bool over;     /* takes and gives nothing any more */
    bool bell_due; /* in engine->bells */
    /* Broke the protocol where it could not be ended on the spot: the loop does that. */
    const char *doom;
    uint64_t next_seq;
    uint64_t completion_seq;
    uint64_t attached_ns;
    uint32_t in_flight; /* requests */
    uint32_t requests_used;
    struct engine_request *requests; /* [HVI_CQ_SLOTS] */
    struct engine_request *free_requests;
    struct engine_request *owed_first, *owed_last;
    uint32_t cq_free; /* slots known to be free in the completion ring */
    /* The group that lacks members: the next submission must be this one. */
    uint32_t group, group_size, group_next, group_set;
    struct engine_group grouped;
    /* Ops that failed between SIZED and OUTPUT: their OUTPUT may be under way. */
    uint32_t outputs_excused;
    struct engine_tensor **tensors; /* [HVI_TENSOR_IDS] */
    struct engine_request *cookies[HVI_CQ_SLOTS];
    struct engine_regions regions;
    uint32_t text_cell, text_turn; /* the sentence written last, to be shared by its completions */
    char text[HVI_TEXT_MAX + 1];
};

/* Takes over a client: makes its channel and answers it. `socket_fd` and `pid_fd` (may be -1)
 * become the engine's. On any refusal the client is told, and nothing of it remains. */
void engine_session_adopt(struct engine *engine, const struct hvi_engine_adopt *adopt,
                          int socket_fd, int pid_fd);
/* The rank's socket or process is gone: takes in what it still submitted, then finds out how it
 * ended and loses it. Idempotent. */
void engine_session_dying(struct engine_session *session);
/* Ends the session for good: `state` is LEFT, LOST or ENDED, `text` a sentence that names the rank.
 * Fails what waits, tells peers and hvdd, and gives up its descriptors; memory goes when no
 * executing op uses it any more (engine_sessions_reap), so the struct stays valid until the loop
 * comes round: look at .over. */
void engine_session_end(struct engine_session *session, enum engine_rank_state state,
                        const char *text);
/* As above for a broken protocol; `reason` has no subject. */
void engine_session_violation(struct engine_session *session, const char *reason);
/* Ends every session because the job is stopped. */
void engine_sessions_stop(struct engine *engine, const char *reason);
/* Frees one ended session that no op uses any more: unmapping many GiB takes its time, and hvdd wants to
 * hear from us. True: there may be another. */
bool engine_sessions_reap(struct engine *engine);
/* Readies a piece of a region that was just added; false when there is none. */
bool engine_sessions_ready_memory(struct engine *engine);
const char *engine_rank_state_text(enum engine_rank_state state);
bool engine_rank_edge(enum engine_rank_state from, enum engine_rank_state to);
/* One row per rank, absent ones too. The caller frees *rows_p. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_rank_rows(struct engine *engine, struct hvi_rank_row **rows_p);

#endif
