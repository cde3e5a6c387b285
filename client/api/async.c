/* SPDX-License-Identifier: Apache-2.0
 * The public functions that submit. */
#include "base/types.h"
#include "client/error.h"
#include "client/ops/request.h"
#include "client/session/enter.h"
#include "client/submit/submit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
    struct client_request request =
        client_request_of("hvd_allreduce_async", HVI_KIND_ALLREDUCE, name, in, out, options);
    request.reduce_op = (int)reduce_op;
    return client_submit(session, &request, 1, op_p);
}

int hvd_allgather_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                        const struct hvd_tensor *out, const struct hvd_op_options *options,
                        struct hvd_op **op_p)
{
    struct client_request request =
        client_request_of("hvd_allgather_async", HVI_KIND_ALLGATHER, name, in, out, options);
    return client_submit(session, &request, 1, op_p);
}

int hvd_broadcast_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                        const struct hvd_tensor *out, int root,
                        const struct hvd_op_options *options, struct hvd_op **op_p)
{
    struct client_request request =
        client_request_of("hvd_broadcast_async", HVI_KIND_BROADCAST, name, in, out, options);
    request.root = root;
    return client_submit(session, &request, 1, op_p);
}

int hvd_reducescatter_async(struct hvd_session *session, const char *name,
                            const struct hvd_tensor *in, const struct hvd_tensor *out,
                            enum hvd_reduce_op reduce_op, const struct hvd_op_options *options,
                            struct hvd_op **op_p)
{
    struct client_request request = client_request_of(
        "hvd_reducescatter_async", HVI_KIND_REDUCESCATTER, name, in, out, options);
    request.reduce_op = (int)reduce_op;
    return client_submit(session, &request, 1, op_p);
}

int hvd_alltoall_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                       const int64_t *splits, const struct hvd_tensor *out,
                       const struct hvd_op_options *options, struct hvd_op **op_p)
{
    struct client_request request =
        client_request_of("hvd_alltoall_async", HVI_KIND_ALLTOALL, name, in, out, options);
    request.splits = splits;
    return client_submit(session, &request, 1, op_p);
}

int hvd_barrier_async(struct hvd_session *session, const char *name,
                      const struct hvd_op_options *options, struct hvd_op **op_p)
{
    struct client_request request =
        client_request_of("hvd_barrier_async", HVI_KIND_BARRIER, name, NULL, NULL, options);
    return client_submit(session, &request, 1, op_p);
}

int hvd_join_async(struct hvd_session *session, const struct hvd_op_options *options,
                   struct hvd_op **op_p)
{
    struct client_request request = {
        .what = "hvd_join_async", .kind = HVI_KIND_JOIN, .root = -1, .options = options};
    return client_submit(session, &request, 1, op_p);
}

int hvd_send_async(struct hvd_session *session, const struct hvd_tensor *in, int to, int tag,
                   const struct hvd_op_options *options, struct hvd_op **op_p)
{
    struct client_request request =
        client_request_of("hvd_send_async", HVI_KIND_SEND, NULL, in, NULL, options);
    request.root = to;
    request.tag = tag;
    return client_submit(session, &request, 1, op_p);
}

int hvd_recv_async(struct hvd_session *session, const struct hvd_tensor *out, int from, int tag,
                   const struct hvd_op_options *options, struct hvd_op **op_p)
{
    struct client_request request =
        client_request_of("hvd_recv_async", HVI_KIND_RECV, NULL, NULL, out, options);
    request.root = from;
    request.tag = tag;
    return client_submit(session, &request, 1, op_p);
}

/* ---- groups ---- */

#define GROUP_SUFFIX 16u /* "_1024of1024" */

static int check_group(const struct hvd_session *session, const struct client_request *common,
                       int count)
{
    int rc = client_session_check_fork(session, common->what);
    if (rc != HVD_OK)
        return rc;
    if (count < 1 || count > HVD_GROUP_MAX)
        return client_error(HVD_ERR_INVALID, "%s: a group has 1 to %d members, not %d",
                            common->what, HVD_GROUP_MAX, count);
    if (!common->in)
        return client_error(HVD_ERR_INVALID, "%s: in is NULL", common->what);
    if (!common->out && common->kind == HVI_KIND_ALLREDUCE)
        return client_error(HVD_ERR_INVALID, "%s: out is NULL", common->what);
    return HVD_OK;
}

/* "<name>_<i+1>of<count>". A name that is much too long stays so. */
static const char *member_name(const char *name, int i, int count, char *text, size_t text_size)
{
    if (!name || !name[0])
        return name;
    snprintf(text, text_size, "%s_%dof%d", name, i + 1, count);
    return text;
}

/* `common` is what the members have in common; its .in and .out are arrays. */
static int submit_group(struct hvd_session *session, const struct client_request *common, int count,
                        struct hvd_op **ops_p)
{
    int rc = check_group(session, common, count);
    if (rc != HVD_OK)
        return rc;
    size_t name_size = common->name ? strnlen(common->name, HVD_NAME_MAX + 1) + GROUP_SUFFIX : 1;
    struct client_request *requests = malloc((size_t)count * (sizeof(*requests) + name_size));
    if (!requests)
        return client_error(HVD_ERR_NO_MEMORY, "%s: out of memory", common->what);
    char *names = (char *)(requests + count);
    for (int i = 0; i < count; i++) {
        requests[i] = *common;
        requests[i].name =
            member_name(common->name, i, count, names + (size_t)i * name_size, name_size);
        requests[i].in = &common->in[i];
        requests[i].out = common->out ? &common->out[i] : NULL;
        requests[i].group_size = (uint32_t)count;
        requests[i].group_index = (uint32_t)i;
    }
    rc = client_submit(session, requests, (uint32_t)count, ops_p);
    free(requests);
    return rc;
}

int hvd_grouped_allreduce_async(struct hvd_session *session, const char *name,
                                const struct hvd_tensor *in, const struct hvd_tensor *out,
                                int count, enum hvd_reduce_op reduce_op,
                                const struct hvd_op_options *options, struct hvd_op **ops_p)
{
    struct client_request common = client_request_of("hvd_grouped_allreduce_async",
                                                     HVI_KIND_ALLREDUCE, name, in, out, options);
    common.reduce_op = (int)reduce_op;
    return submit_group(session, &common, count, ops_p);
}

int hvd_grouped_allgather_async(struct hvd_session *session, const char *name,
                                const struct hvd_tensor *in, const struct hvd_tensor *out,
                                int count, const struct hvd_op_options *options,
                                struct hvd_op **ops_p)
{
    struct client_request common = client_request_of("hvd_grouped_allgather_async",
                                                     HVI_KIND_ALLGATHER, name, in, out, options);
    return submit_group(session, &common, count, ops_p);
}

int hvd_grouped_reducescatter_async(struct hvd_session *session, const char *name,
                                    const struct hvd_tensor *in, const struct hvd_tensor *out,
                                    int count, enum hvd_reduce_op reduce_op,
                                    const struct hvd_op_options *options, struct hvd_op **ops_p)
{
    struct client_request common = client_request_of(
        "hvd_grouped_reducescatter_async", HVI_KIND_REDUCESCATTER, name, in, out, options);
    common.reduce_op = (int)reduce_op;
    return submit_group(session, &common, count, ops_p);
}
