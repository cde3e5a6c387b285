/* SPDX-License-Identifier: Apache-2.0
 * Workers: how one is asked for, greeted and lost, and the messages on its socket.
 *
 * A worker belongs to hvdd, which outlives this engine with it. The engine asks for it by the GPU's UUID and gets a
 * socket. The worker speaks first (GpuHello with its device channel), gets our eventfd (GpuWelcome), all
 * fence pages and all imports that wait for it, in this order. So an import that is acknowledged has all
 * pages behind it.
 *
 * Why a worker is gone is known to hvdd alone, and that it is: a process whose sockets are closed, or that was killed, may still
 * write memory of ranks until hvdd has seen its end. So a linked worker is lost when hvdd says so, whatever has happened before;
 * where hvdd says nothing, 1 s after the end of its socket, or 5 s after it was to be ended.
 *
 * Nothing here is believed: a message that is out of place ends the worker, as if it had crashed. */
#include "base/assert.h"
#include "base/log.h"
#include "base/status.h"
#include "base/uuid.h"
#include "daemon/engine/device/room.h"
#include "shm/abi.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define MESSAGES_AT_ONCE 16
#define LEAVING_NS       (1 * HVI_NS_SEC)    /* from the end of its socket to hvdd's word */
#define ENDED_NS         (5 * HVI_NS_SEC)    /* the same from GpuEnd on */
#define COMM_NS_MAX      (3600 * HVI_NS_SEC) /* of gpu-comm-timeout (node/config.def) */
#define TICK_US          20000u
#define STOOD_NS         (500 * HVI_NS_MS) /* a tick that late: this process has stood still */
#define UNSENT_MAX       4096u             /* messages that a worker has not read */

struct engine_device_packet {
    struct engine_device_packet *next;
    size_t length;
    uint32_t fd_count;
    int fds[HVI_PACKET_FDS_MAX];
    unsigned char bytes[];
};

/* ---- states ---- */

static void set_state(struct engine_device_worker *worker, enum engine_device_state state,
                      const char *cause)
{
    static const char *const texts[ENGINE_DEVICE_STATES] = {
        "none", "wanted", "greeting", "linked", "leaving", "lost", "refused"};

    HVI_LOG(state == ENGINE_DEVICE_LOST ? HVI_LOG_WARN : HVI_LOG_DEBUG, "device", "worker-state",
            cause, "gpu=%s pid=%d %s -> %s", worker->uuid_text, (int)worker->pid,
            texts[worker->state], texts[state]);
    worker->state = state;
}

void engine_device_label(const struct engine_device *device, uint32_t number,
                         char text_p[ENGINE_DEVICE_LABEL])
{
    const struct engine_device_worker *worker = &device->workers[number];

    if (worker->name[0] != '\0')
        snprintf(text_p, ENGINE_DEVICE_LABEL, "%s (%s, pid %d)", worker->uuid_text, worker->name,
                 (int)worker->pid);
    else
        snprintf(text_p, ENGINE_DEVICE_LABEL, "%s", worker->uuid_text);
}

/* ---- letting go ---- */

static void drop_unsent(struct engine_device_worker *worker)
{
    while (worker->unsent) {
        struct engine_device_packet *packet = worker->unsent;
        worker->unsent = packet->next;
        for (uint32_t i = 0; i < packet->fd_count; i++)
            close(packet->fds[i]);
        free(packet);
    }
}

static void drop_pending(struct engine_device_worker *worker)
{
    while (worker->pending) {
        struct engine_device_pending *pending = worker->pending;
        worker->pending = pending->next;
        free(pending);
    }
}

static void hang_up(struct engine_device_worker *worker)
{
    worker->source = sd_event_source_disable_unref(worker->source);
    if (worker->fd >= 0)
        close(worker->fd);
    worker->fd = -1;
    drop_unsent(worker);
}

static void let_go(struct engine_device_worker *worker)
{
    hang_up(worker);
    drop_pending(worker);
    if (worker->event_fd >= 0)
        close(worker->event_fd);
    worker->event_fd = -1;
    if (worker->channel.header)
        hvi_device_fini(&worker->channel);
}

