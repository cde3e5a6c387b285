/* SPDX-License-Identifier: Apache-2.0
 * Communicators: all say that they can, then all join.
 *
 *   wanted --its turn--> ids --all GpuCommIds, all nodes--> joining --all GpuAcks--> ready --a worker lost, job broken--> aborted
 *                         |                                    |                       |
 *                         +------error, late, a worker lost----+--another node fails---+--> failed
 *
 * The first worker is asked for an id, the others whether they can join. A worker cannot leave ncclCommInitRank, so a worker
 * without NCCL, or with too many communicators, must say so before any worker joins.
 *
 * One at a time, in the order in which they were asked for: a worker's launch thread joins, and two
 * workers that joined two communicators in different orders would wait for each other.
 *
 * A worker may have one of these very processes already, from an earlier generation: then it only gives it our number.
 *
 * Over several nodes, by MeshGpu. The first node is the one with rank 0:
 *
 *   each other node: its workers can --READY, version, NCCL_*--> first node: all can, versions agree --JOIN, id--> all others
 *   any node: it has failed ----------FAILED-----------> first node -----------------------FAILED-------> all others
 *
 * All nodes want the same communicators in the same order (exec/gpu.c), but not at the same time, so what is heard too early is
 * kept. Such a communicator lasts for this engine alone: when a job is broken, some nodes may have it and others not. So does one
 * for registered memory, as the next engine would not know what is registered with it. */
#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/device/room.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LETTERS_MAX 1024u

struct engine_device_comm {
    struct engine_device_comm *next;
    uint32_t number, count, waiting; /* waiting: GpuCommIds, or GpuAcks, that are due */
    bool joining, started;
    bool registered; /* for registered memory */
    bool fresh;      /* it lasts for this engine */
    unsigned char id[HVI_NCCL_ID_BYTES];
    uint64_t deadline_ns; /* other nodes are waited for until then; 0: they are not */
    uint32_t ranks, here;
    uint64_t *instances; /* [ranks] */
    uint32_t *nodes;     /* [ranks]; NULL: all workers are here */
    bool *can;           /* [ranks] with .nodes: its node has said so */
    uint32_t set;        /* of the op that wants it */
    struct {
        uint16_t worker, rank;
        bool asked, answered; /* whether it is to join, and has said how that went */
        char whose[ENGINE_DEVICE_WHOSE];
    } own[]; /* [count] */
};

/* What was heard of a communicator that is not wanted here yet. */
struct engine_device_letter {
    struct engine_device_letter *next;
    uint32_t from;
    struct hvi_mesh_gpu gpu; /* .instances is the letter's */
};

static void start_next(struct engine_device *device);

static void free_comm(struct engine_device_comm *comm)
{
    free(comm->instances);
    free(comm->nodes);
    free(comm->can);
    free(comm);
}

static void unlist(struct engine_device_comm **list, const struct engine_device_comm *comm)
{
    while (*list != comm)
        list = &(*list)->next;
    *list = comm->next;
}

static struct engine_device_worker *worker_at(struct engine_device *device,
                                              const struct engine_device_comm *comm, uint32_t index)
{
    return &device->workers[comm->own[index].worker];
}

static void drop(struct engine_device *device, const struct engine_device_comm *comm)
{
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_COMM_DROP};

    msg.comm_drop.comm = comm->number;
    msg.comm_drop.abort = true;
    for (uint32_t i = 0; i < comm->count; i++)
        engine_device_send(worker_at(device, comm, i), &msg, NULL, 0);
}

/* ---- other nodes ---- */

static struct hvi_mesh_gpu message_of(const struct engine_device_comm *comm,
                                      enum hvi_mesh_gpu_what what)
{
    return (struct hvi_mesh_gpu){
        .what = what, .instances = comm->instances, .instance_count = comm->ranks};
}

static bool is_first_of_node(const uint32_t *nodes, uint32_t rank)
{
    uint32_t before = 0;

    while (before < rank && nodes[before] != nodes[rank])
        before++;
    return before == rank;
}

