/* SPDX-License-Identifier: Apache-2.0
 * hvd_admin.h: the whole public C API of libhvdadmin, for programs that move no tensors: schedulers,
 * launchers and monitors, and trainers that want to know what becomes of their peers.
 *
 * A program asks a node's hvdd over its admin socket (ZeroMQ and protobuf) and gets rows; timelines are asked for over its attach socket.
 *
 *     struct hvd_admin *admin;
 *     struct hvd_admin_request request;
 *     struct hvd_admin_answer *answer;
 *     if (hvd_admin_open(NULL, &admin) != HVD_OK) { puts(hvd_admin_last_error()); exit(1); }
 *     hvd_admin_request_init(&request, HVD_ADMIN_JOBS);
 *     if (hvd_admin_ask(admin, &request, 1000000000, &answer) == HVD_OK) {
 *         for (size_t i = 0; i < answer->job_count; i++)
 *             puts(answer->jobs[i]->job);
 *         hvd_admin_answer_free(answer);
 *     }
 *     hvd_admin_close(admin);
 *
 * Contract for every function unless it says otherwise
 *   Errors    int functions return HVD_OK (0) or a negative enum hvd_status of hvd.h.
 *             hvd_admin_last_error() then holds a sentence: what, who, and what to do. Outputs
 *             (arguments ending in _p) are written only on success.
 *   Threads   One thread at a time uses a handle; several handles are independent. An answer is not
 *             tied to its handle and may be read by any thread.
 *   Blocking  Only functions that say so block, and each of them has a deadline.
 *   Fork      In a forked child every call on the parent's handle returns HVD_ERR_FORKED; the child
 *             closes it and opens its own.
 *   Process   libzmq starts two threads for each handle. The library installs no signal handler and
 *             never writes to stdout or stderr. It may be linked beside libhvdclient.
 *   Units     Times are nanoseconds; a negative timeout means no limit. Sizes are bytes.
 *   Text      Strings end with NUL, are UTF-8 and never NULL. Names come from other users: escape
 *             control characters before a terminal sees them.
 *   Versions  Numbers are frozen. The structures that the library fills in (rows, answers) only grow,
 *             at their end, and it hands out pointers to them. hvd_admin_request says its size: of an
 *             older program's what it does not have is 0, and a newer one's is refused where what
 *             this version does not know is not 0. hvd_admin_place never grows. Once a
 *             version is released, what is added begins a new HVD_ADMIN_VERSION_MINOR: a program that
 *             may meet an older library compares hvd_admin_version() first. */
#ifndef HVD_HVD_ADMIN_H
#define HVD_HVD_ADMIN_H

#include <hvd/hvd.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HVD_ADMIN_VERSION_MAJOR 0
#define HVD_ADMIN_VERSION_MINOR 1
#define HVD_ADMIN_VERSION_PATCH 0

#define HVD_ADMIN_DIR_MAX 96 /* bytes of the path of hvdd's directory */

struct hvd_admin; /* a connection to one hvdd */

/* ---- where hvdd is --------------------------------------------------------------------------- */

struct hvd_admin_place {
    char dir[HVD_ADMIN_DIR_MAX + 1]; /* with hvdd's sockets; when not found, the first one tried */
    char tried[256];                 /* when not found: every place, and what was there */
};

/* The directory of a hvdd that this user may believe. `address` is final, as is $HVD_ADDRESS where it
 * is NULL; else the first with a live hvdd of this user's own directory ($XDG_RUNTIME_DIR/hvdd, or
 * /tmp/hvdd-UID where the variable names no directory of this user's), /run/hvdd, and /tmp/hvdd-UID.
 * Writes `place_p` also when it fails. Reads the environment. Blocks up to a second for each place with a hvdd whose queue
 * of connections is full: before there is a connection it is not known whose it is. HVD_ERR_NO_DAEMON;
 * HVD_ERR_INVALID: the path is too long. */
HVD_API int hvd_admin_find(const char *address, struct hvd_admin_place *place_p);

/* Connects to the hvdd that hvd_admin_find finds. HVD_ERR_NO_DAEMON, HVD_ERR_INVALID,
 * HVD_ERR_NO_MEMORY, HVD_ERR_LIMIT: no descriptors are left for libzmq. Blocks as hvd_admin_find, and
 * up to a second more where that queue is full again and again: then libzmq goes on by itself. */
