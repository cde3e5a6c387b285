/* SPDX-License-Identifier: Apache-2.0
 * An allocation becomes known to the engine, which has its worker open it.
 *
 * The whole allocation is told, never a tensor: a handle opens all of it. Of a reservation its chunks are, with a descriptor or a
 * fabric handle each, a few in each message. Handles are made anew for each
 * registration; whether an allocation is another one than before is told by BUFFER_ID alone. Descriptors
 * are closed here when they have been sent. */
#include "client/device/chunks.h"
#include "client/device/device.h"

#include "base/clock.h"
#include "base/status.h"
#include "client/error.h"
#include "client/link/control.h"
#include "hvd/hvd.h"

#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FIRST_NS (30 * HVI_NS_SEC) /* a worker starts */

/* ---- the page ---- */

/* With the session's lock and .making; gives the former up. */
static int make_page(struct client_device *device, const char *what)
{
    int rc = hvi_fence_create(&device->page);
    if (rc != HVD_OK)
        return client_error(rc, "%s: %u bytes of shared memory for the session's fences: %s", what,
                            HVI_FENCE_BYTES, hvi_status_text(rc));
    madvise(device->page.map.base, device->page.map.bytes, MADV_DONTFORK);
    if (device->poisoned || device->lost_ns != 0) /* whatever comes fails soon */
        hvi_fence_poison_done(&device->page);
    return HVD_OK;
}

static int announce_page(struct client_device *device, const char *what)
{
    int rc = HVD_OK;
    if (device->page_known)
        return rc;
    if (!device->page.cells)
        rc = make_page(device, what);
    if (rc == HVD_OK)
        rc = client_control_fence_add(device->link, device->page.map.fd, what);
    if (rc != HVD_OK)
        return rc;
    hvi_region_close_fd(&device->page.map);
    device->page_known = true;
    return rc;
}

/* ---- handles ---- */

/* What one message says of an allocation. */
struct piece {
    struct hvi_device_memory memory;
    uint64_t chunks[HVI_WIRE_CHUNKS_MAX];
    struct hvi_cu_fabric fabric[HVI_WIRE_CHUNKS_MAX]; /* one for each chunk, of _FABRIC */
    int fds[HVI_WIRE_CHUNKS_MAX];                     /* one for each chunk, or a pool's */
    uint32_t fd_count;
};

static void close_piece(struct piece *piece)
{
    for (uint32_t i = 0; i < piece->fd_count; i++)
        close(piece->fds[i]);
    piece->fd_count = 0;
}

/* Chunks from `first` on, as many as one message has. */
static int export_chunks(const struct hvi_cuda *cuda, const struct client_device_chunks *chunks,
                         uint32_t first, struct piece *piece)
{
    struct hvi_device_memory *memory = &piece->memory;
    bool is_fabric = memory->kind == HVI_DEVICE_FABRIC;
    int error = HVI_CU_OK, type = is_fabric ? HVI_CU_HANDLE_FABRIC : HVI_CU_HANDLE_FD;
    for (uint32_t i = 0; i < HVI_WIRE_CHUNKS_MAX && first + i < chunks->count; i++) {
        const struct client_device_chunk *chunk = &chunks->list[first + i];
        void *handle = is_fabric ? (void *)&piece->fabric[i] : &piece->fds[i];
        error = client_chunks_export(cuda, chunk, type, handle);
        if (error != HVI_CU_OK)
            break;
        piece->chunks[memory->chunk_count++] = chunk->bytes;
        piece->fd_count += !is_fabric;
    }
    memory->chunks = piece->chunks;
    memory->fabric = is_fabric ? piece->fabric[0].bytes : NULL;
    memory->fabric_bytes = is_fabric ? memory->chunk_count * HVI_WIRE_GPU_HANDLE : 0;
    return error;
}

static int export_pool(const struct hvi_cuda *cuda, const struct client_device_memory *memory,
                       struct piece *piece)
{
    struct hvi_cu_pool_pointer pointer;
    int error = cuda->pool_export_pointer(&pointer, memory->base);
    if (error == HVI_CU_OK)
        error = cuda->pool_export(&piece->fds[0], memory->pool, HVI_CU_HANDLE_FD, 0);
    if (error != HVI_CU_OK)
        return error;
    memcpy(piece->memory.handle, pointer.bytes, sizeof(pointer.bytes));
    piece->fd_count = 1;
    return error;
}

