/* SPDX-License-Identifier: Apache-2.0
 * The border between "what has to happen" and "who does it": ops with their operands resolved to
 * addresses, batches of them, and the table of backends. A backend knows nothing of sessions, names
 * or rings. tests/contract runs one suite against every row. */
#ifndef ENGINE_BACKEND_H
#define ENGINE_BACKEND_H

#include "daemon/engine/exec/operand.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hvi_seal_keys;

#define ENGINE_BATCH_WORKS 256u /* most ops in one batch */
#define ENGINE_PLAN_STEPS  12u  /* most steps of one batch */
#define ENGINE_TEXT_BYTES  320u

/* The status of a tentative work that was withdrawn: nothing of it has been done. */
#define ENGINE_BATCH_WITHDRAWN 1

/* Remote-process memory that has not answered for so long is waited for by one thread only. */
#define ENGINE_SILENT_NS UINT64_C(100000000)

/* The members of the process set that take part, on all nodes. It lives as long as the work. */
struct engine_span {
    uint64_t sequence;      /* of the work: the same on every node; works start in its order */
    uint32_t nodes, here;   /* nodes with a member that has not joined; our index among them */
    const uint32_t *node;   /* [nodes] their numbers in the job, ascending */
    const uint32_t *places; /* [nodes] members on each, joined ones included */
    uint32_t members;       /* on all nodes, joined ones included: what an average divides by */
    /* [members] by set rank: index into .node (UINT32_MAX: a node that is left out), and the place there.
     * Members of one node have ascending places in the order of their set ranks. */
    const uint32_t *home, *place;
    const uint8_t *joined; /* [members]; NULL: no member has */
    /* [members] by set rank: the workers that have their memory, by instance; 0: it has none, or no bytes. NULL: memory of the
     * host. */
    const uint64_t *instances;
    /* Not all nodes may start the work. Until it is known that they all have, which makes it committed, no
     * output is touched and no failure is posted but HVI_ERR_NODE_LOST, HVI_ERR_STALLED and
     * HVI_ERR_CANCELLED; and it may be withdrawn (engine_wire_backend_withdraw). */
    bool tentative;
};

/* One op that every member of its process set has agreed on. The arrays have one entry per member
 * and are indexed by set rank; they live as long as the work.
 *
 * .in[i] is NONE: member i has joined. It takes part with the neutral element: it is simply absent
 * from sum, min, max, product and adasum, while an average still divides by .ranks. In allgather,
 * alltoall and reducescatter a joined member brings zero bytes where it could bring any and gets no
 * output. At least one .in[] of a reduction is there; a broadcast reads .in[root] only and that
 * is there. .out[i] is NONE: nothing is written for member i. Where .bytes (or the size that
 * counts) is 0, no operand is touched and any address will do.
 *
 * What the numbers mean, by kind:
 *
 *   kind           .bytes                     .sizes                              .root
 *   ALLREDUCE      of each input and output   -                                   -
 *   BROADCAST      of the root's input and    -                                   set rank
 *                  of each output
 *   ALLGATHER      of each output: the sum    [ranks] bytes of each input         -
 *   REDUCESCATTER  of each input: the sum     [ranks] bytes of each output: input -
 *                                             slice i, reduced, goes to out[i]
 *   ALLTOALL       of the largest input or    [from * ranks + to] bytes; in[from] -
 *                  output; only for cutting   is laid out by `to`, out[to] is
 *                  and batching               the concatenation by `from`
 *   SEND           of the root's input and    -                                   set rank
 *                  of the one output there is
 *   BARRIER, JOIN, 0                          -                                   -
 *   SET_*          (nothing moves)
 *
 * Sizes are multiples of the dtype's size and operands are aligned to it, and to nothing more. No
 * output overlaps anything else, except that out[i] may be, for the same member,
 *   allreduce, broadcast  in[i]
 *   allgather             such that the member's own part of out[i] is in[i]
 *   reducescatter         the member's own slice of in[i].
 *
 * Remote-process memory. The backend reaches an operand of kind PROCESS with process_vm_readv and
 * process_vm_writev, piece by piece. That memory is not to be trusted: it may vanish or change
 * meanwhile, which makes the op fail, or its result arbitrary, and nothing else. A work with such
 * operands is a batch of its own. Before and after each transfer the backend looks whether the process is
 * over or has ended, because then its pid may be another's: that is a failure (ESRCH).
 *
 * Memory of GPUs. A work has operands of kind DEVICE and no others, or none of that kind. Both operands of a member
 * are of one worker. The worker's stream waits for the .ready word of each member's fence, and stores its .done word
 * when the member's output is written; the engine stores what no worker stores. With a span, all nodes have such a
 * work, also one whose members bring no bytes. */
