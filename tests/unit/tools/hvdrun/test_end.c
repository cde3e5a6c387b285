/* SPDX-License-Identifier: Apache-2.0
 * Exit codes and the summary: who failed first, and what became of the others. */
#include "tools/hvdrun/end.h"

#include "tests/unit/hvt_main.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(ranks, count, first, golden)                                                        \
    do {                                                                                           \
        char *text = NULL;                                                                         \
        size_t size = 0;                                                                           \
        FILE *stream = open_memstream(&text, &size);                                               \
        run_end_summary(stream, (ranks), (count), (first));                                        \
        fclose(stream);                                                                            \
        ck_assert_str_eq(text, (golden));                                                          \
        free(text);                                                                                \
    } while (0)

static struct run_outcome ended(enum hvi_fate_kind kind, int code, bool told)
{
    return (struct run_outcome){
        .pid = 1, .told = told, .fate = {.kind = kind, .code = code}, .ended = true};
}

START_TEST(a_signal_is_128_more)
{
    ck_assert_int_eq(run_end_exit_code((struct hvi_fate){HVI_FATE_EXITED, 0}), 0);
    ck_assert_int_eq(run_end_exit_code((struct hvi_fate){HVI_FATE_EXITED, 3}), 3);
    ck_assert_int_eq(run_end_exit_code((struct hvi_fate){HVI_FATE_SIGNALED, SIGKILL}), 137);
    ck_assert_int_eq(run_end_exit_code((struct hvi_fate){HVI_FATE_UNKNOWN, 0}), 1);
}
END_TEST

START_TEST(the_first_failure_comes_first_and_equals_are_grouped)
{
    const struct run_outcome ranks[] = {
        ended(HVI_FATE_SIGNALED, SIGTERM, true),  ended(HVI_FATE_SIGNALED, SIGTERM, true),
        ended(HVI_FATE_SIGNALED, SIGKILL, false), ended(HVI_FATE_SIGNALED, SIGTERM, true),
        ended(HVI_FATE_EXITED, 0, false),         ended(HVI_FATE_SIGNALED, SIGKILL, true),
        ended(HVI_FATE_EXITED, 1, true),
    };
    EXPECT(ranks, 7, 2,
           "hvdrun:   rank 2: was killed by signal 9 (SIGKILL), the first to fail\n"
           "hvdrun:   ranks 0-1,3: ended by hvdrun (SIGTERM)\n"
           "hvdrun:   rank 4: exited with code 0\n"
           "hvdrun:   rank 5: killed by hvdrun (SIGKILL)\n"
           "hvdrun:   rank 6: exited with code 1\n");
}
END_TEST

START_TEST(the_host_is_that_of_one_rank_and_not_of_a_group)
{
    struct run_outcome ranks[] = {ended(HVI_FATE_SIGNALED, SIGTERM, true),
                                  ended(HVI_FATE_SIGNALED, SIGTERM, true),
                                  ended(HVI_FATE_EXITED, 3, true)};

    for (int i = 0; i < 3; i++)
        ranks[i].host = i < 1 ? "h1" : "h2";
    EXPECT(
        ranks, 3, 0,
        "hvdrun:   ranks 0-1: ended by hvdrun (SIGTERM)\nhvdrun:   rank 2: exited with code 3\n");
    EXPECT(ranks, 3, 2,
           "hvdrun:   rank 2 on h2: exited with code 3, the first to fail\n"
           "hvdrun:   ranks 0-1: ended by hvdrun (SIGTERM)\n");
}
END_TEST

START_TEST(several_ranks_were_killed)
{
    const struct run_outcome ranks[] = {ended(HVI_FATE_SIGNALED, SIGINT, false),
                                        ended(HVI_FATE_SIGNALED, SIGINT, false)};
    const struct run_outcome gone[] = {ended(HVI_FATE_UNKNOWN, 0, false),
                                       ended(HVI_FATE_UNKNOWN, 0, false)};
    EXPECT(ranks, 2, -1, "hvdrun:   ranks 0-1: were killed by signal 2 (SIGINT)\n");
    EXPECT(gone, 2, -1, "hvdrun:   ranks 0-1: are gone (how is not known)\n");
}
END_TEST

