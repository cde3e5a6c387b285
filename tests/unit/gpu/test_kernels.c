/* SPDX-License-Identifier: Apache-2.0
 * The host build of the worker's kernels against reduce/, bit by bit: types, ops, scales, averages, grids, alignments, in place.
 * What nvcc makes of the same source only a GPU can tell; of that the last test looks at names alone. */
#include "daemon/gpu/kernels/kernels.h"

#include "base/status.h"
#include "base/types.h"
#include "daemon/gpu/kernels/image.h"
#include "reduce/reduce.h"
#include "tests/fakegpu/hvt_fakegpu.h"
#include "tests/unit/engine/hvt_reference.h"

#include <math.h>

#define VECTORS HVD_KERNEL_PIECES
#define BYTES   (256u << 10) /* of a vector's room */
#define GUARD   64u

/* Rooms for inputs, outputs, and what is expected of them. */
static unsigned char *ins[VECTORS], *outs[VECTORS], *expected[VECTORS];
static const uint32_t all_ops[] = {HVI_REDUCE_AVERAGE, HVI_REDUCE_SUM, HVI_REDUCE_MIN,
                                   HVI_REDUCE_MAX, HVI_REDUCE_PRODUCT};
static const struct {
    uint32_t blocks, threads;
} grids[] = {{1, 1}, {1, 32}, {3, 7}, {16, 128}, {2, 1024}, {5, 33}};
#define GRIDS (sizeof(grids) / sizeof(grids[0]))

static void setup(void)
{
    unsigned char *room = aligned_alloc(64, 3 * VECTORS * (size_t)BYTES);

    ck_assert_ptr_nonnull(room);
    for (uint32_t i = 0; i < VECTORS; i++) {
        ins[i] = room + (size_t)i * BYTES;
        outs[i] = room + (size_t)(VECTORS + i) * BYTES;
        expected[i] = room + (size_t)(2 * VECTORS + i) * BYTES;
    }
}

static void teardown(void)
{
    free(ins[0]);
}

static void run(const char *name, const void *args, uint64_t grid)
{
    for (const struct hvd_kernel_row *row = hvd_kernel_rows; row->name != NULL; row++) {
        if (strcmp(row->name, name) == 0) {
            row->run(args, grids[grid % GRIDS].blocks, grids[grid % GRIDS].threads);
            return;
        }
    }
    ck_abort_msg("no kernel %s", name);
}

/* ---- one reduction by both ---- */

struct reduction {
    const char *kernel;
    uint32_t dtype, op, ins, outs;
    double prescale, postscale;
    uint64_t count, seed;
    bool in_place;
};

/* Vectors begin alike in 16 bytes, or each elsewhere; outputs have guards. */
static void place(const struct reduction *one, uint32_t i, uint64_t *random,
                  struct hvd_reduce_args *args)
{
    const uint32_t size = hvi_dtype_bytes(one->dtype);
    const uint64_t alike = one->seed % 8 * size, own = hvt_random(random) % 8 * size;
    const uint64_t at = GUARD + (one->seed % 3 == 0 ? own : alike);

    if (i < one->ins) {
        args->in[i] = (uintptr_t)(ins[i] + at);
        hvt_reference_fill(one->dtype, ins[i] + at, one->count, random);
    }
    if (i >= one->outs)
        return;
    args->out[i] = (uintptr_t)(outs[i] + GUARD + (one->seed % 3 == 1 ? own : alike));
    if (one->in_place && i < one->ins)
        args->out[i] = args->in[i];
    else
        memset(outs[i], 0xa5, one->count * size + 3 * GUARD);
}

static void expect(const struct reduction *one, const struct hvd_reduce_args *args,
                   const unsigned char *wanted)
{
    const uint32_t size = hvi_dtype_bytes(one->dtype);

    for (uint32_t k = 0; k < one->outs; k++) {
        const unsigned char *out = (const unsigned char *)(uintptr_t)args->out[k];
        for (uint64_t i = 0; i < one->count; i++) {
            if (memcmp(out + i * size, wanted + i * size, size) != 0)
                ck_abort_msg("%s %s %s: %u ins, output %u, element %lu of %lu, prescale %g "
                             "postscale %g, seed %lu",
                             one->kernel, hvi_dtype_text(one->dtype), hvi_reduce_text(one->op),
                             one->ins, k, (unsigned long)i, (unsigned long)one->count,
                             one->prescale, one->postscale, (unsigned long)one->seed);
        }
        if (one->in_place && k < one->ins)
            continue;
        ck_assert_int_eq(out[-1], 0xa5);
        ck_assert_int_eq(out[one->count * size], 0xa5);
    }
}

