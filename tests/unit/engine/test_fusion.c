/* SPDX-License-Identifier: Apache-2.0
 * Properties of fusion over random sequences, and its borders. */
#include "daemon/engine/exec/fusion.h"

#include "base/types.h"
#include "daemon/engine/exec/gpu.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/hvt_main.h"

#define WORKS 1000u

static struct engine_work works[WORKS];
static const struct engine_work *ready[WORKS];

static void fill(uint64_t *random)
{
    static const struct engine_span span;
    static const uint64_t sizes[] = {0, 4, 4096, 32768, 32769, 65536, 1u << 20, 1ull << 40};

    for (uint32_t i = 0; i < WORKS; i++) {
        uint64_t bits = hvt_random(random);
        works[i].bytes = bits % 4 == 0 ? sizes[(bits >> 8) % 8] : (bits >> 16) % 40000;
        works[i].kinds = 1u << ENGINE_OPERAND_NONE | 1u << ENGINE_OPERAND_MAPPED;
        if (bits >> 60 == 0)
            works[i].kinds |= 1u << ENGINE_OPERAND_PROCESS;
        works[i].span = bits >> 60 == 1 ? &span : NULL;
        ready[i] = &works[i];
    }
}

static void check_batch(const struct engine_work *const *batch, uint32_t count)
{
    uint64_t bytes = 0;

    ck_assert_uint_ge(count, 1);
    ck_assert_uint_le(count, ENGINE_BATCH_WORKS);
    for (uint32_t i = 0; i < count; i++) {
        bytes += batch[i]->bytes;
        ck_assert(count == 1 || !engine_work_has(batch[i], ENGINE_OPERAND_PROCESS));
        ck_assert(count == 1 || !batch[i]->span);
        ck_assert(count == 1 || batch[i]->bytes <= ENGINE_FUSION_SMALL_BYTES);
    }
    ck_assert(count == 1 || bytes <= ENGINE_FUSION_BATCH_BYTES);
}

/* Taking one more would have broken a rule: batches are as large as they may be. */
static void check_greedy(const struct engine_work *const *batch, uint32_t count)
{
    const struct engine_work *next = batch[count];
    uint64_t bytes = next->bytes;

    for (uint32_t i = 0; i < count; i++)
        bytes += batch[i]->bytes;
    ck_assert(count == ENGINE_BATCH_WORKS || next->bytes > ENGINE_FUSION_SMALL_BYTES ||
              batch[0]->bytes > ENGINE_FUSION_SMALL_BYTES || bytes > ENGINE_FUSION_BATCH_BYTES ||
              next->span || batch[0]->span || engine_work_has(next, ENGINE_OPERAND_PROCESS) ||
              engine_work_has(batch[0], ENGINE_OPERAND_PROCESS));
}

START_TEST(batches_partition_the_sequence_and_keep_every_rule)
{
    uint64_t random = (uint64_t)_i;
    uint32_t at = 0;

    fill(&random);
    while (at < WORKS) {
        uint32_t count = engine_fusion_take(ready + at, WORKS - at, ENGINE_FUSION_BATCH_BYTES);
        ck_assert_uint_le(count, WORKS - at);
        check_batch(ready + at, count);
        if (at + count < WORKS)
            check_greedy(ready + at, count);
        at += count;
    }
    ck_assert_uint_eq(at, WORKS);
}
END_TEST

START_TEST(a_large_op_is_alone_wherever_it_stands)
{
    struct engine_work small = {.bytes = 8}, large = {.bytes = ENGINE_FUSION_SMALL_BYTES + 1};
    const struct engine_work *first[] = {&large, &small};
    const struct engine_work *second[] = {&small, &large};

    ck_assert_uint_eq(engine_fusion_take(first, 2, ENGINE_FUSION_BATCH_BYTES), 1);
    ck_assert_uint_eq(engine_fusion_take(second, 2, ENGINE_FUSION_BATCH_BYTES), 1);
}
END_TEST

/* Two in one batch are more than the host backend accepts. */
START_TEST(a_small_adasum_is_alone_wherever_it_stands)
{
    struct engine_work small = {.kind = HVI_KIND_ALLREDUCE, .bytes = 8}, adasum = small;
    const struct engine_work *first[] = {&adasum, &small};
    const struct engine_work *second[] = {&small, &adasum};

    adasum.reduce_op = HVI_REDUCE_ADASUM;
    ck_assert_uint_eq(engine_fusion_take(first, 2, ENGINE_FUSION_BATCH_BYTES), 1);
    ck_assert_uint_eq(engine_fusion_take(second, 2, ENGINE_FUSION_BATCH_BYTES), 1);
    small.kind = adasum.kind = HVI_KIND_BROADCAST; /* whose reduce op means nothing */
    ck_assert_uint_eq(engine_fusion_take(first, 2, ENGINE_FUSION_BATCH_BYTES), 2);
}
END_TEST

