/* SPDX-License-Identifier: Apache-2.0
 * Inside mesh/: what all nodes from this one on down report alike goes up the tree once. A node that has others below it
 * keeps what each of them, and its own order/, reports of an op of all ranks until all have reported it. Main thread;
 * pure. */
#ifndef ENGINE_MESH_BUNDLE_H
#define ENGINE_MESH_BUNDLE_H

#include "daemon/engine/mesh/tree.h"
#include "proto/mesh.h"

#include <stdbool.h>

#define ENGINE_MESH_BUNDLES  256u
#define ENGINE_MESH_INPUTS   (1 + ENGINE_MESH_RADIX) /* this node, and those right below it */
#define ENGINE_MESH_KEPT_MAX 16384u                  /* ops */

struct engine_mesh_bundle;

struct engine_mesh_bundles {
    uint32_t here, nodes;
    uint32_t all;         /* inputs, a bit each; 0: nothing is kept here */
    uint32_t count, held; /* ops; reports that are kept */
    uint64_t ticks;
    bool
        joins; /* ranks of this node or of one behind it have joined, and not all of the job: nothing is kept */
    struct engine_mesh_bundle *by_hash[ENGINE_MESH_BUNDLES];
    struct engine_mesh_bundle *first[ENGINE_MESH_INPUTS], *last[ENGINE_MESH_INPUTS]; /* queues */
};

/* To the root; the report and what it points at are gone afterwards. `below`: each node from `from` on down says so. */
struct engine_mesh_bundle_way {
    void (*go)(void *user, uint32_t from, bool below, const struct hvi_mesh_report *report);
    void *user;
};

/* `bundles` is zeroed. */
void engine_mesh_bundles_init(struct engine_mesh_bundles *bundles, uint32_t here, uint32_t nodes);
/* Forgets them. It may go on. */
void engine_mesh_bundles_fini(struct engine_mesh_bundles *bundles);
/* Whether several nodes can say it as one. */
bool engine_mesh_bundle_may(const struct hvi_mesh_report *report);
/* A report of this node, or of one behind it, is on its way to the root. True: it is kept, or has gone with others. False:
 * it goes now, as it came; what has to be there before it has gone. */
bool engine_mesh_bundles_take(struct engine_mesh_bundles *bundles, uint32_t from, bool below,
                              const struct hvi_mesh_report *report,
                              const struct engine_mesh_bundle_way *way);
/* A verdict of the root's comes by, or is for this node: what is left of its op goes. */
void engine_mesh_bundles_hear(struct engine_mesh_bundles *bundles,
                              const struct hvi_mesh_verdict *verdict,
                              const struct engine_mesh_bundle_way *way);
/* Time has passed: what was here the last time, too, goes. */
void engine_mesh_bundles_tick(struct engine_mesh_bundles *bundles,
                              const struct engine_mesh_bundle_way *way);

#endif
