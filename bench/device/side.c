/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/device/side.h"

#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CALL_S       20 /* nothing watches; the program's own alarm ends it */
#define LOAD_US      500.0
#define COPY_REPEATS 9
#define MPS_ENABLED  133 /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED */

static const char *volatile at_step = "its beginning";

void side_step(const char *step)
{
    at_step = step;
}

/* The step is a constant, so it may be read here. */
static void say_step(int number)
{
    static const char begin[] = "hvd-gpu-bench: not over in time, at: ";

    (void)!write(STDERR_FILENO, begin, sizeof(begin) - 1);
    (void)!write(STDERR_FILENO, at_step, strlen(at_step));
    (void)!write(STDERR_FILENO, "\n", 1);
    _exit(128 + number);
}

void side_limit(unsigned seconds)
{
    struct sigaction action = {.sa_handler = say_step};

    sigaction(SIGALRM, &action, NULL);
    alarm(seconds);
}

_Noreturn void side_fail(const char *format, ...)
{
    va_list arguments;

    fprintf(stderr, "hvd-gpu-bench: ");
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fprintf(stderr, "\n");
    exit(1);
}

void side_good(struct side *side, int error, const char *what)
{
    char text[100];

    if (error == HVI_CU_OK)
        return;
    hvi_cuda_describe(&side->cuda, error, text, sizeof(text));
    side_fail("%s: %s", what, text);
}

void side_fine(int status, const char *what)
{
    if (status != HVD_OK)
        side_fail("%s: %s: %s", what, hvd_status_name(status), hvd_last_error());
}

void side_figure(const struct side *side, double value, const char *unit, const char *format, ...)
{
    char name[100];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(name, sizeof(name), format, arguments);
    va_end(arguments);
    if (side->rank != 0)
        return;
    printf("{\"figure\": \"%s\", \"value\": %.6g, \"unit\": \"%s\"}\n", name, value, unit);
    fflush(stdout);
}

void side_note(const struct side *side, const char *format, ...)
{
    char text[600];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(text, sizeof(text), format, arguments);
    va_end(arguments);
    for (char *at = text; *at != '\0'; at++)
        *at = *at == '"' || *at == '\\' || (unsigned char)*at < ' ' ? ' ' : *at;
    if (side->rank == 0)
        printf("{\"note\": \"%s\"}\n", text);
    fflush(stdout);
}

uint64_t side_now_ns(void)
{
    return hvi_clock_ns();
}

static int compare(const void *one, const void *other)
{
    const double a = *(const double *)one, b = *(const double *)other;

    return (a > b) - (a < b);
}

double side_part(double *values, int count, double part)
{
    qsort(values, (size_t)count, sizeof(*values), compare);
    return values[(int)(part * (count - 1))];
}

double side_median(double *values, int count)
{
    return side_part(values, count, 0.5);
}

/* ---- the device ---- */

static void *function(struct side *side, const char *name)
{
    void *found = dlsym(side->cuda.library, name);

    if (found == NULL)
        side_fail("the driver has no %s", name);
    return found;
}

static void find_events(struct side *side)
{
    void *elapsed = dlsym(side->cuda.library, "cuEventElapsedTime_v2"); /* from CUDA 12.8 on */
    void *create = function(side, "cuEventCreate"), *record = function(side, "cuEventRecord");

    if (elapsed == NULL)
        elapsed = function(side, "cuEventElapsedTime");
    memcpy(&side->event_create, &create, sizeof(create));
    memcpy(&side->event_record, &record, sizeof(record));
    memcpy(&side->event_elapsed, &elapsed, sizeof(elapsed));
    side_good(side, side->event_create(&side->begin, 0), "cuEventCreate");
    side_good(side, side->event_create(&side->end, 0), "cuEventCreate");
}

static void open_device(struct side *side)
{
    const struct hvi_cuda *cuda = &side->cuda;
    hvi_cu_context context;
    hvi_cu_device device;
    int is_mps;
    char text[400];

    if (hvi_cuda_open(false, &side->cuda, text, sizeof(text)) != HVI_OK)
        side_fail("%s", text);
    side->calls.cuda = cuda;
    side->calls.usual_ns = CALL_S * HVI_NS_SEC;
    side->streams.calls = &side->calls;
    side_step("cuInit");
    side_good(side, cuda->init(0), "cuInit");
    side_step("the context");
    side_good(side, cuda->device_get(&device, 0), "cuDeviceGet");
    if (cuda->device_attribute(&is_mps, MPS_ENABLED, device) == HVI_CU_OK)
        side_figure(side, is_mps, "yes or no", "mps");
    side_good(side, cuda->context_retain(&context, device), "cuDevicePrimaryCtxRetain");
    side_good(side, cuda->context_set(context), "cuCtxSetCurrent");
    side_step("loading the kernels");
    if (!gpu_streams_open(&side->streams, side->options->kernels))
        side_fail("%s", side->calls.why);
    side->stream = &side->streams.streams[0];
    side->load = &side->streams.streams[1];
    side->opener = &side->streams.streams[2];
    find_events(side);
    side->gate = side_alloc(side, 256);
    side_put(side, side->gate, &side->gates, sizeof(side->gates));
}

