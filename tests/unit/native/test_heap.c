/* SPDX-License-Identifier: Apache-2.0
 * Whose memory TensorFlow's allocator gets, and which TensorFlows are left alone. */
#include "python/native/heap.h"

#include "python/native/slab.h"
#include "tests/unit/hvt_main.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define MIB ((size_t)1 << 20)
#if defined(__x86_64__)
#define IS_X86_64 true
#else
#define IS_X86_64 false
#endif

static void *(*alloc)(void *self, size_t alignment, size_t bytes, size_t *received);
static void (*release)(void *self, void *data, size_t bytes);
static void *(*other_malloc)(size_t bytes);
static void (*set_onednn)(bool is_on);
static int *mallocs, *frees;

static void find(void *library, const char *name, void *function_p)
{
    void *address = dlsym(library, name);
    ck_assert_msg(address != NULL, "%s", name);
    memcpy(function_p, &address, sizeof address);
}

/* A process has one TensorFlow, so each test, which is a process, loads the one that it wants. */
static void load(int variant)
{
    char path[256];

    snprintf(path, sizeof path, "%s/lib/libhvt_allocator_%d.so", getenv("HVD_BUILD_DIR"), variant);
    void *library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    find(library, "_ZN10tensorflow17BasicCPUAllocator5AllocEmmPm", &alloc);
    find(library, "_ZN10tensorflow17BasicCPUAllocator4FreeEPvm", &release);
    find(library, "hvt_other_malloc", &other_malloc);
    find(library, "hvt_set_onednn", &set_onednn);
    find(library, "hvt_mallocs", &mallocs);
    find(library, "hvt_frees", &frees);
}

/* How many of three allocations became slabs: two regions, and one below the smallest; all go back where they came from. */
static int slabs_of(void *self)
{
    static const size_t sizes[] = {2 * MIB, 16 * MIB, 4096};
    int slabs = 0, taken = *mallocs, freed = *frees;

    for (int i = 0; i < 3; i++) {
        size_t received = 0;
        unsigned char *data = alloc(self, 64, sizes[i], &received);
        ck_assert_ptr_nonnull(data);
        ck_assert_uint_eq(received, sizes[i]);
        bool is_slab = slab_is_heap(data);
        memset(data, 1, sizes[i]);
        slabs += is_slab;
        release(self, data, sizes[i]);
        ck_assert(!slab_is_heap(data));
    }
    ck_assert_int_eq(*mallocs - taken, 3 - slabs);
    ck_assert_int_eq(*frees - freed, 3 - slabs);
    return slabs;
}

static void is_left_alone(int major, int minor, const char *why)
{
    const char *looked = hvd_tf_heap_obstacle(major, minor);
    const char *told = hvd_tf_share_heap(major, minor);

    ck_assert_msg(told && looked && strstr(told, why), "%s", told ? told : "shared");
    ck_assert_str_eq(told, looked);
    ck_assert_int_eq(slabs_of(NULL), 0);
}

START_TEST(regions_are_slabs_once_it_is_asked_for)
{
    int minor = _i ? 15 : 21;
    void *self = _i ? &minor : NULL;

    load(1);
    ck_assert_int_eq(slabs_of(self), 0);
    ck_assert_ptr_null(hvd_tf_heap_obstacle(2, minor));
    ck_assert_int_eq(slabs_of(self), 0);
    size_t received;
    void *before = alloc(self, 64, 4 * MIB, &received);
    ck_assert_ptr_null(hvd_tf_share_heap(2, minor));
    release(self, before, 4 * MIB);
    ck_assert_int_eq(slabs_of(self), 2);
    ck_assert_ptr_null(hvd_tf_share_heap(2, minor));
    ck_assert_ptr_null(hvd_tf_heap_obstacle(2, minor));
    ck_assert_int_eq(slabs_of(self), 2);
    void *other = other_malloc(4 * MIB); /* not the allocator's call */
    ck_assert(!slab_is_heap(other));
    release(self, other, 4 * MIB);
}
END_TEST

START_TEST(versions_that_were_not_tried_are_left_alone)
{
    static const int versions[][2] = {{2, 14}, {2, 16}, {2, 20}, {2, 22}, {1, 15}, {3, 21}};

    load(1);
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++)
        is_left_alone(versions[i][0], versions[i][1], "2.15 and 2.21 only");
}
END_TEST

START_TEST(without_onednn_nothing_is_changed)
{
    load(1);
    set_onednn(false);
    is_left_alone(2, 21, "oneDNN is off");
}
END_TEST

START_TEST(other_names_and_other_code_are_left_alone)
{
    load(2 + _i);
    is_left_alone(2, 21, "the code of this TensorFlow is not that");
    is_left_alone(2, 15, "the code of this TensorFlow is not that");
}
END_TEST

START_TEST(without_tensorflow_nothing_is_changed)
{
    ck_assert_ptr_nonnull(hvd_tf_heap_obstacle(2, 21));
    ck_assert_ptr_nonnull(hvd_tf_share_heap(2, 21));
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("native/heap");
    TCase *tcase = tcase_create("heap");
    if (IS_X86_64) { /* heap.c knows no other code */
        tcase_add_loop_test(tcase, regions_are_slabs_once_it_is_asked_for, 0, 2);
        tcase_add_test(tcase, versions_that_were_not_tried_are_left_alone);
        tcase_add_test(tcase, without_onednn_nothing_is_changed);
        tcase_add_loop_test(tcase, other_names_and_other_code_are_left_alone, 0, 2);
    }
    tcase_add_test(tcase, without_tensorflow_nothing_is_changed);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
