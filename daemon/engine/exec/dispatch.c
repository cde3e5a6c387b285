/* SPDX-License-Identifier: Apache-2.0
 * Dispatch: ready ops become batches (fusion.c), a batch goes to the first backend that accepts it,
 * and finished batches come back. The rows are host memory on one node, the same over several, and
 * memory of GPUs.
 *
 * Batches are kept for reuse. A backend posts a batch that is over from any thread: to one list, from
 * which the main thread takes all, and to our eventfd if the main thread may sleep. */
#include "daemon/engine/exec/exec.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/exec/fusion.h"
#include "daemon/engine/exec/gpu.h"
#include "daemon/engine/exec/host.h"
#include "daemon/engine/order/schedule.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>

const struct engine_backend *const engine_backends[] = {&engine_backend_host, &engine_backend_net,
                                                        &engine_backend_gpu, NULL};
#define BACKENDS (sizeof engine_backends / sizeof engine_backends[0] - 1)
_Static_assert(BACKENDS <= sizeof(((struct engine_exec *)0)->backend_contexts) / sizeof(void *),
               "a context per backend");

static void *context_of(const struct engine_exec *exec, const struct engine_backend *backend)
{
    uint32_t i = 0;

    while (engine_backends[i] != backend)
        i++;
    return exec->backend_contexts[i];
}

static struct engine_task *task_of(struct engine_work *work)
{
    return (struct engine_task *)(void *)((char *)work - offsetof(struct engine_task, work));
}

static struct engine_op *op_of(struct engine_work *work)
{
    return &task_of(work)->op;
}

/* Any thread. The main thread empties the list before it sleeps. So a thread wakes it only if it found
 * the list empty; else another thread has woken it, or the main thread itself has filled the list. */
static void post(void *user, struct engine_batch *batch)
{
    struct engine_exec *exec = user;
    struct engine_batch *newest = atomic_load_explicit(&exec->posted, memory_order_relaxed);
    do {
        batch->next = newest;
        /* Release, pairs with the acquire in engine_dispatch_reap. */
    } while (!atomic_compare_exchange_weak_explicit(&exec->posted, &newest, batch,
                                                    memory_order_release, memory_order_relaxed));
    if (newest || pthread_equal(pthread_self(), exec->main_thread))
        return;
    const int error = eventfd_write(exec->wake_fd, 1);
    HVI_ASSERT(error == 0);
}

static void show_start(void *user, struct engine_batch *batch)
{
    struct engine_exec *exec = user;

    for (uint32_t i = 0; i < batch->count; i++)
        exec->calls->started(exec->user, op_of(batch->works[i]));
}

static void show_time(void *user, const struct engine_batch *batch,
                      const struct engine_gpu_time *time)
{
    struct engine_exec *exec = user;
    struct engine_gpu_time each = *time;

    for (uint32_t i = 0; exec->calls->took && i < batch->count; i++) {
        exec->calls->took(exec->user, op_of(batch->works[i]), &each);
        each.works = 0;
    }
}

int engine_dispatch_open(struct engine_exec *exec)
{
    struct engine_backend_config config = {
        .threads = exec->threads,
        .post = post,
        .user = exec,
        .started = show_start,
        .took = show_time,
        .owner = exec->user,
        .lane_wanted = exec->calls->lane_wanted,
        .comm_wanted = exec->calls->comm_wanted,
        .worker_stuck = exec->calls->worker_stuck,
        .registers = exec->calls->registers,
        .is_registered = exec->calls->is_registered,
        .tell_node = exec->calls->tell_gpus,
        .comm_over = exec->calls->comm_over,
        .is_timed = exec->calls->is_timed,
    };

    exec->main_thread = pthread_self();
    for (size_t i = 0; i < BACKENDS; i++) {
        int status = engine_backends[i]->open(&config, &exec->backend_contexts[i]);
        if (status != HVI_OK) {
            HVI_LOG(HVI_LOG_ERROR, "dispatch", "backend-failed", hvi_status_text(status),
                    "job=%s backend=%s threads=%u", exec->order->job, engine_backends[i]->name,
                    config.threads);
            return status;
        }
    }
    return HVI_OK;
}