void side_open(struct side *side, const struct side_options *options, bool attaches)
{
    side->options = options;
    side->size = 1;
    side_step("hvd_open");
    if (attaches) {
        side_fine(hvd_open(NULL, &side->session), "hvd_open");
        side->rank = hvd_rank(side->session);
        side->size = hvd_size(side->session);
    }
    open_device(side);
}

hvi_cu_ptr side_alloc(struct side *side, size_t bytes)
{
    hvi_cu_ptr address;

    side_good(side, side->cuda.alloc(&address, bytes), "cuMemAlloc");
    return address;
}

void side_free(struct side *side, hvi_cu_ptr address)
{
    side_good(side, side->cuda.free(address), "cuMemFree");
}

void side_settle(struct side *side, struct gpu_stream *stream)
{
    side_good(side, side->cuda.stream_synchronize(stream->handle), "cuStreamSynchronize");
}

void side_put(struct side *side, hvi_cu_ptr to, const void *from, size_t bytes)
{
    side_good(side, side->cuda.copy_in(to, from, bytes, side->stream->handle), "cuMemcpyHtoDAsync");
    side_settle(side, side->stream);
}

void side_get(struct side *side, void *to, hvi_cu_ptr from, size_t bytes)
{
    side_good(side, side->cuda.copy_out(to, from, bytes, side->stream->handle),
              "cuMemcpyDtoHAsync");
    side_settle(side, side->stream);
}

void side_copy(struct side *side, hvi_cu_ptr to, hvi_cu_ptr from, size_t bytes)
{
    side_good(side, side->cuda.copy(to, from, bytes, side->stream->handle), "cuMemcpyDtoDAsync");
}

/* ---- contents ---- */

#define PERIOD 1021 /* a prime, so that no two tiles are alike */

double side_value(int rank, size_t element)
{
    const size_t at = element % PERIOD;

    return (double)((at * at + at / 7 + 3 * (size_t)rank) % 15 + 1);
}

double side_sum(int ranks, size_t element)
{
    double sum = 0;

    for (int rank = 0; rank < ranks; rank++)
        sum += side_value(rank, element);
    return sum;
}

/* Bits of float32, of which bfloat16 has the upper half. */
static uint32_t bits_of(double value)
{
    const float narrow = (float)value;
    uint32_t bits;

    memcpy(&bits, &narrow, sizeof(bits));
    return bits;
}

static void *host_memory(size_t bytes)
{
    void *memory = malloc(bytes);

    if (memory == NULL)
        side_fail("no memory for %zu bytes", bytes);
    return memory;
}

void side_fill(struct side *side, hvi_cu_ptr to, size_t count, enum hvd_dtype dtype, int rank)
{
    const bool is_wide = dtype == HVD_FLOAT32;
    const size_t bytes = count * (is_wide ? 4 : 2);
    void *host = host_memory(bytes);
    uint32_t bits[PERIOD];

    for (size_t i = 0; i < PERIOD; i++)
        bits[i] = bits_of(side_value(rank, i));
    for (size_t i = 0, at = 0; i < count; i++, at = at + 1 == PERIOD ? 0 : at + 1) {
        if (is_wide)
            ((uint32_t *)host)[i] = bits[at];
        else
            ((uint16_t *)host)[i] = (uint16_t)(bits[at] >> 16);
    }
    side_put(side, to, host, bytes);
    free(host);
}

void side_check(struct side *side, hvi_cu_ptr from, size_t count, enum hvd_dtype dtype, int ranks,
                double factor, const char *what)
{
    const bool is_wide = dtype == HVD_FLOAT32;
    const size_t bytes = count * (is_wide ? 4 : 2);
    void *host = host_memory(bytes);
    uint32_t bits[PERIOD];

    side_get(side, host, from, bytes);
    for (size_t i = 0; i < PERIOD; i++)
        bits[i] = bits_of(side_sum(ranks, i) * factor);
    for (size_t i = 0, at = 0; i < count; i++, at = at + 1 == PERIOD ? 0 : at + 1) {
        const uint32_t has =
            is_wide ? ((uint32_t *)host)[i] : (uint32_t)((uint16_t *)host)[i] << 16;
        if (has != bits[at])
            side_fail("%s: a wrong result: element %zu of %zu has the bits %08x, not %08x", what, i,
                      count, has, bits[at]);
    }
    free(host);
}

