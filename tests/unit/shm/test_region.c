/* SPDX-License-Identifier: Apache-2.0
 * Regions: what we make holds its promises, what others make is checked, and failure leaves nothing
 * behind. */
#include "shm/region.h"

#include "base/huge.h"
#include "base/status.h"
#include "shm/abi.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"
#include "tests/unit/shm/hvt_link.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static struct hvi_region make(uint64_t bytes)
{
    struct hvi_region region = HVI_REGION_INIT;
    ck_assert_int_eq(hvi_region_create("hvt", bytes, &region), HVI_OK);
    return region;
}

/* Of regions that make() has made. */
static int count_mappings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    ck_assert_ptr_nonnull(maps);
    char line[512];
    int found = 0;
    while (fgets(line, sizeof(line), maps) != NULL)
        found += strstr(line, "/memfd:hvt ") != NULL;
    fclose(maps);
    return found;
}

/* A memfd as a client might send it. */
static int memfd(uint64_t bytes, unsigned flags, int seals)
{
    int fd = memfd_create("hvt-foreign", MFD_CLOEXEC | flags);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)bytes), 0);
    if (seals != 0)
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

/* The descriptor is refused and still ours. */
static void refuse(int fd, uint64_t bytes)
{
    struct hvi_region region = {.base = &region, .bytes = 77, .fd = 66};
    int before = hvt_count_fds();
    ck_assert_int_eq(hvi_region_map(fd, bytes, &region), HVI_ERR_PROTOCOL);
    ck_assert_msg(region.base == &region && region.bytes == 77 && region.fd == 66,
                  "the output was set on failure");
    ck_assert_int_eq(hvt_count_fds(), before);
}

START_TEST(a_region_is_rounded_up_zeroed_and_writable)
{
    struct hvi_region region = make(5000);
    ck_assert_uint_eq(region.bytes, 8192);
    unsigned char *bytes = region.base;
    for (uint64_t i = 0; i < region.bytes; i++)
        ck_assert_uint_eq(bytes[i], 0);
    memset(bytes, 0xa5, region.bytes);
    hvi_region_fini(&region);
}
END_TEST