static bool is_first_node(const struct engine_device_comm *comm)
{
    return comm->nodes[0] == comm->here;
}

/* To each node but this one and `except`, once. */
static void tell_all(struct engine_device *device, const struct engine_device_comm *comm,
                     const struct hvi_mesh_gpu *gpu, uint32_t except)
{
    for (uint32_t i = 0; i < comm->ranks; i++) {
        if (comm->nodes[i] != comm->here && comm->nodes[i] != except &&
            is_first_of_node(comm->nodes, i))
            device->calls->tell(device->user, comm->nodes[i], gpu);
    }
}

/* `from`: the node that it was heard of; UINT32_MAX: it is news of this one. */
static void tell_failure(struct engine_device *device, const struct engine_device_comm *comm,
                         uint32_t from, int status, const char *text)
{
    struct hvi_mesh_gpu gpu;

    if (!comm->nodes)
        return;
    gpu = message_of(comm, HVI_MESH_GPU_FAILED);
    gpu.status = status;
    snprintf(gpu.text, sizeof gpu.text, "%s", text);
    if (is_first_node(comm))
        tell_all(device, comm, &gpu, from);
    else if (from == UINT32_MAX)
        device->calls->tell(device->user, comm->nodes[0], &gpu);
}

/* ---- the end of one that is being made ---- */

static size_t list_one(char *text_p, size_t text_size, size_t length, const char *item)
{
    const char *before = length > 0 ? ", " : "";

    if (length + strlen(before) + strlen(item) + sizeof ", ..." > text_size)
        item = "...";
    if (length + strlen(before) + strlen(item) < text_size)
        length += (size_t)snprintf(text_p + length, text_size - length, "%s%s", before, item);
    return length;
}

/* "rank 1, ranks 2,3, other nodes": a worker answers when all have joined, so these may have come as well; but one of them
 * has not. "": all but `except` have. */
static void list_missing(const struct engine_device_comm *comm, uint32_t except, char *text_p,
                         size_t text_size)
{
    size_t length = 0;

    text_p[0] = '\0';
    for (uint32_t i = 0; i < comm->count; i++) {
        if (!comm->own[i].answered && i != except)
            length = list_one(text_p, text_size, length, comm->own[i].whose);
    }
    if (comm->ranks > comm->count)
        list_one(text_p, text_size, length, "other nodes");
}

static bool is_joining(const struct engine_device_comm *comm, uint32_t place)
{
    return comm->own[place].asked && !comm->own[place].answered;
}

/* Workers cannot leave a join, and may be lost within it. */
static void note_blame(struct engine_device *device, const struct engine_device_comm *comm)
{
    char missing[160];

    for (uint32_t i = 0; i < comm->count; i++) {
        struct engine_device_worker *worker = worker_at(device, comm, i);
        if (!is_joining(comm, i))
            continue;
        list_missing(comm, i, missing, sizeof missing);
        if (missing[0] != '\0')
            snprintf(
                worker->blame, sizeof worker->blame,
                "; process set %u waits for a communicator that the GPUs of %s have not joined",
                comm->set, missing);
    }
}

/* The others have failed to join, and these do not know it. */
static void note_cause(struct engine_device *device, const struct engine_device_comm *comm,
                       const char *text)
{
    for (uint32_t i = 0; i < comm->count; i++) {
        struct engine_device_worker *worker = worker_at(device, comm, i);
        if (is_joining(comm, i))
            snprintf(worker->blame, sizeof worker->blame,
                     "; the communicator of process set %u has failed: %s", comm->set, text);
    }
}

static bool is_late(int status)
{
    return status == HVI_ERR_TIMEOUT || status == HVI_ERR_WORKER_LOST;
}

