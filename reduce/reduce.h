/* SPDX-License-Identifier: Apache-2.0
 * The arithmetic of reductions in host memory: out_r[i] = post(pre(in_0[i]) o pre(in_1[i]) o
 * ...), in the order of the inputs, for every output r. Pure functions, any thread; nothing blocks, allocates or
 * logs.
 *
 * What is promised, bit for bit, whatever the instruction set, the thread and the chunk (the whole
 * story: docs/design/reduction.md):
 *   float16, bfloat16, float8  converted to float32, reduced there, rounded once to nearest even at
 *                     the end.
 *   float32, float64  reduced in their own type; scale factors are rounded to float32 for float32
 *                     and shorter.
 *   NaN               min and max propagate it; every NaN that is written is the type's positive
 *                     quiet NaN without payload. Subnormals are kept.
 *   overflow          infinity; NaN for float8_e4m3, which has no infinity (torch.float8_e4m3fn).
 *   average           sum divided by .ranks, before the postscale.
 *   integers          sum and product wrap in the type's own width; average is the wrapped sum
 *                     divided with truncation toward zero; a scale other than 1.0 multiplies in
 *                     double, truncates toward zero and saturates (NaN becomes 0).
 *   bool              min is "and", max is "or", any byte but 0 is true; nothing else exists. */
#ifndef HVI_REDUCE_REDUCE_H
#define HVI_REDUCE_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hvi_reduction {
    uint32_t dtype;
    uint32_t reduce_op;    /* not adasum */
    uint32_t ranks;        /* what an average divides by */
    uint32_t ins, outs;    /* at least 1; operands may be missing on either side */
    const void *const *in; /* in the order of reduction; aligned to the element */
    void *const *out;      /* each is one of the inputs or disjoint from them all */
    double prescale;
    double postscale;
};

#define HVI_ADASUM_BLOCK 512u /* elements */

struct hvi_kernels {
    const char *name; /* "plain", "avx2", "avx512", "neon" */
    /* Reduces elements [first, first + count). The combination must be supported. */
    void (*reduce)(const struct hvi_reduction *reduce, uint64_t first, uint64_t count);
    /* memcpy. `stream`: past the caches where that is possible, because the result is not read
     * soon. */
    void (*copy)(void *out, const void *in, size_t bytes, bool stream);

    /* Adasum, `n` <= HVI_ADASUM_BLOCK elements at a time. Floating point types only. */
    /* Elements [at, at + n) of `in`, prescaled, as double. */
    void (*load)(uint32_t dtype, double prescale, const void *in, uint64_t at, uint32_t n,
                 double *out);
    /* The other way round, rounded and scaled; `block` is used up. */
    void (*store)(uint32_t dtype, double postscale, double *block, uint32_t n, void *out,
                  uint64_t at);
    /* Adds a.b, a.a and b.b to `lanes`, element i to lane i % 8. */
    void (*dots)(const double *a, const double *b, uint32_t n, double lanes[3][8]);
    /* a = a * fa + b * fb */
    void (*blend)(double *a, double fa, const double *b, double fb, uint32_t n);

    /* The conversions by themselves, so that a test can look at every input. */
    void (*widen_f16)(const uint16_t *in, float *out, size_t count);
    void (*narrow_f16)(const float *in, uint16_t *out, size_t count);
    void (*widen_e4m3)(const uint8_t *in, float *out, size_t count);
    void (*narrow_e4m3)(const float *in, uint8_t *out, size_t count);
    void (*widen_e5m2)(const uint8_t *in, float *out, size_t count);
    void (*narrow_e5m2)(const float *in, uint8_t *out, size_t count);
};

/* HVI_OK, or HVI_ERR_UNSUPPORTED with a sentence in `text_p` (which may be NULL). */
int hvi_reduction_check(uint32_t dtype, uint32_t reduce_op, double prescale, double postscale,
                        char *text_p, size_t text_size);

#define HVI_KERNEL_SETS 3
/* Set `index`, slowest first; NULL when this build or this processor does not have it. Set 0 always
 * exists. */
const struct hvi_kernels *hvi_kernels_at(unsigned index);
/* The fastest set that this processor has. */
const struct hvi_kernels *hvi_kernels_best(void);

#endif
