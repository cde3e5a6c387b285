/* SPDX-License-Identifier: Apache-2.0
 * Slabs and the sessions that are told of them, with the engine of the client's tests. */
#include "python/native/slab.h"

#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <pthread.h>
#include <string.h>

#define MIB ((size_t)1 << 20)

static struct hvt_fake *fake;
static struct hvd_session *session;

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

START_TEST(an_address_is_in_the_heap_while_its_slab_lives)
{
    unsigned char *heap = slab_new(3 * MIB, SLAB_HEAP), *pool = slab_new(MIB, SLAB_POOL);
    int here;

    ck_assert(slab_is_heap(heap) && slab_is_heap(heap + 3 * MIB - 1));
    ck_assert(!slab_is_heap(heap + 3 * MIB) && !slab_is_heap(heap - 1) && !slab_is_heap(&here));
    ck_assert(!slab_is_heap(pool) && !slab_is_shared_heap(heap));
    ck_assert(!slab_free(&here) && !slab_free(pool) && !slab_free(heap + 4096));
    ck_assert(slab_free(heap));
    ck_assert(!slab_is_heap(heap) && !slab_free(heap));
}
END_TEST

START_TEST(a_session_is_told_of_each_slab_once)
{
    unsigned char *heap = slab_new(MIB, SLAB_HEAP);
    struct hvt_fake_session *engine = hvt_fake_session(fake, 0);
    uint32_t regions = hvt_fake_regions(engine);

    ck_assert(slab_is_news());
    slab_share(session);
    ck_assert(!slab_is_news() && slab_is_shared_heap(heap));
    ck_assert_uint_eq(hvt_fake_regions(engine), regions + 1);
    slab_share(session);
    ck_assert_uint_eq(hvt_fake_regions(engine), regions + 1);
    unsigned char *later = slab_new(MIB, SLAB_HEAP);
    ck_assert(slab_is_news() && !slab_is_shared_heap(later));
    slab_share(session);
    ck_assert(slab_is_shared_heap(later));
    slab_unshare();
    ck_assert(slab_is_news() && !slab_is_shared_heap(heap) && !slab_is_shared_heap(later));
}
END_TEST

START_TEST(a_slab_that_a_session_knows_goes_when_the_session_does)
{
    unsigned char *heap = slab_new(MIB, SLAB_HEAP);
    int fds = hvt_count_fds();

    slab_share(session);
    memset(heap, 7, MIB);
    ck_assert(slab_free(heap));
    ck_assert_uint_eq(heap[MIB - 1], 7); /* the engine may still be at work in it */
    ck_assert_int_eq(hvd_close(session), HVD_OK);
    slab_unshare();
    ck_assert(!slab_is_heap(heap));
    ck_assert_int_lt(hvt_count_fds(), fds);
    session = hvt_fake_open(fake);
}
END_TEST

START_TEST(a_slab_that_the_engine_refuses_is_ordinary_memory)
{
    unsigned char *heap = slab_new(MIB, SLAB_HEAP);

    hvt_fake_refuse_regions(fake, HVD_ERR_LIMIT, "no more than 4 regions");
    slab_share(session);
    ck_assert(slab_is_heap(heap) && !slab_is_shared_heap(heap));
    slab_unshare();
    ck_assert(slab_free(heap));
}
END_TEST

START_TEST(there_is_a_limit_and_rows_are_used_again)
{
    static void *slabs[1000];
    int count = 0;

    while (count < 1000 && (slabs[count] = slab_new(4096, SLAB_HEAP)))
        count++;
    ck_assert_int_eq(count, 512);
    ck_assert(slab_free(slabs[100]));
    ck_assert_ptr_nonnull(slabs[100] = slab_new(4096, SLAB_HEAP));
    ck_assert_ptr_null(slab_new(4096, SLAB_HEAP));
    for (int i = 0; i < count; i++)
        ck_assert(slab_free(slabs[i]));
}
END_TEST

static void *come_and_go(void *unused)
{
    for (int i = 0; i < 500; i++) {
        unsigned char *slab = slab_new(65536, SLAB_HEAP);
        if (!slab || !slab_is_heap(slab + 65535))
            return fake;
        slab[0] = 1;
        slab_is_shared_heap(slab);
        if (!slab_free(slab))
            return fake;
    }
    return unused;
}

/* TensorFlow's allocator in some threads while ops are submitted in another. */
START_TEST(slabs_come_and_go_while_a_session_is_told)
{
    pthread_t threads[3];
    void *wrong;

    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
    for (int i = 0; i < 50; i++)
        slab_share(session);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], &wrong);
        ck_assert_ptr_null(wrong);
    }
    hvd_close(session);
    slab_unshare();
    session = hvt_fake_open(fake);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("native/slab");
    TCase *tcase = tcase_create("slab");
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, an_address_is_in_the_heap_while_its_slab_lives);
    tcase_add_test(tcase, a_session_is_told_of_each_slab_once);
    tcase_add_test(tcase, a_slab_that_a_session_knows_goes_when_the_session_does);
    tcase_add_test(tcase, a_slab_that_the_engine_refuses_is_ordinary_memory);
    tcase_add_test(tcase, there_is_a_limit_and_rows_are_used_again);
    tcase_add_test(tcase, slabs_come_and_go_while_a_session_is_told);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
