/* SPDX-License-Identifier: Apache-2.0
 * The border between the engine and those of the job's other nodes (docs/design/nodes.md, border 2).
 * Engine thread; nothing blocks. */
#ifndef ENGINE_NODES_H
#define ENGINE_NODES_H

#include "proto/wire.h"

#include <stdint.h>

struct sd_event;
struct sd_event_source;

/* What this engine speaks with them. */
#define ENGINE_NODES_WIRE_OLDEST 1u
#define ENGINE_NODES_WIRE_NEWEST 1u

struct engine_nodes {
    int listen_fd; /* -1: not open */
    struct sd_event_source *source;
    char name[HVI_WIRE_NODE_NAME]; /* of this node, for sentences; "": the whole job is here */
};

/* Listens for them, on *port_p. HVI_OK, or HVI_ERR_LIMIT with errno set. */
int engine_nodes_open(struct engine_nodes *nodes, struct sd_event *event, uint16_t *port_p);
/* The roster, which has been checked, is there. */
void engine_nodes_start(struct engine_nodes *nodes, const struct hvi_engine_roster *roster);
/* Harmless on one that was never open. */
void engine_nodes_close(struct engine_nodes *nodes);

#endif
