/* SPDX-License-Identifier: Apache-2.0
 * Works with workers on several nodes. A work is not over before it is over on every node: where gates are opened because a
 * rank or its engine has ended, NCCL brings the others bytes that are no result, and that node alone knows it.
 *
 *   each other node --its workers have answered--> first node --all nodes but this one have--> each other node
 *   any node -------------------failed-----------> first node ----------failed---------------> each other node
 *
 * The first node has the communicator's rank 0. The node that is last has been told before: it waits for no answer. A message
 * says "up to this one", and goes when all that is ready has been looked at: two for each other node, of however many works.
 *
 * Tentative works are of steps that are replayed: a node has started them without knowing whether the others will, and no
 * worker may have one before they all have.
 *
 *   each other node --they have been started--> first node --on all nodes--> each other node
 *
 * A work that some node has not started is withdrawn on all nodes: no word that all have started it was ever sent. Its number
 * is not used again. */
#include "daemon/engine/exec/gpu_row.h"

#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define FAILURES_MAX 16384u /* of a communicator, that were heard of and not met here yet */

/* ---- communicators ---- */

bool engine_gpu_is_same(const struct engine_gpu_route *a, const struct engine_gpu_route *b)
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

void engine_gpu_list_peers(struct gpu_comm *comm, uint32_t here)
{
    const uint32_t first = comm->nodes[0];

    for (uint32_t i = 0; i < comm->route.ranks; i++) {
        const uint32_t node = comm->nodes[i];
        if (node != here && (here == first || node == first) && !peer_at(comm, node))
            comm->peers[comm->peer_count++].node = node;
    }
}

struct engine_gpu_comm engine_gpu_describe_comm(const struct gpu_comm *comm)
{
    return (struct engine_gpu_comm){
        .number = comm->number,
        .count = comm->route.count,
        .workers = comm->route.workers,
        .rank = comm->route.rank,
        .ranks = comm->route.ranks,
        .instances = comm->instances,
        .nodes = comm->nodes,
        .registered = comm->registered,
    };
}

void engine_gpu_free_comm(struct gpu_comm *comm)
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

uint64_t engine_gpu_sequence(const struct gpu_job *job)
{
    return job->batch->works[0]->span->sequence;
}

/* ---- other nodes ---- */

bool engine_gpu_has_nodes(const struct gpu_job *job)
{
    return job->comm && job->comm->nodes;
}

static uint64_t *mark_of(struct gpu_marks *marks, enum engine_gpu_word word)
{
    if (word == ENGINE_GPU_STARTED)
        return &marks->started;
    return word == ENGINE_GPU_OVER ? &marks->over : &marks->begun;
}

/* The nodes that have not said so of this work: how many, and the last of them. */
static uint32_t count_missing(const struct gpu_job *job, enum engine_gpu_word word,
                              const struct gpu_peer **last_p)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < job->comm->peer_count; i++) {
        struct gpu_peer *peer = &job->comm->peers[i];
        if (*mark_of(&peer->said, word) >= engine_gpu_sequence(job))
            continue;
        *last_p = peer;
        count++;
    }
    return count;
}

bool engine_gpu_is_past(const struct gpu_job *job, bool over)
{
    const struct gpu_peer *last;

    return count_missing(job, over ? ENGINE_GPU_OVER : ENGINE_GPU_BEGUN, &last) == 0;
}

static void tell(struct gpu *gpu, const struct gpu_comm *comm, uint32_t node,
                 const struct engine_gpu_news *news)
{
    const struct engine_gpu_comm described = engine_gpu_describe_comm(comm);

    if (gpu->config.tell_node)
        gpu->config.tell_node(gpu->config.owner, &described, node, news);
}

/* Up to this work, if the node has not been told so. */
static void tell_up_to(struct gpu *gpu, const struct gpu_comm *comm, struct gpu_peer *peer,
                       enum engine_gpu_word word, uint64_t sequence)
{
    const struct engine_gpu_news news = {
        .word = word, .sequence = sequence, .status = HVI_OK, .text = ""};
    uint64_t *told = mark_of(&peer->told, word);

    if (sequence <= *told)
        return;
    *told = sequence;
    tell(gpu, comm, peer->node, &news);
}

/* To a node when it is so here and on all others that this one speaks for. */
void engine_gpu_say_begun(struct gpu *gpu, const struct gpu_job *job)
{
    const struct gpu_peer *last = NULL;
    const uint32_t missing = count_missing(job, ENGINE_GPU_BEGUN, &last);

    for (uint32_t i = 0; i < job->comm->peer_count; i++) {
        struct gpu_peer *peer = &job->comm->peers[i];
        if (missing == 0 || (missing == 1 && peer == last))
            tell_up_to(gpu, job->comm, peer, ENGINE_GPU_BEGUN, engine_gpu_sequence(job));
    }
}

