/* SPDX-License-Identifier: Apache-2.0
 * What a view says of lists that change, begin anew, and take turns. */
#include "daemon/gate/hosts.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>

#define START  (100 * HVI_NS_SEC)
#define SETTLE GATE_HOSTS_SETTLE_NS

static struct gate_hosts first, second;
static struct gate_view view;
static uint64_t now_ns;
static char said[512]; /* "+n1 -n2(why)" */

static void setup(void)
{
    memset(&first, 0, sizeof(first));
    memset(&second, 0, sizeof(second));
    memset(&view, 0, sizeof(view));
    now_ns = START;
    gate_hosts_begin(&first, now_ns);
    gate_hosts_begin(&second, now_ns);
    first.told = second.told = true;
}

static void begin_anew(struct gate_hosts *list)
{
    gate_hosts_begin(list, now_ns);
    list->told = true;
}

static void teardown(void)
{
    gate_view_fini(&view);
    gate_hosts_fini(&first);
    gate_hosts_fini(&second);
}

static void put(struct gate_hosts *list, uint64_t node, const char *name)
{
    struct hvi_mesh_host host = {.node = node, .text = "10.0.0.9"};

    snprintf(host.name, sizeof(host.name), "%s", name);
    ck_assert(gate_hosts_put(list, &host));
}

static void changed(void *user, const struct hvi_mesh_host *host)
{
    const size_t used = strlen(said);

    ck_assert_ptr_eq(user, &view);
    snprintf(said + used, sizeof(said) - used, "%s%s%s%s%s%s", used > 0 ? " " : "",
             host->gone ? "-" : "+", host->name, host->gone ? "(" : "",
             host->gone ? host->text : "", host->gone ? ")" : "");
}

static void expect(struct gate_hosts *list, const char *wanted)
{
    said[0] = '\0';
    const bool any = gate_view_follow(&view, list, now_ns, changed, &view);

    ck_assert_str_eq(said, wanted);
    ck_assert(any == (wanted[0] != '\0'));
}

START_TEST(what_comes_and_goes_is_told_once_and_at_once)
{
    put(&first, 1, "n1");
    put(&first, 2, "n2");
    expect(&first, "+n1 +n2");
    expect(&first, "");
    put(&first, 1, "n1");
    expect(&first, "");
    gate_hosts_drop(&first, 2, "it is silent");
    gate_hosts_drop(&first, 7, "nobody knows it");
    put(&first, 3, "n3");
    ck_assert_uint_eq(first.count, 2);
    expect(&first, "-n2(it is silent) +n3");
    ck_assert_uint_eq(view.known.count, 2);
    expect(&first, "");
}
END_TEST

START_TEST(a_node_that_is_back_before_the_next_look_has_not_gone)
{
    put(&first, 1, "n1");
    expect(&first, "+n1");
    gate_hosts_drop(&first, 1, "its connection has ended");
    put(&first, 1, "n1");
    gate_hosts_drop(&first, 1, "its connection has ended");
    put(&first, 1, "n1");
    put(&first, 2, "n2");
    gate_hosts_drop(&first, 2, "its connection has ended");
    expect(&first, "");
    ck_assert_uint_eq(first.count, 1);
}
END_TEST

START_TEST(a_list_that_begins_anew_takes_away_what_it_does_not_name_within_five_seconds)
{
    put(&first, 1, "n1");
    put(&first, 2, "n2");
    put(&first, 3, "n3");
    expect(&first, "+n1 +n2 +n3");
    now_ns += HVI_NS_SEC;
    begin_anew(&first);
    expect(&first, "");
    put(&first, 1, "n1");
    put(&first, 4, "n4");
    expect(&first, "+n4");
    now_ns += HVI_NS_SEC;
    put(&first, 3, "n3");
    gate_hosts_drop(&first, 3, "it is silent");
    expect(&first, "-n3(it is silent)");
    now_ns += SETTLE - HVI_NS_SEC - 1;
    expect(&first, "");
    now_ns++;
    expect(&first, "-n2(the seed does not know it any more)");
    expect(&first, "");
    ck_assert_uint_eq(view.known.count, 2);
}
END_TEST