/* Before it was linked: what waits for it fails, and the job goes on. So whatever the reason is, it ends no more than an op. */
static void refuse(struct engine_device_worker *worker, int status, const char *text)
{
    status = status <= HVI_ERR_CLOSED ? HVI_ERR_UNSUPPORTED : status;
    set_state(worker, ENGINE_DEVICE_REFUSED, text);
    let_go(worker);
    worker->refused_status = status;
    worker->deadline_ns = hvi_clock_ns() + ENGINE_DEVICE_REFUSE_NS;
    snprintf(worker->text, sizeof worker->text, "%s", text);
    engine_device_import_lost(worker, status, worker->text);
}

static void lose(struct engine_device_worker *worker, const char *why)
{
    struct engine_device *device = worker->device;
    char label[ENGINE_DEVICE_LABEL], text[HVI_TEXT_MAX + 1];
    size_t named = strlen(worker->uuid_text);

    if (strncmp(why, worker->uuid_text, named) == 0 && strncmp(why + named, ": ", 2) == 0)
        why += named + 2; /* hvdd names the GPU as well */
    engine_device_label(device, worker->number, label);
    snprintf(text, sizeof text, "the worker of %s is lost: %.600s%s", label, why,
             engine_device_comm_blame(worker));
    if (worker->state == ENGINE_DEVICE_GREETING || worker->state == ENGINE_DEVICE_WANTED) {
        refuse(worker, HVI_ERR_WORKER_LOST, text);
        return;
    }
    set_state(worker, ENGINE_DEVICE_LOST, text);
    snprintf(worker->text, sizeof worker->text, "%s", text);
    hang_up(worker);
    drop_pending(worker);
    engine_device_comm_lost(worker, worker->text);
    engine_device_import_lost(worker, HVI_ERR_WORKER_LOST, worker->text);
    device->calls->lost(device->user, worker->number, worker->text);
    let_go(worker);
}

void engine_device_end(struct engine_device *device, uint32_t number, const char *reason)
{
    struct engine_device_worker *worker = &device->workers[number];

    if (worker->state != ENGINE_DEVICE_GREETING && worker->state != ENGINE_DEVICE_LINKED)
        return;
    device->calls->end(device->user, worker->instance, reason);
    if (worker->state == ENGINE_DEVICE_GREETING) {
        lose(worker, reason);
        return;
    }
    set_state(worker, ENGINE_DEVICE_LEAVING, reason);
    snprintf(worker->text, sizeof worker->text, "%s", reason);
    hang_up(worker);
    worker->deadline_ns = hvi_clock_ns() + ENDED_NS;
    engine_device_watch(device);
}

static void lied(struct engine_device_worker *worker, const char *what)
{
    char reason[HVI_TEXT_MAX + 1];

    snprintf(reason, sizeof reason, "it broke the protocol: %.800s", what);
    engine_device_end(worker->device, worker->number, reason);
}

/* ---- sending ---- */

static struct engine_device_packet *packet_new(const unsigned char *bytes, size_t length,
                                               const int *fds, uint32_t fd_count)
{
    struct engine_device_packet *packet = malloc(sizeof *packet + length);

    if (!packet)
        return NULL;
    *packet = (struct engine_device_packet){.length = length};
    memcpy(packet->bytes, bytes, length);
    while (packet->fd_count < fd_count) {
        int fd = fcntl(fds[packet->fd_count], F_DUPFD_CLOEXEC, 3);
        if (fd < 0)
            break;
        packet->fds[packet->fd_count++] = fd;
    }
    if (packet->fd_count == fd_count)
        return packet;
    while (packet->fd_count > 0)
        close(packet->fds[--packet->fd_count]);
    free(packet);
    return NULL;
}

static int keep(struct engine_device_worker *worker, size_t length, const int *fds,
                uint32_t fd_count)
{
    struct engine_device_packet **link = &worker->unsent;
    uint32_t count = 0;

    for (; *link; link = &(*link)->next)
        count++;
    if (count >= UNSENT_MAX)
        return HVI_ERR_LIMIT;
    *link = packet_new(worker->device->bytes, length, fds, fd_count);
    if (!*link)
        return HVI_ERR_NO_MEMORY;
    sd_event_source_set_io_events(worker->source, EPOLLIN | EPOLLOUT);
    return HVI_OK;
}

