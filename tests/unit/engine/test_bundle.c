/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/mesh/bundle.h"

#include "base/status.h"
#include "tests/unit/hvt_main.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define SENT_MAX 64
#define EACH     600 /* reports of a node */

static struct engine_mesh_bundles bundles;
static struct {
    uint32_t from;
    bool below;
    uint64_t seen;
    char name[8];
} sent[SENT_MAX];
static uint32_t sent_count;

static void go(void *user, uint32_t from, bool below, const struct hvi_mesh_report *report)
{
    (void)user;
    ck_assert_uint_lt(sent_count, SENT_MAX);
    memset(&sent[sent_count], 0, sizeof sent[0]);
    sent[sent_count].from = from;
    sent[sent_count].below = below;
    sent[sent_count].seen = report->seen;
    memcpy(sent[sent_count++].name, report->tensor.name, report->tensor.name_bytes);
}

static const struct engine_mesh_bundle_way way = {go, NULL};

/* Node 1 of a job of 20, which has nodes 17, 18 and 19 below it. */
static void begin(void)
{
    memset(&bundles, 0, sizeof bundles);
    engine_mesh_bundles_init(&bundles, 1, 20);
    sent_count = 0;
}

static struct hvi_mesh_said said;
static int64_t rows;

static struct hvi_mesh_report report_of(const char *name)
{
    rows = 4;
    said = (struct hvi_mesh_said){.kind = HVI_KIND_ALLREDUCE, .dims = &rows, .ndim = 1};
    return (struct hvi_mesh_report){
        .what = HVI_MESH_BROUGHT,
        .kind = HVI_KIND_ALLREDUCE,
        .tensor = {.name = (unsigned char *)(uintptr_t)name, .name_bytes = strlen(name)},
        .has_tensor = true,
        .said = &said,
        .said_count = 1};
}

/* Each letter is an op. True: it is kept, or has gone with others. */
static bool add(uint32_t from, const char *name)
{
    const struct hvi_mesh_report report = report_of(name);

    ck_assert(engine_mesh_bundle_may(&report));
    return engine_mesh_bundles_take(&bundles, from, false, &report, &way);
}

static void expect(uint32_t at, const char *name, uint32_t from, bool below)
{
    ck_assert_uint_gt(sent_count, at);
    ck_assert_str_eq(sent[at].name, name);
    ck_assert_uint_eq(sent[at].from, from);
    ck_assert_int_eq(sent[at].below, below);
}

static void end(uint32_t count)
{
    ck_assert_uint_eq(sent_count, count);
    engine_mesh_bundles_fini(&bundles);
    ck_assert_uint_eq(bundles.held, 0);
    ck_assert_uint_eq(bundles.count, 0);
}

START_TEST(what_all_say_goes_once)
{
    begin();
    ck_assert(add(17, "a"));
    ck_assert(add(1, "a"));
    ck_assert(add(19, "a"));
    ck_assert_uint_eq(sent_count, 0);
    ck_assert(add(18, "a"));
    expect(0, "a", 1, true);
    end(1);
}
END_TEST

START_TEST(what_a_node_said_before_goes_before)
{
    begin();
    add(17, "a");
    add(17, "b");
    add(18, "b");
    add(18, "c");
    add(19, "b");
    ck_assert_uint_eq(sent_count, 0);
    add(1, "b");
    expect(0, "a", 17, false);
    expect(1, "b", 1, true);
    add(17, "c");
    add(19, "c");
    add(18, "a");
    add(19, "a");
    ck_assert_uint_eq(sent_count, 2);
    add(1, "c");
    expect(2, "c", 1, true);
    add(1, "a"); /* a part of it has gone */
    expect(3, "a", 1, false);
    expect(4, "a", 18, false);
    expect(5, "a", 19, false);
    end(6);
}
END_TEST

START_TEST(what_may_not_be_kept_takes_along_what_its_node_has_said)
{
    struct hvi_mesh_report report;

    begin();
    add(17, "a");
    add(17, "b");
    add(18, "a");
    report = report_of("z");
    report.what = HVI_MESH_RETRACT;
    ck_assert(!engine_mesh_bundle_may(&report));
    ck_assert(!engine_mesh_bundles_take(&bundles, 17, false, &report, &way));
    expect(0, "a", 17, false);
    expect(1, "b", 17, false);
    end(2);
}
END_TEST

START_TEST(what_is_not_the_same_goes_by_itself_and_the_rest_when_all_have_come)
{
    struct hvi_mesh_report report;

    begin();
    add(17, "a");
    add(18, "a");
    report = report_of("a");
    rows = 5;
    ck_assert(!engine_mesh_bundles_take(&bundles, 19, false, &report, &way));
    ck_assert_uint_eq(sent_count, 0);
    add(1, "a");
    expect(0, "a", 1, false);
    expect(1, "a", 17, false);
    expect(2, "a", 18, false);
    end(3);
}
END_TEST

