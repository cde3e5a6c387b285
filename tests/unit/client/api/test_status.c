/* SPDX-License-Identifier: Apache-2.0
 * hvd.h's numbers, names and NULL arguments: what can be asked without a daemon. */
#include "base/status.h"
#include "base/types.h"
#include "hvd/hvd.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

struct row {
    int number;
    const char *name;
};

static const struct row rows[] = {
#define HVI_ROW(name, number, text) {number, "HVD_" #name},
#include "base/status.def"
#undef HVI_ROW
};
#define ROWS (sizeof rows / sizeof rows[0])

START_TEST(every_status_has_its_name)
{
    for (size_t i = 0; i < ROWS; i++)
        ck_assert_str_eq(hvd_status_name(rows[i].number), rows[i].name);
    ck_assert_str_eq(hvd_status_name(-999), "HVD_ERR_UNKNOWN");
    ck_assert_str_eq(hvd_status_name(2), "HVD_ERR_UNKNOWN");
}
END_TEST

START_TEST(every_error_is_in_exactly_one_range)
{
    for (size_t i = 0; i < ROWS; i++) {
        int n = rows[i].number;
        int ranges = HVD_IS_OP_ERROR(n) + HVD_IS_SESSION_ERROR(n) + HVD_IS_JOB_ERROR(n) +
                     HVD_IS_DAEMON_ERROR(n);
        ck_assert_int_eq(ranges, n < 0 ? 1 : 0);
    }
}
END_TEST

START_TEST(ranges_end_where_the_next_begins)
{
    ck_assert(!HVD_IS_OP_ERROR(-99) && HVD_IS_OP_ERROR(-100) && HVD_IS_OP_ERROR(-199));
    ck_assert(!HVD_IS_OP_ERROR(-200) && HVD_IS_SESSION_ERROR(-200) && HVD_IS_SESSION_ERROR(-299));
    ck_assert(!HVD_IS_SESSION_ERROR(-300) && HVD_IS_JOB_ERROR(-300) && HVD_IS_JOB_ERROR(-399));
    ck_assert(!HVD_IS_JOB_ERROR(-400) && HVD_IS_DAEMON_ERROR(-400) && HVD_IS_DAEMON_ERROR(-499));
    ck_assert(!HVD_IS_DAEMON_ERROR(-500));
}
END_TEST

START_TEST(element_sizes_are_those_of_the_table)
{
    for (uint32_t i = 0; i < HVI_DTYPE_COUNT; i++)
        ck_assert_uint_eq(hvd_dtype_size((enum hvd_dtype)i), hvi_dtype_bytes(i));
    ck_assert_uint_eq(hvd_dtype_size(HVD_BFLOAT16), 2);
    ck_assert_uint_eq(hvd_dtype_size((enum hvd_dtype)77), 0);
}
END_TEST

START_TEST(the_version_is_that_of_the_header)
{
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", HVD_VERSION_MAJOR, HVD_VERSION_MINOR,
             HVD_VERSION_PATCH);
    ck_assert_str_eq(hvd_version(), text);
}
END_TEST

static void *read_error(void *unused)
{
    (void)unused;
    return (void *)(uintptr_t)hvd_last_error();
}

START_TEST(the_last_error_belongs_to_the_thread)
{
    pthread_t thread;
    void *other;
    ck_assert_str_eq(hvd_last_error(), "");
    ck_assert_int_eq(hvd_open(NULL, NULL), HVD_ERR_INVALID);
    ck_assert_str_ne(hvd_last_error(), "");
    ck_assert_int_eq(pthread_create(&thread, NULL, read_error, NULL), 0);
    ck_assert_int_eq(pthread_join(thread, &other), 0);
    ck_assert_ptr_ne(other, hvd_last_error());
}
END_TEST

static void expect_invalid(int status, const char *function)
{
    ck_assert_msg(status == HVD_ERR_INVALID, "%s: %s", function, hvd_status_name(status));
    ck_assert_msg(strstr(hvd_last_error(), function) != NULL, "%s: '%s'", function,
                  hvd_last_error());
    ck_assert_msg(strstr(hvd_last_error(), "NULL") != NULL, "%s: '%s'", function, hvd_last_error());
}

