/* SPDX-License-Identifier: Apache-2.0
 * The output decides for an allreduce or broadcast: an input that would have to be copied goes to
 * the output's place and the op runs there in place, so one shared block serves both sides. Not if
 * that place is the caller's own memory, which an op that fails must not change: then, and in the
 * ops whose result has another shape, the input gets a place of its own. */
#include "client/submit/operands.h"

#include "client/memory/memory.h"
#include "client/ops/op.h"
#include "client/ops/request.h"
#include "client/ops/sets.h"
#include "shm/abi.h"

bool client_operands_classify(struct client_memory *memory, const struct client_request *request)
{
    struct hvd_op *op = request->op;
    bool sure = request->stream == NULL;
    if (request->in)
        sure &= client_operand_classify(memory, request->in->data, request->in_bytes, &op->in);
    if (request->out)
        sure &= client_operand_classify(memory, request->out->data, request->out_bytes, &op->out);
    return sure;
}

static int locate_input(struct client_memory *memory, struct client_request *request,
                        struct hvd_op *op)
{
    int rc = client_operand_locate(memory, request->what, request->element, &op->in);
    request->copy_in = op->in.copied;
    return rc;
}

static int locate_output(struct client_memory *memory, const struct client_request *request,
                         struct hvd_op *op)
{
    int rc = client_operand_locate(memory, request->what, request->element, &op->out);
    op->copy_to = (op->out.copied & (op->out.bytes > 0)) ? op->out.data : NULL;
    if (op->out.kind != CLIENT_MEMORY_STAGED)
        return rc;
    op->stage_to = op->copy_to;
    op->copy_to = NULL;
    return rc;
}

/* Ops whose result has another shape than the input. Without an output there will be memory of ours
 * for it, once the engine has told its size. */
static int locate_apart(struct client_memory *memory, struct client_request *request,
                        struct hvd_op *op)
{
    op->owns_output = !request->out;
    int rc = locate_input(memory, request, op);
    return rc == HVD_OK && request->out ? locate_output(memory, request, op) : rc;
}

/* Allreduce and broadcast: see the top. */
static int locate_together(struct client_memory *memory, struct client_request *request,
                           struct hvd_op *op, int rank)
{
    bool reads = request->kind != HVI_KIND_BROADCAST || request->root == rank;
    int rc = locate_output(memory, request, op);
    if (rc != HVD_OK)
        return rc;
    if (reads && !(op->out.copied && op->in.data == op->out.data) &&
        client_operand_direct(memory, request->element, &op->in))
        return HVD_OK;
    client_memory_put(memory, &op->in);
    request->copy_in = reads;
    if (reads && !op->out.copied)
        return client_operand_scratch(memory, request->what, request->in_bytes, &op->in);
    op->in.region = op->out.region;
    op->in.offset = op->out.offset;
    op->in.shared = op->out.shared;
    return HVD_OK;
}

/* Equal parts, or what the caller said; behind them zeros for the engine to write to. */
static int locate_splits(struct client_memory *memory, const struct client_request *request,
                         struct hvd_op *op)
{
    int64_t size = request->members;
    size_t bytes = (size_t)size * sizeof(int64_t);
    int rc = client_operand_scratch(memory, request->what, 2 * bytes, &op->aux);
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

static int locate_ranks(struct client_memory *memory, const struct client_request *request,
                        struct hvd_op *op)
{
    const struct client_set *set = request->new_set;
    int rc = client_operand_scratch(memory, request->what, (uint64_t)set->size * sizeof(int64_t),
                                    &op->aux);
    if (rc != HVD_OK)
        return rc;
    int64_t *ranks = op->aux.shared;
    for (int i = 0; i < set->size; i++)
        ranks[i] = set->ranks[i];
    return HVD_OK;
}

int client_operands_locate(struct client_memory *memory, struct client_request *request, int rank)
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
        return locate_together(memory, request, op, rank);
    case HVI_KIND_ALLTOALL:
        rc = locate_splits(memory, request, op);
        return rc == HVD_OK ? locate_apart(memory, request, op) : rc;
    case HVI_KIND_ALLGATHER:
    case HVI_KIND_REDUCESCATTER:
        return locate_apart(memory, request, op);
    case HVI_KIND_SEND:
        return locate_input(memory, request, op);
    case HVI_KIND_RECV:
        return locate_output(memory, request, op);
    case HVI_KIND_SET_ADD:
    case HVI_KIND_SET_OPEN:
        return locate_ranks(memory, request, op);
    default:
        return HVD_OK;
    }
}
