/* SPDX-License-Identifier: Apache-2.0
 * Works with workers on several nodes. A work is not over before it is over on every node: where gates are opened because a
 * rank or its engine has ended, NCCL brings the others bytes that are no result, and that node alone knows it.
 *
 *   each other node --its workers have answered--> first node --all nodes but this one have--> each other node
 *   any node -------------------failed-----------> first node ----------failed---------------> each other node
 *
 * The first node has the communicator's rank 0. So a work costs two messages for each other node. The node that is last
 * has been told before: it waits for no answer. */
#include "daemon/engine/exec/gpu_row.h"

#include "base/status.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

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

static uint64_t *mark_of(struct gpu_marks *marks, bool over)
{
    return over ? &marks->over : &marks->begun;
}

/* The nodes that have not said so of this work: how many, and the last of them. */
static uint32_t count_missing(const struct gpu_job *job, bool over, const struct gpu_peer **last_p)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < job->comm->peer_count; i++) {
        struct gpu_peer *peer = &job->comm->peers[i];
        if (*mark_of(&peer->said, over) >= engine_gpu_sequence(job))
            continue;
        *last_p = peer;
        count++;
    }
    return count;
}

bool engine_gpu_is_past(const struct gpu_job *job, bool over)
{
    const struct gpu_peer *last;

    return count_missing(job, over, &last) == 0;
}

static void tell(struct gpu *gpu, const struct gpu_comm *comm, uint32_t node,
                 const struct engine_gpu_news *news)
{
    const struct engine_gpu_comm described = engine_gpu_describe_comm(comm);

    if (gpu->config.tell_node)
        gpu->config.tell_node(gpu->config.user, &described, node, news);
}

/* To a node when it is so here and on all others that this one speaks for; a failure at once. Works may fail out of their order, so a
 * failure says nothing of those before. */
void engine_gpu_say(struct gpu *gpu, struct gpu_job *job, bool over)
{
    const struct engine_batch *batch = job->batch;
    const bool failed = over && batch->status != HVI_OK;
    const struct engine_gpu_news news = {.over = over,
                                         .sequence = engine_gpu_sequence(job),
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
        engine_gpu_say(gpu, job, true);
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
    struct gpu_job *job, *next;

    if (!peer) /* it speaks to the first node */
        return;
    if (news->status == HVI_OK)
        raise_marks(&peer->said, news);
    else
        hear_failure(gpu, comm, node, news);
    DL_FOREACH_SAFE(gpu->jobs, job, next)
    {
        if (news->over && job->comm == comm && !job->queued && job->left == 0)
            engine_gpu_settle(gpu, job);
    }
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
