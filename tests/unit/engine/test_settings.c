/* SPDX-License-Identifier: Apache-2.0
 * What trainers set in their environment, and whose word counts. */
#include "base/status.h"
#include "daemon/engine/exec/fusion.h"
#include "tests/unit/engine/hvt_ops.h"
#include "tests/unit/hvt_main.h"

#include <stdio.h>

static struct hvt_bench bench;

static void take(int32_t rank, const char *name, const char *value)
{
    struct hvi_setting setting;

    snprintf(setting.name, sizeof setting.name, "%s", name);
    snprintf(setting.value, sizeof setting.value, "%s", value);
    bench.engine->settings_rank = INT32_MAX;
    engine_settings_take(bench.engine, rank, &setting, 1);
}

START_TEST(each_setting_is_read_and_nonsense_is_not)
{
    hvt_bench_init_empty(&bench, 2);
    ck_assert_uint_eq(bench.engine->exec.fusion_bytes, ENGINE_FUSION_BATCH_BYTES);
    take(0, "HOROVOD_FUSION_THRESHOLD", "4096");
    ck_assert_uint_eq(bench.engine->exec.fusion_bytes, 4096);
    ck_assert(bench.engine->order.replay && bench.engine->exec.group_fusion);
    take(0, "HVD_FUSION_THRESHOLD", "0");
    ck_assert_uint_eq(bench.engine->exec.fusion_bytes, 0);
    take(0, "HVD_FUSION_THRESHOLD", "64MB");
    ck_assert_uint_eq(bench.engine->exec.fusion_bytes, ENGINE_FUSION_BATCH_BYTES);
    take(0, "HVD_FUSION_THRESHOLD", "-1");
    ck_assert_uint_eq(bench.engine->exec.fusion_bytes, ENGINE_FUSION_BATCH_BYTES);
    take(0, "HVD_FUSION_THRESHOLD", "99999999999999999999999");
    ck_assert_uint_eq(bench.engine->exec.fusion_bytes, ENGINE_FUSION_BATCH_BYTES);
    take(0, "HVD_CACHE_CAPACITY", "0");
    ck_assert(!bench.engine->order.replay);
    take(0, "HOROVOD_CACHE_CAPACITY", "1024");
    ck_assert(bench.engine->order.replay);
    take(0, "HVD_DISABLE_GROUP_FUSION", "1");
    ck_assert(!bench.engine->exec.group_fusion);
    hvt_bench_fini(&bench);
}
END_TEST

START_TEST(the_lowest_rank_that_has_come_decides)
{
    static const struct hvi_setting both[] = {
        {.name = "HOROVOD_FUSION_THRESHOLD", .value = "1"},
        {.name = "HVD_FUSION_THRESHOLD", .value = "2"},
    };

    hvt_bench_init_empty(&bench, 4);
    engine_settings_take(bench.engine, 2, both, 1);
    ck_assert_uint_eq(bench.engine->exec.fusion_bytes, 1);
    engine_settings_take(bench.engine, 3, both, 2);
    ck_assert_uint_eq(bench.engine->exec.fusion_bytes, 1);
    engine_settings_take(bench.engine, 1, both, 2); /* HVD_ before HOROVOD_ */
    ck_assert_uint_eq(bench.engine->exec.fusion_bytes, 2);
    engine_settings_take(bench.engine, 0, NULL, 0); /* has set nothing: that counts too */
    ck_assert_uint_eq(bench.engine->exec.fusion_bytes, ENGINE_FUSION_BATCH_BYTES);
    hvt_bench_fini(&bench);
}
END_TEST

/* Whatever is batched with what, the results are the same. */
START_TEST(every_setting_gives_the_same_results)
{
    char name[16];

    hvt_bench_init(&bench, 2);
    bench.engine->exec.fusion_bytes = _i == 0 ? 0 : ENGINE_FUSION_BATCH_BYTES;
    bench.engine->exec.group_fusion = _i == 1;
    for (int32_t rank = 0; rank < 2; rank++) {
        for (uint32_t i = 0; i < 30; i++) {
            snprintf(name, sizeof name, "n%u", i);
            struct hvi_submission op = hvt_op(&bench, rank, HVI_KIND_ALLREDUCE, 1, name, 0);
            op.in_offset = op.out_offset = 4 * i;
            op.group = i / 10 == 1 ? 5 : 0; /* ten alone, ten in a group, ten alone */
            op.group_size = op.group ? 10 : 0;
            op.group_index = op.group ? i - 10 : 0;
            hvt_op_memory(&bench, rank)[i] = (float)i;
            hvt_peer_submit(&bench.peers[rank], &op);
        }
    }
    hvt_bench_turn(&bench);
    for (int i = 0; i < 30; i++)
        hvt_op_expect_all(&bench, 0, 1, HVI_OK, "");
    for (uint32_t i = 0; i < 30; i++)
        ck_assert_float_eq(hvt_op_memory(&bench, 1)[i], (float)(2 * i));
    hvt_bench_fini(&bench);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("engine/settings");
    TCase *tcase = tcase_create("settings");

    tcase_add_test(tcase, each_setting_is_read_and_nonsense_is_not);
    tcase_add_test(tcase, the_lowest_rank_that_has_come_decides);
    tcase_add_loop_test(tcase, every_setting_gives_the_same_results, 0, 3);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