START_TEST(exactly_one_mebibyte_fits)
{
    struct engine_work work = {.bytes = ENGINE_FUSION_SMALL_BYTES};

    for (uint32_t i = 0; i < 40; i++)
        ready[i] = &work;
    ck_assert_uint_eq(engine_fusion_take(ready, 40, ENGINE_FUSION_BATCH_BYTES), 32);
}
END_TEST

START_TEST(the_threshold_decides_and_none_means_alone)
{
    struct engine_work work = {.bytes = 100}, empty = {0};
    const struct engine_work *nothing[] = {&empty, &empty};

    for (uint32_t i = 0; i < 40; i++)
        ready[i] = &work;
    ck_assert_uint_eq(engine_fusion_take(ready, 40, 1000), 10);
    ck_assert_uint_eq(engine_fusion_take(ready, 40, 50), 1);
    ck_assert_uint_eq(engine_fusion_take(nothing, 2, 50), 2);
    ck_assert_uint_eq(engine_fusion_take(nothing, 2, 0), 1);
}
END_TEST

START_TEST(a_work_with_members_on_other_nodes_is_alone)
{
    static const struct engine_span span;
    struct engine_work few[3] = {{.bytes = 4}, {.bytes = 4, .span = &span}, {.bytes = 4}};
    const struct engine_work *const in_turn[] = {&few[0], &few[1], &few[2]};

    ck_assert_uint_eq(engine_fusion_take(in_turn, 3, ENGINE_FUSION_BATCH_BYTES), 1);
    ck_assert_uint_eq(engine_fusion_take(in_turn + 1, 2, ENGINE_FUSION_BATCH_BYTES), 1);
}
END_TEST

/* 32 ranks on `gpus` GPUs: an alltoall has 161 slots of a worker's ring and more, an allreduce 33 at most. */
START_TEST(works_on_gpus_are_as_many_as_their_workers_take_at_once)
{
    const uint32_t gpus = (uint32_t)_i;
    static struct engine_operand in[32], out[32];
    static uint64_t sizes[32 * 32];
    struct engine_work work = {.kind = HVI_KIND_ALLTOALL, .ranks = 32, .in = in, .out = out};
    struct engine_batch batch = {.count = 0};
    struct engine_gpu_route route;

    for (uint32_t i = 0; i < 32; i++)
        in[i] = out[i] =
            (struct engine_operand){.kind = ENGINE_OPERAND_DEVICE, .worker = (uint16_t)(i % gpus)};
    work.kinds = 1u << ENGINE_OPERAND_DEVICE;
    work.root = -1;
    work.bytes = 64;
    work.sizes = sizes;
    for (uint32_t i = 0; i < HVI_DEVICE_WORKS; i++)
        ready[i] = batch.works[i] = &work;
    batch.count = engine_fusion_take(ready, HVI_DEVICE_WORKS, ENGINE_FUSION_BATCH_BYTES);
    ck_assert_uint_ge(batch.count, HVI_DEVICE_SLOTS / 170);
    ck_assert_uint_lt(batch.count, HVI_DEVICE_WORKS);
    ck_assert(engine_gpu_route(&batch, NULL, &route));
    for (uint32_t i = 0; i < gpus; i++)
        ck_assert_uint_gt(engine_gpu_slots(&batch, &route, i), 0);
    work.kind = HVI_KIND_ALLREDUCE;
    work.sizes = NULL;
    ck_assert_uint_eq(engine_fusion_take(ready, HVI_DEVICE_WORKS, ENGINE_FUSION_BATCH_BYTES),
                      HVI_DEVICE_WORKS);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/fusion");
    TCase *tcase = tcase_create("fusion");

    tcase_add_test(tcase, a_work_with_members_on_other_nodes_is_alone);
    tcase_add_loop_test(tcase, works_on_gpus_are_as_many_as_their_workers_take_at_once, 1, 4);
    tcase_add_loop_test(tcase, batches_partition_the_sequence_and_keep_every_rule, 0, 20);
    tcase_add_test(tcase, a_large_op_is_alone_wherever_it_stands);
    tcase_add_test(tcase, a_small_adasum_is_alone_wherever_it_stands);
    tcase_add_test(tcase, exactly_one_mebibyte_fits);
    tcase_add_test(tcase, the_threshold_decides_and_none_means_alone);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
