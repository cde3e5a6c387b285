/* SPDX-License-Identifier: Apache-2.0
 * The checker: it accepts a right result and sees one wrong element, in every dtype and reduction. */
#include "tools/hvd-perf/perf.h"

#include "tests/unit/hvt_main.h"

#include <string.h>

#define ELEMENTS 1000u

static const enum hvd_dtype dtypes[] = {HVD_FLOAT32, HVD_FLOAT64, HVD_FLOAT16, HVD_BFLOAT16,
                                        HVD_INT64,   HVD_INT32,   HVD_INT16,   HVD_INT8,
                                        HVD_UINT16,  HVD_UINT8};
#define DTYPES (int)(sizeof dtypes / sizeof dtypes[0])

static unsigned char data[ELEMENTS * 8];

static struct perf_pattern pattern_of(enum hvd_dtype dtype, enum hvd_reduce_op reduce_op)
{
    return (struct perf_pattern){.dtype = dtype, .reduce_op = reduce_op};
}

START_TEST(one_rank_reduces_to_its_own_pattern)
{
    static const enum hvd_reduce_op reductions[] = {HVD_SUM, HVD_AVERAGE, HVD_MIN, HVD_MAX,
                                                    HVD_PRODUCT};
    for (size_t i = 0; i < sizeof reductions / sizeof reductions[0]; i++) {
        const struct perf_pattern pattern = pattern_of(dtypes[_i], reductions[i]);
        perf_fill(&pattern, 0, data, ELEMENTS);
        ck_assert_uint_eq(perf_check_reduced(&pattern, 1, 0, data, ELEMENTS), 0);
        ck_assert_uint_eq(perf_check_copied(&pattern, 0, 0, data, ELEMENTS), 0);
    }
}
END_TEST

START_TEST(one_wrong_element_is_one_error)
{
    const struct perf_pattern pattern = pattern_of(dtypes[_i], HVD_SUM);
    const size_t size = hvd_dtype_size(dtypes[_i]);
    perf_fill(&pattern, 2, data, ELEMENTS);
    memset(data + 777 * size, 0x35, size);
    ck_assert_uint_eq(perf_check_copied(&pattern, 2, 0, data, ELEMENTS), 1);
}
END_TEST

START_TEST(another_ranks_values_do_not_pass)
{
    const struct perf_pattern pattern = pattern_of(dtypes[_i], HVD_SUM);
    perf_fill(&pattern, 1, data, ELEMENTS);
    for (int rank = 2; rank < 40; rank++)
        ck_assert_uint_gt(perf_check_copied(&pattern, rank, 0, data, ELEMENTS), ELEMENTS / 2);
    ck_assert_uint_gt(perf_check_reduced(&pattern, 2, 0, data, ELEMENTS), ELEMENTS / 2);
}
END_TEST

START_TEST(values_of_another_salt_do_not_pass)
{
    struct perf_pattern pattern = pattern_of(dtypes[_i], HVD_SUM);
    perf_fill(&pattern, 1, data, ELEMENTS);
    for (pattern.salt = 1; pattern.salt < 30; pattern.salt++)
        ck_assert_uint_gt(perf_check_copied(&pattern, 1, 0, data, ELEMENTS), ELEMENTS / 2);
}
END_TEST

static const uint64_t shifts[] = {1, 2, 8, 13, 16, 64, 104, 256, 512};

START_TEST(shifted_elements_do_not_pass)
{
    const struct perf_pattern pattern = pattern_of(dtypes[_i], HVD_SUM);
    perf_fill(&pattern, 0, data, ELEMENTS);
    for (size_t i = 0; i < sizeof shifts / sizeof shifts[0]; i++)
        ck_assert_uint_gt(perf_check_copied(&pattern, 0, shifts[i], data, ELEMENTS), ELEMENTS / 2);
}
END_TEST

/* Products are of ones and twos: most places of two ranks are the same. */
START_TEST(wrong_ranks_and_shifted_elements_of_a_product_show)
{
    const struct perf_pattern pattern = pattern_of(dtypes[_i], HVD_PRODUCT);
    perf_fill(&pattern, 0, data, ELEMENTS);
    for (int rank = 1; rank < 40; rank++)
        ck_assert_uint_gt(perf_check_copied(&pattern, rank, 0, data, ELEMENTS), ELEMENTS / 10);
    for (size_t i = 0; i < sizeof shifts / sizeof shifts[0]; i++)
        ck_assert_uint_gt(perf_check_copied(&pattern, 0, shifts[i], data, ELEMENTS), ELEMENTS / 10);
}
END_TEST

START_TEST(parts_of_a_result_longer_than_the_period_pass)
{
    static unsigned char whole[3 * PERF_PERIOD];
    const struct perf_pattern pattern = pattern_of(HVD_INT8, HVD_SUM);
    perf_fill(&pattern, 3, whole, sizeof whole);
    for (uint64_t from = 0; from < sizeof whole; from += 100)
        ck_assert_uint_eq(perf_check_copied(&pattern, 3, from, whole + from, sizeof whole - from),
                          0);
}
END_TEST