START_TEST(a_list_that_is_old_counts_at_once_when_it_is_its_turn)
{
    put(&first, 1, "n1");
    put(&first, 2, "n2");
    put(&second, 2, "n2");
    put(&second, 3, "n3");
    put(&second, 4, "n4");
    gate_hosts_drop(&second, 4, "it is silent");
    expect(&first, "+n1 +n2");
    gate_hosts_prune(&second);
    ck_assert_ptr_null(second.all->next->next);
    now_ns += SETTLE;
    expect(&second, "-n1(the seed does not know it any more) +n3");
    expect(&second, "");
    second.since_ns = now_ns; /* it was not heard meanwhile */
    expect(&first, "-n3(the seed does not know it any more) +n1");
    expect(&second, "+n3");
    now_ns += SETTLE;
    expect(&second, "-n1(the seed does not know it any more)");
}
END_TEST

START_TEST(a_seed_that_tells_no_hosts_takes_none_away)
{
    put(&first, 1, "n1");
    expect(&first, "+n1");
    gate_hosts_begin(&second, now_ns);
    now_ns += SETTLE;
    expect(NULL, "");
    now_ns += HVI_NS_SEC;
    expect(&second, "");
    now_ns += SETTLE;
    expect(&second, "");
    now_ns += SETTLE;
    expect(NULL, "");
    second.told = second.news = true; /* it was installed anew */
    expect(&second, "-n1(the seed does not know it any more)");
}
END_TEST

START_TEST(where_no_list_is_left_all_are_lost_five_seconds_later)
{
    put(&first, 1, "n1");
    expect(&first, "+n1");
    now_ns += SETTLE;
    expect(NULL, "");
    now_ns += SETTLE - 1;
    expect(NULL, "");
    expect(&first, ""); /* it is back */
    expect(NULL, "");
    now_ns += SETTLE;
    expect(NULL, "-n1(no seed can be reached)");
    expect(NULL, "");
    expect(&first, "+n1");
}
END_TEST

START_TEST(a_node_with_another_name_is_another_host)
{
    put(&first, 1, "n1");
    expect(&first, "+n1");
    put(&first, 1, "server1");
    expect(&first, "-n1(it has another name now) +server1");
}
END_TEST

START_TEST(a_node_that_begins_anew_replaces_its_predecessor_when_the_list_names_only_the_new_one)
{
    put(&first, 1, "n1");
    put(&first, 2, "n2");
    expect(&first, "+n1 +n2");
    now_ns += HVI_NS_SEC;
    begin_anew(&first);
    put(&first, 11, "n1");
    expect(&first, "-n1(it has begun anew) +n1");
    put(&first, 2, "n2");
    now_ns += SETTLE;
    expect(&first, "");
    ck_assert_uint_eq(view.known.count, 2);
}
END_TEST

START_TEST(where_one_of_two_nodes_of_a_name_goes_the_other_one_is_told_again)
{
    put(&first, 1, "n1");
    put(&first, 3, "n3");
    put(&first, 33, "n3");
    expect(&first, "+n1 +n3 +n3");
    gate_hosts_drop(&first, 3, "it has not been heard");
    put(&first, 4, "n4");
    expect(&first, "-n3(it has not been heard) +n4 +n3");
    expect(&first, "");
    gate_hosts_drop(&first, 33, "it has not been heard");
    put(&first, 34, "n3");
    expect(&first, "-n3(it has not been heard) +n3");
    gate_hosts_drop(&first, 34, "its connection has ended");
    expect(&first, "-n3(its connection has ended)");
    ck_assert_uint_eq(view.known.count, 2);
}
END_TEST

START_TEST(two_nodes_of_a_name_that_go_together_are_gone)
{
    put(&first, 3, "n3");
    put(&first, 33, "n3");
    put(&first, 34, "n3");
    expect(&first, "+n3 +n3 +n3");
    gate_hosts_drop(&first, 3, "a");
    gate_hosts_drop(&first, 33, "b");
    gate_hosts_drop(&first, 34, "c");
    expect(&first, "-n3(a) -n3(b) -n3(c)");
    expect(&first, "");
}
END_TEST

START_TEST(live_nodes_of_a_name_do_not_take_each_other_away)
{
    put(&first, 1, "n");
    put(&first, 2, "n");
    expect(&first, "+n +n");
    now_ns += HVI_NS_SEC;
    begin_anew(&first);
    put(&first, 2, "n");
    put(&first, 1, "n");
    expect(&first, "");
    put(&first, 3, "n");
    expect(&first, "+n");
    now_ns += SETTLE;
    expect(&first, "");
    ck_assert_uint_eq(view.known.count, 3);
}
END_TEST

