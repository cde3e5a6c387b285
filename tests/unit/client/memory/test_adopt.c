/* SPDX-License-Identifier: Apache-2.0
 * hvd_adopt: memory that becomes shared where it is, and what malloc, fork and the end do to it. */
#include "client/session/session.h"
#include "tests/unit/client/count.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PAGE 4096u
#define MIB  (1u << 20)

static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    if (!HVT_SANITIZED) /* and it no longer grows by itself */
        ck_assert_int_eq(mallopt(M_MMAP_THRESHOLD, 128 * 1024), 1);
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static unsigned char *map_pages(size_t pages)
{
    void *memory =
        mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    return memory;
}

static void fill(unsigned char *memory, size_t bytes, unsigned seed)
{
    for (size_t i = 0; i < bytes; i++)
        memory[i] = (unsigned char)(seed + i * 7 + i / 251);
}

static int count_wrong(const unsigned char *memory, size_t bytes, unsigned seed)
{
    int wrong = 0;
    for (size_t i = 0; i < bytes; i++)
        wrong += memory[i] != (unsigned char)(seed + i * 7 + i / 251);
    return wrong;
}

static void check_filled(const unsigned char *memory, size_t bytes, unsigned seed)
{
    ck_assert_int_eq(count_wrong(memory, bytes, seed), 0);
}

static void adopt(void *memory, size_t bytes)
{
    ck_assert_msg(hvd_adopt(session, memory, bytes) == HVD_OK, "%s", hvd_last_error());
}

static void refuse(void *memory, size_t bytes, const char *why)
{
    int mappings = hvt_count_mappings();
    int fds = hvt_count_fds();
    ck_assert_int_eq(hvd_adopt(session, memory, bytes), HVD_ERR_INVALID);
    ck_assert_msg(strstr(hvd_last_error(), why) != NULL, "%s", hvd_last_error());
    ck_assert_int_eq(hvt_count_mappings(), mappings);
    ck_assert_int_eq(hvt_count_fds(), fds);
}

static struct hvi_submission submit(void *data, size_t bytes, struct hvd_op **op_p)
{
    struct hvd_tensor tensor = hvd_tensor_1d(data, HVD_UINT8, (int64_t)bytes);
    int rc = hvd_allreduce_async(session, NULL, &tensor, &tensor, HVD_SUM, NULL, op_p);
    ck_assert_msg(rc == HVD_OK, "%s", hvd_last_error());
    return hvt_fake_take(engine);
}

static void finish(struct hvd_op *op, uint64_t cookie)
{
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    hvd_op_free(op);
}

/* Whether the engine works on the caller's own bytes: one is changed on either side. */
static bool is_in_place(unsigned char *data, size_t bytes)
{
    struct hvd_op *op;
    struct hvi_submission slot = submit(data, bytes, &op);
    volatile unsigned char *mine = data;
    if (slot.in_region == HVI_REGION_PROCESS) {
        finish(op, slot.cookie);
        return false;
    }
    volatile unsigned char *shared = hvt_fake_memory(engine, slot.in_region, slot.in_offset);
    unsigned char before = mine[bytes / 2];
    ck_assert_uint_eq(shared[bytes / 2], before);
    shared[bytes / 2] = (unsigned char)(before + 1);
    bool in_place = mine[bytes / 2] == (unsigned char)(before + 1);
    shared[bytes / 2] = before;
    finish(op, slot.cookie);
    return in_place;
}

/* Pages that the page tables do not know, so that the next touch is a fault. */
static uint32_t count_absent(const unsigned char *memory, size_t bytes)
{
    int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    uint32_t absent = 0;
    ck_assert_int_ge(fd, 0);
    for (size_t at = 0; at < bytes; at += PAGE) {
        uint64_t entry;
        off_t place = (off_t)(((uintptr_t)memory + at) / PAGE * sizeof(entry));
        ck_assert_int_eq(pread(fd, &entry, sizeof(entry), place), sizeof(entry));
        absent += !(entry >> 63);
    }
    close(fd);
    return absent;
}

