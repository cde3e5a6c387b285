/* SPDX-License-Identifier: Apache-2.0
 * The worker threads ("hvd-worker"). Batches are done in the order they were queued, piece by
 * piece:
 *
 *     queue: [batch A: 40 of 64 pieces taken] -> [batch B: 0 taken] -> ...
 *
 * One mutex guards the queue and the counters; it is taken twice per piece of some 50 microseconds,
 * and nothing runs under it. A batch leaves the queue when its last piece is taken and is reported
 * by whoever finishes the last piece. The main thread takes pieces too while it has nothing better
 * to do, which saves waking and sleeping it. */
#include "daemon/engine/host.h"

#include "base/assert.h"
#include "base/status.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>

struct engine_host_pool {
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct engine_batch *head, *tail;
    bool closing;
    _Atomic uint32_t queued; /* batches in the queue: written under the lock, looked at without */
    uint32_t running;        /* batches not reported done */
    const struct engine_kernels *kernels;
    void (*done)(void *user, struct engine_batch *batch);
    void *user;
    uint32_t thread_count;
    pthread_t threads[];
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

/* Lock held on entry and on return. */
static void run_unit(struct engine_host_pool *pool, struct engine_batch *batch, uint32_t unit)
{
    pthread_mutex_unlock(&pool->lock);
    engine_host_run_unit(pool->kernels, batch, unit);
    pthread_mutex_lock(&pool->lock);
    if (--batch->units_left > 0)
        return;
    pool->running--;
    pthread_mutex_unlock(&pool->lock);
    batch->status = HVI_OK;
    pool->done(pool->user, batch);
    pthread_mutex_lock(&pool->lock);
}

static void *work(void *argument)
{
    struct engine_host_pool *pool = argument;
    uint32_t unit = 0;

    pthread_mutex_lock(&pool->lock);
    for (;;) {
        struct engine_batch *batch = take_unit(pool, &unit);
        if (batch)
            run_unit(pool, batch, unit);
        else if (pool->closing)
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
        error = pthread_create(&pool->threads[pool->thread_count], NULL, work, pool);
        if (error)
            break;
        pthread_setname_np(pool->threads[pool->thread_count], "hvd-worker");
        pool->thread_count++;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error ? HVI_ERR_LIMIT : HVI_OK;
}

int engine_host_pool_open(uint32_t workers, const struct engine_kernels *kernels,
                          void (*done)(void *user, struct engine_batch *batch), void *user,
                          struct engine_host_pool **pool_p)
{
    struct engine_host_pool *pool = calloc(1, sizeof *pool + workers * sizeof pool->threads[0]);
    if (!pool)
        return HVI_ERR_NO_MEMORY;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pool->kernels = kernels;
    pool->done = done;
    pool->user = user;
    int status = start_threads(pool, workers);
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
        pthread_join(pool->threads[i], NULL);
    HVI_ASSERT(pool->running == 0);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
}

void engine_host_pool_submit(struct engine_host_pool *pool, struct engine_batch *batch)
{
    batch->units = engine_host_units(batch);
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
        run_unit(pool, batch, unit);
    pthread_mutex_unlock(&pool->lock);
    return batch != NULL;
}