static void finish_heard(struct engine_device *device, struct engine_device_comm *comm,
                         uint32_t from, int status, const char *text)
{
    uint32_t number = comm->number;

    HVI_LOG(status == HVI_OK ? HVI_LOG_DEBUG : HVI_LOG_WARN, "device",
            status == HVI_OK ? "comm-ready" : "comm-failed", text, "comm=%u workers=%u", number,
            comm->ranks);
    unlist(&device->comms, comm);
    if (status == HVI_OK) {
        comm->next = device->ready_comms;
        device->ready_comms = comm;
    } else {
        if (is_late(status))
            note_blame(device, comm);
        else
            note_cause(device, comm, text);
        drop(device, comm);
        tell_failure(device, comm, from, status, text);
        free_comm(comm);
    }
    device->calls->joined(device->user, number, status, text);
    start_next(device);
}

static void finish(struct engine_device *device, struct engine_device_comm *comm, int status,
                   const char *text)
{
    finish_heard(device, comm, UINT32_MAX, status, text);
}

/* ---- ids ---- */

/* The first version that is known of the workers here; 0: NCCL is not opened yet. */
static const struct engine_device_worker *versed(struct engine_device *device,
                                                 const struct engine_device_comm *comm)
{
    for (uint32_t i = 0; i < comm->count; i++) {
        if (worker_at(device, comm, i)->nccl_version != 0)
            return worker_at(device, comm, i);
    }
    return NULL;
}

/* Versions of NCCL that differ cannot talk to each other. */
static bool versions_agree(struct engine_device *device, const struct engine_device_comm *comm,
                           char *text_p, size_t text_size)
{
    const struct engine_device_worker *first = versed(device, comm);

    for (uint32_t i = 0; first && i < comm->count; i++) {
        const struct engine_device_worker *worker = worker_at(device, comm, i);
        if (worker->nccl_version == 0 || worker->nccl_version == first->nccl_version)
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
        struct engine_device_worker *worker = worker_at(device, comm, i);
        struct hvi_gpu_msg msg = {.kind = HVI_GPU_COMM_ID,
                                  .comm_id = {.check = comm->own[i].rank > 0,
                                              .instances = comm->instances,
                                              .instance_count = comm->ranks,
                                              .fresh = comm->fresh,
                                              .registered = comm->registered}};
        status = engine_device_expect(worker, ENGINE_DEVICE_COMM_ID, comm->number, worker->comm_ns,
                                      &msg.comm_id.request);
        if (status == HVI_OK)
            status = engine_device_send(worker, &msg, NULL, 0);
        comm->waiting += status == HVI_OK;
    }
    return status;
}

static void hear_letters(struct engine_device *device, struct engine_device_comm *comm);

/* What the slowest worker here gives a join. */
static uint64_t patience(struct engine_device *device, const struct engine_device_comm *comm)
{
    uint64_t most = 0;

    for (uint32_t i = 0; i < comm->count; i++) {
        const struct engine_device_worker *worker = worker_at(device, comm, i);
        most = worker->comm_ns > most ? worker->comm_ns : most;
    }
    return most;
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
    if (comm->nodes) {
        comm->deadline_ns = hvi_clock_ns() + patience(device, comm);
        engine_device_watch(device);
    }
    int status = ask_ids(device, comm);
    if (status != HVI_OK)
        finish(device, comm, status, "a worker cannot be asked for a communicator's id");
    else if (comm->nodes)
        hear_letters(device, comm);
}

/* Not before the event loop comes round: `joined` is no answer inside of the question. */
static int on_start(sd_event_source *source, void *user)
{
    (void)source;
    start_next(user);
    return 0;
}

/* ---- wanted ---- */

static bool take_ranks(struct engine_device *device, struct engine_device_comm *comm,
                       const struct engine_device_join *join)
{
    comm->instances = calloc(join->ranks, sizeof *comm->instances);
    if (!comm->instances)
        return false;
    for (uint32_t i = 0; i < join->count; i++) {
        comm->own[i].worker = join->workers[i];
        comm->own[i].rank = join->rank[i];
        snprintf(comm->own[i].whose, sizeof comm->own[i].whose, "%s", join->whose[i]);
        comm->instances[join->rank[i]] = device->workers[join->workers[i]].instance;
    }
    if (!join->instances)
        return true;
    comm->nodes = calloc(join->ranks, sizeof *comm->nodes);
    comm->can = calloc(join->ranks, sizeof *comm->can);
    if (!comm->nodes || !comm->can)
        return false;
    memcpy(comm->instances, join->instances, join->ranks * sizeof *comm->instances);
    memcpy(comm->nodes, join->nodes, join->ranks * sizeof *comm->nodes);
    return true;
}

