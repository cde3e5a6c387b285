/* SPDX-License-Identifier: Apache-2.0
 * Bundles: without them the root of a job of a thousand nodes hears each op a thousand times.
 *
 *   report of a node ──> the first of an op ──> goes at once
 *                        another one ─────────> waits for the last of all nodes from here on down ──> they go as one
 *
 * Nothing waits for long that somebody else waits for: an op starts when its last report is there, and with that report the others
 * go. Where some do not come, what waits goes with the next thing that has to keep its order, or a little later
 * (engine_mesh_bundles_go). Two reports of a node may change places that way, if they are of different ops; the root
 * decides the order. */
#include "daemon/engine/mesh/bundle.h"

#include "base/status.h"

#include <stdlib.h>
#include <string.h>

struct engine_mesh_bundle {
    struct engine_mesh_bundle *next_by_hash;
    struct engine_mesh_bundle *next, *prev;
    uint64_t hash, since_ns;
    uint64_t serial, room;
    struct hvi_mesh_said said; /* .dims are ours */
    int64_t dims[HVI_DIMS_MAX];
    uint32_t due; /* nodes that have not reported the op */
    int32_t *nodes;
    uint64_t *seens;
    size_t count, capacity;
    struct hvi_mesh_name name; /* .name is behind the bundle */
};

bool engine_mesh_bundle_takes(const struct hvi_mesh_report *report)
{
    const struct hvi_mesh_said *said = report->said;

    return report->what == HVI_MESH_BROUGHT && report->set == 0 && !report->more &&
           !report->has_pair && report->said_count == 1 && said->place_count == 0 &&
           said->instance_count == 0 && said->integer_count == 0 && !said->has_leader &&
           said->ndim <= HVI_DIMS_MAX;
}

static uint64_t hash_of(const struct hvi_mesh_name *name)
{
    uint64_t hash = 14695981039346656037ull ^ name->number;

    for (size_t i = 0; i < name->name_bytes; i++)
        hash = (hash ^ name->name[i]) * 1099511628211ull;
    return hash ^ hash >> 29;
}

static bool says_same(const struct hvi_mesh_said *a, const struct hvi_mesh_said *b)
{
    return a->kind == b->kind && a->dtype == b->dtype && a->reduce_op == b->reduce_op &&
           a->root == b->root && a->prescale == b->prescale && a->postscale == b->postscale &&
           a->memory == b->memory && a->ndim == b->ndim &&
           (a->ndim == 0 || memcmp(a->dims, b->dims, a->ndim * sizeof *a->dims) == 0);
}

static bool is_same_name(const struct hvi_mesh_name *a, const struct hvi_mesh_name *b)
{
    return a->kind == b->kind && a->number == b->number && a->name_bytes == b->name_bytes &&
           (a->name_bytes == 0 || memcmp(a->name, b->name, a->name_bytes) == 0);
}

static struct engine_mesh_bundle *find(const struct engine_mesh_bundles *bundles, uint64_t hash,
                                       const struct hvi_mesh_report *report)
{
    struct engine_mesh_bundle *bundle = bundles->by_hash[hash % ENGINE_MESH_BUNDLES];

    while (bundle && !(bundle->hash == hash && bundle->serial == report->serial &&
                       bundle->room == report->room && says_same(&bundle->said, report->said) &&
                       is_same_name(&bundle->name, &report->tensor)))
        bundle = bundle->next_by_hash;
    return bundle;
}

static struct engine_mesh_bundle *bundle_new(struct engine_mesh_bundles *bundles, uint64_t hash,
                                             const struct hvi_mesh_report *report)
{
    struct engine_mesh_bundle **bucket = &bundles->by_hash[hash % ENGINE_MESH_BUNDLES];
    struct engine_mesh_bundle *bundle = calloc(1, sizeof *bundle + report->tensor.name_bytes);

    if (!bundle)
        return NULL;
    bundle->hash = hash;
    bundle->serial = report->serial;
    bundle->room = report->room;
    bundle->said = report->said[0];
    bundle->said.dims = bundle->dims;
    for (size_t i = 0; i < bundle->said.ndim; i++)
        bundle->dims[i] = report->said[0].dims[i];
    bundle->name = report->tensor;
    bundle->name.name = (unsigned char *)(bundle + 1);
    if (bundle->name.name_bytes > 0)
        memcpy(bundle->name.name, report->tensor.name, bundle->name.name_bytes);
    bundle->next_by_hash = *bucket;
    *bucket = bundle;
    return bundle;
}

