/* SPDX-License-Identifier: Apache-2.0
 * The worker threads ("hvd-worker"). Batches are done in the order they were queued, piece by
 * piece:
 *
 *     queue: [batch A: 40 of 64 pieces taken] -> [batch B: 0 taken] -> ...
 *
 * One mutex guards the queue and the counters; it is taken twice per piece of some 50 microseconds,
 * and nothing runs under it. A batch leaves the queue when its last piece is taken and is reported
 * by whoever finishes the last piece, unless it has another step to go: then it comes back to the
 * front. The main thread takes pieces too while it has nothing better to do, which saves waking and
 * sleeping it, but none with remote operands; one worker takes only such, in its place.
 *
 * Remote-process memory may not answer (host_process.c says why). The main thread looks at the workers
 * now and then, and counts the time from look to look: an engine that stood still itself blames no
 * memory.
 *
 *     after ENGINE_SILENT_NS   the worker is silent: no further piece of its batch is begun, and
 *                              another worker takes its place. If it comes back, it finishes its
 *                              piece and ends.
 *     after .answer_ns         the worker is lost: the batch fails without it. If it comes back, it
 *                              ends at once; the end of the process ends it otherwise.
 *
 * There are at most AWAY_MAX workers that have been replaced and have not ended; then remote batches
 * fail until one ends. They also fail while every worker waits and no thread can be started. */
#include "daemon/engine/exec/host.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/huge.h"
#include "base/log.h"
#include "base/status.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Beside as many as there are threads: one op may hold all of these. */
#define AWAY_MAX 16u

struct worker {
    struct worker *next;
    struct engine_host_pool *pool;
    struct engine_host_thread own;
    struct engine_host_transfer transfer;
    pthread_t thread;
    bool remote_only; /* takes nothing else */
    /* Under the lock. */
    struct engine_batch *batch; /* a piece of which it does; NULL: none, or the worker is lost */
    bool silent;                /* counted in the batch's .units_silent */
    bool lost;
    bool replaced;      /* it ends with its piece */
    uint64_t seen_ns;   /* .since_ns of the transfer at the last look */
    uint64_t waited_ns; /* for that transfer, from look to look */
};

struct engine_host_pool {
    pthread_mutex_t lock;
    pthread_cond_t work;        /* for the workers that take everything */
    pthread_cond_t remote_work; /* for the others */
    struct engine_batch *head, *tail;
    bool closing;
    /* Batches in the queue without remote operands: written under the lock, looked at without. */
    _Atomic uint32_t queued;
    uint32_t running; /* batches not posted */
    struct engine_backend_config config;
    struct worker helper;   /* for help() and run(): the main thread */
    struct worker *workers; /* the main thread's */
    uint32_t away;          /* of these: replaced, and not joined; under the lock */
    bool lacks_thread;      /* a worker could not be replaced, and that was logged */
    uint64_t looked_ns;     /* when the main thread looked at the workers last */
};

/* No further worker may be replaced. */
static bool is_full(const struct engine_host_pool *pool)
{
    return pool->away == pool->config.threads + AWAY_MAX;
}

static bool is_remote(const struct engine_batch *batch)
{
    return engine_work_has(batch->works[0], ENGINE_OPERAND_PROCESS);
}

/* Of the step that it is at. */
static uint32_t units_of(const struct engine_batch *batch)
{
    return batch->plan.steps[batch->plan.at].units;
}

/* ---- the queue ---- */

/* Lock held. */
static void unqueue(struct engine_host_pool *pool, struct engine_batch *batch)
{
    struct engine_batch **link = &pool->head, *before = NULL;

    while (*link != batch) {
        before = *link;
        link = &before->next;
    }
    *link = batch->next;
    if (pool->tail == batch)
        pool->tail = before;
    if (!is_remote(batch))
        atomic_fetch_sub_explicit(&pool->queued, 1, memory_order_relaxed);
}

