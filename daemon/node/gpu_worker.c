/* SPDX-License-Identifier: Apache-2.0
 * A worker: its states, what hvdd tells it, and its end.
 *
 * A worker's process tells first why it cannot serve (GpuState{failed}) and then ends; hvdd answers engines when the process
 * has ended, with what it has said, with hvdd's reason if hvdd has killed it, or with how it ended. So every engine hears of
 * each worker's end once, and a worker that is in the table has a process (or its unit is about to start one). */
#include "daemon/node/gpu_room.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/utf8.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

#define GRACE_NS (5 * HVI_NS_SEC) /* a worker that was told to end is killed after it */

void node_worker_copy_text(char *text_p, size_t size, const char *text)
{
    size_t bytes = hvi_utf8_cut(text, strlen(text), size - 1);

    memcpy(text_p, text, bytes);
    text_p[bytes] = '\0';
}

/* ---- states ---- */

bool node_worker_edge(enum node_worker_state from, enum node_worker_state to)
{
    static const unsigned next[NODE_WORKER_STATES] = {
        [NODE_WORKER_STARTING] =
            1u << NODE_WORKER_UP | 1u << NODE_WORKER_ENDING | 1u << NODE_WORKER_GONE,
        [NODE_WORKER_UP] =
            1u << NODE_WORKER_IDLE | 1u << NODE_WORKER_ENDING | 1u << NODE_WORKER_GONE,
        [NODE_WORKER_IDLE] = 1u << NODE_WORKER_UP | 1u << NODE_WORKER_PASSING |
                             1u << NODE_WORKER_ENDING | 1u << NODE_WORKER_GONE,
        [NODE_WORKER_PASSING] = 1u << NODE_WORKER_UP | 1u << NODE_WORKER_IDLE |
                                1u << NODE_WORKER_ENDING | 1u << NODE_WORKER_GONE,
        [NODE_WORKER_ENDING] = 1u << NODE_WORKER_GONE,
    };
    return (next[from] >> to & 1u) != 0;
}

const char *node_worker_state_text(enum node_worker_state state)
{
    static const char *const texts[] = {"starting", "up", "idle", "passing", "ending", "gone"};
    return texts[state];
}

void node_worker_set_state(struct node_worker *worker, enum node_worker_state state,
                           const char *cause)
{
    HVI_ASSERT(node_worker_edge(worker->state, state));
    HVI_LOG(HVI_LOG_DEBUG, "gpu", "worker-state", cause, "gpu=%s job=%s pid=%d %s -> %s",
            worker->name, worker->job, (int)worker->pid, node_worker_state_text(worker->state),
            node_worker_state_text(state));
    worker->state = state;
}

void node_worker_log_started(const struct node_worker *worker)
{
    HVI_LOG(HVI_LOG_INFO, "gpu", "worker-started", "a worker was started",
            "gpu=%s job=%s uid=%u pid=%d", worker->name, worker->job, (unsigned)worker->uid,
            (int)worker->pid);
}

/* ---- ending ---- */

/* Engines that wait for it in its next job have no part in its end. */
static void begin_end(struct node_worker *worker, const char *cause)
{
    const bool passes = worker->state == NODE_WORKER_PASSING;

    node_worker_set_state(worker, NODE_WORKER_ENDING, cause);
    if (passes)
        node_pass_fail(worker);
}

void node_worker_kill(struct node_worker *worker, const char *why)
{
    if (worker->why[0] == '\0')
        node_worker_copy_text(worker->why, sizeof(worker->why), why);
    if (worker->state != NODE_WORKER_ENDING)
        begin_end(worker, why);
    HVI_LOG(HVI_LOG_ERROR, "gpu", "worker-killed", why, "gpu=%s job=%s pid=%d", worker->name,
            worker->job, (int)worker->pid);
    worker->timer = sd_event_source_disable_unref(worker->timer);
    if (worker->pidfd >= 0)
        pidfd_send_signal(worker->pidfd, SIGKILL, NULL, 0);
    else
        shutdown(worker->link_fd, SHUT_RDWR); /* on_link sees it end, and its program too */
}

