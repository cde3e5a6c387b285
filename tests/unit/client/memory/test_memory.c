/* SPDX-License-Identifier: Apache-2.0
 * hvd_alloc, hvd_register and where operands are found, in place or not; and the staging cache. */
#include "base/clock.h"
#include "base/types.h"
#include "client/link/control.h"
#include "client/session/session.h"
#include "tests/unit/client/count.h"
#include "tests/unit/client/fake.h"
#include "tests/unit/hvt_main.h"

#include <stdlib.h>
#include <string.h>

static struct hvt_fake *fake;
static struct hvd_session *session;
static struct hvt_fake_session *engine;

static void start(bool manual)
{
    struct hvt_fake_script script = {.manual = manual};
    fake = hvt_fake_start(&script);
    session = hvt_fake_open(fake);
    engine = hvt_fake_session(fake, 0);
}

static void set_up(void)
{
    start(true);
}

static void tear_down(void)
{
    hvd_close(session);
    hvt_fake_stop(fake);
}

static void *alloc(size_t bytes)
{
    void *memory = NULL;
    ck_assert_msg(hvd_alloc(session, bytes, &memory) == HVD_OK, "%s", hvd_last_error());
    return memory;
}

/* Submits an allreduce and returns its slot; *op_p is to be finished. */
static struct hvi_submission submit(void *in, void *out, enum hvd_dtype dtype, int64_t count,
                                    struct hvd_op **op_p)
{
    struct hvd_tensor a = hvd_tensor_1d(in, dtype, count);
    struct hvd_tensor b = hvd_tensor_1d(out, dtype, count);
    ck_assert_msg(hvd_allreduce_async(session, NULL, &a, &b, HVD_SUM, NULL, op_p) == HVD_OK, "%s",
                  hvd_last_error());
    return hvt_fake_take(engine);
}

static void finish(struct hvd_op *op, uint64_t cookie)
{
    hvt_fake_done(engine, cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_wait(op, 1000000000), HVD_OK);
    hvd_op_free(op);
}

START_TEST(allocated_memory_is_aligned_zeroed_and_announced)
{
    unsigned char *memory = alloc(10000);
    ck_assert_uint_eq((uintptr_t)memory % 4096, 0);
    int set = 0;
    for (int i = 0; i < 10000; i++)
        set += memory[i] != 0;
    ck_assert_int_eq(set, 0);
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
    ck_assert_int_eq(hvd_free(session, memory), HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 0);
    ck_assert_int_eq(hvd_free(session, memory), HVD_ERR_NOT_FOUND);
}
END_TEST

START_TEST(allocated_memory_is_used_where_it_is)
{
    float *memory = alloc(4096);
    struct hvd_op *op;
    memory[10] = 3;
    struct hvi_submission slot = submit(memory + 10, memory + 10, HVD_FLOAT32, 100, &op);
    ck_assert_uint_ne(slot.in_region, HVI_REGION_INLINE);
    ck_assert_uint_eq(slot.in_offset, 40);
    ck_assert_uint_eq(slot.out_region, slot.in_region);
    ck_assert_uint_eq(slot.out_offset, 40);
    float *shared = hvt_fake_memory(engine, slot.in_region, slot.in_offset);
    ck_assert(*shared == 3);
    *shared = 4;
    ck_assert(memory[10] == 4);
    finish(op, slot.cookie);
}
END_TEST

START_TEST(two_allocations_serve_one_op)
{
    float *a = alloc(4096);
    float *b = alloc(4096);
    struct hvd_op *op;
    struct hvi_submission slot = submit(a, b, HVD_FLOAT32, 1024, &op);
    ck_assert_uint_ne(slot.in_region, slot.out_region);
    finish(op, slot.cookie);
}
END_TEST