static void reference(const struct reduction *one, const struct hvd_reduce_args *args)
{
    const void *in[VECTORS];
    void *out[] = {expected[0]};
    const struct hvi_reduction reduction = {.dtype = one->dtype,
                                            .reduce_op = one->op,
                                            .ranks = one->ins,
                                            .ins = one->ins,
                                            .outs = 1,
                                            .in = in,
                                            .out = out,
                                            .prescale = one->prescale,
                                            .postscale = one->postscale};

    for (uint32_t i = 0; i < one->ins; i++)
        in[i] = (const void *)(uintptr_t)args->in[i];
    hvi_kernels_best()->reduce(&reduction, 0, one->count);
}

static void check(const struct reduction *one)
{
    struct hvd_reduce_args args = {.dtype = one->dtype,
                                   .reduce_op = one->op,
                                   .ins = one->ins,
                                   .outs = one->outs,
                                   .prescale = one->prescale,
                                   .postscale = one->postscale,
                                   .count = one->count};
    uint64_t random = one->seed;

    if (hvi_reduction_check(one->dtype, one->op, one->prescale, one->postscale, NULL, 0) != HVI_OK)
        return;
    if (one->op == HVI_REDUCE_AVERAGE)
        args.divisor = one->ins;
    for (uint32_t i = 0; i < one->ins || i < one->outs; i++)
        place(one, i, &random, &args);
    reference(one, &args);
    run(one->kernel, &args, one->seed);
    expect(one, &args, expected[0]);
}

/* ---- reductions ---- */

START_TEST(every_type_and_op_has_the_bits_of_reduce)
{
    static const uint64_t counts[] = {1, 2, 3, 7, 15, 17, 33, 64, 129, 1001};
    struct reduction one = {
        .kernel = "hvd_reduce", .dtype = (uint32_t)_i, .prescale = 1, .postscale = 1};

    for (size_t op = 0; op < sizeof(all_ops) / sizeof(all_ops[0]); op++) {
        for (uint32_t n = 1; n <= 9; n++) {
            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
                one.op = all_ops[op];
                one.ins = n;
                one.outs = n + (uint32_t)c % 3 - (n > 1 && c % 3 == 2 ? 3 : 0);
                one.count = counts[c];
                one.seed = n * 100 + c * 7 + op;
                one.in_place = (n + c) % 2 == 0;
                check(&one);
            }
        }
    }
}
END_TEST

START_TEST(scales_have_the_bits_of_reduce)
{
    static const double scales[] = {1.0,  0.5,  -1.0, 1.0 / 3,  1e30, 1e-30,
                                    -0.0, 1e-8, 255,  INFINITY, NAN};
    const size_t count = sizeof(scales) / sizeof(scales[0]);
    struct reduction one = {.kernel = "hvd_reduce", .dtype = (uint32_t)_i, .count = 301};

    for (size_t s = 0; s < count * count * 5; s += 3) {
        one.prescale = scales[s % count];
        one.postscale = scales[s / count % count];
        one.op = all_ops[s / count / count];
        one.ins = 1 + (uint32_t)s % 5;
        one.outs = 1 + (uint32_t)s % 4;
        one.seed = s;
        one.in_place = s % 4 == 0;
        check(&one);
    }
}
END_TEST

START_TEST(sixty_four_inputs_have_sixty_four_outputs)
{
    for (uint32_t dtype = 0; dtype < HVI_DTYPE_COUNT; dtype++) {
        for (size_t op = 0; op < sizeof(all_ops) / sizeof(all_ops[0]); op++)
            check(&(struct reduction){.kernel = "hvd_reduce",
                                      .dtype = dtype,
                                      .op = all_ops[op],
                                      .ins = VECTORS,
                                      .outs = VECTORS,
                                      .prescale = 1,
                                      .postscale = 1,
                                      .count = 333,
                                      .seed = 5 + op,
                                      .in_place = op % 2 == 0});
    }
}
END_TEST

