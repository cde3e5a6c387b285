/* SPDX-License-Identifier: Apache-2.0
 * Inside the mesh: mesh.c has what both sides share, listen.c the side with the rendezvous, join.c the
 * side that reports to it, query.c what hvdctl asks of all nodes. Private to these four. */
#ifndef HVD_GATE_MESH_H
#define HVD_GATE_MESH_H

#include "daemon/gate/gate.h"
#include "daemon/gate/hosts.h"
#include "daemon/gate/keys.h"
#include "daemon/gate/rendezvous.h"
#include "daemon/gate/socket.h"
#include "daemon/gate/talk.h"

#define MESH_PEERS_MAX HVI_WIRE_NODES_MAX
#define MESH_SEEDS_MAX 4u               /* libzmq has two threads for each */
#define MESH_SILENT_NS (5 * HVI_NS_SEC) /* a node that has said nothing for so long is gone */
/* A node that waits for others and has been missing for so long is lost: where hvdrun has started the hvdds nothing takes the place
 * of one that is gone. A service's may be started anew. */
#define MESH_MISSING_NS         (1600 * HVI_NS_MS)
#define MESH_MISSING_SERVICE_NS (10 * HVI_NS_SEC)
/* So is a host of hvdrun's that was there, and whose ranks have not come. */
#define MESH_GONE_NS (12 * HVI_NS_SEC)

struct mesh_peer;
struct mesh_gone;
struct mesh_own;
struct mesh_query;

/* A node that has a rendezvous: the one of mesh-join, or one of mesh-seeds. */
struct mesh_seed {
    struct gate_mesh *mesh;
    char endpoint[HVI_WIRE_PATH];  /* HOST:PORT */
    char name[HVI_WIRE_NODE_NAME]; /* HOST: what the allow-list calls its key */
    bool here;                     /* it is this node: the rest is unused */
    struct gate_keys keys; /* of mesh-seeds: this node's secret, and the seed's key as .server */
    struct gate_socket *socket; /* NULL: its key is not known yet */
    struct gate_talk talk;
    bool behind; /* something could not be queued: all is said anew, once the rest is confirmed */
    char address[HVI_WIRE_NODE_ADDRESS]; /* where it was found; "": not yet */
    char called[HVI_WIRE_NODE_NAME];     /* what it says that its node is called; "": nothing yet */
    uint64_t heard_ns;                   /* when it last said something; 0: never */
    char failure[HVI_TEXT_MAX + 1];      /* why it does not */
    bool others_wait;                    /* there, with this node */
    uint64_t company;                    /* with which of its registrations: MeshMessage.company */
    uint64_t refused_ns;                 /* when it last said that its version is another one */
    uint64_t unsaid_ns;                  /* when that is to be logged; 0: it was */
    struct gate_hosts hosts;             /* that it has told */
};

struct gate_mesh {
    struct gate *gate;
    bool of_nodes; /* mesh-seeds */
    bool listens;  /* this node has a rendezvous */
    bool open;     /* it could be opened */
    struct gate_keys keys;
    char name[HVI_WIRE_NODE_NAME]; /* of this node: the allow-list's, else its host's */
    sd_event_source *tick;
    uint64_t open_ns;   /* when to try to open it again */
    uint64_t shut_ns;   /* when it was last open; 0: never */
    uint64_t look_ns;   /* when to look at the allow-list again */
    uint64_t orphan_ns; /* when to end at the latest; 0: hvdd lives */
    uint64_t tick_ns;   /* the last tick */
    uint64_t awake_ns;  /* since when they come in time: nobody is blamed for what was before */
    char left_out[HVI_TEXT_MAX + 1];       /* of the allow-list: what was logged */
    char failure[HVI_TEXT_MAX + 1];        /* why it is not open */
    char announced[HVI_WIRE_NODE_ADDRESS]; /* HVD_INTERFACE's; "": none */
    uint64_t logged_ns;                    /* of refused messages */
    bool said_still;                       /* the last message said that hvdd stands still */
    unsigned char encoded[HVI_MESH_BYTES_MAX];
    struct gate_view view; /* the nodes that subscribers have been told of */

    /* listen.c */
    struct gate_socket *socket;
    char endpoint[HVI_WIRE_PATH]; /* ADDRESS:PORT */
    uint32_t port;
    struct gate_rendezvous rendezvous;
    bool still;     /* this node's hvdd stands still */
    bool own_fixed; /* the rendezvous' own address is configured, not learnt */
    struct mesh_peer *peers;
    uint32_t peer_count;
    struct mesh_gone *gone;  /* hosts of hvdrun's that were there */
    struct gate_hosts hosts; /* of the peers */

    /* join.c */
    struct mesh_seed seeds[MESH_SEEDS_MAX];
    size_t seed_count;               /* 0: this node alone listens */
    struct mesh_own *own;            /* what hvdd's engines have registered */
    struct hvi_node_withdraw *ended; /* of a rank, for each new rendezvous; NULL: none */

    /* query.c */
    struct mesh_query *queries;
    uint64_t asked_paid_ns; /* base/rate.h: how often all nodes are asked */
    uint32_t query_count;
    uint64_t last_ticket;
};

/* ---- mesh.c ---- */

uint64_t mesh_random(void);
/* The routing id of a node. */
void mesh_route(uint64_t node, char route_p[GATE_ROUTE_TEXT]);
/* Fills in versions and node, encodes and sends by the socket to `route`. */
void mesh_send(struct gate_mesh *mesh, struct gate_socket *socket, const char *route,
               struct hvi_mesh_msg *msg);