START_TEST(mixed_memory_copies_only_the_ordinary_side)
{
    float *shared = alloc(4096);
    float ordinary[4] = {1, 2, 3, 4};
    struct hvd_op *op;
    struct hvi_submission slot = submit(ordinary, shared, HVD_FLOAT32, 4, &op);
    ck_assert_uint_eq(slot.in_region, HVI_REGION_INLINE); /* a place of its own */
    ck_assert_uint_ne(slot.out_region, HVI_REGION_INLINE);
    ck_assert(((float *)hvt_fake_memory(engine, slot.in_region, slot.in_offset))[3] == 4);
    ck_assert_msg(shared[3] == 0, "the output was written before the ranks had agreed");
    finish(op, slot.cookie);
    shared[0] = 9;
    slot = submit(shared, ordinary, HVD_FLOAT32, 4, &op);
    ck_assert_uint_eq(slot.out_region, HVI_REGION_INLINE);
    ck_assert_uint_ne(slot.in_region, HVI_REGION_INLINE);
    float *out = hvt_fake_memory(engine, slot.out_region, slot.out_offset);
    out[0] = 90;
    finish(op, slot.cookie);
    ck_assert(ordinary[0] == 90 && shared[0] == 9);
}
END_TEST

START_TEST(a_tensor_that_leaves_its_allocation_is_ordinary)
{
    char *memory = alloc(8192);
    struct hvd_op *op;
    struct hvi_submission slot = submit(memory, memory, HVD_UINT8, 8192, &op);
    ck_assert_uint_eq(slot.in_offset, 0);
    ck_assert_uint_ne(slot.in_region, HVI_REGION_INLINE);
    uint32_t region = slot.in_region;
    finish(op, slot.cookie);
    slot = submit(memory + 8000, memory + 8000, HVD_UINT8, 192, &op);
    ck_assert_uint_eq(slot.in_region, region);
    finish(op, slot.cookie);
}
END_TEST

START_TEST(misaligned_elements_are_copied)
{
    char *memory = alloc(4096);
    double value = 2.5, back;
    struct hvd_op *op;
    memcpy(memory + 1, &value, 8);
    struct hvi_submission slot = submit(memory + 1, memory + 1, HVD_FLOAT64, 1, &op);
    ck_assert_uint_eq(slot.in_region, HVI_REGION_INLINE);
    ck_assert_uint_eq(slot.in_offset % 8, 0);
    double *shared = hvt_fake_memory(engine, slot.in_region, slot.in_offset);
    ck_assert_double_eq(*shared, 2.5);
    *shared = 5.0;
    finish(op, slot.cookie);
    memcpy(&back, memory + 1, 8);
    ck_assert_double_eq(back, 5.0);
    ck_assert_int_eq(hvd_free(session, memory), HVD_OK);
}
END_TEST

START_TEST(memory_in_use_is_busy)
{
    float *memory = alloc(4096);
    struct hvd_op *op;
    struct hvi_submission slot = submit(memory, memory, HVD_FLOAT32, 10, &op);
    ck_assert_int_eq(hvd_free(session, memory), HVD_ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "not finished"));
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_free(session, memory),
                     HVD_OK); /* the result is in place: nothing to wait for */
    ck_assert_int_eq(hvd_wait(op, 0), HVD_OK);
    hvd_op_free(op);
}
END_TEST

START_TEST(memory_in_use_by_its_address_is_busy)
{
    char *memory = alloc(4096);
    struct hvd_op *op;
    struct hvi_submission slot = submit(memory + 2, memory + 2, HVD_FLOAT32, 10, &op); /* a copy */
    ck_assert_uint_eq(slot.out_region, HVI_REGION_INLINE);
    ck_assert_int_eq(hvd_free(session, memory), HVD_ERR_BUSY);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "not finished"));
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_msg(hvd_free(session, memory) == HVD_ERR_BUSY, "the result is to be copied out");
    ck_assert_int_eq(hvd_wait(op, 0), HVD_OK);
    hvd_op_free(op);
    ck_assert_int_eq(hvd_free(session, memory), HVD_OK);
}
END_TEST

START_TEST(memory_of_an_abandoned_op_is_busy_until_it_is_done)
{
    float *memory = alloc(4096);
    struct hvd_op *op;
    struct hvi_submission slot = submit(memory, memory, HVD_FLOAT32, 10, &op);
    hvd_op_free(op);
    ck_assert_int_eq(hvd_free(session, memory), HVD_ERR_BUSY);
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_free(session, memory), HVD_OK);
}
END_TEST

