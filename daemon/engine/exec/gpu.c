/* SPDX-License-Identifier: Apache-2.0
 * The row "gpu": which batch goes to which workers, and when; and what becomes of it.
 *
 *   queued --room, communicator ready--> under way --each worker's answer, and of other nodes' rows--> posted
 *     |                                      |
 *     +--cancelled, session over, no comm----+--worker lost--> posted at once
 *
 * Works of one set start in the order of start(), and works with a communicator never overtake each other, whatever
 * their sets: two nodes, or two workers, that launched them in different orders would wait for each
 * other for ever. Works of one GPU alone are in no one's way.
 *
 * With a span, the nodes start the same works with communicators in the same order, so communicators are wanted in the
 * same order, too. A node that has no memory of a work has nothing to do. A work is not over before it is over on every
 * node: where gates are opened because a rank or its engine has ended, NCCL brings the others bytes that are no result,
 * and that node alone knows it.
 *
 *   each other node --its workers have answered--> first node --all nodes but this one have--> each other node
 *   any node -------------------failed-----------> first node ----------failed---------------> each other node
 *
 * The first node has the communicator's rank 0. So a work costs two messages for each other node. The node that is last
 * has been told before: it waits for no answer.
 *
 * A batch that a worker has is never taken back. Its fences are opened instead, with .skip before: it runs through, its
 * kernels write nothing, it is answered, and fails here.
 *
 * A batch may wait for a rank's stream for ever: that is the rank's own work. From the moment at which it has begun on all
 * workers it may take .timeout_ns. It has begun when its worker says so (of batches older than 100 ms), or
 * when the worker has no older one and the engine sees that all its fences there are open. With a span the other nodes'
 * workers count as well: TELL_NS after it has begun on all workers here, the nodes tell each other in the same way.
 *
 * Untrusted: what a worker answers. A number that is not under way there, or an impossible index, ends that worker. */
#include "daemon/engine/exec/gpu.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"
#include "shm/fence.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define NAME_BYTES 96u
#define TELL_NS    HVI_NS_SEC

/* A batch that is not posted. */
struct job {
    struct job *next, *prev;
    struct engine_batch *batch;
    struct engine_gpu_route route;
    struct gpu_comm *comm; /* NULL: one worker */
    bool queued;
    uint64_t left, begun; /* a bit for each worker of the route, by index */
    uint64_t here_ns;     /* begun on all of these; 0: not yet */
    uint64_t begun_ns;    /* on all, those of other nodes included */
    uint64_t numbers[ENGINE_GPU_WORKERS];
};

/* A work has failed on another node. */
struct gpu_failure {
    struct gpu_failure *next;
    uint64_t sequence;
    int status;
    char text[ENGINE_TEXT_BYTES];
};

/* A node that this one speaks with: the first node with each other one, any other with the first alone, which speaks for all. */
struct gpu_peer {
    uint32_t node;
    struct gpu_marks { /* sequences of the newest works that have begun, and that are over */
        uint64_t begun, over;
    } said, told; /* by that node, and to it */
};

struct gpu_comm {
    struct gpu_comm *next;
    uint32_t number;
    int status; /* HVI_INPROGRESS: it is being made */
    struct engine_gpu_route route;
    char text[ENGINE_TEXT_BYTES];
    /* With a span: [route.ranks], by rank. */
    uint64_t *instances;
    uint32_t *nodes;
    struct gpu_peer *peers;
    uint32_t peer_count;
    uint64_t last; /* its newest work that was started here */
    struct gpu_failure *failures;
    bool abandoned; /* a work of it will not start here: the nodes are to leave it */
};

struct gpu_worker {
    bool linked, lost;
    struct hvi_device_channel *channel;
    int event_fd;
    char name[NAME_BYTES];
    char text[ENGINE_TEXT_BYTES]; /* lost: why */
    uint64_t number;              /* of the last batch */
    uint64_t answers;             /* .seq of the last answer */
    uint32_t under_way;           /* batches that are not answered, also of those that are posted */
    uint64_t waited_for[HVI_DEVICE_DONES]; /* by number: not answered; 0: none */
    struct job *jobs[HVI_DEVICE_DONES];    /* by number; NULL: posted already */
    const char *lie;                       /* it has told one: it is to be ended */
    bool
        ended; /* it is being ended: nothing goes to it or is taken from it; engine_gpu_backend_lost follows */
};

