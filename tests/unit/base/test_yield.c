/* SPDX-License-Identifier: Apache-2.0
 * Long yields are followed by a rest that is a multiple of them, unless it is the job that computes. */
#include "base/clock.h"
#include "base/yield.h"
#include "tests/unit/hvt_main.h"

#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LATE_NS (30 * HVI_NS_MS) /* more than what is judged at once */

static bool computes;

/* In place of the C library's: other work has the core for 200 ms, so a rest is 320 ms. */
int sched_yield(void)
{
    const uint64_t until_ns = hvi_deadline_after(200 * HVI_NS_MS);

    while (computes && !hvi_deadline_passed(until_ns))
        continue;
    return computes ? 0 : nanosleep(&(struct timespec){.tv_nsec = 200 * (long)HVI_NS_MS}, NULL);
}

#define NOW_NS (1000 * HVI_NS_SEC)

/* One long yield, so that the next one, from NOW_NS on, is judged. */
static struct hvi_yields begun(void)
{
    struct hvi_yields yields = {0};

    hvi_yields_note(&yields, NOW_NS - LATE_NS - 3 * HVI_NS_MS, NOW_NS - LATE_NS, HVI_NS_SEC, 1);
    ck_assert(hvi_yields_pay(&yields, NOW_NS - LATE_NS));
    return yields;
}

START_TEST(a_long_yield_to_strangers_is_followed_by_a_rest_of_a_multiple_of_it)
{
    struct hvi_yields yields = begun();
    const uint64_t took_ns = 3 * HVI_NS_MS, end_ns = NOW_NS + took_ns + HVI_YIELD_REST * took_ns;

    hvi_yields_note(&yields, NOW_NS, NOW_NS + took_ns, HVI_NS_SEC, 1);
    ck_assert(!hvi_yields_pay(&yields, NOW_NS + took_ns));
    ck_assert(!hvi_yields_pay(&yields, end_ns - 1));
    ck_assert(hvi_yields_pay(&yields, end_ns));
    hvi_yields_note(&yields, end_ns, end_ns + took_ns, HVI_NS_SEC, 1); /* still there */
    ck_assert(!hvi_yields_pay(&yields, end_ns + took_ns));
}
END_TEST

START_TEST(yields_go_on_as_long_as_the_job_computes)
{
    struct hvi_yields yields = begun();
    uint64_t used_ns = HVI_NS_SEC, now_ns = NOW_NS;

    for (int i = 0; i < 10; i++, now_ns += LATE_NS) {
        used_ns += (LATE_NS + 3 * HVI_NS_MS) / HVI_YIELD_PART * 2;
        hvi_yields_note(&yields, now_ns, now_ns + 3 * HVI_NS_MS, used_ns, 2);
        ck_assert(hvi_yields_pay(&yields, now_ns + 3 * HVI_NS_MS));
    }
    used_ns += LATE_NS / HVI_YIELD_PART * 2 - HVI_NS_MS; /* a little less */
    hvi_yields_note(&yields, now_ns, now_ns + 3 * HVI_NS_MS, used_ns, 2);
    ck_assert(!hvi_yields_pay(&yields, now_ns + 3 * HVI_NS_MS));
}
END_TEST

START_TEST(some_milliseconds_are_not_judged_by_themselves)
{
    struct hvi_yields yields = begun();
    const uint64_t half_ns = HVI_YIELD_JUDGE_NS / 2, since_ns = NOW_NS - LATE_NS;

    hvi_yields_note(&yields, since_ns + half_ns - 3 * HVI_NS_MS, since_ns + half_ns, HVI_NS_SEC, 1);
    ck_assert(hvi_yields_pay(&yields, since_ns + half_ns));
    hvi_yields_note(&yields, since_ns + LATE_NS - 3 * HVI_NS_MS, since_ns + LATE_NS,
                    HVI_NS_SEC + LATE_NS / HVI_YIELD_PART, 1); /* of all 30 ms */
    ck_assert(hvi_yields_pay(&yields, since_ns + LATE_NS));
}
END_TEST

