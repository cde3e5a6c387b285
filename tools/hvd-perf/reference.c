/* SPDX-License-Identifier: Apache-2.0
 * What this machine could do at best, measured in the same run:
 *   memcpy        one thread copies `bytes`
 *   onepass       all cores sum N float32 buffers of `bytes` and write the sum back to all N: the
 *                 memory traffic that an in-place allreduce of N ranks cannot avoid
 *   onepass-huge  the same on huge pages, if the kernel gives them to all buffers (sizes of 2 MiB and
 *                 more): less time is lost in page tables
 *
 * A bar is a share of these, so they have to be the best there is: one thread per core, pinned;
 * each sum stays in registers from the N loads to the N stores. Measured on a Zen 4 against it and
 * slower: sums in a block of the first cache (np 4: half as fast), non-temporal stores (the lines are
 * in the cache already: 15-40 % slower), AVX-512 (the same), explicit prefetch (the same).
 *
 * The threads take pieces from an atomic counter. They wait by spinning and yielding, because a futex
 * wake-up would cost more than a small reduction. The other ranks sleep in a barrier meanwhile. */
#include "tools/hvd-perf/perf.h"

#include "base/clock.h"
#include "base/huge.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define TARGET_NS    (300 * HVI_NS_MS)
#define ROUNDS_LEAST 5
#define ROUNDS_MOST  5000
#define PIECE_LEAST  (64u * 1024u)
#define PIECE_MOST   (256u * 1024u)
#define PIECES_EACH  4u  /* per thread, at least */
#define STEP         32u /* floats summed at a time: 4 vectors of 8 */
#define THREADS_MAX  256
#define SPINS        200

struct onepass {
    float **buffers;
    int ranks;
    uint64_t floats, piece;
    _Atomic uint64_t next;  /* piece */
    _Atomic uint32_t round; /* main: release, starts a round; pairs with the acquire in worker */
    _Atomic uint32_t done;  /* worker: release; pairs with the acquire in run_round */
    _Atomic bool stop;
    _Atomic int starting; /* threads that have taken their core */
    int threads;
    cpu_set_t cores; /* that this process may use */
};

/* Puts the calling thread on the index-th usable core. */
static void pin(const struct onepass *pass, int index)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    for (size_t core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, &pass->cores) && index-- == 0)
            CPU_SET(core, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one);
}

/* ---- one pass ---- */

typedef float vector __attribute__((vector_size(32), aligned(4), may_alias));

/* Inlined into a function per instruction set; the compiler makes two halves of a vector where it has
 * registers of 16 bytes only. */
static inline __attribute__((always_inline)) void sum_steps(float *const *buffers, int ranks,
                                                            uint64_t from, uint64_t end)
{
    for (uint64_t at = from; at < end; at += STEP) {
        const vector *in = (const vector *)(buffers[0] + at);
        vector sum0 = in[0], sum1 = in[1], sum2 = in[2], sum3 = in[3];
        for (int r = 1; r < ranks; r++) {
            in = (const vector *)(buffers[r] + at);
            sum0 += in[0];
            sum1 += in[1];
            sum2 += in[2];
            sum3 += in[3];
        }
        for (int r = 0; r < ranks; r++) {
            vector *out = (vector *)(buffers[r] + at);
            out[0] = sum0;
            out[1] = sum1;
            out[2] = sum2;
            out[3] = sum3;
        }
    }
}

/* The usual numbers of ranks are constants, so that their loops are unrolled. */
static inline __attribute__((always_inline)) void sum_any(float *const *buffers, int ranks,
                                                          uint64_t from, uint64_t end)
{
    if (ranks == 2)
        sum_steps(buffers, 2, from, end);
    else if (ranks == 4)
        sum_steps(buffers, 4, from, end);
    else
        sum_steps(buffers, ranks, from, end);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void sum_avx2(float *const *buffers, int ranks,
                                                     uint64_t from, uint64_t end)
{
    sum_any(buffers, ranks, from, end);
}
#endif

static void sum_range(float *const *buffers, int ranks, uint64_t from, uint64_t end)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx2")) {
        sum_avx2(buffers, ranks, from, end);
        return;
    }
#endif
    sum_any(buffers, ranks, from, end);
}

static void sum_single(const struct onepass *pass, uint64_t at)
{
    float sum = pass->buffers[0][at];
    for (int r = 1; r < pass->ranks; r++)
        sum += pass->buffers[r][at];
    for (int r = 0; r < pass->ranks; r++)
        pass->buffers[r][at] = sum;
}

