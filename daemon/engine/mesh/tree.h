/* SPDX-License-Identifier: Apache-2.0
 * The tree of a job's nodes: node 0 is the root, and of node n > 0 the parent is (n - 1) / 16. Any thread. */
#ifndef ENGINE_MESH_TREE_H
#define ENGINE_MESH_TREE_H

#include <stdint.h>

#ifndef ENGINE_MESH_RADIX
#define ENGINE_MESH_RADIX 16u
#endif

/* `node` is not 0. */
uint32_t engine_mesh_parent(uint32_t node);
/* The neighbour of `here` in the direction of another node. */
uint32_t engine_mesh_next_hop(uint32_t here, uint32_t node);
/* The nodes of a job of so many from `here` on down, itself included. Returns how many they are; at most `nodes`. */
uint32_t engine_mesh_below(uint32_t here, uint32_t nodes, uint32_t *list_p);

#endif
