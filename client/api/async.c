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
    struct client_request request = {.what = "hvd_allreduce_async",
                                     .kind = HVI_KIND_ALLREDUCE,
                                     .name = name,
                                     .in = in,
                                     .out = out,
                                     .reduce_op = (int)reduce_op,
                                     .root = -1,
                                     .options = options};
    return client_submit(session, &request, 1, op_p);
}

int hvd_allgather_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                        const struct hvd_tensor *out, const struct hvd_op_options *options,
                        struct hvd_op **op_p)
{
    struct client_request request = {.what = "hvd_allgather_async",
                                     .kind = HVI_KIND_ALLGATHER,
                                     .name = name,
                                     .in = in,
                                     .out = out,
                                     .root = -1,
                                     .options = options};
    return client_submit(session, &request, 1, op_p);
}

int hvd_broadcast_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                        const struct hvd_tensor *out, int root,
                        const struct hvd_op_options *options, struct hvd_op **op_p)
{
    struct client_request request = {.what = "hvd_broadcast_async",
                                     .kind = HVI_KIND_BROADCAST,
                                     .name = name,
                                     .in = in,
                                     .out = out,
                                     .root = root,
                                     .options = options};
    return client_submit(session, &request, 1, op_p);
}

int hvd_reducescatter_async(struct hvd_session *session, const char *name,
                            const struct hvd_tensor *in, const struct hvd_tensor *out,
                            enum hvd_reduce_op reduce_op, const struct hvd_op_options *options,
                            struct hvd_op **op_p)
{
    struct client_request request = {.what = "hvd_reducescatter_async",
                                     .kind = HVI_KIND_REDUCESCATTER,
                                     .name = name,
                                     .in = in,
                                     .out = out,
                                     .reduce_op = (int)reduce_op,
                                     .root = -1,
                                     .options = options};
    return client_submit(session, &request, 1, op_p);
}

int hvd_alltoall_async(struct hvd_session *session, const char *name, const struct hvd_tensor *in,
                       const int64_t *splits, const struct hvd_tensor *out,
                       const struct hvd_op_options *options, struct hvd_op **op_p)
{
    struct client_request request = {.what = "hvd_alltoall_async",
                                     .kind = HVI_KIND_ALLTOALL,
                                     .name = name,
                                     .in = in,
                                     .out = out,
                                     .splits = splits,
                                     .root = -1,
                                     .options = options};
    return client_submit(session, &request, 1, op_p);
}

int hvd_barrier_async(struct hvd_session *session, const char *name,
                      const struct hvd_op_options *options, struct hvd_op **op_p)
{
    struct client_request request = {.what = "hvd_barrier_async",
                                     .kind = HVI_KIND_BARRIER,
                                     .name = name,
                                     .root = -1,
                                     .options = options};
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
    struct client_request request = {.what = "hvd_send_async",
                                     .kind = HVI_KIND_SEND,
                                     .in = in,
                                     .root = to,
                                     .tag = tag,
                                     .options = options};
    return client_submit(session, &request, 1, op_p);
}

int hvd_recv_async(struct hvd_session *session, const struct hvd_tensor *out, int from, int tag,
                   const struct hvd_op_options *options, struct hvd_op **op_p)
{
    struct client_request request = {.what = "hvd_recv_async",
                                     .kind = HVI_KIND_RECV,
                                     .out = out,
                                     .root = from,
                                     .tag = tag,
                                     .options = options};
    return client_submit(session, &request, 1, op_p);
}

/* ---- groups ---- */

#define GROUP_SUFFIX 16u /* "_1024of1024" */

/* What the members have in common, their tensors, and how many there are. */
struct group {
    struct client_request common;
    const struct hvd_tensor *in, *out;
    int count;
};