static bool may_take(const struct worker *self, const struct engine_batch *batch)
{
    if (is_remote(batch))
        return self->own.transfer && batch->units_silent == 0 && !is_full(self->pool);
    return !self->remote_only;
}

/* Lock held. */
static struct engine_batch *take_unit(struct worker *self, uint32_t *unit_p)
{
    struct engine_batch *batch = self->pool->head;

    while (batch && !may_take(self, batch))
        batch = batch->next;
    if (!batch)
        return NULL;
    *unit_p = batch->units_taken++;
    if (batch->units_taken == units_of(batch))
        unqueue(self->pool, batch);
    return batch;
}

/* Lock held. */
static void wake(struct engine_host_pool *pool, const struct engine_batch *batch)
{
    if (is_remote(batch))
        pthread_cond_signal(&pool->remote_work);
    if (units_of(batch) > 1)
        pthread_cond_broadcast(&pool->work);
    else
        pthread_cond_signal(&pool->work);
}

/* Lock held. In front: it was there before. */
static void queue_first(struct engine_host_pool *pool, struct engine_batch *batch)
{
    batch->units_taken = 0;
    batch->units_left = units_of(batch);
    batch->next = pool->head;
    pool->head = batch;
    if (!pool->tail)
        pool->tail = batch;
    if (!is_remote(batch))
        atomic_fetch_add_explicit(&pool->queued, 1, memory_order_relaxed);
    wake(pool, batch);
}

static bool has_next_step(const struct engine_batch *batch)
{
    return batch->status == HVI_OK && batch->plan.at + 1 < batch->plan.count;
}

/* Lock held on entry and on return. The last unit of a step is over and nobody else has to do with
 * the batch, but for engine_host_pool_cancel. */
static void end_step(struct engine_host_pool *pool, struct engine_batch *batch)
{
    if (has_next_step(batch)) {
        pthread_mutex_unlock(&pool->lock);
        engine_host_next_step(batch);
        pthread_mutex_lock(&pool->lock);
        if (batch->status == HVI_OK) {
            queue_first(pool, batch);
            return;
        }
    }
    batch->over = true;
    if (--pool->running == 0 && pool->closing) {
        pthread_cond_broadcast(&pool->work);
        pthread_cond_broadcast(&pool->remote_work);
    }
    pthread_mutex_unlock(&pool->lock);
    engine_host_release(batch);
    pool->config.post(pool->config.user, batch);
    pthread_mutex_lock(&pool->lock);
}

/* Lock held. Units that were not taken are over with that. */
static void fail(struct engine_host_pool *pool, struct engine_batch *batch, int status,
                 const struct engine_fault *fault)
{
    if (batch->status != HVI_OK)
        return;
    batch->status = status;
    batch->fault = *fault;
    if (batch->units_taken == units_of(batch))
        return;
    unqueue(pool, batch);
    batch->units_left -= units_of(batch) - batch->units_taken;
    batch->units_taken = units_of(batch);
}

/* ---- a worker ---- */

/* Lock held. The worker has come back from remote-process memory, perhaps late. */
static void come_back(struct worker *self, struct engine_batch *batch)
{
    self->batch = NULL;
    if (!self->silent)
        return;
    self->silent = false;
    if (--batch->units_silent == 0)
        wake(self->pool, batch);
}

/* Lock held on entry and on return. */
static void run_unit(struct worker *self, struct engine_batch *batch, uint32_t unit)
{
    struct engine_host_pool *pool = self->pool;

    if (batch->status == HVI_OK) {
        struct engine_fault fault = {.rank = -1};
        self->batch = batch;
        pthread_mutex_unlock(&pool->lock);
        int status = engine_host_run_unit(&self->own, batch, unit, &fault);
        pthread_mutex_lock(&pool->lock);
        come_back(self, batch);
        if (status != HVI_OK)
            fail(pool, batch, status, &fault);
    }
    if (--batch->units_left == 0)
        end_step(pool, batch);
}

