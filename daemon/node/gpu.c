/* SPDX-License-Identifier: Apache-2.0
 * Workers of GPUs (docs/design/gpu.md): the table, its limits, and what hvdd asks of it. A worker belongs to a job of a user on
 * one GPU, through all generations: its key is (uid, job, UUID).
 *
 *   gpu.c ── a worker is missing ──► gpu_start.c ── process, link ──► gpu_watch.c ── up, silent, gone ──► gpu_worker.c
 *     └───── another job's is idle ► gpu_pass.c
 *     └───── it comes back ────────► gpu_return.c
 *     └───── an engine wants it ───► gpu_engines.c ── socket between engine and worker
 *     └───── a session's page ─────► gpu_fences.c
 *
 * An engine that wants a worker gets its end of a socket pair, whose other end goes to the worker, once the worker is up; from
 * then on hvdd is not between them. */
#include "daemon/node/gpu_room.h"

#include "base/log.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <utlist.h>

struct node_worker *node_worker_find(const struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                     const unsigned char uuid[HVI_UUID_BYTES])
{
    struct node_worker *worker;

    DL_FOREACH(gpu->workers, worker)
    {
        if (worker->state < NODE_WORKER_ENDING && worker->uid == asker->uid &&
            strcmp(worker->job, asker->job) == 0 && memcmp(worker->uuid, uuid, HVI_UUID_BYTES) == 0)
            return worker;
    }
    return NULL;
}

/* Those that end give their place up. */
uint32_t node_gpu_count(const struct node_gpu *gpu, const uid_t *uid)
{
    const struct node_worker *worker;
    uint32_t count = 0;

    DL_FOREACH(gpu->workers, worker)
    count += worker->state < NODE_WORKER_ENDING && (uid == NULL || worker->uid == *uid);
    return count;
}

/* Whether there is a place within a limit: a worker that no engine has ends before another one is refused. `uid` NULL: of any
 * user. */
static bool find_place(const struct node_gpu *gpu, const uid_t *uid, int64_t limit)
{
    struct node_worker *worker;

    if (node_gpu_count(gpu, uid) < (uint64_t)limit)
        return true;
    DL_FOREACH(gpu->workers, worker)
    {
        if (worker->state != NODE_WORKER_IDLE || (uid != NULL && worker->uid != *uid))
            continue;
        node_worker_stop(worker, "another job's worker needs its place");
        return limit > 0;
    }
    return false;
}

/* Why no worker is had; HVI_OK: nothing stands against it. */
static int check_open(const struct node_gpu *gpu, char *text_p, size_t text_size)
{
    if (gpu->config->gpu == 0) {
        snprintf(text_p, text_size, "hvdd starts no workers for GPUs (gpu = no)");
        return HVI_ERR_UNSUPPORTED;
    }
    if (gpu->stopping) {
        snprintf(text_p, text_size, "hvdd is shutting down and starts no workers");
        return HVI_ERR_DRAINING;
    }
    return HVI_OK;
}

/* Why no further worker may be started; HVI_OK: nothing stands against it. */
static int check_start(const struct node_gpu *gpu, const struct node_gpu_asker *asker, char *text_p,
                       size_t text_size)
{
    const struct node_config *config = gpu->config;

    if (!find_place(gpu, &asker->uid, config->gpu_workers_per_user)) {
        snprintf(text_p, text_size,
                 "user %u has %u workers for GPUs already (gpu-workers-per-user)",
                 (unsigned)asker->uid, node_gpu_count(gpu, &asker->uid));
        return HVI_ERR_DAEMON_LIMIT;
    }
    if (!find_place(gpu, NULL, config->gpu_workers)) {
        snprintf(text_p, text_size, "hvdd has %u workers for GPUs already (gpu-workers)",
                 node_gpu_count(gpu, NULL));
        return HVI_ERR_DAEMON_LIMIT;
    }
    return HVI_OK;
}

/* A worker for the asker's job, a new one or, where it `may_pass`, one that was another job's; NULL: the asker has its answer. */
static struct node_worker *make(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                const struct hvi_gpu_wanted *wanted, bool may_pass)
{
    const char *path = gpu->config->gpu_socket[0] != '\0' ? gpu->config->gpu_socket : gpu->path;
    struct node_worker *worker = NULL;
    char text[HVI_WIRE_PATH * 2 + 200];
    int status = check_open(gpu, text, sizeof(text));

    if (status == HVI_OK && may_pass)
        worker = node_pass_begin(gpu, asker, wanted);
    if (worker != NULL)
        return worker;
    if (status == HVI_OK)
        status = check_start(gpu, asker, text, sizeof(text));
    if (status != HVI_OK) {
        node_want_refuse(gpu, asker, wanted, status, text);
        return NULL;
    }
    worker = node_worker_new(gpu, asker, wanted);
    int error = worker == NULL ? -ENOMEM : node_worker_start(worker, wanted);
    if (error >= 0)
        return worker;
    if (worker != NULL)
        node_worker_free(worker);
    snprintf(text, sizeof(text), "hvdd could not start its worker (%s: %s)", path,
             strerror(-error));
    node_want_refuse(gpu, asker, wanted, HVI_ERR_UNSUPPORTED, text);
    return NULL;
}

