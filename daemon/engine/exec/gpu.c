/* SPDX-License-Identifier: Apache-2.0
 * The row "gpu": which batch goes to which workers, and when; and what becomes of it.
 *
 *   queued --room, communicator ready--> under way --each worker's answer, and of other nodes' rows--> posted
 *     |                                      |
 *     +--cancelled, session over, no comm----+--worker lost--> posted at once
 *
 * A work overtakes none of its set that has a worker in common with it, and one with a communicator none at all that
 * has: two workers that launched them in different orders would wait for each other for ever, and so might one that
 * joins a communicator and one that launches. So what waits holds all that its workers are in, and what that holds all
 * that its own are in. Works of one GPU alone are in no one's way.
 *
 * With a span, the nodes start the same works with communicators in the same order, whatever their workers, and
 * communicators are wanted in the same order, too. A work of this node alone may overtake one with a span that waits:
 * each node's workers still see all works of the node in one order, and those with a span in that of all nodes. A node
 * that has no memory of a work has nothing to do. gpu_nodes.c says when such a work is over.
 *
 * What has been started without the word of the other nodes (engine_span.tentative) goes to no worker before all are known to have
 * started it, and may be withdrawn until then; gpu_pack.c says which works go together.
 *
 * A batch that a worker has is never taken back. Its fences are opened instead, with .skip before: it runs through, its
 * kernels write nothing, it is answered, and fails here.
 *
 * A batch may wait for a rank's stream for ever: that is the rank's own work. From the moment at which it has begun on all
 * workers it may take .timeout_ns. It has begun when its worker says so (of batches older than 100 ms), or
 * when the worker has no older one and the engine sees that all its fences there are open. With a span the other nodes'
 * workers count as well: TELL_NS after it has begun on all workers here, the nodes tell each other in the same way. */
#include "daemon/engine/exec/gpu_row.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define TELL_NS         HVI_NS_SEC
#define TRIES_AGAIN_MAX 16

/* ---- opening and closing ---- */

static int gpu_open(const struct engine_backend_config *config, void **context_p)
{
    struct gpu *gpu = calloc(1, sizeof *gpu);

    if (!gpu)
        return HVI_ERR_NO_MEMORY;
    gpu->config = *config;
    gpu->timeout_ns = ENGINE_GPU_TIMEOUT_NS;
    *context_p = gpu;
    return HVI_OK;
}

void engine_gpu_backend_set_timeout(void *context, uint64_t timeout_ns)
{
    struct gpu *gpu = context;

    gpu->timeout_ns = timeout_ns > 0 ? timeout_ns : ENGINE_GPU_TIMEOUT_NS;
}

/* ---- a batch is over ---- */

void engine_gpu_post(struct gpu *gpu, struct gpu_job *job)
{
    struct engine_batch *batch = job->batch;

    for (uint32_t i = 0; i < job->route.count; i++) {
        struct gpu_worker *worker = &gpu->workers[job->route.workers[i]];
        if (!job->queued && worker->jobs[job->numbers[i] % HVI_DEVICE_DONES] == job)
            worker->jobs[job->numbers[i] % HVI_DEVICE_DONES] = NULL;
    }
    gpu->queued -= job->queued;
    DL_DELETE(gpu->jobs, job);
    job->next = gpu->free_jobs;
    gpu->free_jobs = job;
    batch->state = NULL;
    batch->over = true;
    gpu->config.post(gpu->config.user, batch);
}

void engine_gpu_fail(struct engine_batch *batch, int status, const char *text)
{
    if (batch->status != HVI_OK)
        return;
    batch->status = status;
    snprintf(batch->text, sizeof batch->text, "%.*s",
             (int)hvi_utf8_cut(text, strlen(text), sizeof batch->text - 1), text);
}

