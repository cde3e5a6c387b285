/* SPDX-License-Identifier: Apache-2.0
 * Communicators.
 *
 * An error that NCCL tells of is another worker's end as a rule. The engine knows of that as well and drops the communicator,
 * and this worker stays. So an error has a second; then it is this worker's end. */
#include "daemon/gpu/comm.h"

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <utlist.h>

#define ABORT_NS (2 * HVI_NS_SEC)
#define ERROR_NS HVI_NS_SEC
/* Free, there is memory enough for a communicator; for the first one, which brings NCCL's code with it (P9: 586 MiB on an H100). */
#define COMM_BYTES  (UINT64_C(256) << 20)
#define FIRST_BYTES (UINT64_C(640) << 20)

_Static_assert(sizeof(struct gpu_nccl_id) == HVI_NCCL_ID_BYTES, "an id is passed on as bytes");

static void describe(const struct gpu_comms *comms, gpu_nccl_comm handle, int result, char *text_p,
                     size_t text_size)
{
    const char *more = comms->nccl.last_error == NULL ? NULL : comms->nccl.last_error(handle);

    snprintf(text_p, text_size, "%s%s%.120s", comms->nccl.error(result),
             more != NULL && more[0] != '\0' ? ": " : "", more != NULL ? more : "");
}

static bool is_good(struct gpu_comms *comms, const char *name, gpu_nccl_comm handle, int result)
{
    char text[300];

    gpu_calls_end(comms->calls);
    if (result == GPU_NCCL_OK)
        return true;
    describe(comms, handle, result, text, sizeof(text));
    gpu_calls_fail(comms->calls, name, text);
    return false;
}

/* ---- the library ---- */

static int open_library(struct gpu_comms *comms, char *text_p, size_t text_size)
{
    if (comms->nccl.library != NULL)
        return HVI_OK;
    if (comms->why[0] == '\0') {
        gpu_calls_begin(comms->calls, "dlopen of libnccl.so.2", comms->join_ns);
        int status = gpu_nccl_open(comms->path, &comms->nccl, comms->why, sizeof(comms->why));
        gpu_calls_end(comms->calls);
        if (status == HVI_OK) {
            atomic_store(&comms->version, comms->nccl.number);
            return HVI_OK;
        }
    }
    snprintf(text_p, text_size, "%s", comms->why);
    return HVI_ERR_UNSUPPORTED;
}

void gpu_comms_open(struct gpu_comms *comms)
{
    char text[sizeof(comms->why)];

    (void)open_library(comms, text, sizeof(text)); /* .why stays */
}

/* ---- names ---- */

static struct gpu_comm_name *find_name(const struct gpu_comms *comms, const void *owner,
                                       uint32_t number)
{
    struct gpu_comm_name *name;

    DL_FOREACH(comms->names, name)
    {
        if (name->owner == owner && name->number == number)
            return name;
    }
    return NULL;
}

const struct gpu_comm_name *gpu_comms_find(const struct gpu_comms *comms, const void *owner,
                                           uint32_t number)
{
    return find_name(comms, owner, number);
}

void gpu_comms_owner_gone(struct gpu_comms *comms, const void *owner)
{
    struct gpu_comm_name *name, *next;

    DL_FOREACH_SAFE(comms->names, name, next)
    {
        if (name->owner != owner)
            continue;
        DL_DELETE(comms->names, name);
        free(name);
    }
}

static int add_name(struct gpu_comms *comms, const struct gpu_join *join, struct gpu_comm *comm)
{
    struct gpu_comm_name *name = calloc(1, sizeof(*name));

    if (name == NULL)
        return HVI_ERR_NO_MEMORY;
    name->owner = join->owner;
    name->number = join->number;
    name->rank = join->rank;
    name->count = join->count;
    name->comm = comm;
    DL_APPEND(comms->names, name);
    return HVI_OK;
}

/* ---- joining ---- */

static struct gpu_comm *find_same(const struct gpu_comms *comms, const struct gpu_join *join)
{
    struct gpu_comm *comm;

    DL_FOREACH(comms->comms, comm)
    {
        if (!comm->fresh && !join->fresh && comm->rank == join->rank &&
            comm->count == join->count &&
            memcmp(comm->instances, join->instances, join->count * sizeof(uint64_t)) == 0)
            return comm;
    }
    return NULL;
}

static uint64_t needed(const struct gpu_comms *comms)
{
    return comms->is_warm ? COMM_BYTES : FIRST_BYTES;
}

