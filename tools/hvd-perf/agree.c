/* SPDX-License-Identifier: Apache-2.0
 * The ops by which ranks meet and agree. Each is waited for as long as --timeout allows, as a measured one is. */
#include "tools/hvd-perf/perf.h"

static int complain_last(struct hvd_session *session, const char *what, int status)
{
    perf_complain(hvd_rank(session), "%s: %s: %s", what, hvd_status_name(status), hvd_last_error());
    return status;
}

static int finish(struct hvd_session *session, const struct perf_options *options, const char *what,
                  struct hvd_op *op)
{
    const int status = hvd_wait(op, (int64_t)options->timeout_ns);
    if (status != HVD_OK)
        perf_complain(hvd_rank(session), "%s: %s: %s", what, hvd_status_name(status),
                      status == HVD_ERR_TIMEOUT ? hvd_last_error() : hvd_op_error(op));
    hvd_op_free(op);
    return status;
}

int perf_barrier(struct hvd_session *session, const struct perf_options *options, const char *name)
{
    struct hvd_op *op;
    const int status = hvd_barrier_async(session, name, NULL, &op);
    return status == HVD_OK ? finish(session, options, "barrier", op)
                            : complain_last(session, "barrier", status);
}

int perf_agree(struct hvd_session *session, const struct perf_options *options, const char *name,
               int64_t *numbers, long count, enum hvd_reduce_op reduce_op)
{
    struct hvd_op *op;
    const struct hvd_tensor tensor = hvd_tensor_1d(numbers, HVD_INT64, count);
    const int status = hvd_allreduce_async(session, name, &tensor, &tensor, reduce_op, NULL, &op);
    return status == HVD_OK ? finish(session, options, name, op)
                            : complain_last(session, name, status);
}