int engine_device_send(struct engine_device_worker *worker, const struct hvi_gpu_msg *msg,
                       const int *fds, uint32_t fd_count)
{
    struct engine_device *device = worker->device;
    size_t length = 0;

    if (worker->fd < 0)
        return HVI_ERR_CLOSED;
    int status = hvi_gpu_msg_encode(msg, device->bytes, sizeof device->bytes, &length);
    if (status != HVI_OK)
        return status;
    if (worker->unsent)
        return keep(worker, length, fds, fd_count);
    status = hvi_packet_send(worker->fd, device->bytes, length, fds, fd_count, 0);
    if (status == HVI_ERR_TIMEOUT)
        return keep(worker, length, fds, fd_count);
    return status == HVI_ERR_CLOSED ? HVI_OK : status; /* the end of its socket says more */
}

static void send_unsent(struct engine_device_worker *worker)
{
    while (worker->unsent) {
        struct engine_device_packet *packet = worker->unsent;
        int status = hvi_packet_send(worker->fd, packet->bytes, packet->length, packet->fds,
                                     packet->fd_count, 0);
        if (status == HVI_ERR_TIMEOUT || status == HVI_ERR_LIMIT)
            return;
        worker->unsent = packet->next;
        for (uint32_t i = 0; i < packet->fd_count; i++)
            close(packet->fds[i]);
        free(packet);
    }
    sd_event_source_set_io_events(worker->source, EPOLLIN);
}

/* ---- answers that are due ---- */

int engine_device_expect(struct engine_device_worker *worker, enum engine_device_wait wait,
                         uint32_t number, uint64_t within_ns, uint64_t *request_p)
{
    struct engine_device_pending *pending = malloc(sizeof *pending), **link = &worker->pending;

    if (!pending)
        return HVI_ERR_NO_MEMORY;
    *pending = (struct engine_device_pending){
        .wait = wait,
        .number = number,
        .request = ++worker->device->requests,
        .deadline_ns = hvi_clock_ns() + within_ns,
    };
    while (*link)
        link = &(*link)->next;
    *link = pending;
    *request_p = pending->request;
    engine_device_watch(worker->device);
    return HVI_OK;
}

static struct engine_device_pending *take_pending(struct engine_device_worker *worker,
                                                  uint64_t request)
{
    struct engine_device_pending **link = &worker->pending;

    while (*link && (*link)->request != request)
        link = &(*link)->next;
    struct engine_device_pending *pending = *link;
    if (pending)
        *link = pending->next;
    return pending;
}

void engine_device_unexpect(struct engine_device_worker *worker, uint64_t request)
{
    free(take_pending(worker, request));
}

static void give_answer(struct engine_device_worker *worker,
                        const struct engine_device_pending *pending,
                        const struct engine_device_answer *answer)
{
    switch (pending->wait) {
    case ENGINE_DEVICE_IMPORT:
    case ENGINE_DEVICE_RELEASE:
    case ENGINE_DEVICE_REGISTER:
        engine_device_import_answered(worker->device, pending->wait, pending->number, answer);
        return;
    case ENGINE_DEVICE_PAGE:
        engine_device_page_answered(worker, pending->number, answer);
        return;
    case ENGINE_DEVICE_COMM_ID:
    case ENGINE_DEVICE_COMM_JOIN:
        engine_device_comm_answered(worker, pending->wait, pending->number, answer);
        return;
    }
}

/* An answer that comes after its deadline is no lie. A GpuCommId answers that question and no other. */
static void answered(struct engine_device_worker *worker, enum hvi_gpu_kind kind, uint64_t request,
                     const struct engine_device_answer *answer)
{
    struct engine_device_pending *pending = take_pending(worker, request);

    if (!pending && (request == 0 || request > worker->device->requests))
        lied(worker, "an answer that was not asked for");
    else if (pending && (pending->wait == ENGINE_DEVICE_COMM_ID) != (kind == HVI_GPU_COMM_ID))
        lied(worker, "an answer to another question");
    else if (pending)
        give_answer(worker, pending, answer);
    free(pending);
}

/* ---- hello ---- */