START_TEST(a_region_is_sealed_reserved_and_closed_on_exec)
{
    struct hvi_region region = make(3 * 4096);
    struct stat info;
    ck_assert_int_eq(fcntl(region.fd, F_GET_SEALS) & SEALS, SEALS);
    ck_assert_int_eq(fcntl(region.fd, F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
    ck_assert_int_eq(fstat(region.fd, &info), 0);
    ck_assert_int_eq(info.st_size, 3 * 4096);
    ck_assert_msg(info.st_blocks * 512 >= info.st_size, "the pages are not reserved");
    ck_assert_int_eq(ftruncate(region.fd, 0), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(ftruncate(region.fd, 1 << 20), -1);
    ck_assert_int_eq(errno, EPERM);
    ck_assert_int_eq(fcntl(region.fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
    hvi_region_fini(&region);
}
END_TEST

START_TEST(the_label_shows_in_the_maps)
{
    struct hvi_region region = make(4096);
    ck_assert_int_eq(count_mappings(), 1);
    hvi_region_fini(&region);
    ck_assert_int_eq(count_mappings(), 0);
}
END_TEST

START_TEST(a_mapping_outlives_its_descriptor)
{
    int before = hvt_count_fds();
    struct hvi_region region = make(4096);
    ck_assert_int_eq(hvt_count_fds(), before + 1);
    hvi_region_close_fd(&region);
    ck_assert_int_eq(region.fd, -1);
    ck_assert_int_eq(hvt_count_fds(), before);
    *(volatile char *)region.base = 1;
    hvi_region_close_fd(&region);
    hvi_region_fini(&region);
}
END_TEST

START_TEST(finishing_twice_or_never_begun_is_harmless)
{
    struct hvi_region region = make(4096);
    hvi_region_fini(&region);
    ck_assert_ptr_null(region.base);
    hvi_region_fini(&region);
    struct hvi_region fresh = HVI_REGION_INIT;
    hvi_region_fini(&fresh);
    struct hvi_region zeroed;
    memset(&zeroed, 0, sizeof(zeroed));
    hvi_region_fini(&zeroed);
    ck_assert_msg(fcntl(0, F_GETFD) >= 0, "a zeroed region does not own descriptor 0");
}
END_TEST

START_TEST(both_ends_see_the_same_bytes)
{
    struct hvi_region ours = make(3 << 20);
    struct hvi_region theirs = HVI_REGION_INIT;
    int copy = fcntl(ours.fd, F_DUPFD_CLOEXEC, 3);
    ck_assert_int_eq(hvi_region_map(copy, 3 << 20, &theirs), HVI_OK);
    ck_assert_int_eq(theirs.fd, copy);
    ck_assert_uint_eq(theirs.bytes, 3 << 20);
    ((volatile char *)ours.base)[(3 << 20) - 1] = 42;
    ck_assert_int_eq(((volatile char *)theirs.base)[(3 << 20) - 1], 42);
    hvi_region_fini(&theirs);
    hvi_region_fini(&ours);
}
END_TEST

/* --- foreign descriptors --- */

START_TEST(every_missing_seal_is_refused)
{
    for (int missing = 0; missing < 7; missing++) {
        /* Bits 0..2 of `missing` choose which of the three seals are there; 7 would be all. */
        int seals = (missing & 1 ? F_SEAL_SHRINK : 0) | (missing & 2 ? F_SEAL_GROW : 0) |
                    (missing & 4 ? F_SEAL_SEAL : 0);
        int fd = memfd(8192, MFD_ALLOW_SEALING, seals);
        refuse(fd, 8192);
        close(fd);
    }
    int fd = memfd(8192, 0, 0); /* F_SEAL_SEAL alone, from birth */
    refuse(fd, 8192);
    close(fd);
}
END_TEST

START_TEST(a_wrong_size_is_refused)
{
    int fd = memfd(8192, MFD_ALLOW_SEALING, SEALS);
    const uint64_t lies[] = {
        0, 1, 4096, 8191, 8193, 12288, UINT64_C(1) << 40, UINT64_MAX, UINT64_MAX - 4095};
    for (size_t i = 0; i < sizeof(lies) / sizeof(lies[0]); i++)
        refuse(fd, lies[i]);
    struct hvi_region region;
    ck_assert_int_eq(hvi_region_map(fd, 8192, &region), HVI_OK);
    hvi_region_fini(&region);
    fd = memfd(8193, MFD_ALLOW_SEALING, SEALS); /* not whole pages */
    refuse(fd, 8193);
    close(fd);
    fd = memfd(0, MFD_ALLOW_SEALING, SEALS);
    refuse(fd, 0);
    close(fd);
}
END_TEST

START_TEST(what_is_not_a_memfd_is_refused)
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    refuse(ends[0], 4096);
    refuse(ends[1], 4096);
    FILE *file = tmpfile();
    ck_assert_int_eq(ftruncate(fileno(file), 4096), 0);
    refuse(fileno(file), 4096);
    int zero = open("/dev/zero", O_RDWR | O_CLOEXEC);
    refuse(zero, 4096);
    int dir = open("/", O_RDONLY | O_CLOEXEC);
    refuse(dir, 4096);
    refuse(-1, 4096);
    refuse(9999, 4096);
    close(ends[0]);
    close(ends[1]);
    fclose(file);
    close(zero);
    close(dir);
}
END_TEST

START_TEST(a_memfd_that_may_not_be_written_is_refused)
{
    int fd = memfd(4096, MFD_ALLOW_SEALING, SEALS | F_SEAL_WRITE);
    refuse(fd, 4096);
    close(fd);
    fd = memfd(4096, MFD_ALLOW_SEALING, SEALS);
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int reader = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(reader, 0);
    refuse(reader, 4096);
    close(reader);
    close(fd);
}
END_TEST

START_TEST(a_huge_page_memfd_is_refused)
{
    int fd = memfd_create("hvt-huge", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
    if (hvt_skip_if(fd < 0, "the kernel has none"))
        return;
    ck_assert_int_eq(ftruncate(fd, 2 << 20), 0);
    ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, SEALS), 0);
    refuse(fd, 2 << 20);
    close(fd);
}
END_TEST

/* --- failing to make one --- */

static void fail_to_create(uint64_t bytes, int status)
{
    struct hvi_region region = {.base = &region, .bytes = 77, .fd = 66};
    int before = hvt_count_fds();
    int mappings = count_mappings();
    ck_assert_int_eq(hvi_region_create("hvt", bytes, &region), status);
    ck_assert_msg(region.base == &region && region.bytes == 77 && region.fd == 66,
                  "the output was set on failure");
    ck_assert_int_eq(hvt_count_fds(), before);
    ck_assert_int_eq(count_mappings(), mappings);
}

START_TEST(absurd_sizes_are_invalid)
{
    fail_to_create(0, HVI_ERR_INVALID);
    fail_to_create(UINT64_MAX, HVI_ERR_INVALID);
    fail_to_create(UINT64_MAX - 4095, HVI_ERR_INVALID);
    fail_to_create(UINT64_C(1) << 63, HVI_ERR_INVALID);
    fail_to_create(UINT64_C(1) << 47, HVI_ERR_INVALID);
}
END_TEST

START_TEST(more_than_the_machine_has_is_out_of_memory_at_once)
{
    uint64_t deadline_ns = hvi_deadline_after((int64_t)HVI_NS_SEC);
    fail_to_create(UINT64_C(1) << 45, HVI_ERR_NO_MEMORY);
    uint64_t total = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    fail_to_create(2 * total, HVI_ERR_NO_MEMORY);
    ck_assert(!hvi_deadline_passed(deadline_ns));
}
END_TEST

/* ---- a limit of a cgroup ---- */

#define CGROUP_LIMIT "67108864"

static bool put(const char *folder, const char *name, const char *text)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    bool done = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    close(fd);
    return done;
}

/* Where cgroups with a limit can be made; NULL: nowhere. */
static const char *memory_cgroups(void)
{
    static const char *const places[][2] = {
        {"/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/memory.limit_in_bytes"},
        {"/sys/fs/cgroup", "/sys/fs/cgroup/memory.stat"},
    };
    for (size_t i = 0; geteuid() == 0 && i < sizeof(places) / sizeof(places[0]); i++) {
        /* In version 2, a cgroup that has processes itself, as a container's has, limits none below it. */
        if (access(places[i][0], W_OK) == 0 && access(places[i][1], F_OK) == 0 &&
            (i == 0 || put(places[i][0], "cgroup.subtree_control", "+memory")))
            return places[i][0];
    }
    return NULL;
}

/* In the limited cgroup: 0 if what does not fit is refused, and what fits is not. */
static int try_in_cgroup(const char *cgroup)
{
    struct hvi_region region = HVI_REGION_INIT;
    char pid[16];
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    if (!put(cgroup, "cgroup.procs", pid))
        return 1;
    if (hvi_region_create("hvt", 128ull << 20, &region) != HVI_ERR_NO_MEMORY)
        return 2;
    if (hvi_region_create("hvt", 32ull << 20, &region) != HVI_OK)
        return 3;
    hvi_region_fini(&region); /* untouched: a sanitizer's shadow would count too */
    return 0;
}

/* The kernel would kill a process of the cgroup in the middle of fallocate. */
START_TEST(more_than_the_cgroup_may_have_is_out_of_memory_at_once)
{
    const char *cgroups = memory_cgroups();
    char cgroup[128];
    if (hvt_skip_if(!cgroups, "no cgroup with a limit of memory can be made"))
        return;
    snprintf(cgroup, sizeof(cgroup), "%s/hvt-region-%d", cgroups, (int)getpid());
    ck_assert_int_eq(mkdir(cgroup, 0755), 0);
    bool limited = put(cgroup, "memory.limit_in_bytes", CGROUP_LIMIT) ||
                   put(cgroup, "memory.max", CGROUP_LIMIT);
    pid_t pid = fork();
    if (pid == 0)
        _exit(try_in_cgroup(cgroup));
    int status = hvt_wait_child(pid);
    uint64_t deadline_ns = hvi_deadline_after(5 * (int64_t)HVI_NS_SEC);
    while (rmdir(cgroup) != 0 && !hvi_deadline_passed(deadline_ns))
        usleep(1000);
    ck_assert_msg(limited, "%s has no limit", cgroup);
    ck_assert_msg(status == 0, "the process in the cgroup ended with %#x", (unsigned)status);
}
END_TEST

START_TEST(no_free_descriptor_is_a_limit)
{
    int before = hvt_count_fds();
    struct hvi_region region = HVI_REGION_INIT;
    struct rlimit old = hvt_forbid_fds();
    int status = hvi_region_create("hvt", 4096, &region);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
    ck_assert_int_eq(status, HVI_ERR_LIMIT);
    ck_assert_int_eq(region.fd, -1);
    ck_assert_int_eq(hvt_count_fds(), before);
}
END_TEST

START_TEST(a_file_size_limit_is_a_limit_and_not_a_signal)
{
    struct rlimit limit = {.rlim_cur = 65536, .rlim_max = RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    fail_to_create(65537, HVI_ERR_LIMIT);
    struct hvi_region region = make(65536);
    hvi_region_fini(&region);
}
END_TEST

START_TEST(no_address_space_is_out_of_memory)
{
    if (hvt_skip_if(HVT_SANITIZED, "a sanitizer needs the address space itself"))
        return;
    struct hvi_region ours = make(32 << 20);
    int copy = fcntl(ours.fd, F_DUPFD_CLOEXEC, 3);
    struct rlimit limit = {.rlim_cur = 64 << 20, .rlim_max = RLIM_INFINITY};
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &limit), 0);
    fail_to_create(64 << 20, HVI_ERR_NO_MEMORY);
    struct hvi_region theirs = HVI_REGION_INIT;
    ck_assert_int_eq(hvi_region_map(copy, 32 << 20, &theirs), HVI_ERR_NO_MEMORY);
    ck_assert_int_eq(theirs.fd, -1);
    ck_assert_msg(fcntl(copy, F_GETFD) >= 0, "on failure the caller keeps the descriptor");
    close(copy);
    hvi_region_fini(&ours);
}
END_TEST

/* The linker gives region.c these in place of the C library's (CMakeLists.txt). */
int __real_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes);
int __real_memfd_create(const char *name, unsigned flags);
int __wrap_memfd_create(const char *name, unsigned flags);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t offset);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset);
int __real_madvise(void *start, size_t bytes, int advice);
int __wrap_madvise(void *start, size_t bytes, int advice);
void *__real_mmap(void *start, size_t bytes, int prot, int flags, int fd, off_t offset);
void *__wrap_mmap(void *start, size_t bytes, int prot, int flags, int fd, off_t offset);

