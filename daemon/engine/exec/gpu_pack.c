/* SPDX-License-Identifier: Apache-2.0
 * Packs: works over several nodes that go to the workers as one batch.
 *
 * Workers of a communicator plan a batch alike, so all nodes have to make the same batches. What is ready at once differs from
 * node to node. What does not differ is the word of the first node that all have started the tentative works up to one: each such
 * word closes a run of works, which every node has in its list by then, in the same order. A run is cut into packs by what
 * all nodes know of its works, and by nothing else; least of all by the room that a worker has. A work that was not tentative is
 * a batch of its own. */
#include "daemon/engine/exec/gpu_row.h"

#include "base/types.h"
#include "daemon/engine/exec/fusion.h"

/* .bytes are the same on all nodes. */
static bool is_small(const struct engine_work *work)
{
    const bool sums = work->kind == HVI_KIND_ALLREDUCE && work->reduce_op != HVI_REDUCE_ADASUM;

    return (sums || work->kind == HVI_KIND_BROADCAST) && work->bytes < ENGINE_FUSION_DEVICE_SMALL;
}

static void add(struct gpu *gpu, struct gpu_job *job)
{
    struct engine_batch *pack = &gpu->pack;

    gpu->packed[pack->count] = job;
    pack->works[pack->count++] = job->batch->works[0];
    pack->bytes += job->batch->works[0]->bytes;
}

static bool goes_along(const struct gpu *gpu, const struct gpu_job *first,
                       const struct gpu_job *job, uint32_t slots)
{
    const struct engine_work *work = job->batch->works[0];

    return job->queued && job->agreed == first->agreed && is_small(work) &&
           gpu->pack.bytes + work->bytes <= ENGINE_FUSION_DEVICE_BYTES &&
           slots <= HVI_DEVICE_SLOTS && engine_gpu_fuses(first->batch->works[0], work);
}

const struct engine_batch *engine_gpu_pack(struct gpu *gpu, struct gpu_job *job)
{
    const struct gpu_job *first = job;
    uint32_t slots = 1;

    gpu->pack.count = 0;
    gpu->pack.bytes = 0;
    if (first->agreed == 0 || !is_small(first->batch->works[0])) {
        gpu->packed[0] = job;
        return first->batch;
    }
    const uint32_t share =
        engine_gpu_share(first->batch->works[0], &first->route); /* of each that goes along */
    for (; job && gpu->pack.count < HVI_DEVICE_WORKS; job = job->next) {
        /* What is of this node alone, or of other workers, which one node may know to be lost, is passed over. */
        if (!engine_gpu_has_nodes(job) || job->comm != first->comm)
            continue;
        slots += share;
        if (job != first && !goes_along(gpu, first, job, slots))
            break;
        add(gpu, job);
    }
    return &gpu->pack;
}
