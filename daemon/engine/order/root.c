/* SPDX-License-Identifier: Apache-2.0
 * Root: what negotiate.c does with the parts of ranks, with the reports of nodes.
 *
 *   WAITING --last node reported, all agree--> starts --> over
 *    |  |              |                         ^
 *    |  |              +--not every output is sure to fit--> SIZING --all nodes say SIZED--> starts
 *    |  +--the same, in a group--> HELD --its whole group is so far--^
 *    +--mismatch, or a node says so--> over, on every node
 *
 * A node may take back what it has reported (RETRACT) while others are missing; groups stay.
 *
 * An op here is an engine_op with a part for every member of its set, by set rank, so that agree.c and
 * sizes.c judge it as if all ranks were on one node. The parts are made of what nodes say: ranks that
 * say the same share one, which goes with the op. The array of parts is one for all ops, filled while
 * an op is judged: nothing else here is sized by ranks.
 *
 * A node of which all members have joined is present with nothing.
 *
 * A failure reaches nodes that have not reported the op. What such a node says of the op before it has
 * seen the verdict (.seen) is of the op that failed, and is dropped, once: `struct stale`. If that was
 * a member of a group, the rest of the node's group fails as well.
 *
 *   works repeat (steps.c) --REPEATS--> live --a report, HALT--> halting --all HALTED--> RESUMES
 *
 * While it is live nodes start works by themselves (schedule.c), and the root starts and fails none: reports
 * wait until all nodes have been halted. */
#include "daemon/engine/order/root.h"

#include "base/assert.h"
#include "base/bits.h"
#include "base/status.h"
#include "daemon/engine/order/agree.h"
#include "daemon/engine/order/root_partial.h"
#include "daemon/engine/order/schedule.h"
#include "daemon/engine/order/sentence.h"
#include "daemon/engine/order/set_ops.h"
#include "daemon/engine/order/sizes.h"
#include "daemon/engine/order/span.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What some members say alike. */
struct voice {
    struct voice *next;
    struct engine_part part;
};

/* A node's share of an op. */
struct share {
    bool came;
    struct engine_part *one;   /* all its members say this; NULL: see .each */
    struct engine_part **each; /* by place there; NULL: joined */
    uint64_t *instances;       /* likewise: workers of GPUs; NULL: memory of the host */
};

struct meeting {
    struct engine_op op; /* .missing: nodes */
    struct voice *voices;
    uint64_t room;              /* that every output has */
    uint32_t unsized;           /* SIZING: nodes that have not said that their outputs take it */
    uint32_t unfinished;        /* leader: nodes of which the group is being reported */
    struct engine_op **members; /* leader: those that are held, by index */
    uint32_t member_count;      /* that there should be */
    int32_t last;               /* JOIN: the last rank */
    struct share shares[];      /* by node of the set */
};

/* A node may still report an op that has failed. */
struct stale {
    struct stale *next;
    struct engine_tensor *tensor;
    uint64_t number; /* of the verdict that says so */
    int status;
    int32_t culprit;
    char *text;
};

struct engine_root_node {
    uint64_t number;    /* of its last verdict */
    uint64_t announced; /* of the last one that says that works repeat */
    bool halted;
    struct stale *first, **last; /* oldest first */
    /* The group that is being reported; and why it fails, when it is all here. */
    struct engine_tensor *open;
    struct stale *dropped;
};

#define GROUP_MAX 65536u /* members, whatever a node says */

/* The message that it was. */
struct engine_root_late {
    struct engine_root_late *next;
    size_t length;
    unsigned char *bytes;
};

#define LATE_MAX (4 * ENGINE_ROOT_WAITING_MAX)

struct hearing {
    struct engine_root *root;
    uint32_t node, index; /* in the job, in the set */
    const struct hvi_mesh_report *report;
    struct engine_set *set;
    struct engine_tensor *tensor;
    char *text;
    size_t text_size;
};

static struct meeting *meeting_of(const struct engine_op *op)
{
    return (struct meeting *)(uintptr_t)op;
}

int engine_root_init(struct engine_root *root, const struct engine_roster *roster,
                     const struct engine_root_calls *calls, void *user)
{
    root->roster = roster;
    root->calls = calls;
    root->user = user;
    root->nodes = calloc(roster->nodes, sizeof *root->nodes);
    root->parts = calloc((size_t)roster->size, sizeof *root->parts);
    root->sizes = calloc((size_t)roster->size, sizeof *root->sizes);
    root->joined = calloc((size_t)roster->size, sizeof *root->joined);
    root->instances = calloc((size_t)roster->size, sizeof *root->instances);
    if (!root->nodes || !root->parts || !root->sizes || !root->joined || !root->instances ||
        engine_sets_init(&root->sets, roster) != HVI_OK ||
        engine_steps_init(&root->steps) != HVI_OK) {
        engine_root_fini(root);
        return HVI_ERR_NO_MEMORY;
    }
    for (uint32_t i = 0; i < roster->nodes; i++)
        root->nodes[i].last = &root->nodes[i].first;
    engine_set_place_all(root->sets.by_id[0]);
    return HVI_OK;
}

/* ---- meetings ---- */