static struct {
    off_t longest_step; /* a longer one is interrupted; 0: none is */
    off_t full_at;      /* no page beyond; 0: no such limit */
    bool refuse_flags;  /* an older kernel, which does not know MFD_NOEXEC_SEAL */
    int interrupted;
    int collapse_error; /* what MADV_COLLAPSE says; 0: let the kernel decide */
    int collapse_calls;
    uint64_t collapsed;  /* bytes that are huge pages now, by the kernel's word */
    bool space_is_taken; /* by another thread, between looking for it and using it */
    bool space_is_none;  /* to look around in */
} kernel;

int __wrap_fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (kernel.longest_step != 0 && bytes > kernel.longest_step) {
        kernel.interrupted++;
        errno = EINTR;
        return -1;
    }
    if (kernel.full_at != 0 && offset + bytes > kernel.full_at) {
        errno = ENOSPC;
        return -1;
    }
    return __real_fallocate(fd, mode, offset, bytes);
}

int __wrap_memfd_create(const char *name, unsigned flags)
{
    if (kernel.refuse_flags && (flags & ~(MFD_CLOEXEC | MFD_ALLOW_SEALING)) != 0) {
        errno = EINVAL;
        return -1;
    }
    return __real_memfd_create(name, flags);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
    if (kernel.full_at != 0 && offset + (off_t)bytes > kernel.full_at) {
        errno = ENOSPC;
        return -1;
    }
    return __real_pwrite(fd, data, bytes, offset);
}

