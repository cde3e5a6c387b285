/* SPDX-License-Identifier: Apache-2.0
 * Ops of which only some members of a set are part (docs/adr/0008):
 *
 *   SEND, RECV  two members of the set. The oldest send from a to b with a tag meets the oldest recv
 *               at b that wants it from a, or from whoever comes, with that tag.
 *   SET_OPEN    the ranks that the new set shall have, of set 0. Those who give the same ranks and
 *               the same tag meet, the oldest first.
 *
 * Until they are complete they stand in a list of their set of their own: a join does not concern
 * them (who has joined sends nothing, and is waited for), and no name is bound to one op, because
 * any number may wait with one tag. Everything else (stalls, cancel, deaths, timeline) finds them
 * where it finds every waiting op. One that fails or is taken back is gone: nobody meets its
 * sentence later.
 *
 * On several nodes, ranks meet here as far as they are on this one: a send to another node is told there
 * and ends up in pair.c of that node; a set is opened by the root, when its members here have met
 * (opening.c). Both are then reported ops. */
#include "daemon/engine/order/partial.h"

#include "base/assert.h"
#include "base/status.h"
#include "daemon/engine/order/agree.h"
#include "daemon/engine/order/opening.h"
#include "daemon/engine/order/pair.h"
#include "daemon/engine/order/root_partial.h"
#include "daemon/engine/order/set_ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct engine_tensor *engine_partial_tensor(struct engine_tensors *tensors,
                                            const struct engine_part *part)
{
    const struct hvi_submission *copy = &part->copy;
    struct engine_pair pair = {part->rank, copy->root};
    uint64_t set = part->set ? part->set->serial : 0;

    if (copy->kind == HVI_KIND_SET_OPEN)
        return engine_tensor_get_anon(tensors, set, copy->kind, copy->anon_seq);
    if (copy->kind == HVI_KIND_RECV)
        pair = (struct engine_pair){copy->root, part->rank};
    return engine_tensor_get_pair(tensors, set, pair, copy->anon_seq);
}

static int check_ranks(const struct engine_part *part, char *text_p, size_t text_size)
{
    int32_t size = (int32_t)part->set->size; /* set 0: all ranks */
    bool inside = false;

    for (uint32_t i = 0; i < part->integer_count; i++) {
        if (part->integers[i] < 0 || part->integers[i] >= size ||
            (i > 0 && part->integers[i] == part->integers[i - 1])) {
            snprintf(text_p, text_size,
                     "process_set_open: the ranks of a set are different ones of 0 to %d, and "
                     "rank %d gave %" PRId64,
                     size - 1, part->rank, part->integers[i]);
            return HVI_ERR_INVALID;
        }
        inside = inside || part->integers[i] == part->rank;
    }
    if (inside)
        return HVI_OK;
    snprintf(text_p, text_size, "process_set_open: rank %d is not among the ranks it gave",
             part->rank);
    return HVI_ERR_INVALID;
}

int engine_partial_check(const struct engine_part *part, char *text_p, size_t text_size)
{
    int32_t peer = part->copy.root;

    if (part->copy.kind == HVI_KIND_SET_OPEN)
        return check_ranks(part, text_p, text_size);
    if (peer < 0 || engine_set_rank(part->set, peer) >= 0)
        return HVI_OK;
    snprintf(text_p, text_size, "%s: rank %d is not a member of process set %u",
             hvi_kind_text(part->copy.kind), peer, part->set->id);
    return HVI_ERR_INVALID;
}

/* ---- who meets whom ---- */

static bool opens_the_same(const struct engine_op *op, const struct engine_part *part)
{
    const struct engine_part *first = engine_op_first_part(op);

    return op->tensor == part->tensor && !op->parts[part->place] &&
           first->integer_count == part->integer_count &&
           memcmp(first->integers, part->integers, part->integer_count * sizeof *part->integers) ==
               0;
}

/* One has sent what the other wants. */
static bool is_pair(const struct engine_op *op, const struct engine_part *part)
{
    const struct engine_part *other = engine_op_first_part(op);
    int32_t peer = part->copy.root;

    if (op->reported || other->copy.kind == part->copy.kind ||
        other->copy.anon_seq != part->copy.anon_seq)
        return false;
    if (part->copy.kind == HVI_KIND_SEND)
        return op->to == peer && (op->from == part->rank || op->from < 0);
    return op->to == part->rank && (op->from == peer || peer < 0);
}

static struct engine_op *find(const struct engine_part *part)
{
    bool open = part->copy.kind == HVI_KIND_SET_OPEN;
    struct engine_op *op = part->set->partial_first;

    while (op && !((op->kind == HVI_KIND_SET_OPEN) == open &&
                   (open ? opens_the_same(op, part) : is_pair(op, part))))
        op = op->set_next;
    return op;
}

