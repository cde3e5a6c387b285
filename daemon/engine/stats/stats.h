/* SPDX-License-Identifier: Apache-2.0
 * The room stats/: what each rank has done: how many ops (stats.c), how late it came (lag.c) and what it
 * did last (trace.c). Always on, in the engine's own memory; a row per seat, which outlives the
 * rank it tells of.
 * Engine thread; nothing blocks. */
#ifndef ENGINE_STATS_STATS_H
#define ENGINE_STATS_STATS_H

#include "daemon/engine/order/partial_name.h"
#include "daemon/engine/order/roster.h"
#include "proto/wire.h"
#include "shm/slots.h"

#include <stddef.h>
#include <stdint.h>

struct engine_op;
struct engine_part;
struct engine_trace; /* the last ops of one rank */

#define ENGINE_LAG_BUCKETS HVI_SLOT_BUCKETS /* the last one: 2^42 ns (73 minutes) and more */

/* How long after the first rank of an op this one came. */
struct engine_lag {
    uint64_t ops, last_ops; /* of more than one rank; of these: where this rank came last */
    uint64_t sum_ns, max_ns;
    uint64_t buckets[ENGINE_LAG_BUCKETS]; /* [0]: 0 ns; [i]: 2^(i-1) .. 2^i - 1 ns */
};

struct engine_stats_row {
    uint64_t ops, bytes;
    uint64_t negotiated, replayed; /* of .ops: with and without a check */
    uint64_t express_ops;          /* of .ops: done by the ranks themselves */
    struct engine_lag lag;
    struct engine_trace *trace; /* from the rank's coming to the engine's end; NULL */
};

struct engine_stats {
    uint32_t seats;
    struct engine_stats_row *rows; /* [seats] */
};

static inline struct engine_stats_row *engine_stats_row(const struct engine_stats *stats,
                                                        engine_seat seat)
{
    return &stats->rows[seat.n];
}

/* `stats` is zeroed. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_stats_init(struct engine_stats *stats, uint32_t seats);
/* Harmless on a zeroed one. */
void engine_stats_fini(struct engine_stats *stats);
/* The rank has come: from now on it has a trace, if there is memory for it. */
void engine_stats_add_rank(struct engine_stats *stats, engine_seat seat);
/* An op is about to end well: counts it for its ranks. */
void engine_stats_op(struct engine_stats *stats, const struct engine_op *op);
/* Everything but what the trace keeps. */
void engine_stats_fill(const struct engine_stats *stats, engine_seat seat,
                       struct hvi_rank_row *row_p);

/* ---- lag.c ---- */

void engine_lag_count(struct engine_lag *lag, uint64_t lag_ns);
/* The lag that `permille` of a thousand ops do not exceed, within a factor of two. 0 without ops. */
uint64_t engine_lag_quantile(const struct engine_lag *lag, uint32_t permille);
/* Every rank of a complete op. */
void engine_lag_op(struct engine_stats *stats, const struct engine_op *op);
void engine_lag_fill(const struct engine_lag *lag, struct hvi_rank_row *row_p);

/* ---- trace.c ---- */

#define ENGINE_TRACE_OPS 1024u /* per rank; a power of two */

/* One rank's share of one finished op. */
struct engine_trace_op {
    const char *tensor; /* copied; long ones are shortened. NULL: unnamed */
    uint64_t anon_seq;
    struct engine_pair pair;
    uint32_t kind, dtype, process_set;
    int32_t status;
    uint64_t bytes, submit_ns, ready_ns, done_ns, device_ns;
};

/* Rows that are being read: the newest first, at most .limit. */
struct engine_trace_reader {
    struct hvi_trace_row *rows; /* [limit] */
    size_t count, limit;
    uint64_t before;   /* only finished ops with a smaller number; 0: all */
    uint64_t left_out; /* that are kept but not given */
};

/* For ops that do not pass sessions/complete.c. A rank without a trace is ignored. */
void engine_trace_add(struct engine_stats *stats, engine_seat seat,
                      const struct engine_trace_op *op);
/* The part is about to be answered; its op, if any, is still set. */
void engine_trace_part(struct engine_stats *stats, const struct engine_part *part, int status,
                       uint64_t now_ns);
/* A part that still waits or executes. */
void engine_trace_read_part(struct engine_trace_reader *reader, const struct engine_part *part);
/* The finished ops of the seat, whose rank is `rank`. */
void engine_trace_read(struct engine_trace_reader *reader, const struct engine_stats *stats,
                       engine_seat seat, int32_t rank);
/* Within stats/: an empty trace. NULL: out of memory. */
struct engine_trace *engine_trace_new(void);
void engine_trace_free(struct engine_trace *trace);

#endif
