/* SPDX-License-Identifier: Apache-2.0
 * The kernels of kernels.inc, compiled for "neon": every aarch64 has it, so what is more than in
 * "plain" are the conversions of float16, and the 16-bit types in registers. */
#define KERNELS_SET    hvi_kernels_neon
#define KERNELS_NAME   "neon"
#define KERNELS_VECTOR 16
#define KERNELS_NEON
#include "reduce/kernels.inc"
