/* SPDX-License-Identifier: Apache-2.0
 * The calls of the fake libnccl.so.2; the rules are in nccl_fake.h. */
#include "tests/fakegpu/counts.h"
#include "tests/fakegpu/nccl_fake.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define GPU_NCCL(member, symbol, need, result, parameters)                                         \
    __attribute__((visibility("default"))) result nccl_##member parameters __asm__(symbol);
#include "daemon/gpu/nccl.def"
#undef GPU_NCCL

_Atomic unsigned fake_nccl_registered_ops;
static _Atomic unsigned registrations;
static _Thread_local unsigned depth;
static _Thread_local struct fake_nccl_op *group;
static _Thread_local size_t group_count;

static const struct fakegpu_api *cuda(void)
{
    static const struct fakegpu_api *_Atomic api;
    const struct fakegpu_api *(*get)(void) = NULL;

    if (atomic_load(&api) == NULL) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        void *symbol = library == NULL ? NULL : dlsym(library, "fakegpu_api");
        if (symbol == NULL)
            fake_blame("the fake NCCL needs the fake libcuda.so.1");
        memcpy(&get, &symbol, sizeof(get));
        atomic_store(&api, get());
    }
    return atomic_load(&api);
}

int nccl_version(int *version_p)
{
    (void)fake_counts(); /* a test opens the file early */
    *version_p = fake_number("nccl", 22809);
    return GPU_NCCL_OK;
}

const char *nccl_error(int result)
{
    static const char *const texts[] = {
        "no error",
        "unhandled cuda error",
        "unhandled system error",
        "internal error",
        "invalid argument",
        "invalid usage",
        "remote process exited or there was a network error",
        "NCCL operation in progress",
    };

    return result >= 0 && result < (int)(sizeof(texts) / sizeof(texts[0])) ? texts[result]
                                                                           : "unknown result code";
}

const char *nccl_last_error(gpu_nccl_comm comm)
{
    (void)comm;
    return "of the fake NCCL";
}

/* --- communicators --- */

int nccl_unique_id(struct gpu_nccl_id *id_p)
{
    return fake_nccl_make_id(id_p);
}

int nccl_init_rank(gpu_nccl_comm *comm_p, int ranks, struct gpu_nccl_id id, int rank)
{
    static _Atomic bool has_failed;
    const int device = cuda()->device();

    if (device < 0)
        return FAKE_NCCL_CUDA_ERROR;
    if (ranks < 1 || ranks > FAKE_NCCL_RANKS || rank < 0 || rank >= ranks)
        return FAKE_NCCL_INVALID_ARGUMENT;
    const int slow_ms = fake_fault("slow-join");
    nanosleep(&(struct timespec){slow_ms / 1000, slow_ms % 1000 * 1000000L}, NULL);
    if (fake_fault("nccl-join-fails") == device + 1 && !atomic_exchange(&has_failed, true))
        return FAKE_NCCL_CUDA_ERROR;
    while (fake_fault_now("nccl-join-hang"))
        nanosleep(&(struct timespec){.tv_sec = 3600}, NULL);
    struct gpu_nccl_comm *comm = calloc(1, sizeof(*comm));
    if (comm == NULL)
        return FAKE_NCCL_SYSTEM_ERROR;
    comm->thread = pthread_self();
    int result = fake_nccl_join(comm, ranks, &id, rank, device);
    if (result != GPU_NCCL_OK) {
        fake_nccl_leave(comm);
        free(comm);
        return result;
    }
    *comm_p = comm;
    return GPU_NCCL_OK;
}

static void give_back(struct fake_nccl_memory *memory)
{
    (void)cuda()->note_registered(memory->address, memory->bytes, -1);
    atomic_fetch_sub(&registrations, 1);
    free(memory);
}

/* Ops in streams end, or never will since the context is lost. */
static void end(gpu_nccl_comm comm)
{
    while (atomic_load(&comm->pending) > 0 && cuda()->is_alive())
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    if (atomic_load(&comm->pending) > 0)
        return; /* work that is never run points at it */
    while (comm->registered != NULL) {
        struct fake_nccl_memory *memory = comm->registered;
        comm->registered = memory->next;
        give_back(memory);
    }
    fake_nccl_leave(comm);
    free(comm);
}

static void check_thread(gpu_nccl_comm comm)
{
    if (!pthread_equal(comm->thread, pthread_self()))
        fake_blame("NCCL: two threads use one communicator");
}

int nccl_destroy(gpu_nccl_comm comm)
{
    check_thread(comm);
    end(comm);
    return GPU_NCCL_OK;
}