/* At a multiple of a huge page and elsewhere: there huge pages cannot be moved as such. */
START_TEST(a_touch_after_adoption_is_no_fault)
{
    const size_t bytes = 5 * MIB;
    unsigned char *space = map_pages((bytes + 4 * MIB) / PAGE);
    for (size_t skew = 0; skew <= 3 * PAGE; skew += 3 * PAGE) {
        unsigned char *memory = space + (2 * MIB - (uintptr_t)space % (2 * MIB)) + skew;
        fill(memory, bytes, 3);
        adopt(memory, bytes);
        ck_assert_uint_eq(count_absent(memory, bytes), 0);
        ck_assert(is_in_place(memory, bytes));
        check_filled(memory, bytes, 3);
        ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
        check_filled(memory, bytes, 3);
    }
    munmap(space, bytes + 4 * MIB);
}
END_TEST

START_TEST(whole_pages_are_used_where_they_are)
{
    unsigned char *memory = map_pages(16);
    fill(memory, 16 * PAGE, 1);
    ck_assert(!is_in_place(memory, 16 * PAGE));
    adopt(memory, 16 * PAGE);
    check_filled(memory, 16 * PAGE, 1);
    ck_assert(is_in_place(memory, 16 * PAGE));
    ck_assert(is_in_place(memory + 5, 3 * PAGE));
    check_filled(memory, 16 * PAGE, 1);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    munmap(memory, 16 * PAGE);
}
END_TEST

START_TEST(a_tensor_that_reaches_into_an_edge_is_ordinary)
{
    unsigned char *memory = map_pages(16);
    fill(memory, 16 * PAGE, 2);
    adopt(memory + 100, 15 * PAGE); /* pages 1 to 14 */
    check_filled(memory, 16 * PAGE, 2);
    ck_assert(is_in_place(memory + PAGE, 14 * PAGE));
    ck_assert(!is_in_place(memory + PAGE - 1, 14 * PAGE));
    ck_assert(!is_in_place(memory + PAGE, 14 * PAGE + 1));
    ck_assert(!is_in_place(memory + 100, 15 * PAGE));
    check_filled(memory, 16 * PAGE, 2);
    ck_assert_int_eq(hvd_deregister(session, memory + PAGE), HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_deregister(session, memory + 100),
                     HVD_OK); /* by the address it was given */
    check_filled(memory, 16 * PAGE, 2);
    munmap(memory, 16 * PAGE);
}
END_TEST

START_TEST(deregistered_memory_is_private_again)
{
    unsigned char *memory = map_pages(300);
    struct hvt_count before = hvt_count_take();
    fill(memory, 300 * PAGE, 3);
    adopt(memory, 300 * PAGE);
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
    ck_assert_int_eq(hvd_free(session, memory), HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 0);
    ck_assert_int_eq(hvt_count_mappings(), before.shared_mappings);
    ck_assert_int_le(hvt_count_fds(), before.fds + 1); /* one is the process's, for its maps */
    check_filled(memory, 300 * PAGE, 3);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_ERR_NOT_FOUND);
    adopt(memory, 300 * PAGE);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    ck_assert_int_le(hvt_count_fds(), before.fds + 1);
    munmap(memory, 300 * PAGE);
}
END_TEST

START_TEST(adopted_memory_in_use_is_busy)
{
    unsigned char *memory = map_pages(4);
    struct hvd_op *op;
    adopt(memory, 4 * PAGE);
    struct hvi_submission slot = submit(memory, 4 * PAGE, &op);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_ERR_BUSY);
    finish(op, slot.cookie);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    munmap(memory, 4 * PAGE);
}
END_TEST

