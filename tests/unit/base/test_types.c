/* SPDX-License-Identifier: Apache-2.0
 * The dtype, reduce and kind tables. */
#include "base/types.h"
#include "tests/unit/hvt_main.h"

START_TEST(every_dtype_has_a_size_and_a_name_of_its_own)
{
    int rows = 0;
#define HVI_DTYPE(name, number, bytes, text)                                                       \
    ck_assert_uint_eq(hvi_dtype_bytes(HVI_DTYPE_##name), bytes);                                   \
    ck_assert_str_eq(hvi_dtype_text(HVI_DTYPE_##name), text);                                      \
    rows++;
#include "base/types.def"
#undef HVI_DTYPE
    ck_assert_int_eq(rows, HVI_DTYPE_COUNT);
    for (uint32_t i = 0; i < HVI_DTYPE_COUNT; i++) {
        for (uint32_t j = 0; j < i; j++)
            ck_assert_str_ne(hvi_dtype_text(i), hvi_dtype_text(j));
    }
}
END_TEST

START_TEST(sizes_are_what_the_machine_says)
{
    ck_assert_uint_eq(hvi_dtype_bytes(HVI_DTYPE_FLOAT32), sizeof(float));
    ck_assert_uint_eq(hvi_dtype_bytes(HVI_DTYPE_FLOAT64), sizeof(double));
    ck_assert_uint_eq(hvi_dtype_bytes(HVI_DTYPE_INT64), sizeof(int64_t));
    ck_assert_uint_eq(hvi_dtype_bytes(HVI_DTYPE_BFLOAT16), 2);
}
END_TEST

START_TEST(memory_has_two_kinds)
{
    ck_assert_str_eq(hvi_memory_text(HVI_MEMORY_HOST), "host");
    ck_assert_str_eq(hvi_memory_text(HVI_MEMORY_DEVICE), "GPU");
    ck_assert_str_eq(hvi_memory_text(2), "?");
}
END_TEST

START_TEST(a_worker_takes_no_variable_that_names_a_file)
{
    ck_assert(hvi_nccl_is_allowed("NCCL_DEBUG"));
    ck_assert(hvi_nccl_is_allowed("NCCL_HOSTID"));
    ck_assert(hvi_nccl_is_allowed("NCCL_IB_QPS_PER_CONNECTION"));
    const char *const refused[] = {
        "NCCL_",          "NCCL_DEBUG_FILE", "NCCL_NET_PLUGIN", "NCCL_TOPO_FILE",
        "NCCL_CONF_FILE", "DEBUG",           "nccl_debug",      ""};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++)
        ck_assert_msg(!hvi_nccl_is_allowed(refused[i]), "%s", refused[i]);
}
END_TEST

START_TEST(every_reduce_op_is_known_by_name)
{
    uint32_t rows = 0;
#define HVI_REDUCE(name, number, text)                                                             \
    ck_assert(hvi_reduce_is_known(HVI_REDUCE_##name));                                             \
    ck_assert_str_eq(hvi_reduce_text(HVI_REDUCE_##name), text);                                    \
    rows++;
#include "base/types.def"
#undef HVI_REDUCE
    ck_assert_uint_eq(rows, HVI_REDUCE_COUNT);
}
END_TEST

START_TEST(every_kind_is_known_by_name_and_gaps_are_not)
{
    uint32_t rows = 0;
#define HVI_KIND(name, number, text)                                                               \
    ck_assert(hvi_kind_is_known(HVI_KIND_##name));                                                 \
    ck_assert_str_eq(hvi_kind_text(HVI_KIND_##name), text);                                        \
    rows++;
#include "base/types.def"
#undef HVI_KIND
    uint32_t known = 0;
    for (uint32_t kind = 0; kind < 70000; kind++)
        known += hvi_kind_is_known(kind);
    ck_assert_uint_eq(known, rows);
    ck_assert(!hvi_kind_is_known(4)); /* Horovod's ADASUM is a reduce op here */
    ck_assert_str_eq(hvi_kind_text(4), "?");
}
END_TEST

START_TEST(unknown_numbers_have_no_size_and_a_question_mark)
{
    const uint32_t strangers[] = {HVI_DTYPE_COUNT + 1, 64, 255, 0x80000000u, UINT32_MAX};
    for (size_t i = 0; i < sizeof(strangers) / sizeof(strangers[0]); i++) {
        ck_assert_uint_eq(hvi_dtype_bytes(strangers[i]), 0);
        ck_assert_str_eq(hvi_dtype_text(strangers[i]), "?");
        ck_assert_str_eq(hvi_reduce_text(strangers[i]), "?");
        ck_assert(!hvi_reduce_is_known(strangers[i]));
        ck_assert_str_eq(hvi_kind_text(strangers[i]), "?");
        ck_assert(!hvi_kind_is_known(strangers[i]));
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/types");
    TCase *tcase = tcase_create("tables");
    tcase_add_test(tcase, every_dtype_has_a_size_and_a_name_of_its_own);
    tcase_add_test(tcase, sizes_are_what_the_machine_says);
    tcase_add_test(tcase, memory_has_two_kinds);
    tcase_add_test(tcase, a_worker_takes_no_variable_that_names_a_file);
    tcase_add_test(tcase, every_reduce_op_is_known_by_name);
    tcase_add_test(tcase, every_kind_is_known_by_name_and_gaps_are_not);
    tcase_add_test(tcase, unknown_numbers_have_no_size_and_a_question_mark);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