static struct meeting *meeting_new(struct engine_root *root, struct engine_set *set,
                                   struct engine_tensor *tensor, uint16_t kind)
{
    struct meeting *meeting =
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

static void unlist(struct engine_root *root, struct engine_op *op)
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

/* Unlisted. */
static void meeting_free(struct engine_root *root, struct meeting *meeting)
{
    struct voice *next;

    for (uint32_t i = 0; i < meeting->op.set->span->nodes; i++) {
        free(meeting->shares[i].each);
        free(meeting->shares[i].instances);
    }
    for (struct voice *voice = meeting->voices; voice; voice = next) {
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

static void drop(struct engine_root *root, struct engine_op *op)
{
    unlist(root, op);
    meeting_free(root, meeting_of(op));
}

static bool has_joined(const struct engine_set *set, uint32_t index)
{
    return set->join && meeting_of(set->join)->shares[index].came;
}

/* ---- stale reports ---- */

static void stale_free(struct engine_root *root, struct stale *stale)
{
    engine_tensor_put(&root->tensors, stale->tensor);
    free(stale->text);
    free(stale);
}

static struct stale *stale_new(const struct engine_op *op, uint64_t number, int status,
                               const char *text, int32_t culprit)
{
    struct stale *stale = calloc(1, sizeof *stale);

    if (!stale)
        return NULL;
    stale->tensor = op->tensor;
    stale->tensor->refs++;
    stale->number = number;
    stale->status = status;
    stale->culprit = culprit;
    stale->text = strdup(text);
    return stale;
}

static void remember_stale(struct engine_root_node *node, struct stale *stale)
{
    if (!stale)
        return;
    *node->last = stale;
    node->last = &stale->next;
}

static void forget_seen(struct engine_root *root, struct engine_root_node *node, uint64_t seen)
{
    while (node->first && node->first->number <= seen) {
        struct stale *stale = node->first;
        node->first = stale->next;
        if (!node->first)
            node->last = &node->first;
        stale_free(root, stale);
    }
}

/* Out of the list, or NULL. */
static struct stale *take_stale(struct engine_root_node *node, const struct engine_tensor *tensor)
{
    struct stale **link = &node->first, *stale;

    while (*link && (*link)->tensor != tensor)
        link = &(*link)->next;
    stale = *link;
    if (!stale)
        return NULL;
    *link = stale->next;
    if (!stale->next)
        node->last = link;
    stale->next = NULL;
    return stale;
}

static struct engine_root_late *take_late(struct engine_root *root)
{
    struct engine_root_late *late = root->late;

    if (!late)
        return NULL;
    root->late = late->next;
    root->late_count--;
    return late;
}

static void late_free(struct engine_root_late *late)
{
    free(late->bytes);
    free(late);
}

void engine_root_fini(struct engine_root *root)
{
    while (root->late)
        late_free(take_late(root));
    engine_steps_fini(&root->steps, &root->tensors);
    while (root->first)
        drop(root, root->first);
    engine_root_partial_fini(root);
    for (uint32_t i = 0; root->nodes && i < root->roster->nodes; i++) {
        forget_seen(root, &root->nodes[i], UINT64_MAX);
        if (root->nodes[i].dropped)
            stale_free(root, root->nodes[i].dropped);
        if (root->nodes[i].open)
            engine_tensor_put(&root->tensors, root->nodes[i].open);
    }
    engine_sets_fini(&root->sets);
    engine_tensors_fini(&root->tensors);
    free(root->nodes);
    free(root->parts);
    free(root->sizes);
    free(root->joined);
    free(root->instances);
    *root = (struct engine_root){0};
}

/* ---- verdicts ---- */

static struct hvi_mesh_verdict *begin(struct engine_root *root, const struct engine_op *op,
                                      enum hvi_mesh_what what)
{
    root->verdict = (struct hvi_mesh_verdict){
        .what = what,
        .set = op->set->id,
        .serial = op->set->serial,
        .kind = op->kind,
        .tensor = engine_span_name(op->tensor),
        .has_tensor = true,
        .last = -1,
        .culprit = -1,
    };
    return &root->verdict;
}

static void send(struct engine_root *root, uint32_t node)
{
    root->verdict.number = ++root->nodes[node].number;
    root->calls->verdict(root->user, node, &root->verdict);
}

void engine_root_send(struct engine_root *root, uint32_t node)
{
    send(root, node);
}

static void send_to_all(struct engine_root *root)
{
    root->verdict.number = ++root->said_to_all;
    for (uint32_t node = 0; node < root->roster->nodes; node++)
        root->nodes[node].number++;
    root->calls->verdict_for_all(root->user, &root->verdict);
}

static bool has_leader(const struct engine_op *op, const struct engine_tensor *leader)
{
    for (const struct voice *voice = meeting_of(op)->voices; voice; voice = voice->next) {
        if (voice->part.leader == leader)
            return true;
    }
    return false;
}

/* The nodes that have not reported it get to know, too. */
static void tell_failure(struct engine_root *root, struct engine_op *op, int status,
                         const char *text, int32_t culprit)
{
    const struct engine_places *span = op->set->span;
    struct hvi_mesh_verdict *verdict = begin(root, op, HVI_MESH_FAILED);

    verdict->status = status;
    verdict->culprit = culprit;
    snprintf(verdict->text, sizeof verdict->text, "%s", text);
    for (uint32_t i = 0; i < span->nodes; i++) {
        struct engine_root_node *node = &root->nodes[span->node[i]];
        send(root, span->node[i]);
        if (!meeting_of(op)->shares[i].came)
            remember_stale(node, stale_new(op, node->number, status, text, culprit));
        else if (node->open && !node->dropped && has_leader(op, node->open))
            node->dropped = stale_new(op, node->number, status, text, culprit);
    }
}

static void fall(struct engine_root *root, struct engine_op *op, struct engine_op ***last_p)
{
    unlist(root, op);
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
        if (has_leader(op, leader))
            fall(root, op, last_p);
    }
}

/* The op and whatever is bound to it by a group. */
static void fail(struct engine_root *root, struct engine_op *origin, int status, const char *text,
                 int32_t culprit)
{
    struct engine_op *first = NULL, **last = &first, *next;

    fall(root, origin, &last);
    for (struct engine_op *op = first; op; op = op->fallen) {
        for (const struct voice *voice = meeting_of(op)->voices; voice; voice = voice->next) {
            if (voice->part.leader)
                fall_with(root, voice->part.leader, &last);
        }
    }
    for (struct engine_op *op = first; op; op = next) {
        next = op->fallen;
        tell_failure(root, op, status, text, culprit);
        meeting_free(root, meeting_of(op));
    }
}

/* ---- an op of all ranks ---- */

static struct engine_part *part_of(const struct meeting *meeting, uint32_t set_rank)
{
    const struct engine_places *span = meeting->op.set->span;
    const struct share *share = &meeting->shares[span->home[set_rank]];

    if (!share->came)
        return NULL;
    return share->one ? share->one : share->each ? share->each[span->place[set_rank]] : NULL;
}

/* The worker that has its memory; 0: none has. */
static uint64_t instance_of(const struct meeting *meeting, uint32_t set_rank)
{
    const struct engine_places *span = meeting->op.set->span;
    const struct share *share = &meeting->shares[span->home[set_rank]];

    return share->instances ? share->instances[span->place[set_rank]] : 0;
}

/* What is judged from here on. */
static void assemble(struct engine_root *root, struct engine_op *op)
{
    op->parts = root->parts;
    op->own_sizes = root->sizes;
    op->parts_present = 0;
    root->joined_count = 0;
    root->on_gpus = false;
    for (uint32_t i = 0; i < op->set->size; i++) {
        op->parts[i] = part_of(meeting_of(op), i);
        root->instances[i] = instance_of(meeting_of(op), i);
        root->on_gpus = root->on_gpus || root->instances[i] != 0;
        if (op->parts[i])
            op->parts_present++;
        else
            root->joined[root->joined_count++] = (int32_t)i;
    }
}

static int64_t rows_of(const struct engine_op *op, uint32_t set_rank)
{
    return op->parts[set_rank] ? op->parts[set_rank]->copy.dims[0] : 0;
}

/* Those that a node needs: NULL with a count of 0 if none. False: out of memory. */
static bool make_rows(struct engine_root *root, const struct engine_op *op, uint32_t index)
{
    const struct engine_places *span = op->set->span;
    struct hvi_mesh_verdict *verdict = &root->verdict;
    size_t size = op->set->size, lines = 1;

    free(verdict->rows);
    verdict->rows = NULL;
    verdict->row_count = 0;
    if (op->kind == HVI_KIND_ALLTOALL)
        lines = span->places[index];
    else if (op->kind != HVI_KIND_ALLGATHER)
        return true;
    verdict->rows = calloc(lines * size, sizeof *verdict->rows);
    if (!verdict->rows)
        return false;
    verdict->row_count = lines * size;
    for (uint32_t i = 0; op->kind == HVI_KIND_ALLGATHER && i < size; i++)
        verdict->rows[i] = rows_of(op, i);
    for (uint32_t to = 0; op->kind == HVI_KIND_ALLTOALL && to < size; to++) {
        int64_t *line = verdict->rows + span->place[to] * size;
        for (uint32_t from = 0; span->home[to] == index && from < size; from++)
            line[from] = engine_sizes_split(op, from, to);
    }
    return true;
}

/* Every node of the job takes part, and hears the same. */
static bool is_for_all(const struct engine_root *root, const struct engine_op *op)
{
    const struct engine_places *span = op->set->span;

    if (span->nodes < root->roster->nodes || op->kind == HVI_KIND_ALLTOALL)
        return false;
    for (uint32_t i = 0; i < span->nodes; i++) {
        if (!meeting_of(op)->shares[i].came)
            return false;
    }
    return true;
}

/* The verdict. False: out of memory. */
static bool send_to_each(struct engine_root *root, const struct engine_op *op, bool sizes)
{
    const struct engine_places *span = op->set->span;
    bool made = true;

    for (uint32_t i = 0; i < span->nodes && made; i++) {
        if (!meeting_of(op)->shares[i].came)
            continue;
        if (sizes && (i == 0 || op->kind == HVI_KIND_ALLTOALL || !root->verdict.rows))
            made = make_rows(root, op, i);
        if (made)
            send(root, span->node[i]);
    }
    return made;
}

/* To every node that takes part. The op has been assembled. */
static int announce(struct engine_root *root, const struct engine_op *op, enum hvi_mesh_what what)
{
    struct hvi_mesh_verdict *verdict = begin(root, op, what);
    bool sizes = what == HVI_MESH_SIZED || op->state != ENGINE_OP_SIZING, made = true;

    if (what == HVI_MESH_STARTS)
        verdict->sequence = ++root->sequence;
    if (op->kind != HVI_KIND_JOIN && sizes) {
        verdict->joined = root->joined;
        verdict->joined_count = root->joined_count;
        verdict->instances = root->instances;
        verdict->instance_count = root->on_gpus ? op->set->size : 0;
    }
    verdict->last = meeting_of(op)->last;
    verdict->new_set = op->new_set;
    verdict->new_serial = op->new_serial;
    if (!is_for_all(root, op))
        made = send_to_each(root, op, sizes);
    else if (!sizes || (made = make_rows(root, op, 0)))
        send_to_all(root);
    free(verdict->rows);
    verdict->rows = NULL;
    return made ? HVI_OK : HVI_ERR_NO_MEMORY;
}

/* Every engine finds for itself whether there is one of these ranks already. */
static int add_set(struct engine_root *root, struct engine_op *op)
{
    const struct engine_part *part = engine_op_first_part(op);
    struct engine_set *set;

    if (engine_sets_find_ranks(&root->sets, part->integers, part->integer_count))
        return HVI_OK;
    int status = engine_sets_add(&root->sets, part->integers, part->integer_count, &set);
    if (status != HVI_OK)
        return status == HVI_ERR_LIMIT ? HVI_OK : status;
    engine_set_place_all(set);
    op->new_set = set->id;
    op->new_serial = set->serial;
    return HVI_OK;
}

/* By `op`, which may be an op of the set. */
static void end_set(struct engine_root *root, const struct engine_op *op)
{
    uint32_t id = op->kind == HVI_KIND_SET_CLOSE ? op->set->id
                                                 : (uint32_t)engine_op_first_part(op)->copy.root;
    struct engine_set *set = engine_sets_find(&root->sets, id);
    struct engine_op *next;

    for (struct engine_op *waiting = root->first; waiting; waiting = next) {
        next = waiting->next;
        if (waiting->set == set && waiting != op)
            drop(root, waiting);
    }
    engine_sets_remove(&root->sets, set);
}

/* ---- works that repeat ---- */

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

/* Of every node and rank of its set. On memory of GPUs a node needs the verdict: it says where the others' is. */
static bool may_repeat(const struct engine_root *root, const struct engine_op *op)
{
    const bool of_all = !op->set->join && op->set->span->nodes == root->roster->nodes &&
                        root->joined_count == 0 && !root->on_gpus;

    return root->replay && *root->replay && engine_schedule_may_repeat(op) && of_all &&
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

/* True: other ones than the last time. */
static bool take_sizes(struct engine_tensor *name, uint64_t sizes)
{
    const bool others = name->sizes != 0 && name->sizes != sizes;

    name->sizes = sizes;
    return others;
}

/* By what a work is known again: an unnamed one by what its ranks say. The caller holds one reference. NULL: no
 * memory, or nobody has said anything. */
static struct engine_tensor *step_name(struct engine_root *root, const struct engine_op *op)
{
    const struct voice *voice = meeting_of(op)->voices;
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

/* The op has been assembled, and starts; it `repeats` if it, and its whole group, may. */
static int watch_steps(struct engine_root *root, const struct engine_op *op, bool repeats)
{
    if (!repeats) {
        engine_steps_forget(&root->steps, &root->tensors);
        return HVI_OK;
    }
    struct engine_tensor *name = step_name(root, op);
    if (!name)
        return HVI_ERR_NO_MEMORY;
    if (take_sizes(name, sizes_of(op)))
        engine_steps_forget(&root->steps, &root->tensors);
    uint32_t count = engine_steps_note(&root->steps, &root->tensors, name);
    engine_tensor_put(&root->tensors, name);
    if (has_more(op) || !may_announce(root, op, count > 0))
        return HVI_OK;
    struct hvi_mesh_verdict *verdict = begin_for_all(root, HVI_MESH_REPEATS);
    verdict->count = root->repeating = count;
    verdict->sequence = root->sequence + 1;
    send_to_all(root);
    for (uint32_t node = 0; node < root->roster->nodes; node++)
        root->nodes[node].announced = root->nodes[node].number;
    root->live = true;
    return HVI_OK;
}

static void halt(struct engine_root *root)
{
    if (root->halting)
        return;
    root->halting = true;
    root->halted = 0;
    root->top = 0;
    for (uint32_t node = 0; node < root->roster->nodes; node++)
        root->nodes[node].halted = false;
    begin_for_all(root, HVI_MESH_HALT);
    send_to_all(root);
}

/* All nodes have said how far they have come. */
static void resume(struct engine_root *root, uint64_t least)
{
    struct hvi_mesh_verdict *verdict = begin_for_all(root, HVI_MESH_RESUMES);

    engine_steps_learn(&root->steps, (least - (root->sequence + 1)) / root->repeating);
    engine_steps_forget(&root->steps, &root->tensors);
    verdict->least = least;
    verdict->sequence = root->top;
    root->sequence = root->top - 1;
    root->live = root->halting = false;
    send_to_all(root);
}

/* Of an op that has been assembled, and cannot fail any more. */
static int start_as(struct engine_root *root, struct engine_op *op, bool repeats)
{
    int status = HVI_OK;

    if (op->kind == HVI_KIND_SET_ADD)
        status = add_set(root, op);
    if (status == HVI_OK)
        status = announce(root, op, HVI_MESH_STARTS);
    if (status == HVI_OK && (op->kind == HVI_KIND_SET_REMOVE || op->kind == HVI_KIND_SET_CLOSE))
        end_set(root, op);
    if (status == HVI_OK)
        status = watch_steps(root, op, repeats);
    drop(root, op);
    return status;
}

static int start(struct engine_root *root, struct engine_op *op)
{
    assemble(root, op);
    return start_as(root, op, may_repeat(root, op));
}

/* ---- groups ---- */

static int start_group(struct engine_root *root, struct engine_op *leader)
{
    struct engine_op **members = meeting_of(leader)->members;
    uint32_t count = leader->group_held;
    bool repeats = true, others = false;
    int status = HVI_OK;

    meeting_of(leader)->members = NULL; /* the leader goes first */
    for (uint32_t i = 0; i < count; i++) {
        assemble(root, members[i]);
        repeats = repeats && may_repeat(root, members[i]);
        others = (repeats && take_sizes(members[i]->tensor, sizes_of(members[i]))) || others;
    }
    if (others) /* a step begins before the group, not within it */
        engine_steps_forget(&root->steps, &root->tensors);
    for (uint32_t i = 0; i < count && status == HVI_OK; i++) {
        assemble(root, members[i]);
        status = start_as(root, members[i], repeats);
    }
    free(members);
    return status;
}

static int sized(struct engine_root *root, struct engine_op *op)
{
    if (!op->group)
        return start(root, op);
    return --op->group->group_sizing == 0 ? start_group(root, op->group) : HVI_OK;
}

/* Complete and agreed, and so is its group. Here outputs are asked for if they have to be. */
static int proceed(struct engine_root *root, struct engine_op *op)
{
    struct meeting *meeting = meeting_of(op);
    char text[HVI_TEXT_MAX + 1];
    uint64_t most = 0;
    int status;

    if (!engine_sizes_asks(op->kind))
        return sized(root, op);
    assemble(root, op);
    status = engine_sizes_whole(op, &most, text, sizeof text);
    if (status != HVI_OK) {
        fail(root, op, status, text, -1);
        return HVI_OK;
    }
    if (most <= meeting->room && meeting->room > 0)
        return sized(root, op);
    for (uint32_t i = 0; i < op->set->span->nodes; i++)
        meeting->unsized += meeting->shares[i].came;
    status = announce(root, op, HVI_MESH_SIZED);
    op->state = ENGINE_OP_SIZING;
    return status;
}

/* All members are there. */
static int proceed_group(struct engine_root *root, struct engine_op *leader)
{
    struct engine_op **members = meeting_of(leader)->members;
    uint32_t count = leader->group_held, before = root->count;
    int status = HVI_OK;

    leader->group_started = true;
    leader->group_sizing = count;
    for (uint32_t i = 0; i < count && status == HVI_OK && root->count == before; i++)
        status = proceed(root, members[i]); /* the group goes as a whole, if it goes */
    return status;
}

static bool take_place(struct engine_op *leader, const struct engine_part *part,
                       struct engine_op *op)
{
    struct meeting *meeting = meeting_of(leader);

    if (!meeting->members) {
        meeting->members = calloc(part->copy.group_size, sizeof *meeting->members);
        meeting->member_count = meeting->members ? part->copy.group_size : 0;
    }
    if (meeting->member_count != part->copy.group_size || meeting->members[part->copy.group_index])
        return false;
    meeting->members[part->copy.group_index] = op;
    return true;
}

static int hold(struct engine_root *root, struct engine_op *op)
{
    const struct engine_part *part = engine_op_first_part(op);
    struct engine_op *leader = part->leader->waiting;

    if (!leader || leader->state > ENGINE_OP_HELD || !take_place(leader, part, op)) {
        fail(root, op, HVI_ERR_MISMATCH, "the ranks disagree on the members of a group", -1);
        return HVI_OK;
    }
    op->state = ENGINE_OP_HELD;
    op->group = leader;
    leader->group_held++;
    return leader->group_held == part->copy.group_size ? proceed_group(root, leader) : HVI_OK;
}

/* The tensor that a node names at an index of the group; NULL: none. */
static const struct engine_tensor *member_at(const struct engine_root *root,
                                             const struct engine_op *leader, uint32_t set_rank,
                                             uint32_t index)
{
    for (const struct engine_op *op = root->first; op; op = op->next) {
        const struct engine_part *part = op->set == leader->set && op->kind != HVI_KIND_JOIN
                                             ? part_of(meeting_of(op), set_rank)
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

/* A held leader whose nodes have all reported their groups: fails if they are not the same. */
static void check_group(struct engine_root *root, struct engine_op *leader)
{
    char text[HVI_TEXT_MAX + 1];

    if (leader->state != ENGINE_OP_HELD || leader->group_started ||
        meeting_of(leader)->unfinished > 0 ||
        leader->group_held == meeting_of(leader)->voices->part.copy.group_size)
        return;
    assemble(root, leader);
    describe_group(root, leader, text, sizeof text);
    fail(root, leader, HVI_ERR_MISMATCH, text, -1);
}

/* ---- from waiting to a verdict ---- */

static int complete(struct engine_root *root, struct engine_op *op)
{
    char text[HVI_TEXT_MAX + 1];
    int status;

    if (op->kind == HVI_KIND_JOIN)
        return start(root, op);
    assemble(root, op);
    op->kind = engine_op_first_part(op)->copy.kind;
    status = engine_agree_check(op, text, sizeof text);
    if (status == HVI_OK && op->kind == HVI_KIND_SET_REMOVE)
        status = engine_set_check_removal(&root->sets, op, text, sizeof text);
    if (status != HVI_OK) {
        fail(root, op, status, text, -1);
        return HVI_OK;
    }
    return engine_op_first_part(op)->leader ? hold(root, op) : proceed(root, op);
}

/* The node is not waited for any more. Completing an op may take others along: then from the start. */
static int sweep(struct engine_root *root, const struct engine_set *set)
{
    struct engine_op *op = root->first;
    int status = HVI_OK;

    while (op && status == HVI_OK) {
        struct engine_op *next = op->next;
        if (op->set == set && op != set->join && op->state == ENGINE_OP_WAITING &&
            op->missing == 0) {
            status = complete(root, op);
            next = root->first;
        }
        op = next;
    }
    for (op = root->first; op && status == HVI_OK;) {
        uint32_t before = root->count;
        if (op->set == set && op->group == op)
            check_group(root, op);
        op = root->count < before ? root->first : op->next;
    }
    return status;
}

/* ---- reports ---- */

#define disbelieve(hearing, ...)                                                                   \
    engine_sentence_bad_report((hearing)->text, (hearing)->text_size, (hearing)->node, __VA_ARGS__)

static bool moves(uint32_t kind)
{
    return kind == HVI_KIND_ALLREDUCE || kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_BROADCAST ||
           kind == HVI_KIND_ALLTOALL || kind == HVI_KIND_REDUCESCATTER;
}

static double number_of(uint64_t bits)
{
    double number;

    memcpy(&number, &bits, sizeof number);
    return number;
}

/* What intake.c checks of a submission. */
static int take_shape(const struct hearing *hearing, const struct hvi_mesh_said *said,
                      struct engine_part *part)
{
    uint32_t element = said->dtype <= UINT8_MAX ? hvi_dtype_bytes((uint8_t)said->dtype) : 0;
    uint64_t count = 1;
    bool empty = false, fits = true;

    if (element == 0 || said->reduce_op > UINT8_MAX || said->ndim > HVI_DIMS_MAX)
        return disbelieve(hearing, "dtype %u, reduce op %u, %zu dimensions", said->dtype,
                          said->reduce_op, said->ndim);
    for (size_t i = 0; i < said->ndim; i++) {
        if (said->dims[i] < 0)
            return disbelieve(hearing, "a dimension is %" PRId64, said->dims[i]);
        part->copy.dims[i] = said->dims[i];
        empty = empty || said->dims[i] == 0;
    }
    for (size_t i = 0; i < said->ndim && !empty; i++)
        fits = fits && hvi_mul_checked(count, (uint64_t)said->dims[i], &count);
    count = empty ? 0 : count;
    if (!fits || !hvi_mul_checked(count, element, &part->in_bytes))
        return disbelieve(hearing, "the shape's size overflows");
    part->copy.dtype = (uint8_t)said->dtype;
    part->copy.reduce_op = (uint8_t)said->reduce_op;
    part->copy.ndim = (uint8_t)said->ndim;
    part->copy.count = count;
    part->copy.prescale = number_of(said->prescale);
    part->copy.postscale = number_of(said->postscale);
    return HVI_OK;
}

static int take_group(const struct hearing *hearing, const struct hvi_mesh_said *said,
                      struct engine_part *part)
{
    if (!said->has_leader)
        return HVI_OK;
    if (said->group_index >= said->group_size || said->group_size > GROUP_MAX || !moves(said->kind))
        return disbelieve(hearing, "member %u of a group of %u", said->group_index,
                          said->group_size);
    part->leader = engine_span_tensor(&hearing->root->tensors, hearing->set->serial, &said->leader);
    if (!part->leader)
        return disbelieve(hearing, "a group without a name");
    part->copy.group_size = said->group_size;
    part->copy.group_index = said->group_index;
    return HVI_OK;
}

static int take_integers(const struct hearing *hearing, const struct hvi_mesh_said *said,
                         struct engine_part *part)
{
    if (said->integer_count == 0)
        return HVI_OK;
    if (said->kind != HVI_KIND_SET_ADD &&
        (said->kind != HVI_KIND_ALLTOALL || said->integer_count != hearing->set->size))
        return disbelieve(hearing, "%zu integers", said->integer_count);
    part->integers = malloc(said->integer_count * sizeof *part->integers);
    if (!part->integers)
        return HVI_ERR_NO_MEMORY;
    memcpy(part->integers, said->integers, said->integer_count * sizeof *part->integers);
    part->integer_count = (uint32_t)said->integer_count;
    return HVI_OK;
}

static int take_part(const struct hearing *hearing, const struct hvi_mesh_said *said,
                     struct engine_part *part)
{
    int status = HVI_OK;

    if (said->kind > UINT16_MAX || !hvi_kind_is_known((uint16_t)said->kind) ||
        engine_partial_is((uint16_t)said->kind) || said->kind == HVI_KIND_JOIN)
        return disbelieve(hearing, "an op of kind %u", said->kind);
    if (said->memory > HVI_MEMORY_DEVICE && said->memory != ENGINE_MEMORY_ANY)
        return disbelieve(hearing, "memory %u", said->memory);
    part->memory = (uint8_t)said->memory;
    part->copy.kind = (uint16_t)said->kind;
    part->copy.root = said->root;
    part->copy.process_set = hearing->set->id;
    if (moves(said->kind))
        status = take_shape(hearing, said, part);
    if (status == HVI_OK &&
        (said->kind == HVI_KIND_ALLREDUCE || said->kind == HVI_KIND_REDUCESCATTER) &&
        !hvi_reduce_is_known(part->copy.reduce_op))
        status = disbelieve(hearing, "reduce op %u", said->reduce_op);
    if (status == HVI_OK)
        status = take_group(hearing, said, part);
    return status == HVI_OK ? take_integers(hearing, said, part) : status;
}

static bool says_same(const struct engine_part *a, const struct engine_part *b)
{
    return memcmp(&a->copy, &b->copy, sizeof a->copy) == 0 && a->leader == b->leader &&
           a->memory == b->memory && a->integer_count == b->integer_count &&
           (a->integer_count == 0 ||
            memcmp(a->integers, b->integers, a->integer_count * sizeof *a->integers) == 0);
}

#define VOICES_COMPARED 4u /* newer ones: as a rule all nodes say the same, or each rank its own */

/* One that says the same, or a new one. NULL with *status_p. */
static struct engine_part *listen(const struct hearing *hearing, struct meeting *meeting,
                                  const struct hvi_mesh_said *said, int *status_p)
{
    struct voice *voice = calloc(1, sizeof *voice), *other = meeting->voices;

    *status_p = voice ? HVI_OK : HVI_ERR_NO_MEMORY;
    if (!voice)
        return NULL;
    *status_p = take_part(hearing, said, &voice->part);
    for (uint32_t i = 0; i < VOICES_COMPARED && other && !says_same(&other->part, &voice->part);
         i++)
        other = i + 1 < VOICES_COMPARED ? other->next : NULL;
    if (*status_p == HVI_OK && !other) {
        voice->next = meeting->voices;
        meeting->voices = voice;
        return &voice->part;
    }
    if (voice->part.leader)
        engine_tensor_put(&hearing->root->tensors, voice->part.leader);
    free(voice->part.integers);
    free(voice);
    return *status_p == HVI_OK ? &other->part : NULL;
}

static int spread(const struct hearing *hearing, struct share *share,
                  const struct hvi_mesh_said *said, struct engine_part *part)
{
    uint32_t places = hearing->set->span->places[hearing->index];

    for (size_t i = 0; i < said->place_count; i++) {
        int32_t place = said->places[i];
        if (place < 0 || (uint32_t)place >= places || share->each[place])
            return disbelieve(hearing, "it has no member %d to speak for", place);
        share->each[place] = part;
    }
    return said->place_count > 0 ? HVI_OK : disbelieve(hearing, "something that no rank said");
}

/* Of members with memory of GPUs; no places: of all there. */
static int take_instances(const struct hearing *hearing, struct share *share,
                          const struct hvi_mesh_said *said)
{
    const uint32_t places = hearing->set->span->places[hearing->index];
    const size_t speakers = said->place_count > 0 ? said->place_count : places;
    const size_t due = said->memory == HVI_MEMORY_DEVICE && moves(said->kind) ? speakers : 0;

    if (said->instance_count != due)
        return disbelieve(hearing, "%zu GPU workers of %zu ranks", said->instance_count, due);
    if (due > 0 && !share->instances)
        share->instances = calloc(places, sizeof *share->instances);
    if (due > 0 && !share->instances)
        return HVI_ERR_NO_MEMORY;
    for (size_t i = 0; i < due; i++) {
        if (said->instances[i] == 0)
            return disbelieve(hearing, "memory of a GPU that no worker has");
        share->instances[said->place_count > 0 ? (size_t)said->places[i] : i] = said->instances[i];
    }
    return HVI_OK;
}

/* What the node's ranks say. */
static int take_said(const struct hearing *hearing, struct meeting *meeting)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct share *share = &meeting->shares[hearing->index];
    uint32_t places = hearing->set->span->places[hearing->index];
    int status = HVI_OK;

    if (report->said_count == 0 || report->said_count > places)
        return disbelieve(hearing, "%zu opinions of %u ranks", report->said_count, places);
    if (report->said_count == 1 && report->said[0].place_count == 0) {
        share->one = listen(hearing, meeting, &report->said[0], &status);
        return status == HVI_OK ? take_instances(hearing, share, &report->said[0]) : status;
    }
    share->each = calloc(places, sizeof *share->each);
    if (!share->each)
        return HVI_ERR_NO_MEMORY;
    for (size_t i = 0; i < report->said_count && status == HVI_OK; i++) {
        struct engine_part *part = listen(hearing, meeting, &report->said[i], &status);
        if (part)
            status = spread(hearing, share, &report->said[i], part);
        if (status == HVI_OK)
            status = take_instances(hearing, share, &report->said[i]);
    }
    return status;
}

/* The op of this name, or a new one. */
static int meet(const struct hearing *hearing, struct meeting **meeting_p)
{
    bool join = hearing->report->kind == HVI_KIND_JOIN;
    struct engine_op *op = join ? hearing->set->join : hearing->tensor->waiting;

    if (!op && hearing->root->count >= ENGINE_ROOT_WAITING_MAX)
        return HVI_ERR_LIMIT;
    if (hearing->report->kind > UINT16_MAX || !hvi_kind_is_known((uint16_t)hearing->report->kind) ||
        engine_partial_is((uint16_t)hearing->report->kind))
        return disbelieve(hearing, "an op of kind %u", hearing->report->kind);
    *meeting_p = op ? meeting_of(op)
                    : meeting_new(hearing->root, hearing->set, hearing->tensor,
                                  (uint16_t)hearing->report->kind);
    if (!*meeting_p)
        return HVI_ERR_NO_MEMORY;
    if (!op && !join && hearing->set->join)
        (*meeting_p)->op.missing -= meeting_of(hearing->set->join)->op.joined_count;
    return HVI_OK;
}

static int join(const struct hearing *hearing, struct meeting *meeting)
{
    struct engine_set *set = hearing->set;
    int32_t last = hearing->report->last;
    int32_t set_rank = engine_set_rank(set, last);

    if (set_rank < 0 || set->span->home[set_rank] != hearing->index)
        return disbelieve(hearing, "rank %d is not there to join", last);
    if (meeting->shares[hearing->index].came)
        return disbelieve(hearing, "its ranks have joined already");
    meeting->shares[hearing->index].came = true;
    meeting->last = last;
    meeting->op.joined_count++; /* nodes */
    meeting->op.missing--;
    for (struct engine_op *op = hearing->root->first; op; op = op->next) {
        if (op->set == set && op != &meeting->op && op->state == ENGINE_OP_WAITING &&
            !meeting_of(op)->shares[hearing->index].came)
            op->missing--;
    }
    return sweep(hearing->root, set);
}

/* All have joined. Works that have gone on without some of them start first: ranks that have joined may bring an op of
 * the same name once the join is over. */
static int end_join(struct engine_root *root, const struct engine_set *set)
{
    struct engine_op *join = set->join;

    for (const struct engine_op *op = root->first; op; op = op->next) {
        if (op->set == set && op->state == ENGINE_OP_SIZING)
            return HVI_OK;
    }
    return complete(root, join);
}

/* A member of the node's group had failed before: the others do, too. */
static void fail_rest(const struct hearing *hearing, const struct engine_tensor *leader)
{
    struct engine_root *root = hearing->root;
    struct engine_root_node *node = &root->nodes[hearing->node];
    struct stale *stale = node->dropped;

    node->dropped = NULL;
    for (struct engine_op *op = root->first; op; op = op->next) {
        if (op->set == hearing->set && has_leader(op, leader) &&
            meeting_of(op)->shares[hearing->index].came) {
            fail(root, op, stale->status, stale->text ? stale->text : "its group has failed",
                 stale->culprit);
            break;
        }
    }
    stale_free(root, stale);
}

/* The last member of a node's group is here. */
static void finish_group(const struct hearing *hearing)
{
    struct engine_root_node *node = &hearing->root->nodes[hearing->node];
    struct engine_tensor *leader = node->open;
    struct engine_op *op;

    node->open = NULL; /* what fails now is not of the group that comes next */
    if (node->dropped)
        fail_rest(hearing, leader);
    op = leader->waiting;
    if (op && meeting_of(op)->shares[hearing->index].came && meeting_of(op)->unfinished > 0) {
        meeting_of(op)->unfinished--;
        check_group(hearing->root, op);
    }
    engine_tensor_put(&hearing->root->tensors, leader);
}

/* A member of a group: it is judged as a whole when the last one is here. */
static int open_group(const struct hearing *hearing)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct engine_root_node *node = &hearing->root->nodes[hearing->node];
    struct engine_tensor *leader;

    if (report->said_count == 0 || !report->said[0].has_leader)
        return report->more || node->open ? disbelieve(hearing, "a group with another op in it")
                                          : HVI_OK;
    leader =
        engine_span_tensor(&hearing->root->tensors, hearing->set->serial, &report->said[0].leader);
    if (!leader)
        return disbelieve(hearing, "a group without a name");
    if (node->open)
        engine_tensor_put(&hearing->root->tensors, leader);
    if (node->open && node->open != leader)
        return disbelieve(hearing, "two groups at a time");
    node->open = leader;
    return HVI_OK;
}

static int bring(const struct hearing *hearing)
{
    struct engine_root *root = hearing->root;
    const struct hvi_mesh_report *report = hearing->report;
    struct meeting *meeting;
    int status = meet(hearing, &meeting);

    if (status != HVI_OK)
        return status;
    if (report->kind == HVI_KIND_JOIN)
        return join(hearing, meeting);
    struct share *share = &meeting->shares[hearing->index];
    if (share->came || has_joined(hearing->set, hearing->index) ||
        meeting->op.state != ENGINE_OP_WAITING)
        return disbelieve(hearing, "it had reported this op already, or its ranks have joined");
    status = take_said(hearing, meeting);
    if (status != HVI_OK)
        return status;
    share->came = true;
    if (meeting->room > report->room)
        meeting->room = report->room;
    if (report->said[0].has_leader && report->said[0].group_index == 0)
        meeting->unfinished++;
    return --meeting->op.missing == 0 ? complete(root, &meeting->op) : HVI_OK;
}

static int brought(const struct hearing *hearing)
{
    struct engine_root_node *node = &hearing->root->nodes[hearing->node];
    int status = open_group(hearing);

    if (status != HVI_OK)
        return status;
    struct stale *stale = take_stale(node, hearing->tensor);
    if (!stale)
        status = bring(hearing);
    else if (node->dropped || !node->open)
        stale_free(hearing->root, stale);
    else
        node->dropped = stale;
    if (status == HVI_OK && node->open && !hearing->report->more)
        finish_group(hearing);
    return status;
}

static int has_sized(const struct hearing *hearing)
{
    struct engine_op *op = hearing->tensor->waiting;

    if (!op || op->state != ENGINE_OP_SIZING || !meeting_of(op)->shares[hearing->index].came)
        return HVI_OK; /* it has failed meanwhile */
    if (--meeting_of(op)->unsized > 0)
        return HVI_OK;
    return sized(hearing->root, op);
}

static int has_failed(const struct hearing *hearing)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct stale *stale = take_stale(&hearing->root->nodes[hearing->node], hearing->tensor);
    struct meeting *meeting;

    if (stale) {
        stale_free(hearing->root, stale);
        return HVI_OK;
    }
    int status = meet(hearing, &meeting);
    if (status != HVI_OK)
        return status;
    if (meeting->shares[hearing->index].came || meeting->op.state != ENGINE_OP_WAITING)
        return disbelieve(hearing, "it had reported this op already");
    meeting->shares[hearing->index].came = true;
    fail(hearing->root, &meeting->op, report->status, report->text, report->culprit);
    return HVI_OK;
}

static int gives_up(const struct hearing *hearing)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct engine_op *op = hearing->tensor->waiting;

    if (op && meeting_of(op)->shares[hearing->index].came)
        fail(hearing->root, op, report->status, report->text, report->culprit);
    return HVI_OK;
}

/* In time, while other nodes are missing. Else the node will have another verdict. */
static int retracts(const struct hearing *hearing)
{
    struct engine_root *root = hearing->root;
    struct engine_op *op = hearing->tensor->waiting;
    struct share *share = op ? &meeting_of(op)->shares[hearing->index] : NULL;
    bool left = false;

    if (!op || !share->came || op->state != ENGINE_OP_WAITING || op->kind == HVI_KIND_JOIN)
        return HVI_OK;
    free(share->each);
    free(share->instances);
    *share = (struct share){0};
    op->missing++;
    begin(root, op, HVI_MESH_RETRACT);
    send(root, hearing->node);
    for (uint32_t i = 0; i < op->set->span->nodes; i++)
        left = left || meeting_of(op)->shares[i].came;
    if (!left)
        drop(root, op);
    return HVI_OK;
}

static int hear(const struct hearing *hearing)
{
    const struct hvi_mesh_report *report = hearing->report;
    bool fails = report->what == HVI_MESH_FAILED || report->what == HVI_MESH_GIVE_UP;

    if (fails && (report->status >= HVI_OK || report->kind == HVI_KIND_JOIN))
        return disbelieve(hearing, "a failure with status %d", report->status);
    switch (report->what) {
    case HVI_MESH_BROUGHT:
        return brought(hearing);
    case HVI_MESH_SIZED:
        return has_sized(hearing);
    case HVI_MESH_FAILED:
        return has_failed(hearing);
    case HVI_MESH_GIVE_UP:
        return gives_up(hearing);
    case HVI_MESH_RETRACT:
        return retracts(hearing);
    default:
        return disbelieve(hearing, "there is no report of kind %u", report->what);
    }
}

static int judge(struct engine_root *root, uint32_t node, const struct hvi_mesh_report *report,
                 char *text_p, size_t text_size)
{
    struct hearing hearing = {
        root, node, 0, report, engine_sets_find(&root->sets, report->set), NULL, text_p, text_size};

    forget_seen(root, &root->nodes[node], report->seen);
    if (!hearing.set || hearing.set->serial != report->serial)
        return report->serial < root->sets.serials
                   ? HVI_OK /* it has been removed */
                   : disbelieve(&hearing, "process set %u is not there", report->set);
    if (engine_root_is_partial(hearing.set, report))
        return engine_root_partial(root, node, hearing.set, report, text_p, text_size);
    if (hearing.set->span)
        hearing.index = engine_places_find(hearing.set->span, node);
    if (!hearing.set->span || hearing.index == UINT32_MAX)
        return disbelieve(&hearing, "it has no members in process set %u", report->set);
    hearing.tensor = engine_span_tensor(&root->tensors, report->serial, &report->tensor);
    if (!hearing.tensor)
        return disbelieve(&hearing, "an op without a name");
    engine_set_get(hearing.set);
    int status = hear(&hearing);
    if (status == HVI_OK && hearing.set->join && hearing.set->join->missing == 0)
        status = end_join(root, hearing.set);
    engine_tensor_put(&root->tensors, hearing.tensor);
    engine_set_put(hearing.set);
    return status;
}

/* ---- reports while works repeat ---- */

static int keep_late(struct engine_root *root, uint32_t node, const struct hvi_mesh_report *report)
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

static int judge_late(struct engine_root *root, const struct engine_root_late *late, char *text_p,
                      size_t text_size)
{
    struct hvi_mesh_packet packet;
    int status = hvi_mesh_decode(late->bytes, late->length, &packet, text_p, text_size);

    if (status != HVI_OK)
        return status;
    status = judge(root, packet.from, &packet.report, text_p, text_size);
    hvi_mesh_free(&packet);
    return status;
}

static int has_halted(struct engine_root *root, uint32_t node, uint64_t next, char *text_p,
                      size_t text_size)
{
    int status = HVI_OK;

    root->nodes[node].halted = true;
    if (root->halted == 0 || root->least > next)
        root->least = next;
    if (root->top < next)
        root->top = next;
    if (++root->halted < root->roster->nodes)
        return HVI_OK;
    resume(root, root->least);
    while (root->late && !root->live && status == HVI_OK) {
        struct engine_root_late *late = take_late(root);
        status = judge_late(root, late, text_p, text_size);
        late_free(late);
    }
    if (root->late && root->live)
        halt(root);
    return status;
}

int engine_root_report(struct engine_root *root, uint32_t node,
                       const struct hvi_mesh_report *report, char *text_p, size_t text_size)
{
    const struct hearing hearing = {root, node, 0, report, NULL, NULL, text_p, text_size};

    if (node >= root->roster->nodes || report->seen > root->nodes[node].number)
        return disbelieve(&hearing, "it has seen verdict %" PRIu64, report->seen);
    if (report->what == HVI_MESH_HALTED) {
        if (!root->halting || root->nodes[node].halted || report->sequence <= root->sequence ||
            report->sequence > INT64_MAX)
            return disbelieve(&hearing, "it cannot have halted before work %" PRIu64,
                              report->sequence);
        return has_halted(root, node, report->sequence, text_p, text_size);
    }
    if (report->what == HVI_MESH_HALT) {
        if (root->live && report->seen >= root->nodes[node].announced)
            halt(root);
        return HVI_OK;
    }
    if (!root->live)
        return judge(root, node, report, text_p, text_size);
    halt(root);
    return keep_late(root, node, report);
}

/* ---- who is missing ---- */

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
        if (index == UINT32_MAX || !meeting_of(op)->shares[index].came)
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
        if (meeting_of(op)->shares[home].came || span->node[home] == node ||
            (op->kind != HVI_KIND_JOIN && has_joined(op->set, home)))
            continue;
        if (count < most)
            ranks_p[count] = engine_set_rank_at(op->set, i);
        count++;
    }
    return count;
}
