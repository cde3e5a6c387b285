/* SPDX-License-Identifier: Apache-2.0
 * What of libtensorflow_framework heap.c looks at, under TensorFlow's names: BasicCPUAllocator and what it calls, of both
 * versions that the table knows. Built several times:
 *
 *   VARIANT 1  as TensorFlow has it
 *   VARIANT 2  Alloc calls a function whose name only begins like the right one
 *   VARIANT 3  Alloc calls through a pointer of its own */
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

#ifndef VARIANT
#define VARIANT 1
#endif

#define EXPORTED __attribute__((visibility("default"), noinline))

EXPORTED void *malloc_of_15(size_t bytes, int alignment) __asm__("_ZN3tsl4port13AlignedMallocEmi");
EXPORTED void *malloc_of_21(size_t bytes,
                            int alignment) __asm__("_ZN3tsl4port13AlignedMallocEmSt11align_val_t");
EXPORTED void *malloc_alike(size_t bytes,
                            int alignment) __asm__("_ZN3tsl4port13AlignedMallocEmSt11align_val_t2");
EXPORTED void free_aligned(void *data) __asm__("_ZN3tsl4port11AlignedFreeEPv");
EXPORTED void *alloc(void *self, size_t alignment, size_t bytes,
                     size_t *received) __asm__("_ZN10tensorflow17BasicCPUAllocator5AllocEmmPm");
EXPORTED void release(void *self, void *data,
                      size_t bytes) __asm__("_ZN10tensorflow17BasicCPUAllocator4FreeEPvm");
EXPORTED bool is_onednn(void) __asm__("_ZN10tensorflow12IsMKLEnabledEv");
/* For the test. */
EXPORTED void *hvt_other_malloc(size_t bytes);
EXPORTED void hvt_set_onednn(bool is_on);
extern int hvt_mallocs, hvt_frees;
__attribute__((visibility("default"))) int hvt_mallocs, hvt_frees;

static bool is_on = true;

bool is_onednn(void)
{
    return is_on;
}

void hvt_set_onednn(bool now)
{
    is_on = now;
}

void *malloc_of_21(size_t bytes, int alignment)
{
    hvt_mallocs++;
    return aligned_alloc((size_t)alignment, (bytes + 4095) / 4096 * 4096);
}

void *malloc_of_15(size_t bytes, int alignment)
{
    return malloc_of_21(bytes, alignment);
}

void *malloc_alike(size_t bytes, int alignment)
{
    return malloc_of_21(bytes, alignment);
}

void free_aligned(void *data)
{
    hvt_frees++;
    free(data);
}

void *alloc(void *self, size_t alignment, size_t bytes, size_t *received)
{
    void *data;
    (void)self;
#if VARIANT == 1
    if (self) /* 2.15 */
        data = malloc_of_15(bytes, (int)alignment);
    else
        data = malloc_of_21(bytes, (int)alignment);
#elif VARIANT == 2
    data = malloc_alike(bytes, (int)alignment);
#else
    static void *(*volatile indirect)(size_t bytes, int alignment);
    if (!indirect)
        indirect = malloc_alike;
    data = indirect(bytes, (int)alignment);
#endif
    *received = bytes; /* what follows the call keeps it from being a jump */
    return data;
}

void release(void *self, void *data, size_t bytes)
{
    (void)self;
    free_aligned(data);
    __asm__ volatile("" : : "r"(bytes) : "memory");
}

/* Calls that are not the allocator's go through the same entries of the table. */
void *hvt_other_malloc(size_t bytes)
{
    void *data = malloc_of_21(bytes, 4096);
    __asm__ volatile("" : : : "memory");
    return data;
}
