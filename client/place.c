/* SPDX-License-Identifier: Apache-2.0
 * Where operands go. In hvd_alloc or adopted memory they are used where they are; registered memory
 * has its twin. What is left is ordinary memory: a small tensor gets inline cells; a large one is
 * named to the engine by its address (HVI_REGION_FOREIGN), which reads and writes it there, where
 * that is allowed and faster (foreign.c); else it gets a staging block, and so does a tensor that
 * is not aligned to its element.
 *
 * The output decides for an allreduce or broadcast: an input that would have to be copied goes to
 * the output's place and the op runs there in place, so one shared block serves both sides. Not if
 * that place is the caller's own memory, which an op that fails must not change: then, and in the
 * ops whose result has another shape, the input gets a place of its own. */
#include "client/place.h"

#include "client/session/session.h"
#include "client/submit.h"

#include <string.h>

int client_place_scratch(struct hvd_session *session, uint64_t bytes, const char *what,
                         struct client_operand *operand_p)
{
    struct client_operand operand = {.region = HVI_REGION_INLINE};
    operand.shared = session->link.channel.inline_base;
    if (bytes > 0 && bytes <= CLIENT_INLINE_MAX &&
        client_inline_take(&session->inline_area, bytes, &operand.inline_cell,
                           &operand.inline_cells)) {
        operand.offset = (uint64_t)operand.inline_cell * HVI_INLINE_CELL;
        operand.shared = session->link.channel.inline_base + operand.offset;
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

/* Said once: every large op of ordinary memory pays for it. */
static void say_staged(struct hvd_session *session)
{
    if (session->said_staged)
        return;
    session->said_staged = true;
    client_link_log(&session->link, HVD_LOG_INFO,
                    "ordinary memory is copied to and from shared memory, because the engine "
                    "may not access this process's memory; 'hvdctl doctor' says more; memory "
                    "from hvd_alloc or hvd_adopt needs no copies");
}

/* Names ordinary memory to the engine by its address. False when it needs a copy. */
static bool use_foreign(struct hvd_session *session, const struct client_request *request,
                        const void *data, uint64_t bytes, struct client_operand *operand_p)
{
    if (bytes < CLIENT_FOREIGN_MIN || (uintptr_t)data % request->element != 0 ||
        session->foreign_policy == CLIENT_FOREIGN_NEVER)
        return false;
    bool huge = client_habits_note(&session->habits, &session->link.mutex, data, bytes, false);
    if (!client_foreign_wins(session->foreign_policy, bytes, huge, &session->link.mutex))
        return false;
    if (!(session->link.channel.features & HVI_FEATURE_FOREIGN)) {
        say_staged(session);
        return false;
    }
    *operand_p =
        (struct client_operand){.region = HVI_REGION_FOREIGN, .offset = (uint64_t)(uintptr_t)data};
    return true;
}

/* Uses [data, data + bytes) where it is, if that is possible without a copy. */
static bool use_direct(struct hvd_session *session, const struct client_request *request,
                       const void *data, uint64_t bytes, struct client_operand *operand_p)
{
    struct client_memory *memory =
        bytes > 0 ? client_memory_find(&session->memory, data, bytes) : NULL;
    if (memory && memory->lasting) { /* its pages came as they were touched */
        client_habits_note(&session->habits, &session->link.mutex, data, bytes, true);
        memory = client_memory_find(&session->memory, data, bytes);
    }
    if (memory && !memory->is_twin && client_memory_use(memory, data, request->element, operand_p))
        return true;
    return !(memory && memory->is_twin) && use_foreign(session, request, data, bytes, operand_p);
}

/* The place of a tensor; *copied_p says that it is a copy of it. */
static int place(struct hvd_session *session, const struct client_request *request, void *data,
                 uint64_t bytes, struct client_operand *operand_p, bool *copied_p)
{
    *copied_p = false;
    if (use_direct(session, request, data, bytes, operand_p))
        return HVD_OK;
    *copied_p = true;
    struct client_memory *memory =
        bytes > 0 ? client_memory_find(&session->memory, data, bytes) : NULL;
    if (memory && memory->is_twin && client_memory_use(memory, data, request->element, operand_p))
        return HVD_OK;
    return client_place_scratch(session, bytes, request->what, operand_p);
}

static int place_input(struct hvd_session *session, struct client_request *request,
                       struct hvd_op *op)
{
    return place(session, request, request->in->data, request->in_bytes, &op->in,
                 &request->copy_in);
}

static int place_output(struct hvd_session *session, const struct client_request *request,
                        struct hvd_op *op)
{
    bool copied = false;
    int rc = place(session, request, request->out->data, request->out_bytes, &op->out, &copied);
    if (copied)
        op->copy_to = request->out->data;
    return rc;
}

/* Ops whose result has another shape than the input. Without an output there will be memory of ours
 * for it, once the engine has told its size. */
static int place_apart(struct hvd_session *session, struct client_request *request,
                       struct hvd_op *op)
{
    int rc = place_input(session, request, op);
    if (rc != HVD_OK)
        return rc;
    if (request->out)
        return place_output(session, request, op);
    op->owns_output = true;
    op->wants_output = true;
    return HVD_OK;
}

/* Allreduce and broadcast: see the top. */
static int place_together(struct hvd_session *session, struct client_request *request,
                          struct hvd_op *op)
{
    bool copied = false;
    bool reads =
        request->kind != HVI_KIND_BROADCAST || request->root == session->link.identity.rank;
    bool in_place = request->in->data == request->out->data;
    int rc = place(session, request, request->out->data, request->out_bytes, &op->out, &copied);
    if (rc != HVD_OK)
        return rc;
    if (copied)
        op->copy_to = request->out->data;
    if (reads && !(in_place && copied) &&
        use_direct(session, request, request->in->data, request->in_bytes, &op->in))
        return HVD_OK;
    request->copy_in = reads;
    if (reads && !copied)
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
    case HVI_KIND_SEND:
        return place_input(session, request, op);
    case HVI_KIND_RECV:
        return place_output(session, request, op);
    case HVI_KIND_SET_ADD:
    case HVI_KIND_SET_OPEN:
        return place_ranks(session, request, op);
    default:
        return HVD_OK;
    }
}