HVD_API int hvd_admin_open(const char *address, struct hvd_admin **admin_p);
/* Frees the handle; its answers stay. NULL is fine. */
HVD_API void hvd_admin_close(struct hvd_admin *admin);
/* The directory of its hvdd's sockets, owned by the handle. "" for NULL. */
HVD_API const char *hvd_admin_address(const struct hvd_admin *admin);

/* ---- questions ------------------------------------------------------------------------------- */

enum hvd_admin_kind {
    HVD_ADMIN_STATUS = 3,         /* of hvdd itself: .daemon */
    HVD_ADMIN_JOBS = 4,           /* .jobs, and the nodes of those that span nodes: .spans */
    HVD_ADMIN_RANKS = 5,          /* of a job: .ranks, .spans */
    HVD_ADMIN_STALLS = 6,         /* ops that wait, of a job or of every job: .stalls, .spans */
    HVD_ADMIN_JOB_STOP = 7,       /* ends a job with HVD_ERR_JOB_STOPPED on its ranks */
    HVD_ADMIN_PROCESS_EXITED = 8, /* a launcher tells how a trainer of its own ended */
    HVD_ADMIN_TRACE = 9,          /* the last ops of a job's ranks: .traces, .spans */
    HVD_ADMIN_NODES = 10,         /* that this one knows: .nodes */
    HVD_ADMIN_GPUS = 11,          /* those that a worker of hvdd has: .gpus, .daemon */
    HVD_ADMIN_LIMITS = 13         /* of users, and what is used of them: .limits */
};

#define HVD_ADMIN_ANY (-1)

struct hvd_admin_request {
    size_t struct_size; /* sizeof(struct hvd_admin_request) */
    enum hvd_admin_kind kind;
    /* RANKS, TRACE, JOB_STOP, PROCESS_EXITED: the job; STALLS: the job, or NULL for every job. Several
     * users may have a job of one id: `owner` is the uid of the one that is meant; HVD_ADMIN_ANY: the
     * caller's, else the only one of that id. LIMITS: of this user alone; HVD_ADMIN_ANY: of everybody whom
     * the caller may ask about. */
    const char *job;
    int64_t owner;
    uint64_t min_age_ns; /* STALLS: only ops that have waited so long */
    const char *reason;  /* JOB_STOP: what the job's ranks are told; NULL: nothing */
    int32_t rank;        /* TRACE: HVD_ADMIN_ANY or one rank; PROCESS_EXITED: which */
    int32_t pid;         /* PROCESS_EXITED */
    int signaled, code;  /* PROCESS_EXITED: `code` is a signal, or an exit code */
    /* TRACE: at most `limit` rows, 0: as many as fit; only ops with a smaller number than `before`, 0:
     * the newest. */
    uint32_t limit;
    uint64_t before;
    int of_mesh; /* JOBS: of every node of the mesh, by what their hvdds know themselves */
};

/* Fills in size, kind and defaults: every owner and rank, nothing else. */
static inline void hvd_admin_request_init(struct hvd_admin_request *request,
                                          enum hvd_admin_kind kind)
{
    struct hvd_admin_request empty = {sizeof(struct hvd_admin_request),
                                      kind,
                                      NULL,
                                      HVD_ADMIN_ANY,
                                      0,
                                      NULL,
                                      HVD_ADMIN_ANY,
                                      0,
                                      0,
                                      0,
                                      0,
                                      0,
                                      0};
    *request = empty;
}

struct hvd_admin_answer;

/* Asks, and waits for the answer; asks again when the connection ends, so hvdd may hear a question
 * twice. HVD_OK: hvdd has done it, and *answer_p is the caller's to free. Blocks up to timeout_ns:
 * HVD_ERR_TIMEOUT; a late answer is dropped.
 *   HVD_ERR_NO_DAEMON   hvdd has gone; open again.
 *   HVD_ERR_REFUSED     hvdd does not do this for this user.
 *   HVD_ERR_NOT_FOUND   no such job, or it has just ended.
 *   HVD_ERR_VERSION     hvdd speaks another protocol.
 *   HVD_ERR_INVALID     the request itself, a job id that is none, or several users' jobs have it.
 *   HVD_ERR_PROTOCOL, HVD_ERR_NO_MEMORY, HVD_ERR_DAEMON, HVD_ERR_DAEMON_LIMIT, HVD_ERR_UNSUPPORTED */
HVD_API int hvd_admin_ask(struct hvd_admin *admin, const struct hvd_admin_request *request,
                          int64_t timeout_ns, struct hvd_admin_answer **answer_p);
/* NULL is fine. Its rows and texts go with it. */
HVD_API void hvd_admin_answer_free(struct hvd_admin_answer *answer);

