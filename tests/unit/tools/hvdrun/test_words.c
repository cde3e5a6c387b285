/* SPDX-License-Identifier: Apache-2.0
 * Which variables travel to other hosts, and lists of words on the way. */
#include "tools/hvdrun/words.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>

START_TEST(what_a_program_may_need_travels)
{
    static const char *const entries[] = {
        "PATH=/bin",          "PYTHONPATH=x", "VIRTUAL_ENV=/v",  "LD_LIBRARY_PATH=",
        "HVD_CYCLE_TIME=1",   "HOROVOD_X=1",  "NCCL_DEBUG=INFO", "LANG=C",
        "HVD_INTERFACE=eth0", "CUDA_HOME=/c", "HOMEPAGE=h",      "MY_TOKEN=a=b"};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        ck_assert_msg(run_words_travel(entries[i]), "%s stays", entries[i]);
}
END_TEST

START_TEST(horovods_exceptions_stay)
{
    static const char *const entries[] = {"BASH_FUNC_module%%=() { :; }", "OLDPWD=/",
                                          "CUDA_VISIBLE_DEVICES=0", "SLURM_CUDA_VISIBLE_DEVICES=0",
                                          "_HOROVOD_SECRET_KEY=k"};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        ck_assert_msg(!run_words_travel(entries[i]), "%s travels", entries[i]);
}
END_TEST

START_TEST(what_describes_a_login_or_a_machine_stays)
{
    static const char *const entries[] = {"HOME=/h",
                                          "USER=u",
                                          "LOGNAME=u",
                                          "SHELL=/bin/sh",
                                          "PWD=/",
                                          "HOSTNAME=h",
                                          "SSH_AUTH_SOCK=/tmp/s",
                                          "SSH_CONNECTION=x",
                                          "DISPLAY=:0",
                                          "XDG_RUNTIME_DIR=/run/user/1",
                                          "NOTIFY_SOCKET=/n",
                                          "LISTEN_FDS=1",
                                          "HVD_SSH=rsh",
                                          "_=/bin/env",
                                          "=odd",
                                          "without"};
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++)
        ck_assert_msg(!run_words_travel(entries[i]), "%s travels", entries[i]);
}
END_TEST

START_TEST(words_arrive_as_they_were)
{
    char *list[] = {(char[]){"one"}, (char[]){""}, (char[]){"three words \xff"}, NULL};
    struct run_buffer packed = {0};
    ck_assert_int_eq(run_words_pack(list, NULL, &packed), HVI_OK);
    char **words = run_words_unpack((unsigned char *)packed.data, packed.used);
    for (size_t i = 0; i < 3; i++)
        ck_assert_str_eq(words[i], list[i]);
    ck_assert_ptr_null(words[3]);
    free(words);
    run_buffer_fini(&packed);
}
END_TEST

START_TEST(only_the_chosen_are_packed)
{
    char *list[] = {(char[]){"HOME=/h"}, (char[]){"A=1"}, NULL};
    struct run_buffer packed = {0};
    ck_assert_int_eq(run_words_pack(list, run_words_travel, &packed), HVI_OK);
    ck_assert_uint_eq(packed.used, 4);
    ck_assert_str_eq(packed.data + packed.start, "A=1");
    run_buffer_fini(&packed);
}
END_TEST

START_TEST(no_words_are_an_empty_list)
{
    char **words = run_words_unpack(NULL, 0);
    ck_assert_ptr_null(words[0]);
    free(words);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tools/hvdrun/words");
    TCase *tests = tcase_create("words");
    tcase_add_test(tests, what_a_program_may_need_travels);
    tcase_add_test(tests, horovods_exceptions_stay);
    tcase_add_test(tests, what_describes_a_login_or_a_machine_stays);
    tcase_add_test(tests, words_arrive_as_they_were);
    tcase_add_test(tests, only_the_chosen_are_packed);
    tcase_add_test(tests, no_words_are_an_empty_list);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
