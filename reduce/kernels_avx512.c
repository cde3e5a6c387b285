/* SPDX-License-Identifier: Apache-2.0
 * The kernels of kernels.inc, compiled for "avx512" (flags: CMakeLists.txt). */
#define KERNELS_SET    hvi_kernels_avx512
#define KERNELS_NAME   "avx512"
#define KERNELS_VECTOR 64
#include "reduce/kernels.inc"
