/* SPDX-License-Identifier: Apache-2.0
 * Sealed memfds, ours and passed ones.
 *
 * Ours: create, size, reserve every page, seal, map. Reserving comes before anything can touch the
 * memory, so that a full machine is an error code and not SIGBUS or the OOM killer in the middle of
 * a reduction. The kernel puts no limit on a memfd by itself and would let fallocate eat all memory
 * first, and at the limit of a memory cgroup it kills instead of saying no; so a request above what is
 * available is refused before it starts. It reserves in steps, because on older kernels a signal makes
 * fallocate undo the whole step, and in ever shorter ones while signals keep coming.
 *
 * Huge pages come first: a region of 2 MiB or more lies at a multiple of 2 MiB, and MADV_COLLAPSE
 * makes its whole 2 MiB pieces huge pages, whatever shmem_enabled says short of "deny". It does so
 * only where at least one page is there already, so one byte is written into each piece; by
 * pwrite, which knows "no memory", and not by fallocate, whose pages have no contents yet. The
 * kernel zeroes 2 MiB at once and nothing is copied: several times cheaper than fallocate and the
 * faults afterwards. Collapsing pages that are all there would copy each. What is not huge then
 * (the kernel is too old, memory is in too small pieces, the rest at the end) is reserved in small
 * pages as ever. A peer whose mapping is aligned alike gets the huge pages with its first touch.
 *
 * Foreign: fail closed. Anything that is not an ordinary memfd, of exactly the promised size, with
 * all three seals and mappable for writing, is refused. Huge-page memfds are refused too: their
 * pages can be missing at the time of use in spite of the seals. */
#include "shm/region.h"

#include "base/available.h"
#include "base/huge.h"
#include "base/status.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

#define PAGE_BYTES 4096u
#define SEALS      (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)
#define ABSURD_BYTES                                                                               \
    (UINT64_C(1) << 46) /* more than an address space can hold beside anything else */
#define STEP_BYTES       (UINT64_C(64) << 20)
#define LEAST_STEP_BYTES (UINT64_C(64) << 10)
#define LARGE_BYTES      (UINT64_C(16) << 20) /* from here on available memory is looked at first */

static int status_of_errno(int error)
{
    switch (error) {
    case EMFILE:
    case ENFILE:
        return HVI_ERR_LIMIT;
    case EINVAL:
    case EFBIG:
    case EOVERFLOW:
        return HVI_ERR_INVALID;
    default:
        return HVI_ERR_NO_MEMORY;
    }
}

/* ftruncate above RLIMIT_FSIZE would raise SIGXFSZ, which ends a trainer that does not expect it.
 */
static bool file_size_is_allowed(uint64_t bytes)
{
    struct rlimit limit;
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           bytes <= limit.rlim_cur;
}

static int open_memfd(const char *label)
{
    int fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (fd < 0 && errno == EINVAL)
        fd = memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    return fd;
}

/* Returns 0 or an errno. */
static int reserve(int fd, uint64_t bytes)
{
    uint64_t at = 0;
    uint64_t most = STEP_BYTES;
    while (at < bytes) {
        uint64_t step = bytes - at < most ? bytes - at : most;
        if (fallocate(fd, 0, (off_t)at, (off_t)step) == 0)
            at += step;
        else if (errno != EINTR)
            return errno;
        else if (most > LEAST_STEP_BYTES)
            most /= 2; /* a profiler's timer may be faster than a long step */
    }
    return 0;
}

/* A multiple of a huge page with `bytes` of free address space behind it, at this moment; else NULL.
 */
static void *find_aligned(uint64_t bytes)
{
    void *space = mmap(NULL, bytes + HVI_HUGE_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED)
        return NULL;
    munmap(space, bytes + HVI_HUGE_BYTES);
    return (char *)space + (HVI_HUGE_BYTES - (uintptr_t)space % HVI_HUGE_BYTES);
}

/* Aligned for huge pages if one fits in. The address is a wish and not MAP_FIXED: if another thread
 * was faster, or the address space is nearly full, any other place will do. Returns 0 or an errno.
 */