START_TEST(a_call_that_fails_uses_no_memory)
{
    float *memory = alloc(4096);
    struct hvd_tensor pair[2] = {hvd_tensor_1d(memory, HVD_FLOAT32, 4),
                                 hvd_tensor_1d(memory + 4, HVD_FLOAT32, 4)};
    struct hvd_op *op, *ops[2];
    float other[4] = {0};
    struct hvd_tensor tensor = hvd_tensor_1d(other, HVD_FLOAT32, 4);
    ck_assert_int_eq(hvd_allreduce_async(session, "g_2of2", &tensor, &tensor, HVD_SUM, NULL, &op),
                     HVD_OK);
    struct hvi_submission slot = hvt_fake_take(engine);
    ck_assert_int_eq(hvd_grouped_allreduce_async(session, "g", pair, pair, 2, HVD_SUM, NULL, ops),
                     HVD_ERR_DUPLICATE_NAME); /* the first member was classified by then */
    ck_assert_int_eq(hvd_free(session, memory), HVD_OK);
    finish(op, slot.cookie);
}
END_TEST

START_TEST(an_input_that_was_copied_is_not_in_use)
{
    static _Alignas(64) float in[1024];
    float *out = alloc(4096);
    struct hvd_op *op;
    ck_assert_int_eq(hvd_register(session, in, sizeof in), HVD_OK);
    struct hvi_submission slot = submit(in, out, HVD_FLOAT32, 10, &op);
    ck_assert_uint_eq(slot.in_region, HVI_REGION_INLINE);
    ck_assert_int_eq(hvd_deregister(session, in), HVD_OK);
    ck_assert_int_eq(hvd_free(session, out), HVD_ERR_BUSY);
    finish(op, slot.cookie);
    ck_assert_int_eq(hvd_free(session, out), HVD_OK);
}
END_TEST

START_TEST(registered_memory_goes_through_its_twin)
{
    static float memory[5000];
    struct hvd_op *op;
    ck_assert_int_eq(hvd_register(session, memory, sizeof memory), HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
    memory[100] = 8;
    struct hvi_submission slot = submit(memory + 100, memory + 100, HVD_FLOAT32, 4000, &op);
    ck_assert_uint_eq(hvt_fake_regions(engine), 1); /* nothing was allocated */
    ck_assert_uint_eq(slot.in_offset % 64, (uintptr_t)(memory + 100) % 64);
    float *twin = hvt_fake_memory(engine, slot.in_region, slot.in_offset);
    ck_assert(*twin == 8);
    *twin = 80;
    ck_assert(memory[100] == 8);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_ERR_BUSY);
    hvt_fake_done(engine, slot.cookie, HVD_OK, NULL, -1);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_ERR_BUSY); /* the result is still there */
    ck_assert_int_eq(hvd_wait(op, 0), HVD_OK);
    ck_assert(memory[100] == 80);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_OK);
    ck_assert_int_eq(hvd_deregister(session, memory), HVD_ERR_NOT_FOUND);
    hvd_op_free(op);
}
END_TEST

START_TEST(alloc_and_register_are_not_confused)
{
    static char memory[100];
    char *shared = alloc(100);
    ck_assert_int_eq(hvd_register(session, memory, sizeof memory), HVD_OK);
    ck_assert_int_eq(hvd_free(session, memory), HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_deregister(session, shared), HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_free(session, shared + 1), HVD_ERR_NOT_FOUND);
    ck_assert_int_eq(hvd_register(session, shared + 10, 10), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_register(session, memory + 50, 100), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_register(session, memory, 1), HVD_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "overlaps"));
    ck_assert_int_eq(hvd_register(session, NULL, 10), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_register(session, memory, 0), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_alloc(session, 0, (void **)&shared), HVD_ERR_INVALID);
    ck_assert_int_eq(hvd_alloc(session, 10, NULL), HVD_ERR_INVALID);
    ck_assert_uint_eq(hvt_fake_regions(engine), 2);
}
END_TEST

