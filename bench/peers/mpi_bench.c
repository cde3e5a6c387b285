/* SPDX-License-Identifier: Apache-2.0
 * One measurement of an MPI library, done exactly as hvd-perf does it: every op is clocked on every
 * rank, an iteration counts as its slowest rank, and the median over the iterations is the figure.
 *
 *   mpi_bench OP BYTES SECONDS [barrier] [outstanding=K]
 *   mpi_bench gradients FILE SECONDS
 *
 * The gradients go each by MPI_Iallreduce, all at a time; BENCH_GRADIENTS=blocking: one after the other by
 * MPI_Allreduce; =buckets: those that lie in 25 MB by one MPI_Allreduce, in place.
 * With BENCH_HUGE_PAGES buffers are on huge pages, where the system has them for those that ask.
 * allreduce is in place (MPI_IN_PLACE), float32, sum. BYTES as in hvd-perf: the tensor of one rank
 * (allreduce, broadcast, alltoall, reducescatter's input) or the whole result (allgather).
 * "barrier" puts an MPI_Barrier, not timed, before every op: for ops that do not wait for
 * everybody. The results are checked once before the clock starts. Prints one JSON line. */
#include <mpi.h>

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SAMPLES_MOST  200000
#define SAMPLES_LEAST 5
#define TENSORS_MOST  1024
#define LINE_FLOATS   1024 /* tensors of gradients start on pages */
#define BUCKET_FLOATS (25 * 1024 * 1024 / 4)
#define HUGE_PAGE     ((size_t)2 * 1024 * 1024)

struct bench {
    const char *op;
    int rank, size;
    long bytes;
    long count; /* elements of one rank's input */
    float *in, *out;
    bool barrier;
    long outstanding;
    long tensors; /* of gradients */
    const char *way;
    long counts[TENSORS_MOST], at[TENSORS_MOST];
    MPI_Request requests[TENSORS_MOST];
};

static int64_t clock_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void die(const struct bench *bench, const char *text)
{
    fprintf(stderr, "mpi_bench: rank %d: %s\n", bench->rank, text);
    MPI_Abort(MPI_COMM_WORLD, 1);
    exit(1);
}

static bool is(const struct bench *bench, const char *op)
{
    return strcmp(bench->op, op) == 0;
}

static float *touched(const struct bench *bench, long floats)
{
    void *memory = NULL;
    const bool huge = getenv("BENCH_HUGE_PAGES") != NULL;
    const size_t align = huge ? HUGE_PAGE : 4096;
    const size_t room = ((size_t)floats * sizeof(float) + align) / align * align;
    if (posix_memalign(&memory, align, room) != 0)
        die(bench, "no memory");
    if (huge)
        (void)madvise(memory, room, MADV_HUGEPAGE);
    memset(memory, 0, (size_t)floats * sizeof(float));
    return memory;
}

