/* SPDX-License-Identifier: Apache-2.0
 * A burst at once, then one at a time, and a burst again after a rest. */
#include "base/rate.h"
#include "tests/unit/hvt_main.h"

#define EACH_NS UINT64_C(1000)
#define BURST   4

START_TEST(a_burst_is_followed_by_one_at_a_time)
{
    uint64_t paid_ns = 0, now_ns = 50000;
    for (int i = 0; i < BURST; i++)
        ck_assert_uint_eq(hvi_rate_take(&paid_ns, now_ns, EACH_NS, BURST), 0);
    ck_assert_uint_eq(hvi_rate_take(&paid_ns, now_ns, EACH_NS, BURST), EACH_NS);
    ck_assert_uint_eq(hvi_rate_take(&paid_ns, now_ns + 400, EACH_NS, BURST), 600);
    for (int i = 0; i < 10; i++) {
        now_ns += EACH_NS;
        ck_assert_uint_eq(hvi_rate_take(&paid_ns, now_ns, EACH_NS, BURST), 0);
        ck_assert_uint_gt(hvi_rate_take(&paid_ns, now_ns, EACH_NS, BURST), 0);
    }
}
END_TEST

START_TEST(a_rest_gives_a_burst_and_no_more)
{
    uint64_t paid_ns = 0, now_ns = 50000;
    for (int turn = 0; turn < 3; turn++) {
        for (int i = 0; i < BURST; i++)
            ck_assert_uint_eq(hvi_rate_take(&paid_ns, now_ns, EACH_NS, BURST), 0);
        ck_assert_uint_gt(hvi_rate_take(&paid_ns, now_ns, EACH_NS, BURST), 0);
        now_ns += 1000 * BURST * EACH_NS;
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/rate");
    TCase *tcase = tcase_create("rate");
    tcase_add_test(tcase, a_burst_is_followed_by_one_at_a_time);
    tcase_add_test(tcase, a_rest_gives_a_burst_and_no_more);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
