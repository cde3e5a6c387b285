/* SPDX-License-Identifier: Apache-2.0
 * Memory pools.
 *
 * Rules. A pool that was not made exportable is not exported, nor are its pointers; an imported pool gives no memory (cuda.h). The
 * importer frees a pointer before the exporter does: else a fault of the test (cuda.h). cuMemFreeAsync is the stream's work. An
 * imported pool has no access before cuMemPoolSetAccess, so that it is called (cuda.h). */
#include "tests/fakegpu/table.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

struct pool {
    bool is_imported, is_exportable, is_accessible;
    int device;
};

struct pointer { /* a hvi_cu_pool_pointer */
    int pid, fd;
    uint64_t bytes;
};

int cu_pool_create(void **pool_p, const struct fake_pool_properties *properties)
{
    const int error = fake_ready();
    struct hvi_cu_context *context = fake_context_of(properties->location.id);

    if (error != HVI_CU_OK || properties->type != 1 || properties->location.type != 1 ||
        context == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    struct pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL)
        return HVI_CU_OUT_OF_MEMORY;
    *pool = (struct pool){.is_exportable = properties->handle_types == HVI_CU_HANDLE_FD,
                          .is_accessible = true,
                          .device = context->physical};
    *pool_p = pool;
    return HVI_CU_OK;
}

int cu_pool_destroy(void *pool)
{
    free(pool);
    return fake_ready();
}

int cu_pool_alloc(hvi_cu_ptr *address_p, size_t bytes, void *handle, hvi_cu_stream stream)
{
    struct pool *pool = handle;
    struct hvi_cu_stream *found;
    int error = fake_stream_find(stream, &found);

    if (error != HVI_CU_OK || pool->is_imported || pool->device != fake_context()->physical)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    error = fake_allocate(address_p, bytes, RANGE_POOLED);
    if (error == HVI_CU_OK)
        fake_range_find(*address_p, RANGE_POOLED)->owner = pool;
    return error;
}

static void run_free(void *data)
{
    struct range *range = *(struct range **)data;

    fake_check_importers(range, "cuMemFreeAsync");
    const struct range was = fake_range_drop(range, "cuMemFreeAsync", true);
    munmap(was.base, was.bytes);
    close(was.fd);
    fake_give_back(was.device, was.bytes);
}

int cu_pool_free(hvi_cu_ptr address, hvi_cu_stream stream)
{
    const int error = fake_ready();
    struct range *range = fake_range_find(address, RANGE_POOLED);

    if (error != HVI_CU_OK || range == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    return fake_enqueue(stream, run_free, &range, sizeof(range), NULL, 0);
}

int cu_pool_export(void *fd_p, void *handle, int type, uint64_t flags)
{
    const int error = fake_ready();
    struct pool *pool = handle;

    if (error != HVI_CU_OK || flags != 0 || type != HVI_CU_HANDLE_FD || !pool->is_exportable)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    *(int *)fd_p = fake_memfd("pool", pool->device, 0);
    return HVI_CU_OK;
}

int cu_pool_import(void **pool_p, void *fd, int type, uint64_t flags)
{
    const int error = fake_ready(), device = fake_memfd_device((int)(intptr_t)fd, "pool");

    if (error != HVI_CU_OK || flags != 0 || type != HVI_CU_HANDLE_FD || device < 0)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    fake_may_synchronize("open");
    struct pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL)
        return HVI_CU_OUT_OF_MEMORY;
    *pool = (struct pool){.is_imported = true, .device = device};
    *pool_p = pool;
    return HVI_CU_OK;
}

int cu_pool_access_get(int *flags_p, void *handle, const struct hvi_cu_location *location)
{
    struct pool *pool = handle;

    *flags_p = pool->is_accessible ? FAKE_READ_WRITE : 0;
    return location->type == 1 ? fake_ready() : HVI_CU_INVALID_VALUE;
}

int cu_pool_access_set(void *handle, const struct hvi_cu_access *access, size_t count)
{
    struct pool *pool = handle;

    if (count != 1 || access->flags != FAKE_READ_WRITE || access->location.type != 1)
        return HVI_CU_INVALID_VALUE;
    pool->is_accessible = true;
    return fake_ready();
}

int cu_pool_export_pointer(struct hvi_cu_pool_pointer *data_p, hvi_cu_ptr address)
{
    const int error = fake_ready();
    struct range *range = fake_range_find(address, RANGE_POOLED);

    if (error != HVI_CU_OK || range == NULL || !((struct pool *)range->owner)->is_exportable)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    struct pointer pointer = {getpid(), range->fd, range->bytes};
    *data_p = (struct hvi_cu_pool_pointer){{0}};
    memcpy(data_p, &pointer, sizeof(pointer));
    range->is_shared = true;
    return HVI_CU_OK;
}

int cu_pool_import_pointer(hvi_cu_ptr *address_p, void *handle, struct hvi_cu_pool_pointer *data)
{
    const int error = fake_ready();
    struct pool *pool = handle;
    struct pointer pointer;

    memcpy(&pointer, data, sizeof(pointer));
    if (error != HVI_CU_OK || !pool->is_imported || !pool->is_accessible)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    fake_may_synchronize("open");
    if (!fake_take(pool->device, 0))
        return HVI_CU_OUT_OF_MEMORY;
    int fd = pointer.pid == getpid() ? -1 : fake_open_exported(pointer.pid, pointer.fd);
    void *base = fd < 0 ? NULL : fake_map(fd, pointer.bytes);
    if (base == NULL) {
        close(fd);
        return HVI_CU_INVALID_VALUE;
    }
    fake_range_add(RANGE_POOL_IMPORTED, base, pointer.bytes, fd, pool->device);
    *address_p = (uintptr_t)base;
    return HVI_CU_OK;
}