START_TEST(ranks_that_never_ran_are_said_to)
{
    const struct run_outcome ranks[] = {
        ended(HVI_FATE_SIGNALED, SIGTERM, true), {.ended = false}, {.ended = false}};
    EXPECT(ranks, 3, -1,
           "hvdrun:   rank 0: ended by hvdrun (SIGTERM)\nhvdrun:   ranks 1-2: never started\n");
}
END_TEST

START_TEST(a_thousand_ranks_are_one_line)
{
    static struct run_outcome ranks[1024];
    for (int i = 0; i < 1024; i++)
        ranks[i] = ended(HVI_FATE_EXITED, 0, false);
    EXPECT(ranks, 1024, -1, "hvdrun:   ranks 0-1023: exited with code 0\n");
}
END_TEST

START_TEST(a_ragged_thousand_is_cut_not_overrun)
{
    static struct run_outcome ranks[1024];
    char *text = NULL;
    size_t size = 0;
    for (int i = 0; i < 1024; i++)
        ranks[i] = ended(HVI_FATE_EXITED, i % 2, false);
    FILE *stream = open_memstream(&text, &size);
    run_end_summary(stream, ranks, 1024, -1);
    fclose(stream);
    ck_assert_uint_lt(size, 2048);
    free(text);
}
END_TEST

/* ---- decisions, with hands that write down what they are asked for ---- */

static char log_text[1024];
static struct run_options options;
static struct run_end end;

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));

static void note(const char *format, ...)
{
    va_list args;
    const size_t used = strlen(log_text);
    va_start(args, format);
    vsnprintf(log_text + used, sizeof log_text - used, format, args);
    va_end(args);
}

static void note_say(void *context, const char *text)
{
    (void)context;
    note("%s\n", text);
}

static void note_signal(void *context, int signal_number)
{
    (void)context;
    note("signal %d\n", signal_number);
}

static void note_mute(void *context)
{
    (void)context;
}

static void note_over(void *context, bool linger)
{
    (void)context;
    note("over%s\n", linger ? ", lingering" : "");
}

/* A job whose ranks all run: rank i is pid 100 + i, on host h0 or h1 in turn. */
static void begin(int ranks, int started)
{
    static const char *const hosts[] = {"h0", "h1"};
    const struct run_end_hands hands = {
        .say = note_say, .signal = note_signal, .mute = note_mute, .over = note_over};
    options = (struct run_options){.grace_ns = 5000, .report_ns = 1000};
    log_text[0] = '\0';
    run_end_fini(&end);
    ck_assert(run_end_init(&end, &options, ranks, &hands));
    for (int i = 0; i < started; i++)
        run_end_started(&end, i, 100 + i, hosts[i % 2]);
}

static void exit_of(int rank, enum hvi_fate_kind kind, int code, bool dying)
{
    const struct run_exit row = {
        .index = rank, .pid = 100 + rank, .fate = {kind, code}, .dying = dying};
    run_end_exited(&end, &row, 1);
}

START_TEST(all_that_end_well_may_linger)
{
    begin(2, 2);
    exit_of(0, HVI_FATE_EXITED, 0, false);
    ck_assert_str_eq(log_text, "");
    exit_of(1, HVI_FATE_EXITED, 0, false);
    ck_assert_str_eq(log_text, "over, lingering\n");
    ck_assert_int_eq(end.exit_code, 0);
    ck_assert_ptr_null(run_end_report(&end));
}
END_TEST

START_TEST(a_job_is_not_over_while_a_host_is_still_starting)
{
    begin(2, 1);
    exit_of(0, HVI_FATE_EXITED, 0, false);
    ck_assert_str_eq(log_text, "");
    run_end_started(&end, 1, 101, "h1");
    exit_of(1, HVI_FATE_EXITED, 0, false);
    ck_assert_str_eq(log_text, "over, lingering\n");
}
END_TEST

