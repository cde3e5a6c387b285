/* SPDX-License-Identifier: Apache-2.0
 * Fence pages: what may be mapped, which store wins, and what poison releases. */
#include "shm/fence.h"

#include "base/status.h"
#include "shm/abi.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <sched.h>

static struct hvi_fence_page page, view;

static void setup(void)
{
    ck_assert_int_eq(hvi_fence_create(&page), HVI_OK);
    int fd = dup(page.map.fd);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(hvi_fence_map(fd, &view), HVI_OK);
}

static void teardown(void)
{
    hvi_fence_fini(&view);
    hvi_fence_fini(&page);
}

static uint64_t done_of(uint32_t cell)
{
    return atomic_load(&view.cells[cell].done);
}

static uint64_t ready_of(uint32_t cell)
{
    return atomic_load(&view.cells[cell].ready);
}

START_TEST(a_page_is_the_same_for_both_and_begins_with_zeros)
{
    for (uint32_t i = 1; i < HVI_FENCE_CELLS; i++)
        ck_assert(ready_of(i) == 0 && done_of(i) == 0);
    hvi_fence_store_ready(&page, 1, 7);
    hvi_fence_store_done(&page, HVI_FENCE_CELLS - 1, 9);
    ck_assert_uint_eq(ready_of(1), 7);
    ck_assert_uint_eq(done_of(1), 0);
    ck_assert_uint_eq(done_of(HVI_FENCE_CELLS - 1), 9);
}
END_TEST

START_TEST(a_store_never_takes_a_word_back)
{
    hvi_fence_store_done(&page, 5, 3);
    hvi_fence_store_done(&view, 5, 2);
    ck_assert_uint_eq(done_of(5), 3);
    hvi_fence_store_done(&view, 5, 4);
    ck_assert_uint_eq(done_of(5), 4);
    hvi_fence_store_done(&view, 5, HVI_FENCE_TURNS - 1);
    ck_assert_uint_eq(done_of(5), HVI_FENCE_TURNS - 1);
    hvi_fence_poison(&view, false);
    hvi_fence_store_done(&view, 5, 4);
    hvi_fence_store_ready(&view, 5, HVI_FENCE_TURNS - 1);
    ck_assert_uint_eq(done_of(5), HVI_FENCE_POISON);
    ck_assert_uint_eq(ready_of(5), HVI_FENCE_POISON);
}
END_TEST

START_TEST(a_fence_is_ready_as_a_stream_sees_it)
{
    ck_assert(!hvi_fence_is_ready(&view, 2, 1));
    hvi_fence_store_ready(&page, 2, 5);
    ck_assert(hvi_fence_is_ready(&view, 2, 4));
    ck_assert(hvi_fence_is_ready(&view, 2, 5));
    ck_assert(!hvi_fence_is_ready(&view, 2, 6));
    hvi_fence_poison(&page, true);
    ck_assert(hvi_fence_is_ready(&view, 2, HVI_FENCE_TURNS - 1));
    /* A liar's word is a number like any other: the comparison is the driver's. */
    atomic_store(&view.cells[2].ready, UINT64_MAX);
    ck_assert(!hvi_fence_is_ready(&view, 2, 1));
}
END_TEST

START_TEST(poison_reaches_every_cell_and_can_leave_done_alone)
{
    hvi_fence_poison(&page, true);
    for (uint32_t i = 1; i < HVI_FENCE_CELLS; i++)
        ck_assert(ready_of(i) == HVI_FENCE_POISON && done_of(i) == 0);
    hvi_fence_poison(&page, false);
    hvi_fence_poison(&page, false);
    for (uint32_t i = 1; i < HVI_FENCE_CELLS; i++)
        ck_assert(ready_of(i) == HVI_FENCE_POISON && done_of(i) == HVI_FENCE_POISON);
    struct hvi_fence_head head;
    memcpy(&head, page.cells, sizeof(head));
    ck_assert_uint_eq(head.magic, HVI_FENCE_MAGIC);
}
END_TEST

START_TEST(poison_of_done_opens_no_gate)
{
    hvi_fence_poison_done(&page);
    for (uint32_t i = 1; i < HVI_FENCE_CELLS; i++)
        ck_assert(ready_of(i) == 0 && done_of(i) == HVI_FENCE_POISON);
    ck_assert_uint_eq(((const struct hvi_fence_head *)(const void *)page.cells)->magic,
                      HVI_FENCE_MAGIC);
}
END_TEST

