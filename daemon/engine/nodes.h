/* SPDX-License-Identifier: Apache-2.0
 * The engines of the job's other nodes: net/ brings connections, mesh/ says what happens to ops and who is
 * gone, exec/ moves data. Here they meet (docs/design/nodes.md). Engine thread; nothing blocks. */
#ifndef ENGINE_NODES_H
#define ENGINE_NODES_H

#include "daemon/engine/mesh/link.h"
#include "daemon/engine/mesh/mesh.h"
#include "daemon/engine/net/net.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stdint.h>

struct engine;

/* What this engine speaks with them. */
#define ENGINE_NODES_WIRE_OLDEST ENGINE_NET_WIRE
#define ENGINE_NODES_WIRE_NEWEST ENGINE_NET_WIRE

/* What the roster says of a node. */
struct engine_nodes_row {
    char name[HVI_WIRE_NODE_NAME];
    char address[HVI_WIRE_NODE_ADDRESS];
    uint32_t port;
};

struct engine_nodes {
    struct engine_net net;
    struct engine_mesh_link link;
    struct engine_mesh mesh;
    bool listens, linked; /* net is open; link is */
    bool ready;           /* all edges are up, and the rendezvous has still to be told */
    sd_event_source *grace, *left;
    sd_event_source *patience;     /* with works that have failed and not been explained */
    sd_event_source *still;        /* while a step is replayed */
    bool watches;                  /* .still runs */
    uint64_t progress;             /* of the schedule, then */
    sd_event_source *tick;         /* while mesh/ keeps reports */
    bool ticks;                    /* .tick runs */
    struct engine_nodes_row *rows; /* by number */
    char name[HVI_WIRE_NODE_NAME]; /* of this node, for sentences; "": the whole job is here */
};

/* Listens for them, on *port_p. HVI_OK, or the reason why not. */
int engine_nodes_open(struct engine *engine, uint16_t *port_p, char text_p[ENGINE_NET_TEXT]);
/* The roster, which has been checked, is there, and order has begun: connects. engine_rendezvous_met follows,
 * or engine_rendezvous_failed. HVI_OK, or the reason why not. */
int engine_nodes_start(struct engine *engine, const struct hvi_engine_roster *roster,
                       char text_p[ENGINE_NET_TEXT]);
/* What order/ and the root say to each other on this node. True if there was something. */
bool engine_nodes_run(struct engine *engine);
/* An op waits, perhaps for a message of another node. */
bool engine_nodes_await(const struct engine *engine);
/* No op can finish any more, for what happened here: the other nodes hear of it. */
void engine_nodes_break(struct engine *engine, int status, int32_t culprit, const char *text);
/* Works have failed and wait for the reason: it may be on its way from another node. */
void engine_nodes_puzzled(struct engine *engine);
/* "node 1 (h2)", of a node of the roster. */
void engine_nodes_describe(const struct engine_nodes *nodes, uint32_t node, char *text_p,
                           size_t size);
/* Backends need this connection. */
void engine_nodes_connect(struct engine *engine, uint32_t node, uint32_t lane);
/* A message about GPUs, to another node. */
void engine_nodes_tell_gpus(struct engine *engine, uint32_t node, const struct hvi_mesh_gpu *gpu);
/* Says goodbye. order/ may still say something, which nobody hears. Harmless on one that was never open. */
void engine_nodes_hang_up(struct engine_nodes *nodes);
/* Before order/ ends. Harmless likewise. */
void engine_nodes_close(struct engine_nodes *nodes);

#endif
