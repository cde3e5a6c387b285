/* SPDX-License-Identifier: Apache-2.0
 * The loader finds a libnvidia-ml.so.1 that is no library; one that was loaded by its path is taken instead. */
#include "gpu/nvml.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <dlfcn.h>

static char text[512];
static struct hvi_nvml nvml;

static void load(const char *folder)
{
    char path[512];

    snprintf(path, sizeof(path), "%s%s/libnvidia-ml.so.1", STANDINS, folder);
    ck_assert_msg(dlopen(path, RTLD_NOW) != NULL, "%s", dlerror());
}

START_TEST(without_a_driver_the_sentence_says_what_is_missing_and_where)
{
    ck_assert_int_eq(hvi_nvml_open(&nvml, text, sizeof(text)), HVI_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(text, "no NVIDIA driver: libnvidia-ml.so.1, looked for by the "
                                       "loader (LD_LIBRARY_PATH, /etc/ld.so.conf): "));
}
END_TEST

START_TEST(functions_that_are_missing_are_no_obstacle_but_the_first)
{
    load("whole");
    ck_assert_int_eq(hvi_nvml_open(&nvml, text, sizeof(text)), HVI_OK);
    ck_assert_ptr_nonnull(nvml.shutdown);
    ck_assert_ptr_null(nvml.device_count);
}
END_TEST

START_TEST(a_library_that_does_not_begin_says_why)
{
    load("whole");
    setenv("STANDIN_ERROR", "9", 1);
    ck_assert_int_eq(hvi_nvml_open(&nvml, text, sizeof(text)), HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(text, "nvmlInit_v2 of " STANDINS
                           "whole/libnvidia-ml.so.1: NVML's error 9, the kernel's driver is not "
                           "loaded");
}
END_TEST

START_TEST(a_library_without_its_first_function_is_refused)
{
    load("part");
    ck_assert_int_eq(hvi_nvml_open(&nvml, text, sizeof(text)), HVI_ERR_UNSUPPORTED);
    ck_assert_str_eq(text, STANDINS "part/libnvidia-ml.so.1 has no nvmlInit_v2");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu nvml");
    TCase *tcase = tcase_create("nvml");

    tcase_add_test(tcase, without_a_driver_the_sentence_says_what_is_missing_and_where);
    tcase_add_test(tcase, functions_that_are_missing_are_no_obstacle_but_the_first);
    tcase_add_test(tcase, a_library_that_does_not_begin_says_why);
    tcase_add_test(tcase, a_library_without_its_first_function_is_refused);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