static void link_up(struct engine_device_worker *worker)
{
    struct engine_device *device = worker->device;
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_WELCOME};

    msg.welcome.generation = device->generation;
    if (engine_device_send(worker, &msg, &device->event_fd, 1) != HVI_OK) {
        lose(worker, "it could not be welcomed");
        return;
    }
    set_state(worker, ENGINE_DEVICE_LINKED, "GpuHello");
    device->calls->linked(device->user, worker->number);
    engine_device_page_linked(worker);
    engine_device_import_linked(worker);
}

static void greet(struct engine_device_worker *worker, const struct hvi_gpu_hello *hello)
{
    struct hvi_packet *packet = &worker->device->packet;

    if (hello->abi_version != HVI_ABI_VERSION || packet->fd_count != 2 ||
        hello->instance != worker->instance || strcmp(hello->uuid, worker->uuid_text) != 0) {
        lied(worker, "a GpuHello of another version, process or GPU");
        return;
    }
    if (hvi_device_map(packet->fds[0], &worker->channel) != HVI_OK) {
        lied(worker, "its device channel cannot be mapped");
        return;
    }
    hvi_packet_take_fd(packet, 0);
    if (worker->channel.instance != worker->instance ||
        worker->channel.epoch != worker->device->generation) {
        lied(worker, "its device channel is of another worker or generation");
        return;
    }
    worker->event_fd = hvi_packet_take_fd(packet, 1);
    worker->nccl_version = hello->nccl_version;
    worker->registers = hello->registers;
    worker->fabric = hello->fabric;
    worker->comm_ns = hello->comm_ns < COMM_NS_MAX ? hello->comm_ns : COMM_NS_MAX;
    worker->comm_ns += worker->comm_ns / 8 + HVI_NS_SEC; /* it sees that late, and speaks first */
    snprintf(worker->name, sizeof worker->name, "%s", hello->name);
    link_up(worker);
}

/* ---- receiving ---- */

static void take_id(struct engine_device_worker *worker, const struct hvi_gpu_comm_id *said)
{
    static const unsigned char none[HVI_NCCL_ID_BYTES];
    const bool there =
        said->check ? said->text[0] == '\0' : memcmp(said->id, none, sizeof none) != 0;
    const int why = hvi_status_is_of_op(said->status) ? said->status : HVI_ERR_UNSUPPORTED;
    const struct engine_device_answer answer = {there ? HVI_OK : why, said->text,
                                                there ? said->id : NULL};

    answered(worker, HVI_GPU_COMM_ID, said->request, &answer);
}

static void serve(struct engine_device_worker *worker, const struct hvi_gpu_msg *msg)
{
    const bool linked = worker->state == ENGINE_DEVICE_LINKED;

    if (msg->kind == HVI_GPU_HELLO && worker->state == ENGINE_DEVICE_GREETING) {
        greet(worker, &msg->hello);
    } else if (!linked || worker->device->packet.fd_count > 0) {
        lied(worker, "a message that was not due");
    } else if (msg->kind == HVI_GPU_ACK && msg->ack.status != HVI_OK &&
               !hvi_status_is_of_op(msg->ack.status)) {
        lied(worker, "an answer with a status that no request has");
    } else if (msg->kind == HVI_GPU_ACK) {
        const struct engine_device_answer answer = {msg->ack.status, msg->ack.text, NULL};
        answered(worker, HVI_GPU_ACK, msg->ack.request, &answer);
    } else if (msg->kind == HVI_GPU_COMM_ID) {
        take_id(worker, &msg->comm_id);
    } else {
        lied(worker, "a message that is no worker's");
    }
}

static void handle(struct engine_device_worker *worker)
{
    struct hvi_packet *packet = &worker->device->packet;
    struct hvi_gpu_msg msg;
    char why[256];

    if (hvi_gpu_msg_decode(packet->bytes, packet->length, &msg, why, sizeof why) != HVI_OK) {
        lied(worker, why);
        return;
    }
    serve(worker, &msg);
    hvi_gpu_msg_free(&msg);
}

static void socket_ended(struct engine_device_worker *worker)
{
    if (worker->state == ENGINE_DEVICE_LINKED) {
        set_state(worker, ENGINE_DEVICE_LEAVING, "its connection has ended");
        snprintf(worker->text, sizeof worker->text, "its connection has ended");
    }
    hang_up(worker);
    worker->deadline_ns = hvi_clock_ns() + LEAVING_NS;
    engine_device_watch(worker->device);
}

