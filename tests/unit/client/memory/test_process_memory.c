/* SPDX-License-Identifier: Apache-2.0
 * hvd_mem_alloc: memory of the process, which sessions come and go over. */
#include "base/types.h"
#include "tests/unit/client/count.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
}

static void tear_down(void)
{
    if (session)
        hvd_close(session);
    hvt_fake_stop(fake);
}

static unsigned char *take(size_t bytes)
{
    void *memory = NULL;
    ck_assert_msg(hvd_mem_alloc(bytes, &memory) == HVD_OK, "%s", hvd_last_error());
    return memory;
}

/* Whether an op on these bytes is given to the engine where they are. Ends the op. */
static bool is_in_place(struct hvt_fake_session *at, struct hvd_session *with, void *data,
                        int64_t bytes)
{
    struct hvd_tensor tensor = hvd_tensor_1d(data, HVD_UINT8, bytes);
    struct hvd_op *op;
    ck_assert_msg(hvd_allreduce_async(with, NULL, &tensor, &tensor, HVD_SUM, NULL, &op) == HVD_OK,
                  "%s", hvd_last_error());
    struct hvi_submission slot = hvt_fake_take(at);
    unsigned char *seen = hvt_fake_memory(at, slot.in_region, slot.in_offset);
    unsigned char before = *(unsigned char *)data;
    *(unsigned char *)data = (unsigned char)(before + 1);
    bool same = *seen == (unsigned char)(before + 1);
    *(unsigned char *)data = before;
    hvt_fake_done(at, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    hvd_op_free(op);
    return same;
}

START_TEST(it_is_zeroed_aligned_and_comes_as_it_is_touched)
{
    long pages = (long)(64 * MIB) / sysconf(_SC_PAGESIZE);
    unsigned char *memory = take(64 * MIB), resident[64 * MIB / 4096];
    ck_assert_uint_eq((uintptr_t)memory % (2 * MIB), 0);
    ck_assert_int_eq(hvd_register(session, memory, 64 * MIB), HVD_OK);
    ck_assert_int_eq(mincore(memory, 64 * MIB, resident), 0);
    for (long i = 0; i < pages; i++)
        ck_assert_int_eq(resident[i] & 1, 0);
    ck_assert_int_eq(memory[0] | memory[64 * MIB - 1], 0);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    ck_assert_int_eq(hvd_mem_free(memory), HVD_OK);
}
END_TEST

START_TEST(registered_it_is_used_where_it_is)
{
    unsigned char *memory = take(10000);
    memset(memory, 3, 10000);
    ck_assert(!is_in_place(engine, session, memory, 10000));
    uint32_t regions = hvt_fake_regions(engine);
    ck_assert_int_eq(hvd_register(session, memory + 4000, 10), HVD_OK); /* all of it, by any part */
    ck_assert_uint_eq(hvt_fake_regions(engine), regions + 1);
    ck_assert(is_in_place(engine, session, memory, 10000));
    ck_assert_int_eq(hvd_register(session, memory, 10000), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_free(session, memory), HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_deregister(session, memory + 4000), HVD_OK);
    ck_assert(!is_in_place(engine, session, memory, 10000));
    ck_assert_uint_eq(memory[9999], 3);
    ck_assert_int_eq(hvd_mem_free(memory), HVD_OK);
}
END_TEST

START_TEST(it_outlives_its_sessions)
{
    unsigned char *memory = take(3 * MIB);
    int fds = hvt_count_fds();
    ck_assert_int_eq(hvd_register(session, memory, 3 * MIB), HVD_OK);
    memset(memory, 7, 3 * MIB);
    ck_assert_int_eq(hvd_mem_free(memory), HVD_ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "1 sessions"));
    ck_assert_int_eq(hvd_close(session), HVD_OK);
    ck_assert_int_lt(hvt_count_fds(), fds);
    ck_assert_uint_eq(memory[3 * MIB - 1], 7);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 1);
    ck_assert_int_eq(hvd_register(session, memory, 3 * MIB), HVD_OK);
    ck_assert(is_in_place(engine, session, memory, 3 * (int64_t)MIB));
    ck_assert_int_eq(hvd_close(session), HVD_OK);
    session = NULL;
    ck_assert_int_eq(hvd_mem_free(memory), HVD_OK);
}
END_TEST