/* True: both sides speak a version in common. Else a sentence; `name` is the other node. */
bool mesh_speaks(const struct gate_mesh *mesh, const struct hvi_mesh_msg *msg, const char *name,
                 char *text_p, size_t text_size);
/* For so long this node's hvdd has said nothing; 0: for less than a second. */
uint64_t mesh_hvdd_silent_ns(const struct gate_mesh *mesh, uint64_t now_ns);
/* For so long a node that waits may be missing. */
uint64_t mesh_missing_ns(const struct gate_mesh *mesh);
/* Since when a node that was last heard then says nothing: while this gate stood still, it could not be heard. */
uint64_t mesh_silent_since(const struct gate_mesh *mesh, uint64_t heard_ns);
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

/* At mesh->endpoint. */
int mesh_listen_open(struct gate_mesh *mesh, char *text_p, size_t text_size);
void mesh_listen_register(struct gate_mesh *mesh, const struct hvi_node_register *registered);
void mesh_listen_withdraw(struct gate_mesh *mesh, const struct hvi_node_withdraw *withdrawn);
/* There will be no rendezvous any more. False: nobody waits, or has to hear something yet. */
bool mesh_listen_orphaned(struct gate_mesh *mesh);
/* Every node has heard what it was told. */
bool mesh_listen_is_heard(const struct gate_mesh *mesh);
/* Forgets nodes that the allow-list no longer has. */
void mesh_listen_allowed(struct gate_mesh *mesh);
/* Nodes that are there: a question for all of them, with their numbers in `nodes_p`, which is allocated. HVI_OK or
 * HVI_ERR_NO_MEMORY. */
int mesh_listen_ask(struct gate_mesh *mesh, const struct hvi_mesh_question *question,
                    uint64_t **nodes_p, size_t *count_p);
/* Says the body to that node, if it is there; owns its memory in any case. */
void mesh_listen_say(struct gate_mesh *mesh, uint64_t node, struct hvi_mesh_msg *msg);
/* Says to every node there which hosts have come and gone; copies. */
void mesh_listen_hosts(struct gate_mesh *mesh, const struct hvi_mesh_host *hosts, size_t count);
/* Its name; "": it is not there. */
const char *mesh_listen_name(const struct gate_mesh *mesh, uint64_t node);
void mesh_listen_tick(struct gate_mesh *mesh, uint64_t now_ns);
void mesh_listen_rows(const struct gate_mesh *mesh, uint64_t now_ns, struct hvi_admin_reply *reply);
void mesh_listen_close(struct gate_mesh *mesh);

/* ---- join.c ---- */

/* The seeds that GateStart names, of which one may be this node. HVI_OK, or an error with a sentence. */
int mesh_join_seeds(struct gate_mesh *mesh, char *text_p, size_t text_size);
/* Connects to them. The seed of mesh-join has to be usable. */
int mesh_join_open(struct gate_mesh *mesh, char *text_p, size_t text_size);
/* The seeds' keys may be others now. */
void mesh_join_allowed(struct gate_mesh *mesh);
/* Takes the packet out of `registered`. */
void mesh_join_register(struct gate_mesh *mesh, struct hvi_node_register *registered);
void mesh_join_withdraw(struct gate_mesh *mesh, const struct hvi_node_withdraw *withdrawn);
/* What waits has no hvdd any more. False: nothing waits, or has to be heard of. */
bool mesh_join_orphaned(struct gate_mesh *mesh);
/* A rendezvous knows of all that has gone. */
bool mesh_join_is_heard(const struct gate_mesh *mesh);
/* The rendezvous of this node has answered. */
void mesh_join_answered(struct gate_mesh *mesh, const struct hvi_node_roster *roster);
/* The seed at which jobs meet now, that can be spoken with; NULL: there is none. */
struct mesh_seed *mesh_join_seed(struct gate_mesh *mesh);
/* The nodes that a seed has told of: the first that can be spoken with. NULL: there is none. */
struct gate_hosts *mesh_join_hosts(struct gate_mesh *mesh);
/* Owns the body's memory in any case. */
void mesh_join_say(struct mesh_seed *seed, struct hvi_mesh_msg *msg);
/* Each seed gets a sign of life with the next tick. */
void mesh_join_hurry(struct gate_mesh *mesh);
/* Also while the mesh is not open: what is too late is forgotten. */
void mesh_join_tick(struct gate_mesh *mesh, uint64_t now_ns);
void mesh_join_rows(const struct gate_mesh *mesh, uint64_t now_ns, struct hvi_admin_reply *reply);
/* Closes the connections: what has been registered stays, for the next ones. */
void mesh_join_shut(struct gate_mesh *mesh);
void mesh_join_close(struct gate_mesh *mesh);

/* ---- query.c ---- */

/* A node asks: `seed` NULL: the node of that number asks this one's rendezvous about all nodes; else a seed asks about this node. */
void mesh_query_take(struct gate_mesh *mesh, struct mesh_seed *seed, uint64_t node,
                     const struct hvi_mesh_question *question);
/* An answer of a node to the rendezvous' question, or of a seed to ours (`seed` says which). */
void mesh_query_reply(struct gate_mesh *mesh, const struct mesh_seed *seed, uint64_t node,
                      struct hvi_mesh_reply *reply);
/* That node will not answer. */
void mesh_query_gone(struct gate_mesh *mesh, uint64_t node);
void mesh_query_tick(struct gate_mesh *mesh, uint64_t now_ns);
void mesh_query_close(struct gate_mesh *mesh);

#endif
