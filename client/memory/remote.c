/* SPDX-License-Identifier: Apache-2.0
 * Two ways for a byte of ordinary memory, there and back:
 *
 *   copied   memory -> staging -> (reduced there) -> memory      four passes by memcpy or kernels
 *   remote   memory -> engine's cache -> memory                  two passes by the kernel
 *
 * The second touches main memory less, but the kernel looks up every page and copies it with
 * whatever its processor does best for 4096 bytes. Measured: on some machines that is as fast as
 * memcpy, and the second wins; on virtual ones it takes three times as long or more and loses, unless
 * the memory is on huge pages (huge_pages.c), where it wins. So this process tries it on itself. What
 * does not fit the staging cache would get new pages for each op, which costs more than either. */
#include "client/memory/remote.h"

#include "base/clock.h"
#include "client/memory/huge_pages.h"
#include "client/memory/staging.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#define TRY_BYTES   (1024u * 1024u)
#define PIECE_BYTES (128u * 1024u) /* as the engine moves them */
#define TRIES       3u
/* Two passes against four make 2. But the memory that is tried is in the caches, which flatters
 * memcpy: for 64 MiB on huge pages the kernel took half the time of staging where the trial said that
 * it is three times slower. */
#define HUGE_FACTOR 6u

static bool wins[2]; /* on small pages, on huge ones */
static _Atomic bool measured;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* UINT64_MAX when it is forbidden. */
static uint64_t time_kernel(unsigned char *memory, unsigned char *piece)
{
    uint64_t start_ns = hvi_clock_ns();
    struct iovec here = {.iov_base = piece, .iov_len = PIECE_BYTES};
    for (uint64_t at = 0; at < TRY_BYTES; at += PIECE_BYTES) {
        struct iovec there = {.iov_base = memory + at, .iov_len = PIECE_BYTES};
        if (process_vm_readv(getpid(), &here, 1, &there, 1, 0) != (ssize_t)PIECE_BYTES)
            return UINT64_MAX;
    }
    return hvi_clock_ns() - start_ns;
}

static uint64_t time_memcpy(const unsigned char *memory, unsigned char *copy)
{
    uint64_t start_ns = hvi_clock_ns();
    memcpy(copy, memory, TRY_BYTES);
    __asm__ volatile("" : : "r"(copy) : "memory"); /* it is never read */
    return hvi_clock_ns() - start_ns;
}

static bool kernel_is_fast(unsigned char *memory, uint64_t factor)
{
    uint64_t kernel_ns = UINT64_MAX, memcpy_ns = UINT64_MAX;
    for (unsigned i = 0; i < TRIES; i++) {
        uint64_t one_ns = time_kernel(memory, memory + TRY_BYTES);
        kernel_ns = one_ns < kernel_ns ? one_ns : kernel_ns;
        one_ns = time_memcpy(memory, memory + TRY_BYTES);
        memcpy_ns = one_ns < memcpy_ns ? one_ns : memcpy_ns;
    }
    return kernel_ns / factor < memcpy_ns;
}

static void try_both(void)
{
    size_t bytes = 2 * TRY_BYTES;
    unsigned char *mapping =
        mmap(NULL, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping == MAP_FAILED)
        return;
    unsigned char *memory = mapping + (bytes - (uintptr_t)mapping % bytes) % bytes;
    memset(memory, 1, bytes);
    wins[0] = kernel_is_fast(memory, 2);
    wins[1] = client_huge_pages_possible() && client_huge_pages_collapse(memory, bytes) &&
              kernel_is_fast(memory, HUGE_FACTOR);
    munmap(mapping, 2 * bytes);
}

static void measure(void)
{
    try_both();
    atomic_store_explicit(&measured, true, memory_order_release);
}

enum client_remote_policy client_remote_policy(void)
{
    const char *text = getenv("HVD_FOREIGN_MEMORY");
    if (!text)
        text = getenv("HOROVOD_FOREIGN_MEMORY");
    if (text && strcmp(text, "always") == 0)
        return CLIENT_REMOTE_ALWAYS;
    return text && strcmp(text, "never") == 0 ? CLIENT_REMOTE_NEVER : CLIENT_REMOTE_AUTO;
}

bool client_remote_wins(enum client_remote_policy policy, uint64_t bytes, bool huge,
                        pthread_mutex_t *mutex)
{
    if (policy != CLIENT_REMOTE_AUTO)
        return policy == CLIENT_REMOTE_ALWAYS;
    if (bytes > CLIENT_STAGING_CACHE)
        return true;
    /* Acquire, pairs with the release store in measure(). */
    if (!atomic_load_explicit(&measured, memory_order_acquire)) {
        pthread_mutex_unlock(mutex);
        pthread_once(&once, measure);
        pthread_mutex_lock(mutex);
    }
    return wins[huge];
}
