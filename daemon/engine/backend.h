/* SPDX-License-Identifier: Apache-2.0
 * The border between "what has to happen" and "who does it": ops with their operands resolved to
 * addresses, batches of them, and the table of backends. A backend knows nothing of sessions, names
 * or rings. tests/contract runs one suite against every row. */
#ifndef ENGINE_BACKEND_H
#define ENGINE_BACKEND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENGINE_BATCH_WORKS 256u /* most ops in one batch */

#define ENGINE_MEMORY_HOST 0u

/* One op that every rank has agreed on. The arrays have one entry per rank and live as long as the
 * work. */
struct engine_work {
    uint32_t kind; /* enum hvi_kind */
    uint32_t dtype;
    uint32_t reduce_op;
    uint32_t memory_kind;
    uint32_t ranks;
    int32_t root; /* broadcast */
    double prescale;
    double postscale;
    uint64_t count;        /* allreduce: elements of each operand */
    uint64_t bytes;        /* bytes of each output; 0 is fine and touches no operand */
    const void **in;       /* broadcast: only in[root] is read */
    void **out;            /* out[r] is in[r] or disjoint from all operands */
    const uint64_t *sizes; /* allgather: bytes of each rank's input; their sum is .bytes */
};

struct engine_batch {
    struct engine_batch *next; /* whoever holds the batch may use it */
    struct engine_work *works[ENGINE_BATCH_WORKS];
    uint32_t count; /* at least 1 */
    uint32_t memory_kind;
    uint64_t bytes; /* sum over the works */
    int status;     /* set by the backend before it reports the batch done: enum hvi_status */
    uint32_t units; /* the backend's own from here on */
    uint32_t units_taken;
    uint32_t units_left;
};

struct engine_backend_config {
    uint32_t threads; /* that may work at once, the caller of help() included; at least 1 */
    /* Called exactly once per started batch, from the thread that did the last piece, under no
     * lock: the batch is the receiver's again. Inside start() for batches that are done at once. */
    void (*done)(void *user, struct engine_batch *batch);
    void *user;
};

struct engine_backend {
    const char *name;
    /* HVI_OK, HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT (threads). Blocks while threads start. */
    int (*open)(const struct engine_backend_config *config, void **context_p);
    /* Finishes what was started, then releases everything. */
    void (*close)(void *context);
    /* Whether this backend can do the batch at all. Pure. */
    bool (*accepts)(const struct engine_batch *batch);
    /* Takes the batch and returns; the result comes through done(). One thread at a time. Small
     * batches are done before it returns. */
    void (*start)(void *context, struct engine_batch *batch);
    /* Does one piece of a started batch on the calling thread; false when there was none to take.
     */
    bool (*help)(void *context);
};

extern const struct engine_backend engine_backend_host;

/* NULL-terminated, in order of preference. */
extern const struct engine_backend *const engine_backends[];

#endif
