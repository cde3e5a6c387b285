/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ops/op.h"

#include "base/types.h"
#include "client/ops/names.h"

#include <stdio.h>

uint64_t client_op_cookie(const struct hvd_op *op)
{
    return (uint64_t)op->generation << 32 | op->index;
}

static void describe_pair(const struct hvd_op *op, char *text_p, size_t text_size)
{
    const char *way = op->kind == HVI_KIND_SEND ? "to" : "from";
    if (op->peer < 0)
        snprintf(text_p, text_size, "recv from any rank with tag %d", op->tag);
    else
        snprintf(text_p, text_size, "%s %s rank %d with tag %d", hvi_kind_text(op->kind), way,
                 op->peer, op->tag);
}

void client_op_describe(const struct hvd_op *op, char *text_p, size_t text_size)
{
    if (op->kind == HVI_KIND_SEND || op->kind == HVI_KIND_RECV)
        describe_pair(op, text_p, text_size);
    else if (op->name)
        snprintf(text_p, text_size, "%s '%s'", hvi_kind_text(op->kind), op->name->text);
    else
        snprintf(text_p, text_size, "%s.noname.%llu", hvi_kind_text(op->kind),
                 (unsigned long long)op->anon_seq);
}