static void do_units(struct worker *self)
{
    struct engine_host_pool *pool = self->pool;
    uint32_t unit = 0;

    pthread_mutex_lock(&pool->lock);
    while (!self->replaced) {
        struct engine_batch *batch = take_unit(self, &unit);
        if (batch)
            run_unit(self, batch, unit);
        else if (pool->closing && pool->running == 0)
            break;
        else
            pthread_cond_wait(self->remote_only ? &pool->remote_work : &pool->work, &pool->lock);
    }
    pthread_mutex_unlock(&pool->lock);
}

static void *work(void *argument)
{
    struct worker *self = argument;

    if (sigsetjmp(self->transfer.leave, 0) == 0)
        do_units(self);
    /* Release, pairs with the acquire in has_ended. */
    atomic_store_explicit(&self->transfer.ended, true, memory_order_release);
    return NULL;
}

/* Large enough to come from mmap: pages come when a remote operand or an adasum first needs them,
 * huge ones if they can be had, for the kernel's copies look up every page. */
static bool equip(struct engine_host_thread *own, const struct engine_host_thread *model)
{
    *own = *model;
    own->transfer = NULL;
    own->buffer = aligned_alloc(HVI_HUGE_BYTES, ENGINE_HOST_BUFFER_BYTES);
    if (!own->buffer)
        return false;
    madvise(own->buffer, ENGINE_HOST_BUFFER_BYTES, MADV_HUGEPAGE);
    return true;
}

/* Signals are the main thread's business, but a page that a worker misses is the worker's. */
static int start_thread(struct worker *worker)
{
    sigset_t all, before;

    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(&worker->thread, NULL, work, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error)
        return HVI_ERR_LIMIT;
    pthread_setname_np(worker->thread, "hvd-worker");
    return HVI_OK;
}

static int add_worker(struct engine_host_pool *pool, bool remote_only)
{
    struct worker *worker = calloc(1, sizeof *worker);
    int status = HVI_ERR_NO_MEMORY;

    if (!worker)
        return status;
    worker->pool = pool;
    worker->remote_only = remote_only;
    if (equip(&worker->own, &pool->helper.own)) {
        worker->own.transfer = &worker->transfer;
        status = start_thread(worker);
    }
    if (status != HVI_OK) {
        free(worker->own.buffer);
        free(worker);
        return status;
    }
    worker->next = pool->workers;
    pool->workers = worker;
    return HVI_OK;
}

/* ---- workers that do not come back ---- */

static bool has_ended(const struct worker *worker)
{
    /* Acquire, pairs with the release store in work(). */
    return atomic_load_explicit(&worker->transfer.ended, memory_order_acquire);
}

/* The thread has ended, or is about to. */
static void remove_worker(struct worker **link)
{
    struct worker *worker = *link;

    *link = worker->next;
    pthread_join(worker->thread, NULL);
    if (worker->lost) /* free() may want to write there */
        mprotect(worker->own.buffer, ENGINE_HOST_BUFFER_BYTES, PROT_READ | PROT_WRITE);
    free(worker->own.buffer);
    free(worker);
}

/* Lock held: the new worker begins when it is given back. */
static void replace(struct worker *worker)
{
    struct engine_host_pool *pool = worker->pool;

    if (is_full(pool))
        return;
    int status = add_worker(pool, worker->remote_only);
    if (status != HVI_OK && !pool->lacks_thread)
        HVI_LOG(HVI_LOG_WARN, "foreign", "no-worker", hvi_status_text(status), "away=%u",
                pool->away);
    pool->lacks_thread = status != HVI_OK;
    if (status != HVI_OK) /* the next look tries again */
        return;
    worker->replaced = true;
    pool->away++;
}

