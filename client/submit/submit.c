/* SPDX-License-Identifier: Apache-2.0
 * Submission. A small op costs one lock, one look at the name (usually the one of the last call),
 * one slot and the bell; it allocates nothing and makes no system call unless the engine sleeps.
 *
 * What memory the tensors lie in is found out first; the way of the op follows from it. That is a look at
 * tables, unless a tensor may lie on a device: then the driver is asked (on_device.c).
 *
 * A call submits one op or a group, and a group all or none: everything is checked, claimed,
 * classified, located and copied for each member before the first slot is written, and all slots
 * are published by one store.
 *
 * Four things make the submitter leave the lock: making a staging region, waiting for its
 * acknowledgement, a large copy, and the driver of a device. Before that the op and the name are claimed (so that no other
 * thread takes them); after it the session, the process set and the ring are looked at again. */
#include "client/submit/submit.h"

#include "base/clock.h"
#include "base/copy.h"
#include "client/error.h"
#include "client/ops/request.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/slots/arrive.h"
#include "client/slots/grants.h"
#include "client/submit/check.h"
#include "client/submit/entry.h"
#include "client/submit/on_device.h"
#include "client/submit/operands.h"

#include <inttypes.h>
#include <string.h>

#define COPY_LOCKED_MAX 32768u /* larger inputs are copied without the lock */

/* Reads completions before it finds none that this rank may use: a join may be over, a set added. */
static struct client_set *find_set(struct hvd_session *session, int id)
{
    struct client_set *set = client_sets_find(&session->ops.sets, id);
    if (client_set_is_usable(set))
        return set;
    client_complete_drain(&session->complete);
    return client_sets_find(&session->ops.sets, id);
}

/* The request's set takes ops of this rank. */
static int check_set(struct hvd_session *session, const struct client_request *request,
                     struct client_set **set_p)
{
    char label[CLIENT_LABEL_MAX];
    *set_p = find_set(session, request->process_set);
    if (client_set_is_usable(*set_p))
        return HVD_OK;
    client_request_label(request, label, sizeof(label));
    return client_set_refuse(*set_p, request->process_set, session->ops.rank, label);
}

static int check_removal(struct hvd_session *session, const char *what, int id)
{
    const struct client_set *set = find_set(session, id);
    if (!set || set->removing)
        return client_set_refuse(set, id, session->ops.rank, what);
    if (!set->opened)
        return HVD_OK;
    return client_error(HVD_ERR_INVALID,
                        "%s: process set %d was opened by its members, who close it by "
                        "hvd_process_set_close_async",
                        what, id);
}

static int check_closing(const struct client_set *set, const char *what)
{
    if (set->opened)
        return HVD_OK;
    return client_error(HVD_ERR_INVALID,
                        "%s: process set %d was not opened by its members alone; all ranks of the "
                        "job remove it by hvd_process_set_remove",
                        what, set->id);
}

static int claim_name(struct hvd_session *session, struct client_request *request)
{
    if (!request->name)
        return HVD_OK;
    int rc = client_names_claim(&session->ops.names, request->process_set, request->name,
                                &request->claimed);
    if (rc == HVD_ERR_DUPLICATE_NAME) {
        client_complete_drain(&session->complete);
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

/* One op of the call's `count`. If none is free, finished ops have all but those in flight, some of which may be this
 * call's: the call may find room once the others are over. */
static int claim_op(struct hvd_session *session, struct client_request *request, uint32_t count)
{
    struct hvd_op *op = client_ops_new(&session->ops, session);
    if (!op) {
        client_complete_drain(&session->complete); /* an abandoned op may have finished */
        op = client_ops_new(&session->ops, session);
    }
    if (!op && session->ops.in_flight < count)
        return client_error(HVD_ERR_LIMIT,
                            "%s: %" PRIu32 " finished ops were not released; call hvd_op_free for "
                            "each",
                            request->what, HVD_OPS_MAX - session->ops.in_flight);
    if (!op)
        return client_ring_full(request->what, "the session has no free op");
    op->kind = request->kind;
    op->process_set = request->process_set;
    request->op = op;
    return HVD_OK;
}

static int copy_in(struct hvd_session *session, struct client_request *request)
{
    if (!request->copy_in || request->in_bytes == 0)
        return HVD_OK;
    if (request->op->in.kind == CLIENT_MEMORY_STAGED)
        return client_on_device_copy_in(session, request);
    if (request->in_bytes <= COPY_LOCKED_MAX) {
        hvi_copy(request->op->in.shared, request->in->data, request->in_bytes);
        return HVD_OK;
    }
    pthread_mutex_unlock(&session->link.mutex);
    uint64_t start_ns = hvi_clock_ns();
    hvi_copy(request->op->in.shared, request->in->data, request->in_bytes);
    request->copied_ns = hvi_clock_ns() - start_ns;
    pthread_mutex_lock(&session->link.mutex);
    return HVD_OK;
}

/* Takes everything back; the requests may be submitted again. */
static void give_up(struct hvd_session *session, struct client_request *requests, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct client_request *request = &requests[i];
        if (request->op)
            client_fence_put(session->memory.device, &request->op->fence, false);
        if (request->op)
            client_op_release(&session->ops, request->op);
        if (request->claimed) {
            client_names_landed(request->claimed);
            client_names_put(request->claimed);
        }
        request->op = NULL;
        request->claimed = NULL;
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
    rc = check_set(session, requests, set_p);
    if (rc == HVD_OK && requests->kind == HVI_KIND_SET_REMOVE)
        rc = check_removal(session, requests->what, requests->root);
    if (rc == HVD_OK && requests->kind == HVI_KIND_SET_CLOSE)
        rc = check_closing(*set_p, requests->what);
    for (uint32_t i = 0; i < count; i++) {
        const struct client_name *name = requests[i].claimed;
        if (name && !name->defined)
            name_bytes += name->bytes;
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
            client_grant_note(&requests[i], set);
        client_entry_fill(&session->ring, set, &requests[i], session->last_group, i);
        client_op_set_state(&session->ops, requests[i].op, CLIENT_OP_IN_FLIGHT);
        client_op_launched(&session->ops, requests[i].op);
    }
    client_ring_publish(&session->ring, count);
}

static int submit(struct hvd_session *session, struct client_request *requests, uint32_t count)
{
    struct client_set *set = NULL;
    bool sure = true, may_arrive = count == 1;
    int rc = look_around(session, requests, count, &set);
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++)
        rc = client_check(&requests[i], session->link.identity.rank, set);
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++) {
        rc = claim_name(session, &requests[i]);
        if (rc == HVD_OK)
            rc = claim_op(session, &requests[i], count);
        if (rc == HVD_OK)
            sure &= client_operands_classify(&session->memory, &requests[i]);
    }
    if (!sure && rc == HVD_OK) {
        rc = client_on_device_look(session, requests, count, &may_arrive);
        if (rc == HVD_OK) /* the lock may have been given up */
            rc = look_around(session, requests, count, &set);
    }
    if (rc == HVD_OK && may_arrive && client_arrive(&session->slots, set, requests))
        return HVD_OK;
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++) {
        rc = client_operands_locate(&session->memory, &requests[i], session->link.identity.rank);
        if (rc == HVD_OK)
            rc = copy_in(session, &requests[i]);
    }
    if (rc == HVD_OK)
        rc = look_around(session, requests, count, &set);
    if (rc == HVD_OK && may_arrive && client_arrive_medium(&session->slots, set, requests))
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