int __wrap_madvise(void *start, size_t bytes, int advice)
{
    if (advice != MADV_COLLAPSE)
        return __real_madvise(start, bytes, advice);
    kernel.collapse_calls++;
    errno = kernel.collapse_error;
    if (kernel.collapse_error != 0 || __real_madvise(start, bytes, advice) != 0)
        return -1;
    kernel.collapsed += bytes;
    return 0;
}

void *__wrap_mmap(void *start, size_t bytes, int prot, int flags, int fd, off_t offset)
{
    if (fd < 0 && kernel.space_is_none) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    if (start != NULL && kernel.space_is_taken)
        start = (char *)start - 4096; /* which is free: behind it there may be others' memory */
    return __real_mmap(start, bytes, prot, flags, fd, offset);
}

/* --- huge pages --- */

static bool is_aligned(const void *base)
{
    return (uintptr_t)base % HVI_HUGE_BYTES == 0;
}

static void check_reserved_and_zeroed(const struct hvi_region *region)
{
    struct stat info;
    ck_assert_int_eq(fstat(region->fd, &info), 0);
    ck_assert_msg(info.st_blocks * 512 == info.st_size, "%lld blocks for %lld bytes",
                  (long long)info.st_blocks, (long long)info.st_size);
    ck_assert_int_eq(((const char *)region->base)[0], 0);
    ck_assert_msg(memcmp(region->base, (const char *)region->base + 1, region->bytes - 1) == 0,
                  "it is not all zeroes");
}