/* At once. Works may fail out of their order, so a failure says nothing of those before. */
static void say_failed(struct gpu *gpu, const struct gpu_job *job)
{
    const struct engine_gpu_news news = {.word = ENGINE_GPU_OVER,
                                         .sequence = engine_gpu_sequence(job),
                                         .status = job->batch->status,
                                         .text = job->batch->text};

    for (uint32_t i = 0; i < job->comm->peer_count; i++) {
        if (job->comm->peers[i].told.over < news.sequence)
            tell(gpu, job->comm, job->comm->peers[i].node, &news);
    }
}

/* Works up to this one are over here, and on all nodes but that one that this one speaks for. */
static uint64_t over_without(const struct gpu_comm *comm, const struct gpu_peer *without)
{
    uint64_t least = comm->over;

    for (uint32_t i = 0; i < comm->peer_count; i++) {
        const struct gpu_peer *peer = &comm->peers[i];
        if (peer != without && peer->said.over < least)
            least = peer->said.over;
    }
    return least;
}

static void spread_over(struct gpu *gpu, struct gpu_comm *comm)
{
    for (uint32_t i = 0; i < comm->peer_count; i++) {
        struct gpu_peer *peer = &comm->peers[i];
        tell_up_to(gpu, comm, peer, ENGINE_GPU_OVER, over_without(comm, peer));
    }
}

/* ---- tentative works ---- */

static bool is_first(const struct gpu_comm *comm)
{
    return comm->peer_count == 0 || comm->peers[0].node != comm->nodes[0];
}

void engine_gpu_note_start(struct gpu_job *job)
{
    job->comm->started = engine_gpu_sequence(job);
    job->comm->has_news = true;
}

/* All nodes have started the works up to this one. */
static void agree(struct gpu *gpu, struct gpu_comm *comm, uint64_t sequence)
{
    struct gpu_job *job, *next;

    comm->agreed = sequence;
    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (job->comm != comm || !job->tentative || engine_gpu_sequence(job) > sequence)
            continue;
        job->tentative = false;
        job->agreed = sequence;
        if (comm->status < 0)
            engine_gpu_fail_job(gpu, job, comm->status, comm->text);
    }
}

/* True: there are works that all nodes have started now. */
static bool spread_started(struct gpu *gpu, struct gpu_comm *comm)
{
    const bool agrees = is_first(comm);
    uint64_t sequence = comm->started;

    for (uint32_t i = 0; agrees && i < comm->peer_count; i++) {
        if (comm->peers[i].said.started < sequence)
            sequence = comm->peers[i].said.started;
    }
    for (uint32_t i = 0; i < comm->peer_count; i++)
        tell_up_to(gpu, comm, &comm->peers[i], ENGINE_GPU_STARTED, sequence);
    if (!agrees || sequence <= comm->agreed)
        return false;
    agree(gpu, comm, sequence);
    return true;
}

bool engine_gpu_spread_news(struct gpu *gpu)
{
    bool agreed = false;

    for (struct gpu_comm *comm = gpu->comms; comm; comm = comm->next) {
        if (!comm->has_news)
            continue;
        comm->has_news = false;
        spread_over(gpu, comm);
        agreed = spread_started(gpu, comm) || agreed;
    }
    return agreed;
}

void engine_gpu_backend_withdraw(void *context, uint64_t least)
{
    struct gpu *gpu = context;
    struct gpu_job *job, *next;

    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (!job->tentative || engine_gpu_sequence(job) < least)
            continue;
        job->batch->status = ENGINE_BATCH_WITHDRAWN;
        engine_gpu_post(gpu, job);
    }
}

bool engine_gpu_backend_is_tentative(void *context, const struct engine_batch *batch)
{
    const struct gpu_job *job = batch->over ? NULL : batch->state;

    (void)context;
    return job && job->tentative;
}

/* ---- works that are over ---- */

/* What another node has said of it. */
static void take_failures(struct gpu_job *job)
{
    struct gpu_failure **link = &job->comm->failures;

    while (*link) {
        struct gpu_failure *failure = *link;
        if (failure->sequence != engine_gpu_sequence(job)) {
            link = &failure->next;
            continue;
        }
        engine_gpu_fail(job->batch, failure->status, failure->text);
        *link = failure->next;
        job->comm->failure_count--;
        free(failure);
    }
}

bool engine_gpu_has_failed(const struct gpu_job *job)
{
    const struct gpu_failure *failure = job->comm->failures;

    while (failure && failure->sequence != engine_gpu_sequence(job))
        failure = failure->next;
    return failure != NULL;
}