void engine_dispatch_grow(struct engine_exec *exec, uint32_t threads)
{
    void *pool = context_of(exec, &engine_backend_host);
    const int status = engine_host_pool_grow(pool, threads);

    exec->threads = engine_host_pool_threads(pool);
    if (status != HVI_OK)
        HVI_LOG(HVI_LOG_WARN, "dispatch", "few-threads", hvi_status_text(status),
                "job=%s threads=%u wanted=%u", exec->order->job, exec->threads, threads);
}

bool engine_dispatch_close(struct engine_exec *exec)
{
    bool ended = true;

    /* The last rank may have left in the very pass that made its op ready. */
    if (exec->order->ready_count > 0)
        engine_dispatch_ready(exec);
    for (size_t i = 0; i < BACKENDS; i++) {
        ended = engine_backends[i]->close(exec->backend_contexts[i]) && ended;
        exec->backend_contexts[i] = NULL;
    }
    engine_dispatch_reap(exec);
    engine_dispatch_explain(exec);
    while (exec->free_batches) {
        struct engine_batch *batch = exec->free_batches;
        exec->free_batches = batch->next;
        free(batch);
    }
    return ended;
}

static struct engine_batch *batch_new(struct engine_exec *exec)
{
    struct engine_batch *batch = exec->free_batches;

    if (batch)
        exec->free_batches = batch->next;
    else
        batch = malloc(sizeof *batch);
    return batch;
}

static void link_running(struct engine_exec *exec, struct engine_batch *batch)
{
    batch->running_next = exec->running;
    batch->running_link = &exec->running;
    if (exec->running)
        exec->running->running_link = &batch->running_next;
    exec->running = batch;
}

static void unlink_running(struct engine_batch *batch)
{
    *batch->running_link = batch->running_next;
    if (batch->running_next)
        batch->running_next->running_link = batch->running_link;
}

static void fill(struct engine_exec *exec, struct engine_batch *batch,
                 struct engine_work *const *works, uint32_t count)
{
    batch->count = count;
    batch->bytes = 0;
    batch->answer_ns = exec->answer_ns;
    batch->text[0] = '\0';
    link_running(exec, batch);
    for (uint32_t i = 0; i < count; i++) {
        batch->works[i] = works[i];
        batch->bytes += works[i]->bytes;
        engine_op_set_state(op_of(works[i]), ENGINE_OP_EXECUTING, "its batch starts");
    }
    exec->remote += engine_work_has(works[0], ENGINE_OPERAND_PROCESS); /* alone in its batch */
    exec->devices += engine_work_has(works[0], ENGINE_OPERAND_DEVICE); /* no batch mixes */
}

static void start(struct engine_exec *exec, struct engine_batch *batch)
{
    uint32_t i = 0;

    while (i < BACKENDS && !engine_backends[i]->accepts(batch))
        i++;
    batch->backend = i;
    if (i == BACKENDS || !engine_backends[i]->says_started)
        show_start(exec, batch);
    if (i < BACKENDS) {
        engine_backends[i]->start(exec->backend_contexts[i], batch);
        return;
    }
    batch->status = HVI_ERR_UNSUPPORTED;
    batch->fault = (struct engine_fault){.rank = -1};
    post(exec, batch);
}

static void end_works(struct engine_exec *exec, struct engine_work *const *works, uint32_t count,
                      int status, const char *text)
{
    for (uint32_t i = 0; i < count; i++) {
        if (works[i]->missing != 0)
            exec->calls->missing(exec->user, op_of(works[i]), works[i]->missing);
        else
            engine_op_done(exec->order, op_of(works[i]), status, text, -1);
    }
}

/* The window that fusion looks at. Without group fusion it holds one group, or none. */
static uint32_t look(const struct engine_exec *exec, struct engine_work **works_p)
{
    const struct engine_op *group = exec->order->ready_first->group;
    uint32_t count = 0;

    for (struct engine_op *op = exec->order->ready_first; op && count < ENGINE_BATCH_WORKS;
         op = op->next) {
        if (op->group != group && !exec->group_fusion)
            break;
        works_p[count++] = &engine_task_of(op)->work;
    }
    return count;
}

static void forget_ready(struct engine_exec *exec, uint32_t count)
{
    exec->order->ready_count -= count;
    while (count-- > 0)
        exec->order->ready_first = exec->order->ready_first->next;
    if (!exec->order->ready_first)
        exec->order->ready_last = NULL;
}