/* Lock held. One that could not be replaced while it was away is replaced now. */
static void remove_ended(struct engine_host_pool *pool)
{
    struct worker **link = &pool->workers;
    bool was_full = is_full(pool);

    while (*link) {
        struct worker *worker = *link;
        if (has_ended(worker) && !worker->replaced)
            replace(worker); /* which becomes the first of the list */
        while (*link != worker)
            link = &(*link)->next;
        if (has_ended(worker) && worker->replaced) {
            pool->away--;
            remove_worker(link);
        } else {
            link = &worker->next;
        }
    }
    if (was_full && !is_full(pool)) { /* a batch may have come back for another step meanwhile */
        pthread_cond_broadcast(&pool->work);
        pthread_cond_broadcast(&pool->remote_work);
    }
}

/* The kernel will find nothing there when the memory answers at last. */
static void close_buffer(const struct worker *worker)
{
    void *closed = mmap(worker->own.buffer, ENGINE_HOST_BUFFER_BYTES, PROT_NONE,
                        MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (closed == MAP_FAILED)
        HVI_LOG(HVI_LOG_ERROR, "foreign", "buffer-open", strerror(errno), "address=%p",
                (void *)worker->own.buffer);
}

static bool is_in_buffer(const struct worker *worker, const void *local)
{
    const unsigned char *at = local;

    return at >= worker->own.buffer && at < worker->own.buffer + ENGINE_HOST_BUFFER_BYTES;
}

static struct engine_fault fault_of(const struct worker *worker)
{
    const struct engine_host_transfer *transfer = &worker->transfer;

    return (struct engine_fault){
        .rank = (int32_t)atomic_load_explicit(&transfer->rank, memory_order_relaxed),
        .error = ETIMEDOUT,
        .writing = atomic_load_explicit(&transfer->writing, memory_order_relaxed),
        .address = atomic_load_explicit(&transfer->address, memory_order_relaxed),
        .waited_ns = worker->waited_ns,
    };
}

/* Lock held on entry and on return. `gone`: the member whose process is over, or -1. */
static void give_up(struct worker *worker, int32_t gone)
{
    struct engine_host_pool *pool = worker->pool;
    struct engine_batch *batch = worker->batch;
    uint64_t since_ns = worker->seen_ns;

    /* Its partner is the compare-and-swap in host_process.c's end(): only one of the two succeeds. */
    if (!atomic_compare_exchange_strong_explicit(&worker->transfer.since_ns, &since_ns,
                                                 ENGINE_HOST_LOST, memory_order_acq_rel,
                                                 memory_order_relaxed))
        return;
    const struct engine_fault silent = fault_of(worker);
    const struct engine_fault over = {.rank = gone, .error = ESRCH};
    if (!is_in_buffer(worker, atomic_load_explicit(&worker->transfer.local, memory_order_relaxed)))
        batch->works[0]->out[silent.rank].late = true;
    close_buffer(worker);
    worker->lost = true;
    come_back(worker, batch);
    if (gone >= 0)
        fail(pool, batch, HVI_ERR_RANK_LOST, &over);
    else
        fail(pool, batch, HVI_ERR_STALLED, &silent);
    if (--batch->units_left == 0)
        end_step(pool, batch);
}

static bool lives(const struct engine_operand *operand)
{
    return operand->kind != ENGINE_OPERAND_PROCESS || engine_host_process_lives(operand->process);
}

/* The first member whose process is over; -1: none. The worker asks for it, too, but may wait for ever. */
static int32_t gone_member(const struct engine_work *work)
{
    for (uint32_t i = 0; i < work->ranks; i++) {
        if (!lives(&work->in[i]) || !lives(&work->out[i]))
            return (int32_t)i;
    }
    return -1;
}

/* 0: it is in none, or is lost. */
static uint64_t transfer_of(const struct worker *worker)
{
    /* Acquire, pairs with the release in host_process.c's begin(). */
    uint64_t since_ns = atomic_load_explicit(&worker->transfer.since_ns, memory_order_acquire);

    return since_ns != ENGINE_HOST_LOST ? since_ns : 0;
}

/* Its transfer has lasted for ENGINE_SILENT_NS. */
static bool waits_long(const struct worker *worker)
{
    uint64_t since_ns = transfer_of(worker);

    return since_ns != 0 && since_ns == worker->seen_ns && worker->waited_ns >= ENGINE_SILENT_NS;
}

/* Lock held on entry and on return. `step_ns` have passed since the last look. `most_ns` is the deadline
 * if the batch's is later. */
static void watch(struct worker *worker, uint64_t step_ns, uint64_t most_ns)
{
    uint64_t since_ns = transfer_of(worker);

    worker->waited_ns = since_ns == worker->seen_ns ? worker->waited_ns + step_ns : 0;
    worker->seen_ns = since_ns;
    bool waits = waits_long(worker);
    if (waits && !worker->silent) {
        worker->silent = true;
        worker->batch->units_silent++;
    }
    if ((worker->silent || worker->lost) && !worker->replaced)
        replace(worker);
    if (!waits)
        return;
    const struct engine_batch *batch = worker->batch;
    int32_t gone = gone_member(batch->works[0]);
    if (worker->waited_ns >= batch->answer_ns || worker->waited_ns >= most_ns ||
        batch->status != HVI_OK || gone >= 0)
        give_up(worker, gone);
}

/* No worker may be replaced, or each waits for memory and could not be replaced. */
static bool refuses_remote(const struct engine_host_pool *pool)
{
    const struct worker *able = pool->workers;

    while (able && (able->silent || able->lost || able->replaced))
        able = able->next;
    return is_full(pool) || !able;
}

/* Lock held on entry and on return. */
static void refuse_remote(struct engine_host_pool *pool)
{
    const struct engine_fault fault = {.rank = -1};
    struct engine_batch *batch = pool->head;

    while (batch) {
        struct engine_batch *next = batch->next;
        if (is_remote(batch)) {
            fail(pool, batch, HVI_ERR_LIMIT, &fault);
            if (batch->units_left == 0) {
                end_step(pool, batch);
                next = pool->head; /* it was given back */
            }
        }
        batch = next;
    }
}

static void watch_all(struct engine_host_pool *pool, uint64_t most_ns)
{
    uint64_t now_ns = hvi_clock_ns(), step_ns = now_ns - pool->looked_ns;

    pool->looked_ns = now_ns;
    if (step_ns > ENGINE_SILENT_NS) /* it did not look meanwhile */
        step_ns = ENGINE_SILENT_NS;
    pthread_mutex_lock(&pool->lock);
    remove_ended(pool);
    for (struct worker *worker = pool->workers; worker; worker = worker->next)
        watch(worker, step_ns, most_ns);
    if (refuses_remote(pool))
        refuse_remote(pool);
    pthread_mutex_unlock(&pool->lock);
}

void engine_host_pool_watch(void *context)
{
    watch_all(context, UINT64_MAX);
}

bool engine_host_pool_silent(void *context, const struct engine_batch *batch,
                             struct engine_fault *fault_p)
{
    struct engine_host_pool *pool = context;
    bool found = false;

    pthread_mutex_lock(&pool->lock);
    for (struct worker *worker = pool->workers; worker && !found; worker = worker->next) {
        found = worker->batch == batch && waits_long(worker);
        if (found)
            *fault_p = fault_of(worker);
    }
    pthread_mutex_unlock(&pool->lock);
    return found;
}

void engine_host_pool_cancel(void *context, struct engine_batch *batch)
{
    struct engine_host_pool *pool = context;
    const struct engine_fault fault = {.rank = -1};

    pthread_mutex_lock(&pool->lock);
    if (!batch->over && batch->units_left > 0) {
        fail(pool, batch, HVI_ERR_CANCELLED, &fault);
        if (batch->units_left == 0)
            end_step(pool, batch);
    } else if (!batch->over && batch->status == HVI_OK) {
        batch->status = HVI_ERR_CANCELLED; /* between two steps: end_step sees it */
    }
    pthread_mutex_unlock(&pool->lock);
}

/* ---- the whole ---- */

int engine_host_pool_open(const struct engine_backend_config *config,
                          const struct engine_host_thread *model, void **pool_p)
{
    struct engine_host_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return HVI_ERR_NO_MEMORY;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->remote_work, NULL);
    pool->config = *config;
    pool->helper.pool = pool;
    int status = equip(&pool->helper.own, model) ? HVI_OK : HVI_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < config->threads && status == HVI_OK; i++)
        status = add_worker(pool, i == 0);
    if (status != HVI_OK) {
        engine_host_pool_close(pool);
        return status;
    }
    *pool_p = pool;
    return HVI_OK;
}

