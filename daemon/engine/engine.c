/* SPDX-License-Identifier: Apache-2.0
 * The whole engine: built from hvdd's first message, torn down in reverse. */
#include "daemon/engine/engine.h"

#include "base/assert.h"
#include "base/available.h"
#include "base/clock.h"
#include "base/listener.h"
#include "base/log.h"
#include "base/status.h"
#include "base/yield.h"
#include "daemon/engine/exec/fusion.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/sessions/liveness.h"
#include "daemon/engine/sessions/remote.h"
#include "daemon/engine/watch/timeline.h"
#include "shm/bell.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define THREADS_MAX 256u

/* Both eventfds only have to end the sleep: the loop looks everywhere after it. */
static int on_wake(sd_event_source *source, int fd, uint32_t events, void *user)
{
    eventfd_t value;

    (void)source, (void)events, (void)user;
    (void)eventfd_read(fd, &value);
    return 0;
}

static int on_term(sd_event_source *source, const struct signalfd_siginfo *info, void *user)
{
    struct engine *engine = user;

    (void)source, (void)info;
    engine_sessions_stop(&engine->sessions, "the engine was told to terminate");
    return 0;
}

static int add_sources(struct engine *engine)
{
    if (sd_event_add_io(engine->event, &engine->engine_source, engine->engine_fd, EPOLLIN, on_wake,
                        engine) < 0 ||
        sd_event_add_io(engine->event, &engine->worker_source, engine->worker_fd, EPOLLIN, on_wake,
                        engine) < 0 ||
        sd_event_add_signal(engine->event, &engine->term_source, SIGTERM, on_term, engine) < 0)
        return HVI_ERR_LIMIT;
    return engine_link_open(engine);
}

/* Trainers of the job on this node. */
static uint32_t seats_of(const struct engine *engine)
{
    return (uint32_t)(engine->start.seats > 0 ? engine->start.seats : engine->start.size);
}

int engine_open_order(struct engine *engine, const int32_t *ranks)
{
    bool replay = engine->order.replay;
    int status = engine_roster_init(&engine->roster, engine->start.size, ranks, seats_of(engine));

    if (status == HVI_OK)
        status = engine_order_init(&engine->order, engine->start.job, &engine->roster,
                                   &engine_calls_sink, &engine_calls_observer, engine);
    if (ranks) /* which have come, with their settings */
        engine->order.replay = replay;
    return status;
}

static void start_slots(struct engine *engine)
{
    struct engine_slots *slots = &engine->slots;

    slots->job = engine->start.job;
    slots->seats = seats_of(engine);
    slots->order = &engine->order;
    slots->stats = &engine->stats;
    slots->event = engine->event;
    slots->calls = &engine_calls_slots;
    slots->user = engine;
    engine->order.tensors.gone = engine_slots_tensor_gone;
    engine->order.tensors.gone_user = slots;
    engine_slots_start(slots);
}

static int start_sessions(struct engine *engine)
{
    struct engine_sessions *sessions = &engine->sessions;

    sessions->start = &engine->start;
    sessions->order = &engine->order;
    sessions->exec = &engine->exec;
    sessions->slots = &engine->slots;
    sessions->device = &engine->device;
    sessions->stats = &engine->stats;
    sessions->event = engine->event;
    sessions->seats = seats_of(engine);
    sessions->node = engine->nodes.name;
    sessions->bell_fd = engine->bell_region.fd;
    sessions->wake_fd = engine->engine_fd;
    sessions->calls = &engine_calls_sessions;
    sessions->user = engine;
    return engine_sessions_init(sessions);
}

static int start_device(struct engine *engine)
{
    struct engine_device *device = &engine->device;

    device->event = engine->event;
    device->calls = &engine_calls_device;
    device->user = engine;
    device->generation = engine->start.generation;
    device->enabled = engine->start.gpu;
    return engine_device_open(device);
}

static void init_watch(struct engine *engine)
{
    struct engine_watch *watch = &engine->watch;

    watch->start = &engine->start;
    watch->order = &engine->order;
    watch->exec = &engine->exec;
    watch->stats = &engine->stats;
    watch->slots = &engine->slots;
    watch->sessions = &engine->sessions;
    watch->event = engine->event;
    watch->calls = &engine_calls_watch;
    watch->user = engine;
    watch->stall_warn_ns = engine->start.stall_warn_ns;
}

