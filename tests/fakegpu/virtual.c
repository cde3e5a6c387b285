/* SPDX-License-Identifier: Apache-2.0
 * Virtual memory management: physical memory, reservations, mappings, descriptors, fabric handles.
 *
 * Rules. Sizes and addresses are multiples of 2 MiB (cuda.h). A mapping keeps the physical memory, its handle need not (section
 * 1.2). It is not accessible before cuMemSetAccess for this device, and not for a device without peer access to that of the memory
 * (cuda.h). What was not made exportable is not exported; a descriptor that is none of the driver's is refused (cuda.h; P7). A
 * mapping is all of its memory, and is unmapped as a whole (cuda.h). A reservation with mappings is not freed (cuda.h). The address
 * range and BUFFER_ID of an address are those of its mapping, not of the reservation (NCCL 2.28.9 alloc.h; UCX PR 11283; P7). An
 * exporter may unmap what others have mapped: the memory stays until the last has unmapped it (cuda.h, cuMemRelease).
 *
 * Of fabric handles, which are bytes: only of memory that was created for them; a device without them says so by its attribute and
 * by NOT_SUPPORTED, and a process without the IMEX channel by NOT_PERMITTED (cuda.h, cuMemCreate and cuMemImportFromShareableHandle;
 * NCCL 2.28.9 alloc.h and PyTorch's allocator fall back to descriptors at either). Such a handle keeps nothing: once the memory is
 * gone it opens nothing (cuda.h says it of "all shareable handles are closed", and these are never closed). */
#include "tests/fakegpu/table.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define UNIT        ((size_t)2 << 20)
#define RECOMMENDED ((size_t)512 << 20) /* of a multicast object; other than the minimum (cuda.h) */

struct physical { /* what a hvi_cu_allocation points to */
    struct physical *next;
    int fd, device, references, handle_types;
    bool is_own;
    size_t bytes;
};

struct fabric { /* a hvi_cu_fabric; no byte is left to chance */
    int pid, fd, device, zero;
    uint64_t inode, bytes;
};
_Static_assert(sizeof(struct fabric) <= sizeof(struct hvi_cu_fabric), "fits");

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct physical *all;

static struct physical *add(int fd, int device, size_t bytes, bool is_own, int handle_types)
{
    struct physical *physical = calloc(1, sizeof(*physical));

    if (physical == NULL)
        fake_blame("no memory for an allocation");
    pthread_mutex_lock(&lock);
    *physical = (struct physical){.next = all,
                                  .fd = fd,
                                  .device = device,
                                  .references = 1,
                                  .handle_types = handle_types,
                                  .is_own = is_own,
                                  .bytes = bytes};
    all = physical;
    pthread_mutex_unlock(&lock);
    return physical;
}

/* One more reference, or NULL: no handle of ours. */
static struct physical *get(hvi_cu_allocation handle)
{
    struct physical *physical;

    pthread_mutex_lock(&lock);
    for (physical = all; physical != NULL && (uintptr_t)physical != handle;)
        physical = physical->next;
    if (physical != NULL)
        physical->references++;
    pthread_mutex_unlock(&lock);
    return physical;
}