struct gpu {
    struct engine_backend_config config;
    uint64_t timeout_ns;
    struct job *jobs; /* not posted, in the order of start() */
    struct job *free_jobs;
    uint32_t queued;
    struct gpu_comm *comms;
    uint32_t last_comm;
    struct gpu_worker *workers;           /* [ENGINE_GPU_WORKERS], once there is one */
    uint32_t worker_count;                /* their numbers are below it */
    uint64_t instances[ENGINE_GPU_RANKS]; /* scratch: of the work that is being started */
};

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

static void post(struct gpu *gpu, struct job *job)
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

/* The first failure stays. */
static void fail(struct engine_batch *batch, int status, const char *text)
{
    if (batch->status != HVI_OK)
        return;
    batch->status = status;
    snprintf(batch->text, sizeof batch->text, "%.*s",
             (int)hvi_utf8_cut(text, strlen(text), sizeof batch->text - 1), text);
}

static void free_comm(struct gpu_comm *comm)
{
    free(comm->instances);
    free(comm->nodes);
    free(comm->peers);
    while (comm->failures) {
        struct gpu_failure *failure = comm->failures;
        comm->failures = failure->next;
        free(failure);
    }
    free(comm);
}

static bool gpu_close(void *context)
{
    struct gpu *gpu = context;

    if (!gpu)
        return true;
    while (gpu->jobs) {
        fail(gpu->jobs->batch, HVI_ERR_CANCELLED, "the engine ends");
        post(gpu, gpu->jobs);
    }
    while (gpu->free_jobs) {
        struct job *job = gpu->free_jobs;
        gpu->free_jobs = job->next;
        free(job);
    }
    while (gpu->comms) {
        struct gpu_comm *comm = gpu->comms;
        gpu->comms = comm->next;
        free_comm(comm);
    }
    free(gpu->workers);
    free(gpu);
    return true;
}

/* ---- fences ---- */

/* Whether all members that this worker of the route has, or with `index` UINT32_MAX any worker, have come. */
static bool is_open(const struct job *job, uint32_t index, uint32_t *place_p)
{
    const struct engine_batch *batch = job->batch;

    for (uint32_t w = 0; w < batch->count; w++) {
        const struct engine_work *work = batch->works[w];
        for (uint32_t i = 0; i < work->ranks; i++) {
            const struct engine_fence *fence = &work->fence[i];
            const struct engine_operand *operand =
                work->in[i].kind == ENGINE_OPERAND_DEVICE ? &work->in[i] : &work->out[i];
            if (!fence->page || operand->kind != ENGINE_OPERAND_DEVICE ||
                (index != UINT32_MAX && operand->worker != job->route.workers[index]) ||
                hvi_fence_is_ready(fence->page, fence->cell, fence->turn))
                continue;
            *place_p = i;
            return false;
        }
    }
    return true;
}

static void for_fences(const struct job *job,
                       void (*store)(struct hvi_fence_page *page, uint32_t cell, uint64_t turn))
{
    const struct engine_batch *batch = job->batch;

    for (uint32_t w = 0; w < batch->count; w++) {
        const struct engine_work *work = batch->works[w];
        for (uint32_t i = 0; i < work->ranks; i++) {
            const struct engine_fence *fence = &work->fence[i];
            if (fence->page)
                store(fence->page, fence->cell, fence->turn);
        }
    }
}

/* A worker's kernels look at any one .skip word of the batch: all have it before a stream is let through. */
static void open_all(const struct job *job)
{
    for_fences(job, hvi_fence_store_skip);
    for_fences(job, hvi_fence_store_ready);
}

