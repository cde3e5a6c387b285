/* SPDX-License-Identifier: Apache-2.0
 * Root: its beginning and its end. */
#include "daemon/engine/order/root.h"

#include "base/status.h"
#include "daemon/engine/order/root_partial.h"
#include "daemon/engine/order/root_replay.h"
#include "daemon/engine/order/root_stale.h"

#include <stdlib.h>

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

void engine_root_fini(struct engine_root *root)
{
    while (root->late)
        engine_root_late_free(engine_root_late_take(root));
    engine_steps_fini(&root->steps, &root->tensors);
    while (root->first)
        engine_meeting_drop(root, root->first);
    engine_root_partial_fini(root);
    for (uint32_t i = 0; root->nodes && i < root->roster->nodes; i++) {
        engine_root_stale_forget(root, &root->nodes[i], UINT64_MAX);
        engine_root_stale_drop_group(root, &root->nodes[i]);
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