/* Of a join that NCCL says the driver has failed. A broken context fails here too, and ends this process. */
static int status_of(struct gpu_comms *comms, int result)
{
    size_t free_bytes = 0, total = 0;

    if (result != GPU_NCCL_CUDA_ERROR ||
        !GPU_CALL(comms->calls, "cuMemGetInfo",
                  comms->calls->cuda->memory_info(&free_bytes, &total)))
        return HVI_ERR_UNSUPPORTED;
    return free_bytes < needed(comms) ? HVI_ERR_NO_MEMORY : HVI_ERR_UNSUPPORTED;
}

/* NULL with an error and a sentence. */
static struct gpu_comm *make(struct gpu_comms *comms, const struct gpu_join *join, int *status_p,
                             char *text_p, size_t text_size)
{
    struct gpu_comm *comm = malloc(sizeof(*comm) + join->count * sizeof(uint64_t));
    struct gpu_nccl_id id;

    *status_p = HVI_ERR_NO_MEMORY;
    if (comm == NULL)
        return NULL;
    *comm = (struct gpu_comm){.rank = join->rank, .count = join->count, .fresh = join->fresh};
    memcpy(comm->instances, join->instances, join->count * sizeof(uint64_t));
    memcpy(id.bytes, join->id, sizeof(id.bytes));
    gpu_calls_begin(comms->calls, "ncclCommInitRank", comms->join_ns);
    const int result = comms->nccl.init_rank(&comm->handle, (int)join->count, id, (int)join->rank);
    gpu_calls_end(comms->calls);
    if (result == GPU_NCCL_OK) {
        DL_APPEND(comms->comms, comm);
        comms->count++;
        comms->is_warm = true;
        return comm;
    }
    *status_p = status_of(comms, result);
    describe(comms, NULL, result, text_p, text_size);
    free(comm);
    return NULL;
}

/* A worker that runs out of memory within a join leaves the others in theirs, for ever. One for registered memory leaves enough for
 * the next that works cannot do without. */
static int ask_memory(struct gpu_comms *comms, bool registered, char *text_p, size_t text_size)
{
    const uint64_t bytes = needed(comms) + (registered ? COMM_BYTES : 0);
    size_t free_bytes = 0, total = 0;

    if (GPU_CALL(comms->calls, "cuMemGetInfo",
                 comms->calls->cuda->memory_info(&free_bytes, &total)) &&
        free_bytes >= bytes)
        return HVI_OK;
    snprintf(text_p, text_size,
             "less than %llu MiB of the GPU are free for a communicator%s, namely %zu",
             (unsigned long long)(bytes >> 20), registered ? " of registered memory" : "",
             free_bytes >> 20);
    return HVI_ERR_NO_MEMORY;
}

static int ask_place(struct gpu_comms *comms, char *text_p, size_t text_size)
{
    if (comms->count < GPU_COMMS_MAX)
        return open_library(comms, text_p, text_size);
    snprintf(text_p, text_size, "the worker has %u communicators already", GPU_COMMS_MAX);
    return HVI_ERR_LIMIT;
}

int gpu_comms_can(struct gpu_comms *comms, const struct gpu_join *join, char *text_p,
                  size_t text_size)
{
    if (find_same(comms, join) != NULL)
        return HVI_OK;
    int status = ask_place(comms, text_p, text_size);
    return status == HVI_OK ? ask_memory(comms, join->registered, text_p, text_size) : status;
}

int gpu_comms_id(struct gpu_comms *comms, const struct gpu_join *join,
                 unsigned char id_p[HVI_NCCL_ID_BYTES], char *text_p, size_t text_size)
{
    struct gpu_nccl_id id = {.bytes = "no worker joins by this"};
    int result = GPU_NCCL_OK;

    if (find_same(comms, join) == NULL) {
        gpu_calls_begin(comms->calls, "ncclGetUniqueId", comms->join_ns);
        result = comms->nccl.unique_id(&id);
        gpu_calls_end(comms->calls);
    }
    if (result == GPU_NCCL_OK) {
        memcpy(id_p, id.bytes, sizeof(id.bytes));
        return HVI_OK;
    }
    describe(comms, NULL, result, text_p, text_size);
    return HVI_ERR_UNSUPPORTED;
}

int gpu_comms_join(struct gpu_comms *comms, const struct gpu_join *join, char *text_p,
                   size_t text_size)
{
    struct gpu_comm *comm = find_same(comms, join);
    /* Memory was asked for before. Now that the others join it is tried, whatever is left. */
    int status = comm == NULL ? ask_place(comms, text_p, text_size) : HVI_OK;

    if (status != HVI_OK)
        return status;
    if (comm == NULL)
        comm = make(comms, join, &status, text_p, text_size);
    return comm == NULL ? status : add_name(comms, join, comm);
}

