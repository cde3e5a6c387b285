/* SPDX-License-Identifier: Apache-2.0
 * What a node knows of a step that is replayed: schedule.h. */
#ifndef ENGINE_ORDER_REPLAY_H
#define ENGINE_ORDER_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

struct engine_op;
struct engine_tensor;
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

#endif
