/* SPDX-License-Identifier: Apache-2.0
 * hvdrun's command line: horovodrun's words, refusals with a sentence, and the command left alone. */
#include "tools/run_options.h"

#include "tests/unit/hvt_main.h"

#include <string.h>

#define WORDS_MAX 24

static struct run_options options;
static char text[512];

/* Parses a line of words separated by blanks. */
static int parse(const char *line)
{
    static char copy[512];
    static char *argv[WORDS_MAX];
    int argc = 0;
    snprintf(copy, sizeof copy, "hvdrun %s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    text[0] = '\0';
    return run_options_parse(argc, argv, &options, text, sizeof text);
}

#define EXPECT_ERROR(line, part)                                                                   \
    do {                                                                                           \
        ck_assert_int_eq(parse(line), -1);                                                         \
        ck_assert_msg(strstr(text, (part)) != NULL, "'%s' says '%s'", (line), text);               \
    } while (0)

START_TEST(the_number_of_ranks_has_three_spellings)
{
    ck_assert_int_eq(parse("-np 4 true"), 0);
    ck_assert_int_eq(options.ranks, 4);
    ck_assert_int_eq(parse("--num-proc 5 true"), 0);
    ck_assert_int_eq(options.ranks, 5);
    ck_assert_int_eq(parse("--num-proc=6 true"), 0);
    ck_assert_int_eq(options.ranks, 6);
    ck_assert_int_eq(parse("--np=7 true"), 0);
    ck_assert_int_eq(options.ranks, 7);
}
END_TEST

START_TEST(everything_after_the_command_is_the_commands)
{
    ck_assert_int_eq(parse("-np 2 python -np 3 --verbose -- x"), 0);
    ck_assert_int_eq(options.ranks, 2);
    ck_assert(!options.verbose);
    ck_assert_str_eq(options.command[0], "python");
    ck_assert_str_eq(options.command[1], "-np");
    ck_assert_str_eq(options.command[4], "--");
    ck_assert_str_eq(options.command[5], "x");
    ck_assert_ptr_null(options.command[6]);
    ck_assert_int_eq(parse("-np 2 -- --odd-name"), 0);
    ck_assert_str_eq(options.command[0], "--odd-name");
}
END_TEST

START_TEST(options_reach_their_members)
{
    ck_assert_int_eq(parse("-np 1 --address /a --hvdd /h --output-filename o --verbose --grace 0.5 "
                           "--start-timeout 7 --log-level DEBUG --no-prefix --no-stall-check x"),
                     0);
    ck_assert_str_eq(options.address, "/a");
    ck_assert_str_eq(options.hvdd, "/h");
    ck_assert_str_eq(options.output_dir, "o");
    ck_assert_str_eq(options.log_level, "DEBUG");
    ck_assert(options.verbose && options.no_prefix && options.no_stall_check);
    ck_assert(options.grace_ns == 500000000 && options.start_timeout_ns == 7000000000ull);
    ck_assert_int_eq(parse("-np 1 --stall-check-warning-time-seconds 3 -prefix-timestamp x"), 0);
    ck_assert(options.stall_warn_ns == 3000000000ull && options.timestamps);
    ck_assert_int_eq(parse("-np 1 --prefix-output-with-timestamp --disable-prefix x"), 0);
    ck_assert(options.timestamps && options.no_prefix);
}
END_TEST

START_TEST(defaults_are_five_and_thirty_seconds)
{
    ck_assert_int_eq(parse("-np 1 x"), 0);
    ck_assert(options.grace_ns == 5000000000ull && options.start_timeout_ns == 30000000000ull);
    ck_assert_ptr_null(options.address);
    ck_assert(options.stall_warn_ns == 0 && !options.no_stall_check && !options.timestamps);
}
END_TEST

START_TEST(a_number_of_ranks_must_make_sense)
{
    EXPECT_ERROR("-np 0 true", "'0'");
    EXPECT_ERROR("-np -1 true", "'-1'");
    EXPECT_ERROR("-np four true", "'four'");
    EXPECT_ERROR("-np 2x true", "'2x'");
    EXPECT_ERROR("-np 1025 true", "1 to 1024");
    EXPECT_ERROR("-np", "needs a value");
    EXPECT_ERROR("true", "-np N");
    EXPECT_ERROR("-np 2", "which command");
}
END_TEST

START_TEST(only_this_machine_is_accepted)
{
    ck_assert_int_eq(parse("-H localhost:3 true"), 0);
    ck_assert_int_eq(options.ranks, 3);
    ck_assert_int_eq(parse("-np 2 --hosts 127.0.0.1:4 true"), 0);
    ck_assert_int_eq(options.ranks, 2);
    EXPECT_ERROR("-np 2 -H worker-1:2 true", "this machine only");
    EXPECT_ERROR("-np 2 -H localhost:1,worker:1 true", "this machine only");
    EXPECT_ERROR("-np 2 -H localhost true", "localhost:N");
    EXPECT_ERROR("-np 5 -H localhost:4 true",
                 "requested more processes (5) than there are available slots (4)");
}
END_TEST

START_TEST(what_cannot_be_done_is_refused_with_a_reason)
{
    EXPECT_ERROR("-np 2 -hostfile f true", "this machine only");
    EXPECT_ERROR("-np 2 --hostfile=f true", "this machine only");
    EXPECT_ERROR("-np 2 -p 22 true", "--ssh-port is not available");
    EXPECT_ERROR("-np 2 --timeline-filename f true", "timelines come later");
    EXPECT_ERROR("-np 2 --min-np 1 true", "elastic jobs come later");
    EXPECT_ERROR("-np 2 --gloo true", "--gloo");
    EXPECT_ERROR("-np 2 --cycle-time-ms 1 true", "no such knob");
}
END_TEST

START_TEST(other_words_are_unknown)
{
    EXPECT_ERROR("-np 2 --nonsense true", "--nonsense");
    EXPECT_ERROR("-n 2 true", "-n");
    EXPECT_ERROR("-np 2 --grace soon true", "'soon'");
    EXPECT_ERROR("-np 2 --log-level loud true", "'loud'");
}
END_TEST

START_TEST(help_version_and_check_build_need_no_command)
{
    ck_assert_int_eq(parse("--help"), 0);
    ck_assert(options.help);
    ck_assert_int_eq(parse("-v"), 0);
    ck_assert(options.version);
    ck_assert_int_eq(parse("-cb"), 0);
    ck_assert(options.check_build);
}
END_TEST

START_TEST(help_names_every_usable_option_and_no_refused_one)
{
    char *help = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&help, &size);
    run_options_help(stream);
    fclose(stream);
    ck_assert_ptr_nonnull(strstr(help, "-np, --num-proc N "));
    ck_assert_ptr_nonnull(strstr(help, "--grace S"));
    ck_assert_ptr_null(strstr(help, "hostfile"));
    free(help);
}
END_TEST