/* Every pattern of 16 bits, which are all pairs of float8 too; what is multiplied is rounded in every way. */
START_TEST(all_patterns_of_the_short_types_have_the_bits_of_reduce)
{
    const uint32_t dtype = (uint32_t)_i, size = hvi_dtype_bytes(dtype);
    const void *in[] = {ins[0], ins[1]};
    void *out[] = {expected[0]};
    struct hvd_reduce_args args = {.dtype = dtype, .ins = 2, .outs = 1, .postscale = 1};

    if (size > 2)
        return;
    for (uint32_t i = 0; i < 65536; i++) {
        const uint16_t pattern = (uint16_t)i, other = (uint16_t)(i * 40503u);
        memcpy(ins[0] + i * size, &pattern, size);
        memcpy(ins[1] + i * size, size == 1 ? (const uint8_t *)&pattern + 1 : (void *)&other, size);
    }
    args.in[0] = (uintptr_t)ins[0], args.in[1] = (uintptr_t)ins[1];
    args.out[0] = (uintptr_t)outs[0];
    args.count = 65536;
    for (size_t op = 1; op < sizeof(all_ops) / sizeof(all_ops[0]); op++) {
        args.reduce_op = all_ops[op];
        args.prescale = dtype != HVI_DTYPE_BOOL && op % 2 == 0 ? 1.1 : 1;
        if (hvi_reduction_check(dtype, args.reduce_op, args.prescale, 1, NULL, 0) != HVI_OK)
            continue;
        hvi_kernels_best()->reduce(&(struct hvi_reduction){.dtype = dtype,
                                                           .reduce_op = args.reduce_op,
                                                           .ranks = 2,
                                                           .ins = 2,
                                                           .outs = 1,
                                                           .in = in,
                                                           .out = out,
                                                           .prescale = args.prescale,
                                                           .postscale = 1},
                                   0, 65536);
        run("hvd_reduce", &args, op);
        ck_assert_msg(memcmp(outs[0], expected[0], 65536 * size) == 0, "%s %s",
                      hvi_dtype_text(dtype), hvi_reduce_text(args.reduce_op));
    }
}
END_TEST

/* ---- spread ---- */

START_TEST(a_scaled_spread_has_the_bits_of_reduce)
{
    struct reduction one = {.kernel = "hvd_spread", .dtype = (uint32_t)_i, .ins = 1};

    for (uint64_t s = 0; s < 60; s++) {
        one.op = s % 3 == 0 ? HVI_REDUCE_AVERAGE : HVI_REDUCE_SUM;
        one.outs = 1 + (uint32_t)s % 7;
        one.prescale = s % 2 == 0 ? 1.5 : 1;
        one.postscale = s % 2 == 1 ? 1.0 / 3 : 1;
        one.count = 1 + s * s;
        one.seed = s;
        one.in_place = s % 4 == 0;
        check(&one);
    }
}
END_TEST

/* Payloads of NaN and all bytes of bool among them. */
START_TEST(a_spread_that_changes_nothing_copies_bytes)
{
    const uint32_t dtype = (uint32_t)_i, size = hvi_dtype_bytes(dtype);

    for (uint64_t s = 0; s < 60; s++) {
        struct hvd_reduce_args args = {
            .dtype = dtype, .ins = 1, .outs = 5, .prescale = 1, .postscale = 1, .count = s * 19};
        uint64_t random = s;
        args.in[0] = (uintptr_t)(ins[0] + s % 5 * size);
        for (uint64_t i = 0; i < args.count * size; i++)
            ((unsigned char *)(uintptr_t)args.in[0])[i] = (unsigned char)hvt_random(&random);
        for (uint32_t k = 0; k < 5; k++) {
            memset(outs[k], 0xa5, args.count * size + 2 * GUARD);
            args.out[k] = (uintptr_t)(outs[k] + s % (k + 2) * size);
        }
        run("hvd_spread", &args, s);
        for (uint32_t k = 0; k < 5; k++) {
            const unsigned char *out = (const unsigned char *)(uintptr_t)args.out[k];
            ck_assert(memcmp(out, (const void *)(uintptr_t)args.in[0], args.count * size) == 0);
            ck_assert_int_eq(out[args.count * size], 0xa5);
        }
    }
}
END_TEST

/* ---- pieces ---- */

/* Elements of the pieces: none, few, more than a tile of 64 KiB. */
static const uint64_t piece_counts[] = {3, 0, 1, 16, 70001, 12, 4097, 33, 8, 255};
#define PIECES (sizeof(piece_counts) / sizeof(piece_counts[0]))

static struct hvd_pack_args pack_of(uint32_t dtype, bool scaled, uint64_t *bytes_p)
{
    const uint32_t size = hvi_dtype_bytes(dtype);
    struct hvd_pack_args args = {.dtype = dtype, .pieces = PIECES, .prescale = 1, .postscale = 1};
    uint64_t at = 0;

