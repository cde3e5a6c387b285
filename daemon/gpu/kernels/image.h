/* SPDX-License-Identifier: Apache-2.0
 * The kernels as nvcc compiled them, for cuLibraryLoadData. Constant, any thread. */
#ifndef GPU_KERNELS_IMAGE_H
#define GPU_KERNELS_IMAGE_H

#include <stddef.h>

extern const unsigned char gpu_kernels_image[];
extern const size_t gpu_kernels_image_bytes; /* 0: this build has none, as there was no nvcc */

#endif