/* ---- time on the device ---- */

void side_mark_begin(struct side *side)
{
    side_good(side, side->event_record(side->begin, side->stream->handle), "cuEventRecord");
}

void side_mark_end(struct side *side)
{
    side_good(side, side->event_record(side->end, side->stream->handle), "cuEventRecord");
}

double side_elapsed_us(struct side *side)
{
    float ms;

    side_settle(side, side->stream);
    side_good(side, side->event_elapsed(&ms, side->begin, side->end), "cuEventElapsedTime");
    return 1e3 * (double)ms;
}

void side_close_gate(struct side *side)
{
    side_good(side, side->cuda.wait64(side->stream->handle, side->gate, ++side->gates, 0),
              "cuStreamWaitValue64");
}

void side_open_gate(struct side *side)
{
    side_good(side, side->cuda.write64(side->opener->handle, side->gate, side->gates, 0),
              "cuStreamWriteValue64");
}

/* ---- kernels ---- */

struct gpu_step side_reduce_step(const hvi_cu_ptr *vectors, uint32_t ins, uint32_t outs,
                                 size_t count)
{
    struct gpu_step step = {.kind = GPU_STEP_REDUCE, .bytes = count * sizeof(float)};

    step.reduce = (struct hvd_reduce_args){.dtype = HVI_DTYPE_FLOAT32,
                                           .reduce_op = HVI_REDUCE_SUM,
                                           .ins = ins,
                                           .outs = outs,
                                           .prescale = 1,
                                           .postscale = 1,
                                           .count = count};
    for (uint32_t i = 0; i < ins; i++)
        step.reduce.in[i] = vectors[i];
    for (uint32_t i = 0; i < outs; i++)
        step.reduce.out[i] = vectors[i];
    return step;
}

void side_launch(struct side *side, struct gpu_stream *stream, const struct gpu_step *step)
{
    if (!gpu_streams_launch(&side->streams, stream, step))
        side_fail("%s", side->calls.why);
}

double side_copy_rate(struct side *side)
{
    const size_t bytes = side->options->bytes;
    const hvi_cu_ptr from = side_alloc(side, bytes), to = side_alloc(side, bytes);
    double us[COPY_REPEATS];

    side_step("copying");
    side_fill(side, from, bytes / 4, HVD_FLOAT32, 0);
    for (int i = -1; i < COPY_REPEATS; i++) { /* the first one warms up */
        side_mark_begin(side);
        side_copy(side, to, from, bytes);
        side_mark_end(side);
        const double took_us = side_elapsed_us(side);
        if (i >= 0)
            us[i] = took_us;
    }
    side_check(side, to, bytes / 4, HVD_FLOAT32, 1, 1, "a copy");
    side_free(side, from);
    side_free(side, to);
    const double rate = 2e-3 * (double)bytes / side_median(us, COPY_REPEATS);
    side_figure(side, rate, "GB/s", "copy");
    return rate;
}

/* ---- a load ---- */

void side_make_load(struct side *side)
{
    const size_t bytes = side->options->load_bytes;
    const hvi_cu_ptr vector = side_alloc(side, bytes);
    double us[5];

    side_step("the load's kernel");
    side->load_step = side_reduce_step(&vector, 1, 1, bytes / 4);
    for (int i = -1; i < 5; i++) {
        side_mark_begin(side);
        side_launch(side, side->stream, &side->load_step);
        side_mark_end(side);
        const double took_us = side_elapsed_us(side);
        if (i >= 0)
            us[i] = took_us;
    }
    const double took_us = side_median(us, 5), share = LOAD_US / took_us;
    if (share < 1)
        side->load_step = side_reduce_step(&vector, 1, 1, (size_t)((double)bytes * share) / 4);
    side_figure(side, share < 1 ? LOAD_US : took_us, "us", "load_kernel");
}

void side_begin_load(struct side *side, int kernels)
{
    for (int i = 0; i < kernels; i++)
        side_launch(side, side->load, &side->load_step);
}

void side_end_load(struct side *side)
{
    if (side->cuda.stream_query(side->load->handle) == HVI_CU_OK)
        side->early++;
    side_settle(side, side->load);
}

/* ---- the job ---- */

void side_meet(struct side *side)
{
    if (side->session != NULL)
        side_fine(hvd_barrier(side->session, "meet"), "hvd_barrier");
}

void side_wait_ops(struct side *side, int count)
{
    for (int i = 0; i < count; i++) {
        side_fine(hvd_wait(side->ops[i], -1), "hvd_wait");
        hvd_op_free(side->ops[i]);
    }
}
