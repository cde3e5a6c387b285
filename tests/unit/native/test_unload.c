/* SPDX-License-Identifier: Apache-2.0
 * libhvd_tensorflow.so itself, as TensorFlow loads it. */
#include "fake_tensorflow.h"
#include "tests/unit/hvt_main.h"

#include <dlfcn.h>
#include <stdio.h>

START_TEST(the_library_registers_its_ops_and_is_never_unloaded)
{
    char path[256];

    snprintf(path, sizeof path, "%s/lib/libhvd_tensorflow.so", getenv("HVD_BUILD_DIR"));
    ck_assert_int_eq(hvt_tf_op_count(), 0);
    void *library = dlopen(path, RTLD_NOW);
    ck_assert_msg(library != NULL, "%s", dlerror());
    ck_assert_int_eq(hvt_tf_op_count(), 14);
    ck_assert_int_eq(dlclose(library), 0);
    ck_assert_ptr_nonnull(dlopen(path, RTLD_NOW | RTLD_NOLOAD));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("native/unload");
    TCase *tcase = tcase_create("unload");
    tcase_add_test(tcase, the_library_registers_its_ops_and_is_never_unloaded);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
