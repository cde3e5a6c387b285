/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ops/request.h"

#include "base/types.h"
#include "client/ops/kind.h"
#include "client/ops/op.h"

#include <string.h>

/* Each op on device memory has it made, for sentences that are hardly ever needed: hence no printf. */
void client_request_label(const struct client_request *request, char *text_p, size_t text_size)
{
    const char *quote = request->name ? "'" : "", *name = request->name ? request->name : "unnamed";
    const char *const parts[] = {request->what, "(", quote, name, quote, ")"};
    size_t at = 0;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        size_t length = strnlen(parts[i], HVI_NAME_MAX), room = text_size - 1 - at;
        length = length < room ? length : room;
        memcpy(text_p + at, parts[i], length);
        at += length;
    }
    text_p[at] = '\0';
}

void client_request_remember(struct client_request *request)
{
    const struct hvd_tensor *shape = request->out ? request->out : request->in;
    struct hvd_op *op = request->op;
    op->peer = request->root;
    op->tag = request->tag;
    op->name = request->claimed;
    op->out_bytes = request->out_bytes;
    if (client_kind_ends_set(request->kind))
        op->removed_set =
            request->kind == HVI_KIND_SET_CLOSE ? request->process_set : request->root;
    op->new_set = request->new_set;
    if (!shape) /* no operands */
        return;
    op->result = *shape;
    for (int i = shape->ndim; i < HVD_DIMS_MAX; i++)
        op->result.dims[i] = 0;
    if (!request->out)
        op->result.data = NULL;
    if (!client_kind_sizes_late(request->kind))
        return;
    op->row_bytes = request->element;
    for (int i = 1; i < shape->ndim; i++)
        op->row_bytes *= (uint64_t)shape->dims[i];
}
