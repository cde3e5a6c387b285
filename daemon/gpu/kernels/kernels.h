/* SPDX-License-Identifier: Apache-2.0
 * The kernels of a GPU's worker: their names, and one struct of arguments for each. kernels.cu computes them; daemon/gpu/launch.c
 * fills the structs in and launches. Types, reduce ops and flags are the numbers of base/types.def. Addresses are those of the
 * device as the worker sees them. Grids are one-dimensional; each kernel takes any number of blocks and threads.
 *
 *   hvd_reduce   out_j[i] = post(pre(in_0[i]) o pre(in_1[i]) o ...), in this order, for every out_j
 *   hvd_spread   the same with one input: scales, converts nothing, to all outputs
 *   hvd_pack     pieces, scaled, to base + at;  hvd_unpack: base + at, scaled, to the pieces
 *   hvd_move     pieces of bytes
 */
#ifndef GPU_KERNELS_H
#define GPU_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define HVD_KERNEL_PIECES 64
#define HVD_KERNEL_MOVES  128

struct hvd_reduce_args {
    uint32_t dtype, reduce_op, ins, outs;
    uint32_t divisor, flags; /* divisor 0: none */
    double prescale, postscale;
    uint64_t count;
    uint64_t in[HVD_KERNEL_PIECES], out[HVD_KERNEL_PIECES];
};

struct hvd_pack_args {
    uint32_t dtype, pieces, divisor, flags;
    double prescale, postscale;
    uint64_t base;
    struct {
        uint64_t piece, at, count; /* address, bytes behind base, elements */
    } piece[HVD_KERNEL_PIECES];
};

struct hvd_move_args {
    uint32_t pieces, reserved;
    struct {
        uint64_t to, from, bytes;
    } piece[HVD_KERNEL_MOVES];
};

/* A kernel's parameters before CUDA 12.1. */
_Static_assert(sizeof(struct hvd_reduce_args) <= 4096, "kernel parameters");
_Static_assert(sizeof(struct hvd_pack_args) <= 4096, "kernel parameters");
_Static_assert(sizeof(struct hvd_move_args) <= 4096, "kernel parameters");

/* The host build of kernels.cu, and tests/fakegpu, which looks kernels up here by name. */
struct hvd_kernel_row {
    const char *name;
    size_t argument_bytes;
    void (*run)(const void *arguments, uint32_t blocks, uint32_t threads);
};
extern const struct hvd_kernel_row hvd_kernel_rows[]; /* the last one's name is NULL */

#endif