static int on_socket(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct engine_device_worker *worker = user;
    struct hvi_packet *packet = &worker->device->packet;

    (void)source, (void)fd;
    if (events & EPOLLOUT)
        send_unsent(worker);
    for (int i = 0; i < MESSAGES_AT_ONCE && worker->fd >= 0; i++) {
        int status = hvi_packet_receive(worker->fd, packet, 0);
        if (status == HVI_ERR_TIMEOUT)
            return 0;
        if (status == HVI_OK) {
            handle(worker);
            hvi_packet_close_fds(packet);
        } else if (status == HVI_ERR_CLOSED) {
            socket_ended(worker);
        } else {
            lied(worker, "a message that cannot be received");
        }
    }
    return 0;
}

/* ---- hvdd's word ---- */

static struct engine_device_worker *find_wanted(struct engine_device *device, uint64_t request)
{
    for (uint32_t i = 0; i < device->count; i++) {
        if (device->workers[i].state == ENGINE_DEVICE_WANTED &&
            device->workers[i].request == request)
            return &device->workers[i];
    }
    return NULL;
}

static void gone(struct engine_device *device, const struct hvi_gpu_worker *told)
{
    for (uint32_t i = 0; i < device->count; i++) {
        struct engine_device_worker *worker = &device->workers[i];
        bool had = worker->state == ENGINE_DEVICE_GREETING ||
                   worker->state == ENGINE_DEVICE_LINKED || worker->state == ENGINE_DEVICE_LEAVING;
        if (had && worker->instance == told->instance)
            lose(worker, told->text[0] != '\0' ? told->text : "hvdd says that it has ended");
    }
}

static void connected(struct engine_device_worker *worker, const struct hvi_gpu_worker *told,
                      int fd)
{
    int flags = fcntl(fd, F_GETFL);

    worker->fd = fd;
    worker->instance = told->instance;
    worker->pid = told->pid;
    set_state(worker, ENGINE_DEVICE_GREETING, "GpuWorker");
    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 ||
        sd_event_add_io(worker->device->event, &worker->source, fd, EPOLLIN, on_socket, worker) < 0)
        refuse(worker, HVI_ERR_NO_MEMORY, "the engine cannot listen to a worker");
}

void engine_device_told(struct engine_device *device, const struct hvi_gpu_worker *told, int fd)
{
    struct engine_device_worker *worker = find_wanted(device, told->request);

    if (told->request == 0) {
        gone(device, told);
    } else if (worker && told->status != HVI_OK) {
        refuse(worker, told->status, told->text);
    } else if (worker && fd < 0) {
        refuse(worker, HVI_ERR_PROTOCOL, "hvdd has sent no socket to the worker");
    } else if (worker) {
        connected(worker, told, fd);
        return;
    }
    if (fd >= 0)
        close(fd);
}

/* ---- deadlines ---- */

static const char *wait_text(enum engine_device_wait wait)
{
    static const char *const texts[] = {"an import",
                                        "the release of an import",
                                        "the registration of a fence page",
                                        "the id of a communicator",
                                        "joining a communicator",
                                        "the registration of an import"};
    return texts[wait];
}

bool engine_device_is_late(const struct engine_device_worker *worker)
{
    const struct engine_device_pending *pending = worker->pending;

    while (pending && pending->deadline_ns != UINT64_MAX)
        pending = pending->next;
    return pending;
}

/* Whether an answer has a time that is not over. */
static bool is_due(const struct engine_device_worker *worker)
{
    const struct engine_device_pending *pending = worker->pending;

    while (pending && pending->deadline_ns == UINT64_MAX)
        pending = pending->next;
    return pending;
}

/* A page's answer counts also when it is late: until then the worker takes no imports. */
static void give_up(struct engine_device_worker *worker, struct engine_device_pending *pending,
                    const struct engine_device_answer *answer)
{
    if (pending->wait == ENGINE_DEVICE_PAGE) {
        pending->deadline_ns = UINT64_MAX;
        give_answer(worker, pending, answer);
        return;
    }
    take_pending(worker, pending->request);
    give_answer(worker, pending, answer);
    free(pending);
}