static bool waits_for_page(const struct job *job, uint32_t page)
{
    const struct engine_batch *batch = job->batch;

    for (uint32_t w = 0; w < batch->count; w++) {
        const struct engine_work *work = batch->works[w];
        for (uint32_t i = 0; i < work->ranks; i++) {
            const struct engine_fence *fence = &work->fence[i];
            if (fence->page && fence->id == page &&
                !hvi_fence_is_ready(fence->page, fence->cell, fence->turn))
                return true;
        }
    }
    return false;
}

/* ---- starting ---- */

static void lie(struct gpu_worker *worker, const char *text)
{
    if (!worker->lie)
        worker->lie = text;
}

static bool has_room(struct gpu *gpu, const struct job *job, uint32_t index)
{
    struct gpu_worker *worker = &gpu->workers[job->route.workers[index]];
    uint32_t slots = 0;

    if (worker->ended || worker->under_way >= HVI_DEVICE_DONES ||
        worker->waited_for[(worker->number + 1) % HVI_DEVICE_DONES] != 0)
        return false;
    if (hvi_ring_space(&worker->channel->commands, &slots) == HVI_OK)
        return slots >= engine_gpu_slots(job->batch, &job->route, index);
    lie(worker, "an impossible index in its ring of commands");
    return false;
}

static void publish(struct gpu *gpu, struct job *job)
{
    for (uint32_t i = 0; i < job->route.count; i++) {
        struct gpu_worker *worker = &gpu->workers[job->route.workers[i]];
        uint32_t slots = engine_gpu_slots(job->batch, &job->route, i);
        uint64_t number = ++worker->number;
        engine_gpu_write(job->batch, &job->route, i, job->comm ? job->comm->number : 0, number,
                         &worker->channel->commands);
        worker->waited_for[number % HVI_DEVICE_DONES] = number;
        worker->jobs[number % HVI_DEVICE_DONES] = job;
        worker->under_way++;
        job->numbers[i] = number;
        job->left |= UINT64_C(1) << i;
        hvi_device_publish(worker->channel, slots, worker->event_fd);
    }
    job->queued = false;
    gpu->queued--;
    gpu->config.started(gpu->config.user, job->batch);
}

/* Queued ones that may start now. */
static void push(struct gpu *gpu)
{
    uint64_t held = 0; /* workers whose own works wait */
    bool comms_held = false;
    struct job *job, *next;

    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        const uint64_t bit = UINT64_C(1) << job->route.workers[0];
        bool may = job->queued &&
                   (job->comm ? !comms_held && job->comm->status == HVI_OK : (held & bit) == 0);
        if (gpu->queued == 0)
            return;
        if (!job->queued)
            continue;
        for (uint32_t i = 0; may && i < job->route.count; i++)
            may = has_room(gpu, job, i);
        if (may)
            publish(gpu, job);
        else if (job->comm)
            comms_held = true;
        else
            held |= bit;
    }
}

static bool is_same(const struct engine_gpu_route *a, const struct engine_gpu_route *b)
{
    if (a->ranks != b->ranks || !a->instances != !b->instances)
        return false;
    return a->instances ? memcmp(a->instances, b->instances, a->ranks * sizeof a->instances[0]) == 0
                        : memcmp(a->workers, b->workers, a->count * sizeof a->workers[0]) == 0;
}

static struct gpu_peer *peer_at(const struct gpu_comm *comm, uint32_t node)
{
    for (uint32_t i = 0; i < comm->peer_count; i++) {
        if (comm->peers[i].node == node)
            return &comm->peers[i];
    }
    return NULL;
}

