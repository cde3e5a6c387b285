/* SPDX-License-Identifier: Apache-2.0
 * Grouped ops: consecutive slots, published together, all or none. */
#include "base/types.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;
static float memory[HVD_GROUP_MAX * 4];
static struct hvd_tensor tensors[HVD_GROUP_MAX];
static struct hvd_op *ops[HVD_GROUP_MAX];

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
    for (int i = 0; i < HVD_GROUP_MAX; i++) {
        tensors[i] = hvd_tensor_1d(&memory[4 * i], HVD_FLOAT32, 1 + i % 4);
        ops[i] = NULL;
    }
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static int submit(const char *name, int count)
{
    return hvd_grouped_allreduce_async(session, name, tensors, tensors, count, HVD_SUM, NULL, ops);
}

static void expect_nothing_happened(int rc, int status, const char *words)
{
    ck_assert_msg(rc == status, "%s: %s", hvd_status_name(rc), hvd_last_error());
    ck_assert_msg(strstr(hvd_last_error(), words) != NULL, "'%s' is not in '%s'", words,
                  hvd_last_error());
    ck_assert(hvt_fake_is_idle(engine));
    for (int i = 0; i < HVD_GROUP_MAX; i++)
        ck_assert_ptr_null(ops[i]);
}

START_TEST(members_lie_one_behind_the_other)
{
    uint32_t group = 0;
    tensors[1].dtype = HVD_INT32;
    ck_assert_int_eq(submit("g", 3), HVD_OK);
    for (uint32_t i = 0; i < 3; i++) {
        char name[HVI_NAME_MAX + 1];
        char wanted[32];
        struct hvi_submission slot = hvt_fake_take(engine);
        snprintf(wanted, sizeof wanted, "g_%uof3", i + 1);
        hvt_fake_name(engine, &slot, name);
        ck_assert_str_eq(name, wanted);
        ck_assert_str_eq(hvd_op_name(ops[i]), wanted);
        ck_assert_uint_eq(slot.seq, i + 1);
        ck_assert_uint_eq(slot.group_size, 3);
        ck_assert_uint_eq(slot.group_index, i);
        ck_assert_uint_ne(slot.group, 0);
        ck_assert(i == 0 || slot.group == group);
        ck_assert_uint_eq(slot.dtype, i == 1 ? HVD_INT32 : HVD_FLOAT32);
        ck_assert_uint_eq(slot.count, i + 1);
        group = slot.group;
        hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    }
    ck_assert_int_eq(hvd_wait_all(ops, 3, 1000000000), HVD_OK);
    for (int i = 0; i < 3; i++)
        hvd_op_free(ops[i]);
    ck_assert_int_eq(submit("g", 2), HVD_OK);
    ck_assert_uint_ne(hvt_fake_take(engine).group, group);
}
END_TEST

START_TEST(a_single_op_is_not_grouped)
{
    ck_assert_int_eq(
        hvd_allreduce_async(session, "w", &tensors[0], &tensors[0], HVD_SUM, NULL, &ops[0]),
        HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_uint_eq(slot.group, 0);
    ck_assert_uint_eq(slot.group_size, 0);
}
END_TEST

START_TEST(unnamed_members_are_counted)
{
    ck_assert_int_eq(submit(NULL, 3), HVD_OK);
    for (uint32_t i = 0; i < 3; i++) {
        struct hvi_submission slot = hvt_fake_take(engine);
        ck_assert_uint_eq(slot.flags, HVI_SUBMIT_ANON);
        ck_assert_uint_eq(slot.anon_seq, i + 1);
    }
    ck_assert_str_eq(hvd_op_name(ops[2]), "allreduce.noname.3");
}
END_TEST

START_TEST(one_bad_member_keeps_all_back)
{
    tensors[2].dims[0] = -1;
    expect_nothing_happened(submit("g", 5), HVD_ERR_INVALID, "'g_3of5'");
    tensors[2].dims[0] = 1;
    expect_nothing_happened(submit("g", 0), HVD_ERR_INVALID, "1 to 1024");
    expect_nothing_happened(submit("g", HVD_GROUP_MAX + 1), HVD_ERR_INVALID, "1 to 1024");
    expect_nothing_happened(submit("", 2), HVD_ERR_INVALID, "1 to 1023 bytes");
    expect_nothing_happened(
        hvd_grouped_allreduce_async(session, "g", NULL, tensors, 2, HVD_SUM, NULL, ops),
        HVD_ERR_INVALID, "in is NULL");
    expect_nothing_happened(
        hvd_grouped_allreduce_async(session, "g", tensors, NULL, 2, HVD_SUM, NULL, ops),
        HVD_ERR_INVALID, "out is NULL");
    ck_assert_int_eq(submit("g", 5), HVD_OK); /* the names are free */
}
END_TEST

START_TEST(a_member_whose_name_is_in_flight_keeps_all_back)
{
    struct hvd_op *op;
    ck_assert_int_eq(
        hvd_allreduce_async(session, "g_2of3", &tensors[9], &tensors[9], HVD_SUM, NULL, &op),
        HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    expect_nothing_happened(submit("g", 3), HVD_ERR_DUPLICATE_NAME, "'g_2of3'");
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(submit("g", 3), HVD_OK);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_group_that_does_not_fit_the_ring_waits_outside)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_barrier_async(session, NULL, NULL, &op), HVD_OK);
    int rc = submit(NULL, HVD_GROUP_MAX);
    ck_assert_int_eq(rc, HVD_ERR_RING_FULL);
    hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
    expect_nothing_happened(rc, HVD_ERR_RING_FULL, "no room for the group");
    hvd_op_free(op);
    ck_assert_int_eq(submit(NULL, HVD_GROUP_MAX), HVD_OK);
    for (uint32_t i = 0; i < HVD_GROUP_MAX; i++) {
        struct hvi_submission slot = hvt_fake_take(engine);
        ck_assert_uint_eq(slot.group_index, i);
        ck_assert_uint_eq(slot.anon_seq, i + 1); /* the refused try did not count */
    }
}
END_TEST

