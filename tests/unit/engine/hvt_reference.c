/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/hvt_reference.h"

#include "base/types.h"

#include <math.h>
#include <string.h>

uint64_t hvt_random(uint64_t *state)
{
    *state += 0x9e3779b97f4a7c15ull;
    uint64_t mixed = *state;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9ull;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebull;
    return mixed ^ mixed >> 31;
}

/* ---- 16-bit formats, by their definition ---- */

static double decode(uint16_t bits, int exponent_bits, int mantissa_bits)
{
    int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1);
    int mantissa = bits & ((1 << mantissa_bits) - 1);
    int bias = (1 << (exponent_bits - 1)) - 1;
    double sign = bits >> (exponent_bits + mantissa_bits) ? -1.0 : 1.0;

    if (exponent == (1 << exponent_bits) - 1)
        return mantissa ? NAN : sign * INFINITY;
    if (exponent == 0)
        return sign * ldexp(mantissa, 1 - bias - mantissa_bits);
    return sign * ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

/* nearbyint rounds halves to even. */
static uint16_t encode(double value, int exponent_bits, int mantissa_bits)
{
    int bias = (1 << (exponent_bits - 1)) - 1;
    uint16_t infinity = (uint16_t)(((1 << exponent_bits) - 1) << mantissa_bits);
    uint16_t sign = (uint16_t)(signbit(value) ? 1 << (exponent_bits + mantissa_bits) : 0);
    int exponent = 0;

    if (isnan(value))
        return (uint16_t)(infinity | 1 << (mantissa_bits - 1));
    if (isinf(value))
        return (uint16_t)(sign | infinity);
    if (value == 0)
        return sign;
    frexp(value, &exponent);
    exponent -= 1;
    if (exponent < 1 - bias)
        exponent = 1 - bias;
    double units = nearbyint(ldexp(fabs(value), mantissa_bits - exponent));
    if (units >= ldexp(2, mantissa_bits)) {
        units /= 2;
        exponent++;
    }
    if (exponent > bias)
        return (uint16_t)(sign | infinity);
    int whole = (int)units;
    int field = whole >= 1 << mantissa_bits ? exponent + bias : 0;
    return (uint16_t)(sign | field << mantissa_bits | (whole & ((1 << mantissa_bits) - 1)));
}

double hvt_reference_f16(uint16_t half)
{
    return decode(half, 5, 10);
}

uint16_t hvt_reference_to_f16(double value)
{
    return encode(value, 5, 10);
}

double hvt_reference_e5m2(uint8_t byte)
{
    return decode(byte, 5, 2);
}

uint8_t hvt_reference_to_e5m2(double value)
{
    return (uint8_t)encode(value, 5, 2);
}

/* The numbers of e4m3, one after the other: there are so few that looking through them will do. */
double hvt_reference_e4m3(uint8_t byte)
{
    int exponent = byte >> 3 & 15, mantissa = byte & 7;
    double value = exponent == 0 ? mantissa / 512.0 : ldexp(8 + mantissa, exponent - 10);

    if (exponent == 15 && mantissa == 7)
        return NAN;
    return byte >> 7 ? -value : value;
}

uint8_t hvt_reference_to_e4m3(double value)
{
    uint8_t best = 0;

    if (isnan(value) || fabs(value) > 464)
        return 0x7f;
    for (uint8_t byte = 0; byte < 0x7f; byte++) {
        double here = fabs(fabs(value) - hvt_reference_e4m3(byte));
        double least = fabs(fabs(value) - hvt_reference_e4m3(best));
        if (here < least || (here == least && byte % 2 == 0))
            best = byte;
    }
    return (uint8_t)(best | (signbit(value) ? 0x80 : 0));
}

/* ---- floating point ---- */