static void list_peers(struct gpu_comm *comm, uint32_t here)
{
    const uint32_t first = comm->nodes[0];

    for (uint32_t i = 0; i < comm->route.ranks; i++) {
        const uint32_t node = comm->nodes[i];
        if (node != here && (here == first || node == first) && !peer_at(comm, node))
            comm->peers[comm->peer_count++].node = node;
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
    list_peers(comm, work->span->node[work->span->here]);
    return true;
}

static struct engine_gpu_comm describe_comm(const struct gpu_comm *comm)
{
    return (struct engine_gpu_comm){
        .number = comm->number,
        .count = comm->route.count,
        .workers = comm->route.workers,
        .rank = comm->route.rank,
        .ranks = comm->route.ranks,
        .instances = comm->instances,
        .nodes = comm->nodes,
    };
}

static struct gpu_comm *comm_for(struct gpu *gpu, const struct engine_gpu_route *route,
                                 const struct engine_work *work)
{
    struct gpu_comm *comm = gpu->comms;

    while (comm && !is_same(&comm->route, route))
        comm = comm->next;
    if (comm)
        return comm;
    comm = calloc(1, sizeof *comm);
    if (!comm)
        return NULL;
    comm->number = ++gpu->last_comm;
    comm->status = HVI_INPROGRESS;
    comm->route = *route;
    if (work->span && !take_nodes(comm, work)) {
        free_comm(comm);
        return NULL;
    }
    comm->next = gpu->comms;
    gpu->comms = comm;
    const struct engine_gpu_comm wanted = describe_comm(comm);
    gpu->config.comm_wanted(gpu->config.user, &wanted);
    return comm;
}

/* The batch is a job, or has failed. */
static struct job *make_job(struct gpu *gpu, struct engine_batch *batch)
{
    struct job *job = gpu->free_jobs;

    if (job)
        gpu->free_jobs = job->next;
    else
        job = malloc(sizeof *job);
    if (!job) {
        fail(batch, HVI_ERR_NO_MEMORY, "the engine is out of memory");
        return NULL;
    }
    *job = (struct job){.batch = batch, .queued = true};
    return job;
}

static bool check_route(struct gpu *gpu, struct job *job)
{
    struct engine_batch *batch = job->batch;

    if (!engine_gpu_route(batch, gpu->instances, &job->route) ||
        (job->route.count > 0 && !gpu->workers)) {
        fail(batch, HVI_ERR_UNSUPPORTED, "the GPUs of these operands cannot work together");
        return false;
    }
    if (batch->works[0]->span && !engine_gpu_fits(batch->works[0], &job->route)) {
        fail(batch, HVI_ERR_LIMIT, "the op has too many ranks for the workers of its GPUs");
        return false;
    }
    for (uint32_t i = 0; i < job->route.count; i++) {
        const struct gpu_worker *worker = &gpu->workers[job->route.workers[i]];
        if (worker->lost || !worker->linked) {
            fail(batch, HVI_ERR_WORKER_LOST, worker->text);
            return false;
        }
        if (engine_gpu_slots(batch, &job->route, i) == 0) {
            fail(batch, HVI_ERR_LIMIT, "the op has too many ranks on one GPU for its worker");
            return false;
        }
    }
    return true;
}

static uint64_t sequence_of(const struct job *job)
{
    return job->batch->works[0]->span->sequence;
}

static bool check_comm(struct gpu *gpu, struct job *job)
{
    if (job->route.ranks == 1)
        return true;
    job->comm = gpu->config.comm_wanted ? comm_for(gpu, &job->route, job->batch->works[0]) : NULL;
    if (job->comm)
        job->route.instances = job->comm->instances;
    if (job->comm && job->comm->nodes)
        job->comm->last = sequence_of(job);
    if (!job->comm)
        fail(job->batch, HVI_ERR_NO_MEMORY, "the engine is out of memory");
    else if (job->comm->status < 0)
        fail(job->batch, job->comm->status, job->comm->text);
    return job->batch->status == HVI_OK;
}

static void gpu_start(void *context, struct engine_batch *batch)
{
    struct gpu *gpu = context;

    batch->status = HVI_OK;
    batch->fault = (struct engine_fault){.rank = -1};
    batch->over = false;
    struct job *job = make_job(gpu, batch);
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
    push(gpu);
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

/* ---- other nodes ---- */

/* Workers of other nodes take part. */
static bool has_nodes(const struct job *job)
{
    return job->comm && job->comm->nodes;
}

static uint64_t *mark_of(struct gpu_marks *marks, bool over)
{
    return over ? &marks->over : &marks->begun;
}

/* The nodes that have not said so of this work: how many, and the last of them. */
static uint32_t count_missing(const struct job *job, bool over, const struct gpu_peer **last_p)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < job->comm->peer_count; i++) {
        struct gpu_peer *peer = &job->comm->peers[i];
        if (*mark_of(&peer->said, over) >= sequence_of(job))
            continue;
        *last_p = peer;
        count++;
    }
    return count;
}

