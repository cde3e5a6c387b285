/* SPDX-License-Identifier: Apache-2.0
 * Sizes: who gives how many rows to whom, once every rank of an op has said what it brings. Pure but
 * for the op itself.
 *
 *   allgather      everybody gets everybody's rows, in set order
 *   reducescatter  the first dim0 % n of the n members that take part get dim0 / n + 1 rows, the
 *                  others dim0 / n; a member that has joined gets none
 *   alltoall       as the splits say, or equal parts; rows for a member that has joined go nowhere
 *
 * All sums are checked: dimensions are the client's. */
#include "daemon/engine/order/sizes.h"

#include "base/bits.h"
#include "base/status.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool engine_sizes_asks(uint16_t kind)
{
    return kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_ALLTOALL ||
           kind == HVI_KIND_REDUCESCATTER;
}

static int __attribute__((format(printf, 5, 6)))
refuse(const struct engine_op *op, int status, char *text_p, size_t text_size, const char *format,
       ...)
{
    char label[ENGINE_LABEL];
    va_list arguments;

    engine_tensor_label(op->tensor, label);
    size_t used = (size_t)snprintf(text_p, text_size, "%s '%s': ", hvi_kind_text(op->kind), label);
    if (used >= text_size)
        return status;
    va_start(arguments, format);
    vsnprintf(text_p + used, text_size - used, format, arguments);
    va_end(arguments);
    return status;
}

/* 0 where there is no row to ask for. */
static uint64_t row_bytes(const struct engine_part *part)
{
    return part->copy.dims[0] > 0 ? part->in_bytes / (uint64_t)part->copy.dims[0] : 0;
}

static bool add_rows(int64_t *rows_p, int64_t rows)
{
    return !__builtin_add_overflow(*rows_p, rows, rows_p);
}

static int plan_gather(struct engine_op *op, char *text_p, size_t text_size)
{
    uint64_t *sizes = op->own_sizes;
    uint64_t bytes = 0;
    int64_t rows = 0;

    for (uint32_t i = 0; i < op->set->places; i++) {
        const struct engine_part *part = op->parts[i];
        sizes[i] = part ? part->in_bytes : 0;
        if (!add_rows(&rows, part ? part->copy.dims[0] : 0) ||
            !hvi_add_checked(bytes, sizes[i], &bytes))
            return refuse(op, HVI_ERR_INVALID, text_p, text_size,
                          "the size of the result overflows");
    }
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (!op->parts[i])
            continue;
        op->parts[i]->rows = rows;
        op->parts[i]->out_bytes = bytes;
    }
    op->bytes = bytes;
    return HVI_OK;
}

static void plan_scatter(struct engine_op *op)
{
    uint64_t *sizes = op->own_sizes;
    int64_t members = op->parts_present, before = 0;

    for (uint32_t i = 0; i < op->set->places; i++) {
        struct engine_part *part = op->parts[i];
        sizes[i] = 0;
        if (!part)
            continue;
        part->rows = part->copy.dims[0] / members + (before++ < part->copy.dims[0] % members);
        part->out_bytes = (uint64_t)part->rows * row_bytes(part);
        sizes[i] = part->out_bytes;
    }
}

int64_t engine_sizes_split(const struct engine_op *op, uint32_t from, uint32_t to)
{
    const struct engine_part *part = op->parts[from];

    if (!part)
        return 0;
    return part->integers ? part->integers[op->set->numbers ? op->set->numbers[to] : to]
                          : part->copy.dims[0] / op->set->size;
}

static uint64_t sent_bytes(const struct engine_op *op, uint32_t from, uint32_t to)
{
    return op->parts[from] ? (uint64_t)engine_sizes_split(op, from, to) * row_bytes(op->parts[from])
                           : 0;
}

/* What a member gets in all. */
static int sum_column(const struct engine_op *op, uint32_t to, int64_t *rows_p, uint64_t *bytes_p,
                      char *text_p, size_t text_size)
{
    *rows_p = 0;
    *bytes_p = 0;
    for (uint32_t from = 0; from < op->set->places; from++) {
        if (!add_rows(rows_p, engine_sizes_split(op, from, to)) ||
            !hvi_add_checked(*bytes_p, sent_bytes(op, from, to), bytes_p))
            return refuse(op, HVI_ERR_INVALID, text_p, text_size,
                          "the size of rank %d's result overflows",
                          engine_set_rank_at(op->set, to));
    }
    return HVI_OK;
}

