/* SPDX-License-Identifier: Apache-2.0 */
#include "client/slots/tickets.h"

#include "client/ops/ops.h"
#include "client/ops/request.h"
#include "shm/abi.h"
#include "shm/express.h"

#include <string.h>

void client_ticket_say(const struct client_request *request, struct client_said *said_p)
{
    memset(said_p, 0, sizeof(*said_p));
    said_p->kind = request->kind;
    said_p->reduce_op = (uint32_t)request->reduce_op;
    said_p->root = request->root;
    said_p->prescale = request->prescale;
    said_p->postscale = request->postscale;
    said_p->bytes = request->in_bytes;
    if (!request->in)
        return;
    said_p->dtype = (uint32_t)request->in->dtype;
    said_p->ndim = (uint32_t)request->in->ndim;
    for (int i = 0; i < request->in->ndim; i++)
        said_p->dims[i] = request->in->dims[i];
}

struct client_lane *client_ticket_lane(struct client_set *set, uint8_t kind)
{
    int lane = hvi_express_lane(kind);
    return lane < 0 ? NULL : &set->lanes[lane];
}

struct client_ticket *client_ticket_for(const struct client_request *request,
                                        struct client_set *set)
{
    struct client_lane *lane = client_ticket_lane(set, request->kind);
    if (!lane)
        return NULL;
    return request->claimed ? client_names_ticket(request->claimed) : &lane->ticket;
}

struct client_ticket *client_ticket_of(struct client_ops *ops, const struct hvd_op *op)
{
    if (op->name)
        return client_names_ticket(op->name);
    struct client_set *set = client_sets_find(&ops->sets, op->process_set);
    struct client_lane *lane = set ? client_ticket_lane(set, op->kind) : NULL;
    return lane && lane->last == op ? &lane->ticket : NULL;
}

void client_ticket_note(const struct client_request *request, struct client_set *set)
{
    struct client_ticket *ticket = client_ticket_for(request, set);
    if (!ticket)
        return;
    client_ticket_say(request, &ticket->said);
    ticket->valid = false; /* until this op is over */
    if (!request->claimed)
        client_ticket_lane(set, request->kind)->last = request->op;
}

void client_ticket_take(struct client_ops *ops, const struct hvd_op *op,
                        const struct hvi_completion *completion)
{
    uint32_t slot = completion->ticket - 1;
    if (completion->ticket == 0 || slot >= HVI_EXPRESS_SLOTS)
        return;
    struct client_ticket *ticket = client_ticket_of(ops, op);
    if (!ticket || ticket->said.bytes > HVI_EXPRESS_LARGE)
        return;
    ticket->slot = slot;
    ticket->turn = completion->text_turn;
    ticket->valid = true;
}
