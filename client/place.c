/* SPDX-License-Identifier: Apache-2.0
 * Where operands go. The output decides: in hvd_alloc memory it is used where it is; in registered
 * memory its twin is used; ordinary memory gets inline cells or a staging block, and so does a
 * place in shared memory that is not aligned to the element. An allreduce's or broadcast's input is
 * used where it is if it lies in hvd_alloc memory; otherwise it is copied to the output's place and
 * the op runs there in place, so one shared block serves both sides. Not if that place is the
 * caller's own memory, which an op that fails must not change: then, and in the ops whose result
 * has another shape, the input gets a place of its own. */
#include "client/place.h"

#include "client/session.h"
#include "client/submit.h"

#include <string.h>

int client_place_scratch(struct hvd_session *session, uint64_t bytes, const char *what,
                         struct client_operand *operand_p)
{
    struct client_operand operand = {.region = HVI_REGION_INLINE};
    operand.shared = session->channel.inline_base;
    if (bytes > 0 && bytes <= CLIENT_INLINE_MAX &&
        client_inline_take(&session->inline_area, bytes, &operand.inline_cell,
                           &operand.inline_cells)) {
        operand.offset = (uint64_t)operand.inline_cell * HVI_INLINE_CELL;
        operand.shared = session->channel.inline_base + operand.offset;
    } else if (bytes > 0) {
        int rc = client_staging_get(session, bytes, what, &operand.block);
        if (rc != HVD_OK)
            return rc;
        operand.region = client_staging_region_id(operand.block);
        operand.offset = operand.block->offset;
        operand.shared = client_staging_address(operand.block);
    }
    *operand_p = operand;
    return HVD_OK;
}

/* The place of a tensor; *ordinary_p says that it is a copy of it. */
static int place(struct hvd_session *session, const struct client_request *request, void *data,
                 uint64_t bytes, struct client_operand *operand_p, bool *ordinary_p)
{
    struct client_memory *memory =
        bytes > 0 ? client_memory_find(&session->memory, data, bytes) : NULL;
    if (memory && client_memory_use(memory, data, request->element, operand_p)) {
        *ordinary_p = memory->is_twin;
        return HVD_OK;
    }
    *ordinary_p = true;
    return client_place_scratch(session, bytes, request->what, operand_p);
}

/* Memory of ours for the result: now if its size is known, else when the engine tells it. */
static int place_owned(struct hvd_session *session, const struct client_request *request,
                       struct hvd_op *op)
{
    op->owns_output = true;
    if (client_kind_sizes_late(request->kind)) {
        op->out.region = HVI_REGION_NONE;
        op->wants_output = true;
        return HVD_OK;
    }
    return client_place_scratch(session, request->out_bytes, request->what, &op->out);
}

/* Ops whose result has another shape than the input. */
static int place_apart(struct hvd_session *session, struct client_request *request,
                       struct hvd_op *op)
{
    bool ordinary = false;
    int rc =
        place(session, request, request->in->data, request->in_bytes, &op->in, &request->copy_in);
    if (rc != HVD_OK)
        return rc;
    if (!request->out)
        return place_owned(session, request, op);
    rc = place(session, request, request->out->data, request->out_bytes, &op->out, &ordinary);
    if (ordinary)
        op->copy_to = request->out->data;
    return rc;
}

/* Allreduce and broadcast: see the top. */
static int place_together(struct hvd_session *session, struct client_request *request,
                          struct hvd_op *op)
{
    struct client_memory *memory = NULL;
    bool ordinary = false;
    bool reads = request->kind != HVI_KIND_BROADCAST || request->root == session->identity.rank;
    int rc = place(session, request, request->out->data, request->out_bytes, &op->out, &ordinary);
    if (rc != HVD_OK)
        return rc;
    if (ordinary)
        op->copy_to = request->out->data;
    if (reads && request->in_bytes > 0)
        memory = client_memory_find(&session->memory, request->in->data, request->in_bytes);
    if (memory && !memory->is_twin &&
        client_memory_use(memory, request->in->data, request->element, &op->in))
        return HVD_OK;
    request->copy_in = reads;
    if (reads && !ordinary)
        return client_place_scratch(session, request->in_bytes, request->what, &op->in);
    op->in.region = op->out.region;
    op->in.offset = op->out.offset;
    op->in.shared = op->out.shared;
    return HVD_OK;
}

/* Equal parts, or what the caller said; behind them zeros for the engine to write to. */
static int place_splits(struct hvd_session *session, const struct client_request *request,
                        struct hvd_op *op)
{
    int64_t size = request->members;
    size_t bytes = (size_t)size * sizeof(int64_t);
    int rc = client_place_scratch(session, 2 * bytes, request->what, &op->aux);
    if (rc != HVD_OK)
        return rc;
    int64_t *splits = op->aux.shared;
    for (int64_t i = 0; i < size; i++) {
        splits[i] = request->splits ? request->splits[i] : request->in->dims[0] / size;
        splits[size + i] = 0;
    }
    op->members = (int)size;
    return HVD_OK;
}

static int place_ranks(struct hvd_session *session, const struct client_request *request,
                       struct hvd_op *op)
{
    const struct client_set *set = request->new_set;
    int rc = client_place_scratch(session, (uint64_t)set->size * sizeof(int64_t), request->what,
                                  &op->aux);
    if (rc != HVD_OK)
        return rc;
    int64_t *ranks = op->aux.shared;
    for (int i = 0; i < set->size; i++)
        ranks[i] = set->ranks[i];
    return HVD_OK;
}

int client_place(struct hvd_session *session, struct client_request *request)
{
    struct hvd_op *op = request->op;
    int rc = HVD_OK;
    request->copy_in = false;
    op->in.region = HVI_REGION_NONE;
    op->out.region = HVI_REGION_NONE;
    op->aux.region = HVI_REGION_NONE;
    switch (request->kind) {
    case HVI_KIND_ALLREDUCE:
    case HVI_KIND_BROADCAST:
        return place_together(session, request, op);
    case HVI_KIND_ALLTOALL:
        rc = place_splits(session, request, op);
        return rc == HVD_OK ? place_apart(session, request, op) : rc;
    case HVI_KIND_ALLGATHER:
    case HVI_KIND_REDUCESCATTER:
        return place_apart(session, request, op);
    case HVI_KIND_SET_ADD:
        return place_ranks(session, request, op);
    default:
        return HVD_OK;
    }
}