void engine_dispatch_ready(struct engine_exec *exec)
{
    struct engine_work *works[ENGINE_BATCH_WORKS];
    const bool several = exec->order->ready_count > 1;

    if (several)
        engine_wire_backend_gather(context_of(exec, &engine_backend_net));
    while (exec->order->ready_first) {
        uint32_t count = look(exec, works);
        struct engine_batch *batch = batch_new(exec);
        count =
            engine_fusion_take((const struct engine_work *const *)works, count, exec->fusion_bytes);
        forget_ready(exec, count);
        if (batch) {
            fill(exec, batch, works, count);
            start(exec, batch);
        } else {
            end_works(exec, works, count, HVI_ERR_NO_MEMORY, "the engine is out of memory");
        }
    }
    if (several)
        engine_wire_backend_go(context_of(exec, &engine_backend_net));
}

static void describe(const struct engine_batch *batch, char *text_p, size_t size)
{
    *text_p = '\0';
    if (batch->status == ENGINE_BATCH_WITHDRAWN)
        return;
    if (batch->status != HVI_OK && batch->text[0] != '\0')
        snprintf(text_p, size, "%s", batch->text);
    else if (batch->status == HVI_ERR_LIMIT)
        snprintf(text_p, size,
                 "too many threads of the engine wait for ranks' memory that does not answer");
    else if (batch->status != HVI_OK)
        snprintf(text_p, size, "the backend failed: %s", hvi_status_text(batch->status));
}

/* What has broken the job ends what it cancels. A tentative op has waited for a rank, as if nobody had
 * started it. */
static void end_cancelled(struct engine_exec *exec, struct engine_batch *batch)
{
    const struct engine_order *order = exec->order;
    struct engine_op *op = op_of(batch->works[0]);

    if (op->tentative)
        engine_op_done(exec->order, op, order->broken_status, order->broken_text,
                       order->broken_culprit);
    else
        end_works(exec, batch->works, batch->count, order->broken_status, order->broken_text);
}

/* A node that goes takes its connections along; why it goes comes another way, and may come later. */
static bool is_a_consequence(const struct engine_batch *batch)
{
    const bool of_the_job =
        batch->status == HVI_ERR_NODE_LOST || batch->status == HVI_ERR_RANK_LOST;

    return of_the_job && batch->works[0]->span && batch->fault.rank < 0;
}

static void complete(struct engine_exec *exec, struct engine_batch *batch)
{
    const bool broken = exec->order->broken_status != HVI_OK;
    char text[ENGINE_TEXT_BYTES];

    describe(batch, text, sizeof text);
    if (batch->status == ENGINE_BATCH_WITHDRAWN)
        engine_schedule_returned(exec->order, op_of(batch->works[0]));
    else if (batch->status == HVI_ERR_CANCELLED || (broken && is_a_consequence(batch)))
        end_cancelled(exec, batch);
    else if (batch->status != HVI_OK && batch->fault.rank >= 0)
        exec->calls->fault(exec->user, op_of(batch->works[0]), batch->status, &batch->fault);
    else
        end_works(exec, batch->works, batch->count, batch->status, text);
    batch->next = exec->free_batches;
    exec->free_batches = batch;
}

static void finish(struct engine_exec *exec, struct engine_batch *batch)
{
    unlink_running(batch);
    if (engine_work_has(batch->works[0], ENGINE_OPERAND_PROCESS)) { /* alone in its batch */
        exec->remote--;
        if (batch->status != HVI_OK && batch->status != ENGINE_BATCH_WITHDRAWN)
            engine_task_keep(task_of(batch->works[0]));
    }
    exec->devices -= engine_work_has(batch->works[0], ENGINE_OPERAND_DEVICE);
    if (batch->fault.missing != 0)
        batch->works[0]->missing = batch->fault.missing;
    if (exec->calls->unexplained && exec->order->broken_status == HVI_OK &&
        is_a_consequence(batch)) {
        batch->next = exec->unexplained;
        exec->unexplained = batch;
        exec->calls->unexplained(exec->user);
        return;
    }
    complete(exec, batch);
}

static struct engine_batch *oldest_first(struct engine_batch *newest)
{
    struct engine_batch *oldest = NULL;

