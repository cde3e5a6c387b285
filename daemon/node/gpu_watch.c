/* SPDX-License-Identifier: Apache-2.0
 * A worker's process is watched: what goes and comes over its link, whether it answers beats, and its exit.
 *
 * There is no outbox: what hvdd tells a worker is short, and a worker whose socket is full is as stuck as one that is silent. */
#include "daemon/node/gpu_room.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/node/unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utlist.h>

#define BEAT_NS          HVI_NS_SEC
#define MESSAGES_AT_ONCE 64
#define UNMET            "did not start (`journalctl -u hvdd-gpu.socket -u 'hvdd-gpu@*'` says why)"

/* ---- sending ---- */

int node_worker_send(struct node_worker *worker, const struct hvi_gpu_msg *msg, const int *fds,
                     uint32_t fd_count)
{
    struct node_gpu *gpu = worker->gpu;
    size_t length;
    int status = hvi_gpu_msg_encode(msg, gpu->encoded, sizeof(gpu->encoded), &length);

    if (status == HVI_OK)
        status = hvi_packet_send(worker->link_fd, gpu->encoded, length, fds, fd_count, 0);
    return status;
}

/* ---- receiving ---- */

static void handle_state(struct node_worker *worker, const struct hvi_gpu_state *state)
{
    if (state->has_row) {
        worker->row = state->row;
        worker->had_import = worker->had_import || state->row.imports > 0;
    }
    if (state->state == HVI_GPU_STARTING) {
        node_worker_copy_text(worker->step, sizeof(worker->step), state->text);
        return;
    }
    if (state->state == HVI_GPU_FAILED) {
        worker->failed = worker->why[0] == '\0';
        if (worker->failed)
            node_worker_copy_text(worker->why, sizeof(worker->why), state->text);
        return;
    }
    if (worker->state != NODE_WORKER_STARTING)
        return;
    HVI_LOG(HVI_LOG_INFO, "gpu", "worker-up", "a worker has its GPU", "gpu=%s job=%s pid=%d",
            worker->name, worker->job, (int)worker->pid);
    worker->timer = sd_event_source_disable_unref(worker->timer);
    worker->had_gpu = true;
    node_worker_set_state(worker, NODE_WORKER_UP, "it has its GPU");
    node_want_link_all(worker);
    node_want_check_idle(worker);
}

/* False: the worker says what cannot be. */
static bool handle(struct node_worker *worker, const struct hvi_packet *packet)
{
    struct hvi_gpu_msg msg;
    bool good = true;

    if (packet->fd_count != 0 ||
        hvi_gpu_msg_decode(packet->bytes, packet->length, &msg, NULL, 0) != HVI_OK)
        return false;
    worker->silent_ns = 0;
    if (msg.kind == HVI_GPU_BEAT)
        worker->asked = worker->asked && msg.beat.number != worker->beat;
    else if (msg.kind == HVI_GPU_STATE)
        handle_state(worker, &msg.state);
    else if (msg.kind == HVI_GPU_JOB)
        good = node_pass_end(worker, &msg.job);
    else
        good = false;
    hvi_gpu_msg_free(&msg);
    return good;
}

static int on_exit_of_stranger(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node_worker *worker = user;
    struct hvi_fate fate = hvi_fate_of_gone(worker->pid, fd);
    char text[128];

    (void)source, (void)events;
    hvi_fate_describe(fate, text, sizeof(text));
    node_worker_gone(worker, text);
    return 0;
}

static int on_exit_of_child(sd_event_source *source, const siginfo_t *info, void *user)
{
    struct hvi_fate fate = hvi_fate_from_child(info);
    char text[128];

    (void)source;
    hvi_fate_describe(fate, text, sizeof(text));
    node_worker_gone(user, text);
    return 0;
}

int node_worker_watch_child(struct node_worker *worker)
{
    return sd_event_add_child_pidfd(worker->gpu->event, &worker->exit, worker->pidfd, WEXITED,
                                    on_exit_of_child, worker);
}

int node_worker_watch_stranger(struct node_worker *worker)
{
    return sd_event_add_io(worker->gpu->event, &worker->exit, worker->pidfd, EPOLLIN,
                           on_exit_of_stranger, worker);
}

