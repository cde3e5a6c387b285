/* SPDX-License-Identifier: Apache-2.0
 * Which kernel set this processor can run, and which combinations exist. The kernels:
 * kernels.inc. */
#include "reduce/reduce.h"

#include "base/status.h"
#include "base/types.h"

#include <stdio.h>

#ifdef HVI_KERNELS_X86
#include <cpuid.h>
#endif

extern const struct hvi_kernels hvi_kernels_plain, hvi_kernels_avx2, hvi_kernels_avx512,
    hvi_kernels_neon;

static bool is_float(uint32_t dtype)
{
    return dtype == HVI_DTYPE_FLOAT16 || dtype == HVI_DTYPE_BFLOAT16 ||
           dtype == HVI_DTYPE_FLOAT32 || dtype == HVI_DTYPE_FLOAT64 ||
           dtype == HVI_DTYPE_FLOAT8_E4M3 || dtype == HVI_DTYPE_FLOAT8_E5M2;
}

int hvi_reduction_check(uint32_t dtype, uint32_t reduce_op, double prescale, double postscale,
                        char *text_p, size_t text_size)
{
    bool scaled = prescale != 1.0 || postscale != 1.0;
    bool boolean = dtype == HVI_DTYPE_BOOL;
    bool plain_bool = reduce_op == HVI_REDUCE_MIN || reduce_op == HVI_REDUCE_MAX;
    bool supported = !boolean || (plain_bool && !scaled);

    if (reduce_op == HVI_REDUCE_ADASUM)
        supported = is_float(dtype);
    if (supported)
        return HVI_OK;
    if (text_p)
        snprintf(text_p, text_size, "%s%s is not supported for %s", scaled ? "scaled " : "",
                 hvi_reduce_text(reduce_op), hvi_dtype_text(dtype));
    return HVI_ERR_UNSUPPORTED;
}

#ifdef HVI_KERNELS_X86
/* clang 14's __builtin_cpu_supports does not know f16c. That the kernel saves the registers, avx2
 * says. */
static bool has_f16c(void)
{
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && has_f16c();
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

#endif

const struct hvi_kernels *hvi_kernels_at(unsigned index)
{
    switch (index) {
    case 0:
        return &hvi_kernels_plain;
#if defined(HVI_KERNELS_X86)
    case 1:
        return has_avx2() ? &hvi_kernels_avx2 : NULL;
    case 2:
        return has_avx512() ? &hvi_kernels_avx512 : NULL;
#elif defined(HVI_KERNELS_ARM)
    case 1:
        return &hvi_kernels_neon; /* every aarch64 has NEON */
#endif
    default:
        return NULL;
    }
}

const struct hvi_kernels *hvi_kernels_best(void)
{
    unsigned index = HVI_KERNEL_SETS - 1;
    while (!hvi_kernels_at(index))
        index--;
    return hvi_kernels_at(index);
}
