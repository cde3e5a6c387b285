/* SPDX-License-Identifier: Apache-2.0
 * Untrusted: an engine passes on what a trainer says of its memory. The driver says how large the allocation is that a handle
 * opens, and less than what was said is refused; a chunk is mapped with the size that was said, which the driver refuses for
 * another; and a descriptor may be of memory on another GPU, which is asked of the mapping.
 *
 * A chunk's handle is released as soon as it is mapped: the mapping keeps the memory (cuda.h). So nothing of a chunk stays but its
 * mapping, and the trainer's own cuMemUnmap is never a fault. Its memory is free when it is unmapped here too. */
#include "daemon/gpu/exported.h"

#include "base/status.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- what was said ---- */

/* HVI_OK, or HVI_ERR_NO_MEMORY. */
static int make_room(struct gpu_exported *exported, uint32_t count)
{
    int *fds = realloc(exported->fds, count * sizeof(fds[0]));
    uint64_t *chunks;

    if (fds == NULL)
        return HVI_ERR_NO_MEMORY;
    exported->fds = fds;
    chunks = realloc(exported->chunks, count * sizeof(chunks[0]));
    if (chunks == NULL)
        return HVI_ERR_NO_MEMORY;
    exported->chunks = chunks;
    if (exported->kind != HVI_DEVICE_FABRIC)
        return HVI_OK;
    struct hvi_cu_fabric *fabric = realloc(exported->fabric, count * sizeof(fabric[0]));
    if (fabric == NULL)
        return HVI_ERR_NO_MEMORY;
    exported->fabric = fabric;
    return HVI_OK;
}

int gpu_exported_add(struct gpu_exported *exported, const struct hvi_device_memory *memory,
                     const int *fds, uint32_t fd_count)
{
    const bool is_fabric = memory->kind == HVI_DEVICE_FABRIC;
    const uint32_t more = is_fabric ? (uint32_t)memory->chunk_count : fd_count;
    const uint32_t count = exported->count + more;

    if (exported->count > 0 && (memory->kind != exported->kind || memory->bytes != exported->bytes))
        return HVI_ERR_INVALID;
    exported->kind = memory->kind;
    exported->bytes = memory->bytes;
    memcpy(exported->handle, memory->handle, sizeof(exported->handle));
    if (count > HVI_DEVICE_CHUNKS_MAX)
        return HVI_ERR_LIMIT;
    if (more == 0)
        return HVI_OK;
    if (make_room(exported, count) != HVI_OK)
        return HVI_ERR_NO_MEMORY;
    if (is_fabric)
        memcpy(exported->fabric + exported->count, memory->fabric, memory->fabric_bytes);
    for (uint32_t i = 0; i < more; i++) {
        exported->fds[exported->count] = is_fabric ? -1 : fds[i];
        exported->chunks[exported->count++] = i < memory->chunk_count ? memory->chunks[i] : 0;
    }
    return HVI_OK;
}

bool gpu_exported_is_whole(const struct gpu_exported *exported)
{
    uint64_t left = exported->bytes;

    if (!hvi_device_has_chunks(exported->kind))
        return exported->count == (exported->kind == HVI_DEVICE_POOL);
    for (uint32_t i = 0; i < exported->count; i++) {
        if (exported->chunks[i] == 0 || exported->chunks[i] > left)
            return false;
        left -= exported->chunks[i];
    }
    return left == 0;
}

static void close_fd(struct gpu_exported *exported, uint32_t i)
{
    if (exported->fds[i] >= 0)
        close(exported->fds[i]);
    exported->fds[i] = -1;
}

static void close_fds(struct gpu_exported *exported)
{
    for (uint32_t i = 0; i < exported->count; i++)
        close_fd(exported, i);
}

void gpu_exported_fini(struct gpu_exported *exported)
{
    close_fds(exported);
    free(exported->fds);
    free(exported->chunks);
    free(exported->fabric);
    *exported = (struct gpu_exported){0};
}