static bool gpu_close(void *context)
{
    struct gpu *gpu = context;

    if (!gpu)
        return true;
    while (gpu->jobs) {
        engine_gpu_fail(gpu->jobs->batch, HVI_ERR_CANCELLED, "the engine ends");
        engine_gpu_post(gpu, gpu->jobs);
    }
    while (gpu->free_jobs) {
        struct gpu_job *job = gpu->free_jobs;
        gpu->free_jobs = job->next;
        free(job);
    }
    while (gpu->comms) {
        struct gpu_comm *comm = gpu->comms;
        gpu->comms = comm->next;
        engine_gpu_free_comm(comm);
    }
    free(gpu->workers);
    free(gpu);
    return true;
}

/* ---- starting ---- */

static bool has_room(struct gpu *gpu, const struct gpu_job *job, const struct engine_batch *batch,
                     uint32_t index)
{
    struct gpu_worker *worker = &gpu->workers[job->route.workers[index]];
    uint32_t slots = 0;

    if (worker->ended || worker->under_way >= HVI_DEVICE_DONES ||
        worker->waited_for[(worker->number + 1) % HVI_DEVICE_DONES] != 0)
        return false;
    if (hvi_ring_space(&worker->channel->commands, &slots) == HVI_OK)
        return slots >= engine_gpu_slots(batch, &job->route, index);
    engine_gpu_lie(worker, "an impossible index in its ring of commands");
    return false;
}

/* To the worker `index` of the route. */
static void write_to(struct gpu *gpu, struct gpu_job *job, const struct engine_batch *batch,
                     uint32_t index)
{
    struct gpu_worker *worker = &gpu->workers[job->route.workers[index]];
    const uint32_t slots = engine_gpu_slots(batch, &job->route, index);
    const uint64_t number = ++worker->number;

    engine_gpu_write(batch, &job->route, index, job->comm ? job->comm->number : 0, number,
                     job->timed_ns != 0 ? HVI_DEVICE_TIMED : 0, &worker->channel->commands);
    worker->waited_for[number % HVI_DEVICE_DONES] = number;
    worker->jobs[number % HVI_DEVICE_DONES] = job;
    worker->under_way++;
    job->numbers[index] = number;
    job->left |= UINT64_C(1) << index;
    hvi_device_publish(worker->channel, slots, worker->event_fd);
}

/* What engine_gpu_pack has said. */
static void publish(struct gpu *gpu, struct gpu_job *first, const struct engine_batch *batch)
{
    const uint32_t count = batch == &gpu->pack ? batch->count : 1;

    first->works = batch->count;
    first->timed_ns =
        gpu->config.is_timed && gpu->config.is_timed(gpu->config.owner) ? hvi_clock_ns() : 0;
    for (uint32_t i = 0; i < first->route.count; i++)
        write_to(gpu, first, batch, i);
    for (uint32_t i = 0; i < count; i++) {
        struct gpu_job *job = gpu->packed[i];
        job->pack = first;
        job->pack_next = i + 1 < count ? gpu->packed[i + 1] : NULL;
        job->left = first->left;
        job->timed_ns = first->timed_ns;
        memcpy(job->numbers, first->numbers, sizeof job->numbers);
        job->queued = false;
        gpu->queued--;
        gpu->config.started(gpu->config.user, job->batch);
    }
}

static bool may_start(const struct gpu_job *job)
{
    return job->queued && !job->tentative && (!job->comm || job->comm->status == HVI_OK);
}

static uint64_t workers_of(const struct engine_gpu_route *route)
{
    uint64_t workers = 0;

    for (uint32_t i = 0; i < route->count; i++)
        workers |= UINT64_C(1) << route->workers[i];
    return workers;
}

/* What jobs that wait hold up. */
struct held {
    uint64_t alone; /* a bit for each worker: works of one GPU there */
    uint64_t comms; /* likewise: works with communicators */
    bool spans;     /* those of several nodes */
};

/* Nothing is before the first job but communicators for registered memory that are being made. */
static struct held hold_none(const struct gpu *gpu)
{
    struct held held = {0};

