/* SPDX-License-Identifier: Apache-2.0
 * The kernels against a reference written with other means, bit by bit, in all instruction sets
 * that this processor has; the reference stands for "the sets agree" too. */
#include "reduce/reduce.h"

#include "base/pages.h"
#include "base/status.h"
#include "base/types.h"
#include "reduce/guarded.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/hvt_main.h"

#include <math.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RANKS 8u
#define COUNT 4500u /* two blocks and a bit */
#define GUARD 64u

static unsigned char *inputs[RANKS], *outputs[RANKS];
static const uint32_t all_ops[] = {HVI_REDUCE_AVERAGE, HVI_REDUCE_SUM, HVI_REDUCE_MIN,
                                   HVI_REDUCE_MAX, HVI_REDUCE_PRODUCT};
static const uint64_t counts[] = {1, 2, 3, 7, 8, 15, 17, 64, 100, 2047, 2048, 2049, COUNT - 9};

static void setup(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        inputs[rank] = aligned_alloc(64, COUNT * 8 + 2 * GUARD + 64 - (COUNT * 8) % 64);
        outputs[rank] = aligned_alloc(64, COUNT * 8 + 2 * GUARD + 64 - (COUNT * 8) % 64);
        ck_assert(inputs[rank] && outputs[rank]);
    }
}

static void teardown(void)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        free(inputs[rank]);
        free(outputs[rank]);
    }
}

static struct hvi_reduction reduce_of(uint32_t dtype, uint32_t reduce_op, uint32_t ranks,
                                      double prescale, double postscale)
{
    return (struct hvi_reduction){.dtype = dtype,
                                  .reduce_op = reduce_op,
                                  .ranks = ranks,
                                  .prescale = prescale,
                                  .postscale = postscale};
}

struct run {
    struct hvi_reduction reduce;
    const void *in[RANKS];
    void *out[RANKS];
    uint64_t first, count;
    bool in_place;
};

/* Operands start at different places of a cache line. */
static void prepare(struct run *run, uint64_t *random)
{
    uint32_t size = hvi_dtype_bytes(run->reduce.dtype);

    run->reduce.in = run->in;
    run->reduce.out = run->out;
    run->reduce.ins = run->reduce.outs = run->reduce.ranks;
    for (uint32_t rank = 0; rank < run->reduce.ranks; rank++) {
        unsigned char *in = inputs[rank] + hvt_random(random) % 5 * size;
        hvt_reference_fill(run->reduce.dtype, in, run->first + run->count, random);
        run->in[rank] = in;
        run->out[rank] =
            run->in_place ? (void *)in : outputs[rank] + GUARD + hvt_random(random) % 3 * size;
        if (!run->in_place)
            memset(outputs[rank], 0xa5, COUNT * 8 + 2 * GUARD);
    }
}

static void expect(const struct run *run, const unsigned char *expected, const char *set)
{
    uint32_t size = hvi_dtype_bytes(run->reduce.dtype);

    for (uint32_t rank = 0; rank < run->reduce.ranks; rank++) {
        const unsigned char *out = run->out[rank];
        for (uint64_t i = 0; i < run->count; i++) {
            if (memcmp(out + (run->first + i) * size, expected + i * size, size) != 0)
                ck_abort_msg("%s %s %s: %u ranks, rank %u, element %lu of %lu+%lu, prescale %g "
                             "postscale %g",
                             set, hvi_dtype_text(run->reduce.dtype),
                             hvi_reduce_text(run->reduce.reduce_op), run->reduce.ranks, rank,
                             (unsigned long)i, (unsigned long)run->first, (unsigned long)run->count,
                             run->reduce.prescale, run->reduce.postscale);
        }
        if (run->in_place)
            continue;
        ck_assert_int_eq(out[(run->first + run->count) * size], 0xa5);
        ck_assert_int_eq(out[(int64_t)(run->first * size) - 1], 0xa5);
    }
}

