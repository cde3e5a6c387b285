/* SPDX-License-Identifier: Apache-2.0
 * Engines' sockets. An engine gets its device channel with the hello. Fence pages are poisoned when their session or their engine
 * ends; memory is opened (import.c). Communicators are refused so far, and batches are not looked at.
 *
 * The end of an engine's socket is the end of the engine: what its sessions' streams wait for will not come. */
#include "daemon/gpu/worker.h"

#include "base/status.h"
#include "base/uuid.h"
#include "shm/abi.h"
#include "shm/device.h"
#include "shm/fence.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <utlist.h>

#define MESSAGES_AT_ONCE 64
#define NOT_YET                                                                                    \
    "this worker of hvdd " HVD_VERSION_TEXT                                                        \
    " moves no data yet; let tensors lie in memory of the host"

struct gpu_page {
    struct gpu_page *prev, *next;
    uint32_t number;
    struct hvi_fence_page fences;
};

struct gpu_engine {
    struct gpu_engine *prev, *next;
    struct gpu_worker *worker;
    uint64_t generation;
    int32_t pid;
    int fd, wake_fd; /* wake_fd: the engine writes it when the launch thread sleeps */
    int event_fd;    /* the engine's loop polls it; -1 before GpuWelcome */
    sd_event_source *io;
    struct hvi_device_channel channel;
    struct gpu_page *pages;
};

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

static bool ack(struct gpu_engine *engine, uint64_t request, int status, const char *text)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_ACK, .ack = {.request = request, .status = status}};

    snprintf(msg.ack.text, sizeof(msg.ack.text), "%s", text);
    return send_msg(engine, &msg, NULL, 0) == HVI_OK;
}

/* One that has ended is noticed when its socket is read. */
void gpu_serve_answer(void *engine, uint64_t request, int status, const char *text)
{
    (void)ack(engine, request, status, text);
}

/* ---- fence pages ---- */

static struct gpu_page *find_page(struct gpu_engine *engine, uint32_t number)
{
    struct gpu_page *page;

    DL_FOREACH(engine->pages, page)
    {
        if (page->number == number)
            return page;
    }
    return NULL;
}

static void drop_page(struct gpu_engine *engine, struct gpu_page *page)
{
    DL_DELETE(engine->pages, page);
    hvi_fence_fini(&page->fences);
    free(page);
}

/* False: the engine says what cannot be. */
static bool add_page(struct gpu_engine *engine, const struct hvi_gpu_page *said)
{
    struct hvi_packet *packet = &engine->worker->packet;
    struct gpu_page *page;
    int status;

    if (packet->fd_count != 1 || find_page(engine, said->page) != NULL)
        return false;
    page = calloc(1, sizeof(*page));
    status = page == NULL ? HVI_ERR_NO_MEMORY : hvi_fence_map(packet->fds[0], &page->fences);
    if (status != HVI_OK) {
        free(page);
        return ack(engine, said->request, status, "the fence page cannot be mapped");
    }
    hvi_packet_take_fd(packet, 0);
    hvi_region_close_fd(&page->fences.map);
    page->number = said->page;
    DL_APPEND(engine->pages, page);
    return ack(engine, said->request, HVI_OK, "");
}

static bool end_session(struct gpu_engine *engine, const struct hvi_gpu_session_end *end)
{
    struct gpu_page *page = find_page(engine, end->page);

    if (page == NULL)
        return false;
    hvi_fence_poison(&page->fences, true);
    drop_page(engine, page);
    return true;
}

/* ---- messages ---- */

static bool welcome(struct gpu_engine *engine, const struct hvi_gpu_welcome *said)
{
    if (engine->event_fd >= 0 || engine->worker->packet.fd_count != 1 ||
        said->generation != engine->generation)
        return false;
    engine->event_fd = hvi_packet_take_fd(&engine->worker->packet, 0);
    return true;
}

static bool refuse_comm(struct gpu_engine *engine, uint64_t request)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_COMM_ID, .comm_id = {.request = request}};

    snprintf(msg.comm_id.text, sizeof(msg.comm_id.text), NOT_YET);
    return send_msg(engine, &msg, NULL, 0) == HVI_OK;
}

static bool handle(struct gpu_engine *engine, const struct hvi_gpu_msg *msg)
{
    switch (msg->kind) {
    case HVI_GPU_WELCOME:
        return welcome(engine, &msg->welcome);
    case HVI_GPU_PAGE:
        return add_page(engine, &msg->page);
    case HVI_GPU_SESSION_END:
        return end_session(engine, &msg->session_end);
    case HVI_GPU_IMPORT:
        return gpu_import_add(&engine->worker->imports, engine, &msg->import);
    case HVI_GPU_RELEASE:
        gpu_import_release(&engine->worker->imports, engine, &msg->release);
        return true;
    case HVI_GPU_COMM_ID:
        return refuse_comm(engine, msg->comm_id.request);
    case HVI_GPU_COMM_JOIN:
        return ack(engine, msg->comm_join.request, HVI_ERR_UNSUPPORTED, NOT_YET);
    case HVI_GPU_COMM_DROP:
        return true;
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

static void engine_end(struct gpu_engine *engine)
{
    struct gpu_worker *worker = engine->worker;

    gpu_import_owner_gone(&worker->imports, engine);
    while (engine->pages != NULL) {
        hvi_fence_poison(&engine->pages->fences, false);
        drop_page(engine, engine->pages);
    }
    sd_event_source_disable_unref(engine->io);
    hvi_device_fini(&engine->channel);
    close(engine->fd);
    if (engine->wake_fd >= 0)
        close(engine->wake_fd);
    if (engine->event_fd >= 0)
        close(engine->event_fd);
    DL_DELETE(worker->engines, engine);
    free(engine);
    if (worker->engines == NULL && worker->link_fd < 0)
        sd_event_exit(worker->event, 0); /* hvdd has gone before */
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
    snprintf(msg.hello.nccl_text, sizeof(msg.hello.nccl_text), NOT_YET);
    return send_msg(engine, &msg, fds, 2);
}

void gpu_serve_engine(struct gpu_worker *worker, const struct hvi_gpu_engine *said, int fd)
{
    struct gpu_engine *engine = calloc(1, sizeof(*engine));
    int status = HVI_ERR_NO_MEMORY;

    if (engine == NULL) {
        close(fd);
        return;
    }
    engine->worker = worker;
    engine->generation = said->generation;
    engine->pid = said->engine_pid;
    engine->fd = fd;
    engine->event_fd = -1;
    engine->channel.map.fd = -1;
    DL_APPEND(worker->engines, engine);
    engine->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (engine->wake_fd >= 0)
        status = hvi_device_create(worker->start.instance, said->generation, &engine->channel);
    if (status == HVI_OK &&
        sd_event_add_io(worker->event, &engine->io, fd, EPOLLIN, on_engine, engine) < 0)
        status = HVI_ERR_NO_MEMORY;
    if (status == HVI_OK)
        status = say_hello(engine);
    if (status == HVI_OK) {
        hvi_region_close_fd(&engine->channel.map);
        return;
    }
    HVI_LOG(HVI_LOG_ERROR, "serve", "no-engine", "an engine cannot be served",
            "pid=%d generation=%llu status=%s", (int)engine->pid,
            (unsigned long long)engine->generation, hvi_status_name(status));
    engine_end(engine);
}

void gpu_serve_close(struct gpu_worker *worker)
{
    while (worker->engines != NULL)
        engine_end(worker->engines);
}