    if (gpu->registered_coming == 0)
        return held;
    for (const struct gpu_comm *comm = gpu->comms; comm; comm = comm->next) {
        if (comm->registered && comm->status == HVI_INPROGRESS)
            held.comms |= workers_of(&comm->route);
    }
    return held;
}

static bool is_held(const struct held *held, const struct gpu_job *job)
{
    const uint64_t workers = workers_of(&job->route);

    if (!job->comm)
        return (held->alone & workers) != 0;
    return (held->comms & workers) != 0 || (held->spans && engine_gpu_has_nodes(job));
}

/* The job waits, and those behind it are not to overtake it. */
static void hold(struct held *held, const struct gpu_job *job)
{
    const uint64_t workers = workers_of(&job->route);

    if (!job->comm) {
        held->alone |= workers;
        return;
    }
    held->comms |= workers;
    held->spans = held->spans || engine_gpu_has_nodes(job);
}

/* Queued ones that may start now. */
void engine_gpu_push(struct gpu *gpu)
{
    struct held held = hold_none(gpu);
    struct gpu_job *job, *next;

    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        bool may = may_start(job) && !is_held(&held, job);
        const struct engine_batch *batch = may ? engine_gpu_pack(gpu, job) : NULL;
        if (gpu->queued == 0)
            return;
        if (!job->queued)
            continue;
        for (uint32_t i = 0; may && i < job->route.count; i++)
            may = has_room(gpu, job, batch, i);
        if (may)
            publish(gpu, job, batch);
        else
            hold(&held, job);
    }
}

/* False: out of memory. */
static bool take_nodes(struct gpu_comm *comm, const struct engine_work *work)
{
    struct engine_gpu_route *route = &comm->route;

    comm->instances = malloc(route->ranks * sizeof *comm->instances);
    comm->nodes = calloc(route->ranks, sizeof *comm->nodes);
    comm->peers = calloc(route->ranks, sizeof *comm->peers);
    if (!comm->instances || !comm->nodes || !comm->peers)
        return false;
    memcpy(comm->instances, route->instances, route->ranks * sizeof *comm->instances);
    route->instances = comm->instances;
    engine_gpu_nodes(work, route, comm->nodes);
    engine_gpu_list_peers(comm, work->span->node[work->span->here]);
    return true;
}

static struct gpu_comm *find_comm(const struct gpu *gpu, const struct engine_gpu_route *route,
                                  bool registered)
{
    struct gpu_comm *comm = gpu->comms;

    while (comm && (comm->registered != registered || !engine_gpu_is_same(&comm->route, route)))
        comm = comm->next;
    return comm;
}

/* A communicator for which there was no memory, or no place, is made anew by the next work: there may be by then. Not with other nodes,
 * which have to ask alike, and not for registered memory, which can do without. Not for ever: of an id that nobody joins by, NCCL
 * keeps a thread and a socket in its worker. */
static struct gpu_comm *find_usual_comm(struct gpu *gpu, const struct engine_gpu_route *route)
{
    struct gpu_comm *comm = find_comm(gpu, route, false);
    const struct gpu_job *job;

    if (!comm || comm->nodes || gpu->tried_again == TRIES_AGAIN_MAX ||
        (comm->status != HVI_ERR_NO_MEMORY && comm->status != HVI_ERR_LIMIT))
        return comm;
    DL_FOREACH(gpu->jobs, job)
    {
        if (job->comm == comm)
            return comm;
    }
    gpu->tried_again++;
    LL_DELETE(gpu->comms, comm);
    engine_gpu_free_comm(comm);
    return NULL;
}

