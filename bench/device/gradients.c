/* SPDX-License-Identifier: Apache-2.0
 * The gradients of a model: the tensors of --sizes.
 *
 * group: as ops of a rank, in place, stream to stream, as one group and each by itself.
 * pack: the kernels that the worker packs and unpacks them with, launched as it does, up to 64 tensors each, and of all or of those
 * that it would pack. Each byte is read once and written once. What comes back is compared. */
#include "bench/device/side.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSORS_MOST SIDE_OPS
#define ALIGNMENT    512u /* of a tensor, as frameworks' allocators have it */

struct tensors {
    struct side *side;
    int count;
    size_t bytes; /* of the whole block, and of the tensors alone */
    size_t net_bytes;
    size_t at[TENSORS_MOST], elements[TENSORS_MOST];
    hvi_cu_ptr source, block;
};

static void read_sizes(struct tensors *tensors, const char *path)
{
    FILE *file = fopen(path, "r");
    char line[200];

    if (file == NULL)
        side_fail("%s cannot be read", path);
    while (fgets(line, sizeof(line), file) != NULL && tensors->count < TENSORS_MOST) {
        const size_t elements = strtoull(line, NULL, 10);
        if (elements == 0)
            continue;
        tensors->at[tensors->count] = tensors->bytes;
        tensors->elements[tensors->count++] = elements;
        tensors->net_bytes += elements * 4;
        tensors->bytes += (elements * 4 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    fclose(file);
    if (tensors->count == 0)
        side_fail("%s has no sizes", path);
}

static void submit(struct tensors *tensors, bool is_group)
{
    struct side *side = tensors->side;
    struct hvd_tensor each[TENSORS_MOST];
    struct hvd_op_options options;
    char name[16];

    hvd_op_options_init(&options);
    options.stream = side->stream->handle;
    for (int i = 0; i < tensors->count; i++) {
        each[i] = hvd_tensor_1d((void *)(uintptr_t)(tensors->block + tensors->at[i]), HVD_FLOAT32,
                                (int64_t)tensors->elements[i]);
        snprintf(name, sizeof(name), "g%d", i);
        if (!is_group)
            side_fine(hvd_allreduce_async(side->session, name, &each[i], &each[i], HVD_SUM,
                                          &options, &side->ops[i]),
                      "hvd_allreduce_async");
    }
    if (is_group)
        side_fine(hvd_grouped_allreduce_async(side->session, "group", each, each, tensors->count,
                                              HVD_SUM, &options, side->ops),
                  "hvd_grouped_allreduce_async");
    for (int i = 0; i < tensors->count; i++)
        side_fine(hvd_op_stream_wait(side->ops[i], side->stream->handle), "hvd_op_stream_wait");
}

/* Microseconds of a step by the device, and by the host. */
static double run_step(struct tensors *tensors, bool is_group, bool is_checked, double *host_us_p)
{
    struct side *side = tensors->side;

    side_copy(side, tensors->block, tensors->source, tensors->bytes);
    side_settle(side, side->stream);
    side_meet(side);
    const uint64_t since_ns = side_now_ns();
    side_mark_begin(side);
    submit(tensors, is_group);
    side_mark_end(side);
    const double took_us = side_elapsed_us(side);
    *host_us_p = (double)(side_now_ns() - since_ns) / 1e3;
    side_wait_ops(side, tensors->count);
    for (int i = 0; is_checked && i < tensors->count; i++) /* each tensor begins with element 0 */
        side_check(side, tensors->block + tensors->at[i], tensors->elements[i], HVD_FLOAT32,
                   side->size, 1, "gradients");
    return took_us;
}

static void measure_steps(struct tensors *tensors, bool is_group)
{
    struct side *side = tensors->side;
    const int repeats = side->options->repeats;
    double *us = calloc(2 * (size_t)repeats, sizeof(*us)), *host_us = us + repeats;

    side_step(is_group ? "a group" : "tensors one by one");
    run_step(tensors, is_group, true, host_us);
    for (int i = 0; i < 3; i++)
        run_step(tensors, is_group, false, host_us);
    for (int i = 0; i < repeats; i++)
        us[i] = run_step(tensors, is_group, false, &host_us[i]);
    side_figure(side, side_median(us, repeats), "us", "%s", is_group ? "group" : "each");
    side_figure(side, side_median(host_us, repeats), "us", "%s_host", is_group ? "group" : "each");
    free(us);
}

void bench_group(const struct side_options *options)
{
    static struct side side;
    static struct tensors tensors = {.side = &side};

    side_open(&side, options, true);
    read_sizes(&tensors, options->sizes);
    tensors.source = side_alloc(&side, tensors.bytes);
    tensors.block = side_alloc(&side, tensors.bytes);
    for (int i = 0; i < tensors.count; i++)
        side_fill(&side, tensors.source + tensors.at[i], tensors.elements[i], HVD_FLOAT32,
                  side.rank);
    measure_steps(&tensors, true);
    measure_steps(&tensors, false);
    side_figure(&side, (double)tensors.net_bytes, "B", "bytes");
    side_meet(&side);
    hvd_close(side.session);
}

/* ---- packing, alone ---- */

#define STEPS_MOST (TENSORS_MOST / HVD_KERNEL_PIECES + 1)

struct packing {
    struct gpu_step steps[2][STEPS_MOST]; /* pack, unpack */
    int count;
    size_t bytes;
};

/* The tensors of at most `most` bytes; they lie one behind the other at `packed`, aligned to 16. */
static void make_steps(const struct tensors *tensors, hvi_cu_ptr packed, size_t most,
                       struct packing *packing_p)
{
    size_t at = 0;
    int piece = HVD_KERNEL_PIECES;

    memset(packing_p, 0, sizeof(*packing_p));
    for (int i = 0; i < tensors->count; i++) {
        const size_t bytes = tensors->elements[i] * 4;
        if (bytes >= most)
            continue;
        if (piece == HVD_KERNEL_PIECES) {
            piece = 0;
            packing_p->count++;
        }
        for (int way = 0; way < 2; way++) {
            struct gpu_step *step = &packing_p->steps[way][packing_p->count - 1];
            struct hvd_pack_args *args = &step->pack;
            step->kind = way == 0 ? GPU_STEP_PACK : GPU_STEP_UNPACK;
            step->bytes += bytes;
            args->dtype = HVD_FLOAT32;
            args->prescale = args->postscale = 1;
            args->base = packed;
            args->pieces = (uint32_t)piece + 1;
            args->piece[piece].piece =
                (way == 0 ? tensors->source : tensors->block) + tensors->at[i];
            args->piece[piece].at = at;
            args->piece[piece].count = tensors->elements[i];
        }
        piece++;
        packing_p->bytes += bytes;
        at += (bytes + 15) / 16 * 16;
    }
}

static double time_steps(struct side *side, const struct gpu_step *steps, int count)
{
    const int repeats = side->options->repeats;
    double *us = calloc((size_t)repeats, sizeof(*us));

    for (int i = -1; i < repeats; i++) {
        side_mark_begin(side);
        for (int k = 0; k < count; k++)
            side_launch(side, side->stream, &steps[k]);
        side_mark_end(side);
        const double took_us = side_elapsed_us(side);
        if (i >= 0)
            us[i] = took_us;
    }
    const double median_us = side_median(us, repeats);
    free(us);
    return median_us;
}

/* There and back, into memory that had something else. */
static void check_packing(struct tensors *tensors, const struct packing *packing, size_t most)
{
    struct side *side = tensors->side;

    side_fill(side, tensors->block, tensors->bytes / 4, HVD_FLOAT32, 1);
    for (int way = 0; way < 2; way++) {
        for (int i = 0; i < packing->count; i++)
            side_launch(side, side->stream, &packing->steps[way][i]);
    }
    for (int i = 0; i < tensors->count; i++) {
        if (tensors->elements[i] * 4 < most)
            side_check(side, tensors->block + tensors->at[i], tensors->elements[i], HVD_FLOAT32, 1,
                       1, "what was packed and unpacked");
    }
}

static void measure_packing(struct tensors *tensors, hvi_cu_ptr packed, size_t most,
                            double copy_rate, const char *suffix)
{
    static struct packing packing;
    struct side *side = tensors->side;

    side_step("packing");
    make_steps(tensors, packed, most, &packing);
    check_packing(tensors, &packing, most);
    side_figure(side, (double)packing.bytes, "B", "bytes%s", suffix);
    for (int way = 0; way < 2; way++) {
        const double us = time_steps(side, packing.steps[way], packing.count);
        const char *what = way == 0 ? "pack" : "unpack";
        side_figure(side, us, "us", "%s%s", what, suffix);
        side_figure(side, 200 * (double)packing.bytes / us / 1e3 / copy_rate, "%", "%s%s_of_copy",
                    what, suffix);
    }
}

void bench_pack(const struct side_options *options)
{
    static struct side side;
    static struct tensors tensors = {.side = &side};

    side_open(&side, options, false);
    const double copy_rate = side_copy_rate(&side);
    read_sizes(&tensors, options->sizes);
    tensors.source = side_alloc(&side, tensors.bytes);
    tensors.block = side_alloc(&side, tensors.bytes);
    const hvi_cu_ptr packed = side_alloc(&side, tensors.bytes);
    for (int i = 0; i < tensors.count; i++)
        side_fill(&side, tensors.source + tensors.at[i], tensors.elements[i], HVD_FLOAT32, 0);
    measure_packing(&tensors, packed, SIZE_MAX, copy_rate, "");
    measure_packing(&tensors, packed, GPU_PLAN_SMALL, copy_rate, "_small");
}
