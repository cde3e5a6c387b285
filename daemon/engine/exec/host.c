/* SPDX-License-Identifier: Apache-2.0
 * Host memory: the backend that works on what the engine has mapped or can reach. Small batches are
 * done where they stand; larger ones are cut into units that the pool's threads and the main thread
 * take in turn. Units with remote operands are the pool's alone, as they may take for ever. Every unit
 * covers a byte range of the operands of all ranks, so units share nothing but inputs and the result
 * does not depend on who did which. A plan is one step, one pass over the operands. Only an adasum
 * takes several. */
#include "daemon/engine/exec/host.h"

#include "base/pages.h"
#include "base/status.h"
#include "base/types.h"

#include <stdlib.h>

#define CACHES              "/sys/devices/system/cpu/cpu0/cache"
#define CACHE_BYTES_UNKNOWN (16ull * 1024 * 1024)
/* Units that each thread gets of a large op, so that all end at about the same time. */
#define UNITS_EACH 4u

enum host_step {
    STEP_WORKS, /* a unit is some of the works, whole */
    STEP_RANGE, /* a range of the operands of the only work */
    STEP_ADASUM,
};

static uint64_t unit_bytes(const struct engine_work *work, uint32_t threads)
{
    uint64_t bytes = ENGINE_HOST_CHUNK_BYTES;

    while (engine_work_has(work, ENGINE_OPERAND_PROCESS) && bytes < ENGINE_HOST_REMOTE_BYTES &&
           work->bytes >= 2 * bytes * threads * UNITS_EACH)
        bytes *= 2;
    return bytes;
}

static uint32_t units_of(uint64_t all, uint64_t each)
{
    return all > each ? (uint32_t)((all + each - 1) / each) : 1;
}

static bool plan_adasum(struct engine_batch *batch)
{
    const struct engine_work *work = batch->works[0];

    batch->state = engine_adasum_new(work);
    if (!batch->state)
        return false;
    batch->plan.count = engine_adasum_steps(work);
    for (uint32_t i = 0; i < batch->plan.count; i++)
        batch->plan.steps[i] =
            (struct engine_step){.kind = STEP_ADASUM, .units = engine_adasum_chunks(work)};
    return true;
}

/* False without memory. */
static bool plan(struct engine_batch *batch, uint32_t threads)
{
    const struct engine_work *work = batch->works[0];
    struct engine_step *step = &batch->plan.steps[0];

    batch->state = NULL;
    batch->plan.at = 0;
    batch->plan.count = 1;
    if (batch->count > 1) {
        *step = (struct engine_step){.kind = STEP_WORKS,
                                     .units = units_of(batch->count, ENGINE_HOST_UNIT_WORKS)};
    } else if (engine_adasum_is(work)) {
        return plan_adasum(batch);
    } else {
        uint64_t bytes = unit_bytes(work, threads);
        *step = (struct engine_step){
            .kind = STEP_RANGE, .units = units_of(work->bytes, bytes), .unit_bytes = bytes};
    }
    return true;
}

/* ---- a unit ---- */

/* A part of one work. */
struct part {
    const struct engine_host_thread *thread;
    struct engine_adasum *adasum; /* NULL: the work is none */
    uint32_t chunk;               /* of an adasum */
    const struct engine_work *work;
    uint64_t first, bytes; /* of others */
    struct engine_fault *fault_p;
    int status;
};

static void touch_operands(void *user)
{
    struct part *part = user;

    if (part->adasum)
        part->status = engine_adasum_run(part->thread, part->adasum, part->chunk, part->fault_p);
    else
        part->status =
            engine_host_move(part->thread, part->work, part->first, part->bytes, part->fault_p);
}

static int run_part(struct part *part)
{
    uintptr_t missing = part->work->missing;

    if (missing == 0 && hvi_pages_run(touch_operands, NULL, part, &missing))
        return part->status;
    *part->fault_p = (struct engine_fault){.rank = -1, .missing = missing};
    return HVI_ERR_NO_MEMORY;
}

/* Several works: a page that one of them lacks is no fault of the others. */
static int run_works(const struct engine_host_thread *thread, const struct engine_batch *batch,
                     uint32_t first, struct engine_fault *fault_p)
{
    for (uint32_t i = first; i < batch->count && i < first + ENGINE_HOST_UNIT_WORKS; i++) {
        struct engine_fault fault = {.rank = -1};
        struct part part = {.thread = thread,
                            .work = batch->works[i],
                            .bytes = batch->works[i]->bytes,
                            .fault_p = &fault};
        int status = run_part(&part);
        batch->works[i]->missing = fault.missing;
        if (status != HVI_OK && fault.missing == 0) {
            *fault_p = fault;
            return status;
        }
    }
    return HVI_OK;
}

