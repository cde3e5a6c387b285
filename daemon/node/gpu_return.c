/* SPDX-License-Identifier: Apache-2.0
 * A worker of an earlier hvdd comes back: it serves its engines meanwhile, and is not started again for the next generation.
 *
 *   worker ── GpuReturn, its engines' pids ──► attach.sock ──► in the table: up, with a want for each of these engines
 *   engine ── EngineHello ──────────────────► attach.sock ──► the want of its pid has an engine
 *
 * Either may come first. A want whose engine does not come within 10 s, or gpu-idle if that is longer, is of one that ended
 * meanwhile.
 *
 * The kernel says which process of which user it is; the rest is the worker's word. As a service all workers have hvdd's user,
 * and a process of that user may lie about user and job: so it may take the place of another job's worker. */
#include "daemon/node/gpu_room.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

/* Engines look for hvdd each 250 ms; a loaded node takes longer. */
#define ENGINES_NS (10 * HVI_NS_SEC)

/* Its engines are known by their pids alone. False: no memory. */
static bool add_wants(struct node_worker *worker, const struct hvi_gpu_return *said)
{
    for (size_t i = 0; i < said->engine_count; i++) {
        struct node_want *want = calloc(1, sizeof(*want));
        if (want == NULL)
            return false;
        *want = (struct node_want){.pid = said->engines[i], .linked = true};
        DL_APPEND(worker->wants, want);
    }
    return true;
}

static int on_unreturned(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_worker *worker = user;
    struct node_want *want, *after;

    (void)source, (void)usec;
    DL_FOREACH_SAFE(worker->wants, want, after)
    {
        if (want->engine == NULL)
            node_want_drop(worker, want);
    }
    node_want_check_idle(worker);
    return 0;
}

static bool watch(struct node_worker *worker)
{
    const uint64_t idle_ns = (uint64_t)worker->gpu->config->gpu_idle;

    return node_worker_start_beats(worker->gpu) >= 0 && node_worker_watch_stranger(worker) >= 0 &&
           node_worker_watch_link(worker) >= 0 &&
           node_worker_arm(worker, idle_ns > ENGINES_NS ? idle_ns : ENGINES_NS, on_unreturned);
}

static int refuse(const char **why_p, int status, const char *why)
{
    *why_p = why;
    return status;
}

/* HVI_OK: nothing stands against it. */
static int check(const struct node_gpu *gpu, const struct hvi_gpu_return *said, const char **why_p)
{
    const struct node_gpu_asker asker = {.job = said->job, .uid = said->uid};
    const uid_t uid = said->uid;

    if (gpu->config->gpu == 0)
        return refuse(why_p, HVI_ERR_REFUSED, "hvdd has no workers for GPUs (gpu = no)");
    if (said->protocol_version != HVI_PROTOCOL_VERSION)
        return refuse(why_p, HVI_ERR_VERSION, "it speaks another protocol version");
    if (gpu->stopping)
        return refuse(why_p, HVI_ERR_DRAINING, "hvdd is stopping");
    if (node_worker_find(gpu, &asker, said->uuid) != NULL)
        return refuse(why_p, HVI_ERR_REFUSED, "its job has another worker for its GPU already");
    if (node_gpu_count(gpu, &uid) >= (uint64_t)gpu->config->gpu_workers_per_user)
        return refuse(why_p, HVI_ERR_REFUSED,
                      "its user has as many workers for GPUs as it may (gpu-workers-per-user)");
    if (node_gpu_count(gpu, NULL) >= (uint64_t)gpu->config->gpu_workers)
        return refuse(why_p, HVI_ERR_REFUSED,
                      "hvdd has as many workers for GPUs as it may (gpu-workers)");
    return HVI_OK;
}

int node_gpu_return(struct node_gpu *gpu, const struct hvi_gpu_return *said, pid_t pid, int fd,
                    int pidfd, const char **why_p)
{
    const struct node_gpu_asker asker = {.job = said->job, .uid = said->uid};
    struct hvi_gpu_wanted wanted = {0};
    int status = check(gpu, said, why_p);

    if (status != HVI_OK)
        return status;
    memcpy(wanted.uuid, said->uuid, sizeof(wanted.uuid));
    struct node_worker *worker = node_worker_new(gpu, &asker, &wanted);
    if (worker == NULL)
        return refuse(why_p, HVI_ERR_DAEMON, "hvdd is out of memory");
    worker->instance = said->instance;
    worker->pid = pid;
    worker->link_fd = fd;
    worker->pidfd = pidfd;
    worker->had_gpu = true;
    worker->had_import = true; /* perhaps: the hvdd before knew */
    worker->row = said->row;
    if (!add_wants(worker, said) || !watch(worker)) {
        worker->link_fd = worker->pidfd = -1; /* they stay the caller's */
        node_worker_free(worker);
        return refuse(why_p, HVI_ERR_DAEMON, "hvdd is out of memory or descriptors");
    }
    node_worker_set_state(worker, NODE_WORKER_UP, "it has come back");
    HVI_LOG(HVI_LOG_INFO, "gpu", "worker-back", "a worker of an earlier hvdd has connected again",
            "gpu=%s job=%s uid=%u pid=%d", worker->name, worker->job, (unsigned)worker->uid,
            (int)worker->pid);
    return HVI_OK;
}

void node_gpu_engine_back(struct node_gpu *gpu, const struct node_gpu_asker *asker)
{
    struct node_worker *worker;
    struct node_want *want;

    DL_FOREACH(gpu->workers, worker)
    {
        if (worker->uid != asker->uid || strcmp(worker->job, asker->job) != 0)
            continue;
        DL_FOREACH(worker->wants, want)
        {
            if (want->engine != NULL || want->pid != asker->pid)
                continue;
            want->engine = asker->engine;
            want->generation = asker->generation;
        }
    }
}