START_TEST(memory_with_an_op_in_flight_is_not_adopted)
{
    unsigned char *memory = map_pages(16);
    struct hvd_op *op;
    fill(memory, 16 * PAGE, 4);
    struct hvi_submission slot = submit(memory, 16 * PAGE, &op);
    uint32_t regions = hvt_fake_regions(engine), announced = session->link.last_region;
    ck_assert_int_eq(hvd_adopt(session, memory, 16 * PAGE), HVD_ERR_BUSY);
    ck_assert_msg(session->link.last_region == announced, "its contents were copied by then");
    finish(op, slot.cookie);
    check_filled(memory, 16 * PAGE, 4);
    adopt(memory, 16 * PAGE);
    ck_assert_uint_eq(hvt_fake_regions(engine), regions + 1);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    munmap(memory, 16 * PAGE);
}
END_TEST

/* Into more mappings than are changed at once, of which some cannot be written to, or not even be read. */
START_TEST(adopted_memory_that_was_split_is_private_again)
{
    static const int protections[] = {PROT_READ | PROT_WRITE, PROT_READ, PROT_NONE};
    unsigned char *memory = map_pages(210);
    int mappings = hvt_count_mappings();
    fill(memory, 210 * PAGE, 6);
    adopt(memory, 210 * PAGE);
    for (size_t i = 0; i < 210; i++)
        ck_assert_int_eq(mprotect(memory + i * PAGE, PAGE, protections[i % 3]), 0);
    ck_assert_msg(hvd_deregister(session, memory) == HVD_OK, "%s", hvd_last_error());
    ck_assert_int_eq(hvt_count_mappings(), mappings);
    char byte = 0;
    struct iovec here = {&byte, 1}, there = {memory + 2 * PAGE, 1};
    ck_assert_msg(process_vm_readv(getpid(), &here, 1, &there, 1, 0) == -1, "it can be read now");
    ck_assert_int_eq(mprotect(memory, 210 * PAGE, PROT_READ | PROT_WRITE), 0);
    check_filled(memory, 210 * PAGE, 6);
    munmap(memory, 210 * PAGE);
}
END_TEST

START_TEST(a_refused_region_leaves_the_memory_as_it_was)
{
    unsigned char *memory = map_pages(4);
    int mappings = hvt_count_mappings();
    int fds = hvt_count_fds();
    fill(memory, 4 * PAGE, 5);
    hvt_fake_refuse_regions(fake, HVD_ERR_LIMIT, "no more than 4 regions");
    ck_assert_int_eq(hvd_adopt(session, memory, 4 * PAGE), HVD_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "no more than 4 regions"));
    ck_assert_int_eq(hvt_count_mappings(), mappings);
    ck_assert_int_eq(hvt_count_fds(), fds);
    check_filled(memory, 4 * PAGE, 5);
    munmap(memory, 4 * PAGE);
}
END_TEST

