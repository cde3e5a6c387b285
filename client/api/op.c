/* SPDX-License-Identifier: Apache-2.0
 * What an op says of itself, hvd_cancel, hvd_op_stream_wait and hvd_op_free. */
#include "base/types.h"
#include "client/error.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/submit/entry.h"
#include "client/wait/wait.h"

#include <string.h>

int hvd_op_result(const struct hvd_op *op, struct hvd_tensor *result_p)
{
    int rc = client_op_enter(op, "hvd_op_result");
    if (rc != HVD_OK)
        return rc;
    if (op->state != CLIENT_OP_FINISHED)
        rc = HVD_INPROGRESS;
    else if (op->status != HVD_OK)
        rc = client_error_copy(op->status, op->error);
    else if (!result_p)
        rc = client_error(HVD_ERR_INVALID, "hvd_op_result: result_p is NULL");
    else
        *result_p = op->result;
    client_session_leave(op->session);
    return rc;
}

const char *hvd_op_name(const struct hvd_op *op)
{
    if (client_op_enter(op, "hvd_op_name") != HVD_OK)
        return "";
    struct hvd_op *mutable = &op->session->ops.slots[op->index];
    const char *text = mutable->anon_text;
    if (op->name)
        text = op->name->text;
    else if (!mutable->anon_text[0])
        client_op_describe(op, mutable->anon_text, sizeof(mutable->anon_text));
    client_session_leave(op->session);
    return text;
}

const char *hvd_op_error(const struct hvd_op *op)
{
    const char *text = "";
    if (client_op_enter(op, "hvd_op_error") != HVD_OK)
        return text;
    if (op->state == CLIENT_OP_FINISHED)
        text = op->error;
    client_session_leave(op->session);
    return text;
}

int hvd_op_culprit(const struct hvd_op *op)
{
    int culprit = -1;
    if (client_op_enter(op, "hvd_op_culprit") != HVD_OK)
        return culprit;
    if (op->state == CLIENT_OP_FINISHED && op->status != HVD_OK)
        culprit = op->culprit;
    client_session_leave(op->session);
    return culprit;
}

/* The number that the engine answered to a good op of one of these kinds; -1 otherwise. */
static int answer(const struct hvd_op *op, const char *what, unsigned kinds)
{
    int number = -1;
    if (client_op_enter(op, what) != HVD_OK)
        return number;
    if (op->state == CLIENT_OP_FINISHED && op->status == HVD_OK && (kinds >> op->kind & 1u))
        number = (int)op->number;
    client_session_leave(op->session);
    return number;
}

int hvd_op_joined_rank(const struct hvd_op *op)
{
    return answer(op, "hvd_op_joined_rank", 1u << HVI_KIND_JOIN);
}

int hvd_op_process_set(const struct hvd_op *op)
{
    return answer(op, "hvd_op_process_set", 1u << HVI_KIND_SET_ADD | 1u << HVI_KIND_SET_OPEN);
}

int hvd_op_source(const struct hvd_op *op)
{
    return answer(op, "hvd_op_source", 1u << HVI_KIND_RECV);
}

static int received_splits(const struct hvd_op *op, int64_t *splits_p, int count)
{
    char text[HVI_TEXT_MAX / 2];
    client_op_describe(op, text, sizeof(text));
    if (op->kind != HVI_KIND_ALLTOALL)
        return client_error(HVD_ERR_INVALID, "hvd_op_received_splits: %s is no alltoall", text);
    if (!splits_p || count != op->members)
        return client_error(HVD_ERR_INVALID,
                            "hvd_op_received_splits: room for %d numbers was given, and %s has %d "
                            "members",
                            splits_p ? count : 0, text, op->members);
    if (op->state != CLIENT_OP_FINISHED)
        return HVD_INPROGRESS;
    if (op->status != HVD_OK)
        return client_error_copy(op->status, op->error);
    memcpy(splits_p, (const int64_t *)op->aux.shared + op->members,
           (size_t)op->members * sizeof(*splits_p));
    return HVD_OK;
}

int hvd_op_received_splits(const struct hvd_op *op, int64_t *splits_p, int count)
{
    int rc = client_op_enter(op, "hvd_op_received_splits");
    if (rc != HVD_OK)
        return rc;
    rc = received_splits(op, splits_p, count);
    client_session_leave(op->session);
    return rc;
}

int hvd_cancel(struct hvd_op *op)
{
    int rc = client_op_enter(op, "hvd_cancel");
    if (rc != HVD_OK)
        return rc;
    struct hvd_session *session = op->session;
    client_complete_drain(&session->complete);
    if (op->slot.active) /* still waiting in its slot: the engine looks there */
        client_slots_look(&session->slots, op);
    if (op->state == CLIENT_OP_IN_FLIGHT || op->state == CLIENT_OP_SIZED)
        rc = client_entry_cancel(&session->ring, op, "hvd_cancel");
    client_session_leave(session);
    return rc;
}

static int refuse_host(const struct hvd_op *op)
{
    char text[HVI_TEXT_MAX / 2];
    client_op_describe(op, text, sizeof(text));
    return client_error(
        HVD_ERR_UNSUPPORTED,
        "hvd_op_stream_wait: %s is an op of memory of the host, which takes part in "
        "no stream; call hvd_wait before the stream uses its result",
        text);
}

/* Without the lock for the driver's call; the op stays the caller's. */
static int wait_in_stream(struct hvd_session *session, const struct hvd_op *op, void *stream)
{
    struct client_fence fence = op->fence;
    struct client_device *device = session->memory.device;
    int ordinal = op->device;
    /* What is submitted from now on may be behind the wait. */
    if (op->seq > session->ring.waited_seq)
        session->ring.waited_seq = op->seq;
    pthread_mutex_unlock(&session->link.mutex);
    int rc = client_fence_wait(device, &fence, ordinal, stream, "hvd_op_stream_wait");
    pthread_mutex_lock(&session->link.mutex);
    return rc;
}

int hvd_op_stream_wait(struct hvd_op *op, void *stream)
{
    int rc = client_op_enter(op, "hvd_op_stream_wait");
    if (rc != HVD_OK)
        return rc;
    struct hvd_session *session = op->session;
    client_wait_progress(session,
                         false); /* a dead engine is noticed, and its streams are released */
    if (op->fence.turn == 0)
        rc = refuse_host(op);
    else if (!stream)
        rc = client_error(
            HVD_ERR_INVALID,
            "hvd_op_stream_wait: stream is NULL, which names none; the default streams are "
            "CU_STREAM_LEGACY ((void *)1) and CU_STREAM_PER_THREAD ((void *)2)");
    else if (op->fence.cell != 0)
        rc = wait_in_stream(session, op, stream);
    client_session_leave(session);
    return rc;
}

void hvd_op_free(struct hvd_op *op)
{
    if (!op || client_op_enter(op, "hvd_op_free") != HVD_OK)
        return;
    struct hvd_session *session = op->session;
    if (op->state == CLIENT_OP_DONE || op->state == CLIENT_OP_FINISHED) {
        client_op_release(&session->ops, op);
        client_wait_sync_event(session);
    } else {
        op->abandoned = true;
        client_slots_abandoned(&session->slots, op);
    }
    client_session_leave(session);
}
