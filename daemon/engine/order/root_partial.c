/* SPDX-License-Identifier: Apache-2.0
 * Root: SEND, SET_OPEN, and SET_CLOSE of a set that lies on one node.
 *
 * Of a SEND the root keeps nothing. It passes on what the two nodes say to each other (pair.c) and numbers
 * the work when the receiver's node says that a recv has met it.
 *
 * An opening waits for the nodes of its ranks. Nodes that report the same ranks and the same tag meet,
 * the oldest first. It has no name, and nothing is left of one that fails or is taken back. */
#include "daemon/engine/order/root_partial.h"

#include "base/status.h"
#include "daemon/engine/order/root_verdict.h"
#include "daemon/engine/order/sentence.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct opener {
    uint32_t node;
    bool came;
    uint64_t id; /* what the node calls it */
};

struct engine_root_opening {
    struct engine_root_opening *next, *prev;
    uint64_t tag;
    int64_t *ranks; /* [count] ascending */
    uint32_t count;
    uint32_t missing;      /* nodes */
    uint32_t nodes;        /* of the ranks */
    struct opener *opener; /* [nodes] ascending */
};

struct hearing {
    struct engine_root *root;
    uint32_t node;
    struct engine_set *set;
    const struct hvi_mesh_report *report;
    char *text;
    size_t text_size;
};

#define disbelieve(hearing, ...)                                                                   \
    engine_sentence_bad_report((hearing)->text, (hearing)->text_size, (hearing)->node, __VA_ARGS__)

static uint32_t node_of(const struct engine_root *root, int32_t rank)
{
    const struct engine_places *all = root->sets.by_id[0]->span;

    return all->node[all->home[rank]];
}

/* About what is reported. */
static struct hvi_mesh_verdict *begin(const struct hearing *hearing, uint32_t what)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct hvi_mesh_verdict *verdict = &hearing->root->verdict;

    *verdict = (struct hvi_mesh_verdict){
        .what = what,
        .set = hearing->set->id,
        .serial = hearing->set->serial,
        .kind = report->kind,
        .tensor = report->tensor,
        .has_tensor = true,
        .last = -1,
        .culprit = -1,
    };
    return verdict;
}

static void tell_failure(struct hvi_mesh_verdict *verdict, int status, int32_t culprit,
                         const char *text)
{
    verdict->status = status;
    verdict->culprit = culprit;
    snprintf(verdict->text, sizeof verdict->text, "%s", text);
}

/* ---- sends ---- */

static int pass_on(const struct hearing *hearing, uint32_t to)
{
    const struct hvi_mesh_report *report = hearing->report;
    struct hvi_mesh_verdict *verdict = begin(hearing, report->what);

    if (report->what == HVI_MESH_BROUGHT && report->said_count != 1)
        return disbelieve(hearing, "a send with %zu senders", report->said_count);
    verdict->pair = report->pair;
    verdict->has_pair = true;
    if (report->what == HVI_MESH_BROUGHT) {
        verdict->said = report->said[0];
        verdict->has_said = true;
    }
    tell_failure(verdict, report->status, report->culprit, report->text);
    engine_root_verdict_send(hearing->root, to);
    return HVI_OK;
}

static int start_pair(const struct hearing *hearing, uint32_t sender, uint32_t receiver)
{
    struct hvi_mesh_verdict *verdict = begin(hearing, HVI_MESH_STARTS);

    engine_steps_forget(&hearing->root->steps, &hearing->root->tensors);
    verdict->pair = hearing->report->pair;
    verdict->has_pair = true;
    verdict->sequence = ++hearing->root->sequence;
    if (hearing->report->said_count > 0) {
        verdict->instances = hearing->report->said[0].instances;
        verdict->instance_count = hearing->report->said[0].instance_count;
    }
    engine_root_verdict_send(hearing->root, sender);
    engine_root_verdict_send(hearing->root, receiver);
    return HVI_OK;
}

static int hear_send(const struct hearing *hearing)
{
    const struct hvi_mesh_pair *pair = &hearing->report->pair;
    const struct engine_set *set = hearing->set;
    uint32_t what = hearing->report->what;

    if (!hearing->report->has_pair || !set->span || engine_set_rank(set, pair->from) < 0 ||
        engine_set_rank(set, pair->to) < 0)
        return disbelieve(hearing, "a send between ranks %d and %d of process set %u", pair->from,
                          pair->to, set->id);
    uint32_t sender = node_of(hearing->root, pair->from);
    uint32_t receiver = node_of(hearing->root, pair->to);
    if (sender != receiver && hearing->node == sender &&
        (what == HVI_MESH_BROUGHT || what == HVI_MESH_RETRACT || what == HVI_MESH_GIVE_UP))
        return pass_on(hearing, receiver);
    if (sender != receiver && hearing->node == receiver && what == HVI_MESH_SIZED)
        return start_pair(hearing, sender, receiver);
    if (sender != receiver && hearing->node == receiver &&
        (what == HVI_MESH_RETRACT || what == HVI_MESH_FAILED))
        return pass_on(hearing, sender);
    return disbelieve(hearing, "what it says of a send from node %u to node %u", sender, receiver);
}

