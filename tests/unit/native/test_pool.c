/* SPDX-License-Identifier: Apache-2.0
 * The memory of results. */
#include "python/native/pool.h"

#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

START_TEST(a_chunk_is_used_again_for_what_needs_about_as_much)
{
    unsigned char *first = pool_take(100000), *second = pool_take(100000);

    ck_assert(first && second && first != second);
    ck_assert_uint_eq((uintptr_t)first % 4096, 0);
    memset(first, 1, 100000);
    memset(second, 2, 100000);
    ck_assert(first[99999] == 1 && second[0] == 2);
    pool_give(first, 100000);
    ck_assert_ptr_eq(pool_take(99000), first);
    ck_assert(pool_take(200000) != second);
    pool_give(second, 100000);
    ck_assert_ptr_eq(pool_take(100000), second);
}
END_TEST

/* The chunks that are out never overlap, whatever is given and taken. */
START_TEST(chunks_of_all_sizes_do_not_overlap)
{
    static struct {
        unsigned char *data;
        size_t bytes;
    } out[64];
    uint64_t random = 1;

    for (int i = 0; i < 4000; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        int at = (int)(random >> 40) % 64;
        if (out[at].data) {
            for (size_t k = 0; k < out[at].bytes; k += 4096)
                ck_assert(out[at].data[k] == at);
            ck_assert(out[at].data[out[at].bytes - 1] == at);
            pool_give(out[at].data, out[at].bytes);
            out[at].data = NULL;
            continue;
        }
        out[at].bytes = 1 + (size_t)(random >> 20) % (i % 50 ? 200000 : 20 << 20);
        out[at].data = pool_take(out[at].bytes);
        ck_assert_ptr_nonnull(out[at].data);
        memset(out[at].data, at, out[at].bytes);
    }
}
END_TEST

static void *take_and_give(void *user)
{
    size_t bytes = *(size_t *)user;

    for (int i = 0; i < 3000; i++) {
        unsigned char *data = pool_take(bytes);
        if (!data)
            return user;
        data[0] = data[bytes - 1] = (unsigned char)i;
        if (data[0] != (unsigned char)i)
            return user;
        pool_give(data, bytes);
    }
    return NULL;
}

START_TEST(any_thread_may_take_and_give)
{
    static size_t sizes[4] = {40000, 40000, 70000, 300000};
    pthread_t threads[4];
    void *wrong;

    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, take_and_give, &sizes[i]), 0);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], &wrong);
        ck_assert_ptr_null(wrong);
    }
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("native/pool");
    TCase *tcase = tcase_create("pool");
    tcase_add_test(tcase, a_chunk_is_used_again_for_what_needs_about_as_much);
    tcase_add_test(tcase, chunks_of_all_sizes_do_not_overlap);
    tcase_add_test(tcase, any_thread_may_take_and_give);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
