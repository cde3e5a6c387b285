/* SPDX-License-Identifier: Apache-2.0
 * A process' control group says which processors it has. */
#include "base/cpuset.h"
#include "tests/unit/base/hvt_root.h"
#include "tests/unit/hvt_main.h"

#include <unistd.h>

#define PID 4711

/* The set is that of the cores below 64 with a bit here. */
static void expect(uint64_t bits)
{
    cpu_set_t set;

    ck_assert(hvi_cpuset_of(root, PID, &set));
    for (size_t core = 0; core < 64; core++)
        ck_assert_msg((CPU_ISSET(core, &set) != 0) == (bits >> core & 1), "core %zu", core);
}

static void expect_unknown(void)
{
    cpu_set_t set;

    ck_assert(!hvi_cpuset_of(root, PID, &set));
}

START_TEST(version_1)
{
    put("/proc/4711/cgroup", "5:cpu:/x\n3:cpuset:/jobs/a\n0::/else\n");
    put("/sys/fs/cgroup/cpuset/jobs/a/cpuset.effective_cpus", "0-2,8\n");
    put("/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "0-63\n");
    put("/sys/fs/cgroup/else/cpuset.cpus.effective", "5\n");
    expect(UINT64_C(0x107));
}
END_TEST

START_TEST(version_2)
{
    put("/proc/4711/cgroup", "0::/jobs/a\n");
    put("/sys/fs/cgroup/jobs/a/cpuset.cpus.effective", "4,6-7\n");
    expect(UINT64_C(0xd0));
}
END_TEST

START_TEST(a_cgroup_without_the_controller_has_what_the_one_above_has)
{
    put("/proc/4711/cgroup", "0::/jobs/a/step\n");
    put("/sys/fs/cgroup/jobs/cpuset.cpus.effective", "1\n");
    put("/sys/fs/cgroup/cpuset.cpus.effective", "0-63\n");
    expect(2);
}
END_TEST

/* The mount shows the container's cgroup at its top, and /proc the path outside. */
START_TEST(in_a_container_the_top_counts)
{
    put("/proc/4711/cgroup", "3:cpuset:/docker/0123456789abcdef\n");
    put("/sys/fs/cgroup/cpuset/cpuset.effective_cpus", "3\n");
    expect(8);
}
END_TEST

START_TEST(what_lies_outside_of_the_mount_is_not_known)
{
    put("/proc/4711/cgroup", "0::/../a\n");
    put("/sys/fs/cgroup/cpuset.cpus.effective", "0-63\n");
    expect_unknown();
}
END_TEST

START_TEST(what_makes_no_sense_is_not_known)
{
    expect_unknown();
    put("/proc/4711/cgroup", "no line of it\n");
    expect_unknown();
    put("/proc/4711/cgroup", "5:cpu:/x\n0::/a\n");
    expect_unknown();
    static const char *const lists[] = {"\n", "abc\n", "0-x\n", "1,x\n", "5-3\n", "99999\n"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        put("/sys/fs/cgroup/a/cpuset.cpus.effective", lists[i]);
        expect_unknown();
    }
    put("/sys/fs/cgroup/a/cpuset.cpus.effective", "0-99999999\n");
    expect(UINT64_MAX);
}
END_TEST

START_TEST(this_process_may_use_what_its_cgroup_has)
{
    cpu_set_t may, both, found;

    ck_assert_int_eq(sched_getaffinity(0, sizeof may, &may), 0);
    if (hvi_cpuset_of("", getpid(), &found)) { /* there are cpusets here */
        CPU_AND(&both, &may, &found);
        ck_assert(CPU_EQUAL(&both, &may));
    }
    ck_assert(!hvi_cpuset_of("", 0, &found));
}
END_TEST

START_TEST(a_set_is_printed_as_the_kernel_does)
{
    static const char *const lists[] = {"0", "0-3,8", "1,3,5-6", "1022-1023"};
    char text[HVI_CPUSET_TEXT], little[6];
    cpu_set_t set;

    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        ck_assert(hvi_cpuset_parse(lists[i], &set) && hvi_cpuset_print(&set, text, sizeof text));
        ck_assert_str_eq(text, lists[i]);
    }
    ck_assert(hvi_cpuset_parse("0-3,8", &set) && hvi_cpuset_print(&set, little, sizeof little));
    ck_assert(hvi_cpuset_parse("0-3,10", &set) && !hvi_cpuset_print(&set, little, sizeof little));
    ck_assert_str_eq(little, "");
    CPU_ZERO(&set);
    ck_assert(hvi_cpuset_print(&set, text, sizeof text) && text[0] == '\0');
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/cpuset");
    TCase *tcase = tcase_create("cpuset");
    tcase_add_checked_fixture(tcase, make_root, drop_root);
    tcase_add_test(tcase, version_1);
    tcase_add_test(tcase, version_2);
    tcase_add_test(tcase, a_cgroup_without_the_controller_has_what_the_one_above_has);
    tcase_add_test(tcase, in_a_container_the_top_counts);
    tcase_add_test(tcase, what_lies_outside_of_the_mount_is_not_known);
    tcase_add_test(tcase, what_makes_no_sense_is_not_known);
    tcase_add_test(tcase, this_process_may_use_what_its_cgroup_has);
    tcase_add_test(tcase, a_set_is_printed_as_the_kernel_does);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
