/* SPDX-License-Identifier: Apache-2.0
 * A relay as hvdrun sees it: what its processes read and write, how they end, and that none is left when hvdrun goes. */
#include "tools/hvdrun/relay.h"

#include "base/clock.h"
#include "base/fate.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/tools/hvdrun/hvt_talk.h"

#include <signal.h>

static struct hvt_talk talk;
static uint64_t patience_ns, silence_ns;

static void setup(void)
{
    signal(SIGPIPE, SIG_IGN);
    patience_ns = 10 * HVI_NS_SEC;
    silence_ns = 0;
}

static void open_words(uint32_t number, unsigned char *words, size_t bytes)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_OPEN,
                                       .open = {.number = number,
                                                .command = words,
                                                .command_bytes = bytes,
                                                .patience_ns = patience_ns,
                                                .silence_ns = silence_ns}};
    hvt_talk_send(&talk, &msg);
}

static void open_script(uint32_t number, const char *script)
{
    unsigned char *words;
    const size_t bytes = hvt_talk_words(&words, "/bin/sh", "-c", script, NULL);
    open_words(number, words, bytes);
}

static void send_down(uint32_t number, const char *text)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_DOWN,
                                       .pass = {.number = number,
                                                .data = (unsigned char *)(uintptr_t)text,
                                                .bytes = strlen(text)}};
    hvt_talk_send(&talk, &msg);
}

static void hang_up(uint32_t number, bool kill)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_HANG_UP,
                                       .hang_up = {.number = number, .kill = kill}};
    hvt_talk_send(&talk, &msg);
}

static void expect_gone(uint32_t number, bool signaled, int code)
{
    const struct hvi_launch_msg msg = hvt_talk_expect(&talk, HVI_LAUNCH_GONE);
    ck_assert_uint_eq(msg.gone.number, number);
    ck_assert(msg.gone.signaled == signaled);
    ck_assert_int_eq(msg.gone.code, code);
}

static void leave(void)
{
    hvt_talk_go(&talk);
    ck_assert_int_eq(hvt_talk_end(&talk), 0);
}

/* The process that has printed its number. */
static pid_t printed_pid(void)
{
    hvt_talk_gather(&talk, 1, 2);
    while (strchr(talk.output[0], '\n') == NULL)
        hvt_talk_gather(&talk, 1, strlen(talk.output[0]) + 1);
    const pid_t pid = (pid_t)strtol(talk.output[0], NULL, 10);
    ck_assert_int_ne(hvi_process_state(pid), 'X');
    return pid;
}

START_TEST(bytes_go_both_ways_and_are_acknowledged)
{
    hvt_talk_start(&talk, run_relay);
    open_script(7, "cat");
    send_down(7, "some words\n");
    const struct hvi_launch_msg taken = hvt_talk_expect(&talk, HVI_LAUNCH_TAKEN);
    ck_assert_uint_eq(taken.taken.number, 7);
    ck_assert_uint_eq(taken.taken.bytes, 11);
    hvt_talk_gather(&talk, 1, 11);
    hang_up(7, false);
    expect_gone(7, false, 0);
    ck_assert_str_eq(talk.output[0], "some words\n");
    ck_assert_str_eq(talk.output[1], "");
    leave();
}
END_TEST

START_TEST(the_last_words_come_before_the_end)
{
    hvt_talk_start(&talk, run_relay);
    open_script(UINT32_MAX, "echo out; echo err >&2; exit 3");
    expect_gone(UINT32_MAX, false, 3);
    ck_assert_str_eq(talk.output[0], "out\n");
    ck_assert_str_eq(talk.output[1], "err\n");
    leave();
}
END_TEST

START_TEST(a_process_that_reads_late_takes_everything)
{
    static unsigned char much[HVI_LAUNCH_DATA_MAX];
    size_t taken = 0;
    memset(much, 'x', sizeof much);
    hvt_talk_start(&talk, run_relay);
    open_script(1, "sleep 0.05; wc -c");
    for (int i = 0; i < 4; i++) {
        const struct hvi_launch_msg msg = {
            .kind = HVI_LAUNCH_DOWN, .pass = {.number = 1, .data = much, .bytes = sizeof much}};
        hvt_talk_send(&talk, &msg);
    }
    while (taken < 4 * sizeof much) {
        const struct hvi_launch_msg msg = hvt_talk_expect(&talk, HVI_LAUNCH_TAKEN);
        taken += msg.taken.bytes;
    }
    ck_assert_uint_eq(taken, 4 * sizeof much);
    hang_up(1, false);
    expect_gone(1, false, 0);
    ck_assert_str_eq(talk.output[0], "1048576\n");
    leave();
}
END_TEST

START_TEST(what_cannot_be_started_is_told_and_gone)
{
    unsigned char *words;
    const size_t bytes = hvt_talk_words(&words, "/nonexistent/agent", "--node", NULL);
    hvt_talk_start(&talk, run_relay);
    open_words(4, words, bytes);
    expect_gone(4, false, 255);
    ck_assert_str_eq(talk.output[1],
                     "cannot start /nonexistent/agent: No such file or directory\n");
    open_script(4, "exit 1"); /* its number is free again */
    expect_gone(4, false, 1);
    leave();
}
END_TEST

