/* SPDX-License-Identifier: Apache-2.0
 * What a reduction gives, written from docs/design/reduction.md and from nothing else.
 *
 * Short floats are read and written by the bits of a double: unlike the engine's kernels and unlike
 * the unit tests' reference, so that three roads must lead to the same place. */
#include "tests/property/prop.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- randomness ---- */

uint64_t hvt_mix(uint64_t a, uint64_t b)
{
    uint64_t state = a * 0xd6e8feb86659fd93ull ^ (b + 0x9e3779b97f4a7c15ull);

    return hvt_next(&state);
}

uint64_t hvt_next(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

uint32_t hvt_below(uint64_t *state, uint32_t below)
{
    return below == 0 ? 0 : (uint32_t)(hvt_next(state) >> 32) % below;
}

bool hvt_chance(uint64_t *state, uint32_t percent)
{
    return hvt_below(state, 100) < percent;
}

/* ---- names and sizes ---- */

static const struct {
    const char *name;
    size_t bytes;
    int exponent, mantissa; /* bits of a short float */
} types[] = {
    [HVD_UINT8] = {"uint8", 1, 0, 0},
    [HVD_INT8] = {"int8", 1, 0, 0},
    [HVD_UINT16] = {"uint16", 2, 0, 0},
    [HVD_INT16] = {"int16", 2, 0, 0},
    [HVD_INT32] = {"int32", 4, 0, 0},
    [HVD_INT64] = {"int64", 8, 0, 0},
    [HVD_FLOAT16] = {"float16", 2, 5, 10},
    [HVD_FLOAT32] = {"float32", 4, 0, 0},
    [HVD_FLOAT64] = {"float64", 8, 0, 0},
    [HVD_BOOL] = {"bool", 1, 0, 0},
    [HVD_BFLOAT16] = {"bfloat16", 2, 8, 7},
    [HVD_FLOAT8_E4M3] = {"float8_e4m3", 1, 4, 3},
    [HVD_FLOAT8_E5M2] = {"float8_e5m2", 1, 5, 2},
};

size_t hvt_bytes_of(int dtype)
{
    return types[dtype].bytes;
}

const char *hvt_dtype_name(int dtype)
{
    return types[dtype].name;
}

const char *hvt_reduce_name(int reduce)
{
    static const char *const names[] = {"average", "sum", "adasum", "min", "max", "product"};

    return names[reduce];
}

const char *hvt_kind_name(int kind)
{
    static const char *const names[] = {"allreduce",       "allgather",         "broadcast",
                                        "alltoall",        "reducescatter",     "barrier",
                                        "process_set_add", "process_set_remove"};

    return names[kind];
}

int64_t hvt_row_elements(const struct hvt_request *request)
{
    int64_t count = 1;

    for (int i = 1; i < request->ndim; i++)
        count *= request->dims[i];
    return count;
}

int64_t hvt_elements(const struct hvt_request *request)
{
    return request->ndim == 0 ? 1 : request->dims[0] * hvt_row_elements(request);
}

/* ---- short floats ---- */

static double widen(int dtype, unsigned bits)
{
    int mantissa_bits = types[dtype].mantissa, exponent_bits = types[dtype].exponent;
    unsigned mantissa = bits & ((1u << mantissa_bits) - 1);
    unsigned exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
    unsigned all = (1u << exponent_bits) - 1;
    int bias = (int)(all >> 1);
    double magnitude;

    if (dtype == HVD_FLOAT8_E4M3 && exponent == all && mantissa == 7)
        return (double)NAN;
    if (dtype != HVD_FLOAT8_E4M3 && exponent == all)
        magnitude = mantissa ? (double)NAN : (double)INFINITY;
    else if (exponent == 0)
        magnitude = mantissa * exp2(1 - bias - mantissa_bits);
    else
        magnitude = (1.0 + mantissa * exp2(-mantissa_bits)) * exp2((int)exponent - bias);
    return bits >> (mantissa_bits + exponent_bits) ? -magnitude : magnitude;
}

/* By integers: the double's mantissa is cut where the short one ends, and what was cut off decides. */
static unsigned narrow(int dtype, double value)
{
    int mantissa_bits = types[dtype].mantissa, exponent_bits = types[dtype].exponent;
    int bias = (1 << (exponent_bits - 1)) - 1;
    unsigned sign = signbit(value) ? 1u << (mantissa_bits + exponent_bits) : 0;
    unsigned infinity = ((1u << exponent_bits) - 1) << mantissa_bits;
    uint64_t bits;

    if (isnan(value))
        return dtype == HVD_FLOAT8_E4M3 ? 0x7f : infinity | 1u << (mantissa_bits - 1);
    memcpy(&bits, &value, sizeof bits);
    int exponent = (int)(bits >> 52 & 0x7ff) - 1023;
    uint64_t whole = (bits & 0xfffffffffffffull) | (exponent == -1023 ? 0 : 1ull << 52);
    int shift = 52 - mantissa_bits;
    if (isinf(value))
        return dtype == HVD_FLOAT8_E4M3 ? 0x7f : sign | infinity;
    if (exponent < 1 - bias) {
        shift += 1 - bias - exponent;
        exponent = -bias;
    }
    uint64_t kept = shift > 60 ? 0 : whole >> shift;
    uint64_t rest = shift > 60 ? (uint64_t)(whole != 0) : whole & ((1ull << shift) - 1);
    uint64_t half = shift > 60 ? 2 : 1ull << (shift - 1);
    if (rest > half || (rest == half && kept % 2 == 1))
        kept++;
    /* A carry into the exponent, or out of the subnormals, is the next number, as it should be. */
    uint64_t field = exponent == -bias ? kept
                                       : ((uint64_t)(exponent + bias) << mantissa_bits) +
                                             (kept - (1ull << mantissa_bits));
    if (dtype == HVD_FLOAT8_E4M3)
        return field >= 0x7f ? 0x7f : sign | (unsigned)field;
    return sign | (field >= infinity ? infinity : (unsigned)field);
}

static bool is_short(int dtype)
{
    return types[dtype].exponent > 0;
}

static float load_float(int dtype, const void *data, int64_t i)
{
    if (dtype == HVD_FLOAT32)
        return ((const float *)data)[i];
    if (types[dtype].bytes == 2)
        return (float)widen(dtype, ((const uint16_t *)data)[i]);
    return (float)widen(dtype, ((const uint8_t *)data)[i]);
}

static void store_float(int dtype, void *data, int64_t i, float value)
{
    uint32_t quiet = 0x7fc00000u;

    if (dtype == HVD_FLOAT32)
        memcpy((float *)data + i, isnan(value) ? (void *)&quiet : (void *)&value, sizeof value);
    else if (types[dtype].bytes == 2)
        memcpy((char *)data + 2 * i, &(uint16_t){(uint16_t)narrow(dtype, (double)value)}, 2);
    else
        ((uint8_t *)data)[i] = (uint8_t)narrow(dtype, (double)value);
}

static void store_double(void *data, int64_t i, double value)
{
    uint64_t quiet = 0x7ff8000000000000ull;

    memcpy((double *)data + i, isnan(value) ? (void *)&quiet : (void *)&value, sizeof value);
}

/* ---- element by element ---- */

static float meet_float(int reduce, float a, float b)
{
    if ((reduce == HVD_MIN || reduce == HVD_MAX) && (isnan(a) || isnan(b)))
        return NAN;
    if (reduce == HVD_MIN)
        return a < b ? a : b;
    if (reduce == HVD_MAX)
        return a > b ? a : b;
    return reduce == HVD_PRODUCT ? a * b : a + b;
}

static double meet_double(int reduce, double a, double b)
{
    if ((reduce == HVD_MIN || reduce == HVD_MAX) && (isnan(a) || isnan(b)))
        return (double)NAN;
    if (reduce == HVD_MIN)
        return a < b ? a : b;
    if (reduce == HVD_MAX)
        return a > b ? a : b;
    return reduce == HVD_PRODUCT ? a * b : a + b;
}

static void reduce_floats(const struct hvt_request *r, const void *const *ins, int count,
                          int members, int64_t elements, void *out_p)
{
    for (int64_t i = 0; i < elements; i++) {
        float sum = 0;
        for (int from = 0; from < count; from++) {
            float value = load_float(r->dtype, ins[from], i) * (float)r->pre;
            sum = from == 0 ? value : meet_float(r->reduce, sum, value);
        }
        if (r->reduce == HVD_AVERAGE)
            sum /= (float)members;
        store_float(r->dtype, out_p, i, sum * (float)r->post);
    }
}

static void reduce_doubles(const struct hvt_request *r, const void *const *ins, int count,
                           int members, int64_t elements, void *out_p)
{
    for (int64_t i = 0; i < elements; i++) {
        double sum = 0;
        for (int from = 0; from < count; from++) {
            double value = ((const double *)ins[from])[i] * r->pre;
            sum = from == 0 ? value : meet_double(r->reduce, sum, value);
        }
        if (r->reduce == HVD_AVERAGE)
            sum /= members;
        store_double(out_p, i, sum * r->post);
    }
}

static void reduce_bools(const struct hvt_request *r, const void *const *ins, int count,
                         int64_t elements, void *out_p)
{
    for (int64_t i = 0; i < elements; i++) {
        int trues = 0;
        for (int from = 0; from < count; from++)
            trues += ((const uint8_t *)ins[from])[i] != 0;
        ((uint8_t *)out_p)[i] = r->reduce == HVD_MIN ? trues == count : trues > 0;
    }
}

/* ---- integers, in twice the width ---- */

static __int128 lowest(int dtype)
{
    bool is_unsigned = dtype == HVD_UINT8 || dtype == HVD_UINT16;

    return is_unsigned ? 0 : -((__int128)1 << (8 * types[dtype].bytes - 1));
}

static __int128 highest(int dtype)
{
    return lowest(dtype) + ((__int128)1 << (8 * types[dtype].bytes)) - 1;
}

static __int128 load_int(int dtype, const void *data, int64_t i)
{
    uint64_t bits = 0;

    memcpy(&bits, (const char *)data + i * (int64_t)types[dtype].bytes, types[dtype].bytes);
    __int128 value = bits;
    return value > highest(dtype) ? value - ((__int128)1 << (8 * types[dtype].bytes)) : value;
}

static __int128 wrap(int dtype, __int128 value)
{
    __int128 turn = (__int128)1 << (8 * types[dtype].bytes);

    value %= turn;
    if (value < lowest(dtype))
        value += turn;
    return value > highest(dtype) ? value - turn : value;
}

static __int128 scale_int(int dtype, __int128 value, double factor)
{
    double product = (double)(int64_t)value * factor;

    if (factor == 1.0)
        return value;
    if (isnan(product))
        return 0;
    if (product >= (double)highest(dtype))
        return highest(dtype);
    if (product <= (double)lowest(dtype))
        return lowest(dtype);
    return (__int128)product;
}

static __int128 meet_int(int reduce, __int128 a, __int128 b)
{
    if (reduce == HVD_MIN)
        return a < b ? a : b;
    if (reduce == HVD_MAX)
        return a > b ? a : b;
    return reduce == HVD_PRODUCT ? a * b : a + b;
}

static void reduce_ints(const struct hvt_request *r, const void *const *ins, int count, int members,
                        int64_t elements, void *out_p)
{
    size_t bytes = types[r->dtype].bytes;

    for (int64_t i = 0; i < elements; i++) {
        __int128 sum = 0;
        for (int from = 0; from < count; from++) {
            __int128 value = scale_int(r->dtype, load_int(r->dtype, ins[from], i), r->pre);
            sum = from == 0 ? value : wrap(r->dtype, meet_int(r->reduce, sum, value));
        }
        if (r->reduce == HVD_AVERAGE)
            sum /= members;
        uint64_t bits = (uint64_t)scale_int(r->dtype, sum, r->post);
        memcpy((char *)out_p + i * (int64_t)bytes, &bits, bytes);
    }
}

/* ---- adasum ---- */

#define LANES 8
#define CHUNK 32768

static double dot(const double *a, const double *b, int64_t count)
{
    double total = 0;

    for (int64_t from = 0; from < count; from += CHUNK) {
        int64_t to = from + CHUNK < count ? from + CHUNK : count;
        double lanes[LANES] = {0}, sum = 0;
        for (int64_t i = from; i < to; i++)
            lanes[i % LANES] += a[i] * b[i];
        for (int lane = 0; lane < LANES; lane++)
            sum += lanes[lane];
        total += sum;
    }
    return total;
}

static void adasum_pair(int dtype, double *a, const double *b, int64_t count)
{
    double ab = dot(a, b, count), aa = dot(a, a, count), bb = dot(b, b, count);
    double a_factor = aa < sqrt(DBL_MIN) ? 1 : 1 - ab / (2 * aa);
    double b_factor = bb < sqrt(DBL_MIN) ? 1 : 1 - ab / (2 * bb);

    for (int64_t i = 0; i < count; i++) {
        double sum = a[i] * a_factor + b[i] * b_factor;
        a[i] = dtype == HVD_FLOAT64 ? sum : (double)(float)sum;
    }
}

/* vectors[0 .. count), each of them `elements` long. The result is the first. */
static void adasum_tree(int dtype, double **vectors, int count, int64_t elements)
{
    int power = 1;

    while (2 * power <= count)
        power *= 2;
    for (int extra = count - power, i = 0; i < count - extra; i++) {
        int from = i < extra ? 2 * i : i + extra;
        double *first = vectors[from];
        if (i < extra)
            adasum_pair(dtype, first, vectors[from + 1], elements);
        vectors[from] = vectors[i];
        vectors[i] = first;
    }
    for (; power > 1; power /= 2) {
        for (int i = 0; i < power / 2; i++) {
            double *first = vectors[2 * i];
            adasum_pair(dtype, first, vectors[2 * i + 1], elements);
            vectors[2 * i] = vectors[i];
            vectors[i] = first;
        }
    }
}

static void reduce_adasum(const struct hvt_request *r, const void *const *ins, int count,
                          int64_t elements, void *out_p)
{
    double *all = calloc((size_t)count * (size_t)elements + 1, sizeof *all), *vectors[HVT_RANKS];

    for (int from = 0; from < count; from++) {
        vectors[from] = all + from * elements;
        for (int64_t i = 0; i < elements; i++)
            vectors[from][i] = r->dtype == HVD_FLOAT64
                                   ? ((const double *)ins[from])[i] * r->pre
                                   : (double)(load_float(r->dtype, ins[from], i) * (float)r->pre);
    }
    adasum_tree(r->dtype, vectors, count, elements);
    for (int64_t i = 0; i < elements; i++) {
        if (r->dtype == HVD_FLOAT64)
            store_double(out_p, i, vectors[0][i] * r->post);
        else
            store_float(r->dtype, out_p, i, (float)vectors[0][i] * (float)r->post);
    }
    free(all);
}

void hvt_numbers_reduce(const struct hvt_request *request, const void *const *ins, int count,
                        int members, int64_t elements, void *out_p)
{
    if (request->reduce == HVD_ADASUM)
        reduce_adasum(request, ins, count, elements, out_p);
    else if (request->dtype == HVD_BOOL)
        reduce_bools(request, ins, count, elements, out_p);
    else if (request->dtype == HVD_FLOAT64)
        reduce_doubles(request, ins, count, members, elements, out_p);
    else if (request->dtype == HVD_FLOAT32 || is_short(request->dtype))
        reduce_floats(request, ins, count, members, elements, out_p);
    else
        reduce_ints(request, ins, count, members, elements, out_p);
}

/* ---- inputs ---- */

static double some_double(uint64_t bits)
{
    double value = (double)(int64_t)bits * 0x1p-60; /* up to 8 */

    switch (bits % 31) {
    case 0:
        return 0.0;
    case 1:
        return -0.0;
    case 2:
        return (double)INFINITY;
    case 3:
        return -(double)INFINITY;
    case 4:
        return (double)NAN;
    case 5:
        return value * 0x1p-132;
    case 6:
        return value * 0x1p124;
    default:
        return value;
    }
}

static void put_float(int dtype, void *data, int64_t i, double value)
{
    if (dtype == HVD_FLOAT64)
        memcpy((char *)data + i * (int64_t)sizeof value, &value, sizeof value); /* anywhere */
    else
        store_float(dtype, data, i, (float)value);
}

void hvt_numbers_fill(int dtype, bool moderate, uint64_t seed, int64_t count, void *data_p)
{
    size_t bytes = types[dtype].bytes;
    bool is_float = dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64 || is_short(dtype);
    bool wild = seed % 3 == 0 && !moderate;

    for (int64_t i = 0; i < count; i++) {
        uint64_t bits = hvt_next(&seed);
        if (dtype == HVD_BOOL)
            bits = bits % 3 ? bits % 3 % 2 * (1 + (bits >> 8) % 255) : 0;
        if (is_float && !wild)
            put_float(dtype, data_p, i, (double)(int64_t)bits * 0x1p-62);
        else if (is_float && !is_short(dtype))
            put_float(dtype, data_p, i, some_double(bits));
        else
            memcpy((char *)data_p + (size_t)i * bytes, &bits, bytes);
    }
}
