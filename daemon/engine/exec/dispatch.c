/* SPDX-License-Identifier: Apache-2.0
 * Dispatch: ready ops become batches (fusion.c), a batch goes to the first backend that accepts it,
 * and finished batches come back. Host memory is the only row today; a GPU worker is another row.
 *
 * Batches are kept for reuse. A backend reports a batch from any thread: the main thread's own go
 * to a list that needs no lock, the others to a list under .finished_lock, with a write to our
 * eventfd because the main thread may sleep. */
#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/exec/fusion.h"

#include <sched.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const struct engine_backend *const engine_backends[] = {&engine_backend_host, NULL};
#define BACKENDS (sizeof engine_backends / sizeof engine_backends[0] - 1)
_Static_assert(BACKENDS <= sizeof(((struct engine *)0)->backend_contexts) / sizeof(void *),
               "a context per backend");

static struct engine_op *op_of(struct engine_work *work)
{
    return (struct engine_op *)(void *)((char *)work - offsetof(struct engine_op, work));
}

static void batch_done(void *user, struct engine_batch *batch)
{
    struct engine *engine = user;
    const uint64_t one = 1;

    if (batch->works[0]->in_pid)
        engine_foreign_stop(op_of(batch->works[0]));
    /* Release, pairs with the acquire load in engine_dispatch_settle. */
    atomic_fetch_sub_explicit(&engine->executing, 1, memory_order_release);
    if (pthread_equal(pthread_self(), engine->main_thread)) {
        batch->next = engine->finished;
        engine->finished = batch;
        return;
    }
    pthread_mutex_lock(&engine->finished_lock);
    batch->next = engine->finished_elsewhere;
    engine->finished_elsewhere = batch;
    /* Release, pairs with the acquire load in engine_dispatch_reap. */
    atomic_fetch_add_explicit(&engine->finished_elsewhere_count, 1, memory_order_release);
    pthread_mutex_unlock(&engine->finished_lock);
    ssize_t written = write(engine->worker_fd, &one, sizeof one);
    HVI_ASSERT(written == sizeof one);
}

int engine_dispatch_open(struct engine *engine)
{
    struct engine_backend_config config = {
        .threads = engine->start.threads,
        .done = batch_done,
        .user = engine,
    };

    engine->main_thread = pthread_self();
    for (size_t i = 0; i < BACKENDS; i++) {
        int status = engine_backends[i]->open(&config, &engine->backend_contexts[i]);
        if (status != HVI_OK) {
            HVI_LOG(HVI_LOG_ERROR, "dispatch", "backend-failed", hvi_status_text(status),
                    "job=%s backend=%s threads=%u", engine->start.job, engine_backends[i]->name,
                    config.threads);
            return status;
        }
    }
    return HVI_OK;
}

void engine_dispatch_close(struct engine *engine)
{
    /* The last rank may have left in the very pass that made its op ready. */
    if (engine->ready_count > 0)
        engine_dispatch_ready(engine);
    for (size_t i = 0; i < BACKENDS; i++) {
        engine_backends[i]->close(engine->backend_contexts[i]);
        engine->backend_contexts[i] = NULL;
    }
    engine_dispatch_reap(engine);
    engine_foreign_settle(engine);
    while (engine->free_batches) {
        struct engine_batch *batch = engine->free_batches;
        engine->free_batches = batch->next;
        free(batch);
    }
}

static struct engine_batch *batch_new(struct engine *engine)
{
    struct engine_batch *batch = engine->free_batches;

    if (batch)
        engine->free_batches = batch->next;
    else
        batch = malloc(sizeof *batch);
    return batch;
}

static void fill(struct engine *engine, struct engine_batch *batch,
                 struct engine_work *const *works, uint32_t count)
{
    atomic_fetch_add_explicit(&engine->executing, 1, memory_order_relaxed);
    batch->next = NULL;
    batch->count = count;
    batch->memory_kind = works[0]->memory_kind;
    batch->bytes = 0;
    batch->status = HVI_OK;
    batch->fault.rank = -1;
    for (uint32_t i = 0; i < count; i++) {
        batch->works[i] = works[i];
        batch->bytes += works[i]->bytes;
        engine_op_set_state(op_of(works[i]), ENGINE_OP_EXECUTING, "its batch starts");
    }
    if (works[0]->in_pid) /* alone in its batch */
        engine_foreign_start(op_of(works[0]));
}

static void show_start(struct engine *engine, struct engine_work *const *works, uint32_t count)
{
    for (uint32_t i = 0; engine->timeline && i < count; i++)
        engine_timeline_started(engine, op_of(works[i]));
}

