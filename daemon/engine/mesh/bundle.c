/* SPDX-License-Identifier: Apache-2.0
 * Bundles: without them the root of a job of a thousand nodes hears each op a thousand times.
 *
 *   own order/ ──> queue: a, b, c
 *   node 17    ──> queue: a, b          a: all have come ──> once, for all nodes from here on down
 *   node 18    ──> queue: a, c          b: node 18 is still to come
 *
 * The invariant: the root hears the reports of each node in the order in which the node said them. It takes a report by
 * what the node had seen when it said it (order/root_stale.c), and a group by the reports that come one after the other.
 * So each input, this node or one right below it, has a queue; what it reports leaves by the front of its queue, and
 * nothing of it passes its queue by. An op of which all inputs have come leaves once if it stands in front of every
 * queue, after what stood before it has left by itself. The same holds in each node on the way, so it holds at the root.
 *
 * Nothing waits for long that somebody waits for: an op starts when its last report is there, and with that report the
 * others go, and whatever stands before them. A report that may not be kept takes its input's queue along. Where a node
 * does not come (its report of the op failed, or was taken back, or it has joined), what waits goes with the root's
 * verdict, or after one to two ticks. The verdict also ends a bundle of which nothing waits.
 *
 * What is kept is what the bundle says, and no more: the first that says something else goes as it came. Then, and when
 * a part of the bundle has gone by itself, the rest does, too, once all have come. */
#include "daemon/engine/mesh/bundle.h"

#include "base/types.h"

#include <stdlib.h>
#include <string.h>

/* What is said of an op. A bundle ends when all inputs have come, or with the verdict. */
struct engine_mesh_bundle {
    struct engine_mesh_bundle *next_by_hash;
    struct engine_mesh_bundle *next[ENGINE_MESH_INPUTS]; /* in the queues */
    uint64_t hash, tick;
    uint32_t came, held; /* inputs: that have reported it; whose report is kept */
    struct hvi_mesh_report report;
    struct hvi_mesh_said said;
    int64_t dims[HVI_DIMS_MAX];
    unsigned char name[];
};

static bool is_leaf(const struct engine_mesh_bundles *bundles, uint32_t node)
{
    return (uint64_t)node * ENGINE_MESH_RADIX + 1 >= bundles->nodes;
}

void engine_mesh_bundles_init(struct engine_mesh_bundles *bundles, uint32_t here, uint32_t nodes)
{
    bundles->here = here;
    bundles->nodes = nodes;
    if (here == 0 || is_leaf(bundles, here))
        return;
    bundles->all = 1;
    for (uint32_t i = 1; i <= ENGINE_MESH_RADIX; i++) {
        if ((uint64_t)here * ENGINE_MESH_RADIX + i < nodes)
            bundles->all |= 1u << i;
    }
}

bool engine_mesh_bundle_may(const struct hvi_mesh_report *report)
{
    const struct hvi_mesh_said *said = report->said;

    return report->what == HVI_MESH_BROUGHT && report->set == 0 && report->kind != HVI_KIND_JOIN &&
           !report->more && !report->has_pair && report->said_count == 1 &&
           said->place_count == 0 && said->instance_count == 0 && said->integer_count == 0 &&
           said->memory != HVI_MEMORY_DEVICE && !said->has_leader && said->ndim <= HVI_DIMS_MAX;
}

/* ---- by name ---- */

static uint64_t hash_of(const struct hvi_mesh_name *name)
{
    uint64_t hash = 14695981039346656037ull ^ name->number;

    for (size_t i = 0; i < name->name_bytes; i++)
        hash = (hash ^ name->name[i]) * 1099511628211ull;
    return hash ^ hash >> 29;
}

static bool is_same_name(const struct hvi_mesh_name *a, const struct hvi_mesh_name *b)
{
    return a->kind == b->kind && a->number == b->number && a->name_bytes == b->name_bytes &&
           (a->name_bytes == 0 || memcmp(a->name, b->name, a->name_bytes) == 0);
}

static bool says_same(const struct hvi_mesh_report *a, const struct hvi_mesh_report *b)
{
    const struct hvi_mesh_said *mine = a->said, *theirs = b->said;

    return a->seen == b->seen && a->serial == b->serial && a->kind == b->kind &&
           a->room == b->room && mine->kind == theirs->kind && mine->dtype == theirs->dtype &&
           mine->reduce_op == theirs->reduce_op && mine->root == theirs->root &&
           mine->prescale == theirs->prescale && mine->postscale == theirs->postscale &&
           mine->memory == theirs->memory && mine->ndim == theirs->ndim &&
           (mine->ndim == 0 ||
            memcmp(mine->dims, theirs->dims, mine->ndim * sizeof *mine->dims) == 0);
}

