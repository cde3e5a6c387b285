/* SPDX-License-Identifier: Apache-2.0
 * The configuration file: what of YAML is taken, and what is said about the rest. */
#include "tools/hvdrun/config.h"

#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char text[512];
static char seen[1024];

/* Collects "key=value@line ". */
static int collect(void *context, const struct run_config_entry *entry, char *text_p, size_t size)
{
    const size_t used = strlen(seen);
    (void)context;
    if (strcmp(entry->value, "refuse") == 0) {
        snprintf(text_p, size, "%s is refused", entry->key);
        return -1;
    }
    snprintf(seen + used, sizeof seen - used, "%s=%s@%zu ", entry->key, entry->value, entry->line);
    return 0;
}

static int read_text(const char *content)
{
    char path[] = "/tmp/hvt-config-XXXXXX";
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, content, strlen(content)), (ssize_t)strlen(content));
    close(fd);
    text[0] = seen[0] = '\0';
    const int status = run_config_read(path, collect, NULL, text, sizeof text);
    unlink(path);
    return status;
}

#define EXPECT(content, entries)                                                                   \
    do {                                                                                           \
        ck_assert_msg(read_text(content) == 0, "%s", text);                                        \
        ck_assert_str_eq(seen, entries);                                                           \
    } while (0)

#define EXPECT_ERROR(content, part)                                                                \
    do {                                                                                           \
        ck_assert_int_eq(read_text(content), -1);                                                  \
        ck_assert_msg(strstr(text, (part)) != NULL, "'%s' says '%s'", (content), text);            \
    } while (0)

START_TEST(keys_and_sections_come_in_order)
{
    EXPECT("b: 1\na:\n  y: two words\n  x: 0.5 # why\nc: {p: q, r: s}\n",
           "b=1@1 a.y=two words@3 a.x=0.5@4 c.p=q@5 c.r=s@5 ");
}
END_TEST

START_TEST(truth_has_one_spelling_unless_it_is_quoted)
{
    EXPECT("a: true\nb: Yes\nc: ON\nd: FALSE\ne: no\nf: Off\ng: 'yes'\nh: \"no\"\n",
           "a=true@1 b=true@2 c=true@3 d=false@4 e=false@5 f=false@6 g=yes@7 h=no@8 ");
}
END_TEST

START_TEST(what_is_empty_is_not_there)
{
    EXPECT("", "");
    EXPECT("# nothing\n", "");
    EXPECT("---\n...\n", "");
    EXPECT("a:\nb: ~\nc: null\nd: ''\n", "d=@4 ");
}
END_TEST

START_TEST(an_alias_is_what_it_stands_for)
{
    EXPECT("a: &x {k: 1}\nb: *x\n", "a.k=1@1 b.k=1@1 ");
}
END_TEST

START_TEST(what_is_deeper_or_no_mapping_is_an_error_with_its_line)
{
    EXPECT_ERROR("a:\n  b:\n    c: 1\n", ":2: the value is to be one word or number");
    EXPECT_ERROR("a: [1, 2]\n", ":1: the value is to be one word or number");
    EXPECT_ERROR("- a\n- b\n", ":1: the file is to consist of lines `key: value`");
    EXPECT_ERROR("just words\n", ":1: the file is to consist of lines `key: value`");
    EXPECT_ERROR("? [a, b]\n: 1\n", ":1: a key is a word");
    EXPECT_ERROR("a: &x\n  b: *x\n", ":2: the value is to be one word or number");
    EXPECT_ERROR("a: 1\nb: {c: 2\n", ": no YAML: ");
    EXPECT_ERROR("\tq: 1\n", ":1: no YAML: ");
    EXPECT_ERROR("a: 1\nb: refuse\nc: 3\n", ":2: b is refused");
    ck_assert_str_eq(seen, "a=1@1 ");
}
END_TEST

START_TEST(a_file_that_cannot_be_read_is_named)
{
    ck_assert_int_eq(run_config_read("/nonexistent/c", collect, NULL, text, sizeof text), -1);
    ck_assert_str_eq(
        text, "cannot read the configuration file /nonexistent/c: No such file or directory");
    ck_assert_int_eq(run_config_read("/", collect, NULL, text, sizeof text), -1);
    ck_assert_str_eq(text, "cannot read /: Is a directory");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/config");
    TCase *tests = tcase_create("config");
    tcase_add_test(tests, keys_and_sections_come_in_order);
    tcase_add_test(tests, truth_has_one_spelling_unless_it_is_quoted);
    tcase_add_test(tests, what_is_empty_is_not_there);
    tcase_add_test(tests, an_alias_is_what_it_stands_for);
    tcase_add_test(tests, what_is_deeper_or_no_mapping_is_an_error_with_its_line);
    tcase_add_test(tests, a_file_that_cannot_be_read_is_named);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
