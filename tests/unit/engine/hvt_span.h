/* SPDX-License-Identifier: Apache-2.0
 * Jobs on several nodes in one process: an engine_order and an engine_mesh for each node, and between
 * them the edges of the tree, which delay messages but keep their order. The same job on one
 * node is the reference. */
#ifndef HVT_SPAN_H
#define HVT_SPAN_H

#include "daemon/engine/mesh/mesh.h"
#include "daemon/engine/order/group.h"
#include "daemon/engine/order/order.h"

#define HVT_NODES     24
#define HVT_RANKS     64
#define HVT_EACH      48 /* parts of a rank in a step */
#define HVT_TENTATIVE 256
#define HVT_SEQUENCES 65536

struct hvt_message {
    struct hvt_message *next;
    size_t length;
    unsigned char bytes[];
};

struct hvt_queue {
    struct hvt_message *first, **last;
};

struct hvt_job;

struct hvt_node {
    struct hvt_job *job;
    uint32_t number;
    struct engine_roster roster;
    struct engine_order order;
    struct engine_mesh mesh;
    struct hvt_queue up, down; /* to and from its parent */
    uint32_t breaks;           /* of which it has heard */
    uint64_t sequence;         /* of the last work that was carried out */
    uint64_t started[4096];
    uint32_t started_count;
    struct engine_op *tentative[HVT_TENTATIVE]; /* what executes and may be withdrawn */
    uint32_t tentative_count;
    uint64_t replayed, withdrawn; /* works */
    bool holds;                   /* data that tentative works wait for is on its way */
    bool withholds;               /* outputs: its ranks do not wait for their ops */
    uint64_t workers
        [HVT_RANKS]; /* of the last work: as it was told of GPUs, by set rank or sender and receiver */
    uint32_t worker_count; /* 0: memory of the host */
};

struct hvt_part {
    struct engine_part part;
    struct hvt_node *node;
    bool used, over, dropped, asked;
    int status;
    int32_t culprit;
    uint64_t room;      /* of the output that is given when it is asked for */
    uint8_t out_memory; /* likewise, where no input has said it */
    int64_t integers[HVT_RANKS];
    char text[HVI_TEXT_MAX + 1];
};

struct hvt_job {
    uint32_t nodes;
    int32_t size;
    uint64_t random;
    uint32_t home[HVT_RANKS];
    engine_seat seat[HVT_RANKS];
    struct hvt_node node[HVT_NODES];
    struct engine_group groups[HVT_RANKS];
    uint64_t messages; /* between nodes */
    bool lied;         /* some message is not a node's */
    /* Nodes that have a tentative work, and that have done it. */
    uint8_t begun[HVT_SEQUENCES], done[HVT_SEQUENCES];
    uint64_t begun_top;                         /* sequence */
    struct hvt_part parts[HVT_RANKS][HVT_EACH]; /* the last: forgotten one by one */
};

/* What one rank brings. */
struct hvt_bring {
    const char *name; /* NULL: unnamed, and .tag is its number */
    uint32_t set;
    uint16_t kind;
    uint8_t dtype, reduce_op, ndim;
    int64_t dims[4];
    int32_t root;
    double prescale;
    uint32_t group_size, group_index;
    uint32_t integer_count;
    const int64_t *integers;
    uint64_t tag;  /* SEND, RECV, SET_OPEN */
    bool given;    /* the output comes at once */
    uint64_t room; /* of the output */
    uint8_t memory, out_memory;
    uint64_t instance; /* DEVICE: the GPU's worker */
};

/* Ranks are dealt to nodes in turn, or at random. nodes 1: the reference. */
void hvt_job_begin(struct hvt_job *job, uint32_t nodes, int32_t size, uint64_t seed, bool deal);
/* Nothing may wait. */
void hvt_job_end(struct hvt_job *job);
/* Of a new step: all parts are forgotten, and all must be over. */
void hvt_job_step(struct hvt_job *job);
/* A part with what is said; `which` of this rank. engine_set_check has refused it: its sentence is the
 * answer. */
struct hvt_part *hvt_job_bring(struct hvt_job *job, int32_t rank, uint32_t which,
                               const struct hvt_bring *bring);
/* Delivers what is under way, in an order of chance, gives outputs and ends works, until nothing moves; what
 * is waited for in a step that repeats for too long is asked for in another way. */
void hvt_job_run(struct hvt_job *job);
/* At most so many deliveries. False: nothing is under way. */
bool hvt_job_run_some(struct hvt_job *job, uint32_t deliveries);
/* The op that a rank waits in. */
struct engine_op *hvt_job_op(struct hvt_job *job, int32_t rank, uint32_t which);
/* What an engine does when a rank of its node is gone: everything that waits there fails, and the other
 * nodes hear of it. */
void hvt_job_break(struct hvt_job *job, uint32_t node, int status, int32_t culprit,
                   const char *text);

uint64_t hvt_span_random(uint64_t *state);

#endif