static void start(struct engine *engine, struct engine_batch *batch)
{
    for (size_t i = 0; i < BACKENDS; i++) {
        if (engine_backends[i]->accepts(batch)) {
            engine_backends[i]->start(engine->backend_contexts[i], batch);
            return;
        }
    }
    batch->status = HVI_ERR_UNSUPPORTED;
    batch_done(engine, batch);
}

static void end_works(struct engine *engine, struct engine_work *const *works, uint32_t count,
                      int status, const char *text)
{
    for (uint32_t i = 0; i < count; i++)
        engine_op_done(engine, op_of(works[i]), status, text, -1);
}

/* The window that fusion looks at. Without group fusion it holds one group, or none. */
static uint32_t look(const struct engine *engine, struct engine_work **works_p)
{
    const struct engine_op *group = engine->ready_first->group;
    uint32_t count = 0;

    for (struct engine_op *op = engine->ready_first; op && count < ENGINE_BATCH_WORKS;
         op = op->next) {
        if (op->group != group && !engine->group_fusion)
            break;
        works_p[count++] = &op->work;
    }
    return count;
}

static void forget_ready(struct engine *engine, uint32_t count)
{
    engine->ready_count -= count;
    while (count-- > 0)
        engine->ready_first = engine->ready_first->next;
    if (!engine->ready_first)
        engine->ready_last = NULL;
}

void engine_dispatch_ready(struct engine *engine)
{
    struct engine_work *works[ENGINE_BATCH_WORKS];

    while (engine->ready_first) {
        uint32_t count = look(engine, works);
        struct engine_batch *batch = batch_new(engine);
        count = engine_fusion_take((const struct engine_work *const *)works, count,
                                   engine->fusion_bytes);
        forget_ready(engine, count);
        if (batch) {
            fill(engine, batch, works, count);
            show_start(engine, works, count);
            start(engine, batch);
        } else {
            end_works(engine, works, count, HVI_ERR_NO_MEMORY, "the engine is out of memory");
        }
    }
}

static void finish(struct engine *engine, struct engine_batch *batch)
{
    char text[128];

    text[0] = '\0';
    if (batch->status == HVI_ERR_UNSUPPORTED)
        snprintf(text, sizeof text, "no backend works on memory of kind %u", batch->memory_kind);
    else if (batch->status != HVI_OK)
        snprintf(text, sizeof text, "the backend failed: %s", hvi_status_text(batch->status));
    if (batch->status != HVI_OK && batch->fault.rank >= 0) /* alone in its batch */
        engine_foreign_failed(engine, op_of(batch->works[0]), batch->status, &batch->fault);
    else
        end_works(engine, batch->works, batch->count, batch->status, text);
    batch->next = engine->free_batches;
    engine->free_batches = batch;
}

static void finish_list(struct engine *engine, struct engine_batch *list)
{
    struct engine_batch *oldest = NULL;

    while (list) { /* newest first: turn it */
        struct engine_batch *next = list->next;
        list->next = oldest;
        oldest = list;
        list = next;
    }
    while (oldest) {
        struct engine_batch *next = oldest->next;
        finish(engine, oldest);
        oldest = next;
    }
}

bool engine_dispatch_reap(struct engine *engine)
{
    struct engine_batch *mine = engine->finished;
    struct engine_batch *others = NULL;

    /* Acquire, pairs with the release in batch_done. */
    if (atomic_load_explicit(&engine->finished_elsewhere_count, memory_order_acquire) != 0) {
        pthread_mutex_lock(&engine->finished_lock);
        others = engine->finished_elsewhere;
        engine->finished_elsewhere = NULL;
        atomic_store_explicit(&engine->finished_elsewhere_count, 0, memory_order_relaxed);
        pthread_mutex_unlock(&engine->finished_lock);
    }
    if (!mine && !others)
        return false;
    engine->finished = NULL;
    engine->now_ns = hvi_clock_ns();
    finish_list(engine, mine);
    finish_list(engine, others);
    return true;
}

bool engine_dispatch_help(struct engine *engine)
{
    for (size_t i = 0; i < BACKENDS; i++) {
        if (engine_backends[i]->help(engine->backend_contexts[i]))
            return true;
    }
    return false;
}

void engine_dispatch_drop(struct engine *engine, int status, const char *text)
{
    struct engine_work *works[ENGINE_BATCH_WORKS];

    while (engine->ready_first) {
        uint32_t count = look(engine, works);
        forget_ready(engine, count);
        end_works(engine, works, count, status, text);
    }
}

void engine_dispatch_settle(struct engine *engine)
{
    engine_dispatch_ready(engine);
    /* Acquire, pairs with the release in batch_done. */
    while (atomic_load_explicit(&engine->executing, memory_order_acquire) > 0) {
        if (!engine_dispatch_help(engine))
            sched_yield();
    }
}
