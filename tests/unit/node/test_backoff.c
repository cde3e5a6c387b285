/* SPDX-License-Identifier: Apache-2.0
 * How soon a process of hvdd's is started again. */
#include "daemon/node/backoff.h"

#include "tests/unit/hvt_main.h"

#define MINUTE_NS (60 * HVI_NS_SEC)

static uint64_t delay_ms(uint64_t *backoff_ns, uint64_t lived_ns)
{
    return node_backoff_next(backoff_ns, hvi_clock_ns() - lived_ns) / HVI_NS_MS;
}

START_TEST(each_time_in_a_row_takes_twice_as_long_up_to_five_seconds)
{
    static const uint64_t expected_ms[] = {0, 100, 200, 400, 800, 1600, 3200, 5000, 5000};
    uint64_t backoff_ns = 0;

    for (size_t i = 0; i < sizeof(expected_ms) / sizeof(expected_ms[0]); i++)
        ck_assert_uint_eq(delay_ms(&backoff_ns, 0), expected_ms[i]);
}
END_TEST

START_TEST(one_that_has_lived_for_ten_seconds_is_started_at_once_and_the_row_begins_anew)
{
    uint64_t backoff_ns = 0;

    for (int i = 0; i < 5; i++)
        (void)delay_ms(&backoff_ns, 0);
    ck_assert_uint_eq(delay_ms(&backoff_ns, 9 * HVI_NS_SEC), 1600);
    ck_assert_uint_eq(delay_ms(&backoff_ns, 10 * HVI_NS_SEC), 0);
    ck_assert_uint_eq(delay_ms(&backoff_ns, 0), 100);
    ck_assert_uint_eq(delay_ms(&backoff_ns, MINUTE_NS), 0);
    ck_assert_uint_eq(delay_ms(&backoff_ns, MINUTE_NS), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("node backoff");
    TCase *tcase = tcase_create("backoff");

    tcase_add_test(tcase, each_time_in_a_row_takes_twice_as_long_up_to_five_seconds);
    tcase_add_test(tcase,
                   one_that_has_lived_for_ten_seconds_is_started_at_once_and_the_row_begins_anew);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