static int check_group(const struct hvd_session *session, const struct group *group)
{
    const struct client_request *common = &group->common;
    int rc = client_session_check_fork(session, common->what);
    if (rc != HVD_OK)
        return rc;
    if (group->count < 1 || group->count > HVD_GROUP_MAX)
        return client_error(HVD_ERR_INVALID, "%s: a group has 1 to %d members, not %d",
                            common->what, HVD_GROUP_MAX, group->count);
    if (!group->in)
        return client_error(HVD_ERR_INVALID, "%s: in is NULL", common->what);
    if (!group->out && common->kind == HVI_KIND_ALLREDUCE)
        return client_error(HVD_ERR_INVALID, "%s: out is NULL", common->what);
    return HVD_OK;
}

/* "<name>_<i+1>of<count>". A name that is much too long stays so. */
static const char *member_name(const struct group *group, int i, char *text, size_t text_size)
{
    const char *name = group->common.name;
    if (!name || !name[0])
        return name;
    snprintf(text, text_size, "%s_%dof%d", name, i + 1, group->count);
    return text;
}

static int submit_group(struct hvd_session *session, const struct group *group,
                        struct hvd_op **ops_p)
{
    int rc = check_group(session, group);
    if (rc != HVD_OK)
        return rc;
    size_t count = (size_t)group->count;
    size_t name_size =
        group->common.name ? strnlen(group->common.name, HVD_NAME_MAX + 1) + GROUP_SUFFIX : 1;
    struct client_request *requests = malloc(count * (sizeof(*requests) + name_size));
    if (!requests)
        return client_error(HVD_ERR_NO_MEMORY, "%s: out of memory", group->common.what);
    char *names = (char *)(requests + count);
    for (int i = 0; i < group->count; i++) {
        requests[i] = group->common;
        requests[i].name = member_name(group, i, names + (size_t)i * name_size, name_size);
        requests[i].in = &group->in[i];
        requests[i].out = group->out ? &group->out[i] : NULL;
        requests[i].group_size = (uint32_t)group->count;
        requests[i].group_index = (uint32_t)i;
    }
    rc = client_submit(session, requests, (uint32_t)group->count, ops_p);
    free(requests);
    return rc;
}

int hvd_grouped_allreduce_async(struct hvd_session *session, const char *name,
                                const struct hvd_tensor *in, const struct hvd_tensor *out,
                                int count, enum hvd_reduce_op reduce_op,
                                const struct hvd_op_options *options, struct hvd_op **ops_p)
{
    struct group group = {.common = {.what = "hvd_grouped_allreduce_async",
                                     .kind = HVI_KIND_ALLREDUCE,
                                     .name = name,
                                     .reduce_op = (int)reduce_op,
                                     .root = -1,
                                     .options = options},
                          .in = in,
                          .out = out,
                          .count = count};
    return submit_group(session, &group, ops_p);
}

int hvd_grouped_allgather_async(struct hvd_session *session, const char *name,
                                const struct hvd_tensor *in, const struct hvd_tensor *out,
                                int count, const struct hvd_op_options *options,
                                struct hvd_op **ops_p)
{
    struct group group = {.common = {.what = "hvd_grouped_allgather_async",
                                     .kind = HVI_KIND_ALLGATHER,
                                     .name = name,
                                     .root = -1,
                                     .options = options},
                          .in = in,
                          .out = out,
                          .count = count};
    return submit_group(session, &group, ops_p);
}

int hvd_grouped_reducescatter_async(struct hvd_session *session, const char *name,
                                    const struct hvd_tensor *in, const struct hvd_tensor *out,
                                    int count, enum hvd_reduce_op reduce_op,
                                    const struct hvd_op_options *options, struct hvd_op **ops_p)
{
    struct group group = {.common = {.what = "hvd_grouped_reducescatter_async",
                                     .kind = HVI_KIND_REDUCESCATTER,
                                     .name = name,
                                     .reduce_op = (int)reduce_op,
                                     .root = -1,
                                     .options = options},
                          .in = in,
                          .out = out,
                          .count = count};
    return submit_group(session, &group, ops_p);
}