struct engine_work {
    uint32_t kind; /* enum hvi_kind */
    uint32_t dtype;
    uint32_t reduce_op; /* allreduce, reducescatter */
    uint32_t ranks;     /* members of the process set, joined ones included */
    int32_t root;
    double prescale; /* allreduce, reducescatter */
    double postscale;
    uint64_t count; /* allreduce: elements of each operand */
    uint64_t bytes;
    /* NULL: all members have a seat here. Else .ranks, .in and .out are those that have, by place; .root
     * is a set rank; .sizes is [.members] for allgather and reducescatter, and for alltoall
     * [2][.ranks][.members]: bytes that each of ours sends to each member, then what it gets from each.
     * A SEND has two nodes, or one. Its span may have two members only, the sender and the receiver. */
    const struct engine_span *span;
    const struct engine_operand *in;
    struct engine_operand *out; /* the backend sets .late, and nothing else */
    uint32_t kinds; /* a bit for each kind of operand among them: 1 << enum engine_operand_kind */
    uint32_t set;   /* number of the process set: works of one set run in the order of start() */
    const struct engine_fence *fence; /* with operands on a GPU, one for each member; else NULL */
    const uint64_t *sizes;
    /* 0, or an address in mapped memory where a page could not be had. The backend sets it in a work
     * that shares its batch with others, which go on. It touches no operand of a work in which it is
     * set already: that fails as if the page had been missing now. */
    uint64_t missing;
};

static inline bool engine_work_has(const struct engine_work *work, enum engine_operand_kind kind)
{
    return work->kinds >> kind & 1;
}

/* What went wrong with remote-process memory, or with mapped memory. */
struct engine_fault {
    int32_t rank;     /* place; -1: no remote-process memory is to blame */
    int error;        /* errno: EFAULT, ESRCH, EPERM, ...; EIO for a transfer that was cut short */
    bool writing;     /* the output could not be written; else the input could not be read */
    uint64_t address; /* in the member's process: where the transfer that failed began */
    uint64_t waited_ns; /* ETIMEDOUT, which is HVI_ERR_STALLED: for the transfer */
    uint64_t missing; /* here, in mapped memory: where a page could not be had; 0: it is not that */
};

/* A step of a plan: units that are independent of each other. */
struct engine_step {
    uint32_t kind; /* what a unit does: the backend's own */
    uint32_t units;
    uint64_t unit_bytes; /* of each operand, if the kind cuts by bytes */
};

/* What a batch does. A step begins when all units of the one before it are over. */
struct engine_plan {
    uint32_t count, at; /* at: the step that is done now */
    struct engine_step steps[ENGINE_PLAN_STEPS];
};

struct engine_batch {
    struct engine_batch *next; /* for the one that holds the batch */
    struct engine_work *works[ENGINE_BATCH_WORKS];
    uint32_t count; /* at least 1 */
    uint64_t bytes; /* sum over the works */
    /* The deadline: the batch fails with HVI_ERR_STALLED when remote-process memory has not answered for
     * so long. */
    uint64_t answer_ns;
    /* For the one that has started it. */
    uint32_t backend;
    struct engine_batch *running_next, **running_link;
    /* Set by the backend before it posts the batch: enum hvi_status. HVI_ERR_INVALID: a
     * remote-process operand could not be reached, .fault says which; outputs are undefined.
     * HVI_ERR_RANK_LOST: the same because the process is gone. HVI_ERR_STALLED: the same because its
     * memory did not answer, or, with .fault.rank -1, another node. HVI_ERR_NODE_LOST: another node is
     * gone, or the connection to it. HVI_ERR_CANCELLED: outputs are undefined. HVI_ERR_NO_MEMORY: no scratch
     * memory for an adasum, nothing was written; or, with .fault.missing, no page of a mapped operand
     * of a batch of one work: outputs are undefined. */
    int status;                /* or ENGINE_BATCH_WITHDRAWN */
    struct engine_fault fault; /* the first one; .rank is -1 and .missing 0 when there was none */
    char text[ENGINE_TEXT_BYTES]; /* a sentence that says more than .status; "": there is none. The
                                   * starter empties it. */
    void *state;                  /* the backend's own from here on */
    struct engine_plan plan;
    uint32_t units_taken; /* of the step */
    uint32_t units_left;
    uint32_t units_silent; /* memory of theirs does not answer; no further unit is begun */
    bool over;             /* posted, or about to be */
};