static bool is_past(const struct job *job, bool over)
{
    const struct gpu_peer *last;

    return count_missing(job, over, &last) == 0;
}

static void tell(struct gpu *gpu, const struct gpu_comm *comm, uint32_t node,
                 const struct engine_gpu_news *news)
{
    const struct engine_gpu_comm described = describe_comm(comm);

    if (gpu->config.tell_node)
        gpu->config.tell_node(gpu->config.user, &described, node, news);
}

/* To a node when it is so here and on all others that this one speaks for; a failure at once. Works may fail out of their order, so a
 * failure says nothing of those before. */
static void say(struct gpu *gpu, struct job *job, bool over)
{
    const struct engine_batch *batch = job->batch;
    const bool failed = over && batch->status != HVI_OK;
    const struct engine_gpu_news news = {.over = over,
                                         .sequence = sequence_of(job),
                                         .status = failed ? batch->status : HVI_OK,
                                         .text = failed ? batch->text : ""};
    const struct gpu_peer *last = NULL;
    const uint32_t missing = count_missing(job, over, &last);

    for (uint32_t i = 0; i < job->comm->peer_count; i++) {
        struct gpu_peer *peer = &job->comm->peers[i];
        uint64_t *told = mark_of(&peer->told, over);
        const bool may = failed || missing == 0 || (missing == 1 && peer == last);
        if (!may || *told >= news.sequence)
            continue;
        if (!failed)
            *told = news.sequence;
        tell(gpu, job->comm, peer->node, &news);
    }
}

/* What another node has said of it. */
static void take_failures(struct job *job)
{
    struct gpu_failure **link = &job->comm->failures;

    while (*link) {
        struct gpu_failure *failure = *link;
        if (failure->sequence != sequence_of(job)) {
            link = &failure->next;
            continue;
        }
        fail(job->batch, failure->status, failure->text);
        *link = failure->next;
        free(failure);
    }
}

/* All workers here have answered. */
static void settle(struct gpu *gpu, struct job *job)
{
    if (has_nodes(job)) {
        say(gpu, job, true);
        take_failures(job);
        if (job->batch->status == HVI_OK && !is_past(job, true))
            return;
    }
    post(gpu, job);
}

/* Whether the work is still to come here, or is not posted. */
static bool is_awaited(const struct gpu *gpu, const struct gpu_comm *comm, uint64_t sequence)
{
    const struct job *job;

    DL_FOREACH(gpu->jobs, job)
    {
        if (job->comm == comm && sequence_of(job) == sequence)
            return true;
    }
    return sequence > comm->last;
}

/* A node that gives a work up knows why its job is broken, and others will hear of it, too. */
static void note_failure(struct gpu_comm *comm, const struct engine_gpu_news *news)
{
    struct gpu_failure *failure = calloc(1, sizeof *failure);
    const bool is_own = hvi_status_is_of_op(news->status) && news->status != HVI_ERR_CANCELLED;

    if (!failure)
        return;
    failure->sequence = news->sequence;
    failure->status = is_own ? news->status : HVI_ERR_NODE_LOST;
    snprintf(failure->text, sizeof failure->text, "%.*s",
             (int)hvi_utf8_cut(news->text, strlen(news->text), sizeof failure->text - 1),
             news->text[0] ? news->text : "another node has given the op up");
    failure->next = comm->failures;
    comm->failures = failure;
}

