/* SPDX-License-Identifier: Apache-2.0
 * The fences of a batch: whether streams have come, and how those that wait are let through. */
#include "daemon/engine/exec/gpu_row.h"

#include "shm/fence.h"

static bool is_open(const struct gpu_job *job, uint32_t index, uint32_t *place_p)
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

/* All of a pack: none begins before the last one's streams have come. */
bool engine_gpu_is_open(const struct gpu_job *job, uint32_t index, uint32_t *place_p)
{
    if (job->queued)
        return is_open(job, index, place_p);
    for (const struct gpu_job *each = job->pack; job->left != 0 && each; each = each->pack_next) {
        if (!is_open(each, index, place_p))
            return false;
    }
    return true;
}

static void for_fences(const struct gpu_job *job,
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
void engine_gpu_open_all(const struct gpu_job *job)
{
    const struct gpu_job *each;

    for (each = job->pack; each; each = each->pack_next)
        for_fences(each, hvi_fence_store_skip);
    for (each = job->pack; each; each = each->pack_next)
        for_fences(each, hvi_fence_store_ready);
}

bool engine_gpu_is_of_page(const struct gpu_job *job, uint32_t page, bool ready)
{
    const struct engine_batch *batch = job->batch;

    for (uint32_t w = 0; w < batch->count; w++) {
        const struct engine_work *work = batch->works[w];
        for (uint32_t i = 0; i < work->ranks; i++) {
            const struct engine_fence *fence = &work->fence[i];
            if (fence->page && fence->id == page &&
                (ready || !hvi_fence_is_ready(fence->page, fence->cell, fence->turn)))
                return true;
        }
    }
    return false;
}
