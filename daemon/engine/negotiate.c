/* SPDX-License-Identifier: Apache-2.0
 * Negotiate: where the ranks' submissions of one tensor meet.
 *
 * There is no timer and no round: the part that comes last makes the op ready, whoever brings it
 * and in whatever order the ranks submit. Before anything moves, the parts are compared (agree.c); a
 * disagreement fails the op on every rank with one sentence that says who said what, and nothing
 * else is touched. After a rank is lost or has left, no op can become complete any more: what waits
 * fails (engine_negotiate_fail_all), and intake fails what comes.
 *
 * Ops that wait (for ranks, or for the outputs of an allgather) stand in one list, oldest first:
 * the stall table. */
#include "base/assert.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/engine.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- an op's life ---- */

static const char *const state_texts[] = {"waiting", "sizing", "ready", "executing"};

void engine_op_set_state(struct engine_op *op, enum engine_op_state state, const char *cause)
{
    HVI_LOG(HVI_LOG_TRACE, "negotiate", "op-state", cause, "%s -> %s", state_texts[op->state],
            state_texts[state]);
    op->state = state;
}

static struct engine_op *op_alloc(const struct engine *engine)
{
    size_t size = (size_t)engine->start.size;
    struct engine_op *op = calloc(1, sizeof *op + size * (sizeof(void *) * 3 + sizeof(uint64_t)));

    if (!op)
        return NULL;
    op->parts = (struct engine_part **)(void *)(op + 1);
    op->work.in = (const void **)(void *)(op->parts + size);
    op->work.out = (void **)(void *)(op->work.in + size);
    op->work.sizes = (const uint64_t *)(void *)(op->work.out + size);
    return op;
}

static struct engine_op *op_new(struct engine *engine, struct engine_tensor *tensor)
{
    struct engine_op *op = engine->free_ops;

    if (op)
        engine->free_ops = op->next;
    else
        op = op_alloc(engine);
    if (!op)
        return NULL;
    memset(op->parts, 0, (size_t)engine->start.size * sizeof *op->parts);
    op->tensor = tensor;
    op->state = ENGINE_OP_WAITING;
    op->parts_present = 0;
    op->outputs_missing = 0;
    op->first_ns = engine->now_ns;
    op->warn_ns = engine->now_ns + engine->stall_warn_ns;
    op->ready_ns = 0;
    op->rows = 0;
    op->next = NULL;
    op->prev = engine->waiting_last;
    if (op->prev)
        op->prev->next = op;
    else
        engine->waiting_first = op;
    engine->waiting_last = op;
    tensor->waiting = op;
    engine_stall_arm(engine);
    return op;
}

static void unlink_waiting(struct engine *engine, struct engine_op *op)
{
    if (op->prev)
        op->prev->next = op->next;
    else
        engine->waiting_first = op->next;
    if (op->next)
        op->next->prev = op->prev;
    else
        engine->waiting_last = op->prev;
    op->next = NULL;
    op->prev = NULL;
}

static void count_op(struct engine *engine, const struct engine_op *op)
{
    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        engine->ranks[rank].ops++;
        engine->ranks[rank].bytes += op->parts[rank]->in_bytes;
    }
}

void engine_op_finish(struct engine *engine, struct engine_op *op, int status, const char *text,
                      int32_t culprit)
{
    if (op->state == ENGINE_OP_WAITING || op->state == ENGINE_OP_SIZING)
        unlink_waiting(engine, op);
    if (op->state == ENGINE_OP_WAITING)
        op->tensor->waiting = NULL;
    if (status == HVI_OK)
        count_op(engine, op);
    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        struct engine_part *part = op->parts[rank];
        if (part)
            engine_complete_part(part, status, text, culprit, status == HVI_OK ? op->work.bytes : 0,
                                 status == HVI_OK ? op->rows : 0);
    }
    op->tensor = NULL;
    op->next = engine->free_ops;
    engine->free_ops = op;
}

void engine_negotiate_fail_all(struct engine *engine, int status, const char *text, int32_t culprit)
{
    while (engine->waiting_first)
        engine_op_finish(engine, engine->waiting_first, status, text, culprit);
}

/* ---- from waiting to ready ---- */

void engine_negotiate_fail(struct engine *engine, struct engine_op *op, int status,
                           const char *text, int32_t culprit)
{
    HVI_LOG(HVI_LOG_WARN, "negotiate", "op-failed", text, "job=%s status=%s", engine->start.job,
            hvi_status_name(status));
    engine_op_finish(engine, op, status, text, culprit);
}

static const void *address_of(const struct engine_region *region, uint64_t offset)
{
    return region ? (const char *)region->map.base + offset : NULL;
}

