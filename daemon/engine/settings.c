/* SPDX-License-Identifier: Apache-2.0
 * What a job's trainers have set in their environment. The lowest rank that has come decides, as rank
 * 0 does in Horovod; until it comes, who is there decides. HVD_NAME wins over HOROVOD_NAME.
 *
 *   FUSION_THRESHOLD       most bytes of a batch of small ops; 0: every op alone
 *   DISABLE_GROUP_FUSION   not 0: a group is not batched with other ops
 *   CACHE_CAPACITY         0: every op is checked; else what repeats is not. The number itself means
 *                          nothing, because a tensor remembers for itself
 *   STALL_*, MEMORY_TIMEOUT_SECONDS   see stall.c
 *   GPU_TIMEOUT_SECONDS    how long an op on GPUs may take once it has begun; 0: 30. See exec/gpu.c
 *   NCCL_*                 those of base/types.def go to the workers of GPUs: see nccl.c
 *   START_TIMEOUT          how long a job with ranks on other nodes waits for them: see rendezvous.c
 *
 * A value that makes no sense is logged and ignored. */
#include "base/log.h"
#include "daemon/engine/engine.h"
#include "daemon/engine/exec/fusion.h"
#include "daemon/engine/watch/stall.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The value of HVD_`name`, else of HOROVOD_`name`; NULL. */
static const char *find(const struct hvi_setting *settings, size_t count, const char *name)
{
    static const char *const prefixes[] = {"HVD_", "HOROVOD_"};
    char full[HVI_WIRE_SETTING_NAME];

    for (size_t p = 0; p < 2; p++) {
        snprintf(full, sizeof full, "%s%s", prefixes[p], name);
        for (size_t i = 0; i < count; i++) {
            if (strcmp(settings[i].name, full) == 0)
                return settings[i].value;
        }
    }
    return NULL;
}

static uint64_t parse(const struct hvi_setting *settings, size_t count, const char *name,
                      uint64_t otherwise)
{
    const char *text = find(settings, count, name);
    char *end = NULL;

    if (!text || text[0] == '\0')
        return otherwise;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno == 0 && *end == '\0' && text[0] >= '0' && text[0] <= '9')
        return value;
    HVI_LOG(HVI_LOG_WARN, "settings", "bad-setting", "it is no number, and ignored",
            "name=%s value=%s", name, text);
    return otherwise;
}

void engine_settings_take(struct engine *engine, int32_t rank, const struct hvi_setting *settings,
                          size_t count)
{
    engine_nccl_take(engine, rank, settings, count);
    if (rank >= engine->settings_rank)
        return;
    engine->settings_rank = rank;
    engine->exec.fusion_bytes =
        parse(settings, count, "FUSION_THRESHOLD", ENGINE_FUSION_BATCH_BYTES);
    engine->exec.group_fusion = parse(settings, count, "DISABLE_GROUP_FUSION", 0) == 0;
    const char *express = find(settings, count, "EXPRESS");
    engine->slots.apart = express && (strcmp(express, "0") == 0 || strcmp(express, "small") == 0);
    engine_dispatch_set_gpu_timeout(&engine->exec,
                                    parse(settings, count, "GPU_TIMEOUT_SECONDS", 0) * HVI_NS_SEC);
    engine->order.replay = parse(settings, count, "CACHE_CAPACITY", 1) != 0;
    const struct engine_stall_settings stall = {
        .check_disable = find(settings, count, "STALL_CHECK_DISABLE"),
        .check_time = find(settings, count, "STALL_CHECK_TIME_SECONDS"),
        .shutdown_time = find(settings, count, "STALL_SHUTDOWN_TIME_SECONDS"),
        .policy = find(settings, count, "STALL_POLICY"),
        .memory_timeout = find(settings, count, "MEMORY_TIMEOUT_SECONDS"),
    };
    engine->watch.stall_warn_ns = engine->start.stall_warn_ns;
    engine_stall_configure(&engine->watch, &stall);
    engine_rendezvous_configure(engine, find(settings, count, "START_TIMEOUT"));
}
