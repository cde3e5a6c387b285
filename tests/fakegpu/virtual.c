/* SPDX-License-Identifier: Apache-2.0
 * Virtual memory management: physical memory, reservations, mappings, descriptors.
 *
 * Rules. Sizes and addresses are multiples of 2 MiB (cuda.h). A mapping keeps the physical memory, its handle need not (section
 * 1.2). It is not accessible before cuMemSetAccess for this device, and not for a device without peer access to that of the memory
 * (cuda.h). What was not made exportable is not exported; a descriptor that is none of the driver's is refused (cuda.h; P7). A
 * mapping is all of its memory, and is unmapped as a whole (cuda.h). A reservation with mappings is not freed (cuda.h). The address
 * range and BUFFER_ID of an address are those of its mapping, not of the reservation (NCCL 2.28.9 alloc.h; UCX PR 11283; P7). An
 * exporter may unmap what others have mapped: the memory stays until the last has unmapped it (cuda.h, cuMemRelease). */
#include "tests/fakegpu/table.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
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

int cu_create(hvi_cu_allocation *handle_p, size_t bytes,
              const struct hvi_cu_allocation_properties *properties, uint64_t flags)
{
    const int error = fake_ready();
    struct hvi_cu_context *context = fake_context_of(properties->location.id);

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

int cu_export_fd(void *fd_p, hvi_cu_allocation handle, int type, uint64_t flags)
{
    const int error = fake_ready();
    struct physical *physical = get(handle);

    if (error != HVI_CU_OK || physical == NULL)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    const bool is_fine =
        flags == 0 && type == HVI_CU_HANDLE_FD && (physical->handle_types & HVI_CU_HANDLE_FD);
    if (is_fine)
        *(int *)fd_p = fcntl(physical->fd, F_DUPFD_CLOEXEC, 0);
    put(physical);
    return is_fine ? HVI_CU_OK : HVI_CU_INVALID_VALUE;
}

int cu_import_fd(hvi_cu_allocation *handle_p, void *fd, int type)
{
    const int error = fake_ready(), device = fake_memfd_device((int)(intptr_t)fd, "physical");
    struct stat seen;

    if (error != HVI_CU_OK || type != HVI_CU_HANDLE_FD || device < 0 ||
        fstat((int)(intptr_t)fd, &seen) != 0)
        return error != HVI_CU_OK ? error : HVI_CU_INVALID_VALUE;
    if (fake_fault_from_now("no-memory"))
        return HVI_CU_OUT_OF_MEMORY;
    int own = fcntl((int)(intptr_t)fd, F_DUPFD_CLOEXEC, 0);
    *handle_p = (uintptr_t)add(own, device, (size_t)seen.st_size, false, HVI_CU_HANDLE_FD);
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
    fake_range_drop(range, "cuMemAddressFree", false);
    munmap(range->base, range->bytes);
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
    range->is_shared = physical->handle_types & HVI_CU_HANDLE_FD;
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
    while (address < end) {
        struct range *range = mapping(address, end);
        fake_range_drop(range, "cuMemUnmap", false);
        if (mmap(range->base, range->bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0) == MAP_FAILED)
            return FAKE_UNKNOWN;
        put(range->owner);
        address += range->bytes;
    }
    return HVI_CU_OK;
}
