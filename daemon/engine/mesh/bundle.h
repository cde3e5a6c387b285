/* SPDX-License-Identifier: Apache-2.0
 * Inside mesh/: reports of nodes behind this one, and of this one, that say the same of an op of all ranks. They go up the tree
 * as one. Main thread; pure. */
#ifndef ENGINE_MESH_BUNDLE_H
#define ENGINE_MESH_BUNDLE_H

#include "proto/mesh.h"

#include <stdbool.h>

#define ENGINE_MESH_BUNDLES 256u

struct engine_mesh_bundle;

struct engine_mesh_bundles {
    struct engine_mesh_bundle *by_hash[ENGINE_MESH_BUNDLES];
    struct engine_mesh_bundle *first, *last; /* with reports that wait, oldest first */
    uint32_t below; /* nodes behind this one, and this one: all that may report an op here */
};

/* To the root; the report and what it points at are gone afterwards. */
typedef void (*engine_mesh_bundle_fn)(void *user, const struct hvi_mesh_report *report);

/* Whether the report may go with others. */
bool engine_mesh_bundle_takes(const struct hvi_mesh_report *report);
/* It is of this node (.node_count 0), or of those in .nodes. The first of an op goes at once, so that the root knows who is
 * ahead; the others when the last is here. HVI_OK or HVI_ERR_NO_MEMORY: then it has to go alone. */
int engine_mesh_bundle_add(struct engine_mesh_bundles *bundles, uint32_t from, uint64_t now_ns,
                           const struct hvi_mesh_report *report, engine_mesh_bundle_fn go,
                           void *user);
/* All that began to wait before then. */
void engine_mesh_bundles_go(struct engine_mesh_bundles *bundles, uint64_t before_ns,
                            engine_mesh_bundle_fn go, void *user);
/* The root has decided about the op: what comes for it now is of another one. */
void engine_mesh_bundles_close(struct engine_mesh_bundles *bundles, uint64_t serial,
                               const struct hvi_mesh_name *name, engine_mesh_bundle_fn go,
                               void *user);
/* Forgets them. It may go on. */
void engine_mesh_bundles_fini(struct engine_mesh_bundles *bundles);

#endif