int engine_host_run_unit(const struct engine_host_thread *thread, const struct engine_batch *batch,
                         uint32_t unit, struct engine_fault *fault_p)
{
    const struct engine_step *step = &batch->plan.steps[batch->plan.at];
    struct part part = {.thread = thread, .work = batch->works[0], .fault_p = fault_p};

    if (step->kind == STEP_WORKS)
        return run_works(thread, batch, unit * ENGINE_HOST_UNIT_WORKS, fault_p);
    if (step->kind == STEP_ADASUM) {
        part.adasum = batch->state;
        part.chunk = unit;
    } else {
        part.first = unit * step->unit_bytes;
        part.bytes = part.work->bytes - part.first;
        if (part.bytes > step->unit_bytes)
            part.bytes = step->unit_bytes;
    }
    return run_part(&part);
}

void engine_host_next_step(struct engine_batch *batch)
{
    batch->plan.at++;
    if (batch->plan.steps[batch->plan.at].kind == STEP_ADASUM)
        engine_adasum_next(batch->state);
}

void engine_host_release(struct engine_batch *batch)
{
    engine_adasum_free(batch->state);
    batch->state = NULL;
}

/* ---- the row ---- */

static uint64_t share_of(const struct engine_host_cache *cache, uint32_t threads)
{
    uint32_t sharers = cache->sharers;

    if (sharers == 0 || sharers > threads)
        sharers = threads;
    return cache->bytes / sharers;
}

/* The context is the pool. */
static int host_open(const struct engine_backend_config *config, void **context_p)
{
    struct engine_host_cache cache = engine_host_cache_find(CACHES);

    if (cache.bytes == 0)
        cache.bytes = CACHE_BYTES_UNKNOWN;
    const struct engine_host_thread model = {
        .kernels = hvi_kernels_best(),
        .stream_bytes = cache.bytes,
        .share_bytes = share_of(&cache, config->threads),
    };
    hvi_pages_open();
    int status = engine_host_pool_open(config, &model, context_p);
    if (status != HVI_OK)
        hvi_pages_close();
    return status;
}

static bool host_close(void *context)
{
    if (!context)
        return true;
    bool ended = engine_host_pool_close(context);
    hvi_pages_close();
    return ended;
}

#define KINDS                                                                                      \
    (1u << ENGINE_OPERAND_NONE | 1u << ENGINE_OPERAND_MAPPED | 1u << ENGINE_OPERAND_PROCESS)

/* Nothing to move, or a kind that moves. */
static bool accepts_work(const struct engine_work *work)
{
    if ((work->kinds & ~KINDS) != 0)
        return false;
    return work->bytes == 0 || work->kind == HVI_KIND_ALLREDUCE ||
           work->kind == HVI_KIND_ALLGATHER || work->kind == HVI_KIND_BROADCAST ||
           work->kind == HVI_KIND_REDUCESCATTER || work->kind == HVI_KIND_ALLTOALL ||
           work->kind == HVI_KIND_SEND;
}

static bool host_accepts(const struct engine_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct engine_work *work = batch->works[i];
        bool alone = engine_work_has(work, ENGINE_OPERAND_PROCESS) || engine_adasum_is(work);
        if (work->span || !accepts_work(work) || (alone && batch->count > 1))
            return false;
    }
    return true;
}

static void host_start(void *context, struct engine_batch *batch)
{
    batch->fault = (struct engine_fault){.rank = -1};
    batch->over = true; /* unless the pool takes it */
    batch->status = plan(batch, engine_host_pool_threads(context)) ? HVI_OK : HVI_ERR_NO_MEMORY;
    if (batch->status == HVI_OK && (engine_work_has(batch->works[0], ENGINE_OPERAND_PROCESS) ||
                                    batch->bytes > ENGINE_HOST_INLINE_BYTES))
        engine_host_pool_submit(context, batch);
    else
        engine_host_pool_run(context, batch);
}

const struct engine_backend engine_backend_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .accepts = host_accepts,
    .start = host_start,
    .help = engine_host_pool_help,
    .cancel = engine_host_pool_cancel,
    .watch = engine_host_pool_watch,
    .silent = engine_host_pool_silent,
};
