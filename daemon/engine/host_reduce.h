/* SPDX-License-Identifier: Apache-2.0
 * The arithmetic of an allreduce in host memory: out_r[i] = post(pre(in_0[i]) o pre(in_1[i]) o
 * ...), in rank order, for every rank r. Pure functions, any thread; nothing blocks, allocates or
 * logs.
 *
 * What is promised, bit for bit, whatever the instruction set, the thread and the chunk:
 *   float16/bfloat16  converted to float32, reduced there, rounded once to nearest even at the end.
 *   float32, float64  reduced in their own type; scale factors are rounded to float32 for float32
 *                     and shorter.
 *   NaN               min and max propagate it; every NaN that is written is the type's positive
 *                     quiet NaN without payload. Subnormals are kept.
 *   average           sum divided by the number of ranks, before the postscale.
 *   integers          sum and product wrap in the type's own width; average is the wrapped sum
 *                     divided with truncation toward zero; a scale other than 1.0 multiplies in
 *                     double, truncates toward zero and saturates (NaN becomes 0).
 *   bool              min is "and", max is "or", any byte but 0 is true; nothing else exists. */
#ifndef ENGINE_HOST_REDUCE_H
#define ENGINE_HOST_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_reduce {
    uint32_t dtype;
    uint32_t reduce_op;
    uint32_t ranks;
    const void *const *in; /* one per rank, aligned to the element */
    void *const *out;      /* one per rank; out[r] is in[r] or disjoint from every in */
    double prescale;
    double postscale;
};

struct engine_kernels {
    const char *name; /* "plain", "avx2", "avx512" */
    /* Reduces elements [first, first + count). The combination must be supported. */
    void (*reduce)(const struct engine_reduce *reduce, uint64_t first, uint64_t count);
    /* The conversions by themselves, so that a test can look at every input. */
    void (*widen_f16)(const uint16_t *in, float *out, size_t count);
    void (*narrow_f16)(const float *in, uint16_t *out, size_t count);
};

/* HVI_OK, or HVI_ERR_UNSUPPORTED with a sentence in `text_p` (which may be NULL). */
int engine_reduce_check(uint32_t dtype, uint32_t reduce_op, double prescale, double postscale,
                        char *text_p, size_t text_size);

#define ENGINE_KERNEL_SETS 3
/* Set `index`, slowest first; NULL when this build or this processor does not have it. Set 0 always
 * exists. */
const struct engine_kernels *engine_kernels_at(unsigned index);
/* The fastest set that this processor has. */
const struct engine_kernels *engine_kernels_best(void);

#endif