/* What follows `label` on its line of the region's mapping. */
static void smaps_line(const struct hvi_region *region, const char *label, char *text_p,
                       size_t text_size)
{
    FILE *smaps = fopen("/proc/self/smaps", "r");
    ck_assert_ptr_nonnull(smaps);
    char line[512];
    uint64_t start, end;
    bool ours = false;
    text_p[0] = '\0';
    while (fgets(line, sizeof(line), smaps) != NULL) {
        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " ", &start, &end) == 2)
            ours = start == (uintptr_t)region->base;
        else if (ours && strncmp(line, label, strlen(label)) == 0)
            snprintf(text_p, text_size, "%s", line + strlen(label));
    }
    fclose(smaps);
}

/* Bytes of the region's mapping that huge pages stand behind. */
static uint64_t huge_bytes_of(const struct hvi_region *region)
{
    char text[512];
    smaps_line(region, "ShmemPmdMapped:", text, sizeof(text));
    return strtoull(text, NULL, 10) * 1024;
}

static bool wants_small_pages(const struct hvi_region *region)
{
    char text[512];
    smaps_line(region, "VmFlags:", text, sizeof(text));
    return strstr(text, " nh") != NULL;
}

START_TEST(from_a_huge_page_on_regions_begin_at_one_at_both_ends)
{
    const uint64_t sizes[] = {HVI_HUGE_BYTES, HVI_HUGE_BYTES + 4096, 2 * HVI_HUGE_BYTES - 4096,
                              7 * HVI_HUGE_BYTES};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct hvi_region ours = make(sizes[i]);
        struct hvi_region theirs = HVI_REGION_INIT;
        ck_assert(is_aligned(ours.base));
        ck_assert_uint_eq(ours.bytes, sizes[i]);
        check_reserved_and_zeroed(&ours);
        int copy = fcntl(ours.fd, F_DUPFD_CLOEXEC, 3);
        ck_assert_int_eq(hvi_region_map(copy, sizes[i], &theirs), HVI_OK);
        ck_assert(is_aligned(theirs.base));
        memset(ours.base, 0x5a, sizes[i]);
        ck_assert_int_eq(memcmp(ours.base, theirs.base, sizes[i]), 0);
        ck_assert_msg(huge_bytes_of(&ours) >= kernel.collapsed, "not mapped as huge pages");
        ck_assert_msg(huge_bytes_of(&theirs) >= kernel.collapsed, "not for the peer");
        hvi_region_fini(&theirs);
        hvi_region_fini(&ours);
        ck_assert_int_eq(kernel.collapse_calls, 1);
        kernel.collapse_calls = 0;
        kernel.collapsed = 0;
    }
    ck_assert_int_eq(count_mappings(), 0);
}
END_TEST

