/* SPDX-License-Identifier: Apache-2.0
 * Submission. A small op costs one lock, one look at the name (usually the one of the last call),
 * one slot and the bell; it allocates nothing and makes no system call unless the engine sleeps.
 *
 * A call submits one op or a group, and a group all or none: everything is checked, claimed, placed
 * and copied for each member before the first slot is written, and all slots are published by one
 * store.
 *
 * Three things make the submitter leave the lock: making a staging region, waiting for its
 * acknowledgement, and a large copy. Before that the op and the name are claimed (so nobody else
 * takes them); after it the session, the process set and the ring are looked at again. */
#include "client/submit.h"

#include "base/assert.h"
#include "base/clock.h"
#include "client/error.h"
#include "client/link/ring.h"
#include "client/ops/land.h"
#include "client/ops/request.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/slots/arrive.h"
#include "client/slots/tickets.h"
#include "client/submit/check.h"
#include "client/submit/members.h"
#include "client/submit/operands.h"
#include "client/wait.h"

#include <string.h>

#define COPY_LOCKED_MAX 32768u /* larger inputs are copied without the lock */

/* ---- the slot ---- */

/* What every slot says, also one that only speaks of an op. */
static struct hvi_submission plain_slot(const struct hvd_session *session, const struct hvd_op *op,
                                        uint16_t kind, uint32_t ahead)
{
    return (struct hvi_submission){
        .seq = session->ring.seq + ahead + 1,
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

/* Matched by its tag. */
static bool is_tagged(uint8_t kind)
{
    return kind == HVI_KIND_SEND || kind == HVI_KIND_RECV || kind == HVI_KIND_SET_OPEN;
}

/* How the slot says which tensor this is. */
static void fill_name(struct hvd_session *session, struct client_set *set, struct hvd_op *op,
                      struct hvi_submission *slot)
{
    if (is_tagged(op->kind)) {
        op->anon_seq = (uint64_t)op->tag;
        slot->flags = HVI_SUBMIT_ANON;
        slot->anon_seq = op->anon_seq;
        return;
    }
    if (!op->name) {
        op->anon_seq = ++set->anon_seq[op->kind];
        slot->flags = HVI_SUBMIT_ANON;
        slot->anon_seq = op->anon_seq;
        return;
    }
    slot->tensor_id = client_names_id(op->name);
    if (client_names_is_defined(op->name))
        return;
    slot->name_bytes = (uint32_t)client_names_bytes(op->name);
    slot->flags = HVI_SUBMIT_NAMED;
    slot->name_offset =
        client_ring_write_name(&session->ring, client_names_text(op->name), slot->name_bytes);
    client_names_set_defined(op->name);
}

static void fill_slot(struct hvd_session *session, struct client_set *set,
                      const struct client_request *request, uint32_t ahead)
{
    struct hvi_submission *slot = client_ring_slot(&session->ring, ahead);
    *slot = plain_slot(session, request->op, request->kind, ahead);
    slot->process_set = (uint32_t)request->process_set;
    slot->reduce_op = (uint8_t)request->reduce_op;
    slot->root = request->root;
    slot->prescale = request->prescale;
    slot->postscale = request->postscale;
    if (request->group_size > 0) {
        slot->group = session->last_group;
        slot->group_size = request->group_size;
        slot->group_index = request->group_index;
    }
    fill_operands(request, slot);
    fill_name(session, set, request->op, slot);
    client_ring_filled(&session->ring, ahead);
}

/* A slot about an op that the engine has. */
static int submit_about(struct hvd_session *session, const struct hvi_submission *slot,
                        const char *what)
{
    int rc = client_ring_ready(&session->ring, what);
    if (rc == HVD_OK)
        rc = client_ring_room(&session->ring, what, 1, 0);
    if (rc != HVD_OK)
        return rc;
    *client_ring_slot(&session->ring, 0) = *slot;
    client_ring_filled(&session->ring, 0);
    client_ring_publish(&session->ring, 1);
    return HVD_OK;
}

int client_submit_output(struct hvd_session *session, const struct hvd_op *op,
                         const struct client_operand *operand)
{
    struct hvi_submission slot = plain_slot(session, op, HVI_SUBMIT_OUTPUT, 0);
    slot.out_region = operand->region;
    slot.out_offset = operand->offset;
    slot.out_capacity = operand->region == HVI_REGION_NONE ? 0 : op->out_bytes;
    return submit_about(session, &slot, "hvd_wait");
}

int client_submit_cancel(struct hvd_session *session, const struct hvd_op *op, const char *what)
{
    struct hvi_submission slot = plain_slot(session, op, HVI_SUBMIT_CANCEL, 0);
    return submit_about(session, &slot, what);
}

/* ---- the whole ---- */

static int claim_name(struct hvd_session *session, struct client_request *request)
{
    if (!request->name)
        return HVD_OK;
    int rc = client_names_claim(&session->ops.names, request->process_set, request->name,
                                &request->claimed);
    if (rc == HVD_ERR_DUPLICATE_NAME) {
        client_wait_drain(session);
        client_slots_look_all(&session->slots);
        rc = client_names_claim(&session->ops.names, request->process_set, request->name,
                                &request->claimed);
    }
    switch (rc) {
    case HVD_OK:
        return rc;
    case HVD_ERR_DUPLICATE_NAME:
        return client_error(rc,
                            "%s: '%s' is already in flight on rank %d; wait for it or use another "
                            "name",
                            request->what, request->name, session->link.identity.rank);
    case HVD_ERR_INVALID:
        return client_error(rc,
                            "%s: a tensor name is 1 to %d bytes of UTF-8, and the one given (%zu "
                            "bytes) is not",
                            request->what, HVD_NAME_MAX, strlen(request->name));
    default:
        return client_error(rc, "%s: no memory for the name '%s'", request->what, request->name);
    }
}

static int claim_op(struct hvd_session *session, struct client_request *request)
{
    struct hvd_op *op = client_ops_new(&session->ops, session);
    if (!op) {
        client_wait_drain(session); /* an abandoned op may have finished */
        op = client_ops_new(&session->ops, session);
    }
    if (!op && session->ops.in_flight == 0)
        return client_error(HVD_ERR_LIMIT,
                            "%s: %d finished ops were not released; call hvd_op_free for each",
                            request->what, HVD_OPS_MAX);
    if (!op)
        return client_ring_full(request->what, "the session has no free op");
    op->kind = request->kind;
    op->process_set = request->process_set;
    request->op = op;
    return HVD_OK;
}

static void copy_in(struct hvd_session *session, struct client_request *request)
{
    if (!request->copy_in || request->in_bytes == 0)
        return;
    if (request->in_bytes <= COPY_LOCKED_MAX) {
        memcpy(request->op->in.shared, request->in->data, request->in_bytes);
        return;
    }
    pthread_mutex_unlock(&session->link.mutex);
    uint64_t start_ns = hvi_clock_ns();
    memcpy(request->op->in.shared, request->in->data, request->in_bytes);
    request->copied_ns = hvi_clock_ns() - start_ns;
    pthread_mutex_lock(&session->link.mutex);
}

/* Takes everything back. */
static void give_up(struct hvd_session *session, struct client_request *requests, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct client_request *request = &requests[i];
        if (request->op)
            client_op_release(&session->ops, request->op);
        if (request->claimed) {
            client_names_landed(request->claimed);
            client_names_put(request->claimed);
        }
    }
}

/* The session and the set take ops, and the ring has room. */
static int look_around(struct hvd_session *session, const struct client_request *requests,
                       uint32_t count, struct client_set **set_p)
{
    size_t name_bytes = 0;
    int rc = client_ring_ready(&session->ring, requests->what);
    if (rc != HVD_OK)
        return rc;
    rc = client_members_use(session, requests, set_p);
    if (rc == HVD_OK && requests->kind == HVI_KIND_SET_REMOVE)
        rc = client_members_check_removal(session, requests->what, requests->root);
    if (rc == HVD_OK && requests->kind == HVI_KIND_SET_CLOSE)
        rc = client_members_check_closing(*set_p, requests->what);
    for (uint32_t i = 0; i < count; i++) {
        const struct client_name *name = requests[i].claimed;
        if (name && !client_names_is_defined(name))
            name_bytes += client_names_bytes(name);
    }
    return rc == HVD_OK ? client_ring_room(&session->ring, requests->what, count, name_bytes) : rc;
}

/* Cannot fail any more. */
static void launch(struct hvd_session *session, struct client_set *set,
                   struct client_request *requests, uint32_t count)
{
    if (requests->group_size > 0 && ++session->last_group == 0)
        session->last_group = 1;
    for (uint32_t i = 0; i < count; i++) {
        client_request_remember(&requests[i]);
        if (session->slots.on)
            client_ticket_note(&requests[i], set);
        fill_slot(session, set, &requests[i], i);
        client_op_set_state(&session->ops, requests[i].op, CLIENT_OP_IN_FLIGHT);
        client_op_launched(&session->ops, requests[i].op);
    }
    client_ring_publish(&session->ring, count);
}

static int submit(struct hvd_session *session, struct client_request *requests, uint32_t count)
{
    struct client_set *set = NULL;
    int rc = look_around(session, requests, count, &set);
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++)
        rc = client_check(&requests[i], session->link.identity.rank, set);
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++) {
        rc = claim_name(session, &requests[i]);
        if (rc == HVD_OK)
            rc = claim_op(session, &requests[i]);
    }
    if (rc == HVD_OK && count == 1 && client_arrive(&session->slots, set, requests))
        return HVD_OK;
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++) {
        rc = client_operands_place(session, &requests[i]);
        if (rc == HVD_OK)
            copy_in(session, &requests[i]);
    }
    if (rc == HVD_OK)
        rc = look_around(session, requests, count, &set);
    if (rc == HVD_OK && count == 1 && client_arrive_large(&session->slots, set, requests))
        return HVD_OK;
    if (rc == HVD_OK)
        launch(session, set, requests, count);
    else
        give_up(session, requests, count);
    return rc;
}

int client_submit(struct hvd_session *session, struct client_request *requests, uint32_t count,
                  struct hvd_op **ops_p)
{
    int rc = client_session_check_fork(session, requests->what);
    if (rc != HVD_OK)
        return rc;
    if (!ops_p)
        return client_error(HVD_ERR_INVALID, "%s: op_p is NULL", requests->what);
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++)
        rc = client_check_options(&requests[i]);
    if (rc == HVD_OK)
        rc = client_session_enter(session, requests->what);
    if (rc != HVD_OK)
        return rc;
    rc = submit(session, requests, count);
    client_session_leave(session);
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++)
        ops_p[i] = requests[i].op;
    return rc;
}
