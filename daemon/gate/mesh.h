/* SPDX-License-Identifier: Apache-2.0
 * Inside the mesh: mesh.c has what both sides share, listen.c the side with the rendezvous, join.c the
 * side that reports to it. Private to these three. */
#ifndef HVD_GATE_MESH_H
#define HVD_GATE_MESH_H

#include "daemon/gate/gate.h"
#include "daemon/gate/keys.h"
#include "daemon/gate/rendezvous.h"
#include "daemon/gate/socket.h"
#include "daemon/gate/talk.h"

#define MESH_PEERS_MAX HVI_WIRE_NODES_MAX
#define MESH_SILENT_NS (5 * HVI_NS_SEC) /* a node that has said nothing for so long is gone */

struct mesh_peer;
struct mesh_own;

struct gate_mesh {
    struct gate *gate;
    bool listens;
    struct gate_keys keys;
    struct gate_socket *socket; /* NULL: it could not be opened yet */
    sd_event_source *tick;
    uint64_t open_ns;                      /* when to try to open it again */
    char announced[HVI_WIRE_NODE_ADDRESS]; /* HVD_INTERFACE's; "": none */
    uint32_t port;
    uint64_t logged_ns; /* of refused messages */
    unsigned char encoded[HVI_MESH_BYTES_MAX];

    /* listen.c */
    struct gate_rendezvous rendezvous;
    bool own_fixed; /* the rendezvous' own address is configured, not learnt */
    struct mesh_peer *peers;
    uint32_t peer_count;

    /* join.c */
    struct gate_talk talk;
    struct mesh_own *own;                /* what hvdd's engines have registered */
    char address[HVI_WIRE_NODE_ADDRESS]; /* where the listener was found; "": not yet */
    uint64_t heard_ns;                   /* when it last said something; 0: never */
    char failure[HVI_TEXT_MAX + 1];      /* why it does not */
    uint64_t unsaid_ns;                  /* when that is to be logged; 0: it was */
    struct hvi_node_withdraw *ended;     /* of a rank, for each new rendezvous; NULL: none */
};

/* ---- mesh.c ---- */

uint64_t mesh_random(void);
/* The routing id of a node. */
void mesh_route(uint64_t node, char route_p[GATE_ROUTE_TEXT]);
/* Fills in versions and node, encodes and sends to `route`. */
void mesh_send(struct gate_mesh *mesh, const char *route, struct hvi_mesh_msg *msg);
/* True: both sides speak a version in common. Else a sentence; `name` is the other node. */
bool mesh_speaks(const struct gate_mesh *mesh, const struct hvi_mesh_msg *msg, const char *name,
                 char *text_p, size_t text_size);
/* One line a second. */
void mesh_log_refused(struct gate_mesh *mesh, const char *why, const char *address);
/* A NodeRoster for hvdd. */
void mesh_tell_roster(struct gate_mesh *mesh, const struct hvi_node_roster *roster);
/* A NodeRoster with an error, for hvdd. */
void mesh_tell_error(struct gate_mesh *mesh, const struct hvi_node_register *registered, int status,
                     const char *text);
/* The NodeRoster with a roster for the one that has registered; free its .roster. HVI_OK; HVI_ERR_LIMIT: it does not
 * fit, and *answer_p has an error instead; else what failed, and there is no answer. */
int mesh_fill_roster(struct gate_mesh *mesh, const struct gate_registrant *to,
                     const struct hvi_engine_roster *roster, struct hvi_node_roster *answer_p);
/* Adds a row to an AdminReply and returns it; NULL: no room. */
struct hvi_mesh_row *mesh_add_row(struct hvi_admin_reply *reply);

/* ---- listen.c ---- */

int mesh_listen_open(struct gate_mesh *mesh, char *text_p, size_t text_size);
void mesh_listen_register(struct gate_mesh *mesh, const struct hvi_node_register *registered);
void mesh_listen_withdraw(struct gate_mesh *mesh, const struct hvi_node_withdraw *withdrawn);
void mesh_listen_tick(struct gate_mesh *mesh, uint64_t now_ns);
void mesh_listen_rows(const struct gate_mesh *mesh, uint64_t now_ns, struct hvi_admin_reply *reply);
void mesh_listen_close(struct gate_mesh *mesh);

/* ---- join.c ---- */

int mesh_join_open(struct gate_mesh *mesh, char *text_p, size_t text_size);
/* Takes the packet out of `registered`. */
void mesh_join_register(struct gate_mesh *mesh, struct hvi_node_register *registered);
void mesh_join_withdraw(struct gate_mesh *mesh, const struct hvi_node_withdraw *withdrawn);
void mesh_join_tick(struct gate_mesh *mesh, uint64_t now_ns);
void mesh_join_rows(const struct gate_mesh *mesh, uint64_t now_ns, struct hvi_admin_reply *reply);
void mesh_join_close(struct gate_mesh *mesh);

#endif
