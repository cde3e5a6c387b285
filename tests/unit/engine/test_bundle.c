/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/mesh/bundle.h"

#include "base/status.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define SENT_MAX 16

static struct engine_mesh_bundles bundles;
static struct {
    size_t count;
    int32_t nodes[8];
    uint64_t seens[8];
    char name[8];
} sent[SENT_MAX];
static uint32_t sent_count;

static void go(void *user, const struct hvi_mesh_report *report)
{
    (void)user;
    ck_assert_uint_lt(sent_count, SENT_MAX);
    ck_assert_uint_le(report->node_count, 8);
    memset(&sent[sent_count], 0, sizeof sent[0]);
    sent[sent_count].count = report->node_count;
    memcpy(sent[sent_count].name, report->tensor.name, report->tensor.name_bytes);
    for (size_t i = 0; i < report->node_count; i++) {
        sent[sent_count].nodes[i] = report->nodes[i];
        sent[sent_count].seens[i] = report->seen_count > 0 ? report->seens[i] : report->seen;
    }
    sent_count++;
}

static void begin(uint32_t below)
{
    memset(&bundles, 0, sizeof bundles);
    bundles.below = below;
    sent_count = 0;
}

/* What a node says of an op. */
static void add(uint32_t from, const char *name, int64_t rows, uint64_t seen)
{
    struct hvi_mesh_said said = {.kind = HVI_KIND_ALLREDUCE, .dims = &rows, .ndim = 1};
    struct hvi_mesh_report report = {
        .what = HVI_MESH_BROUGHT,
        .seen = seen,
        .kind = HVI_KIND_ALLREDUCE,
        .tensor = {.name = (unsigned char *)name, .name_bytes = strlen(name)},
        .has_tensor = true,
        .said = &said,
        .said_count = 1};

    ck_assert(engine_mesh_bundle_takes(&report));
    ck_assert_int_eq(engine_mesh_bundle_add(&bundles, from, 10, &report, go, NULL), HVI_OK);
}

static void expect(uint32_t at, const char *name, size_t count, int32_t first)
{
    ck_assert_uint_gt(sent_count, at);
    ck_assert_str_eq(sent[at].name, name);
    ck_assert_uint_eq(sent[at].count, count);
    ck_assert_int_eq(sent[at].nodes[0], first);
}

START_TEST(the_first_goes_at_once_and_the_others_with_the_last)
{
    begin(4);
    add(17, "w1", 3, 0);
    expect(0, "w1", 1, 17);
    add(18, "w1", 3, 1);
    add(1, "w1", 3, 1);
    ck_assert_uint_eq(sent_count, 1);
    add(19, "w1", 3, 2);
    expect(1, "w1", 3, 18);
    ck_assert_uint_eq(sent[1].seens[1], 1);
    ck_assert_uint_eq(sent[1].seens[2], 2);
    add(18, "w1", 3, 3); /* the next op of that name */
    expect(2, "w1", 1, 18);
    engine_mesh_bundles_fini(&bundles);
}
END_TEST

START_TEST(what_is_not_the_same_goes_by_itself)
{
    begin(3);
    add(17, "w1", 3, 0);
    add(18, "w1", 4, 0);
    add(19, "w2", 3, 0);
    ck_assert_uint_eq(sent_count, 3);
    ck_assert_ptr_null(bundles.first);
    engine_mesh_bundles_fini(&bundles);
}
END_TEST

START_TEST(what_has_waited_too_long_goes_and_the_rest_goes_with_the_last)
{
    begin(5);
    add(17, "w1", 3, 0);
    add(18, "w1", 3, 0);
    engine_mesh_bundles_go(&bundles, 10, go, NULL);
    ck_assert_uint_eq(sent_count, 1);
    engine_mesh_bundles_go(&bundles, 11, go, NULL);
    expect(1, "w1", 1, 18);
    add(19, "w1", 3, 0);
    add(20, "w1", 3, 0);
    ck_assert_uint_eq(sent_count, 2);
    add(1, "w1", 3, 0);
    expect(2, "w1", 3, 19);
    engine_mesh_bundles_fini(&bundles);
}
END_TEST

START_TEST(an_op_that_is_decided_leaves_nothing_behind)
{
    const struct hvi_mesh_name name = {.name = (unsigned char *)"w1", .name_bytes = 2};

    begin(5);
    add(17, "w1", 3, 0);
    add(18, "w1", 3, 0);
    engine_mesh_bundles_close(&bundles, 0, &name, go, NULL);
    expect(1, "w1", 1, 18);
    add(19, "w1", 3, 1);
    expect(2, "w1", 1, 19);
    engine_mesh_bundles_fini(&bundles);
}
END_TEST

START_TEST(what_only_one_node_can_say_is_not_taken)
{
    struct hvi_mesh_said said = {.kind = HVI_KIND_ALLREDUCE};
    struct hvi_mesh_report report = {.what = HVI_MESH_BROUGHT, .said = &said, .said_count = 1};

    ck_assert(engine_mesh_bundle_takes(&report));
    report.what = HVI_MESH_RETRACT;
    ck_assert(!engine_mesh_bundle_takes(&report));
    report.what = HVI_MESH_BROUGHT;
    report.set = 1;
    ck_assert(!engine_mesh_bundle_takes(&report));
    report.set = 0;
    said.place_count = 1;
    ck_assert(!engine_mesh_bundle_takes(&report));
    said.place_count = 0;
    said.has_leader = true;
    ck_assert(!engine_mesh_bundle_takes(&report));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_bundle");
    TCase *tcase = tcase_create("bundle");

    tcase_add_test(tcase, the_first_goes_at_once_and_the_others_with_the_last);
    tcase_add_test(tcase, what_is_not_the_same_goes_by_itself);
    tcase_add_test(tcase, what_has_waited_too_long_goes_and_the_rest_goes_with_the_last);
    tcase_add_test(tcase, an_op_that_is_decided_leaves_nothing_behind);
    tcase_add_test(tcase, what_only_one_node_can_say_is_not_taken);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed == 0 ? 0 : 1;
}
