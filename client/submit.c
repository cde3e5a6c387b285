/* SPDX-License-Identifier: Apache-2.0
 * Submission. A small op costs one lock, one look at the name (usually the one of the last call),
 * one slot and the bell; it allocates nothing and makes no system call unless the engine sleeps.
 *
 * Where operands go. The output decides: in hvd_alloc memory it is used where it is; in registered
 * memory its twin is used; ordinary memory gets inline cells or a staging block. An allreduce's or
 * broadcast's input is used where it is if it lies in hvd_alloc memory; otherwise it is copied to
 * the output's place and the op runs there in place, so one shared block serves both sides. Not if
 * that place is the caller's own memory, which an op that fails must not change: then, and in an
 * allgather, the input gets a place of its own.
 *
 * Three things make the submitter leave the lock: making a staging region, waiting for its
 * acknowledgement, and a large copy. Before that the op and the name are claimed (so nobody else
 * takes them); after it the session and the ring are looked at again. */
#include "client/submit.h"

#include "base/assert.h"
#include "base/clock.h"
#include "client/control.h"
#include "client/error.h"
#include "client/session.h"
#include "client/wait.h"

#include <inttypes.h>
#include <string.h>

#define COPY_LOCKED_MAX 32768u /* larger inputs are copied without the lock */

/* ---- the ring ---- */

static int ring_full(const char *what, const char *why)
{
    return client_error(HVD_ERR_RING_FULL, "%s: %s; wait for an op and submit again", what, why);
}

/* Where the name area is still in use: after the names of the last slot the engine took. */
static uint32_t names_head(const struct hvd_session *session, uint32_t free_slots)
{
    uint32_t taken = (uint32_t)session->submit_seq - (HVI_SQ_SLOTS - free_slots);
    return taken ? session->slot_names_end[(taken - 1) % HVI_SQ_SLOTS] : 0;
}

/* Room for one slot and `name_bytes` of name. */
static int ring_room(struct hvd_session *session, const char *what, size_t name_bytes)
{
    uint32_t free_slots = 0;
    if (hvi_ring_space(&session->channel.sq, &free_slots) != HVD_OK) {
        client_session_end(session, HVD_ERR_PROTOCOL,
                           "the engine of job '%s' (pid %d) moved its ring index impossibly; close "
                           "this session and open a new one",
                           session->identity.job, session->engine_pid);
        return client_session_usable(session, what);
    }
    if (free_slots == 0)
        return ring_full(what, "the submission ring is full");
    if (name_bytes == 0)
        return HVD_OK;
    uint32_t used = session->names_tail - names_head(session, free_slots);
    if (name_bytes > HVI_NAMES_BYTES - used)
        return ring_full(what, "the area for new tensor names is full");
    return HVD_OK;
}

/* The session takes ops. The engine's state word is looked at so that a submitter who never waits
 * learns the end. */
static int ready(struct hvd_session *session, const char *what)
{
    if (atomic_load_explicit(&session->channel.header->session_state, memory_order_relaxed) ==
        HVI_SESSION_ENDED)
        client_control_look(session);
    return client_session_usable(session, what);
}

static struct hvi_submission *next_slot(struct hvd_session *session)
{
    return hvi_ring_slot(&session->channel.sq, 0);
}

static void publish(struct hvd_session *session)
{
    uint32_t slot = (uint32_t)session->submit_seq % HVI_SQ_SLOTS;
    session->slot_names_end[slot] = session->names_tail;
    session->submit_seq++;
    hvi_ring_publish(&session->channel.sq, 1);
    hvi_bell_ring_engine(session->bell, session->channel.channel_index, session->engine_event_fd);
}

/* ---- operands ---- */

int client_submit_scratch(struct hvd_session *session, uint64_t bytes, const char *what,
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
    return client_submit_scratch(session, bytes, request->what, operand_p);
}

static int place_allgather(struct hvd_session *session, const struct client_request *request,
                           struct hvd_op *op, bool *copy_in_p)
{
    bool ordinary = false;
    int rc = place(session, request, request->in->data, request->in_bytes, &op->in, copy_in_p);
    if (rc != HVD_OK)
        return rc;
    if (!request->out) {
        op->out.region = HVI_REGION_NONE;
        op->wants_output = true;
        return HVD_OK;
    }
    rc = place(session, request, request->out->data, request->out_bytes, &op->out, &ordinary);
    if (ordinary)
        op->copy_to = request->out->data;
    return rc;
}

/* Allreduce and broadcast: see the top. */
static int place_in_place(struct hvd_session *session, const struct client_request *request,
                          struct hvd_op *op, bool *copy_in_p)
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
    *copy_in_p = reads;
    if (reads && !ordinary)
        return client_submit_scratch(session, request->in_bytes, request->what, &op->in);
    op->in.region = op->out.region;
    op->in.offset = op->out.offset;
    op->in.shared = op->out.shared;
    return HVD_OK;
}