static struct engine_mesh_bundle *find(const struct engine_mesh_bundles *bundles,
                                       const struct hvi_mesh_name *name)
{
    const uint64_t hash = hash_of(name);
    struct engine_mesh_bundle *bundle = bundles->by_hash[hash % ENGINE_MESH_BUNDLES];

    while (bundle && !(bundle->hash == hash && is_same_name(&bundle->report.tensor, name)))
        bundle = bundle->next_by_hash;
    return bundle;
}

static void copy_report(struct engine_mesh_bundle *bundle, const struct hvi_mesh_report *report)
{
    const struct hvi_mesh_said *said = report->said;

    bundle->report = (struct hvi_mesh_report){.what = report->what,
                                              .seen = report->seen,
                                              .set = report->set,
                                              .serial = report->serial,
                                              .kind = report->kind,
                                              .tensor = report->tensor,
                                              .has_tensor = true,
                                              .said = &bundle->said,
                                              .said_count = 1,
                                              .room = report->room,
                                              .last = -1,
                                              .culprit = -1};
    bundle->report.tensor.name = bundle->name;
    if (report->tensor.name_bytes > 0)
        memcpy(bundle->name, report->tensor.name, report->tensor.name_bytes);
    bundle->said = *said;
    bundle->said.dims = bundle->dims;
    if (said->ndim > 0)
        memcpy(bundle->dims, said->dims, said->ndim * sizeof *said->dims);
}

static struct engine_mesh_bundle *bundle_new(struct engine_mesh_bundles *bundles,
                                             const struct hvi_mesh_report *report)
{
    struct engine_mesh_bundle *bundle = calloc(1, sizeof *bundle + report->tensor.name_bytes);

    if (!bundle)
        return NULL;
    bundle->hash = hash_of(&report->tensor);
    bundle->tick = bundles->ticks;
    copy_report(bundle, report);
    struct engine_mesh_bundle **bucket = &bundles->by_hash[bundle->hash % ENGINE_MESH_BUNDLES];
    bundle->next_by_hash = *bucket;
    *bucket = bundle;
    bundles->count++;
    return bundle;
}

/* Nothing of it is in a queue. */
static void bundle_free(struct engine_mesh_bundles *bundles, struct engine_mesh_bundle *bundle)
{
    struct engine_mesh_bundle **link = &bundles->by_hash[bundle->hash % ENGINE_MESH_BUNDLES];

    while (*link != bundle)
        link = &(*link)->next_by_hash;
    *link = bundle->next_by_hash;
    bundles->count--;
    free(bundle);
}

/* ---- queues ---- */

static void push(struct engine_mesh_bundles *bundles, uint32_t input,
                 struct engine_mesh_bundle *bundle)
{
    bundle->next[input] = NULL;
    if (bundles->first[input])
        bundles->last[input]->next[input] = bundle;
    else
        bundles->first[input] = bundle;
    bundles->last[input] = bundle;
    bundle->held |= 1u << input;
    bundles->held++;
}

static struct engine_mesh_bundle *pop(struct engine_mesh_bundles *bundles, uint32_t input)
{
    struct engine_mesh_bundle *bundle = bundles->first[input];

    bundles->first[input] = bundle->next[input];
    bundle->held &= ~(1u << input);
    bundles->held--;
    return bundle;
}

static uint32_t node_of(const struct engine_mesh_bundles *bundles, uint32_t input)
{
    return input == 0 ? bundles->here : bundles->here * ENGINE_MESH_RADIX + input;
}

/* What the input said first, as it said it. */
static void go_alone(struct engine_mesh_bundles *bundles, uint32_t input,
                     const struct engine_mesh_bundle_way *way)
{
    struct engine_mesh_bundle *bundle = pop(bundles, input);
    const uint32_t node = node_of(bundles, input);

    way->go(way->user, node, input > 0 && !is_leaf(bundles, node), &bundle->report);
}

static void empty(struct engine_mesh_bundles *bundles, uint32_t input,
                  const struct engine_mesh_bundle_way *way)
{
    while (bundles->first[input])
        go_alone(bundles, input, way);
}

/* The bundle is in the queue, and stands in front of it now. */
static void come_to(struct engine_mesh_bundles *bundles, uint32_t input,
                    const struct engine_mesh_bundle *bundle,
                    const struct engine_mesh_bundle_way *way)
{
    while (bundles->first[input] != bundle)
        go_alone(bundles, input, way);
}

/* Whatever is kept of it goes, and it ends. */
static void finish(struct engine_mesh_bundles *bundles, struct engine_mesh_bundle *bundle,
                   const struct engine_mesh_bundle_way *way)
{
    for (uint32_t i = 0; i < ENGINE_MESH_INPUTS; i++) {
        if (bundle->held >> i & 1)
            come_to(bundles, i, bundle, way);
    }
    const bool as_one = bundle->held == bundles->all;
    for (uint32_t i = 0; i < ENGINE_MESH_INPUTS; i++) {
        if (bundle->held >> i & 1 && as_one)
            pop(bundles, i);
        else if (bundle->held >> i & 1)
            go_alone(bundles, i, way);
    }
    if (as_one)
        way->go(way->user, bundles->here, true, &bundle->report);
    bundle_free(bundles, bundle);
}