/* Something waits in it. */
static void list(struct engine_mesh_bundles *bundles, struct engine_mesh_bundle *bundle)
{
    bundle->next = NULL;
    bundle->prev = bundles->last;
    if (bundle->prev)
        bundle->prev->next = bundle;
    else
        bundles->first = bundle;
    bundles->last = bundle;
}

static void unlist(struct engine_mesh_bundles *bundles, struct engine_mesh_bundle *bundle)
{
    if (bundle->prev)
        bundle->prev->next = bundle->next;
    else
        bundles->first = bundle->next;
    if (bundle->next)
        bundle->next->prev = bundle->prev;
    else
        bundles->last = bundle->prev;
    bundle->count = 0;
}

static void bundle_free(struct engine_mesh_bundles *bundles, struct engine_mesh_bundle *bundle)
{
    struct engine_mesh_bundle **link = &bundles->by_hash[bundle->hash % ENGINE_MESH_BUNDLES];

    while (*link != bundle)
        link = &(*link)->next_by_hash;
    *link = bundle->next_by_hash;
    if (bundle->count > 0)
        unlist(bundles, bundle);
    free(bundle->nodes);
    free(bundle->seens);
    free(bundle);
}

static bool has_one_seen(const struct engine_mesh_bundle *bundle)
{
    for (size_t i = 1; i < bundle->count; i++) {
        if (bundle->seens[i] != bundle->seens[0])
            return false;
    }
    return true;
}

static void let_go(struct engine_mesh_bundles *bundles, struct engine_mesh_bundle *bundle,
                   engine_mesh_bundle_fn go, void *user)
{
    struct hvi_mesh_report report = {.what = HVI_MESH_BROUGHT,
                                     .serial = bundle->serial,
                                     .kind = bundle->said.kind,
                                     .tensor = bundle->name,
                                     .has_tensor = true,
                                     .said = &bundle->said,
                                     .said_count = 1,
                                     .room = bundle->room,
                                     .last = -1,
                                     .culprit = -1,
                                     .nodes = bundle->nodes,
                                     .node_count = bundle->count};

    report.seen = bundle->seens[0];
    if (!has_one_seen(bundle)) {
        report.seens = bundle->seens;
        report.seen_count = bundle->count;
    }
    unlist(bundles, bundle);
    go(user, &report);
}

/* ---- what comes ---- */

static bool make_room(struct engine_mesh_bundle *bundle, size_t more)
{
    size_t capacity = bundle->capacity ? bundle->capacity : 16;

    while (capacity < bundle->count + more)
        capacity *= 2;
    if (capacity == bundle->capacity)
        return true;
    int32_t *nodes = realloc(bundle->nodes, capacity * sizeof *nodes);
    if (nodes)
        bundle->nodes = nodes;
    uint64_t *seens = nodes ? realloc(bundle->seens, capacity * sizeof *seens) : NULL;
    if (!seens)
        return false;
    bundle->seens = seens;
    bundle->capacity = capacity;
    return true;
}

static int append(struct engine_mesh_bundle *bundle, uint32_t from,
                  const struct hvi_mesh_report *report)
{
    const size_t count = report->node_count > 0 ? report->node_count : 1;

    if (!make_room(bundle, count))
        return HVI_ERR_NO_MEMORY;
    for (size_t i = 0; i < count; i++, bundle->count++) {
        bundle->nodes[bundle->count] = report->node_count > 0 ? report->nodes[i] : (int32_t)from;
        bundle->seens[bundle->count] = report->seen_count > 0 ? report->seens[i] : report->seen;
    }
    return HVI_OK;
}

