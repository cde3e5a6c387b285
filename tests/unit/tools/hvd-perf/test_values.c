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

START_TEST(one_rank_reduces_to_its_own_pattern)
{
    static const enum hvd_reduce_op reductions[] = {HVD_SUM, HVD_AVERAGE, HVD_MIN, HVD_MAX,
                                                    HVD_PRODUCT};
    for (size_t i = 0; i < sizeof reductions / sizeof reductions[0]; i++) {
        perf_fill(dtypes[_i], reductions[i], 0, data, ELEMENTS);
        ck_assert_uint_eq(perf_check_reduced(dtypes[_i], reductions[i], 1, 0, data, ELEMENTS), 0);
        ck_assert_uint_eq(perf_check_copied(dtypes[_i], reductions[i], 0, 0, data, ELEMENTS), 0);
    }
}
END_TEST

START_TEST(one_wrong_element_is_one_error)
{
    const size_t size = hvd_dtype_size(dtypes[_i]);
    perf_fill(dtypes[_i], HVD_SUM, 2, data, ELEMENTS);
    memset(data + 777 * size, 0x35, size);
    ck_assert_uint_eq(perf_check_copied(dtypes[_i], HVD_SUM, 2, 0, data, ELEMENTS), 1);
}
END_TEST

START_TEST(another_ranks_values_do_not_pass)
{
    perf_fill(dtypes[_i], HVD_SUM, 1, data, ELEMENTS);
    ck_assert_uint_gt(perf_check_copied(dtypes[_i], HVD_SUM, 2, 0, data, ELEMENTS), ELEMENTS / 2);
    ck_assert_uint_gt(perf_check_reduced(dtypes[_i], HVD_SUM, 2, 0, data, ELEMENTS), ELEMENTS / 2);
}
END_TEST

START_TEST(shifted_elements_do_not_pass)
{
    const size_t size = hvd_dtype_size(dtypes[_i]);
    perf_fill(dtypes[_i], HVD_SUM, 0, data, ELEMENTS);
    memmove(data, data + size, (ELEMENTS - 1) * size);
    ck_assert_uint_gt(perf_check_copied(dtypes[_i], HVD_SUM, 0, 0, data, ELEMENTS - 1),
                      ELEMENTS / 2);
}
END_TEST

/* Reduced here once more, in another way. */
START_TEST(a_float_reduction_of_four_ranks_passes)
{
    static float parts[4][ELEMENTS];
    static float result[ELEMENTS];
    for (int r = 0; r < 4; r++)
        perf_fill(HVD_FLOAT32, HVD_AVERAGE, r, parts[r], ELEMENTS);
    for (size_t i = 0; i < ELEMENTS; i++)
        result[i] = (parts[0][i] + parts[1][i] + parts[2][i] + parts[3][i]) / 4;
    ck_assert_uint_eq(perf_check_reduced(HVD_FLOAT32, HVD_AVERAGE, 4, 0, result, ELEMENTS), 0);
    ck_assert_uint_gt(perf_check_reduced(HVD_FLOAT32, HVD_AVERAGE, 3, 0, result, ELEMENTS), 0);
}
END_TEST

START_TEST(an_integer_product_wraps)
{
    static int8_t result[ELEMENTS];
    static int8_t part[ELEMENTS];
    memset(result, 1, sizeof result);
    for (int r = 0; r < 80; r++) { /* 2^10: zero in 8 bits */
        perf_fill(HVD_INT8, HVD_PRODUCT, r, part, ELEMENTS);
        for (size_t i = 0; i < ELEMENTS; i++)
            result[i] = (int8_t)(uint8_t)(result[i] * part[i]);
    }
    ck_assert_uint_eq(perf_check_reduced(HVD_INT8, HVD_PRODUCT, 80, 0, result, ELEMENTS), 0);
}
END_TEST

START_TEST(small_counts_are_filled_too)
{
    for (uint64_t count = 0; count < 300; count++) {
        memset(data, 0xee, sizeof data);
        perf_fill(HVD_INT8, HVD_SUM, 5, data, count);
        ck_assert_uint_eq(perf_check_copied(HVD_INT8, HVD_SUM, 5, 0, data, count), 0);
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
    tcase_add_loop_test(tests, shifted_elements_do_not_pass, 0, DTYPES);
    tcase_add_test(tests, a_float_reduction_of_four_ranks_passes);
    tcase_add_test(tests, an_integer_product_wraps);
    tcase_add_test(tests, small_counts_are_filled_too);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
