/* SPDX-License-Identifier: Apache-2.0
 * The socket to hvdd, descriptor 3 at start. There is no outbox: hvdd reads, and a message that finds no room is one of many
 * (beats, states) or the last (why this process ends), which hvdd then says in its own words.
 *
 * When hvdd goes, engines are served on, and the worker looks for its successor (GpuReturn) until the last of them has gone, or
 * a hvdd does not want it. Without a hvdd it ends with them. */
#include "daemon/gpu/worker.h"

#include "base/listener.h"
#include "base/status.h"
#include "base/uuid.h"
#include "daemon/gpu/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <utlist.h>

#define START_NS         (5 * HVI_NS_SEC)
#define RETRY_NS         (250 * HVI_NS_MS)
#define RETRY_MOST_NS    (8 * HVI_NS_SEC)
#define ENGINES_MAX      64u /* that a new hvdd is told of */
#define MESSAGES_AT_ONCE 64

void gpu_link_send(struct gpu_worker *worker, const struct hvi_gpu_msg *msg)
{
    size_t length;

    if (worker->link_fd < 0)
        return;
    if (hvi_gpu_msg_encode(msg, worker->encoded, sizeof(worker->encoded), &length) == HVI_OK)
        (void)hvi_packet_send(worker->link_fd, worker->encoded, length, NULL, 0, 0);
    else
        HVI_LOG(HVI_LOG_ERROR, "link", "no-message", "a message for hvdd cannot be written",
                "kind=%d", (int)msg->kind);
}

/* For hvdctl. All bytes are zero that say nothing, so that rows can be compared. */
static void fill_row(struct gpu_worker *worker, struct hvi_gpu_row *row_p)
{
    const struct gpu_comms *comms = &worker->launch.comms;

    memset(row_p, 0, sizeof(*row_p));
    hvi_uuid_format(worker->start.uuid, row_p->uuid);
    snprintf(row_p->name, sizeof(row_p->name), "%.*s", (int)sizeof(row_p->name) - 1,
             worker->device.name);
    snprintf(row_p->state, sizeof(row_p->state), "up");
    row_p->driver_version = (uint32_t)worker->device.cuda.version;
    row_p->nccl_version = (uint32_t)atomic_load(&comms->version);
    if (worker->is_used) { /* else nothing is open: what is being opened may be refused */
        row_p->import_bytes = worker->imports.bytes;
        row_p->imports = worker->imports.count;
    }
    row_p->staging_bytes = GPU_STREAM_STAGING + GPU_STREAM_SCRATCH;
    row_p->comms = atomic_load_explicit(&comms->count, memory_order_relaxed);
}

void gpu_link_state(struct gpu_worker *worker, enum hvi_gpu_state_number state, const char *text)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_STATE, .state = {.state = state}};

    snprintf(msg.state.text, sizeof(msg.state.text), "%s", text);
    if (state == HVI_GPU_UP) {
        msg.state.has_row = true;
        fill_row(worker, &msg.state.row);
        memcpy(&worker->said, &msg.state.row, sizeof(worker->said));
    }
    gpu_link_send(worker, &msg);
}

void gpu_link_used(struct gpu_worker *worker)
{
    if (worker->is_used)
        return;
    worker->is_used = true;
    gpu_link_state(worker, HVI_GPU_UP, "");
}

/* With each beat: what has changed. */
static void say_figures(struct gpu_worker *worker)
{
    struct hvi_gpu_row row;

    if (!worker->up)
        return;
    fill_row(worker, &row);
    if (memcmp(&row, &worker->said, sizeof(row)) != 0)
        gpu_link_state(worker, HVI_GPU_UP, "");
}

/* ---- receiving ---- */

static void fail(struct gpu_worker *worker, const char *why)
{
    HVI_LOG(HVI_LOG_ERROR, "link", "bad-hvdd", why, "");
    gpu_guard_end(worker, 1);
}

static void hang_up(struct gpu_worker *worker)
{
    worker->link = sd_event_source_disable_unref(worker->link);
    close(worker->link_fd);
    worker->link_fd = -1;
    gpu_pass_forget(worker);
    if (worker->engines == NULL)
        gpu_guard_end(worker, 0);
}

static void look_later(struct gpu_worker *worker);

/* hvdd has gone. */
static void lose(struct gpu_worker *worker)
{
    hang_up(worker);
    if (worker->engines == NULL)
        return;
    if (!worker->is_back)
        HVI_LOG(HVI_LOG_WARN, "link", "no-hvdd", "hvdd has gone; engines are served on", "");
    else if (worker->retry_ns < RETRY_MOST_NS)
        worker->retry_ns *= 2; /* until the first beat */
    look_later(worker);
}