/* Every set on the same input. */
static void check(struct run *run, uint64_t seed)
{
    static unsigned char expected[COUNT * 8];
    uint32_t size = hvi_dtype_bytes(run->reduce.dtype);

    for (unsigned set = 0; set < HVI_KERNEL_SETS; set++) {
        const struct hvi_kernels *kernels = hvi_kernels_at(set);
        uint64_t random = seed;
        if (!kernels)
            continue;
        prepare(run, &random);
        for (uint64_t i = 0; set == 0 && i < run->count; i++)
            hvt_reference_element(&run->reduce, run->first + i, expected + i * size);
        kernels->reduce(&run->reduce, run->first, run->count);
        expect(run, expected, kernels->name);
    }
}

START_TEST(every_type_and_op_gives_the_reference_bits)
{
    uint32_t dtype = (uint32_t)_i;

    for (size_t op = 0; op < sizeof all_ops / sizeof all_ops[0]; op++) {
        if (hvi_reduction_check(dtype, all_ops[op], 1.0, 1.0, NULL, 0) != HVI_OK)
            continue;
        for (uint32_t ranks = 1; ranks <= RANKS; ranks++) {
            for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
                struct run run = {.first = c % 3, .count = counts[c], .in_place = c % 2 == 0};
                run.reduce = reduce_of(dtype, all_ops[op], ranks, 1, 1);
                check(&run, ranks * 100 + c);
            }
        }
    }
}
END_TEST

START_TEST(scales_give_the_reference_bits)
{
    static const double scales[] = {0.5, -1.0, 1.0 / 3, 1e30, 1e-30, 0.0, INFINITY, NAN, 255.0};
    uint32_t dtype = (uint32_t)_i;

    for (size_t s = 0; s < 2 * sizeof scales / sizeof scales[0]; s++) {
        double scale = scales[s / 2];
        uint32_t op = all_ops[s % 5];
        struct run run = {.count = 333, .in_place = s % 3 == 0};
        run.reduce =
            reduce_of(dtype, op, 1 + (uint32_t)s % 5, s % 2 ? scale : 1, s % 2 ? 1 : scale);
        if (hvi_reduction_check(dtype, op, run.reduce.prescale, run.reduce.postscale, NULL, 0) ==
            HVI_OK)
            check(&run, s);
    }
}
END_TEST

/* The reference above runs on the same machine as the kernels. Here the results of everything have
 * a hash (FNV-1a), which was the same on x86-64 and aarch64. */
START_TEST(all_machines_give_the_same_bits)
{
    uint64_t hash = 0xcbf29ce484222325u;
    uint64_t random = 11;

    for (uint32_t i = 0; i < HVI_DTYPE_COUNT * 10; i++) {
        uint32_t dtype = i / 10, op = all_ops[i % 5];
        double scale = i / 5 % 2 ? 1.0 / 3 : 1;
        struct run run = {.count = COUNT - 10};
        if (hvi_reduction_check(dtype, op, scale, scale, NULL, 0) != HVI_OK)
            continue;
        run.reduce = reduce_of(dtype, op, 3, scale, scale);
        prepare(&run, &random);
        hvi_kernels_best()->reduce(&run.reduce, 0, run.count);
        const unsigned char *out = run.out[0];
        for (uint64_t at = 0; at < run.count * hvi_dtype_bytes(dtype); at++)
            hash = (hash ^ out[at]) * 0x100000001b3u;
    }
    ck_assert_msg(hash == 0xfe3ede1012f71bd3u, "the hash is %016llx", (unsigned long long)hash);
}
END_TEST

START_TEST(chunks_give_the_bits_of_the_whole)
{
    struct run run = {.count = COUNT - 10};
    uint64_t random = 7;
    static unsigned char whole[COUNT * 4];

    run.reduce = reduce_of(HVI_DTYPE_FLOAT32, HVI_REDUCE_SUM, 5, 1, 1);
    prepare(&run, &random);
    const struct hvi_kernels *kernels = hvi_kernels_best();
    kernels->reduce(&run.reduce, 0, run.count);
    memcpy(whole, run.out[3], run.count * 4);
    memset(run.out[3], 0, run.count * 4);
    for (uint64_t at = 0; at < run.count; at += 97)
        kernels->reduce(&run.reduce, at, run.count - at < 97 ? run.count - at : 97);
    ck_assert_mem_eq(run.out[3], whole, run.count * 4);
}
END_TEST

