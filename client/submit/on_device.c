/* SPDX-License-Identifier: Apache-2.0
 * The way of an op on device memory to its submission:
 *
 *   what is each tensor (client/memory/on_device.c) -> all on one device -> a cell of the fence page
 *   -> .ready is enqueued in the stream, or stored -> the caller publishes the submission
 *
 * .ready comes before the submission, so a worker never waits for a stream that has not been told to
 * write. When the submission fails after that, the turn of the cell is lost and nothing else. When the stream
 * refuses to write, the turn is taken back.
 * All tensors of an op lie on one device, or none does: one on the host would have to be copied in an
 * order that only the stream knows. */
#include "client/submit/on_device.h"

#include "client/error.h"
#include "client/ops/request.h"
#include "client/session/session.h"

#include <inttypes.h>

/* The tensors of an op that hold data which the op uses. */
struct used {
    struct client_operand *operand[2];
    const char *which[2];
    int count;
};

static struct used used_by(const struct client_request *request, int rank)
{
    struct used used = {0};
    struct hvd_op *op = request->op;
    if (request->in && request->in_bytes > 0 && client_request_reads_input(request, rank)) {
        used.which[used.count] = "in";
        used.operand[used.count++] = &op->in;
    }
    if (request->out && request->out_bytes > 0) {
        used.which[used.count] = "out";
        used.operand[used.count++] = &op->out;
    }
    return used;
}

static bool is_on_device(const struct client_operand *operand)
{
    return operand->kind == CLIENT_MEMORY_DEVICE || operand->kind == CLIENT_MEMORY_STAGED;
}

static int check_one_place(const struct used *used, const char *label)
{
    const struct client_operand *in = used->operand[0], *out = used->operand[1];
    if (used->count < 2 || (is_on_device(in) == is_on_device(out) && in->device == out->device))
        return HVD_OK;
    if (is_on_device(in) && is_on_device(out))
        return client_error(HVD_ERR_INVALID,
                            "%s: in lies on device %d and out on device %d; they must lie on one",
                            label, in->device, out->device);
    return client_error(
        HVD_ERR_INVALID,
        "%s: %s lies in device memory and %s in memory of the host; both must lie in one", label,
        is_on_device(in) ? "in" : "out", is_on_device(in) ? "out" : "in");
}

static int check_device(const struct client_request *request, const struct used *used,
                        const char *label)
{
    for (int i = 0; i < used->count; i++)
        if ((uintptr_t)used->operand[i]->data % request->element)
            return client_error(HVD_ERR_INVALID,
                                "%s: %s (%p) is no multiple of its element's %" PRIu32 " bytes",
                                label, used->which[i], used->operand[i]->data, request->element);
    if (!request->out && request->kind != HVI_KIND_SEND)
        return client_error(
            HVD_ERR_UNSUPPORTED,
            "%s: out is NULL; of tensors in device memory the result's memory must be "
            "given",
            label);
    return HVD_OK;
}

/* Tensors without bytes lie nowhere, and may be in a stream. */
static bool is_empty(const struct hvd_session *session, const struct client_request *request,
                     const struct used *used)
{
    return used->count == 0 && (request->in || request->out) &&
           (session->link.channel.features & HVI_FEATURE_DEVICE) != 0;
}

/* Memory of the host takes part in no stream. */
static int check_host(const struct client_request *request, const char *label)
{
    if (!request->stream)
        return HVD_OK;
    return client_error(
        HVD_ERR_UNSUPPORTED,
        "%s: options->stream is given, but tensors in memory of the host take part in no "
        "stream; let the stream finish before the call and give NULL",
        label);
}

/* Without libcuda there is no device memory. */
static bool is_surely_host(struct hvd_session *session, const struct client_request *request)
{
    if (request->stream || !client_driver_is_absent())
        return false;
    struct used used = used_by(request, session->link.identity.rank);
    for (int i = 0; i < used.count; i++)
        client_hosts_note(&session->memory.hosts, used.operand[i]->data);
    return true;
}

