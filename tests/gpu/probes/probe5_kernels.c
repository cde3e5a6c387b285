/* SPDX-License-Identifier: Apache-2.0
 * Question 5. How near to the device's copy rate do our kernels come: the sum over N local ranks' buffers, and packing
 * scattered tensors of N ranks into one fusion buffer?
 *
 * Method. Buffers of 256 MiB per rank (less if memory is short), N = 1, 2, 4, 8, in float32, bfloat16 and float16. Each figure
 * is the median of several runs timed by events. copy: cuMemcpyDtoDAsync of one buffer, counted as read plus write. reduce
 * reads N and writes N buffers, accumulates in float32 in rank order, scales by 1/N; pack reads N and writes one, tensor by
 * tensor: 64 KiB to 1 MiB each, cut into tiles of 64 KiB, laid out in the packed buffer in another order. The contents are
 * chosen so that the mean is exact in every dtype and repetition changes nothing; after the runs every element is compared.
 * *_of_copy is the kernel's rate by the copy's.
 *
 * Predicted. copy 4300 GB/s on an H200; reduce and pack at least 0.90 of it, in every dtype and for every N; 0 wrong. Sources:
 * 4.3 of 4.8 TB/s measured for a copy on an H200; the kernels are limited by memory, not by arithmetic: at most 8 additions
 * per 16 bytes. */
#include "probe_cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RANKS = 8, VEC = 16, TILE = 65536 / VEC, RUNS = 7 };

struct bench {
    struct cu_buffers buffers;
    CUdeviceptr packed, tiles, bad;
    size_t bytes; /* of one rank */
    unsigned tile_count, grid;
    CUstream s;
    CUevent begin, end;
    double copy_rate;
    int runs;
};

struct dtype {
    const char *name;
    size_t size;
};

/* Tensors of 64 KiB to 1 MiB, the last ones first in the packed buffer. */
static void make_tiles(struct bench *b)
{
    unsigned total = (unsigned)(b->bytes / VEC), at = 0, to = total;
    b->tile_count = total / TILE;
    struct cu_tile *tiles = calloc(b->tile_count, sizeof *tiles);
    if (!tiles)
        probe_fail("out of memory");
    for (unsigned i = 0, tensor = 0; i < b->tile_count; tensor++) {
        unsigned count = 1 + tensor * 7 % 16; /* tiles of this tensor */
        count = count > b->tile_count - i ? b->tile_count - i : count;
        to -= count * TILE;
        for (unsigned k = 0; k < count; k++, i++, at += TILE)
            tiles[i] = (struct cu_tile){.from = at, .to = to + k * TILE, .count = TILE};
    }
    CU(cuMemcpyHtoDAsync, b->tiles, tiles, b->tile_count * sizeof *tiles, b->s);
    cu_settle(b->s, "copying the tiles");
    free(tiles);
}

static void run_copy(struct bench *b)
{
    CU(cuMemcpyDtoDAsync, b->packed, b->buffers.p[0], b->bytes, b->s);
}

static double median_us(struct bench *b, CUfunction f, void **arguments)
{
    double us[RUNS];
    float ms;
    for (int i = -1; i < b->runs; i++) { /* the first one warms up */
        CU(cuEventRecord, b->begin, b->s);
        if (f)
            cu_launch(f, b->grid, 512, b->s, arguments);
        else
            run_copy(b);
        CU(cuEventRecord, b->end, b->s);
        cu_settle(b->s, "a kernel");
        CU(cuEventElapsedTime, &ms, b->begin, b->end);
        if (i >= 0)
            us[i] = 1e3 * (double)ms;
    }
    return probe_median(us, b->runs);
}

static void fill(struct bench *b, const struct dtype *d, unsigned ranks)
{
    char name[64];
    unsigned long long count = b->bytes / d->size;
    snprintf(name, sizeof name, "probe_ramp_%s", d->name);
    for (unsigned r = 0; r < ranks; r++)
        cu_launch(cu_kernel(name), b->grid, 256, b->s, (void *[]){&b->buffers.p[r], &count, &r});
}

