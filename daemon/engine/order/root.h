/* SPDX-License-Identifier: Apache-2.0
 * The root of a job: where the reports of all nodes meet. Pure: no I/O and no clock but .now_ns, which
 * the caller sets. One thread. */
#ifndef ENGINE_ORDER_ROOT_H
#define ENGINE_ORDER_ROOT_H

#include "daemon/engine/order/op.h"
#include "daemon/engine/order/set.h"
#include "daemon/engine/order/steps.h"
#include "daemon/engine/order/tensor.h"
#include "proto/mesh.h"

#define ENGINE_ROOT_WAITING_MAX 65536u /* tensors that wait for nodes */

struct engine_root_calls {
    /* The verdict is for a node of the job. It and what it points at are gone afterwards. Nothing may
     * come back into the root meanwhile. */
    void (*verdict)(void *user, uint32_t node, const struct hvi_mesh_verdict *verdict);
    /* The same for every node of the job, with a number of its own: 1, 2, 3, ...; for each it is the next one. */
    void (*verdict_for_all)(void *user, const struct hvi_mesh_verdict *verdict);
};

struct engine_root_node;
struct engine_root_opening;
struct engine_root_late;

struct engine_root {
    const struct engine_roster *roster;
    const struct engine_root_calls *calls;
    void *user;
    uint64_t now_ns;
    uint64_t sequence;    /* of the last work */
    uint64_t said_to_all; /* verdicts */
    struct engine_sets sets;
    struct engine_tensors tensors;
    struct engine_op *first, *last; /* that wait for nodes, oldest first */
    uint32_t count;
    struct engine_root_opening *openings, *openings_last; /* root_partial.c's, oldest first */
    uint32_t opening_count;
    struct engine_root_node *nodes; /* [nodes of the roster] */
    /* Works that repeat. */
    struct engine_steps steps;
    const bool *replay;                        /* whether they may; NULL: no */
    bool live, halting;                        /* nodes start them; nodes are being stopped */
    bool shifts;                               /* steps are to begin where no node is ahead */
    uint32_t repeating;                        /* works of the step */
    uint32_t halted;                           /* nodes that have said how far they have come */
    uint64_t least, top;                       /* the least of them, the most */
    struct engine_root_late *late, **late_end; /* reports that came meanwhile */
    uint32_t late_count;
    /* By rank: what is judged at the moment, and what a verdict points at. */
    struct engine_part **parts;
    uint64_t *sizes;
    int32_t *joined;
    uint32_t joined_count;
    uint64_t *instances; /* workers of GPUs */
    bool on_gpus;        /* there are some */
    struct hvi_mesh_verdict verdict;
};

/* `root` is zeroed; `roster` knows the job's nodes and outlives it. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_root_init(struct engine_root *root, const struct engine_roster *roster,
                     const struct engine_root_calls *calls, void *user);
/* Harmless on a zeroed one. */
void engine_root_fini(struct engine_root *root);
/* The next report of a node. HVI_OK; HVI_ERR_PROTOCOL with a sentence: the node is not to be believed
 * any more; HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT: the job cannot go on. */
int engine_root_report(struct engine_root *root, uint32_t node,
                       const struct hvi_mesh_report *report, char *text_p, size_t text_size);
/* The next report of each of these nodes, ascending; all say the same, which a bundle may (mesh/bundle.h). As
 * engine_root_report. */
int engine_root_report_alike(struct engine_root *root, const uint32_t *nodes, uint32_t count,
                             const struct hvi_mesh_report *report, char *text_p, size_t text_size);
/* The ranks, ascending and at most `most` of them, on other nodes than `node` (UINT32_MAX: on all) that
 * have not come to the op that this node has reported. The count of all of them: 0 if there is no such op. */
uint32_t engine_root_missing(const struct engine_root *root, uint32_t node,
                             const struct engine_op *reported, int32_t *ranks_p, uint32_t most);
/* The next op (the first: `after` NULL) that other nodes have reported and `node` has not, oldest first; NULL: there
 * is none left. Of it the caller may write .warn_ns. */
struct engine_op *engine_root_next_without(const struct engine_root *root, uint32_t node,
                                           const struct engine_op *after);
/* Whether an op of the root's, and one of order's, are the same. */
bool engine_root_is_same(const struct engine_op *op, const struct engine_op *reported);

#endif