static int place_operands(struct hvd_session *session, const struct client_request *request,
                          struct hvd_op *op, bool *copy_in_p)
{
    *copy_in_p = false;
    if (request->kind == HVI_KIND_ALLGATHER)
        return place_allgather(session, request, op, copy_in_p);
    if (request->kind != HVI_KIND_BARRIER)
        return place_in_place(session, request, op, copy_in_p);
    op->in.region = HVI_REGION_NONE;
    op->out.region = HVI_REGION_NONE;
    return HVD_OK;
}

static void copy_in(struct hvd_session *session, const struct client_request *request,
                    const struct hvd_op *op)
{
    if (request->in_bytes == 0)
        return;
    if (request->in_bytes <= COPY_LOCKED_MAX) {
        memcpy(op->in.shared, request->in->data, request->in_bytes);
        return;
    }
    pthread_mutex_unlock(&session->mutex);
    memcpy(op->in.shared, request->in->data, request->in_bytes);
    pthread_mutex_lock(&session->mutex);
}

/* ---- the slot ---- */

static void fill_slot(struct hvd_session *session, const struct client_request *request,
                      const struct hvd_op *op)
{
    struct hvi_submission *slot = next_slot(session);
    *slot = (struct hvi_submission){
        .seq = session->submit_seq + 1,
        .cookie = client_op_cookie(op),
        .kind = request->kind,
        .reduce_op = (uint8_t)request->reduce_op,
        .root = request->root,
        .in_region = op->in.region,
        .out_region = op->out.region,
        .in_offset = op->in.offset,
        .out_offset = op->out.offset,
        .count = request->count,
        .out_capacity = request->out_bytes,
        .prescale = request->prescale,
        .postscale = request->postscale,
        .submit_ns = hvi_clock_ns(),
        .aux_region = HVI_REGION_NONE,
    };
    if (!request->in)
        return;
    slot->dtype = (uint8_t)request->in->dtype;
    slot->ndim = (uint8_t)request->in->ndim;
    for (int i = 0; i < request->in->ndim; i++)
        slot->dims[i] = request->in->dims[i];
}

/* How the slot says which tensor this is. */
static void fill_name(struct hvd_session *session, struct hvd_op *op)
{
    struct hvi_submission *slot = next_slot(session);
    if (!op->name) {
        op->anon_seq = ++session->anon_seq[op->kind];
        slot->flags = HVI_SUBMIT_ANON;
        slot->anon_seq = op->anon_seq;
        return;
    }
    slot->tensor_id = client_names_id(op->name);
    if (client_names_is_defined(op->name))
        return;
    uint32_t bytes = (uint32_t)client_names_bytes(op->name);
    slot->flags = HVI_SUBMIT_NAMED;
    slot->name_offset = session->names_tail % HVI_NAMES_BYTES;
    slot->name_bytes = bytes;
    hvi_channel_write_name(&session->channel, slot->name_offset, client_names_text(op->name),
                           bytes);
    session->names_tail += bytes;
    client_names_set_defined(op->name);
}

int client_submit_output(struct hvd_session *session, const struct hvd_op *op,
                         const struct client_operand *operand)
{
    int rc = ready(session, "hvd_wait");
    if (rc == HVD_OK)
        rc = ring_room(session, "hvd_wait", 0);
    if (rc != HVD_OK)
        return rc;
    *next_slot(session) = (struct hvi_submission){
        .seq = session->submit_seq + 1,
        .cookie = client_op_cookie(op),
        .kind = HVI_SUBMIT_OUTPUT,
        .root = -1,
        .in_region = HVI_REGION_NONE,
        .out_region = operand->region,
        .out_offset = operand->offset,
        .out_capacity = operand->region == HVI_REGION_NONE ? 0 : op->out_bytes,
        .prescale = 1.0,
        .postscale = 1.0,
        .submit_ns = hvi_clock_ns(),
    };
    publish(session);
    return HVD_OK;
}

/* ---- the whole ---- */

static int claim_name(struct hvd_session *session, const struct client_request *request,
                      struct client_name **name_p)
{
    if (!request->name)
        return HVD_OK;
    int rc = client_names_claim(&session->names, request->name, name_p);
    if (rc == HVD_ERR_DUPLICATE_NAME) {
        client_wait_drain(session);
        rc = client_names_claim(&session->names, request->name, name_p);
    }
    switch (rc) {
    case HVD_OK:
        return rc;
    case HVD_ERR_DUPLICATE_NAME:
        return client_error(rc,
                            "%s: '%s' is already in flight on rank %d; wait for it or use another "
                            "name",
                            request->what, request->name, session->identity.rank);
    case HVD_ERR_INVALID:
        return client_error(rc,
                            "%s: a tensor name is 1 to %d bytes of UTF-8, and the one given (%zu "
                            "bytes) is not",
                            request->what, HVD_NAME_MAX, strlen(request->name));
    default:
        return client_error(rc, "%s: no memory for the name '%s'", request->what, request->name);
    }
}

static int claim_op(struct hvd_session *session, const struct client_request *request,
                    struct hvd_op **op_p)
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
        return ring_full(request->what, "the session has no free op");
    op->kind = request->kind;
    *op_p = op;
    return HVD_OK;
}

