/* SPDX-License-Identifier: Apache-2.0
 * Host memory: the backend that works on what the engine has mapped or can reach. Small batches are
 * done where they stand; larger ones are cut into units that the pool's threads and the main thread
 * take in turn. Units with foreign operands are the pool's alone, as they may take for ever. Every unit covers a byte range of the operands of all ranks, so units share nothing
 * but inputs and the result does not depend on who did which. Only an adasum has more than one
 * round: the units are done again when all of them are over. */
#include "daemon/engine/exec/host.h"

#include "base/pages.h"
#include "base/status.h"
#include "base/types.h"

#include <stdlib.h>

#define CACHES              "/sys/devices/system/cpu/cpu0/cache"
#define CACHE_BYTES_UNKNOWN (16ull * 1024 * 1024)
/* Units that each thread gets of a large op, so that all end at about the same time. */
#define UNITS_EACH 4u

struct host {
    struct engine_host_pool *pool;
    struct engine_backend_config config;
};

static uint64_t unit_bytes(const struct engine_work *work, uint32_t threads)
{
    uint64_t bytes = ENGINE_HOST_CHUNK_BYTES;

    while (work->in_pid && bytes < ENGINE_HOST_FOREIGN_BYTES &&
           work->bytes >= 2 * bytes * threads * UNITS_EACH)
        bytes *= 2;
    return bytes;
}

void engine_host_cut(struct engine_batch *batch, uint32_t threads)
{
    const struct engine_work *work = batch->works[0];

    batch->unit_bytes = unit_bytes(work, threads);
    if (batch->count > 1)
        batch->units = (batch->count + ENGINE_HOST_UNIT_WORKS - 1) / ENGINE_HOST_UNIT_WORKS;
    else if (batch->state)
        batch->units = engine_adasum_chunks(work);
    else if (work->bytes <= batch->unit_bytes)
        batch->units = 1;
    else
        batch->units = (uint32_t)((work->bytes + batch->unit_bytes - 1) / batch->unit_bytes);
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
    if (batch->count > 1)
        return run_works(thread, batch, unit * ENGINE_HOST_UNIT_WORKS, fault_p);
    uint64_t first = unit * batch->unit_bytes, left = batch->works[0]->bytes - first;
    struct part part = {.thread = thread,
                        .adasum = batch->state,
                        .chunk = unit,
                        .work = batch->works[0],
                        .first = first,
                        .bytes = left < batch->unit_bytes ? left : batch->unit_bytes,
                        .fault_p = fault_p};
    return run_part(&part);
}

bool engine_host_next_round(struct engine_batch *batch)
{
    return batch->state && batch->status == HVI_OK && engine_adasum_next(batch->state);
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

static int host_open(const struct engine_backend_config *config, void **context_p)
{
    struct host *host = calloc(1, sizeof *host);
    struct engine_host_cache cache = engine_host_cache_find(CACHES);
    if (!host)
        return HVI_ERR_NO_MEMORY;
    if (cache.bytes == 0)
        cache.bytes = CACHE_BYTES_UNKNOWN;
    const struct engine_host_thread model = {
        .kernels = hvi_kernels_best(),
        .stream_bytes = cache.bytes,
        .share_bytes = share_of(&cache, config->threads),
    };
    host->config = *config;
    hvi_pages_open();
    int status = engine_host_pool_open(config, &model, &host->pool);
    if (status != HVI_OK) {
        hvi_pages_close();
        free(host);
        return status;
    }
    *context_p = host;
    return HVI_OK;
}

static bool host_close(void *context)
{
    struct host *host = context;

    if (!host)
        return true;
    bool ended = engine_host_pool_close(host->pool);
    hvi_pages_close();
    free(host);
    return ended;
}

/* Nothing to move, or a kind that moves. */
static bool accepts_work(const struct engine_work *work)
{
    return work->bytes == 0 || work->kind == HVI_KIND_ALLREDUCE ||
           work->kind == HVI_KIND_ALLGATHER || work->kind == HVI_KIND_BROADCAST ||
           work->kind == HVI_KIND_REDUCESCATTER || work->kind == HVI_KIND_ALLTOALL ||
           work->kind == HVI_KIND_SEND;
}

static bool host_accepts(const struct engine_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct engine_work *work = batch->works[i];
        bool alone = work->in_pid || engine_adasum_is(work);
        if (!accepts_work(work) || (alone && batch->count > 1))
            return false;
    }
    return batch->memory_kind == ENGINE_MEMORY_HOST;
}

static void host_start(void *context, struct engine_batch *batch)
{
    struct host *host = context;

    batch->status = HVI_OK;
    batch->fault = (struct engine_fault){.rank = -1};
    batch->state = NULL;
    if (engine_adasum_is(batch->works[0])) {
        batch->state = engine_adasum_new(batch->works[0]);
        if (!batch->state) {
            batch->status = HVI_ERR_NO_MEMORY;
            host->config.done(host->config.user, batch);
            return;
        }
    }
    if (batch->works[0]->in_pid || batch->bytes > ENGINE_HOST_INLINE_BYTES)
        engine_host_pool_submit(host->pool, batch);
    else
        engine_host_pool_run(host->pool, batch);
}

static bool host_help(void *context)
{
    return engine_host_pool_help(((struct host *)context)->pool);
}

static void host_watch(void *context, uint64_t limit_ns)
{
    engine_host_pool_watch(((struct host *)context)->pool, limit_ns);
}

static const struct engine_batch *host_silent(void *context, uint32_t *cursor_p,
                                              struct engine_fault *fault_p)
{
    return engine_host_pool_silent(((struct host *)context)->pool, cursor_p, fault_p);
}

const struct engine_backend engine_backend_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .accepts = host_accepts,
    .start = host_start,
    .help = host_help,
    .watch = host_watch,
    .silent = host_silent,
};
