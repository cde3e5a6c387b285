/* SPDX-License-Identifier: Apache-2.0
 * The kernels of a GPU's worker: their names, and one struct of arguments for each. kernels.cu computes them; daemon/gpu/launch.c
 * fills the structs in and launches. Types and reduce ops are the numbers of base/types.def; flags are 0. Addresses are those of
 * the device as the worker sees them, and multiples of the element's bytes; loads are wide where all that is read or written
 * lies alike in 16 bytes. Grids are one-dimensional; each kernel takes any number of blocks and threads, without shared memory.
 *
 *   hvd_reduce   out_j[i] = post(pre(in_0[i]) o pre(in_1[i]) o ...), in this order, for every out_j: the bits of reduce/, if
 *                hvi_reduction_check allows the combination. An output may be one of the inputs, else they are disjoint.
 *   hvd_spread   the same with one input, to all outputs
 *   hvd_pack     pieces, scaled, to base + at;  hvd_unpack: base + at, scaled, to the pieces
 *   hvd_move     pieces of bytes, anywhere
 *   hvd_look     copies a word: what the blocks of the next kernel look at (struct hvd_kernel_guard)
 *
 * pre is the prescale; post is the division by divisor and the postscale. SUM and AVERAGE are one here: the divisor says.
 * Spread, pack and unpack that change nothing, and those of bool, copy the bytes: a broadcast keeps the payload of a NaN.
 *
 *   hvd_adasum_dots, _factors, _blend   one stage of an adasum (reduction.md), one after the other: of all its pairs */
#ifndef GPU_KERNELS_H
#define GPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

/* First in every struct. Each block looks at the word first, and does nothing when it is at .turn or beyond, as streams
 * compare (shm/fence.h): the batch is cancelled. skip 0: it does not look. Blocks read a word of the host's one after the other, 1 us
 * each on an H100: of many, hvd_look reads it once, before, and they look at its copy in memory of the device. */
struct hvd_kernel_guard {
    uint64_t skip, turn; /* the word's address */
};

struct hvd_look_args {
    struct hvd_kernel_guard guard; /* none */
    uint64_t from, to;             /* addresses of words */
};

#define HVD_KERNEL_PIECES 64
#define HVD_KERNEL_MOVES  128

struct hvd_reduce_args {
    struct hvd_kernel_guard guard;
    uint32_t dtype, reduce_op, ins, outs;
    uint32_t divisor, flags; /* divisor 0: none */
    double prescale, postscale;
    uint64_t count;
    uint64_t in[HVD_KERNEL_PIECES], out[HVD_KERNEL_PIECES];
};

struct hvd_pack_args {
    struct hvd_kernel_guard guard;
    uint32_t dtype, pieces, divisor, flags;
    double prescale, postscale;
    uint64_t base;
    struct {
        uint64_t piece, at, count; /* address, bytes behind base, elements */
    } piece[HVD_KERNEL_PIECES];
};

struct hvd_move_args {
    struct hvd_kernel_guard guard;
    uint32_t pieces, reserved;
    struct {
        uint64_t to, from, bytes;
    } piece[HVD_KERNEL_MOVES];
};

/* Chunks of a vector, whose dot products are added apart; the doubles that a chunk of a pair needs at .dots, and a pair at .factors. */
#define HVD_ADASUM_CHUNK   32768
#define HVD_ADASUM_DOTS    27
#define HVD_ADASUM_FACTORS 5

/* Vectors are of dtype, and prescaled; those that a stage has written are float32, of float64 float64. Into one of its own two
 * a pair may be written. The last stage has one pair and writes the outputs instead, postscaled. */
struct hvd_adasum_args {
    struct hvd_kernel_guard guard;
    uint32_t dtype, pairs, outs, flags; /* outs 0: not the last stage */
    uint32_t a_is_stage, b_is_stage;    /* a bit for each pair: a stage has written it */
    double prescale, postscale;
    uint64_t count;
    uint64_t dots, factors; /* addresses: pairs x chunks x DOTS, pairs x FACTORS doubles */
    struct {
        uint64_t a, b, into;
    } pair[HVD_KERNEL_PIECES / 2];
    uint64_t out[HVD_KERNEL_PIECES];
};

/* A kernel's parameters before CUDA 12.1. */
_Static_assert(sizeof(struct hvd_reduce_args) <= 4096, "kernel parameters");
_Static_assert(sizeof(struct hvd_pack_args) <= 4096, "kernel parameters");
_Static_assert(sizeof(struct hvd_move_args) <= 4096, "kernel parameters");
_Static_assert(sizeof(struct hvd_adasum_args) <= 4096, "kernel parameters");

/* The host build of kernels.cu, and tests/fakegpu, which looks kernels up here by name. */
struct hvd_kernel_row {
    const char *name;
    size_t argument_bytes;
    void (*run)(const void *arguments, uint32_t blocks, uint32_t threads);
};
extern const struct hvd_kernel_row hvd_kernel_rows[]; /* the last one's name is NULL */

#endif
