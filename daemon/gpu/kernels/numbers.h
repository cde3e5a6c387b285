/* SPDX-License-Identifier: Apache-2.0
 * The arithmetic of reduce/kernels.inc, for some lanes of one type at a time, in the part of C that C++ shares: the same bits
 * (docs/design/reduction.md). For each dtype, where BITS is its unsigned type:
 *
 *   NAME_widen(bits)         what it is reduced in: float for the short floats, else the type itself
 *   NAME_narrow(value)       BITS again, rounded once
 *   NAME_pre(math, v, n)     the prescale, of n lanes
 *   NAME_fold(op, acc, v, n) acc = acc o v
 *   NAME_post(math, acc, n)  average, postscale, the canonical NaN
 *   NAME_can_wide(math)      many lanes at a time are worth their code; integers: pre and post do nothing then
 *
 * n is a constant wherever these are called. Nothing here may become a fused multiply-add: -ffp-contract=off, -fmad=false. */
#ifndef GPU_NUMBERS_H
#define GPU_NUMBERS_H

#include "base/types.h"
#include "daemon/gpu/kernels/portable.h"

struct math {
    uint32_t op, divisor; /* divisor 0: none */
    double prescale, postscale;
};

#define EACH(acc, n, value)                                                                        \
    do {                                                                                           \
        UNROLL for (int i = 0; i < (n); i++)                                                       \
        {                                                                                          \
            (acc)[i] = (value);                                                                    \
        }                                                                                          \
    } while (0)

/* ---- float16, bfloat16, float8 ---- */

/* A subnormal half is an integer times 2^-24, and so is exact in float. */
INLINE float widen_half(uint16_t half)
{
    const uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    const uint32_t rest = half & 0x7fffu;
    uint32_t bits = (rest << 13) + (112u << 23);

    if (rest < 0x400u)
        bits = as_bits((float)(int32_t)rest * 0x1p-24f);
    if (rest >= 0x7c00u)
        bits = (rest << 13) | 0x7f800000u;
    return as_float(rest > 0x7c00u ? 0x7fc00000u : bits | sign);
}

/* Adding 0.5 aligns a value below 2^-14 to units of 2^-24, with the addition's own rounding to nearest even. */
INLINE uint16_t narrow_half(float value)
{
    const uint32_t bits = as_bits(value);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t rest = bits & 0x7fffffffu;
    uint32_t half = (rest - (112u << 23) + 0xfffu + ((rest >> 13) & 1u)) >> 13;

    if (rest < 0x38800000u)
        half = as_bits(as_float(rest) + 0.5f) - as_bits(0.5f);
    if (rest >= 0x47800000u)
        half = 0x7c00u;
    return (uint16_t)(rest > 0x7f800000u ? 0x7e00u : half | sign);
}

INLINE float f16_widen(uint16_t half)
{
#ifdef HAS_F16
    return machine_widen_f16(half);
#else
    return widen_half(half);
#endif
}

INLINE uint16_t f16_narrow(float value)
{
#ifdef HAS_F16
    return value == value ? machine_narrow_f16(value) : (uint16_t)0x7e00u;
#else
    return narrow_half(value);
#endif
}

INLINE float bf16_widen(uint16_t brain)
{
    return as_float((uint32_t)brain << 16);
}

