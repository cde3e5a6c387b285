/* SPDX-License-Identifier: Apache-2.0
 * The last-level cache as sysfs describes it, in directories made for it. */
#include "daemon/engine/exec/host.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char directory[] = "/tmp/hvt-caches-XXXXXX";

static void write_property(int index, const char *name, const char *text)
{
    char path[128];

    snprintf(path, sizeof path, "%s/index%d", directory, index);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/index%d/%s", directory, index, name);
    FILE *file = fopen(path, "we");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
}

static void add_cache(int index, const char *level, const char *size, const char *sharers)
{
    write_property(index, "level", level);
    write_property(index, "size", size);
    write_property(index, "shared_cpu_list", sharers);
}

static void set_up(void)
{
    strcpy(directory + sizeof(directory) - 7, "XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
}

static void tear_down(void)
{
    char command[64];

    snprintf(command, sizeof command, "rm -r %s", directory);
    ck_assert_int_eq(system(command), 0);
}

static void expect(uint64_t bytes, uint32_t sharers)
{
    struct engine_host_cache cache = engine_host_cache_find(directory);

    ck_assert_uint_eq(cache.bytes, bytes);
    ck_assert_uint_eq(cache.sharers, sharers);
}

START_TEST(the_highest_level_counts)
{
    add_cache(0, "1\n", "32K\n", "0\n");
    add_cache(1, "1\n", "32K\n", "0\n");
    add_cache(3, "3\n", "32768K\n", "0-1\n");
    add_cache(2, "2\n", "1024K\n", "0\n");
    expect(32u << 20, 2);
}
END_TEST

START_TEST(cores_are_counted_over_gaps)
{
    add_cache(0, "2\n", "4096K\n", "0-3,8-11,16\n");
    expect(4u << 20, 9);
}
END_TEST

START_TEST(what_is_not_told_is_not_known)
{
    expect(0, 0);
    write_property(0, "level", "3\n");
    expect(0, 0);
    write_property(0, "size", "many\n");
    write_property(0, "shared_cpu_list", "\n");
    expect(0, 0);
    write_property(0, "size", "96M\n"); /* the kernel says K */
    expect(0, 0);
}
END_TEST

START_TEST(this_machine_is_plausible)
{
    struct engine_host_cache cache = engine_host_cache_find("/sys/devices/system/cpu/cpu0/cache");

    ck_assert_uint_lt(cache.bytes, UINT64_C(4) << 30);
    ck_assert(cache.bytes == 0 || cache.bytes >= 16 * 1024);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/host_cache");
    TCase *tests = tcase_create("sysfs");

    tcase_add_checked_fixture(tests, set_up, tear_down);
    tcase_add_test(tests, the_highest_level_counts);
    tcase_add_test(tests, cores_are_counted_over_gaps);
    tcase_add_test(tests, what_is_not_told_is_not_known);
    tcase_add_test(tests, this_machine_is_plausible);
    suite_add_tcase(suite, tests);
    return hvt_run_suite(suite);
}