/* A communicator that is wanted. */
struct engine_gpu_comm {
    uint32_t number, count;         /* workers of this node */
    const uint16_t *workers;        /* [count] */
    const uint16_t *rank;           /* [count] theirs */
    uint32_t ranks;                 /* on all nodes */
    const uint64_t *instances;      /* [ranks]; NULL: all workers are here */
    const uint32_t *nodes;          /* [ranks], likewise */
    bool registered;                /* for works whose memory is registered with it */
    const struct engine_work *work; /* comm_wanted: the first that wants it; else NULL */
};

/* What a node tells another of a communicator's works, which start, begin and end in their order: it is so of the works up to
 * one. The first node tells what holds of all nodes, or of all but the receiver; each other one tells the first what holds of
 * itself. */
enum engine_gpu_word {
    ENGINE_GPU_STARTED, /* tentative works have been started; from the first node: on all nodes */
    ENGINE_GPU_BEGUN,   /* on all workers there */
    ENGINE_GPU_OVER
};
struct engine_gpu_news {
    enum engine_gpu_word word;
    uint64_t sequence; /* the span's */
    int status; /* OVER, and not HVI_OK: this one has failed; nothing is said of those before */
    const char *text;
};

/* What a worker's stream took for works that were all ready. */
struct engine_gpu_time {
    uint32_t worker;
    uint32_t
        works; /* that were done together; told of the first batch of a pack, and 0 of the others */
    uint32_t stream;  /* hvi_device_stream */
    uint64_t took_ns; /* by the GPU's clock; no more than the engine has waited for it */
};

struct engine_backend_config {
    uint32_t threads; /* that may work at once, the caller of help() included; at least 1 */
    /* Called exactly once per started batch, from the thread that did the last piece, under no
     * lock: the batch is the receiver's again. Inside start() for batches that are done at once. */
    void (*post)(void *user, struct engine_batch *batch);
    /* Main thread, of a row with .says_started, once for a batch that begins: from here on nothing that is not under
     * way already can keep it from its end. Inside start(), help() and engine_gpu_backend_*. */
    void (*started)(void *user, struct engine_batch *batch);
    /* Main thread, before the batch is posted. NULL: it matters to nothing. */
    void (*took)(void *user, const struct engine_batch *batch, const struct engine_gpu_time *time);
    void *user;
    void *owner; /* the first argument of the functions below */
    /* Inside start(): a connection to this node is needed, which engine_wire_backend_lane brings later.
     * Once for each. NULL: none can be asked for. */
    void (*lane_wanted)(void *owner, uint32_t node, uint32_t lane);
    uint32_t lanes; /* connections to each neighbour, the same on all nodes; 0: ENGINE_WIRE_LANES */
    /* Main thread. Inside start(): these workers need a communicator; engine_gpu_backend_comm follows. Inside
     * watch() or help(): a worker does not move or lies; engine_gpu_backend_lost follows when it is dead, perhaps at
     * once. NULL: there are no workers. */
    void (*comm_wanted)(void *owner, const struct engine_gpu_comm *comm);
    void (*worker_stuck)(void *owner, uint32_t worker, const char *text);
    /* Main thread, inside start(): whether this import is made for NCCL to register; and whether it is registered with this
     * communicator, which is ready. If it was not asked for, it is then, and a later answer may be true. NULL: none is. */
    bool (*registers)(void *owner, uint32_t import);
    bool (*is_registered)(void *owner, uint32_t comm, uint32_t import);
    /* News of a communicator's works for the row of one of its other nodes: engine_gpu_backend_heard. Inside anything but
     * open() and close(). NULL: there are no other nodes. */
    void (*tell_node)(void *owner, const struct engine_gpu_comm *comm, uint32_t node,
                      const struct engine_gpu_news *news);
    /* Whether times are looked at now. NULL: never. */
    bool (*is_timed)(void *owner);
    /* A work of it will not start here, and others wait for it: engine_gpu_backend_comm follows, here and on all nodes. */
    void (*comm_over)(void *owner, uint32_t comm, int status, const char *text);
};