START_TEST(what_was_long_ago_does_not_count)
{
    struct hvi_yields yields = begun();
    const uint64_t now_ns = NOW_NS + HVI_YIELD_FORGET_NS, took_ns = 3 * HVI_NS_MS;

    hvi_yields_note(&yields, now_ns, now_ns + took_ns, HVI_NS_SEC, 1);
    ck_assert(hvi_yields_pay(&yields, now_ns + took_ns));
    hvi_yields_note(&yields, now_ns + LATE_NS, now_ns + LATE_NS + took_ns, HVI_NS_SEC, 1);
    ck_assert(!hvi_yields_pay(&yields, now_ns + LATE_NS + took_ns));
}
END_TEST

START_TEST(a_rest_is_no_longer_than_a_third_of_a_second)
{
    struct hvi_yields yields = begun();
    const uint64_t end_ns = NOW_NS + 800 * HVI_NS_MS;

    hvi_yields_note(&yields, NOW_NS, end_ns, HVI_NS_SEC, 1);
    ck_assert(!hvi_yields_pay(&yields, end_ns));
    ck_assert(hvi_yields_pay(&yields, end_ns + HVI_YIELD_REST * HVI_YIELD_MOST_NS));
}
END_TEST

START_TEST(less_time_than_before_is_no_computation)
{
    struct hvi_yields yields = begun();

    hvi_yields_note(&yields, NOW_NS, NOW_NS + 3 * HVI_NS_MS, HVI_NS_SEC / 2, 1); /* one has ended */
    ck_assert(!hvi_yields_pay(&yields, NOW_NS + 3 * HVI_NS_MS));
}
END_TEST

/* Some yields on end pay: true. A busy machine may leave the job less than its part, now and then. */
static bool goes_on(void)
{
    for (int tries = 0; tries < 10; tries++) {
        int paid = 0;
        while (paid < 4 && hvi_yield())
            paid++;
        if (paid == 4)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 400 * (long)HVI_NS_MS}, NULL); /* the rest */
    }
    return false;
}

/* The first yield, or some more, are needed to judge. */
static bool rests(void)
{
    int paid = 0;

    while (paid < 4 && hvi_yield())
        paid++;
    return paid < 4;
}

START_TEST(a_thread_sleeps_after_long_yields_while_its_process_does_nothing)
{
    ck_assert(hvi_yield());
    ck_assert(rests());
}
END_TEST

START_TEST(a_thread_goes_on_while_its_process_computes)
{
    computes = true;
    ck_assert(goes_on());
    computes = false;
    ck_assert(rests());
}
END_TEST

START_TEST(a_thread_goes_on_while_a_process_that_is_watched_computes)
{
    const pid_t busy = fork();

    ck_assert_int_ge(busy, 0);
    while (busy == 0)
        continue;
    hvi_yields_watch(0);
    hvi_yields_watch(busy);
    ck_assert(goes_on());
    kill(busy, SIGSTOP);
    ck_assert(rests());
    kill(busy, SIGKILL);
    ck_assert_int_eq(waitpid(busy, NULL, 0), busy);
    ck_assert(rests()); /* a clock that is gone does no harm */
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/yield");
    TCase *tcase = tcase_create("yields");

    tcase_add_test(tcase, a_long_yield_to_strangers_is_followed_by_a_rest_of_a_multiple_of_it);
    tcase_add_test(tcase, yields_go_on_as_long_as_the_job_computes);
    tcase_add_test(tcase, some_milliseconds_are_not_judged_by_themselves);
    tcase_add_test(tcase, what_was_long_ago_does_not_count);
    tcase_add_test(tcase, a_rest_is_no_longer_than_a_third_of_a_second);
    tcase_add_test(tcase, less_time_than_before_is_no_computation);
    tcase_add_test(tcase, a_thread_sleeps_after_long_yields_while_its_process_does_nothing);
    tcase_add_test(tcase, a_thread_goes_on_while_its_process_computes);
    tcase_add_test(tcase, a_thread_goes_on_while_a_process_that_is_watched_computes);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