/* ---- answers: all of it belongs to the answer ------------------------------------------------ */

struct hvd_admin_daemon {
    const char *version;
    int32_t pid;
    uint32_t uid;
    uint64_t uptime_ns;
    const char *runtime_dir;
    const char *state; /* "running", "draining" */
    uint32_t jobs, sessions;
    uint64_t attaches, refused, ranks_lost; /* since its start */
    uint64_t log_lost;                      /* lines that could not be written */
    uint32_t mesh_port;                     /* where other nodes find it; 0: it does not listen */
    const char *gpu_program;                /* of its workers of GPUs; "": it starts none */
    const char *gpu_kernels, *gpu_library_path; /* its options of these names */
    /* Of the MPS server that it runs: "pid 7, in DIR"; "none: why"; "": none is wanted. */
    const char *gpu_mps;
};

struct hvd_admin_job {
    const char *job;
    uint64_t generation; /* how often this id has begun anew */
    uint32_t uid;
    int32_t size, attached;
    const char *state; /* "forming", "running", "closing", "failed", "silent" */
    int32_t engine_pid;
    uint64_t age_ns;
    int withheld; /* another user's: nodes, ops and bytes are not told */
    uint32_t nodes;
    uint64_t ops, bytes; /* of its busiest rank */
    const char *node;    /* where it is, in an answer of_mesh; else "" */
};

struct hvd_admin_rank {
    int32_t rank, pid; /* pid 0: not attached yet, or not seen by hvdd */
    uint32_t uid;
    const char *state;   /* "absent", "attached", "left", "lost", "ended" */
    const char *process; /* letter of /proc/PID/stat, or "" */
    uint64_t ops, bytes; /* completed */
    uint64_t in_flight;
    /* How long after an op's first rank this one submitted. */
    uint64_t lag_mean_ns, lag_p50_ns, lag_p99_ns, lag_max_ns, lag_sum_ns;
    uint64_t lag_ops, last_ops;             /* ops of several ranks; of these: where it came last */
    uint64_t negotiated, replayed, express; /* of ops: how they were agreed on and done */
    uint64_t region_bytes;                  /* shared memory registered */
    uint32_t node;                          /* hvd_admin_span.node */
    const char *origin;                     /* "hvdrun", "torchrun", "slurm", ... */
    const char *text;                       /* why it is gone */
    /* Where the rank is in another pid namespace than hvdd: its pid there. 0: not known. `pid` is 0 if
     * hvdd does not see that namespace. */
    int32_t own_pid;
    const char *memory; /* ordinary memory: "by address", "staged: " and why, "": not known */
};

struct hvd_admin_missing {
    int32_t rank, pid;    /* pid 0: not attached */
    const char *process;  /* letter of /proc/PID/stat, "absent", or "elsewhere": on another node */
    const char *waits_in; /* another op that it waits for, else a function of the kernel */
};

struct hvd_admin_stall {
    const char *job;
    uint32_t uid;
    const char *tensor, *op;
    uint32_t process_set;
    uint64_t age_ns;
    const int32_t *ready; /* ranks that have submitted */
    size_t ready_count;
    const struct hvd_admin_missing *const *missing;
    size_t missing_count;
};

struct hvd_admin_trace {
    int32_t rank;
    uint64_t number; /* per rank, 1 is its first op; 0: not finished */
    const char *tensor, *op, *dtype;
    uint64_t bytes;
    uint32_t process_set;
    uint64_t submit_ns, ready_ns, done_ns; /* CLOCK_MONOTONIC; 0: not yet, or never */
    int32_t status;                        /* enum hvd_status */
    /* Of an op on a GPU: what the worker's stream took, from the moment at which all ranks there were ready to the end, by the
     * GPU's clock. 0: not known. Measured while a timeline is written, and for 10 s after each TRACE. */
    uint64_t device_ns;
};

struct hvd_admin_node {
    const char *node; /* of its hvdd's start; "": not known yet */
    const char *name, *address;
    uint32_t port;
    /* "listens", "joins", "joined", "apart", "refused", "unreached", "absent": allowed, and not there */
    const char *state;
    uint64_t heard_ns;   /* ago */
    const char *jobs;    /* in which it is */
    const char *version; /* of its hvdd; "": not known */
    uint64_t joined_ns;  /* ago; 0: not known */
};

enum hvd_admin_link_purpose { HVD_ADMIN_LINK_CONTROL = 1, HVD_ADMIN_LINK_DATA = 2 };

