/* SPDX-License-Identifier: Apache-2.0
 * What the rooms below call: order/ hands over answers and tells what became of ops, exec/ tells what it
 * starts and what it could not reach. Here is who listens. */
#include "base/types.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/sessions/complete.h"
#include "daemon/engine/sessions/remote.h"
#include "daemon/engine/watch/stall.h"
#include "daemon/engine/watch/timeline.h"

static struct engine_op *new_op(void *user)
{
    const struct engine *engine = user;

    return engine_task_new(engine->start.size);
}

const struct engine_order_sink engine_calls_sink = {
    .answer = engine_complete_part,
    .ask_output = engine_complete_sized,
    .drop = engine_complete_drop,
    .new_op = new_op,
    .free_op = engine_task_free,
};

/* ---- what becomes of ops ---- */

static void op_waits(void *user)
{
    engine_stall_arm(user);
}

static void part_came(void *user, struct engine_part *part)
{
    struct engine *engine = user;

    if (engine->timeline)
        engine_timeline_part(engine, part);
}

static void op_complete(void *user, struct engine_op *op)
{
    struct engine *engine = user;

    engine_lag_op(&engine->stats, op);
}

static void op_ready(void *user, struct engine_op *op)
{
    struct engine *engine = user;

    engine_task_prepare(op);
    if (engine->timeline)
        engine_timeline_ready(engine, op);
}

static void op_succeeds(void *user, struct engine_op *op)
{
    struct engine *engine = user;

    engine_stats_op(&engine->stats, op);
    engine_express_grant(engine, op);
    if (op->kind == HVI_KIND_ALLTOALL)
        engine_complete_splits(op);
}

static void op_over(void *user, struct engine_op *op, int status)
{
    struct engine *engine = user;

    if (engine->timeline)
        engine_timeline_over(engine, op, status);
}

static void set_ends(void *user, struct engine_set *set)
{
    engine_express_seize_set(user, set);
}

static void set_gone(void *user, struct engine_set *set)
{
    engine_express_release_set(user, set);
}

const struct engine_order_observer engine_calls_observer = {
    .op_waits = op_waits,
    .part_came = part_came,
    .op_complete = op_complete,
    .op_ready = op_ready,
    .op_succeeds = op_succeeds,
    .op_over = op_over,
    .set_ends = set_ends,
    .set_gone = set_gone,
};

/* ---- what executes ---- */

static void started(void *user, struct engine_op *op)
{
    struct engine *engine = user;

    if (engine->timeline)
        engine_timeline_started(engine, op);
}

static void fault(void *user, struct engine_op *op, int status, const struct engine_fault *fault)
{
    engine_remote_failed(user, op, status, fault);
}

const struct engine_exec_calls engine_calls_exec = {
    .started = started,
    .fault = fault,
};