/* One request's tensors. */
static int look(struct hvd_session *session, struct client_request *request, bool *device_p)
{
    char label[CLIENT_LABEL_MAX];
    struct used used = used_by(request, session->link.identity.rank);
    int rc = HVD_OK;
    if (is_surely_host(session, request))
        return rc;
    client_request_label(request, label, sizeof(label));
    client_operands_check(&session->memory, used.operand, used.count);
    for (int i = 0; rc == HVD_OK && i < used.count; i++)
        rc = client_operand_ask(&session->memory, label, used.which[i], !request->stream,
                                used.operand[i]);
    if (rc == HVD_OK)
        rc = check_one_place(&used, label);
    if (rc != HVD_OK)
        return rc;
    *device_p = used.count > 0 && is_on_device(used.operand[0]);
    if (!*device_p && !(request->stream && is_empty(session, request, &used)))
        return check_host(request, label);
    *device_p = true;
    return check_device(request, &used, label);
}

/* Whether the op has a fence: not when its tensors are staged. */
static bool is_fenced(const struct client_request *request, int rank, int *ordinal_p)
{
    struct used used = used_by(request, rank);
    *ordinal_p = CLIENT_DEVICE_ANY;
    if (used.count == 0)
        return request->stream != NULL;
    for (int i = 0; i < used.count; i++) {
        if (used.operand[i]->kind != CLIENT_MEMORY_DEVICE)
            continue;
        *ordinal_p = used.operand[i]->device;
        return true;
    }
    return false;
}

/* The engine knows the page since the first allocation; before that, an op without bytes makes it known. */
static int find_page(struct hvd_session *session, int ordinal, const char *label)
{
    if (!session->memory.device)
        session->memory.device = client_device_new(&session->link);
    if (!session->memory.device)
        return client_error(HVD_ERR_NO_MEMORY, "%s: out of memory", label);
    if (ordinal != CLIENT_DEVICE_ANY || session->memory.device->page_known)
        return HVD_OK;
    pthread_mutex_unlock(&session->link.mutex);
    int rc = client_device_announce(session->memory.device, label);
    pthread_mutex_lock(&session->link.mutex);
    return rc;
}

/* A cell for the op, of which the stream writes the first half. */
static int fence(struct hvd_session *session, struct client_request *request, int ordinal)
{
    char label[CLIENT_LABEL_MAX];
    struct hvd_op *op = request->op;
    client_request_label(request, label, sizeof(label));
    int rc = find_page(session, ordinal, label);
    struct client_device *device = session->memory.device;
    if (rc == HVD_OK)
        rc = client_fence_take(device, label, &op->fence);
    op->device = ordinal;
    if (rc != HVD_OK)
        return rc;
    pthread_mutex_unlock(&session->link.mutex);
    rc = client_fence_ready(device, &op->fence, ordinal, request->stream, label);
    pthread_mutex_lock(&session->link.mutex);
    if (rc != HVD_OK)
        client_fence_take_back(device, &op->fence);
    return rc;
}

int client_on_device_look(struct hvd_session *session, struct client_request *requests,
                          uint32_t count, bool *may_arrive_p)
{
    int rc = HVD_OK;
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++) {
        bool device = false;
        rc = look(session, &requests[i], &device);
        *may_arrive_p &= !device;
    }
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++) {
        int ordinal;
        if (is_fenced(&requests[i], session->link.identity.rank, &ordinal))
            rc = fence(session, &requests[i], ordinal);
    }
    return rc;
}

int client_on_device_copy_in(struct hvd_session *session, struct client_request *request)
{
    char label[CLIENT_LABEL_MAX];
    const struct client_operand *in = &request->op->in;
    client_request_label(request, label, sizeof(label));
    if (in->block)
        client_staging_pin(&session->memory.staging, in->block, in->device);
    pthread_mutex_unlock(&session->link.mutex);
    int rc = client_device_copy_in(in->device, label, in->shared, in->data, request->in_bytes);
    pthread_mutex_lock(&session->link.mutex);
    return rc;
}
