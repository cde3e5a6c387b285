/* SPDX-License-Identifier: Apache-2.0
 * Several "nodes" in one process: a context of a backend for each, joined by sockets, and ops over them
 * with what their outputs must be. One thread plays the main threads of all nodes. */
#ifndef HVT_CLUSTER_H
#define HVT_CLUSTER_H

#include "daemon/engine/exec/backend.h"

#include <stdatomic.h>

#define HVT_NODES   17u
#define HVT_MEMBERS 18u
#define HVT_PLACES  8u

/* The row of transports that all clusters of this program use: $HVT_TRANSPORT, else "tcp". */
const char *hvt_transport(void);

struct hvt_cluster {
    const struct engine_backend *backend;
    uint32_t nodes, lanes;
    bool tcp;           /* over loopback; else UNIX sockets */
    bool sealed;        /* what goes over lanes is encrypted; set after the opening */
    bool alone;         /* nobody answers when a lane is wanted */
    bool loses_threads; /* a backend may have some that wait for remote memory at its end */
    struct hvt_cluster_node {
        struct hvt_cluster *cluster;
        uint32_t number;
        void *context;
    } node[HVT_NODES];
    /* Copies of the connections' ends: fd[a][b] is a's end of those to b. -1: none. */
    int fd[HVT_NODES][HVT_NODES][ENGINE_WIRE_LANES_MAX];
};

void hvt_cluster_open(struct hvt_cluster *cluster, const struct engine_backend *backend,
                      uint32_t nodes, uint32_t lanes, bool tcp);
void hvt_cluster_close(struct hvt_cluster *cluster);
/* Makes the connection, unless there is one, and gives both nodes their ends. */
void hvt_cluster_connect(struct hvt_cluster *cluster, uint32_t a, uint32_t b, uint32_t lane);
/* The other end of a connection that node `a` takes for one to `b`. */
int hvt_cluster_pretend(struct hvt_cluster *cluster, uint32_t a, uint32_t b, uint32_t lane);

struct hvt_member {
    uint32_t node, place; /* place among the members on the node */
    bool joined;
    unsigned char *in, *out; /* .out may lie in .in */
    unsigned char *expected;
    uint64_t in_bytes, out_bytes;
};

/* What one node knows of an op. */
struct hvt_op_part {
    struct engine_batch batch;
    struct engine_work work;
    struct engine_span span;
    struct engine_operand in[HVT_PLACES], out[HVT_PLACES];
    uint64_t sizes[2 * HVT_PLACES * HVT_MEMBERS];
    _Atomic bool posted;
    bool started;
};

struct hvt_op {
    struct hvt_cluster *cluster;
    struct engine_work model; /* .bytes, .count, .sizes are set by hvt_op_make */
    uint32_t members;
    struct hvt_member member[HVT_MEMBERS];
    uint64_t sizes[HVT_MEMBERS * HVT_MEMBERS]; /* of the op as if on one node */
    bool in_place;
    /* The span. */
    uint32_t nodes, node[HVT_NODES], places[HVT_NODES];
    uint32_t home[HVT_MEMBERS], place[HVT_MEMBERS];
    uint8_t joined[HVT_MEMBERS];
    struct engine_process process;
    struct hvt_op_part part[HVT_NODES]; /* by index into .node */
};

/* Members and their nodes: "0120" has four, the first and the last on node 0. Nodes 10 to 16 are ':' to '@', which follow '9' in
 * ASCII. A capital letter A is a member on node 0 that has joined, B on node 1. */
void hvt_op_init(struct hvt_op *op, struct hvt_cluster *cluster, const char *members,
                 uint32_t kind);
/* Makes memory for `count` elements as the kind takes them (one alltoall part has up to `count`), fills it, and
 * finds what has to come out. `sequence` is the work's. */
void hvt_op_make(struct hvt_op *op, uint64_t count, uint64_t sequence, uint64_t *random);
void hvt_op_free(struct hvt_op *op);
/* The operands of this member become remote-process memory, of this process. */
void hvt_op_make_remote(struct hvt_op *op, uint32_t member, bool in, bool out);
/* On one node, by index into .node; or on all. */
void hvt_op_start(struct hvt_op *op, uint32_t index);
void hvt_op_start_all(struct hvt_op *op);
/* Waits until it is over there, or everywhere. */
void hvt_op_wait(struct hvt_op *op, uint32_t index);
void hvt_op_wait_all(struct hvt_op *op);
/* Waits, expects success everywhere, and the right bytes. */
void hvt_op_check(struct hvt_op *op);
void hvt_op_expect_outputs(const struct hvt_op *op);

#endif
