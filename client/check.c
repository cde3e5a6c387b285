/* SPDX-License-Identifier: Apache-2.0
 * What one rank can see of a bad call without asking anybody: client_check. Differences between
 * ranks are the engine's to find. */
#include "base/bits.h"
#include "base/types.h"
#include "client/error.h"
#include "client/submit.h"

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
    char why[512];
    const char *quote = request->name ? "'" : "";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof(why), format, arguments);
    va_end(arguments);
    return client_error(status, "%s(%s%.*s%s): %s", request->what, quote, HVI_NAME_MAX,
                        request->name ? request->name : "unnamed", quote, why);
}

/* Whether the data of the input is read on this rank. */
static bool reads_input(const struct client_request *request, int rank)
{
    return request->kind != HVI_KIND_BROADCAST || request->root == rank;
}

/* Elements and bytes of a tensor; checks everything but its data pointer. */
static int measure(const struct client_request *request, const char *which,
                   const struct hvd_tensor *tensor, uint64_t *count_p, uint64_t *bytes_p)
{
    uint64_t count = 1;
    uint64_t extent = hvi_dtype_bytes((uint32_t)tensor->dtype); /* bytes if no dimension were 0 */
    uint32_t element = hvi_dtype_bytes((uint32_t)tensor->dtype);
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

static int check_overlap(const struct client_request *request)
{
    uintptr_t in = (uintptr_t)request->in->data;
    uintptr_t out = (uintptr_t)request->out->data;
    bool in_place = in == out && request->in_bytes == request->out_bytes;
    if (in_place || request->in_bytes == 0 || request->out_bytes == 0)
        return HVD_OK;
    bool overlap = in <= out ? out - in < request->in_bytes : in - out < request->out_bytes;
    if (!overlap)
        return HVD_OK;
    return refuse(request, HVD_ERR_INVALID,
                  "in and out overlap; they must be the same memory or not touch");
}

static int check_data(const struct client_request *request, int rank)
{
    if (!request->in->data && request->in_bytes > 0 && reads_input(request, rank))
        return refuse(request, HVD_ERR_INVALID, "in has %" PRIu64 " bytes and its data is NULL",
                      request->in_bytes);
    if (!request->out)
        return HVD_OK;
    if (!request->out->data && request->out_bytes > 0)
        return refuse(request, HVD_ERR_INVALID, "out has %" PRIu64 " bytes and its data is NULL",
                      request->out_bytes);
    return reads_input(request, rank) ? check_overlap(request) : HVD_OK;
}

static int check_kind(const struct client_request *request, int size)
{
    if (request->kind == HVI_KIND_ALLGATHER) {
        if (request->in->ndim == 0)
            return refuse(request, HVD_ERR_INVALID,
                          "in is a scalar; allgather joins along the first dimension, so it needs "
                          "one");
        return request->out ? check_same(request, 1) : HVD_OK;
    }
    if (!request->out)
        return refuse(request, HVD_ERR_INVALID, "out is NULL");
    if (request->kind == HVI_KIND_BROADCAST && (request->root < 0 || request->root >= size))
        return refuse(request, HVD_ERR_INVALID, "root is %d; the ranks are 0 to %d", request->root,
                      size - 1);
    if (request->kind == HVI_KIND_ALLREDUCE) {
        if (request->reduce_op < 0 || !hvi_reduce_is_known((uint32_t)request->reduce_op))
            return refuse(request, HVD_ERR_INVALID, "reduce op %d is none", request->reduce_op);
        if (request->reduce_op == HVD_ADASUM)
            return refuse(request, HVD_ERR_UNSUPPORTED, "adasum is not available yet");
    }
    return check_same(request, 0);
}

static int check_options(struct client_request *request)
{
    struct hvd_op_options options;
    hvd_op_options_init(&options);
    if (request->options) {
        size_t bytes = request->options->struct_size;
        if (bytes < sizeof(options.struct_size) || bytes > 4096)
            return refuse(request, HVD_ERR_INVALID,
                          "options->struct_size is %zu; call hvd_op_options_init first", bytes);
        memcpy(&options, request->options, bytes < sizeof(options) ? bytes : sizeof(options));
    }
    request->prescale = options.prescale_factor;
    request->postscale = options.postscale_factor;
    return HVD_OK;
}

int client_check(struct client_request *request, int rank, int size)
{
    uint64_t ignored;
    int rc = check_options(request);
    if (rc != HVD_OK || request->kind == HVI_KIND_BARRIER)
        return rc;
    if (!request->in)
        return refuse(request, HVD_ERR_INVALID, "in is NULL");
    rc = measure(request, "in", request->in, &request->count, &request->in_bytes);
    if (rc == HVD_OK && request->out)
        rc = measure(request, "out", request->out, &ignored, &request->out_bytes);
    if (rc == HVD_OK)
        rc = check_kind(request, size);
    if (rc == HVD_OK)
        rc = check_data(request, rank);
    request->element = hvi_dtype_bytes((uint32_t)request->in->dtype);
    return rc;
}
