/* SPDX-License-Identifier: Apache-2.0
 * Deadlines never wrap. */
#include "base/clock.h"
#include "tests/unit/hvt_main.h"

#include <limits.h>

START_TEST(the_clock_does_not_go_back)
{
    uint64_t last_ns = hvi_clock_ns();
    ck_assert(last_ns > 0);
    for (int i = 0; i < 10000; i++) {
        uint64_t now_ns = hvi_clock_ns();
        ck_assert(now_ns >= last_ns);
        last_ns = now_ns;
    }
}
END_TEST

START_TEST(a_deadline_lies_its_delay_ahead)
{
    uint64_t before_ns = hvi_clock_ns();
    uint64_t deadline_ns = hvi_deadline_after((int64_t)HVI_NS_SEC);
    uint64_t after_ns = hvi_clock_ns();
    ck_assert(deadline_ns >= before_ns + HVI_NS_SEC && deadline_ns <= after_ns + HVI_NS_SEC);
    ck_assert(!hvi_deadline_passed(deadline_ns));
    ck_assert(hvi_deadline_left(deadline_ns) <= HVI_NS_SEC);
    ck_assert(hvi_deadline_left(deadline_ns) > 0);
}
END_TEST

START_TEST(far_deadlines_saturate)
{
    ck_assert(hvi_deadline_after(-1) == HVI_NEVER);
    ck_assert(hvi_deadline_after(INT64_MIN) == HVI_NEVER);
    uint64_t far_ns = hvi_deadline_after(INT64_MAX);
    ck_assert(far_ns > hvi_clock_ns());
    ck_assert(!hvi_deadline_passed(far_ns));
    ck_assert_int_eq(hvi_deadline_poll_ms(far_ns), INT_MAX);
    ck_assert_int_eq(hvi_deadline_poll_ms(HVI_NEVER - 1), INT_MAX);
}
END_TEST

START_TEST(a_passed_deadline_has_nothing_left)
{
    uint64_t now_ns = hvi_deadline_after(0);
    ck_assert(hvi_deadline_passed(now_ns));
    ck_assert(hvi_deadline_left(now_ns) == 0);
    ck_assert_int_eq(hvi_deadline_poll_ms(now_ns), 0);
    ck_assert(hvi_deadline_passed(0));
    ck_assert(hvi_deadline_left(0) == 0);
}
END_TEST

START_TEST(never_does_not_pass)
{
    ck_assert(!hvi_deadline_passed(HVI_NEVER));
    ck_assert(hvi_deadline_left(HVI_NEVER) == HVI_NEVER);
    ck_assert_int_eq(hvi_deadline_poll_ms(HVI_NEVER), -1);
}
END_TEST

START_TEST(a_poll_timeout_is_rounded_up)
{
    /* The fraction of a millisecond must not get lost: a poll would return before the deadline. */
    uint64_t deadline_ns = hvi_deadline_after((int64_t)(1000 * HVI_NS_MS + HVI_NS_MS / 2));
    int ms = hvi_deadline_poll_ms(deadline_ns);
    uint64_t left_ns = hvi_deadline_left(deadline_ns);
    ck_assert_int_le(ms, 1001);
    uint64_t ms_ns = (uint64_t)ms * HVI_NS_MS;
    ck_assert(ms_ns >= left_ns);
    deadline_ns = hvi_deadline_after(900);
    ms = hvi_deadline_poll_ms(deadline_ns);
    ck_assert_msg(ms == 1 || hvi_deadline_passed(deadline_ns), "a poll of 0 would spin");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/clock");
    TCase *tcase = tcase_create("deadlines");
    tcase_add_test(tcase, the_clock_does_not_go_back);
    tcase_add_test(tcase, a_deadline_lies_its_delay_ahead);
    tcase_add_test(tcase, far_deadlines_saturate);
    tcase_add_test(tcase, a_passed_deadline_has_nothing_left);
    tcase_add_test(tcase, never_does_not_pass);
    tcase_add_test(tcase, a_poll_timeout_is_rounded_up);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
