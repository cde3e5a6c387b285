/* SPDX-License-Identifier: Apache-2.0
 * Meeting: an op at the root, and what nodes have said of it.
 *
 * Its parts are made of what nodes say: ranks that say the same share one, which goes with the op. The array of parts
 * is one for all ops, filled while an op is judged: nothing else here is sized by ranks. */
#include "daemon/engine/order/meeting.h"

#include <stdlib.h>

struct engine_meeting *engine_meeting_new(struct engine_root *root, struct engine_set *set,
                                          struct engine_tensor *tensor, uint16_t kind)
{
    struct engine_meeting *meeting =
        calloc(1, sizeof *meeting + set->span->nodes * sizeof meeting->shares[0]);

    if (!meeting)
        return NULL;
    struct engine_op *op = &meeting->op;
    op->set = engine_set_get(set);
    op->tensor = tensor;
    tensor->refs++;
    op->kind = kind;
    op->first_ns = root->now_ns;
    op->culprit = -1;
    op->missing = set->span->nodes;
    meeting->room = UINT64_MAX;
    meeting->last = -1;
    op->prev = root->last;
    if (op->prev)
        op->prev->next = op;
    else
        root->first = op;
    root->last = op;
    root->count++;
    if (kind == HVI_KIND_JOIN)
        set->join = op;
    else
        tensor->waiting = op;
    return meeting;
}

void engine_meeting_unlist(struct engine_root *root, struct engine_op *op)
{
    if (op->prev)
        op->prev->next = op->next;
    else
        root->first = op->next;
    if (op->next)
        op->next->prev = op->prev;
    else
        root->last = op->prev;
    op->next = op->prev = NULL;
    root->count--;
    if (op->set->join == op)
        op->set->join = NULL;
    if (op->tensor->waiting == op)
        op->tensor->waiting = NULL;
}

void engine_meeting_free(struct engine_root *root, struct engine_meeting *meeting)
{
    struct engine_voice *next;

    for (uint32_t i = 0; i < meeting->op.set->span->nodes; i++) {
        free(meeting->shares[i].each);
        free(meeting->shares[i].instances);
    }
    for (struct engine_voice *voice = meeting->voices; voice; voice = next) {
        next = voice->next;
        if (voice->part.leader)
            engine_tensor_put(&root->tensors, voice->part.leader);
        free(voice->part.integers);
        free(voice);
    }
    free(meeting->members);
    engine_tensor_put(&root->tensors, meeting->op.tensor);
    engine_set_put(meeting->op.set);
    free(meeting);
}

void engine_meeting_drop(struct engine_root *root, struct engine_op *op)
{
    engine_meeting_unlist(root, op);
    engine_meeting_free(root, engine_meeting_of(op));
}

bool engine_meeting_has_joined(const struct engine_set *set, uint32_t index)
{
    return set->join && engine_meeting_of(set->join)->shares[index].came;
}

bool engine_meeting_has_leader(const struct engine_op *op, const struct engine_tensor *leader)
{
    for (const struct engine_voice *voice = engine_meeting_of(op)->voices; voice;
         voice = voice->next) {
        if (voice->part.leader == leader)
            return true;
    }
    return false;
}

struct engine_part *engine_meeting_part(const struct engine_meeting *meeting, uint32_t set_rank)
{
    const struct engine_places *span = meeting->op.set->span;
    const struct engine_share *share = &meeting->shares[span->home[set_rank]];

    if (!share->came)
        return NULL;
    return share->one ? share->one : share->each ? share->each[span->place[set_rank]] : NULL;
}

/* The worker that has its memory; 0: none has. */
static uint64_t instance_of(const struct engine_meeting *meeting, uint32_t set_rank)
{
    const struct engine_places *span = meeting->op.set->span;
    const struct engine_share *share = &meeting->shares[span->home[set_rank]];

    return share->instances ? share->instances[span->place[set_rank]] : 0;
}

void engine_meeting_assemble(struct engine_root *root, struct engine_op *op)
{
    op->parts = root->parts;
    op->own_sizes = root->sizes;
    op->parts_present = 0;
    root->joined_count = 0;
    root->on_gpus = false;
    for (uint32_t i = 0; i < op->set->size; i++) {
        op->parts[i] = engine_meeting_part(engine_meeting_of(op), i);
        root->instances[i] = instance_of(engine_meeting_of(op), i);
        root->on_gpus = root->on_gpus || root->instances[i] != 0;
        if (op->parts[i])
            op->parts_present++;
        else
            root->joined[root->joined_count++] = (int32_t)i;
    }
}