INLINE uint16_t bf16_narrow(float value)
{
    const uint32_t bits = as_bits(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;

    return (uint16_t)(value == value ? rounded : 0x7fc0u);
}

INLINE float e4m3_widen(uint8_t byte)
{
    const uint32_t sign = (uint32_t)(byte & 0x80u) << 24;
    const uint32_t rest = byte & 0x7fu;
    uint32_t bits = (rest << 20) + (120u << 23);

    if (rest < 0x08u)
        bits = as_bits((float)(int32_t)rest * 0x1p-9f);
    return as_float(rest == 0x7fu ? 0x7fc00000u : bits | sign);
}

/* 464 lies half way between 448 and what would be 480, and goes to 448, which is even. */
INLINE uint8_t e4m3_narrow(float value)
{
    const uint32_t bits = as_bits(value);
    const uint32_t sign = (bits >> 24) & 0x80u;
    const uint32_t rest = bits & 0x7fffffffu;
    uint32_t byte = (rest - (120u << 23) + 0x7ffffu + ((rest >> 20) & 1u)) >> 20;

    if (rest < 0x3c800000u)
        byte = as_bits(as_float(rest) + 0x1p14f) - as_bits(0x1p14f);
    return (uint8_t)(rest > 0x43e80000u ? 0x7fu : byte | sign);
}

INLINE float e5m2_widen(uint8_t byte)
{
    return f16_widen((uint16_t)(byte << 8));
}

INLINE uint8_t e5m2_narrow(float value)
{
    const uint32_t bits = as_bits(value);
    const uint32_t sign = (bits >> 24) & 0x80u;
    const uint32_t rest = bits & 0x7fffffffu;
    uint32_t byte = (rest - (112u << 23) + 0xfffffu + ((rest >> 21) & 1u)) >> 21;

    if (rest < 0x38800000u)
        byte = as_bits(as_float(rest) + 0x1p7f) - as_bits(0x1p7f);
    if (rest >= 0x47700000u)
        byte = 0x7cu;
    return (uint8_t)(rest > 0x7f800000u ? 0x7eu : byte | sign);
}

/* ---- floating point ---- */

#define FLOAT_MIN(a, b) ((((a) < (b)) | ((a) != (a))) ? (a) : (b))
#define FLOAT_MAX(a, b) ((((a) > (b)) | ((a) != (a))) ? (a) : (b))

/* Multiplying by 1.0 changes no bit of a number, so ops without scales need no way of their own. */
#define DEFINE_FLOAT(NAME, T, QUIET)                                                               \
    INLINE bool NAME##_can_wide(const struct math *math)                                           \
    {                                                                                              \
        (void)math;                                                                                \
        return true;                                                                               \
    }                                                                                              \
    INLINE void NAME##_pre(const struct math *math, T *value, int n)                               \
    {                                                                                              \
        const T factor = (T)math->prescale;                                                        \
        EACH(value, n, value[i] * factor);                                                         \
    }                                                                                              \
    INLINE void NAME##_fold(uint32_t op, T *acc, const T *value, int n)                            \
    {                                                                                              \
        if (op == HVI_REDUCE_MIN)                                                                  \
            EACH(acc, n, FLOAT_MIN(acc[i], value[i]));                                             \
        else if (op == HVI_REDUCE_MAX)                                                             \
            EACH(acc, n, FLOAT_MAX(acc[i], value[i]));                                             \
        else if (op == HVI_REDUCE_PRODUCT)                                                         \
            EACH(acc, n, acc[i] * value[i]);                                                       \
        else                                                                                       \
            EACH(acc, n, acc[i] + value[i]);                                                       \
    }                                                                                              \
    INLINE void NAME##_post(const struct math *math, T *acc, int n)                                \
    {                                                                                              \
        const T divisor = (T)math->divisor, factor = (T)math->postscale;                           \
        if (math->divisor != 0)                                                                    \
            EACH(acc, n, acc[i] / divisor);                                                        \
        EACH(acc, n, acc[i] * factor);                                                             \
        EACH(acc, n, acc[i] == acc[i] ? acc[i] : (QUIET));                                         \
    }

DEFINE_FLOAT(f32, float, as_float(0x7fc00000u))
DEFINE_FLOAT(f64, double, as_double(0x7ff8000000000000u))

INLINE float f32_widen(uint32_t bits)
{
    return as_float(bits);
}

INLINE uint32_t f32_narrow(float value)
{
    return as_bits(value);
}

INLINE double f64_widen(uint64_t bits)
{
    return as_double(bits);
}

INLINE uint64_t f64_narrow(double value)
{
    return as_bits_64(value);
}

#define f16_can_wide  f32_can_wide
#define f16_pre       f32_pre
#define f16_fold      f32_fold
#define f16_post      f32_post
#define bf16_can_wide f32_can_wide
#define bf16_pre      f32_pre
#define bf16_fold     f32_fold
#define bf16_post     f32_post
#define e4m3_can_wide f32_can_wide
#define e4m3_pre      f32_pre
#define e4m3_fold     f32_fold
#define e4m3_post     f32_post
#define e5m2_can_wide f32_can_wide
#define e5m2_pre      f32_pre
#define e5m2_fold     f32_fold
#define e5m2_post     f32_post

/* ---- integers ---- */

/* T is the type; U, at least as wide as int, the unsigned type in which it wraps; S what it is divided in; END the first double
 * above its largest value. A scale truncates toward zero and saturates, and NaN becomes 0. */
#define DEFINE_INT(NAME, T, BITS, U, S, LOW, HIGH, END)                                            \
    INLINE T NAME##_widen(BITS bits)                                                               \
    {                                                                                              \
        return (T)bits;                                                                            \
    }                                                                                              \
    INLINE BITS NAME##_narrow(T value)                                                             \
    {                                                                                              \
        return (BITS)value;                                                                        \
    }                                                                                              \
    INLINE bool NAME##_can_wide(const struct math *math)                                           \
    {                                                                                              \
        return math->divisor == 0 && math->prescale == 1.0 && math->postscale == 1.0;              \
    }                                                                                              \
    INLINE T NAME##_scaled(T value, double factor)                                                 \
    {                                                                                              \
        const double x = (double)value * factor;                                                   \
        return x >= (END)           ? (T)(HIGH)                                                    \
               : x > (double)(LOW)  ? (T)x                                                         \
               : x <= (double)(LOW) ? (T)(LOW)                                                     \
                                    : (T)0;                                                        \
    }                                                                                              \
    INLINE void NAME##_pre(const struct math *math, T *value, int n)                               \
    {                                                                                              \
        if (math->prescale != 1.0)                                                                 \
            EACH(value, n, NAME##_scaled(value[i], math->prescale));                               \
    }                                                                                              \
    INLINE void NAME##_fold(uint32_t op, T *acc, const T *value, int n)                            \
    {                                                                                              \
        if (op == HVI_REDUCE_MIN)                                                                  \
            EACH(acc, n, acc[i] < value[i] ? acc[i] : value[i]);                                   \
        else if (op == HVI_REDUCE_MAX)                                                             \
            EACH(acc, n, acc[i] > value[i] ? acc[i] : value[i]);                                   \
        else if (op == HVI_REDUCE_PRODUCT)                                                         \
            EACH(acc, n, (T)((U)acc[i] * (U)value[i]));                                            \
        else                                                                                       \
            EACH(acc, n, (T)((U)acc[i] + (U)value[i]));                                            \
    }                                                                                              \
    INLINE void NAME##_post(const struct math *math, T *acc, int n)                                \
    {                                                                                              \
        if (math->divisor != 0)                                                                    \
            EACH(acc, n, (T)((S)acc[i] / (S)math->divisor));                                       \
        if (math->postscale != 1.0)                                                                \
            EACH(acc, n, NAME##_scaled(acc[i], math->postscale));                                  \
    }

DEFINE_INT(u8, uint8_t, uint8_t, uint32_t, int32_t, 0, UINT8_MAX, 256.0)
DEFINE_INT(i8, int8_t, uint8_t, uint32_t, int32_t, INT8_MIN, INT8_MAX, 128.0)
DEFINE_INT(u16, uint16_t, uint16_t, uint32_t, int32_t, 0, UINT16_MAX, 65536.0)
DEFINE_INT(i16, int16_t, uint16_t, uint32_t, int32_t, INT16_MIN, INT16_MAX, 32768.0)
DEFINE_INT(i32, int32_t, uint32_t, uint32_t, int32_t, INT32_MIN, INT32_MAX, 2147483648.0)
DEFINE_INT(i64, int64_t, uint64_t, uint64_t, int64_t, INT64_MIN, INT64_MAX, 9223372036854775808.0)

/* ---- bool ---- */

/* min is "and", max is "or", any byte but 0 is true. Nothing else exists. */
INLINE uint8_t truth_widen(uint8_t byte)
{
    return byte != 0;
}

INLINE bool truth_can_wide(const struct math *math)
{
    (void)math;
    return true;
}

INLINE void truth_pre(const struct math *math, uint8_t *value, int n)
{
    (void)math, (void)value, (void)n;
}

#define truth_narrow u8_narrow
#define truth_fold   u8_fold
#define truth_post   truth_pre

#endif