static int open_all(struct engine *engine)
{
    bool spans = seats_of(engine) < (uint32_t)engine->start.size;

    if (engine_stats_init(&engine->stats, seats_of(engine)) != HVI_OK)
        return HVI_ERR_NO_MEMORY;
    engine->engine_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    engine->worker_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->engine_fd < 0 || engine->worker_fd < 0)
        return HVI_ERR_LIMIT;
    if (sd_event_new(&engine->event) < 0)
        return HVI_ERR_LIMIT;
    init_watch(engine);
    int status = spans ? HVI_OK : engine_open_order(engine, NULL);
    if (status == HVI_OK)
        status = hvi_bell_create(&engine->bell_region, &engine->bell);
    if (status == HVI_OK)
        atomic_init(&engine->bell->silence_ns, engine->start.silence_ns);
    if (status == HVI_OK)
        start_slots(engine);
    if (status == HVI_OK)
        status = start_device(engine);
    if (status == HVI_OK)
        status = start_sessions(engine);
    if (status == HVI_OK && spans)
        status = engine_rendezvous_open(engine);
    if (status == HVI_OK)
        status = add_sources(engine);
    engine->exec.wake_fd = engine->worker_fd;
    if (status == HVI_OK)
        status = engine_dispatch_open(&engine->exec);
    return status;
}

static void init_exec(struct engine *engine)
{
    engine->exec.order = &engine->order;
    engine->exec.calls = &engine_calls_exec;
    engine->exec.user = engine;
    engine->exec.threads = engine->start.threads;
    engine->exec.wake_fd = -1;
    engine->exec.fusion_bytes = ENGINE_FUSION_BATCH_BYTES;
    engine->exec.group_fusion = true;
    engine->exec.answer_ns = ENGINE_ANSWER_NS;
}

int engine_init(struct engine *engine, const struct hvi_engine_start *start, int link_fd)
{
    memset(engine, 0, sizeof *engine);
    engine->start = *start;
    engine->link_fd = link_fd;
    hvi_listener_uid(link_fd, &engine->hvdd_uid);
    engine->engine_fd = engine->worker_fd = -1;
    engine->bell_region.fd = -1;
    engine->slots.map.region.fd = -1;
    engine->settings_rank = INT32_MAX;
    engine->started_ns = hvi_clock_ns();
    engine->order.now_ns = engine->started_ns;
    engine->threads_by_cores = engine->start.threads == 0;
    if (engine->threads_by_cores)
        engine->start.threads = hvi_cores_available();
    if (engine->start.threads > THREADS_MAX)
        engine->start.threads = THREADS_MAX;
    init_exec(engine);
    int status = open_all(engine);
    if (status != HVI_OK) {
        HVI_LOG(HVI_LOG_ERROR, "engine", "start-failed", hvi_status_text(status), "job=%s",
                start->job);
        engine_fini(engine);
        return status;
    }
    engine_liveness_check_empty(&engine->sessions);
    return HVI_OK;
}

void engine_add_cores(struct engine *engine, pid_t pid, int pid_fd)
{
    hvi_yields_watch(pid);
    if (!engine_cores_add(&engine->cores, pid, pid_fd) || !engine->threads_by_cores)
        return;
    const uint32_t cores = hvi_cores_available();
    engine_dispatch_grow(&engine->exec, cores < THREADS_MAX ? cores : THREADS_MAX);
}

bool engine_fini(struct engine *engine)
{
    if (engine->event)
        engine_link_close(engine);
    else if (engine->link_fd >= 0)
        close(engine->link_fd);
    engine_gather_close(&engine->gathers);
    engine_rendezvous_close(engine);
    engine_nodes_hang_up(&engine->nodes);
    bool ended = engine_dispatch_close(&engine->exec);
    engine_remote_settle(&engine->sessions);
    engine_slots_give_up(&engine->slots);
    engine->sessions.bells = NULL;
    while (engine_sessions_reap(&engine->sessions)) {
    }
    engine_negotiate_fail_all(&engine->order, HVI_ERR_JOB_STOPPED, "the engine ends", -1);
    engine_timeline_close(&engine->watch);
    engine_nodes_close(&engine->nodes);
    engine_order_fini(&engine->order);
    engine_slots_stop(&engine->slots);
    engine_sessions_fini(&engine->sessions);
    engine_device_close(&engine->device);
    free(engine->nccl.settings);
    sd_event_source_disable_unref(engine->watch.stall_source);
    sd_event_source_disable_unref(engine->engine_source);
    sd_event_source_disable_unref(engine->worker_source);
    sd_event_source_disable_unref(engine->term_source);
    sd_event_unref(engine->event);
    hvi_region_fini(&engine->bell_region);
    if (engine->worker_fd >= 0)
        close(engine->worker_fd);
    if (engine->engine_fd >= 0)
        close(engine->engine_fd);
    engine_stats_fini(&engine->stats);
    engine_roster_fini(&engine->roster);
    return ended;
}