/* NULL: out of memory. */
static struct gpu_comm *want_comm(struct gpu *gpu, const struct engine_gpu_route *route,
                                  const struct engine_work *work, bool registered)
{
    struct gpu_comm *comm = calloc(1, sizeof *comm);

    if (!comm)
        return NULL;
    comm->number = ++gpu->last_comm;
    comm->status = HVI_INPROGRESS;
    comm->registered = registered;
    comm->route = *route;
    if (work->span && !take_nodes(comm, work)) {
        engine_gpu_free_comm(comm);
        return NULL;
    }
    comm->next = gpu->comms;
    gpu->comms = comm;
    gpu->registered_coming += registered;
    struct engine_gpu_comm wanted = engine_gpu_describe_comm(comm);
    wanted.work = work;
    gpu->config.comm_wanted(gpu->config.owner, &wanted);
    return comm;
}

/* The batch is a job, or has failed. */
static struct gpu_job *make_job(struct gpu *gpu, struct engine_batch *batch)
{
    struct gpu_job *job = gpu->free_jobs;

    if (job)
        gpu->free_jobs = job->next;
    else
        job = malloc(sizeof *job);
    if (!job) {
        engine_gpu_fail(batch, HVI_ERR_NO_MEMORY, "the engine is out of memory");
        return NULL;
    }
    *job = (struct gpu_job){.batch = batch, .queued = true};
    return job;
}

static bool check_route(struct gpu *gpu, struct gpu_job *job)
{
    struct engine_batch *batch = job->batch;

    if (!engine_gpu_route(batch, gpu->instances, &job->route) ||
        (job->route.count > 0 && !gpu->workers)) {
        engine_gpu_fail(batch, HVI_ERR_UNSUPPORTED,
                        "the GPUs of these operands cannot work together");
        return false;
    }
    if (batch->works[0]->span && !engine_gpu_fits(batch->works[0], &job->route)) {
        engine_gpu_fail(batch, HVI_ERR_LIMIT,
                        "the op has too many ranks for the workers of its GPUs");
        return false;
    }
    for (uint32_t i = 0; i < job->route.count; i++) {
        const struct gpu_worker *worker = &gpu->workers[job->route.workers[i]];
        if (worker->lost || !worker->linked) {
            engine_gpu_fail(batch, HVI_ERR_WORKER_LOST, worker->text);
            return false;
        }
        if (engine_gpu_slots(batch, &job->route, i) == 0) {
            engine_gpu_fail(batch, HVI_ERR_LIMIT,
                            "the op has too many ranks on one GPU for its worker");
            return false;
        }
    }
    return true;
}

/* Nothing is queued before the job, and its workers have nothing under way. */
static bool is_quiet(const struct gpu *gpu, const struct gpu_job *job)
{
    for (uint32_t i = 0; i < job->route.count; i++) {
        if (gpu->workers[job->route.workers[i]].under_way > 0)
            return false;
    }
    return gpu->queued == 0;
}

/* By the communicator for registered memory, if that can be. While it is made works of its workers with communicators wait: a
 * later one asks for it where this is no moment for that. */
static void choose_registered(struct gpu *gpu, struct gpu_job *job)
{
    struct gpu_comm *comm;

    if (!job->comm || job->comm->status != HVI_OK || !engine_gpu_may_register(gpu, job))
        return;
    comm = find_comm(gpu, &job->route, true);
    if (!comm && is_quiet(gpu, job))
        comm = want_comm(gpu, &job->route, job->batch->works[0], true);
    if (comm && comm->status == HVI_OK && engine_gpu_is_registered(gpu, job, comm))
        job->comm = comm;
}