START_TEST(nodes_that_have_not_seen_the_same_do_not_say_the_same)
{
    struct hvi_mesh_report report;

    begin();
    add(17, "a");
    report = report_of("a");
    report.seen = 1;
    ck_assert(!engine_mesh_bundles_take(&bundles, 18, false, &report, &way));
    add(19, "a");
    ck_assert_uint_eq(sent_count, 0);
    add(1, "a");
    end(3);
}
END_TEST

START_TEST(the_next_op_of_a_name_is_another_one)
{
    begin();
    add(17, "a");
    add(18, "a");
    add(17, "a");
    expect(0, "a", 17, false);
    expect(1, "a", 18, false);
    ck_assert_uint_eq(bundles.held, 1);
    end(2);
}
END_TEST

START_TEST(what_is_left_goes_with_the_verdict)
{
    struct hvi_mesh_verdict verdict = {.what = HVI_MESH_FAILED,
                                       .kind = HVI_KIND_ALLREDUCE,
                                       .tensor = {.name = (unsigned char *)"a", .name_bytes = 1}};

    begin();
    add(17, "b");
    add(17, "a");
    engine_mesh_bundles_hear(&bundles, &verdict, &way);
    expect(0, "b", 17, false);
    expect(1, "a", 17, false);
    end(2);
}
END_TEST

/* Of an op that a node has taken back nothing may ever be heard again. */
START_TEST(a_bundle_ends_with_the_verdict_also_when_nothing_of_it_waits)
{
    static const enum hvi_mesh_what whats[] = {HVI_MESH_STARTS, HVI_MESH_FAILED, HVI_MESH_RETRACT};
    struct hvi_mesh_verdict verdict = {.what = whats[_i],
                                       .kind = HVI_KIND_ALLREDUCE,
                                       .tensor = {.name = (unsigned char *)"a", .name_bytes = 1}};
    struct hvi_mesh_report report;

    begin();
    add(17, "a");
    report = report_of("a");
    report.what = HVI_MESH_RETRACT;
    ck_assert(!engine_mesh_bundles_take(&bundles, 17, false, &report, &way));
    expect(0, "a", 17, false);
    ck_assert_uint_eq(bundles.held, 0);
    ck_assert_uint_eq(bundles.count, 1);
    engine_mesh_bundles_hear(&bundles, &verdict, &way);
    ck_assert_uint_eq(bundles.count, 0);
    end(1);
}
END_TEST

START_TEST(what_waits_goes_after_two_ticks)
{
    begin();
    add(17, "a");
    engine_mesh_bundles_tick(&bundles, &way);
    add(17, "b");
    ck_assert_uint_eq(sent_count, 0);
    engine_mesh_bundles_tick(&bundles, &way);
    expect(0, "a", 17, false);
    ck_assert_uint_eq(sent_count, 1);
    engine_mesh_bundles_tick(&bundles, &way);
    expect(1, "b", 17, false);
    end(2);
}
END_TEST

START_TEST(while_ranks_have_joined_nothing_is_kept)
{
    struct hvi_mesh_report join = {
        .what = HVI_MESH_BROUGHT, .kind = HVI_KIND_JOIN, .has_tensor = true};
    const struct hvi_mesh_verdict over = {.what = HVI_MESH_STARTS, .kind = HVI_KIND_JOIN};

    begin();
    add(17, "a");
    ck_assert(!engine_mesh_bundles_take(&bundles, 18, false, &join, &way));
    expect(0, "a", 17, false);
    ck_assert(!add(19, "a"));
    engine_mesh_bundles_hear(&bundles, &over, &way);
    ck_assert(add(19, "b"));
    end(1);
}
END_TEST

START_TEST(a_node_that_has_none_below_it_keeps_nothing)
{
    const uint32_t nodes[] = {0, 2, 19};

    for (int i = 0; i < 3; i++) {
        memset(&bundles, 0, sizeof bundles);
        engine_mesh_bundles_init(&bundles, nodes[i], 20);
        ck_assert(!add(nodes[i], "a"));
        ck_assert_uint_eq(bundles.count, 0);
    }
}
END_TEST

START_TEST(what_only_one_node_can_say_is_not_kept)
{
    struct hvi_mesh_report report = report_of("a");

    report.set = 1;
    ck_assert(!engine_mesh_bundle_may(&report));
    report.set = 0;
    report.more = true;
    ck_assert(!engine_mesh_bundle_may(&report));
    report.more = false;
    said.place_count = 1;
    ck_assert(!engine_mesh_bundle_may(&report));
    said.place_count = 0;
    said.has_leader = true;
    ck_assert(!engine_mesh_bundle_may(&report));
    said.has_leader = false;
    said.integer_count = 1;
    ck_assert(!engine_mesh_bundle_may(&report));
    said.integer_count = 0;
    said.instance_count = 1;
    ck_assert(!engine_mesh_bundle_may(&report));
    said.instance_count = 0;
    report.kind = HVI_KIND_JOIN;
    ck_assert(!engine_mesh_bundle_may(&report));
}
END_TEST

/* ---- whatever comes ---- */

#define HERE 1u /* of 289 nodes: 17 to 32 are below it, and 273 to 288 below 17 */
#define LAST 289u

