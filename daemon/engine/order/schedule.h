/* SPDX-License-Identifier: Apache-2.0
 * The schedule: the works of a step that repeats, which this node starts without asking the root. Engine
 * thread. */
#ifndef ENGINE_ORDER_SCHEDULE_H
#define ENGINE_ORDER_SCHEDULE_H

#include "daemon/engine/order/steps.h"
#include "proto/mesh.h"

struct engine_op;
struct engine_order;
struct engine_schedule_report;

struct engine_schedule {
    bool live;          /* works start by it; else reports go to the root */
    bool halted;        /* not any more, and the root has not said yet from where to go on */
    bool asked;         /* the root knows that something else has happened here */
    uint32_t count, at; /* works; the place of the one that starts next */
    struct engine_tensor **list;    /* [count] */
    uint32_t waiting;               /* SCHEDULED ops */
    struct engine_op *first, *last; /* tentative ones, in the order of their works, by .set_next */
    uint32_t returning;             /* of these, those that are withdrawn and have not come back */
    uint64_t progress;              /* changes whenever a work starts or is over */
    /* What is said when the root has spoken. */
    struct engine_schedule_report *reports, **reports_end;
    /* The last works that the root has started: a ring. */
    struct engine_tensor **past; /* [ENGINE_STEP_MAX], from the first one on */
    uint32_t past_at, past_count;
};

/* Whether something waits for other nodes' works, or for its turn. */
static inline bool engine_schedule_waits(const struct engine_schedule *schedule)
{
    return schedule->live && (schedule->waiting > 0 || schedule->first);
}

/* Nothing has moved for a while: asks the root to go on with the word of all nodes. */
void engine_schedule_halt(struct engine_order *order);
/* The work of a withdrawn op has been given back: nothing of it has been done. */
void engine_schedule_returned(struct engine_order *order, struct engine_op *op);

/* ---- within order/ ---- */

/* Whether a work of this op may be started without the root: its kind and its name. */
bool engine_schedule_may_repeat(const struct engine_op *op);
/* By what name it repeats: the caller holds one reference. NULL: out of memory. */
struct engine_tensor *engine_schedule_name(struct engine_tensors *tensors,
                                           const struct engine_op *op);
/* Drops what it holds. Harmless on a zeroed one. */
void engine_schedule_close(struct engine_order *order);
/* The root has started it. */
void engine_schedule_note(struct engine_order *order, const struct engine_op *op);
/* Every rank of this node has come to the op. False: it is to be reported. */
bool engine_schedule_take(struct engine_order *order, struct engine_op *op);
/* A SCHEDULED op waits for its turn no more. */
void engine_schedule_leave(struct engine_order *order, const struct engine_op *op);
/* A tentative op is over. */
void engine_schedule_over(struct engine_order *order, struct engine_op *op);
/* True: the report is not to be sent now. */
bool engine_schedule_holds(struct engine_order *order, const struct hvi_mesh_report *report);
/* The verdict is of no op. */
bool engine_schedule_is_meant(uint32_t what);
/* As engine_verdict_hear, of such a verdict. */
int engine_schedule_hear(struct engine_order *order, const struct hvi_mesh_verdict *verdict,
                         char *text_p, size_t text_size);

#endif