/* The first message of a worker of a unit. False: it is not what the unit should start. */
static bool meet(struct node_worker *worker, const struct hvi_packet *packet)
{
    char text[160];

    if (worker->state != NODE_WORKER_STARTING)
        return false; /* hvdd has given it up */
    worker->pidfd = node_unit_meet(packet, worker->link_fd, "hvdd-gpu", text, sizeof(text));
    worker->pid = worker->pidfd < 0 ? 0 : packet->sender_pid;
    if (worker->pidfd >= 0 && node_worker_watch_stranger(worker) < 0) {
        snprintf(text, sizeof(text), "no memory to watch it");
        close(worker->pidfd);
        worker->pidfd = -1;
    }
    if (worker->pidfd < 0) {
        HVI_LOG(HVI_LOG_ERROR, "gpu", "bad-gpu-unit", text, "gpu=%s job=%s socket=%s", worker->name,
                worker->job, worker->gpu->config->gpu_socket);
        return false;
    }
    node_worker_log_started(worker);
    return true;
}

void node_worker_read(struct node_worker *worker)
{
    static struct hvi_packet packet;

    for (int i = 0; i < MESSAGES_AT_ONCE && worker->io != NULL; i++) {
        int status = hvi_packet_receive(worker->link_fd, &packet, 0);
        if (status == HVI_ERR_TIMEOUT)
            return;
        bool good = status == HVI_OK &&
                    (worker->pidfd < 0 ? meet(worker, &packet) : handle(worker, &packet));
        if (status == HVI_OK)
            hvi_packet_close_fds(&packet);
        if (good)
            continue;
        worker->io = sd_event_source_disable_unref(worker->io);
        if (worker->pidfd < 0)
            return;
        if (status == HVI_OK)
            node_worker_kill(worker, "the worker broke the protocol");
        else
            node_worker_expect_end(worker);
    }
}

void node_worker_unmet(struct node_worker *worker)
{
    node_worker_gone(worker, UNMET);
}

static int on_link(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct node_worker *worker = user;

    (void)source, (void)fd, (void)events;
    node_worker_read(worker);
    if (worker->io == NULL && worker->pidfd < 0)
        node_worker_unmet(worker);
    return 0;
}

int node_worker_watch_link(struct node_worker *worker)
{
    return sd_event_add_io(worker->gpu->event, &worker->io, worker->link_fd, EPOLLIN, on_link,
                           worker);
}

/* ---- whether they live ---- */

/* Ticks are counted, not time: where hvdd or the machine stood still, that is one tick. What the worker has said already is
 * read before it is judged. */
static void look_at(struct node_worker *worker)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_BEAT};

    if (worker->pidfd < 0 || worker->io == NULL)
        return;
    if (worker->asked)
        node_worker_read(worker);
    if (worker->io == NULL)
        return;
    if (worker->asked) {
        worker->silent_ns += BEAT_NS;
        if (worker->silent_ns >= (uint64_t)worker->gpu->config->gpu_silence &&
            worker->state != NODE_WORKER_ENDING)
            node_worker_kill(
                worker, "the worker has not answered for gpu-silence: it was stopped, or is stuck");
        return;
    }
    msg.beat.number = ++worker->beat;
    worker->asked = true;
    (void)node_worker_send(worker, &msg, NULL, 0); /* one that does not read will be silent */
}

static int on_beat(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_gpu *gpu = user;
    struct node_worker *worker, *after;

    (void)usec;
    DL_FOREACH_SAFE(gpu->workers, worker, after)
    look_at(worker);
    if (gpu->workers == NULL)
        return sd_event_source_set_enabled(source, SD_EVENT_OFF);
    sd_event_source_set_time_relative(source, BEAT_NS / 1000);
    return sd_event_source_set_enabled(source, SD_EVENT_ONESHOT);
}

int node_worker_start_beats(struct node_gpu *gpu)
{
    int enabled = SD_EVENT_OFF;

    if (gpu->beat == NULL)
        return sd_event_add_time_relative(gpu->event, &gpu->beat, CLOCK_MONOTONIC, BEAT_NS / 1000,
                                          1000, on_beat, gpu);
    sd_event_source_get_enabled(gpu->beat, &enabled);
    if (enabled != SD_EVENT_OFF)
        return 0;
    sd_event_source_set_time_relative(gpu->beat, BEAT_NS / 1000);
    return sd_event_source_set_enabled(gpu->beat, SD_EVENT_ONESHOT);
}