#define DEFINE_FLOAT(T)                                                                            \
    static T combine_##T(uint32_t op, T a, T b)                                                    \
    {                                                                                              \
        if (op == HVI_REDUCE_MIN || op == HVI_REDUCE_MAX) {                                        \
            if (isnan(a) || isnan(b))                                                              \
                return (T)NAN;                                                                     \
            if (op == HVI_REDUCE_MIN)                                                              \
                return a < b ? a : b;                                                              \
            return a > b ? a : b;                                                                  \
        }                                                                                          \
        return op == HVI_REDUCE_PRODUCT ? a * b : a + b;                                           \
    }                                                                                              \
    static T reduce_##T(const struct hvi_reduction *r, const T *values)                            \
    {                                                                                              \
        T acc = 0;                                                                                 \
        for (uint32_t rank = 0; rank < r->ins; rank++) {                                           \
            T value = r->prescale == 1.0 ? values[rank] : values[rank] * (T)r->prescale;           \
            acc = rank == 0 ? value : combine_##T(r->reduce_op, acc, value);                       \
        }                                                                                          \
        if (r->reduce_op == HVI_REDUCE_AVERAGE)                                                    \
            acc = acc / (T)r->ranks;                                                               \
        return r->postscale == 1.0 ? acc : acc * (T)r->postscale;                                  \
    }

DEFINE_FLOAT(float)
DEFINE_FLOAT(double)

static void float32_element(const struct hvi_reduction *r, uint64_t index, void *out_p)
{
    const uint32_t quiet = 0x7fc00000u;
    float values[HVI_RANKS_MAX];

    for (uint32_t rank = 0; rank < r->ins; rank++)
        values[rank] = ((const float *)r->in[rank])[index];
    float result = reduce_float(r, values);
    memcpy(out_p, isnan(result) ? (const void *)&quiet : (const void *)&result, 4);
}

static void float64_element(const struct hvi_reduction *r, uint64_t index, void *out_p)
{
    const uint64_t quiet = 0x7ff8000000000000ull;
    double values[HVI_RANKS_MAX];

    for (uint32_t rank = 0; rank < r->ins; rank++)
        values[rank] = ((const double *)r->in[rank])[index];
    double result = reduce_double(r, values);
    memcpy(out_p, isnan(result) ? (const void *)&quiet : (const void *)&result, 8);
}

static void short_element(const struct hvi_reduction *r, uint64_t index, int exponent_bits,
                          int mantissa_bits, void *out_p)
{
    float values[HVI_RANKS_MAX];

    for (uint32_t rank = 0; rank < r->ins; rank++)
        values[rank] =
            (float)decode(((const uint16_t *)r->in[rank])[index], exponent_bits, mantissa_bits);
    uint16_t result = encode((double)reduce_float(r, values), exponent_bits, mantissa_bits);
    memcpy(out_p, &result, sizeof result);
}

static void float8_element(const struct hvi_reduction *r, uint64_t index, uint8_t *out_p)
{
    bool e4m3 = r->dtype == HVI_DTYPE_FLOAT8_E4M3;
    float values[HVI_RANKS_MAX];

    for (uint32_t rank = 0; rank < r->ins; rank++) {
        uint8_t byte = ((const uint8_t *)r->in[rank])[index];
        values[rank] = (float)(e4m3 ? hvt_reference_e4m3(byte) : hvt_reference_e5m2(byte));
    }
    double result = (double)reduce_float(r, values);
    *out_p = e4m3 ? hvt_reference_to_e4m3(result) : hvt_reference_to_e5m2(result);
}

/* ---- integers, in 128 bits ---- */

static __int128 load(uint32_t dtype, const void *base, uint64_t index)
{
    switch (dtype) {
    case HVI_DTYPE_UINT8:
        return ((const uint8_t *)base)[index];
    case HVI_DTYPE_INT8:
        return ((const int8_t *)base)[index];
    case HVI_DTYPE_UINT16:
        return ((const uint16_t *)base)[index];
    case HVI_DTYPE_INT16:
        return ((const int16_t *)base)[index];
    case HVI_DTYPE_INT32:
        return ((const int32_t *)base)[index];
    default:
        return ((const int64_t *)base)[index];
    }
}

