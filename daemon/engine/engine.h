/* SPDX-License-Identifier: Apache-2.0
 * struct engine and the types its files share. One engine process serves one generation of one job.
 *
 * Threads: everything here belongs to the main thread, except batch_done in dispatch.c, which the
 * backend's threads call, and the list it fills (.finished_lock). Nothing blocks unless it says so.
 *
 * The stages, in the order a tensor passes them: intake -> negotiate -> fusion -> dispatch ->
 * (backend) -> complete. Calls go down; results come back through the list of finished batches. */
#ifndef ENGINE_ENGINE_H
#define ENGINE_ENGINE_H

#include "base/fate.h"
#include "base/types.h"
#include "daemon/engine/exec/backend.h"
#include "daemon/engine/slots/express.h"
#include "daemon/engine/sessions/intake.h"
#include "daemon/engine/watch/observe.h"
#include "daemon/engine/sessions/region.h"
#include "daemon/engine/order/set.h"
#include "daemon/engine/watch/timeline.h"
#include "proto/packet.h"
#include "proto/wire.h"
#include "shm/abi.h"
#include "shm/channel.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

#define ENGINE_LINGER_NS      (2 * HVI_NS_SEC) /* with nobody attached, while some may still come */
#define ENGINE_FATE_NS        (20 * HVI_NS_MS) /* how long to ask how a process ended */
#define ENGINE_FATE_STEP_NS   (1 * HVI_NS_MS)
#define ENGINE_RETRY_NS       (250 * HVI_NS_MS) /* between attempts to reach a restarted hvdd */
#define ENGINE_WATCH_NS       (20 * HVI_NS_MS)  /* between looks at processes that ops wait for */
#define ENGINE_STALL_NS       (1 * HVI_NS_SEC)  /* between looks at the table of waiting ops */
#define ENGINE_EVENT_NS       (1 * HVI_NS_MS)  /* sockets are looked at this often while ops flow */
#define ENGINE_SPIN_NS        (100 * 1000ull)  /* idle time before the main thread sleeps */
#define ENGINE_START_NS       (5 * HVI_NS_SEC) /* for the first message of hvdd */
#define ENGINE_TENSOR_BUCKETS 8192u
#define ENGINE_FAILED_MAX     4096u /* failed ops that are remembered for ranks still to come */

struct engine_session;
struct engine_op;

/* What all ranks said when they last agreed: whoever says it again agrees with all who do. */
struct engine_agreed {
    bool valid;
    uint16_t kind;
    const struct engine_tensor *leader; /* compared, never followed */
    uint32_t group_size, group_index;
    unsigned char type[8];   /* reduce_op .. root of the submission */
    unsigned char shape[80]; /* prescale .. dims */
};

/* A tensor name in one process set, and what waits under it. Interned for the whole job; tensor.c.
 */
struct engine_tensor {
    struct engine_tensor *next; /* in the bucket, or in the list of free ones */
    struct engine_op *waiting;  /* the op that is not ready yet, or has failed early; NULL */
    struct engine_agreed agreed;
    uint64_t set; /* serial of the set */
    uint64_t hash;
    uint64_t anon_seq; /* unnamed: matched by (anon_kind, anon_seq) */
    uint32_t refs;     /* session tables, parts in flight, ops */
    uint16_t anon_kind;
    bool anon;
    uint32_t timeline_epoch, timeline_row; /* its row in the timeline of that number */
    uint32_t name_bytes;
    uint32_t express; /* 0, or 1 + the slot in which its ranks may meet: express.c */
    char *name;       /* NULL when unnamed: engine_tensor_name makes one */
};

struct engine_tensors {
    struct engine_tensor *buckets[ENGINE_TENSOR_BUCKETS];
    struct engine_tensor *free; /* unnamed ones, kept */
    uint32_t count;
};

