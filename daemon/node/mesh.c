/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/node/mesh.h"

#include "base/status.h"
#include "daemon/node/node.h"

bool hvdd_mesh_is_there(const struct node *node)
{
    return node->mesh;
}

int hvdd_gate_node(struct node *node, const struct node_generation *generation,
                   const struct hvi_engine_node *said)
{
    (void)node, (void)generation, (void)said;
    return HVI_ERR_UNSUPPORTED;
}