static void take_pieces(struct onepass *pass)
{
    for (;;) {
        const uint64_t start =
            pass->piece * atomic_fetch_add_explicit(&pass->next, 1, memory_order_relaxed);
        if (start >= pass->floats)
            return;
        const uint64_t end =
            start + pass->piece < pass->floats ? start + pass->piece : pass->floats;
        const uint64_t whole = start + (end - start) / STEP * STEP;
        sum_range(pass->buffers, pass->ranks, start, whole);
        for (uint64_t at = whole; at < end; at++)
            sum_single(pass, at);
    }
}

static void relax(unsigned *spins)
{
    if (++*spins >= SPINS)
        sched_yield();
#if defined(__x86_64__)
    else
        __builtin_ia32_pause();
#endif
}

static void *worker(void *argument)
{
    struct onepass *pass = argument;
    uint32_t seen = 0;
    pin(pass, 1 + atomic_fetch_add_explicit(&pass->starting, 1, memory_order_relaxed));
    for (;;) {
        unsigned spins = 0;
        while (atomic_load_explicit(&pass->round, memory_order_acquire) == seen)
            relax(&spins);
        seen++;
        if (atomic_load_explicit(&pass->stop, memory_order_relaxed))
            return NULL;
        take_pieces(pass);
        atomic_fetch_add_explicit(&pass->done, 1, memory_order_release);
    }
}

static void run_round(struct onepass *pass)
{
    unsigned spins = 0;
    atomic_store_explicit(&pass->next, 0, memory_order_relaxed);
    atomic_store_explicit(&pass->done, 0, memory_order_relaxed);
    atomic_fetch_add_explicit(&pass->round, 1, memory_order_release);
    take_pieces(pass);
    while (atomic_load_explicit(&pass->done, memory_order_acquire) != (uint32_t)pass->threads - 1)
        relax(&spins);
}

/* ---- timing ---- */

struct pair {
    void *from, *to;
    uint64_t bytes;
};

static void copy_round(void *argument)
{
    const struct pair *pair = argument;
    memcpy(pair->to, pair->from, pair->bytes);
    __asm__ volatile("" ::: "memory");
}

static void pass_round(void *argument)
{
    run_round(argument);
}

static void time_rounds(void (*round)(void *), void *argument, struct perf_row *row)
{
    static int64_t times_ns[ROUNDS_MOST];
    size_t count = 0;
    round(argument);
    const uint64_t end_ns = hvi_deadline_after((int64_t)TARGET_NS);
    while (count < ROUNDS_MOST && (count < ROUNDS_LEAST || !hvi_deadline_passed(end_ns))) {
        const uint64_t start_ns = hvi_clock_ns();
        round(argument);
        times_ns[count++] = (int64_t)(hvi_clock_ns() - start_ns);
    }
    perf_row_times(row, times_ns, count, 1);
    row->iterations = (long)count;
}

/* Of the mapping that has this address, by the kernel's own account. */
static uint64_t huge_bytes_at(const void *address)
{
    char line[512];
    unsigned long from, end, kib;
    bool here = false;
    uint64_t bytes = 0;
    FILE *file = fopen("/proc/self/smaps", "re");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &end) == 2)
            here = (uintptr_t)address >= from && (uintptr_t)address < end;
        else if (here && sscanf(line, "AnonHugePages: %lu kB", &kib) == 1)
            bytes = (uint64_t)kib * 1024;
    }
    if (file != NULL)
        fclose(file);
    return bytes;
}

/* Advice is taken also by a kernel that has no huge pages, or none left. */
static bool is_huge(const void *memory, uint64_t bytes)
{
    return huge_bytes_at(memory) >= bytes / HVI_HUGE_BYTES * HVI_HUGE_BYTES;
}

/* NULL also where huge pages are asked for and do not come. */
static void *touched(uint64_t bytes, bool huge)
{
    void *memory = NULL;
    if (posix_memalign(&memory, huge ? HVI_HUGE_BYTES : 4096, bytes + 1) != 0)
        return NULL;
    const bool advised = !huge || madvise(memory, bytes, MADV_HUGEPAGE) == 0;
    if (advised)
        memset(memory, 0, bytes + 1);
    if (advised && (!huge || is_huge(memory, bytes)))
        return memory;
    free(memory);
    return NULL;
}

