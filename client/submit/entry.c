/* SPDX-License-Identifier: Apache-2.0 */
#include "client/submit/entry.h"

#include "base/clock.h"
#include "client/link/ring.h"
#include "client/ops/kind.h"
#include "client/ops/names.h"
#include "client/ops/op.h"
#include "client/ops/request.h"
#include "client/ops/sets.h"

/* What every slot says, also one that only speaks of an op. */
static struct hvi_submission plain_slot(const struct client_ring *ring, const struct hvd_op *op,
                                        uint16_t kind, uint32_t ahead)
{
    return (struct hvi_submission){
        .seq = ring->seq + ahead + 1,
        .cookie = client_op_cookie(op),
        .kind = kind,
        .root = -1,
        .in_region = HVI_REGION_NONE,
        .out_region = HVI_REGION_NONE,
        .aux_region = HVI_REGION_NONE,
        .prescale = 1.0,
        .postscale = 1.0,
        .submit_ns = hvi_clock_ns(),
    };
}

static void fill_operands(const struct client_request *request, struct hvi_submission *slot)
{
    const struct hvd_op *op = request->op;
    const struct hvd_tensor *tensor = request->in ? request->in : request->out;
    slot->in_region = op->in.region;
    slot->in_offset = op->in.offset;
    slot->out_region = op->out.region;
    slot->out_offset = op->out.offset;
    slot->out_capacity = op->out.region == HVI_REGION_NONE ? 0 : request->out_bytes;
    slot->copied_ns = request->copied_ns;
    slot->aux_region = op->aux.region;
    slot->aux_offset = op->aux.offset;
    if (request->kind == HVI_KIND_ALLTOALL)
        slot->aux_count = (uint32_t)request->members;
    if (client_kind_makes_set(request->kind))
        slot->aux_count = (uint32_t)request->new_set->size;
    if (!tensor)
        return;
    slot->count = request->count;
    slot->dtype = (uint8_t)tensor->dtype;
    slot->ndim = (uint8_t)tensor->ndim;
    for (int i = 0; i < tensor->ndim; i++)
        slot->dims[i] = tensor->dims[i];
}

/* No branch: the op has no fence, mostly, and then all of it is 0. */
static void fill_fence(const struct client_ring *ring, struct hvd_op *op,
                       struct hvi_submission *slot)
{
    op->seq = slot->seq;
    slot->fence_turn = op->fence.turn;
    slot->fence_cell = op->fence.cell;
    slot->after = op->fence.turn ? ring->waited_seq : 0;
}

/* Matched by its tag. */
static bool is_tagged(uint8_t kind)
{
    return kind == HVI_KIND_SEND || kind == HVI_KIND_RECV || kind == HVI_KIND_SET_OPEN;
}

/* How the slot says which tensor this is. */
static void fill_name(struct client_ring *ring, struct client_set *set, struct hvd_op *op,
                      struct hvi_submission *slot)
{
    bool tagged = is_tagged(op->kind);
    if (tagged || !op->name) {
        op->anon_seq = tagged ? (uint64_t)op->tag : ++set->anon_seq[op->kind];
        slot->flags = HVI_SUBMIT_ANON;
        slot->anon_seq = op->anon_seq;
        return;
    }
    slot->tensor_id = op->name->id;
    if (op->name->defined)
        return;
    slot->name_bytes = (uint32_t)op->name->bytes;
    slot->flags = HVI_SUBMIT_NAMED;
    slot->name_offset = client_ring_write_name(ring, op->name->text, slot->name_bytes);
    op->name->defined = true;
}

void client_entry_fill(struct client_ring *ring, struct client_set *set,
                       const struct client_request *request, uint32_t group, uint32_t ahead)
{
    struct hvi_submission *slot = client_ring_slot(ring, ahead);
    *slot = plain_slot(ring, request->op, request->kind, ahead);
    slot->process_set = (uint32_t)request->process_set;
    slot->reduce_op = (uint8_t)request->reduce_op;
    slot->root = request->root;
    slot->prescale = request->prescale;
    slot->postscale = request->postscale;
    if (request->group_size > 0) {
        slot->group = group;
        slot->group_size = request->group_size;
        slot->group_index = request->group_index;
    }
    fill_operands(request, slot);
    fill_fence(ring, request->op, slot);
    fill_name(ring, set, request->op, slot);
    client_ring_filled(ring, ahead);
}

/* A slot about an op that the engine has. */
static int submit_about(struct client_ring *ring, const struct hvi_submission *slot,
                        const char *what)
{
    int rc = client_ring_ready(ring, what);
    if (rc == HVD_OK)
        rc = client_ring_room(ring, what, 1, 0);
    if (rc != HVD_OK)
        return rc;
    *client_ring_slot(ring, 0) = *slot;
    client_ring_filled(ring, 0);
    client_ring_publish(ring, 1);
    return HVD_OK;
}

int client_entry_output(struct client_ring *ring, const struct hvd_op *op,
                        const struct client_operand *operand)
{
    struct hvi_submission slot = plain_slot(ring, op, HVI_SUBMIT_OUTPUT, 0);
    slot.out_region = operand->region;
    slot.out_offset = operand->offset;
    slot.out_capacity = operand->region == HVI_REGION_NONE ? 0 : op->out_bytes;
    return submit_about(ring, &slot, "hvd_wait");
}

int client_entry_cancel(struct client_ring *ring, const struct hvd_op *op, const char *what)
{
    struct hvi_submission slot = plain_slot(ring, op, HVI_SUBMIT_CANCEL, 0);
    return submit_about(ring, &slot, what);
}