    for (uint32_t p = 0; p < PIECES; p++) {
        const uint64_t count = piece_counts[p] * 4 / size + (size > 4 ? 1 : 0);
        args.piece[p].piece = (uintptr_t)(ins[3 * p] + p % 5 * size); /* in rooms of three */
        args.piece[p].count = count > 100000 ? 100000 : count;
        args.piece[p].at = at;
        at += (args.piece[p].count * size + 15) & ~UINT64_C(15);
    }
    if (scaled && dtype != HVI_DTYPE_BOOL) {
        args.divisor = 3;
        args.prescale = 1.25;
        args.postscale = -0.75;
    }
    *bytes_p = at;
    return args;
}

/* What a scaled piece must be; the kernels are given it as one input of a reduction, which was compared above. */
static void scale(const struct hvd_pack_args *pack, const void *from, void *to, uint64_t count)
{
    struct hvd_reduce_args args = {.dtype = pack->dtype,
                                   .reduce_op = HVI_REDUCE_SUM,
                                   .ins = 1,
                                   .outs = 1,
                                   .divisor = pack->divisor,
                                   .prescale = pack->prescale,
                                   .postscale = pack->postscale,
                                   .count = count};

    args.in[0] = (uintptr_t)from;
    args.out[0] = (uintptr_t)to;
    if (pack->divisor == 0)
        memcpy(to, from, count * hvi_dtype_bytes(pack->dtype));
    else
        run("hvd_reduce", &args, 1);
}

static void check_pack(uint32_t dtype, bool scaled, uint64_t grid)
{
    const uint32_t size = hvi_dtype_bytes(dtype);
    uint64_t random = dtype, bytes;
    struct hvd_pack_args args = pack_of(dtype, scaled, &bytes);
    unsigned char *packed = outs[0], *want = expected[0]; /* several rooms long */

    args.base = (uintptr_t)packed;
    memset(packed, 0xa5, bytes + GUARD);
    memset(want, 0xa5, bytes + GUARD);
    for (uint32_t p = 0; p < PIECES; p++) {
        void *piece = (void *)(uintptr_t)args.piece[p].piece;
        hvt_reference_fill(dtype, piece, args.piece[p].count, &random);
        scale(&args, piece, want + args.piece[p].at, args.piece[p].count);
    }
    run("hvd_pack", &args, grid);
    ck_assert_msg(memcmp(packed, want, bytes + GUARD) == 0, "pack %s", hvi_dtype_text(dtype));
    run("hvd_unpack", &args, grid);
    for (uint32_t p = 0; p < PIECES; p++) {
        scale(&args, packed + args.piece[p].at, want, args.piece[p].count);
        ck_assert_msg(
            memcmp((void *)(uintptr_t)args.piece[p].piece, want, args.piece[p].count * size) == 0,
            "unpack %s, piece %u", hvi_dtype_text(dtype), p);
    }
}

START_TEST(pieces_are_packed_and_unpacked_scaled_or_as_they_are)
{
    for (uint64_t grid = 0; grid < GRIDS; grid += 2)
        check_pack((uint32_t)_i, grid % 4 == 0, grid + 1);
    check_pack((uint32_t)_i, true, 3);
}
END_TEST

START_TEST(pieces_of_bytes_move_from_anywhere_to_anywhere)
{
    uint64_t random = 3;

    for (uint64_t grid = 0; grid < GRIDS; grid++) {
        struct hvd_move_args args = {.pieces = HVD_KERNEL_MOVES};
        uint64_t at = 0;
        for (uint64_t i = 0; i < 8 * BYTES; i++)
            ins[0][i] = (unsigned char)hvt_random(&random);
        memset(outs[0], 0xa5, 8 * BYTES);
        memset(expected[0], 0xa5, 8 * BYTES);
        for (uint32_t p = 0; p < HVD_KERNEL_MOVES; p++) {
            const uint64_t from = hvt_random(&random) % BYTES;
            args.piece[p].bytes = p == 5 ? 200003 : hvt_random(&random) % 300 * (p % 7);
            at += hvt_random(&random) % 20;
            args.piece[p].from = (uintptr_t)(ins[0] + (p % 3 == 0 ? at : from));
            args.piece[p].to = (uintptr_t)(outs[0] + at);
            memcpy(expected[0] + at, (void *)(uintptr_t)args.piece[p].from, args.piece[p].bytes);
            at += args.piece[p].bytes;
        }
        ck_assert_uint_lt(at, 8 * BYTES);
        run("hvd_move", &args, grid);
        ck_assert(memcmp(outs[0], expected[0], 8 * BYTES) == 0);
    }
}
END_TEST

