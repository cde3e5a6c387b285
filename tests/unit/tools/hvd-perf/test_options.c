/* SPDX-License-Identifier: Apache-2.0
 * hvd-perf's command line. */
#include "tools/hvd-perf/perf.h"

#include "tests/unit/hvt_main.h"

#include <string.h>

static struct perf_options options;
static char text[512];

static int parse(const char *line)
{
    static char copy[512];
    static char *argv[32];
    int argc = 0;
    snprintf(copy, sizeof copy, "hvd-perf %s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " "))
        argv[argc++] = word;
    argv[argc] = NULL;
    text[0] = '\0';
    return perf_options_parse(argc, argv, &options, text, sizeof text);
}

#define EXPECT_ERROR(line, part)                                                                   \
    do {                                                                                           \
        ck_assert_int_eq(parse(line), -1);                                                         \
        ck_assert_msg(strstr(text, (part)) != NULL, "'%s' says '%s'", (line), text);               \
    } while (0)

START_TEST(defaults_are_an_allreduce_from_4_bytes_to_64_mib)
{
    ck_assert_int_eq(parse(""), 0);
    ck_assert(options.op == PERF_ALLREDUCE && options.dtype == HVD_FLOAT32 &&
              options.reduce_op == HVD_SUM && options.memory == PERF_SHARED);
    ck_assert(options.bytes_min == 4 && options.bytes_max == 64u << 20 && options.factor == 4);
    ck_assert(options.warmup == 5 && options.iterations == 0 && options.outstanding == 1);
    ck_assert(!options.check && !options.json && options.ranks == 0);
}
END_TEST

START_TEST(options_reach_their_members)
{
    ck_assert_int_eq(
        parse("-o broadcast -n 4 -b 1K -e 2M -f 2 -d bf16 -r max -m malloc -w 0 -i 7 -c "
              "--json --memcpy --outstanding 8 --address /a --no-barrier"),
        0);
    ck_assert(options.op == PERF_BROADCAST && options.ranks == 4 && options.bytes_min == 1024 &&
              options.bytes_max == 2 << 20 && options.factor == 2);
    ck_assert(options.dtype == HVD_BFLOAT16 && options.reduce_op == HVD_MAX &&
              options.memory == PERF_MALLOC && options.warmup == 0 && options.iterations == 7);
    ck_assert(options.check && options.json && options.reference && options.no_barrier);
    ck_assert(!options.unnamed);
    ck_assert_int_eq(options.outstanding, 8);
    ck_assert_str_eq(options.address, "/a");
    ck_assert_int_eq(parse("--attach 300 --out-of-place -m registered --unnamed"), 0);
    ck_assert(options.attach == 300 && options.out_of_place && options.memory == PERF_REGISTERED);
    ck_assert(options.unnamed);
}
END_TEST

START_TEST(gradients_need_a_file_of_sizes_and_nothing_else_does)
{
    ck_assert_int_eq(parse("-o gradients --sizes /f --seconds 0.5"), 0);
    ck_assert(options.op == PERF_GRADIENTS && options.budget_ns == 500000000);
    ck_assert_str_eq(options.sizes, "/f");
    EXPECT_ERROR("-o gradients", "--sizes FILE");
    EXPECT_ERROR("--sizes /f", "-o gradients only");
    EXPECT_ERROR("-o gradients --sizes /f --outstanding 2", "--outstanding");
    EXPECT_ERROR("--seconds 0", "--seconds");
    ck_assert_int_eq(parse("--idle 2"), 0);
    ck_assert(options.idle_ns == 2000000000 && options.budget_ns == 1000000000);
}
END_TEST

START_TEST(a_smallest_size_above_the_default_largest_is_one_size)
{
    ck_assert_int_eq(parse("-b 1G"), 0);
    ck_assert(options.bytes_max == 1u << 30);
}
END_TEST

START_TEST(nonsense_is_refused_with_what_is_possible)
{
    EXPECT_ERROR("-o reduce", "allgather");
    EXPECT_ERROR("-d complex", "float16");
    EXPECT_ERROR("-m gpu", "registered or adopted");
    EXPECT_ERROR("-n 0", "'0'");
    EXPECT_ERROR("-f 1", "'1'");
    EXPECT_ERROR("-i many", "'many'");
    EXPECT_ERROR("-b 1Q", "'1Q'");
    EXPECT_ERROR("allreduce", "-o");
    EXPECT_ERROR("--nope", "--nope");
    EXPECT_ERROR("-b", "missing");
    EXPECT_ERROR("-i 1000001", "at most 1,000,000");
    EXPECT_ERROR("--outstanding 1025", "at most 1024");
    EXPECT_ERROR("--unnamed --new-names", "do not go together");
}
END_TEST

START_TEST(words_have_their_proper_form)
{
    ck_assert_str_eq(perf_op_text(PERF_ALLGATHER), "allgather");
    ck_assert_str_eq(perf_dtype_text(HVD_FLOAT16), "float16");
    ck_assert_str_eq(perf_reduce_text(HVD_AVERAGE), "average");
    ck_assert_str_eq(perf_memory_text(PERF_SHARED), "shared");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvd-perf/options");
    TCase *tests = tcase_create("options");
    tcase_add_test(tests, defaults_are_an_allreduce_from_4_bytes_to_64_mib);
    tcase_add_test(tests, options_reach_their_members);
    tcase_add_test(tests, gradients_need_a_file_of_sizes_and_nothing_else_does);
    tcase_add_test(tests, a_smallest_size_above_the_default_largest_is_one_size);
    tcase_add_test(tests, nonsense_is_refused_with_what_is_possible);
    tcase_add_test(tests, words_have_their_proper_form);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