/* What nodes have said, and what has come out, as names and numbers. */
static struct trail {
    uint32_t said[EACH], heard[EACH];
    uint32_t said_count, heard_count;
} trails[LAST];
static uint64_t state;

static uint32_t below(uint32_t count)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(state >> 33) % count;
}

static uint32_t mark_of(const struct hvi_mesh_report *report)
{
    return (uint32_t)report->what << 24 | (uint32_t)report->seen << 8 | report->tensor.name[0];
}

static void note(uint32_t from, bool all, const struct hvi_mesh_report *report, bool comes_out)
{
    static uint32_t list[LAST];
    uint32_t count = 1;

    list[0] = from;
    if (all && from == HERE) { /* of the nodes right below it three say something */
        list[1] = 18;
        list[2] = 19;
        count = 3 + engine_mesh_below(17, LAST, &list[3]);
    } else if (all) {
        count = engine_mesh_below(from, LAST, list);
    }
    for (uint32_t i = 0; i < count; i++) {
        struct trail *trail = &trails[list[i]];
        uint32_t *marks = comes_out ? trail->heard : trail->said;
        uint32_t *at = comes_out ? &trail->heard_count : &trail->said_count;
        if (*at < EACH)
            marks[(*at)++] = mark_of(report);
    }
}

static void come_out(void *user, uint32_t from, bool all, const struct hvi_mesh_report *report)
{
    (void)user;
    note(from, all, report, true);
}

static const struct engine_mesh_bundle_way out = {come_out, NULL};

/* A report of the node itself, of one below it, or of all from one below it on down. */
static void say_something(uint32_t ops)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    struct hvi_mesh_report report = report_of(names[below(ops)]);
    uint32_t from = below(8) == 0 ? HERE : 17 + below(3);
    bool all = from == 17 && below(4) > 0;

    if (from == 17 && !all && below(2))
        from = 273 + below(3);
    report.seen = below(5) == 0;
    if (below(20) == 0)
        report.what = HVI_MESH_GIVE_UP;
    all = all && report.what == HVI_MESH_BROUGHT;
    rows += below(12) == 0;
    note(from, all, &report, false);
    if (!engine_mesh_bundles_take(&bundles, from, all, &report, &out))
        note(from, all, &report, true);
}

static void hear_something(uint32_t ops)
{
    static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
    const char *name = names[below(ops)];
    const struct hvi_mesh_verdict verdict = {
        .what = below(2) ? HVI_MESH_STARTS : HVI_MESH_FAILED,
        .kind = HVI_KIND_ALLREDUCE,
        .tensor = {.name = (unsigned char *)(uintptr_t)name, .name_bytes = 1}};

    engine_mesh_bundles_hear(&bundles, &verdict, &out);
}

START_TEST(each_nodes_reports_keep_their_order)
{
    for (uint64_t seed = 1; seed <= 200; seed++) {
        memset(trails, 0, sizeof trails);
        memset(&bundles, 0, sizeof bundles);
        /* Of 16 nodes below only three say something: without the others nothing would ever go as one. */
        engine_mesh_bundles_init(&bundles, HERE, LAST);
        bundles.all = 0xf;
        state = seed;
        const uint32_t ops = 1 + below(6);
        for (int i = 0; i < 300; i++) {
            say_something(ops);
            if (below(10) == 0)
                hear_something(ops);
            if (below(30) == 0)
                engine_mesh_bundles_tick(&bundles, &out);
        }
        for (int i = 0; i < 2; i++)
            engine_mesh_bundles_tick(&bundles, &out);
        ck_assert_uint_eq(bundles.held, 0);
        for (uint32_t i = 0; i < LAST; i++) {
            const struct trail *trail = &trails[i];
            if (trail->said_count != trail->heard_count || trail->said_count == EACH ||
                memcmp(trail->said, trail->heard, sizeof trail->said) != 0)
                ck_abort_msg("node %u, seed %d", i, (int)seed);
        }
        engine_mesh_bundles_fini(&bundles);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine_bundle");
    TCase *tcase = tcase_create("bundle");

    tcase_add_test(tcase, what_all_say_goes_once);
    tcase_add_test(tcase, what_a_node_said_before_goes_before);
    tcase_add_test(tcase, what_may_not_be_kept_takes_along_what_its_node_has_said);
    tcase_add_test(tcase, what_is_not_the_same_goes_by_itself_and_the_rest_when_all_have_come);
    tcase_add_test(tcase, nodes_that_have_not_seen_the_same_do_not_say_the_same);
    tcase_add_test(tcase, the_next_op_of_a_name_is_another_one);
    tcase_add_test(tcase, what_is_left_goes_with_the_verdict);
    tcase_add_loop_test(tcase, a_bundle_ends_with_the_verdict_also_when_nothing_of_it_waits, 0, 3);
    tcase_add_test(tcase, what_waits_goes_after_two_ticks);
    tcase_add_test(tcase, while_ranks_have_joined_nothing_is_kept);
    tcase_add_test(tcase, a_node_that_has_none_below_it_keeps_nothing);
    tcase_add_test(tcase, what_only_one_node_can_say_is_not_kept);
    tcase_add_test(tcase, each_nodes_reports_keep_their_order);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
