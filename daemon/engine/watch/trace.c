/* SPDX-License-Identifier: Apache-2.0
 * The trace of ranks, read: what is in flight from their requests, what is over from stats/. */
#include "daemon/engine/watch/trace.h"

#include "base/clock.h"
#include "base/status.h"
#include "daemon/engine/sessions/sessions.h"
#include "daemon/engine/slots/slots.h"
#include "daemon/engine/stats/stats.h"
#include "daemon/engine/watch/watch.h"

#include <stdlib.h>

/* In no order. */
static void read_in_flight(struct engine_trace_reader *reader, const struct engine_session *session)
{
    for (uint32_t i = 0; i < session->requests_used; i++) {
        const struct engine_part *part = &session->requests[i].slots.share.part;
        if (part->op)
            engine_trace_read_part(reader, part);
    }
}

bool engine_trace_wants_times(const struct engine_watch *watch)
{
    return watch->timeline ||
           (watch->traced_ns != 0 && hvi_clock_ns() - watch->traced_ns < ENGINE_TRACE_TIMES_NS);
}

int engine_trace_rows(struct engine_watch *watch, int32_t rank, uint32_t limit, uint64_t before,
                      struct hvi_trace_row **rows_p, size_t *count_p, uint64_t *left_out_p)
{
    struct engine_trace_reader reader = {.before = before, .limit = HVI_WIRE_TRACES_MAX};

    watch->traced_ns = hvi_clock_ns();
    engine_slots_fold(watch->slots);
    if (limit > 0 && limit < reader.limit)
        reader.limit = limit;
    reader.rows = calloc(reader.limit, sizeof *reader.rows);
    if (!reader.rows)
        return HVI_ERR_NO_MEMORY;
    for (uint16_t i = 0; i < watch->sessions->seats; i++) {
        const engine_seat seat = {i};
        int32_t here = engine_rank_at(watch->sessions, seat)->rank;
        const struct engine_session *session = engine_rank_at(watch->sessions, seat)->session;
        if (rank >= 0 && rank != here)
            continue;
        if (session && before == 0)
            read_in_flight(&reader, session);
        engine_trace_read(&reader, watch->stats, seat, here);
    }
    *rows_p = reader.rows;
    *count_p = reader.count;
    *left_out_p = reader.left_out;
    return HVI_OK;
}
