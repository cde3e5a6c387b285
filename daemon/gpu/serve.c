/* SPDX-License-Identifier: Apache-2.0
 * Engines' sockets. An engine gets its device channel with the hello; its ring is the launch thread's. What it says is for
 * memory.c and joins.c.
 *
 * The end of an engine's socket is the end of the engine: what its sessions' streams wait for will not come. */
#include "daemon/gpu/engine.h"

#include "base/cpuset.h"
#include "base/status.h"
#include "base/uuid.h"
#include "shm/abi.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

#define MESSAGES_AT_ONCE 64
#define LEAVING_NS       (2 * HVI_NS_SEC)
#define JOINING_NS       (5 * HVI_NS_SEC) /* a join that all have begun takes 1 to 3 s (P9) */

static int send_msg(struct gpu_engine *engine, const struct hvi_gpu_msg *msg, const int *fds,
                    uint32_t fd_count)
{
    struct gpu_worker *worker = engine->worker;
    size_t length;
    int status = hvi_gpu_msg_encode(msg, worker->encoded, sizeof(worker->encoded), &length);

    if (status == HVI_OK)
        status = hvi_packet_send(engine->fd, worker->encoded, length, fds, fd_count, 0);
    return status;
}

int gpu_engine_send(struct gpu_engine *engine, const struct hvi_gpu_msg *msg)
{
    int status = engine->fd < 0 ? HVI_ERR_CLOSED : send_msg(engine, msg, NULL, 0);

    if (status != HVI_OK && engine->fd >= 0)
        (void)shutdown(engine->fd, SHUT_RDWR); /* on_engine sees it, and ends the engine */
    return status;
}

int gpu_engine_ack(struct gpu_engine *engine, uint64_t request, int status, const char *text)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_ACK, .ack = {.request = request, .status = status}};

    snprintf(msg.ack.text, sizeof(msg.ack.text), "%s", text);
    return gpu_engine_send(engine, &msg);
}

/* ---- messages ---- */

static bool welcome(struct gpu_engine *engine, const struct hvi_gpu_welcome *said)
{
    if (engine->event_fd >= 0 || engine->worker->packet.fd_count != 1 ||
        said->generation != engine->generation)
        return false;
    engine->event_fd = hvi_packet_take_fd(&engine->worker->packet, 0);
    engine->source.welcome.fd = engine->event_fd;
    gpu_launch_order(&engine->worker->launch, &engine->source.welcome);
    return true;
}

static bool handle(struct gpu_engine *engine, struct hvi_gpu_msg *msg)
{
    switch (msg->kind) {
    case HVI_GPU_WELCOME:
        return welcome(engine, &msg->welcome);
    case HVI_GPU_PAGE:
        return gpu_memory_page(engine, &msg->page);
    case HVI_GPU_SESSION_END:
        gpu_guard_hurry(engine->worker);
        return gpu_memory_session_end(engine, &msg->session_end);
    case HVI_GPU_IMPORT:
        return gpu_memory_import(engine, &msg->import);
    case HVI_GPU_RELEASE:
        return gpu_memory_release(engine, &msg->release);
    case HVI_GPU_COMM_ID:
        return gpu_joins_id(engine, &msg->comm_id);
    case HVI_GPU_COMM_JOIN:
        return gpu_joins_join(engine, &msg->comm_join);
    case HVI_GPU_COMM_DROP:
        return gpu_joins_drop(engine, &msg->comm_drop);
    case HVI_GPU_REGISTER:
        return gpu_joins_register(engine, &msg->registering);
    default:
        return false;
    }
}

/* False: the engine has ended, or is no engine. */
static bool read_message(struct gpu_engine *engine)
{
    struct hvi_packet *packet = &engine->worker->packet;
    struct hvi_gpu_msg msg;
    char text[200] = "what only a worker says, or a descriptor too many or too few";
    bool good;

    if (hvi_gpu_msg_decode(packet->bytes, packet->length, &msg, text, sizeof(text)) == HVI_OK) {
        good = handle(engine, &msg);
        hvi_gpu_msg_free(&msg);
    } else {
        good = false;
    }
    hvi_packet_close_fds(packet);
    if (!good)
        HVI_LOG(HVI_LOG_ERROR, "serve", "bad-engine", "an engine sent what it may not send",
                "pid=%d generation=%llu error=\"%s\"", (int)engine->pid,
                (unsigned long long)engine->generation, text);
    return good;
}

/* ---- the end of one ---- */

