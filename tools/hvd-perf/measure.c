/* SPDX-License-Identifier: Apache-2.0
 * One rank of a measurement:
 *
 *   per size: warm up -> agree on a number of iterations -> measure -> exchange times -> check
 *             -> (rank 0) print
 *
 * An iteration is barrier, clock, submit the ops of all tensors, wait for all, clock. The barrier is not in the time.
 * Ranks exchange their times by an allreduce (max) after the measuring is done, so whoever launched
 * them does not matter. The first op that fails, or is not finished in time, ends the measuring. */
#include "tools/hvd-perf/perf.h"

#include "base/clock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS          (50 * (int64_t)HVI_NS_MS)
#define ITERATIONS_LEAST 5
#define ITERATIONS_MOST  200000
#define POISON           0xa5

struct bench {
    struct hvd_session *session;
    const struct perf_options *options;
    int rank, size;
    struct perf_tensors tensors;
    uint64_t bytes, count; /* of this size, as reported; count: elements of the input of one rank */
    uint64_t naming;       /* how often names have been given */
    struct perf_pattern pattern; /* of the inputs now */
    unsigned checks;             /* so far */
    int64_t *times_ns;
    int64_t number; /* to be agreed on */
    bool failed;    /* a check or a reference; measuring goes on */
};

/* After a failure or a timeout ops may be in flight. Their memory is part of this or belongs to it, and
 * stays until the process ends. */
static struct bench the_bench;

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

static void fill(struct bench *bench, unsigned salt)
{
    const struct perf_options *options = bench->options;
    bench->pattern.salt = salt;
    for (long k = 0; k < bench->tensors.count && options->op != PERF_BARRIER; k++)
        perf_fill(&bench->pattern, bench->rank, bench->tensors.list[k].in,
                  bench->tensors.list[k].count);
}

/* Makes every output wrong that is not the input as well. */
static void poison(struct bench *bench)
{
    const struct perf_options *options = bench->options;
    const size_t element = hvd_dtype_size(options->dtype);
    for (long k = 0; k < bench->tensors.count; k++) {
        const struct perf_tensor *tensor = &bench->tensors.list[k];
        if (tensor->out != tensor->in)
            memset(tensor->out, POISON,
                   perf_out_count(options->op, bench->size, tensor->count) * element);
    }
}

/* ---- ops ---- */

static int submit(struct bench *bench, struct perf_tensor *tensor)
{
    const struct perf_options *options = bench->options;
    const struct hvd_tensor in = hvd_tensor_1d(tensor->in, options->dtype, (int64_t)tensor->count);
    const struct hvd_tensor out =
        hvd_tensor_1d(tensor->out, options->dtype,
                      (int64_t)perf_out_count(options->op, bench->size, tensor->count));
    const char *name = options->unnamed ? NULL : tensor->name;
    switch (options->op) {
    case PERF_ALLREDUCE:
    case PERF_GRADIENTS:
        return hvd_allreduce_async(bench->session, name, &in, &out, options->reduce_op, NULL,
                                   &tensor->op);
    case PERF_ALLGATHER:
        return hvd_allgather_async(bench->session, name, &in, &out, NULL, &tensor->op);
    case PERF_BROADCAST:
        return hvd_broadcast_async(bench->session, name, &in, &out, 0, NULL, &tensor->op);
    case PERF_ALLTOALL:
        return hvd_alltoall_async(bench->session, name, &in, NULL, &out, NULL, &tensor->op);
    case PERF_REDUCESCATTER:
        return hvd_reducescatter_async(bench->session, name, &in, &out, options->reduce_op, NULL,
                                       &tensor->op);
    case PERF_BARRIER:
        return hvd_barrier_async(bench->session, name, NULL, &tensor->op);
    }
    return HVD_ERR_INVALID;
}

