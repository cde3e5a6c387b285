/* SPDX-License-Identifier: Apache-2.0
 * engine_mesh: what the engines of a job say to each other about its ops. Node 0 is the root. Messages
 * travel along the tree (mesh/tree.h); nodes between pass them on. Main
 * thread; nothing blocks. */
#ifndef ENGINE_MESH_MESH_H
#define ENGINE_MESH_MESH_H

#include "daemon/engine/mesh/bundle.h"
#include "daemon/engine/order/root.h"

#define ENGINE_MESH_TICK_NS (5 * UINT64_C(1000000))

/* The way to a neighbour: mesh/link.h. */
struct engine_mesh_way {
    /* In order; the bytes are copied. HVI_OK; HVI_ERR_NODE_LOST: engine_mesh_node_lost follows; else
     * the message could not be sent. */
    int (*send)(void *user, uint32_t node, const unsigned char *bytes, size_t length);
};

struct engine_mesh_calls {
    /* Once, and once more for a stop, from engine_mesh_run: no op can finish any more, for what happened
     * on another node. The receiver breaks order/ (engine_order_break) and fails what waits. */
    void (*broken)(void *user, int status, int32_t culprit, const char *text);
    /* As engine_order_span's. NULL where nothing executes tentatively. */
    void (*withdraw)(void *user, uint64_t least, uint64_t top);
    /* Another node asks what is known here, or answers. Both may be NULL, and may call engine_mesh_ask and
     * engine_mesh_answer. A job that is broken is asked all the same. */
    void (*asked)(void *user, uint32_t from, const struct hvi_mesh_ask *ask);
    void (*answered)(void *user, uint32_t from, const struct hvi_mesh_answer *answer);
    /* Of a communicator of GPUs, also of a job that is broken: its works may end. NULL where there are none. */
    void (*gpu)(void *user, uint32_t from, const struct hvi_mesh_gpu *gpu);
};

struct engine_mesh_letter;
struct engine_order;

struct engine_mesh {
    struct engine_order *order;
    const struct engine_roster *roster; /* knows the job's nodes */
    const struct engine_mesh_way *way;
    void *way_user;
    const struct engine_mesh_calls *calls;
    void *user;
    /* Zero at first. */
    int broken_status; /* not HVI_OK: nothing is said of ops any more */
    int32_t broken_culprit;
    char broken_text[HVI_TEXT_MAX + 1];
    bool broken_news;                   /* for calls->broken */
    bool broken_here;                   /* no other node has said it */
    struct engine_root root;            /* of node 0 */
    uint64_t heard_for_all;             /* verdicts for all nodes that were carried out */
    struct engine_mesh_bundles bundles; /* reports on their way to the root */
    uint32_t *below;                    /* [nodes] the root's: those of a report */
    struct engine_mesh_letter *first,
        *last; /* between this node's order/ and the root, both here */
    struct engine_mesh_letter *late_first, *late_last; /* verdicts that wait for withdrawn works */
    struct hvi_mesh_packet packet;                     /* that is being made */
};

/* Everything up to the comment is set, the rest zero; order/ has begun and has no ops of sets with
 * members elsewhere. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_mesh_open(struct engine_mesh *mesh);
/* Harmless on a zeroed one. order/ may say nothing afterwards. */
void engine_mesh_close(struct engine_mesh *mesh);
/* What a neighbour has sent. */
void engine_mesh_message(struct engine_mesh *mesh, uint32_t node, const unsigned char *bytes,
                         size_t length);
/* Delivers what order/ and the root have to say to each other on this node: to be called after anything
 * that may have submitted, answered or ended an op. True if there was something. */
bool engine_mesh_run(struct engine_mesh *mesh);
/* Reports are kept here, for others to go with: engine_mesh_tick is due each ENGINE_MESH_TICK_NS. */
bool engine_mesh_keeps(const struct engine_mesh *mesh);
void engine_mesh_tick(struct engine_mesh *mesh);
/* No op can finish any more, for what happened on this node, which order/ knows: a rank is lost or has
 * left, or the job was stopped. The other nodes hear of it. */
void engine_mesh_break(struct engine_mesh *mesh, int status, int32_t culprit, const char *text);
/* To another node, along the tree; the bytes are copied. HVI_OK: it is on its way, and may be lost with a node
 * between. Else it is not: HVI_ERR_NODE_LOST, HVI_ERR_NO_MEMORY. */
int engine_mesh_ask(struct engine_mesh *mesh, uint32_t to, const struct hvi_mesh_ask *ask);
int engine_mesh_answer(struct engine_mesh *mesh, uint32_t to, const struct hvi_mesh_answer *answer);
int engine_mesh_gpu(struct engine_mesh *mesh, uint32_t to, const struct hvi_mesh_gpu *gpu);
/* A neighbour is gone: likewise, and calls->broken. */
void engine_mesh_node_lost(struct engine_mesh *mesh, uint32_t node, const char *text);

#endif