START_TEST(null_is_an_error_with_a_sentence)
{
    float x = 0;
    struct hvd_tensor t = hvd_tensor_1d(&x, HVD_FLOAT32, 1);
    struct hvd_op *op;
    void *ptr;
    int fd;
    int64_t number;
    int id = 1;
    expect_invalid(hvd_open(NULL, NULL), "hvd_open");
    expect_invalid(hvd_alloc(NULL, 1, &ptr), "hvd_alloc");
    expect_invalid(hvd_free(NULL, &x), "hvd_free");
    expect_invalid(hvd_register(NULL, &x, 4), "hvd_register");
    expect_invalid(hvd_deregister(NULL, &x), "hvd_deregister");
    expect_invalid(hvd_device_forget(NULL, &x), "hvd_device_forget");
    expect_invalid(hvd_op_stream_wait(NULL, NULL), "hvd_op_stream_wait");
    expect_invalid(hvd_allreduce_async(NULL, "a", &t, &t, HVD_SUM, NULL, &op),
                   "hvd_allreduce_async");
    expect_invalid(hvd_allgather_async(NULL, "a", &t, NULL, NULL, &op), "hvd_allgather_async");
    expect_invalid(hvd_broadcast_async(NULL, "a", &t, &t, 0, NULL, &op), "hvd_broadcast_async");
    expect_invalid(hvd_barrier_async(NULL, "a", NULL, &op), "hvd_barrier_async");
    expect_invalid(hvd_reducescatter_async(NULL, "a", &t, &t, HVD_SUM, NULL, &op),
                   "hvd_reducescatter_async");
    expect_invalid(hvd_alltoall_async(NULL, "a", &t, NULL, &t, NULL, &op), "hvd_alltoall_async");
    expect_invalid(hvd_grouped_allreduce_async(NULL, "a", &t, &t, 1, HVD_SUM, NULL, &op),
                   "hvd_grouped_allreduce_async");
    expect_invalid(hvd_grouped_allgather_async(NULL, "a", &t, NULL, 1, NULL, &op),
                   "hvd_grouped_allgather_async");
    expect_invalid(hvd_grouped_reducescatter_async(NULL, "a", &t, NULL, 1, HVD_SUM, NULL, &op),
                   "hvd_grouped_reducescatter_async");
    expect_invalid(hvd_join_async(NULL, NULL, &op), "hvd_join_async");
    expect_invalid(hvd_join(NULL, &id), "hvd_join");
    expect_invalid(hvd_process_set_add_async(NULL, &id, 1, &op), "hvd_process_set_add_async");
    expect_invalid(hvd_process_set_add(NULL, &id, 1, &id), "hvd_process_set_add");
    expect_invalid(hvd_process_set_remove_async(NULL, 1, &op), "hvd_process_set_remove_async");
    expect_invalid(hvd_process_set_remove(NULL, 1), "hvd_process_set_remove");
    expect_invalid(hvd_process_set_rank(NULL, 0), "hvd_process_set_rank");
    expect_invalid(hvd_process_set_size(NULL, 0), "hvd_process_set_size");
    expect_invalid(hvd_process_set_ranks(NULL, 0, &id, 1), "hvd_process_set_ranks");
    expect_invalid(hvd_process_set_ids(NULL, &id, 1), "hvd_process_set_ids");
    expect_invalid(hvd_op_received_splits(NULL, &number, 1), "hvd_op_received_splits");
    expect_invalid(hvd_cancel(NULL), "hvd_cancel");
    expect_invalid(hvd_allreduce(NULL, "a", &t, &t, HVD_SUM), "hvd_allreduce");
    expect_invalid(hvd_broadcast(NULL, "a", &t, &t, 0), "hvd_broadcast");
    expect_invalid(hvd_barrier(NULL, "a"), "hvd_barrier");
    expect_invalid(hvd_allgather(NULL, "a", &t, &t), "hvd_allgather");
    expect_invalid(hvd_test(NULL), "hvd_test");
    expect_invalid(hvd_wait(NULL, 0), "hvd_wait");
    expect_invalid(hvd_op_result(NULL, &t), "hvd_op_result");
    expect_invalid(hvd_event_fd(NULL, &fd), "hvd_event_fd");
    expect_invalid(hvd_session_status(NULL), "hvd_session_status");
}
END_TEST

START_TEST(null_is_harmless_where_the_header_says_so)
{
    ck_assert_int_eq(hvd_close(NULL), HVD_OK);
    hvd_op_free(NULL);
    hvd_options_init(NULL);
    hvd_op_options_init(NULL);
    ck_assert_int_eq(hvd_rank(NULL), -1);
    ck_assert_int_eq(hvd_size(NULL), -1);
    ck_assert_int_eq(hvd_local_rank(NULL), -1);
    ck_assert_int_eq(hvd_local_size(NULL), -1);
    ck_assert_int_eq(hvd_cross_rank(NULL), -1);
    ck_assert_int_eq(hvd_cross_size(NULL), -1);
    ck_assert_str_eq(hvd_job(NULL), "");
    ck_assert_str_eq(hvd_address(NULL), "");
    ck_assert_str_eq(hvd_op_name(NULL), "");
    ck_assert_str_eq(hvd_op_error(NULL), "");
    ck_assert_int_eq(hvd_op_culprit(NULL), -1);
    ck_assert_int_eq(hvd_op_joined_rank(NULL), -1);
    ck_assert_int_eq(hvd_op_process_set(NULL), -1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client status");
    TCase *tcase = tcase_create("status");
    tcase_add_test(tcase, every_status_has_its_name);
    tcase_add_test(tcase, every_error_is_in_exactly_one_range);
    tcase_add_test(tcase, ranges_end_where_the_next_begins);
    tcase_add_test(tcase, element_sizes_are_those_of_the_table);
    tcase_add_test(tcase, the_version_is_that_of_the_header);
    tcase_add_test(tcase, the_last_error_belongs_to_the_thread);
    tcase_add_test(tcase, null_is_an_error_with_a_sentence);
    tcase_add_test(tcase, null_is_harmless_where_the_header_says_so);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
