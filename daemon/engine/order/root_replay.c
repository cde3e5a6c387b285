/* SPDX-License-Identifier: Apache-2.0
 * Root: works that repeat.
 *
 *   works repeat (steps.c) --REPEATS--> live --a report, HALT--> halting --all HALTED--> RESUMES
 *
 * While it is live nodes start works by themselves (schedule.c), and the root starts and fails none: reports
 * wait until all nodes have been halted. */
#include "daemon/engine/order/root_replay.h"

#include "base/status.h"
#include "daemon/engine/order/root_stale.h"
#include "daemon/engine/order/root_verdict.h"
#include "daemon/engine/order/schedule.h"
#include "daemon/engine/order/sizes.h"

#include <stdlib.h>

static struct hvi_mesh_verdict *begin_for_all(struct engine_root *root, enum hvi_mesh_what what)
{
    root->verdict = (struct hvi_mesh_verdict){
        .what = what,
        .serial = root->sets.by_id[0]->serial,
        .has_tensor = true,
        .last = -1,
        .culprit = -1,
    };
    return &root->verdict;
}

/* Every node keeps the sizes. */
static bool are_kept(const struct engine_op *op)
{
    const struct engine_places *span = op->set->span;

    for (uint32_t i = 0; i < span->nodes; i++) {
        if (engine_sizes_kept(op->kind, op->set->size, span->places[i]) > ENGINE_SIZES_KEPT_MAX)
            return false;
    }
    return true;
}

bool engine_root_replay_may(const struct engine_root *root, const struct engine_op *op)
{
    const bool of_all =
        !op->set->join && op->set->span->nodes == root->roster->nodes && root->joined_count == 0;

    return root->replay && *root->replay && engine_schedule_may_repeat(op) && of_all &&
           (!root->on_gpus || engine_schedule_may_repeat_on_gpus(op, root->instances)) &&
           !(op->tensor->anon && engine_op_first_part(op)->leader) && are_kept(op);
}

/* Stands for the rows of all ranks, where each has its own. The op has been assembled. */
static uint64_t sizes_of(const struct engine_op *op)
{
    uint64_t hash = 14695981039346656037ull;

    for (uint32_t i = 0; i < op->set->size && engine_sizes_asks(op->kind); i++) {
        const struct engine_part *part = op->parts[i];
        hash = (hash ^ (uint64_t)(part ? part->copy.dims[0] : -1)) * 1099511628211ull;
        for (uint32_t k = 0; part && k < part->integer_count; k++)
            hash = (hash ^ (uint64_t)part->integers[k]) * 1099511628211ull;
    }
    return hash;
}

bool engine_root_replay_take_sizes(const struct engine_op *op, struct engine_tensor *name)
{
    const uint64_t sizes = sizes_of(op);
    const bool others = name->sizes != 0 && name->sizes != sizes;

    name->sizes = sizes;
    return others;
}

/* By what a work is known again: an unnamed one by what its ranks say. The caller holds one reference. NULL: no
 * memory, or nobody has said anything. */
static struct engine_tensor *step_name(struct engine_root *root, const struct engine_op *op)
{
    const struct engine_voice *voice = engine_meeting_of(op)->voices;
    struct hvi_agreement said;

    if (!op->tensor->anon) {
        op->tensor->refs++;
        return op->tensor;
    }
    if (!voice)
        return NULL;
    hvi_agreement_of(&voice->part.copy, voice->part.in_bytes, &said);
    return engine_tensor_get_saying(&root->tensors, op->set->serial, &said);
}

/* Whether some node has reported an op of the step that repeats, for the next time: it would not start that by
 * itself, and the others would. */
static bool is_ahead(struct engine_root *root, const struct engine_op *started)
{
    for (const struct engine_op *op = root->first; op; op = op->next) {
        if (op == started || !engine_schedule_may_repeat(op))
            continue;
        struct engine_tensor *name = step_name(root, op);
        bool in_step = !name || engine_steps_have(&root->steps, name);
        if (name)
            engine_tensor_put(&root->tensors, name);
        if (in_step)
            return true;
    }
    return false;
}

