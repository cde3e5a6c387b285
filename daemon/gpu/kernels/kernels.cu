/* SPDX-License-Identifier: Apache-2.0
 * The kernels of a GPU's worker (kernels.h says what each does), for nvcc and for the host's compiler: in the part of C that C++
 * shares, with portable.h in between.
 *
 * A thread takes all inputs of some elements, then writes all outputs of these elements: elements never meet, so neither grids
 * nor widths show in the bits, and an output may be an input. Where all addresses lie alike in 16 bytes, elements are taken 16
 * bytes at a time, but for the ends; else one by one. Loads of up to BATCH inputs are under way before the first is used.
 *
 * Pack, unpack and move have pieces of any length. They are cut into tiles, which go to the blocks in turn. */
#include "daemon/gpu/kernels/portable.h"

#include "daemon/gpu/kernels/kernels.h"
#include "daemon/gpu/kernels/numbers.h"

#define BATCH      4
#define TILE_BYTES 16384u

/* What is done to the elements of some vectors. */
struct job {
    struct math math;
    uint32_t ins, outs;
    const uint64_t *in, *out;
};

/* This thread's share of something: first, first + step, ... */
struct share {
    uint64_t first, step;
};

/* ---- cells: one element, or as many lanes as lie in a wide load ---- */

/* Types of one byte are loaded by four: sixteen lanes would be too many registers. */
#define WIDE_1 4
#define WIDE_2 16
#define WIDE_4 16
#define WIDE_8 16
typedef one_4 wide_1;
typedef wide wide_2, wide_4, wide_8;

INLINE uint8_t get_wide_1(const wide_1 *cell, int i)
{
    return (uint8_t)(*cell >> i * 8);
}

INLINE uint16_t get_wide_2(const wide *cell, int i)
{
    return (uint16_t)(cell->word[i / 2] >> i % 2 * 16);
}

INLINE uint32_t get_wide_4(const wide *cell, int i)
{
    return cell->word[i];
}

INLINE uint64_t get_wide_8(const wide *cell, int i)
{
    return cell->word[2 * i] | (uint64_t)cell->word[2 * i + 1] << 32;
}

/* Lane 0 of a word is put first. */
INLINE void put_wide_1(wide_1 *cell, int i, uint8_t bits)
{
    *cell = (i == 0 ? 0 : *cell) | (uint32_t)bits << i * 8;
}

INLINE void put_wide_2(wide *cell, int i, uint16_t bits)
{
    cell->word[i / 2] = (i % 2 == 0 ? 0 : cell->word[i / 2]) | (uint32_t)bits << i % 2 * 16;
}

INLINE void put_wide_4(wide *cell, int i, uint32_t bits)
{
    cell->word[i] = bits;
}

INLINE void put_wide_8(wide *cell, int i, uint64_t bits)
{
    cell->word[2 * i] = (uint32_t)bits;
    cell->word[2 * i + 1] = (uint32_t)(bits >> 32);
}

#define GET_ONE(cell, i)       (*(cell))
#define PUT_ONE(cell, i, bits) (*(cell) = (bits))

/* ---- reductions ---- */