/* One rank's share of an op: its submission, from intake until its completion is in the ring. */
struct engine_part {
    struct engine_part *next;        /* free list, then list of owed completions */
    struct engine_part *cookie_next; /* in the session's table */
    struct engine_session *session;
    struct engine_op *op; /* NULL before it is negotiated and once the op is over */
    struct engine_tensor *tensor;
    struct engine_set *set;
    uint32_t set_rank;
    /* Grouped: the first member's tensor, and a ring over this rank's parts in their order. */
    struct engine_tensor *leader;
    struct engine_part *sibling;
    struct engine_region *in, *out, *aux;
    int64_t *integers; /* alltoall: splits; SET_ADD: ranks, ascending; NULL without */
    uint32_t integer_count;
    uint64_t in_bytes;
    uint64_t out_bytes;  /* once the op is complete */
    int64_t rows;        /* for the completion */
    bool repeats;        /* says what was agreed on last */
    uint64_t arrived_ns; /* when the client says it submitted, as far as that is credible */
    bool owed;           /* .completion waits for a free slot */
    bool output_asked;   /* SIZED has been sent, OUTPUT has not come */
    char *owed_text;
    uint32_t ticket, ticket_turn; /* go into the completion: express.c */
    struct hvi_completion completion;
    struct hvi_submission copy;
};

/* One op on all ranks of a process set.
 *
 *   WAITING --last rank came, all agree--> READY --> EXECUTING --> over
 *    |  ^ |         |                        ^  ^
 *    |  | |         +--an output is missing--|--+-> SIZING --outputs came--> READY, or HELD
 *    |  | +--the same, in a group--> HELD ---+           (grouped: until the whole group is so far)
 *    |  +--a rank takes its part back--/
 *    +--mismatch, rank lost or left, set removed, policy, too small--> over   (HELD, SIZING too)
 *    +--the same before all ranks came--> FAILED --the others came--> over    (HELD, SIZING too)
 *
 * One setter: engine_op_set_state in negotiate.c. */
enum engine_op_state {
    ENGINE_OP_WAITING,
    ENGINE_OP_HELD,   /* complete and agreed; its group is not, or not all outputs are known */
    ENGINE_OP_SIZING, /* waits for outputs whose size is known only now */
    ENGINE_OP_READY,
    ENGINE_OP_EXECUTING,
    ENGINE_OP_FAILED, /* over for those who came: the others meet the same sentence */
    ENGINE_OP_STATES
};

struct engine_op {
    struct engine_op *next, *prev; /* waiting ops, failed ops, oldest first; .next: free, ready */
    struct engine_op *set_next, *set_prev; /* waiting ops of its set */
    struct engine_op *fallen;              /* list of ops that fail together */
    struct engine_tensor *tensor;
    struct engine_set *set;
    enum engine_op_state state;
    uint16_t kind;    /* of the part that came first */
    bool partial;     /* some members only, see partial.c */
    int32_t from, to; /* SEND: set ranks; from -1: whoever sends to `to` */
    uint32_t parts_present;
    uint32_t missing; /* members without a part that have not joined; FAILED: that may still come */
    uint32_t outputs_missing;
    uint32_t repeating;                    /* parts that say what was agreed on last */
    bool replayed;                         /* all did: nothing was checked */
    uint64_t first_ns;                     /* when the first rank's submission was taken in */
    uint64_t warn_ns;                      /* when to warn (again) */
    uint64_t ready_ns;                     /* when the last rank had come; 0 before */
    uint64_t timeline_ns;                  /* of its last event */
    uint32_t timeline_epoch, timeline_row; /* 0: not in a timeline */
    uint16_t timeline_kind;
    /* Grouped, from HELD on: the op with index 0, whose counters are the group's. */
    struct engine_op *group;
    uint32_t group_held;    /* members that are complete and agreed */
    uint32_t group_sizing;  /* members that are not ready yet, once all are held */
    uint32_t group_running; /* members that are not over yet, once all are ready */
    bool group_started;     /* all are held: it cannot be taken back any more */
    /* FAILED, and a group of which a member has failed. */
    int status;
    int32_t culprit;
    char *text;
    struct engine_work work;
    uint64_t *own_sizes;        /* [set size] for work.sizes, which an alltoall has in .matrix */
    uint64_t *matrix;           /* allocated for the time being */
    struct engine_part **parts; /* [set size]; room for every rank; NULL: missing or joined */
    pid_t *in_pids, *out_pids;  /* [set size] for the work, if operands are foreign */
    int32_t lost_rank;          /* while in engine->bereaved */
    uint8_t *came;              /* FAILED: [set size] ranks that will not come (any more) */
};