static bool check_comm(struct gpu *gpu, struct gpu_job *job)
{
    const struct engine_span *span = job->batch->works[0]->span;

    job->tentative = span && span->tentative;
    if (job->tentative && job->route.ranks == 1) /* of a worker that has one node's memory alone */
        engine_gpu_fail(job->batch, HVI_ERR_UNSUPPORTED,
                        "the memory of several nodes is said to be on one GPU");
    if (job->route.ranks == 1)
        return job->batch->status == HVI_OK;
    if (gpu->config.comm_wanted)
        job->comm = find_usual_comm(gpu, &job->route);
    if (gpu->config.comm_wanted && !job->comm)
        job->comm = want_comm(gpu, &job->route, job->batch->works[0], false);
    choose_registered(gpu, job);
    if (job->comm)
        job->route.instances = job->comm->instances;
    if (job->comm && job->comm->nodes)
        job->comm->last = engine_gpu_sequence(job);
    if (!job->comm)
        engine_gpu_fail(job->batch, HVI_ERR_NO_MEMORY, "the engine is out of memory");
    else if (job->comm->status < 0 && !job->tentative)
        engine_gpu_fail(job->batch, job->comm->status, job->comm->text);
    return job->batch->status == HVI_OK;
}

static void gpu_start(void *context, struct engine_batch *batch)
{
    struct gpu *gpu = context;

    batch->status = HVI_OK;
    batch->fault = (struct engine_fault){.rank = -1};
    batch->over = false;
    struct gpu_job *job = make_job(gpu, batch);
    if (job && check_route(gpu, job) && job->route.count == 0)
        gpu->config.started(gpu->config.user, batch);
    if (!job || batch->status != HVI_OK || job->route.count == 0 || !check_comm(gpu, job)) {
        if (job) {
            job->next = gpu->free_jobs;
            gpu->free_jobs = job;
        }
        batch->state = NULL;
        batch->over = true;
        gpu->config.post(gpu->config.user, batch);
        return;
    }
    batch->state = job;
    DL_APPEND(gpu->jobs, job);
    gpu->queued++;
    if (job->tentative)
        engine_gpu_note_start(job);
    engine_gpu_push(gpu);
}

static bool gpu_accepts(const struct engine_batch *batch)
{
    for (uint32_t i = 0; i < batch->count; i++) {
        const struct engine_work *work = batch->works[i];
        if (work->kinds & ~(1u << ENGINE_OPERAND_NONE | 1u << ENGINE_OPERAND_DEVICE))
            return false;
        if (!engine_work_has(work, ENGINE_OPERAND_DEVICE) || (work->span && batch->count > 1))
            return false;
    }
    return true;
}

/* ---- cancelling ---- */

void engine_gpu_fail_job(struct gpu *gpu, struct gpu_job *job, int status, const char *text)
{
    engine_gpu_fail(job->batch, status, text);
    if (job->queued || job->left == 0) {
        engine_gpu_post(gpu, job);
        return;
    }
    for (struct gpu_job *each = job->pack; each; each = each->pack_next)
        engine_gpu_fail(each->batch, status, text);
    engine_gpu_open_all(job);
}

static void cancel(struct gpu *gpu, struct gpu_job *job)
{
    if (job->queued && engine_gpu_has_nodes(job))
        job->comm->abandoned = true;
    engine_gpu_fail_job(gpu, job, HVI_ERR_CANCELLED, "");
}

/* The list of jobs is not walked: this posts some. */
static void leave_abandoned(struct gpu *gpu)
{
    for (struct gpu_comm *comm = gpu->comms; comm; comm = comm->next) {
        if (!comm->abandoned)
            continue;
        comm->abandoned = false;
        if (gpu->config.comm_over)
            gpu->config.comm_over(gpu->config.owner, comm->number, HVI_ERR_CANCELLED,
                                  "a rank has ended before the op was started on its GPU");
    }
}

static void gpu_cancel(void *context, struct engine_batch *batch)
{
    struct gpu *gpu = context;

    if (batch->over || !batch->state)
        return;
    cancel(gpu, batch->state);
    leave_abandoned(gpu);
    engine_gpu_push(gpu);
}

/* A queued job goes as well: its workers forget the page before they could have it. */
void engine_gpu_backend_session_over(void *context, uint32_t page)
{
    struct gpu *gpu = context;
    struct gpu_job *job, *next;

    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (engine_gpu_is_of_page(job, page, job->queued))
            cancel(gpu, job);
    }
    leave_abandoned(gpu);
    engine_gpu_push(gpu);
}

