/* SPDX-License-Identifier: Apache-2.0
 * An allocation becomes known to the engine, which has its worker open it.
 *
 * The whole allocation is told, never a tensor: a handle opens all of it. Handles are made anew for each
 * registration; whether an allocation is another one than before is told by BUFFER_ID alone. Descriptors
 * are closed here when they have been sent. */
#include "client/device/device.h"

#include "base/clock.h"
#include "base/status.h"
#include "client/error.h"
#include "client/link/control.h"
#include "hvd/hvd.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define FIRST_NS   (30 * HVI_NS_SEC) /* a worker starts */
#define LATER_NS   (5 * HVI_NS_SEC)
#define CHUNKS_MAX 4096u /* of a reservation, in one registration */

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
        hvi_fence_poison(&device->page, false);
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

/* What is sent of an allocation. */
struct handle {
    struct hvi_device_memory memory;
    int *fds; /* one for each chunk, or a pool's */
    uint32_t fd_count;
};

static void close_handle(struct handle *handle)
{
    for (uint32_t i = 0; i < handle->fd_count; i++)
        close(handle->fds[i]);
    free(handle->fds);
    free(handle->memory.chunks);
}

static bool add_chunk(struct handle *handle, int fd, uint64_t bytes)
{
    uint32_t room = handle->fd_count + 1;
    int *fds = realloc(handle->fds, room * sizeof(fds[0]));
    if (fds)
        handle->fds = fds;
    uint64_t *chunks = realloc(handle->memory.chunks, room * sizeof(chunks[0]));
    if (chunks)
        handle->memory.chunks = chunks;
    if (!fds || !chunks)
        return false;
    handle->fds[handle->fd_count++] = fd;
    handle->memory.chunks[handle->memory.chunk_count++] = bytes;
    return true;
}

/* One physical chunk of a reservation: from `at` to the end of its mapping. */
static int export_chunk(const struct hvi_cuda *cuda, uint64_t at, struct handle *handle,
                        uint64_t *end_p)
{
    hvi_cu_allocation allocation;
    hvi_cu_ptr base = 0;
    size_t bytes = 0;
    int fd = -1;
    int error = cuda->address_range(&base, &bytes, at);
    if (error == HVI_CU_OK && (base != at || bytes == 0))
        error =
            HVI_CU_NOT_SUPPORTED; /* mapped from its middle on: an importer cannot do the same */
    if (error == HVI_CU_OK)
        error = cuda->retain(&allocation, (void *)(uintptr_t)at);
    if (error != HVI_CU_OK)
        return error;
    error = cuda->export_fd(&fd, allocation, HVI_CU_HANDLE_FD, 0);
    cuda->allocation_release(allocation);
    if (error != HVI_CU_OK)
        return error;
    *end_p = base + bytes;
    if (add_chunk(handle, fd, bytes))
        return HVI_CU_OK;
    close(fd);
    return HVI_CU_OUT_OF_MEMORY;
}

static int export_chunks(const struct hvi_cuda *cuda, const struct client_device_memory *memory,
                         struct handle *handle)
{
    uint64_t at = memory->base, end = memory->base + memory->bytes;
    int error = HVI_CU_OK;
    while (error == HVI_CU_OK && at < end) {
        if (handle->fd_count == CHUNKS_MAX)
            return HVI_CU_NOT_SUPPORTED;
        error = export_chunk(cuda, at, handle, &at);
    }
    return error;
}

static int export_pool(const struct hvi_cuda *cuda, const struct client_device_memory *memory,
                       struct handle *handle)
{
    struct hvi_cu_pool_pointer pointer;
    int fd = -1;
    int error = cuda->pool_export_pointer(&pointer, memory->base);
    if (error == HVI_CU_OK)
        error = cuda->pool_export(&fd, memory->pool, HVI_CU_HANDLE_FD, 0);
    if (error != HVI_CU_OK)
        return error;
    memcpy(handle->memory.handle, pointer.bytes, sizeof(pointer.bytes));
    handle->fds = malloc(sizeof(handle->fds[0]));
    if (!handle->fds) {
        close(fd);
        return HVI_CU_OUT_OF_MEMORY;
    }
    handle->fds[0] = fd;
    handle->fd_count = 1;
    return error;
}

static int export(const struct hvi_cuda *cuda, const struct client_device_memory *memory,
                  struct handle *handle)
{
    struct hvi_cu_ipc legacy;
    int error;
    switch (memory->handle) {
    case HVI_DEVICE_LEGACY:
        error = cuda->ipc_get(&legacy, memory->base);
        if (error == HVI_CU_OK)
            memcpy(handle->memory.handle, legacy.bytes, sizeof(legacy.bytes));
        return error;
    case HVI_DEVICE_VMM:
        return export_chunks(cuda, memory, handle);
    default:
        return export_pool(cuda, memory, handle);
    }
}

static int make_handle(struct client_device_memory *memory, const char *what,
                       struct handle *handle_p)
{
    struct client_driver_scope scope;
    char text[64] = "libcuda is not there";
    *handle_p = (struct handle){.memory = {.address = memory->base,
                                           .bytes = memory->bytes,
                                           .buffer_id = memory->buffer_id,
                                           .kind = memory->handle}};
    memcpy(handle_p->memory.uuid, memory->uuid, sizeof(memory->uuid));
    int error = client_driver_enter(memory->device, &scope);
    if (error == HVI_CU_OK) {
        error = export(scope.cuda, memory, handle_p);
        client_driver_leave(&scope);
    }
    if (error == HVI_CU_OK)
        return HVD_OK;
    close_handle(handle_p);
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

static int announce(struct client_device *device, const struct handle *handle, const char *what,
                    uint32_t *region_p)
{
    struct client_link *link = device->link;
    client_control_lock(link);
    int rc = announce_page(device, what);
    if (rc == HVD_OK)
        rc = client_control_device_add(link, &handle->memory, handle->fds, handle->fd_count,
                                       device->imported ? LATER_NS : FIRST_NS, what, region_p);
    device->imported |= rc == HVD_OK;
    client_control_unlock(link);
    return rc;
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

int client_device_register(struct client_device *device, struct client_device_memory *memory,
                           const char *what, uint32_t *region_p)
{
    struct handle handle;
    int rc = check_engine(device, memory, what);
    if (rc == HVD_OK)
        rc = make_handle(memory, what, &handle);
    if (rc != HVD_OK)
        return rc;
    pthread_mutex_lock(&device->making);
    rc = announce(device, &handle, what, region_p);
    pthread_mutex_unlock(&device->making);
    close_handle(&handle);
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
