/* SPDX-License-Identifier: Apache-2.0
 * Communicators: all say that they have NCCL, then all join.
 *
 *   wanted --its turn--> ids --all GpuCommIds--> joining --all GpuAcks--> ready --a worker lost--> aborted
 *                         |                         |
 *                         +--error, late, a worker lost--> failed
 *
 * The first worker is asked for an id. The others are asked whether they have NCCL. A worker cannot leave ncclCommInitRank, so a
 * worker without NCCL must say so before any worker joins.
 *
 * One at a time, in the order in which they were asked for: a worker's launch thread joins, and two
 * workers that joined two communicators in different orders would wait for each other.
 *
 * A worker may have one of these very processes already, from an earlier generation: then it only gives it our number. */
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/device/room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct engine_device_comm {
    struct engine_device_comm *next;
    uint32_t number, count, waiting; /* waiting: GpuCommIds, or GpuAcks, that are due */
    bool joining, started;
    unsigned char id[HVI_NCCL_ID_BYTES];
    uint16_t workers[];
};

static void unlist(struct engine_device *device, const struct engine_device_comm *comm)
{
    struct engine_device_comm **link = &device->comms;

    while (*link != comm)
        link = &(*link)->next;
    *link = comm->next;
}

static void drop(struct engine_device *device, const struct engine_device_comm *comm)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_COMM_DROP};

    msg.comm_drop.comm = comm->number;
    msg.comm_drop.abort = true;
    for (uint32_t i = 0; i < comm->count; i++)
        engine_device_send(&device->workers[comm->workers[i]], &msg, NULL, 0);
}

static void start_next(struct engine_device *device);

static void finish(struct engine_device *device, struct engine_device_comm *comm, int status,
                   const char *text)
{
    uint32_t number = comm->number;

    HVI_LOG(status == HVI_OK ? HVI_LOG_DEBUG : HVI_LOG_WARN, "device",
            status == HVI_OK ? "comm-ready" : "comm-failed", text, "comm=%u workers=%u", number,
            comm->count);
    unlist(device, comm);
    if (status == HVI_OK) {
        comm->next = device->ready_comms;
        device->ready_comms = comm;
    } else {
        drop(device, comm);
        free(comm);
    }
    device->calls->joined(device->user, number, status, text);
    start_next(device);
}

/* Versions of NCCL that differ cannot talk to each other. 0: not opened yet. */
static bool versions_agree(const struct engine_device *device,
                           const struct engine_device_comm *comm, char *text_p, size_t text_size)
{
    const struct engine_device_worker *first = NULL;

    for (uint32_t i = 0; i < comm->count; i++) {
        const struct engine_device_worker *worker = &device->workers[comm->workers[i]];
        if (worker->nccl_version == 0)
            continue;
        if (!first)
            first = worker;
        if (worker->nccl_version == first->nccl_version)
            continue;
        snprintf(text_p, text_size, "%s has NCCL %u, and %s has NCCL %u", first->uuid_text,
                 first->nccl_version, worker->uuid_text, worker->nccl_version);
        return false;
    }
    return true;
}

static int ask_ids(struct engine_device *device, struct engine_device_comm *comm)
{
    int status = HVI_OK;

    for (uint32_t i = 0; i < comm->count && status == HVI_OK; i++) {
        struct engine_device_worker *worker = &device->workers[comm->workers[i]];
        struct hvi_gpu_msg msg = {.kind = HVI_GPU_COMM_ID, .comm_id.check = i > 0};
        status = engine_device_expect(worker, ENGINE_DEVICE_COMM_ID, comm->number, worker->comm_ns,
                                      &msg.comm_id.request);
        if (status == HVI_OK)
            status = engine_device_send(worker, &msg, NULL, 0);
        comm->waiting += status == HVI_OK;
    }
    return status;
}

static void start_next(struct engine_device *device)
{
    struct engine_device_comm *comm = device->comms;
    char text[256];

    if (!comm || comm->started)
        return;
    comm->started = true;
    if (!versions_agree(device, comm, text, sizeof text)) {
        finish(device, comm, HVI_ERR_UNSUPPORTED, text);
        return;
    }
    int status = ask_ids(device, comm);
    if (status != HVI_OK)
        finish(device, comm, status, "a worker cannot be asked for a communicator's id");
}

/* Not before the event loop comes round: `joined` is no answer inside of the question. */
static int on_start(sd_event_source *source, void *user)
{
    (void)source;
    start_next(user);
    return 0;
}

