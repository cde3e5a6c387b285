/* SPDX-License-Identifier: Apache-2.0
 * Which ready ops run together. Pure, any thread. */
#ifndef ENGINE_FUSION_H
#define ENGINE_FUSION_H

#include "daemon/engine/exec/backend.h"

#define ENGINE_FUSION_SMALL_BYTES (32u * 1024u)   /* an op above this is a batch of its own */
#define ENGINE_FUSION_BATCH_BYTES (1024u * 1024u) /* most payload of a fused batch, by default */

#define ENGINE_FUSION_DEVICE_SMALL (512u * 1024u) /* the same for memory of GPUs */
#define ENGINE_FUSION_DEVICE_BYTES (64u * 1024u * 1024u)

/* How many of the first `count` (>= 1) ready works form the next batch of at most `batch_bytes`: at
 * least 1, never reordered. 0 bytes: always 1. */
uint32_t engine_fusion_take(const struct engine_work *const *ready, uint32_t count,
                            uint64_t batch_bytes);

#endif
