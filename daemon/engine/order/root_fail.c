/* SPDX-License-Identifier: Apache-2.0
 * Root: failures. The nodes that have not reported the op get to know, too, and may have reported it meanwhile:
 * root_stale.c. */
#include "daemon/engine/order/root_fail.h"

#include "daemon/engine/order/root_stale.h"
#include "daemon/engine/order/root_verdict.h"

#include <stdio.h>

/* The group in which a node of the set has brought the op; NULL: in none, or not yet. */
static const struct engine_tensor *leader_at(const struct engine_op *op, uint32_t index)
{
    const struct engine_share *share = &engine_meeting_of(op)->shares[index];
    const struct engine_part *part = share->one;

    for (uint32_t i = 0; !part && share->each && i < op->set->span->places[index]; i++)
        part = share->each[i];
    return part ? part->leader : NULL;
}

/* The node has brought another group, whole, to the op where it all began: it brings nothing of this one. As
 * note_absence in negotiate.c. */
static bool stays_away(const struct engine_root *root, const struct engine_op *op, uint32_t index,
                       const struct engine_op *origin)
{
    const struct engine_root_node *node = &root->nodes[op->set->span->node[index]];
    const struct engine_tensor *leader = leader_at(origin, index);

    return op != origin && leader && leader != node->open &&
           !engine_meeting_of(op)->shares[index].came;
}

/* The nodes that have not reported it get to know, too. */
static void tell_failure(struct engine_root *root, struct engine_op *op,
                         const struct engine_op *origin, int status, const char *text,
                         int32_t culprit)
{
    const struct engine_places *span = op->set->span;
    struct hvi_mesh_verdict *verdict = engine_root_verdict_begin(root, op, HVI_MESH_FAILED);

    verdict->status = status;
    verdict->culprit = culprit;
    snprintf(verdict->text, sizeof verdict->text, "%s", text);
    for (uint32_t i = 0; i < span->nodes; i++) {
        struct engine_root_node *node = &root->nodes[span->node[i]];
        if (stays_away(root, op, i, origin))
            continue;
        engine_root_verdict_send(root, span->node[i]);
        if (!engine_meeting_of(op)->shares[i].came)
            engine_root_stale_remember(
                node, engine_root_stale_new(op, node->number, status, text, culprit));
        else if (node->open && !node->dropped && engine_meeting_has_leader(op, node->open))
            node->dropped = engine_root_stale_new(op, node->number, status, text, culprit);
    }
}

static void fall(struct engine_root *root, struct engine_op *op, struct engine_op ***last_p)
{
    engine_meeting_unlist(root, op);
    op->fallen = NULL;
    **last_p = op;
    *last_p = &op->fallen;
}

static void fall_with(struct engine_root *root, const struct engine_tensor *leader,
                      struct engine_op ***last_p)
{
    struct engine_op *next;

    for (struct engine_op *op = root->first; op; op = next) {
        next = op->next;
        if (engine_meeting_has_leader(op, leader))
            fall(root, op, last_p);
    }
}

void engine_root_fail(struct engine_root *root, struct engine_op *origin, int status,
                      const char *text, int32_t culprit)
{
    struct engine_op *first = NULL, **last = &first, *next;

    fall(root, origin, &last);
    for (struct engine_op *op = first; op; op = op->fallen) {
        for (const struct engine_voice *voice = engine_meeting_of(op)->voices; voice;
             voice = voice->next) {
            if (voice->part.leader)
                fall_with(root, voice->part.leader, &last);
        }
    }
    for (struct engine_op *op = first; op; op = op->fallen)
        tell_failure(root, op, origin, status, text, culprit);
    for (struct engine_op *op = first; op; op = next) {
        next = op->fallen;
        engine_meeting_free(root, engine_meeting_of(op));
    }
}