/* A rank's input has at least the rows of its splits: agree.c has checked it. */
static int plan_alltoall(struct engine_op *op, char *text_p, size_t text_size)
{
    uint32_t size = op->set->places;

    op->matrix = malloc((size_t)size * size * sizeof *op->matrix);
    if (!op->matrix)
        return refuse(op, HVI_ERR_NO_MEMORY, text_p, text_size, "the engine is out of memory");
    op->sizes = op->matrix;
    op->bytes = 0;
    for (uint32_t to = 0; to < size; to++) {
        struct engine_part *receiver = op->parts[to];
        uint64_t bytes;
        int64_t rows;
        int status = sum_column(op, to, &rows, &bytes, text_p, text_size);
        if (status != HVI_OK)
            return status;
        for (uint32_t from = 0; from < size; from++)
            op->matrix[(size_t)from * size + to] = sent_bytes(op, from, to);
        if (!receiver)
            continue;
        receiver->rows = rows;
        receiver->out_bytes = bytes;
        if (op->bytes < bytes)
            op->bytes = bytes;
        if (op->bytes < receiver->in_bytes)
            op->bytes = receiver->in_bytes;
    }
    return HVI_OK;
}

static void plan_alike(struct engine_op *op)
{
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (op->parts[i])
            op->parts[i]->out_bytes = op->parts[i]->in_bytes;
    }
}

int engine_sizes_plan(struct engine_op *op, char *text_p, size_t text_size)
{
    op->sizes = op->own_sizes;
    op->bytes = engine_op_first_part(op)->in_bytes;
    switch (op->kind) {
    case HVI_KIND_ALLGATHER:
        return plan_gather(op, text_p, text_size);
    case HVI_KIND_ALLTOALL:
        return plan_alltoall(op, text_p, text_size);
    case HVI_KIND_REDUCESCATTER:
        plan_scatter(op);
        return HVI_OK;
    default:
        plan_alike(op);
        return HVI_OK;
    }
}

/* ---- on several nodes ---- */

static uint64_t most_of_scatter(const struct engine_op *op)
{
    const struct engine_part *first = engine_op_first_part(op);
    int64_t rows = first->copy.dims[0], members = op->parts_present;

    return (uint64_t)(rows / members + (rows % members > 0)) * row_bytes(first);
}

int engine_sizes_whole(struct engine_op *op, uint64_t *most_p, char *text_p, size_t text_size)
{
    int64_t rows;
    uint64_t bytes;
    int status = HVI_OK;

    *most_p = 0;
    op->sizes = op->own_sizes;
    if (op->kind == HVI_KIND_ALLGATHER) {
        status = plan_gather(op, text_p, text_size);
        *most_p = op->bytes;
    }
    if (op->kind == HVI_KIND_REDUCESCATTER)
        *most_p = most_of_scatter(op);
    for (uint32_t to = 0; op->kind == HVI_KIND_ALLTOALL && to < op->set->places; to++) {
        status = sum_column(op, to, &rows, &bytes, text_p, text_size);
        if (status != HVI_OK)
            return status;
        *most_p = bytes > *most_p ? bytes : *most_p;
    }
    return status;
}

/* Of the inputs of any member. */
static uint64_t bytes_of_row(const struct engine_part *part)
{
    uint64_t bytes = hvi_dtype_bytes(part->copy.dtype);

    for (uint32_t i = 1; i < part->copy.ndim; i++) {
        if (!hvi_mul_checked(bytes, (uint64_t)part->copy.dims[i], &bytes))
            return 0; /* then there are no rows */
    }
    return bytes;
}

static int spread_gather(struct engine_op *op, const int64_t *rows)
{
    const struct engine_part *first = engine_op_first_part(op);
    uint64_t row = bytes_of_row(first);
    int64_t all = 0;

    op->matrix = calloc(op->set->size, sizeof *op->matrix);
    if (!op->matrix)
        return HVI_ERR_NO_MEMORY;
    op->bytes = 0;
    for (uint32_t i = 0; i < op->set->size; i++) {
        if (rows[i] < 0 || !add_rows(&all, rows[i]) ||
            !hvi_mul_checked((uint64_t)rows[i], row, &op->matrix[i]) ||
            !hvi_add_checked(op->bytes, op->matrix[i], &op->bytes))
            return HVI_ERR_PROTOCOL;
    }
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (!op->parts[i])
            continue;
        op->parts[i]->rows = all;
        op->parts[i]->out_bytes = op->bytes;
        if (rows[op->set->numbers[i]] != op->parts[i]->copy.dims[0])
            return HVI_ERR_PROTOCOL;
    }
    return HVI_OK;
}

static int spread_scatter(struct engine_op *op)
{
    const struct engine_part *first = engine_op_first_part(op);
    int64_t members = (int64_t)op->set->size - op->joined_count, before = 0;
    uint64_t row = bytes_of_row(first);

    op->matrix = calloc(op->set->size, sizeof *op->matrix);
    if (!op->matrix)
        return HVI_ERR_NO_MEMORY;
    for (uint32_t i = 0; i < op->set->size; i++) {
        if (op->joined && op->joined[i])
            continue;
        int64_t rows = first->copy.dims[0] / members + (before++ < first->copy.dims[0] % members);
        int32_t place = engine_set_find(op->set, engine_set_member(op->set, i));
        op->matrix[i] = (uint64_t)rows * row;
        if (place >= 0 && op->parts[place]) {
            op->parts[place]->rows = rows;
            op->parts[place]->out_bytes = op->matrix[i];
        }
    }
    return HVI_OK;
}