/* ---- deadlines ---- */

static bool is_oldest(const struct gpu_worker *worker, uint64_t number)
{
    for (uint32_t i = 0; i < HVI_DEVICE_DONES; i++) {
        if (worker->waited_for[i] != 0 && worker->waited_for[i] < number)
            return false;
    }
    return true;
}

static void look_whether_begun(struct gpu *gpu, struct gpu_job *job, uint64_t now_ns)
{
    const uint64_t all =
        job->route.count == 64 ? UINT64_MAX : (UINT64_C(1) << job->route.count) - 1;
    uint32_t place;

    for (uint32_t i = 0; i < job->route.count; i++) {
        const uint64_t bit = UINT64_C(1) << i;
        if ((job->begun & bit) != 0)
            continue;
        if ((job->left & bit) == 0 ||
            (is_oldest(&gpu->workers[job->route.workers[i]], job->numbers[i]) &&
             engine_gpu_is_open(job, i, &place)))
            job->begun |= bit;
    }
    if (job->begun == all && job->here_ns == 0)
        job->here_ns = now_ns;
    if (job->here_ns != 0 && (!engine_gpu_has_nodes(job) || engine_gpu_is_past(job, false) ||
                              engine_gpu_has_failed(job)))
        job->begun_ns = now_ns;
}

/* Also of a work that is over here: others may wait for the news of a third node. */
static bool is_late(struct gpu *gpu, struct gpu_job *job, uint64_t now_ns)
{
    if (job->queued)
        return false;
    if (job->begun_ns == 0)
        look_whether_begun(gpu, job, now_ns);
    if (engine_gpu_has_nodes(job) && job->here_ns != 0 && now_ns - job->here_ns >= TELL_NS)
        engine_gpu_say_begun(gpu, job);
    return job->left != 0 && job->begun_ns != 0 && now_ns - job->begun_ns > gpu->timeout_ns;
}

/* Its workers are ended, but for those that have answered, and those that are being ended. */
static void give_up(struct gpu *gpu, const struct gpu_job *job)
{
    const struct engine_gpu_route route = job->route;
    const uint64_t left = job->left;
    char text[ENGINE_TEXT_BYTES];

    snprintf(text, sizeof text,
             "a batch that has begun is not over after %.1f s (HVD_GPU_TIMEOUT_SECONDS)",
             (double)gpu->timeout_ns / (double)HVI_NS_SEC);
    for (uint32_t i = 0; i < route.count; i++) {
        if ((left >> i & 1) != 0)
            engine_gpu_end_worker(gpu, route.workers[i], text);
    }
}

/* All workers that have not answered are being ended. */
static bool is_given_up(const struct gpu *gpu, const struct gpu_job *job)
{
    for (uint32_t i = 0; i < job->route.count; i++) {
        if ((job->left >> i & 1) != 0 && !gpu->workers[job->route.workers[i]].ended)
            return false;
    }
    return job->left != 0;
}

/* If this process has stood still, an answer may lie there. */
static void gpu_watch(void *context)
{
    struct gpu *gpu = context;
    const uint64_t now_ns = hvi_clock_ns();

    (void)engine_gpu_backend_look(gpu);
    struct gpu_job *job = gpu->jobs;
    while (job && (is_given_up(gpu, job) || !is_late(gpu, job, now_ns)))
        job = job->next;
    if (job)
        give_up(gpu, job);
}

static bool gpu_silent(void *context, const struct engine_batch *batch, struct engine_fault *fault)
{
    (void)context, (void)batch, (void)fault;
    return false;
}

bool engine_gpu_backend_waits(void *context, const struct engine_batch *batch, uint32_t *place_p)
{
    const struct gpu_job *job = batch->over ? NULL : batch->state;

    (void)context;
    return job && !engine_gpu_is_open(job, UINT32_MAX, place_p);
}

