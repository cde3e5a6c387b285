/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/gpu/kernels/image.h"

#ifdef GPU_KERNELS_FATBIN
__asm__(".section .rodata\n"
        ".balign 16\n"
        ".globl gpu_kernels_image\n"
        ".hidden gpu_kernels_image\n"
        "gpu_kernels_image:\n"
        ".incbin \"" GPU_KERNELS_FATBIN "\"\n"
        ".globl gpu_kernels_image_end\n"
        ".hidden gpu_kernels_image_end\n"
        "gpu_kernels_image_end:\n"
        ".byte 0\n"
        ".balign 8\n"
        ".globl gpu_kernels_image_bytes\n"
        ".hidden gpu_kernels_image_bytes\n"
        "gpu_kernels_image_bytes:\n"
        ".quad gpu_kernels_image_end - gpu_kernels_image\n"
        ".previous\n");
#else
const unsigned char gpu_kernels_image[1];
const size_t gpu_kernels_image_bytes;
#endif
