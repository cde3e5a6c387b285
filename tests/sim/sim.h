/* SPDX-License-Identifier: Apache-2.0
 * hvt-sim: thousands of engines in one process, over a clock and a network that are simulated.
 *
 *   main.c       options, the table
 *   scenario.c   what a job goes through, and what is measured of it
 *   random.c     random programs, against the reference of tests/property
 *   job.c        a job: its nodes, its ranks' ops, works
 *   node.c       one engine: the real order/, mesh/mesh.c and mesh/link.c, and what stands for the rest
 *   ordered.c    whether the root hears each node's reports in their order
 *   network.c    what mesh/link.c sees of the kernel, of sd-event and of net/
 *   clock.c      the clock, the events, randomness
 *   memory.c     the bytes that an engine holds
 *   sockets.c    what real sockets cost
 *
 * docs/design/simulator.md says what is real and what is modelled. One thread; a run depends on its options and its
 * seed alone. */
#ifndef HVT_SIM_H
#define HVT_SIM_H

#include "daemon/engine/mesh/link.h"
#include "daemon/engine/mesh/mesh.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/order/order.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hvt_node;

/* ---- the clock ---- */

typedef void (*hvt_event_fn)(struct hvt_node *node, void *user, uint64_t value);

/* What the code costs, in simulated time. Nanoseconds but for .byte_ps. */
struct hvt_costs {
    uint64_t turn_ns;    /* the event loop goes round once */
    uint64_t send_ns;    /* sendmsg */
    uint64_t receive_ns; /* recv */
    uint64_t byte_ps;    /* a byte in either */
    uint64_t submit_ns;  /* order takes in a part */
    uint64_t judge_ns;   /* the root takes in a report, of one node */
    uint64_t each_ns;    /* and of each further one that says the same */
    uint64_t relay_ns;   /* a node passes a message on */
    uint64_t hear_ns;    /* a node carries out a verdict */
    uint64_t say_ns;     /* a report or a verdict is made, or passed on */
    uint64_t done_ns;    /* a work is over: its ranks are answered */
    uint64_t connect_ns; /* a connection and its handshake, on either side */
    uint64_t start_ns;   /* a roster is read, and order/ and mesh/ begin */
};

/* By what a turn does: an index of hvt_costs' middle, and of what --measure prints. */
enum hvt_cost { HVT_SUBMIT, HVT_JUDGE, HVT_RELAY, HVT_HEAR, HVT_SAY, HVT_DONE, HVT_COSTS };

uint64_t hvt_clock_now(void);
/* The code that runs takes so long. */
void hvt_clock_pay(uint64_t ns);
/* Calls `fn` at that time. With a node: on its thread, when that is free; never once the node is dead. */
void hvt_clock_post(struct hvt_node *node, uint64_t at_ns, hvt_event_fn fn, void *user,
                    uint64_t value);
/* Goes on until *goal, or until the time; false: it is not reached. NULL: until nothing happens, or the time. */
bool hvt_clock_run(const bool *goal, uint64_t until_ns);
/* From 0, without any event. */
void hvt_clock_reset(uint64_t seed);
/* 0 .. below - 1 */
uint64_t hvt_clock_random(uint64_t below);
uint64_t hvt_clock_events(void);

/* What a node's thread has to do, and until when it is at it. */
struct hvt_thread {
    uint64_t busy_ns;
    bool waking;
    struct hvt_event *queue; /* ring */
    uint32_t room, first, count;
};
void hvt_thread_fini(struct hvt_thread *thread);

/* ---- memory ---- */

/* What is allocated from here on is of this node's engine; NULL: of the simulator. Returns who was before. */
int64_t *hvt_memory_of(int64_t *bytes);
/* Memory of the simulator's, for good measure: never counted. */
void *hvt_memory_new(size_t bytes);
void hvt_memory_free(void *memory);

/* ---- the network ---- */

struct hvt_network {
    uint64_t latency_ns, jitter_ns; /* one way; jitter: on top, from 0 to it */
    uint64_t loss_ppm, again_ns;    /* of segments that are sent again, so much later */
    uint64_t byte_ps;               /* of each node's link */
    uint64_t window;                /* bytes under way on a connection */
};

struct hvt_figures {
    uint64_t messages, bytes; /* of control messages, each hop; beats do not count */
    uint64_t segments, again, connections;
};

extern struct hvt_network hvt_network;
extern struct hvt_figures hvt_figures;
extern struct hvt_costs hvt_costs;

void hvt_network_reset(void);
/* Messages between the two sides are held back from now on. */
void hvt_network_cut(uint32_t first, uint32_t end);
/* What the kernel does when a process is killed: its connections end. */
void hvt_network_close_all(struct hvt_node *node);

/* ---- nodes ---- */

#define HVT_RUNNING 8192u /* works of a node at a time */

struct hvt_part;

