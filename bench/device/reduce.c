/* SPDX-License-Identifier: Apache-2.0
 * Large allreduces of the ranks of one GPU, stream to stream.
 *
 * Chains of allreduces of --bytes per rank, in place and not, of float32 and bfloat16. An op moves 2 * ranks * bytes in the
 * GPU's memory: all inputs are read, all outputs written. All ops of a chain are under way at once, as those of a training step are, and
 * the stream waits for them behind the last submission; or (in_turn) it waits for each before the next. Events of rank 0 around a chain give the time. All elements are
 * compared after the first chain, and some after each. */
#include "bench/device/side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOME 4096u /* elements that are compared after each chain */

struct large {
    struct side *side;
    enum hvd_dtype dtype;
    const char *name;
    size_t count;
    hvi_cu_ptr source, buffer; /* in place: the buffer begins as a copy of the source */
    bool is_in_place, is_in_turn;
};

static void let_wait(struct large *large, int number)
{
    struct side *side = large->side;

    side_fine(hvd_op_stream_wait(side->ops[number], side->stream->handle), "hvd_op_stream_wait");
}

static void enqueue(struct large *large, int number)
{
    struct side *side = large->side;
    const hvi_cu_ptr from = large->is_in_place ? large->buffer : large->source;
    const struct hvd_tensor in =
        hvd_tensor_1d((void *)(uintptr_t)from, large->dtype, (int64_t)large->count);
    const struct hvd_tensor out =
        hvd_tensor_1d((void *)(uintptr_t)large->buffer, large->dtype, (int64_t)large->count);
    struct hvd_op_options options;
    char name[48];

    snprintf(name, sizeof(name), "%s%d", large->name, number);
    hvd_op_options_init(&options);
    options.stream = side->stream->handle;
    side_fine(
        hvd_allreduce_async(side->session, name, &in, &out, HVD_SUM, &options, &side->ops[number]),
        "hvd_allreduce_async");
    if (large->is_in_turn)
        let_wait(large, number);
}

/* Microseconds of an op. `checked` elements are compared. */
static double run_chain(struct large *large, size_t checked)
{
    struct side *side = large->side;
    const int length = side->options->chain;
    const size_t size = large->dtype == HVD_FLOAT32 ? 4 : 2;
    double factor = 1;

    side_copy(side, large->buffer, large->source, large->count * size);
    side_settle(side, side->stream);
    side_meet(side);
    side_mark_begin(side);
    for (int i = 0; i < length; i++) {
        enqueue(large, i);
        factor *= large->is_in_place && i > 0 ? side->size : 1;
    }
    for (int i = 0; i < length && !large->is_in_turn; i++)
        let_wait(large, i);
    side_mark_end(side);
    const double took_us = side_elapsed_us(side);
    side_wait_ops(side, length);
    side_check(side, large->buffer, checked, large->dtype, side->size, factor, large->name);
    side_meet(side);
    return took_us / length;
}

static void measure(struct large *large, double copy_rate)
{
    struct side *side = large->side;
    const int repeats = side->options->repeats;
    const double bytes = 2.0 * side->size * (double)side->options->bytes;
    double *us = calloc((size_t)repeats, sizeof(*us));

    side_step(large->name);
    large->count = side->options->bytes / (large->dtype == HVD_FLOAT32 ? 4 : 2);
    side_fill(side, large->source, large->count, large->dtype, side->rank);
    run_chain(large, large->count);
    for (int i = 0; i < repeats; i++)
        us[i] = run_chain(large, large->count < SOME ? large->count : SOME);
    const double median_us = side_median(us, repeats);
    side_figure(side, median_us, "us", "%s", large->name);
    side_figure(side, 100 * bytes / median_us / 1e3 / copy_rate, "%", "%s_of_copy", large->name);
    free(us);
}

void bench_reduce(const struct side_options *options)
{
    static struct side side;
    double copy_rate = 0;

    side_open(&side, options, true);
    if (side.rank == 0)
        copy_rate = side_copy_rate(&side);
    side_meet(&side);
    struct large large = {.side = &side,
                          .source = side_alloc(&side, options->bytes),
                          .buffer = side_alloc(&side, options->bytes)};
    for (int i = 0; i < 5; i++) {
        static const char *const names[] = {"fp32_in_place", "bf16_in_place", "fp32_apart",
                                            "bf16_apart", "fp32_in_turn"};
        large.name = names[i];
        large.dtype = i % 2 == 0 ? HVD_FLOAT32 : HVD_BFLOAT16;
        large.is_in_place = i < 2;
        large.is_in_turn = i == 4;
        measure(&large, copy_rate);
    }
    hvd_close(side.session);
}

/* ---- the kernel, alone ---- */

#define INPUTS_MOST 8

struct vectors {
    struct side *side;
    double copy_rate;
    hvi_cu_ptr in[INPUTS_MOST], out[INPUTS_MOST];
    enum hvd_dtype dtype;
    size_t count;
};

static void measure_kernel(const struct vectors *vectors, int inputs)
{
    struct side *side = vectors->side;
    const int repeats = side->options->repeats;
    const double bytes = 2.0 * inputs * (double)side->options->bytes;
    struct gpu_step step =
        side_reduce_step(vectors->in, (uint32_t)inputs, (uint32_t)inputs, vectors->count);
    double *us = calloc((size_t)repeats, sizeof(*us));

    step.reduce.dtype = vectors->dtype;
    step.bytes = side->options->bytes;
    for (int i = 0; i < inputs; i++)
        step.reduce.out[i] = vectors->out[i];
    for (int i = -1; i < repeats; i++) { /* the first one warms up */
        side_mark_begin(side);
        side_launch(side, side->stream, &step);
        side_mark_end(side);
        const double took_us = side_elapsed_us(side);
        if (i >= 0)
            us[i] = took_us;
    }
    side_check(side, vectors->out[inputs - 1], vectors->count < SOME ? vectors->count : SOME,
               vectors->dtype, 1, inputs, "a reduction");
    side_figure(side, 100 * bytes / side_median(us, repeats) / 1e3 / vectors->copy_rate, "%",
                "%s_%d_of_copy", vectors->dtype == HVD_FLOAT32 ? "fp32" : "bf16", inputs);
    free(us);
}

/* All inputs are alike. */
static void fill_inputs(const struct vectors *vectors)
{
    struct side *side = vectors->side;

    side_fill(side, vectors->in[0], vectors->count, vectors->dtype, 0);
    for (int i = 1; i < INPUTS_MOST; i++)
        side_copy(side, vectors->in[i], vectors->in[0], side->options->bytes);
    side_settle(side, side->stream);
}

void bench_kernels(const struct side_options *options)
{
    static struct side side;
    struct vectors vectors = {.side = &side};

    side_open(&side, options, false);
    if (options->grid > 0)
        side.streams.blocks_max = side.streams.blocks_max / GPU_STREAM_GRID * options->grid;
    vectors.copy_rate = side_copy_rate(&side);
    for (int i = 0; i < INPUTS_MOST; i++) {
        vectors.in[i] = side_alloc(&side, options->bytes);
        vectors.out[i] = side_alloc(&side, options->bytes);
    }
    for (int i = 0; i < 2; i++) {
        side_step("reducing");
        vectors.dtype = i == 0 ? HVD_FLOAT32 : HVD_BFLOAT16;
        vectors.count = options->bytes / (i == 0 ? 4 : 2);
        fill_inputs(&vectors);
        for (int inputs = 1; inputs <= INPUTS_MOST; inputs *= 2)
            measure_kernel(&vectors, inputs);
    }
}
