/* SPDX-License-Identifier: Apache-2.0
 * Tasks: from what ranks have agreed on to addresses.
 *
 * Operands in a trainer's own memory. Whose memory: a pid alone could be somebody else's by now, so the
 * backend asks before each transfer whether the pidfd still stands for a living process. Until when: a
 * trainer whose session is over may do with its memory what it likes, so the end of a session first
 * forbids further transfers, then waits for those under way, and only then tells the client. */
#include "daemon/engine/exec/task.h"

#include <poll.h>
#include <stdlib.h>

struct engine_op *engine_task_new(int32_t size)
{
    size_t ranks = (size_t)size;
    size_t room = engine_op_room(size) + ranks * (2 * sizeof(void *) + 2 * sizeof(pid_t));
    struct engine_task *task = calloc(1, sizeof *task + room);

    if (!task)
        return NULL;
    task->work.in = (const void **)(void *)(task + 1);
    task->work.out = (void **)(void *)(task->work.in + ranks);
    task->in_pids = (pid_t *)(void *)(task->work.out + ranks);
    task->out_pids = task->in_pids + ranks;
    engine_op_init(&task->op, size, task->out_pids + ranks);
    return &task->op;
}

void engine_task_free(struct engine_op *op)
{
    free(engine_task_of(op));
}

/* ---- operands in processes ---- */

static struct engine_process *process_of(const struct engine_part *part)
{
    const struct engine_share *share = part ? engine_share_of(part) : NULL;

    if (!share)
        return NULL;
    return share->in.process ? share->in.process : share->out.process;
}

static bool lies_in_processes(const struct engine_op *op)
{
    for (uint32_t i = 0; i < op->set->size; i++) {
        if (process_of(op->parts[i]))
            return true;
    }
    return false;
}

/* Any thread. The parts stay as they are while the op executes. */
static bool is_alive(void *user, uint32_t set_rank)
{
    const struct engine_task *task = user;
    struct engine_process *process = process_of(task->op.parts[set_rank]);
    struct pollfd ended = {.fd = process->pid_fd, .events = POLLIN};

    /* Acquire, pairs with the release store in engine_process_end. */
    return !atomic_load_explicit(&process->over, memory_order_acquire) && poll(&ended, 1, 0) == 0;
}

static pid_t pid_of(const struct engine_operand *operand)
{
    return operand->process ? operand->process->pid : 0;
}

static void prepare_processes(struct engine_task *task)
{
    const struct engine_op *op = &task->op;

    task->work.in_pid = task->work.out_pid = NULL;
    task->work.alive = NULL;
    task->work.alive_user = NULL;
    if (!lies_in_processes(op))
        return;
    for (uint32_t i = 0; i < op->set->size; i++) {
        const struct engine_part *part = op->parts[i];
        task->in_pids[i] = part ? pid_of(&engine_share_of(part)->in) : 0;
        task->out_pids[i] = part ? pid_of(&engine_share_of(part)->out) : 0;
    }
    task->work.in_pid = task->in_pids;
    task->work.out_pid = task->out_pids;
    task->work.alive = is_alive;
    task->work.alive_user = task;
}

void engine_task_start(const struct engine_task *task)
{
    for (uint32_t i = 0; i < task->op.set->size; i++) {
        struct engine_process *process = process_of(task->op.parts[i]);
        if (process)
            atomic_fetch_add_explicit(&process->running, 1, memory_order_relaxed);
    }
}

void engine_task_stop(const struct engine_task *task)
{
    for (uint32_t i = 0; i < task->op.set->size; i++) {
        struct engine_process *process = process_of(task->op.parts[i]);
        /* Release, pairs with the acquire load in engine_process_end. */
        if (process)
            atomic_fetch_sub_explicit(&process->running, 1, memory_order_release);
    }
}

/* ---- the work ---- */

static int32_t root_of(const struct engine_op *op, const struct hvi_submission *copy)
{
    if (op->kind == HVI_KIND_SEND)
        return op->from;
    return op->kind == HVI_KIND_BROADCAST ? engine_set_rank(op->set, copy->root) : -1;
}

void engine_task_prepare(struct engine_op *op)
{
    struct engine_task *task = engine_task_of(op);
    const struct hvi_submission *copy = &engine_op_first_part(op)->copy;
    struct engine_work *work = &task->work;

    work->kind = op->kind;
    work->dtype = copy->dtype;
    work->reduce_op = copy->reduce_op;
    work->memory_kind = ENGINE_MEMORY_HOST;
    work->ranks = op->set->size;
    work->root = root_of(op, copy);
    work->prescale = copy->prescale;
    work->postscale = copy->postscale;
    work->count = copy->count;
    work->bytes = op->bytes;
    work->sizes = op->sizes;
    work->missing = 0;
    for (uint32_t i = 0; i < op->set->size; i++) {
        const struct engine_part *part = op->parts[i];
        work->in[i] = part ? engine_share_of(part)->in.address : NULL;
        work->out[i] = part ? engine_share_of(part)->out.address : NULL;
    }
    prepare_processes(task);
}
