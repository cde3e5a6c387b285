/* SPDX-License-Identifier: Apache-2.0
 * Adding and removing process sets, which are ops of set 0, and who may use one. */
#include "daemon/engine/order/set_ops.h"

#include "base/status.h"
#include "daemon/engine/order/join.h"
#include "daemon/engine/order/opening.h"
#include "daemon/engine/order/pair.h"

#include <stdio.h>

#define MEMBERS_TEXT 400

static void members_text(const struct engine_set *set, char *text_p)
{
    engine_ranks_text(set->members, set->size, text_p, MEMBERS_TEXT);
}

static void give_id(struct engine_order *order, struct engine_op *op, uint32_t id)
{
    for (uint32_t i = 0; i < op->set->places; i++) {
        if (op->parts[i])
            op->parts[i]->rows = id;
    }
    engine_op_finish(order, op, HVI_OK, NULL, -1);
}

/* Every node finds the same: all carry out the same changes in the same order. */
static void refuse(struct engine_order *order, struct engine_op *op, int status, const char *text)
{
    if (op->set->span)
        engine_op_fail_here(order, op, status, text, -1);
    else
        engine_op_fail(order, op, status, text, -1);
}

/* On several nodes the root has made the set, or, if there are too many already, it has not. */
static int make(struct engine_order *order, const struct engine_op *op, struct engine_set **set_p)
{
    const struct engine_part *part = engine_op_first_part(op);

    if (!order->sets.given)
        return engine_sets_add(&order->sets, part->integers, part->integer_count, set_p);
    if (op->new_set == 0)
        return HVI_ERR_LIMIT;
    return engine_sets_give(&order->sets, part->integers, part->integer_count, op->new_set,
                            op->new_serial, set_p);
}

static int add(struct engine_order *order, struct engine_op *op)
{
    const struct engine_part *part = engine_op_first_part(op);
    char text[ENGINE_LABEL + MEMBERS_TEXT + 160], members[MEMBERS_TEXT], label[ENGINE_LABEL];
    struct engine_set *set =
        engine_sets_find_ranks(&order->sets, part->integers, part->integer_count);
    int status = HVI_ERR_EXISTS;

    engine_tensor_label(op->tensor, label);
    if (op->kind == HVI_KIND_SET_OPEN)
        set = NULL; /* its members may have others of the same ranks */
    if (set && order->sets.given && op->new_set != 0)
        return HVI_ERR_PROTOCOL;
    if (set) {
        members_text(set, members);
        snprintf(text, sizeof text, "%s '%s': process set %u has exactly these ranks already (%s)",
                 hvi_kind_text(op->kind), label, set->id, members);
    } else {
        status = make(order, op, &set);
        snprintf(text, sizeof text, "%s '%s': %s", hvi_kind_text(op->kind), label,
                 status == HVI_ERR_LIMIT ? ENGINE_SETS_FULL : hvi_status_text(status));
    }
    if (status == HVI_ERR_PROTOCOL)
        return status;
    if (status == HVI_OK)
        set->opened = op->kind == HVI_KIND_SET_OPEN;
    if (status == HVI_OK)
        give_id(order, op, set->id);
    else
        refuse(order, op, status, text);
    return status == HVI_ERR_NO_MEMORY ? status : HVI_OK;
}

/* By `op`, which may be an op of the set. */
static void end_set(struct engine_order *order, struct engine_op *op, struct engine_set *set)
{
    order->observer->set_ends(order->user, set);
    if (order->broken_status != HVI_OK)
        return; /* a liar was found there; that was this op's end too */
    engine_op_fail_set(order, set, op);
    engine_pair_forget(order, set);
    uint32_t id = set->id;
    order->observer->set_gone(order->user, set);
    engine_sets_remove(&order->sets, set);
    give_id(order, op, id);
}

int engine_set_check_removal(const struct engine_sets *sets, const struct engine_op *op,
                             char *text_p, size_t text_size)
{
    int32_t id = engine_op_first_part(op)->copy.root;
    const struct engine_set *set = id > 0 ? engine_sets_find(sets, (uint32_t)id) : NULL;
    char label[ENGINE_LABEL];

    if (set && !set->opened)
        return HVI_OK;
    engine_tensor_label(op->tensor, label);
    snprintf(text_p, text_size, "%s '%s': process set %d %s", hvi_kind_text(op->kind), label, id,
             id == 0 ? "has every rank and stays"
             : set   ? "was opened by its members, who close it"
                     : "does not exist");
    return id == 0 || set ? HVI_ERR_INVALID : HVI_ERR_NOT_FOUND;
}

static void remove_set(struct engine_order *order, struct engine_op *op)
{
    char text[ENGINE_LABEL + 128];
    int status = engine_set_check_removal(&order->sets, op, text, sizeof text);

    if (status != HVI_OK)
        refuse(order, op, status, text);
    else
        end_set(order, op,
                engine_sets_find(&order->sets, (uint32_t)engine_op_first_part(op)->copy.root));
}

static void close_set(struct engine_order *order, struct engine_op *op)
{
    if (order->sets.given && !op->set->span)
        engine_opening_closed(order, op->set);
    end_set(order, op, op->set);
}

int engine_set_execute(struct engine_order *order, struct engine_op *op)
{
    if (op->kind == HVI_KIND_SET_ADD || op->kind == HVI_KIND_SET_OPEN)
        return add(order, op);
    if (op->kind == HVI_KIND_SET_CLOSE)
        close_set(order, op);
    else
        remove_set(order, op);
    return HVI_OK;
}

int engine_set_check(const struct engine_set *set, const struct engine_part *part, char *text_p,
                     size_t text_size)
{
    char members[MEMBERS_TEXT], label[ENGINE_LABEL];
    const char *kind = hvi_kind_text(part->copy.kind);
    int32_t rank = part->rank;

    engine_tensor_label(part->tensor, label);
    if (!set) {
        snprintf(text_p, text_size, "%s '%s': process set %u does not exist", kind, label,
                 part->copy.process_set);
        return HVI_ERR_NOT_FOUND;
    }
    int32_t place = engine_set_place(set, part->seat);
    if (place < 0) {
        members_text(set, members);
        snprintf(text_p, text_size, "%s '%s': rank %d is not a member of process set %u (%s)", kind,
                 label, rank, set->id, members);
        return HVI_ERR_INVALID;
    }
    if (set->places < set->size && !set->span) {
        snprintf(text_p, text_size, "%s '%s': process set %u has members on other nodes", kind,
                 label, set->id);
        return HVI_ERR_UNSUPPORTED;
    }
    if (engine_join_has(set, (uint32_t)place)) {
        snprintf(text_p, text_size,
                 "%s '%s': rank %d has joined process set %u and submits nothing there until all "
                 "have",
                 kind, label, rank, set->id);
        return HVI_ERR_INVALID;
    }
    return HVI_OK;
}