static int finish(struct bench *bench, struct perf_tensor *tensor)
{
    const int status = hvd_wait(tensor->op, (int64_t)bench->options->timeout_ns);
    if (status != HVD_OK)
        perf_complain(bench->rank, "%s: %s", hvd_status_name(status),
                      status == HVD_ERR_TIMEOUT ? hvd_last_error() : hvd_op_error(tensor->op));
    hvd_op_free(tensor->op);
    tensor->op = NULL;
    return status;
}

static int run_ops(struct bench *bench)
{
    struct perf_tensor *list = bench->tensors.list;
    const long count = bench->tensors.count;
    long waited = 0;
    int status = HVD_OK;
    for (long k = 0; k < count && status == HVD_OK; k++) {
        status = submit(bench, &list[k]);
        while (status == HVD_ERR_RING_FULL && waited < k) {
            status = finish(bench, &list[waited++]);
            if (status == HVD_OK)
                status = submit(bench, &list[k]);
        }
        if (status != HVD_OK)
            return complain_last(bench, "submit", status);
    }
    for (; waited < count && status == HVD_OK; waited++)
        status = finish(bench, &list[waited]);
    return status;
}

static int barrier(struct bench *bench)
{
    if (bench->options->no_barrier)
        return HVD_OK;
    return perf_barrier(bench->session, bench->options, "perf.barrier");
}

static void set_names(struct bench *bench)
{
    for (long k = 0; k < bench->tensors.count; k++)
        snprintf(bench->tensors.list[k].name, sizeof bench->tensors.list[k].name,
                 "perf.%" PRIu64 ".%ld", bench->naming, k);
    bench->naming++;
}