/* ---- errors ---- */

/* The MPS server that has this process' context has ended, or recovers from a fault that ended all contexts. Too many clients or
 * connections is no such error: a context that exists keeps what it has. */
static bool is_mps_lost(int error)
{
    return error == HVI_CU_MPS_CONNECTION_FAILED || error == HVI_CU_MPS_RPC_FAILURE ||
           error == HVI_CU_MPS_SERVER_NOT_READY || error == HVI_CU_MPS_CLIENT_TERMINATED;
}

/* Every later call of this process gives the same (driver API: "the process must be terminated"). */
static bool is_sticky(int error)
{
    static const int errors[] = {214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719};

    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++) {
        if (errors[i] == error)
            return true;
    }
    return is_mps_lost(error);
}

static int status_of(int error)
{
    return error == HVI_CU_OUT_OF_MEMORY ? HVI_ERR_NO_MEMORY : HVI_ERR_UNSUPPORTED;
}

bool gpu_outcome_good(struct gpu_calls *calls, struct gpu_outcome *outcome, const char *name,
                      int error)
{
    char text[80];

    gpu_calls_end(calls);
    if (error == HVI_CU_OK)
        return true;
    hvi_cuda_describe(calls->cuda, error, text, sizeof(text));
    outcome->status = status_of(error);
    snprintf(outcome->text, sizeof(outcome->text), "%s: %s", name, text);
    if (is_sticky(error))
        gpu_calls_fail(calls, name, text);
    return false;
}

/* A rank may name a GPU that its job may not use, and bring memory of another. Where the driver does not say on which GPU memory
 * lies, it is taken for ours. */
static bool is_ours(struct gpu_calls *calls, int ordinal, hvi_cu_ptr at,
                    struct gpu_outcome *outcome)
{
    int what = HVI_CU_POINTER_DEVICE, device = -1;
    void *place = &device;

    if (!GPU_TRY(calls, outcome, "cuPointerGetAttributes",
                 calls->cuda->pointer_attributes(1, &what, &place, at)))
        return false;
    if (device == ordinal || device < 0)
        return true;
    outcome->status = HVI_ERR_INVALID;
    snprintf(outcome->text, sizeof(outcome->text),
             "the memory lies on another GPU, all of it or a part");
    return false;
}

/* ---- legacy handles, and pools' pointers ---- */

/* Whether the driver says that as much as was said lies at .base. A small allocation may lie within a block, of which it speaks
 * then (P2). */
static bool is_there(struct gpu_calls *calls, const struct gpu_exported *exported,
                     struct gpu_outcome *outcome)
{
    hvi_cu_ptr base = 0;
    size_t bytes = 0;

    if (!GPU_TRY(calls, outcome, "cuMemGetAddressRange",
                 calls->cuda->address_range(&base, &bytes, exported->base)))
        return false;
    if (base <= exported->base && exported->base - base <= bytes &&
        exported->bytes <= bytes - (exported->base - base))
        return true;
    outcome->status = HVI_ERR_INVALID;
    snprintf(outcome->text, sizeof(outcome->text),
             "the allocation has %zu bytes, and %" PRIu64 " were said", bytes, exported->bytes);
    return false;
}

static void open_legacy(struct gpu_calls *calls, int ordinal, struct gpu_exported *exported,
                        struct gpu_outcome *outcome)
{
    struct hvi_cu_ipc handle;
    hvi_cu_ptr base = 0;

    memcpy(handle.bytes, exported->handle, sizeof(handle.bytes));
    if (!GPU_TRY(calls, outcome, "cuIpcOpenMemHandle",
                 calls->cuda->ipc_open(&base, handle, HVI_CU_IPC_LAZY_PEER)))
        return;
    exported->base = base;
    if (is_there(calls, exported, outcome))
        (void)is_ours(calls, ordinal, base, outcome);
}

static struct hvi_cu_access access_of(int ordinal)
{
    return (struct hvi_cu_access){{1, ordinal}, 3};
}