int nccl_abort(gpu_nccl_comm comm)
{
    atomic_store(&comm->is_aborted, true);
    end(comm);
    return GPU_NCCL_OK;
}

int nccl_async_error(gpu_nccl_comm comm, int *error_p)
{
    *error_p = atomic_load(&comm->async_error);
    return GPU_NCCL_OK;
}

/* --- registered memory --- */

int nccl_comm_register(gpu_nccl_comm comm, void *address, size_t bytes, void **handle_p)
{
    check_thread(comm);
    if (fake_fault_now("nccl-register"))
        return FAKE_NCCL_SYSTEM_ERROR;
    if (!cuda()->note_registered((uintptr_t)address, bytes, 1))
        return FAKE_NCCL_CUDA_ERROR;
    struct fake_nccl_memory *memory = malloc(sizeof(*memory));
    if (memory == NULL)
        fake_blame("no memory for a registration");
    *memory = (struct fake_nccl_memory){comm->registered, (uintptr_t)address, bytes};
    comm->registered = memory;
    atomic_fetch_add(&registrations, 1);
    *handle_p = memory;
    return GPU_NCCL_OK;
}

int nccl_comm_deregister(gpu_nccl_comm comm, void *handle)
{
    struct fake_nccl_memory **at = &comm->registered, *memory = handle;

    check_thread(comm);
    while (*at != NULL && *at != memory)
        at = &(*at)->next;
    if (*at == NULL)
        return FAKE_NCCL_INVALID_USAGE;
    if (atomic_load(&comm->pending) > 0)
        fake_blame("NCCL: memory is deregistered while an op may use it");
    *at = memory->next;
    give_back(memory);
    return GPU_NCCL_OK;
}

void fakegpu_nccl_registered(unsigned *now_p, unsigned *ops_p)
{
    *now_p = atomic_load(&registrations);
    *ops_p = atomic_load(&fake_nccl_registered_ops);
}

static bool is_registered(const struct gpu_nccl_comm *comm, const void *address)
{
    const struct fake_nccl_memory *memory = comm->registered;

    while (memory != NULL && (uintptr_t)address - memory->address >= memory->bytes)
        memory = memory->next;
    return memory != NULL;
}

/* It is looked for by its address, as NCCL does (ncclRegFind). */
static uint64_t registered_of(const struct fake_nccl_op *op)
{
    if (op->kind != ALL_REDUCE && op->kind != ALL_GATHER && op->kind != REDUCE_SCATTER)
        return 0;
    return (is_registered(op->comm, op->in) ? 1u : 0u) |
           (is_registered(op->comm, op->out) ? 2u : 0u);
}

/* --- ops --- */

static bool is_letter(const struct fake_nccl_op *op)
{
    return op->kind == SEND || op->kind == RECEIVE;
}

static size_t add_spans(const struct fake_nccl_op *op, struct fakegpu_span *spans)
{
    const size_t bytes = op->count * fake_nccl_element(op->type);
    const size_t all = bytes * (size_t)op->comm->ranks;
    const bool has_in =
        op->kind != RECEIVE && (op->kind != BROADCAST || op->peer == op->comm->rank);

    spans[0] = (struct fakegpu_span){(uintptr_t)op->in, op->kind == REDUCE_SCATTER ? all : bytes};
    spans[1] = (struct fakegpu_span){(uintptr_t)op->out, op->kind == ALL_GATHER ? all : bytes};
    if (!has_in)
        spans[0].bytes = 0;
    if (op->kind == SEND)
        spans[1].bytes = 0;
    return 2;
}

/* Enqueues one op, or letters of one communicator and stream. */
static int enqueue(const struct fake_nccl_op *ops, size_t count)
{
    struct fake_nccl_batch *batch = malloc(sizeof(*batch) + count * sizeof(*ops));
    struct fakegpu_span *spans = calloc(count * 2, sizeof(*spans));
    size_t span_count = 0;

    if (batch == NULL || spans == NULL)
        fake_blame("no memory for an NCCL op");
    *batch = (struct fake_nccl_batch){.comm = ops->comm, .count = count};
    batch->is_hanging = fake_fault_now("nccl-hang");
    batch->is_failing = fake_fault_now("nccl-error");
    memcpy(batch->ops, ops, count * sizeof(*ops));
    for (size_t i = 0; i < count; i++)
        batch->ops[i].registered = registered_of(&ops[i]);
    if (!ops->comm->is_connected && fake_says("connect", "first"))
        (void)fake_nccl_meet(ops->comm); /* nothing of it is in a stream yet */
    ops->comm->is_connected = true;
    for (size_t i = 0; i < count; i++)
        span_count += add_spans(&ops[i], spans + span_count);
    atomic_fetch_add(&ops->comm->pending, 1);
    int error =
        cuda()->enqueue(ops->stream, fake_nccl_run, &batch, sizeof(batch), spans, span_count);
    free(spans);
    if (error == HVI_CU_OK)
        return GPU_NCCL_OK;
    atomic_fetch_sub(&ops->comm->pending, 1);
    free(batch);
    return error == HVI_CU_INVALID_VALUE ? FAKE_NCCL_INVALID_ARGUMENT : FAKE_NCCL_CUDA_ERROR;
}

