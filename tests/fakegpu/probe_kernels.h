/* SPDX-License-Identifier: Apache-2.0
 * What tests/gpu/probes/kernels.cu computes, by name. */
#ifndef FAKEGPU_PROBE_KERNELS_H
#define FAKEGPU_PROBE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

union fake_argument {
    uint64_t u64;
    uint32_t u32;
    float f32;
    void *p;
    void *buffers[8];
};

struct fake_probe_kernel {
    const char *prefix;    /* of the kernel's name */
    const char *arguments; /* '8': eight bytes, '4': four, 'b': eight pointers */
    void (*run)(const char *name, union fake_argument *a);
};
const struct fake_probe_kernel *fake_probe_kernel_find(const char *name);
/* Copies the arguments, each as a union; returns the bytes. */
size_t fake_probe_kernel_arguments(const struct fake_probe_kernel *kernel, void **arguments,
                                   void *to);

#endif
