/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/mesh/tree.h"

uint32_t engine_mesh_parent(uint32_t node)
{
    return (node - 1) / ENGINE_MESH_RADIX;
}

uint32_t engine_mesh_next_hop(uint32_t here, uint32_t node)
{
    while (node > here) {
        uint32_t parent = engine_mesh_parent(node);
        if (parent == here)
            return node;
        node = parent;
    }
    return engine_mesh_parent(here);
}