static int export(const struct hvi_cuda *cuda, const struct client_device_memory *memory,
                  uint32_t first, struct piece *piece)
{
    struct hvi_cu_ipc legacy;
    int error;
    switch (memory->handle) {
    case HVI_DEVICE_LEGACY:
        error = cuda->ipc_get(&legacy, memory->base);
        if (error == HVI_CU_OK)
            memcpy(piece->memory.handle, legacy.bytes, sizeof(legacy.bytes));
        return error;
    case HVI_DEVICE_VMM:
    case HVI_DEVICE_FABRIC:
        return export_chunks(cuda, memory->chunks, first, piece);
    default:
        return export_pool(cuda, memory, piece);
    }
}

/* The piece that begins with the chunk `first`. */
static int make_piece(struct client_device_memory *memory, uint32_t first, const char *what,
                      struct piece *piece_p)
{
    struct client_driver_scope scope;
    char text[64] = "libcuda is not there";
    *piece_p = (struct piece){.memory = {.address = memory->base,
                                         .bytes = memory->bytes,
                                         .buffer_id = memory->buffer_id,
                                         .kind = memory->handle,
                                         .registers = memory->registers}};
    memcpy(piece_p->memory.uuid, memory->uuid, sizeof(memory->uuid));
    int error = client_driver_enter(memory->device, &scope);
    if (error == HVI_CU_OK) {
        error = export(scope.cuda, memory, first, piece_p);
        client_driver_leave(&scope);
    }
    if (error == HVI_CU_OK)
        return HVD_OK;
    close_piece(piece_p);
    memory->kind = CLIENT_DEVICE_UNSHARED;
    if (scope.cuda)
        hvi_cuda_describe(scope.cuda, error, text, sizeof(text));
    return client_error(HVD_ERR_UNSUPPORTED,
                        "%s: %" PRIu64 " bytes of device memory at %#" PRIx64
                        " cannot be shared: %s",
                        what, memory->bytes, memory->base, text);
}

/* ---- the whole ---- */

static int check_engine(const struct client_device *device,
                        const struct client_device_memory *memory, const char *what)
{
    char gpu[HVI_GPU_UUID_TEXT];
    struct hvi_cu_uuid uuid;
    memcpy(uuid.bytes, memory->uuid, sizeof(uuid.bytes));
    hvi_gpu_uuid_format(&uuid, gpu);
    return client_control_check_devices(device->link, what, gpu);
}

/* A worker maps so many at a time. */
static int check_chunks(struct client_device_memory *memory, const char *what)
{
    if (!memory->chunks || memory->chunks->count <= HVI_DEVICE_CHUNKS_MAX)
        return HVD_OK;
    memory->kind = CLIENT_DEVICE_UNSHARED;
    return client_error(HVD_ERR_UNSUPPORTED,
                        "%s: a tensor at %#" PRIx64 " lies in more than %u chunks of device memory "
                        "(PyTorch: expandable_segments), and no worker maps more for one tensor; "
                        "submit it without a stream, so that it is copied",
                        what, memory->base, HVI_DEVICE_CHUNKS_MAX);
}

int client_device_announce(struct client_device *device, const char *what)
{
    pthread_mutex_lock(&device->making);
    client_control_lock(device->link);
    int rc = announce_page(device, what);
    client_control_unlock(device->link);
    pthread_mutex_unlock(&device->making);
    return rc;
}

static int send_piece(struct client_device *device, const struct piece *piece, bool more,
                      const char *what, uint32_t region)
{
    struct client_link *link = device->link;
    client_control_lock(link);
    int rc = client_control_device_add(link, region, &piece->memory, piece->fds, piece->fd_count,
                                       more, device->imported ? CLIENT_WORKER_NS : FIRST_NS, what);
    device->imported |= rc == HVD_OK && !more;
    client_control_unlock(link);
    return rc;
}

/* Further pieces cannot be made. */
static void give_up(struct client_device *device, uint32_t region)
{
    client_control_lock(device->link);
    client_control_region_forget(device->link, region);
    client_control_unlock(device->link);
}

