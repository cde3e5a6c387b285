/* SPDX-License-Identifier: Apache-2.0
 * Ordinary memory that the engine reaches by its address: when it is, and when it is not. */
#include "client/memory/remote.h"

#include "base/clock.h"
#include "client/memory/staging.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define LARGE CLIENT_REMOTE_MIN

static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;
static unsigned char *data, *other; /* 4 * LARGE each */

static void set_up(void)
{
    struct hvt_fake_script script = {.manual = true, .features = HVI_FEATURE_PROCESS};
    setenv("HVD_FOREIGN_MEMORY", "always", 1);
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
    data = calloc(4, LARGE);
    other = calloc(4, LARGE);
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
    free(data);
    free(other);
}

static struct hvi_submission take(int rc)
{
    ck_assert_msg(rc == HVD_OK, "%s", hvd_last_error());
    return hvt_fake_take(engine);
}

static struct hvi_submission submit(void *in, void *out, enum hvd_dtype dtype, int64_t count,
                                    struct hvd_op **op_p)
{
    struct hvd_tensor a = hvd_tensor_1d(in, dtype, count);
    struct hvd_tensor b = hvd_tensor_1d(out, dtype, count);
    return take(hvd_allreduce_async(session, NULL, &a, &b, HVD_SUM, NULL, op_p));
}

static void finish(struct hvd_op *op, uint64_t cookie)
{
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    hvd_op_free(op);
}

static void check_remote(uint32_t region, uint64_t offset, const void *address)
{
    ck_assert_uint_eq(region, HVI_REGION_PROCESS);
    ck_assert_uint_eq(offset, (uintptr_t)address);
}

START_TEST(large_memory_is_named_by_its_address)
{
    struct hvd_op *op;
    struct hvd_tensor result;
    struct hvi_submission slot = submit(data, data, HVD_UINT8, LARGE, &op);
    check_remote(slot.in_region, slot.in_offset, data);
    check_remote(slot.out_region, slot.out_offset, data);
    ck_assert_uint_eq(slot.out_capacity, LARGE);
    data[5] = 77; /* what the engine would write */
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_result(op, &result), HVD_OK);
    ck_assert_ptr_eq(result.data, data);
    ck_assert_uint_eq(data[5], 77);
    hvd_op_free(op);
    slot = submit(data + 4, other + 8, HVD_FLOAT32, LARGE / 4, &op);
    check_remote(slot.in_region, slot.in_offset, data + 4);
    check_remote(slot.out_region, slot.out_offset, other + 8);
    finish(op, slot.cookie);
    ck_assert_uint_eq(hvt_fake_regions(engine), 0);
}
END_TEST

START_TEST(small_or_misaligned_memory_is_copied)
{
    struct hvd_op *op;
    struct hvi_submission slot = submit(data, data, HVD_UINT8, LARGE - 1, &op);
    ck_assert_uint_ne(slot.in_region, HVI_REGION_PROCESS);
    ck_assert_uint_ne(slot.out_region, HVI_REGION_PROCESS);
    finish(op, slot.cookie);
    slot = submit(data + 2, data + 2, HVD_FLOAT32, LARGE / 4, &op);
    ck_assert_uint_ne(slot.in_region, HVI_REGION_PROCESS);
    ck_assert_uint_ne(slot.out_region, HVI_REGION_PROCESS);
    finish(op, slot.cookie);
    slot = submit(data, other + 2, HVD_FLOAT32, LARGE / 4, &op);
    check_remote(slot.in_region, slot.in_offset, data);
    ck_assert_uint_ne(slot.out_region, HVI_REGION_PROCESS);
    finish(op, slot.cookie);
}
END_TEST

static void fail_late(struct hvd_op *op, uint64_t cookie)
{
    hvt_fake_done(engine, cookie, HVD_ERR_STALLED, "silent", 1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_STALLED);
    hvd_op_free(op);
}

