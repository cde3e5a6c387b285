/* SPDX-License-Identifier: Apache-2.0
 * Hosts that are one machine have a part of its cores each. */
#include "tools/hvdrun/divide.h"

#include "base/available.h"
#include "tests/unit/base/hvt_root.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <string.h>

#define HOSTS_MAX 8

static struct run_host list[HOSTS_MAX];
static struct run_machine machines[HOSTS_MAX];
static struct run_hosts hosts;

static void setup(void)
{
    make_root();
    memset(machines, 0, sizeof machines);
    hosts = (struct run_hosts){.list = list};
}

static void add(int ranks, const char *kernel, const char *cores)
{
    struct hvi_launch_hello hello = {.launch_version = HVI_LAUNCH_VERSION};
    list[hosts.count].ranks = ranks;
    snprintf(hello.kernel, sizeof hello.kernel, "%s", kernel);
    snprintf(hello.cores, sizeof hello.cores, "%s", cores);
    run_divide_note(&machines[hosts.count++], &hello);
}

/* What each host has, in their order; "all" without a part. */
static void expect(const char *const *parts)
{
    char text[HVI_CPUSET_TEXT];
    cpu_set_t cores;
    run_divide(machines, &hosts);
    for (size_t i = 0; i < hosts.count; i++) {
        const struct run_machine *at = &machines[i];
        snprintf(text, sizeof text, "all");
        if (at->there > 0) {
            ck_assert(hvi_cpuset_parse(at->cores, &cores));
            run_divide_cut(root, at->before, (size_t)list[i].ranks, at->there, &cores);
            ck_assert(hvi_cpuset_print(&cores, text, sizeof text));
        }
        ck_assert_msg(strcmp(text, parts[i]) == 0, "host %zu has %s", i, text);
    }
}

START_TEST(hosts_of_other_machines_have_all_cores)
{
    add(2, "a", "0-7");
    add(2, "b", "0-7");
    expect((const char *[]){"all", "all"});
}
END_TEST

START_TEST(hosts_of_one_machine_have_parts_in_proportion_to_their_ranks)
{
    add(2, "a", "0-7");
    add(4, "b", "0-7"); /* another machine, between them */
    add(1, "a", "0-7");
    add(1, "a", "0-7");
    expect((const char *[]){"0-3", "all", "4-5", "6-7"});
}
END_TEST

START_TEST(cores_that_may_be_used_are_divided_and_no_others)
{
    add(1, "a", "1,3,8-9");
    add(1, "a", "1,3,8-9");
    expect((const char *[]){"1,3", "8-9"});
}
END_TEST

START_TEST(every_host_has_a_core_and_shares_it_where_ranks_are_many)
{
    static const struct {
        int ranks[4];
        const char *cores, *parts[4];
    } cases[] = {
        {{1, 1, 1, 1}, "0-1", {"0", "0", "1", "1"}},
        {{1, 1, 1}, "0-1", {"0", "0-1", "1"}},
        {{1, 3}, "0-1", {"0", "0-1"}},
        {{3, 1}, "0-1", {"0-1", "1"}},
        {{7, 1}, "0-1", {"0-1", "1"}},
        {{2, 2, 2}, "0-3", {"0-1", "1-2", "2-3"}},
        {{3, 1}, "5", {"5", "5"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        hosts.count = 0;
        for (size_t host = 0; host < 4 && cases[i].ranks[host] > 0; host++)
            add(cases[i].ranks[host], "a", cases[i].cores);
        expect(cases[i].parts);
    }
}
END_TEST

/* Two packages of two cores with two threads each. */
START_TEST(two_threads_of_a_core_are_of_one_host)
{
    char path[128], text[8];
    for (int core = 0; core < 8; core++) {
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/physical_package_id",
                 core);
        snprintf(text, sizeof text, "%d\n", core / 2 % 2);
        put(path, text);
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/topology/core_id", core);
        snprintf(text, sizeof text, "%d\n", core % 2);
        put(path, text);
    }
    for (int i = 0; i < 4; i++)
        add(1, "a", "0-7");
    expect((const char *[]){"0,4", "1,5", "2,6", "3,7"});
}
END_TEST

START_TEST(containers_with_cores_of_their_own_have_these)
{
    add(2, "a", "0-3");
    add(2, "a", "4-7");
    add(2, "a", "0-7");
    expect((const char *[]){"all", "all", "all"});
}
END_TEST

START_TEST(what_is_not_known_is_not_divided)
{
    add(2, "", "0-3");
    add(2, "", "0-3");
    add(2, "a", "");
    add(2, "a", "");
    expect((const char *[]){"all", "all", "all", "all"});
}
END_TEST

START_TEST(a_machine_describes_itself)
{
    struct hvi_launch_hello hello;
    cpu_set_t described, usable;
    run_divide_describe("", &hello);
    ck_assert_uint_eq(strlen(hello.kernel), 36);
    ck_assert_int_eq(sched_getaffinity(0, sizeof usable, &usable), 0);
    ck_assert(hvi_cores_have_quota("") ||
              (hvi_cpuset_parse(hello.cores, &described) && CPU_EQUAL(&described, &usable)));
}
END_TEST

START_TEST(a_container_with_a_quota_keeps_what_it_has)
{
    struct hvi_launch_hello hello;
    put("/proc/sys/kernel/random/boot_id", "63a2e2b4-1d0c-4f6b-9d7e-0c1b2a394857\n");
    put("/proc/self/cgroup", "0::/pod/a\n");
    put("/sys/fs/cgroup/pod/cpu.max", "1600000 100000\n");
    run_divide_describe(root, &hello);
    ck_assert_str_eq(hello.kernel, "63a2e2b4-1d0c-4f6b-9d7e-0c1b2a394857");
    ck_assert_str_eq(hello.cores, "");
    put("/sys/fs/cgroup/pod/cpu.max", "max 100000\n");
    run_divide_describe(root, &hello);
    ck_assert_str_ne(hello.cores, "");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("hvdrun/divide");
    TCase *tcase = tcase_create("divide");
    tcase_add_checked_fixture(tcase, setup, drop_root);
    tcase_add_test(tcase, hosts_of_other_machines_have_all_cores);
    tcase_add_test(tcase, hosts_of_one_machine_have_parts_in_proportion_to_their_ranks);
    tcase_add_test(tcase, cores_that_may_be_used_are_divided_and_no_others);
    tcase_add_test(tcase, every_host_has_a_core_and_shares_it_where_ranks_are_many);
    tcase_add_test(tcase, two_threads_of_a_core_are_of_one_host);
    tcase_add_test(tcase, containers_with_cores_of_their_own_have_these);
    tcase_add_test(tcase, what_is_not_known_is_not_divided);
    tcase_add_test(tcase, a_machine_describes_itself);
    tcase_add_test(tcase, a_container_with_a_quota_keeps_what_it_has);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
