/* SPDX-License-Identifier: Apache-2.0
 * One rank of gpu_op.py: allreduces of float32 in memory of a GPU, again and again.
 *
 *   gpu_op [--count ELEMENTS] [--outstanding K] [--stream] [--seconds S]
 *
 * Each turn submits K allreduces and ends when all of them are over: with --stream the rank's stream waits
 * for them, and the host for the stream; else the host waits for each op. Rank 0 prints
 * "begin" before the turns that count and "end OPS NANOSECONDS" behind them, each with a pause of QUIET_MS, in which gpu_op.py
 * reads what everything has used. The first turns are checked and do not count.
 *
 * The driver is called by its names: no header of CUDA is needed, and the fake of the tests does. */
#include <hvd/hvd.h>

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define OPS_MOST  256
#define QUIET_MS  250
#define STREAM_NB 1u /* CU_STREAM_NON_BLOCKING */

int cuInit(unsigned flags);
int cuDeviceGet(int *device_p, int ordinal);
int cuDevicePrimaryCtxRetain(void **context_p, int device);
int cuCtxSetCurrent(void *context);
int cuMemAlloc_v2(uint64_t *address_p, size_t bytes);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream);
int cuStreamCreate(void **stream_p, unsigned flags);
int cuStreamSynchronize(void *stream);

struct rank {
    struct hvd_session *session;
    void *stream; /* NULL: the host waits */
    int64_t count;
    int outstanding, number, size;
    float *in, *out; /* of all ops, one behind the other */
    struct hvd_op *ops[OPS_MOST];
    char names[OPS_MOST][16];
    float *host;
};

static void good(int status, const char *what)
{
    if (status == 0)
        return;
    fprintf(stderr, "gpu_op: %s: error %d\n", what, status);
    exit(1);
}

static void fine(int status, const char *what)
{
    if (status == HVD_OK)
        return;
    fprintf(stderr, "gpu_op: %s: %s: %s\n", what, hvd_status_name(status), hvd_last_error());
    exit(1);
}

static int64_t now_ns(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static void pause_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000}, NULL);
}

