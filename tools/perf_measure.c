/* SPDX-License-Identifier: Apache-2.0
 * One rank of a measurement:
 *
 *   per size: warm up -> agree on a number of iterations -> measure -> exchange times -> check
 *             -> (rank 0) print
 *
 * An iteration is barrier, clock, submit K ops, wait for all, clock. The barrier is not in the time.
 * Ranks exchange their times by an allreduce (max) after the measuring is done, so whoever launched
 * them does not matter. */
#include "tools/perf.h"

#include "base/clock.h"

#include <inttypes.h>
#include <malloc.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ADAPTIVE_NS      HVI_NS_SEC
#define LOOK_NS          (50 * (int64_t)HVI_NS_MS)
#define ITERATIONS_LEAST 5
#define ITERATIONS_MOST  20000

struct bench {
    struct hvd_session *session;
    const struct perf_options *options;
    int rank, size;
    void *in[PERF_OUTSTANDING_MAX], *out[PERF_OUTSTANDING_MAX]; /* the same when in place */
    struct hvd_op *ops[PERF_OUTSTANDING_MAX];
    uint64_t bytes, count; /* of this size, as reported; count: elements of the input of one rank */
    int64_t *times_ns;
};

void perf_complain(int rank, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "hvd-perf: rank %d: %s\n", rank, text);
}

static int complain_last(const struct bench *bench, const char *what, int status)
{
    perf_complain(bench->rank, "%s: %s: %s", what, hvd_status_name(status), hvd_last_error());
    return status;
}

/* ---- memory ---- */

static bool needs_two(const struct perf_options *options)
{
    return options->op == PERF_ALLGATHER || options->out_of_place;
}

static int get_memory(struct bench *bench, uint64_t bytes, void **memory_p)
{
    const enum perf_memory kind = bench->options->memory;
    if (kind == PERF_SHARED) {
        const int status = hvd_alloc(bench->session, bytes, memory_p);
        return status == HVD_OK ? HVD_OK : complain_last(bench, "hvd_alloc", status);
    }
    void *memory = NULL;
    if (kind == PERF_ADOPTED)
        mallopt(M_MMAP_THRESHOLD, 4096); /* small buffers, too, get pages of their own */
    if (posix_memalign(&memory, 4096, bytes) != 0) {
        perf_complain(bench->rank, "no memory for a tensor of %" PRIu64 " bytes", bytes);
        return HVD_ERR_NO_MEMORY;
    }
    memset(memory, 0, bytes);
    *memory_p = memory;
    int status = HVD_OK;
    if (kind == PERF_REGISTERED)
        status = hvd_register(bench->session, memory, bytes);
    else if (kind == PERF_ADOPTED)
        status = hvd_adopt(bench->session, memory, bytes);
    return status == HVD_OK ? HVD_OK : complain_last(bench, perf_memory_text(kind), status);
}

static void put_memory(struct bench *bench, void *memory)
{
    if (memory == NULL)
        return;
    if (bench->options->memory == PERF_SHARED) {
        hvd_free(bench->session, memory);
        return;
    }
    if (bench->options->memory == PERF_REGISTERED || bench->options->memory == PERF_ADOPTED)
        hvd_deregister(bench->session, memory);
    free(memory);
}

static void put_buffers(struct bench *bench)
{
    for (long k = 0; k < bench->options->outstanding; k++) {
        if (bench->out[k] != bench->in[k])
            put_memory(bench, bench->out[k]);
        put_memory(bench, bench->in[k]);
        bench->in[k] = bench->out[k] = NULL;
    }
}

