/* SPDX-License-Identifier: Apache-2.0
 * Short yields go on; a long one is followed by a rest that is a multiple of it. */
#include "base/clock.h"
#include "base/yield.h"
#include "tests/unit/hvt_main.h"

#include <sched.h>
#include <time.h>

static int yields_made;

/* In place of the C library's: other work has the core for 200 ms, so the rest is 320 ms. */
int sched_yield(void)
{
    yields_made++;
    return nanosleep(&(struct timespec){.tv_nsec = 200 * (long)HVI_NS_MS}, NULL);
}

#define NOW_NS (1000 * HVI_NS_SEC)

START_TEST(short_yields_go_on)
{
    struct hvi_yields yields = {0};

    ck_assert(hvi_yields_pay(&yields, 0));
    for (uint64_t i = 0; i < 100; i++) {
        hvi_yields_note(&yields, NOW_NS + i, NOW_NS + i + HVI_YIELD_LONG_NS - 1);
        ck_assert(hvi_yields_pay(&yields, NOW_NS + i));
    }
}
END_TEST

START_TEST(a_long_yield_is_followed_by_a_rest_of_a_multiple_of_it)
{
    struct hvi_yields yields = {0};
    const uint64_t took_ns = 3 * HVI_NS_MS, end_ns = NOW_NS + took_ns + HVI_YIELD_REST * took_ns;

    hvi_yields_note(&yields, NOW_NS, NOW_NS + took_ns);
    ck_assert(!hvi_yields_pay(&yields, NOW_NS + took_ns));
    ck_assert(!hvi_yields_pay(&yields, end_ns - 1));
    ck_assert(hvi_yields_pay(&yields, end_ns));
    hvi_yields_note(&yields, end_ns, end_ns + 300); /* the core is free again */
    ck_assert(hvi_yields_pay(&yields, end_ns + 300));
}
END_TEST

START_TEST(a_thread_that_was_stopped_yields_again_soon)
{
    struct hvi_yields yields = {0};
    const uint64_t end_ns = NOW_NS + 600 * HVI_NS_SEC;

    hvi_yields_note(&yields, NOW_NS, end_ns);
    ck_assert(!hvi_yields_pay(&yields, end_ns));
    ck_assert(hvi_yields_pay(&yields, end_ns + HVI_YIELD_REST * HVI_YIELD_MOST_NS));
}
END_TEST

START_TEST(a_thread_begins_with_a_yield_and_sleeps_after_a_long_one)
{
    ck_assert(hvi_yield());
    ck_assert(!hvi_yield());
    ck_assert_int_eq(yields_made, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/yield");
    TCase *tcase = tcase_create("yields");

    tcase_add_test(tcase, short_yields_go_on);
    tcase_add_test(tcase, a_long_yield_is_followed_by_a_rest_of_a_multiple_of_it);
    tcase_add_test(tcase, a_thread_that_was_stopped_yields_again_soon);
    tcase_add_test(tcase, a_thread_begins_with_a_yield_and_sleeps_after_a_long_one);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
