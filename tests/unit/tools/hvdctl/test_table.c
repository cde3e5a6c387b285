/* SPDX-License-Identifier: Apache-2.0
 * Tables line up, whatever is in them. */
#include "tools/hvdctl/table.h"

#include "tests/unit/hvt_main.h"

#include <string.h>

static const struct ctl_column columns[] = {{"NAME", false}, {"TIME", true}, {"NOTE", false}};

static char *print(const struct ctl_table *table, bool colours)
{
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    ctl_table_print(table, stream, colours);
    fclose(stream);
    return text;
}

START_TEST(columns_are_as_wide_as_their_widest_cell)
{
    struct ctl_table *table = ctl_table_new(columns, 3);
    ctl_table_add(table, CTL_PLAIN, "a");
    ctl_table_add(table, CTL_PLAIN, "12.3 µs");
    ctl_table_add(table, CTL_PLAIN, "x");
    ctl_table_add(table, CTL_PLAIN, "longer %d", 7);
    ctl_table_add(table, CTL_PLAIN, "1");
    ctl_table_add(table, CTL_PLAIN, "%s", "");
    ck_assert_uint_eq(ctl_table_rows(table), 2);
    char *text = print(table, false);
    ck_assert_str_eq(text, "NAME         TIME  NOTE\n"
                           "a         12.3 µs  x\n"
                           "longer 7        1\n");
    free(text);
    ctl_table_free(table);
}
END_TEST

START_TEST(an_empty_table_has_its_titles)
{
    struct ctl_table *table = ctl_table_new(columns, 3);
    char *text = print(table, false);
    ck_assert_str_eq(text, "NAME  TIME  NOTE\n");
    free(text);
    ctl_table_free(table);
}
END_TEST

START_TEST(colours_do_not_count_as_width)
{
    struct ctl_table *table = ctl_table_new(columns, 2);
    ctl_table_add(table, CTL_BAD, "lost");
    ctl_table_add(table, CTL_PLAIN, "1");
    char *text = print(table, true);
    ck_assert_str_eq(text, "\033[1mNAME\033[0m  \033[1mTIME\033[0m\n"
                           "\033[31mlost\033[0m     1\n");
    free(text);
    ctl_table_free(table);
}
END_TEST

START_TEST(a_cell_cannot_move_the_cursor)
{
    struct ctl_table *table = ctl_table_new(columns, 1);
    ctl_table_add(table, CTL_PLAIN, "%s", "w\033[2J\n1");
    char *text = print(table, false);
    ck_assert_str_eq(text, "NAME\nw\\x1b[2J\\x0a1\n");
    free(text);
    ctl_table_free(table);
}
END_TEST

START_TEST(many_rows_fit)
{
    struct ctl_table *table = ctl_table_new(columns, 1);
    for (int i = 0; i < 1000; i++)
        ctl_table_add(table, CTL_PLAIN, "%d", i);
    ck_assert_uint_eq(ctl_table_rows(table), 1000);
    char *text = print(table, false);
    ck_assert_ptr_nonnull(strstr(text, "\n999\n"));
    free(text);
    ctl_table_free(table);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdctl/table");
    TCase *tests = tcase_create("table");
    tcase_add_test(tests, columns_are_as_wide_as_their_widest_cell);
    tcase_add_test(tests, an_empty_table_has_its_titles);
    tcase_add_test(tests, colours_do_not_count_as_width);
    tcase_add_test(tests, a_cell_cannot_move_the_cursor);
    tcase_add_test(tests, many_rows_fit);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
