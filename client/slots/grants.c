/* SPDX-License-Identifier: Apache-2.0 */
#include "client/slots/grants.h"

#include "client/ops/ops.h"
#include "client/ops/request.h"
#include "client/slots/slots.h"
#include "shm/abi.h"
#include "shm/slots.h"

void client_grant_say(const struct client_request *request, struct hvi_agreement *said_p)
{
    *said_p = (struct hvi_agreement){
        .kind = request->kind,
        .process_set = (uint32_t)request->process_set,
        .bytes = request->in_bytes,
        .reduce_op = (uint8_t)request->reduce_op,
        .root = request->root,
        .prescale = request->prescale,
        .postscale = request->postscale,
    };
    if (!request->in)
        return;
    said_p->dtype = (uint8_t)request->in->dtype;
    said_p->ndim = (uint8_t)request->in->ndim;
    for (int i = 0; i < request->in->ndim; i++)
        said_p->dims[i] = request->in->dims[i];
}

struct client_unnamed_slot *client_grant_unnamed(struct client_set *set, uint8_t kind)
{
    int which = hvi_slot_unnamed(kind);
    return which < 0 ? NULL : &set->unnamed[which];
}

struct client_grant *client_grant_for(const struct client_request *request, struct client_set *set)
{
    struct client_unnamed_slot *unnamed = client_grant_unnamed(set, request->kind);
    if (!unnamed)
        return NULL;
    return request->claimed ? &request->claimed->grant : &unnamed->grant;
}

struct client_grant *client_grant_of(struct client_ops *ops, const struct hvd_op *op)
{
    if (op->name)
        return &op->name->grant;
    struct client_set *set = client_sets_find(&ops->sets, op->process_set);
    struct client_unnamed_slot *unnamed = set ? client_grant_unnamed(set, op->kind) : NULL;
    return unnamed && unnamed->last == op ? &unnamed->grant : NULL;
}

void client_grant_note(const struct client_request *request, struct client_set *set)
{
    struct client_grant *grant = client_grant_for(request, set);
    if (!grant)
        return;
    client_grant_say(request, &grant->said);
    grant->valid = false; /* until this op is over */
    if (!request->claimed)
        client_grant_unnamed(set, request->kind)->last = request->op;
}

void client_grant_take(const struct client_slots *slots, const struct hvd_op *op,
                       const struct hvi_completion *completion)
{
    uint32_t slot = completion->grant - 1;
    if (completion->grant == 0 || slot >= HVI_SLOTS || !slots->on)
        return;
    struct client_grant *grant = client_grant_of(slots->ops, op);
    struct client_set *set = client_sets_find(&slots->ops->sets, op->process_set);
    if (!grant || grant->said.bytes > HVI_TUNED_MEDIUM || !set || !client_slots_seat(slots, set))
        return;
    grant->slot = slot;
    grant->turn = completion->text_turn;
    grant->valid = true;
}