START_TEST(memory_that_begins_where_other_memory_ends_is_told_apart)
{
    static char memory[2][4096];
    struct hvd_op *op;
    ck_assert_int_eq(hvd_register(session, memory[0], 4096), HVD_OK);
    ck_assert_int_eq(hvd_register(session, memory[1], 4096), HVD_OK);
    struct hvi_submission slot = submit(memory[0], memory[0], HVD_UINT8, 10, &op); /* now cached */
    ck_assert_int_eq(hvd_deregister(session, memory[1]), HVD_OK);
    finish(op, slot.cookie);
    ck_assert_int_eq(hvd_deregister(session, memory[0]), HVD_OK);
}
END_TEST

START_TEST(a_refused_region_leaves_nothing)
{
    void *memory = NULL;
    int mappings = hvt_count_mappings();
    int fds = hvt_count_fds();
    hvt_fake_refuse_regions(fake, HVD_ERR_LIMIT, "no more than 4 regions");
    ck_assert_int_eq(hvd_alloc(session, 4096, &memory), HVD_ERR_LIMIT);
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "no more than 4 regions"));
    ck_assert_ptr_null(memory);
    ck_assert_int_eq(hvt_count_mappings(), mappings);
    ck_assert_int_eq(hvt_count_fds(), fds);
}
END_TEST

START_TEST(an_absurd_size_is_an_error_and_no_crash)
{
    void *memory;
    int rc = hvd_alloc(session, SIZE_MAX / 2, &memory);
    ck_assert_msg(rc == HVD_ERR_NO_MEMORY || rc == HVD_ERR_INVALID, "%s", hvd_status_name(rc));
    ck_assert_ptr_nonnull(strstr(hvd_last_error(), "hvd_alloc"));
    ck_assert_int_eq(hvd_alloc(session, SIZE_MAX, &memory), rc);
}
END_TEST

START_TEST(many_allocations_are_all_found)
{
    enum { COUNT = 200 };
    char *memory[COUNT];
    struct hvd_op *op;
    for (int i = 0; i < COUNT; i++)
        memory[i] = alloc(4096);
    for (int i = 0; i < COUNT; i += 2)
        ck_assert_int_eq(hvd_free(session, memory[i]), HVD_OK);
    for (int i = 1; i < COUNT; i += 2) {
        memory[i][17] = (char)i;
        struct hvi_submission slot = submit(memory[i] + 17, memory[i] + 17, HVD_INT8, 1, &op);
        ck_assert_int_eq(*(char *)hvt_fake_memory(engine, slot.in_region, slot.in_offset), (char)i);
        finish(op, slot.cookie);
    }
    ck_assert_uint_eq(session->memory.table.count, COUNT / 2);
}
END_TEST

START_TEST(staging_is_used_again)
{
    static char memory[100000];
    struct hvd_op *op;
    for (int i = 0; i < 20; i++) {
        struct hvi_submission slot = submit(memory, memory, HVD_UINT8, 70000 + i * 1000, &op);
        finish(op, slot.cookie);
    }
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
}
END_TEST

START_TEST(small_staging_blocks_share_a_region)
{
    static char memory[64][10000];
    struct hvd_op *ops[64];
    uint64_t cookies[64];
    for (int i = 0; i < 64; i++)
        cookies[i] = submit(memory[i], memory[i], HVD_UINT8, 10000, &ops[i]).cookie;
    ck_assert_uint_eq(hvt_fake_regions(engine), 1);
    for (int i = 0; i < 64; i++)
        finish(ops[i], cookies[i]);
}
END_TEST

START_TEST(idle_staging_beyond_the_cache_goes)
{
    size_t bytes = 100u << 20;
    char *memory = calloc(1, bytes);
    struct hvd_op *ops[3];
    uint64_t cookies[3];
    ck_assert_ptr_nonnull(memory);
    for (int i = 0; i < 3; i++)
        cookies[i] = submit(memory, memory, HVD_UINT8, (int64_t)bytes, &ops[i]).cookie;
    ck_assert_uint_eq(hvt_fake_regions(engine), 3);
    for (int i = 0; i < 3; i++)
        finish(ops[i], cookies[i]);
    uint64_t deadline_ns = hvi_deadline_after(1000000000);
    while (hvt_fake_regions(engine) > 2 && !hvi_deadline_passed(deadline_ns))
        ck_assert_int_eq(hvd_session_status(session), HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(engine), 2); /* 2 x 128 MiB are kept */
    ck_assert_uint_le(session->memory.staging.idle_bytes, CLIENT_STAGING_CACHE);
    free(memory);
}
END_TEST