/* A node is ahead at the end of each round if rounds end in the middle of what ranks take for a step, as they do
 * after a halt in its middle. Then they begin anew where no node is ahead. */
static bool may_announce(struct engine_root *root, const struct engine_op *op, bool repeats)
{
    bool looks = repeats || root->shifts;
    bool ahead = looks && is_ahead(root, op);

    if (looks && !ahead && !repeats)
        engine_steps_forget(&root->steps, &root->tensors);
    root->shifts = looks && ahead;
    return repeats && !ahead;
}

/* The rest of its group starts next. */
static bool has_more(const struct engine_op *op)
{
    const struct engine_part *first = engine_op_first_part(op);

    return first->leader && first->copy.group_index + 1 < first->copy.group_size;
}

int engine_root_replay_watch(struct engine_root *root, const struct engine_op *op, bool repeats)
{
    if (!repeats) {
        engine_steps_forget(&root->steps, &root->tensors);
        return HVI_OK;
    }
    struct engine_tensor *name = step_name(root, op);
    if (!name)
        return HVI_ERR_NO_MEMORY;
    if (engine_root_replay_take_sizes(op, name))
        engine_steps_forget(&root->steps, &root->tensors);
    uint32_t count = engine_steps_note(&root->steps, &root->tensors, name);
    engine_tensor_put(&root->tensors, name);
    if (has_more(op) || !may_announce(root, op, count > 0))
        return HVI_OK;
    struct hvi_mesh_verdict *verdict = begin_for_all(root, HVI_MESH_REPEATS);
    verdict->count = root->repeating = count;
    verdict->sequence = root->sequence + 1;
    engine_root_verdict_send_to_all(root);
    for (uint32_t node = 0; node < root->roster->nodes; node++)
        root->nodes[node].announced = root->nodes[node].number;
    root->live = true;
    return HVI_OK;
}

void engine_root_replay_halt(struct engine_root *root)
{
    if (root->halting)
        return;
    root->halting = true;
    root->halted = 0;
    root->top = 0;
    for (uint32_t node = 0; node < root->roster->nodes; node++)
        root->nodes[node].halted = false;
    begin_for_all(root, HVI_MESH_HALT);
    engine_root_verdict_send_to_all(root);
}

void engine_root_replay_resume(struct engine_root *root, uint64_t least)
{
    struct hvi_mesh_verdict *verdict = begin_for_all(root, HVI_MESH_RESUMES);

    engine_steps_learn(&root->steps, (least - (root->sequence + 1)) / root->repeating);
    engine_steps_forget(&root->steps, &root->tensors);
    verdict->least = least;
    verdict->sequence = root->top;
    root->sequence = root->top - 1;
    root->live = root->halting = false;
    engine_root_verdict_send_to_all(root);
}

/* ---- reports that came meanwhile ---- */

#define LATE_MAX (4 * ENGINE_ROOT_WAITING_MAX)

int engine_root_late_keep(struct engine_root *root, uint32_t node,
                          const struct hvi_mesh_report *report)
{
    const struct hvi_mesh_packet packet = {.from = node, .has_report = true, .report = *report};
    struct engine_root_late *late = root->late_count < LATE_MAX ? calloc(1, sizeof *late) : NULL;

    if (!late)
        return root->late_count < LATE_MAX ? HVI_ERR_NO_MEMORY : HVI_ERR_LIMIT;
    int status = hvi_mesh_encode(&packet, &late->bytes, &late->length);
    if (status != HVI_OK) {
        free(late);
        return status;
    }
    if (root->late)
        *root->late_end = late;
    else
        root->late = late;
    root->late_end = &late->next;
    root->late_count++;
    return HVI_OK;
}

struct engine_root_late *engine_root_late_take(struct engine_root *root)
{
    struct engine_root_late *late = root->late;

    if (!late)
        return NULL;
    root->late = late->next;
    root->late_count--;
    return late;
}

void engine_root_late_free(struct engine_root_late *late)
{
    free(late->bytes);
    free(late);
}