int engine_host_pool_grow(void *context, uint32_t threads)
{
    struct engine_host_pool *pool = context;
    int status = HVI_OK;

    pthread_mutex_lock(&pool->lock);
    while (pool->config.threads < threads && status == HVI_OK) {
        status = add_worker(pool, false);
        pool->config.threads += status == HVI_OK ? 1 : 0;
    }
    pthread_mutex_unlock(&pool->lock);
    return status;
}

static void finish(struct engine_host_pool *pool)
{
    bool busy = true;

    while (busy) {
        while (engine_host_pool_help(pool)) {
        }
        watch_all(pool, ENGINE_SILENT_NS);
        pthread_mutex_lock(&pool->lock);
        busy = pool->running > 0;
        pool->closing = !busy;
        pthread_mutex_unlock(&pool->lock);
        if (busy)
            sched_yield();
    }
    pthread_cond_broadcast(&pool->work);
    pthread_cond_broadcast(&pool->remote_work);
}

bool engine_host_pool_close(void *context)
{
    struct engine_host_pool *pool = context;

    finish(pool);
    struct worker **link = &pool->workers;
    while (*link) {
        if ((*link)->lost && !has_ended(*link)) {
            pthread_detach((*link)->thread);
            link = &(*link)->next;
        } else {
            remove_worker(link);
        }
    }
    if (pool->workers) /* these know their places in it */
        return false;
    free(pool->helper.own.buffer);
    pthread_cond_destroy(&pool->remote_work);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool);
    return true;
}