START_TEST(an_integer_average_truncates_toward_zero)
{
    int32_t a[] = {-7, 7, INT32_MAX, INT32_MIN}, b[] = {0, 0, 1, -1};
    const void *in[] = {a, b};
    void *out[] = {a, b};
    struct hvi_reduction reduce = reduce_of(HVI_DTYPE_INT32, HVI_REDUCE_AVERAGE, 2, 1, 1);

    reduce.in = in, reduce.out = out;
    reduce.ins = reduce.outs = 2;

    hvi_kernels_best()->reduce(&reduce, 0, 4);
    ck_assert_int_eq(a[0], -3);
    ck_assert_int_eq(a[1], 3);
    ck_assert_int_eq(a[2], INT32_MIN / 2); /* the sum wraps */
    ck_assert_int_eq(b[3], INT32_MAX / 2);
}
END_TEST

START_TEST(every_float16_widens_exactly_in_every_set)
{
    static uint16_t halves[65536];
    static float wide[65536];

    for (uint32_t i = 0; i < 65536; i++)
        halves[i] = (uint16_t)i;
    for (unsigned set = 0; set < HVI_KERNEL_SETS; set++) {
        const struct hvi_kernels *kernels = hvi_kernels_at(set);
        if (!kernels)
            continue;
        kernels->widen_f16(halves, wide, 65536);
        for (uint32_t i = 0; i < 65536; i++) {
            float expected = (float)hvt_reference_f16((uint16_t)i);
            uint32_t bits, quiet = 0x7fc00000u;
            memcpy(&bits, isnan(expected) ? (void *)&quiet : (void *)&expected, sizeof bits);
            if (memcmp(&wide[i], &bits, sizeof bits) != 0)
                ck_abort_msg("%s: %04x gives %a", kernels->name, i, (double)wide[i]);
        }
    }
}
END_TEST

/* All halves, the values half way between neighbours, and what lies just beside those. */
START_TEST(narrowing_rounds_to_nearest_even_in_every_set)
{
    static float wide[65536 * 5 + 3];
    static uint16_t halves[65536 * 5 + 3];
    size_t count = 0;

    for (uint32_t i = 0; i < 65536; i++) {
        float value = (float)hvt_reference_f16((uint16_t)i);
        float next = (float)hvt_reference_f16((uint16_t)(i + 1));
        float middle = value / 2 + next / 2;
        wide[count++] = value;
        wide[count++] = middle;
        wide[count++] = nextafterf(middle, INFINITY);
        wide[count++] = nextafterf(middle, -INFINITY);
        wide[count++] = ldexpf(value, -20);
    }
    wide[count++] = 65519.996f;
    wide[count++] = 65520.0f;
    wide[count++] = 3e38f;
    for (unsigned set = 0; set < HVI_KERNEL_SETS; set++) {
        const struct hvi_kernels *kernels = hvi_kernels_at(set);
        if (!kernels)
            continue;
        kernels->narrow_f16(wide, halves, count);
        for (size_t i = 0; i < count; i++) {
            uint16_t expected = hvt_reference_to_f16((double)wide[i]);
            if (halves[i] != expected)
                ck_abort_msg("%s: %a gives %04x, not %04x", kernels->name, (double)wide[i],
                             halves[i], expected);
        }
    }
}
END_TEST

static double value_of(bool e4m3, uint32_t byte)
{
    return e4m3 ? hvt_reference_e4m3((uint8_t)byte) : hvt_reference_e5m2((uint8_t)byte);
}

START_TEST(every_float8_widens_exactly_in_every_set)
{
    uint8_t bytes[256];
    float wide[256];

    for (uint32_t i = 0; i < 256; i++)
        bytes[i] = (uint8_t)i;
    for (unsigned set = 0; set < HVI_KERNEL_SETS; set++) {
        const struct hvi_kernels *kernels = hvi_kernels_at(set);
        if (!kernels)
            continue;
        (_i ? kernels->widen_e4m3 : kernels->widen_e5m2)(bytes, wide, 256);
        for (uint32_t i = 0; i < 256; i++) {
            double expected = value_of(_i, i);
            if (isnan(expected)
                    ? !isnan(wide[i])
                    : (double)wide[i] != expected || (signbit(wide[i]) != 0) != (i >> 7 != 0))
                ck_abort_msg("%s: %02x gives %a", kernels->name, i, (double)wide[i]);
        }
    }
}
END_TEST