static struct engine_device_comm *comm_new(struct engine_device *device,
                                           const struct engine_device_join *join)
{
    struct engine_device_comm *comm = calloc(1, sizeof *comm + join->count * sizeof comm->own[0]);

    if (!comm)
        return NULL;
    comm->number = join->comm;
    comm->count = join->count;
    comm->ranks = join->ranks;
    comm->here = join->here;
    comm->registered = join->registered;
    comm->fresh = join->nodes != NULL || join->registered;
    comm->set = join->set;
    if (take_ranks(device, comm, join))
        return comm;
    free_comm(comm);
    return NULL;
}

int engine_device_join(struct engine_device *device, const struct engine_device_join *join)
{
    struct engine_device_comm *comm = comm_new(device, join);
    struct engine_device_comm **link = &device->comms;

    if (!comm)
        return HVI_ERR_NO_MEMORY;
    while (*link)
        link = &(*link)->next;
    *link = comm;
    if (device->comms != comm)
        return HVI_OK;
    sd_event_source *once = NULL;
    if (sd_event_add_defer(device->event, &once, on_start, device) < 0 ||
        sd_event_source_set_floating(once, 1) < 0) {
        sd_event_source_unref(once);
        unlist(&device->comms, comm);
        free_comm(comm);
        return HVI_ERR_NO_MEMORY;
    }
    sd_event_source_unref(once);
    return HVI_OK;
}

/* ---- joining ---- */

static int send_join(struct engine_device *device, const struct engine_device_comm *comm,
                     uint32_t index)
{
    struct engine_device_worker *worker = worker_at(device, comm, index);
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_COMM_JOIN};

    msg.comm_join.comm = comm->number;
    memcpy(msg.comm_join.id, comm->id, HVI_NCCL_ID_BYTES);
    msg.comm_join.rank = comm->own[index].rank;
    msg.comm_join.instances = comm->instances;
    msg.comm_join.instance_count = comm->ranks;
    msg.comm_join.fresh = comm->fresh;
    int status = engine_device_expect(worker, ENGINE_DEVICE_COMM_JOIN, comm->number,
                                      worker->comm_ns, &msg.comm_join.request);
    return status == HVI_OK ? engine_device_send(worker, &msg, NULL, 0) : status;
}

static void send_joins(struct engine_device *device, struct engine_device_comm *comm)
{
    int status = HVI_OK;

    comm->joining = true;
    comm->deadline_ns = 0;
    for (uint32_t i = 0; i < comm->count && status == HVI_OK; i++) {
        status = send_join(device, comm, i);
        comm->own[i].asked = status == HVI_OK;
        comm->waiting += status == HVI_OK;
    }
    if (status != HVI_OK)
        finish(device, comm, status, "a worker cannot be told to join a communicator");
}

/* The first node: whether all workers of all nodes can join. If so, they do. */
static void look_at_all(struct engine_device *device, struct engine_device_comm *comm)
{
    struct hvi_mesh_gpu gpu = message_of(comm, HVI_MESH_GPU_JOIN);

    for (uint32_t i = 0; i < comm->ranks; i++) {
        if (!comm->can[i])
            return;
    }
    memcpy(gpu.id, comm->id, sizeof gpu.id);
    tell_all(device, comm, &gpu, UINT32_MAX);
    send_joins(device, comm);
}

static bool has_node(const struct engine_device_comm *comm, uint32_t node)
{
    uint32_t rank = 0;

    while (rank < comm->ranks && comm->nodes[rank] != node)
        rank++;
    return rank < comm->ranks;
}