static struct perf_row reference_row(const char *op, int np, uint64_t bytes, int threads)
{
    return (struct perf_row){
        .op = op,
        .bytes = bytes,
        .count = bytes / sizeof(float),
        .np = np,
        .dtype = "float32",
        .memory = "malloc",
        .reduce_op = "",
        .bus_factor = 1,
        .errors = -1,
        .outstanding = 1,
        .threads = threads,
        .nodes = 1,
        .out_of_place = strcmp(op, "memcpy") == 0,
        .names = "",
        .warmup = 1,
    };
}

static int reference_memcpy(const struct perf_options *options, uint64_t bytes)
{
    struct pair pair = {.from = touched(bytes, false), .to = touched(bytes, false), .bytes = bytes};
    struct perf_row row = reference_row("memcpy", 1, bytes, 1);
    const bool ok = pair.from != NULL && pair.to != NULL;
    if (ok) {
        time_rounds(copy_round, &pair, &row);
        perf_print_row(stdout, options->json, &row);
    }
    free(pair.from);
    free(pair.to);
    return ok ? 0 : 1;
}

static void run_onepass(struct onepass *pass, const char *op, const struct perf_options *options)
{
    pthread_t threads[THREADS_MAX];
    int started = 0;
    const uint64_t bytes = pass->floats * sizeof(float);
    struct perf_row row = reference_row(op, pass->ranks, bytes, pass->threads);
    row.bus_factor = perf_bus_factor(PERF_ALLREDUCE, pass->ranks);
    while (started < pass->threads - 1 &&
           pthread_create(&threads[started], NULL, worker, pass) == 0)
        started++;
    pass->threads = started + 1;
    row.threads = pass->threads;
    pin(pass, 0);
    time_rounds(pass_round, pass, &row);
    pthread_setaffinity_np(pthread_self(), sizeof pass->cores, &pass->cores);
    atomic_store_explicit(&pass->stop, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&pass->round, 1, memory_order_release);
    while (started > 0)
        pthread_join(threads[--started], NULL);
    perf_print_row(stdout, options->json, &row);
}

/* How many threads and pieces of which size suit this many bytes. */
static void divide(struct onepass *pass)
{
    const uint64_t bytes = pass->floats * sizeof(float);
    uint64_t piece = PIECE_LEAST;
    if (pthread_getaffinity_np(pthread_self(), sizeof pass->cores, &pass->cores) != 0) {
        CPU_ZERO(&pass->cores);
        CPU_SET(0, &pass->cores);
    }
    const int cores = CPU_COUNT(&pass->cores);
    pass->threads = bytes <= PIECE_LEAST ? 1 : cores > THREADS_MAX ? THREADS_MAX : cores;
    while (piece < PIECE_MOST && 2 * piece * PIECES_EACH * (uint64_t)pass->threads <= bytes)
        piece *= 2;
    pass->piece = piece / sizeof(float);
}

/* A kernel that gives no huge pages is no error: then there is no such row. */
static int reference_onepass(const struct perf_options *options, int ranks, uint64_t bytes,
                             bool huge)
{
    struct onepass pass = {.ranks = ranks, .floats = bytes / sizeof(float)};
    bool ok = true;
    if (pass.floats == 0 || (huge && bytes < HVI_HUGE_BYTES))
        return 0;
    divide(&pass);
    pass.buffers = calloc((size_t)ranks, sizeof *pass.buffers);
    for (int r = 0; r < ranks && pass.buffers != NULL; r++) {
        pass.buffers[r] = touched(bytes, huge);
        ok &= pass.buffers[r] != NULL;
    }
    ok &= pass.buffers != NULL;
    if (ok)
        run_onepass(&pass, huge ? "onepass-huge" : "onepass", options);
    for (int r = 0; r < ranks && pass.buffers != NULL; r++)
        free(pass.buffers[r]);
    free(pass.buffers);
    return ok || huge ? 0 : 1;
}

int perf_reference(const struct perf_options *options, int ranks, uint64_t bytes)
{
    if (reference_memcpy(options, bytes) != 0 ||
        reference_onepass(options, ranks, bytes, false) != 0 ||
        reference_onepass(options, ranks, bytes, true) != 0) {
        perf_complain(0, "no memory for the reference of %llu bytes", (unsigned long long)bytes);
        return 1;
    }
    return 0;
}