/* All numbers, what lies half way between neighbours and beside that, and what is too large. The
 * largest e4m3 is 448 (0x7e), 464 still goes there, and what is above becomes NaN. */
START_TEST(narrowing_to_float8_rounds_to_nearest_even_in_every_set)
{
    static float wide[256 * 5 + 8];
    static uint8_t bytes[256 * 5 + 8];
    size_t count = 0;

    for (uint32_t i = 0; i < 255; i++) {
        float value = (float)value_of(_i, i);
        float middle = value / 2 + (float)value_of(_i, i + 1) / 2;
        wide[count++] = value;
        wide[count++] = middle;
        wide[count++] = nextafterf(middle, INFINITY);
        wide[count++] = nextafterf(middle, -INFINITY);
        wide[count++] = ldexpf(value, -12);
    }
    const float large[] = {464.0f,   464.0001f, -464.0f, -480.0f,
                           61439.0f, 61440.0f,  3e38f,   -INFINITY};
    memcpy(wide + count, large, sizeof large);
    count += sizeof large / sizeof large[0];
    for (unsigned set = 0; set < HVI_KERNEL_SETS; set++) {
        const struct hvi_kernels *kernels = hvi_kernels_at(set);
        if (!kernels)
            continue;
        (_i ? kernels->narrow_e4m3 : kernels->narrow_e5m2)(wide, bytes, count);
        for (size_t i = 0; i < count; i++) {
            uint8_t expected = _i ? hvt_reference_to_e4m3((double)wide[i])
                                  : hvt_reference_to_e5m2((double)wide[i]);
            if (bytes[i] != expected)
                ck_abort_msg("%s: %a gives %02x, not %02x", kernels->name, (double)wide[i],
                             bytes[i], expected);
        }
    }
}
END_TEST

/* Heads and tails that are no whole line, from and to every place of one. */
START_TEST(a_copy_past_the_caches_is_a_copy_in_every_set)
{
    static const size_t lengths[] = {0, 1, 63, 4095, 4096, 4097, 4160, 9000};
    uint64_t random = 3;

    hvt_reference_fill(HVI_DTYPE_UINT8, inputs[0], COUNT * 8, &random);
    for (unsigned i = 0; i < HVI_KERNEL_SETS * 2 * 64 * 8; i++) {
        const struct hvi_kernels *kernels = hvi_kernels_at(i / (2 * 64 * 8));
        size_t length = lengths[i % 8], place = i / 8 % 64;
        const unsigned char *in = inputs[0] + i % 67;
        unsigned char *out = outputs[0] + GUARD + place;
        if (!kernels)
            continue;
        memset(outputs[0], 0xa5, COUNT * 8);
        kernels->copy(out, in, length, i / 8 / 64 % 2);
        if (memcmp(out, in, length) != 0)
            ck_abort_msg("%s: %zu bytes to %zu", kernels->name, length, place);
        ck_assert_int_eq(out[-1], 0xa5);
        ck_assert_int_eq(out[length], 0xa5);
    }
}
END_TEST