static void want_worker(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                        const struct hvi_gpu_wanted *wanted, bool may_pass)
{
    struct node_worker *worker = node_worker_find(gpu, asker, wanted->uuid);
    struct node_want *want, *older;

    if (worker == NULL)
        worker = make(gpu, asker, wanted, may_pass);
    if (worker == NULL)
        return;
    DL_SEARCH_SCALAR(worker->wants, older, engine, asker->engine);
    if (older != NULL)
        node_want_drop(worker, older); /* an engine has one socket to a worker, its last */
    want = calloc(1, sizeof(*want));
    if (want == NULL) {
        node_want_refuse(gpu, asker, wanted, HVI_ERR_NO_MEMORY, "hvdd is out of memory");
        node_want_check_idle(worker);
        return;
    }
    *want = (struct node_want){.engine = asker->engine,
                               .request = wanted->request,
                               .generation = asker->generation,
                               .pid = asker->pid};
    DL_APPEND(worker->wants, want);
    node_want_check_idle(worker);
    if (worker->state == NODE_WORKER_UP)
        node_want_link(worker, want);
    node_want_check_idle(worker);
}

void node_gpu_want(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                   const struct hvi_gpu_wanted *wanted)
{
    want_worker(gpu, asker, wanted, true);
}

void node_gpu_want_new(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                       const struct hvi_gpu_wanted *wanted)
{
    want_worker(gpu, asker, wanted, false);
}

void node_gpu_end(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                  const struct hvi_gpu_end *end)
{
    struct node_worker *worker;

    DL_FOREACH(gpu->workers, worker)
    {
        if (worker->instance == end->instance && worker->uid == asker->uid &&
            strcmp(worker->job, asker->job) == 0) {
            node_worker_kill(worker, end->reason);
            return;
        }
    }
}

void node_gpu_engine_gone(struct node_gpu *gpu, struct node_engine *engine)
{
    struct node_worker *worker, *next;
    struct node_want *want, *after;

    node_fences_leave(gpu, engine);
    DL_FOREACH_SAFE(gpu->workers, worker, next)
    {
        DL_FOREACH_SAFE(worker->wants, want, after)
        {
            if (want->engine == engine)
                node_want_drop(worker, want);
        }
        if (worker->state == NODE_WORKER_UP && worker->wants == NULL && worker->io != NULL)
            node_worker_read(worker); /* that it has opened memory, perhaps */
        node_want_check_idle(worker);
    }
}

/* ---- life ---- */

void node_gpu_open(struct node_gpu *gpu, sd_event *event, const struct node_config *config,
                   const struct node_gpu_calls *calls, void *user, const char *path,
                   const char *attach_path)
{
    *gpu = (struct node_gpu){
        .event = event, .config = config, .calls = calls, .user = user, .attach_path = attach_path};
    snprintf(gpu->path, sizeof(gpu->path), "%s", path);
    gpu->program_fd = open(path, O_PATH | O_CLOEXEC);
}

void node_gpu_stop_all(struct node_gpu *gpu, const char *reason)
{
    struct node_worker *worker, *after;

    gpu->stopping = true;
    DL_FOREACH_SAFE(gpu->workers, worker, after)
    {
        if (worker->state == NODE_WORKER_STARTING)
            node_worker_kill(worker, reason);
        else if (worker->state != NODE_WORKER_ENDING)
            node_worker_stop(worker, reason);
    }
}

void node_gpu_stop_idle(struct node_gpu *gpu, const char *reason)
{
    struct node_worker *worker, *after;

    DL_FOREACH_SAFE(gpu->workers, worker, after)
    {
        if (worker->state == NODE_WORKER_IDLE || worker->state == NODE_WORKER_PASSING)
            node_worker_stop(worker, reason);
    }
}

int node_gpu_rows(const struct node_gpu *gpu, struct hvi_admin_reply *reply)
{
    const struct node_worker *worker;

    reply->gpus = calloc(gpu->worker_count + 1u, sizeof(*reply->gpus));
    if (reply->gpus == NULL)
        return HVI_ERR_NO_MEMORY;
    DL_FOREACH(gpu->workers, worker)
    {
        struct hvi_gpu_row *row = &reply->gpus[reply->gpu_count];
        if (reply->gpu_count == HVI_WIRE_ROWS_MAX)
            break;
        *row = worker->row; /* what it has said of its memory */
        memcpy(row->uuid, worker->name, sizeof(row->uuid));
        memcpy(row->job, worker->job, sizeof(row->job));
        snprintf(row->state, sizeof(row->state), "%s", node_worker_state_text(worker->state));
        row->uid = worker->uid;
        row->pid = (int32_t)worker->pid;
        reply->gpu_count++;
    }
    return HVI_OK;
}

void node_gpu_close(struct node_gpu *gpu)
{
    while (gpu->workers != NULL)
        node_worker_free(gpu->workers);
    node_fences_close(gpu);
    gpu->beat = sd_event_source_disable_unref(gpu->beat);
    if (gpu->event != NULL && gpu->program_fd >= 0)
        close(gpu->program_fd);
    gpu->event = NULL;
    gpu->program_fd = -1;
}
