/* SPDX-License-Identifier: Apache-2.0
 * The border between hvdd and the gate, which brings the engines of a job's nodes together
 * (docs/design/nodes.md, border 1). Main thread; nothing blocks. */
#ifndef HVD_NODE_MESH_H
#define HVD_NODE_MESH_H

#include <stdbool.h>

struct hvi_engine_node;
struct hvi_engine_roster;
struct node;
struct node_generation;

/* Whether jobs on several nodes can be served. */
bool hvdd_mesh_is_there(const struct node *node);
/* What the engine of a generation says of its node goes to the job's rendezvous, which answers by
 * hvdd_node_roster in the end. HVI_OK, or HVI_ERR_UNSUPPORTED: there is no mesh. */
int hvdd_gate_node(struct node *node, const struct node_generation *generation,
                   const struct hvi_engine_node *said);

/* In link.c: the rendezvous' answer goes to the engine of the generation. */
void hvdd_node_roster(struct node *node, const struct node_generation *generation,
                      const struct hvi_engine_roster *roster);

#endif