static void open_gpu(struct rank *rank, int with_stream)
{
    const size_t bytes = (size_t)rank->count * (size_t)rank->outstanding * sizeof(float);
    uint64_t address;
    void *context;
    int device;

    good(cuInit(0), "cuInit");
    good(cuDeviceGet(&device, 0), "cuDeviceGet");
    good(cuDevicePrimaryCtxRetain(&context, device), "cuDevicePrimaryCtxRetain");
    good(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    good(cuMemAlloc_v2(&address, 2 * bytes), "cuMemAlloc");
    rank->in = (float *)(uintptr_t)address;
    rank->out = rank->in + (size_t)rank->count * (size_t)rank->outstanding;
    if (with_stream)
        good(cuStreamCreate(&rank->stream, STREAM_NB), "cuStreamCreate");
    rank->host = malloc(bytes);
    for (size_t i = 0; i < bytes / sizeof(float); i++)
        rank->host[i] = (float)(rank->number + (int)(i % 97));
    good(cuMemcpyHtoDAsync_v2(address, rank->host, bytes, NULL), "cuMemcpyHtoDAsync");
    good(cuStreamSynchronize(NULL), "cuStreamSynchronize");
    for (int i = 0; i < rank->outstanding; i++)
        snprintf(rank->names[i], sizeof(rank->names[i]), "grad%d", i);
}

static void turn(struct rank *rank)
{
    struct hvd_op_options options;

    hvd_op_options_init(&options);
    options.stream = rank->stream;
    for (int i = 0; i < rank->outstanding; i++) {
        const struct hvd_tensor in =
            hvd_tensor_1d(rank->in + i * rank->count, HVD_FLOAT32, rank->count);
        const struct hvd_tensor out =
            hvd_tensor_1d(rank->out + i * rank->count, HVD_FLOAT32, rank->count);
        fine(hvd_allreduce_async(rank->session, rank->names[i], &in, &out, HVD_SUM, &options,
                                 &rank->ops[i]),
             "hvd_allreduce_async");
    }
    for (int i = 0; rank->stream && i < rank->outstanding; i++)
        fine(hvd_op_stream_wait(rank->ops[i], rank->stream), "hvd_op_stream_wait");
    if (rank->stream)
        good(cuStreamSynchronize(rank->stream), "cuStreamSynchronize");
    for (int i = 0; i < rank->outstanding; i++) {
        fine(hvd_wait(rank->ops[i], -1), "hvd_wait");
        hvd_op_free(rank->ops[i]);
    }
}

static void check(const struct rank *rank)
{
    const size_t elements = (size_t)rank->count * (size_t)rank->outstanding;

    good(cuMemcpyDtoHAsync_v2(rank->host, (uintptr_t)rank->out, elements * sizeof(float), NULL),
         "cuMemcpyDtoHAsync");
    good(cuStreamSynchronize(NULL), "cuStreamSynchronize");
    for (size_t i = 0; i < elements; i++) {
        const float expected =
            (float)(rank->size * (rank->size - 1) / 2 + rank->size * (int)(i % 97));
        if (rank->host[i] == expected)
            continue;
        fprintf(stderr, "gpu_op: element %zu is %g, not %g\n", i, (double)rank->host[i],
                (double)expected);
        exit(1);
    }
}

/* As many turns as take that long. */
static int64_t turns_in(struct rank *rank, double seconds)
{
    const int warm = OPS_MOST / rank->outstanding + 16;
    const int64_t begin_ns = now_ns();
    int64_t turns;
    const struct hvd_tensor one = hvd_tensor_1d(&turns, HVD_INT64, 1);

    for (int i = 0; i < warm; i++)
        turn(rank);
    turns = (int64_t)(seconds * 1e9 / ((double)(now_ns() - begin_ns) / warm)) + 1;
    fine(hvd_allreduce(rank->session, "turns", &one, &one, HVD_MAX), "hvd_allreduce");
    return turns;
}

static void measure(struct rank *rank, double seconds)
{
    const int64_t turns = turns_in(rank, seconds);

    check(rank);
    if (rank->number == 0)
        puts("begin");
    fflush(stdout);
    pause_ms(QUIET_MS);
    fine(hvd_barrier(rank->session, "begin"), "hvd_barrier");
    const int64_t begin_ns = now_ns();
    for (int64_t i = 0; i < turns; i++)
        turn(rank);
    const int64_t took_ns = now_ns() - begin_ns;
    if (rank->number == 0)
        printf("end %" PRId64 " %" PRId64 "\n", turns * rank->outstanding, took_ns);
    fflush(stdout);
    pause_ms(QUIET_MS);
}

int main(int argc, char **argv)
{
    static struct rank rank = {.count = 1, .outstanding = 1};
    double seconds = 1;
    int with_stream = 0;

    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--stream") == 0)
            with_stream = 1;
        else if (i + 1 == argc)
            return 2;
        else if (strcmp(argv[i], "--count") == 0)
            rank.count = atol(argv[++i]);
        else if (strcmp(argv[i], "--outstanding") == 0)
            rank.outstanding = atoi(argv[++i]);
        else if (strcmp(argv[i], "--seconds") == 0)
            seconds = atof(argv[++i]);
        else
            return 2;
    }
    if (rank.count < 1 || rank.outstanding < 1 || rank.outstanding > OPS_MOST)
        return 2;
    fine(hvd_open(NULL, &rank.session), "hvd_open");
    rank.number = hvd_rank(rank.session);
    rank.size = hvd_size(rank.session);
    open_gpu(&rank, with_stream);
    measure(&rank, seconds);
    fine(hvd_barrier(rank.session, "over"), "hvd_barrier");
    hvd_close(rank.session);
    return 0;
}