/* One of ours: what it sends to each member, and what it gets from each. */
static int spread_one(struct engine_op *op, uint32_t place, uint64_t row, const int64_t *rows)
{
    struct engine_part *part = op->parts[place];
    uint64_t *sent = op->matrix + (size_t)place * op->set->size;
    uint64_t *got = sent + (size_t)op->set->places * op->set->size;
    uint64_t *got_rows = got + (size_t)op->set->places * op->set->size;
    uint64_t bytes = 0;
    int64_t all = 0;

    for (uint32_t i = 0; i < op->set->size; i++) {
        int64_t split = part->integers ? part->integers[i] : part->copy.dims[0] / op->set->size;
        sent[i] = (uint64_t)split * row;
        if (rows[i] < 0 || !add_rows(&all, rows[i]) ||
            !hvi_mul_checked((uint64_t)rows[i], row, &got[i]) ||
            !hvi_add_checked(bytes, got[i], &bytes))
            return HVI_ERR_PROTOCOL;
        got_rows[i] = (uint64_t)rows[i];
    }
    part->rows = all;
    part->out_bytes = bytes;
    if (op->bytes < bytes)
        op->bytes = bytes;
    if (op->bytes < part->in_bytes)
        op->bytes = part->in_bytes;
    return HVI_OK;
}

static int spread_alltoall(struct engine_op *op, const int64_t *rows)
{
    uint64_t row = bytes_of_row(engine_op_first_part(op));
    int status = HVI_OK;

    op->matrix = calloc(3 * (size_t)op->set->places * op->set->size, sizeof *op->matrix);
    if (!op->matrix)
        return HVI_ERR_NO_MEMORY;
    op->bytes = 0;
    for (uint32_t i = 0; i < op->set->places && status == HVI_OK; i++) {
        if (op->parts[i])
            status = spread_one(op, i, row, rows + (size_t)i * op->set->size);
    }
    return status;
}

int engine_sizes_spread(struct engine_op *op, const int64_t *rows, size_t count)
{
    size_t due = op->kind == HVI_KIND_ALLGATHER  ? op->set->size
                 : op->kind == HVI_KIND_ALLTOALL ? (size_t)op->set->places * op->set->size
                                                 : 0;
    int status = HVI_OK;

    if (count != due)
        return HVI_ERR_PROTOCOL;
    free(op->matrix); /* of a work that was withdrawn */
    op->matrix = NULL;
    op->bytes = engine_op_first_part(op)->in_bytes;
    if (op->kind == HVI_KIND_ALLGATHER)
        status = spread_gather(op, rows);
    else if (op->kind == HVI_KIND_ALLTOALL)
        status = spread_alltoall(op, rows);
    else if (op->kind == HVI_KIND_REDUCESCATTER)
        status = spread_scatter(op);
    else
        plan_alike(op);
    op->sizes = op->matrix;
    return status;
}

int64_t engine_sizes_received(const struct engine_op *op, uint32_t to, uint32_t from)
{
    size_t plane = (size_t)op->set->places * op->set->size;

    return (int64_t)op->matrix[2 * plane + (size_t)to * op->set->size + from];
}

/* Where a member's input may lie inside its output, or its output inside its input: see exec/backend.h.
 */
static bool is_in_place(const struct engine_op *op, const struct engine_part *part)
{
    uint64_t before = 0;

    if (op->kind == HVI_KIND_ALLTOALL)
        return false;
    for (uint32_t i = 0; i < op->set->numbers[part->place]; i++)
        before += op->sizes[i];
    if (op->kind == HVI_KIND_ALLGATHER)
        return part->copy.in_offset == part->copy.out_offset + before;
    return part->copy.out_offset == part->copy.in_offset + before;
}

static bool overlaps(const struct engine_part *part)
{
    const struct hvi_submission *copy = &part->copy;

    if (copy->in_region != copy->out_region || copy->in_region == HVI_REGION_NONE ||
        part->in_bytes == 0 || part->out_bytes == 0)
        return false;
    return copy->in_offset < copy->out_offset + part->out_bytes &&
           copy->out_offset < copy->in_offset + part->in_bytes;
}

