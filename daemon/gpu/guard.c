/* SPDX-License-Identifier: Apache-2.0
 * Deadlines, which the main thread keeps for the threads that call the driver: it calls none itself, so that it can. And the
 * poison of pages whose batches are not over.
 *
 * What does not end ends this process, with the reason: the driver and NCCL know no other way out of a call, and a stream
 * cannot be taken back. Kernels and NCCL may write until the driver has torn the context down, so .done words of batches that are
 * not over are left to those that see the end of this process: the engine, and hvdd for an engine that is over.
 *
 * While this process stands still, calls do not get further either. So that time counts for none of them: hvdd judges it, by
 * gpu-silence. */
#include "daemon/gpu/engine.h"

#include "base/status.h"

#include <stdio.h>
#include <unistd.h>

#include <utlist.h>

#define POISON_NS  (10 * HVI_NS_MS)
#define TICK_NS    (250 * HVI_NS_MS)
#define END_NS     (2 * HVI_NS_SEC)
#define STOOD_NS   (500 * HVI_NS_MS) /* a tick that late: the main thread waits for nothing else */
#define PARTS_TICK 4u                /* of the longest call: how late it may be seen */

/* Its engine is over, and no hvdd has its pages: after the end of this process no other one would release its streams. */
static bool is_alone(const struct gpu_engine *engine)
{
    return engine->is_leaving && (engine->worker->link_fd < 0 || engine->is_unknown);
}

void gpu_guard_fail(struct gpu_worker *worker, const char *text)
{
    struct gpu_engine *engine;

    HVI_LOG(HVI_LOG_ERROR, "guard", "failed", text, "job=%s", worker->start.job);
    DL_FOREACH(worker->engines, engine)
    {
        engine->is_drained = engine->is_drained || is_alone(engine);
        engine->is_leaving = true;
        gpu_memory_skip(engine);
        (void)gpu_memory_poison(engine);
    }
    gpu_link_state(worker, HVI_GPU_FAILED, text);
    (void)pthread_detach(worker->device.thread);
    _exit(1); /* the driver may not return, and would not let exit() return either */
}

static void look_at_calls(struct gpu_worker *worker, uint64_t now_ns)
{
    const struct gpu_launch *launch = &worker->launch;
    char text[200], sentence[300];
    uint64_t batch;

    /* Relaxed: hints. An open or a registration may wait for what was in streams when it began (P2), and then it may last. */
    if (atomic_load_explicit(&launch->oldest_ns, memory_order_relaxed) <=
        atomic_load_explicit(&worker->imports.calls.since_ns, memory_order_relaxed))
        worker->excused_ns = now_ns;
    if (worker->up &&
        gpu_calls_look(&launch->calls, worker->stood_ns, now_ns, text, sizeof(text))) {
        batch = atomic_load_explicit(&launch->calls.batch, memory_order_relaxed);
        snprintf(sentence, sizeof(sentence), "its launch thread is %s (batch %llu)", text,
                 (unsigned long long)batch);
        gpu_guard_fail(worker, sentence);
    }
    if (worker->up &&
        gpu_calls_look(&worker->imports.calls, worker->excused_ns, now_ns, text, sizeof(text))) {
        snprintf(sentence, sizeof(sentence), "its thread for memory is %s", text);
        gpu_guard_fail(worker, sentence);
    }
}

static bool look_at_engines(struct gpu_worker *worker, uint64_t now_ns)
{
    struct gpu_engine *engine, *next;
    bool found = false;

    DL_FOREACH_SAFE(worker->engines, engine, next)
    {
        found = gpu_memory_poison(engine) || found || engine->is_leaving;
        if (engine->deadline_ns != 0 && now_ns > engine->deadline_ns && !engine->is_drained)
            gpu_guard_fail(worker, engine->late);
    }
    return found;
}

static uint64_t tick_of(const struct gpu_worker *worker)
{
    const uint64_t part = worker->launch.calls.usual_ns / PARTS_TICK;

    return part < TICK_NS ? part : TICK_NS;
}

/* Calls have their time anew, and what ends later ends as much later. */
static void look_at_clock(struct gpu_worker *worker, uint64_t now_ns)
{
    struct gpu_engine *engine;

    if (now_ns < worker->due_ns + STOOD_NS)
        return;
    worker->stood_ns = worker->excused_ns = now_ns;
    DL_FOREACH(worker->engines, engine)
    {
        if (engine->deadline_ns != 0)
            engine->deadline_ns += now_ns - worker->due_ns;
    }
    worker->end_ns += now_ns - worker->due_ns; /* before is_ending it is set anew */
}

static void arm(struct gpu_worker *worker, uint64_t ns)
{
    worker->due_ns = hvi_clock_ns() + ns;
    sd_event_source_set_time_relative(worker->guard, ns / 1000);
    sd_event_source_set_enabled(worker->guard, SD_EVENT_ONESHOT);
}

/* Whether everything that has to end before this process has. */
static void look_at_end(struct gpu_worker *worker, uint64_t now_ns)
{
    if (!worker->is_ending)
        return;
    if (worker->engines == NULL && (!worker->up || worker->launch.is_stopped))
        sd_event_exit(worker->event, worker->exit_code);
    else if (now_ns > worker->end_ns)
        gpu_guard_fail(worker, "its streams are not empty 2 s after it was told to end");
}

static int on_tick(sd_event_source *source, uint64_t usec, void *user)
{
    struct gpu_worker *worker = user;
    const uint64_t now_ns = hvi_clock_ns();

    (void)source, (void)usec;
    look_at_clock(worker, now_ns);
    look_at_calls(worker, now_ns);
    bool is_hurried = look_at_engines(worker, now_ns) || worker->is_ending || worker->pass.is_due;
    look_at_end(worker, now_ns);
    gpu_pass_look(worker);
    arm(worker, is_hurried ? POISON_NS : tick_of(worker));
    return 0;
}

void gpu_guard_hurry(struct gpu_worker *worker)
{
    look_at_clock(worker, hvi_clock_ns());
    arm(worker, POISON_NS);
}

int gpu_guard_open(struct gpu_worker *worker)
{
    worker->due_ns = hvi_clock_ns() + tick_of(worker);
    if (sd_event_add_time_relative(worker->event, &worker->guard, CLOCK_MONOTONIC,
                                   tick_of(worker) / 1000, 1000, on_tick, worker) >= 0)
        return HVI_OK;
    return HVI_ERR_NO_MEMORY;
}

void gpu_guard_end(struct gpu_worker *worker, int exit_code)
{
    if (worker->is_ending)
        return;
    look_at_clock(worker, hvi_clock_ns());
    worker->is_ending = true;
    worker->exit_code = exit_code;
    worker->end_ns = hvi_deadline_after(END_NS);
    gpu_serve_close(worker);
    if (worker->up)
        gpu_launch_order(&worker->launch, &worker->launch.stop);
    arm(worker, 0);
}