START_TEST(names_that_can_never_fit_are_told_from_a_full_area)
{
    char name[500];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    expect_nothing_happened(submit(name, 200), HVD_ERR_LIMIT, "shorter name");
    ck_assert_int_eq(submit(name, 100), HVD_OK);
    for (int i = 0; i < 100; i++)
        hvt_fake_done(engine, hvt_fake_take(engine).cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait_all(ops, 100, 1000000000), HVD_OK);
}
END_TEST

START_TEST(a_name_too_long_with_its_suffix_is_refused)
{
    char name[HVD_NAME_MAX + 100];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    expect_nothing_happened(submit(name, 2), HVD_ERR_INVALID, "1 to 1023 bytes");
    name[HVD_NAME_MAX] = '\0';
    expect_nothing_happened(submit(name, 2), HVD_ERR_INVALID, "1 to 1023 bytes");
    name[HVD_NAME_MAX - 5] = '\0';
    ck_assert_int_eq(submit(name, 2), HVD_OK);
}
END_TEST

START_TEST(grouped_allgathers_and_reducescatters_get_memory)
{
    struct hvd_tensor result;
    ck_assert_int_eq(hvd_grouped_allgather_async(session, "g", tensors, NULL, 2, NULL, ops),
                     HVD_OK);
    for (int i = 0; i < 2; i++) {
        struct hvi_submission slot = hvt_fake_take(engine);
        ck_assert_uint_eq(slot.kind, HVI_KIND_ALLGATHER);
        ck_assert_uint_eq(slot.out_region, HVI_REGION_NONE);
        hvt_fake_sized(engine, slot.cookie, 7, 28);
    }
    ck_assert_int_eq(hvd_test(ops[0]), HVD_INPROGRESS);
    for (int i = 0; i < 2; i++) {
        struct hvi_submission slot = hvt_fake_take(engine);
        ck_assert_uint_eq(slot.kind, HVI_SUBMIT_OUTPUT);
        hvt_fake_done_rows(engine, slot.cookie, 7, 28);
    }
    ck_assert_int_eq(hvd_wait_all(ops, 2, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_result(ops[1], &result), HVD_OK);
    ck_assert_int_eq(result.dims[0], 7);
    ck_assert_int_eq(
        hvd_grouped_reducescatter_async(session, "r", tensors, NULL, 2, HVD_SUM, NULL, ops),
        HVD_OK);
    for (int i = 0; i < 2; i++) {
        struct hvi_submission slot = hvt_fake_take(engine);
        ck_assert_uint_eq(slot.kind, HVI_KIND_REDUCESCATTER);
        ck_assert_uint_eq(slot.out_region, HVI_REGION_NONE);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client groups");
    TCase *tcase = tcase_create("groups");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, members_lie_one_behind_the_other);
    tcase_add_test(tcase, a_single_op_is_not_grouped);
    tcase_add_test(tcase, unnamed_members_are_counted);
    tcase_add_test(tcase, one_bad_member_keeps_all_back);
    tcase_add_test(tcase, a_member_whose_name_is_in_flight_keeps_all_back);
    tcase_add_test(tcase, a_group_that_does_not_fit_the_ring_waits_outside);
    tcase_add_test(tcase, names_that_can_never_fit_are_told_from_a_full_area);
    tcase_add_test(tcase, a_name_too_long_with_its_suffix_is_refused);
    tcase_add_test(tcase, grouped_allgathers_and_reducescatters_get_memory);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