struct hvd_admin_link {
    uint32_t to; /* node of the job */
    enum hvd_admin_link_purpose purpose;
    uint32_t lane; /* of data */
    uint64_t bytes_sent, bytes_received, messages_sent, messages_received, retransmits;
    uint64_t rtt_ns;       /* 0: not known */
    const char *transport; /* "tcp", "ucx" */
};

/* A node of a job that spans nodes. */
struct hvd_admin_span {
    const char *job;
    uint32_t uid;
    uint32_t node; /* of the job */
    const char *name, *address;
    uint32_t port;
    int here;         /* it is the node that was asked */
    const char *text; /* why its part is missing; "": it is there */
    const int32_t *ranks;
    size_t rank_count;
    int64_t clock_ahead_ns;  /* TRACE: its clock less that of the node that was asked, ... */
    uint64_t clock_error_ns; /* ... right to within this */
    const struct hvd_admin_link *const *links;
    size_t link_count;
};

struct hvd_admin_gpu {
    const char *uuid, *name; /* "GPU-..." */
    const char *job;         /* "": no worker */
    uint32_t uid;
    int32_t pid;
    const char *state; /* "free", "starting", "up", "idle", "passing", "ending" */
    uint32_t imports, communicators;
    uint64_t import_bytes, staging_bytes, own_bytes, free_bytes; /* 0: not known */
    uint32_t driver_version, nccl_version;                       /* 0: not known */
    const char *links;
};

/* What keeps users apart: hvdd.conf(5), LIMITS. */
struct hvd_admin_limit {
    const char *limit;   /* its name: "max-jobs", ... */
    const char *of;      /* whose share it is: "all", "user", "job", "session" */
    uint32_t uid;        /* the user, or whose job; 0 of "all" */
    const char *job;     /* "": not of a job. Of "session": the one of it that uses most */
    int counted;         /* used is known */
    uint64_t used, most; /* bytes of "region-limit", else a number */
};

struct hvd_admin_answer {
    const char *text;       /* a sentence: what was done, or what keeps the rows from being all */
    uint64_t rows_left_out; /* of a message that was full */
    const struct hvd_admin_daemon *daemon; /* NULL but for STATUS */
    const struct hvd_admin_job *const *jobs;
    size_t job_count;
    const struct hvd_admin_rank *const *ranks;
    size_t rank_count;
    const struct hvd_admin_stall *const *stalls;
    size_t stall_count;
    const struct hvd_admin_trace *const *traces;
    size_t trace_count;
    const struct hvd_admin_node *const *nodes;
    size_t node_count;
    const struct hvd_admin_span *const *spans;
    size_t span_count;
    const struct hvd_admin_gpu *const *gpus;
    size_t gpu_count;
    const struct hvd_admin_limit *const *limits;
    size_t limit_count;
};

/* ---- events ---------------------------------------------------------------------------------- */

enum hvd_admin_event_kind {
    HVD_ADMIN_EVENT_LOST = 1, /* .count events, because nobody read them; 0: not known how many */
    /* It died, or was ended: .job, .rank, .pid, .text. A rank of another node is told on each node of the job where it breaks
     * the ops of ranks, with .pid 0. */
    HVD_ADMIN_EVENT_RANK_LOST = 2,
    HVD_ADMIN_EVENT_GENERATION_BEGAN = 3, /* of .job: its first rank has attached here */
    HVD_ADMIN_EVENT_GENERATION_ENDED = 4, /* of .job, on this node */
    HVD_ADMIN_EVENT_ENGINE_LOST = 5,      /* of .job: .pid, .text */
    HVD_ADMIN_EVENT_NODE_JOINED = 6,      /* .node has joined the mesh; .text: its address ... */
    HVD_ADMIN_EVENT_NODE_LOST = 7,        /* ... or has gone from it; .text: why */
    HVD_ADMIN_EVENT_STALL = 8,            /* an op of .job has waited for the stall check: .text */
    /* The set of nodes at which jobs can be has changed: .added, .removed, .count: of nodes there are now, with this
     * one. One event for all that changed at the same moment; of more than 64 names, several. Apply .removed before
     * .added: a node that was started anew at once is in both. Two nodes may have one name: where one of them goes,
     * the name is removed and added again. */
    HVD_ADMIN_EVENT_HOSTS_CHANGED = 9,
    /* The ops of .job's ranks here fail, for what is no lost rank: another node or its engine is lost, a GPU's worker, its
     * nodes do not meet, it was stopped on another node: .text. Once in a generation. */
    HVD_ADMIN_EVENT_JOB_BROKEN = 10
};

