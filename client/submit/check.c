/* SPDX-License-Identifier: Apache-2.0
 * What one rank can see of a bad call without asking anybody. Differences between ranks are the
 * engine's to find. */
#include "client/submit/check.h"

#include "base/bits.h"
#include "base/types.h"
#include "client/error.h"
#include "client/ops/kind.h"
#include "client/ops/request.h"
#include "client/ops/sets.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* "hvd_allreduce('w1'): ..." */
static int refuse(const struct client_request *request, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static int refuse(const struct client_request *request, int status, const char *format, ...)
{
    char label[CLIENT_LABEL_MAX];
    char why[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof(why), format, arguments);
    va_end(arguments);
    client_request_label(request, label, sizeof(label));
    return client_error(status, "%s: %s", label, why);
}

/* Send and recv have one of the two tensors. */
static bool is_pair(const struct client_request *request)
{
    return request->kind == HVI_KIND_SEND || request->kind == HVI_KIND_RECV;
}

/* Elements and bytes of a tensor, and of an element; checks everything but its data pointer. */
static int measure(struct client_request *request, const char *which,
                   const struct hvd_tensor *tensor, uint64_t *count_p, uint64_t *bytes_p)
{
    uint64_t count = 1;
    uint64_t element = hvi_dtype_bytes((uint32_t)tensor->dtype);
    uint64_t extent = element; /* bytes if no dimension were 0 */
    if (element == 0)
        return refuse(request, HVD_ERR_INVALID, "%s has dtype %d, which is none", which,
                      (int)tensor->dtype);
    if (tensor->ndim < 0 || tensor->ndim > HVD_DIMS_MAX)
        return refuse(request, HVD_ERR_INVALID, "%s has %d dimensions; 0 to %d are possible", which,
                      tensor->ndim, HVD_DIMS_MAX);
    for (int i = 0; i < tensor->ndim; i++) {
        if (tensor->dims[i] < 0)
            return refuse(request, HVD_ERR_INVALID, "dimension %d of %s is %" PRId64, i, which,
                          tensor->dims[i]);
        uint64_t factor = tensor->dims[i] ? (uint64_t)tensor->dims[i] : 1;
        if (!hvi_mul_checked(extent, factor, &extent) || extent > INT64_MAX)
            return refuse(request, HVD_ERR_INVALID, "%s has more than 2^63 bytes", which);
        count *= (uint64_t)tensor->dims[i];
    }
    *count_p = count;
    *bytes_p = count * element;
    request->element = (uint32_t)element;
    return HVD_OK;
}

/* The tensors agree in dtype and in the dimensions from `first_dim` on. */
static int check_same(const struct client_request *request, int first_dim)
{
    const struct hvd_tensor *in = request->in;
    const struct hvd_tensor *out = request->out;
    if (in->dtype != out->dtype)
        return refuse(request, HVD_ERR_INVALID, "in is %s and out is %s; they must be the same",
                      hvi_dtype_text((uint32_t)in->dtype), hvi_dtype_text((uint32_t)out->dtype));
    if (in->ndim != out->ndim)
        return refuse(request, HVD_ERR_INVALID, "in has %d dimensions and out has %d", in->ndim,
                      out->ndim);
    for (int i = first_dim; i < in->ndim; i++)
        if (in->dims[i] != out->dims[i])
            return refuse(request, HVD_ERR_INVALID,
                          "dimension %d of in is %" PRId64 " and of out %" PRId64, i, in->dims[i],
                          out->dims[i]);
    return HVD_OK;
}

/* Whether the result may lie where the input is. */
static bool works_in_place(const struct client_request *request)
{
    bool rearranges = request->kind == HVI_KIND_ALLTOALL || request->kind == HVI_KIND_REDUCESCATTER;
    return request->members == 1 || !rearranges;
}

static bool is_inside(const struct hvd_tensor *inner, uint64_t inner_bytes,
                      const struct hvd_tensor *outer, uint64_t outer_bytes)
{
    uintptr_t at = (uintptr_t)inner->data, begin = (uintptr_t)outer->data;
    return at >= begin && at - begin <= outer_bytes && inner_bytes <= outer_bytes - (at - begin);
}

/* Whether a rank's own part may be what lies inside. If it is not, the engine says so. */
static bool may_be_own_part(const struct client_request *request)
{
    if (request->kind == HVI_KIND_ALLGATHER)
        return is_inside(request->in, request->in_bytes, request->out, request->out_bytes);
    return request->kind == HVI_KIND_REDUCESCATTER &&
           is_inside(request->out, request->out_bytes, request->in, request->in_bytes);
}

static int check_overlap(const struct client_request *request)
{
    uintptr_t in = (uintptr_t)request->in->data;
    uintptr_t out = (uintptr_t)request->out->data;
    bool same = in == out && request->in_bytes == request->out_bytes;
    if (request->in_bytes == 0 || request->out_bytes == 0)
        return HVD_OK;
    if (same && works_in_place(request))
        return HVD_OK;
    bool overlap = in <= out ? out - in < request->in_bytes : in - out < request->out_bytes;
    if (!overlap || may_be_own_part(request))
        return HVD_OK;
    if (!works_in_place(request))
        return refuse(request, HVD_ERR_INVALID,
                      "in and out overlap; %s needs memory of its own for its result",
                      hvi_kind_text(request->kind));
    return refuse(request, HVD_ERR_INVALID,
                  "in and out overlap; they must be the same memory or not touch");
}

static int check_data(const struct client_request *request, int rank)
{
    if (!request->in->data && request->in_bytes > 0 && client_request_reads_input(request, rank))
        return refuse(request, HVD_ERR_INVALID, "in has %" PRIu64 " bytes and its data is NULL",
                      request->in_bytes);
    if (!request->out)
        return HVD_OK;
    if (!request->out->data && request->out_bytes > 0)
        return refuse(request, HVD_ERR_INVALID, "out has %" PRIu64 " bytes and its data is NULL",
                      request->out_bytes);
    return client_request_reads_input(request, rank) ? check_overlap(request) : HVD_OK;
}

/* ---- what is special about each kind ---- */

static int check_rows(const struct client_request *request, const char *why)
{
    if (request->in->ndim > 0)
        return HVD_OK;
    return refuse(request, HVD_ERR_INVALID, "in is a scalar; %s, so it needs one", why);
}

static int check_allgather(struct client_request *request)
{
    int rc = check_rows(request, "allgather joins along the first dimension");
    return rc == HVD_OK && request->out ? check_same(request, 1) : rc;
}

static int check_reduce_op(const struct client_request *request)
{
    bool is_bool = request->in->dtype == HVD_BOOL;
    if (request->reduce_op < 0 || !hvi_reduce_is_known((uint32_t)request->reduce_op))
        return refuse(request, HVD_ERR_INVALID, "reduce op %d is none", request->reduce_op);
    if (is_bool && request->reduce_op != HVD_MIN && request->reduce_op != HVD_MAX)
        return refuse(request, HVD_ERR_UNSUPPORTED,
                      "%s of bool is not supported; bool has min (and) and max (or)",
                      hvi_reduce_text((uint32_t)request->reduce_op));
    return HVD_OK;
}

static int check_allreduce(const struct client_request *request)
{
    int rc = check_reduce_op(request);
    if (rc == HVD_OK && !request->out)
        return refuse(request, HVD_ERR_INVALID, "out is NULL");
    return rc == HVD_OK ? check_same(request, 0) : rc;
}

static int check_broadcast(const struct client_request *request, const struct client_set *set)
{
    char text[256];
    if (!request->out)
        return refuse(request, HVD_ERR_INVALID, "out is NULL");
    if (client_set_place(set, request->root) >= 0)
        return check_same(request, 0);
    if (set->id == 0)
        return refuse(request, HVD_ERR_INVALID, "root is %d; the ranks are 0 to %d", request->root,
                      set->size - 1);
    client_set_describe(set, text, sizeof(text));
    return refuse(request, HVD_ERR_INVALID, "root is rank %d, which is not a member of %s",
                  request->root, text);
}

/* The first dim0 % n members get a row more; all of them more than that when some have joined. */
static int check_reducescatter(struct client_request *request, const struct client_set *set)
{
    int rc = check_rows(request, "reducescatter deals out the first dimension");
    if (rc == HVD_OK)
        rc = check_reduce_op(request);
    if (rc != HVD_OK)
        return rc;
    if (request->reduce_op == HVD_ADASUM)
        return refuse(request, HVD_ERR_UNSUPPORTED, "reducescatter does not know adasum");
    if (!request->out)
        return HVD_OK;
    int64_t rows = request->in->dims[0];
    int64_t mine = rows / set->size + (set->rank < rows % set->size);
    rc = check_same(request, 1);
    if (rc == HVD_OK && request->out->dims[0] < mine)
        return refuse(request, HVD_ERR_INVALID,
                      "out has %" PRId64 " rows; of %" PRId64 " rows among %d members this one "
                      "gets %" PRId64,
                      request->out->dims[0], rows, set->size, mine);
    return rc;
}

static int check_splits(const struct client_request *request)
{
    int64_t rows = request->in->dims[0];
    int64_t left = rows;
    for (int i = 0; i < request->members; i++) {
        int64_t split = request->splits[i];
        if (split < 0)
            return refuse(request, HVD_ERR_INVALID, "splits[%d] is %" PRId64, i, split);
        if (split > left)
            return refuse(request, HVD_ERR_INVALID,
                          "the splits add up to more than the %" PRId64
                          " rows of in: splits[%d] is %" PRId64 " and %" PRId64 " are left for it",
                          rows, i, split, left);
        left -= split;
    }
    return HVD_OK;
}

static int check_alltoall(struct client_request *request)
{
    int rc = check_rows(request, "alltoall deals out the first dimension");
    if (rc != HVD_OK)
        return rc;
    if (request->splits)
        rc = check_splits(request);
    else if (request->in->dims[0] % request->members)
        rc = refuse(request, HVD_ERR_INVALID,
                    "in has %" PRId64 " rows, which is no multiple of the %d members; give splits",
                    request->in->dims[0], request->members);
    return rc == HVD_OK && request->out ? check_same(request, 1) : rc;
}

static int check_kind(struct client_request *request, const struct client_set *set)
{
    switch (request->kind) {
    case HVI_KIND_ALLGATHER:
        return check_allgather(request);
    case HVI_KIND_BROADCAST:
        return check_broadcast(request, set);
    case HVI_KIND_REDUCESCATTER:
        return check_reducescatter(request, set);
    case HVI_KIND_ALLTOALL:
        return check_alltoall(request);
    default:
        return check_allreduce(request);
    }
}

static int check_pair(struct client_request *request, int rank, const struct client_set *set)
{
    bool sends = request->kind == HVI_KIND_SEND;
    const struct hvd_tensor *tensor = sends ? request->in : request->out;
    const char *which = sends ? "in" : "out";
    uint64_t *bytes_p = sends ? &request->in_bytes : &request->out_bytes;
    char text[256];
    if (!tensor)
        return refuse(request, HVD_ERR_INVALID, "%s is NULL", which);
    int rc = measure(request, which, tensor, &request->count, bytes_p);
    if (rc != HVD_OK)
        return rc;
    if (!tensor->data && *bytes_p > 0)
        return refuse(request, HVD_ERR_INVALID, "%s has %" PRIu64 " bytes and its data is NULL",
                      which, *bytes_p);
    if (request->tag < 0)
        return refuse(request, HVD_ERR_INVALID, "tag %d is negative", request->tag);
    if (request->root == rank)
        return refuse(request, HVD_ERR_INVALID, "rank %d is this one", rank);
    if (client_set_place(set, request->root) >= 0 || (!sends && request->root == HVD_ANY_RANK))
        return HVD_OK;
    client_set_describe(set, text, sizeof(text));
    return refuse(request, HVD_ERR_INVALID, "rank %d is not a member of %s", request->root, text);
}

/* ---- the whole ---- */

int client_check_options(struct client_request *request)
{
    struct hvd_op_options options = {.prescale_factor = 1.0, .postscale_factor = 1.0};
    if (request->options) {
        size_t bytes = request->options->struct_size;
        if (bytes < sizeof(options.struct_size) || bytes > 4096)
            return refuse(request, HVD_ERR_INVALID,
                          "options->struct_size is %zu; call hvd_op_options_init first", bytes);
        memcpy(&options, request->options, bytes < sizeof(options) ? bytes : sizeof(options));
    }
    request->stream = options.stream;
    request->prescale = options.prescale_factor;
    request->postscale = options.postscale_factor;
    request->process_set = options.process_set;
    return HVD_OK;
}

/* Barrier, join, additions and removals of sets. */
static bool has_operands(const struct client_request *request)
{
    return request->kind != HVI_KIND_BARRIER && request->kind != HVI_KIND_JOIN &&
           !client_kind_makes_set(request->kind) && !client_kind_ends_set(request->kind);
}

int client_check(struct client_request *request, int rank, const struct client_set *set)
{
    uint64_t ignored;
    request->members = set->size;
    if (!has_operands(request))
        return HVD_OK;
    if (is_pair(request))
        return check_pair(request, rank, set);
    if (!request->in)
        return refuse(request, HVD_ERR_INVALID, "in is NULL");
    int rc = measure(request, "in", request->in, &request->count, &request->in_bytes);
    if (rc == HVD_OK && request->out)
        rc = measure(request, "out", request->out, &ignored, &request->out_bytes);
    if (rc == HVD_OK)
        rc = check_kind(request, set);
    if (rc == HVD_OK)
        rc = check_data(request, rank);
    return rc;
}