/* The pool is open. */
static void open_pointer(struct gpu_calls *calls, int ordinal, struct gpu_exported *exported,
                         struct gpu_outcome *outcome)
{
    const struct hvi_cuda *cuda = calls->cuda;
    const struct hvi_cu_access access = access_of(ordinal);
    struct hvi_cu_pool_pointer pointer;
    hvi_cu_ptr base = 0;

    memcpy(pointer.bytes, exported->handle, sizeof(pointer.bytes));
    if (!GPU_TRY(calls, outcome, "cuMemPoolSetAccess",
                 cuda->pool_access_set(exported->pool, &access, 1)) ||
        !GPU_TRY(calls, outcome, "cuMemPoolImportPointer",
                 cuda->pool_import_pointer(&base, exported->pool, &pointer)))
        return;
    exported->base = base;
    if (is_there(calls, exported, outcome))
        (void)is_ours(calls, ordinal, base, outcome);
}

static void open_pool(struct gpu_calls *calls, int ordinal, struct gpu_exported *exported,
                      struct gpu_outcome *outcome)
{
    const struct hvi_cuda *cuda = calls->cuda;
    void *fd = (void *)(intptr_t)exported->fds[0]; /* cuda.h: the descriptor, as a pointer */
    void *pool = NULL;

    if (!GPU_TRY(calls, outcome, "cuMemPoolImportFromShareableHandle",
                 cuda->pool_import(&pool, fd, HVI_CU_HANDLE_FD, 0)))
        return;
    exported->pool = pool;
    open_pointer(calls, ordinal, exported, outcome);
}

/* ---- VMM ---- */

/* A fabric handle is refused where this process may not use the exporter's channel. */
static void explain_fabric(struct gpu_outcome *outcome)
{
    const size_t length = strlen(outcome->text);

    snprintf(outcome->text + length, sizeof(outcome->text) - length,
             "; fabric handles need an IMEX channel of trainer and worker");
}

static bool import_chunk(struct gpu_calls *calls, const struct gpu_exported *exported, uint32_t i,
                         hvi_cu_allocation *chunk_p, struct gpu_outcome *outcome)
{
    const bool is_fabric = exported->kind == HVI_DEVICE_FABRIC;
    void *handle =
        is_fabric ? (void *)&exported->fabric[i] : (void *)(intptr_t)exported->fds[i]; /* cuda.h */
    const bool is_good =
        GPU_TRY(calls, outcome, "cuMemImportFromShareableHandle",
                calls->cuda->import_handle(chunk_p, handle,
                                           is_fabric ? HVI_CU_HANDLE_FABRIC : HVI_CU_HANDLE_FD));

    if (!is_good && is_fabric)
        explain_fabric(outcome);
    return is_good;
}

static bool map_chunk(struct gpu_calls *calls, struct gpu_exported *exported, uint32_t i,
                      hvi_cu_ptr at, struct gpu_outcome *outcome)
{
    const struct hvi_cuda *cuda = calls->cuda;
    hvi_cu_allocation chunk;

    if (!import_chunk(calls, exported, i, &chunk, outcome))
        return false;
    const bool is_mapped =
        GPU_TRY(calls, outcome, "cuMemMap", cuda->map(at, exported->chunks[i], 0, chunk, 0));
    GPU_UNDO(calls, "cuMemRelease", cuda->allocation_release(chunk));
    exported->mapped += is_mapped;
    close_fd(exported, i);
    return is_mapped;
}

/* Each with access, and of this GPU. */
static void map_chunks(struct gpu_calls *calls, int ordinal, struct gpu_exported *exported,
                       struct gpu_outcome *outcome)
{
    const struct hvi_cu_access access = access_of(ordinal);
    hvi_cu_ptr at = exported->base;

