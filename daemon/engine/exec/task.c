/* SPDX-License-Identifier: Apache-2.0
 * Tasks: from what ranks have agreed on to a work with its operands.
 *
 * Remote-process memory: a trainer whose session is over may do with its memory what it likes, so a
 * session that closes first forbids further transfers; the trainer is told when the works under way have
 * been reaped. */
#include "daemon/engine/exec/task.h"

#include <stdlib.h>

struct engine_op *engine_task_new(int32_t seats)
{
    size_t ranks = (size_t)seats;
    size_t room = engine_op_room(seats) +
                  ranks * (2 * sizeof(struct engine_operand) + sizeof(struct engine_fence));
    struct engine_task *task = calloc(1, sizeof *task + room);

    if (!task)
        return NULL;
    task->in = (struct engine_operand *)(task + 1);
    task->out = task->in + ranks;
    task->fence = (struct engine_fence *)(task->out + ranks);
    engine_op_init(&task->op, seats, task->fence + ranks);
    return &task->op;
}

void engine_task_free(struct engine_op *op)
{
    free(engine_task_of(op));
}

void engine_task_keep(const struct engine_task *task)
{
    for (uint32_t i = 0; i < task->op.set->places; i++) {
        if (task->out[i].late)
            engine_share_of(task->op.parts[i])->out.late = true;
    }
}

static int32_t root_of(const struct engine_op *op, const struct hvi_submission *copy)
{
    if (op->kind == HVI_KIND_SEND) /* between nodes its members are the sender and the receiver */
        return op->without ? 0 : engine_set_find(op->set, op->from);
    return op->kind == HVI_KIND_BROADCAST ? engine_set_rank(op->set, copy->root) : -1;
}

/* Who takes part. A send between two ranks of this node is its own affair. */
static const struct engine_span *span_of(struct engine_task *task)
{
    const struct engine_op *op = &task->op;
    const struct engine_places *places = op->without ? op->without : op->set->span;

    if (!places || (op->partial && !op->without))
        return NULL;
    task->span = (struct engine_span){
        .sequence = op->sequence,
        .nodes = places->nodes,
        .here = places->here,
        .node = places->node,
        .places = places->places,
        .members = op->partial ? 2 : op->set->size,
        .home = places->home,
        .place = places->place,
        .joined = op->joined,
        .instances = op->instances,
        .tentative = op->tentative,
    };
    return &task->span;
}

/* Of an op on memory of GPUs. What does not lie there has no bytes: agree.c has seen to that. */
static void prepare_device(struct engine_task *task)
{
    const struct engine_op *op = &task->op;
    const struct engine_operand none = {.kind = ENGINE_OPERAND_NONE};

    for (uint32_t i = 0; i < op->set->places; i++) {
        if (task->in[i].kind != ENGINE_OPERAND_DEVICE)
            task->in[i] = none;
        if (task->out[i].kind != ENGINE_OPERAND_DEVICE)
            task->out[i] = none;
        task->fence[i] =
            op->parts[i] ? engine_share_of(op->parts[i])->fence : (struct engine_fence){0};
    }
    task->work.fence = task->fence;
    task->work.kinds = 1u << ENGINE_OPERAND_NONE | 1u << ENGINE_OPERAND_DEVICE;
}

void engine_task_prepare(struct engine_op *op)
{
    struct engine_task *task = engine_task_of(op);
    const struct hvi_submission *copy = &engine_op_first_part(op)->copy;
    struct engine_work *work = &task->work;

    work->kind = op->kind;
    work->dtype = copy->dtype;
    work->reduce_op = copy->reduce_op;
    work->ranks = op->set->places;
    work->root = root_of(op, copy);
    work->prescale = copy->prescale;
    work->postscale = copy->postscale;
    work->count = copy->count;
    work->bytes = op->bytes;
    work->span = span_of(task);
    work->sizes = op->sizes;
    work->missing = 0;
    work->in = task->in;
    work->out = task->out;
    work->kinds = 0;
    work->set = op->set->id;
    work->fence = NULL;
    for (uint32_t i = 0; i < op->set->places; i++) {
        const struct engine_part *part = op->parts[i];
        task->in[i] = part ? engine_share_of(part)->in : (struct engine_operand){0};
        task->out[i] = part ? engine_share_of(part)->out : (struct engine_operand){0};
        work->kinds |= 1u << task->in[i].kind | 1u << task->out[i].kind;
    }
    if (engine_work_has(work, ENGINE_OPERAND_DEVICE) || op->instances)
        prepare_device(task);
}