/* All workers of a node can join. */
static void note_node(struct engine_device_comm *comm, uint32_t node)
{
    for (uint32_t i = 0; i < comm->ranks; i++)
        comm->can[i] = comm->can[i] || comm->nodes[i] == node;
}

static void workers_can(struct engine_device *device, struct engine_device_comm *comm)
{
    const struct engine_device_worker *first = versed(device, comm);

    if (!comm->nodes) {
        send_joins(device, comm);
        return;
    }
    note_node(comm, comm->here);
    if (is_first_node(comm)) {
        look_at_all(device, comm);
        return;
    }
    struct hvi_mesh_gpu gpu = message_of(comm, HVI_MESH_GPU_READY);
    gpu.nccl_version = first ? first->nccl_version : 0;
    device->calls->tell(device->user, comm->nodes[0], &gpu);
}

/* It can join; the first worker of all has made an id, which the others get. */
static void take_id(struct engine_device *device, struct engine_device_comm *comm,
                    const struct engine_device_worker *worker,
                    const unsigned char id[HVI_NCCL_ID_BYTES])
{
    static const unsigned char none[HVI_NCCL_ID_BYTES];
    const bool makes = worker == worker_at(device, comm, 0) && comm->own[0].rank == 0;
    char text[HVI_WIRE_GPU_UUID + 100];

    if (makes && memcmp(id, none, sizeof none) == 0) {
        snprintf(text, sizeof text, "%s has made no id for a communicator of %u GPUs",
                 worker->uuid_text, comm->ranks);
        finish(device, comm, HVI_ERR_UNSUPPORTED, text);
        return;
    }
    if (makes)
        memcpy(comm->id, id, sizeof comm->id);
    if (--comm->waiting == 0)
        workers_can(device, comm);
}

/* A deadline of ours says nothing of where the worker is. */
static void note_answer(struct engine_device_worker *worker, struct engine_device_comm *comm,
                        int status)
{
    if (status == HVI_ERR_TIMEOUT)
        return;
    worker->blame[0] = '\0'; /* it joins one after the other */
    for (uint32_t i = 0; comm && i < comm->count; i++)
        comm->own[i].answered = comm->own[i].answered || comm->own[i].worker == worker->number;
}

void engine_device_comm_answered(struct engine_device_worker *worker, enum engine_device_wait wait,
                                 uint32_t number, const struct engine_device_answer *answer)
{
    struct engine_device *device = worker->device;
    struct engine_device_comm *comm = device->comms;
    char text[HVI_TEXT_MAX + 1];

    if (comm && comm->number != number)
        comm = NULL; /* it has failed already */
    if (wait == ENGINE_DEVICE_COMM_JOIN)
        note_answer(worker, comm, answer->status);
    if (!comm)
        return;
    if (answer->status != HVI_OK) {
        snprintf(text, sizeof text, "%s could not join a communicator of %u GPUs: %.800s",
                 worker->uuid_text, comm->ranks, answer->text);
        finish(device, comm, answer->status, text);
    } else if (wait == ENGINE_DEVICE_COMM_ID && !comm->joining) {
        take_id(device, comm, worker, answer->id);
    } else if (wait == ENGINE_DEVICE_COMM_JOIN && --comm->waiting == 0) {
        finish(device, comm, HVI_OK, "");
    }
}

/* ---- what other nodes say ---- */

static bool is_meant(const struct engine_device_comm *comm, const struct hvi_mesh_gpu *gpu)
{
    return comm->nodes && comm->ranks == gpu->instance_count &&
           memcmp(comm->instances, gpu->instances, comm->ranks * sizeof *comm->instances) == 0;
}

static struct engine_device_comm *find(struct engine_device_comm *comm,
                                       const struct hvi_mesh_gpu *gpu)
{
    while (comm && !is_meant(comm, gpu))
        comm = comm->next;
    return comm;
}