/* A rank's slot.
 *
 *   absent --attach--> attached --Detach-----------------------> left
 *                         |------EOF, pidfd--> dying --fate----> lost
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
    uint64_t ops, bytes;
    uint64_t negotiated, replayed; /* of .ops: with and without a check */
    uint64_t express_ops;          /* of these: done by the ranks themselves */
    struct engine_lag lag;
    struct engine_trace *trace; /* from the rank's coming to the engine's end; NULL */
};

/* What an attached rank owns: everything is released when it ends. */
struct engine_session {
    struct engine *engine;
    struct engine_session *gone_next; /* ended, waiting for ops that still use its memory */
    struct engine_session *bell_next;
    int32_t rank;
    uint64_t id;
    int socket_fd, pid_fd, event_fd;
    int farewell_fd; /* where a Detach waits for its answer, or -1 */
    uint64_t farewell_request;
    sd_event_source *socket_source, *pid_source, *fate_source;
    uint64_t dying_ns;
    struct hvi_channel channel;
    bool over;        /* takes and gives nothing any more */
    uint64_t over_ns; /* since when */
    bool bell_due;    /* in engine->bells */
    /* Broke the protocol where it could not be ended on the spot: the loop does that. */
    const char *doom;
    uint64_t next_seq;
    uint64_t completion_seq;
    uint64_t attached_ns;
    uint32_t in_flight; /* parts */
    uint32_t parts_used;
    struct engine_part *parts; /* [HVI_CQ_SLOTS] */
    struct engine_part *free_parts;
    struct engine_part *owed_first, *owed_last;
    uint32_t cq_free; /* slots known to be free in the completion ring */
    /* A group of which some members are still to come; they are negotiated together. */
    struct engine_part *group_first, *group_last;
    uint32_t group, group_size, group_next, group_set;
    int group_refused; /* not HVI_OK: no member of it is taken any more */
    /* Ops that failed between SIZED and OUTPUT: their OUTPUT may be under way. */
    uint32_t outputs_excused;
    struct engine_tensor **tensors; /* [HVI_TENSOR_IDS] */
    struct engine_part *cookies[HVI_CQ_SLOTS];
    struct engine_regions regions;
    /* Executing works with operands in the trainer's own memory. The backend's threads count it
     * down, release; acquire in session.c, which waits for 0 after it has set .foreign_over. */
    _Atomic uint32_t foreign_running;
    _Atomic bool foreign_over;     /* that memory is not touched any more */
    uint32_t text_cell, text_turn; /* the sentence written last, to be shared by its completions */
    char text[HVI_TEXT_MAX + 1];
};

struct engine {
    struct hvi_engine_start start;
    uint64_t started_ns;
    uint64_t now_ns; /* refreshed when a pass of the loop finds something */
    char key_digest[HVI_WIRE_SHORT_TEXT];
    uint64_t stall_warn_ns; /* 0: off, and nothing below happens either */
    uint64_t stall_act_ns;  /* age at which .stall_policy acts */
    enum engine_stall_policy stall_policy;
    uint64_t stall_looked_ns;
    int32_t watch_next; /* rank whose process was looked at last */

    sd_event *event;
    int link_fd; /* -1: hvdd is gone */
    sd_event_source *link_source, *retry_source, *linger_source, *stall_source;
    int engine_fd; /* eventfd that clients write when we sleep */
    int worker_fd; /* eventfd that our own threads write */
    sd_event_source *engine_source, *worker_source, *term_source;
    struct hvi_region bell_region;
    struct hvi_bell_page *bell;
    bool stopping;     /* EngineStop, SIGTERM or nobody left */
    uint64_t event_ns; /* when sd_event ran last */