/* ---- registered memory ---- */

bool gpu_comms_can_register(const struct gpu_comms *comms)
{
    return comms->nccl.comm_register != NULL && comms->nccl.comm_deregister != NULL &&
           comms->nccl.number >= GPU_NCCL_REGISTER_MIN;
}

static bool has_registered(const struct gpu_comm *comm, uint64_t address, uint64_t bytes)
{
    const struct gpu_registered *one;

    LL_FOREACH(comm->registered, one)
    {
        if (one->address == address && one->bytes >= bytes)
            return true;
    }
    return false;
}

/* NCCL's call is local, and takes a note: what needs the others is done within the first op (register.cc, nvls.cc 2.28.9). */
static int register_with(struct gpu_comms *comms, struct gpu_comm *comm, struct gpu_registered *one,
                         char *text_p, size_t text_size)
{
    void *memory = (void *)(uintptr_t)one->address;

    gpu_calls_begin(comms->calls, "ncclCommRegister", comms->join_ns);
    const int result = comms->nccl.comm_register(comm->handle, memory, one->bytes, &one->handle);
    gpu_calls_end(comms->calls);
    if (result != GPU_NCCL_OK) {
        describe(comms, comm->handle, result, text_p, text_size);
        return HVI_ERR_UNSUPPORTED;
    }
    LL_PREPEND(comm->registered, one);
    comm->registered_count++;
    return HVI_OK;
}

int gpu_comms_register(struct gpu_comms *comms, const void *owner, uint32_t number,
                       uint64_t address, uint64_t bytes, char *text_p, size_t text_size)
{
    struct gpu_comm_name *name = find_name(comms, owner, number);
    struct gpu_registered *one;
    int status = HVI_ERR_UNSUPPORTED;

    snprintf(text_p, text_size, "the communicator is gone, or this NCCL registers no memory");
    if (name == NULL || name->comm == NULL || !gpu_comms_can_register(comms))
        return status;
    if (has_registered(name->comm, address, bytes))
        return HVI_OK;
    snprintf(text_p, text_size, "the communicator has %u registrations already, or no memory",
             GPU_REGISTERED_MAX);
    one = name->comm->registered_count < GPU_REGISTERED_MAX ? calloc(1, sizeof(*one)) : NULL;
    if (one == NULL)
        return HVI_ERR_LIMIT;
    one->address = address;
    one->bytes = bytes;
    status = register_with(comms, name->comm, one, text_p, text_size);
    if (status != HVI_OK)
        free(one);
    return status;
}

/* Where NCCL refuses, it is told no more of it. */
static void deregister_from(struct gpu_comms *comms, struct gpu_comm *comm,
                            struct gpu_registered *one)
{
    char text[300];

    LL_DELETE(comm->registered, one);
    comm->registered_count--;
    gpu_calls_begin(comms->calls, "ncclCommDeregister", comms->join_ns);
    const int result = comms->nccl.comm_deregister(comm->handle, one->handle);
    gpu_calls_end(comms->calls);
    if (result != GPU_NCCL_OK) {
        describe(comms, comm->handle, result, text, sizeof(text));
        HVI_LOG(HVI_LOG_WARN, "comm", "not-deregistered", text, "bytes=%" PRIu64, one->bytes);
    }
    free(one);
}

void gpu_comms_deregister(struct gpu_comms *comms, uint64_t address)
{
    struct gpu_registered *one, *next;
    struct gpu_comm *comm;

    DL_FOREACH(comms->comms, comm)
    {
        LL_FOREACH_SAFE(comm->registered, one, next)
        {
            if (one->address == address)
                deregister_from(comms, comm, one);
        }
    }
}

/* ---- the end of one ---- */

/* NCCL gives back what is registered with a communicator that ends (register.cc 2.28.9, ncclRegCleanup). */
static void forget_registered(struct gpu_comm *comm)
{
    while (comm->registered != NULL) {
        struct gpu_registered *one = comm->registered;
        LL_DELETE(comm->registered, one);
        free(one);
    }
}

static bool abort_comm(struct gpu_comms *comms, struct gpu_comm *comm)
{
    struct gpu_comm_name *name;

    gpu_calls_begin(comms->calls, "ncclCommAbort", ABORT_NS);
    const bool good = is_good(comms, "ncclCommAbort", NULL, comms->nccl.abort(comm->handle));
    DL_FOREACH(comms->names, name)
    {
        if (name->comm == comm)
            name->comm = NULL;
    }
    DL_DELETE(comms->comms, comm);
    comms->count--;
    forget_registered(comm);
    free(comm);
    return good;
}