/* ---- openings ---- */

static void opening_free(struct engine_root *root, struct engine_root_opening *opening)
{
    if (opening->prev)
        opening->prev->next = opening->next;
    else
        root->openings = opening->next;
    if (opening->next)
        opening->next->prev = opening->prev;
    else
        root->openings_last = opening->prev;
    root->opening_count--;
    free(opening->ranks);
    free(opening->opener);
    free(opening);
}

void engine_root_partial_fini(struct engine_root *root)
{
    while (root->openings)
        opening_free(root, root->openings);
}

static int compare_openers(const void *a, const void *b)
{
    uint32_t left = ((const struct opener *)a)->node, right = ((const struct opener *)b)->node;

    return (left > right) - (left < right);
}

/* Each node of the ranks once. */
static void find_openers(const struct engine_root *root, struct engine_root_opening *opening)
{
    struct opener *opener = opening->opener;

    for (uint32_t i = 0; i < opening->count; i++)
        opener[i].node = node_of(root, (int32_t)opening->ranks[i]);
    qsort(opener, opening->count, sizeof *opener, compare_openers);
    for (uint32_t i = 0; i < opening->count; i++) {
        if (i == 0 || opener[i].node != opener[i - 1].node)
            opener[opening->nodes++].node = opener[i].node;
    }
    opening->missing = opening->nodes;
}

static struct engine_root_opening *opening_new(const struct hearing *hearing)
{
    const struct hvi_mesh_said *said = hearing->report->said;
    struct engine_root *root = hearing->root;
    struct engine_root_opening *opening = calloc(1, sizeof *opening);

    if (!opening)
        return NULL;
    opening->ranks = calloc(said->integer_count, sizeof *opening->ranks);
    opening->opener = calloc(said->integer_count, sizeof *opening->opener);
    opening->prev = root->openings_last;
    if (opening->prev)
        opening->prev->next = opening;
    else
        root->openings = opening;
    root->openings_last = opening;
    root->opening_count++;
    if (!opening->ranks || !opening->opener) {
        opening_free(root, opening);
        return NULL;
    }
    memcpy(opening->ranks, said->integers, said->integer_count * sizeof *opening->ranks);
    opening->count = (uint32_t)said->integer_count;
    opening->tag = hearing->report->tensor.number;
    find_openers(root, opening);
    return opening;
}

static struct opener *opener_at(const struct engine_root_opening *opening, uint32_t node)
{
    struct opener key = {.node = node};

    return bsearch(&key, opening->opener, opening->nodes, sizeof key, compare_openers);
}

/* The oldest one of these ranks and this tag that lacks the node. */
static struct engine_root_opening *find_alike(const struct hearing *hearing)
{
    const struct hvi_mesh_said *said = hearing->report->said;
    struct engine_root_opening *at = hearing->root->openings;

    while (at && !(at->tag == hearing->report->tensor.number && at->count == said->integer_count &&
                   memcmp(at->ranks, said->integers, at->count * sizeof *at->ranks) == 0 &&
                   !opener_at(at, hearing->node)->came))
        at = at->next;
    return at;
}

static struct engine_root_opening *find_reported(const struct engine_root *root, uint32_t node,
                                                 uint64_t id)
{
    struct engine_root_opening *at = root->openings;

    for (; at; at = at->next) {
        const struct opener *opener = opener_at(at, node);
        if (opener && opener->came && opener->id == id)
            break;
    }
    return at;
}

/* The verdict goes to the nodes that have come. It is over. */
static void finish(const struct hearing *hearing, struct engine_root_opening *opening)
{
    struct engine_root *root = hearing->root;

    for (uint32_t i = 0; i < opening->nodes; i++) {
        if (!opening->opener[i].came)
            continue;
        root->verdict.id = opening->opener[i].id;
        engine_root_verdict_send(root, opening->opener[i].node);
    }
    opening_free(root, opening);
}

static int open_set(const struct hearing *hearing, struct engine_root_opening *opening)
{
    struct engine_root *root = hearing->root;
    struct engine_set *set;
    char text[160];
    int status = engine_sets_add(&root->sets, opening->ranks, opening->count, &set);

    if (status == HVI_ERR_NO_MEMORY)
        return status;
    struct hvi_mesh_verdict *verdict =
        begin(hearing, status == HVI_OK ? HVI_MESH_STARTS : HVI_MESH_FAILED);
    if (status == HVI_OK) {
        set->opened = true;
        engine_set_place_all(set);
        verdict->new_set = set->id;
        verdict->new_serial = set->serial;
    } else {
        snprintf(text, sizeof text, "%s 'tag-%" PRIu64 "': " ENGINE_SETS_FULL,
                 hvi_kind_text(HVI_KIND_SET_OPEN), opening->tag);
        tell_failure(verdict, status, -1, text);
    }
    finish(hearing, opening);
    return HVI_OK;
}