START_TEST(small_regions_know_nothing_of_huge_pages)
{
    struct hvi_region region = make(HVI_HUGE_BYTES - 4096);
    ck_assert_int_eq(kernel.collapse_calls, 0);
    check_reserved_and_zeroed(&region);
    hvi_region_fini(&region);
}
END_TEST

/* Whatever shmem_enabled says: little of them is used. */
START_TEST(sparse_regions_get_a_page_for_a_touch_at_both_ends)
{
    struct hvi_region ours = HVI_REGION_INIT, theirs = HVI_REGION_INIT;
    ck_assert_int_eq(hvi_region_create_sparse("hvt", 3 * HVI_HUGE_BYTES, &ours), HVI_OK);
    int copy = fcntl(ours.fd, F_DUPFD_CLOEXEC, 3);
    ck_assert_int_eq(hvi_region_map_sparse(copy, 3 * HVI_HUGE_BYTES, &theirs), HVI_OK);
    if (access("/sys/kernel/mm/transparent_hugepage", F_OK) == 0)
        ck_assert(wants_small_pages(&ours) && wants_small_pages(&theirs));
    ((volatile char *)ours.base)[4096] = 1;
    ((volatile char *)theirs.base)[HVI_HUGE_BYTES] = 1;
    struct stat info;
    ck_assert_int_eq(fstat(ours.fd, &info), 0);
    ck_assert_int_eq(info.st_blocks * 512, 2 * 4096);
    hvi_region_fini(&theirs);
    hvi_region_fini(&ours);
}
END_TEST

/* Too old a kernel; no huge page to be had; one that was in use just now. Two steps. */
START_TEST(without_huge_pages_a_region_has_small_ones)
{
    const struct {
        int error, calls;
    } cases[] = {{EINVAL, 1}, {ENOMEM, 1}, {EBUSY, 1}, {EAGAIN, 2}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        kernel.collapse_error = cases[i].error;
        kernel.collapse_calls = 0;
        struct hvi_region region = make((65 << 20) + HVI_HUGE_BYTES / 2 + 4096);
        ck_assert_int_eq(kernel.collapse_calls, cases[i].calls);
        check_reserved_and_zeroed(&region);
        ck_assert_int_eq(fcntl(region.fd, F_GET_SEALS) & SEALS, SEALS);
        hvi_region_fini(&region);
    }
}
END_TEST

START_TEST(where_no_aligned_place_is_free_another_will_do)
{
    for (int i = 0; i < 2; i++) {
        kernel.space_is_taken = i == 0;
        kernel.space_is_none = i == 1;
        struct hvi_region ours = make(3 << 20);
        struct hvi_region theirs = HVI_REGION_INIT;
        ck_assert(i == 1 || !is_aligned(ours.base));
        ck_assert(is_aligned(ours.base) || kernel.collapse_calls == 0);
        check_reserved_and_zeroed(&ours);
        int copy = fcntl(ours.fd, F_DUPFD_CLOEXEC, 3);
        ck_assert_int_eq(hvi_region_map(copy, 3 << 20, &theirs), HVI_OK);
        ((volatile char *)ours.base)[(3 << 20) - 1] = 42;
        ck_assert_int_eq(((volatile char *)theirs.base)[(3 << 20) - 1], 42);
        hvi_region_fini(&theirs);
        hvi_region_fini(&ours);
    }
    ck_assert_int_eq(count_mappings(), 0);
}
END_TEST

