/* SPDX-License-Identifier: Apache-2.0
 * The status table: complete, unique, in ranges, and unknown numbers are survived. */
#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <limits.h>
#include <string.h>

static const int numbers[] = {
#define HVI_ROW(name, number, text) (number),
#include "base/status.def"
#undef HVI_ROW
};
static const char *const names[] = {
#define HVI_ROW(name, number, text) #name,
#include "base/status.def"
#undef HVI_ROW
};
#define ROWS (sizeof(numbers) / sizeof(numbers[0]))

START_TEST(every_row_has_its_own_number_name_and_sentence)
{
    for (size_t i = 0; i < ROWS; i++) {
        ck_assert(hvi_status_is_known(numbers[i]));
        ck_assert_str_eq(hvi_status_name(numbers[i]), names[i]);
        ck_assert_uint_gt(strlen(hvi_status_text(numbers[i])), 0);
        for (size_t j = 0; j < i; j++) {
            ck_assert_int_ne(numbers[i], numbers[j]);
            ck_assert_str_ne(hvi_status_text(numbers[i]), hvi_status_text(numbers[j]));
        }
    }
}
END_TEST

START_TEST(in_progress_is_neither_ok_nor_an_error)
{
    ck_assert_int_ne(HVI_INPROGRESS, HVI_OK);
    ck_assert_int_gt(HVI_INPROGRESS, 0);
}
END_TEST

START_TEST(an_error_of_an_op_destroys_nothing_else)
{
    for (size_t i = 0; i < ROWS; i++)
        ck_assert_int_eq(hvi_status_is_of_op(numbers[i]), numbers[i] <= -100 && numbers[i] > -200);
}
END_TEST

START_TEST(frozen_numbers_have_not_moved)
{
    ck_assert_int_eq(HVI_OK, 0);
    ck_assert_int_eq(HVI_INPROGRESS, 1);
    ck_assert_int_eq(HVI_ERR_INVALID, -100);
    ck_assert_int_eq(HVI_ERR_NOT_FOUND, -111);
    ck_assert_int_eq(HVI_ERR_CLOSED, -200);
    ck_assert_int_eq(HVI_ERR_ATTACH_TIMEOUT, -208);
    ck_assert_int_eq(HVI_ERR_RANK_LOST, -300);
    ck_assert_int_eq(HVI_ERR_JOB_STOPPED, -303);
    ck_assert_int_eq(HVI_ERR_WORKER_LOST, -305);
    ck_assert_int_eq(HVI_ERR_NO_DAEMON, -400);
    ck_assert_int_eq(HVI_ERR_DAEMON_LIMIT, -403);
}
END_TEST

START_TEST(an_unknown_number_has_a_name_too)
{
    const int strangers[] = {2, -1, -99, -150, -500, INT_MAX, INT_MIN};
    for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++) {
        ck_assert(!hvi_status_is_known(strangers[i]));
        ck_assert(!hvi_status_is_of_op(strangers[i]));
        ck_assert_str_eq(hvi_status_name(strangers[i]), "unknown status");
        ck_assert_str_eq(hvi_status_text(strangers[i]), "unknown status");
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/status");
    TCase *tcase = tcase_create("table");
    tcase_add_test(tcase, every_row_has_its_own_number_name_and_sentence);
    tcase_add_test(tcase, in_progress_is_neither_ok_nor_an_error);
    tcase_add_test(tcase, an_error_of_an_op_destroys_nothing_else);
    tcase_add_test(tcase, frozen_numbers_have_not_moved);
    tcase_add_test(tcase, an_unknown_number_has_a_name_too);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