    while (newest) {
        struct engine_batch *next = newest->next;
        newest->next = oldest;
        oldest = newest;
        newest = next;
    }
    return oldest;
}

void engine_dispatch_explain(struct engine_exec *exec)
{
    struct engine_batch *oldest = oldest_first(exec->unexplained);

    exec->unexplained = NULL;
    while (oldest) {
        struct engine_batch *next = oldest->next;
        complete(exec, oldest);
        oldest = next;
    }
}

bool engine_dispatch_reap(struct engine_exec *exec)
{
    if (exec->devices > 0)
        engine_gpu_backend_look(context_of(exec, &engine_backend_gpu));
    if (!atomic_load_explicit(&exec->posted, memory_order_relaxed))
        return false;
    /* Acquire, pairs with the release in post. */
    struct engine_batch *oldest =
        oldest_first(atomic_exchange_explicit(&exec->posted, NULL, memory_order_acquire));
    exec->order->now_ns = hvi_clock_ns();
    while (oldest) {
        struct engine_batch *next = oldest->next;
        finish(exec, oldest);
        oldest = next;
    }
    return true;
}

bool engine_dispatch_help(struct engine_exec *exec)
{
    bool helped = false;

    for (size_t i = 0; i < BACKENDS; i++) { /* each: what one has to do may be nobody else's */
        if (engine_backends[i] == &engine_backend_gpu && exec->devices > 0)
            continue; /* engine_dispatch_reap has looked */
        helped = engine_backends[i]->help(exec->backend_contexts[i]) || helped;
    }
    return helped;
}

void engine_dispatch_drop(struct engine_exec *exec, int status, const char *text)
{
    struct engine_work *works[ENGINE_BATCH_WORKS];

    while (exec->order->ready_first) {
        uint32_t count = look(exec, works);
        forget_ready(exec, count);
        end_works(exec, works, count, status, text);
    }
    HVI_ASSERT(exec->order->broken_status != HVI_OK);
    for (struct engine_batch *batch = exec->running; batch; batch = batch->running_next) {
        if (batch->backend < BACKENDS)
            engine_backends[batch->backend]->cancel(exec->backend_contexts[batch->backend], batch);
    }
}

/* ---- memory that does not answer ---- */

void engine_dispatch_watch(struct engine_exec *exec)
{
    for (size_t i = 0; i < BACKENDS; i++)
        engine_backends[i]->watch(exec->backend_contexts[i]);
}

const struct engine_op *engine_dispatch_next_silent(struct engine_exec *exec,
                                                    struct engine_exec_cursor *cursor,
                                                    struct engine_fault *fault_p)
{
    struct engine_batch *batch = cursor->after ? cursor->after->running_next : exec->running;

    for (; batch; batch = batch->running_next) {
        cursor->after = batch;
        if (batch->backend < BACKENDS &&
            engine_backends[batch->backend]->silent(exec->backend_contexts[batch->backend], batch,
                                                    fault_p))
            return op_of(batch->works[0]);
    }
    return NULL;
}

/* ---- other nodes ---- */

void engine_dispatch_cancel_spans(struct engine_exec *exec)
{
    HVI_ASSERT(exec->order->broken_status != HVI_OK);
    for (struct engine_batch *batch = exec->running; batch; batch = batch->running_next) {
        if (batch->works[0]->span && batch->backend < BACKENDS)
            engine_backends[batch->backend]->cancel(exec->backend_contexts[batch->backend], batch);
    }
}

/* Its work waits for other nodes to start it. */
static bool is_tentative(const struct engine_exec *exec, const struct engine_batch *batch)
{
    if (batch->backend >= BACKENDS || !op_of(batch->works[0])->tentative)
        return false;
    void *context = exec->backend_contexts[batch->backend];
    return engine_backends[batch->backend] == &engine_backend_gpu
               ? engine_gpu_backend_is_tentative(context, batch)
               : engine_wire_backend_is_tentative(context, batch);
}

void engine_dispatch_cancel_tentative(struct engine_exec *exec)
{
    HVI_ASSERT(exec->order->broken_status != HVI_OK);
    for (struct engine_batch *batch = exec->running; batch; batch = batch->running_next) {
        if (is_tentative(exec, batch))
            engine_backends[batch->backend]->cancel(exec->backend_contexts[batch->backend], batch);
    }
}