struct hvd_admin_event {
    enum hvd_admin_event_kind kind; /* a later hvdd may tell of others: skip them */
    uint64_t at_ns;                 /* CLOCK_MONOTONIC */
    const char *job;                /* "": it is not about a job */
    uint32_t uid;                   /* of the job */
    uint64_t generation;
    int32_t rank, pid; /* rank HVD_ADMIN_ANY: it is not about one */
    const char *node, *text;
    uint64_t count;
    const char *const *added; /* names of nodes, as in hvd_admin_node */
    size_t added_count;
    const char *const *removed;
    size_t removed_count;
};

/* What happens on the node of that hvdd, from now on: of the jobs of the caller's own user; root and hvdd's user
 * see all of them. Of the mesh, as far as this node knows it: of its other nodes, on each node. */
struct hvd_admin_events;

/* By a connection of its own: `admin` may be closed meanwhile. Blocks up to timeout_ns; what happens
 * after it has returned is told. Errors as of hvd_admin_ask. */
HVD_API int hvd_admin_subscribe(const struct hvd_admin *admin, int64_t timeout_ns,
                                struct hvd_admin_events **events_p);
/* The next event, which lives until the next call. Blocks up to timeout_ns, and not at all if that is 0:
 * HVD_ERR_TIMEOUT. HVD_ERR_NO_DAEMON: hvdd has gone, and the subscription with it. hvdd keeps 64 events for a
 * subscriber that does not read; of more it tells the number. A gate that was restarted costs those of the meantime. */
HVD_API int hvd_admin_events_next(struct hvd_admin_events *events, int64_t timeout_ns,
                                  const struct hvd_admin_event **event_p);
/* A descriptor for event loops, readable while an event may be waiting: then call hvd_admin_events_next
 * with a timeout of 0 until it returns HVD_ERR_TIMEOUT. Now and then it is readable for nothing. Owned by the
 * subscription; never read or close it. */
HVD_API int hvd_admin_events_fd(const struct hvd_admin_events *events);
/* NULL is fine. */
HVD_API void hvd_admin_events_close(struct hvd_admin_events *events);

/* ---- timelines ------------------------------------------------------------------------------- */

/* Begins a timeline of a job, on all its nodes: a Chrome trace (Perfetto) with the phases of every tensor, as
 * hvd_timeline_start of hvd.h writes one. `address`: as of hvd_admin_open; no handle is needed, and hvdd is asked over its attach
 * socket, so whoever may not use its admin socket may draw his own jobs. `job`, `owner`: as in hvd_admin_request. `path`: of a
 * regular file, which is opened with the rights of this process, and emptied and written by the job's engine here; it is valid JSON at every
 * moment. `mark_cycles`: also every pass of the engine that found work. Blocks as hvd_admin_find, and up to timeout_ns.
 *   HVD_ERR_EXISTS      the job writes one already.
 *   HVD_ERR_INVALID     the file cannot be opened or is none, the job id is none, or `address` is too long.
 *   HVD_ERR_LIMIT       the file cannot be written, or something has no room.
 *   HVD_ERR_NO_DAEMON, HVD_ERR_TIMEOUT, HVD_ERR_REFUSED, HVD_ERR_NOT_FOUND, HVD_ERR_VERSION, HVD_ERR_PROTOCOL, HVD_ERR_NO_MEMORY,
 *   HVD_ERR_BUSY, HVD_ERR_ENGINE_LOST, HVD_ERR_DAEMON, HVD_ERR_DAEMON_LIMIT */
HVD_API int hvd_admin_timeline_start(const char *address, const char *job, int64_t owner,
                                     const char *path, int mark_cycles, int64_t timeout_ns);
/* Completes and closes the file, which may be another node's; HVD_OK also where no timeline is being written. As
 * hvd_admin_timeline_start; HVD_ERR_NODE_LOST and HVD_ERR_DAEMON where the node that writes it has gone or is silent. */
HVD_API int hvd_admin_timeline_stop(const char *address, const char *job, int64_t owner,
                                    int64_t timeout_ns);

/* ---- text ------------------------------------------------------------------------------------ */

/* The sentence of this thread's last failed call; "" before the first. Valid until this thread's
 * next hvd_admin_ call. */
HVD_API const char *hvd_admin_last_error(void);
/* Library version, e.g. "0.1.0". */
HVD_API const char *hvd_admin_version(void);

#ifdef __cplusplus
}
#endif

#endif
