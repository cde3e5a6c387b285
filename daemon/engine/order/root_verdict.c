/* SPDX-License-Identifier: Apache-2.0
 * Root: what the nodes of an op are told.
 *
 * A verdict that is the same for every node of the job is made once, and mesh/ passes it down the tree. */
#include "daemon/engine/order/root_verdict.h"

#include "base/status.h"
#include "daemon/engine/order/root_stale.h"
#include "daemon/engine/order/sizes.h"
#include "daemon/engine/order/span_name.h"

#include <stdlib.h>

struct hvi_mesh_verdict *engine_root_verdict_begin(struct engine_root *root,
                                                   const struct engine_op *op,
                                                   enum hvi_mesh_what what)
{
    root->verdict = (struct hvi_mesh_verdict){
        .what = what,
        .set = op->set->id,
        .serial = op->set->serial,
        .kind = op->kind,
        .tensor = engine_span_name(op->tensor),
        .has_tensor = true,
        .last = -1,
        .culprit = -1,
    };
    return &root->verdict;
}

void engine_root_verdict_send(struct engine_root *root, uint32_t node)
{
    root->verdict.number = ++root->nodes[node].number;
    root->calls->verdict(root->user, node, &root->verdict);
}

void engine_root_verdict_send_to_all(struct engine_root *root)
{
    root->verdict.number = ++root->said_to_all;
    for (uint32_t node = 0; node < root->roster->nodes; node++)
        root->nodes[node].number++;
    root->calls->verdict_for_all(root->user, &root->verdict);
}

static int64_t rows_of(const struct engine_op *op, uint32_t set_rank)
{
    return op->parts[set_rank] ? op->parts[set_rank]->copy.dims[0] : 0;
}

/* Those that a node needs: NULL with a count of 0 if none. False: out of memory. */
static bool make_rows(struct engine_root *root, const struct engine_op *op, uint32_t index)
{
    const struct engine_places *span = op->set->span;
    struct hvi_mesh_verdict *verdict = &root->verdict;
    size_t size = op->set->size, lines = 1;

    free(verdict->rows);
    verdict->rows = NULL;
    verdict->row_count = 0;
    if (op->kind == HVI_KIND_ALLTOALL)
        lines = span->places[index];
    else if (op->kind != HVI_KIND_ALLGATHER)
        return true;
    verdict->rows = calloc(lines * size, sizeof *verdict->rows);
    if (!verdict->rows)
        return false;
    verdict->row_count = lines * size;
    for (uint32_t i = 0; op->kind == HVI_KIND_ALLGATHER && i < size; i++)
        verdict->rows[i] = rows_of(op, i);
    for (uint32_t to = 0; op->kind == HVI_KIND_ALLTOALL && to < size; to++) {
        int64_t *line = verdict->rows + span->place[to] * size;
        for (uint32_t from = 0; span->home[to] == index && from < size; from++)
            line[from] = engine_sizes_split(op, from, to);
    }
    return true;
}

/* Every node of the job takes part, and hears the same. */
static bool is_for_all(const struct engine_root *root, const struct engine_op *op)
{
    const struct engine_places *span = op->set->span;

    if (span->nodes < root->roster->nodes || op->kind == HVI_KIND_ALLTOALL)
        return false;
    for (uint32_t i = 0; i < span->nodes; i++) {
        if (!engine_meeting_of(op)->shares[i].came)
            return false;
    }
    return true;
}

/* The verdict. False: out of memory. */
static bool send_to_each(struct engine_root *root, const struct engine_op *op, bool sizes)
{
    const struct engine_places *span = op->set->span;
    bool made = true;

    for (uint32_t i = 0; i < span->nodes && made; i++) {
        if (!engine_meeting_of(op)->shares[i].came)
            continue;
        if (sizes && (i == 0 || op->kind == HVI_KIND_ALLTOALL || !root->verdict.rows))
            made = make_rows(root, op, i);
        if (made)
            engine_root_verdict_send(root, span->node[i]);
    }
    return made;
}

int engine_root_verdict_announce(struct engine_root *root, const struct engine_op *op,
                                 enum hvi_mesh_what what)
{
    struct hvi_mesh_verdict *verdict = engine_root_verdict_begin(root, op, what);
    bool sizes = what == HVI_MESH_SIZED || op->state != ENGINE_OP_SIZING, made = true;

    if (what == HVI_MESH_STARTS)
        verdict->sequence = ++root->sequence;
    if (op->kind != HVI_KIND_JOIN && sizes) {
        verdict->joined = root->joined;
        verdict->joined_count = root->joined_count;
        verdict->instances = root->instances;
        verdict->instance_count = root->on_gpus ? op->set->size : 0;
    }
    verdict->last = engine_meeting_of(op)->last;
    verdict->new_set = op->new_set;
    verdict->new_serial = op->new_serial;
    if (!is_for_all(root, op))
        made = send_to_each(root, op, sizes);
    else if (!sizes || (made = make_rows(root, op, 0)))
        engine_root_verdict_send_to_all(root);
    free(verdict->rows);
    verdict->rows = NULL;
    return made ? HVI_OK : HVI_ERR_NO_MEMORY;
}