void engine_dispatch_withdraw(struct engine_exec *exec, uint64_t least, uint64_t top)
{
    engine_wire_backend_withdraw(context_of(exec, &engine_backend_net), least, top);
    engine_gpu_backend_withdraw(context_of(exec, &engine_backend_gpu), least);
}

bool engine_dispatch_is_tentative(const struct engine_exec *exec, const struct engine_op *op)
{
    const struct engine_batch *batch = exec->running;

    while (batch && op_of(batch->works[0]) != op)
        batch = batch->running_next;
    return batch && is_tentative(exec, batch);
}

void engine_dispatch_set_lanes(struct engine_exec *exec, uint32_t lanes)
{
    engine_wire_backend_set_lanes(context_of(exec, &engine_backend_net), lanes);
}

int engine_dispatch_set_transport(struct engine_exec *exec, const char *name, const char *address,
                                  char text_p[ENGINE_TEXT_BYTES])
{
    return engine_wire_backend_set_transport(context_of(exec, &engine_backend_net), name, address,
                                             text_p);
}

void engine_dispatch_busy(struct engine_exec *exec)
{
    engine_wire_backend_busy(context_of(exec, &engine_backend_net));
}

void engine_dispatch_lane(struct engine_exec *exec, uint32_t node, uint32_t lane, int fd,
                          const struct hvi_seal_keys *keys, const char *name)
{
    engine_wire_backend_lane(context_of(exec, &engine_backend_net), node, lane, fd, keys, name);
}

void engine_dispatch_lost(struct engine_exec *exec, uint32_t node, const char *text)
{
    engine_wire_backend_lost(context_of(exec, &engine_backend_net), node, text);
}

bool engine_dispatch_lane_row(struct engine_exec *exec, size_t index, struct engine_lane_row *row_p)
{
    return engine_wire_backend_row(context_of(exec, &engine_backend_net), index, row_p);
}

/* ---- GPUs ---- */

void engine_dispatch_worker(struct engine_exec *exec, uint32_t worker,
                            struct hvi_device_channel *channel, int event_fd, const char *name)
{
    engine_gpu_backend_worker(context_of(exec, &engine_backend_gpu), worker, channel, event_fd,
                              name);
}

void engine_dispatch_worker_lost(struct engine_exec *exec, uint32_t worker, const char *text)
{
    engine_gpu_backend_lost(context_of(exec, &engine_backend_gpu), worker, text);
}

void engine_dispatch_comm(struct engine_exec *exec, uint32_t comm, int status, const char *text)
{
    engine_gpu_backend_comm(context_of(exec, &engine_backend_gpu), comm, status, text);
}

void engine_dispatch_gpus_heard(struct engine_exec *exec, const uint64_t *instances, uint32_t count,
                                uint32_t node, const struct engine_gpu_news *news)
{
    engine_gpu_backend_heard(context_of(exec, &engine_backend_gpu), instances, count, node, news);
}

void engine_dispatch_fences_over(struct engine_exec *exec, uint32_t page)
{
    engine_gpu_backend_session_over(context_of(exec, &engine_backend_gpu), page);
}

void engine_dispatch_set_gpu_timeout(struct engine_exec *exec, uint64_t timeout_ns)
{
    void *context = context_of(exec, &engine_backend_gpu);

    if (context) /* the engine has started */
        engine_gpu_backend_set_timeout(context, timeout_ns);
}

const struct engine_op *engine_dispatch_next_gated(struct engine_exec *exec,
                                                   struct engine_exec_cursor *cursor,
                                                   uint32_t *place_p)
{
    void *context = context_of(exec, &engine_backend_gpu);
    struct engine_batch *batch = cursor->after ? cursor->after->running_next : exec->running;

    for (; batch && exec->devices > 0; batch = batch->running_next) {
        cursor->after = batch;
        if (engine_work_has(batch->works[0], ENGINE_OPERAND_DEVICE) &&
            engine_gpu_backend_waits(context, batch, place_p))
            return op_of(batch->works[0]);
    }
    return NULL;
}

void engine_process_forbid(struct engine_process *process)
{
    /* Release, pairs with the acquire load in host_process.c. */
    atomic_store_explicit(&process->over, true, memory_order_release);
}
