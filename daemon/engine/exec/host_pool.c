/* SPDX-License-Identifier: Apache-2.0
 * The worker threads ("hvd-worker"). Batches are done in the order they were queued, piece by
 * piece:
 *
 *     queue: [batch A: 40 of 64 pieces taken] -> [batch B: 0 taken] -> ...
 *
 * One mutex guards the queue and the counters; it is taken twice per piece of some 50 microseconds,
 * and nothing runs under it. A batch leaves the queue when its last piece is taken and is reported
 * by whoever finishes the last piece, unless it has another round to go: then it comes back to the
 * front. The main thread takes pieces too while it has nothing better to do, which saves waking and
 * sleeping it. */
#include "daemon/engine/exec/host.h"

#include "base/assert.h"
#include "base/huge.h"
#include "base/status.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

struct worker {
    struct engine_host_pool *pool;
    struct engine_host_thread own;
    pthread_t thread;
};

struct engine_host_pool {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct engine_batch *head, *tail;
    bool closing;
    _Atomic uint32_t queued; /* batches in the queue: written under the lock, looked at without */
    uint32_t running;        /* batches not reported done */
    void (*done)(void *user, struct engine_batch *batch);
    void *user;
    struct engine_host_thread helper;    /* for help() and run() */
    uint32_t worker_count, thread_count; /* that there are, that run */
    struct worker workers[];
};

/* Lock held. */
static struct engine_batch *take_unit(struct engine_host_pool *pool, uint32_t *unit_p)
{
    struct engine_batch *batch = pool->head;

    if (!batch)
        return NULL;
    *unit_p = batch->units_taken++;
    if (batch->units_taken == batch->units) {
        pool->head = batch->next;
        if (!pool->head)
            pool->tail = NULL;
        atomic_fetch_sub_explicit(&pool->queued, 1, memory_order_relaxed);
    }
    return batch;
}

/* Lock held. In front: it was there before, and may have another round to go. */
static void queue_first(struct engine_host_pool *pool, struct engine_batch *batch)
{
    batch->units_taken = 0;
    batch->units_left = batch->units;
    batch->next = pool->head;
    pool->head = batch;
    if (!pool->tail)
        pool->tail = batch;
    atomic_fetch_add_explicit(&pool->queued, 1, memory_order_relaxed);
    pthread_cond_broadcast(&pool->work);
}

/* Lock held on entry and on return. The last unit of a round is over and nobody else has to do with
 * the batch. */
static void end_round(struct engine_host_pool *pool, struct engine_batch *batch)
{
    pthread_mutex_unlock(&pool->lock);
    bool more = engine_host_next_round(batch);
    if (!more)
        engine_host_release(batch);
    pthread_mutex_lock(&pool->lock);
    if (more) {
        queue_first(pool, batch);
        return;
    }
    if (--pool->running == 0 && pool->closing)
        pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    pool->done(pool->user, batch);
    pthread_mutex_lock(&pool->lock);
}

/* Lock held on entry and on return. After a failure the units that are left are only counted. */
static void run_unit(struct engine_host_pool *pool, const struct engine_host_thread *own,
                     struct engine_batch *batch, uint32_t unit)
{
    if (batch->status == HVI_OK) {
        struct engine_fault fault = {.rank = -1};
        pthread_mutex_unlock(&pool->lock);
        int status = engine_host_run_unit(own, batch, unit, &fault);
        pthread_mutex_lock(&pool->lock);
        if (status != HVI_OK && batch->status == HVI_OK) {
            batch->status = status;
            batch->fault = fault;
        }
    }
    if (--batch->units_left == 0)
        end_round(pool, batch);
}