    struct engine_rank *ranks; /* [start.size] */
    int32_t attached, come;    /* attached or dying now; ever attached */
    /* Not HVI_OK: no op can finish any more, because the culprit is lost or has left (-1: because
     * the job was stopped). */
    int broken_status;
    int32_t broken_culprit;
    char broken_text[HVI_TEXT_MAX + 1];
    struct engine_session *gone;

    int32_t settings_rank; /* whose settings these are */
    uint64_t fusion_bytes;
    bool group_fusion; /* groups may be batched with other ops */
    bool replay;       /* what was agreed on is remembered */
    bool apart;        /* ranks do not map each other's memory */
    struct engine_sets sets;
    struct engine_tensors tensors;
    struct engine_express express;
    struct engine_op *waiting_first, *waiting_last;
    struct engine_op *free_ops;
    struct engine_op *failed_first, *failed_last; /* FAILED, oldest first */
    uint32_t failed_count;
    struct engine_op *ready_first, *ready_last;
    uint32_t ready_count;
    struct engine_op
        *bereaved; /* ops that a dying rank has stopped; they wait to hear how it ends */
    struct engine_batch *free_batches;
    void *backend_contexts[4];  /* one per row of engine_backends */
    _Atomic uint32_t executing; /* batches that backends have */

    pthread_t main_thread;
    struct engine_batch *finished; /* by the main thread itself */
    pthread_mutex_t finished_lock;
    struct engine_batch *finished_elsewhere; /* under the lock */
    /* Release by batch_done, under the lock; acquire by engine_dispatch_reap. */
    _Atomic uint32_t finished_elsewhere_count;

    struct engine_timeline
        *timeline; /* takes events; NULL: there is none, or it is being stopped */
    struct engine_timeline *timeline_alive; /* until its file is complete */
    uint32_t timeline_epochs;

    struct engine_session *bells; /* sessions with new completions */
    uint32_t owed;                /* completions that wait for a reader */
    bool doomed;                  /* some session has .doom */
    bool fresh_regions;           /* some session may have regions without page tables */

    struct hvi_packet packet;                       /* scratch for receiving */
    unsigned char send_bytes[HVI_PACKET_BYTES_MAX]; /* scratch for sending */
};

/* ---- engine.c: the whole ---- */

/* Builds everything from hvdd's first message; `link_fd` becomes the engine's. HVI_OK or the error,
 * logged. */
int engine_init(struct engine *engine, const struct hvi_engine_start *start, int link_fd);
void engine_fini(struct engine *engine);

/* ---- loop.c ---- */

/* Runs until engine->stopping. Blocks. */
void engine_loop_run(struct engine *engine);

/* ---- link.c: hvdd ---- */

/* Starts to listen on engine->link_fd. */
int engine_link_open(struct engine *engine);
void engine_link_close(struct engine *engine);
/* EngineSession: what has become of a rank, from its slot. When the link is full, hvdd learns the
 * newest state as soon as it reads again. */
void engine_link_tell(struct engine *engine, int32_t rank);
/* Encodes and sends without waiting. */
int engine_send(struct engine *engine, int socket_fd, const struct hvi_packet_msg *msg,
                const int *fds, uint32_t fd_count);

/* ---- session.c ---- */

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
/* Frees ended sessions that no op uses any more. */
void engine_sessions_reap(struct engine *engine);
/* Readies a piece of a region that was just added; false when there is none. */
bool engine_sessions_ready_memory(struct engine *engine);
const char *engine_rank_state_text(enum engine_rank_state state);
bool engine_rank_edge(enum engine_rank_state from, enum engine_rank_state to);
/* One row per rank, absent ones too. The caller frees *rows_p. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_rank_rows(struct engine *engine, struct hvi_rank_row **rows_p);

/* ---- foreign.c: operands in a trainer's own memory ---- */

