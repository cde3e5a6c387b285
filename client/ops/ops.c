/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ops/ops.h"

#include "base/assert.h"
#include "base/types.h"
#include "client/memory/memory.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

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

int client_ops_init(struct client_ops *ops, struct client_memory *memory, int rank, int size)
{
    *ops = (struct client_ops){.memory = memory, .rank = rank};
    ops->slots = calloc(HVD_OPS_MAX, sizeof(ops->slots[0]));
    if (!ops->slots)
        return HVD_ERR_NO_MEMORY;
    return client_sets_init(&ops->sets, rank, size);
}

void client_ops_fini(struct client_ops *ops)
{
    for (uint32_t i = 0; i < ops->fresh; i++) {
        client_device_block_put(ops->slots[i].in.of_own); /* which lives longer than the session */
        client_device_block_put(ops->slots[i].out.of_own);
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

/* ---- what an op holds ---- */

void client_ops_queue(struct client_ops *ops, struct hvd_op *op)
{
    DL_APPEND(ops->sized_first, op);
}

void client_ops_unqueue(struct client_ops *ops, struct hvd_op *op)
{
    if (!op->prev) /* being fed just now */
        return;
    DL_DELETE(ops->sized_first, op);
    op->prev = NULL;
}

void client_op_release(struct client_ops *ops, struct hvd_op *op)
{
    ops->orphans -= op->slot.orphan;
    if (op->state == CLIENT_OP_DONE)
        ops->unseen--;
    client_memory_put(ops->memory, &op->in);
    client_memory_put(ops->memory, &op->out);
    client_memory_put(ops->memory, &op->aux);
    if (op->name)
        client_names_put(op->name);
    client_op_set_state(ops, op, CLIENT_OP_FREE);
}

void client_op_launched(struct client_ops *ops, const struct hvd_op *op)
{
    ops->own_outputs += op->owns_output;
    bool removal = client_kind_ends_set(op->kind);
    if (!removal && op->kind != HVI_KIND_JOIN)
        return;
    struct client_set *set =
        client_sets_find(&ops->sets, removal ? op->removed_set : op->process_set);
    if (removal)
        set->removing = true;
    else
        set->joined = true;
}

static void removal_landed(struct client_ops *ops, const struct hvd_op *op)
{
    struct client_set *set = client_sets_find(&ops->sets, op->removed_set);
    if (!set)
        return;
    set->removing = false;
    if (op->status != HVD_OK)
        return;
    client_sets_remove(&ops->sets, set);
    client_names_forget_set(&ops->names, op->removed_set); /* the id comes again */
}

static void join_landed(struct client_ops *ops, const struct hvd_op *op)
{
    struct client_set *set = client_sets_find(&ops->sets, op->process_set);
    if (!set) /* removed meanwhile */
        return;
    set->joined = false;
    /* Members have brought different numbers of unnamed ops, and none of them waits any more. */
    if (op->status == HVD_OK)
        client_set_restart(set);
}

static void set_landed(struct client_ops *ops, struct hvd_op *op)
{
    if (op->kind == HVI_KIND_JOIN)
        join_landed(ops, op);
    if (client_kind_ends_set(op->kind))
        removal_landed(ops, op);
    if (!client_kind_makes_set(op->kind) || op->status != HVD_OK)
        return;
    op->new_set->id = (int)op->number;
    client_sets_insert(&ops->sets, op->new_set);
    op->new_set = NULL;
}

/* Of an op whose result need not be copied by memcpy. */
static void put_output(struct client_ops *ops, struct hvd_op *op)
{
    /* A worker may still write to the fence of an op that failed while it executed. These two did not. */
    if (op->fence.cell)
        client_fence_put(ops->memory->device, &op->fence,
                         op->status != HVD_OK && op->status != HVD_ERR_MISMATCH &&
                             op->status != HVD_ERR_CANCELLED);
    if (op->status != HVD_OK)
        op->stage_to = NULL;
    if (!op->stage_to)
        client_memory_put(ops->memory, &op->out);
}

void client_op_land(struct client_ops *ops, struct hvd_op *op)
{
    if (op->state == CLIENT_OP_SIZED)
        client_ops_unqueue(ops, op);
    client_op_set_state(ops, op, CLIENT_OP_DONE);
    ops->own_outputs -= op->owns_output;
    ops->unseen++;
    /* The engine reads such an input to where the result will be, and a read that it has given up may
     * end late. These two have read nothing. */
    if (op->status != HVD_OK && op->status != HVD_ERR_MISMATCH && op->status != HVD_ERR_CANCELLED &&
        op->kind == HVI_KIND_ALLREDUCE && op->in.region == HVI_REGION_PROCESS)
        client_memory_withdraw(ops->memory, &op->out);
    client_memory_put(ops->memory, &op->in);
    if (!op->copy_to && !client_op_owns_result(op))
        put_output(ops, op);
    if (op->name)
        client_names_landed(op->name);
    set_landed(ops, op);
    if (op->abandoned)
        client_op_release(ops, op);
}
