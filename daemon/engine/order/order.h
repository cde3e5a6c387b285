/* SPDX-License-Identifier: Apache-2.0
 * The room order/: what runs, and in which order. Parts go in; ready ops and answers come out.
 *
 *        parts --> negotiate.c (group.c, join.c, partial.c) --> list of ready ops --> exec/
 *                       |  agree.c, sizes.c, set_ops.c
 *                       +--> sink: answers, outputs that are asked for
 *                       +--> observer: what became of ops, tensors and sets
 *                       +--> span.c, pair.c, opening.c: reports to the root of the job; its verdicts come back
 *                       +--> schedule.c: works that repeat without either
 *
 *        reports of all nodes --> root_report.c ... (steps.c), root_partial.c --> verdicts
 *
 * Pure: no session, no shared memory, no event loop, and no clock but .now_ns, which the caller sets.
 * It calls upward only through the two tables. Engine thread; nothing blocks. */
#ifndef ENGINE_ORDER_ORDER_H
#define ENGINE_ORDER_ORDER_H

#include "daemon/engine/order/op.h"
#include "daemon/engine/order/replay.h"
#include "daemon/engine/order/set.h"
#include "daemon/engine/order/tensor.h"
#include "proto/mesh.h"

#define ENGINE_FAILED_MAX 4096u /* failed ops that are remembered for ranks still to come */

/* Where answers go. None of these may call back into order/, but to let go of tensor and set. */
struct engine_order_sink {
    /* The part's op is over for it: .out_bytes and .rows if `status` is HVI_OK, else `text` (NULL:
     * none). The part is the sink's again. */
    void (*answer)(struct engine_part *part, int status, const char *text, int32_t culprit);
    /* The part needs an output of .out_bytes bytes with .rows rows: engine_negotiate_output. */
    void (*ask_output)(struct engine_part *part);
    /* The part is the sink's again, without an answer: its rank broke the protocol. */
    void (*drop)(struct engine_part *part);
    /* An op, zeroed and initialised; NULL: out of memory. Ops are kept and used again. */
    struct engine_op *(*new_op)(void *user);
    void (*free_op)(struct engine_op *op);
};

/* What becomes of ops. The ops are as they were when it happened; none of these may end one, but for
 * .set_ends. */
struct engine_order_observer {
    /* An op waits: the table of waiting ops (.waiting_first) is not empty. */
    void (*op_waits)(void *user);
    /* The part has met its op. */
    void (*part_came)(void *user, struct engine_part *part);
    /* Every rank has come. */
    void (*op_complete)(void *user, struct engine_op *op);
    /* It stands in the list of ready ops. */
    void (*op_ready)(void *user, struct engine_op *op);
    /* It is about to end well on every rank. */
    void (*op_succeeds)(void *user, struct engine_op *op);
    /* Its parts are about to be answered. */
    void (*op_over)(void *user, struct engine_op *op, int status);
    /* The set is being removed: what is under way in it without order/ comes back, as parts, now. */
    void (*set_ends)(void *user, struct engine_set *set);
    /* It is out of the table. */
    void (*set_gone)(void *user, struct engine_set *set);
    /* Its work was withdrawn: it waits again. */
    void (*op_returns)(void *user, struct engine_op *op);
};

/* The way to the root of a job that is on several nodes. */
struct engine_order_span {
    /* The report is for the root; it and what it points at are gone afterwards. Nothing may come back
     * into order/ meanwhile. */
    void (*report)(void *user, const struct hvi_mesh_report *report);
    /* Tentative works from `least` to `top` - 1 are not done: engine_schedule_returned follows for each
     * that is in the table of ready ops no more, unless it ends in another way. */
    void (*withdraw)(void *user, uint64_t least, uint64_t top);
};

struct engine_span_scratch;
struct engine_root;

struct engine_order {
    const char *job; /* for the log */
    const struct engine_roster *roster;
    uint64_t now_ns; /* the time */
    bool replay;     /* what was agreed on is remembered */
    const struct engine_order_sink *sink;
    const struct engine_order_observer *observer;
    void *user;

    /* Not HVI_OK: no op can finish any more, because the culprit is lost or has left (-1: because
     * the job was stopped). */
    int broken_status;
    int32_t broken_culprit;
    char broken_text[HVI_TEXT_MAX + 1];

    struct engine_sets sets;
    struct engine_tensors tensors;
    struct engine_op *waiting_first, *waiting_last; /* for ranks, groups or outputs; oldest first */
    struct engine_op *failed_first, *failed_last;   /* FAILED, oldest first */
    uint32_t failed_count;
    struct engine_op *ready_first, *ready_last;
    uint32_t ready_count;
    struct engine_op *free_ops;
    /* Several nodes: engine_span_open. */
    const struct engine_order_span *span;
    void *span_user;
    uint64_t seen;     /* verdicts of the root that were carried out */
    uint64_t sequence; /* of the last work that started */
    uint64_t partials; /* SEND, SET_OPEN: numbers that were given to reported ones */
    uint64_t offers;   /* in all sets, see pair.c */
    struct engine_span_scratch *scratch;
    struct engine_schedule schedule;
    const struct engine_root *root; /* of the job, if it is here: who has not come */
};

/* Set 0 has all ranks. `order` is zeroed; `roster` outlives it. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_order_init(struct engine_order *order, const char *job,
                      const struct engine_roster *roster, const struct engine_order_sink *sink,
                      const struct engine_order_observer *observer, void *user);
/* No op may be left. Harmless on a zeroed one. */
void engine_order_fini(struct engine_order *order);
/* From now on no op can finish. The first reason stays, unless `culprit` is -1. */
void engine_order_break(struct engine_order *order, int status, int32_t culprit, const char *text);

#endif