START_TEST(the_first_failure_is_named_with_its_host_and_ends_the_others_in_time)
{
    begin(3, 3);
    exit_of(1, HVI_FATE_EXITED, 3, false);
    ck_assert_str_eq(log_text, "rank 1 (pid 101) on h1 exited with code 3\n"
                               "Terminating remaining workers after failure of Process 1.\n");
    log_text[0] = '\0';
    run_end_tick(&end, end.term_at_ns - 1);
    ck_assert_str_eq(log_text, "");
    run_end_tick(&end, end.term_at_ns);
    ck_assert_str_eq(log_text, "signal 15\nsignal 18\n");
    log_text[0] = '\0';
    exit_of(2, HVI_FATE_SIGNALED, SIGTERM, false);
    run_end_tick(&end, end.kill_at_ns);
    ck_assert_str_eq(log_text, "1 rank is still running after the grace time; killing\n"
                               "signal 9\nsignal 18\n");
    exit_of(0, HVI_FATE_SIGNALED, SIGKILL, false);
    ck_assert_int_eq(end.exit_code, 3);
    ck_assert(end.over);
}
END_TEST

START_TEST(a_dying_rank_is_blamed_and_ends_later)
{
    const struct run_exit rows[] = {
        {.index = 0, .pid = 100, .fate = {HVI_FATE_EXITED, 1}},
        {.index = 1, .pid = 101, .fate = {HVI_FATE_SIGNALED, SIGKILL}, .dying = true}};
    begin(2, 2);
    run_end_exited(&end, rows, 2);
    ck_assert_int_eq(end.first_failed, 1);
    ck_assert_int_eq(end.exit_code, 137);
    ck_assert(!end.over);
    exit_of(1, HVI_FATE_SIGNALED, SIGKILL, false);
    ck_assert(end.over);
}
END_TEST

static void note_look(void *context)
{
    (void)context;
    note("look\n");
}

START_TEST(on_several_hosts_a_killed_rank_is_looked_for_before_an_exit_is_blamed)
{
    begin(2, 2);
    end.hands.look = note_look;
    exit_of(0, HVI_FATE_EXITED, 1, false);
    ck_assert_str_eq(log_text, "look\n");
    exit_of(1, HVI_FATE_SIGNALED, SIGSEGV, true);
    ck_assert_int_eq(end.first_failed, 1);
    run_end_looked(&end);
    ck_assert_int_eq(end.first_failed, 1);
    ck_assert_int_eq(end.exit_code, 139);
}
END_TEST

START_TEST(an_exit_is_blamed_when_nothing_else_is_found)
{
    begin(2, 2);
    end.hands.look = note_look;
    exit_of(0, HVI_FATE_EXITED, 1, false);
    ck_assert_int_eq(end.first_failed, -1);
    run_end_looked(&end);
    ck_assert_int_eq(end.first_failed, 0);
    begin(2, 2);
    end.hands.look = note_look;
    exit_of(0, HVI_FATE_EXITED, 1, false);
    ck_assert(run_end_next_ns(&end) == end.look_until_ns);
    run_end_tick(&end, end.look_until_ns);
    ck_assert_int_eq(end.first_failed, 0);
    begin(2, 2);
    end.hands.look = note_look;
    exit_of(0, HVI_FATE_EXITED, 1, false);
    exit_of(1, HVI_FATE_EXITED, 2, false);
    ck_assert_int_eq(end.first_failed, 0);
    ck_assert_int_eq(end.exit_code, 1);
    ck_assert(end.over);
}
END_TEST

START_TEST(a_rank_whose_host_is_lost_has_failed)
{
    begin(2, 2);
    exit_of(1, HVI_FATE_UNKNOWN, 0, false);
    ck_assert_int_eq(end.exit_code, 1);
    ck_assert_ptr_nonnull(strstr(log_text, "rank 1 (pid 101) on h1 is gone (how is not known)"));
    exit_of(0, HVI_FATE_EXITED, 0, false);
    char *report = run_end_report(&end);
    ck_assert_ptr_nonnull(
        strstr(report, "rank 1 on h1: is gone (how is not known), the first to fail"));
    free(report);
}
END_TEST

START_TEST(when_the_job_is_given_up_no_rank_is_blamed)
{
    begin(3, 1);
    run_end_give_up(&end);
    run_end_not_started(&end, 1);
    ck_assert_str_eq(log_text, "signal 15\nsignal 18\n");
    run_end_started(&end, 1, 101, "h1");
    exit_of(0, HVI_FATE_SIGNALED, SIGTERM, false);
    ck_assert(!end.over);
    exit_of(1, HVI_FATE_SIGNALED, SIGTERM, false);
    ck_assert_str_eq(log_text, "signal 15\nsignal 18\nover\n");
    ck_assert_int_eq(end.first_failed, -1);
    ck_assert_ptr_null(run_end_report(&end));
}
END_TEST

