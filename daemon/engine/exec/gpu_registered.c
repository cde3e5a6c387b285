/* SPDX-License-Identifier: Apache-2.0
 * Works whose memory NCCL has registered.
 *
 * NCCL's rule (its guide, "User Buffer Registration"): if a rank brings registered memory to an op, all ranks must; what else
 * happens is undefined, and a rank may wait for ever. It looks memory up by its address, so an op cannot ask to be done without. So
 * registered memory has a communicator of its own, beside that of the same workers for all other works, in which nothing is
 * registered. A work goes there if all its operands are registered, and no other work does.
 *
 * Until all is registered, and if it cannot be, works go by the other one. What is refused fails none. The communicator is asked
 * for when its workers have nothing under way, and while it is made no work with a communicator goes to any of them: one may be
 * within the first op of another communicator, which waits for all, while the next joins. A worker that hangs in it is ended, as
 * in every call into NCCL.
 *
 * Works with a span go without: a node does not know what the others' imports are. */
#include "daemon/engine/exec/gpu_row.h"

#include "base/types.h"
#include "daemon/engine/exec/fusion.h"

/* NCCL reads and writes the operands of such a work themselves: it is large, and each member has a GPU of its own. */
static bool is_direct(const struct gpu_job *job)
{
    const struct engine_work *work = job->batch->works[0];
    uint32_t members = 0;

    if (work->span || job->batch->count != 1 || work->kind != HVI_KIND_ALLREDUCE ||
        work->reduce_op == HVI_REDUCE_ADASUM || work->bytes < ENGINE_FUSION_DEVICE_SMALL)
        return false;
    for (uint32_t i = 0; i < work->ranks; i++) {
        const bool has_in = work->in[i].kind == ENGINE_OPERAND_DEVICE;
        if (has_in != (work->out[i].kind == ENGINE_OPERAND_DEVICE))
            return false;
        members += has_in;
    }
    return members == job->route.count;
}

bool engine_gpu_may_register(const struct gpu *gpu, const struct gpu_job *job)
{
    const struct engine_work *work = job->batch->works[0];

    if (!gpu->config.registers || !is_direct(job))
        return false;
    for (uint32_t i = 0; i < work->ranks; i++) {
        if (work->in[i].kind == ENGINE_OPERAND_DEVICE &&
            (!gpu->config.registers(gpu->config.owner, work->in[i].import) ||
             !gpu->config.registers(gpu->config.owner, work->out[i].import)))
            return false;
    }
    return true;
}

/* All are asked for, also where one is not registered yet. */
bool engine_gpu_is_registered(const struct gpu *gpu, const struct gpu_job *job,
                              const struct gpu_comm *comm)
{
    const struct engine_work *work = job->batch->works[0];
    bool all = true;

    for (uint32_t i = 0; i < work->ranks; i++) {
        if (work->in[i].kind != ENGINE_OPERAND_DEVICE)
            continue;
        const bool in =
            gpu->config.is_registered(gpu->config.owner, comm->number, work->in[i].import);
        const bool out =
            gpu->config.is_registered(gpu->config.owner, comm->number, work->out[i].import);
        all = all && in && out;
    }
    return all;
}
