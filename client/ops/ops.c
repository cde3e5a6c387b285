/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ops/ops.h"

#include "base/assert.h"
#include "base/types.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EDGE(state) (1u << (state))

static const unsigned edges[CLIENT_OP_STATES] = {
    [CLIENT_OP_FREE] = EDGE(CLIENT_OP_PREPARING),
    [CLIENT_OP_PREPARING] = EDGE(CLIENT_OP_IN_FLIGHT) | EDGE(CLIENT_OP_FREE),
    [CLIENT_OP_IN_FLIGHT] = EDGE(CLIENT_OP_SIZED) | EDGE(CLIENT_OP_DONE),
    [CLIENT_OP_SIZED] = EDGE(CLIENT_OP_IN_FLIGHT) | EDGE(CLIENT_OP_DONE),
    [CLIENT_OP_DONE] = EDGE(CLIENT_OP_COPYING) | EDGE(CLIENT_OP_FINISHED) | EDGE(CLIENT_OP_FREE),
    [CLIENT_OP_COPYING] = EDGE(CLIENT_OP_FINISHED),
    [CLIENT_OP_FINISHED] = EDGE(CLIENT_OP_FREE),
};

static bool counts_in_flight(enum client_op_state state)
{
    return state == CLIENT_OP_PREPARING || state == CLIENT_OP_IN_FLIGHT || state == CLIENT_OP_SIZED;
}

int client_ops_init(struct client_ops *ops, struct client_memory *memory, int rank, int size)
{
    *ops = (struct client_ops){.memory = memory};
    ops->slots = calloc(HVD_OPS_MAX, sizeof(ops->slots[0]));
    if (!ops->slots)
        return HVD_ERR_NO_MEMORY;
    return client_sets_init(&ops->sets, rank, size);
}

void client_ops_fini(struct client_ops *ops)
{
    for (uint32_t i = 0; i < ops->fresh; i++) {
        free(ops->slots[i].error_owned);
        free(ops->slots[i].new_set);
    }
    free(ops->slots);
    client_names_fini(&ops->names);
    client_sets_fini(&ops->sets);
    memset(ops, 0, sizeof(*ops));
}

struct hvd_op *client_ops_new(struct client_ops *ops, struct hvd_session *session)
{
    struct hvd_op *op = ops->free_first;
    uint32_t generation;
    if (op)
        ops->free_first = op->next;
    else if (ops->fresh < HVD_OPS_MAX)
        op = &ops->slots[ops->fresh++];
    else
        return NULL;
    generation = op->generation + 1;
    memset(op, 0, offsetof(struct hvd_op, anon_text));
    op->session = session;
    op->index = (uint32_t)(op - ops->slots);
    op->generation = generation;
    op->culprit = -1;
    op->error = "";
    op->anon_text[0] = '\0';
    client_op_set_state(ops, op, CLIENT_OP_PREPARING);
    return op;
}

void client_op_set_state(struct client_ops *ops, struct hvd_op *op, enum client_op_state state)
{
    HVI_ASSERT(edges[op->state] & EDGE(state));
    if (counts_in_flight(op->state))
        ops->in_flight--;
    if (counts_in_flight(state))
        ops->in_flight++;
    op->state = state;
    if (state != CLIENT_OP_FREE)
        return;
    free(op->error_owned);
    op->error_owned = NULL;
    free(op->new_set);
    op->new_set = NULL;
    op->next = ops->free_first;
    ops->free_first = op;
}

uint64_t client_op_cookie(const struct hvd_op *op)
{
    return (uint64_t)op->generation << 32 | op->index;
}

struct hvd_op *client_ops_find(struct client_ops *ops, uint64_t cookie)
{
    uint32_t index = (uint32_t)cookie;
    if (index >= ops->fresh)
        return NULL;
    struct hvd_op *op = &ops->slots[index];
    if (op->generation != (uint32_t)(cookie >> 32))
        return NULL;
    return op->state == CLIENT_OP_IN_FLIGHT || op->state == CLIENT_OP_SIZED ? op : NULL;
}

void client_ops_queue(struct client_ops *ops, struct hvd_op *op)
{
    op->next = NULL;
    if (ops->sized_last)
        ops->sized_last->next = op;
    else
        ops->sized_first = op;
    ops->sized_last = op;
}

void client_ops_unqueue(struct client_ops *ops, struct hvd_op *op)
{
    struct hvd_op *before = NULL;
    for (struct hvd_op *at = ops->sized_first; at && at != op; at = at->next)
        before = at;
    struct hvd_op *found = before ? before->next : ops->sized_first;
    if (found != op) /* being fed just now */
        return;
    if (before)
        before->next = op->next;
    else
        ops->sized_first = op->next;
    if (ops->sized_last == op)
        ops->sized_last = before;
}

bool client_kind_sizes_late(uint8_t kind)
{
    return kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_ALLTOALL ||
           kind == HVI_KIND_REDUCESCATTER; /* of which some members may have joined */
}

bool client_kind_makes_set(uint8_t kind)
{
    return kind == HVI_KIND_SET_ADD || kind == HVI_KIND_SET_OPEN;
}

bool client_kind_ends_set(uint8_t kind)
{
    return kind == HVI_KIND_SET_REMOVE || kind == HVI_KIND_SET_CLOSE;
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
        snprintf(text_p, text_size, "%s '%s'", hvi_kind_text(op->kind),
                 client_names_text(op->name));
    else
        snprintf(text_p, text_size, "%s.noname.%llu", hvi_kind_text(op->kind),
                 (unsigned long long)op->anon_seq);
}