START_TEST(a_process_is_killed_on_demand)
{
    hvt_talk_start(&talk, run_relay);
    open_script(2, "echo $$; trap '' TERM HUP; while :; do sleep 1; done");
    const pid_t pid = printed_pid();
    hang_up(2, true);
    expect_gone(2, true, SIGKILL);
    ck_assert(hvt_talk_is_over(pid));
    leave();
}
END_TEST

START_TEST(what_comes_for_an_ended_process_is_dropped)
{
    hvt_talk_start(&talk, run_relay);
    send_down(9, "nobody");
    hang_up(9, true);
    open_script(9, "echo here");
    expect_gone(9, false, 0);
    ck_assert_str_eq(talk.output[0], "here\n");
    leave();
}
END_TEST

START_TEST(the_end_of_hvdrun_is_that_of_every_input)
{
    hvt_talk_start(&talk, run_relay);
    open_script(1, "echo $$; cat >/dev/null");
    const pid_t pid = printed_pid();
    hvt_talk_go(&talk);
    ck_assert_int_eq(hvt_talk_end(&talk), 0);
    ck_assert(hvt_talk_is_over(pid));
}
END_TEST

START_TEST(what_does_not_end_by_itself_is_killed_after_the_patience)
{
    patience_ns = 20 * HVI_NS_MS;
    hvt_talk_start(&talk, run_relay);
    open_script(1, "echo $$; while :; do sleep 1; done");
    const pid_t pid = printed_pid();
    hvt_talk_go(&talk);
    ck_assert_int_eq(hvt_talk_end(&talk), 0);
    ck_assert(hvt_talk_is_over(pid));
}
END_TEST

START_TEST(a_signal_ends_it_as_the_end_of_hvdrun_does)
{
    hvt_talk_start(&talk, run_relay);
    open_script(1, "echo $$; cat >/dev/null");
    const pid_t pid = printed_pid();
    ck_assert_int_eq(kill(talk.pid, SIGTERM), 0);
    ck_assert_int_eq(hvt_talk_end(&talk), 0);
    ck_assert(hvt_talk_is_over(pid));
}
END_TEST

START_TEST(a_number_that_is_in_use_ends_the_conversation)
{
    patience_ns = 20 * HVI_NS_MS;
    hvt_talk_start(&talk, run_relay);
    open_script(1, "echo $$; while :; do sleep 1; done");
    const pid_t pid = printed_pid();
    open_script(1, "exit 0");
    ck_assert_int_eq(hvt_talk_end(&talk), 0);
    ck_assert(hvt_talk_is_over(pid));
}
END_TEST

START_TEST(a_message_for_an_agent_ends_the_conversation)
{
    const struct hvi_launch_msg msg = {.kind = HVI_LAUNCH_LOOK};
    hvt_talk_start(&talk, run_relay);
    hvt_talk_send(&talk, &msg);
    ck_assert_int_eq(hvt_talk_end(&talk), 0);
}
END_TEST

START_TEST(without_processes_silence_ends_it)
{
    silence_ns = 50 * HVI_NS_MS;
    hvt_talk_start(&talk, run_relay);
    const uint64_t before_ns = hvi_clock_ns();
    open_script(1, "sleep 0.2"); /* whose own silence time counts while it runs */
    expect_gone(1, false, 0);
    ck_assert_uint_ge(hvi_clock_ns() - before_ns, 200 * HVI_NS_MS);
    ck_assert_int_eq(hvt_talk_end(&talk), 0); /* hvdrun has not gone */
}
END_TEST

START_TEST(before_its_first_process_silence_ends_it_too)
{
    const uint64_t before_ns = hvi_clock_ns();
    hvt_talk_start_for(&talk, run_relay, 50 * HVI_NS_MS);
    ck_assert_int_eq(hvt_talk_end(&talk), 0); /* hvdrun has not gone */
    ck_assert_uint_lt(hvi_clock_ns() - before_ns, 15 * HVI_NS_SEC);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/relay");
    TCase *tests = tcase_create("relay");
    tcase_set_timeout(tests, 60);
    tcase_add_checked_fixture(tests, setup, NULL);
    tcase_add_test(tests, bytes_go_both_ways_and_are_acknowledged);
    tcase_add_test(tests, the_last_words_come_before_the_end);
    tcase_add_test(tests, a_process_that_reads_late_takes_everything);
    tcase_add_test(tests, what_cannot_be_started_is_told_and_gone);
    tcase_add_test(tests, a_process_is_killed_on_demand);
    tcase_add_test(tests, what_comes_for_an_ended_process_is_dropped);
    tcase_add_test(tests, the_end_of_hvdrun_is_that_of_every_input);
    tcase_add_test(tests, what_does_not_end_by_itself_is_killed_after_the_patience);
    tcase_add_test(tests, a_signal_ends_it_as_the_end_of_hvdrun_does);
    tcase_add_test(tests, a_number_that_is_in_use_ends_the_conversation);
    tcase_add_test(tests, a_message_for_an_agent_ends_the_conversation);
    tcase_add_test(tests, without_processes_silence_ends_it);
    tcase_add_test(tests, before_its_first_process_silence_ends_it_too);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
