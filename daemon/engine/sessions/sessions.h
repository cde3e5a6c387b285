/* SPDX-License-Identifier: Apache-2.0
 * The room sessions/: ranks, from attach to detach or death, and what passes between them and the engine.
 *
 *        sockets --> control.c --+--> session.c: how a rank comes and goes
 *      processes --> liveness.c -+
 *          rings --> intake.c --> slots/ (what waits there comes first), order/
 *         order/ --> complete.c --> rings
 *          exec/ --> remote.c: a process whose memory is gone
 *   sockets, device/ --> device.c: memory of GPUs; fence.c: fence pages, ops that wait for others to start
 *
 * It calls upward only through the table. Engine thread; nothing blocks unless it says so. */
#ifndef ENGINE_SESSIONS_SESSIONS_H
#define ENGINE_SESSIONS_SESSIONS_H

#include "base/fate.h"
#include "base/types.h"
#include "daemon/engine/memory/region.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/sessions/request.h"
#include "proto/packet.h"
#include "proto/wire.h"
#include "shm/abi.h"
#include "shm/channel.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct engine_claim;
struct engine_device;
struct engine_exec;
struct engine_fences;
struct engine_stats;
struct engine_wish;
struct sd_event;
struct sd_event_source;

/* Who waits for an Ack. */
struct engine_asker {
    int32_t rank; /* -1: hvdd */
    uint64_t session, request;
};

struct engine_sessions_calls {
    /* The state of the seat's rank has changed: hvdd learns it. */
    void (*tell)(void *user, engine_seat seat);
    /* No op can finish any more, for what happened on this node. */
    void (*broken)(void *user, int status, int32_t culprit, const char *text);
    /* What a rank that attaches has set. */
    void (*settings)(void *user, int32_t rank, const struct hvi_setting *settings, size_t count);
    /* A rank starts or stops the timeline, as watch/timeline.h says. */
    void (*timeline_start)(void *user, const struct engine_asker *asker, int fd, const char *path,
                           bool mark_cycles);
    void (*timeline_stop)(void *user, const struct engine_asker *asker);
    /* The seat's rank has a fence page now: hvdd keeps a copy of its descriptor. */
    void (*fences)(void *user, engine_seat seat);
    /* The ranks want to register so much in all: hvdd answers by engine_quota_told. */
    void (*regions_wanted)(void *user, uint64_t request, uint64_t bytes);
};

/* A seat's row: the rank that has it.
 *
 *   absent --attach--> attached --Detach-----------------------> left
 *                         |------EOF, pidfd--> dying --fate----> lost
 *                         |                      |-----Detach--> left
 *                         |      protocol, job stopped---------> ended
 *      |---its process has ended------------------------------> lost
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
    int32_t rank; /* -1: not known before it comes */
    enum engine_rank_state state;
    struct engine_session *session; /* while attached or dying */
    pid_t pid;                      /* 0: in a pid namespace that this engine does not see */
    pid_t own_pid;                  /* as its process says; 0: not told */
    uid_t uid;
    char origin[HVI_WIRE_SHORT_TEXT];
    char text[HVI_TEXT_MAX + 1]; /* why it is gone */
    bool fate_told;              /* by hvdrun, through hvdd */
    bool untold;                 /* hvdd does not know of its state: the link was full */
    bool fences_untold;          /* the same of its fence page */
    struct hvi_fate fate;
};

/* A rank's session.
 *
 *   open --left, lost, protocol, job stopped--> closing --no op uses its memory--> over
 *
 *   open     the rank is attached or dying, and .session of its slot points here
 *   closing  the rank is left, lost or ended: peers and hvdd have been told. Of a stopped job they are
 *            not: each rank gets a Notice of its own, and hvdd sees the engine end. The session takes
 *            nothing, and no transfer of its process' memory begins. It waits for its requests
 *            (.in_flight) and for medium ops in revoked slots. The rank itself has not been told
 *   over     the rank has been told: Notice or Ack, HVI_SESSION_ENDED, end of file. The struct is freed
 *            when the loop comes round
 *
 * Closing waits for batches, which end by themselves, or are cancelled when the job is stopped. Memory that
 * does not answer is given up by engine_dispatch_watch: after ENGINE_SILENT_NS if the batch is cancelled or
 * has operands in this rank's process, else when its time is over.
 * Closing waits for peers that hold chunks in a slot, but a rank that broke the protocol, or whose job is
 * stopped, for a second only. A rank that leaves is told no sooner: its hvd_close returns with a timeout.
 *
 * One setter: set_session_state in session.c. */
