/* SPDX-License-Identifier: Apache-2.0
 * The next job: hvdd hands a worker that no engine has to another job of the same user.
 *
 *   GpuJob ──► engines end ──their batches are over──► imports are closed ──► staging memory is cleared ──► GpuJob back
 *
 * The context, the kernels and the communicators stay. What the next job may use of these follows from the number that hvdd
 * gives the worker: communicators are of numbers. hvdd ends a worker that is late. */
#include "daemon/gpu/engine.h"

#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>

static void on_cleared(struct gpu_order *order)
{
    struct gpu_worker *worker = order->user;
    struct gpu_pass *pass = &worker->pass;
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_JOB};

    pass->is_clearing = false;
    if (!pass->is_due || worker->is_ending || order->status != HVI_OK)
        return; /* of an error the launch thread tells */
    pass->is_due = false;
    HVI_LOG(HVI_LOG_INFO, "pass", "next-job", "the worker serves the next job of its user",
            "job=%s before=%s instance=%" PRIx64, pass->said.job, worker->start.job,
            pass->said.instance);
    snprintf(worker->start.job, sizeof(worker->start.job), "%s", pass->said.job);
    worker->start.instance = pass->said.instance;
    gpu_link_state(worker, HVI_GPU_UP, ""); /* its figures */
    msg.job = pass->said;
    gpu_link_send(worker, &msg);
}

void gpu_pass_look(struct gpu_worker *worker)
{
    struct gpu_pass *pass = &worker->pass;

    if (!pass->is_due || pass->is_clearing || worker->is_ending || worker->engines != NULL)
        return;
    gpu_imports_drop(&worker->imports);
    if (worker->imports.count > 0)
        return;
    pass->is_clearing = true;
    pass->clear = (struct gpu_order){.kind = GPU_ORDER_CLEAR, .done = on_cleared, .user = worker};
    gpu_launch_order(&worker->launch, &pass->clear);
}

void gpu_pass_begin(struct gpu_worker *worker, const struct hvi_gpu_job *said)
{
    worker->pass.is_due = true;
    worker->pass.said = *said;
    gpu_serve_close(worker);
    gpu_guard_hurry(worker);
    gpu_pass_look(worker);
}

void gpu_pass_forget(struct gpu_worker *worker)
{
    worker->pass.is_due = false;
}
