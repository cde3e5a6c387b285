/* SPDX-License-Identifier: Apache-2.0
 * Long yields are followed by a rest that is a multiple of them, unless it is the job that computes. */
#include "base/clock.h"
#include "base/yield.h"
#include "tests/unit/hvt_main.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LATE_NS (30 * HVI_NS_MS) /* more than what is judged at once */

/* Processors' time of this process and of the one that is watched, in place of what a busy machine leaves them. */
static uint64_t used_ns[2];
static int computing = -1; /* which of them has a core while this thread yields */

/* In place of the C library's: other work has the core for 200 ms, so a rest is 320 ms. */
int sched_yield(void)
{
    const struct timespec slice = {.tv_nsec = 200 * (long)HVI_NS_MS};

    if (computing >= 0)
        used_ns[computing] += 200 * HVI_NS_MS;
    return nanosleep(&slice, NULL);
}

/* Likewise, of processors' time alone; what does not exist has none. */
int clock_gettime(clockid_t clock, struct timespec *time_p)
{
    const long status = syscall(SYS_clock_gettime, clock, time_p);

    if (status != 0 || (clock >= 0 && clock != CLOCK_PROCESS_CPUTIME_ID))
        return (int)status;
    const uint64_t used = used_ns[clock != CLOCK_PROCESS_CPUTIME_ID];
    *time_p = (struct timespec){.tv_sec = (time_t)(used / HVI_NS_SEC),
                                .tv_nsec = (long)(used % HVI_NS_SEC)};
    return 0;
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
    uint64_t had_ns = HVI_NS_SEC, now_ns = NOW_NS;

    for (int i = 0; i < 10; i++, now_ns += LATE_NS) {
        had_ns += (LATE_NS + 3 * HVI_NS_MS) / HVI_YIELD_PART * 2;
        hvi_yields_note(&yields, now_ns, now_ns + 3 * HVI_NS_MS, had_ns, 2);
        ck_assert(hvi_yields_pay(&yields, now_ns + 3 * HVI_NS_MS));
    }
    had_ns += LATE_NS / HVI_YIELD_PART * 2 - HVI_NS_MS; /* a little less */
    hvi_yields_note(&yields, now_ns, now_ns + 3 * HVI_NS_MS, had_ns, 2);
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

/* The first yield, and some more where the machine was slow for a second, are needed to judge. */
static bool rests(void)
{
    int paid = 0;

    while (paid < 8 && hvi_yield())
        paid++;
    return paid < 8;
}

START_TEST(a_thread_sleeps_after_long_yields_while_its_process_does_nothing)
{
    ck_assert(hvi_yield());
    ck_assert(rests());
}
END_TEST

START_TEST(a_thread_goes_on_while_its_process_computes)
{
    computing = 0;
    ck_assert(!rests());
    computing = -1;
    ck_assert(rests());
}
END_TEST

START_TEST(a_thread_goes_on_while_a_process_that_is_watched_computes)
{
    const pid_t watched = fork();

    ck_assert_int_ge(watched, 0);
    while (watched == 0)
        pause();
    computing = 1;
    hvi_yields_watch(0);
    hvi_yields_watch(watched);
    ck_assert(!rests());
    computing = 0; /* this process is not the job any more */
    ck_assert(rests());
    kill(watched, SIGKILL);
    ck_assert_int_eq(waitpid(watched, NULL, 0), watched);
    nanosleep(&(struct timespec){.tv_nsec = 400 * (long)HVI_NS_MS}, NULL);
    ck_assert(hvi_yield()); /* that rest is over, and a clock that is gone does no harm */
    ck_assert(rests());
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