/* Offers HVI_FEATURE_FOREIGN to the session if the kernel lets us reach its process. */
void engine_foreign_offer(struct engine_session *session);
/* Whether the memory of any operand of the op is not the engine's. */
bool engine_foreign_is_used(const struct engine_op *op);
/* Fills in the work's processes, if it has any. */
void engine_foreign_resolve(struct engine_op *op);
/* A work with foreign operands starts; it has ended, on any thread. */
void engine_foreign_start(const struct engine_op *op);
void engine_foreign_stop(const struct engine_op *op);
/* The session is over: from now on its process' memory is left alone. Waits for pieces that are
 * being moved. */
void engine_foreign_end(struct engine_session *session);
/* The op's batch has ended with this status and fault: it is over on every rank, or waits for news of
 * the rank that is to blame. */
void engine_foreign_failed(struct engine *engine, struct engine_op *op, int status,
                           const struct engine_fault *fault);
/* Ends the ops whose rank is gone for good. */
void engine_foreign_settle(struct engine *engine);

/* ---- settings.c ---- */

/* The value of HVD_`name`, else of HOROVOD_`name`; NULL. */
const char *engine_setting_find(const struct hvi_setting *settings, size_t count, const char *name);
/* What a rank that attaches has set, if it is the lowest so far. */
void engine_settings_take(struct engine *engine, int32_t rank, const struct hvi_setting *settings,
                          size_t count);

/* ---- liveness.c ---- */

/* Watches socket and process. */
int engine_liveness_open(struct engine_session *session);
void engine_liveness_close(struct engine_session *session);
/* Looks at once, and again for up to ENGINE_FATE_NS, how the process ended; then loses the rank. */
void engine_liveness_ask(struct engine_session *session);
/* Loses ranks whose process is ending, some at a time; for a timer while ops wait. */
void engine_liveness_watch(struct engine *engine);
/* hvdd knows how the process ended. */
void engine_liveness_told(struct engine *engine, const struct hvi_engine_fate *fate);
/* Exits now or later if nobody is attached; takes the exit back if somebody is. */
void engine_liveness_check_empty(struct engine *engine);

/* ---- control.c ---- */

/* Serves the client's socket. False at its end of file. The session may have ended afterwards. */
bool engine_control_read(struct engine_session *session);
/* Answers the Detach of a session that is being freed, if there was one. */
void engine_control_farewell(struct engine_session *session);

/* ---- intake.c ---- */

/* Takes everything out of the session's submission ring. True if there was something. The session
 * may have ended. */
bool engine_intake_drain(struct engine_session *session);
/* Drains every attached session, whatever the bell says. */
bool engine_intake_drain_all(struct engine *engine);
struct engine_part *engine_intake_find(struct engine_session *session, uint64_t cookie);
/* Takes one submission as if it had come through the ring, whatever its .seq says. `copy` is private
 * memory. The session may have ended. */
void engine_intake_take(struct engine_session *session, const struct hvi_submission *copy);
/* A submission that did not come through the ring (express.c): everything in it but cookie, time and
 * number is the engine's own. Takes over the reference to `tensor`; NULL: there was no memory for it.
 * The session may have ended. */
void engine_intake_inject(struct engine_session *session, const struct hvi_submission *copy,
                          const struct engine_operands *operands, struct engine_set *set,
                          struct engine_tensor *tensor);

/* ---- tensor.c ---- */

/* Finds or makes; the caller holds one reference. NULL: out of memory. */
struct engine_tensor *engine_tensor_get_named(struct engine_tensors *tensors, uint64_t set,
                                              const char *name, uint32_t name_bytes);
struct engine_tensor *engine_tensor_get_anon(struct engine_tensors *tensors, uint64_t set,
                                             uint16_t kind, uint64_t anon_seq);
void engine_tensor_put(struct engine_tensors *tensors, struct engine_tensor *tensor);
void engine_tensors_fini(struct engine_tensors *tensors);
/* The name: "w1", "allreduce.noname.7". name_p needs HVI_NAME_MAX + 1 bytes. */
void engine_tensor_name(const struct engine_tensor *tensor, char *name_p);
#define ENGINE_LABEL 208
/* For sentences: as above, but a long name is cut to leave room for the rest. label_p needs
 * ENGINE_LABEL bytes. */