static int check_ranks(const struct hearing *hearing)
{
    const struct hvi_mesh_said *said = hearing->report->said;
    int32_t size = hearing->root->roster->size;
    bool here = false;

    if (hearing->report->said_count != 1 || said->integer_count == 0)
        return disbelieve(hearing, "a process set without ranks");
    for (size_t i = 0; i < said->integer_count; i++) {
        int64_t rank = said->integers[i];
        if (rank < 0 || rank >= size || (i > 0 && rank <= said->integers[i - 1]))
            return disbelieve(hearing, "a process set with rank %" PRId64, rank);
        here = here || node_of(hearing->root, (int32_t)rank) == hearing->node;
    }
    return here ? HVI_OK : disbelieve(hearing, "it has no member of the process set");
}

static int bring_opening(const struct hearing *hearing)
{
    struct engine_root *root = hearing->root;
    int status = check_ranks(hearing);

    if (status != HVI_OK)
        return status;
    if (find_reported(root, hearing->node, hearing->report->id))
        return disbelieve(hearing, "it had reported this op already");
    struct engine_root_opening *opening = find_alike(hearing);
    if (!opening && root->opening_count >= ENGINE_ROOT_WAITING_MAX)
        return HVI_ERR_LIMIT;
    if (!opening)
        opening = opening_new(hearing);
    if (!opening)
        return HVI_ERR_NO_MEMORY;
    struct opener *opener = opener_at(opening, hearing->node);
    opener->came = true;
    opener->id = hearing->report->id;
    return --opening->missing == 0 ? open_set(hearing, opening) : HVI_OK;
}

static void retract(const struct hearing *hearing, struct engine_root_opening *opening)
{
    opener_at(opening, hearing->node)->came = false;
    begin(hearing, HVI_MESH_RETRACT)->id = hearing->report->id;
    engine_root_verdict_send(hearing->root, hearing->node);
    if (++opening->missing == opening->nodes)
        opening_free(hearing->root, opening);
}

static int hear_opening(const struct hearing *hearing)
{
    const struct hvi_mesh_report *report = hearing->report;

    if (hearing->set->id != 0)
        return disbelieve(hearing, "a process set is opened in process set %u", hearing->set->id);
    if (report->what == HVI_MESH_BROUGHT)
        return bring_opening(hearing);
    struct engine_root_opening *opening = find_reported(hearing->root, hearing->node, report->id);
    if (report->what == HVI_MESH_RETRACT) {
        if (opening) /* else another verdict of it is under way */
            retract(hearing, opening);
        return HVI_OK;
    }
    if (report->what != HVI_MESH_GIVE_UP || report->status >= HVI_OK)
        return disbelieve(hearing, "what it says of a process set that is being opened");
    if (!opening)
        return HVI_OK;
    tell_failure(begin(hearing, HVI_MESH_FAILED), report->status, report->culprit, report->text);
    finish(hearing, opening);
    return HVI_OK;
}

uint32_t engine_root_missing_openers(const struct engine_root *root, uint32_t node, uint64_t id,
                                     int32_t *ranks_p, uint32_t most)
{
    const struct engine_root_opening *opening = find_reported(root, node, id);
    uint32_t count = 0;

    for (uint32_t i = 0; opening && i < opening->count; i++) {
        int32_t rank = (int32_t)opening->ranks[i];
        if (opener_at(opening, node_of(root, rank))->came)
            continue;
        if (count < most)
            ranks_p[count] = rank;
        count++;
    }
    return count;
}

/* ---- sets on one node ---- */

static int hear_closing(const struct hearing *hearing)
{
    struct engine_set *set = hearing->set;

    if (!set->opened || hearing->report->what != HVI_MESH_BROUGHT ||
        node_of(hearing->root, engine_set_member(set, 0)) != hearing->node)
        return disbelieve(hearing, "process set %u is not its own to close", set->id);
    engine_sets_remove(&hearing->root->sets, set);
    return HVI_OK;
}

bool engine_root_is_partial(const struct engine_set *set, const struct hvi_mesh_report *report)
{
    return report->kind == HVI_KIND_SEND || report->kind == HVI_KIND_SET_OPEN ||
           (report->kind == HVI_KIND_SET_CLOSE && !set->span);
}

int engine_root_partial(struct engine_root *root, uint32_t node, struct engine_set *set,
                        const struct hvi_mesh_report *report, char *text_p, size_t text_size)
{
    struct hearing hearing = {root, node, set, report, text_p, text_size};

    if (report->kind == HVI_KIND_SEND)
        return hear_send(&hearing);
    return report->kind == HVI_KIND_SET_OPEN ? hear_opening(&hearing) : hear_closing(&hearing);
}
