/* SPDX-License-Identifier: Apache-2.0
 * Root: which ranks an op waits for, on nodes other than those that have reported it. */
#include "daemon/engine/order/meeting.h"

#include <string.h>

bool engine_root_is_same(const struct engine_op *op, const struct engine_op *reported)
{
    const struct engine_tensor *mine = op->tensor, *theirs = reported->tensor;

    if (op->set->serial != reported->set->serial ||
        (op->kind == HVI_KIND_JOIN) != (reported->kind == HVI_KIND_JOIN))
        return false;
    return op->kind == HVI_KIND_JOIN ||
           (mine->hash == theirs->hash && mine->anon == theirs->anon &&
            mine->name_bytes == theirs->name_bytes &&
            (mine->anon || memcmp(mine->name, theirs->name, mine->name_bytes) == 0));
}

struct engine_op *engine_root_next_without(const struct engine_root *root, uint32_t node,
                                           const struct engine_op *after)
{
    struct engine_op *op = after ? after->next : root->first;

    for (; op; op = op->next) {
        uint32_t index = engine_places_find(op->set->span, node);
        if (index == UINT32_MAX || !engine_meeting_of(op)->shares[index].came)
            return op;
    }
    return NULL;
}

uint32_t engine_root_missing(const struct engine_root *root, uint32_t node,
                             const struct engine_op *reported, int32_t *ranks_p, uint32_t most)
{
    const struct engine_op *op = root->first;
    uint32_t count = 0;

    while (op && !engine_root_is_same(op, reported))
        op = op->next;
    if (!op)
        return 0;
    const struct engine_places *span = op->set->span;
    for (uint32_t i = 0; i < op->set->size; i++) {
        uint32_t home = span->home[i];
        if (engine_meeting_of(op)->shares[home].came || span->node[home] == node ||
            (op->kind != HVI_KIND_JOIN && engine_meeting_has_joined(op->set, home)))
            continue;
        if (count < most)
            ranks_p[count] = engine_set_rank_at(op->set, i);
        count++;
    }
    return count;
}