static void fill(struct gate_hosts *list, uint64_t from)
{
    struct hvi_mesh_host host = {.name = "n"};

    for (host.node = from; host.node < from + HVI_WIRE_NODES_MAX; host.node++)
        ck_assert(gate_hosts_put(list, &host));
}

START_TEST(a_list_has_an_end)
{
    struct hvi_mesh_host host = {.name = "n", .node = HVI_WIRE_NODES_MAX + 1};

    fill(&first, 1);
    ck_assert(!gate_hosts_put(&first, &host));
    ck_assert_uint_eq(first.count, HVI_WIRE_NODES_MAX);
    gate_hosts_drop(&first, 1, "it is silent");
    ck_assert(gate_hosts_put(&first, &host));
    host.node = 1;
    ck_assert(!gate_hosts_put(&first, &host)); /* its place is taken */
    ck_assert_uint_eq(first.count, HVI_WIRE_NODES_MAX);
}
END_TEST

START_TEST(a_source_that_names_and_drops_nodes_without_end_is_stopped)
{
    struct hvi_mesh_host host = {.name = "n"};

    for (host.node = 1; host.node <= HVI_WIRE_NODES_MAX; host.node++) {
        ck_assert(gate_hosts_put(&first, &host));
        gate_hosts_drop(&first, host.node, "it is silent");
    }
    ck_assert(!gate_hosts_put(&first, &host));
    gate_hosts_prune(&first);
    ck_assert(gate_hosts_put(&first, &host));
    ck_assert_uint_eq(first.count, 1);
}
END_TEST

static void count_changed(void *user, const struct hvi_mesh_host *host)
{
    int *counts = user;

    counts[host->gone]++;
}

START_TEST(what_has_no_room_in_the_view_comes_when_there_is_room)
{
    int counts[2] = {0, 0};

    fill(&first, 1);
    ck_assert(gate_view_follow(&view, &first, now_ns, count_changed, counts));
    ck_assert_int_eq(counts[0], HVI_WIRE_NODES_MAX);
    now_ns += HVI_NS_SEC;
    begin_anew(&first);
    put(&first, HVI_WIRE_NODES_MAX + 1, "other");
    ck_assert(!gate_view_follow(&view, &first, now_ns, count_changed, counts));
    now_ns += SETTLE;
    ck_assert(gate_view_follow(&view, &first, now_ns, count_changed, counts));
    ck_assert_int_eq(counts[0], HVI_WIRE_NODES_MAX + 1);
    ck_assert_int_eq(counts[1], HVI_WIRE_NODES_MAX);
    expect(&first, "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gate/hosts");
    TCase *tests = tcase_create("hosts");

    tcase_add_checked_fixture(tests, setup, teardown);
    tcase_add_test(tests, what_comes_and_goes_is_told_once_and_at_once);
    tcase_add_test(tests, a_node_that_is_back_before_the_next_look_has_not_gone);
    tcase_add_test(tests,
                   a_list_that_begins_anew_takes_away_what_it_does_not_name_within_five_seconds);
    tcase_add_test(tests, a_list_that_is_old_counts_at_once_when_it_is_its_turn);
    tcase_add_test(tests, a_seed_that_tells_no_hosts_takes_none_away);
    tcase_add_test(tests, where_no_list_is_left_all_are_lost_five_seconds_later);
    tcase_add_test(tests, a_node_with_another_name_is_another_host);
    tcase_add_test(
        tests,
        a_node_that_begins_anew_replaces_its_predecessor_when_the_list_names_only_the_new_one);
    tcase_add_test(tests, where_one_of_two_nodes_of_a_name_goes_the_other_one_is_told_again);
    tcase_add_test(tests, two_nodes_of_a_name_that_go_together_are_gone);
    tcase_add_test(tests, live_nodes_of_a_name_do_not_take_each_other_away);
    tcase_add_test(tests, a_list_has_an_end);
    tcase_add_test(tests, a_source_that_names_and_drops_nodes_without_end_is_stopped);
    tcase_add_test(tests, what_has_no_room_in_the_view_comes_when_there_is_room);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
