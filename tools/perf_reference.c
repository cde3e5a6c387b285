/* SPDX-License-Identifier: Apache-2.0
 * What this machine could do at best, measured in the same run:
 *   memcpy    one thread copies `bytes`
 *   onepass   all cores sum N float32 buffers of `bytes` and write the sum back to all N: the
 *             memory traffic that an in-place allreduce of N ranks cannot avoid
 * The threads of onepass take pieces of 64 KiB from an atomic counter. They wait by spinning and
 * yielding, because a futex wake-up would cost more than a small reduction. The other ranks sleep in
 * a barrier meanwhile. */
#include "tools/perf.h"

#include "base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#define TARGET_NS    (300 * HVI_NS_MS)
#define ROUNDS_LEAST 5
#define ROUNDS_MOST  5000
#define PIECE_BYTES  (64u * 1024u)
#define BLOCK_FLOATS 1024u /* accumulated at a time: stays in the first cache */
#define THREADS_MAX  256
#define SPINS        200

struct onepass {
    float **buffers;
    int ranks;
    uint64_t floats;
    _Atomic uint64_t next;  /* piece */
    _Atomic uint32_t round; /* main: release, starts a round; pairs with the acquire in worker */
    _Atomic uint32_t done;  /* worker: release; pairs with the acquire in run_round */
    _Atomic bool stop;
    int threads;
};

static int usable_cores(void)
{
    cpu_set_t set;
    const int count = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
    return count > THREADS_MAX ? THREADS_MAX : count;
}

/* ---- one pass ---- */

static void reduce_block(struct onepass *pass, uint64_t from, uint64_t count)
{
    float sum[BLOCK_FLOATS];
    memcpy(sum, pass->buffers[0] + from, count * sizeof(float));
    for (int r = 1; r < pass->ranks; r++) {
        const float *in = pass->buffers[r] + from;
        for (uint64_t i = 0; i < count; i++)
            sum[i] += in[i];
    }
    for (int r = 0; r < pass->ranks; r++)
        memcpy(pass->buffers[r] + from, sum, count * sizeof(float));
}

static void take_pieces(struct onepass *pass)
{
    const uint64_t piece = PIECE_BYTES / sizeof(float);
    for (;;) {
        const uint64_t start =
            piece * atomic_fetch_add_explicit(&pass->next, 1, memory_order_relaxed);
        if (start >= pass->floats)
            return;
        const uint64_t end = start + piece < pass->floats ? start + piece : pass->floats;
        for (uint64_t at = start; at < end; at += BLOCK_FLOATS)
            reduce_block(pass, at, end - at < BLOCK_FLOATS ? end - at : BLOCK_FLOATS);
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

static void *touched(uint64_t bytes)
{
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes + 1) != 0)
        return NULL;
    memset(memory, 0, bytes + 1);
    return memory;
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
    };
}

static int reference_memcpy(const struct perf_options *options, uint64_t bytes)
{
    struct pair pair = {.from = touched(bytes), .to = touched(bytes), .bytes = bytes};
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

static int run_onepass(struct onepass *pass, const struct perf_options *options)
{
    pthread_t threads[THREADS_MAX];
    int started = 0;
    const uint64_t bytes = pass->floats * sizeof(float);
    struct perf_row row = reference_row("onepass", pass->ranks, bytes, pass->threads);
    row.bus_factor = perf_bus_factor(PERF_ALLREDUCE, pass->ranks);
    while (started < pass->threads - 1 &&
           pthread_create(&threads[started], NULL, worker, pass) == 0)
        started++;
    pass->threads = started + 1;
    row.threads = pass->threads;
    time_rounds(pass_round, pass, &row);
    atomic_store_explicit(&pass->stop, true, memory_order_relaxed);
    atomic_fetch_add_explicit(&pass->round, 1, memory_order_release);
    while (started > 0)
        pthread_join(threads[--started], NULL);
    perf_print_row(stdout, options->json, &row);
    return 0;
}

static int reference_onepass(const struct perf_options *options, int ranks, uint64_t bytes)
{
    struct onepass pass = {.ranks = ranks, .floats = bytes / sizeof(float)};
    bool ok = true;
    if (pass.floats == 0)
        return 0;
    pass.threads = bytes <= PIECE_BYTES ? 1 : usable_cores();
    pass.buffers = calloc((size_t)ranks, sizeof *pass.buffers);
    for (int r = 0; r < ranks && pass.buffers != NULL; r++) {
        pass.buffers[r] = touched(bytes);
        ok &= pass.buffers[r] != NULL;
    }
    ok &= pass.buffers != NULL;
    if (ok)
        run_onepass(&pass, options);
    for (int r = 0; r < ranks && pass.buffers != NULL; r++)
        free(pass.buffers[r]);
    free(pass.buffers);
    return ok ? 0 : 1;
}

int perf_reference(const struct perf_options *options, int ranks, uint64_t bytes)
{
    if (reference_memcpy(options, bytes) != 0 || reference_onepass(options, ranks, bytes) != 0) {
        perf_complain(0, "no memory for the reference of %llu bytes", (unsigned long long)bytes);
        return 1;
    }
    return 0;
}