static int map_shared(int fd, uint64_t bytes, void **base_p)
{
    void *wish = bytes >= HVI_HUGE_BYTES ? find_aligned(bytes) : NULL;
    void *base = mmap(wish, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return errno;
    *base_p = base;
    return 0;
}

/* Huge pages for [at, at + bytes) of the file, whole ones. False when it is no use to go on. */
static bool collapse(int fd, void *base, uint64_t at, uint64_t bytes)
{
    for (uint64_t page = at; page < at + bytes; page += HVI_HUGE_BYTES) {
        if (pwrite(fd, "", 1, (off_t)page) != 1)
            return false;
    }
    return madvise((char *)base + at, bytes, MADV_COLLAPSE) == 0 || errno == EAGAIN;
}

/* As many huge pages as there are to be had; none is no error. */
static void take_huge_pages(int fd, void *base, uint64_t bytes)
{
    uint64_t whole = bytes / HVI_HUGE_BYTES * HVI_HUGE_BYTES;
    if (whole == 0 || (uintptr_t)base % HVI_HUGE_BYTES != 0)
        return;
    uint64_t step = STEP_BYTES; /* each costs one round through all processors */
    for (uint64_t at = 0; at < whole; at += step) {
        step = whole - at < STEP_BYTES ? whole - at : STEP_BYTES;
        if (!collapse(fd, base, at, step))
            return;
    }
}

/* How the pages of a region come to be. */
enum pages {
    RESERVED, /* at once, huge ones first */
    LAZY,     /* by touch, as huge ones */
    SPARSE,   /* by touch, as small ones: one touch would bring 512 pages */
};

/* A hint; not every kernel has it for shared memory. Every mapping gives it: the one that touches first
 * decides. */
static void advise(const struct hvi_region *region, enum pages pages)
{
    if (pages == SPARSE)
        (void)madvise(region->base, region->bytes, MADV_NOHUGEPAGE);
    else if (region->bytes >= HVI_HUGE_BYTES)
        (void)madvise(region->base, region->bytes, MADV_HUGEPAGE);
}

static int check_request(uint64_t bytes, enum pages pages)
{
    if (bytes == 0 || bytes > ABSURD_BYTES)
        return HVI_ERR_INVALID;
    if (!file_size_is_allowed(bytes))
        return HVI_ERR_LIMIT;
    if (pages == RESERVED && bytes >= LARGE_BYTES && bytes > hvi_memory_available(""))
        return HVI_ERR_NO_MEMORY;
    return HVI_OK;
}

/* Returns 0 or an errno; on failure the mapping may be there. */
static int make_memory(int fd, uint64_t bytes, enum pages pages, void **base_p)
{
    if (ftruncate(fd, (off_t)bytes) != 0)
        return errno;
    int error = map_shared(fd, bytes, base_p);
    if (error == 0 && pages == RESERVED) {
        take_huge_pages(fd, *base_p, bytes);
        error = reserve(fd, bytes);
    }
    if (error == 0 && fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        error = errno;
    return error;
}

static int create(const char *label, uint64_t bytes, enum pages pages, struct hvi_region *region_p)
{
    uint64_t rounded = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES; /* 0 if the sum wraps */
    int status = check_request(rounded, pages);
    if (status != HVI_OK)
        return status;
    struct hvi_region region = {.base = NULL, .bytes = rounded, .fd = open_memfd(label)};
    if (region.fd < 0)
        return status_of_errno(errno);
    int error = make_memory(region.fd, rounded, pages, &region.base);
    if (error != 0) {
        if (region.base)
            munmap(region.base, rounded);
        close(region.fd);
        return status_of_errno(error);
    }
    advise(&region, pages);
    *region_p = region;
    return HVI_OK;
}

int hvi_region_create(const char *label, uint64_t bytes, struct hvi_region *region_p)
{
    return create(label, bytes, RESERVED, region_p);
}

int hvi_region_create_sparse(const char *label, uint64_t bytes, struct hvi_region *region_p)
{
    return create(label, bytes, SPARSE, region_p);
}

int hvi_region_create_lazy(const char *label, uint64_t bytes, struct hvi_region *region_p)
{
    return create(label, bytes, LAZY, region_p);
}

static bool is_sealed_memfd(int fd, uint64_t bytes)
{
    struct stat info;
    struct statfs fs;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return false;
    if (fstatfs(fd, &fs) != 0 || fs.f_type != TMPFS_MAGIC)
        return false;
    return fstat(fd, &info) == 0 && info.st_size >= 0 && (uint64_t)info.st_size == bytes;
}

static int map(int fd, uint64_t bytes, enum pages pages, struct hvi_region *region_p)
{
    if (bytes == 0 || bytes > ABSURD_BYTES || bytes % PAGE_BYTES != 0 ||
        !is_sealed_memfd(fd, bytes))
        return HVI_ERR_PROTOCOL;
    void *base = NULL;
    int error = map_shared(fd, bytes, &base);
    if (error == EPERM || error == EACCES)
        return HVI_ERR_PROTOCOL; /* sealed against writing, or opened without the right to write */
    if (error != 0)
        return HVI_ERR_NO_MEMORY;
    *region_p = (struct hvi_region){.base = base, .bytes = bytes, .fd = fd};
    advise(region_p, pages);
    return HVI_OK;
}

int hvi_region_map(int fd, uint64_t bytes, struct hvi_region *region_p)
{
    return map(fd, bytes, RESERVED, region_p);
}

int hvi_region_map_sparse(int fd, uint64_t bytes, struct hvi_region *region_p)
{
    return map(fd, bytes, SPARSE, region_p);
}

/* MAP_FIXED into space that is ours already. */
static int move_between_guards(struct hvi_region *region)
{
    uint64_t bytes = region->bytes + 2 * HVI_HUGE_BYTES;
    void *space = find_aligned(bytes);
    if (space)
        space = mmap(space, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!space || space == MAP_FAILED)
        return HVI_ERR_NO_MEMORY;
    void *base = (char *)space + HVI_HUGE_BYTES;
    if (mremap(region->base, region->bytes, region->bytes, MREMAP_MAYMOVE | MREMAP_FIXED, base) ==
        MAP_FAILED) {
        munmap(space, bytes);
        return HVI_ERR_NO_MEMORY;
    }
    region->base = base;
    region->guard = HVI_HUGE_BYTES;
    return HVI_OK;
}

int hvi_region_map_guarded(int fd, uint64_t bytes, struct hvi_region *region_p)
{
    struct hvi_region region = HVI_REGION_INIT;
    int status = hvi_region_map(fd, bytes, &region);
    if (status == HVI_OK)
        status = move_between_guards(&region);
    if (status != HVI_OK) {
        region.fd = -1; /* stays the caller's */
        hvi_region_fini(&region);
        return status;
    }
    *region_p = region;
    return HVI_OK;
}

void hvi_region_close_fd(struct hvi_region *region)
{
    if (region->base != NULL && region->fd >= 0)
        close(region->fd);
    region->fd = -1;
}

void hvi_region_fini(struct hvi_region *region)
{
    hvi_region_close_fd(region);
    if (region->base != NULL)
        munmap((char *)region->base - region->guard, region->bytes + 2 * region->guard);
    region->base = NULL;
    region->bytes = region->guard = 0;
}
