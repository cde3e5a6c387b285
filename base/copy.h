/* SPDX-License-Identifier: Apache-2.0
 * Copies of tensors.
 *
 * Processors of AMD's (Zen 3, Zen 4) copy by `rep movsb` 17 times slower than else where the destination is 1 to 31
 * bytes ahead of the source modulo 4096: 2.1 and 35 GB/s. The kernel copies so, and memcpy of glibc up to 2.38 from 4 KiB
 * up to the size of the second cache. Large blocks of malloc begin 16 bytes into a page, shared memory and buffers of
 * ours at a page: so what is copied from there to ordinary memory is just that case
 * (docs/measurements/2026-11-28-copies.md; glibc's bug 30994). */
#ifndef HVI_BASE_COPY_H
#define HVI_BASE_COPY_H

#include <stddef.h>
#include <stdint.h>

/* memcpy, but never in that way. Any thread. */
void hvi_copy(void *to, const void *from, size_t bytes);

/* Where in a buffer of ours, in bytes from a page's beginning, something is to lie that the kernel copies from or to `address`:
 * half a page from there, a multiple of 64. */
static inline size_t hvi_copy_skew(uint64_t address)
{
    return (size_t)((address + 2048) % 4096 / 64 * 64);
}

#endif