static void *work(void *argument)
{
    struct worker *self = argument;
    struct engine_host_pool *pool = self->pool;
    uint32_t unit = 0;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct engine_batch *batch = take_unit(pool, &unit);
        if (batch)
            run_unit(pool, &self->own, batch, unit);
        else if (pool->closing && pool->running == 0)
            break;
        else
            pthread_cond_wait(&pool->work, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* Signals are the main thread's business. */
static int start_threads(struct engine_host_pool *pool, uint32_t workers)
{
    sigset_t all, before;
    int error = 0;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (error == 0 && pool->thread_count < workers) {
        struct worker *worker = &pool->workers[pool->thread_count];
        worker->pool = pool;
        error = pthread_create(&worker->thread, NULL, work, worker);
        if (error)
            break;
        pthread_setname_np(worker->thread, "hvd-worker");
        pool->thread_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? HVI_ERR_LIMIT : HVI_OK;
}

/* Large enough to come from mmap: pages come when a foreign operand or an adasum first needs them,
 * huge ones if they can be had, for the kernel's copies look up every page. */
static bool equip(struct engine_host_thread *own, const struct engine_host_thread *model)
{
    *own = *model;
    own->buffer = aligned_alloc(HVI_HUGE_BYTES, ENGINE_HOST_BUFFER_BYTES);
    if (!own->buffer)
        return false;
    madvise(own->buffer, ENGINE_HOST_BUFFER_BYTES, MADV_HUGEPAGE);
    return true;
}

int engine_host_pool_open(uint32_t workers, const struct engine_host_thread *model,
                          void (*done)(void *user, struct engine_batch *batch), void *user,
                          struct engine_host_pool **pool_p)
{
    struct engine_host_pool *pool = calloc(1, sizeof *pool + workers * sizeof pool->workers[0]);
    if (!pool)
        return HVI_ERR_NO_MEMORY;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pool->done = done;
    pool->user = user;
    pool->worker_count = workers;
    bool equipped = equip(&pool->helper, model);
    for (uint32_t i = 0; i < workers && equipped; i++)
        equipped = equip(&pool->workers[i].own, model);
    int status = equipped ? start_threads(pool, workers) : HVI_ERR_NO_MEMORY;
    if (status != HVI_OK) {
        engine_host_pool_close(pool);
        return status;
    }
    *pool_p = pool;
    return HVI_OK;
}

void engine_host_pool_close(struct engine_host_pool *pool)
{
    if (!pool)
        return;
    while (engine_host_pool_help(pool)) {
    }
    pthread_mutex_lock(&pool->lock);
    pool->closing = true;
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->lock);
    for (uint32_t i = 0; i < pool->thread_count; i++)
        pthread_join(pool->workers[i].thread, NULL);
    HVI_ASSERT(pool->running == 0);
    for (uint32_t i = 0; i < pool->worker_count; i++)
        free(pool->workers[i].own.buffer);
    free(pool->helper.buffer);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void engine_host_pool_submit(struct engine_host_pool *pool, struct engine_batch *batch)
{
    engine_host_cut(batch, pool->worker_count + 1);
    batch->units_taken = 0;
    batch->units_left = batch->units;
    batch->next = NULL;
    pthread_mutex_lock(&pool->lock);
    if (pool->tail)
        pool->tail->next = batch;
    else
        pool->head = batch;
    pool->tail = batch;
    atomic_fetch_add_explicit(&pool->queued, 1, memory_order_relaxed);
    pool->running++;
    if (batch->units > 1)
        pthread_cond_broadcast(&pool->work);
    else
        pthread_cond_signal(&pool->work);
    pthread_mutex_unlock(&pool->lock);
}

bool engine_host_pool_help(struct engine_host_pool *pool)
{
    uint32_t unit = 0;

    if (atomic_load_explicit(&pool->queued, memory_order_relaxed) == 0)
        return false;
    pthread_mutex_lock(&pool->lock);
    struct engine_batch *batch = take_unit(pool, &unit);
    if (batch)
        run_unit(pool, &pool->helper, batch, unit);
    pthread_mutex_unlock(&pool->lock);
    return batch != NULL;
}

void engine_host_pool_run(struct engine_host_pool *pool, struct engine_batch *batch)
{
    engine_host_cut(batch, pool->worker_count + 1);
    do {
        for (uint32_t unit = 0; unit < batch->units && batch->status == HVI_OK; unit++)
            batch->status = engine_host_run_unit(&pool->helper, batch, unit, &batch->fault);
    } while (engine_host_next_round(batch));
    engine_host_release(batch);
    pool->done(pool->user, batch);
}