static void put(struct physical *physical)
{
    pthread_mutex_lock(&lock);
    const bool is_last = --physical->references == 0;
    for (struct physical **at = &all; is_last && *at != NULL; at = &(*at)->next) {
        if (*at == physical) {
            *at = physical->next;
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (!is_last)
        return;
    close(physical->fd);
    if (physical->is_own)
        fake_give_back(physical->device, physical->bytes);
    free(physical);
}

int cu_granularity(size_t *bytes_p, const struct hvi_cu_allocation_properties *properties,
                   int option)
{
    (void)properties, (void)option;
    *bytes_p = UNIT;
    return fake_ready();
}

int cu_multicast_granularity(size_t *bytes_p, const struct hvi_cu_multicast_properties *properties,
                             int option)
{
    const int error = fake_ready();

    if (error == HVI_CU_OK && !fake_says("multicast", "on"))
        return HVI_CU_NOT_SUPPORTED;
    if (error == HVI_CU_OK && (properties->devices == 0 || properties->flags != 0))
        return HVI_CU_INVALID_VALUE;
    *bytes_p = option == HVI_CU_GRANULARITY_MINIMUM ? UNIT : RECOMMENDED;
    return error;
}

/* Whether this process may use fabric handles now; else the error. */
static int fabric_error(void)
{
    if (fake_fault("no-fabric") != 0)
        return HVI_CU_NOT_SUPPORTED;
    return fake_fault_from_now("no-imex") ? HVI_CU_NOT_PERMITTED : HVI_CU_OK;
}

int cu_create(hvi_cu_allocation *handle_p, size_t bytes,
              const struct hvi_cu_allocation_properties *properties, uint64_t flags)
{
    struct hvi_cu_context *context = fake_context_of(properties->location.id);
    int error = fake_ready();

    if (error == HVI_CU_OK && (properties->handle_types & HVI_CU_HANDLE_FABRIC))
        error = fabric_error();
    if (error != HVI_CU_OK || flags != 0 || bytes == 0 || bytes % UNIT != 0 ||
        properties->type != 1 || properties->location.type != 1 || context == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    if (!fake_take(context->physical, bytes))
        return HVI_CU_OUT_OF_MEMORY;
    int fd = fake_memfd("physical", context->physical, bytes);
    if (fd < 0) {
        fake_give_back(context->physical, bytes);
        return HVI_CU_OUT_OF_MEMORY;
    }
    *handle_p = (uintptr_t)add(fd, context->physical, bytes, true, properties->handle_types);
    return HVI_CU_OK;
}

int cu_allocation_release(hvi_cu_allocation handle)
{
    const int error = fake_ready();
    struct physical *physical = get(handle);

    if (error != HVI_CU_OK || physical == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    put(physical);
    put(physical);
    return HVI_CU_OK;
}

static int export_fabric(void *exported_p, const struct physical *physical)
{
    const int error = fabric_error();
    struct stat seen;

    if (error != HVI_CU_OK || fstat(physical->fd, &seen) != 0)
        return error != HVI_CU_OK ? error : FAKE_UNKNOWN;
    const struct fabric fabric = {getpid(), physical->fd, physical->device,
                                  0,        seen.st_ino,  physical->bytes};
    memset(exported_p, 0, sizeof(struct hvi_cu_fabric));
    memcpy(exported_p, &fabric, sizeof(fabric));
    return HVI_CU_OK;
}

static int export_by(int type, void *exported_p, const struct physical *physical)
{
    if ((type != HVI_CU_HANDLE_FD && type != HVI_CU_HANDLE_FABRIC) ||
        (physical->handle_types & type) == 0)
        return HVI_CU_INVALID_VALUE;
    if (type == HVI_CU_HANDLE_FABRIC)
        return export_fabric(exported_p, physical);
    *(int *)exported_p = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
    return HVI_CU_OK;
}

int cu_export_handle(void *exported_p, hvi_cu_allocation handle, int type, uint64_t flags)
{
    const int error = fake_ready();
    struct physical *physical = get(handle);

    if (error != HVI_CU_OK || physical == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    const int result = flags == 0 ? export_by(type, exported_p, physical) : HVI_CU_INVALID_VALUE;
    put(physical);
    return result;
}

/* A descriptor of our own, of physical memory; or -1. `inode`: of that memory, 0: of any. */
static int keep(int fd, uint64_t inode, int *device_p, size_t *bytes_p)
{
    struct stat seen;

    *device_p = fake_memfd_device(fd, "physical");
    if (*device_p < 0 || fstat(fd, &seen) != 0 || (inode != 0 && seen.st_ino != inode))
        return -1;
    *bytes_p = (size_t)seen.st_size;
    return fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static int keep_fabric(const void *exported, int *device_p, size_t *bytes_p)
{
    struct fabric fabric;

    memcpy(&fabric, exported, sizeof(fabric));
    int fd = fake_open_exported(fabric.pid, fabric.fd);
    int own = keep(fd, fabric.inode, device_p, bytes_p);
    if (fd >= 0)
        close(fd);
    return own;
}

int cu_import_handle(hvi_cu_allocation *handle_p, void *exported, int type)
{
    const bool is_fabric = type == HVI_CU_HANDLE_FABRIC;
    int error = fake_ready(), own = -1, device;
    size_t bytes;

    if (error == HVI_CU_OK && is_fabric)
        error = fabric_error();
    if (error == HVI_CU_OK && is_fabric)
        own = keep_fabric(exported, &device, &bytes);
    else if (error == HVI_CU_OK && type == HVI_CU_HANDLE_FD)
        own = keep((int)(intptr_t)exported, 0, &device, &bytes);
    if (own < 0)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    if (fake_fault_from_now("no-memory")) {
        close(own);
        return HVI_CU_OUT_OF_MEMORY;
    }
    *handle_p = (uintptr_t)add(own, device, bytes, false, type);
    return HVI_CU_OK;
}

int cu_retain(hvi_cu_allocation *handle_p, void *address)
{
    const int error = fake_ready();
    struct range *range = fake_range_find((uintptr_t)address, RANGE_MAPPED);

    if (error != HVI_CU_OK || range == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    *handle_p = (uintptr_t)get((uintptr_t)range->owner);
    return HVI_CU_OK;
}

/* --- addresses --- */

/* Addresses at a multiple of UNIT, or MAP_FAILED. */
static char *reserve(size_t bytes)
{
    char *found =
        mmap(NULL, bytes + UNIT, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (found == MAP_FAILED)
        return found;
    const size_t skipped = -(uintptr_t)found % UNIT;
    if (skipped > 0)
        munmap(found, skipped);
    munmap(found + skipped + bytes, UNIT - skipped);
    return found + skipped;
}

int cu_reserve(hvi_cu_ptr *address_p, size_t bytes, size_t alignment, hvi_cu_ptr at, uint64_t flags)
{
    const int error = fake_ready();
    char *base;

    (void)at; /* a wish (cuda.h) */
    if (error != HVI_CU_OK || flags != 0 || bytes == 0 || bytes % UNIT != 0 || alignment > UNIT)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    base = reserve(bytes);
    if (base == MAP_FAILED)
        return HVI_CU_OUT_OF_MEMORY;
    fake_range_add(RANGE_RESERVED, base, bytes, -1, fake_context()->physical);
    *address_p = (uintptr_t)base;
    return HVI_CU_OK;
}

int cu_unreserve(hvi_cu_ptr address, size_t bytes)
{
    const int error = fake_ready();
    struct range *range = fake_range_find(address, RANGE_RESERVED);

    if (error != HVI_CU_OK || range == NULL || (uintptr_t)range->base != address ||
        range->bytes != bytes || fake_range_overlap(address, bytes, RANGE_MAPPED) != NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    const struct range was = fake_range_drop(range, "cuMemAddressFree", false);
    munmap(was.base, was.bytes);
    return HVI_CU_OK;
}

/* Whether these addresses are reserved, and not mapped. */
static bool is_free(hvi_cu_ptr address, size_t bytes)
{
    struct range *range = fake_range_find(address, RANGE_RESERVED);

    return range != NULL && bytes <= fake_range_left(range, address) &&
           fake_range_overlap(address, bytes, RANGE_MAPPED) == NULL;
}

int cu_map(hvi_cu_ptr address, size_t bytes, size_t offset, hvi_cu_allocation handle,
           uint64_t flags)
{
    const int error = fake_ready();
    struct physical *physical = get(handle);
    void *base = MAP_FAILED;

    if (error != HVI_CU_OK || physical == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    fake_may_synchronize("open");
    if (offset == 0 && flags == 0 && bytes == physical->bytes && address % UNIT == 0 &&
        is_free(address, bytes))
        base = mmap((void *)(uintptr_t)address, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED,
                    physical->fd, 0);
    if (base == MAP_FAILED) {
        put(physical);
        return HVI_CU_INVALID_VALUE;
    }
    struct range *range = fake_range_add(RANGE_MAPPED, base, bytes, -1, physical->device);
    range->owner = physical; /* with the reference */
    range->is_shared = physical->handle_types != 0;
    range->handle_types = physical->handle_types;
    return HVI_CU_OK;
}

static bool has_access(const struct hvi_cu_access *access, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (access[i].location.type == 1 && access[i].flags == FAKE_READ_WRITE &&
            access[i].location.id == fake_context()->ordinal)
            return true;
    }
    return false;
}

/* The mapping that begins at the address and ends by the end, or NULL. */
static struct range *mapping(hvi_cu_ptr address, hvi_cu_ptr end)
{
    struct range *range = fake_range_find(address, RANGE_MAPPED);

    return range != NULL && (uintptr_t)range->base == address && address + range->bytes <= end
               ? range
               : NULL;
}

/* Whether this device may use the memory of each mapping there. */
static bool is_reachable(hvi_cu_ptr address, hvi_cu_ptr end)
{
    const int here = fake_context()->physical;

    for (struct range *range; address < end; address += range->bytes) {
        range = mapping(address, end);
        if (range->device != here && !fake_linked(here, range->device))
            return false;
    }
    return true;
}

/* Whether mappings fill these addresses, from the first to the last. */
static bool is_mapped(hvi_cu_ptr address, hvi_cu_ptr end)
{
    while (address < end) {
        struct range *range = mapping(address, end);
        if (range == NULL)
            return false;
        address += range->bytes;
    }
    return true;
}

int cu_set_access(hvi_cu_ptr address, size_t bytes, const struct hvi_cu_access *access,
                  size_t count)
{
    const int error = fake_ready();
    const hvi_cu_ptr end = address + bytes;

    if (error != HVI_CU_OK || !is_mapped(address, end))
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    fake_may_synchronize("open");
    if (!has_access(access, count))
        return HVI_CU_OK; /* another device's */
    if (!is_reachable(address, end))
        return FAKE_PEERS_UNSUPPORTED;
    if (mprotect((void *)(uintptr_t)address, bytes, PROT_READ | PROT_WRITE) != 0)
        return HVI_CU_INVALID_VALUE;
    for (hvi_cu_ptr at = address; at < end;) {
        struct range *range = mapping(at, end);
        range->is_accessible = true;
        at += range->bytes;
    }
    return HVI_CU_OK;
}

int cu_unmap(hvi_cu_ptr address, size_t bytes)
{
    const int error = fake_ready();
    const hvi_cu_ptr end = address + bytes;

    if (error != HVI_CU_OK || !is_mapped(address, end))
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    fake_may_synchronize("unmap");
    while (address < end) {
        const struct range was = fake_range_drop(mapping(address, end), "cuMemUnmap", false);
        if (mmap(was.base, was.bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
            return FAKE_UNKNOWN;
        put(was.owner);
        address += was.bytes;
    }
    return HVI_CU_OK;
}
