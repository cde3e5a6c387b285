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

uint32_t engine_mesh_below(uint32_t here, uint32_t nodes, uint32_t *list_p)
{
    uint64_t first = here, end = (uint64_t)here + 1;
    uint32_t count = 0;

    while (first < nodes) {
        for (uint64_t node = first; node < end && node < nodes; node++)
            list_p[count++] = (uint32_t)node;
        first = first * ENGINE_MESH_RADIX + 1;
        end = end * ENGINE_MESH_RADIX + 1;
    }
    return count;
}