/* hvdd answers a GpuReturn with an AttachReply, or takes the worker and sends a GpuMsg. Kinds of both share numbers, but
 * no GpuMsg has the fields that an AttachReply must have. */
static bool is_refusal(const struct hvi_packet *packet, struct hvi_attach_reply *reply_p)
{
    struct hvi_packet_msg msg;

    if (hvi_packet_msg_decode(packet->bytes, packet->length, &msg, NULL, 0) != HVI_OK)
        return false;
    const bool is_one = msg.kind == HVI_PACKET_ATTACH_REPLY;
    if (is_one)
        *reply_p = msg.attach_reply;
    hvi_packet_msg_free(&msg);
    return is_one;
}

/* For good, or because of what passes: it is full, it stops, it is out of memory. */
static void be_refused(struct gpu_worker *worker, const struct hvi_attach_reply *reply)
{
    const bool for_good = reply->status == HVI_ERR_REFUSED || reply->status == HVI_ERR_PROTOCOL ||
                          reply->status == HVI_ERR_VERSION;

    if (!for_good) {
        lose(worker);
        return;
    }
    HVI_LOG(HVI_LOG_WARN, "link", "return-refused",
            "hvdd does not take this worker back; engines are served on", "job=%s why=\"%s\"",
            worker->start.job, reply->text);
    hang_up(worker);
}

static void read_message(struct gpu_worker *worker)
{
    struct hvi_packet *packet = &worker->packet;
    struct hvi_attach_reply reply;
    struct hvi_gpu_msg msg;
    int fd;

    if (worker->is_back && is_refusal(packet, &reply)) {
        be_refused(worker, &reply);
        return;
    }
    if (hvi_gpu_msg_decode(packet->bytes, packet->length, &msg, NULL, 0) != HVI_OK) {
        reply = (struct hvi_attach_reply){.status = HVI_ERR_PROTOCOL,
                                          .text = "its answer cannot be read"};
        if (worker->is_back)
            be_refused(worker, &reply);
        else
            fail(worker, "hvdd sent what cannot be read");
        return;
    }
    fd = hvi_packet_take_fd(packet, 0);
    if ((fd >= 0) != (msg.kind == HVI_GPU_ENGINE)) {
        fail(worker, "hvdd sent a message with the wrong descriptors");
    } else if (msg.kind == HVI_GPU_BEAT) {
        worker->retry_ns = RETRY_NS;
        gpu_link_send(worker, &msg);
        say_figures(worker);
    } else if (msg.kind == HVI_GPU_ENGINE) {
        gpu_serve_engine(worker, &msg.engine, fd);
        fd = -1;
    } else if (msg.kind == HVI_GPU_JOB && worker->up) {
        gpu_pass_begin(worker, &msg.job);
    } else if (msg.kind == HVI_GPU_STOP) {
        HVI_LOG(HVI_LOG_INFO, "link", "stop", "hvdd ends this worker", "reason=\"%s\"",
                msg.stop.reason);
        gpu_guard_end(worker, 0);
    } else {
        fail(worker, "hvdd sent what it may not send");
    }
    if (fd >= 0)
        close(fd);
    hvi_gpu_msg_free(&msg);
}

static int on_link(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct gpu_worker *worker = user;

    (void)source, (void)events;
    for (int i = 0; i < MESSAGES_AT_ONCE && worker->link_fd == fd; i++) {
        int status = hvi_packet_receive(fd, &worker->packet, 0);
        if (status == HVI_ERR_TIMEOUT)
            return 0;
        if (status != HVI_OK) {
            lose(worker);
            return 0;
        }
        read_message(worker);
        hvi_packet_close_fds(&worker->packet);
    }
    return 0;
}

/* ---- another hvdd ---- */

