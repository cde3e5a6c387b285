/* SPDX-License-Identifier: Apache-2.0
 * hvt_heap: a malloc for LD_PRELOAD that counts what is allocated and not freed. Every process writes
 * its count, all the time, to $TMPDIR/heap.PID: one native 64-bit number, the bytes that
 * malloc_usable_size says. So a test sees a leak of one allocation, which resident memory hides
 * behind whole pages and fragmentation. Works with the GNU C library only. */
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* What malloc and its like are inside the C library. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t count, size_t bytes);
extern void *__libc_realloc(void *memory, size_t bytes);
extern void *__libc_memalign(size_t alignment, size_t bytes);
extern void __libc_free(void *memory);

static _Atomic int64_t unseen; /* before the file is there, and in a forked child until it execs */
static _Atomic int64_t *live = &unseen;

static void add(int64_t bytes)
{
    atomic_fetch_add_explicit(live, bytes, memory_order_relaxed);
}

static void *added(void *memory)
{
    add((int64_t)malloc_usable_size(memory));
    return memory;
}

void *malloc(size_t bytes)
{
    return added(__libc_malloc(bytes));
}

void *calloc(size_t count, size_t bytes)
{
    return added(__libc_calloc(count, bytes));
}

void *realloc(void *memory, size_t bytes)
{
    int64_t before = (int64_t)malloc_usable_size(memory);
    void *moved = __libc_realloc(memory, bytes);
    if (moved || bytes == 0)
        add((int64_t)malloc_usable_size(moved) - before);
    return moved;
}

void free(void *memory)
{
    add(-(int64_t)malloc_usable_size(memory));
    __libc_free(memory);
}

void *memalign(size_t alignment, size_t bytes)
{
    return added(__libc_memalign(alignment, bytes));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return memalign(alignment, bytes);
}

int posix_memalign(void **memory_p, size_t alignment, size_t bytes)
{
    void *memory = memalign(alignment, bytes);
    if (!memory)
        return ENOMEM;
    *memory_p = memory;
    return 0;
}

static void forget_file(void)
{
    live = &unseen;
}

__attribute__((constructor)) static void open_file(void)
{
    char path[256];
    const char *folder = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/heap.%d", folder ? folder : "/tmp", (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof *live) != 0)
        return;
    void *map = mmap(NULL, sizeof *live, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (map == MAP_FAILED)
        return;
    atomic_store((_Atomic int64_t *)map, atomic_load(&unseen));
    live = map;
    pthread_atfork(NULL, NULL, forget_file);
}
