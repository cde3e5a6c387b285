/* SPDX-License-Identifier: Apache-2.0
 * What can be seen of a job while it runs: how late its ranks come (lag.c) and what they did last
 * (trace.c). Both are always on, in the engine's own memory, and outlive the rank they tell of.
 * Main thread only; nothing here blocks. */
#ifndef ENGINE_OBSERVE_H
#define ENGINE_OBSERVE_H

#include "proto/wire.h"
#include "shm/express.h"

#include <stddef.h>
#include <stdint.h>

/* What happens to an op that has waited for engine->stall_act_ns. */
enum engine_stall_policy {
    ENGINE_STALL_WARN,     /* nothing more than the warnings */
    ENGINE_STALL_FAIL_OP,  /* it fails on every rank of its set; the job goes on */
    ENGINE_STALL_STOP_JOB, /* the job ends, as in Horovod */
};

struct engine;
struct engine_op;
struct engine_part;

/* ---- lag.c ---- */

#define ENGINE_LAG_BUCKETS HVI_EXPRESS_BUCKETS /* the last one: 2^42 ns (73 minutes) and more */

/* How long after the first rank of an op this one came. */
struct engine_lag {
    uint64_t ops, last_ops; /* of more than one rank; of these: where this rank came last */
    uint64_t sum_ns, max_ns;
    uint64_t buckets[ENGINE_LAG_BUCKETS]; /* [0]: 0 ns; [i]: 2^(i-1) .. 2^i - 1 ns */
};

void engine_lag_count(struct engine_lag *lag, uint64_t lag_ns);
/* The lag that `permille` of a thousand ops do not exceed, within a factor of two. 0 without ops.
 */
uint64_t engine_lag_quantile(const struct engine_lag *lag, uint32_t permille);
/* One op of this rank; for ops that do not pass negotiate.c. */
void engine_lag_add(struct engine *engine, int32_t rank, uint64_t lag_ns);
/* The rank came last in one of the ops it was counted for. */
void engine_lag_last(struct engine *engine, int32_t rank);
/* Every rank of a complete op. */
void engine_lag_op(struct engine *engine, const struct engine_op *op);
void engine_lag_row(const struct engine_lag *lag, struct hvi_rank_row *row_p);

/* ---- trace.c ---- */

#define ENGINE_TRACE_OPS 1024u /* per rank; a power of two */

struct engine_trace; /* the last ops of one rank */

/* One rank's share of one finished op. */
struct engine_trace_op {
    const char *tensor; /* copied; long ones are shortened. NULL: unnamed */
    uint64_t anon_seq;
    uint32_t kind, dtype, process_set;
    int32_t status;
    uint64_t bytes, submit_ns, ready_ns, done_ns;
};

/* An empty ring. NULL: out of memory. */
struct engine_trace *engine_trace_new(void);
void engine_trace_free(struct engine_trace *trace);
/* For ops that do not pass complete.c. A rank without a ring is ignored. */
void engine_trace_add(struct engine *engine, int32_t rank, const struct engine_trace_op *op);
/* The part is about to be completed; its op, if any, is still set. */
void engine_trace_part(const struct engine_part *part, int status);
/* Rows of one rank, or with -1 of all: newest first rank by rank, at most `limit` (0: as many as
 * fit a message), those in flight before all finished ones; with `before` only finished ones with a
 * smaller number. *left_out_p counts those that are kept but not given. The caller frees *rows_p.
 * HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_trace_rows(struct engine *engine, int32_t rank, uint32_t limit, uint64_t before,
                      struct hvi_trace_row **rows_p, size_t *count_p, uint64_t *left_out_p);

#endif