void engine_tensor_label(const struct engine_tensor *tensor, char *label_p);

/* ---- agree.c ---- */

/* The parts of a complete op: HVI_OK if all agree and what they ask for can be done, else
 * HVI_ERR_MISMATCH, HVI_ERR_UNSUPPORTED or HVI_ERR_INVALID and one sentence for every rank. Pure. */
int engine_agree_check(const struct engine_op *op, char *text_p, size_t text_size);
/* A group whose first op is complete and agreed, but not all that should follow it: who says what.
 */
void engine_agree_describe_group(const struct engine_op *leader, char *text_p, size_t text_size);
/* Whether the part repeats what its tensor's ranks agreed on last. */
bool engine_agree_repeats(const struct engine_part *part);
/* Remembers what a complete op agreed on, if it may be repeated without a check. */
void engine_agree_remember(const struct engine_op *op);

/* ---- sizes.c ---- */

/* Bytes and rows of every operand of a complete op: work.bytes, work.sizes, .out_bytes and .rows of
 * the parts. HVI_OK; HVI_ERR_INVALID, HVI_ERR_NO_MEMORY with a sentence. */
int engine_sizes_plan(struct engine_op *op, char *text_p, size_t text_size);
/* Whether ranks may leave it to the engine to say how large their output is. */
bool engine_sizes_asks(uint16_t kind);
/* Whether the part's output takes its result: HVI_OK, HVI_ERR_TOO_SMALL, HVI_ERR_INVALID. */
int engine_sizes_check_output(const struct engine_op *op, const struct engine_part *part,
                              char *text_p, size_t text_size);
/* alltoall: rows that `from` sends to `to`, set ranks. */
int64_t engine_sizes_split(const struct engine_op *op, uint32_t from, uint32_t to);
/* Writes the received splits where an alltoall's ranks want them. */
void engine_sizes_tell_splits(const struct engine_op *op);

/* ---- negotiate.c ---- */

/* Adds an ungrouped part to its tensor's op. HVI_OK, HVI_ERR_PROTOCOL (in flight twice on this
 * rank), HVI_ERR_NO_MEMORY; the part is the caller's again unless HVI_OK. */
int engine_negotiate_submit(struct engine *engine, struct engine_part *part);
/* The output operand that HVI_COMPLETE_SIZED asked for has been set in the part. */
void engine_negotiate_output(struct engine *engine, struct engine_part *part);
/* Takes the part, and its group, back from ops that still wait for other ranks: they end with
 * `status` on this rank, and the others go on waiting. False when it is too late. */
bool engine_negotiate_withdraw(struct engine *engine, struct engine_part *part, int status,
                               const char *text);
/* Fails a waiting op, and its group, on every rank of its set, those that are still to come
 * included. Logs. */
void engine_negotiate_fail(struct engine *engine, struct engine_op *op, int status,
                           const char *text, int32_t culprit);
/* Fails every op that waits for somebody. */
void engine_negotiate_fail_all(struct engine *engine, int status, const char *text,
                               int32_t culprit);
/* Fails every waiting op of a set that is being removed but for `except` (its removal; NULL), and
 * forgets those that failed early. */
void engine_negotiate_fail_set(struct engine *engine, struct engine_set *set,
                               const struct engine_op *except);
/* The one setter of op->state. */
void engine_op_set_state(struct engine_op *op, enum engine_op_state state, const char *cause);
/* The backend has done the op, or could not. Over, unless its group is not. */
void engine_op_done(struct engine *engine, struct engine_op *op, int status, const char *text,
                    int32_t culprit);

/* For group.c, join.c, partial.c and set_ops.c. */

/* An op that waits, without parts, for the part's tensor in its set. NULL: out of memory. */
struct engine_op *engine_op_new(struct engine *engine, const struct engine_part *part);
/* The part, which the op lacks, is there. */
void engine_op_add_part(struct engine *engine, struct engine_op *op, struct engine_part *part);
/* What the backend has to know, by the first part. */
void engine_op_fill_work(struct engine_op *op);

