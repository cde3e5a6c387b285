/* SPDX-License-Identifier: Apache-2.0
 * The memory that can be taken is what the tightest of machine and cgroups leaves. */
#include "base/available.h"
#include "tests/unit/base/hvt_root.h"
#include "tests/unit/hvt_main.h"

#define MIB (UINT64_C(1) << 20)

static void set_up(void)
{
    make_root();
    put("/proc/meminfo", "MemTotal:       8388608 kB\nMemFree:          100 kB\n"
                         "MemAvailable:    4194304 kB\nBuffers:           1 kB\n");
}

START_TEST(without_cgroups_the_machine_decides)
{
    ck_assert_uint_eq(hvi_memory_available(root), 4096 * MIB);
    put("/proc/self/cgroup", "3:cpu,cpuacct:/a\n0::/\n");
    ck_assert_uint_eq(hvi_memory_available(root), 4096 * MIB);
}
END_TEST

START_TEST(a_quota_of_the_cores_time_is_seen)
{
    ck_assert(!hvi_cores_have_quota(root));
    put("/proc/self/cgroup", "3:cpu,cpuacct:/a\n0::/b/c\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/b/cpu.max", "max 100000\n");
    ck_assert(!hvi_cores_have_quota(root));
    put("/sys/fs/cgroup/b/cpu.max", "50000 100000\n");
    ck_assert(hvi_cores_have_quota(root));
    put("/sys/fs/cgroup/b/cpu.max", "max 100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/a/cpu.cfs_quota_us", "200000\n");
    ck_assert(hvi_cores_have_quota(root));
}
END_TEST

START_TEST(nothing_known_is_no_limit)
{
    put("/proc/meminfo", "MemTotal: 1 kB\n");
    ck_assert_uint_eq(hvi_memory_available(root), UINT64_MAX);
    ck_assert_uint_eq(hvi_memory_available("/nowhere"), UINT64_MAX);
}
END_TEST

START_TEST(version_1)
{
    put("/proc/self/cgroup", "5:cpu:/x\n4:memory:/jobs/a\n0::/\n");
    put("/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/jobs/a/memory.usage_in_bytes", "62914560\n");
    ck_assert_uint_eq(hvi_memory_available(root), 40 * MIB);
    put("/sys/fs/cgroup/memory/jobs/a/memory.stat",
        "cache 1\ninactive_file 1\nactive_file 1\ntotal_inactive_file 10485760\n"
        "total_active_file 5242880\n");
    ck_assert_uint_eq(hvi_memory_available(root), 55 * MIB);
    put("/sys/fs/cgroup/memory/jobs/a/memory.limit_in_bytes", "9223372036854771712\n");
    ck_assert_uint_eq(hvi_memory_available(root), 4096 * MIB);
}
END_TEST

START_TEST(version_2)
{
    put("/proc/self/cgroup", "0::/jobs/a\n");
    put("/sys/fs/cgroup/jobs/a/memory.max", "104857600\n");
    put("/sys/fs/cgroup/jobs/a/memory.current", "62914560\n");
    put("/sys/fs/cgroup/jobs/a/memory.stat",
        "anon 5\ninactive_file 10485760\nactive_file 5242880\nslab_reclaimable 2097152\n"
        "slab_unreclaimable 1048576\n");
    ck_assert_uint_eq(hvi_memory_available(root), 57 * MIB);
    put("/sys/fs/cgroup/jobs/a/memory.max", "max\n");
    ck_assert_uint_eq(hvi_memory_available(root), 4096 * MIB);
    put("/sys/fs/cgroup/jobs/a/memory.max", "1048576\n");
    ck_assert_msg(hvi_memory_available(root) == 0, "a limit that was lowered below what is used");
}
END_TEST

START_TEST(every_cgroup_above_counts)
{
    put("/proc/self/cgroup", "0::/jobs/a/b\n");
    put("/sys/fs/cgroup/jobs/a/b/memory.max", "max\n");
    put("/sys/fs/cgroup/jobs/a/b/memory.current", "5242880\n");
    put("/sys/fs/cgroup/jobs/a/memory.max", "209715200\n");
    put("/sys/fs/cgroup/jobs/a/memory.current", "104857600\n");
    put("/sys/fs/cgroup/jobs/memory.max", "157286400\n");
    put("/sys/fs/cgroup/jobs/memory.current", "136314880\n");
    ck_assert_uint_eq(hvi_memory_available(root), 20 * MIB);
}
END_TEST

/* The mount shows the container's cgroup at its top, and /proc the path outside. */
START_TEST(in_a_container_the_top_counts)
{
    put("/proc/self/cgroup", "4:memory:/docker/0123456789abcdef\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "104857600\n");
    put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "52428800\n");
    ck_assert_uint_eq(hvi_memory_available(root), 50 * MIB);
}
END_TEST

START_TEST(this_machine_has_some)
{
    uint64_t bytes = hvi_memory_available("");

    ck_assert_uint_gt(bytes, MIB);
    ck_assert_uint_lt(bytes, UINT64_C(1) << 46);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("base/available");
    TCase *tcase = tcase_create("available");
    tcase_add_checked_fixture(tcase, set_up, drop_root);
    tcase_add_test(tcase, without_cgroups_the_machine_decides);
    tcase_add_test(tcase, a_quota_of_the_cores_time_is_seen);
    tcase_add_test(tcase, nothing_known_is_no_limit);
    tcase_add_test(tcase, version_1);
    tcase_add_test(tcase, version_2);
    tcase_add_test(tcase, every_cgroup_above_counts);
    tcase_add_test(tcase, in_a_container_the_top_counts);
    tcase_add_test(tcase, this_machine_has_some);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