enum engine_session_state {
    ENGINE_SESSION_OPEN,
    ENGINE_SESSION_CLOSING,
    ENGINE_SESSION_OVER,
    ENGINE_SESSION_STATES
};

/* What an attached rank owns: everything is released when it ends. */
struct engine_session {
    struct engine_sessions *sessions;
    struct engine_order *order; /* .sessions->order */
    enum engine_session_state state;
    struct engine_session *closing_next;
    struct engine_session *bell_next;
    int32_t rank;
    engine_seat seat;
    uint64_t id;
    int socket_fd, pid_fd, event_fd;
    struct engine_process process; /* the trainer's, with .pid_fd */
    enum hvi_memory_way memory;    /* of that process */
    bool detached; /* by this request, which waits for its Ack; open: sessions.held */
    uint64_t detach_request;
    int end_status; /* closing: of the Notice that the rank gets; HVI_OK: none */
    struct sd_event_source *socket_source, *pid_source, *fate_source, *closing_source;
    uint64_t dying_ns; /* since it was first asked how it ended */
    struct hvi_channel channel;
    bool bell_due; /* in .bells */
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
    struct engine_fences *fences;  /* NULL: it has no fence page */
    uint32_t text_cell, text_turn; /* the sentence written last, to be shared by its completions */
    char text[HVI_TEXT_MAX + 1];
};

/* Of what the user may register (quota.h). */
struct engine_quota {
    uint64_t granted;            /* bytes, of both kinds of regions */
    uint64_t last_request;       /* of the oldest claim */
    struct engine_claim *claims; /* the oldest first */
    struct sd_event_source *late;
};

struct engine_sessions {
    const struct hvi_engine_start *start;
    struct engine_order *order;
    struct engine_exec *exec;
    struct engine_slots *slots;
    struct engine_device *device; /* workers of GPUs */
    struct engine_stats *stats;
    struct sd_event *event;
    uint32_t seats;   /* of this node: start->size where it has the whole job */
    const char *node; /* its name for people; "" where it has the whole job, or is not known yet */
    int bell_fd, wake_fd; /* for every client: the engine's bell, and the eventfd to wake it */
    const struct engine_sessions_calls *calls;
    void *user;

    bool held;                 /* what ranks submit stays in their rings: there is no order yet */
    bool stopping;             /* EngineStop, SIGTERM or nobody left: no further rank is taken */
    bool alone;                /* hvdd is gone */
    struct engine_rank *ranks; /* [seats]; engine_rank_at */
    uint32_t attached, come;   /* attached or dying now; ever attached */
    uint32_t watch_next;       /* seat whose process was looked at last */
    char key_digest[HVI_WIRE_SHORT_TEXT];
    struct sd_event_source *linger_source;
    struct engine_session *closing; /* those that are closing or over */
    struct engine_session *bells;   /* that have new completions */
    uint32_t owed;                  /* completions that wait for a reader */
    bool doomed;                    /* some session has .doom */
    uint32_t fenced;                /* sessions with a fence page */
    bool releasable;                /* ops that were held may go on (fence.h) */
    struct engine_wish *wishes;     /* what ranks wait for workers to do */
    uint64_t tickets;
    struct engine_quota quota;
    bool fresh_regions; /* some session may have regions without page tables */
    struct engine_op
        *bereaved;            /* ops that a dying rank has stopped; they wait to hear how it ends */
    struct hvi_packet packet; /* scratch for receiving */
    unsigned char send_bytes[HVI_PACKET_BYTES_MAX]; /* scratch for sending */
};

static inline struct engine_rank *engine_rank_at(const struct engine_sessions *sessions,
                                                 engine_seat seat)
{
    return &sessions->ranks[seat.n];
}