/* All pieces; `piece` is the first one. Descriptors are there for one at a time. */
static int send_pieces(struct client_device *device, struct client_device_memory *memory,
                       struct piece *piece, const char *what, uint32_t region)
{
    uint32_t sent = 0, count = memory->chunks ? memory->chunks->count : 0;
    for (;;) {
        sent += (uint32_t)piece->memory.chunk_count;
        int rc = send_piece(device, piece, sent < count, what, region);
        close_piece(piece);
        if (rc != HVD_OK || sent >= count)
            return rc;
        rc = make_piece(memory, sent, what, piece);
        if (rc != HVD_OK) {
            give_up(device, region);
            return rc;
        }
    }
}

static int make_known(struct client_device *device, struct client_device_memory *memory,
                      const char *what, uint32_t *region_p)
{
    struct piece piece;
    int rc = check_engine(device, memory, what);
    if (rc == HVD_OK)
        rc = check_chunks(memory, what);
    if (rc == HVD_OK)
        rc = make_piece(memory, 0, what, &piece);
    if (rc != HVD_OK)
        return rc;
    rc = client_device_announce(device, what);
    if (rc != HVD_OK) {
        close_piece(&piece);
        return rc;
    }
    client_control_lock(device->link);
    uint32_t region = client_control_new_region(device->link);
    client_control_unlock(device->link);
    rc = send_pieces(device, memory, &piece, what, region);
    if (rc == HVD_OK)
        *region_p = region;
    return rc;
}

/* Whether a worker can open them is not known before it tries: it may lack the channel, the driver's call or be too old. */
static void give_fabric_up(struct client_device *device, struct client_device_memory *memory)
{
    client_control_lock(device->link);
    device->no_fabric = true;
    client_control_unlock(device->link);
    memory->kind = CLIENT_DEVICE_UNSHARED;
}

int client_device_register(struct client_device *device, struct client_device_memory *memory,
                           const char *what, uint32_t *region_p)
{
    int rc = make_known(device, memory, what, region_p);
    if ((rc == HVD_ERR_UNSUPPORTED || rc == HVD_ERR_INVALID) && memory->handle == HVI_DEVICE_FABRIC)
        give_fabric_up(device, memory);
    return rc;
}

/* ---- copies ---- */

/* Within the scope; in a stream of its own, because the default streams wait for others. */
static int copy(const struct hvi_cuda *cuda, void *host, uint64_t device_address, uint64_t bytes,
                bool in)
{
    hvi_cu_stream stream;
    int error = cuda->stream_create(&stream, HVI_CU_STREAM_NON_BLOCKING);
    if (error != HVI_CU_OK)
        return error;
    error = in ? cuda->copy_out(host, device_address, bytes, stream)
               : cuda->copy_in(device_address, host, bytes, stream);
    if (error == HVI_CU_OK)
        error = cuda->stream_synchronize(stream);
    cuda->stream_destroy(stream);
    return error;
}

static int staged(int ordinal, const char *what, void *host, const void *device_data,
                  uint64_t bytes, bool in)
{
    struct client_driver_scope scope;
    char text[64] = "libcuda is not there";
    int error = client_driver_enter(ordinal, &scope);
    if (error == HVI_CU_OK) {
        error = copy(scope.cuda, host, (uint64_t)(uintptr_t)device_data, bytes, in);
        client_driver_leave(&scope);
    }
    if (error == HVI_CU_OK)
        return HVD_OK;
    if (scope.cuda)
        hvi_cuda_describe(scope.cuda, error, text, sizeof(text));
    return client_error(error == HVI_CU_OUT_OF_MEMORY ? HVD_ERR_NO_MEMORY : HVD_ERR_UNSUPPORTED,
                        "%s: the copy of %" PRIu64 " bytes %s device memory at %p: %s", what, bytes,
                        in ? "of" : "to", device_data, text);
}

int client_device_copy_in(int ordinal, const char *what, void *host, const void *from,
                          uint64_t bytes)
{
    return staged(ordinal, what, host, from, bytes, true);
}

int client_device_copy_out(int ordinal, const char *what, void *to, const void *host,
                           uint64_t bytes)
{
    return staged(ordinal, what, (void *)(uintptr_t)host, to, bytes, false);
}
