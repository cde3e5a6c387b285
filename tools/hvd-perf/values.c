/* SPDX-License-Identifier: Apache-2.0
 * Small whole numbers, so that sums are exact in every dtype. They are mixed from rank, index and salt,
 * so that a wrong rank, a missing rank, a shifted element and a result of another salt show. Values
 * depend on the index modulo PERF_PERIOD only, so the expected results are computed once per check. */
#include "tools/hvd-perf/perf.h"

#include <math.h>
#include <string.h>

/* ---- 16-bit floats ---- */

static float bits_to_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t float_to_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Exact for the whole numbers below 2048 that patterns consist of. */
static uint16_t half_from_small(double value)
{
    const uint32_t bits = float_to_bits((float)value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    if ((bits & 0x7fffffffu) == 0)
        return (uint16_t)sign;
    return (uint16_t)(sign | (((bits & 0x7fffffffu) - (112u << 23)) >> 13));
}

static double half_to_double(uint16_t half)
{
    const uint32_t exponent = half >> 10 & 31u;
    const uint32_t fraction = half & 1023u;
    const double sign = half & 0x8000u ? -1 : 1;
    if (exponent == 31)
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp((double)fraction, -24);
    return sign * ldexp((double)(fraction + 1024u), (int)exponent - 25);
}

/* ---- elements ---- */

static bool is_float(enum hvd_dtype dtype)
{
    return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16 || dtype == HVD_FLOAT32 ||
           dtype == HVD_FLOAT64;
}

static bool is_unsigned(enum hvd_dtype dtype)
{
    return dtype == HVD_UINT8 || dtype == HVD_UINT16 || dtype == HVD_BOOL;
}

/* The bytes of one element of this value. */
static void encode(enum hvd_dtype dtype, int value, unsigned char *element_p)
{
    const int64_t wide = value;
    const float single = (float)value;
    const double twice = (double)value;
    const uint16_t half = half_from_small(twice);
    const uint16_t brain = (uint16_t)(float_to_bits(single) >> 16);
    switch (dtype) {
    case HVD_FLOAT16:
        memcpy(element_p, &half, sizeof half);
        break;
    case HVD_BFLOAT16:
        memcpy(element_p, &brain, sizeof brain);
        break;
    case HVD_FLOAT32:
        memcpy(element_p, &single, sizeof single);
        break;
    case HVD_FLOAT64:
        memcpy(element_p, &twice, sizeof twice);
        break;
    default:
        memcpy(element_p, &wide, hvd_dtype_size(dtype)); /* little endian */
        break;
    }
}

static double decode_float(enum hvd_dtype dtype, const unsigned char *element)
{
    uint16_t half;
    float single;
    double twice;
    memcpy(&half, element, sizeof half);
    if (dtype == HVD_FLOAT16)
        return half_to_double(half);
    if (dtype == HVD_BFLOAT16)
        return (double)bits_to_float((uint32_t)half << 16);
    if (dtype == HVD_FLOAT32) {
        memcpy(&single, element, sizeof single);
        return (double)single;
    }
    memcpy(&twice, element, sizeof twice);
    return twice;
}

/* Neighbouring inputs give unrelated bits: no stride of ranks or places repeats. */
static uint32_t mix(unsigned salt, int rank, int place)
{
    uint32_t bits =
        salt * 0xc2b2ae3du ^ (uint32_t)rank * 0x85ebca77u ^ (uint32_t)place * 0x9e3779b1u;
    bits = (bits ^ bits >> 16) * 0x7feb352du;
    bits = (bits ^ bits >> 15) * 0x846ca68bu;
    return bits ^ bits >> 16;
}

/* What rank puts at this place of the period. */
static int value_at(const struct perf_pattern *pattern, int rank, int place)
{
    const uint32_t bits = mix(pattern->salt, rank, place);
    if (pattern->reduce_op == HVD_PRODUCT)
        return bits % 8 == 0 ? 2 : 1;
    const int value = (int)(bits % 13);
    return is_unsigned(pattern->dtype) ? value : value - 6;
}

void perf_fill(const struct perf_pattern *pattern, int rank, void *data, uint64_t count)
{
    const size_t size = hvd_dtype_size(pattern->dtype);
    unsigned char *bytes = data;
    for (uint64_t i = 0; i < count && i < PERF_PERIOD; i++)
        encode(pattern->dtype, value_at(pattern, rank, (int)i), bytes + i * size);
    uint64_t done = count < PERF_PERIOD ? count : PERF_PERIOD;
    while (done < count) { /* whole periods: doubling keeps the phase */
        const uint64_t part = done < count - done ? done : count - done;
        memcpy(bytes + done * size, bytes, part * size);
        done += part;
    }
}

/* ---- expected ---- */

struct expected {
    int64_t whole[PERF_PERIOD]; /* integers; their first bytes are the element */
    double real[PERF_PERIOD];   /* floats */
};

static int64_t combine_whole(enum hvd_reduce_op reduce_op, int64_t a, int64_t b)
{
    switch (reduce_op) {
    case HVD_MIN:
        return a < b ? a : b;
    case HVD_MAX:
        return a > b ? a : b;
    case HVD_PRODUCT:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    default:
        return a + b;
    }
}

static double combine_real(enum hvd_reduce_op reduce_op, double a, double b)
{
    switch (reduce_op) {
    case HVD_MIN:
        return fmin(a, b);
    case HVD_MAX:
        return fmax(a, b);
    case HVD_PRODUCT:
        return a * b;
    default:
        return a + b;
    }
}

/* A sum in a dtype of integers wraps. */
static int64_t cut(enum hvd_dtype dtype, int64_t whole)
{
    switch (dtype) {
    case HVD_UINT8:
        return (uint8_t)whole;
    case HVD_INT8:
        return (int8_t)whole;
    case HVD_UINT16:
        return (uint16_t)whole;
    case HVD_INT16:
        return (int16_t)whole;
    case HVD_INT32:
        return (int32_t)whole;
    default:
        return whole;
    }
}

static void expect_place(const struct perf_pattern *pattern, int ranks, int place,
                         struct expected *expected_p)
{
    const enum hvd_reduce_op reduce_op = pattern->reduce_op;
    int64_t whole = value_at(pattern, 0, place);
    double real = (double)whole;
    for (int rank = 1; rank < ranks; rank++) {
        const int value = value_at(pattern, rank, place);
        whole = combine_whole(reduce_op, whole, value);
        real = combine_real(reduce_op, real, value);
    }
    whole = cut(pattern->dtype, whole);
    expected_p->whole[place] = reduce_op == HVD_AVERAGE ? whole / ranks : whole;
    expected_p->real[place] = reduce_op == HVD_AVERAGE ? real / ranks : real;
}

static double tolerance(enum hvd_dtype dtype)
{
    switch (dtype) {
    case HVD_FLOAT16:
        return 1e-3;
    case HVD_BFLOAT16:
        return 8e-3;
    case HVD_FLOAT32:
        return 5e-7;
    default:
        return 1e-15;
    }
}

/* A value too large for the dtype must have become infinite. */
static double largest(enum hvd_dtype dtype)
{
    return dtype == HVD_FLOAT16   ? 65504.0
           : dtype == HVD_FLOAT64 ? 1.7976931348623157e308
                                  : 3.4028234663852886e38;
}

static bool matches(enum hvd_dtype dtype, const struct expected *expected, int place,
                    const unsigned char *element)
{
    if (!is_float(dtype))
        return memcmp(element, &expected->whole[place], hvd_dtype_size(dtype)) == 0;
    const double want = expected->real[place];
    const double have = decode_float(dtype, element);
    if (fabs(want) > largest(dtype))
        return isinf(have) && signbit(have) == signbit(want);
    return fabs(have - want) <= tolerance(dtype) * fabs(want);
}

static uint64_t count_differences(enum hvd_dtype dtype, const struct expected *expected,
                                  uint64_t from, const void *data, uint64_t count)
{
    const size_t size = hvd_dtype_size(dtype);
    const unsigned char *bytes = data;
    uint64_t differences = 0;
    for (uint64_t i = 0; i < count; i++)
        differences += !matches(dtype, expected, (int)((from + i) % PERF_PERIOD), bytes + i * size);
    return differences;
}

uint64_t perf_check_reduced(const struct perf_pattern *pattern, int ranks, uint64_t from,
                            const void *data, uint64_t count)
{
    struct expected expected;
    for (uint64_t i = 0; i < count && i < PERF_PERIOD; i++)
        expect_place(pattern, ranks, (int)((from + i) % PERF_PERIOD), &expected);
    return count_differences(pattern->dtype, &expected, from, data, count);
}

uint64_t perf_check_copied(const struct perf_pattern *pattern, int rank, uint64_t from,
                           const void *data, uint64_t count)
{
    struct expected expected;
    for (uint64_t i = 0; i < count && i < PERF_PERIOD; i++) {
        const int place = (int)((from + i) % PERF_PERIOD);
        expected.whole[place] = value_at(pattern, rank, place);
        expected.real[place] = (double)expected.whole[place];
    }
    return count_differences(pattern->dtype, &expected, from, data, count);
}