void engine_gpu_settle(struct gpu *gpu, struct gpu_job *job)
{
    if (engine_gpu_has_nodes(job)) {
        if (job->batch->status != HVI_OK)
            say_failed(gpu, job);
        else if (job->comm->over < engine_gpu_sequence(job))
            job->comm->over = engine_gpu_sequence(job);
        job->comm->has_news = true;
        take_failures(job);
        if (job->batch->status == HVI_OK && !engine_gpu_is_past(job, true))
            return;
    }
    engine_gpu_post(gpu, job);
}

/* Whether the work is still to come here, or is not posted. */
static bool is_awaited(const struct gpu *gpu, const struct gpu_comm *comm, uint64_t sequence)
{
    const struct gpu_job *job;

    DL_FOREACH(gpu->jobs, job)
    {
        if (job->comm == comm && engine_gpu_sequence(job) == sequence)
            return true;
    }
    return sequence > comm->last;
}

/* What it says cannot be: its idea of the works is not ours. This node leaves the communicator, and all others with it. */
static void disbelieve(struct gpu *gpu, const struct gpu_comm *comm, uint32_t node,
                       const struct engine_gpu_news *news, const char *what)
{
    char text[ENGINE_TEXT_BYTES];

    snprintf(text, sizeof text, "node %u says of work %" PRIu64 " on GPUs what cannot be: %s", node,
             news->sequence, what);
    HVI_LOG(HVI_LOG_ERROR, "gpu", "bad-node", text, "comm=%u", comm->number);
    if (gpu->config.comm_over)
        gpu->config.comm_over(gpu->config.owner, comm->number, HVI_ERR_NODE_LOST, text);
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
    comm->failure_count++;
}

/* A work has failed there. */
static void hear_failure(struct gpu *gpu, struct gpu_comm *comm, uint32_t node,
                         const struct engine_gpu_news *news)
{
    for (uint32_t i = 0; i < comm->peer_count; i++) {
        if (comm->peers[i].node != node)
            tell(gpu, comm, comm->peers[i].node, news);
    }
    if (!is_awaited(gpu, comm, news->sequence))
        return;
    if (comm->failure_count < FAILURES_MAX)
        note_failure(comm, news);
    else
        disbelieve(gpu, comm, node, news, "too many works have failed there");
}

/* The first node says so of works that every node has started, this one included. */
static bool is_ahead(const struct gpu_comm *comm, const struct engine_gpu_news *news)
{
    return news->word == ENGINE_GPU_STARTED && !is_first(comm) && news->sequence > comm->started;
}

static void raise_mark(struct gpu_marks *said, enum engine_gpu_word word, uint64_t sequence)
{
    uint64_t *mark = mark_of(said, word);

    if (*mark < sequence)
        *mark = sequence;
}

static void hear(struct gpu *gpu, struct gpu_comm *comm, uint32_t node,
                 const struct engine_gpu_news *news)
{
    struct gpu_peer *peer = peer_at(comm, node);
    struct gpu_job *job, *next;

    if (!peer) /* it speaks to the first node */
        return;
    if (is_ahead(comm, news)) {
        disbelieve(gpu, comm, node, news, "this node has not started it");
        return;
    }
    if (news->status != HVI_OK)
        hear_failure(gpu, comm, node, news);
    else
        raise_mark(&peer->said, news->word, news->sequence);
    if (news->status == HVI_OK && news->word == ENGINE_GPU_OVER) /* what is over has begun */
        raise_mark(&peer->said, ENGINE_GPU_BEGUN, news->sequence);
    comm->has_news = true;
    if (news->word == ENGINE_GPU_STARTED && !is_first(comm) && news->sequence > comm->agreed)
        agree(gpu, comm, news->sequence);
    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (news->word == ENGINE_GPU_OVER && job->comm == comm && !job->queued && job->left == 0)
            engine_gpu_settle(gpu, job);
    }
    (void)engine_gpu_spread_news(gpu);
    if (news->word == ENGINE_GPU_STARTED)
        engine_gpu_push(gpu);
}

void engine_gpu_backend_heard(void *context, const uint64_t *instances, uint32_t count,
                              uint32_t node, const struct engine_gpu_news *news)
{
    struct gpu *gpu = context;
    const struct engine_gpu_route route = {.ranks = count, .instances = instances};
    struct gpu_comm *comm = gpu ? gpu->comms : NULL;

    while (comm && !(comm->nodes && engine_gpu_is_same(&comm->route, &route)))
        comm = comm->next;
    if (comm)
        hear(gpu, comm, node, news);
}