/* Defines NAME_WIDTH, which does the LANES elements that lie `at` bytes behind each address. */
#define DEFINE_STEP(NAME, WIDTH, ACC, CELL, LANES, GET, PUT, PRE, POST)                            \
    INLINE void NAME##_##WIDTH(const struct job *job, uint64_t at)                                 \
    {                                                                                              \
        ACC acc[LANES] = {0}, value[LANES];                                                        \
        CELL cell[BATCH] = {0};                                                                    \
        LOOP for (uint32_t from = 0; from < job->ins; from += BATCH)                               \
        {                                                                                          \
            UNROLL for (uint32_t k = 0; k < BATCH; k++)                                            \
            {                                                                                      \
                if (from + k < job->ins)                                                           \
                    cell[k] = *(const CELL *)(uintptr_t)(job->in[from + k] + at);                  \
            }                                                                                      \
            UNROLL for (uint32_t k = 0; k < BATCH; k++)                                            \
            {                                                                                      \
                if (from + k >= job->ins)                                                          \
                    break;                                                                         \
                EACH(value, LANES, NAME##_widen(GET(&cell[k], i)));                                \
                PRE(&job->math, value, LANES);                                                     \
                if (from + k == 0)                                                                 \
                    EACH(acc, LANES, value[i]);                                                    \
                else                                                                               \
                    NAME##_fold(job->math.op, acc, value, LANES);                                  \
            }                                                                                      \
        }                                                                                          \
        POST(&job->math, acc, LANES);                                                              \
        UNROLL for (int i = 0; i < LANES; i++)                                                     \
        {                                                                                          \
            PUT(&cell[0], i, NAME##_narrow(acc[i]));                                               \
        }                                                                                          \
        LOOP for (uint32_t k = 0; k < job->outs; k++)                                              \
        {                                                                                          \
            *(CELL *)(uintptr_t)(job->out[k] + at) = cell[0];                                      \
        }                                                                                          \
    }

/* How many of `count` elements come before the first place where all vectors are aligned to `width`; all: there is none. */
INLINE uint64_t head_of(const struct job *job, uint64_t count, uint32_t size, uint32_t width)
{
    const uint64_t first = job->in[0], head = (-first & (width - 1)) / size;
    uint64_t odd = 0;

    LOOP for (uint32_t k = 1; k < job->ins; k++)
    {
        odd |= job->in[k] ^ first;
    }
    LOOP for (uint32_t k = 0; k < job->outs; k++)
    {
        odd |= job->out[k] ^ first;
    }
    return (odd & (width - 1)) != 0 || head > count ? count : head;
}

/* Defines NAME_span, which does this thread's share of count elements of SIZE bytes. */
#define DEFINE_SPAN(NAME, ACC, SIZE, PRE, POST)                                                    \
    DEFINE_STEP(NAME, wide, ACC, wide_##SIZE, (WIDE_##SIZE / SIZE), get_wide_##SIZE,               \
                put_wide_##SIZE, PRE, POST)                                                        \
    DEFINE_STEP(NAME, one, ACC, one_##SIZE, 1, GET_ONE, PUT_ONE, NAME##_pre, NAME##_post)          \
    INLINE void NAME##_span(const struct job *job, uint64_t count, struct share share)             \
    {                                                                                              \
        const uint64_t lanes = WIDE_##SIZE / SIZE;                                                 \
        const uint64_t head =                                                                      \
            NAME##_can_wide(&job->math) ? head_of(job, count, SIZE, WIDE_##SIZE) : count;          \
        const uint64_t cells = (count - head) / lanes, middle = cells * lanes;                     \
        const uint64_t start = head * sizeof(one_##SIZE);                                          \
        LOOP for (uint64_t i = share.first; i < cells; i += share.step)                            \
        {                                                                                          \
            NAME##_wide(job, start + i * WIDE_##SIZE);                                             \
        }                                                                                          \
        LOOP for (uint64_t i = share.first; i < count - middle; i += share.step)                   \
        {                                                                                          \
            NAME##_one(job, (i < head ? i : i + middle) * SIZE);                                   \
        }                                                                                          \
    }

#define DEFINE_FLOAT_SPAN(NAME, ACC, SIZE) DEFINE_SPAN(NAME, ACC, SIZE, NAME##_pre, NAME##_post)
#define DEFINE_PLAIN_SPAN(NAME, ACC, SIZE) DEFINE_SPAN(NAME, ACC, SIZE, NOTHING, NOTHING)
#define NOTHING(math, lanes, n)            ((void)0)

DEFINE_PLAIN_SPAN(u8, uint8_t, 1)
DEFINE_PLAIN_SPAN(i8, int8_t, 1)
DEFINE_PLAIN_SPAN(u16, uint16_t, 2)
DEFINE_PLAIN_SPAN(i16, int16_t, 2)
DEFINE_PLAIN_SPAN(i32, int32_t, 4)
DEFINE_PLAIN_SPAN(i64, int64_t, 8)
DEFINE_PLAIN_SPAN(truth, uint8_t, 1)
DEFINE_FLOAT_SPAN(f16, float, 2)
DEFINE_FLOAT_SPAN(f32, float, 4)
DEFINE_FLOAT_SPAN(f64, double, 8)
DEFINE_FLOAT_SPAN(bf16, float, 2)
DEFINE_FLOAT_SPAN(e4m3, float, 1)
DEFINE_FLOAT_SPAN(e5m2, float, 1)

INLINE void span(uint32_t dtype, const struct job *job, uint64_t count, struct share share)
{
    switch (dtype) {
#define CASE(DTYPE, NAME)                                                                          \
    case HVI_DTYPE_##DTYPE:                                                                        \
        NAME##_span(job, count, share);                                                            \
        break
        CASE(UINT8, u8);
        CASE(INT8, i8);
        CASE(UINT16, u16);
        CASE(INT16, i16);
        CASE(INT32, i32);
        CASE(INT64, i64);
        CASE(FLOAT16, f16);
        CASE(FLOAT32, f32);
        CASE(FLOAT64, f64);
        CASE(BOOL, truth);
        CASE(BFLOAT16, bf16);
        CASE(FLOAT8_E4M3, e4m3);
        CASE(FLOAT8_E5M2, e5m2);
#undef CASE
    default:
        break;
    }
}

INLINE struct share of_grid(struct place place)
{
    const struct share share = {place.block * place.threads + place.thread,
                                place.blocks * place.threads};
    return share;
}

INLINE void reduce(const struct hvd_reduce_args *args, struct place place, int phase)
{
    const struct job job = {
        {args->reduce_op, args->divisor, args->prescale, args->postscale},
        args->ins,
        args->outs,
        args->in,
        args->out,
    };

    (void)phase;
    span(args->dtype, &job, args->count, of_grid(place));
}

/* ---- copies, and what is scaled on the way ---- */

/* Copies cells of SIZE bytes, `at` bytes behind each address: BATCH of them are under way at once. */
#define DEFINE_COPY(NAME, CELL)                                                                    \
    INLINE void copy_##NAME(const struct job *job, uint64_t at, uint64_t cells,                    \
                            struct share share)                                                    \
    {                                                                                              \
        LOOP for (uint64_t i = share.first; i < cells; i += BATCH * share.step)                    \
        {                                                                                          \
            CELL cell[BATCH];                                                                      \
            UNROLL for (uint32_t k = 0; k < BATCH; k++)                                            \
            {                                                                                      \
                if (i + k * share.step < cells)                                                    \
                    cell[k] = *(const CELL *)(uintptr_t)(job->in[0] + at +                         \
                                                         (i + k * share.step) * sizeof(CELL));     \
            }                                                                                      \
            LOOP for (uint32_t out = 0; out < job->outs; out++)                                    \
            {                                                                                      \
                UNROLL for (uint32_t k = 0; k < BATCH; k++)                                        \
                {                                                                                  \
                    if (i + k * share.step < cells)                                                \
                        *(CELL *)(uintptr_t)(job->out[out] + at +                                  \
                                             (i + k * share.step) * sizeof(CELL)) = cell[k];       \
                }                                                                                  \
            }                                                                                      \
        }                                                                                          \
    }

DEFINE_COPY(1, one_1)
DEFINE_COPY(2, one_2)
DEFINE_COPY(4, one_4)
DEFINE_COPY(8, one_8)
DEFINE_COPY(16, wide)

/* This thread's share of `bytes`, from the only input to all outputs, in the widest cells in which all of them lie alike. */
INLINE void copy(const struct job *job, uint64_t bytes, struct share share)
{
    uint64_t odd = 16;

    LOOP for (uint32_t k = 0; k < job->outs; k++) odd |= job->out[k] ^ job->in[0];
    const uint64_t width = odd & -odd;
    uint64_t head = -job->in[0] & (width - 1);
    head = head < bytes ? head : bytes;
    const uint64_t cells = (bytes - head) / width, end = head + cells * width;
    copy_1(job, 0, head, share);
    copy_1(job, end, bytes - end, share);
    if (width == 16)
        copy_16(job, head, cells, share);
    else if (width == 8)
        copy_8(job, head, cells, share);
    else if (width == 4)
        copy_4(job, head, cells, share);
    else if (width == 2)
        copy_2(job, head, cells, share);
    else
        copy_1(job, head, cells, share);
}

INLINE uint32_t bytes_of(uint32_t dtype)
{
    switch (dtype) {
#define HVI_DTYPE(name, number, bytes, text)                                                       \
    case number:                                                                                   \
        return bytes;
#include "base/types.def"
#undef HVI_DTYPE
    default:
        return 1;
    }
}

INLINE void scale(uint32_t dtype, const struct job *job, uint64_t count, struct share share)
{
    const struct math *math = &job->math;

    if (dtype == HVI_DTYPE_BOOL ||
        (math->prescale == 1.0 && math->postscale == 1.0 && math->divisor == 0))
        copy(job, count * bytes_of(dtype), share);
    else
        span(dtype, job, count, share);
}

INLINE void spread(const struct hvd_reduce_args *args, struct place place, int phase)
{
    const struct job job = {
        {HVI_REDUCE_SUM, args->divisor, args->prescale, args->postscale},
        1,
        args->outs,
        args->in,
        args->out,
    };

    (void)phase;
    scale(args->dtype, &job, args->count, of_grid(place));
}

/* ---- pieces ---- */

/* `tile`: a power of two that the compiler knows. A division would cost the threads more than the copy: each looks at all pieces. */
INLINE uint64_t tiles_of(uint64_t count, uint64_t tile)
{
    return (count + tile - 1) / tile;
}

INLINE uint64_t in_tile(uint64_t count, uint64_t tile, uint64_t number)
{
    const uint64_t left = count - number * tile;
    return left < tile ? left : tile;
}

/* Both ways. `turn` is the number of the block's next tile, from the first of the piece on. */
INLINE void pack_pieces(const struct hvd_pack_args *args, struct place place, bool packs)
{
    const uint32_t size = bytes_of(args->dtype);
    const uint64_t tile = TILE_BYTES / size;
    const struct share share = {place.thread, place.threads};
    uint64_t turn = place.block;

    for (uint32_t p = 0; p < args->pieces; p++) {
        const uint64_t count = args->piece[p].count, tiles = tiles_of(count * size, TILE_BYTES);
        LOOP for (; turn < tiles; turn += place.blocks)
        {
            const uint64_t piece = args->piece[p].piece + turn * tile * size;
            const uint64_t packed = args->base + args->piece[p].at + turn * tile * size;
            const struct job job = {
                {HVI_REDUCE_SUM, args->divisor, args->prescale, args->postscale},
                1,
                1,
                packs ? &piece : &packed,
                packs ? &packed : &piece,
            };
            scale(args->dtype, &job, in_tile(count, tile, turn), share);
        }
        turn -= tiles;
    }
}

INLINE void pack(const struct hvd_pack_args *args, struct place place, int phase)
{
    (void)phase;
    pack_pieces(args, place, true);
}

INLINE void unpack(const struct hvd_pack_args *args, struct place place, int phase)
{
    (void)phase;
    pack_pieces(args, place, false);
}

INLINE void move(const struct hvd_move_args *args, struct place place, int phase)
{
    const struct share share = {place.thread, place.threads};
    uint64_t turn = place.block;

    (void)phase;
    for (uint32_t p = 0; p < args->pieces; p++) {
        const uint64_t bytes = args->piece[p].bytes, tiles = tiles_of(bytes, TILE_BYTES);
        LOOP for (; turn < tiles; turn += place.blocks)
        {
            const uint64_t from = args->piece[p].from + turn * TILE_BYTES;
            const uint64_t to = args->piece[p].to + turn * TILE_BYTES;
            const struct job job = {{0, 0, 1.0, 1.0}, 1, 1, &from, &to};
            copy(&job, in_tile(bytes, TILE_BYTES, turn), share);
        }
        turn -= tiles;
    }
}

/* ---- adasum ---- */

#define LANES 8 /* of a chunk: element i is added in lane i % LANES */
#define AHEAD 4 /* elements that a thread loads before it uses the first */

struct vector {
    uint32_t dtype;
    double prescale;
    uint64_t address;
};

INLINE struct vector vector_of(const struct hvd_adasum_args *args, uint64_t address, bool is_stage)
{
    const uint32_t wide_dtype =
        args->dtype == HVI_DTYPE_FLOAT64 ? HVI_DTYPE_FLOAT64 : HVI_DTYPE_FLOAT32;
    const struct vector vector = {is_stage ? wide_dtype : args->dtype,
                                  is_stage ? 1.0 : args->prescale, address};
    return vector;
}

INLINE struct vector a_of(const struct hvd_adasum_args *args, uint32_t pair)
{
    return vector_of(args, args->pair[pair].a, (args->a_is_stage >> pair & 1u) != 0);
}

INLINE struct vector b_of(const struct hvd_adasum_args *args, uint32_t pair)
{
    return vector_of(args, args->pair[pair].b, (args->b_is_stage >> pair & 1u) != 0);
}

/* Defines NAME_load, which gives the AHEAD elements at, at + step, ... as doubles, none from `end` on; and NAME_store. */
#define DEFINE_VECTOR(NAME, ACC, SIZE)                                                             \
    INLINE void NAME##_load(const struct vector *vector, uint64_t at, uint64_t step, uint64_t end, \
                            double *value_p)                                                       \
    {                                                                                              \
        const struct math math = {HVI_REDUCE_SUM, 0, vector->prescale, 1.0};                       \
        const one_##SIZE *in = (const one_##SIZE *)(uintptr_t)vector->address;                     \
        ACC value[AHEAD];                                                                          \
        UNROLL for (uint64_t i = 0; i < AHEAD; i++)                                                \
        {                                                                                          \
            value[i] = at + i * step < end ? NAME##_widen(in[at + i * step]) : 0;                  \
        }                                                                                          \
        NAME##_pre(&math, value, AHEAD);                                                           \
        EACH(value_p, AHEAD, (double)value[i]);                                                    \
    }                                                                                              \
    INLINE void NAME##_store(const struct math *math, const double *value, const uint64_t *out,    \
                             uint32_t outs, uint64_t at, uint64_t step, uint64_t end)              \
    {                                                                                              \
        ACC narrow[AHEAD];                                                                         \
        EACH(narrow, AHEAD, (ACC)value[i]);                                                        \
        NAME##_post(math, narrow, AHEAD);                                                          \
        LOOP for (uint32_t k = 0; k < outs; k++)                                                   \
        {                                                                                          \
            UNROLL for (uint64_t i = 0; i < AHEAD; i++)                                            \
            {                                                                                      \
                if (at + i * step < end)                                                           \
                    ((one_##SIZE *)(uintptr_t)out[k])[at + i * step] = NAME##_narrow(narrow[i]);   \
            }                                                                                      \
        }                                                                                          \
    }

DEFINE_VECTOR(f16, float, 2)
DEFINE_VECTOR(bf16, float, 2)
DEFINE_VECTOR(f32, float, 4)
DEFINE_VECTOR(f64, double, 8)
DEFINE_VECTOR(e4m3, float, 1)
DEFINE_VECTOR(e5m2, float, 1)

#define BY_FLOAT(DTYPE, VERB, ARGUMENTS)                                                           \
    do {                                                                                           \
        if ((DTYPE) == HVI_DTYPE_FLOAT32)                                                          \
            f32_##VERB ARGUMENTS;                                                                  \
        else if ((DTYPE) == HVI_DTYPE_FLOAT16)                                                     \
            f16_##VERB ARGUMENTS;                                                                  \
        else if ((DTYPE) == HVI_DTYPE_BFLOAT16)                                                    \
            bf16_##VERB ARGUMENTS;                                                                 \
        else if ((DTYPE) == HVI_DTYPE_FLOAT64)                                                     \
            f64_##VERB ARGUMENTS;                                                                  \
        else if ((DTYPE) == HVI_DTYPE_FLOAT8_E4M3)                                                 \
            e4m3_##VERB ARGUMENTS;                                                                 \
        else if ((DTYPE) == HVI_DTYPE_FLOAT8_E5M2)                                                 \
            e5m2_##VERB ARGUMENTS;                                                                 \
    } while (0)

INLINE void load(const struct vector *vector, uint64_t at, uint64_t step, uint64_t end,
                 double *value_p)
{
    BY_FLOAT(vector->dtype, load, (vector, at, step, end, value_p));
}

INLINE double *doubles(uint64_t address, uint64_t at)
{
    return (double *)(uintptr_t)address + at;
}

/* At .dots a chunk of a pair has its sums a.b, a.a and b.b, and behind them the eight lanes of each. */
INLINE void add_lane(const struct hvd_adasum_args *args, uint64_t unit, uint64_t chunks, int lane)
{
    const uint64_t first = unit % chunks * HVD_ADASUM_CHUNK, left = args->count - first;
    const uint64_t end = first + (left < HVD_ADASUM_CHUNK ? left : HVD_ADASUM_CHUNK);
    const struct vector a = a_of(args, (uint32_t)(unit / chunks));
    const struct vector b = b_of(args, (uint32_t)(unit / chunks));
    double *sums = doubles(args->dots, unit * HVD_ADASUM_DOTS + 3);
    double x[AHEAD] = {0}, y[AHEAD] = {0};
    double ab = 0, aa = 0, bb = 0;

    LOOP for (uint64_t at = first + (uint64_t)lane; at < end; at += AHEAD * LANES)
    {
        load(&a, at, LANES, end, x);
        load(&b, at, LANES, end, y);
        UNROLL for (uint64_t i = 0; i < AHEAD; i++)
        {
            if (at + i * LANES < end) {
                ab += x[i] * y[i];
                aa += x[i] * x[i];
                bb += y[i] * y[i];
            }
        }
    }
    sums[lane] = ab;
    sums[LANES + lane] = aa;
    sums[2 * LANES + lane] = bb;
}

INLINE void add_lanes(const struct hvd_adasum_args *args, uint64_t unit)
{
    double *sums = doubles(args->dots, unit * HVD_ADASUM_DOTS);

    for (int i = 0; i < 3; i++) {
        double sum = 0;
        for (int lane = 0; lane < LANES; lane++)
            sum += sums[3 + LANES * i + lane];
        sums[i] = sum;
    }
}

/* A thread has a lane of a chunk of a pair. Then the same block adds up the lanes. */
INLINE void adasum_dots(const struct hvd_adasum_args *args, struct place place, int phase)
{
    const uint64_t chunks = tiles_of(args->count, HVD_ADASUM_CHUNK), units = args->pairs * chunks;
    const uint64_t at_once = place.threads < LANES ? 1 : place.threads / LANES;
    const uint32_t parts = phase == 0 ? LANES : 1;

    for (uint64_t from = place.block * at_once; from < units; from += place.blocks * at_once) {
        for (uint64_t i = place.thread; i < at_once * parts; i += place.threads) {
            const uint64_t unit = from + i / parts;
            if (unit < units && phase == 0)
                add_lane(args, unit, chunks, (int)(i % LANES));
            else if (unit < units)
                add_lanes(args, unit);
        }
    }
}

/* A vector without length is added as it is: below the root of the least normal double. */
INLINE double factor_of(double dot, double square)
{
    return square < 0x1p-511 ? 1.0 : 1.0 - dot / square * 0.5;
}

/* At .factors a pair has its two factors, and behind them a.b, a.a and b.b of the whole vectors. */
INLINE void adasum_factors(const struct hvd_adasum_args *args, struct place place, int phase)
{
    const uint64_t chunks = tiles_of(args->count, HVD_ADASUM_CHUNK);

    for (uint64_t pair = place.block; pair < args->pairs; pair += place.blocks) {
        const double *dots = doubles(args->dots, pair * chunks * HVD_ADASUM_DOTS);
        double *factors = doubles(args->factors, pair * HVD_ADASUM_FACTORS);
        for (uint32_t i = place.thread; phase == 0 && i < 3; i += place.threads) {
            double sum = 0;
            for (uint64_t chunk = 0; chunk < chunks; chunk++)
                sum += dots[chunk * HVD_ADASUM_DOTS + i];
            factors[2 + i] = sum;
        }
        for (uint32_t i = place.thread; phase == 1 && i < 2; i += place.threads)
            factors[i] = factor_of(factors[2], factors[3 + i]);
    }
}

INLINE void blend_pair(const struct hvd_adasum_args *args, uint32_t pair, struct share share)
{
    const struct vector a = a_of(args, pair), b = b_of(args, pair);
    const uint32_t into = vector_of(args, 0, args->outs == 0).dtype;
    const struct math math = {HVI_REDUCE_SUM, 0, 1.0, args->outs == 0 ? 1.0 : args->postscale};
    const uint32_t outs = args->outs == 0 ? 1 : args->outs;
    const uint64_t *out = args->outs == 0 ? &args->pair[pair].into : args->out;
    const double *factors = doubles(args->factors, (uint64_t)pair * HVD_ADASUM_FACTORS);
    const double fa = factors[0], fb = factors[1];
    double x[AHEAD] = {0}, y[AHEAD] = {0};

    LOOP for (uint64_t at = share.first; at < args->count; at += AHEAD * share.step)
    {
        load(&a, at, share.step, args->count, x);
        load(&b, at, share.step, args->count, y);
        EACH(x, AHEAD, x[i] * fa + y[i] * fb);
        BY_FLOAT(into, store, (&math, x, out, outs, at, share.step, args->count));
    }
}

INLINE void adasum_blend(const struct hvd_adasum_args *args, struct place place, int phase)
{
    (void)phase;
    for (uint32_t pair = 0; pair < args->pairs; pair++)
        blend_pair(args, pair, of_grid(place));
}

/* ---- a look ---- */

INLINE void look(const struct hvd_look_args *args, struct place place, int phase)
{
    (void)phase;
    if (place.block == 0 && place.thread == 0 && args->to != 0)
        *(uint64_t *)(uintptr_t)args->to = load_word(args->from);
}

/* ---- the kernels ---- */

KERNEL(hvd_reduce, struct hvd_reduce_args, 1, reduce)
KERNEL(hvd_spread, struct hvd_reduce_args, 1, spread)
KERNEL(hvd_pack, struct hvd_pack_args, 1, pack)
KERNEL(hvd_unpack, struct hvd_pack_args, 1, unpack)
KERNEL(hvd_move, struct hvd_move_args, 1, move)
KERNEL(hvd_look, struct hvd_look_args, 1, look)
KERNEL(hvd_adasum_dots, struct hvd_adasum_args, 2, adasum_dots)
KERNEL(hvd_adasum_factors, struct hvd_adasum_args, 2, adasum_factors)
KERNEL(hvd_adasum_blend, struct hvd_adasum_args, 1, adasum_blend)

#ifndef __CUDACC__
const struct hvd_kernel_row hvd_kernel_rows[] = {
    {"hvd_reduce", sizeof(struct hvd_reduce_args), hvd_reduce_host},
    {"hvd_spread", sizeof(struct hvd_reduce_args), hvd_spread_host},
    {"hvd_pack", sizeof(struct hvd_pack_args), hvd_pack_host},
    {"hvd_unpack", sizeof(struct hvd_pack_args), hvd_unpack_host},
    {"hvd_move", sizeof(struct hvd_move_args), hvd_move_host},
    {"hvd_look", sizeof(struct hvd_look_args), hvd_look_host},
    {"hvd_adasum_dots", sizeof(struct hvd_adasum_args), hvd_adasum_dots_host},
    {"hvd_adasum_factors", sizeof(struct hvd_adasum_args), hvd_adasum_factors_host},
    {"hvd_adasum_blend", sizeof(struct hvd_adasum_args), hvd_adasum_blend_host},
    {NULL, 0, NULL},
};
#endif
