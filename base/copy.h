/* SPDX-License-Identifier: Apache-2.0
 * Copies of tensors.
 *
 * AMD's Zen 3 copies by `rep movsb` 17 times slower where the destination is 1 to 31 bytes ahead of the source modulo 4096:
 * 2.1 GB/s, not 35. The kernel copies by it, and so does memcpy of glibc 2.36, from 4 KiB up to the size of the second cache. Large
 * blocks of malloc begin 16 bytes into a page; our shared memory and buffers begin at a page. So a copy from these to a large
 * block of malloc is that case (docs/measurements/2026-11-28-copies.md). */
#ifndef HVI_BASE_COPY_H
#define HVI_BASE_COPY_H

#include <stddef.h>
#include <stdint.h>

/* As memcpy, but fast in that case too. Any thread. */
void hvi_copy(void *to, const void *from, size_t bytes);

/* The kernel will copy between `address` and a buffer of ours. At this offset in a page the buffer is out of that case: half a page
 * from `address`, modulo 4096. A multiple of 64, below 4096. */
static inline size_t hvi_copy_skew(uint64_t address)
{
    return (size_t)((address + 2048) % 4096 / 64 * 64);
}

#endif
