/* SPDX-License-Identifier: Apache-2.0
 * What workers answer. It is not trusted: a number that is not under way there, or an impossible index, ends that worker. */
#include "daemon/engine/exec/gpu_row.h"

#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"

#include <stdio.h>
#include <string.h>

void engine_gpu_lie(struct gpu_worker *worker, const char *text)
{
    if (!worker->lie)
        worker->lie = text;
}

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

static uint64_t bit_of(const struct gpu *gpu, const struct gpu_job *job,
                       const struct gpu_worker *worker)
{
    uint64_t bits = 0;

    for (uint32_t i = 0; i < job->route.count; i++) {
        if (&gpu->workers[job->route.workers[i]] == worker)
            bits |= UINT64_C(1) << i;
    }
    return bits;
}

/* No stream took longer than its batch was with the worker. */
static void tell_time(struct gpu *gpu, const struct gpu_worker *worker, const struct gpu_job *job,
                      const struct hvi_device_done *done)
{
    if (job->timed_ns == 0 || done->device_ns == 0 || !gpu->config.took)
        return;
    const struct engine_work *work = job->batch->works[0];
    const uint64_t most_ns = hvi_clock_ns() - job->timed_ns;
    const struct engine_gpu_time time = {
        .worker = (uint32_t)(worker - gpu->workers),
        .works = job->works,
        .stream = hvi_device_stream(job->comm != NULL, work->set, work->reduce_op),
        .took_ns = done->device_ns < most_ns ? done->device_ns : most_ns,
    };
    gpu->config.took(gpu->config.user, job->batch, &time);
}

static void end_job(struct gpu *gpu, const struct gpu_worker *worker, struct gpu_job *job,
                    const struct hvi_device_done *done)
{
    char text[ENGINE_TEXT_BYTES + ENGINE_GPU_NAME_BYTES + 2];

    tell_time(gpu, worker, job, done);
    if (done->status != HVI_OK) {
        describe(worker, done, text, sizeof text);
        engine_gpu_fail(job->batch, done->status, text);
    }
    job->left &= ~bit_of(gpu, job, worker);
    if (job->left == 0)
        engine_gpu_settle(gpu, job);
}

/* Of a whole pack. */
static void take_end(struct gpu *gpu, struct gpu_worker *worker, const struct hvi_device_done *done)
{
    const uint32_t at = (uint32_t)(done->number % HVI_DEVICE_DONES);
    struct gpu_job *job = worker->jobs[at], *next;

    worker->waited_for[at] = 0;
    worker->jobs[at] = NULL;
    worker->under_way--;
    for (; job; job = next) {
        next = job->pack_next;
        end_job(gpu, worker, job, done);
    }
}

static void take_begun(struct gpu *gpu, const struct gpu_worker *worker,
                       const struct hvi_device_done *done)
{
    struct gpu_job *job = worker->jobs[done->number % HVI_DEVICE_DONES];

    for (; job; job = job->pack_next)
        job->begun |= bit_of(gpu, job, worker);
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
        engine_gpu_lie(worker, "an answer that is not the next one");
        return;
    }
    worker->answers++;
    if (done->number == 0 || worker->waited_for[done->number % HVI_DEVICE_DONES] != done->number)
        engine_gpu_lie(worker, "an answer to a batch that it does not have");
    else if (done->status == HVI_INPROGRESS)
        take_begun(gpu, worker, done);
    else if (is_credible(done->status))
        take_end(gpu, worker, done);
    else
        engine_gpu_lie(worker, "an answer with a status that no batch has");
}

/* Not a post: the list of jobs may be walked. True if there was something. */
static bool drain(struct gpu *gpu, struct gpu_worker *worker)
{
    struct hvi_device_done done;
    uint32_t count = 0;

    if (!worker->linked || worker->lie || worker->ended)
        return false;
    if (hvi_ring_available(&worker->channel->dones, &count) != HVI_OK) {
        engine_gpu_lie(worker, "an impossible index in its ring of answers");
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

void engine_gpu_end_worker(struct gpu *gpu, uint32_t number, const char *text)
{
    struct gpu_worker *worker = &gpu->workers[number];

    if (!worker->linked || worker->ended)
        return;
    worker->ended = true;
    worker->lie = NULL;
    if (gpu->config.worker_stuck)
        gpu->config.worker_stuck(gpu->config.owner, number, text);
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
        engine_gpu_end_worker(gpu, i, text);
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
    if ((engine_gpu_spread_news(gpu) || found) && gpu->queued > 0)
        engine_gpu_push(gpu);
    if (lies)
        end_liars(gpu);
    return found;
}