/* The oldest ones are not always the first to be late: joins may take longer. */
static void look_at_pending(struct engine_device_worker *worker, uint64_t now_ns)
{
    struct engine_device_pending *pending = worker->pending, *next;
    char text[256];

    for (; pending && worker->state == ENGINE_DEVICE_LINKED; pending = next) {
        next = pending->next;
        if (now_ns < pending->deadline_ns)
            continue;
        snprintf(text, sizeof text, "the worker of %s has not answered in time: %s",
                 worker->uuid_text, wait_text(pending->wait));
        const struct engine_device_answer answer = {HVI_ERR_TIMEOUT, text, NULL};
        give_up(worker, pending, &answer);
        next = worker->pending; /* anything may have happened to the list */
    }
}

static void give_up_waiting(struct engine_device_worker *worker)
{
    char why[sizeof worker->text];

    memcpy(why, worker->text, sizeof why);
    lose(worker, why);
}

static bool look_at(struct engine_device_worker *worker, uint64_t now_ns)
{
    const bool late = now_ns >= worker->deadline_ns;

    switch (worker->state) {
    case ENGINE_DEVICE_WANTED:
        if (late)
            refuse(worker, HVI_ERR_TIMEOUT, "hvdd has not answered when a GPU worker was wanted");
        break;
    case ENGINE_DEVICE_GREETING:
        if (late && worker->fd >= 0)
            engine_device_end(worker->device, worker->number, "it has not said GpuHello in time");
        else if (late)
            lose(worker, "its connection has ended");
        break;
    case ENGINE_DEVICE_LEAVING:
        if (late)
            give_up_waiting(worker);
        break;
    case ENGINE_DEVICE_LINKED:
        look_at_pending(worker, now_ns);
        return is_due(worker);
    default:
        return false;
    }
    return worker->state == ENGINE_DEVICE_WANTED || worker->state == ENGINE_DEVICE_GREETING ||
           worker->state == ENGINE_DEVICE_LEAVING;
}

/* What came meanwhile has not been read yet, so everything that is waited for has as much more time. */
static void look_at_clock(struct engine_device *device, uint64_t now_ns)
{
    const uint64_t late_ns = now_ns > device->due_ns ? now_ns - device->due_ns : 0;

    if (late_ns < STOOD_NS)
        return;
    engine_device_comm_delay(device, late_ns);
    for (uint32_t i = 0; i < device->count; i++) {
        struct engine_device_worker *worker = &device->workers[i];
        struct engine_device_pending *pending = worker->pending;
        worker->deadline_ns += late_ns;
        for (; pending; pending = pending->next) {
            if (pending->deadline_ns != UINT64_MAX)
                pending->deadline_ns += late_ns;
        }
    }
}

static int on_timer(sd_event_source *source, uint64_t usec, void *user)
{
    struct engine_device *device = user;
    const uint64_t now_ns = hvi_clock_ns();
    bool more = false;

    (void)source, (void)usec;
    look_at_clock(device, now_ns);
    for (uint32_t i = 0; i < device->count; i++)
        more = look_at(&device->workers[i], now_ns) || more;
    more = engine_device_comm_look(device, now_ns) || more;
    if (more)
        engine_device_watch(device);
    return 0;
}

void engine_device_watch(struct engine_device *device)
{
    int enabled = SD_EVENT_OFF;

    if (sd_event_source_get_enabled(device->timer, &enabled) > 0 && enabled != SD_EVENT_OFF)
        return;
    device->due_ns = hvi_clock_ns() + TICK_US * (HVI_NS_SEC / 1000000);
    sd_event_source_set_time_relative(device->timer, TICK_US);
    sd_event_source_set_enabled(device->timer, SD_EVENT_ONESHOT);
}

/* ---- asking for one ---- */

static struct engine_device_worker *worker_of(struct engine_device *device,
                                              const unsigned char uuid[HVI_UUID_BYTES])
{
    for (uint32_t i = 0; i < device->count; i++) {
        if (memcmp(device->workers[i].uuid, uuid, HVI_UUID_BYTES) == 0)
            return &device->workers[i];
    }
    if (device->count >= ENGINE_DEVICE_WORKERS)
        return NULL;
    struct engine_device_worker *worker = &device->workers[device->count];
    *worker = (struct engine_device_worker){
        .device = device, .number = device->count++, .fd = -1, .event_fd = -1};
    memcpy(worker->uuid, uuid, HVI_UUID_BYTES);
    hvi_uuid_format(uuid, worker->uuid_text);
    return worker;
}