static void check(struct bench *b, const struct dtype *d, CUdeviceptr p, unsigned ranks,
                  const char *what)
{
    char name[64];
    unsigned long long count = b->bytes / d->size;
    uint64_t bad = ~0ull;
    float scale = 1.0f / (float)ranks;
    snprintf(name, sizeof name, "probe_mean_%s", d->name);
    CU(cuMemsetD8Async, b->bad, 0, sizeof bad, b->s);
    cu_launch(cu_kernel(name), b->grid, 256, b->s, (void *[]){&p, &count, &ranks, &scale, &b->bad});
    CU(cuMemcpyDtoHAsync, &bad, b->bad, sizeof bad, b->s);
    cu_settle(b->s, "comparing");
    if (bad)
        probe_figure((double)bad, "elements", "wrong_%s_%s_%u", what, d->name, ranks);
}

static void tell(struct bench *b, const char *what, const struct dtype *d, unsigned ranks,
                 double us, double bytes)
{
    double rate = bytes / us / 1e3;
    probe_figure(us, "us", "%s_%s_%u", what, d->name, ranks);
    probe_figure(rate / b->copy_rate, "ratio", "%s_%s_%u_of_copy", what, d->name, ranks);
}

static void measure(struct bench *b, const struct dtype *d, unsigned ranks)
{
    char name[64];
    unsigned long long vectors = b->bytes / VEC;
    float scale = 1.0f / (float)ranks;
    double n = ranks, bytes = (double)b->bytes;
    probe_step("%s, %u ranks", d->name, ranks);
    fill(b, d, ranks);
    snprintf(name, sizeof name, "probe_pack_%s_%u", d->name, ranks);
    double us = median_us(b, cu_kernel(name),
                          (void *[]){&b->buffers, &b->tiles, &b->tile_count, &b->packed, &scale});
    tell(b, "pack", d, ranks, us, (n + 1) * bytes);
    check(b, d, b->packed, ranks, "pack");
    snprintf(name, sizeof name, "probe_reduce_%s_%u", d->name, ranks);
    us = median_us(b, cu_kernel(name), (void *[]){&b->buffers, &vectors, &scale});
    tell(b, "reduce", d, ranks, us, 2 * n * bytes);
    for (unsigned r = 0; r < ranks; r++)
        check(b, d, b->buffers.p[r], ranks, "reduce");
}

static void kernels(const struct probe_options *o)
{
    const struct dtype dtypes[] = {{"fp32", 4}, {"bf16", 2}, {"fp16", 2}};
    struct bench b = {.bytes = (size_t)(o->is_quick ? 64 : 256) << 20,
                      .runs = o->is_quick ? 3 : RUNS};
    cu_attach(o, 0);
    while (b.bytes > 1 << 20 && (double)(b.bytes >> 20) * (RANKS + 2) > cu_free_mib())
        b.bytes /= 2;
    b.s = cu_stream();
    b.grid = 4 * (unsigned)cu_attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    CU(cuEventCreate, &b.begin, CU_EVENT_DEFAULT);
    CU(cuEventCreate, &b.end, CU_EVENT_DEFAULT);
    for (int r = 0; r < RANKS; r++)
        b.buffers.p[r] = cu_alloc(b.bytes);
    b.packed = cu_alloc(b.bytes);
    b.tiles = cu_alloc(b.bytes / (TILE * VEC) * sizeof(struct cu_tile));
    b.bad = cu_alloc(sizeof(uint64_t));
    make_tiles(&b);
    probe_figure((double)(b.bytes >> 20), "MiB", "bytes_per_rank");
    probe_step("copying");
    b.copy_rate = 2 * (double)b.bytes / median_us(&b, NULL, NULL) / 1e3;
    probe_figure(b.copy_rate, "GB/s", "copy");
    for (int d = 0; d < 3; d++) {
        for (unsigned ranks = 1; ranks <= RANKS; ranks *= 2)
            measure(&b, &dtypes[d], ranks);
    }
    probe_answer("compared", "all_elements"); /* a wrong one is a figure wrong_... */
}

static const struct probe_role roles[] = {{"kernels", kernels}, {NULL, NULL}};
const struct probe probe = {5, "Reduce and pack kernels as a share of a device-to-device copy",
                            NULL, roles};