START_TEST(nothing_that_runs_is_over_at_once_when_given_up)
{
    begin(2, 0);
    run_end_give_up(&end);
    run_end_not_started(&end, 2);
    ck_assert_str_eq(log_text, "signal 15\nsignal 18\nover\n");
}
END_TEST

START_TEST(a_second_signal_kills)
{
    begin(1, 1);
    run_end_signal(&end, SIGINT);
    ck_assert_str_eq(log_text, "received signal 2 (SIGINT); passed on to every rank\nsignal 2\n");
    log_text[0] = '\0';
    end.stopped_ns -= RUN_END_APART_NS;
    run_end_signal(&end, SIGINT);
    ck_assert_str_eq(log_text, "received signal 2 (SIGINT) again; killing\nsignal 9\nsignal 18\n");
    ck_assert(end.impatient);
    exit_of(0, HVI_FATE_SIGNALED, SIGKILL, false);
    ck_assert_int_eq(end.exit_code, 137);
}
END_TEST

START_TEST(what_sigkill_does_not_end_is_named_and_given_up)
{
    begin(2, 2);
    run_end_signal(&end, SIGINT);
    end.stopped_ns -= RUN_END_APART_NS;
    run_end_signal(&end, SIGINT);
    ck_assert_uint_eq(run_end_next_ns(&end), end.stuck_at_ns);
    exit_of(0, HVI_FATE_SIGNALED, SIGKILL, false);
    log_text[0] = '\0';
    run_end_tick(&end, end.stuck_at_ns - 1);
    ck_assert_str_eq(log_text, "");
    run_end_tick(&end, end.stuck_at_ns);
    ck_assert_str_eq(
        log_text, "rank 1 (pid 101) on h1 is held by the kernel: SIGKILL does not end it\nover\n");
    ck_assert_int_eq(end.exit_code, 137);
    ck_assert_uint_eq(run_end_next_ns(&end), HVI_NEVER);
}
END_TEST

START_TEST(signals_that_come_together_do_not_kill)
{
    begin(1, 1);
    run_end_signal(&end, SIGTERM);
    log_text[0] = '\0';
    end.stopped_ns = hvi_clock_ns(); /* however long that has taken */
    run_end_signal(&end, SIGTERM);
    ck_assert_str_eq(log_text, "");
    end.stopped_ns = hvi_clock_ns();
    run_end_signal(&end, SIGINT);
    ck_assert_str_eq(log_text, "signal 2\n");
    ck_assert(!end.impatient);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/end");
    TCase *tests = tcase_create("end");
    tcase_add_test(tests, a_signal_is_128_more);
    tcase_add_test(tests, the_first_failure_comes_first_and_equals_are_grouped);
    tcase_add_test(tests, the_host_is_that_of_one_rank_and_not_of_a_group);
    tcase_add_test(tests, several_ranks_were_killed);
    tcase_add_test(tests, ranks_that_never_ran_are_said_to);
    tcase_add_test(tests, a_thousand_ranks_are_one_line);
    tcase_add_test(tests, a_ragged_thousand_is_cut_not_overrun);
    tcase_add_test(tests, all_that_end_well_may_linger);
    tcase_add_test(tests, a_job_is_not_over_while_a_host_is_still_starting);
    tcase_add_test(tests, the_first_failure_is_named_with_its_host_and_ends_the_others_in_time);
    tcase_add_test(tests, a_dying_rank_is_blamed_and_ends_later);
    tcase_add_test(tests, on_several_hosts_a_killed_rank_is_looked_for_before_an_exit_is_blamed);
    tcase_add_test(tests, an_exit_is_blamed_when_nothing_else_is_found);
    tcase_add_test(tests, a_rank_whose_host_is_lost_has_failed);
    tcase_add_test(tests, when_the_job_is_given_up_no_rank_is_blamed);
    tcase_add_test(tests, nothing_that_runs_is_over_at_once_when_given_up);
    tcase_add_test(tests, a_second_signal_kills);
    tcase_add_test(tests, what_sigkill_does_not_end_is_named_and_given_up);
    tcase_add_test(tests, signals_that_come_together_do_not_kill);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