/* Meets the part's op, or makes it. HVI_OK; HVI_ERR_CANCELLED: the op in *op_p failed before this
 * rank came; else as engine_negotiate_submit. */
int engine_op_meet(struct engine *engine, struct engine_part *part, struct engine_op **op_p);
/* The rank has come to a FAILED op: its part gets the op's sentence; the op goes with the last. */
void engine_op_meet_failed(struct engine *engine, struct engine_op *op, struct engine_part *part);
/* Nobody is missing any more. False: it failed, or it is under way, with its group; parts and ops
 * may be gone. */
bool engine_op_complete(struct engine *engine, struct engine_op *op);
/* Plans sizes, asks for outputs, readies. False if it failed. */
bool engine_op_proceed(struct engine *engine, struct engine_op *op);
void engine_op_ready(struct engine *engine, struct engine_op *op);
/* The part of the lowest set rank that has come; NULL: nobody has. */
struct engine_part *engine_op_first_part(const struct engine_op *op);
/* Over: every part has its completion. Frees the op. */
void engine_op_finish(struct engine *engine, struct engine_op *op, int status, const char *text,
                      int32_t culprit);
/* A member of the set that will never come to the FAILED op. */
void engine_op_excuse(struct engine *engine, struct engine_op *op, uint32_t set_rank);

/* ---- group.c ---- */

/* Takes the next member of the session's group in; with the last one, all are negotiated. The
 * session may have ended. */
void engine_group_take(struct engine_session *session, struct engine_part *part);
/* A member could not be taken: neither are the others. */
void engine_group_refuse(struct engine_session *session, int status, const char *text,
                         int32_t culprit);
/* The session is over: drops a group that is not complete. */
void engine_group_drop(struct engine_session *session);
/* A complete, agreed member: held until its group is. False: as engine_op_complete. */
bool engine_group_hold(struct engine *engine, struct engine_op *op);
/* A part is being taken back from a held member. */
void engine_group_unhold(struct engine_op *op);
/* A held leader whose ranks have all submitted their groups: fails if they are not the same.
 * False if so. */
bool engine_group_check(struct engine *engine, struct engine_op *leader);
/* One more member has its outputs; with the last one, all become ready. */
void engine_group_sized(struct engine *engine, struct engine_op *op);
/* One more member is done; with the last one, all are over. */
void engine_group_done(struct engine *engine, struct engine_op *op, int status, const char *text,
                       int32_t culprit);

/* ---- join.c ---- */

/* Whether this member has joined and not everybody has. */
bool engine_join_has(const struct engine_set *set, uint32_t set_rank);
/* A rank has no more data. As engine_negotiate_submit. */
int engine_join_submit(struct engine *engine, struct engine_part *part);
/* It has after all. */
void engine_join_undo(struct engine_op *join, uint32_t set_rank);

/* ---- partial.c: ops of which only some members of a set are part ---- */

/* SEND, RECV, SET_OPEN. */
bool engine_partial_is(uint16_t kind);
/* What tells the part's tensor from others of its set: a number, and the kind to which it belongs.
 */
uint64_t engine_partial_number(const struct engine_part *part, uint16_t *kind_p);
/* Such a number as a name: "0-to-1.tag-5", "any-to-1.tag-5", "tag-5". */
void engine_partial_name(uint16_t kind, uint64_t number, char *name_p, size_t size);
/* What a user can get wrong: HVI_OK, HVI_ERR_INVALID with a sentence. */
int engine_partial_check(const struct engine_part *part, char *text_p, size_t text_size);
/* Meets the oldest op that lacks such a part, or waits for its others. As engine_negotiate_submit. */
int engine_partial_submit(struct engine *engine, struct engine_part *part);
/* Whether the op, which has no part of this member, waits for it. */
bool engine_partial_awaits(const struct engine_op *op, uint32_t member);

/* ---- set_ops.c ---- */