/* A work has failed there. */
static void hear_failure(struct gpu *gpu, struct gpu_comm *comm, uint32_t node,
                         const struct engine_gpu_news *news)
{
    for (uint32_t i = 0; i < comm->peer_count; i++) {
        if (comm->peers[i].node != node)
            tell(gpu, comm, comm->peers[i].node, news);
    }
    if (is_awaited(gpu, comm, news->sequence))
        note_failure(comm, news);
}

/* What is over has begun, and a node that is soon done says nothing of its begin. */
static void raise_marks(struct gpu_marks *said, const struct engine_gpu_news *news)
{
    if (said->begun < news->sequence)
        said->begun = news->sequence;
    if (news->over && said->over < news->sequence)
        said->over = news->sequence;
}

static void hear(struct gpu *gpu, struct gpu_comm *comm, uint32_t node,
                 const struct engine_gpu_news *news)
{
    struct gpu_peer *peer = peer_at(comm, node);
    struct job *job, *next;

    if (!peer) /* it speaks to the first node */
        return;
    if (news->status == HVI_OK)
        raise_marks(&peer->said, news);
    else
        hear_failure(gpu, comm, node, news);
    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (news->over && job->comm == comm && !job->queued && job->left == 0)
            settle(gpu, job);
    }
}

void engine_gpu_backend_heard(void *context, const uint64_t *instances, uint32_t count,
                              uint32_t node, const struct engine_gpu_news *news)
{
    struct gpu *gpu = context;
    const struct engine_gpu_route route = {.ranks = count, .instances = instances};
    struct gpu_comm *comm = gpu ? gpu->comms : NULL;

    while (comm && !(comm->nodes && is_same(&comm->route, &route)))
        comm = comm->next;
    if (comm)
        hear(gpu, comm, node, news);
}

/* ---- answers ---- */

/* "GPU-… (NVIDIA H200, pid 4711): out of memory" */
static void describe(const struct gpu_worker *worker, const struct hvi_device_done *done,
                     char *text_p, size_t size)
{
    size_t length = strnlen(done->text, sizeof done->text);
    const bool said =
        length > 0 && length < sizeof done->text && hvi_utf8_valid(done->text, length);

    snprintf(text_p, size, "%s: %s", worker->name,
             said ? done->text : hvi_status_text(done->status));
}

static void take_end(struct gpu *gpu, struct gpu_worker *worker, const struct hvi_device_done *done)
{
    const uint32_t at = (uint32_t)(done->number % HVI_DEVICE_DONES);
    struct job *job = worker->jobs[at];
    char text[ENGINE_TEXT_BYTES + NAME_BYTES + 2];

    worker->waited_for[at] = 0;
    worker->jobs[at] = NULL;
    worker->under_way--;
    if (!job)
        return;
    if (done->status != HVI_OK) {
        describe(worker, done, text, sizeof text);
        fail(job->batch, done->status, text);
    }
    for (uint32_t i = 0; i < job->route.count; i++) {
        if (&gpu->workers[job->route.workers[i]] == worker)
            job->left &= ~(UINT64_C(1) << i);
    }
    if (job->left == 0)
        settle(gpu, job);
}

static void take_begun(struct gpu *gpu, const struct gpu_worker *worker,
                       const struct hvi_device_done *done)
{
    struct job *job = worker->jobs[done->number % HVI_DEVICE_DONES];

    for (uint32_t i = 0; job && i < job->route.count; i++) {
        if (&gpu->workers[job->route.workers[i]] == worker)
            job->begun |= UINT64_C(1) << i;
    }
}

/* An op's own failure, and nothing else that a worker may claim. */
static bool is_credible(int32_t status)
{
    return status == HVI_OK || hvi_status_is_of_op(status);
}

static void take_answer(struct gpu *gpu, struct gpu_worker *worker,
                        const struct hvi_device_done *done)
{
    if (done->seq != worker->answers + 1) {
        lie(worker, "an answer that is not the next one");
        return;
    }
    worker->answers++;
    if (done->number == 0 || worker->waited_for[done->number % HVI_DEVICE_DONES] != done->number)
        lie(worker, "an answer to a batch that it does not have");
    else if (done->status == HVI_INPROGRESS)
        take_begun(gpu, worker, done);
    else if (is_credible(done->status))
        take_end(gpu, worker, done);
    else
        lie(worker, "an answer with a status that no batch has");
}