static bool is_signed(uint32_t dtype)
{
    return dtype != HVI_DTYPE_UINT8 && dtype != HVI_DTYPE_UINT16;
}

static __int128 wrap(uint32_t dtype, __int128 value)
{
    unsigned bits = 8 * hvi_dtype_bytes(dtype);
    __int128 modulus = (__int128)1 << bits;
    __int128 rest = (__int128)((unsigned __int128)value % (unsigned __int128)modulus);

    if (is_signed(dtype) && rest >= modulus / 2)
        rest -= modulus;
    return rest;
}

static __int128 scale(uint32_t dtype, __int128 value, double factor)
{
    unsigned bits = 8 * hvi_dtype_bytes(dtype) - is_signed(dtype);
    __int128 high = ((__int128)1 << bits) - 1;
    __int128 low = is_signed(dtype) ? -high - 1 : 0;

    if (factor == 1.0)
        return value;
    double product = (double)(int64_t)value * factor;
    if (isnan(product))
        return 0;
    if (product >= ldexp(1, (int)bits))
        return high;
    if (product <= (double)(int64_t)low)
        return low;
    return (__int128)trunc(product);
}

static __int128 combine_int(uint32_t op, __int128 a, __int128 b)
{
    if (op == HVI_REDUCE_MIN)
        return a < b ? a : b;
    if (op == HVI_REDUCE_MAX)
        return a > b ? a : b;
    return op == HVI_REDUCE_PRODUCT ? a * b : a + b;
}

static void int_element(const struct hvi_reduction *r, uint64_t index, void *out_p)
{
    __int128 acc = 0;

    for (uint32_t rank = 0; rank < r->ins; rank++) {
        __int128 value = scale(r->dtype, load(r->dtype, r->in[rank], index), r->prescale);
        acc = rank == 0 ? value : wrap(r->dtype, combine_int(r->reduce_op, acc, value));
    }
    if (r->reduce_op == HVI_REDUCE_AVERAGE)
        acc = acc / (__int128)r->ranks;
    int64_t result = (int64_t)scale(r->dtype, acc, r->postscale);
    memcpy(out_p, &result, hvi_dtype_bytes(r->dtype)); /* little endian, like shared memory */
}

static void bool_element(const struct hvi_reduction *r, uint64_t index, void *out_p)
{
    bool all = true, any = false;

    for (uint32_t rank = 0; rank < r->ins; rank++) {
        bool value = ((const uint8_t *)r->in[rank])[index] != 0;
        all = all && value;
        any = any || value;
    }
    *(uint8_t *)out_p = r->reduce_op == HVI_REDUCE_MIN ? all : any;
}

void hvt_reference_element(const struct hvi_reduction *reduce, uint64_t index, void *out_p)
{
    switch (reduce->dtype) {
    case HVI_DTYPE_FLOAT16:
        short_element(reduce, index, 5, 10, out_p);
        return;
    case HVI_DTYPE_BFLOAT16:
        short_element(reduce, index, 8, 7, out_p);
        return;
    case HVI_DTYPE_FLOAT8_E4M3:
    case HVI_DTYPE_FLOAT8_E5M2:
        float8_element(reduce, index, out_p);
        return;
    case HVI_DTYPE_FLOAT32:
        float32_element(reduce, index, out_p);
        return;
    case HVI_DTYPE_FLOAT64:
        float64_element(reduce, index, out_p);
        return;
    case HVI_DTYPE_BOOL:
        bool_element(reduce, index, out_p);
        return;
    default:
        int_element(reduce, index, out_p);
    }
}

/* ---- adasum ---- */

