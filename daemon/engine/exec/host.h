/* SPDX-License-Identifier: Apache-2.0
 * The parts of the host-memory backend: host.c plans a batch and knows who may do its units,
 * host_pool.c who does them, host_move.c what a unit moves, host_process.c how memory that is not
 * mapped is reached, host_adasum.c the one reduction that needs several steps, host_cache.c how much
 * memory is near. A remote operand is one in remote-process memory. */
#ifndef ENGINE_HOST_H
#define ENGINE_HOST_H

#include "daemon/engine/exec/backend.h"
#include "reduce/reduce.h"

#include <setjmp.h>
#include <stdatomic.h>

/* Up to this much payload a batch is done by the caller of start() at once. */
#define ENGINE_HOST_INLINE_BYTES (64u * 1024u)
/* A large op is cut into units of this many bytes of each operand. */
#define ENGINE_HOST_CHUNK_BYTES (256u * 1024u)
/* With remote operands up to this many, as long as every thread gets some: a transfer costs 4 us
 * before its first byte. */
#define ENGINE_HOST_REMOTE_BYTES (1024u * 1024u)
/* A fused batch is cut into pieces of this many ops. */
#define ENGINE_HOST_UNIT_WORKS 16u
/* What a thread has for remote operands: pieces of all ranks. Whole huge pages. */
#define ENGINE_HOST_BUFFER_BYTES (6u * 1024u * 1024u)

/* The transfer of remote-process memory that a worker waits for, as the watching thread sees it. The
 * worker writes the others while .since_ns is 0. */
struct engine_host_transfer {
    /* When it began; 0: there is none; ENGINE_HOST_LOST: it was given up. The worker and the watching
     * thread decide by compare-and-swap which of them goes on with the batch. */
    _Atomic uint64_t since_ns;
    _Atomic uint32_t rank; /* set rank */
    _Atomic bool writing;
    _Atomic uint64_t address;
    const void *_Atomic local;
    /* Where a worker goes whose transfer was given up. Not pthread_exit, which loads libgcc_s when it is
     * first called, and ends the process if it cannot. */
    sigjmp_buf leave;
    _Atomic bool ended; /* the worker touches nothing any more; release, acquire by the pool */
};
#define ENGINE_HOST_LOST UINT64_MAX

/* What a thread brings along. */
struct engine_host_thread {
    const struct hvi_kernels *kernels;
    struct engine_host_transfer *transfer; /* NULL: this thread must not touch remote operands */
    unsigned char *buffer; /* ENGINE_HOST_BUFFER_BYTES; only remote operands and adasum touch it */
    uint64_t stream_bytes; /* a copy of more than this goes past the caches */
    uint64_t share_bytes;  /* of the last-level cache, this thread's share */
};

/* ---- host.c ---- */

/* Does one unit of the step that the plan is at. Any thread. HVI_OK, or how the batch fails; *fault_p is
 * written only then. */
int engine_host_run_unit(const struct engine_host_thread *thread, const struct engine_batch *batch,
                         uint32_t unit, struct engine_fault *fault_p);
/* Prepares the next step of the plan and goes there. One thread, when all units of a step are over. */
void engine_host_next_step(struct engine_batch *batch);
/* Lets go of what the batch held while it ran. Before post(). */
void engine_host_release(struct engine_batch *batch);

/* ---- host_move.c ---- */

/* Everything that goes to, or is reduced from, [first, first + bytes) of the op's operands: of the
 * input for a reducescatter, else of each output. Errors as engine_host_run_unit. */
int engine_host_move(const struct engine_host_thread *thread, const struct engine_work *work,
                     uint64_t first, uint64_t bytes, struct engine_fault *fault_p);
/* Writes bytes [first, first + bytes) of an allreduce's or reducescatter's result, which lie at
 * `result`, to whoever gets them. */
int engine_host_emit(const struct engine_host_thread *thread, const struct engine_work *work,
                     uint64_t first, uint64_t bytes, const void *result,
                     struct engine_fault *fault_p);

/* ---- host_process.c ---- */

/* False: the process has ended, or its memory is not touched any more. */
bool engine_host_process_lives(const struct engine_process *process);
/* Bytes [at, at + bytes) of a remote operand. Blocks for as long as the owner's memory takes to
 * be there; if it was given up meanwhile, the thread ends instead of returning. The local end is the
 * thread's buffer, or, when read, the mapped output of the same rank. */
int engine_host_read(const struct engine_host_thread *thread, const struct engine_work *work,
                     uint32_t rank, uint64_t at, void *to_p, uint64_t bytes,
                     struct engine_fault *fault_p);
int engine_host_write(const struct engine_host_thread *thread, const struct engine_work *work,
                      uint32_t rank, uint64_t at, const void *from, uint64_t bytes,
                      struct engine_fault *fault_p);

/* ---- host_cache.c ---- */

struct engine_host_cache {
    uint64_t bytes;   /* of the last level; 0: not known */
    uint32_t sharers; /* cores that use it; 0: not known */
};

/* `directory`: a core's caches in sysfs. */
struct engine_host_cache engine_host_cache_find(const char *directory);

/* ---- host_adasum.c ---- */

struct engine_adasum;

bool engine_adasum_is(const struct engine_work *work);
/* NULL without memory. */
struct engine_adasum *engine_adasum_new(const struct engine_work *work);
void engine_adasum_free(struct engine_adasum *adasum);
/* Chunks, each of which is a unit in every step. Pure. */
uint32_t engine_adasum_chunks(const struct engine_work *work);
/* How many steps it takes. Pure. */
uint32_t engine_adasum_steps(const struct engine_work *work);
int engine_adasum_run(const struct engine_host_thread *thread, struct engine_adasum *adasum,
                      uint32_t chunk, struct engine_fault *fault_p);
/* Prepares the next step. One thread, between steps. */
void engine_adasum_next(struct engine_adasum *adasum);

/* ---- host_pool.c ---- */

/* Starts as many threads as `config` says: all but one do any unit, beside the caller of
 * engine_host_pool_help, and one in its place does units with remote operands. `model` is every thread's,
 * but for buffer and transfer. HVI_OK, HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT. */
int engine_host_pool_open(const struct engine_backend_config *config,
                          const struct engine_host_thread *model, void **pool_p);
/* Finishes what is queued, gives up what does not answer, joins the threads, frees. False: as
 * struct engine_backend says. */
bool engine_host_pool_close(void *pool);
uint32_t engine_host_pool_threads(const void *pool);
/* Starts threads until there are as many; one that cannot be started leaves those that were. HVI_OK, HVI_ERR_NO_MEMORY,
 * HVI_ERR_LIMIT. */
int engine_host_pool_grow(void *pool, uint32_t threads);
/* Queues a batch, which has a plan. */
void engine_host_pool_submit(void *pool, struct engine_batch *batch);
/* Does the whole batch, without remote operands, on the calling thread, which is the one that helps; one
 * that has failed is only posted. */
void engine_host_pool_run(void *pool, struct engine_batch *batch);
/* As struct engine_backend says. */
bool engine_host_pool_help(void *pool);
void engine_host_pool_cancel(void *pool, struct engine_batch *batch);
void engine_host_pool_watch(void *pool);
bool engine_host_pool_silent(void *pool, const struct engine_batch *batch,
                             struct engine_fault *fault_p);

#endif