/* Not a post: the list of jobs may be walked. True if there was something. */
static bool drain(struct gpu *gpu, struct gpu_worker *worker)
{
    struct hvi_device_done done;
    uint32_t count = 0;

    if (!worker->linked || worker->lie || worker->ended)
        return false;
    if (hvi_ring_available(&worker->channel->dones, &count) != HVI_OK) {
        lie(worker, "an impossible index in its ring of answers");
        return true;
    }
    for (uint32_t i = 0; i < count && !worker->lie; i++) {
        hvi_ring_copy(&worker->channel->dones, i, &done);
        take_answer(gpu, worker, &done);
    }
    if (count > 0)
        hvi_ring_release(&worker->channel->dones, count);
    return count > 0;
}

/* Its batches fail when it is known to be dead: until then it may write their outputs. The receiver may call
 * engine_gpu_backend_lost at once. */
static void end_worker(struct gpu *gpu, uint32_t number, const char *text)
{
    struct gpu_worker *worker = &gpu->workers[number];

    if (!worker->linked || worker->ended)
        return;
    worker->ended = true;
    worker->lie = NULL;
    if (gpu->config.worker_stuck)
        gpu->config.worker_stuck(gpu->config.user, number, text);
    else
        engine_gpu_backend_lost(gpu, number, text);
}

static void end_liars(struct gpu *gpu)
{
    char text[ENGINE_TEXT_BYTES];

    for (uint32_t i = 0; i < gpu->worker_count; i++) {
        if (!gpu->workers[i].lie)
            continue;
        snprintf(text, sizeof text, "it broke the protocol: %s", gpu->workers[i].lie);
        end_worker(gpu, i, text);
    }
}

bool engine_gpu_backend_look(void *context)
{
    struct gpu *gpu = context;
    bool found = false, lies = false;

    if (!gpu || !gpu->workers) /* closed, or no worker has come */
        return false;
    for (uint32_t i = 0; i < gpu->worker_count; i++) {
        if (gpu->workers[i].under_way > 0)
            found = drain(gpu, &gpu->workers[i]) || found;
        lies = lies || gpu->workers[i].lie;
    }
    if (found && gpu->queued > 0)
        push(gpu);
    if (lies)
        end_liars(gpu);
    return found;
}

static bool gpu_help(void *context)
{
    return engine_gpu_backend_look(context);
}

/* ---- cancelling ---- */

/* What a worker has is answered by it. */
static void fail_job(struct gpu *gpu, struct job *job, int status, const char *text)
{
    fail(job->batch, status, text);
    if (job->queued || job->left == 0)
        post(gpu, job);
    else
        open_all(job);
}

static void cancel(struct gpu *gpu, struct job *job)
{
    if (job->queued && has_nodes(job))
        job->comm->abandoned = true;
    fail_job(gpu, job, HVI_ERR_CANCELLED, "");
}

/* The list of jobs is not walked: this posts some. */
static void leave_abandoned(struct gpu *gpu)
{
    for (struct gpu_comm *comm = gpu->comms; comm; comm = comm->next) {
        if (!comm->abandoned)
            continue;
        comm->abandoned = false;
        if (gpu->config.comm_over)
            gpu->config.comm_over(gpu->config.user, comm->number, HVI_ERR_CANCELLED,
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
    push(gpu);
}

void engine_gpu_backend_session_over(void *context, uint32_t page)
{
    struct gpu *gpu = context;
    struct job *job, *next;

    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (waits_for_page(job, page))
            cancel(gpu, job);
    }
    leave_abandoned(gpu);
    push(gpu);
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

/* On another node, whose workers may not come to it any more. */
static bool has_failed(const struct job *job)
{
    const struct gpu_failure *failure = job->comm->failures;

    while (failure && failure->sequence != sequence_of(job))
        failure = failure->next;
    return failure != NULL;
}

static void look_whether_begun(struct gpu *gpu, struct job *job, uint64_t now_ns)
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
             is_open(job, i, &place)))
            job->begun |= bit;
    }
    if (job->begun == all && job->here_ns == 0)
        job->here_ns = now_ns;
    if (job->here_ns != 0 && (!has_nodes(job) || is_past(job, false) || has_failed(job)))
        job->begun_ns = now_ns;
}