double hvt_reference_get(uint32_t dtype, const void *data, uint64_t index)
{
    switch (dtype) {
    case HVI_DTYPE_FLOAT16:
        return decode(((const uint16_t *)data)[index], 5, 10);
    case HVI_DTYPE_BFLOAT16:
        return decode(((const uint16_t *)data)[index], 8, 7);
    case HVI_DTYPE_FLOAT8_E4M3:
        return hvt_reference_e4m3(((const uint8_t *)data)[index]);
    case HVI_DTYPE_FLOAT8_E5M2:
        return hvt_reference_e5m2(((const uint8_t *)data)[index]);
    case HVI_DTYPE_FLOAT32:
        return (double)((const float *)data)[index];
    default:
        return ((const double *)data)[index];
    }
}

void hvt_reference_put(uint32_t dtype, void *data_p, uint64_t index, double value)
{
    if (dtype == HVI_DTYPE_FLOAT16)
        ((uint16_t *)data_p)[index] = encode(value, 5, 10);
    else if (dtype == HVI_DTYPE_BFLOAT16)
        ((uint16_t *)data_p)[index] = encode(value, 8, 7);
    else if (dtype == HVI_DTYPE_FLOAT8_E4M3)
        ((uint8_t *)data_p)[index] = hvt_reference_to_e4m3(value);
    else if (dtype == HVI_DTYPE_FLOAT8_E5M2)
        ((uint8_t *)data_p)[index] = hvt_reference_to_e5m2(value);
    else if (dtype == HVI_DTYPE_FLOAT32)
        ((float *)data_p)[index] = (float)value;
    else
        ((double *)data_p)[index] = value;
}

static void adasum_pair(double *a, const double *b, uint64_t count)
{
    double dot = 0, aa = 0, bb = 0;

    for (uint64_t i = 0; i < count; i++) {
        dot += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    for (uint64_t i = 0; i < count; i++)
        a[i] = (aa > 1e-150 ? 1 - dot / (2 * aa) : 1) * a[i] +
               (bb > 1e-150 ? 1 - dot / (2 * bb) : 1) * b[i];
}

void hvt_reference_adasum(double *vectors, uint32_t members, uint64_t count)
{
    while (members > 1) {
        uint32_t left = 1;
        while (left * 2 < members)
            left *= 2;
        for (uint32_t i = 0; i < left; i++) {
            bool paired = i < members - left;
            uint32_t from = paired ? 2 * i : i + (members - left);
            memmove(vectors + i * count, vectors + from * count, count * sizeof *vectors);
            if (paired)
                adasum_pair(vectors + i * count, vectors + (from + 1) * count, count);
        }
        members = left;
    }
}

/* ---- inputs ---- */

static double some_number(uint64_t *random)
{
    uint64_t bits = hvt_random(random);
    double small = (double)(int64_t)bits / 9223372036854775808.0;

    switch (bits % 13) {
    case 0:
        return 0.0;
    case 1:
        return -0.0;
    case 2:
        return INFINITY;
    case 3:
        return -INFINITY;
    case 4:
        return NAN;
    case 5:
        return ldexp(small, -130); /* subnormal as float32 */
    case 6:
        return ldexp(small, 127);
    case 7:
        return ldexp(small, -15); /* subnormal as float16 */
    default:
        return small * 100;
    }
}

void hvt_reference_fill(uint32_t dtype, void *data_p, uint64_t count, uint64_t *random)
{
    unsigned char *bytes = data_p;

    for (uint64_t i = 0; i < count; i++) {
        uint64_t bits = hvt_random(random);
        if (dtype == HVI_DTYPE_FLOAT32)
            ((float *)data_p)[i] = (float)some_number(random);
        else if (dtype == HVI_DTYPE_FLOAT64)
            ((double *)data_p)[i] = some_number(random);
        else if (dtype == HVI_DTYPE_BOOL)
            bytes[i] = bits % 3 == 0 ? 0 : (unsigned char)(bits >> 8);
        else /* every pattern means something */
            memcpy(bytes + i * hvi_dtype_bytes(dtype), &bits, hvi_dtype_bytes(dtype));
    }
}