/* What becomes of a part. Not called back from inside: order/ is calling. */
struct hvt_part_calls {
    void (*answered)(struct hvt_part *part, int status, const char *text, int32_t culprit);
    void (*asked)(struct hvt_part *part); /* for an output; NULL: none is asked for */
};

/* One rank's submission. */
struct hvt_part {
    struct engine_part part;
    struct hvt_node *node;
    const struct hvt_part_calls *calls;
};

/* Stands for an sd_event. */
struct sd_event {
    struct hvt_node *node;
};

/* Reports of a node that the root has not heard: a ring of what stands for each. */
struct hvt_said {
    uint64_t *hash;
    uint32_t room, first, count;
    const struct engine_order_span *span; /* mesh/'s */
};

struct hvt_node {
    struct hvt_sim *job;
    uint32_t number;
    bool started, ready, told, dead;
    int64_t bytes; /* that the engine has allocated */
    struct hvt_thread thread;
    struct sd_event event;
    struct engine_net net; /* its identity alone */
    uint8_t *wants;        /* [nodes] connections that it has asked for */
    struct hvt_end *ends;
    uint64_t wire_ns; /* when its link has sent what it was given */
    struct engine_roster roster;
    struct engine_order order;
    struct engine_mesh mesh;
    struct engine_mesh_link link;
    struct engine_op **running; /* [HVT_RUNNING] by sequence */
    uint64_t began;             /* sequence of the last that began */
    uint64_t replayed;
    bool watches, ticks;
    uint64_t progress;
    struct hvt_said said;
    char text[HVI_TEXT_MAX + 1]; /* what its ranks were told */
};

enum hvt_end_of_node { HVT_POWER, HVT_PROCESS };

/* A node has the roster: connects. */
void hvt_node_start(struct hvt_node *node, const struct engine_node *nodes, uint32_t count);
/* .part has what the rank says, its rank and its seat; name NULL: unnamed, and .copy.anon_seq is the number. `group` as
 * engine_group_take; NULL: it is not grouped. */
void hvt_node_submit(struct hvt_node *node, struct hvt_part *part, const char *name,
                     struct engine_group *group);
void hvt_node_kill(struct hvt_node *node, enum hvt_end_of_node how);
/* After each turn of its loop. */
void hvt_node_after(struct hvt_node *node);
/* A work that all nodes have begun is over. */
void hvt_node_done(struct hvt_node *node, void *user, uint64_t sequence);
void hvt_node_fini(struct hvt_node *node);
/* Bytes of its state: order/, mesh/ and what they have allocated. */
uint64_t hvt_node_bytes(const struct hvt_node *node);
void hvt_node_connected(struct hvt_node *node, void *user, uint64_t fd);
/* Real nanoseconds and times of each cost, so far. */
void hvt_node_measured(enum hvt_cost cost, uint64_t *ns_p, uint64_t *times_p);

/* ---- the order of reports ---- */

/* The node's mesh/ is open. From now on, what the root hears is compared with what the node has said: the job is
 * `.overtaken` once it is something else. */
void hvt_ordered_begin(struct hvt_node *node);
void hvt_ordered_end(struct hvt_node *node);
/* Nodes in the root's reports, so far. */
uint64_t hvt_ordered_heard(void);

/* ---- real sockets ---- */

/* Says on stderr what they cost here. */
void hvt_sockets_measure(void);

/* ---- a job ---- */

struct hvt_sim_work {
    uint64_t sequence;
    uint32_t begun;
};

struct hvt_sim {
    uint32_t nodes, each; /* ranks on each */
    struct hvt_node *node;
    struct hvt_part *parts; /* of this step */
    uint32_t part_count;
    uint64_t left; /* of them, not answered */
    uint64_t failed;
    uint32_t ready, told, alive;
    bool all_ready, all_told, all_over; /* goals for hvt_clock_run */
    bool overtaken;                     /* the root has heard a node's reports in another order */
    uint64_t ready_ns, told_ns, begun_ns,
        over_ns; /* when it last happened; begun: a work, on all nodes */
    struct hvt_sim_work works[HVT_RUNNING];
    uint64_t work_ns; /* that data takes */
};

void hvt_sim_begin(struct hvt_sim *job, uint32_t nodes, uint32_t each);
void hvt_sim_end(struct hvt_sim *job);
/* Every node gets its roster at this time. */
void hvt_sim_meet(struct hvt_sim *job, uint64_t at_ns, uint64_t apart_ns);
/* Every rank submits `count` allreduces at once, each rank up to spread_ns later. */
void hvt_sim_step(struct hvt_sim *job, uint32_t count, uint64_t spread_ns);
void hvt_sim_began(struct hvt_sim *job, const struct hvt_node *node, const struct engine_op *op);
void hvt_sim_ready(struct hvt_sim *job);
void hvt_sim_told(struct hvt_sim *job);

#endif
