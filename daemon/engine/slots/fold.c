/* SPDX-License-Identifier: Apache-2.0
 * What ranks did by themselves in slots, added to what the engine knows of them: counters,
 * lags and trace. Each rank writes its own block; the block outlives it. The engine remembers what
 * it has added already and adds the difference whenever somebody asks.
 *
 * The numbers are the ranks' own and nothing depends on them: one that lies spoils its own rows. */
#include "daemon/engine/slots/slots.h"

#include "base/status.h"
#include "daemon/engine/stats/stats.h"

#include <stdlib.h>

static void fold_counters(struct engine_stats_row *row, const struct hvi_slot_rank *block,
                          struct engine_slots_seen *seen)
{
    uint64_t ops = atomic_load_explicit(&block->ops, memory_order_relaxed);
    uint64_t bytes = atomic_load_explicit(&block->bytes, memory_order_relaxed);

    row->ops += ops - seen->ops;
    row->express_ops += ops - seen->ops;
    row->bytes += bytes - seen->bytes;
    seen->ops = ops;
    seen->bytes = bytes;
}

/* What one rank has seen of another's lateness. */
static void fold_lag(struct engine_lag *lag, const struct hvi_slot_lag *block,
                     struct hvi_slot_lag *seen)
{
    struct hvi_slot_lag now = *block;

    lag->sum_ns += now.sum_ns - seen->sum_ns;
    lag->last_ops += now.last - seen->last;
    if (now.max_ns > lag->max_ns)
        lag->max_ns = now.max_ns;
    for (uint32_t i = 0; i < ENGINE_LAG_BUCKETS; i++) {
        uint32_t more = now.histogram[i] - seen->histogram[i];
        lag->buckets[i] += more;
        lag->ops += more;
    }
    *seen = now;
}

static void fold_entry(struct engine_slots *slots, engine_seat seat,
                       const struct hvi_slot_trace *entry)
{
    const struct engine_slot *slot = entry->slot < HVI_SLOTS ? &slots->slot[entry->slot] : NULL;
    struct engine_trace_op op = {
        .tensor = "(forgotten)",
        .anon_seq = entry->number,
        .status = HVI_OK,
        .bytes = entry->bytes,
        .submit_ns = entry->submit_ns,
        .ready_ns = entry->done_ns,
        .done_ns = entry->done_ns,
    };

    if (slot && slot->owner && (entry->number == 0) == (slot->tensor != NULL)) {
        op.tensor = slot->tensor ? slot->tensor->name : NULL;
        op.kind = (uint16_t)slot->agreed.kind;
        op.dtype = slot->agreed.dtype;
        op.process_set = slot->agreed.process_set;
    }
    engine_trace_add(slots->stats, seat, &op);
}

void engine_slots_fold_trace(struct engine_slots *slots, engine_seat seat)
{
    if (!slots->on)
        return;
    const struct hvi_slot_rank *block = &slots->map.rank[seat.n];
    struct engine_slots_seen *seen = &slots->seen[seat.n];
    /* Acquire, pairs with the rank's release: entries before it are whole. */
    uint64_t traced = atomic_load_explicit(&block->traced, memory_order_acquire);
    if (traced == seen->traced)
        return;
    if (traced - seen->traced > HVI_SLOT_TRACE) /* the older ones are overwritten */
        seen->traced = traced - HVI_SLOT_TRACE;
    for (; seen->traced != traced; seen->traced++) {
        struct hvi_slot_trace entry = block->trace[seen->traced % HVI_SLOT_TRACE];
        fold_entry(slots, seat, &entry);
    }
}

void engine_slots_fold(struct engine_slots *slots)
{
    uint32_t seats = slots->seats;

    for (uint16_t i = 0; slots->on && i < seats; i++) {
        fold_counters(&slots->stats->rows[i], &slots->map.rank[i], &slots->seen[i]);
        for (uint32_t other = 0; other < seats; other++)
            fold_lag(&slots->stats->rows[other].lag, &slots->map.rank[i].lag[other],
                     &slots->lags_seen[i * seats + other]);
        engine_slots_fold_trace(slots, (engine_seat){i});
    }
}