bool node_worker_arm(struct node_worker *worker, uint64_t delay_ns, sd_event_time_handler_t handler)
{
    worker->timer = sd_event_source_disable_unref(worker->timer);
    return sd_event_add_time_relative(worker->gpu->event, &worker->timer, CLOCK_MONOTONIC,
                                      delay_ns / 1000, 1000, handler, worker) >= 0;
}

static int on_grace(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    node_worker_kill(user, "it should have ended 5 s ago");
    return 0;
}

void node_worker_expect_end(struct node_worker *worker)
{
    if (worker->state == NODE_WORKER_ENDING)
        return;
    begin_end(worker, "its link has ended");
    if (!node_worker_arm(worker, GRACE_NS, on_grace))
        node_worker_kill(worker, "no memory for a timer");
}

void node_worker_stop(struct node_worker *worker, const char *reason)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_STOP};

    begin_end(worker, reason);
    node_worker_copy_text(worker->why, sizeof(worker->why), reason);
    snprintf(msg.stop.reason, sizeof(msg.stop.reason), "%s", reason);
    if (node_worker_send(worker, &msg, NULL, 0) != HVI_OK ||
        !node_worker_arm(worker, GRACE_NS, on_grace))
        node_worker_kill(worker, "it cannot be told to end");
}

/* ---- ended ---- */

void node_worker_free(struct node_worker *worker)
{
    while (worker->wants != NULL)
        node_want_drop(worker, worker->wants);
    sd_event_source_disable_unref(worker->exit);
    sd_event_source_disable_unref(worker->io);
    sd_event_source_disable_unref(worker->timer);
    if (worker->link_fd >= 0)
        close(worker->link_fd);
    if (worker->pidfd >= 0)
        close(worker->pidfd);
    DL_DELETE(worker->gpu->workers, worker);
    worker->gpu->worker_count--;
    if (worker->start != NULL)
        free(worker->start->settings);
    free(worker->start);
    free(worker);
}

/* "GPU-...: its worker (pid 7) was killed by signal 9 (SIGKILL)"; "GPU-...: its worker did not start (...)" */
static void describe_end(const struct node_worker *worker, const char *fate, char *text_p,
                         size_t text_size)
{
    const bool was_ended = worker->why[0] != '\0';
    char pid[24] = "";

    if (worker->pid != 0)
        snprintf(pid, sizeof(pid), " (pid %d)", (int)worker->pid);
    if (worker->failed)
        snprintf(text_p, text_size, "%s: %s", worker->name, worker->why);
    else
        snprintf(text_p, text_size, "%s: its worker%s %s%s", worker->name, pid,
                 was_ended ? "was ended by hvdd: " : "", was_ended ? worker->why : fate);
}

void node_worker_gone(struct node_worker *worker, const char *fate)
{
    struct node_gpu *gpu = worker->gpu;
    char text[HVI_TEXT_MAX + 1];
    enum hvi_log_level level;

    if (worker->io != NULL)
        node_worker_read(worker); /* why, perhaps */
    if (worker->state == NODE_WORKER_PASSING)
        begin_end(worker, fate);
    describe_end(worker, fate, text, sizeof(text));
    level = worker->wants == NULL ? HVI_LOG_INFO : worker->had_gpu ? HVI_LOG_ERROR : HVI_LOG_WARN;
    HVI_LOG(level, "gpu", "worker-ended", text, "gpu=%s job=%s pid=%d fate=\"%s\"", worker->name,
            worker->job, (int)worker->pid, fate);
    node_want_tell_end(worker, text);
    node_worker_set_state(worker, NODE_WORKER_GONE, fate);
    node_fences_without(gpu, worker->instance);
    if (worker->before != 0)
        node_fences_without(gpu, worker->before);
    node_worker_free(worker);
    if (gpu->workers == NULL)
        gpu->calls->empty(gpu->user);
}