static void hear_ready(struct engine_device *device, struct engine_device_comm *comm, uint32_t from,
                       uint32_t version)
{
    const struct engine_device_worker *first = versed(device, comm);
    char here[ENGINE_DEVICE_NODE], there[ENGINE_DEVICE_NODE], text[3 * ENGINE_DEVICE_NODE];

    if (!first || version == 0 || version == first->nccl_version) {
        note_node(comm, from);
        look_at_all(device, comm);
        return;
    }
    device->calls->name(device->user, comm->here, here);
    device->calls->name(device->user, from, there);
    snprintf(text, sizeof text,
             "the GPUs of %s have NCCL %u, and those of %s have NCCL %u: install one version on "
             "both",
             here, first->nccl_version, there, version);
    finish(device, comm, HVI_ERR_UNSUPPORTED, text);
}

/* Of another node: what it says of itself, but never that the job is over, which it says in another way. */
static int status_of(const struct hvi_mesh_gpu *gpu)
{
    const bool is_own = hvi_status_is_of_op(gpu->status) && gpu->status != HVI_ERR_CANCELLED;

    return is_own ? gpu->status : HVI_ERR_NODE_LOST;
}

/* Only a node that has workers of a communicator ends it for others. */
static bool is_of_others(const struct engine_device_comm *comm, uint32_t from)
{
    if (has_node(comm, from))
        return false;
    HVI_LOG(HVI_LOG_ERROR, "device", "bad-node", "a node speaks of a communicator of others",
            "node=%u comm=%u", from, comm->number);
    return true;
}

/* Of one that has its turn. What does not belong to its state was overtaken by a failure, or is a lie that harms its job alone. */
static void hear(struct engine_device *device, struct engine_device_comm *comm, uint32_t from,
                 const struct hvi_mesh_gpu *gpu)
{
    const bool is_first = is_first_node(comm);

    if (is_of_others(comm, from))
        return;
    if (gpu->what == HVI_MESH_GPU_FAILED) {
        finish_heard(device, comm, from, status_of(gpu), gpu->text);
    } else if (gpu->what == HVI_MESH_GPU_READY && is_first && !comm->joining) {
        hear_ready(device, comm, from, gpu->nccl_version);
    } else if (gpu->what == HVI_MESH_GPU_JOIN && from == comm->nodes[0] && !comm->joining &&
               comm->waiting == 0) {
        memcpy(comm->id, gpu->id, sizeof comm->id);
        send_joins(device, comm);
    }
}

static void free_letter(struct engine_device_letter *letter)
{
    free(letter->gpu.instances);
    free(letter);
}

/* Those that came before its turn. The communicator may be over before the last of them, and the next one, which has
 * heard its own by then, may lie where it was. */
static void hear_letters(struct engine_device *device, struct engine_device_comm *comm)
{
    const uint32_t number = comm->number;
    struct engine_device_letter **link = &device->letters;

    while (*link) {
        struct engine_device_letter *letter = *link;
        if (!is_meant(comm, &letter->gpu)) {
            link = &letter->next;
            continue;
        }
        *link = letter->next;
        device->letter_count--;
        hear(device, comm, letter->from, &letter->gpu);
        free_letter(letter);
        if (!device->comms || device->comms->number != number)
            return;
    }
}

static void keep(struct engine_device *device, uint32_t from, const struct hvi_mesh_gpu *gpu)
{
    struct engine_device_letter *letter = NULL, **link = &device->letters;
    uint64_t *instances = NULL;

    if (device->letter_count < LETTERS_MAX) {
        letter = malloc(sizeof *letter);
        instances = malloc(gpu->instance_count * sizeof *instances);
    }
    if (!letter || !instances) { /* then the communicator is late */
        HVI_LOG(HVI_LOG_WARN, "device", "comm-unheard", "too much is said of communicators",
                "node=%u letters=%u", from, device->letter_count);
        free(letter);
        free(instances);
        return;
    }
    *letter = (struct engine_device_letter){.from = from, .gpu = *gpu};
    memcpy(instances, gpu->instances, gpu->instance_count * sizeof *instances);
    letter->gpu.instances = instances;
    letter->gpu.settings = NULL;
    letter->gpu.setting_count = 0;
    while (*link)
        link = &(*link)->next;
    *link = letter;
    device->letter_count++;
}

