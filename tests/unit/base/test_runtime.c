/* SPDX-License-Identifier: Apache-2.0
 * When $XDG_RUNTIME_DIR counts. */
#include "base/runtime.h"

#include "tests/unit/hvt_file.h"
#include "tests/unit/hvt_main.h"

#include <sys/stat.h>
#include <unistd.h>

static char root[] = "/tmp/hvt-runtime-XXXXXX";

static void setup(void)
{
    ck_assert_ptr_nonnull(mkdtemp(root));
    setenv("XDG_RUNTIME_DIR", root, 1);
}

static void teardown(void)
{
    hvt_remove_tree(root);
}

START_TEST(a_directory_of_this_user_counts)
{
    ck_assert_str_eq(hvi_runtime_dir(geteuid()), root);
    ck_assert_int_eq(chmod(root, 0755), 0);
    ck_assert_str_eq(hvi_runtime_dir(geteuid()), root);
}
END_TEST

START_TEST(one_that_others_may_write_to_counts_as_none)
{
    static const mode_t modes[] = {0770, 0707, 01777};
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        ck_assert_int_eq(chmod(root, modes[i]), 0);
        ck_assert_ptr_null(hvi_runtime_dir(geteuid()));
    }
}
END_TEST

START_TEST(another_users_counts_as_none)
{
    ck_assert_ptr_null(hvi_runtime_dir(geteuid() + 1));
}
END_TEST

START_TEST(what_is_no_directory_counts_as_none)
{
    static const char *const values[] = {"", "tmp", ".", "/nonexistent", "/dev/null"};
    char file[64];
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        setenv("XDG_RUNTIME_DIR", values[i], 1);
        ck_assert_ptr_null(hvi_runtime_dir(geteuid()));
    }
    snprintf(file, sizeof file, "%s/file", root);
    hvt_write_file(file, 0700, "");
    setenv("XDG_RUNTIME_DIR", file, 1);
    ck_assert_ptr_null(hvi_runtime_dir(geteuid()));
    unsetenv("XDG_RUNTIME_DIR");
    ck_assert_ptr_null(hvi_runtime_dir(geteuid()));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("runtime");
    TCase *tcase = tcase_create("runtime");

    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_directory_of_this_user_counts);
    tcase_add_test(tcase, one_that_others_may_write_to_counts_as_none);
    tcase_add_test(tcase, another_users_counts_as_none);
    tcase_add_test(tcase, what_is_no_directory_counts_as_none);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