START_TEST(closing_keeps_the_contents)
{
    unsigned char *memory = map_pages(64);
    int mappings = hvt_count_mappings();
    struct hvd_session *other = hvt_fake_open(fake);
    fill(memory, 64 * PAGE, 6);
    ck_assert_int_eq(hvd_adopt(other, memory, 64 * PAGE), HVD_OK);
    ck_assert_int_gt(hvt_count_mappings(), mappings);
    ck_assert_int_eq(hvd_close(other), HVD_OK);
    check_filled(memory, 64 * PAGE, 6);
    adopt(memory, 64 * PAGE); /* only private memory can be adopted */
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    munmap(memory, 64 * PAGE);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(no_whole_page_is_refused)
{
    unsigned char *memory = map_pages(3);
    refuse(memory + 1, 2 * PAGE - 2, "no whole page");
    refuse(memory, 100, "no whole page");
    ck_assert_int_eq(hvd_adopt(session, NULL, PAGE), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_adopt(session, memory, 0), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_adopt(session, memory, SIZE_MAX), HVD_ERR_INVALID);
    munmap(memory, 3 * PAGE);
}
END_TEST

START_TEST(other_peoples_memory_is_refused)
{
    unsigned char *memory = map_pages(8);
    void *shared = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    FILE *file = tmpfile();
    ck_assert(file && ftruncate(fileno(file), 4 * PAGE) == 0);
    void *mapped = mmap(NULL, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fileno(file), 0);
    unsigned char stack[5 * PAGE];
    void *allocated;
    ck_assert_int_eq(hvd_alloc(session, 4 * PAGE, &allocated), HVD_OK);
    refuse(shared, 4 * PAGE, "shared memory already");
    refuse(allocated, 4 * PAGE, "shared memory already");
    refuse(mapped, 4 * PAGE, "is mapped from");
    refuse(stack, sizeof stack, "is a stack");
    ck_assert_int_eq(mprotect(memory + PAGE, PAGE, PROT_READ), 0);
    refuse(memory, 8 * PAGE, "read and written");
    ck_assert_int_eq(munmap(memory + PAGE, PAGE), 0);
    refuse(memory, 8 * PAGE, "is not all mapped");
    adopt(memory + 2 * PAGE, 2 * PAGE);
    refuse(memory + 2 * PAGE, 2 * PAGE, "shared memory already");
    refuse(memory + 3 * PAGE, 4 * PAGE, "shared memory already");
    ck_assert_int_eq(hvd_register(session, memory + 4 * PAGE, 4 * PAGE), HVD_OK);
    refuse(memory + 4 * PAGE, 4 * PAGE, "overlaps");
    fclose(file);
    munmap(mapped, 4 * PAGE);
    munmap(shared, 4 * PAGE);
}
END_TEST

START_TEST(locked_pages_are_refused)
{
    unsigned char *memory = map_pages(8);
    unsigned char *other = map_pages(4);
    if (hvt_skip_if(HVT_SANITIZED, "a sanitizer makes mlock do nothing"))
        return;
    if (hvt_skip_if(mlock(memory + 2 * PAGE, PAGE) != 0, "RLIMIT_MEMLOCK is 0"))
        return;
    refuse(memory, 8 * PAGE, "locked");
    adopt(memory + 4 * PAGE, 4 * PAGE);
    adopt(other, 4 * PAGE);
}
END_TEST

static void *adopt_own_stack(void *unused)
{
    unsigned char stack[5 * PAGE];
    (void)unused;
    refuse(stack, sizeof stack, "is a stack");
    return NULL;
}

START_TEST(a_threads_stack_is_refused)
{
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, adopt_own_stack, NULL), 0);
    pthread_join(thread, NULL);
}
END_TEST

/* ---- malloc ---- */

#define GLIBC "a sanitizer has a malloc of its own"

START_TEST(a_malloced_buffer_is_adopted_whole)
{
    if (hvt_skip_if(HVT_SANITIZED, GLIBC))
        return;
    for (size_t bytes = 200000; bytes < 3 * MIB; bytes += 333333) {
        unsigned char *memory = malloc(bytes);
        fill(memory, bytes, 7);
        adopt(memory, bytes);
        ck_assert_msg(is_in_place(memory, bytes), "%zu bytes at %p", bytes, (void *)memory);
        check_filled(memory, bytes, 7);
        ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
        check_filled(memory, bytes, 7);
        free(memory);
    }
}
END_TEST

START_TEST(an_aligned_buffer_is_adopted_whole)
{
    if (hvt_skip_if(HVT_SANITIZED, GLIBC))
        return;
    for (size_t align = 32; align <= 65536; align *= 2) {
        void *memory = NULL;
        ck_assert_int_eq(posix_memalign(&memory, align, MIB + 5), 0);
        fill(memory, MIB + 5, 8);
        adopt(memory, MIB + 5);
        ck_assert_msg(is_in_place(memory, MIB + 5), "aligned to %zu", align);
        check_filled(memory, MIB + 5, 8);
        free(memory); /* without hvd_deregister */
    }
}
END_TEST