START_TEST(two_sessions_share_one)
{
    struct hvd_session *second = hvt_fake_open(fake);
    unsigned char *memory = take(MIB);
    ck_assert_int_eq(hvd_register(session, memory, MIB), HVD_OK);
    ck_assert_int_eq(hvd_register(second, memory, MIB), HVD_OK);
    ck_assert_int_eq(hvd_close(second), HVD_OK);
    ck_assert(is_in_place(engine, session, memory, (int64_t)MIB));
    ck_assert_int_eq(hvd_mem_free(memory), HVD_ERR_BUSY);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    ck_assert_int_eq(hvd_mem_free(memory), HVD_OK);
}
END_TEST

START_TEST(what_is_refused_leaves_nothing)
{
    void *memory = NULL;
    int mappings = hvt_count_mappings(), fds = hvt_count_fds();
    ck_assert_int_eq(hvd_mem_alloc(0, &memory), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_mem_alloc(1, NULL), HVD_ERR_INVALID);
    ck_assert_int_ne(hvd_mem_alloc(SIZE_MAX, &memory), HVD_OK);
    ck_assert_ptr_null(memory);
    ck_assert_int_eq(hvd_mem_free(NULL), HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_mem_free(&mappings), HVD_ERR_NOT_FOUND);
    memory = take(MIB);
    hvt_fake_refuse_regions(fake, HVD_ERR_LIMIT, "no more than 4 regions");
    ck_assert_int_eq(hvd_register(session, memory, MIB), HVD_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "no more than 4 regions"));
    ck_assert_int_eq(hvd_mem_free((char *)memory + 1), HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_mem_free(memory), HVD_OK);
    ck_assert_int_eq(hvt_count_mappings(), mappings);
    ck_assert_int_eq(hvt_count_fds(), fds);
}
END_TEST

static int change_and_free(unsigned char *memory)
{
    void *own;
    if (memory[5] != 9)
        return 1;
    memset(memory, 1, MIB);
    if (hvd_mem_alloc(MIB, &own) != HVD_OK || hvd_mem_free(own) != HVD_OK)
        return 2;
    struct hvd_session *mine = hvt_fake_open(fake); /* the parent's thread serves it */
    if (hvd_register(mine, memory, MIB) != HVD_OK)  /* through a twin */
        return 3;
    if (hvd_close(mine) != HVD_OK || memory[6] != 1)
        return 4;
    return hvd_mem_free(memory) == HVD_OK ? 0 : 5;
}

START_TEST(a_child_has_a_view_of_its_own)
{
    unsigned char *memory = take(MIB);
    memset(memory, 9, MIB);
    ck_assert_int_eq(hvd_register(session, memory, MIB), HVD_OK);
    pid_t pid = fork();
    if (pid == 0)
        _exit(change_and_free(memory));
    ck_assert_int_eq(hvt_wait_child(pid), 0);
    ck_assert_uint_eq(memory[5], 9);
    ck_assert_uint_eq(memory[MIB - 1], 9);
    ck_assert(is_in_place(engine, session, memory, (int64_t)MIB));
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    ck_assert_int_eq(hvd_mem_free(memory), HVD_OK);
}
END_TEST

static void *come_and_go(void *unused)
{
    (void)unused;
    for (int i = 0; i < 100; i++) {
        void *memory = NULL;
        ck_assert_int_eq(hvd_mem_alloc(MIB, &memory), HVD_OK);
        *(volatile char *)memory = 1;
        ck_assert_int_eq(hvd_register(session, memory, MIB), HVD_OK);
        ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
        ck_assert_int_eq(hvd_mem_free(memory), HVD_OK);
    }
    return NULL;
}

START_TEST(threads_do_not_disturb_each_other)
{
    pthread_t threads[4];
    int mappings = hvt_count_mappings();
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, come_and_go, NULL), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    ck_assert_int_eq(hvt_count_mappings(), mappings);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client process memory");
    TCase *tcase = tcase_create("process_memory");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, it_is_zeroed_aligned_and_comes_as_it_is_touched);
    tcase_add_test(tcase, registered_it_is_used_where_it_is);
    tcase_add_test(tcase, it_outlives_its_sessions);
    tcase_add_test(tcase, two_sessions_share_one);
    tcase_add_test(tcase, what_is_refused_leaves_nothing);
    tcase_add_test(tcase, a_child_has_a_view_of_its_own);
    tcase_add_test(tcase, threads_do_not_disturb_each_other);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
