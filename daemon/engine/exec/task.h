/* SPDX-License-Identifier: Apache-2.0
 * A task: an op and what a backend has to know of it. Engine thread. */
#ifndef ENGINE_EXEC_TASK_H
#define ENGINE_EXEC_TASK_H

#include "daemon/engine/exec/backend.h"
#include "daemon/engine/exec/share.h"

struct engine_task {
    struct engine_op op;
    struct engine_work work;
    struct engine_span span;         /* of the work, if its set has members on other nodes */
    struct engine_operand *in, *out; /* [places of the set] for the work */
    struct engine_fence *fence;      /* the same */
    int32_t lost_rank;               /* for the owner of a task that waits for news of this rank */
};

static inline struct engine_task *engine_task_of(const struct engine_op *op)
{
    return (struct engine_task *)(uintptr_t)op;
}

/* The op of a new task on a node with so many seats. NULL: out of memory. */
struct engine_op *engine_task_new(int32_t seats);
void engine_task_free(struct engine_op *op);
/* Fills in the work of an op that is ready. */
void engine_task_prepare(struct engine_op *op);
/* Tells the shares which outputs must stay mapped. */
void engine_task_keep(const struct engine_task *task);

#endif