START_TEST(what_is_to_be_skipped_is_said_apart_from_what_is_ready)
{
    hvi_fence_store_skip(&page, 3, 4);
    hvi_fence_store_skip(&view, 3, 2);
    ck_assert_uint_eq(atomic_load(&view.cells[3].skip), 4);
    hvi_fence_poison(&page, false);
    ck_assert_uint_eq(atomic_load(&view.cells[2].skip), 0);
    hvi_fence_skip_all(&page);
    for (uint32_t i = 1; i < HVI_FENCE_CELLS; i++)
        ck_assert_uint_eq(atomic_load(&view.cells[i].skip), HVI_FENCE_POISON);
}
END_TEST

static void expect_refused(size_t offset, unsigned char byte)
{
    struct hvi_fence_page refused;
    unsigned char *at = (unsigned char *)page.cells + offset;
    unsigned char before = *at;
    int fd = dup(page.map.fd);
    *at = byte;
    ck_assert_int_eq(hvi_fence_map(fd, &refused), HVI_ERR_PROTOCOL);
    ck_assert_int_eq(close(fd), 0); /* it stayed the caller's */
    *at = before;
}

START_TEST(a_page_of_another_kind_is_refused)
{
    struct hvi_region other;
    struct hvi_fence_page refused;
    expect_refused(0, 'x');
    expect_refused(offsetof(struct hvi_fence_head, abi_version), HVI_ABI_VERSION + 1);
    expect_refused(offsetof(struct hvi_fence_head, cells), 1);
    ck_assert_int_eq(hvi_region_create("hvt-other", HVI_FENCE_BYTES / 2, &other), HVI_OK);
    ck_assert_int_eq(hvi_fence_map(other.fd, &refused), HVI_ERR_PROTOCOL);
    hvi_region_fini(&other);
}
END_TEST

static void *store_turns(void *unused)
{
    (void)unused;
    for (uint64_t turn = 1; turn <= 20000; turn++) {
        hvi_fence_store_done(&view, 3, turn);
        hvi_fence_store_ready(&view, 3, turn);
    }
    return NULL;
}

/* Two processes store at once; a third thread sees words that only grow, to the end. */
START_TEST(words_only_grow_while_all_store)
{
    pthread_t thread[2];
    uint64_t last = 0;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(pthread_create(&thread[i], NULL, store_turns, NULL), 0);
    while (last < 20000) {
        uint64_t now = done_of(3);
        ck_assert_uint_ge(now, last);
        last = now;
        sched_yield();
    }
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    ck_assert_uint_eq(ready_of(3), 20000);
}
END_TEST

/* What a CPU wrote before it stored the turn is there for the one that sees it. */
static uint64_t payload;
static void *write_then_ready(void *unused)
{
    (void)unused;
    payload = 42;
    hvi_fence_store_ready(&page, 9, 1);
    return NULL;
}

START_TEST(what_comes_before_ready_is_seen_after_it)
{
    pthread_t thread;
    payload = 0;
    ck_assert_int_eq(pthread_create(&thread, NULL, write_then_ready, NULL), 0);
    while (!hvi_fence_is_ready(&page, 9, 1))
        sched_yield();
    ck_assert_uint_eq(payload, 42);
    pthread_join(thread, NULL);
}
END_TEST

START_TEST(the_end_may_come_twice)
{
    hvi_fence_fini(&view);
    hvi_fence_fini(&view);
    ck_assert_ptr_null(view.cells);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("shm/fence");
    TCase *tcase = tcase_create("page");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_page_is_the_same_for_both_and_begins_with_zeros);
    tcase_add_test(tcase, a_store_never_takes_a_word_back);
    tcase_add_test(tcase, a_fence_is_ready_as_a_stream_sees_it);
    tcase_add_test(tcase, what_is_to_be_skipped_is_said_apart_from_what_is_ready);
    tcase_add_test(tcase, poison_reaches_every_cell_and_can_leave_done_alone);
    tcase_add_test(tcase, poison_of_done_opens_no_gate);
    tcase_add_test(tcase, a_page_of_another_kind_is_refused);
    tcase_add_test(tcase, words_only_grow_while_all_store);
    tcase_add_test(tcase, what_comes_before_ready_is_seen_after_it);
    tcase_add_test(tcase, the_end_may_come_twice);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