static int get_buffers(struct bench *bench, uint64_t bytes)
{
    const size_t element = hvd_dtype_size(bench->options->dtype);
    const uint64_t room =
        bytes + element * (uint64_t)bench->size; /* sizes are rounded up to elements */
    int status = HVD_OK;
    if (bench->options->op == PERF_BARRIER)
        return HVD_OK;
    for (long k = 0; k < bench->options->outstanding && status == HVD_OK; k++) {
        status = get_memory(bench, room, &bench->in[k]);
        bench->out[k] = bench->in[k];
        if (status == HVD_OK && needs_two(bench->options))
            status = get_memory(bench, room, &bench->out[k]);
    }
    return status;
}

static void fill(struct bench *bench)
{
    if (bench->options->op == PERF_BARRIER)
        return;
    for (long k = 0; k < bench->options->outstanding; k++)
        perf_fill(bench->options->dtype, bench->options->reduce_op, bench->rank, bench->in[k],
                  bench->count);
}

/* ---- ops ---- */

static int submit(struct bench *bench, long k)
{
    char name[64];
    const struct perf_options *options = bench->options;
    snprintf(name, sizeof name, "perf.%s.%" PRIu64 ".%ld", perf_op_text(options->op), bench->bytes,
             k);
    const struct hvd_tensor in = hvd_tensor_1d(bench->in[k], options->dtype, (int64_t)bench->count);
    const struct hvd_tensor out =
        hvd_tensor_1d(bench->out[k], options->dtype,
                      (int64_t)bench->count * (options->op == PERF_ALLGATHER ? bench->size : 1));
    switch (options->op) {
    case PERF_ALLREDUCE:
        return hvd_allreduce_async(bench->session, name, &in, &out, options->reduce_op, NULL,
                                   &bench->ops[k]);
    case PERF_ALLGATHER:
        return hvd_allgather_async(bench->session, name, &in, &out, NULL, &bench->ops[k]);
    case PERF_BROADCAST:
        return hvd_broadcast_async(bench->session, name, &in, &out, 0, NULL, &bench->ops[k]);
    case PERF_BARRIER:
        return hvd_barrier_async(bench->session, name, NULL, &bench->ops[k]);
    }
    return HVD_ERR_INVALID;
}

static int finish(struct bench *bench, long k)
{
    const int status = hvd_wait(bench->ops[k], (int64_t)bench->options->timeout_ns);
    if (status != HVD_OK)
        perf_complain(bench->rank, "%s: %s", hvd_status_name(status),
                      status == HVD_ERR_TIMEOUT ? hvd_last_error() : hvd_op_error(bench->ops[k]));
    hvd_op_free(bench->ops[k]);
    bench->ops[k] = NULL;
    return status;
}

static int run_ops(struct bench *bench)
{
    long waited = 0;
    int status = HVD_OK;
    for (long k = 0; k < bench->options->outstanding && status == HVD_OK; k++) {
        status = submit(bench, k);
        while (status == HVD_ERR_RING_FULL && waited < k) {
            status = finish(bench, waited++);
            if (status == HVD_OK)
                status = submit(bench, k);
        }
        if (status != HVD_OK)
            return complain_last(bench, "submit", status);
    }
    for (; waited < bench->options->outstanding && status == HVD_OK; waited++)
        status = finish(bench, waited);
    return status;
}

static int barrier(struct bench *bench)
{
    if (bench->options->no_barrier)
        return HVD_OK;
    const int status = hvd_barrier(bench->session, "perf.barrier");
    return status == HVD_OK ? HVD_OK : complain_last(bench, "barrier", status);
}

static int iterate(struct bench *bench, long iterations, int64_t *times_ns)
{
    for (long i = 0; i < iterations; i++) {
        int status = barrier(bench);
        const uint64_t start_ns = hvi_clock_ns();
        if (status == HVD_OK)
            status = run_ops(bench);
        if (status != HVD_OK)
            return status;
        times_ns[i] = (int64_t)(hvi_clock_ns() - start_ns);
    }
    return HVD_OK;
}

/* ---- agreement ---- */

