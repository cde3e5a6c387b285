/* SPDX-License-Identifier: Apache-2.0
 * A burst goes through; a flood is met with rests; and who comes after a flood waits for none. */
#include "base/pace.h"
#include "tests/unit/hvt_main.h"

static struct hvi_pace pace;
static uint64_t now_ns;

static void setup(void)
{
    pace = (struct hvi_pace){0};
    now_ns = 1000 * HVI_NS_SEC;
}

static void burst(void)
{
    for (unsigned i = 0; i < HVI_PACE_BURST; i++) {
        ck_assert(!hvi_pace_accepted(&pace, now_ns));
        ck_assert(!hvi_pace_empty(&pace));
    }
}

START_TEST(a_burst_is_accepted_as_it_comes)
{
    burst();
    now_ns += HVI_PACE_BURST * HVI_PACE_EACH_NS;
    burst();
}
END_TEST

START_TEST(a_flood_is_accepted_by_queues)
{
    burst();
    for (int turn = 0; turn < 10; turn++) {
        for (int i = 1; i < HVI_PACE_BACKLOG; i++)
            ck_assert(!hvi_pace_accepted(&pace, now_ns));
        ck_assert(hvi_pace_accepted(&pace, now_ns));
        now_ns += HVI_PACE_REST_NS;
    }
    ck_assert(!hvi_pace_accepted(&pace, now_ns));
    ck_assert_msg(hvi_pace_empty(&pace), "a short queue is followed by a rest as well");
}
END_TEST

START_TEST(a_flood_is_over_when_half_of_the_burst_is_paid)
{
    burst();
    ck_assert(!hvi_pace_accepted(&pace, now_ns));
    ck_assert(hvi_pace_empty(&pace));
    now_ns += (HVI_PACE_BURST / 2 - 2) * HVI_PACE_EACH_NS;
    ck_assert(!hvi_pace_accepted(&pace, now_ns));
    ck_assert(hvi_pace_empty(&pace));
    now_ns += 4 * HVI_PACE_EACH_NS;
    ck_assert(!hvi_pace_accepted(&pace, now_ns));
    ck_assert(!hvi_pace_empty(&pace));
}
END_TEST

START_TEST(what_turns_out_to_be_welcome_costs_nothing)
{
    hvi_pace_refund(&pace);
    for (unsigned i = 0; i < 3 * HVI_PACE_BURST; i++) {
        ck_assert(!hvi_pace_accepted(&pace, now_ns));
        hvi_pace_refund(&pace);
    }
    burst();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/pace");
    TCase *tcase = tcase_create("pace");
    tcase_add_checked_fixture(tcase, setup, NULL);
    tcase_add_test(tcase, a_burst_is_accepted_as_it_comes);
    tcase_add_test(tcase, a_flood_is_accepted_by_queues);
    tcase_add_test(tcase, a_flood_is_over_when_half_of_the_burst_is_paid);
    tcase_add_test(tcase, what_turns_out_to_be_welcome_costs_nothing);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