/* Of a cancelled batch: all that writes outputs. 0: the word is below the turn; 1: at it; 2: poison. */
START_TEST(a_kernel_whose_batch_is_cancelled_writes_nothing)
{
    const uint64_t words[] = {6, 7, INT64_MAX};
    const struct hvd_kernel_guard guard = {(uintptr_t)&words[_i], 7};
    const struct hvd_reduce_args reduce = {.guard = guard,
                                           .dtype = HVI_DTYPE_UINT8,
                                           .reduce_op = HVI_REDUCE_SUM,
                                           .ins = 1,
                                           .outs = 1,
                                           .prescale = 1,
                                           .postscale = 1,
                                           .count = BYTES,
                                           .in = {(uintptr_t)ins[0]},
                                           .out = {(uintptr_t)outs[0]}};
    const struct hvd_pack_args unpack = {.guard = guard,
                                         .dtype = HVI_DTYPE_UINT8,
                                         .pieces = 1,
                                         .prescale = 1,
                                         .postscale = 1,
                                         .base = (uintptr_t)ins[0],
                                         .piece = {{(uintptr_t)outs[1], 0, BYTES}}};
    const struct hvd_move_args move = {
        .guard = guard, .pieces = 1, .piece = {{(uintptr_t)outs[2], (uintptr_t)ins[0], BYTES}}};

    memset(ins[0], 1, BYTES);
    memset(ins[1], 0, BYTES);
    for (uint32_t grid = 0; grid < GRIDS; grid++) {
        memset(outs[0], 0, 3 * BYTES);
        run("hvd_reduce", &reduce, grid);
        run("hvd_unpack", &unpack, grid);
        run("hvd_move", &move, grid);
        for (int i = 0; i < 3; i++)
            ck_assert(memcmp(outs[i], _i == 0 ? ins[0] : ins[1], BYTES) == 0);
        uint64_t seen = 0;
        const struct hvd_look_args look = {.from = guard.skip, .to = (uintptr_t)&seen};
        run("hvd_look", &look, grid);
        ck_assert_uint_eq(seen, words[_i]);
        memset(outs[0], 0, BYTES);
        run("hvd_spread", &reduce, grid);
        ck_assert_uint_eq(outs[0][0], _i == 0);
    }
}
END_TEST

START_TEST(nothing_to_do_writes_nothing)
{
    const struct hvd_reduce_args reduce = {
        .ins = 1, .outs = 1, .prescale = 2, .postscale = 1, .in = {(uintptr_t)ins[0]}, .out = {8}};
    const struct hvd_pack_args pack = {.prescale = 1, .postscale = 1};
    const struct hvd_move_args move = {.pieces = 0};
    const struct hvd_adasum_args adasum = {.dtype = HVI_DTYPE_FLOAT32};

    run("hvd_reduce", &reduce, 3);
    run("hvd_spread", &reduce, 3);
    run("hvd_pack", &pack, 3);
    run("hvd_unpack", &pack, 3);
    run("hvd_move", &move, 3);
    run("hvd_adasum_dots", &adasum, 3);
    run("hvd_adasum_factors", &adasum, 3);
    run("hvd_adasum_blend", &adasum, 3);
}
END_TEST

/* ---- adasum ---- */

#define ADASUM_COUNT (HVD_ADASUM_CHUNK + 1237)

/* A vector of a tree: as reduce/ keeps it, in the dtype or as a stage wrote it, and as the kernels do. */
struct vector {
    bool is_stage;
    unsigned char *ours, *kernels;
};

struct tree {
    uint32_t dtype, wide;
    double prescale, postscale;
    struct vector vector[8];
    uint32_t vectors;
};

static void load(const struct tree *tree, const struct vector *vector, uint64_t at, uint32_t n,
                 double *out_p)
{
    hvi_kernels_best()->load(vector->is_stage ? tree->wide : tree->dtype,
                             vector->is_stage ? 1.0 : tree->prescale, vector->ours, at, n, out_p);
}

static uint32_t block_at(uint64_t at)
{
    return ADASUM_COUNT - at < HVI_ADASUM_BLOCK ? (uint32_t)(ADASUM_COUNT - at) : HVI_ADASUM_BLOCK;
}

