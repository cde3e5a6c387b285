/* SPDX-License-Identifier: Apache-2.0
 * Device memory, host memory, what a pointer is, and copies.
 *
 * Rules. Freeing what another process has open is a fault of the test (cuda.h: undefined; P3), seen by a lock that importers hold
 * on the memfd. Registered twice: an error (cuda.h). cuPointerGetAttributes knows no error for a foreign pointer: all is 0, the
 * device -2 (cuda.h). Memory of VMM and of pools is not for legacy handles (section 1.1). */
#include "tests/fakegpu/table.h"

#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

int fake_allocate(hvi_cu_ptr *address_p, size_t bytes, unsigned kind)
{
    const int error = fake_ready();

    if (error != HVI_CU_OK || bytes == 0)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    fake_await_closes();
    fake_may_synchronize("alloc");
    const int device = fake_context()->physical;
    if (!fake_take(device, bytes))
        return HVI_CU_OUT_OF_MEMORY;
    int fd = fake_memfd("memory", device, bytes);
    void *base = fd < 0 ? NULL : fake_map(fd, bytes);
    if (base == NULL) {
        close(fd);
        fake_give_back(device, bytes);
        return HVI_CU_OUT_OF_MEMORY;
    }
    fake_range_add(kind, base, bytes, fd, device);
    *address_p = (uintptr_t)base;
    return HVI_CU_OK;
}

int cu_alloc(hvi_cu_ptr *address_p, size_t bytes)
{
    return fake_allocate(address_p, bytes, RANGE_ALLOCATED);
}

int cu_alloc_managed(hvi_cu_ptr *address_p, size_t bytes, unsigned flags)
{
    return flags != 1 ? HVI_CU_INVALID_VALUE : fake_allocate(address_p, bytes, RANGE_MANAGED);
}

/* Importers hold a shared lock. */
void fake_check_importers(const struct range *range, const char *call)
{
    if (!range->is_shared || fake_says("free", "keeps"))
        return;
    if (flock(range->fd, LOCK_EX | LOCK_NB) != 0)
        fake_blame("%s of %p while another process has it open", call, (void *)range->base);
}

static int free_range(struct range *range, const char *call)
{
    fake_check_importers(range, call);
    const struct range was = fake_range_drop(range, call, true);
    munmap(was.base, was.bytes);
    close(was.fd);
    if (was.kind != RANGE_POOL_IMPORTED)
        fake_give_back(was.device, was.bytes);
    return HVI_CU_OK;
}

int cu_free(hvi_cu_ptr address)
{
    int error = fake_ready();

    if (error != HVI_CU_OK || address == 0)
        return error;
    fake_close_waits();
    struct range *range =
        fake_range_find(address, RANGE_ALLOCATED | RANGE_MANAGED | RANGE_POOL_IMPORTED);
    if (range == NULL || (uintptr_t)range->base != address)
        return HVI_CU_INVALID_VALUE;
    return free_range(range, "cuMemFree");
}

int cu_memory_info(size_t *free_p, size_t *total_p)
{
    const int error = fake_ready();

    if (error != HVI_CU_OK)
        return error;
    *total_p = fake_device_memory();
    *free_p = fake_free_bytes(fake_context()->physical);
    return HVI_CU_OK;
}