START_TEST(an_engine_that_has_a_region_in_use_is_asked_again)
{
    /* Not a fixture test: the script differs. */
    struct hvt_fake_script script = {.busy = 2};
    struct hvt_fake *busy = hvt_fake_start(&script);
    struct hvd_session *other = hvt_fake_open(busy);
    void *memory = NULL;
    ck_assert_int_eq(hvd_alloc(other, 4096, &memory), HVD_OK);
    ck_assert_int_eq(hvd_free(other, memory), HVD_OK);
    ck_assert_uint_eq(hvt_fake_regions(hvt_fake_session(busy, 0)), 0);
    hvd_close(other);
    hvt_fake_stop(busy);
}
END_TEST

START_TEST(a_mute_engine_is_a_timeout)
{
    /* Not a fixture test: the script differs. */
    struct hvt_fake_script script = {.manual = true, .mute = true};
    struct hvt_fake *mute = hvt_fake_start(&script);
    struct hvd_session *other = hvt_fake_open(mute);
    void *memory;
    uint64_t start_ns = hvi_clock_ns();
    ck_assert_int_eq(hvd_alloc(other, 4096, &memory), HVD_ERR_TIMEOUT);
    ck_assert_uint_ge(hvi_clock_ns() - start_ns, (uint64_t)CLIENT_ACK_NS);
    ck_assert_uint_lt(hvi_clock_ns() - start_ns,
                      (uint64_t)CLIENT_ACK_NS + hvt_patience(HVI_NS_SEC));
    hvd_close(other);
    hvt_fake_stop(mute);
}
END_TEST

START_TEST(an_engine_that_dies_meanwhile_is_engine_lost)
{
    void *memory;
    hvt_fake_die(engine);
    ck_assert_int_eq(hvd_alloc(session, 4096, &memory), HVD_ERR_ENGINE_LOST);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client memory");
    TCase *tcase = tcase_create("memory");
    tcase_set_timeout(tcase, 60);
    tcase_add_checked_fixture(tcase, set_up, tear_down);
    tcase_add_test(tcase, allocated_memory_is_aligned_zeroed_and_announced);
    tcase_add_test(tcase, allocated_memory_is_used_where_it_is);
    tcase_add_test(tcase, two_allocations_serve_one_op);
    tcase_add_test(tcase, mixed_memory_copies_only_the_ordinary_side);
    tcase_add_test(tcase, a_tensor_that_leaves_its_allocation_is_ordinary);
    tcase_add_test(tcase, misaligned_elements_are_copied);
    tcase_add_test(tcase, memory_in_use_is_busy);
    tcase_add_test(tcase, memory_in_use_by_its_address_is_busy);
    tcase_add_test(tcase, memory_of_an_abandoned_op_is_busy_until_it_is_done);
    tcase_add_test(tcase, a_call_that_fails_uses_no_memory);
    tcase_add_test(tcase, an_input_that_was_copied_is_not_in_use);
    tcase_add_test(tcase, registered_memory_goes_through_its_twin);
    tcase_add_test(tcase, alloc_and_register_are_not_confused);
    tcase_add_test(tcase, memory_that_begins_where_other_memory_ends_is_told_apart);
    tcase_add_test(tcase, a_refused_region_leaves_nothing);
    tcase_add_test(tcase, an_absurd_size_is_an_error_and_no_crash);
    tcase_add_test(tcase, many_allocations_are_all_found);
    tcase_add_test(tcase, staging_is_used_again);
    tcase_add_test(tcase, small_staging_blocks_share_a_region);
    tcase_add_test(tcase, idle_staging_beyond_the_cache_goes);
    tcase_add_test(tcase, an_engine_that_has_a_region_in_use_is_asked_again);
    tcase_add_test(tcase, a_mute_engine_is_a_timeout);
    tcase_add_test(tcase, an_engine_that_dies_meanwhile_is_engine_lost);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
