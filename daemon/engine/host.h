/* SPDX-License-Identifier: Apache-2.0
 * The host-memory backend's two halves: host.c knows how to do a piece of a batch, host_pool.c who
 * does it. */
#ifndef ENGINE_HOST_H
#define ENGINE_HOST_H

#include "daemon/engine/backend.h"
#include "daemon/engine/host_reduce.h"

/* Up to this much payload a batch is done by the caller of start() at once. */
#define ENGINE_HOST_INLINE_BYTES (64u * 1024u)
/* A large op is cut into pieces of this many bytes of each operand. */
#define ENGINE_HOST_CHUNK_BYTES (256u * 1024u)
/* A fused batch is cut into pieces of this many ops. */
#define ENGINE_HOST_UNIT_WORKS 16u

/* Number of pieces the batch is cut into; at least 1. Pure. */
uint32_t engine_host_units(const struct engine_batch *batch);
/* Does piece `unit`. Pieces of a batch are independent of each other. Any thread. */
void engine_host_run_unit(const struct engine_kernels *kernels, const struct engine_batch *batch,
                          uint32_t unit);

struct engine_host_pool;

/* Starts `workers` threads (0 is fine: then only engine_host_pool_help works). HVI_OK,
 * HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT. */
int engine_host_pool_open(uint32_t workers, const struct engine_kernels *kernels,
                          void (*done)(void *user, struct engine_batch *batch), void *user,
                          struct engine_host_pool **pool_p);
/* Finishes what is queued, joins the threads, frees. NULL is fine. */
void engine_host_pool_close(struct engine_host_pool *pool);
/* Queues a batch; units, units_taken and units_left are set. */
void engine_host_pool_submit(struct engine_host_pool *pool, struct engine_batch *batch);
/* Does one piece on the calling thread; false when none was left to take. */
bool engine_host_pool_help(struct engine_host_pool *pool);

#endif