static int reduce_numbers(struct bench *bench, const char *name, int64_t *numbers, long count,
                          enum hvd_reduce_op reduce_op)
{
    const struct hvd_tensor tensor = hvd_tensor_1d(numbers, HVD_INT64, count);
    const int status = hvd_allreduce(bench->session, name, &tensor, &tensor, reduce_op);
    return status == HVD_OK ? HVD_OK : complain_last(bench, name, status);
}

static long clamp(int64_t number, long least, long most)
{
    return number < least ? least : number > most ? most : (long)number;
}

/* How many iterations fit into `within_ns` when one takes `mean_ns`; the same number on every rank. */
static int agree(struct bench *bench, int64_t mean_ns, int64_t within_ns, long *iterations_p)
{
    int64_t slowest_ns = mean_ns < 1 ? 1 : mean_ns;
    const int status = reduce_numbers(bench, "perf.agree", &slowest_ns, 1, HVD_MAX);
    if (status == HVD_OK)
        *iterations_p = clamp(within_ns / slowest_ns, ITERATIONS_LEAST, ITERATIONS_MOST);
    return status;
}

static int iterate_mean(struct bench *bench, long iterations, int64_t *mean_ns_p)
{
    const uint64_t start_ns = hvi_clock_ns();
    const int status = iterate(bench, iterations, bench->times_ns);
    *mean_ns_p = (int64_t)(hvi_clock_ns() - start_ns) / (iterations > 0 ? iterations : 1);
    return status;
}

/* Warms up and says how many iterations to measure. The first iterations touch new memory and wake
 * everybody, so the number comes from a second, longer look. */
static int warm_up(struct bench *bench, long *iterations_p)
{
    const struct perf_options *options = bench->options;
    const long warmup = options->warmup > 0 || options->iterations > 0 ? options->warmup : 1;
    int64_t mean_ns = 0;
    long look = 0;
    int status = iterate_mean(bench, warmup, &mean_ns);
    *iterations_p = options->iterations;
    if (status != HVD_OK || options->iterations > 0)
        return status;
    status = agree(bench, mean_ns, LOOK_NS, &look);
    if (status == HVD_OK)
        status = iterate_mean(bench, look, &mean_ns);
    return status == HVD_OK ? agree(bench, mean_ns, ADAPTIVE_NS, iterations_p) : status;
}

/* ---- one size ---- */

static uint64_t count_errors(const struct bench *bench, long k)
{
    const struct perf_options *options = bench->options;
    const unsigned char *out = bench->out[k];
    uint64_t errors = 0;
    switch (options->op) {
    case PERF_ALLREDUCE:
        return perf_check_reduced(options->dtype, options->reduce_op, bench->size, out,
                                  bench->count);
    case PERF_BROADCAST:
        return perf_check_copied(options->dtype, options->reduce_op, 0, out, bench->count);
    case PERF_ALLGATHER:
        for (int rank = 0; rank < bench->size; rank++)
            errors += perf_check_copied(
                options->dtype, options->reduce_op, rank,
                out + (uint64_t)rank * bench->count * hvd_dtype_size(options->dtype), bench->count);
        return errors;
    case PERF_BARRIER:
        break;
    }
    return 0;
}

/* One more run on fresh values; *errors_p becomes the number of wrong elements on all ranks. */
static int check(struct bench *bench, int64_t *errors_p)
{
    int64_t errors = 0;
    int64_t time_ns;
    fill(bench);
    int status = iterate(bench, 1, &time_ns);
    for (long k = 0; k < bench->options->outstanding && status == HVD_OK; k++)
        errors += (int64_t)count_errors(bench, k);
    if (status == HVD_OK && errors > 0)
        perf_complain(bench->rank, "%" PRId64 " wrong elements at %" PRIu64 " bytes", errors,
                      bench->bytes);
    if (status == HVD_OK)
        status = reduce_numbers(bench, "perf.errors", &errors, 1, HVD_SUM);
    *errors_p = errors;
    return status;
}

