/* SPDX-License-Identifier: Apache-2.0
 * Engines that have a worker, or wait for it: each gets a socket of its own to the worker, and hears of its end. */
#include "daemon/node/gpu_room.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <utlist.h>

/* ---- what engines are told ---- */

static void tell(const struct node_gpu *gpu, struct node_engine *engine,
                 const struct hvi_gpu_worker *answer, int fd)
{
    gpu->calls->tell(engine, answer, fd);
}

void node_want_refuse(const struct node_gpu *gpu, const struct node_gpu_asker *asker,
                      const struct hvi_gpu_wanted *wanted, int status, const char *text)
{
    struct hvi_gpu_worker answer = {.request = wanted->request, .status = status};
    char name[HVI_UUID_TEXT];

    hvi_uuid_format(wanted->uuid, name);
    memcpy(answer.uuid, wanted->uuid, sizeof(answer.uuid));
    snprintf(answer.text, sizeof(answer.text), "%s: %s", name, text);
    HVI_LOG(HVI_LOG_WARN, "gpu", "worker-refused", text, "gpu=%s job=%s uid=%u status=%s", name,
            asker->job, (unsigned)asker->uid, hvi_status_name(status));
    tell(gpu, asker->engine, &answer, -1);
}

static void fill_answer(const struct node_worker *worker, struct hvi_gpu_worker *answer_p)
{
    memcpy(answer_p->uuid, worker->uuid, sizeof(answer_p->uuid));
    answer_p->instance = worker->instance;
    answer_p->pid = (int32_t)worker->pid;
}

void node_want_drop(struct node_worker *worker, struct node_want *want)
{
    DL_DELETE(worker->wants, want);
    free(want);
}

/* ---- engines ---- */

/* The job's workers that live: NCCL's communicators that another one is in are of no use any more. NULL: no memory. */
static uint64_t *living(const struct node_worker *worker, size_t *count_p)
{
    const struct node_worker *each;
    uint64_t *instances = calloc(worker->gpu->worker_count, sizeof(*instances));

    *count_p = 0;
    DL_FOREACH(worker->gpu->workers, each)
    {
        if (instances != NULL && each->state < NODE_WORKER_ENDING && each->uid == worker->uid &&
            strcmp(each->job, worker->job) == 0)
            instances[(*count_p)++] = each->instance;
    }
    return instances;
}

/* GpuEngine with its descriptor. */
static int send_engine(struct node_worker *worker, const struct node_want *want, int fd)
{
    struct hvi_gpu_msg msg = {
        .kind = HVI_GPU_ENGINE,
        .engine = {.generation = want->generation, .engine_pid = (int32_t)want->pid}};

    msg.engine.instances = living(worker, &msg.engine.instance_count);
    int status = node_worker_send(worker, &msg, &fd, 1);
    free(msg.engine.instances);
    return status;
}

void node_want_link(struct node_worker *worker, struct node_want *want)
{
    struct hvi_gpu_worker answer = {.request = want->request};
    int ends[2] = {-1, -1}, status;

    fill_answer(worker, &answer);
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
        answer.status = HVI_ERR_LIMIT;
        snprintf(answer.text, sizeof(answer.text), "%s: no socket to its worker: %s", worker->name,
                 strerror(errno));
    } else if ((status = send_engine(worker, want, ends[0])) != HVI_OK) {
        answer.status = HVI_ERR_WORKER_LOST;
        snprintf(answer.text, sizeof(answer.text), "%s: its worker (pid %d) %s", worker->name,
                 (int)worker->pid, status == HVI_ERR_CLOSED ? "has ended" : "does not read");
    }
    tell(worker->gpu, want->engine, &answer, answer.status == HVI_OK ? ends[1] : -1);
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0)
            close(ends[i]);
    }
    want->linked = answer.status == HVI_OK;
    if (!want->linked)
        node_want_drop(worker, want);
}

void node_want_link_all(struct node_worker *worker)
{
    struct node_want *want, *after;

    DL_FOREACH_SAFE(worker->wants, want, after)
    {
        if (!want->linked)
            node_want_link(worker, want);
    }
}

static int on_idle(sd_event_source *source, uint64_t usec, void *user)
{
    (void)source, (void)usec;
    node_worker_stop(user, "no engine of its job has used it for gpu-idle");
    return 0;
}

void node_want_go_idle(struct node_worker *worker, const char *cause)
{
    const uint64_t now_ns = hvi_clock_ns();

    node_worker_set_state(worker, NODE_WORKER_IDLE, cause);
    worker->idle_ns = now_ns;
    if (!node_worker_arm(worker, worker->idle_end_ns > now_ns ? worker->idle_end_ns - now_ns : 0,
                         on_idle))
        node_worker_stop(worker, "no memory for a timer");
}

void node_want_check_idle(struct node_worker *worker)
{
    if (worker->state == NODE_WORKER_UP && worker->wants == NULL && !worker->had_import) {
        node_worker_stop(worker, "no engine has it, and it has opened no memory of a trainer");
    } else if (worker->state == NODE_WORKER_UP && worker->wants == NULL) {
        worker->idle_end_ns = hvi_clock_ns() + (uint64_t)worker->gpu->config->gpu_idle;
        node_want_go_idle(worker, "no engine has it any more");
    } else if (worker->state == NODE_WORKER_IDLE && worker->wants != NULL) {
        worker->timer = sd_event_source_disable_unref(worker->timer);
        node_worker_set_state(worker, NODE_WORKER_UP, "an engine wants it");
    }
}

void node_want_tell_end(struct node_worker *worker, const char *text)
{
    bool cannot = worker->failed && !worker->had_gpu;
    struct node_want *want, *after;

    DL_FOREACH_SAFE(worker->wants, want, after)
    {
        struct hvi_gpu_worker answer = {.request = want->linked ? 0 : want->request,
                                        .status =
                                            cannot ? HVI_ERR_UNSUPPORTED : HVI_ERR_WORKER_LOST};
        if (want->engine == NULL)
            continue;
        fill_answer(worker, &answer);
        snprintf(answer.text, sizeof(answer.text), "%s", text);
        tell(worker->gpu, want->engine, &answer, -1);
    }
}