void gpu_engine_settle(struct gpu_engine *engine)
{
    struct gpu_worker *worker = engine->worker;

    if (!engine->is_drained || engine->pages != NULL || engine->asks > 0)
        return;
    hvi_device_fini(&engine->channel);
    if (engine->wake_fd >= 0)
        close(engine->wake_fd);
    if (engine->event_fd >= 0)
        close(engine->event_fd);
    DL_DELETE(worker->engines, engine);
    free(engine->instances);
    free(engine);
    if (worker->engines == NULL && worker->link_fd < 0)
        gpu_guard_end(worker, 0); /* hvdd has gone before */
}

static void open_waiting(struct gpu_worker *worker);

/* The launch thread has nothing of it any more. */
static void on_drained(struct gpu_order *order)
{
    struct gpu_engine *engine = order->user;
    struct gpu_worker *worker = engine->worker;

    engine->is_drained = true;
    gpu_memory_drop(engine);
    gpu_engine_settle(engine);
    open_waiting(worker);
}

static void engine_end(struct gpu_engine *engine)
{
    if (engine->is_leaving)
        return;
    engine->is_leaving = true;
    if (engine->is_waiting) { /* the launch thread has never heard of it */
        close(engine->fd);
        engine->is_drained = true;
        gpu_engine_settle(engine);
        return;
    }
    engine->deadline_ns = hvi_deadline_after(engine->joins > 0 ? JOINING_NS : LEAVING_NS);
    engine->late = engine->joins > 0
                       ? "a join of an engine that has ended is not over after 5 s"
                       : "the batches of an engine that has ended are not over after 2 s";
    gpu_memory_skip(engine);
    (void)gpu_memory_poison(engine);
    engine->io = sd_event_source_disable_unref(engine->io);
    close(engine->fd);
    engine->fd = -1;
    gpu_guard_hurry(engine->worker);
    gpu_launch_order(&engine->worker->launch, &engine->source.close);
}

/* Its ring has what cannot be. */
static void on_lie(struct gpu_order *order)
{
    struct gpu_engine *engine = order->user;

    HVI_LOG(HVI_LOG_ERROR, "serve", "bad-batch", "an engine wants what cannot be",
            "pid=%d generation=%llu error=\"%s\"", (int)engine->pid,
            (unsigned long long)engine->generation, order->text);
    engine_end(engine);
}

static int on_engine(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct gpu_engine *engine = user;

    (void)source, (void)events;
    for (int i = 0; i < MESSAGES_AT_ONCE; i++) {
        int status = hvi_packet_receive(fd, &engine->worker->packet, 0);
        if (status == HVI_ERR_TIMEOUT)
            return 0;
        if (status != HVI_OK || !read_message(engine)) {
            HVI_LOG(HVI_LOG_DEBUG, "serve", "engine-gone", "an engine has ended",
                    "pid=%d generation=%llu", (int)engine->pid,
                    (unsigned long long)engine->generation);
            engine_end(engine);
            return 0;
        }
    }
    return 0;
}

/* ---- life ---- */

static int say_hello(struct gpu_engine *engine)
{
    struct gpu_worker *worker = engine->worker;
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_HELLO};
    const int fds[2] = {engine->channel.map.fd, engine->wake_fd};

    msg.hello.abi_version = HVI_ABI_VERSION;
    msg.hello.instance = worker->start.instance;
    snprintf(msg.hello.name, sizeof(msg.hello.name), "%.*s", (int)sizeof(msg.hello.name) - 1,
             worker->device.name);
    hvi_uuid_format(worker->start.uuid, msg.hello.uuid);
    msg.hello.comm_ns = worker->launch.comms.join_ns;
    msg.hello.nccl_version = (uint32_t)atomic_load(&worker->launch.comms.version);
    msg.hello.registers =
        worker->device.can_multicast && gpu_comms_can_register(&worker->launch.comms);
    msg.hello.fabric = true;
    return send_msg(engine, &msg, fds, 2);
}

static void make_source(struct gpu_engine *engine)
{
    struct gpu_source *source = &engine->source;
    const struct gpu_order order = {.user = engine, .source = source};

    source->channel = &engine->channel;
    source->wake_fd = engine->wake_fd;
    source->generation = engine->generation;
    source->open = source->welcome = source->close = source->lie = order;
    source->open.kind = GPU_ORDER_OPEN;
    source->open.join.instances = engine->instances;
    source->open.join.count = engine->instance_count;
    source->welcome.kind = GPU_ORDER_WELCOME;
    source->close.kind = GPU_ORDER_CLOSE;
    source->close.done = on_drained;
    source->lie.done = on_lie;
}