static void run_blocking(struct bench *bench, long at, long count)
{
    MPI_Allreduce(MPI_IN_PLACE, bench->in + at, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void run_buckets(struct bench *bench)
{
    long first = 0;

    for (long i = 1; i <= bench->tensors; i++) {
        const long end = i < bench->tensors ? bench->at[i] + bench->counts[i] : LONG_MAX;
        if (end - bench->at[first] <= BUCKET_FLOATS)
            continue;
        run_blocking(bench, bench->at[first],
                     bench->at[i - 1] + bench->counts[i - 1] - bench->at[first]);
        first = i;
    }
}

static void run_gradients(struct bench *bench)
{
    if (strcmp(bench->way, "buckets") == 0) {
        run_buckets(bench);
        return;
    }
    if (strcmp(bench->way, "blocking") == 0) {
        for (long i = 0; i < bench->tensors; i++)
            run_blocking(bench, bench->at[i], bench->counts[i]);
        return;
    }
    for (long i = 0; i < bench->tensors; i++)
        MPI_Iallreduce(MPI_IN_PLACE, bench->in + bench->at[i], (int)bench->counts[i], MPI_FLOAT,
                       MPI_SUM, MPI_COMM_WORLD, &bench->requests[i]);
    MPI_Waitall((int)bench->tensors, bench->requests, MPI_STATUSES_IGNORE);
}

static void run_outstanding(struct bench *bench)
{
    for (long i = 0; i < bench->outstanding; i++)
        MPI_Iallreduce(MPI_IN_PLACE, bench->in + i * 16, (int)bench->count, MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD, &bench->requests[i]);
    MPI_Waitall((int)bench->outstanding, bench->requests, MPI_STATUSES_IGNORE);
}

static void run_op(struct bench *bench)
{
    const int count = (int)bench->count;
    const int share = count / bench->size;
    if (bench->tensors > 0)
        run_gradients(bench);
    else if (bench->outstanding > 1)
        run_outstanding(bench);
    else if (is(bench, "allreduce"))
        MPI_Allreduce(MPI_IN_PLACE, bench->in, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else if (is(bench, "allgather"))
        MPI_Allgather(bench->in, count, MPI_FLOAT, bench->out, count, MPI_FLOAT, MPI_COMM_WORLD);
    else if (is(bench, "broadcast"))
        MPI_Bcast(bench->in, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    else if (is(bench, "alltoall"))
        MPI_Alltoall(bench->in, share, MPI_FLOAT, bench->out, share, MPI_FLOAT, MPI_COMM_WORLD);
    else if (is(bench, "reducescatter"))
        MPI_Reduce_scatter_block(bench->in, bench->out, share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    else
        die(bench, "which op? allreduce, allgather, broadcast, alltoall, reducescatter, gradients");
}

/* What element i of the result must be, when every rank's element i is 1 + rank. */
static float expected(const struct bench *bench, long i)
{
    const int n = bench->size;
    const float sum = (float)(n * (n + 1) / 2);
    if (is(bench, "allgather"))
        return 1 + (float)(i / bench->count);
    if (is(bench, "alltoall"))
        return 1 + (float)(i / (bench->count / n));
    return is(bench, "broadcast") ? 1 : sum;
}

static void check_range(const struct bench *bench, const float *values, long count)
{
    for (long i = 0; i < count; i++)
        if (values[i] != expected(bench, i))
            die(bench, "a wrong result");
}

static void check(struct bench *bench)
{
    long result = bench->count;
    const bool separate = !is(bench, "allreduce") && !is(bench, "broadcast") && bench->tensors == 0;
    float *out = separate ? bench->out : bench->in;
    for (long i = 0; i < bench->count; i++)
        bench->in[i] = 1 + (float)bench->rank;
    for (long k = 1; k < bench->outstanding; k++)
        bench->in[k * 16] = 1 + (float)bench->rank;
    run_op(bench);
    if (is(bench, "reducescatter"))
        result /= bench->size;
    if (is(bench, "allgather"))
        result *= bench->size;
    for (long t = 0; t < bench->tensors; t++)
        check_range(bench, bench->in + bench->at[t], bench->counts[t]);
    if (bench->tensors == 0)
        check_range(bench, out, result);
    for (long k = 1; k < bench->outstanding; k++)
        check_range(bench, bench->in + k * 16, 1);
    memset(bench->in, 0, (size_t)bench->count * sizeof(float));
}

static long iterate(struct bench *bench, long iterations, int64_t *times_ns)
{
    for (long i = 0; i < iterations; i++) {
        if (bench->barrier)
            MPI_Barrier(MPI_COMM_WORLD);
        const int64_t start_ns = clock_ns();
        run_op(bench);
        times_ns[i] = clock_ns() - start_ns;
    }
    return iterations;
}

/* How many iterations fit into `seconds`; the same number on every rank. */
static long agree(struct bench *bench, double seconds, int64_t *times_ns)
{
    double mean_ns = 0;
    long looks = 3;
    iterate(bench, looks, times_ns);
    for (;;) {
        const int64_t start_ns = clock_ns();
        iterate(bench, looks, times_ns);
        double took_ns = (double)(clock_ns() - start_ns);
        MPI_Allreduce(MPI_IN_PLACE, &took_ns, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        mean_ns = took_ns / (double)looks;
        if (took_ns > 5e7 || looks > SAMPLES_MOST / 8)
            break;
        looks *= 4;
    }
    const double fit = seconds * 1e9 / mean_ns;
    return fit < SAMPLES_LEAST ? SAMPLES_LEAST : fit > SAMPLES_MOST ? SAMPLES_MOST : (long)fit;
}

static int compare(const void *a, const void *b)
{
    const int64_t one = *(const int64_t *)a;
    const int64_t two = *(const int64_t *)b;
    return (one > two) - (one < two);
}

static void print_result(const struct bench *bench, int64_t *times_ns, long n)
{
    double sum = 0;
    const double scale = 1e-3 / (double)bench->outstanding;
    for (long i = 0; i < n; i++)
        sum += (double)times_ns[i];
    qsort(times_ns, (size_t)n, sizeof *times_ns, compare);
    const double median = n % 2 == 1 ? (double)times_ns[n / 2]
                                     : ((double)times_ns[n / 2 - 1] + (double)times_ns[n / 2]) / 2;
    printf("{\"op\": \"%s\", \"bytes\": %ld, \"np\": %d, \"time_us\": %.3f, "
           "\"time_us_p99\": %.3f, \"time_us_min\": %.3f, \"time_us_mean\": %.3f, "
           "\"errors\": 0, \"iterations\": %ld, \"outstanding\": %ld}\n",
           bench->op, bench->bytes, bench->size, median * scale,
           (double)times_ns[(n * 99 + 99) / 100 - 1] * scale, (double)times_ns[0] * scale,
           sum / (double)n * scale, n, bench->outstanding);
}

static void read_sizes(struct bench *bench, const char *path)
{
    char line[256];
    long room = 0;
    FILE *file = fopen(path, "r");
    if (file == NULL)
        die(bench, "cannot read the file of sizes");
    while (fgets(line, sizeof line, file) != NULL) {
        const long count = line[0] == '#' ? 0 : strtol(line, NULL, 10);
        if (count <= 0)
            continue;
        if (bench->tensors == TENSORS_MOST)
            die(bench, "too many sizes");
        bench->counts[bench->tensors] = count;
        bench->at[bench->tensors++] = room;
        room += (count + LINE_FLOATS - 1) / LINE_FLOATS * LINE_FLOATS;
        bench->bytes += count * (long)sizeof(float);
    }
    fclose(file);
    if (bench->tensors == 0)
        die(bench, "no sizes in the file");
    bench->count = room;
    bench->in = touched(bench, room);
}

static void get_buffers(struct bench *bench)
{
    const long shares = is(bench, "allgather") ? bench->size : 1;
    bench->count = bench->bytes / (long)sizeof(float) / shares;
    bench->bytes = bench->count * (long)sizeof(float) * shares;
    bench->in = touched(bench, bench->count + bench->outstanding * 16);
    bench->out = touched(bench, bench->count * shares);
}

int main(int argc, char **argv)
{
    static struct bench bench = {.outstanding = 1};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &bench.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &bench.size);
    if (argc < 4)
        die(&bench, "usage: mpi_bench OP BYTES SECONDS [barrier] [outstanding=K]");
    bench.op = argv[1];
    bench.way = getenv("BENCH_GRADIENTS") ? getenv("BENCH_GRADIENTS") : "";
    for (int i = 4; i < argc; i++) {
        if (strcmp(argv[i], "barrier") == 0)
            bench.barrier = true;
        if (strncmp(argv[i], "outstanding=", 12) == 0)
            bench.outstanding = strtol(argv[i] + 12, NULL, 10);
    }
    if (bench.outstanding < 1 || bench.outstanding > TENSORS_MOST)
        die(&bench, "outstanding is 1 to 1024");
    if (is(&bench, "gradients"))
        read_sizes(&bench, argv[2]);
    else {
        bench.bytes = strtol(argv[2], NULL, 10);
        get_buffers(&bench);
    }
    int64_t *times_ns = calloc(SAMPLES_MOST, sizeof *times_ns);
    if (times_ns == NULL)
        die(&bench, "no memory");
    check(&bench);
    const long n = agree(&bench, strtod(argv[3], NULL), times_ns);
    iterate(&bench, n, times_ns);
    MPI_Allreduce(MPI_IN_PLACE, times_ns, (int)n, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
    if (bench.rank == 0)
        print_result(&bench, times_ns, n);
    MPI_Finalize();
    return 0;
}
