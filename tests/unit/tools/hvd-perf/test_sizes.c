/* SPDX-License-Identifier: Apache-2.0
 * The file of tensor sizes that hvd-perf -o gradients reads. */
#include "tools/hvd-perf/perf.h"

#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t *counts;
static long count;
static char text[512];

static int read_text(const char *content)
{
    char path[] = "/tmp/hvt-sizes-XXXXXX";
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    close(fd);
    text[0] = '\0';
    const int result = perf_sizes_read(path, &counts, &count, text, sizeof text);
    unlink(path);
    return result;
}

START_TEST(numbers_names_comments_and_empty_lines)
{
    ck_assert_int_eq(read_text("# a model\n9408 conv1.weight\n\n64\tbn1.weight\n64\n"), 0);
    ck_assert_int_eq(count, 3);
    ck_assert_uint_eq(counts[0], 9408);
    ck_assert_uint_eq(counts[1], 64);
    ck_assert_uint_eq(counts[2], 64);
    free(counts);
}
END_TEST

#define EXPECT_ERROR(content, part)                                                                \
    do {                                                                                           \
        ck_assert_int_eq(read_text(content), -1);                                                  \
        ck_assert_msg(strstr(text, (part)) != NULL, "says '%s'", text);                            \
    } while (0)

START_TEST(nonsense_is_refused_with_its_line)
{
    EXPECT_ERROR("64\nconv1 64\n", ":2: ");
    EXPECT_ERROR("64\n0 nothing\n", "'0 nothing'");
    EXPECT_ERROR("-3\n", ":1: ");
    EXPECT_ERROR("12x\n", "'12x'");
    EXPECT_ERROR("# only words\n", "no tensor");
    ck_assert_int_eq(perf_sizes_read("/dev/null/sizes", &counts, &count, text, sizeof text), -1);
    ck_assert_msg(strstr(text, "/dev/null/sizes") != NULL, "says '%s'", text);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvd-perf/sizes");
    TCase *tests = tcase_create("sizes");
    tcase_add_test(tests, numbers_names_comments_and_empty_lines);
    tcase_add_test(tests, nonsense_is_refused_with_its_line);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