/* As daemon/engine/exec/host_adasum.c. */
static void dots(const struct tree *tree, const struct vector *a, const struct vector *b,
                 double sums_p[3])
{
    double x[HVI_ADASUM_BLOCK], y[HVI_ADASUM_BLOCK];

    for (uint64_t first = 0; first < ADASUM_COUNT; first += HVD_ADASUM_CHUNK) {
        double lanes[3][8] = {{0}};
        for (uint64_t at = first; at < first + HVD_ADASUM_CHUNK && at < ADASUM_COUNT;
             at += HVI_ADASUM_BLOCK) {
            load(tree, a, at, block_at(at), x);
            load(tree, b, at, block_at(at), y);
            hvi_kernels_best()->dots(x, y, block_at(at), lanes);
        }
        for (int i = 0; i < 3; i++) {
            double sum = 0;
            for (int lane = 0; lane < 8; lane++)
                sum += lanes[i][lane];
            sums_p[i] += sum;
        }
    }
}

static double factor(double dot, double square)
{
    return square < sqrt(2.2250738585072014e-308) ? 1.0 : 1.0 - dot / square * 0.5;
}

/* Where `to` is, a or b may be: a stage wrote it. */
static void blend(const struct tree *tree, const struct vector *a, const struct vector *b,
                  bool last, unsigned char *to)
{
    double sums[3] = {0, 0, 0}, x[HVI_ADASUM_BLOCK], y[HVI_ADASUM_BLOCK];

    dots(tree, a, b, sums);
    for (uint64_t at = 0; at < ADASUM_COUNT; at += HVI_ADASUM_BLOCK) {
        const uint32_t n = block_at(at);
        load(tree, a, at, n, x);
        load(tree, b, at, n, y);
        hvi_kernels_best()->blend(x, factor(sums[0], sums[1]), y, factor(sums[0], sums[2]), n);
        hvi_kernels_best()->store(last ? tree->dtype : tree->wide, last ? tree->postscale : 1.0, x,
                                  n, to, at);
    }
}

static void run_stage(const struct tree *tree, struct hvd_adasum_args *args, uint64_t grid)
{
    static double sums[4 * 2 * HVD_ADASUM_DOTS], factors[4 * HVD_ADASUM_FACTORS];

    args->dtype = tree->dtype;
    args->prescale = tree->prescale;
    args->postscale = tree->postscale;
    args->count = ADASUM_COUNT;
    args->dots = (uintptr_t)sums;
    args->factors = (uintptr_t)factors;
    for (uint32_t i = 0; i < args->pairs; i++) {
        const struct vector *a = &tree->vector[2 * i], *b = &tree->vector[2 * i + 1];
        args->pair[i].a = (uintptr_t)a->kernels;
        args->pair[i].b = (uintptr_t)b->kernels;
        args->a_is_stage |= (uint32_t)a->is_stage << i;
        args->b_is_stage |= (uint32_t)b->is_stage << i;
    }
    run("hvd_adasum_dots", args, grid);
    run("hvd_adasum_factors", args, grid);
    run("hvd_adasum_blend", args, grid);
}

/* One stage: its first `pairs` pairs become one vector each. */
static void next_stage(struct tree *tree, uint32_t pairs, uint64_t grid)
{
    struct hvd_adasum_args args = {.pairs = pairs};
    struct vector into[4];

    for (uint32_t i = 0; i < pairs; i++) {
        const struct vector *a = &tree->vector[2 * i], *b = &tree->vector[2 * i + 1];
        into[i] = a->is_stage   ? *a
                  : b->is_stage ? *b
                                : (struct vector){true, expected[8 + 4 * i], outs[8 + 4 * i]};
        args.pair[i].into = (uintptr_t)into[i].kernels;
        blend(tree, a, b, false, into[i].ours);
    }
    run_stage(tree, &args, grid);
    for (uint32_t i = pairs; i < tree->vectors - pairs; i++)
        into[i] = tree->vector[i + pairs];
    tree->vectors -= pairs;
    memcpy(tree->vector, into, tree->vectors * sizeof(into[0]));
}

static void last_stage(struct tree *tree, uint64_t grid)
{
    struct hvd_adasum_args args = {.pairs = 1, .outs = 2};
    const size_t bytes = ADASUM_COUNT * (size_t)hvi_dtype_bytes(tree->dtype);
    unsigned char *want = expected[40];

    args.out[0] = (uintptr_t)tree->vector[0].kernels; /* in place, but for float64 wide enough */
    args.out[1] = (uintptr_t)outs[40];
    if (tree->vector[0].is_stage && tree->wide != tree->dtype)
        args.out[0] = (uintptr_t)outs[44];
    blend(tree, &tree->vector[0], &tree->vector[1], true, want);
    run_stage(tree, &args, grid);
    for (int k = 0; k < 2; k++)
        ck_assert_msg(memcmp((void *)(uintptr_t)args.out[k], want, bytes) == 0, "%s, output %d",
                      hvi_dtype_text(tree->dtype), k);
}