/* Reduced here once more, in another way. */
START_TEST(a_float_reduction_of_four_ranks_passes)
{
    static float parts[4][ELEMENTS];
    static float result[ELEMENTS];
    const struct perf_pattern pattern = pattern_of(HVD_FLOAT32, HVD_AVERAGE);
    for (int r = 0; r < 4; r++)
        perf_fill(&pattern, r, parts[r], ELEMENTS);
    for (size_t i = 0; i < ELEMENTS; i++)
        result[i] = (parts[0][i] + parts[1][i] + parts[2][i] + parts[3][i]) / 4;
    ck_assert_uint_eq(perf_check_reduced(&pattern, 4, 0, result, ELEMENTS), 0);
    ck_assert_uint_gt(perf_check_reduced(&pattern, 3, 0, result, ELEMENTS), 0);
}
END_TEST

START_TEST(an_integer_product_wraps)
{
    static int8_t result[ELEMENTS];
    static int8_t part[ELEMENTS];
    const struct perf_pattern pattern = pattern_of(HVD_INT8, HVD_PRODUCT);
    memset(result, 1, sizeof result);
    for (int r = 0; r < 80; r++) { /* 2^10 in the mean: zero in 8 bits */
        perf_fill(&pattern, r, part, ELEMENTS);
        for (size_t i = 0; i < ELEMENTS; i++)
            result[i] = (int8_t)(uint8_t)(result[i] * part[i]);
    }
    ck_assert_uint_eq(perf_check_reduced(&pattern, 80, 0, result, ELEMENTS), 0);
}
END_TEST

/* hvd.h: integer sums wrap, and averages truncate toward zero. */
START_TEST(an_integer_average_is_that_of_the_wrapped_sum)
{
    enum { RANKS = 200 };
    static uint8_t part[ELEMENTS], sum[ELEMENTS];
    static int8_t signed_sum[ELEMENTS];
    struct perf_pattern pattern = pattern_of(HVD_UINT8, HVD_AVERAGE);
    for (int r = 0; r < RANKS; r++) {
        perf_fill(&pattern, r, part, ELEMENTS);
        for (size_t i = 0; i < ELEMENTS; i++)
            sum[i] = (uint8_t)(sum[i] + part[i]);
    }
    for (size_t i = 0; i < ELEMENTS; i++)
        sum[i] = sum[i] / RANKS;
    ck_assert_uint_eq(perf_check_reduced(&pattern, RANKS, 0, sum, ELEMENTS), 0);
    pattern.dtype = HVD_INT8;
    for (int r = 0; r < RANKS; r++) {
        perf_fill(&pattern, r, part, ELEMENTS);
        for (size_t i = 0; i < ELEMENTS; i++)
            signed_sum[i] = (int8_t)(signed_sum[i] + (int8_t)part[i]);
    }
    for (size_t i = 0; i < ELEMENTS; i++)
        signed_sum[i] = (int8_t)(signed_sum[i] / RANKS);
    ck_assert_uint_eq(perf_check_reduced(&pattern, RANKS, 0, signed_sum, ELEMENTS), 0);
}
END_TEST

START_TEST(small_counts_are_filled_too)
{
    const struct perf_pattern pattern = pattern_of(HVD_INT8, HVD_SUM);
    for (uint64_t count = 0; count < 300; count++) {
        memset(data, 0xee, sizeof data);
        perf_fill(&pattern, 5, data, count);
        ck_assert_uint_eq(perf_check_copied(&pattern, 5, 0, data, count), 0);
        ck_assert_uint_eq(data[count], 0xee);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvd-perf/values");
    TCase *tests = tcase_create("values");
    tcase_add_loop_test(tests, one_rank_reduces_to_its_own_pattern, 0, DTYPES);
    tcase_add_loop_test(tests, one_wrong_element_is_one_error, 0, DTYPES);
    tcase_add_loop_test(tests, another_ranks_values_do_not_pass, 0, DTYPES);
    tcase_add_loop_test(tests, values_of_another_salt_do_not_pass, 0, DTYPES);
    tcase_add_loop_test(tests, shifted_elements_do_not_pass, 0, DTYPES);
    tcase_add_loop_test(tests, wrong_ranks_and_shifted_elements_of_a_product_show, 0, DTYPES);
    tcase_add_test(tests, parts_of_a_result_longer_than_the_period_pass);
    tcase_add_test(tests, a_float_reduction_of_four_ranks_passes);
    tcase_add_test(tests, an_integer_product_wraps);
    tcase_add_test(tests, an_integer_average_is_that_of_the_wrapped_sum);
    tcase_add_test(tests, small_counts_are_filled_too);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