int nccl_group_start(void)
{
    depth++;
    return GPU_NCCL_OK;
}

/* The letters that follow each other in one communicator and stream go together. */
static size_t together(const struct fake_nccl_op *ops, size_t count)
{
    size_t number = 1;

    while (is_letter(ops) && number < count && is_letter(&ops[number]) &&
           ops[number].comm == ops->comm && ops[number].stream == ops->stream)
        number++;
    return number;
}

int nccl_group_end(void)
{
    int result = GPU_NCCL_OK;

    if (depth == 0)
        return FAKE_NCCL_INVALID_USAGE;
    if (--depth > 0)
        return GPU_NCCL_OK;
    for (size_t at = 0, number; at < group_count; at += number) {
        number = together(group + at, group_count - at);
        const int one = enqueue(group + at, number);
        result = result == GPU_NCCL_OK ? one : result;
    }
    free(group);
    group = NULL;
    group_count = 0;
    return result;
}

static bool is_reducing(const struct fake_nccl_op *op)
{
    return op->kind == ALL_REDUCE || op->kind == REDUCE_SCATTER;
}

static bool is_sound(const struct fake_nccl_op *op)
{
    if (op->type < GPU_NCCL_INT8 || op->type > GPU_NCCL_E5M2)
        return false;
    if (is_reducing(op) && (op->op < GPU_NCCL_SUM || op->op > GPU_NCCL_MIN))
        return false;
    if (is_reducing(op) && op->type >= GPU_NCCL_E4M3 && atoi(fake_setting("cc") ?: "9") < 9)
        return false;
    return op->peer >= 0 && op->peer < op->comm->ranks &&
           ((uintptr_t)op->in | (uintptr_t)op->out) % fake_nccl_element(op->type) == 0;
}

static int submit(const struct fake_nccl_op *op)
{
    check_thread(op->comm);
    if (!is_sound(op))
        return FAKE_NCCL_INVALID_ARGUMENT;
    if (depth == 0)
        return enqueue(op, 1);
    group = realloc(group, (group_count + 1) * sizeof(*group));
    if (group == NULL)
        fake_blame("no memory for a group");
    group[group_count++] = *op;
    return GPU_NCCL_OK;
}

int nccl_all_reduce(const void *in, void *out, size_t count, int type, int op, gpu_nccl_comm comm,
                    void *stream)
{
    return submit(&(struct fake_nccl_op){ALL_REDUCE, in, out, count, type, .op = op, .comm = comm,
                                         .stream = stream});
}

int nccl_broadcast(const void *in, void *out, size_t count, int type, int root, gpu_nccl_comm comm,
                   void *stream)
{
    return submit(&(struct fake_nccl_op){BROADCAST, in, out, count, type, .peer = root,
                                         .comm = comm, .stream = stream});
}

int nccl_all_gather(const void *in, void *out, size_t count, int type, gpu_nccl_comm comm,
                    void *stream)
{
    return submit(
        &(struct fake_nccl_op){ALL_GATHER, in, out, count, type, .comm = comm, .stream = stream});
}

int nccl_reduce_scatter(const void *in, void *out, size_t count, int type, int op,
                        gpu_nccl_comm comm, void *stream)
{
    return submit(&(struct fake_nccl_op){REDUCE_SCATTER, in, out, count, type, .op = op,
                                         .comm = comm, .stream = stream});
}

int nccl_send(const void *in, size_t count, int type, int peer, gpu_nccl_comm comm, void *stream)
{
    return submit(&(struct fake_nccl_op){SEND, in, NULL, count, type, .peer = peer, .comm = comm,
                                         .stream = stream});
}

int nccl_receive(void *out, size_t count, int type, int peer, gpu_nccl_comm comm, void *stream)
{
    return submit(&(struct fake_nccl_op){RECEIVE, NULL, out, count, type, .peer = peer,
                                         .comm = comm, .stream = stream});
}