int engine_sizes_check_output(const struct engine_op *op, const struct engine_part *part,
                              char *text_p, size_t text_size)
{
    int32_t rank = op->set->ranks[part->place];

    if (part->output_made && part->copy.out_region == HVI_REGION_NONE && part->out_bytes > 0)
        return refuse(op, HVI_ERR_NO_MEMORY, text_p, text_size,
                      "rank %d has no memory for its result of %" PRIu64
                      " bytes; hvdctl doctor on its node says what there is",
                      rank, part->out_bytes);
    if (part->copy.out_capacity < part->out_bytes)
        return refuse(op, HVI_ERR_TOO_SMALL, text_p, text_size,
                      "the output of rank %d has room for %" PRIu64
                      " bytes, the result has %" PRIu64,
                      rank, part->copy.out_capacity, part->out_bytes);
    if (overlaps(part) && !is_in_place(op, part))
        return refuse(op, HVI_ERR_INVALID, text_p, text_size,
                      op->kind == HVI_KIND_ALLGATHER ? "rank %d's input lies inside its output"
                                                     : "rank %d's output lies inside its input",
                      rank);
    return HVI_OK;
}

/* ---- sizes that repeat ---- */

size_t engine_sizes_kept(uint16_t kind, uint32_t members, uint32_t places)
{
    if (kind == HVI_KIND_ALLGATHER)
        return members;
    return kind == HVI_KIND_ALLTOALL ? 2 * (size_t)places * members : 0;
}

/* Each member's rows. False: they do not follow from the bytes. */
static bool keep_gather(const struct engine_op *op, int64_t *rows)
{
    uint64_t row = bytes_of_row(engine_op_first_part(op));

    for (uint32_t i = 0; i < op->set->size && row > 0; i++)
        rows[i] = (int64_t)(op->matrix[i] / row);
    return row > 0;
}

static int64_t rows_sent(const struct engine_op *op, uint32_t place, uint32_t member)
{
    const struct engine_part *part = op->parts[place];

    return part->integers ? part->integers[member] : part->copy.dims[0] / op->set->size;
}

/* What each of ours gets from each member, then what it sends to each. */
static void keep_alltoall(const struct engine_op *op, int64_t *rows)
{
    uint32_t size = op->set->size, plane = op->set->places * size;

    for (uint32_t i = 0; i < plane; i++) {
        rows[i] = engine_sizes_received(op, i / size, i % size);
        rows[plane + i] = rows_sent(op, i / size, i % size);
    }
}

void engine_sizes_keep(const struct engine_op *op, struct engine_tensor *tensor)
{
    size_t count = engine_sizes_kept(op->kind, op->set->size, op->set->places);
    bool good =
        !op->joined && op->parts_present == op->set->places && count <= ENGINE_SIZES_KEPT_MAX;

    if (count == 0)
        return;
    if (tensor->kept && tensor->kept->count != count) {
        free(tensor->kept);
        tensor->kept = NULL;
    }
    if (!tensor->kept && good)
        tensor->kept = malloc(sizeof *tensor->kept + count * sizeof *tensor->kept->rows);
    if (!tensor->kept)
        return;
    tensor->kept->count = (uint32_t)count;
    if (good && op->kind == HVI_KIND_ALLGATHER)
        good = keep_gather(op, tensor->kept->rows);
    else if (good)
        keep_alltoall(op, tensor->kept->rows);
    if (good)
        return;
    free(tensor->kept);
    tensor->kept = NULL;
}

static bool place_repeats(const struct engine_op *op, uint32_t place, const int64_t *rows)
{
    uint32_t size = op->set->size;
    const int64_t *sent = rows + (size_t)(op->set->places + place) * size;

    if (op->kind == HVI_KIND_ALLGATHER)
        return rows[op->set->numbers[place]] == op->parts[place]->copy.dims[0];
    for (uint32_t i = 0; i < size; i++) {
        if (sent[i] != rows_sent(op, place, i))
            return false;
    }
    return true;
}

bool engine_sizes_repeat(const struct engine_op *op, const struct engine_tensor *tensor)
{
    size_t count = engine_sizes_kept(op->kind, op->set->size, op->set->places);

    if (count == 0 || !tensor->kept || tensor->kept->count != count)
        return count == 0;
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (!place_repeats(op, i, tensor->kept->rows))
            return false;
    }
    return true;
}

bool engine_sizes_spread_kept(struct engine_op *op, const struct engine_tensor *tensor)
{
    bool sends_too = op->kind == HVI_KIND_ALLTOALL;
    size_t count = engine_sizes_kept(op->kind, op->set->size, op->set->places);
    char text[HVI_TEXT_MAX + 1];

    if (engine_sizes_spread(op, count > 0 ? tensor->kept->rows : NULL,
                            sends_too ? count / 2 : count) != HVI_OK)
        return false;
    for (uint32_t i = 0; i < op->set->places; i++) {
        const struct engine_part *part = op->parts[i];
        if (part->copy.out_region != HVI_REGION_NONE &&
            engine_sizes_check_output(op, part, text, sizeof text) != HVI_OK)
            return false;
    }
    return true;
}