int engine_device_join(struct engine_device *device, uint32_t number, uint32_t count,
                       const uint16_t *workers)
{
    struct engine_device_comm *comm = calloc(1, sizeof *comm + count * sizeof *workers);
    struct engine_device_comm **link = &device->comms;

    if (!comm)
        return HVI_ERR_NO_MEMORY;
    comm->number = number;
    comm->count = count;
    memcpy(comm->workers, workers, count * sizeof *workers);
    while (*link)
        link = &(*link)->next;
    *link = comm;
    if (device->comms != comm)
        return HVI_OK;
    sd_event_source *once = NULL;
    if (sd_event_add_defer(device->event, &once, on_start, device) < 0 ||
        sd_event_source_set_floating(once, 1) < 0) {
        sd_event_source_unref(once);
        unlist(device, comm);
        free(comm);
        return HVI_ERR_NO_MEMORY;
    }
    sd_event_source_unref(once);
    return HVI_OK;
}

static int send_join(struct engine_device *device, const struct engine_device_comm *comm,
                     uint32_t rank, uint64_t *instances)
{
    struct engine_device_worker *worker = &device->workers[comm->workers[rank]];
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_COMM_JOIN};

    msg.comm_join.comm = comm->number;
    memcpy(msg.comm_join.id, comm->id, HVI_NCCL_ID_BYTES);
    msg.comm_join.rank = rank;
    msg.comm_join.instances = instances;
    msg.comm_join.instance_count = comm->count;
    int status = engine_device_expect(worker, ENGINE_DEVICE_COMM_JOIN, comm->number,
                                      worker->comm_ns, &msg.comm_join.request);
    return status == HVI_OK ? engine_device_send(worker, &msg, NULL, 0) : status;
}

static void send_joins(struct engine_device *device, struct engine_device_comm *comm)
{
    uint64_t instances[ENGINE_DEVICE_WORKERS];
    int status = HVI_OK;

    for (uint32_t i = 0; i < comm->count; i++)
        instances[i] = device->workers[comm->workers[i]].instance;
    comm->joining = true;
    for (uint32_t i = 0; i < comm->count && status == HVI_OK; i++) {
        status = send_join(device, comm, i, instances);
        comm->waiting += status == HVI_OK;
    }
    if (status != HVI_OK)
        finish(device, comm, status, "a worker cannot be told to join a communicator");
}

void engine_device_comm_answered(struct engine_device_worker *worker, enum engine_device_wait wait,
                                 uint32_t number, const struct engine_device_answer *answer)
{
    struct engine_device *device = worker->device;
    struct engine_device_comm *comm = device->comms;
    char text[HVI_TEXT_MAX + 1];

    if (!comm || comm->number != number) /* it has failed already */
        return;
    if (answer->status != HVI_OK) {
        snprintf(text, sizeof text, "%s could not join a communicator of %u GPUs: %.800s",
                 worker->uuid_text, comm->count, answer->text);
        finish(device, comm, answer->status, text);
    } else if (wait == ENGINE_DEVICE_COMM_ID && !comm->joining) {
        if (worker->number == comm->workers[0])
            memcpy(comm->id, answer->id, sizeof comm->id);
        if (--comm->waiting == 0)
            send_joins(device, comm);
    } else if (wait == ENGINE_DEVICE_COMM_JOIN && --comm->waiting == 0) {
        finish(device, comm, HVI_OK, "");
    }
}

static bool has(const struct engine_device_comm *comm, const struct engine_device_worker *worker)
{
    for (uint32_t i = 0; i < comm->count; i++) {
        if (comm->workers[i] == worker->number)
            return true;
    }
    return false;
}

/* What is enqueued in these waits for the worker that is lost. */
static void abort_ready(struct engine_device *device, const struct engine_device_worker *worker)
{
    struct engine_device_comm **link = &device->ready_comms;

    while (*link) {
        struct engine_device_comm *comm = *link;
        if (!has(comm, worker)) {
            link = &comm->next;
            continue;
        }
        *link = comm->next;
        drop(device, comm);
        free(comm);
    }
}

void engine_device_comm_lost(struct engine_device_worker *worker, const char *text)
{
    struct engine_device *device = worker->device;
    struct engine_device_comm *comm = device->comms;

    abort_ready(device, worker);
    while (comm && !has(comm, worker))
        comm = comm->next;
    if (!comm)
        return;
    finish(device, comm, HVI_ERR_WORKER_LOST, text);
    engine_device_comm_lost(worker, text);
}

static void free_all(struct engine_device_comm **list)
{
    while (*list) {
        struct engine_device_comm *comm = *list;
        *list = comm->next;
        free(comm);
    }
}

void engine_device_comm_close(struct engine_device *device)
{
    free_all(&device->comms);
    free_all(&device->ready_comms);
}