uint32_t engine_host_pool_threads(const void *context)
{
    return ((const struct engine_host_pool *)context)->config.threads;
}

void engine_host_pool_submit(void *context, struct engine_batch *batch)
{
    struct engine_host_pool *pool = context;

    batch->units_taken = 0;
    batch->units_left = units_of(batch);
    batch->units_silent = 0;
    batch->over = false;
    batch->next = NULL;
    pthread_mutex_lock(&pool->lock);
    if (pool->tail)
        pool->tail->next = batch;
    else
        pool->head = batch;
    pool->tail = batch;
    if (!is_remote(batch))
        atomic_fetch_add_explicit(&pool->queued, 1, memory_order_relaxed);
    pool->running++;
    if (is_remote(batch) && refuses_remote(pool))
        remove_ended(pool);
    if (is_remote(batch) && refuses_remote(pool))
        refuse_remote(pool);
    else
        wake(pool, batch);
    pthread_mutex_unlock(&pool->lock);
}

bool engine_host_pool_help(void *context)
{
    struct engine_host_pool *pool = context;
    uint32_t unit = 0;

    if (atomic_load_explicit(&pool->queued, memory_order_relaxed) == 0)
        return false;
    pthread_mutex_lock(&pool->lock);
    struct engine_batch *batch = take_unit(&pool->helper, &unit);
    if (batch)
        run_unit(&pool->helper, batch, unit);
    pthread_mutex_unlock(&pool->lock);
    return batch != NULL;
}

void engine_host_pool_run(void *context, struct engine_batch *batch)
{
    struct engine_host_pool *pool = context;

    for (;;) {
        for (uint32_t unit = 0; unit < units_of(batch) && batch->status == HVI_OK; unit++)
            batch->status = engine_host_run_unit(&pool->helper.own, batch, unit, &batch->fault);
        if (!has_next_step(batch))
            break;
        engine_host_next_step(batch);
    }
    engine_host_release(batch);
    pool->config.post(pool->config.user, batch);
}
