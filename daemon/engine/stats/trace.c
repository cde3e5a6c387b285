/* SPDX-License-Identifier: Apache-2.0
 * The trace: the last ENGINE_TRACE_OPS ops of every rank, always on. It is the engine's own memory,
 * so it can be read after the rank has died; what the rank still had in flight is read from its
 * parts while it lives. An entry is a copy of everything it tells, because tensors and parts are
 * reused at once. */
#include "daemon/engine/stats/stats.h"

#include "base/status.h"
#include "base/types.h"
#include "base/utf8.h"
#include "daemon/engine/order/op.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct entry {
    char tensor[HVI_WIRE_TRACE_NAME]; /* "": unnamed, number .anon_seq of its kind */
    uint64_t anon_seq, bytes, submit_ns, ready_ns, done_ns, device_ns;
    struct engine_pair pair;
    uint32_t process_set;
    int32_t status;
    uint16_t kind;
    uint8_t dtype;
};

struct engine_trace {
    uint64_t count; /* ever added; the newest is number `count` */
    struct entry entries[ENGINE_TRACE_OPS];
};

_Static_assert((ENGINE_TRACE_OPS & (ENGINE_TRACE_OPS - 1)) == 0, "indices wrap");

struct engine_trace *engine_trace_new(void)
{
    return calloc(1, sizeof(struct engine_trace));
}

void engine_trace_free(struct engine_trace *trace)
{
    free(trace);
}

/* Both ends of a long name tell it from its neighbours. */
static void shorten(const char *name, char *text_p)
{
    const size_t room = HVI_WIRE_TRACE_NAME - 1, dots = 3, half = (room - dots) / 2;
    size_t bytes = strlen(name);

    if (bytes <= room) {
        memcpy(text_p, name, bytes + 1);
        return;
    }
    size_t head = hvi_utf8_cut(name, bytes, half);
    size_t tail = bytes - half;
    while (tail < bytes && ((unsigned char)name[tail] & 0xc0) == 0x80)
        tail++;
    memcpy(text_p, name, head);
    memcpy(text_p + head, "...", dots);
    memcpy(text_p + head + dots, name + tail, bytes - tail + 1);
}

static void fill_entry(const struct engine_trace_op *op, struct entry *entry)
{
    entry->tensor[0] = '\0';
    if (op->tensor)
        shorten(op->tensor, entry->tensor);
    entry->anon_seq = op->anon_seq;
    entry->pair = op->pair;
    entry->bytes = op->bytes;
    entry->submit_ns = op->submit_ns;
    entry->ready_ns = op->ready_ns;
    entry->done_ns = op->done_ns;
    entry->device_ns = op->device_ns;
    entry->process_set = op->process_set;
    entry->status = op->status;
    entry->kind = (uint16_t)op->kind;
    entry->dtype = (uint8_t)op->dtype;
}

void engine_trace_add(struct engine_stats *stats, engine_seat seat,
                      const struct engine_trace_op *op)
{
    struct engine_trace *trace = engine_stats_row(stats, seat)->trace;

    if (!trace)
        return;
    struct entry *entry = &trace->entries[trace->count++ % ENGINE_TRACE_OPS];
    fill_entry(op, entry);
}

static void describe(const struct engine_part *part, struct engine_trace_op *op_p)
{
    op_p->tensor = part->tensor ? part->tensor->name : "?";
    op_p->anon_seq = part->tensor ? part->tensor->anon_seq : 0;
    op_p->pair = part->tensor ? part->tensor->pair : (struct engine_pair){0, 0};
    op_p->kind = part->copy.kind;
    op_p->dtype = part->copy.dtype;
    op_p->process_set = part->copy.process_set;
    op_p->bytes = part->in_bytes;
    op_p->submit_ns = part->arrived_ns;
    op_p->ready_ns = part->op ? part->op->ready_ns : 0;
    op_p->done_ns = 0;
    op_p->device_ns = part->device_ns;
    op_p->status = HVI_INPROGRESS;
}

void engine_trace_part(struct engine_stats *stats, const struct engine_part *part, int status,
                       uint64_t now_ns)
{
    struct engine_trace_op op;

    describe(part, &op);
    op.status = status;
    op.done_ns = now_ns;
    engine_trace_add(stats, part->seat, &op);
}

/* ---- rows ---- */

static void fill_row(struct hvi_trace_row *row, int32_t rank, uint64_t number,
                     const struct entry *entry)
{
    row->rank = rank;
    row->number = number;
    snprintf(row->op, sizeof row->op, "%s", hvi_kind_text(entry->kind));
    if (entry->tensor[0] != '\0')
        memcpy(row->tensor, entry->tensor, sizeof row->tensor);
    else if (engine_partial_is(entry->kind))
        engine_partial_name(entry->kind, entry->pair, entry->anon_seq, row->tensor,
                            sizeof row->tensor);
    else
        snprintf(row->tensor, sizeof row->tensor, "%s.noname.%" PRIu64, row->op, entry->anon_seq);
    if (entry->kind != HVI_KIND_BARRIER)
        snprintf(row->dtype, sizeof row->dtype, "%s", hvi_dtype_text(entry->dtype));
    row->process_set = entry->process_set;
    row->status = entry->status;
    row->bytes = entry->bytes;
    row->submit_ns = entry->submit_ns;
    row->ready_ns = entry->ready_ns;
    row->done_ns = entry->done_ns;
    row->device_ns = entry->device_ns;
}

static void give(struct engine_trace_reader *reader, int32_t rank, uint64_t number,
                 const struct entry *entry)
{
    if (reader->count < reader->limit)
        fill_row(&reader->rows[reader->count++], rank, number, entry);
    else
        reader->left_out++;
}

void engine_trace_read_part(struct engine_trace_reader *reader, const struct engine_part *part)
{
    struct engine_trace_op op;
    struct entry entry;

    describe(part, &op);
    fill_entry(&op, &entry);
    give(reader, part->rank, 0, &entry);
}

void engine_trace_read(struct engine_trace_reader *reader, const struct engine_stats *stats,
                       engine_seat seat, int32_t rank)
{
    const struct engine_trace *trace = engine_stats_row(stats, seat)->trace;

    if (!trace)
        return;
    uint64_t number = trace->count;
    uint64_t kept = number < ENGINE_TRACE_OPS ? number : ENGINE_TRACE_OPS;
    for (; kept > 0; kept--, number--) {
        if (reader->before == 0 || number < reader->before)
            give(reader, rank, number, &trace->entries[(number - 1) % ENGINE_TRACE_OPS]);
    }
}