/* What the op remembers of the arguments for its end. */
static void remember(const struct client_request *request, struct hvd_op *op)
{
    const struct hvd_tensor *shape = request->out ? request->out : request->in;
    op->out_bytes = request->out_bytes;
    if (!shape) /* barrier */
        return;
    op->result = *shape;
    for (int i = shape->ndim; i < HVD_DIMS_MAX; i++)
        op->result.dims[i] = 0;
    if (!request->out)
        op->result.data = NULL;
    if (request->kind != HVI_KIND_ALLGATHER)
        return;
    op->row_bytes = request->element;
    for (int i = 1; i < shape->ndim; i++)
        op->row_bytes *= (uint64_t)shape->dims[i];
}

static int launch(struct hvd_session *session, const struct client_request *request,
                  struct hvd_op *op)
{
    bool wants_copy;
    int rc = place_operands(session, request, op, &wants_copy);
    if (rc != HVD_OK)
        return rc;
    if (wants_copy)
        copy_in(session, request, op);
    size_t name_bytes =
        op->name && !client_names_is_defined(op->name) ? client_names_bytes(op->name) : 0;
    rc = ready(session, request->what);
    if (rc == HVD_OK)
        rc = ring_room(session, request->what, name_bytes);
    if (rc != HVD_OK)
        return rc;
    remember(request, op);
    fill_slot(session, request, op);
    fill_name(session, op);
    client_op_set_state(&session->ops, op, CLIENT_OP_IN_FLIGHT);
    publish(session);
    return HVD_OK;
}

static int submit(struct hvd_session *session, const struct client_request *request,
                  struct hvd_op **op_p)
{
    struct client_name *name = NULL;
    struct hvd_op *op = NULL;
    int rc = ready(session, request->what);
    if (rc == HVD_OK)
        rc = ring_room(session, request->what, 0); /* before anything is copied */
    if (rc != HVD_OK)
        return rc;
    rc = claim_name(session, request, &name);
    if (rc != HVD_OK)
        return rc;
    rc = claim_op(session, request, &op);
    if (rc != HVD_OK)
        goto fail_name;
    op->name = name;
    rc = launch(session, request, op);
    if (rc != HVD_OK)
        goto fail_op;
    *op_p = op;
    return HVD_OK;

fail_op:
    op->name = NULL;
    client_op_release(session, op);
fail_name:
    if (name) {
        client_names_landed(name);
        client_names_put(name);
    }
    return rc;
}

int client_submit(struct hvd_session *session, struct client_request *request, struct hvd_op **op_p)
{
    struct hvd_op *op = NULL;
    int rc = client_session_check_fork(session, request->what);
    if (rc != HVD_OK)
        return rc;
    if (!op_p)
        return client_error(HVD_ERR_INVALID, "%s: op_p is NULL", request->what);
    rc = client_check(request, session->identity.rank, session->identity.size);
    if (rc != HVD_OK)
        return rc;
    rc = client_session_enter(session, request->what);
    if (rc != HVD_OK)
        return rc;
    rc = submit(session, request, &op);
    client_session_leave(session);
    if (rc == HVD_OK)
        *op_p = op;
    return rc;
}

void hvd_op_options_init(struct hvd_op_options *options)
{
    if (options)
        *options = (struct hvd_op_options){
            .struct_size = sizeof(*options),
            .prescale_factor = 1.0,
            .postscale_factor = 1.0,
        };
}

int hvd_allreduce_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                        const struct hvd_tensor *out, enum hvd_reduce_op reduce_op,
                        const struct hvd_op_options *options, struct hvd_op **op_p)
{
    struct client_request request = {.what = "hvd_allreduce_async",
                                     .kind = HVI_KIND_ALLREDUCE,
                                     .name = name,
                                     .in = in,
                                     .out = out,
                                     .reduce_op = (int)reduce_op,
                                     .root = -1,
                                     .options = options};
    return client_submit(session, &request, op_p);
}

int hvd_allgather_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                        const struct hvd_tensor *out, struct hvd_op **op_p)
{
    struct client_request request = {.what = "hvd_allgather_async",
                                     .kind = HVI_KIND_ALLGATHER,
                                     .name = name,
                                     .in = in,
                                     .out = out,
                                     .root = -1};
    return client_submit(session, &request, op_p);
}

int hvd_broadcast_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                        const struct hvd_tensor *out, int root, struct hvd_op **op_p)
{
    struct client_request request = {.what = "hvd_broadcast_async",
                                     .kind = HVI_KIND_BROADCAST,
                                     .name = name,
                                     .in = in,
                                     .out = out,
                                     .root = root};
    return client_submit(session, &request, op_p);
}

int hvd_barrier_async(struct hvd_session *session, const char *name, struct hvd_op **op_p)
{
    struct client_request request = {
        .what = "hvd_barrier_async", .kind = HVI_KIND_BARRIER, .name = name, .root = -1};
    return client_submit(session, &request, op_p);
}
