/* SPDX-License-Identifier: Apache-2.0
 * Exit codes and the summary: who failed first, and what became of the others. */
#include "tools/hvdrun/end.h"

#include "tests/unit/hvt_main.h"

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

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/end");
    TCase *tests = tcase_create("end");
    tcase_add_test(tests, a_signal_is_128_more);
    tcase_add_test(tests, the_first_failure_comes_first_and_equals_are_grouped);
    tcase_add_test(tests, ranks_that_never_ran_are_said_to);
    tcase_add_test(tests, a_thousand_ranks_are_one_line);
    tcase_add_test(tests, a_ragged_thousand_is_cut_not_overrun);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