static void *adopt_in_a_thread_heap(void *unused)
{
    unsigned char *memory = malloc(100000); /* below the threshold */
    (void)unused;
    refuse(memory, 100000, "heap of malloc's");
    free(memory);
    return NULL;
}

START_TEST(heaps_are_refused)
{
    if (hvt_skip_if(HVT_SANITIZED, GLIBC))
        return;
    pthread_t thread;
    unsigned char *memory = malloc(100000);
    refuse(memory, 100000, "heap of malloc's");
    free(memory);
    ck_assert_int_eq(pthread_create(&thread, NULL, adopt_in_a_thread_heap, NULL), 0);
    pthread_join(thread, NULL);
}
END_TEST

START_TEST(freed_without_a_word_it_is_no_longer_in_place)
{
    if (hvt_skip_if(HVT_SANITIZED, GLIBC))
        return;
    unsigned char *memory = malloc(MIB), *again;
    fill(memory, MIB, 9);
    adopt(memory, MIB);
    free(memory);
    again = malloc(MIB);
    ck_assert_ptr_eq(again, memory); /* the kernel gives the hole out again */
    fill(again, MIB, 10);
    ck_assert(!is_in_place(again, MIB));
    check_filled(again, MIB, 10);
    adopt(again, MIB); /* the old row makes room */
    ck_assert(is_in_place(again, MIB));
    check_filled(again, MIB, 10);
    ck_assert_int_eq(hvd_deregister(session, again), HVD_OK);
    free(again);
}
END_TEST

START_TEST(deregistering_what_was_freed_leaves_its_successor_alone)
{
    if (hvt_skip_if(HVT_SANITIZED, GLIBC))
        return;
    unsigned char *memory = malloc(MIB), *again;
    adopt(memory, MIB);
    free(memory);
    again = malloc(MIB);
    ck_assert_ptr_eq(again, memory);
    fill(again, MIB, 11);
    ck_assert_int_eq(hvd_deregister(session, again), HVD_OK);
    check_filled(again, MIB, 11);
    free(again);
    again = malloc(MIB);
    adopt(again, MIB);
    void *volatile gone = again;
    free(again);
    ck_assert_int_eq(hvd_deregister(session, gone), HVD_OK); /* nothing is there */
    again = malloc(MIB);
    memset(again, 1, MIB);
    free(again);
}
END_TEST

START_TEST(calloc_after_free_is_zero)
{
    if (hvt_skip_if(HVT_SANITIZED, GLIBC))
        return;
    for (unsigned i = 0; i < 200; i++) {
        size_t bytes = 140000 + i * 7777;
        unsigned char *memory = malloc(bytes);
        memset(memory, 0xff, bytes);
        adopt(memory, bytes);
        free(memory);
        size_t fewer = bytes - i * 100;
        memory = calloc(1, fewer);
        size_t zeroes = 0;
        for (size_t at = 0; at < fewer; at++)
            zeroes += memory[at] == 0;
        ck_assert_uint_eq(zeroes, fewer);
        free(memory);
    }
}
END_TEST

START_TEST(realloc_keeps_the_contents)
{
    if (hvt_skip_if(HVT_SANITIZED, GLIBC))
        return;
    unsigned char *memory = malloc(MIB);
    fill(memory, MIB, 12);
    adopt(memory, MIB);
    memory = realloc(memory, 5 * MIB);
    check_filled(memory, MIB, 12);
    memset(memory + MIB, 1, 4 * MIB); /* would be SIGBUS beyond the memfd's end */
    adopt(memory, 5 * MIB);
    memory = realloc(memory, 2 * MIB);
    check_filled(memory, MIB, 12);
    ck_assert(!is_in_place(memory, 2 * MIB) || memory[2 * MIB - 1] == 1);
    memory = realloc(memory, 3 * MIB);
    check_filled(memory, MIB, 12);
    memset(memory + 2 * MIB, 1, MIB);
    free(memory);
}
END_TEST