/* ---- workers and communicators ---- */

void engine_gpu_backend_worker(void *context, uint32_t number, struct hvi_device_channel *channel,
                               int event_fd, const char *name)
{
    struct gpu *gpu = context;

    HVI_ASSERT(number < ENGINE_GPU_WORKERS);
    if (!gpu->workers)
        gpu->workers = calloc(ENGINE_GPU_WORKERS, sizeof *gpu->workers);
    if (!gpu->workers) /* its batches fail */
        return;
    struct gpu_worker *worker = &gpu->workers[number];
    HVI_ASSERT(!worker->linked);
    if (number >= gpu->worker_count)
        gpu->worker_count = number + 1;
    *worker = (struct gpu_worker){.linked = true, .channel = channel, .event_fd = event_fd};
    snprintf(worker->name, sizeof worker->name, "%s", name);
}

static bool goes_to(const struct engine_gpu_route *route, uint32_t number)
{
    for (uint32_t i = 0; i < route->count; i++) {
        if (route->workers[i] == number)
            return true;
    }
    return false;
}

/* The other workers of the batch may still write their ranks' memory: they have its communicator to abort, and then its
 * streams run dry, once all gates are open. */
static void lose_part(struct gpu *gpu, struct gpu_job *job, uint32_t number)
{
    for (uint32_t i = 0; i < job->route.count; i++) {
        if (job->route.workers[i] == number)
            job->left &= ~(UINT64_C(1) << i);
    }
    if (job->left == 0)
        engine_gpu_post(gpu, job);
}

void engine_gpu_backend_lost(void *context, uint32_t number, const char *text)
{
    struct gpu *gpu = context;
    struct gpu_worker *worker = gpu->workers ? &gpu->workers[number] : NULL;
    struct gpu_job *job, *next;

    if (!worker || worker->lost)
        return;
    worker->linked = false;
    worker->lost = true;
    worker->lie = NULL;
    worker->ended = false;
    worker->under_way = 0;
    snprintf(worker->text, sizeof worker->text, "%.*s",
             (int)hvi_utf8_cut(text, strlen(text), sizeof worker->text - 1), text);
    DL_FOREACH(gpu->jobs, job) /* those of a pack are there until all of them have failed */
    {
        if (!goes_to(&job->route, number))
            continue;
        engine_gpu_fail(job->batch, HVI_ERR_WORKER_LOST, worker->text);
        if (!job->queued && job->left != 0)
            engine_gpu_open_all(job);
    }
    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (goes_to(&job->route, number))
            lose_part(gpu, job, number);
    }
    engine_gpu_push(gpu);
}

void engine_gpu_backend_comm(void *context, uint32_t number, int status, const char *text)
{
    struct gpu *gpu = context;
    struct gpu_comm *comm = gpu->comms;
    struct gpu_job *job, *next;

    while (comm && comm->number != number)
        comm = comm->next;
    if (!comm)
        return;
    gpu->registered_coming -= comm->registered && comm->status == HVI_INPROGRESS;
    comm->status = status;
    snprintf(comm->text, sizeof comm->text, "%.*s",
             (int)hvi_utf8_cut(text, strlen(text), sizeof comm->text - 1), text);
    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (status != HVI_OK && job->comm == comm && !job->tentative)
            engine_gpu_fail_job(gpu, job, status, comm->text);
    }
    engine_gpu_push(gpu);
}

static bool gpu_help(void *context)
{
    return engine_gpu_backend_look(context);
}

const struct engine_backend engine_backend_gpu = {
    .name = "gpu",
    .says_started = true,
    .open = gpu_open,
    .close = gpu_close,
    .accepts = gpu_accepts,
    .start = gpu_start,
    .help = gpu_help,
    .cancel = gpu_cancel,
    .watch = gpu_watch,
    .silent = gpu_silent,
};
