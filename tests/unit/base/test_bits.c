/* SPDX-License-Identifier: Apache-2.0
 * Checked arithmetic at its edges. */
#include "base/bits.h"
#include "tests/unit/hvt_main.h"

START_TEST(adding_stops_at_the_top)
{
    uint64_t sum = 7;
    ck_assert(hvi_add_checked(UINT64_MAX - 1, 1, &sum));
    ck_assert(sum == UINT64_MAX);
    sum = 7;
    ck_assert(!hvi_add_checked(UINT64_MAX, 1, &sum));
    ck_assert_msg(sum == 7, "the output was touched on overflow");
}
END_TEST

START_TEST(multiplying_stops_at_the_top)
{
    uint64_t product = 7;
    ck_assert(hvi_mul_checked(UINT64_C(1) << 32, UINT32_MAX, &product));
    ck_assert(product == (UINT64_C(1) << 32) * UINT32_MAX);
    ck_assert(hvi_mul_checked(0, UINT64_MAX, &product));
    ck_assert(product == 0);
    product = 7;
    ck_assert(!hvi_mul_checked(UINT64_C(1) << 32, UINT64_C(1) << 32, &product));
    ck_assert(product == 7);
}
END_TEST

START_TEST(a_range_fits_only_inside_its_area)
{
    ck_assert(hvi_range_fits(0, 0, 0));
    ck_assert(hvi_range_fits(0, 10, 10));
    ck_assert(hvi_range_fits(10, 0, 10));
    ck_assert(hvi_range_fits(4, 6, 10));
    ck_assert(!hvi_range_fits(4, 7, 10));
    ck_assert(!hvi_range_fits(11, 0, 10));
    ck_assert_msg(!hvi_range_fits(4, UINT64_MAX - 2, 10), "the sum wraps");
    ck_assert(!hvi_range_fits(UINT64_MAX, 1, 10));
}
END_TEST

START_TEST(buckets_are_powers_of_two_and_the_last_one_takes_the_rest)
{
    ck_assert_uint_eq(hvi_log2_bucket(0, 8), 0);
    ck_assert_uint_eq(hvi_log2_bucket(1, 8), 1);
    ck_assert_uint_eq(hvi_log2_bucket(3, 8), 2);
    ck_assert_uint_eq(hvi_log2_bucket(4, 8), 3);
    ck_assert_uint_eq(hvi_log2_bucket(127, 8), 7);
    ck_assert_uint_eq(hvi_log2_bucket(128, 8), 7);
    ck_assert_uint_eq(hvi_log2_bucket(UINT64_MAX, 8), 7);
    ck_assert_uint_eq(hvi_log2_bucket(UINT64_MAX, 65), 64);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/bits");
    TCase *tcase = tcase_create("edges");
    tcase_add_test(tcase, adding_stops_at_the_top);
    tcase_add_test(tcase, multiplying_stops_at_the_top);
    tcase_add_test(tcase, a_range_fits_only_inside_its_area);
    tcase_add_test(tcase, buckets_are_powers_of_two_and_the_last_one_takes_the_rest);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