void engine_mesh_bundles_fini(struct engine_mesh_bundles *bundles)
{
    for (uint32_t i = 0; i < ENGINE_MESH_INPUTS; i++) {
        while (bundles->first[i])
            pop(bundles, i);
    }
    for (uint32_t i = 0; i < ENGINE_MESH_BUNDLES; i++) {
        while (bundles->by_hash[i])
            bundle_free(bundles, bundles->by_hash[i]);
    }
}

/* ---- what comes ---- */

/* The report is all that its input has to say of the op: of the node right below, and of those below that. */
static bool is_whole(const struct engine_mesh_bundles *bundles, uint32_t input, uint32_t from,
                     bool below)
{
    return input == 0 || (from == node_of(bundles, input) && (below || is_leaf(bundles, from)));
}

/* Of the op that the report is of. NULL: there is no memory for it, or too much is kept. */
static struct engine_mesh_bundle *bundle_for(struct engine_mesh_bundles *bundles, uint32_t input,
                                             bool whole, const struct hvi_mesh_report *report,
                                             const struct engine_mesh_bundle_way *way)
{
    struct engine_mesh_bundle *bundle = find(bundles, &report->tensor);

    if (bundle && whole && bundle->came >> input & 1) { /* it is of the next op of this name */
        finish(bundles, bundle, way);
        bundle = NULL;
    }
    if (bundle || bundles->count >= ENGINE_MESH_KEPT_MAX)
        return bundle;
    return bundle_new(bundles, report);
}

/* False: it goes now. */
static bool keep(struct engine_mesh_bundles *bundles, uint32_t input, bool whole,
                 const struct hvi_mesh_report *report, const struct engine_mesh_bundle_way *way)
{
    struct engine_mesh_bundle *bundle = bundle_for(bundles, input, whole, report, way);

    if (!bundle)
        return false;
    const bool keeps = whole && says_same(&bundle->report, report);
    bundle->came |= 1u << input;
    if (keeps)
        push(bundles, input, bundle);
    if (bundle->came == bundles->all)
        finish(bundles, bundle, way);
    return keeps;
}

bool engine_mesh_bundles_take(struct engine_mesh_bundles *bundles, uint32_t from, bool below,
                              const struct hvi_mesh_report *report,
                              const struct engine_mesh_bundle_way *way)
{
    if (bundles->all == 0)
        return false;
    const uint32_t input = from == bundles->here ? 0
                                                 : engine_mesh_next_hop(bundles->here, from) -
                                                       bundles->here * ENGINE_MESH_RADIX;
    if (report->what == HVI_MESH_BROUGHT && report->kind == HVI_KIND_JOIN && report->set == 0)
        bundles->joins = true;
    if (bundles->joins) {
        for (uint32_t i = 0; i < ENGINE_MESH_INPUTS; i++)
            empty(bundles, i, way);
        return false;
    }
    if (engine_mesh_bundle_may(report) &&
        keep(bundles, input, is_whole(bundles, input, from, below), report, way))
        return true;
    empty(bundles, input, way);
    return false;
}

/* No more of the op is due here. One that a node has taken back may never be reported again. */
static bool ends(uint32_t what)
{
    return what == HVI_MESH_STARTS || what == HVI_MESH_FAILED || what == HVI_MESH_RETRACT;
}

void engine_mesh_bundles_hear(struct engine_mesh_bundles *bundles,
                              const struct hvi_mesh_verdict *verdict,
                              const struct engine_mesh_bundle_way *way)
{
    if (bundles->all == 0 || verdict->set != 0 || !ends(verdict->what))
        return;
    if (verdict->kind == HVI_KIND_JOIN)
        bundles->joins = false;
    struct engine_mesh_bundle *bundle = find(bundles, &verdict->tensor);
    if (bundle)
        finish(bundles, bundle, way);
}

void engine_mesh_bundles_tick(struct engine_mesh_bundles *bundles,
                              const struct engine_mesh_bundle_way *way)
{
    for (uint32_t i = 0; i < ENGINE_MESH_INPUTS; i++) {
        const struct engine_mesh_bundle *old = NULL;
        for (const struct engine_mesh_bundle *at = bundles->first[i]; at; at = at->next[i])
            old = at->tick < bundles->ticks ? at : old;
        if (!old)
            continue;
        come_to(bundles, i, old, way);
        go_alone(bundles, i, way);
    }
    bundles->ticks++;
}