static int iterate(struct bench *bench, long iterations, int64_t *times_ns)
{
    for (long i = 0; i < iterations; i++) {
        if (bench->options->new_names)
            set_names(bench);
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

static int agree_on_number(struct bench *bench, const char *name, int64_t *number,
                           enum hvd_reduce_op reduce_op)
{
    bench->number = *number;
    const int status =
        perf_agree(bench->session, bench->options, name, &bench->number, 1, reduce_op);
    if (status == HVD_OK)
        *number = bench->number;
    return status;
}

static long clamp(int64_t number, long least, long most)
{
    return number < least ? least : number > most ? most : (long)number;
}

/* How many iterations fit into `within_ns` when one takes `mean_ns`; the same number on every rank. */
static int agree(struct bench *bench, int64_t mean_ns, int64_t within_ns, long *iterations_p)
{
    int64_t slowest_ns = mean_ns < 1 ? 1 : mean_ns;
    const int status = agree_on_number(bench, "perf.agree", &slowest_ns, HVD_MAX);
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

/* The number of iterations is found by a look at one at least. */
static long warmup_of(const struct perf_options *options)
{
    return options->warmup > 0 || options->iterations > 0 ? options->warmup : 1;
}

/* Warms up and says how many iterations to measure. The first iterations touch new memory and wake
 * everybody, so the number comes from a second, longer look. */
static int warm_up(struct bench *bench, long *iterations_p)
{
    const struct perf_options *options = bench->options;
    int64_t mean_ns = 0;
    long look = 0;
    int status = iterate_mean(bench, warmup_of(options), &mean_ns);
    *iterations_p = options->iterations;
    if (status != HVD_OK || options->iterations > 0)
        return status;
    status = agree(bench, mean_ns, LOOK_NS, &look);
    if (status == HVD_OK)
        status = iterate_mean(bench, look, &mean_ns);
    return status == HVD_OK ? agree(bench, mean_ns, (int64_t)options->budget_ns, iterations_p)
                            : status;
}

/* ---- one size ---- */

/* Of an output that has a part from each rank. */
static uint64_t count_errors_in_parts(const struct bench *bench, const struct perf_tensor *tensor)
{
    const bool gathers = bench->options->op == PERF_ALLGATHER;
    const uint64_t part = gathers ? tensor->count : tensor->count / (uint64_t)bench->size;
    const uint64_t from = gathers ? 0 : part * (uint64_t)bench->rank;
    const unsigned char *out = tensor->out;
    uint64_t errors = 0;
    for (int rank = 0; rank < bench->size; rank++) {
        errors += perf_check_copied(&bench->pattern, rank, from, out, part);
        out += part * hvd_dtype_size(bench->options->dtype);
    }
    return errors;
}

static uint64_t count_errors(const struct bench *bench, const struct perf_tensor *tensor)
{
    const uint64_t part = tensor->count / (uint64_t)bench->size;
    switch (bench->options->op) {
    case PERF_ALLREDUCE:
    case PERF_GRADIENTS:
        return perf_check_reduced(&bench->pattern, bench->size, 0, tensor->out, tensor->count);
    case PERF_REDUCESCATTER:
        return perf_check_reduced(&bench->pattern, bench->size, part * (uint64_t)bench->rank,
                                  tensor->out, part);
    case PERF_BROADCAST:
        return perf_check_copied(&bench->pattern, 0, 0, tensor->out, tensor->count);
    case PERF_ALLGATHER:
    case PERF_ALLTOALL:
        return count_errors_in_parts(bench, tensor);
    case PERF_BARRIER:
        break;
    }
    return 0;
}

/* One more run, on values that no run before had and on outputs that are wrong, so that an op which
 * writes nothing shows. *errors_p becomes the number of wrong elements on all ranks. */
static int check(struct bench *bench, int64_t *errors_p)
{
    int64_t errors = 0;
    int64_t time_ns;
    fill(bench, ++bench->checks);
    poison(bench);
    int status = iterate(bench, 1, &time_ns);
    for (long k = 0; k < bench->tensors.count && status == HVD_OK; k++)
        errors += (int64_t)count_errors(bench, &bench->tensors.list[k]);
    if (status == HVD_OK && errors > 0)
        perf_complain(bench->rank, "%" PRId64 " wrong elements at %" PRIu64 " bytes", errors,
                      bench->bytes);
    if (status == HVD_OK)
        status = agree_on_number(bench, "perf.errors", &errors, HVD_SUM);
    *errors_p = errors;
    return status;
}

static void set_size(struct bench *bench, uint64_t bytes)
{
    const struct perf_options *options = bench->options;
    const uint64_t element = hvd_dtype_size(options->dtype);
    const uint64_t count = perf_in_count(options->op, bench->size, bytes, element);
    bench->count = 0;
    for (long k = 0; k < bench->tensors.count && options->op == PERF_GRADIENTS; k++)
        bench->count += bench->tensors.list[k].count;
    for (long k = 0; k < bench->tensors.count && options->op != PERF_GRADIENTS; k++)
        bench->tensors.list[k].count = bench->count = options->op == PERF_BARRIER ? 0 : count;
    bench->bytes =
        bench->count * element * (options->op == PERF_ALLGATHER ? (uint64_t)bench->size : 1);
    set_names(bench);
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
        .reduce_op = perf_op_reduces(options->op) ? perf_reduce_text(options->reduce_op) : "",
        .bus_factor = perf_bus_factor(options->op, bench->size),
        .errors = errors,
        .iterations = iterations,
        .outstanding = bench->tensors.count,
        .nodes = hvd_cross_size(bench->session),
        .out_of_place = moves && perf_out_of_place(options),
        .barrier = !options->no_barrier,
        .names = options->unnamed     ? "unnamed"
                 : options->new_names ? "new"
                                      : "repeated",
        .warmup = warmup_of(options),
    };
    perf_row_times(&row, bench->times_ns, (size_t)iterations, (double)options->outstanding);
    perf_print_row(stdout, options->json, &row);
}

static int reference(struct bench *bench)
{
    if (!bench->options->reference || bench->bytes == 0)
        return HVD_OK;
    if (bench->rank == 0 && perf_reference(bench->options, bench->size, bench->bytes) != 0)
        bench->failed = true;
    return perf_barrier(bench->session, bench->options, "perf.reference");
}

static int time_ops(struct bench *bench, long *iterations_p)
{
    int status = warm_up(bench, iterations_p);
    if (status == HVD_OK)
        status = iterate(bench, *iterations_p, bench->times_ns);
    return status == HVD_OK ? perf_agree(bench->session, bench->options, "perf.times",
                                         bench->times_ns, *iterations_p, HVD_MAX)
                            : status;
}

/* HVD_OK, wrong results or not, or what an op ended with. */
static int measure_size(struct bench *bench, uint64_t bytes)
{
    long iterations = 0;
    int64_t errors = -1;
    set_size(bench, bytes);
    fill(bench, 0);
    int status = time_ops(bench, &iterations);
    if (status == HVD_OK && bench->options->check && bench->options->op != PERF_BARRIER)
        status = check(bench, &errors);
    if (status != HVD_OK)
        return status;
    if (bench->rank == 0)
        print_result(bench, iterations, errors);
    bench->failed |= errors > 0;
    return reference(bench);
}

/* Ends with the first size at which an op fails. */
static int measure_sizes(struct bench *bench)
{
    const struct perf_options *options = bench->options;
    if (bench->rank == 0)
        perf_print_header(stdout, options, bench->size, hvd_cross_size(bench->session));
    if (options->op == PERF_BARRIER || options->op == PERF_GRADIENTS)
        return measure_size(bench, 0);
    for (uint64_t bytes = options->bytes_min; bytes <= options->bytes_max;) {
        const int status = measure_size(bench, bytes);
        if (status != HVD_OK || bytes > options->bytes_max / (uint64_t)options->factor)
            return status;
        bytes = bytes == 0 ? 1 : bytes * (uint64_t)options->factor;
    }
    return HVD_OK;
}

static int prepare(struct bench *bench, struct hvd_session *session,
                   const struct perf_options *options)
{
    const long room = options->iterations > ITERATIONS_MOST ? options->iterations : ITERATIONS_MOST;
    *bench = (struct bench){
        .session = session,
        .options = options,
        .rank = hvd_rank(session),
        .size = hvd_size(session),
        .tensors = {.options = options},
        .pattern = {.dtype = options->dtype,
                    .reduce_op = perf_op_reduces(options->op) ? options->reduce_op : HVD_SUM},
    };
    bench->times_ns =
        calloc((size_t)(room > options->warmup ? room : options->warmup), sizeof(int64_t));
    if (bench->times_ns == NULL)
        return HVD_ERR_NO_MEMORY;
    return perf_tensors_get(&bench->tensors, session, options);
}

int perf_measure(struct hvd_session *session, const struct perf_options *options)
{
    struct bench *bench = &the_bench;
    if (prepare(bench, session, options) != HVD_OK)
        bench->failed = true;
    else if (measure_sizes(bench) != HVD_OK)
        return 1;
    perf_tensors_put(&bench->tensors);
    free(bench->times_ns);
    return bench->failed;
}

static void print_idle(struct hvd_session *session, bool json)
{
    if (json)
        printf("{\"op\": \"idle\", \"np\": %d, \"nodes\": %d, \"version\": \"%s\"}\n",
               hvd_size(session), hvd_cross_size(session), hvd_version());
    else
        printf("idle\n");
    fflush(stdout);
}

int perf_idle(struct hvd_session *session, const struct perf_options *options)
{
    const struct timespec rest = {.tv_sec = (time_t)(options->idle_ns / HVI_NS_SEC),
                                  .tv_nsec = (long)(options->idle_ns % HVI_NS_SEC)};
    if (perf_barrier(session, options, "perf.idle") != HVD_OK)
        return 1;
    if (hvd_rank(session) == 0)
        print_idle(session, options->json);
    while (clock_nanosleep(CLOCK_MONOTONIC, 0, &rest, NULL) == EINTR)
        continue;
    return 0;
}