static void set_size(struct bench *bench, uint64_t bytes)
{
    const struct perf_options *options = bench->options;
    const uint64_t element = hvd_dtype_size(options->dtype);
    const uint64_t shares = options->op == PERF_ALLGATHER ? (uint64_t)bench->size : 1;
    bench->count = bytes / (element * shares);
    if (bench->count == 0)
        bench->count = 1;
    bench->bytes = bench->count * element * shares;
    if (options->op == PERF_BARRIER)
        bench->bytes = bench->count = 0;
}

static void print_result(struct bench *bench, long iterations, int64_t errors)
{
    const struct perf_options *options = bench->options;
    const bool moves = options->op != PERF_BARRIER;
    struct perf_row row = {
        .op = perf_op_text(options->op),
        .bytes = bench->bytes,
        .count = bench->count,
        .np = bench->size,
        .dtype = moves ? perf_dtype_text(options->dtype) : "",
        .memory = moves ? perf_memory_text(options->memory) : "",
        .reduce_op = options->op == PERF_ALLREDUCE ? perf_reduce_text(options->reduce_op) : "",
        .bus_factor = perf_bus_factor(options->op, bench->size),
        .errors = errors,
        .iterations = iterations,
        .outstanding = options->outstanding,
    };
    perf_row_times(&row, bench->times_ns, (size_t)iterations, (double)options->outstanding);
    perf_print_row(stdout, options->json, &row);
}

static int reference(struct bench *bench)
{
    int code = 0;
    if (!bench->options->reference || bench->options->op == PERF_BARRIER)
        return 0;
    if (bench->rank == 0)
        code = perf_reference(bench->options, bench->size, bench->bytes);
    return hvd_barrier(bench->session, "perf.reference") == HVD_OK ? code : 1;
}

static int measure_size(struct bench *bench, uint64_t bytes)
{
    long iterations;
    int64_t errors = -1;
    set_size(bench, bytes);
    fill(bench);
    if (warm_up(bench, &iterations) != HVD_OK ||
        iterate(bench, iterations, bench->times_ns) != HVD_OK ||
        reduce_numbers(bench, "perf.times", bench->times_ns, iterations, HVD_MAX) != HVD_OK)
        return 1;
    if (bench->options->check && check(bench, &errors) != HVD_OK)
        return 1;
    if (bench->rank == 0)
        print_result(bench, iterations, errors);
    if (reference(bench) != 0)
        return 1;
    return errors > 0;
}

static int measure_sizes(struct bench *bench)
{
    int code = 0;
    const struct perf_options *options = bench->options;
    if (options->op == PERF_BARRIER)
        return measure_size(bench, 0);
    for (uint64_t bytes = options->bytes_min; bytes <= options->bytes_max;) {
        code |= measure_size(bench, bytes);
        if (hvd_session_status(bench->session) != HVD_OK)
            return 1;
        if (bytes > options->bytes_max / (uint64_t)options->factor)
            break;
        bytes = bytes == 0 ? 1 : bytes * (uint64_t)options->factor;
    }
    return code;
}

int perf_measure(struct hvd_session *session, const struct perf_options *options)
{
    const long room = options->iterations > ITERATIONS_MOST ? options->iterations : ITERATIONS_MOST;
    struct bench *bench = calloc(1, sizeof *bench);
    if (bench == NULL)
        return 1;
    bench->session = session;
    bench->options = options;
    bench->rank = hvd_rank(session);
    bench->size = hvd_size(session);
    bench->times_ns =
        calloc((size_t)(room > options->warmup ? room : options->warmup), sizeof(int64_t));
    int code = 1;
    if (bench->times_ns != NULL && get_buffers(bench, options->bytes_max) == HVD_OK) {
        if (bench->rank == 0)
            perf_print_header(stdout, options, bench->size);
        code = measure_sizes(bench);
    }
    put_buffers(bench);
    free(bench->times_ns);
    free(bench);
    return code;
}
