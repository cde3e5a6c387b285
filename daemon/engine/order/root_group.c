/* SPDX-License-Identifier: Apache-2.0
 * Root: the members of a group, and what is said when nodes do not mean the same ones. */
#include "daemon/engine/order/root_group.h"

#include "base/status.h"
#include "daemon/engine/order/root_fail.h"

#include <stdio.h>
#include <stdlib.h>

bool engine_root_group_take(struct engine_op *leader, const struct engine_part *part,
                            struct engine_op *op)
{
    struct engine_meeting *meeting = engine_meeting_of(leader);

    if (!meeting->members) {
        meeting->members = calloc(part->copy.group_size, sizeof *meeting->members);
        meeting->member_count = meeting->members ? part->copy.group_size : 0;
    }
    if (meeting->member_count != part->copy.group_size || meeting->members[part->copy.group_index])
        return false;
    meeting->members[part->copy.group_index] = op;
    return true;
}

/* The tensor that a node names at an index of the group; NULL: none. */
static const struct engine_tensor *member_at(const struct engine_root *root,
                                             const struct engine_op *leader, uint32_t set_rank,
                                             uint32_t index)
{
    for (const struct engine_op *op = root->first; op; op = op->next) {
        const struct engine_part *part = op->set == leader->set && op->kind != HVI_KIND_JOIN
                                             ? engine_meeting_part(engine_meeting_of(op), set_rank)
                                             : NULL;
        if (part && part->leader == leader->tensor && part->copy.group_index == index)
            return op->tensor;
    }
    return NULL;
}

/* The first place at which two ranks' groups have different tensors. */
static void describe_group(const struct engine_root *root, const struct engine_op *leader,
                           char *text_p, size_t text_size)
{
    const struct engine_part *first = engine_op_first_part(leader);
    char label[ENGINE_LABEL], my_name[ENGINE_LABEL], their_name[ENGINE_LABEL];
    uint32_t mine = 0;

    engine_tensor_label(leader->tensor, label);
    snprintf(text_p, text_size, "%s '%s': ranks disagree on the members of its group",
             hvi_kind_text(first->copy.kind), label);
    while (!leader->parts[mine])
        mine++;
    for (uint32_t theirs = mine + 1; theirs < leader->set->places; theirs++) {
        for (uint32_t at = 0; leader->parts[theirs] && at < first->copy.group_size; at++) {
            const struct engine_tensor *here = member_at(root, leader, mine, at);
            const struct engine_tensor *there = member_at(root, leader, theirs, at);
            if (here == there || !here || !there)
                continue;
            engine_tensor_label(here, my_name);
            engine_tensor_label(there, their_name);
            snprintf(text_p, text_size,
                     "%s '%s': ranks disagree on member %u of %u of its group: rank %d said "
                     "'%s'; rank %d said '%s'",
                     hvi_kind_text(first->copy.kind), label, at + 1, first->copy.group_size,
                     engine_set_rank_at(leader->set, mine), my_name,
                     engine_set_rank_at(leader->set, theirs), their_name);
            return;
        }
    }
}

void engine_root_group_check(struct engine_root *root, struct engine_op *leader)
{
    char text[HVI_TEXT_MAX + 1];

    if (leader->state != ENGINE_OP_HELD || leader->group_started ||
        engine_meeting_of(leader)->unfinished > 0 ||
        leader->group_held == engine_meeting_of(leader)->voices->part.copy.group_size)
        return;
    engine_meeting_assemble(root, leader);
    describe_group(root, leader, text, sizeof text);
    engine_root_fail(root, leader, HVI_ERR_MISMATCH, text, -1);
}
