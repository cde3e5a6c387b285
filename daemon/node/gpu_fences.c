/* SPDX-License-Identifier: Apache-2.0
 * A session's fence page is mapped here for the time of its engine: when engine and worker die together, nobody else
 * can release the streams that wait. Of an engine that has gone all words are poisoned when the workers that it had have gone. One
 * that lives opens its gates itself, after it has told its kernels to write nothing, and says itself when nothing is written. */
#include "daemon/node/gpu_room.h"

#include "base/clock.h"
#include "base/status.h"
#include "shm/fence.h"

#include <stdlib.h>

#include <utlist.h>

#define REST_NS                                                                                    \
    (10 * HVI_NS_SEC) /* by then a worker has let an engine's batches run through, or has ended */

struct node_fences {
    struct node_fences *prev, *next;
    struct node_engine *engine;
    int32_t rank;
    struct hvi_fence_page page;
};

/* What an engine that has gone leaves behind, while workers that it had have not. */
struct node_rest {
    struct node_rest *prev, *next;
    struct node_gpu *gpu;
    sd_event_source *timer;
    struct node_fences *fences;
    uint32_t count;
    uint64_t instances[]; /* of those workers; 0: it has gone */
};

static void fences_free(struct node_fences **list, struct node_fences *fences)
{
    hvi_fence_fini(&fences->page);
    DL_DELETE(*list, fences);
    free(fences);
}

static int32_t count_others(const struct node_gpu *gpu, const struct node_engine *engine,
                            int32_t rank)
{
    const struct node_fences *fences;
    int32_t count = 0;

    DL_FOREACH(gpu->fences, fences)
    count += fences->engine == engine && fences->rank != rank;
    return count;
}

bool node_gpu_fences(struct node_gpu *gpu, struct node_engine *engine, int32_t rank, int32_t most,
                     int fd)
{
    struct node_fences *fences, *old, *after;

    if (count_others(gpu, engine, rank) >= most)
        return false;
    fences = calloc(1, sizeof(*fences));
    if (fences == NULL || hvi_fence_map(fd, &fences->page) != HVI_OK) {
        free(fences);
        return false;
    }
    hvi_region_close_fd(&fences->page.map);
    DL_FOREACH_SAFE(gpu->fences, old, after)
    {
        if (old->engine == engine && old->rank == rank)
            fences_free(&gpu->fences, old); /* of an earlier session */
    }
    fences->engine = engine;
    fences->rank = rank;
    DL_APPEND(gpu->fences, fences);
    return true;
}

static void rest_free(struct node_rest *rest)
{
    while (rest->fences != NULL)
        fences_free(&rest->fences, rest->fences);
    sd_event_source_disable_unref(rest->timer);
    DL_DELETE(rest->gpu->rests, rest);
    free(rest);
}

static void rest_end(struct node_rest *rest)
{
    struct node_fences *fences;

    DL_FOREACH(rest->fences, fences)
    hvi_fence_poison(&fences->page, false);
    rest_free(rest);
}

static int on_rest(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    rest_end(user);
    return 0;
}

void node_fences_without(struct node_gpu *gpu, uint64_t instance)
{
    struct node_rest *rest, *after;

    DL_FOREACH_SAFE(gpu->rests, rest, after)
    {
        uint32_t left = 0;
        for (uint32_t i = 0; i < rest->count; i++) {
            if (rest->instances[i] == instance)
                rest->instances[i] = 0;
            left += rest->instances[i] != 0;
        }
        if (left == 0)
            rest_end(rest);
    }
}

/* Of the workers that the engine has; NULL: it has none, or there is no memory. */
static struct node_rest *rest_new(struct node_gpu *gpu, const struct node_engine *engine)
{
    struct node_rest *rest = calloc(1, sizeof(*rest) + gpu->worker_count * sizeof(uint64_t));
    const struct node_worker *worker;
    const struct node_want *want;

    if (rest == NULL)
        return NULL;
    DL_FOREACH(gpu->workers, worker)
    {
        DL_SEARCH_SCALAR(worker->wants, want, engine, engine);
        if (want != NULL && want->linked)
            rest->instances[rest->count++] = worker->instance;
    }
    if (rest->count == 0 || sd_event_add_time_relative(gpu->event, &rest->timer, CLOCK_MONOTONIC,
                                                       REST_NS / 1000, 1000, on_rest, rest) < 0) {
        free(rest);
        return NULL;
    }
    rest->gpu = gpu;
    DL_APPEND(gpu->rests, rest);
    return rest;
}

void node_fences_leave(struct node_gpu *gpu, const struct node_engine *engine)
{
    struct node_rest *rest = rest_new(gpu, engine);
    struct node_fences *fences, *after;

    DL_FOREACH_SAFE(gpu->fences, fences, after)
    {
        if (fences->engine != engine)
            continue;
        if (rest == NULL) {
            hvi_fence_poison(&fences->page, false);
            fences_free(&gpu->fences, fences);
            continue;
        }
        DL_DELETE(gpu->fences, fences);
        DL_APPEND(rest->fences, fences);
    }
}

void node_fences_close(struct node_gpu *gpu)
{
    while (gpu->fences != NULL)
        fences_free(&gpu->fences, gpu->fences);
    while (gpu->rests != NULL)
        rest_free(gpu->rests);
}