/* Small numbers, which come again after 997. */
static void fill(const struct tree *tree, unsigned char *data, uint64_t seed)
{
    const uint32_t size = hvi_dtype_bytes(tree->dtype);
    uint64_t random = seed;

    for (uint64_t i = 0; i < 997; i++)
        hvt_reference_put(tree->dtype, data, i,
                          (double)(int64_t)hvt_random(&random) / 9223372036854775808.0);
    for (uint64_t i = 997 * size; i < ADASUM_COUNT * (uint64_t)size; i++)
        data[i] = data[i - 997 * size];
}

/* Five have a fold, a stage whose pairs differ, and a last stage. */
static void check_adasum(uint32_t dtype, uint64_t grid)
{
    struct tree tree = {.dtype = dtype,
                        .wide = dtype == HVI_DTYPE_FLOAT64 ? dtype : HVI_DTYPE_FLOAT32,
                        .prescale = 1.0 / 3,
                        .postscale = 1.7,
                        .vectors = 5};

    for (uint32_t i = 0; i < tree.vectors; i++) {
        tree.vector[i] = (struct vector){false, ins[32 + 4 * i], ins[4 * i]}; /* rooms of four */
        fill(&tree, tree.vector[i].ours, dtype * 10 + i);
        memcpy(tree.vector[i].kernels, tree.vector[i].ours, ADASUM_COUNT * hvi_dtype_bytes(dtype));
    }
    for (uint32_t power = 4; power > 1; power /= 2) {
        if (tree.vectors > power)
            next_stage(&tree, tree.vectors - power, grid);
    }
    last_stage(&tree, grid);
}

START_TEST(adasum_has_the_bits_of_the_engine)
{
    const uint32_t dtype = (uint32_t)_i;

    if (hvi_reduction_check(dtype, HVI_REDUCE_ADASUM, 1, 1, NULL, 0) != HVI_OK)
        return;
    check_adasum(dtype, dtype);
}
END_TEST

/* Nothing, or numbers whose squares are too small to divide by. */
START_TEST(adasum_adds_a_vector_without_length_as_it_is)
{
    struct tree tree = {.dtype = HVI_DTYPE_FLOAT64,
                        .wide = HVI_DTYPE_FLOAT64,
                        .prescale = 1,
                        .postscale = 1,
                        .vectors = 2};
    double *small = (double *)(void *)ins[32];

    for (uint32_t i = 0; i < 2; i++) {
        tree.vector[i] = (struct vector){false, ins[32 + 4 * i], ins[4 * i]};
        fill(&tree, tree.vector[i].ours, i);
    }
    for (uint64_t i = 0; i < ADASUM_COUNT; i++)
        small[i] = _i == 0 ? 0 : small[i] * 1e-81;
    for (uint32_t i = 0; i < 2; i++)
        memcpy(tree.vector[i].kernels, tree.vector[i].ours, ADASUM_COUNT * sizeof(double));
    last_stage(&tree, 1);
    ck_assert(_i == 1 || memcmp(outs[40], ins[36], ADASUM_COUNT * sizeof(double)) == 0);
}
END_TEST

/* ---- the driver, and the image ---- */

START_TEST(the_fake_driver_launches_them)
{
    hvi_cu_library library;
    hvi_cu_kernel kernel;
    struct hvd_reduce_args args = {.dtype = HVI_DTYPE_FLOAT32,
                                   .reduce_op = HVI_REDUCE_SUM,
                                   .ins = 2,
                                   .outs = 2,
                                   .prescale = 1,
                                   .postscale = 1,
                                   .count = 1000};

    hvt_cu_begin("", "", 0);
    HVT_CU(hvt_cu.library_load(&library, "an image", NULL, NULL, 0, NULL, NULL, 0));
    for (const struct hvd_kernel_row *row = hvd_kernel_rows; row->name != NULL; row++)
        HVT_CU(hvt_cu.library_kernel(&kernel, library, row->name));
    HVT_CU(hvt_cu.library_kernel(&kernel, library, "hvd_reduce"));
    for (uint32_t k = 0; k < 2; k++) {
        args.in[k] = args.out[k] = hvt_cu_alloc(4000);
        for (uint64_t i = 0; i < 1000; i++)
            ((float *)(uintptr_t)args.in[k])[i] = (float)(i + k);
    }
    HVT_CU(hvt_cu.launch(kernel, 4, 1, 1, 128, 1, 1, 0, NULL, (void *[]){&args}, NULL));
    HVT_CU(hvt_cu.stream_synchronize(NULL));
    for (uint64_t i = 0; i < 1000; i++) {
        ck_assert_float_eq(((float *)(uintptr_t)args.out[0])[i], (float)(2 * i + 1));
        ck_assert_float_eq(((float *)(uintptr_t)args.out[1])[i], (float)(2 * i + 1));
    }
}
END_TEST

