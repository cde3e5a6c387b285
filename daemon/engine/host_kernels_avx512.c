/* SPDX-License-Identifier: Apache-2.0
 * The kernels of host_kernels.inc, compiled for "avx512" (flags: CMakeLists.txt). */
#define KERNELS_SET    engine_kernels_avx512
#define KERNELS_NAME   "avx512"
#define KERNELS_VECTOR 64
#include "daemon/engine/host_kernels.inc"
