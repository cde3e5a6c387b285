/* SPDX-License-Identifier: Apache-2.0
 * An op and the parts that ranks bring to it. Engine thread. */
#ifndef ENGINE_ORDER_OP_H
#define ENGINE_ORDER_OP_H

#include "daemon/engine/order/set.h"
#include "daemon/engine/order/tensor.h"
#include "proto/mesh.h"
#include "shm/abi.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_order;

#define ENGINE_MEMORY_ANY                                                                          \
    HVI_MESH_MEMORY_ANY /* .memory of a part without bytes: it agrees with each enum hvi_memory */

/* One rank's share of an op: what the rank submitted, from its submission until its answer. The
 * caller makes it, and may have made it the beginning of something larger. */
struct engine_part {
    struct engine_part *next; /* for the owner of the part, while it has no op */
    struct engine_op *op;     /* NULL before it is negotiated and once the op is over */
    struct engine_tensor *tensor;
    struct engine_set *set;
    uint16_t place; /* in the set */
    engine_seat seat;
    uint8_t memory;    /* where its operands lie: enum hvi_memory, or ENGINE_MEMORY_ANY */
    uint64_t instance; /* DEVICE: of the GPU's worker, which is the same for the other nodes */
    int32_t rank;
    /* Grouped: the first member's tensor, and a ring over this rank's parts in their order. */
    struct engine_tensor *leader;
    struct engine_part *sibling;
    int64_t *integers; /* alltoall: splits; SET_ADD: ranks, ascending; NULL without */
    uint32_t integer_count;
    uint64_t in_bytes;
    uint64_t out_bytes;  /* once the op is complete */
    int64_t rows;        /* for the answer */
    bool repeats;        /* says what was agreed on last */
    bool withdrawn;      /* its op is reported, and the root is asked to give it back */
    bool output_asked;   /* the sink has been asked for an output, and none has come */
    bool output_made;    /* the output was asked for once: another size needs another */
    uint64_t device_ns;  /* what the stream of the GPU's worker took; 0: not known */
    uint64_t arrived_ns; /* when the rank says it submitted, as far as that is credible */
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
 * Where the set has members on several nodes, the root of the job decides (span.c):
 *
 *   WAITING --last rank of this node came--> REPORTED --it starts--> READY
 *      |                                      ^  |  |
 *      +--grouped, whole group so far--> HELD-+  |  +--an output is missing--> SIZING
 *                                             ^  |                               |
 *                                             |  +--the root says so--> over     |
 *                                             +--outputs came, or do not fit-----+
 *                                             +--a rank takes its part back, in time--> WAITING
 *
 * Where steps are replayed (schedule.c), an op may pass by that:
 *
 *      +--an output is missing--> SIZING
 *      |                            |
 *   WAITING --> SCHEDULED <---------+  --its turn--> READY --> EXECUTING --> over
 *      ^          |    |            |                             |
 *      +--a part--+    +---------> REPORTED <-----withdrawn-------+
 *         is taken back
 *
 * One setter: engine_op_set_state in negotiate.c. */
enum engine_op_state {
    ENGINE_OP_WAITING,
    ENGINE_OP_HELD,      /* complete and agreed; its group is not, or not all outputs are known */
    ENGINE_OP_SCHEDULED, /* this node is ready, and it is no news: it waits for its turn */
    ENGINE_OP_REPORTED,  /* this node is ready, and the root has been told */
    ENGINE_OP_SIZING,    /* waits for outputs whose size is known only now */
    ENGINE_OP_READY,
    ENGINE_OP_EXECUTING,
    ENGINE_OP_FAILED, /* over for those that came: the others meet the same sentence */
    ENGINE_OP_STATES
};

struct engine_op {
    struct engine_op *next, *prev; /* waiting ops, failed ops, oldest first; .next: free, ready */
    struct engine_op *set_next, *set_prev; /* waiting ops of its set; tentative ones */
    struct engine_op *fallen; /* list of ops that fail together; FAILED: the next of its tensor */
    struct engine_tensor *tensor;
    struct engine_set *set;
    enum engine_op_state state;
    uint16_t kind;    /* of the part that came first; of a complete send and recv: SEND */
    bool partial;     /* some members only, see partial.c */
    int32_t from, to; /* SEND: ranks; from -1: any rank that sends to `to` */
    uint32_t parts_present;
    uint32_t missing; /* seats without a part that have not joined; FAILED: that may still come */
    uint32_t outputs_missing;
    uint32_t repeating; /* parts that say what was agreed on last */
    bool replayed;      /* all did: nothing was checked */
    bool scheduled;     /* SCHEDULED, or SIZING before that */
    uint64_t first_ns;  /* when the first rank's submission was taken in */
    uint64_t ready_ns;  /* when the last rank had come; 0 before */
    /* Complete: what has to be moved, as struct engine_work says. */
    uint64_t bytes;
    const uint64_t *sizes;
    /* Of a set with members on several nodes. */
    bool reported;     /* the root knows of it, and will say how it ends */
    bool given_up;     /* and has been asked to fail it */
    bool retracting;   /* and has been asked to give it back */
    bool sized;        /* .bytes and .sizes are known; SEND: a recv has met it */
    bool tentative;    /* started by the schedule, without the other nodes' word; not over */
    bool withdrawn;    /* likewise, and it comes back: engine_schedule_returned */
    uint64_t sequence; /* once it starts: the same on every node */
    uint64_t number;   /* reported SEND: the sender's node's; SET_OPEN: this node's */
    uint32_t new_set;  /* SET_ADD, SET_OPEN: the root has made it; 0: it could not */
    uint64_t new_serial;
    uint32_t joined_count;
    uint8_t *joined; /* [members], once it is sized; NULL: nobody has */
    /* [members] likewise: the workers that have their memory, 0: it has none; NULL: memory of the host. SEND: [2]. */
    uint64_t *instances;
    /* .set->span without nodes that take no part; NULL: all do. SEND between nodes: the members are the
     * sender and the receiver. */
    struct engine_places *without;
    /* The observers'. */
    uint64_t warn_ns;                      /* when to warn (again); 0: not yet */
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
    /* By place in the set, with room for every seat of this node: no member elsewhere is in them. */
    uint64_t *own_sizes; /* for .sizes, which an alltoall has in .matrix */
    uint64_t *matrix;    /* allocated for the time being; on several nodes for all of .sizes */
    struct engine_part **parts; /* NULL: missing or joined */
    uint8_t *came;              /* FAILED: ranks that will not come (any more) */
};

/* What engine_op_init needs behind an op, on a node with so many seats. */
static inline size_t engine_op_room(int32_t seats)
{
    return (size_t)seats * (sizeof(struct engine_part *) + sizeof(uint64_t) + 1);
}
/* `op` is zeroed and keeps `room`, which is aligned to 8. */
void engine_op_init(struct engine_op *op, int32_t seats, void *room);

/* The part of the lowest rank that has come; NULL: none has. */
struct engine_part *engine_op_first_part(const struct engine_op *op);
/* The one setter of op->state. */
void engine_op_set_state(struct engine_op *op, enum engine_op_state state, const char *cause);
/* The op has been executed, or could not be. Over, unless its group is not. */
void engine_op_done(struct engine_order *order, struct engine_op *op, int status, const char *text,
                    int32_t culprit);
/* Fails a waiting op, and its group, on every rank of its set, those that are still to come
 * included. Logs. */
void engine_op_fail(struct engine_order *order, struct engine_op *op, int status, const char *text,
                    int32_t culprit);

/* ---- within order/ ---- */

/* Fails every waiting op of a set that is being removed but for `except` (its removal; NULL), and
 * forgets those that failed early. */
void engine_op_fail_set(struct engine_order *order, struct engine_set *set,
                        const struct engine_op *except);
/* An op that waits, without parts, for the part's tensor in its set. NULL: out of memory. */
struct engine_op *engine_op_new(struct engine_order *order, const struct engine_part *part);
/* The part, which the op lacks, is there. */
void engine_op_add_part(struct engine_order *order, struct engine_op *op, struct engine_part *part);
/* Meets the part's op, or makes it. HVI_OK; HVI_ERR_CANCELLED: the op in *op_p failed before this
 * rank came; else as engine_negotiate_submit. */
int engine_op_meet(struct engine_order *order, struct engine_part *part, struct engine_op **op_p);
/* The oldest FAILED op that the part's rank has not come to, which is what the part is of. NULL: there is none. */
struct engine_op *engine_op_failed_for(const struct engine_part *part);
/* The rank has come to a FAILED op: its part gets the op's sentence; the op goes with the last. */
void engine_op_meet_failed(struct engine_order *order, struct engine_op *op,
                           struct engine_part *part);
/* No rank is missing any more. False: it failed, or it is under way, with its group; parts and ops
 * may be gone. */
bool engine_op_complete(struct engine_order *order, struct engine_op *op);
/* Plans sizes, asks for outputs, readies. False if it failed. */
bool engine_op_proceed(struct engine_order *order, struct engine_op *op);
void engine_op_ready(struct engine_order *order, struct engine_op *op);
/* Sizes are known: asks for outputs that ranks have not given. False if one does not fit: it failed, or
 * the root has been asked to fail it. */
bool engine_op_ask_for_outputs(struct engine_order *order, struct engine_op *op);
/* The root says so: the op, on this node. */
void engine_op_fail_here(struct engine_order *order, struct engine_op *op, int status,
                         const char *text, int32_t culprit);
/* The same before any rank of this node has brought it. */
void engine_op_fail_unseen(struct engine_order *order, struct engine_set *set,
                           struct engine_tensor *tensor, uint16_t kind, int status,
                           const char *text, int32_t culprit);
/* A work that had started is reported, and waits for the root's word. */
void engine_op_come_back(struct engine_order *order, struct engine_op *op);
/* The root has given a reported op back: it waits, without the parts that ranks have withdrawn. */
void engine_op_return(struct engine_order *order, struct engine_op *op);
/* Over: every part has its answer. Frees the op. */
void engine_op_finish(struct engine_order *order, struct engine_op *op, int status,
                      const char *text, int32_t culprit);
/* A member of the set that will never come to the FAILED op. */
void engine_op_excuse(struct engine_order *order, struct engine_op *op, uint32_t place);

#endif