/* HVI_OK; else what there is is the caller's. */
static int open_engine(struct gpu_engine *engine)
{
    struct gpu_worker *worker = engine->worker;
    int status;

    engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->wake_fd < 0)
        return HVI_ERR_LIMIT;
    status = hvi_device_create(worker->start.instance, engine->generation, &engine->channel);
    if (status == HVI_OK &&
        sd_event_add_io(worker->event, &engine->io, engine->fd, EPOLLIN, on_engine, engine) < 0)
        status = HVI_ERR_NO_MEMORY;
    make_source(engine);
    return status == HVI_OK ? say_hello(engine) : status;
}

/* One that has ended, and whose batches are not over. */
static bool has_undrained(const struct gpu_worker *worker)
{
    const struct gpu_engine *engine;

    DL_FOREACH(worker->engines, engine)
    {
        if (engine->is_leaving && !engine->is_drained)
            return true;
    }
    return false;
}

/* The event loop may not have seen it yet. */
static void end_dead(struct gpu_worker *worker)
{
    struct gpu_engine *engine, *next;

    DL_FOREACH_SAFE(worker->engines, engine, next)
    {
        struct pollfd end = {.fd = engine->fd};
        if (!engine->is_waiting && !engine->is_leaving && poll(&end, 1, 0) > 0)
            engine_end(engine); /* no events are asked for, so it has hung up */
    }
}

static void refuse_engine(struct gpu_engine *engine, int status)
{
    /* One that was killed meanwhile is no fault of anybody's here. */
    HVI_LOG(status == HVI_ERR_CLOSED ? HVI_LOG_INFO : HVI_LOG_ERROR, "serve", "no-engine",
            "an engine cannot be served", "pid=%d generation=%llu status=%s", (int)engine->pid,
            (unsigned long long)engine->generation, hvi_status_name(status));
    sd_event_source_disable_unref(engine->io);
    close(engine->fd);
    engine->is_drained = true; /* the launch thread has never heard of it */
    gpu_engine_settle(engine);
}

static void begin(struct gpu_engine *engine)
{
    int status;

    engine->is_waiting = false;
    status = open_engine(engine);
    if (status != HVI_OK) {
        refuse_engine(engine, status);
        return;
    }
    hvi_region_close_fd(&engine->channel.map);
    gpu_launch_order(&engine->worker->launch, &engine->source.open);
    gpu_imports_await_claims(&engine->worker->imports);
}

static void open_waiting(struct gpu_worker *worker)
{
    struct gpu_engine *engine, *next;

    if (has_undrained(worker))
        return;
    DL_FOREACH_SAFE(worker->engines, engine, next)
    {
        if (engine->is_waiting)
            begin(engine);
    }
}

/* An engine keeps to the processors of its ranks' control groups. So does its worker: to those that the engine has now. Where they
 * are the same as before, threads stay where NCCL may have bound them. */
static void follow_cores(struct gpu_worker *worker, pid_t engine_pid)
{
    cpu_set_t set;
    int error;

    if (CPU_COUNT(&worker->may) == 0 || engine_pid <= 0 ||
        sched_getaffinity(engine_pid, sizeof(set), &set) != 0)
        return;
    CPU_AND(&set, &set, &worker->may);
    if (CPU_EQUAL(&set, &worker->cores))
        return;
    error = CPU_COUNT(&set) > 0 ? hvi_cpuset_bind(&set) : ENOENT;
    if (error == 0)
        worker->cores = set;
    else
        HVI_LOG(HVI_LOG_INFO, "gpu", "cores-kept", "the worker may not use its engine's processors",
                "engine=%d error=\"%s\"", (int)engine_pid, strerror(error));
}

void gpu_serve_engine(struct gpu_worker *worker, struct hvi_gpu_engine *said, int fd)
{
    struct gpu_engine *engine = calloc(1, sizeof(*engine));

    if (engine == NULL || worker->is_ending || worker->pass.is_due || !worker->up) {
        free(engine);
        close(fd);
        return;
    }
    engine->worker = worker;
    engine->instances = said->instances; /* taken */
    engine->instance_count = (uint32_t)said->instance_count;
    said->instances = NULL;
    said->instance_count = 0;
    engine->generation = said->generation;
    engine->pid = said->engine_pid;
    engine->fd = fd;
    engine->event_fd = engine->wake_fd = -1;
    engine->channel.map.fd = -1;
    end_dead(worker);
    DL_APPEND(worker->engines, engine);
    follow_cores(worker, engine->pid);
    engine->is_waiting = true;
    open_waiting(worker);
}

void gpu_serve_close(struct gpu_worker *worker)
{
    struct gpu_engine *engine, *next;

    DL_FOREACH_SAFE(worker->engines, engine, next)
    engine_end(engine);
}