/* Carries out a complete, agreed SET_ADD, SET_REMOVE, SET_OPEN or SET_CLOSE and finishes it. */
void engine_set_execute(struct engine *engine, struct engine_op *op);
/* Why this rank may not submit the part's op to the set that it names: HVI_OK, HVI_ERR_NOT_FOUND,
 * HVI_ERR_INVALID with a sentence. `set` NULL: there is none. */
int engine_set_check(const struct engine_set *set, const struct engine_part *part, char *text_p,
                     size_t text_size);

/* ---- dispatch.c ---- */

/* Opens every backend. HVI_OK or the error, logged. */
int engine_dispatch_open(struct engine *engine);
void engine_dispatch_close(struct engine *engine);
/* Fuses and starts everything that is ready. */
void engine_dispatch_ready(struct engine *engine);
/* Completes what backends have finished. True if there was something. */
bool engine_dispatch_reap(struct engine *engine);
/* Does one piece of a backend's work; false when there is none. */
bool engine_dispatch_help(struct engine *engine);
/* Ends everything that is ready and was not started. */
void engine_dispatch_drop(struct engine *engine, int status, const char *text);
/* Starts everything that is ready and waits until no backend works any more. Completes nothing. */
void engine_dispatch_settle(struct engine *engine);

/* ---- peer.c: regions that ranks map of each other, for large ops in slots ---- */

/* A rank asks for a peer's region. */
void engine_peer_show(struct engine_session *session, const struct hvi_peer_ask *ask);
/* The region goes: those who were shown it forget it. */
void engine_peer_forget(const struct engine_session *owner, const struct engine_region *region);
void engine_peer_forget_all(const struct engine_session *owner);

/* ---- complete.c ---- */

/* The part is over: its completion goes to the ring, or is owed to it, and the part is free. */
void engine_complete_part(struct engine_part *part, int status, const char *text, int32_t culprit,
                          uint64_t bytes, int64_t rows);
/* Asks for an output. */
void engine_complete_sized(struct engine_part *part, uint64_t bytes, int64_t rows);
/* Gives owed completions to readers that have made room. */
void engine_complete_owed(struct engine *engine);
/* Wakes who sleeps on the session's event descriptor. */
void engine_complete_ring_event(struct engine_session *session);
/* Rings every session that has new completions, once. */
void engine_complete_ring(struct engine *engine);
/* Puts the part back and lets go of its regions and tensor. */
void engine_part_free(struct engine_part *part);

/* ---- stall.c ---- */

/* Sees to it that the table of waiting ops is looked at while it is not empty. Cheap. */
void engine_stall_arm(struct engine *engine);
/* Warns of ops that are old enough, and does what the policy says. The timer's work; `now_ns` is
 * the time. The engine may be stopping afterwards. */
void engine_stall_look(struct engine *engine, uint64_t now_ns);
/* The same for large ops in slots, of which ranks hold units; express.c's timer's work. */
void engine_stall_look_at_held(struct engine *engine, uint64_t now_ns);
/* Takes HVD_STALL_* / HOROVOD_STALL_* from a client's settings. */
void engine_stall_configure(struct engine *engine, const struct hvi_setting *settings,
                            size_t count);

/* ---- stall_rows.c ---- */

/* Rows for ops that have waited for at least `min_age_ns`, oldest first, at most `limit`;
 * *left_out_p counts the rest. Free with engine_stall_rows_free. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_stall_rows(struct engine *engine, uint64_t min_age_ns, size_t limit,
                      struct hvi_stall_row **rows_p, size_t *count_p, uint64_t *left_out_p);
void engine_stall_rows_free(struct hvi_stall_row *rows, size_t count);
/* Whether the op waits for this member: for its submission, or for its output. */
bool engine_stall_misses(const struct engine_op *op, uint32_t member);
const char *engine_stall_kind(const struct engine_op *op);
/* "rank 2 (pid 4711, stopped), rank 3 (not attached)"; a long list is cut and the rest counted. */
void engine_stall_describe(const struct engine *engine, const struct engine_op *op, char *text_p,
                           size_t size);

#endif