START_TEST(check_build_has_horovodruns_form)
{
    char *build = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&build, &size);
    run_options_check_build(stream);
    fclose(stream);
    ck_assert_ptr_nonnull(strstr(build, "Available Frameworks:\n    [X] C\n"));
    ck_assert_ptr_nonnull(strstr(build, "\nAvailable Controllers:\n    [X] hvdd\n"));
    ck_assert_ptr_nonnull(strstr(build, "\nAvailable Tensor Operations:\n"));
    ck_assert_ptr_nonnull(strstr(build, "    [ ] NCCL\n"));
    free(build);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/run_options");
    TCase *tests = tcase_create("options");
    tcase_add_test(tests, the_number_of_ranks_has_three_spellings);
    tcase_add_test(tests, everything_after_the_command_is_the_commands);
    tcase_add_test(tests, options_reach_their_members);
    tcase_add_test(tests, defaults_are_five_and_thirty_seconds);
    tcase_add_test(tests, a_number_of_ranks_must_make_sense);
    tcase_add_test(tests, only_this_machine_is_accepted);
    tcase_add_test(tests, what_cannot_be_done_is_refused_with_a_reason);
    tcase_add_test(tests, other_words_are_unknown);
    tcase_add_test(tests, help_version_and_check_build_need_no_command);
    tcase_add_test(tests, help_names_every_usable_option_and_no_refused_one);
    tcase_add_test(tests, check_build_has_horovodruns_form);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
