/* SPDX-License-Identifier: Apache-2.0
 * Arrival lag: how long after the first rank of an op each one submitted. The rank that others wait
 * for is the one with the large numbers; that is all a histogram has to show, so its buckets are
 * powers of two and a quantile is read by drawing a line through a bucket. */
#include "daemon/engine/stats/stats.h"

#include "base/bits.h"
#include "daemon/engine/order/op.h"

void engine_lag_count(struct engine_lag *lag, uint64_t lag_ns)
{
    lag->ops++;
    lag->sum_ns += lag_ns;
    if (lag_ns > lag->max_ns)
        lag->max_ns = lag_ns;
    lag->buckets[hvi_log2_bucket(lag_ns, ENGINE_LAG_BUCKETS)]++;
}

/* How far into the bucket: `at` of its `count` ops, at >= 1. */
static uint64_t inside(uint32_t bucket, uint64_t at, uint64_t count, uint64_t max_ns)
{
    uint64_t low_ns = bucket == 0 ? 0 : 1ull << (bucket - 1);
    uint64_t high_ns = bucket == 0 ? 0 : 2 * low_ns - 1;

    if (high_ns > max_ns || bucket == ENGINE_LAG_BUCKETS - 1)
        high_ns = max_ns;
    return low_ns + (uint64_t)((unsigned __int128)(high_ns - low_ns) * at / count);
}

uint64_t engine_lag_quantile(const struct engine_lag *lag, uint32_t permille)
{
    uint64_t wanted = (uint64_t)((double)lag->ops * permille / 1000.0 + 0.999999);
    uint64_t seen = 0;

    if (lag->ops == 0)
        return 0;
    if (wanted == 0)
        wanted = 1;
    for (uint32_t i = 0; i < ENGINE_LAG_BUCKETS; i++) {
        if (seen + lag->buckets[i] >= wanted)
            return inside(i, wanted - seen, lag->buckets[i], lag->max_ns);
        seen += lag->buckets[i];
    }
    return lag->max_ns;
}

void engine_lag_op(struct engine_stats *stats, const struct engine_op *op)
{
    uint32_t members = op->set->places;
    uint64_t first_ns = UINT64_MAX, last_ns = 0;
    uint32_t present = 0, last = 0;

    for (uint32_t i = 0; i < members; i++) {
        if (!op->parts[i])
            continue;
        present++;
        if (op->parts[i]->arrived_ns < first_ns)
            first_ns = op->parts[i]->arrived_ns;
        if (op->parts[i]->arrived_ns >= last_ns) {
            last_ns = op->parts[i]->arrived_ns;
            last = i;
        }
    }
    if (present < 2)
        return;
    for (uint32_t i = 0; i < members; i++) {
        if (op->parts[i])
            engine_lag_count(&engine_stats_row(stats, op->set->seats[i])->lag,
                             op->parts[i]->arrived_ns - first_ns);
    }
    engine_stats_row(stats, op->set->seats[last])->lag.last_ops++;
}

void engine_lag_fill(const struct engine_lag *lag, struct hvi_rank_row *row_p)
{
    row_p->lag_mean_ns = lag->ops > 0 ? lag->sum_ns / lag->ops : 0;
    row_p->lag_max_ns = lag->max_ns;
    row_p->lag_p50_ns = engine_lag_quantile(lag, 500);
    row_p->lag_p99_ns = engine_lag_quantile(lag, 990);
    row_p->lag_sum_ns = lag->sum_ns;
    row_p->lag_ops = lag->ops;
    row_p->last_ops = lag->last_ops;
}
