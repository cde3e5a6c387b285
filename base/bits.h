/* SPDX-License-Identifier: Apache-2.0
 * Checked arithmetic. The _checked functions return false on overflow and then leave
 * the output alone. */
#ifndef HVI_BASE_BITS_H
#define HVI_BASE_BITS_H

#include <stdbool.h>
#include <stdint.h>

static inline bool hvi_add_checked(uint64_t a, uint64_t b, uint64_t *sum_p)
{
    uint64_t sum;
    if (__builtin_add_overflow(a, b, &sum))
        return false;
    *sum_p = sum;
    return true;
}

static inline bool hvi_mul_checked(uint64_t a, uint64_t b, uint64_t *product_p)
{
    uint64_t product;
    if (__builtin_mul_overflow(a, b, &product))
        return false;
    *product_p = product;
    return true;
}

/* True when [offset, offset + bytes) lies inside an area of `area` bytes. */
static inline bool hvi_range_fits(uint64_t offset, uint64_t bytes, uint64_t area)
{
    return offset <= area && bytes <= area - offset;
}

/* Of `count` buckets for numbers of any size: 0 for 0, i for 2^(i-1) .. 2^i - 1, the last one for
 * the rest too. */
static inline uint32_t hvi_log2_bucket(uint64_t x, uint32_t count)
{
    uint32_t bucket = x == 0 ? 0 : 64u - (uint32_t)__builtin_clzll(x);
    return bucket < count ? bucket : count - 1;
}

#endif
