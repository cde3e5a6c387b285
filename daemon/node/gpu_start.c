/* SPDX-License-Identifier: Apache-2.0
 * A worker is started: as a child, or by the socket of its unit. */
#include "daemon/node/gpu_room.h"

#include "base/fate.h"
#include "base/log.h"
#include "base/status.h"
#include "daemon/node/unit.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <utlist.h>

static int on_late(sd_event_source *source, uint64_t usec, void *user)
{
    struct node_worker *worker = user;
    char why[HVI_WIRE_TRACE_NAME + 100];

    (void)source, (void)usec;
    node_worker_read(worker); /* what it has said already counts */
    if (worker->pidfd < 0) {
        node_worker_unmet(worker);
        return 0;
    }
    if (worker->state != NODE_WORKER_STARTING)
        return 0;
    snprintf(why, sizeof(why), "it has not started in gpu-start; last step: %s",
             worker->step[0] != '\0' ? worker->step : "none");
    node_worker_kill(worker, why);
    return 0;
}

static void fill_start(const struct node_worker *worker, const struct hvi_gpu_wanted *wanted,
                       struct hvi_gpu_start *start_p)
{
    const struct node_config *config = worker->gpu->config;

    *start_p = (struct hvi_gpu_start){.protocol_version = HVI_PROTOCOL_VERSION,
                                      .uid = worker->uid,
                                      .instance = worker->instance,
                                      .log_level = (int32_t)hvi_log_level(),
                                      .comm_ns = (uint64_t)config->gpu_comm_timeout,
                                      .import_bytes_max = (uint64_t)config->gpu_import_limit};
    snprintf(start_p->job, sizeof(start_p->job), "%s", worker->job);
    memcpy(start_p->uuid, worker->uuid, sizeof(start_p->uuid));
    snprintf(start_p->attach_path, sizeof(start_p->attach_path), "%s", worker->gpu->attach_path);
    snprintf(start_p->kernels, sizeof(start_p->kernels), "%s", config->gpu_kernels);
    snprintf(start_p->library_path, sizeof(start_p->library_path), "%s", config->gpu_library_path);
    start_p->settings = wanted->settings; /* only read */
    start_p->setting_count = wanted->setting_count;
}

/* Without memory for that the worker is of use for its job alone. */
static void remember(struct node_worker *worker, const struct hvi_gpu_start *start)
{
    const size_t count = start->setting_count;
    struct hvi_setting *settings = calloc(count + 1, sizeof(*settings));

    worker->start = settings == NULL ? NULL : malloc(sizeof(*start));
    if (worker->start == NULL) {
        free(settings);
        return;
    }
    *worker->start = *start;
    worker->start->settings = settings;
    for (size_t i = 0; i < count; i++)
        settings[i] = start->settings[i];
}

static int send_start(struct node_worker *worker, const struct hvi_gpu_wanted *wanted)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_START};

    fill_start(worker, wanted, &msg.start);
    remember(worker, &msg.start);
    return node_worker_send(worker, &msg, NULL, 0);
}

static bool has_setting(const struct hvi_gpu_start *start, const struct hvi_setting *setting)
{
    for (size_t i = 0; i < start->setting_count; i++) {
        if (strcmp(start->settings[i].name, setting->name) == 0)
            return strcmp(start->settings[i].value, setting->value) == 0;
    }
    return false;
}

/* In any order, which is that of a job's environment. */
static bool same_settings(const struct hvi_gpu_start *one, const struct hvi_gpu_start *other)
{
    bool same = one->setting_count == other->setting_count;

    for (size_t i = 0; same && i < one->setting_count; i++)
        same = has_setting(other, &one->settings[i]) && has_setting(one, &other->settings[i]);
    return same;
}

bool node_worker_suits(const struct node_worker *worker, const struct hvi_gpu_wanted *wanted)
{
    const struct hvi_gpu_start *told = worker->start;
    struct hvi_gpu_start start;

    if (told == NULL)
        return false;
    fill_start(worker, wanted, &start);
    return strcmp(told->kernels, start.kernels) == 0 &&
           strcmp(told->library_path, start.library_path) == 0 && told->comm_ns == start.comm_ns &&
           told->import_bytes_max == start.import_bytes_max && same_settings(told, &start);
}

bool node_worker_number(uint64_t *instance_p)
{
    return getrandom(instance_p, sizeof(*instance_p), 0) == (ssize_t)sizeof(*instance_p);
}

/* These return 0 or a negative errno. */
static int start_child(struct node_worker *worker)
{
    struct node_gpu *gpu = worker->gpu;
    int link[2], error;

    if (gpu->program_fd < 0)
        return -ENOENT;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, link) != 0)
        return -errno;
    worker->link_fd = link[0];
    error = gpu->calls->spawn(gpu->path, gpu->program_fd, "hvdd-gpu", link[1], &worker->pid);
    close(link[1]);
    if (error != 0)
        return -error;
    worker->pidfd = hvi_pidfd_open(worker->pid);
    error = worker->pidfd < 0 ? -errno : node_worker_watch_child(worker);
    if (error >= 0) {
        node_worker_log_started(worker);
        return 0;
    }
    kill(worker->pid, SIGKILL);
    waitpid(worker->pid, NULL, 0);
    return error;
}

static int start_process(struct node_worker *worker)
{
    const char *socket_path = worker->gpu->config->gpu_socket;

    if (socket_path[0] == '\0')
        return start_child(worker);
    worker->link_fd = node_unit_connect(socket_path);
    return worker->link_fd < 0 ? -errno : 0;
}

int node_worker_start(struct node_worker *worker, const struct hvi_gpu_wanted *wanted)
{
    struct node_gpu *gpu = worker->gpu;
    int r = node_worker_number(&worker->instance) ? 0 : -EIO;

    if (r == 0)
        r = node_worker_start_beats(gpu);
    if (r >= 0)
        r = start_process(worker);
    if (r < 0)
        return r;
    r = node_worker_watch_link(worker);
    if (r < 0 && worker->pidfd < 0)
        return r; /* its unit's program sees the link end */
    if (r < 0 || !node_worker_arm(worker, (uint64_t)gpu->config->gpu_start, on_late) ||
        send_start(worker, wanted) != HVI_OK)
        node_worker_kill(worker, "it could not be told what to do");
    return 0;
}

struct node_worker *node_worker_new(struct node_gpu *gpu, const struct node_gpu_asker *asker,
                                    const struct hvi_gpu_wanted *wanted)
{
    struct node_worker *worker = calloc(1, sizeof(*worker));

    if (worker == NULL)
        return NULL;
    worker->gpu = gpu;
    worker->pidfd = worker->link_fd = -1;
    worker->uid = asker->uid;
    snprintf(worker->job, sizeof(worker->job), "%s", asker->job);
    memcpy(worker->uuid, wanted->uuid, sizeof(worker->uuid));
    hvi_uuid_format(worker->uuid, worker->name);
    DL_APPEND(gpu->workers, worker);
    gpu->worker_count++;
    return worker;
}