/* Also of a work that is over here: others may wait for the news of a third node. */
static bool is_late(struct gpu *gpu, struct job *job, uint64_t now_ns)
{
    if (job->queued)
        return false;
    if (job->begun_ns == 0)
        look_whether_begun(gpu, job, now_ns);
    if (has_nodes(job) && job->here_ns != 0 && now_ns - job->here_ns >= TELL_NS)
        say(gpu, job, false);
    return job->left != 0 && job->begun_ns != 0 && now_ns - job->begun_ns > gpu->timeout_ns;
}

/* Its workers are ended, but for those that have answered, and those that are being ended. */
static void give_up(struct gpu *gpu, const struct job *job)
{
    const struct engine_gpu_route route = job->route;
    const uint64_t left = job->left;
    char text[ENGINE_TEXT_BYTES];

    snprintf(text, sizeof text,
             "a batch that has begun is not over after %.1f s (HVD_GPU_TIMEOUT_SECONDS)",
             (double)gpu->timeout_ns / (double)HVI_NS_SEC);
    for (uint32_t i = 0; i < route.count; i++) {
        if ((left >> i & 1) != 0)
            end_worker(gpu, route.workers[i], text);
    }
}

/* All workers that have not answered are being ended. */
static bool is_given_up(const struct gpu *gpu, const struct job *job)
{
    for (uint32_t i = 0; i < job->route.count; i++) {
        if ((job->left >> i & 1) != 0 && !gpu->workers[job->route.workers[i]].ended)
            return false;
    }
    return job->left != 0;
}

static void gpu_watch(void *context)
{
    struct gpu *gpu = context;
    const uint64_t now_ns = hvi_clock_ns();
    struct job *job = gpu->jobs;

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
    const struct job *job = batch->over ? NULL : batch->state;

    (void)context;
    return job && !is_open(job, UINT32_MAX, place_p);
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
static void lose_part(struct gpu *gpu, struct job *job, uint32_t number)
{
    fail(job->batch, HVI_ERR_WORKER_LOST, gpu->workers[number].text);
    if (!job->queued)
        open_all(job);
    for (uint32_t i = 0; i < job->route.count; i++) {
        if (job->route.workers[i] == number)
            job->left &= ~(UINT64_C(1) << i);
    }
    if (job->left == 0)
        post(gpu, job);
}

void engine_gpu_backend_lost(void *context, uint32_t number, const char *text)
{
    struct gpu *gpu = context;
    struct gpu_worker *worker = gpu->workers ? &gpu->workers[number] : NULL;
    struct job *job, *next;

    if (!worker || worker->lost)
        return;
    worker->linked = false;
    worker->lost = true;
    worker->lie = NULL;
    worker->ended = false;
    worker->under_way = 0;
    snprintf(worker->text, sizeof worker->text, "%.*s",
             (int)hvi_utf8_cut(text, strlen(text), sizeof worker->text - 1), text);
    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (goes_to(&job->route, number))
            lose_part(gpu, job, number);
    }
    push(gpu);
}

void engine_gpu_backend_comm(void *context, uint32_t number, int status, const char *text)
{
    struct gpu *gpu = context;
    struct gpu_comm *comm = gpu->comms;
    struct job *job, *next;

    while (comm && comm->number != number)
        comm = comm->next;
    if (!comm)
        return;
    comm->status = status;
    snprintf(comm->text, sizeof comm->text, "%.*s",
             (int)hvi_utf8_cut(text, strlen(text), sizeof comm->text - 1), text);
    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (status != HVI_OK && job->comm == comm)
            fail_job(gpu, job, status, comm->text);
    }
    push(gpu);
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
