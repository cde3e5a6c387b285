/* SPDX-License-Identifier: Apache-2.0
 * What --check-build asks a Python, which scripts play here, and what it prints. */
#include "tools/hvdrun/build.h"

#include "tests/unit/hvt_main.h"

#include <sys/stat.h>

static char path[64], text[512];
static struct run_build build;

static void setup(void)
{
    snprintf(path, sizeof path, "/tmp/hvt-python-XXXXXX");
    const int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fchmod(fd, 0700), 0);
    close(fd);
    setenv("HVDRUN_PYTHON", path, 1);
    text[0] = '\0';
}

static void teardown(void)
{
    unlink(path);
}

static int ask(const char *script)
{
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "#!/bin/sh\n%s\n", script);
    ck_assert_int_eq(fclose(file), 0);
    return run_build_ask(&build, text, sizeof text);
}

START_TEST(a_python_is_asked_for_each_framework)
{
    ck_assert_int_eq(ask("test \"$1\" = -c || exit 1; shift 2\n"
                         "test \"$*\" = 'tensorflow torch mxnet' || exit 1\n"
                         "echo /x/python; echo torch"),
                     0);
    ck_assert_str_eq(build.python, "/x/python");
    ck_assert(!build.frameworks[0] && build.frameworks[1] && !build.frameworks[2]);
}
END_TEST

START_TEST(what_is_no_framework_is_passed_over)
{
    ck_assert_int_eq(ask("echo /x/python; echo tensor; echo tensorflow; echo torchvision"), 0);
    ck_assert(build.frameworks[0] && !build.frameworks[1] && !build.frameworks[2]);
}
END_TEST

START_TEST(a_long_answer_is_cut)
{
    ck_assert_int_eq(ask("echo /x/python; i=0; while [ $i -lt 400 ]; do echo filler; i=$((i+1)); "
                         "done; echo mxnet"),
                     0);
    ck_assert_str_eq(build.python, "/x/python");
    ck_assert(!build.frameworks[2]);
}
END_TEST

START_TEST(a_python_without_an_answer_is_named)
{
    char wanted[256];
    ck_assert_int_eq(ask("echo torch; exit 1"), -1);
    snprintf(wanted, sizeof wanted,
             "cannot ask %s which frameworks there are: it failed; name a Python in HVDRUN_PYTHON",
             path);
    ck_assert_str_eq(text, wanted);
    ck_assert(!build.frameworks[1]);
    setenv("HVDRUN_PYTHON", "/nonexistent/python", 1);
    ck_assert_int_eq(run_build_ask(&build, text, sizeof text), -1);
    ck_assert_str_eq(text, "cannot ask /nonexistent/python which frameworks there are: No such "
                           "file or directory; name a Python in HVDRUN_PYTHON");
    ck_assert_str_eq(build.python, "/nonexistent/python");
}
END_TEST

START_TEST(without_a_name_it_is_python3_of_the_path)
{
    char folder[] = "/tmp/hvt-path-XXXXXX", link[64];
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(link, sizeof link, "%s/python3", folder);
    ck_assert_int_eq(ask("echo said by python3"), 0);
    ck_assert_int_eq(symlink(path, link), 0);
    setenv("HVDRUN_PYTHON", "", 1);
    setenv("PATH", folder, 1);
    ck_assert_int_eq(run_build_ask(&build, text, sizeof text), 0);
    ck_assert_str_eq(build.python, "said by python3");
    unlink(link);
    rmdir(folder);
}
END_TEST

/* The worker beside this program is asked then, and there is none. */
START_TEST(without_hvdd_and_worker_there_is_no_nccl)
{
    ck_assert(!run_build_has_nccl("/nowhere"));
}
END_TEST

START_TEST(the_lists_have_horovodruns_form)
{
    char *printed = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&printed, &size);
    build = (struct run_build){.frameworks = {true, false, true}};
    run_build_print(stream, "Horovod", "0.28.1", &build);
    fclose(stream);
    ck_assert_str_eq(printed, "Horovod v0.28.1:\n\nAvailable Frameworks:\n"
                              "    [X] TensorFlow\n    [ ] PyTorch\n    [X] MXNet\n\n"
                              "Available Controllers:\n    [ ] MPI\n    [ ] Gloo\n    [X] hvdd\n\n"
                              "Available Tensor Operations:\n    [ ] NCCL\n    [ ] DDL\n"
                              "    [ ] CCL\n    [ ] MPI\n    [ ] Gloo\n    [X] hvdd\n");
    free(printed);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/build");
    TCase *tests = tcase_create("build");
    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, a_python_is_asked_for_each_framework);
    tcase_add_test(tests, what_is_no_framework_is_passed_over);
    tcase_add_test(tests, a_long_answer_is_cut);
    tcase_add_test(tests, a_python_without_an_answer_is_named);
    tcase_add_test(tests, without_a_name_it_is_python3_of_the_path);
    tcase_add_test(tests, without_hvdd_and_worker_there_is_no_nccl);
    tcase_add_test(tests, the_lists_have_horovodruns_form);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