bool engine_partial_awaits(const struct engine_op *op, uint32_t member)
{
    const struct engine_part *first = engine_op_first_part(op);

    if (!first || op->parts[member])
        return false;
    if (op->kind == HVI_KIND_SET_OPEN) {
        for (uint32_t i = 0; i < first->integer_count; i++) {
            if (first->integers[i] == op->set->ranks[member])
                return true;
        }
        return false;
    }
    int32_t rank = op->set->ranks[member];
    return op->from < 0 || op->from == rank || op->to == rank;
}

bool engine_partial_awaits_others(const struct engine_op *op)
{
    if (!op->set->span || op->kind == HVI_KIND_SET_OPEN)
        return op->reported;
    if (op->kind == HVI_KIND_SEND)
        return engine_set_find(op->set, op->to) < 0;
    return engine_set_find(op->set, op->from) < 0; /* or from any rank */
}

uint32_t engine_partial_others(const struct engine_order *order, const struct engine_op *op,
                               int32_t *ranks_p, uint32_t most)
{
    int32_t peer = op->kind == HVI_KIND_SEND ? op->to : op->from;

    if (op->kind == HVI_KIND_SET_OPEN)
        return order->root ? engine_root_missing_openers(order->root, order->roster->here,
                                                         op->number, ranks_p, most)
                           : 0;
    if (peer < 0) /* any */
        return 0;
    if (most > 0)
        ranks_p[0] = peer;
    return 1;
}

void engine_partial_retract(struct engine_order *order, struct engine_op *op)
{
    if (op->kind == HVI_KIND_SET_OPEN)
        engine_opening_retract(order, op);
    else
        engine_pair_retract(order, op);
}

void engine_partial_give_up(struct engine_order *order, struct engine_op *op, int status,
                            const char *text, int32_t culprit)
{
    if (op->kind == HVI_KIND_SET_OPEN)
        engine_opening_give_up(order, op, status, text, culprit);
    else
        engine_pair_give_up(order, op, status, text, culprit);
}

/* Of the new set, with a seat here. */
static uint32_t openers_here(const struct engine_part *part)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < part->integer_count; i++)
        count += engine_set_find(part->set, (int32_t)part->integers[i]) >= 0;
    return count;
}

static void begin(struct engine_op *op, const struct engine_part *part)
{
    bool sends = part->copy.kind == HVI_KIND_SEND;

    op->missing = part->copy.kind == HVI_KIND_SET_OPEN ? openers_here(part) : 2;
    op->from = sends ? part->rank : part->copy.root;
    op->to = sends ? part->copy.root : part->rank;
}

/* ---- complete ---- */

/* Who wanted something from anybody has it from this sender. */
static void settle_sender(struct engine_order *order, struct engine_op *op,
                          struct engine_part *part)
{
    if (part->copy.kind != HVI_KIND_SEND || op->from >= 0)
        return;
    op->from = part->rank;
    engine_tensor_put(&order->tensors, op->tensor);
    op->tensor = part->tensor;
    op->tensor->refs++;
}

static void complete_pair(struct engine_order *order, struct engine_op *op)
{
    char text[HVI_TEXT_MAX + 1];
    int status = engine_agree_check(op, text, sizeof text);

    if (status != HVI_OK) {
        engine_op_fail(order, op, status, text, -1);
        return;
    }
    struct engine_part *sender = op->parts[engine_set_find(op->set, op->from)];
    struct engine_part *receiver = op->parts[engine_set_find(op->set, op->to)];
    op->bytes = receiver->in_bytes;
    sender->out_bytes = 0;
    receiver->out_bytes = receiver->in_bytes;
    receiver->rows = sender->rank;
    op->kind = HVI_KIND_SEND;
    engine_op_ready(order, op);
}

static void complete(struct engine_order *order, struct engine_op *op)
{
    op->ready_ns = order->now_ns;
    if (op->kind != HVI_KIND_SET_OPEN)
        complete_pair(order, op);
    else if (op->set->span)
        engine_opening_report(order, op);
    else
        engine_set_execute(order, op);
}

int engine_partial_submit(struct engine_order *order, struct engine_part *part)
{
    struct engine_op *op = find(part);
    struct engine_offer *offer = NULL;
    uint64_t since_ns = 0;

    if (part->copy.kind == HVI_KIND_RECV)
        offer = engine_pair_find(part, &since_ns);
    if (offer && op && op->first_ns <= since_ns)
        offer = NULL;
    if (!op || offer) {
        op = engine_op_new(order, part);
        if (!op)
            return HVI_ERR_NO_MEMORY;
        begin(op, part);
    }
    settle_sender(order, op, part);
    engine_op_add_part(order, op, part);
    if (offer)
        engine_pair_take(order, op, offer);
    else if (op->missing == 0)
        complete(order, op);
    else if (part->copy.kind == HVI_KIND_SEND && engine_set_find(part->set, op->to) < 0)
        engine_pair_offer(order, op);
    return HVI_OK;
}