/* --- a kernel in trouble --- */

START_TEST(a_storm_of_signals_does_not_stop_a_reservation)
{
    const off_t steps[] = {16 << 20, 1 << 20, 64 << 10};
    for (size_t i = 0; i < 3; i++) {
        kernel.longest_step = steps[i];
        kernel.interrupted = 0;
        struct hvi_region region = make((8 << 20) + 4096);
        struct stat info;
        ck_assert_int_eq(fstat(region.fd, &info), 0);
        ck_assert(info.st_blocks * 512 >= info.st_size);
        ck_assert_int_eq(kernel.interrupted > 0, steps[i] < 8 << 20);
        ck_assert_int_le(kernel.interrupted, 10);
        hvi_region_fini(&region);
    }
}
END_TEST

START_TEST(a_full_machine_is_out_of_memory)
{
    kernel.full_at = 1 << 20;
    fail_to_create(2 << 20, HVI_ERR_NO_MEMORY);
    fail_to_create(100 << 20, HVI_ERR_NO_MEMORY);
    struct hvi_region region = make(1 << 20);
    hvi_region_fini(&region);
}
END_TEST

START_TEST(an_older_kernel_makes_regions_too)
{
    kernel.refuse_flags = true;
    struct hvi_region region = make(4096);
    ck_assert_int_eq(fcntl(region.fd, F_GET_SEALS) & SEALS, SEALS);
    hvi_region_fini(&region);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm/region");
    TCase *ours = tcase_create("ours");
    tcase_add_test(ours, a_region_is_rounded_up_zeroed_and_writable);
    tcase_add_test(ours, a_region_is_sealed_reserved_and_closed_on_exec);
    tcase_add_test(ours, the_label_shows_in_the_maps);
    tcase_add_test(ours, a_mapping_outlives_its_descriptor);
    tcase_add_test(ours, finishing_twice_or_never_begun_is_harmless);
    tcase_add_test(ours, both_ends_see_the_same_bytes);
    suite_add_tcase(suite, ours);
    TCase *foreign = tcase_create("foreign");
    tcase_add_test(foreign, every_missing_seal_is_refused);
    tcase_add_test(foreign, a_wrong_size_is_refused);
    tcase_add_test(foreign, what_is_not_a_memfd_is_refused);
    tcase_add_test(foreign, a_memfd_that_may_not_be_written_is_refused);
    tcase_add_test(foreign, a_huge_page_memfd_is_refused);
    suite_add_tcase(suite, foreign);
    TCase *huge = tcase_create("huge");
    tcase_add_test(huge, from_a_huge_page_on_regions_begin_at_one_at_both_ends);
    tcase_add_test(huge, small_regions_know_nothing_of_huge_pages);
    tcase_add_test(huge, sparse_regions_get_a_page_for_a_touch_at_both_ends);
    tcase_add_test(huge, without_huge_pages_a_region_has_small_ones);
    tcase_add_test(huge, where_no_aligned_place_is_free_another_will_do);
    suite_add_tcase(suite, huge);
    TCase *failing = tcase_create("failing");
    tcase_add_test(failing, absurd_sizes_are_invalid);
    tcase_add_test(failing, more_than_the_machine_has_is_out_of_memory_at_once);
    tcase_add_test(failing, more_than_the_cgroup_may_have_is_out_of_memory_at_once);
    tcase_add_test(failing, no_free_descriptor_is_a_limit);
    tcase_add_test(failing, a_file_size_limit_is_a_limit_and_not_a_signal);
    tcase_add_test(failing, no_address_space_is_out_of_memory);
    tcase_add_test(failing, a_storm_of_signals_does_not_stop_a_reservation);
    tcase_add_test(failing, a_full_machine_is_out_of_memory);
    tcase_add_test(failing, an_older_kernel_makes_regions_too);
    suite_add_tcase(suite, failing);
    return hvt_run_suite(suite);
}
