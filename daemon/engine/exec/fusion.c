/* SPDX-License-Identifier: Apache-2.0
 * Fusion saves the cost of handing over, not copies: operands are already shared, so a batch is
 * only a list. Small ops that are ready together go together; a large op is a batch of its own, so
 * that it can be cut into chunks, and so is one with operands that are not mapped, so that a fault is
 * its own, and an adasum, which has scratch memory and several passes of its own. A work with members
 * on other nodes is alone as well: their engines batch by what is ready there, and that differs. Small ones share
 * a transfer all the same (net_lane.c).
 *
 * On GPUs a batch saves launches: works of one set that are done alike are one, as many as a worker's ring takes at once. */
#include "daemon/engine/exec/fusion.h"

#include "base/types.h"
#include "daemon/engine/exec/gpu.h"

static bool is_adasum(const struct engine_work *work)
{
    return work->reduce_op == HVI_REDUCE_ADASUM &&
           (work->kind == HVI_KIND_ALLREDUCE || work->kind == HVI_KIND_REDUCESCATTER);
}

static bool is_mapped(const struct engine_work *work)
{
    return (work->kinds & ~(1u << ENGINE_OPERAND_NONE | 1u << ENGINE_OPERAND_MAPPED)) == 0;
}

static bool is_small(const struct engine_work *work)
{
    return work->bytes <= ENGINE_FUSION_SMALL_BYTES && is_mapped(work) && !is_adasum(work) &&
           !work->span;
}

static bool is_small_on_device(const struct engine_work *work)
{
    return work->bytes < ENGINE_FUSION_DEVICE_SMALL && !is_adasum(work) && !work->span;
}

static uint32_t take_on_device(const struct engine_work *const *ready, uint32_t count)
{
    uint64_t bytes = ready[0]->bytes, slots = 1 + engine_gpu_most_slots(ready[0]);
    uint32_t taken = 1;

    if (!is_small_on_device(ready[0]))
        return 1;
    while (taken < count && taken < HVI_DEVICE_WORKS) {
        const struct engine_work *work = ready[taken];
        if (!engine_work_has(work, ENGINE_OPERAND_DEVICE) || !is_small_on_device(work) ||
            bytes + work->bytes > ENGINE_FUSION_DEVICE_BYTES ||
            slots + engine_gpu_most_slots(work) > HVI_DEVICE_SLOTS ||
            !engine_gpu_fuses(ready[0], work))
            break;
        bytes += work->bytes;
        slots += engine_gpu_most_slots(work);
        taken++;
    }
    return taken;
}

uint32_t engine_fusion_take(const struct engine_work *const *ready, uint32_t count,
                            uint64_t batch_bytes)
{
    uint64_t bytes = ready[0]->bytes;
    uint32_t taken = 1;

    if (batch_bytes != 0 && engine_work_has(ready[0], ENGINE_OPERAND_DEVICE))
        return take_on_device(ready, count);
    if (!is_small(ready[0]) || batch_bytes == 0)
        return 1;
    while (taken < count && taken < ENGINE_BATCH_WORKS) {
        const struct engine_work *work = ready[taken];
        if (!is_small(work) || bytes + work->bytes > batch_bytes)
            break;
        bytes += work->bytes;
        taken++;
    }
    return taken;
}
