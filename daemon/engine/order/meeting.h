/* SPDX-License-Identifier: Apache-2.0
 * The root of a job: an op on its way to a verdict. It is an engine_op with a part for every member of its set, by set
 * rank, so that agree.c and sizes.c judge it as if all ranks were on one node. Within order/; one thread. */
#ifndef ENGINE_ORDER_MEETING_H
#define ENGINE_ORDER_MEETING_H

#include "daemon/engine/order/root.h"

/* What some members say alike. */
struct engine_voice {
    struct engine_voice *next;
    struct engine_part part;
};

/* A node's share of an op. */
struct engine_share {
    bool came;
    struct engine_part *one;   /* all its members say this; NULL: see .each */
    struct engine_part **each; /* by place there; NULL: joined */
    uint64_t *instances;       /* likewise: workers of GPUs; NULL: memory of the host */
};

struct engine_meeting {
    struct engine_op op; /* .missing: nodes */
    struct engine_voice *voices;
    uint64_t room;                /* that every output has */
    uint32_t unsized;             /* SIZING: nodes that have not said that their outputs take it */
    uint32_t unfinished;          /* leader: nodes of which the group is being reported */
    struct engine_op **members;   /* leader: those that are held, by index */
    uint32_t member_count;        /* that there should be */
    int32_t last;                 /* JOIN: the last rank */
    struct engine_share shares[]; /* by node of the set */
};

static inline struct engine_meeting *engine_meeting_of(const struct engine_op *op)
{
    return (struct engine_meeting *)(uintptr_t)op;
}

/* Waits for all nodes of the set. NULL: out of memory. */
struct engine_meeting *engine_meeting_new(struct engine_root *root, struct engine_set *set,
                                          struct engine_tensor *tensor, uint16_t kind);
/* No report finds it any more. */
void engine_meeting_unlist(struct engine_root *root, struct engine_op *op);
/* Unlisted. */
void engine_meeting_free(struct engine_root *root, struct engine_meeting *meeting);
/* Both. */
void engine_meeting_drop(struct engine_root *root, struct engine_op *op);
/* Whether all members on a node of the set have joined. */
bool engine_meeting_has_joined(const struct engine_set *set, uint32_t index);
/* Whether ranks have brought it in the group that this tensor leads. */
bool engine_meeting_has_leader(const struct engine_op *op, const struct engine_tensor *leader);
/* NULL: the rank's node has not come, or the rank has joined. */
struct engine_part *engine_meeting_part(const struct engine_meeting *meeting, uint32_t set_rank);
/* The parts of all ranks in .parts, and in root->joined and root->instances what a verdict says of them. It is what is
 * judged from here on: the arrays are the root's, one for all ops. */
void engine_meeting_assemble(struct engine_root *root, struct engine_op *op);

#endif
