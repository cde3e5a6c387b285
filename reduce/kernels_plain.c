/* SPDX-License-Identifier: Apache-2.0
 * The kernels of kernels.inc, compiled for "plain" (flags: CMakeLists.txt). */
#define KERNELS_SET    hvi_kernels_plain
#define KERNELS_NAME   "plain"
#define KERNELS_VECTOR 16
#include "reduce/kernels.inc"