/* NULL: the rank has no seat here, or has not come yet. */
struct engine_rank *engine_rank_find(const struct engine_sessions *sessions, int32_t rank);

/* "rank 3 (pid 4711)"; where other nodes have ranks of the job, "rank 3 on h2 (pid 4711)". The pid as in
 * hvi_process_describe. */
#define ENGINE_RANK_LABEL (HVI_WIRE_NODE_NAME + HVI_PROCESS_TEXT + 48)
void engine_rank_label(const struct engine_session *session, char *text_p, size_t size);

/* The job has ranks on other nodes. */
static inline bool engine_sessions_span(const struct engine_sessions *sessions)
{
    return sessions->seats < (uint32_t)sessions->start->size;
}

/* Everything up to the blank line above is set, the rest zero. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_sessions_init(struct engine_sessions *sessions);
/* No session may be left. Harmless on a zeroed one. */
void engine_sessions_fini(struct engine_sessions *sessions);
/* Encodes and sends without waiting. */
int engine_sessions_send(struct engine_sessions *sessions, int socket_fd,
                         const struct hvi_packet_msg *msg, const int *fds, uint32_t fd_count);
/* Takes over a client: makes its channel and answers it. `socket_fd` and `pid_fd` (may be -1)
 * become the engine's. On any refusal the client is told, and nothing of it remains. */
void engine_session_adopt(struct engine_sessions *sessions, const struct hvi_engine_adopt *adopt,
                          int socket_fd, int pid_fd);
/* The process of a rank that has not come has ended: the rank is lost. Nothing else is asked of `rank`. */
void engine_sessions_miss(struct engine_sessions *sessions, int32_t rank, pid_t pid,
                          struct hvi_fate fate);
/* The rank's socket or process is gone: takes in what it still submitted, then finds out how it
 * ended and loses it. Idempotent. */
void engine_session_dying(struct engine_session *session);
/* Closes the session: `state` is LEFT or LOST, `text` a sentence that names the rank. Fails what waits,
 * tells peers and hvdd. The rank is told, and its memory goes, when no executing op uses it any more
 * (engine_sessions_reap), so the struct stays valid until the loop comes round: look at its state. */
void engine_session_end(struct engine_session *session, enum engine_rank_state state,
                        const char *text);
/* As above for a broken protocol; `reason` has no subject. */
void engine_session_violation(struct engine_session *session, const char *reason);
/* Ends the sessions that have .doom. */
void engine_sessions_end_doomed(struct engine_sessions *sessions);
/* No op can finish any more, for what happened on another node: fails what waits, and tells every rank. */
void engine_sessions_break(struct engine_sessions *sessions, int status, int32_t culprit,
                           const char *text);
/* Closes every session because the job is stopped. Ranks that are closing already keep their reason.
 * hvdd is told nothing: the engine ends when every rank has been told. */
void engine_sessions_stop(struct engine_sessions *sessions, const char *reason);
/* The same for another reason: each rank gets this status and sentence. */
void engine_sessions_fail(struct engine_sessions *sessions, int status, const char *text);
/* The engine is to end, and every rank has been told that its session is over. */
static inline bool engine_sessions_are_over(const struct engine_sessions *sessions)
{
    return sessions->stopping && !sessions->closing;
}
/* Tells the ranks of closing sessions that no op uses any more, then frees one that is over: unmapping many
 * GiB takes its time, and hvdd wants to hear from us. True: there may be another. */
bool engine_sessions_reap(struct engine_sessions *sessions);
static inline bool engine_session_is_open(const struct engine_session *session)
{
    return session->state == ENGINE_SESSION_OPEN;
}
bool engine_session_edge(enum engine_session_state from, enum engine_session_state to);
/* Readies a piece of a region that was just added; false when there is none. */
bool engine_sessions_ready_memory(struct engine_sessions *sessions);
const char *engine_rank_state_text(enum engine_rank_state state);
bool engine_rank_edge(enum engine_rank_state from, enum engine_rank_state to);
/* One row per rank that has a seat here, by seat; those that have not come too, where it is known which they
 * are. The caller frees *rows_p. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_rank_rows(struct engine_sessions *sessions, struct hvi_rank_row **rows_p,
                     size_t *count_p);

#endif