static int ask_for(struct engine_device_worker *worker, char *text_p, size_t text_size)
{
    struct engine_device *device = worker->device;

    worker->request = ++device->requests;
    int status = device->calls->want(device->user, worker->request, worker->uuid);
    if (status != HVI_OK) {
        snprintf(text_p, text_size, "%s has no worker yet, and hvdd cannot be asked for one: %s",
                 worker->uuid_text, hvi_status_text(status));
        return HVI_ERR_UNSUPPORTED;
    }
    worker->deadline_ns = hvi_clock_ns() + ENGINE_DEVICE_START_NS;
    set_state(worker, ENGINE_DEVICE_WANTED, "a rank has memory on its GPU");
    engine_device_watch(device);
    return HVI_OK;
}

void engine_device_ask_again(struct engine_device *device)
{
    for (uint32_t i = 0; i < device->count; i++) {
        struct engine_device_worker *worker = &device->workers[i];
        if (worker->state == ENGINE_DEVICE_WANTED) /* else its time ends */
            (void)device->calls->want(device->user, worker->request, worker->uuid);
    }
}

int engine_device_worker_for(struct engine_device *device, const unsigned char uuid[HVI_UUID_BYTES],
                             struct engine_device_worker **worker_p, char *text_p, size_t text_size)
{
    struct engine_device_worker *worker = device->enabled ? worker_of(device, uuid) : NULL;
    int status = HVI_OK;

    if (!device->enabled) {
        snprintf(text_p, text_size, "hvdd starts no GPU workers on this node");
        return HVI_ERR_UNSUPPORTED;
    }
    if (!worker) {
        snprintf(text_p, text_size, "the job has memory on more than %u GPUs of this node",
                 ENGINE_DEVICE_WORKERS);
        return HVI_ERR_LIMIT;
    }
    if (worker->state == ENGINE_DEVICE_LEAVING || worker->state == ENGINE_DEVICE_LOST) {
        snprintf(text_p, text_size, "the worker of %s is lost", worker->uuid_text);
        status = HVI_ERR_WORKER_LOST;
    } else if (worker->state == ENGINE_DEVICE_REFUSED && hvi_clock_ns() < worker->deadline_ns) {
        snprintf(text_p, text_size, "%s", worker->text);
        status = worker->refused_status;
    } else if (worker->state == ENGINE_DEVICE_NONE || worker->state == ENGINE_DEVICE_REFUSED) {
        status = ask_for(worker, text_p, text_size);
    }
    if (status == HVI_OK)
        *worker_p = worker;
    return status;
}

/* ---- the whole ---- */

/* It only has to end the sleep: the loop looks at all channels after it. */
static int on_event(sd_event_source *source, int fd, uint32_t events, void *user)
{
    uint64_t value;

    (void)source, (void)events, (void)user;
    ssize_t got = read(fd, &value, sizeof value);
    (void)got;
    return 0;
}

int engine_device_open(struct engine_device *device)
{
    device->event_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (device->event_fd < 0)
        return HVI_ERR_LIMIT;
    if (sd_event_add_io(device->event, &device->event_source, device->event_fd, EPOLLIN, on_event,
                        device) < 0 ||
        sd_event_add_time_relative(device->event, &device->timer, CLOCK_MONOTONIC, TICK_US, 1000,
                                   on_timer, device) < 0)
        return HVI_ERR_LIMIT;
    sd_event_source_set_enabled(device->timer, SD_EVENT_OFF);
    return HVI_OK;
}

void engine_device_close(struct engine_device *device)
{
    if (!device->event)
        return;
    device->timer = sd_event_source_disable_unref(device->timer);
    device->event_source = sd_event_source_disable_unref(device->event_source);
    for (uint32_t i = 0; i < device->count; i++)
        let_go(&device->workers[i]);
    engine_device_import_close(device);
    engine_device_page_close(device);
    engine_device_comm_close(device);
    device->count = 0;
    if (device->event_fd >= 0)
        close(device->event_fd);
    device->event_fd = -1;
    device->event = NULL;
}