START_TEST(a_mapping_that_was_split_is_ordinary)
{
    unsigned char *memory = map_pages(16);
    fill(memory, 16 * PAGE, 13);
    adopt(memory, 16 * PAGE);
    ck_assert_int_eq(mprotect(memory + 4 * PAGE, PAGE, PROT_READ), 0);
    ck_assert(!is_in_place(memory, 4 * PAGE));
    ck_assert_int_eq(mprotect(memory + 4 * PAGE, PAGE, PROT_READ | PROT_WRITE), 0);
    ck_assert(is_in_place(memory, 16 * PAGE));
    ck_assert_int_eq(mprotect(memory + 4 * PAGE, PAGE, PROT_READ), 0);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    check_filled(memory, 16 * PAGE, 13);
    munmap(memory, 16 * PAGE);
}
END_TEST

/* ---- fork ---- */

START_TEST(a_child_reads_and_writes_its_own)
{
    unsigned char *memory = map_pages(64);
    fill(memory, 64 * PAGE, 14);
    adopt(memory, 64 * PAGE);
    pid_t pid = fork();
    if (pid == 0) {
        int wrong = count_wrong(memory, 64 * PAGE, 14);
        memset(memory, 0, 64 * PAGE);
        _exit(wrong == 0 && hvd_deregister(session, memory) == HVD_ERR_FORKED ? 0 : 1);
    }
    ck_assert_int_eq(hvt_wait_child(pid), 0);
    check_filled(memory, 64 * PAGE, 14);
    ck_assert(is_in_place(memory, 64 * PAGE));
}
END_TEST

START_TEST(a_child_of_the_child_is_on_its_own_too)
{
    unsigned char *memory = map_pages(4);
    adopt(memory, 4 * PAGE);
    pid_t pid = fork();
    if (pid == 0) {
        memory[0] = 1;
        pid_t grandchild = fork();
        if (grandchild == 0) {
            memory[0] = 2;
            _exit(0);
        }
        _exit(hvt_wait_child(grandchild) == 0 && memory[0] == 1 ? 0 : 1);
    }
    ck_assert_int_eq(hvt_wait_child(pid), 0);
    ck_assert_uint_eq(memory[0], 0);
}
END_TEST