START_TEST(a_block_that_may_be_written_late_is_used_by_no_other_op)
{
    struct hvd_op *failed, *other_op, *next;
    struct hvi_submission first = submit(data, other + 2, HVD_FLOAT32, LARGE / 4, &failed);
    struct hvi_submission second =
        submit(data, other + LARGE + 2, HVD_FLOAT32, LARGE / 4, &other_op);
    check_remote(first.in_region, first.in_offset, data);
    ck_assert_uint_eq(second.out_region, first.out_region);
    fail_late(failed, first.cookie);
    struct hvi_submission third = submit(data, other + 2, HVD_FLOAT32, LARGE / 4, &next);
    ck_assert_uint_ne(third.out_region, first.out_region);
    ck_assert_uint_eq(hvt_fake_regions(engine), 2);
    finish(other_op, second.cookie);
    finish(next, third.cookie);
    uint64_t deadline_ns = hvi_deadline_after(1000000000);
    while (hvt_fake_regions(engine) > 1 && !hvi_deadline_passed(deadline_ns))
        ck_assert_int_eq(hvd_session_status(session), HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
}
END_TEST

START_TEST(a_twin_that_may_be_written_late_is_used_by_no_other_op)
{
    struct hvd_op *op;
    ck_assert_int_eq(hvd_register(session, other, 4 * LARGE), HVD_OK);
    struct hvi_submission slot = submit(data, other, HVD_FLOAT32, LARGE / 4, &op);
    uint32_t twin = slot.out_region;
    check_remote(slot.in_region, slot.in_offset, data);
    finish(op, slot.cookie);
    slot = submit(data, other, HVD_FLOAT32, LARGE / 4, &op);
    ck_assert_uint_eq(slot.out_region, twin);
    fail_late(op, slot.cookie);
    slot = submit(data, other, HVD_FLOAT32, LARGE / 4, &op);
    ck_assert_uint_ne(slot.out_region, twin);
    finish(op, slot.cookie);
    ck_assert_int_eq(hvd_deregister(session, other), HVD_OK);
}
END_TEST

START_TEST(known_memory_is_used_as_ever)
{
    struct hvd_op *op;
    void *shared;
    ck_assert_int_eq(hvd_alloc(session, LARGE, &shared), HVD_OK);
    ck_assert_int_eq(hvd_register(session, other, LARGE), HVD_OK);
    struct hvi_submission slot = submit(data, shared, HVD_UINT8, LARGE, &op);
    check_remote(slot.in_region, slot.in_offset, data);
    ck_assert_uint_ne(slot.out_region, HVI_REGION_PROCESS);
    finish(op, slot.cookie);
    slot = submit(shared, data, HVD_UINT8, LARGE, &op);
    ck_assert_uint_ne(slot.in_region, HVI_REGION_PROCESS);
    check_remote(slot.out_region, slot.out_offset, data);
    finish(op, slot.cookie);
    slot = submit(other, other, HVD_UINT8, LARGE, &op);
    ck_assert_uint_ne(slot.in_region, HVI_REGION_PROCESS);
    ck_assert_uint_eq(slot.in_region, slot.out_region);
    finish(op, slot.cookie);
}
END_TEST

START_TEST(each_side_of_a_gather_for_itself)
{
    struct hvd_op *op;
    struct hvd_tensor in = hvd_tensor_1d(data, HVD_UINT8, LARGE / 2);
    struct hvd_tensor out = hvd_tensor_1d(other, HVD_UINT8, LARGE);
    struct hvi_submission slot = take(hvd_allgather_async(session, "g", &in, &out, NULL, &op));
    ck_assert_uint_ne(slot.in_region, HVI_REGION_PROCESS);
    check_remote(slot.out_region, slot.out_offset, other);
    struct hvi_completion completion = {.cookie = slot.cookie,
                                        .kind = HVI_COMPLETE_DONE,
                                        .text_cell = HVI_TEXT_NONE,
                                        .rows = LARGE / 2,
                                        .bytes = LARGE / 2};
    hvt_fake_completion(engine, completion);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    ck_assert_int_eq(hvd_op_result(op, &out), HVD_OK);
    ck_assert_ptr_eq(out.data, other);
    ck_assert_int_eq(out.dims[0], LARGE / 2);
    hvd_op_free(op);
    in = hvd_tensor_1d(data, HVD_UINT8, LARGE);
    slot = take(hvd_allgather_async(session, "h", &in, NULL, NULL, &op));
    check_remote(slot.in_region, slot.in_offset, data);
    ck_assert_uint_eq(slot.out_region, HVI_REGION_NONE);
    hvd_op_free(op);
}
END_TEST

START_TEST(a_broadcast_reads_only_at_the_root)
{
    struct hvd_op *op;
    struct hvd_tensor in = hvd_tensor_1d(NULL, HVD_UINT8, LARGE);
    struct hvd_tensor out = hvd_tensor_1d(data, HVD_UINT8, LARGE);
    in.data = other;
    struct hvi_submission slot = take(hvd_broadcast_async(session, "b", &in, &out, 0, NULL, &op));
    check_remote(slot.in_region, slot.in_offset, other);
    check_remote(slot.out_region, slot.out_offset, data);
    finish(op, slot.cookie);
}
END_TEST

START_TEST(memory_that_the_engine_will_write_is_not_adopted)
{
    struct hvd_op *op;
    void *memory = NULL;
    ck_assert_int_eq(posix_memalign(&memory, 4096, 64u << 20), 0);
    struct hvi_submission slot = submit(memory, memory, HVD_UINT8, 64 << 20, &op);
    ck_assert_int_eq(hvd_adopt(session, memory, 64u << 20), HVD_ERR_BUSY);
    finish(op, slot.cookie);
    ck_assert_msg(hvd_adopt(session, memory, 64u << 20) == HVD_OK, "%s", hvd_last_error());
    slot = submit(memory, memory, HVD_UINT8, 64 << 20, &op);
    ck_assert_uint_ne(slot.in_region, HVI_REGION_PROCESS);
    finish(op, slot.cookie);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    free(memory);
}
END_TEST

/* A tensor that begins in front of adopted memory. */
START_TEST(adopted_memory_that_the_engine_uses_by_its_address_is_busy)
{
    struct hvd_op *op;
    unsigned char *memory =
        mmap(NULL, 2 * LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    ck_assert_msg(hvd_adopt(session, memory + LARGE, LARGE) == HVD_OK, "%s", hvd_last_error());
    for (int i = 0; i < 2; i++) { /* as its output, as its input */
        struct hvi_submission slot = i == 0 ? submit(data, memory, HVD_UINT8, 2 * LARGE, &op)
                                            : submit(memory, data, HVD_UINT8, 2 * LARGE, &op);
        check_remote(i == 0 ? slot.out_region : slot.in_region,
                     i == 0 ? slot.out_offset : slot.in_offset, memory);
        ck_assert_int_eq(hvd_deregister(session, memory + LARGE), HVD_ERR_BUSY);
        finish(op, slot.cookie);
    }
    ck_assert_int_eq(hvd_deregister(session, memory + LARGE), HVD_OK);
    munmap(memory, 2 * LARGE);
}
END_TEST

START_TEST(never_means_never)
{
    setenv("HVD_FOREIGN_MEMORY", "never", 1);
    struct hvd_session *mine = hvt_fake_open(fake);
    struct hvt_fake_session *its = hvt_fake_session(fake, 1);
    struct hvd_tensor tensor = hvd_tensor_1d(data, HVD_UINT8, 4 * LARGE);
    struct hvd_op *op;
    ck_assert_int_eq(hvd_allreduce_async(mine, NULL, &tensor, &tensor, HVD_SUM, NULL, &op), HVD_OK);
    ck_assert_uint_ne(hvt_fake_take(its).in_region, HVI_REGION_PROCESS);
    hvd_close(mine);
}
END_TEST

START_TEST(what_does_not_fit_the_staging_cache_stays_where_it_is)
{
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

    pthread_mutex_lock(&mutex);
    ck_assert(client_remote_wins(CLIENT_REMOTE_AUTO, CLIENT_STAGING_CACHE + 1, false, &mutex));
    ck_assert(!client_remote_wins(CLIENT_REMOTE_NEVER, CLIENT_STAGING_CACHE + 1, true, &mutex));
    bool wins = client_remote_wins(CLIENT_REMOTE_AUTO, LARGE, false, &mutex);
    for (int i = 0; i < 3; i++)
        ck_assert(client_remote_wins(CLIENT_REMOTE_AUTO, 2 * LARGE, false, &mutex) ==
                  wins); /* it is measured once */
    pthread_mutex_unlock(&mutex);
}
END_TEST

/* ---- where it is not offered ---- */

static int said;

static void count_lines(void *user, enum hvd_log_level level, const char *text)
{
    (void)user;
    if (level == HVD_LOG_INFO && strstr(text, "hvd_adopt"))
        said++;
}

START_TEST(without_the_right_it_is_copied_and_that_is_said_once)
{
    struct hvt_fake_script script = {.manual = true};
    struct hvt_fake *strict = hvt_fake_start(&script);
    struct hvd_options options;
    struct hvd_session *mine;
    hvd_options_init(&options);
    options.address = hvt_fake_dir(strict);
    options.rank = 0;
    options.size = 1;
    options.log = count_lines;
    ck_assert_int_eq(hvd_open(&options, &mine), HVD_OK);
    struct hvt_fake_session *its = hvt_fake_session(strict, 0);
    for (int i = 0; i < 3; i++) {
        struct hvd_tensor tensor = hvd_tensor_1d(data, HVD_UINT8, i == 0 ? 100 : LARGE);
        struct hvd_op *op;
        int rc = hvd_allreduce_async(mine, NULL, &tensor, &tensor, HVD_SUM, NULL, &op);
        ck_assert_int_eq(rc, HVD_OK);
        struct hvi_submission slot = hvt_fake_take(its);
        ck_assert_uint_ne(slot.in_region, HVI_REGION_PROCESS);
        ck_assert_int_eq(said, i == 0 ? 0 : 1);
        hvt_fake_done(its, slot.cookie, HVD_OK, NULL, -1);
        ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
        hvd_op_free(op);
    }
    hvd_close(mine);
    hvt_fake_stop(strict);
}
END_TEST

START_TEST(more_than_four_gigabytes_are_counted_in_full)
{
    const int64_t count = (INT64_C(5) << 30) / 4 + 3; /* of float32 */
    const uint64_t bytes = (uint64_t)count * 4;
    struct hvd_op *op;
    void *huge = hvt_space(bytes);
    struct hvi_submission slot = submit(huge, huge, HVD_FLOAT32, count, &op);
    ck_assert_uint_eq(slot.count, (uint64_t)count);
    ck_assert_uint_eq(slot.out_capacity, bytes);
    ck_assert_int_eq(slot.dims[0], count);
    finish(op, slot.cookie);
    struct hvd_tensor in = hvd_tensor_1d(huge, HVD_FLOAT32, count);
    ck_assert_int_eq(hvd_alltoall_async(session, NULL, &in, &count, NULL, NULL, &op), HVD_OK);
    slot = hvt_fake_take(engine);
    ck_assert_int_eq(*(int64_t *)hvt_fake_memory(engine, slot.aux_region, slot.aux_offset), count);
    hvt_fake_done(engine, slot.cookie, HVD_ERR_MISMATCH, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_ERR_MISMATCH);
    hvd_op_free(op);
    munmap(huge, bytes);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client remote");
    TCase *tcase = tcase_create("remote");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, large_memory_is_named_by_its_address);
    tcase_add_test(tcase, small_or_misaligned_memory_is_copied);
    tcase_add_test(tcase, a_block_that_may_be_written_late_is_used_by_no_other_op);
    tcase_add_test(tcase, a_twin_that_may_be_written_late_is_used_by_no_other_op);
    tcase_add_test(tcase, known_memory_is_used_as_ever);
    tcase_add_test(tcase, each_side_of_a_gather_for_itself);
    tcase_add_test(tcase, a_broadcast_reads_only_at_the_root);
    tcase_add_test(tcase, memory_that_the_engine_will_write_is_not_adopted);
    tcase_add_test(tcase, adopted_memory_that_the_engine_uses_by_its_address_is_busy);
    tcase_add_test(tcase, never_means_never);
    tcase_add_test(tcase, what_does_not_fit_the_staging_cache_stays_where_it_is);
    tcase_add_test(tcase, without_the_right_it_is_copied_and_that_is_said_once);
    tcase_add_test(tcase, more_than_four_gigabytes_are_counted_in_full);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
