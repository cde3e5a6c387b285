/* SPDX-License-Identifier: Apache-2.0
 * The blocking forms: submit, wait without limit, release. A full ring is waited out by short naps:
 * the engine takes slots all the time and rings no bell for it. Not where the table of ops is full of finished ones:
 * no engine releases these. */
#include "client/api/blocking.h"

#include "base/clock.h"
#include "base/copy.h"
#include "base/types.h"
#include "client/error.h"
#include "client/ops/request.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/submit/submit.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#define FULL_NAP_NS 50000
#define HELD_MAX    (HVD_OPS_MAX / 2) /* finished ops that are not released */
#define HELD_NS     HVI_NS_SEC

/* A table of ops that is full. */
struct full {
    uint64_t since_ns;  /* when it last moved */
    uint32_t in_flight; /* then */
};

/* Finished ops have more than half of the table, no op has been free, and none has ended, for HELD_NS. */
static bool is_stuck(struct hvd_session *session, const char *what, struct full *full)
{
    const struct client_ops *ops = &session->ops;
    if (client_session_enter(session, what) != HVD_OK)
        return false;
    bool stands = !ops->free_first && ops->fresh == HVD_OPS_MAX &&
                  ops->in_flight < HVD_OPS_MAX - HELD_MAX && ops->in_flight == full->in_flight;
    full->in_flight = ops->in_flight;
    client_session_leave(session);
    uint64_t now_ns = hvi_clock_ns();
    if (!stands)
        full->since_ns = now_ns;
    return now_ns - full->since_ns >= HELD_NS;
}

int client_api_submit(struct hvd_session *session, struct client_request *request,
                      struct hvd_op **op_p)
{
    const struct timespec nap = {.tv_nsec = FULL_NAP_NS};
    struct full full = {.since_ns = 0};
    int rc;
    while ((rc = client_submit(session, request, 1, op_p)) == HVD_ERR_RING_FULL) {
        hvd_session_status(session); /* reads completions and the socket */
        if (is_stuck(session, request->what, &full))
            return client_error(HVD_ERR_LIMIT,
                                "%s: %d finished ops and more were not released, and none of the "
                                "others has ended for a second; call hvd_op_free for each",
                                request->what, HELD_MAX);
        nanosleep(&nap, NULL);
    }
    return rc;
}

int client_api_wait(struct hvd_op *op)
{
    int rc = hvd_wait(op, -1);
    hvd_op_free(op);
    return rc;
}

static int run(struct hvd_session *session, struct client_request *request)
{
    struct hvd_op *op;
    int rc = client_api_submit(session, request, &op);
    return rc == HVD_OK ? client_api_wait(op) : rc;
}

int hvd_allreduce(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                  const struct hvd_tensor *out, enum hvd_reduce_op reduce_op)
{
    struct client_request request =
        client_request_of("hvd_allreduce", HVI_KIND_ALLREDUCE, name, in, out, NULL);
    request.reduce_op = (int)reduce_op;
    return run(session, &request);
}

int hvd_broadcast(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                  const struct hvd_tensor *out, int root)
{
    struct client_request request =
        client_request_of("hvd_broadcast", HVI_KIND_BROADCAST, name, in, out, NULL);
    request.root = root;
    return run(session, &request);
}

int hvd_barrier(struct hvd_session *session, const char *name)
{
    struct client_request request = {
        .what = "hvd_barrier", .kind = HVI_KIND_BARRIER, .name = name, .root = -1};
    return run(session, &request);
}

/* The result in memory of malloc(3). */
static int copy_result(const struct hvd_op *op, struct hvd_tensor *result_p)
{
    struct hvd_tensor result;
    int rc = hvd_op_result(op, &result);
    if (rc != HVD_OK)
        return rc;
    size_t bytes = hvd_dtype_size(result.dtype);
    for (int i = 0; i < result.ndim; i++)
        bytes *= (size_t)result.dims[i];
    void *data = malloc(bytes ? bytes : 1);
    if (!data)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_allgather: no memory for %zu bytes of result",
                            bytes);
    if (bytes > 0)
        hvi_copy(data, result.data, bytes);
    result.data = data;
    *result_p = result;
    return HVD_OK;
}

int hvd_allgather(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                  struct hvd_tensor *result_p)
{
    struct client_request request =
        client_request_of("hvd_allgather", HVI_KIND_ALLGATHER, name, in, NULL, NULL);
    struct hvd_op *op;
    int rc = client_session_check_fork(session, "hvd_allgather");
    if (rc != HVD_OK)
        return rc;
    if (!result_p)
        return client_error(HVD_ERR_INVALID, "hvd_allgather: result_p is NULL");
    rc = client_api_submit(session, &request, &op);
    if (rc != HVD_OK)
        return rc;
    rc = hvd_wait(op, -1);
    if (rc == HVD_OK)
        rc = copy_result(op, result_p);
    hvd_op_free(op);
    return rc;
}

int hvd_join(struct hvd_session *session, int *last_rank_p)
{
    struct client_request request = {.what = "hvd_join", .kind = HVI_KIND_JOIN, .root = -1};
    struct hvd_op *op;
    int rc = client_api_submit(session, &request, &op);
    if (rc != HVD_OK)
        return rc;
    rc = hvd_wait(op, -1);
    if (rc == HVD_OK && last_rank_p)
        *last_rank_p = hvd_op_joined_rank(op);
    hvd_op_free(op);
    return rc;
}