START_TEST(bool_knows_and_and_or_only)
{
    char text[128];

    ck_assert_int_eq(hvi_reduction_check(HVI_DTYPE_BOOL, HVI_REDUCE_MIN, 1, 1, NULL, 0), HVI_OK);
    ck_assert_int_eq(hvi_reduction_check(HVI_DTYPE_BOOL, HVI_REDUCE_MAX, 1, 1, NULL, 0), HVI_OK);
    ck_assert_int_eq(hvi_reduction_check(HVI_DTYPE_BOOL, HVI_REDUCE_SUM, 1, 1, text, sizeof text),
                     HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(text, "sum is not supported for bool");
    ck_assert_int_eq(hvi_reduction_check(HVI_DTYPE_BOOL, HVI_REDUCE_MAX, 2, 1, text, sizeof text),
                     HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(text, "scaled max is not supported for bool");
}
END_TEST

START_TEST(adasum_is_for_floating_point)
{
    char text[128];
    uint32_t refused = 0;

    for (uint32_t dtype = 0; dtype < HVI_DTYPE_COUNT; dtype++) {
        bool ok =
            hvi_reduction_check(dtype, HVI_REDUCE_ADASUM, 0.5, 2, text, sizeof text) == HVI_OK;
        ck_assert_int_eq(ok, strncmp(hvi_dtype_text(dtype), "float", 5) == 0 ||
                                 dtype == HVI_DTYPE_BFLOAT16);
        refused += !ok;
    }
    ck_assert_uint_eq(refused, 7);
    hvi_reduction_check(HVI_DTYPE_INT32, HVI_REDUCE_ADASUM, 1, 1, text, sizeof text);
    ck_assert_str_eq(text, "adasum is not supported for int32");
}
END_TEST

/* ---- pages that are missing ---- */

#define PAGE 4096u

static _Alignas(4096) unsigned char pages[4][2 * PAGE];
static uintptr_t bad_page;

/* What the kernel does where an instruction meets a memory error. */
static void meet_memory_error(const struct hvi_reduction *reduce, uint64_t first, uint64_t count)
{
    siginfo_t info = {.si_signo = SIGBUS, .si_code = BUS_MCEERR_AR};

    (void)reduce;
    (void)first;
    (void)count;
    info.si_addr = (void *)bad_page;
    syscall(SYS_rt_tgsigqueueinfo, getpid(), syscall(SYS_gettid), SIGBUS, &info);
}

START_TEST(a_memory_error_in_the_page_of_an_operand_is_that_operands)
{
    const void *in[2] = {pages[0] + 64, pages[1] + 64};
    void *out[2] = {pages[2] + 64, pages[3] + 64};
    const struct hvi_kernels kernels = {.reduce = meet_memory_error};
    struct hvi_reduction reduce = reduce_of(HVI_DTYPE_FLOAT32, HVI_REDUCE_SUM, 2, 1, 1);

    reduce.ins = reduce.outs = 2;
    reduce.in = in;
    reduce.out = out;
    hvi_pages_open();
    for (uint32_t i = 0; i < 4; i++) {
        bad_page = (uintptr_t)pages[i];
        ck_assert_int_eq(hvi_reduce_guarded(&kernels, &reduce, 0, 100), (int)i % 2);
    }
    hvi_pages_close();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/host_reduce");
    TCase *tcase = tcase_create("kernels");

    tcase_set_timeout(tcase, 120);
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_loop_test(tcase, every_type_and_op_gives_the_reference_bits, 0, HVI_DTYPE_COUNT);
    tcase_add_loop_test(tcase, scales_give_the_reference_bits, 0, HVI_DTYPE_COUNT);
    tcase_add_test(tcase, all_machines_give_the_same_bits);
    tcase_add_test(tcase, chunks_give_the_bits_of_the_whole);
    tcase_add_test(tcase, an_integer_average_truncates_toward_zero);
    tcase_add_test(tcase, every_float16_widens_exactly_in_every_set);
    tcase_add_test(tcase, narrowing_rounds_to_nearest_even_in_every_set);
    tcase_add_loop_test(tcase, every_float8_widens_exactly_in_every_set, 0, 2);
    tcase_add_loop_test(tcase, narrowing_to_float8_rounds_to_nearest_even_in_every_set, 0, 2);
    tcase_add_test(tcase, a_copy_past_the_caches_is_a_copy_in_every_set);
    tcase_add_test(tcase, bool_knows_and_and_or_only);
    tcase_add_test(tcase, adasum_is_for_floating_point);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("memory errors");
    tcase_set_tags(tcase, "played-faults"); /* that qemu takes for its own: scripts/arm.sh */
    tcase_add_test(tcase, a_memory_error_in_the_page_of_an_operand_is_that_operands);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
