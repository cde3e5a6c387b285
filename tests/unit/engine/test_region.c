/* SPDX-License-Identifier: Apache-2.0
 * What the engine does with a session's memory before it is used. */
#include "base/status.h"
#include "daemon/engine/memory/region.h"
#include "tests/unit/hvt_main.h"

#include <fcntl.h>
#include <sys/stat.h>

#define BYTES (UINT64_C(8) << 20)

static uint64_t present(int fd)
{
    struct stat info;
    ck_assert_int_eq(fstat(fd, &info), 0);
    return (uint64_t)info.st_blocks * 512;
}

/* Gives the region to an engine that has nothing else to do. Returns how much of it is there then. */
static uint64_t shown_to_an_engine(struct hvi_region *region, uint64_t *ready_p)
{
    static char inline_area[4096];
    const struct hvi_region_add add = {.region = 7, .bytes = BYTES};
    struct engine_regions regions;
    engine_regions_init(&regions, inline_area);
    int fd = fcntl(region->fd, F_DUPFD_CLOEXEC, 0);
    ck_assert_int_eq(engine_regions_add(&regions, &add, fd), HVI_OK);
    while (engine_regions_ready(&regions))
        ;
    *ready_p = engine_regions_find(&regions, 7)->ready;
    uint64_t bytes = present(region->fd);
    ck_assert_int_eq(engine_regions_remove(&regions, 7), HVI_OK);
    engine_regions_fini(&regions);
    return bytes;
}

START_TEST(reserved_memory_is_made_ready)
{
    struct hvi_region region;
    uint64_t ready;
    ck_assert_int_eq(hvi_region_create("hvt", BYTES, &region), HVI_OK);
    ck_assert_uint_ge(shown_to_an_engine(&region, &ready), BYTES);
    ck_assert_uint_eq(ready, BYTES);
    hvi_region_fini(&region);
}
END_TEST

START_TEST(memory_that_comes_as_it_is_touched_is_not_touched)
{
    struct hvi_region region;
    uint64_t ready;
    ck_assert_int_eq(hvi_region_create_lazy("hvt", BYTES, &region), HVI_OK);
    ((char *)region.base)[0] = 1;
    uint64_t before = present(region.fd);
    ck_assert_uint_lt(before, BYTES);
    ck_assert_uint_eq(shown_to_an_engine(&region, &ready), before);
    ck_assert_uint_eq(ready, 0);
    hvi_region_fini(&region);
}
END_TEST

START_TEST(regions_in_one_chain_are_told_apart)
{
    static char inline_area[4096];
    const uint32_t first = 3, mapped = 3 + ENGINE_REGION_BUCKETS,
                   last = mapped + ENGINE_REGION_BUCKETS;
    const struct hvi_region_add add = {.region = mapped, .bytes = BYTES};
    const struct engine_region *device = NULL;
    struct engine_regions regions;
    struct hvi_region region;
    uint32_t devices = 0;

    ck_assert_int_eq(hvi_region_create("hvt", BYTES, &region), HVI_OK);
    engine_regions_init(&regions, inline_area);
    ck_assert_int_eq(engine_regions_add_device(&regions, first, 4096, 2, 102, 9), HVI_OK);
    ck_assert_int_eq(engine_regions_add(&regions, &add, fcntl(region.fd, F_DUPFD_CLOEXEC, 0)),
                     HVI_OK);
    ck_assert_int_eq(engine_regions_add_device(&regions, last, 8192, 5, 105, 1), HVI_OK);
    ck_assert_uint_eq(engine_regions_find(&regions, first)->worker, 2);
    ck_assert_uint_eq(engine_regions_find(&regions, last)->worker, 5);
    while ((device = engine_regions_next_device(&regions, device)) != NULL) {
        ck_assert_uint_ne(device->id, mapped);
        devices++;
    }
    ck_assert_uint_eq(devices, 2);
    ck_assert_uint_eq(regions.device_bytes, 4096 + 8192);
    ck_assert_int_eq(engine_regions_remove(&regions, first), HVI_OK);
    ck_assert_int_eq(engine_regions_remove(&regions, first), HVI_ERR_NOT_FOUND);
    ck_assert_int_eq(engine_regions_remove(&regions, last), HVI_OK);
    ck_assert_int_eq(engine_regions_remove(&regions, mapped), HVI_OK);
    ck_assert_uint_eq(regions.count, 0);
    ck_assert_uint_eq(regions.device_bytes + regions.bytes, 0);
    engine_regions_fini(&regions);
    hvi_region_fini(&region);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine region");
    TCase *tcase = tcase_create("region");
    tcase_add_test(tcase, reserved_memory_is_made_ready);
    tcase_add_test(tcase, memory_that_comes_as_it_is_touched_is_not_touched);
    tcase_add_test(tcase, regions_in_one_chain_are_told_apart);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
