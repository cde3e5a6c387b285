/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/stats/stats.h"

#include "base/status.h"
#include "daemon/engine/order/op.h"

#include <stdlib.h>

int engine_stats_init(struct engine_stats *stats, uint32_t seats)
{
    stats->rows = calloc(seats, sizeof *stats->rows);
    if (!stats->rows)
        return HVI_ERR_NO_MEMORY;
    stats->seats = seats;
    return HVI_OK;
}

void engine_stats_fini(struct engine_stats *stats)
{
    for (uint32_t i = 0; i < stats->seats; i++)
        engine_trace_free(stats->rows[i].trace);
    free(stats->rows);
    stats->rows = NULL;
    stats->seats = 0;
}

void engine_stats_add_rank(struct engine_stats *stats, engine_seat seat)
{
    engine_stats_row(stats, seat)->trace = engine_trace_new();
}

void engine_stats_op(struct engine_stats *stats, const struct engine_op *op)
{
    for (uint32_t i = 0; i < op->set->places; i++) {
        struct engine_stats_row *row = engine_stats_row(stats, op->set->seats[i]);
        if (!op->parts[i])
            continue;
        row->ops++;
        row->bytes += op->parts[i]->in_bytes;
        row->replayed += op->replayed;
        row->negotiated += !op->replayed;
    }
}

void engine_stats_fill(const struct engine_stats *stats, engine_seat seat,
                       struct hvi_rank_row *row_p)
{
    const struct engine_stats_row *row = engine_stats_row(stats, seat);

    row_p->ops = row->ops;
    row_p->bytes = row->bytes;
    row_p->negotiated = row->negotiated;
    row_p->replayed = row->replayed;
    row_p->express = row->express_ops;
    engine_lag_fill(&row->lag, row_p);
}
