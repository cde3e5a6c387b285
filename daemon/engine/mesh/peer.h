/* SPDX-License-Identifier: Apache-2.0
 * Inside mesh/: one control connection, its queue and its state. Main thread. */
#ifndef ENGINE_MESH_PEER_H
#define ENGINE_MESH_PEER_H

#include "daemon/engine/mesh/link.h"

#include <stdbool.h>

/*   waiting ──net has a connection──> connected ──first frame──> up ──bye──> left
 *      ^                                  │ │                     │
 *      └──────closed before a frame───────┘ │                     │
 *   waiting ──not reached──> lost <──silent─┘<──closed, silent, does not read, broke the protocol
 *      └─────not reached, and nodes leave──> left
 *
 * What is sent before "up" waits: that the other side has handed the connection on as well is known with
 * its first frame. */
enum engine_mesh_state {
    ENGINE_MESH_WAITING,
    ENGINE_MESH_CONNECTED,
    ENGINE_MESH_UP,
    ENGINE_MESH_LEFT,
    ENGINE_MESH_LOST,
};
#define ENGINE_MESH_STATES (ENGINE_MESH_LOST + 1)

struct engine_mesh_peer {
    struct engine_mesh_link *link;
    uint32_t node;
    enum engine_mesh_state state;
    bool edge;       /* ready waits for it */
    const char *why; /* why it is as good as lost; the link's timer says so. NULL: it is not */
    int fd;
    sd_event_source *io;
    struct engine_mesh_frames frames;
    unsigned char *queue; /* [queue_head, queue_tail) is to be sent */
    size_t queue_head, queue_tail, queue_room;
    uint64_t deadline_ns;        /* for the connection */
    uint64_t since_ns, heard_ns; /* when it was connected; when bytes last came */
    struct engine_mesh_row row;
    struct engine_mesh_peer *prev, *next;
};

const char *engine_mesh_state_text(enum engine_mesh_state state);
bool engine_mesh_edge(enum engine_mesh_state from, enum engine_mesh_state to);
/* The only way a state changes. */
void engine_mesh_peer_move(struct engine_mesh_peer *peer, enum engine_mesh_state state,
                           const char *cause);

/* Takes the descriptor, and sends the first beat. HVI_OK; HVI_ERR_CLOSED: it is closed already. */
int engine_mesh_peer_attach(struct engine_mesh_peer *peer, int fd, sd_event_io_handler_t on_io);
/* Closes the connection, if there is one; what waits to be sent goes on waiting. */
void engine_mesh_peer_detach(struct engine_mesh_peer *peer);
/* To be closed by a reset. An end of file waits behind what was sent, for good where the other side's
 * confirmations do not arrive. */
void engine_mesh_peer_give_up(struct engine_mesh_peer *peer);
/* Sends or queues a frame. HVI_OK; HVI_ERR_LIMIT: the queue is full; HVI_ERR_NO_MEMORY; HVI_ERR_CLOSED:
 * errno. */
int engine_mesh_peer_put(struct engine_mesh_peer *peer, enum engine_mesh_kind kind,
                         const unsigned char *body, size_t length);
/* A beat with the time, unless there is something to send anyway. As engine_mesh_peer_put. */
int engine_mesh_peer_beat(struct engine_mesh_peer *peer, uint64_t now_ns);
/* Sends what the socket takes. HVI_OK, or HVI_ERR_CLOSED: errno. */
int engine_mesh_peer_flush(struct engine_mesh_peer *peer);
/* Reads once. HVI_OK: frames may be there; HVI_INPROGRESS: nothing has come; HVI_ERR_CLOSED: errno, 0:
 * end of file; HVI_ERR_NO_MEMORY. */
int engine_mesh_peer_read(struct engine_mesh_peer *peer);
void engine_mesh_peer_row(const struct engine_mesh_peer *peer, struct engine_mesh_row *row_p);
void engine_mesh_peer_free(struct engine_mesh_peer *peer);

#endif