/* A node has left it: what is enqueued here waits for that node. */
static void fail_ready(struct engine_device *device, struct engine_device_comm *comm, uint32_t from,
                       int status, const char *text)
{
    const uint32_t number = comm->number;

    unlist(&device->ready_comms, comm);
    drop(device, comm);
    tell_failure(device, comm, from, status, text);
    free_comm(comm);
    device->calls->joined(device->user, number, status, text);
}

void engine_device_heard(struct engine_device *device, uint32_t from,
                         const struct hvi_mesh_gpu *gpu)
{
    struct engine_device_comm *comm = find(device->comms, gpu);
    struct engine_device_comm *ready = find(device->ready_comms, gpu);

    if (gpu->instance_count == 0)
        return;
    if (comm && comm->started)
        hear(device, comm, from, gpu);
    else if (ready && gpu->what == HVI_MESH_GPU_FAILED && !is_of_others(ready, from))
        fail_ready(device, ready, from, status_of(gpu), gpu->text);
    else if (!ready)
        keep(device, from, gpu);
}

/* ---- what ends them ---- */

void engine_device_leave(struct engine_device *device, uint32_t number, int status,
                         const char *text)
{
    struct engine_device_comm *comm = device->comms, *ready = device->ready_comms;

    while (comm && comm->number != number)
        comm = comm->next;
    while (ready && ready->number != number)
        ready = ready->next;
    if (comm)
        finish(device, comm, status, text);
    else if (ready)
        fail_ready(device, ready, UINT32_MAX, status, text);
}

void engine_device_leave_nodes(struct engine_device *device, const char *text)
{
    struct engine_device_comm *comm, **link = &device->ready_comms;

    while ((comm = *link)) {
        if (!comm->nodes) {
            link = &comm->next;
            continue;
        }
        *link = comm->next;
        drop(device, comm);
        free_comm(comm);
    }
    comm = device->comms;
    while (comm && !comm->nodes)
        comm = comm->next;
    if (!comm)
        return;
    finish(device, comm, HVI_ERR_CANCELLED, text);
    engine_device_leave_nodes(device, text);
}

void engine_device_comm_delay(struct engine_device *device, uint64_t ns)
{
    if (device->comms && device->comms->deadline_ns != 0)
        device->comms->deadline_ns += ns;
}

bool engine_device_comm_look(struct engine_device *device, uint64_t now_ns)
{
    struct engine_device_comm *comm = device->comms;
    char node[ENGINE_DEVICE_NODE], text[256];
    uint32_t missing = 0;

    if (!comm || comm->deadline_ns == 0)
        return false;
    if (now_ns < comm->deadline_ns)
        return true;
    while (is_first_node(comm) && missing + 1 < comm->ranks && comm->can[missing])
        missing++;
    device->calls->name(device->user, comm->nodes[missing], node);
    snprintf(text, sizeof text, "%s has not answered in time: a communicator of %u GPUs", node,
             comm->ranks);
    finish(device, comm, HVI_ERR_TIMEOUT, text);
    return false;
}

static bool has(const struct engine_device_comm *comm, const struct engine_device_worker *worker)
{
    for (uint32_t i = 0; i < comm->count; i++) {
        if (comm->own[i].worker == worker->number)
            return true;
    }
    return false;
}

const char *engine_device_comm_blame(struct engine_device_worker *worker)
{
    const struct engine_device_comm *comm = worker->device->comms;

    if (comm && has(comm, worker))
        note_blame(worker->device, comm);
    return worker->blame;
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
        free_comm(comm);
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
        free_comm(comm);
    }
}

void engine_device_comm_close(struct engine_device *device)
{
    free_all(&device->comms);
    free_all(&device->ready_comms);
    while (device->letters) {
        struct engine_device_letter *letter = device->letters;
        device->letters = letter->next;
        free_letter(letter);
    }
}
