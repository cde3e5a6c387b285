/* SPDX-License-Identifier: Apache-2.0
 * The kernels of host_kernels.inc, compiled for "plain" (flags: CMakeLists.txt). */
#define KERNELS_SET    engine_kernels_plain
#define KERNELS_NAME   "plain"
#define KERNELS_VECTOR 16
#include "daemon/engine/host_kernels.inc"