/* -1: not now. Where the queue is full it is not tried sooner, as engines do: no rank waits for a worker. */
static int connect_hvdd(const struct gpu_worker *worker)
{
    int fd = hvi_listener_try(worker->start.attach_path);
    uid_t uid;

    if (fd >= 0 && hvi_listener_is_ours(fd, &uid))
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

static int say_return(struct gpu_worker *worker)
{
    static struct hvi_packet_msg msg;
    struct hvi_gpu_return *said = &msg.gpu_return;
    int32_t pids[ENGINES_MAX];
    struct gpu_engine *engine;
    size_t length;

    msg = (struct hvi_packet_msg){.kind = HVI_PACKET_GPU_RETURN};
    said->protocol_version = HVI_PROTOCOL_VERSION;
    snprintf(said->job, sizeof(said->job), "%s", worker->start.job);
    said->uid = worker->start.uid;
    memcpy(said->uuid, worker->start.uuid, sizeof(said->uuid));
    said->instance = worker->start.instance;
    said->has_row = true;
    fill_row(worker, &said->row);
    said->engines = pids;
    DL_FOREACH(worker->engines, engine)
    {
        engine->is_unknown = engine->is_leaving;
        if (!engine->is_leaving && said->engine_count < ENGINES_MAX)
            pids[said->engine_count++] = (int32_t)engine->pid;
    }
    int status = hvi_packet_msg_encode(&msg, worker->encoded, sizeof(worker->encoded), &length);
    if (status == HVI_OK)
        status = hvi_packet_send(worker->link_fd, worker->encoded, length, NULL, 0, 0);
    return status;
}

static int on_retry(sd_event_source *source, uint64_t usec, void *user)
{
    struct gpu_worker *worker = user;

    (void)source, (void)usec;
    if (worker->is_ending || worker->link_fd >= 0)
        return 0;
    worker->link_fd = connect_hvdd(worker);
    if (worker->link_fd < 0) {
        look_later(worker);
        return 0;
    }
    worker->is_back = true;
    if (say_return(worker) != HVI_OK || gpu_link_open(worker) != HVI_OK)
        lose(worker);
    else
        HVI_LOG(HVI_LOG_DEBUG, "link", "hvdd-back", "introduced itself to hvdd", "job=%s",
                worker->start.job);
    return 0;
}

static void look_later(struct gpu_worker *worker)
{
    worker->retry = sd_event_source_disable_unref(worker->retry);
    if (worker->retry_ns == 0)
        worker->retry_ns = RETRY_NS;
    if (sd_event_add_time_relative(worker->event, &worker->retry, CLOCK_MONOTONIC,
                                   worker->retry_ns / 1000, 1000, on_retry, worker) < 0)
        HVI_LOG(HVI_LOG_ERROR, "link", "no-event", "the worker cannot look for another hvdd", "");
}

/* ---- life ---- */

/* Before the first thread. What the environment of hvdd says of these stays out. */
static void set_environment(const struct hvi_gpu_start *start)
{
    unsetenv("CUDA_VISIBLE_DEVICES");
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1); /* streams that wait share no queue (P8) */
    setenv("CUDA_MODULE_LOADING", "EAGER", 1);      /* nothing is loaded while a stream waits */
    for (size_t i = 0; i < start->setting_count; i++)
        setenv(start->settings[i].name, start->settings[i].value, 1);
}

int gpu_link_start(struct gpu_worker *worker, int link_fd)
{
    struct hvi_packet *packet = &worker->packet;
    struct hvi_gpu_msg msg;
    char text[200] = "it is not there";
    int status = hvi_packet_receive(link_fd, packet, hvi_deadline_after(START_NS));

    if (status == HVI_ERR_CLOSED)
        return status; /* hvdd has gone already */
    if (status == HVI_OK)
        status = hvi_gpu_msg_decode(packet->bytes, packet->length, &msg, text, sizeof(text));
    hvi_packet_close_fds(packet);
    if (status == HVI_OK && msg.kind == HVI_GPU_START &&
        msg.start.protocol_version == HVI_PROTOCOL_VERSION) {
        worker->link_fd = link_fd;
        worker->start = msg.start;
        set_environment(&msg.start);
        worker->start.settings = NULL;
        worker->start.setting_count = 0;
        hvi_gpu_msg_free(&msg);
        return HVI_OK;
    }
    if (status == HVI_OK)
        snprintf(text, sizeof(text), "it is of another kind or version");
    HVI_LOG(HVI_LOG_ERROR, "link", "no-start", "hvdd's first message is no GpuStart",
            "error=\"%s\"", text);
    if (status == HVI_OK)
        hvi_gpu_msg_free(&msg);
    return HVI_ERR_PROTOCOL;
}

int gpu_link_open(struct gpu_worker *worker)
{
    if (sd_event_add_io(worker->event, &worker->link, worker->link_fd, EPOLLIN, on_link, worker) >=
        0)
        return HVI_OK;
    HVI_LOG(HVI_LOG_ERROR, "link", "no-event", "the worker cannot watch its link to hvdd", "");
    return HVI_ERR_NO_MEMORY;
}

void gpu_link_close(struct gpu_worker *worker)
{
    worker->link = sd_event_source_disable_unref(worker->link);
    worker->retry = sd_event_source_disable_unref(worker->retry);
    if (worker->link_fd >= 0)
        close(worker->link_fd);
    worker->link_fd = -1;
}