    for (uint32_t i = 0; i < exported->count; at += exported->chunks[i++]) {
        if (!map_chunk(calls, exported, i, at, outcome) ||
            !GPU_TRY(calls, outcome, "cuMemSetAccess",
                     calls->cuda->set_access(at, exported->chunks[i], &access, 1)) ||
            !is_ours(calls, ordinal, at, outcome))
            return;
    }
}

/* Each mapping by itself, as it was made (cuda.h: no part of one). */
static void unmap(struct gpu_calls *calls, struct gpu_exported *exported,
                  struct gpu_outcome *outcome)
{
    hvi_cu_ptr at = exported->base;

    for (uint32_t i = 0; i < exported->mapped; at += exported->chunks[i++]) {
        if (!GPU_TRY(calls, outcome, "cuMemUnmap", calls->cuda->unmap(at, exported->chunks[i])))
            return;
    }
    (void)GPU_TRY(calls, outcome, "cuMemAddressFree",
                  calls->cuda->unreserve(exported->base, exported->bytes));
}

static void open_chunks(struct gpu_calls *calls, int ordinal, struct gpu_exported *exported,
                        struct gpu_outcome *outcome)
{
    hvi_cu_ptr base = 0;

    if (!GPU_TRY(calls, outcome, "cuMemAddressReserve",
                 calls->cuda->reserve(&base, exported->bytes, 0, 0, 0)))
        return;
    exported->base = base;
    map_chunks(calls, ordinal, exported, outcome);
}

/* ---- all ---- */

/* NULL, or what the driver is too old for. */
static const char *missing(const struct hvi_cuda *cuda, uint32_t kind)
{
    if (hvi_device_has_chunks(kind) &&
        (!cuda->import_handle || !cuda->reserve || !cuda->unreserve || !cuda->map || !cuda->unmap ||
         !cuda->set_access || !cuda->allocation_release))
        return "memory by chunks (cuMemImportFromShareableHandle, cuMemMap)";
    if (kind == HVI_DEVICE_POOL && (!cuda->pool_import || !cuda->pool_import_pointer ||
                                    !cuda->pool_access_set || !cuda->pool_destroy))
        return "memory pools of other processes (cuMemPoolImportFromShareableHandle)";
    return NULL;
}

void gpu_exported_open(struct gpu_calls *calls, int ordinal, struct gpu_exported *exported,
                       struct gpu_outcome *outcome)
{
    const char *lacks = missing(calls->cuda, exported->kind);

    *outcome = (struct gpu_outcome){.status = HVI_OK};
    if (lacks != NULL) {
        outcome->status = HVI_ERR_UNSUPPORTED;
        snprintf(outcome->text, sizeof(outcome->text), "the worker's driver has no %s", lacks);
    } else if (exported->kind == HVI_DEVICE_LEGACY) {
        open_legacy(calls, ordinal, exported, outcome);
    } else if (hvi_device_has_chunks(exported->kind)) {
        open_chunks(calls, ordinal, exported, outcome);
    } else {
        open_pool(calls, ordinal, exported, outcome);
    }
    close_fds(exported);
}

void gpu_exported_close(struct gpu_calls *calls, struct gpu_exported *exported,
                        struct gpu_outcome *outcome)
{
    const struct hvi_cuda *cuda = calls->cuda;

    *outcome = (struct gpu_outcome){.status = HVI_OK};
    if (hvi_device_has_chunks(exported->kind)) {
        if (exported->base != 0)
            unmap(calls, exported, outcome);
        return;
    }
    if (exported->kind == HVI_DEVICE_LEGACY && exported->base != 0)
        (void)GPU_TRY(calls, outcome, "cuIpcCloseMemHandle", cuda->ipc_close(exported->base));
    else if (exported->base != 0)
        (void)GPU_TRY(calls, outcome, "cuMemFree", cuda->free(exported->base));
    if (exported->pool != NULL && outcome->status == HVI_OK)
        (void)GPU_TRY(calls, outcome, "cuMemPoolDestroy", cuda->pool_destroy(exported->pool));
}