struct engine_backend {
    const char *name;
    bool says_started; /* it calls .started; the batches of other rows begin in start() */
    /* HVI_OK, HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT (threads). Blocks while threads start. */
    int (*open)(const struct engine_backend_config *config, void **context_p);
    /* Finishes what was started, then releases everything. False: threads that were given up still
     * wait for remote-process memory; what they may touch stays, and only the end of the process ends them.
     */
    bool (*close)(void *context);
    /* Whether this backend can do the batch at all. Pure. */
    bool (*accepts)(const struct engine_batch *batch);
    /* Takes the batch and returns; the result comes through post(). Small batches are done before it
     * returns. start() and what follows are called by one thread, the loop's. None of them waits.
     *
     * Batches are independent of each other: a backend does them in any order, and several at once. One
     * whose batches must run in an order does them in the order of start(), which is that of the ops. */
    void (*start)(void *context, struct engine_batch *batch);
    /* Does one piece of a started batch on the calling thread; false when there was none to take. There may
     * be pieces that nobody else takes: it is to be called whenever there is nothing better to do.
     * Neither start() nor help() touches remote-process memory, as that may take for ever. */
    bool (*help)(void *context);
    /* Nothing more of the started batch begins, and it fails with HVI_ERR_CANCELLED, unless it has been
     * posted or has failed already. post() comes when what has begun is over, perhaps before this
     * returns; a transfer of remote-process memory is given up as watch() says. */
    void (*cancel)(void *context, struct engine_batch *batch);
    /* Keeps deadlines. Gives up transfers of remote-process memory that have not ended within
     * .answer_ns of their batch, counted from call to call (at most ENGINE_SILENT_NS for each), or within
     * ENGINE_SILENT_NS where a member's process is over or the batch has failed. Their batches fail, in
     * the second case with HVI_ERR_RANK_LOST for that member. To be called now and then while batches with
     * such operands are under way. */
    void (*watch)(void *context);
    /* True if a transfer of the started batch has lasted for ENGINE_SILENT_NS: which. */
    bool (*silent)(void *context, const struct engine_batch *batch, struct engine_fault *fault_p);
};

extern const struct engine_backend engine_backend_host;
/* The row "gpu" has a header of its own (gpu.h). */

/* ---- the row "net": works with a span (net.c) ---- */

extern const struct engine_backend engine_backend_net;

#define ENGINE_WIRE_LANES     1u /* connections to each neighbour, by default */
#define ENGINE_WIRE_LANES_MAX 8u

/* Before the first work: connections to each neighbour, the same on all nodes; 0: ENGINE_WIRE_LANES. */
void engine_wire_backend_set_lanes(void *context, uint32_t lanes);

/* Before the first work and lane: "ucx", or "tcp", which it is otherwise; `address`: this node's, numeric, by which the
 * others know it. HVI_OK, or with a sentence HVI_ERR_UNSUPPORTED or HVI_ERR_NO_MEMORY: then it is as before. */
int engine_wire_backend_set_transport(void *context, const char *name, const char *address,
                                      char text_p[ENGINE_TEXT_BYTES]);

/* The caller of start() calls these, too. `fd`, an authenticated, non-blocking stream to the node, becomes
 * the backend's. One that is there already, or out of range, is closed. `keys`: of what goes over it, copied;
 * NULL: it is not encrypted. `name`: the node in sentences. */
void engine_wire_backend_lane(void *context, uint32_t node, uint32_t lane, int fd,
                              const struct hvi_seal_keys *keys, const char *name);
/* The node is gone, or cannot be reached: works that it takes part in fail with HVI_ERR_NODE_LOST and this
 * text, now and later. */
void engine_wire_backend_lost(void *context, uint32_t node, const char *text);
/* Tentative works with numbers from `least` on, and below `top`, which were started before, are not done, as
 * some node will not start them. Each is posted, withdrawn. Before any of the call's batches has been
 * posted, start() may be called for works from `top` on. */
void engine_wire_backend_withdraw(void *context, uint64_t least, uint64_t top);
/* From the first call until the second, works are started together, and the small ones among them go in one piece. */
void engine_wire_backend_gather(void *context);
void engine_wire_backend_go(void *context);
/* help() will not be called soon: what it does is left to another thread. */
void engine_wire_backend_busy(void *context);
/* Whether the started batch's work waits for other nodes to start it. */
bool engine_wire_backend_is_tentative(void *context, const struct engine_batch *batch);

/* What has gone over a lane. */
struct engine_lane_row {
    uint32_t node, lane;
    const char *transport; /* "tcp", "ucx" */
    /* As the kernel counts them; of UCX as they were given to it, and the round-trip time of the connection beside it. */
    uint64_t bytes_sent, bytes_received, retransmits, rtt_ns;
};
/* Of the lanes that there are or were: index 0, 1, ... Returns false after the last. */
bool engine_wire_backend_row(void *context, size_t index, struct engine_lane_row *row_p);

/* NULL-terminated, in order of preference. */
extern const struct engine_backend *const engine_backends[];

#endif