/* As it is, but for the nodes that it is of. */
static void go_first(uint32_t from, const struct hvi_mesh_report *report, engine_mesh_bundle_fn go,
                     void *user)
{
    struct hvi_mesh_report alone = *report;
    int32_t node = (int32_t)from;

    if (report->node_count == 0) {
        alone.nodes = &node;
        alone.node_count = 1;
    }
    go(user, &alone);
}

static bool is_of(const struct engine_mesh_bundle *bundle, uint64_t hash, uint64_t serial,
                  const struct hvi_mesh_name *name)
{
    return bundle->hash == hash && bundle->serial == serial && is_same_name(&bundle->name, name);
}

/* Nodes that have not reported the op, whatever the others say of it. */
static uint32_t due_of(const struct engine_mesh_bundles *bundles, uint64_t hash,
                       const struct hvi_mesh_report *report)
{
    const struct engine_mesh_bundle *bundle = bundles->by_hash[hash % ENGINE_MESH_BUNDLES];

    while (bundle && !is_of(bundle, hash, report->serial, &report->tensor))
        bundle = bundle->next_by_hash;
    return bundle ? bundle->due : bundles->below;
}

/* With the last report of an op all that waits of it goes. */
static void count_down(struct engine_mesh_bundles *bundles, uint64_t hash,
                       const struct hvi_mesh_report *report, engine_mesh_bundle_fn go, void *user)
{
    struct engine_mesh_bundle *bundle = bundles->by_hash[hash % ENGINE_MESH_BUNDLES];
    const size_t count = report->node_count > 0 ? report->node_count : 1;
    const uint32_t due = due_of(bundles, hash, report);

    for (; bundle; bundle = bundle->next_by_hash) {
        if (is_of(bundle, hash, report->serial, &report->tensor))
            bundle->due = count < due ? due - (uint32_t)count : 0;
    }
    if (count >= due)
        engine_mesh_bundles_close(bundles, report->serial, &report->tensor, go, user);
}

int engine_mesh_bundle_add(struct engine_mesh_bundles *bundles, uint32_t from, uint64_t now_ns,
                           const struct hvi_mesh_report *report, engine_mesh_bundle_fn go,
                           void *user)
{
    const uint64_t hash = hash_of(&report->tensor);
    struct engine_mesh_bundle *bundle = find(bundles, hash, report);
    bool waits = bundle && bundle->count > 0;

    if (bundle && append(bundle, from, report) != HVI_OK)
        return HVI_ERR_NO_MEMORY;
    if (bundle && !waits) {
        bundle->since_ns = now_ns;
        list(bundles, bundle);
    }
    if (!bundle) {
        const uint32_t due = due_of(bundles, hash, report);
        bundle = bundle_new(bundles, hash, report);
        if (!bundle)
            return HVI_ERR_NO_MEMORY;
        bundle->due = due;
        go_first(from, report, go, user);
    }
    count_down(bundles, hash, report, go, user);
    return HVI_OK;
}

void engine_mesh_bundles_go(struct engine_mesh_bundles *bundles, uint64_t before_ns,
                            engine_mesh_bundle_fn go, void *user)
{
    while (bundles->first && bundles->first->since_ns < before_ns)
        let_go(bundles, bundles->first, go, user);
}

void engine_mesh_bundles_close(struct engine_mesh_bundles *bundles, uint64_t serial,
                               const struct hvi_mesh_name *name, engine_mesh_bundle_fn go,
                               void *user)
{
    const uint64_t hash = hash_of(name);
    struct engine_mesh_bundle *next;

    for (struct engine_mesh_bundle *bundle = bundles->by_hash[hash % ENGINE_MESH_BUNDLES]; bundle;
         bundle = next) {
        next = bundle->next_by_hash;
        if (!is_of(bundle, hash, serial, name))
            continue;
        if (bundle->count > 0)
            let_go(bundles, bundle, go, user);
        bundle_free(bundles, bundle);
    }
}

void engine_mesh_bundles_fini(struct engine_mesh_bundles *bundles)
{
    for (uint32_t i = 0; i < ENGINE_MESH_BUNDLES; i++) {
        while (bundles->by_hash[i])
            bundle_free(bundles, bundles->by_hash[i]);
    }
}