bool gpu_comms_drop(struct gpu_comms *comms, const void *owner, uint32_t number, bool abort)
{
    struct gpu_comm_name *name = find_name(comms, owner, number);

    if (name == NULL || name->comm == NULL)
        return true; /* it could not join, or is gone */
    if (abort)
        return abort_comm(comms, name->comm);
    name->comm = NULL;
    return true;
}

static bool is_named(const struct gpu_comms *comms, const struct gpu_comm *comm)
{
    const struct gpu_comm_name *name;

    DL_SEARCH_SCALAR(comms->names, name, comm, comm);
    return name != NULL;
}

static bool are_alive(const struct gpu_comm *comm, const uint64_t *instances, uint32_t count)
{
    for (uint32_t i = 0; i < comm->count; i++) {
        uint32_t at = 0;
        while (at < count && instances[at] != comm->instances[i])
            at++;
        if (at == count)
            return false;
    }
    return true;
}

void gpu_comms_alive(struct gpu_comms *comms, const uint64_t *instances, uint32_t count)
{
    struct gpu_comm *comm, *next;

    DL_FOREACH_SAFE(comms->comms, comm, next)
    {
        if (count > 0 && !is_named(comms, comm) &&
            (comm->fresh || !are_alive(comm, instances, count)))
            (void)abort_comm(comms, comm);
    }
}

void gpu_comms_close(struct gpu_comms *comms)
{
    while (comms->comms != NULL)
        (void)abort_comm(comms, comms->comms);
}

bool gpu_comms_look(struct gpu_comms *comms, uint64_t finished, uint64_t now_ns)
{
    struct gpu_comm *comm;

    DL_FOREACH(comms->comms, comm)
    {
        int error = GPU_NCCL_OK;
        if (comm->used <= finished)
            continue;
        gpu_calls_begin(comms->calls, "ncclCommGetAsyncError", comms->calls->usual_ns);
        if (!is_good(comms, "ncclCommGetAsyncError", comm->handle,
                     comms->nccl.async_error(comm->handle, &error)))
            return false;
        if (error == GPU_NCCL_OK || error == GPU_NCCL_IN_PROGRESS)
            continue;
        if (comm->error_ns == 0)
            comm->error_ns = now_ns;
        else if (now_ns - comm->error_ns > ERROR_NS)
            return is_good(comms, "NCCL", comm->handle, error);
    }
    return true;
}

/* ---- ops ---- */

static const char *name_of(enum gpu_step_kind kind)
{
    switch (kind) {
    case GPU_STEP_ALL_REDUCE:
        return "ncclAllReduce";
    case GPU_STEP_BROADCAST:
        return "ncclBroadcast";
    case GPU_STEP_ALL_GATHER:
        return "ncclAllGather";
    case GPU_STEP_SEND:
        return "ncclSend";
    case GPU_STEP_RECEIVE:
        return "ncclRecv";
    case GPU_STEP_GROUP:
        return "ncclGroupStart";
    default:
        return "ncclGroupEnd";
    }
}

static int call(const struct gpu_nccl *nccl, gpu_nccl_comm handle, void *stream,
                const struct gpu_step *step)
{
    const void *in = (const void *)(uintptr_t)step->nccl.in;
    void *out = (void *)(uintptr_t)step->nccl.out; /* which only the device follows */
    const size_t count = step->nccl.count;
    const int type = step->nccl.type, peer = step->nccl.peer;

    switch (step->kind) {
    case GPU_STEP_ALL_REDUCE:
        return nccl->all_reduce(in, out, count, type, step->nccl.op, handle, stream);
    case GPU_STEP_BROADCAST:
        return nccl->broadcast(in, out, count, type, peer, handle, stream);
    case GPU_STEP_ALL_GATHER:
        return nccl->all_gather(in, out, count, type, handle, stream);
    case GPU_STEP_SEND:
        return nccl->send(in, count, type, peer, handle, stream);
    case GPU_STEP_RECEIVE:
        return nccl->receive(out, count, type, peer, handle, stream);
    case GPU_STEP_GROUP:
        return nccl->group_start();
    default:
        return nccl->group_end();
    }
}

/* The first ops of a communicator connect its workers within their call, which waits for the others: it has as long as a join.
 * One that does not come is the engine's to end. */
bool gpu_comms_call(struct gpu_comms *comms, const struct gpu_comm *comm, void *stream,
                    const struct gpu_step *step)
{
    const char *name = name_of(step->kind);

    gpu_calls_begin(comms->calls, name, comms->join_ns);
    return is_good(comms, name, comm->handle, call(&comms->nccl, comm->handle, stream, step));
}
