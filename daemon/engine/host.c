/* SPDX-License-Identifier: Apache-2.0
 * Host memory: the backend that works on what the engine has mapped. Small batches are done where
 * they stand; larger ones are cut into pieces that the pool's threads and the main thread take in
 * turn. Every piece covers a byte range of the result on every rank, so pieces share nothing but
 * inputs and the result does not depend on who did which. */
#include "daemon/engine/host.h"

#include "base/status.h"
#include "base/types.h"

#include <stdlib.h>
#include <string.h>

struct host {
    struct engine_host_pool *pool;
    const struct engine_kernels *kernels;
    struct engine_backend_config config;
};

uint32_t engine_host_units(const struct engine_batch *batch)
{
    uint64_t bytes = batch->works[0]->bytes;

    if (batch->count > 1)
        return (batch->count + ENGINE_HOST_UNIT_WORKS - 1) / ENGINE_HOST_UNIT_WORKS;
    if (bytes <= ENGINE_HOST_CHUNK_BYTES)
        return 1;
    return (uint32_t)((bytes + ENGINE_HOST_CHUNK_BYTES - 1) / ENGINE_HOST_CHUNK_BYTES);
}

static void reduce_range(const struct engine_kernels *kernels, const struct engine_work *work,
                         uint64_t first_byte, uint64_t bytes)
{
    uint32_t size = hvi_dtype_bytes(work->dtype);
    struct engine_reduce reduce = {
        .dtype = work->dtype,
        .reduce_op = work->reduce_op,
        .ranks = work->ranks,
        .in = work->in,
        .out = work->out,
        .prescale = work->prescale,
        .postscale = work->postscale,
    };

    kernels->reduce(&reduce, first_byte / size, bytes / size);
}

static void broadcast_range(const struct engine_work *work, uint64_t first_byte, uint64_t bytes)
{
    const char *source = (const char *)work->in[work->root] + first_byte;

    for (uint32_t rank = 0; rank < work->ranks; rank++) {
        char *target = (char *)work->out[rank] + first_byte;
        if (target != source)
            memcpy(target, source, bytes);
    }
}

/* Copies the part of rank `from`'s input that falls into [first_byte, end) of the result to every
 * output. */
static void gather_from(const struct engine_work *work, uint32_t from, uint64_t input_at,
                        uint64_t first_byte, uint64_t end)
{
    uint64_t low = first_byte > input_at ? first_byte : input_at;
    uint64_t input_end = input_at + work->sizes[from];
    uint64_t high = end < input_end ? end : input_end;

    if (low >= high)
        return;
    for (uint32_t rank = 0; rank < work->ranks; rank++)
        memcpy((char *)work->out[rank] + low, (const char *)work->in[from] + (low - input_at),
               high - low);
}

static void gather_range(const struct engine_work *work, uint64_t first_byte, uint64_t bytes)
{
    uint64_t input_at = 0;

    for (uint32_t from = 0; from < work->ranks; from++) {
        gather_from(work, from, input_at, first_byte, first_byte + bytes);
        input_at += work->sizes[from];
    }
}

static void run_range(const struct engine_kernels *kernels, const struct engine_work *work,
                      uint64_t first_byte, uint64_t bytes)
{
    if (bytes == 0)
        return;
    if (work->kind == HVI_KIND_ALLREDUCE)
        reduce_range(kernels, work, first_byte, bytes);
    else if (work->kind == HVI_KIND_BROADCAST)
        broadcast_range(work, first_byte, bytes);
    else if (work->kind == HVI_KIND_ALLGATHER)
        gather_range(work, first_byte, bytes);
}

void engine_host_run_unit(const struct engine_kernels *kernels, const struct engine_batch *batch,
                          uint32_t unit)
{
    if (batch->count == 1) {
        uint64_t first = (uint64_t)unit * ENGINE_HOST_CHUNK_BYTES;
        uint64_t left = batch->works[0]->bytes - first;
        bool last = left <= ENGINE_HOST_CHUNK_BYTES;
        run_range(kernels, batch->works[0], first, last ? left : ENGINE_HOST_CHUNK_BYTES);
        return;
    }
    uint32_t first = unit * ENGINE_HOST_UNIT_WORKS;
    for (uint32_t i = first; i < batch->count && i < first + ENGINE_HOST_UNIT_WORKS; i++)
        run_range(kernels, batch->works[i], 0, batch->works[i]->bytes);
}

static int host_open(const struct engine_backend_config *config, void **context_p)
{
    struct host *host = calloc(1, sizeof *host);
    if (!host)
        return HVI_ERR_NO_MEMORY;
    host->config = *config;
    host->kernels = engine_kernels_best();
    int status = engine_host_pool_open(config->threads - 1, host->kernels, config->done,
                                       config->user, &host->pool);
    if (status != HVI_OK) {
        free(host);
        return status;
    }
    *context_p = host;
    return HVI_OK;
}

static void host_close(void *context)
{
    struct host *host = context;

    if (!host)
        return;
    engine_host_pool_close(host->pool);
    free(host);
}

static bool accepts_work(const struct engine_work *work)
{
    bool moves = work->kind == HVI_KIND_ALLREDUCE || work->kind == HVI_KIND_ALLGATHER ||
                 work->kind == HVI_KIND_BROADCAST;

    if (work->in_pid || (work->bytes > 0 && !moves))
        return false;
    for (uint32_t i = 0; i < work->ranks && work->bytes > 0; i++) {
        if (!work->out[i] || (!work->in[i] && work->kind == HVI_KIND_ALLREDUCE))
            return false;
    }
    return true;
}

static bool host_accepts(const struct engine_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        if (!accepts_work(batch->works[i]))
            return false;
    }
    return batch->memory_kind == ENGINE_MEMORY_HOST;
}

static void host_start(void *context, struct engine_batch *batch)
{
    struct host *host = context;

    batch->fault.rank = -1;
    if (batch->bytes > ENGINE_HOST_INLINE_BYTES) {
        engine_host_pool_submit(host->pool, batch);
        return;
    }
    uint32_t units = engine_host_units(batch);
    for (uint32_t unit = 0; unit < units; unit++)
        engine_host_run_unit(host->kernels, batch, unit);
    batch->status = HVI_OK;
    host->config.done(host->config.user, batch);
}

static bool host_help(void *context)
{
    return engine_host_pool_help(((struct host *)context)->pool);
}

const struct engine_backend engine_backend_host = {
    .name = "host",
    .open = host_open,
    .close = host_close,
    .accepts = host_accepts,
    .start = host_start,
    .help = host_help,
};