int cu_address_range(hvi_cu_ptr *base_p, size_t *bytes_p, hvi_cu_ptr address)
{
    const int error = fake_ready();
    struct range *range = fake_range_find(address, RANGE_DEVICE);

    if (error != HVI_CU_OK || range == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_NOT_FOUND;
    const size_t around = range->kind == RANGE_IMPORTED && fake_says("ranges", "block") ? 4096 : 0;
    if (base_p != NULL)
        *base_p = (uintptr_t)range->base - around;
    if (bytes_p != NULL)
        *bytes_p = range->bytes + 2 * around;
    return HVI_CU_OK;
}

/* --- what a pointer is --- */

static int ordinal_of(int physical)
{
    for (int i = 0; i < FAKE_DEVICES; i++) {
        struct hvi_cu_context *context = fake_context_of(i);
        if (context != NULL && context->physical == physical)
            return i;
    }
    return -2;
}

/* range NULL: of no pointer of ours. False: no such attribute. */
static bool attribute(const struct range *range, int what, void *value_p)
{
    const unsigned kind = range == NULL ? 0 : range->kind;
    const bool is_host = (kind & (RANGE_HOST | RANGE_HOST_OWN)) != 0;

    switch (what) {
    case HVI_CU_POINTER_MEMORY_TYPE:
        *(int *)value_p = range == NULL ? 0 : is_host ? FAKE_MEMORY_HOST : HVI_CU_MEMORY_DEVICE;
        return true;
    case HVI_CU_POINTER_BUFFER_ID:
        *(uint64_t *)value_p = range == NULL ? 0 : range->id;
        return true;
    case HVI_CU_POINTER_IS_MANAGED:
        *(int *)value_p = kind == RANGE_MANAGED;
        return true;
    case HVI_CU_POINTER_DEVICE:
        *(int *)value_p = range == NULL ? -2 : is_host ? 0 : ordinal_of(range->device);
        return true;
    case HVI_CU_POINTER_LEGACY_IPC:
        *(int *)value_p = kind == RANGE_ALLOCATED;
        return true;
    case HVI_CU_POINTER_RANGE_START:
        *(hvi_cu_ptr *)value_p = range == NULL ? 0 : (uintptr_t)range->base;
        return true;
    case HVI_CU_POINTER_RANGE_SIZE:
        *(size_t *)value_p = range == NULL ? 0 : range->bytes;
        return true;
    case HVI_CU_POINTER_MAPPED:
        *(int *)value_p = range != NULL && (kind != RANGE_MAPPED || range->is_accessible);
        return true;
    case HVI_CU_POINTER_HANDLE_TYPES:
        *(uint64_t *)value_p = kind == RANGE_MAPPED ? (uint64_t)range->handle_types : 0;
        return true;
    case HVI_CU_POINTER_MEMPOOL:
        *(void **)value_p = kind == RANGE_POOLED ? range->owner : NULL;
        return true;
    default:
        return false;
    }
}

int cu_pointer_attributes(unsigned count, int *attributes, void **values, hvi_cu_ptr address)
{
    const int error = fake_ready();
    struct range *range = fake_range_find(address, RANGE_USABLE);

    for (unsigned i = 0; error == HVI_CU_OK && i < count; i++) {
        if (!attribute(range, attributes[i], values[i]))
            return HVI_CU_INVALID_VALUE;
    }
    return error;
}

int cu_pointer_attribute(void *value_p, int what, hvi_cu_ptr address)
{
    const int error = fake_ready();
    struct range *range = fake_range_find(address, RANGE_USABLE);

    if (error != HVI_CU_OK)
        return error;
    return range != NULL && attribute(range, what, value_p) ? HVI_CU_OK : HVI_CU_INVALID_VALUE;
}

/* --- host memory --- */

int cu_host_alloc(void **address_p, size_t bytes, unsigned flags)
{
    const int error = fake_ready();
    int fd = error == HVI_CU_OK ? fake_memfd("host", -1, bytes) : -1;
    void *base = fd < 0 ? NULL : fake_map(fd, bytes);

    (void)flags;
    if (base == NULL) {
        close(fd);
        return error != HVI_CU_OK ? error : HVI_CU_OUT_OF_MEMORY;
    }
    fake_range_add(RANGE_HOST_OWN, base, bytes, fd, -1);
    *address_p = base;
    return HVI_CU_OK;
}

int cu_host_free(void *address)
{
    const int error = fake_ready();
    struct range *range = fake_range_find((uintptr_t)address, RANGE_HOST_OWN);

    if (error != HVI_CU_OK || range == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    const struct range was = fake_range_drop(range, "cuMemFreeHost", true);
    munmap(was.base, was.bytes);
    close(was.fd);
    return HVI_CU_OK;
}

int cu_host_register(void *address, size_t bytes, unsigned flags)
{
    const int error = fake_ready();

    if (error != HVI_CU_OK)
        return error;
    if (bytes == 0 || (flags & ~(unsigned)(HVI_CU_HOST_PORTABLE | HVI_CU_HOST_DEVICEMAP)) != 0)
        return HVI_CU_INVALID_VALUE;
    if (fake_is_captured())
        return FAKE_CAPTURE_UNSUPPORTED;
    fake_await_closes();
    if (fake_range_overlap((uintptr_t)address, bytes, RANGE_USABLE) != NULL)
        return FAKE_ALREADY_REGISTERED;
    if (fake_fault_from_now("no-register"))
        return HVI_CU_OUT_OF_MEMORY;
    fake_range_add(RANGE_HOST, address, bytes, -1, -1);
    return HVI_CU_OK;
}

int cu_host_unregister(void *address)
{
    const int error = fake_ready();
    struct range *range = fake_range_find((uintptr_t)address, RANGE_HOST);

    if (error != HVI_CU_OK || range == NULL || range->base != address)
        return error != HVI_CU_OK ? error : FAKE_NOT_REGISTERED;
    if (fake_is_captured())
        return FAKE_CAPTURE_UNSUPPORTED;
    fake_check_unused(range, "cuMemHostUnregister");
    fake_close_waits();
    fake_range_drop(range, "cuMemHostUnregister", false);
    return HVI_CU_OK;
}

int cu_host_pointer(hvi_cu_ptr *address_p, void *host, unsigned flags)
{
    const int error = fake_ready();

    if (error != HVI_CU_OK || flags != 0 ||
        fake_range_find((uintptr_t)host, RANGE_HOST | RANGE_HOST_OWN) == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    *address_p = (uintptr_t)host;
    return HVI_CU_OK;
}

/* --- copies --- */

struct copy {
    void *to;
    const void *from;
    size_t bytes;
    int value;
};

static void run_copy(void *data)
{
    struct copy *copy = data;
    fake_copy(copy->to, copy->from, copy->value, copy->bytes);
}

/* Spans: the sides that lie on a device. */
static int copy(hvi_cu_stream stream, uint64_t to, const void *from, int value, size_t bytes,
                bool is_to_device, bool is_from_device)
{
    struct copy all = {(void *)(uintptr_t)to, from, bytes, value};
    struct fakegpu_span spans[2];
    size_t count = 0;

    if (is_to_device)
        spans[count++] = (struct fakegpu_span){to, bytes};
    if (is_from_device)
        spans[count++] = (struct fakegpu_span){(uintptr_t)from, bytes};
    return fake_enqueue_copy(stream, run_copy, &all, sizeof(all), spans, count);
}

int cu_copy_in(hvi_cu_ptr to, const void *from, size_t bytes, hvi_cu_stream stream)
{
    return copy(stream, to, from, 0, bytes, true, false);
}

int cu_copy_out(void *to, hvi_cu_ptr from, size_t bytes, hvi_cu_stream stream)
{
    return copy(stream, (uintptr_t)to, (void *)(uintptr_t)from, 0, bytes, false, true);
}

int cu_copy(hvi_cu_ptr to, hvi_cu_ptr from, size_t bytes, hvi_cu_stream stream)
{
    return copy(stream, to, (void *)(uintptr_t)from, 0, bytes, true, true);
}

int cu_memset8(hvi_cu_ptr to, unsigned char value, size_t bytes, hvi_cu_stream stream)
{
    if (fake_fault_now("broken-clear"))
        return HVI_CU_ILLEGAL_ADDRESS;
    return copy(stream, to, NULL, value, bytes, true, false);
}