static void make_ready(struct engine *engine, struct engine_op *op)
{
    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        const struct engine_part *part = op->parts[rank];
        op->work.in[rank] = address_of(part->in, part->copy.in_offset);
        op->work.out[rank] = (void *)(uintptr_t)address_of(part->out, part->copy.out_offset);
    }
    unlink_waiting(engine, op);
    engine_op_set_state(op, ENGINE_OP_READY, "every rank has come");
    HVI_ASSERT(engine->ready_count < HVI_CQ_SLOTS);
    engine->ready[engine->ready_count++] = op;
}

static bool output_fits(struct engine *engine, struct engine_op *op, const struct engine_part *part)
{
    char label[ENGINE_LABEL], text[HVI_TEXT_MAX + 1];
    int32_t rank = part->session->rank;

    if (part->copy.out_capacity >= op->work.bytes)
        return true;
    engine_tensor_label(op->tensor, label);
    snprintf(text, sizeof text,
             "allgather '%s': the output of rank %d has room for %" PRIu64
             " bytes, the result has %" PRIu64,
             label, rank, part->copy.out_capacity, op->work.bytes);
    engine_negotiate_fail(engine, op, HVI_ERR_TOO_SMALL, text, rank);
    return false;
}

/* Rows and bytes of the result. */
static bool sum_gather(struct engine *engine, struct engine_op *op)
{
    uint64_t *sizes = (uint64_t *)(uintptr_t)op->work.sizes;

    op->work.bytes = 0;
    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        const struct engine_part *part = op->parts[rank];
        int64_t rows = part->copy.ndim > 0 ? part->copy.dims[0] : 1;
        sizes[rank] = part->in_bytes;
        if (__builtin_add_overflow(op->rows, rows, &op->rows) ||
            __builtin_add_overflow(op->work.bytes, part->in_bytes, &op->work.bytes))
            return false;
    }
    return true;
}

/* Ranks that gave no output are asked for one, now that the size is known. */
static void gather_ready(struct engine *engine, struct engine_op *op)
{
    if (!sum_gather(engine, op)) {
        engine_negotiate_fail(engine, op, HVI_ERR_INVALID,
                              "allgather: the size of the result overflows", -1);
        return;
    }
    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        struct engine_part *part = op->parts[rank];
        if (part->copy.out_region != HVI_REGION_NONE && !output_fits(engine, op, part))
            return;
    }
    engine_op_set_state(op, ENGINE_OP_SIZING, "an allgather's size is known");
    for (int32_t rank = 0; rank < engine->start.size; rank++) {
        struct engine_part *part = op->parts[rank];
        if (part->copy.out_region != HVI_REGION_NONE)
            continue;
        op->outputs_missing++;
        part->output_asked = true;
        engine_complete_sized(part, op->work.bytes, op->rows);
    }
    if (op->outputs_missing == 0)
        make_ready(engine, op);
}

static void everybody_here(struct engine *engine, struct engine_op *op)
{
    const struct hvi_submission *copy = &op->parts[0]->copy;
    char text[HVI_TEXT_MAX + 1];

    op->ready_ns = engine->now_ns;
    engine_lag_op(engine, op);
    int status =
        engine_agree_check(op->parts, (uint32_t)engine->start.size, op->tensor, text, sizeof text);
    if (status != HVI_OK) {
        engine_negotiate_fail(engine, op, status, text, -1);
        return;
    }
    op->tensor->waiting = NULL;
    op->work.kind = copy->kind;
    op->work.dtype = copy->dtype;
    op->work.reduce_op = copy->reduce_op;
    op->work.memory_kind = copy->kind == HVI_KIND_BARRIER ? ENGINE_MEMORY_HOST : copy->memory_kind;
    op->work.ranks = (uint32_t)engine->start.size;
    op->work.root = copy->root;
    op->work.prescale = copy->prescale;
    op->work.postscale = copy->postscale;
    op->work.count = copy->count;
    op->work.bytes = op->parts[0]->in_bytes;
    if (copy->kind == HVI_KIND_ALLGATHER)
        gather_ready(engine, op);
    else
        make_ready(engine, op);
}

int engine_negotiate_submit(struct engine *engine, struct engine_part *part)
{
    int32_t rank = part->session->rank;
    struct engine_op *op = part->tensor->waiting;

    if (!op)
        op = op_new(engine, part->tensor);
    if (!op)
        return HVI_ERR_NO_MEMORY;
    if (op->parts[rank])
        return HVI_ERR_PROTOCOL;
    op->parts[rank] = part;
    part->op = op;
    if (++op->parts_present == (uint32_t)engine->start.size)
        everybody_here(engine, op);
    return HVI_OK;
}

void engine_negotiate_output(struct engine *engine, struct engine_part *part)
{
    struct engine_op *op = part->op;

    HVI_ASSERT(op->state == ENGINE_OP_SIZING && op->outputs_missing > 0);
    if (!output_fits(engine, op, part))
        return;
    if (--op->outputs_missing == 0)
        make_ready(engine, op);
}
