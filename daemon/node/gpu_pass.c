/* SPDX-License-Identifier: Apache-2.0
 * A worker that no engine has had for a second passes to the next job of its user on its GPU: that job finds a context, kernels
 * and staging memory, and waits for no start.
 *
 *   idle ── GpuJob ──► passing: it drops what it has of the job before ── GpuJob back ──► up, or idle without an engine
 *                         └── 2 s, silent, it dies ──► ending; its engines get a new worker
 *
 * A worker passes where a new one would be told the same: GPU, user, NCCL's variables, options. One of an earlier hvdd does not,
 * as this one does not know what it was told.
 *
 * Communicators. Workers know each other by their numbers, and a communicator is of numbers. What two workers of a job have of
 * each other is alike, because each is told which of the job's workers live (GpuEngine). So all workers of a job pass together to
 * one that has none, and keep their numbers: communicators stay. Where that cannot be, a worker passes alone and gets another
 * number, as if it were a new one: nothing names its communicators any more, and it aborts them with its next engine. */
#include "daemon/node/gpu_room.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

#include <utlist.h>

#define PASS_NS (2 * HVI_NS_SEC) /* a new worker starts in less, as a rule */

/* A job whose worker nobody has had for so long is over. Between two generations its ranks meet again in milliseconds, and would
 * find neither worker nor communicators; a next job that comes sooner waits for a new worker. */
#define OVER_NS HVI_NS_SEC

static int on_late(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_worker *worker = user;

    (void)source, (void)usec;
    node_worker_read(worker); /* what it has said already counts */
    if (worker->state == NODE_WORKER_PASSING)
        node_worker_kill(worker, "it still has something of the job before after 2 s");
    return 0;
}

static bool may_pass(const struct node_worker *worker, const struct hvi_gpu_wanted *wanted)
{
    return worker->state == NODE_WORKER_IDLE && hvi_clock_ns() - worker->idle_ns >= OVER_NS &&
           worker->io != NULL && worker->silent_ns == 0 && worker->gpu->config->gpu_idle > 0 &&
           node_worker_suits(worker, wanted);
}

static bool is_of(const struct node_worker *worker, uid_t uid, const char *job)
{
    return worker->state < NODE_WORKER_ENDING && worker->uid == uid &&
           strcmp(worker->job, job) == 0;
}

/* Of another job, on the wanted GPU. */
static struct node_worker *find(const struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                const struct hvi_gpu_wanted *wanted)
{
    struct node_worker *worker;

    DL_FOREACH(gpu->workers, worker)
    {
        if (worker->uid == asker->uid &&
            memcmp(worker->uuid, wanted->uuid, sizeof(worker->uuid)) == 0 &&
            may_pass(worker, wanted))
            return worker;
    }
    return NULL;
}

/* Whether all workers of that one's job may pass, to a job that has none. */
static bool pass_together(const struct node_worker *one, const struct node_gpu_asker *asker,
                          const struct hvi_gpu_wanted *wanted)
{
    const struct node_worker *each;

    DL_FOREACH(one->gpu->workers, each)
    {
        if (is_of(each, asker->uid, asker->job) ||
            (is_of(each, one->uid, one->job) && !may_pass(each, wanted)))
            return false;
    }
    return true;
}

/* It may have failed afterwards. */
static void begin(struct node_worker *worker, const char *job, uint64_t instance)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_JOB, .job = {.instance = instance}};

    HVI_LOG(HVI_LOG_INFO, "gpu", "worker-passed", "an idle worker passes to its user's next job",
            "gpu=%s job=%s before=%s uid=%u pid=%d", worker->name, job, worker->job,
            (unsigned)worker->uid, (int)worker->pid);
    node_worker_set_state(worker, NODE_WORKER_PASSING, "its user's next job wants it");
    snprintf(worker->job, sizeof(worker->job), "%s", job);
    worker->before = worker->instance;
    worker->instance = instance;
    snprintf(msg.job.job, sizeof(msg.job.job), "%s", job);
    if (!node_worker_arm(worker, PASS_NS, on_late) ||
        node_worker_send(worker, &msg, NULL, 0) != HVI_OK)
        node_worker_kill(worker, "it cannot be told of its user's next job");
}

struct node_worker *node_pass_begin(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                    const struct hvi_gpu_wanted *wanted)
{
    struct node_worker *one = find(gpu, asker, wanted), *each, *after;
    char before[HVI_JOB_ID_MAX + 1];
    uint64_t instance;

    if (one == NULL)
        return NULL;
    if (pass_together(one, asker, wanted)) {
        snprintf(before, sizeof(before), "%s", one->job);
        DL_FOREACH_SAFE(gpu->workers, each, after)
        {
            if (is_of(each, asker->uid, before))
                begin(each, asker->job, each->instance);
        }
    } else if (node_worker_number(&instance)) {
        begin(one, asker->job, instance);
    }
    return one->state == NODE_WORKER_PASSING ? one : NULL;
}

bool node_pass_end(struct node_worker *worker, const struct hvi_gpu_job *said)
{
    if (worker->state == NODE_WORKER_ENDING)
        return true;
    if (worker->state != NODE_WORKER_PASSING || said->instance != worker->instance)
        return false;
    node_fences_without(worker->gpu, worker->before);
    worker->timer = sd_event_source_disable_unref(worker->timer);
    if (worker->wants == NULL) {
        node_want_go_idle(worker, "no engine of its next job wants it yet");
        return true;
    }
    node_worker_set_state(worker, NODE_WORKER_UP, "nothing of the job before is left");
    node_want_link_all(worker);
    node_want_check_idle(worker);
    return true;
}

void node_pass_fail(struct node_worker *worker)
{
    const struct hvi_gpu_start *start = worker->start;

    while (worker->wants != NULL) {
        const struct node_want want = *worker->wants;
        const struct node_gpu_asker asker = {.engine = want.engine,
                                             .job = worker->job,
                                             .uid = worker->uid,
                                             .generation = want.generation,
                                             .pid = want.pid};
        struct hvi_gpu_wanted wanted = {.request = want.request,
                                        .settings = start->settings,
                                        .setting_count = start->setting_count};
        memcpy(wanted.uuid, worker->uuid, sizeof(wanted.uuid));
        node_want_drop(worker, worker->wants);
        node_gpu_want_new(worker->gpu, &asker, &wanted);
    }
}
