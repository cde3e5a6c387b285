/* SPDX-License-Identifier: Apache-2.0
 * The kernels of kernels.inc, compiled for "avx2" (flags: CMakeLists.txt). */
#define KERNELS_SET    hvi_kernels_avx2
#define KERNELS_NAME   "avx2"
#define KERNELS_VECTOR 32
#include "reduce/kernels.inc"
