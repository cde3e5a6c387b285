/* SPDX-License-Identifier: Apache-2.0 */
#include "client/ops/land.h"

#include "base/types.h"
#include "client/memory/memory.h"
#include "client/ops/ops.h"

void client_op_release(struct client_ops *ops, struct hvd_op *op)
{
    ops->orphans -= op->express.orphan;
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

void client_op_land(struct client_ops *ops, struct hvd_op *op)
{
    if (op->state == CLIENT_OP_SIZED)
        client_ops_unqueue(ops, op);
    client_op_set_state(ops, op, CLIENT_OP_DONE);
    ops->unseen++;
    client_memory_put(ops->memory, &op->in);
    if (!op->copy_to && !client_op_owns_result(op))
        client_memory_put(ops->memory, &op->out);
    if (op->name)
        client_names_landed(op->name);
    set_landed(ops, op);
    if (op->abandoned)
        client_op_release(ops, op);
}