/* From here on the kernel has no memory for a private view of a file. */
static void refuse_private_views(void)
{
    struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MAP_PRIVATE | MAP_FIXED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOMEM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {.len = sizeof rules / sizeof rules[0], .filter = rules};

    ck_assert_int_eq(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    ck_assert_int_eq(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

START_TEST(a_child_that_can_have_no_copy_has_no_way_to_its_parents_memory)
{
    unsigned char *memory = map_pages(64);
    struct iovec mine = {.iov_base = memory, .iov_len = 1};
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    fill(memory, 64 * PAGE, 19);
    adopt(memory, 64 * PAGE);
    refuse_private_views();
    pid_t pid = fork();
    if (pid == 0)
        _exit(writev(pipes[1], &mine, 1) < 0 && errno == EFAULT ? 0 : 1);
    ck_assert_int_eq(hvt_wait_child(pid), 0);
    check_filled(memory, 64 * PAGE, 19);
}
END_TEST

START_TEST(a_child_may_free_and_exit_as_it_likes)
{
    unsigned char *memory = malloc(MIB), *other;
    fill(memory, MIB, 15);
    adopt(memory, MIB);
    pid_t pid = fork();
    if (pid == 0) {
        free(memory);
        other = calloc(1, MIB);
        for (size_t i = 0; i < MIB; i++)
            if (other[i] != 0)
                _exit(1);
        _exit(0);
    }
    ck_assert_int_eq(hvt_wait_child(pid), 0);
    check_filled(memory, MIB, 15);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    free(memory);
}
END_TEST

START_TEST(a_fork_after_free_leaves_the_successor_alone)
{
    unsigned char *memory = map_pages(256);
    adopt(memory, 256 * PAGE);
    ck_assert_int_eq(munmap(memory, 256 * PAGE), 0);
    ck_assert_ptr_eq(mmap(memory, 256 * PAGE, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0),
                     memory);
    fill(memory, 256 * PAGE, 16);
    pid_t pid = fork();
    if (pid == 0)
        _exit(count_wrong(memory, 256 * PAGE, 16) == 0 ? 0 : 1);
    ck_assert_int_eq(hvt_wait_child(pid), 0);
}
END_TEST

START_TEST(a_child_adopts_with_a_session_of_its_own)
{
    unsigned char *memory = map_pages(16);
    fill(memory, 16 * PAGE, 17);
    adopt(memory, 16 * PAGE);
    pid_t pid = fork();
    if (pid == 0) {
        struct hvd_session *own = hvt_fake_open(fake); /* the parent's thread serves it */
        unsigned char *mine = map_pages(16);
        fill(mine, 16 * PAGE, 18);
        bool good = hvd_adopt(own, memory, 16 * PAGE) == HVD_ERR_INVALID; /* a view of a file */
        good = good && hvd_adopt(own, mine, 16 * PAGE) == HVD_OK;
        good = good && hvd_close(own) == HVD_OK && count_wrong(mine, 16 * PAGE, 18) == 0;
        _exit(good ? 0 : 1);
    }
    ck_assert_int_eq(hvt_wait_child(pid), 0);
    ck_assert(is_in_place(memory, 16 * PAGE));
}
END_TEST

static void add_tests(TCase *tcase)
{
    tcase_add_test(tcase, a_touch_after_adoption_is_no_fault);
    tcase_add_test(tcase, whole_pages_are_used_where_they_are);
    tcase_add_test(tcase, a_tensor_that_reaches_into_an_edge_is_ordinary);
    tcase_add_test(tcase, deregistered_memory_is_private_again);
    tcase_add_test(tcase, adopted_memory_in_use_is_busy);
    tcase_add_test(tcase, memory_with_an_op_in_flight_is_not_adopted);
    tcase_add_test(tcase, adopted_memory_that_was_split_is_private_again);
    tcase_add_test(tcase, a_refused_region_leaves_the_memory_as_it_was);
    tcase_add_test(tcase, closing_keeps_the_contents);
    tcase_add_test(tcase, no_whole_page_is_refused);
    tcase_add_test(tcase, other_peoples_memory_is_refused);
    tcase_add_test(tcase, locked_pages_are_refused);
    tcase_add_test(tcase, a_threads_stack_is_refused);
    tcase_add_test(tcase, a_mapping_that_was_split_is_ordinary);
    tcase_add_test(tcase, a_child_reads_and_writes_its_own);
    tcase_add_test(tcase, a_child_of_the_child_is_on_its_own_too);
    tcase_add_test(tcase, a_child_that_can_have_no_copy_has_no_way_to_its_parents_memory);
    tcase_add_test(tcase, a_child_may_free_and_exit_as_it_likes);
    tcase_add_test(tcase, a_fork_after_free_leaves_the_successor_alone);
    tcase_add_test(tcase, a_child_adopts_with_a_session_of_its_own);
    tcase_add_test(tcase, a_malloced_buffer_is_adopted_whole);
    tcase_add_test(tcase, an_aligned_buffer_is_adopted_whole);
    tcase_add_test(tcase, heaps_are_refused);
    tcase_add_test(tcase, freed_without_a_word_it_is_no_longer_in_place);
    tcase_add_test(tcase, deregistering_what_was_freed_leaves_its_successor_alone);
    tcase_add_test(tcase, calloc_after_free_is_zero);
    tcase_add_test(tcase, realloc_keeps_the_contents);
}

int main(void)
{
    Suite *suite = suite_create("client adopt");
    TCase *tcase = tcase_create("adopt");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    add_tests(tcase);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
