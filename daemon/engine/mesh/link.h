/* SPDX-License-Identifier: Apache-2.0
 * Control connections to the job's other engines: along the tree (mesh/tree.h), to both neighbours in the ring of all nodes, and to others when there is first
 * something for them. They carry messages in order and tell when a node is gone. Main thread; nothing blocks. A job
 * on one node has no link. */
#ifndef ENGINE_MESH_LINK_H
#define ENGINE_MESH_LINK_H

#include "daemon/engine/event/event.h"
#include "daemon/engine/mesh/frame.h"
#include "daemon/engine/net/net.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ENGINE_MESH_BEAT_NS    (300 * UINT64_C(1000000))
#define ENGINE_MESH_ECHO_EVERY 8 /* beats; the first of a connection is one of them */
#define ENGINE_MESH_SILENT_NS  (1500 * UINT64_C(1000000)) /* of a node that is gone */
#define ENGINE_MESH_GAP_NS     (1000 * UINT64_C(1000000)) /* in our own loop: blame no other node */
#define ENGINE_MESH_QUEUE_MAX  ((size_t)8 << 20)          /* bytes that wait for one node */
#define ENGINE_MESH_REACH_NS                                                                       \
    (10 * UINT64_C(1000000000)) /* for a connection that is made when it is used */

/* Called from the event loop only. They may call engine_mesh_send, and nothing else of the link. */
struct engine_mesh_link_calls {
    void (*ready)(void *user); /* once: all edges of this node are up */
    void (*message)(void *user, uint32_t node, const unsigned char *bytes, size_t length);
    /* The node's engine has ended in order; nothing comes from it any more. */
    void (*node_left)(void *user, uint32_t node);
    /* Once for each node. The text is a sentence that names the node and says how. */
    void (*node_lost)(void *user, uint32_t node, const char *text);
};

struct engine_mesh_link_config {
    sd_event *event;
    struct engine_net *net; /* started; its CONTROL calls go to the link */
    uint32_t node, nodes;   /* 2 or more */
    uint64_t deadline_ns;   /* for all edges */
    const struct engine_mesh_link_calls *calls;
    void *user;
};

/* Figures of one control connection. */
struct engine_mesh_row {
    uint32_t node;
    uint64_t bytes_sent, bytes_received, messages_sent, messages_received,
        beats;                    /* beats: received */
    uint64_t rtt_ns, rtt_most_ns; /* the last and the longest of beats sent back; 0: none yet */
    uint64_t retransmits, kernel_rtt_ns; /* the kernel's; its round-trip time is smoothed */
};

struct engine_mesh_peer;

struct engine_mesh_link {
    struct engine_mesh_link_config config;
    struct engine_mesh_peer **by_node; /* [nodes]; NULL: no connection, and none wanted */
    struct engine_mesh_peer *peers;
    uint32_t edges_missing;
    bool leaving;         /* nodes leave */
    unsigned char *spare; /* for what comes next; NULL: a connection has it, or none has read yet */
    sd_event_source *timer;
    uint64_t looked_ns, beat_ns; /* the last look at the peers; the next beat */
};

/* Asks net for all edges. HVI_OK or HVI_ERR_NO_MEMORY: nothing is left. */
int engine_mesh_link_open(struct engine_mesh_link *link,
                          const struct engine_mesh_link_config *config);
/* What net's calls say of CONTROL; the descriptor is the link's from now on. */
void engine_mesh_link_connected(struct engine_mesh_link *link, uint32_t node, int fd);
void engine_mesh_link_failed(struct engine_mesh_link *link, uint32_t node, const char *text);

/* Sends at most ENGINE_MESH_BODY_MAX bytes, which are copied. They wait while the node is not connected.
 * HVI_OK; HVI_ERR_NODE_LOST: it has left or is lost, or is lost by this, and node_lost follows;
 * HVI_ERR_NO_MEMORY: nothing has changed. */
int engine_mesh_send(struct engine_mesh_link *link, uint32_t node, const unsigned char *bytes,
                     size_t length);

/* There will be data to or from this node: from now on there is a control connection, which tells when it is gone.
 * HVI_OK, also when it is gone already; HVI_ERR_NO_MEMORY: nothing has changed. */
int engine_mesh_link_use(struct engine_mesh_link *link, uint32_t node);

/* Nodes leave: one that is no edge and was not reached yet may have left, and is not missed. */
void engine_mesh_link_let_leave(struct engine_mesh_link *link);

/* The figures of the connections that there are or were: index 0, 1, ... Returns false after the last. */
bool engine_mesh_link_row(const struct engine_mesh_link *link, size_t index,
                          struct engine_mesh_row *row_p);
/* Says goodbye where the connection takes it, and logs the figures. Net's calls must not reach the link
 * afterwards: engine_net_close follows before the loop goes on. */
void engine_mesh_link_close(struct engine_mesh_link *link);

#endif