/* As nvcc lays a fatbin out: a head of 16 bytes, then for each PTX (1) and each cubin (2) one of its own, with its length and
 * that of what follows it, and the architecture. */
static bool has_code(uint16_t kind, uint32_t arch)
{
    struct {
        uint16_t kind, version;
        uint32_t head;
        uint64_t body;
        uint32_t other[3], arch;
    } entry;

    for (size_t at = 16; at + sizeof(entry) <= gpu_kernels_image_bytes;
         at += entry.head + entry.body) {
        memcpy(&entry, gpu_kernels_image + at, sizeof(entry));
        ck_assert_uint_gt(entry.head, 0);
        if (entry.kind == kind && entry.arch == arch)
            return true;
    }
    return false;
}

START_TEST(the_image_has_code_of_each_gpu_that_nvcc_knows_and_ptx)
{
    static const uint32_t archs[] = {80, 90, 100};

    if (hvt_skip_if(gpu_kernels_image_bytes == 0, "built without nvcc, or with a sanitizer"))
        return;
    ck_assert(has_code(1, 80));
    ck_assert(has_code(2, 80));
    for (size_t i = 0; i < sizeof(archs) / sizeof(*archs); i++) {
        char name[16];
        snprintf(name, sizeof(name), " sm_%u ", archs[i]);
        ck_assert_msg(has_code(2, archs[i]) == (strstr(HVT_NVCC_KNOWS, name) != NULL), "%s", name);
    }
}
END_TEST

/* The names of entries are text, in PTX and in cubins, as the image is not compressed. */
START_TEST(the_image_has_every_kernel)
{
    static const unsigned char magic[] = {0x50, 0xed, 0x55, 0xba};

    if (hvt_skip_if(gpu_kernels_image_bytes == 0, "built without nvcc, or with a sanitizer"))
        return;
    ck_assert(memcmp(gpu_kernels_image, magic, sizeof(magic)) == 0);
    for (const struct hvd_kernel_row *row = hvd_kernel_rows; row->name != NULL; row++) {
        char entry[80], text[80];
        snprintf(entry, sizeof(entry), ".entry %s(", row->name);
        snprintf(text, sizeof(text), ".text.%s", row->name);
        ck_assert_msg(
            memmem(gpu_kernels_image, gpu_kernels_image_bytes, entry, strlen(entry)) &&
                memmem(gpu_kernels_image, gpu_kernels_image_bytes, text, strlen(text) + 1),
            "%s", row->name);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu kernels");
    TCase *tcase = tcase_create("kernels");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, every_type_and_op_has_the_bits_of_reduce, 0, HVI_DTYPE_COUNT);
    tcase_add_loop_test(tcase, scales_have_the_bits_of_reduce, 0, HVI_DTYPE_COUNT);
    tcase_add_test(tcase, sixty_four_inputs_have_sixty_four_outputs);
    tcase_add_loop_test(tcase, all_patterns_of_the_short_types_have_the_bits_of_reduce, 0,
                        HVI_DTYPE_COUNT);
    tcase_add_loop_test(tcase, a_scaled_spread_has_the_bits_of_reduce, 0, HVI_DTYPE_COUNT);
    tcase_add_loop_test(tcase, a_spread_that_changes_nothing_copies_bytes, 0, HVI_DTYPE_COUNT);
    tcase_add_loop_test(tcase, pieces_are_packed_and_unpacked_scaled_or_as_they_are, 0,
                        HVI_DTYPE_COUNT);
    tcase_add_test(tcase, pieces_of_bytes_move_from_anywhere_to_anywhere);
    tcase_add_loop_test(tcase, a_kernel_whose_batch_is_cancelled_writes_nothing, 0, 3);
    tcase_add_test(tcase, nothing_to_do_writes_nothing);
    tcase_add_loop_test(tcase, adasum_has_the_bits_of_the_engine, 0, HVI_DTYPE_COUNT);
    tcase_add_loop_test(tcase, adasum_adds_a_vector_without_length_as_it_is, 0, 2);
    tcase_add_test(tcase, the_fake_driver_launches_them);
    tcase_add_test(tcase, the_image_has_every_kernel);
    tcase_add_test(tcase, the_image_has_code_of_each_gpu_that_nvcc_knows_and_ptx);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
