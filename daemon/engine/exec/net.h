/* SPDX-License-Identifier: Apache-2.0
 * The parts of the backend between nodes: net.c is the row, net_thread.c its thread, net_lane.c what goes
 * over one connection, net_plan.c which messages a work consists of, net_move.c what is done with their
 * bytes, net_stage.c how remote-process memory takes part, net_tcp.c the transport.
 *
 * A work is a list of messages to send and one of messages to receive. Each lane (a connection) has a queue
 * of each, over all works, in the order of works: that is the order on the wire. A message to send may wait
 * until one has been received. Messages of all nodes have one order (sequence of the work, step; of a ring the wave, then the
 * step), in which each waits for earlier ones only, so the first message that has not been delivered never waits for
 * anything but its lane: works do not deadlock, however many are under way, and they overlap.
 *
 * A work that fails on one node fails on those that need its data: what is left of its messages is sent
 * void, a head without bytes that says why, and what comes for it is thrown away. So a lane never
 * loses step, and the job's other works go on. A lane is given up, with all lanes to that node, if it
 * breaks, if a head on it is not the expected one, or if a message cannot be sent to its end; messages to and
 * from that node count as over then, and works that still needed them fail with HVI_ERR_NODE_LOST.
 *
 * A tentative work begins with messages that prove that all nodes have started it: a small allreduce has only
 * such, other works have empty ones before the rest. When it is withdrawn, the messages that have not begun are
 * taken off the lanes, and a head of such a work is thrown away with its bytes by the node that has not started
 * it, or has withdrawn it, too: when it starts a later work. A later work's head waits until then. */
#ifndef ENGINE_WIRE_H
#define ENGINE_WIRE_H

#include "base/clock.h"
#include "daemon/engine/exec/host.h"
#include "daemon/engine/exec/net_port.h"

#include <pthread.h>

/* Figures: two nodes of one core each over a virtual link, in multinode measurements of this project;
 * medians of 5 rounds. */

/* Most bytes of a message. 64 MiB took 35 ms with 256 KiB, and was slower with 1 MiB: what is received has left
 * the second-level cache before it is added. */
#define ENGINE_WIRE_CHUNK_BYTES (256u * 1024u)
/* A block of a ring goes in two messages, so that sending and receiving overlap, unless they would be
 * smaller than this: 1 MiB took 1.02 ms with 64 KiB on one lane, 0.71 with 128, 0.5 with 256. */
#define ENGINE_WIRE_CHUNK_LEAST (256u * 1024u)
/* The same on two lanes and more: 0.40 to 0.45 ms with 64 or 128 KiB. */
#define ENGINE_WIRE_CHUNK_LANES (64u * 1024u)
/* How many chunks, of each lane, the first step of a ring is ahead of the last (net_waves.c). 64 MiB on two nodes took 30.6 ms
 * with 4, 30.9 with 8, 31.4 with 16; in other runs 31.1 with 8, and 34.9 step by step. A way of many round trips wants more. */
#define ENGINE_WIRE_AHEAD_CHUNKS 8u
/* An allreduce up to this goes whole to all nodes: one step for two nodes instead of two. */
#define ENGINE_WIRE_SMALL_BYTES (64u * 1024u)
/* A small allreduce's message up to this is copied, so that it goes together with others that are ready. */
#define ENGINE_WIRE_PACKED_BYTES (16u * 1024u)
/* As long as all vectors together have no more than this. */
#define ENGINE_WIRE_SMALL_ALL_BYTES (1024u * 1024u)
/* Up to so many nodes each sends to each; more double their vectors in steps. */
#define ENGINE_WIRE_DIRECT_NODES 4u
/* A broadcast up to this goes down a tree, else along a chain. */
#define ENGINE_WIRE_TREE_BYTES (64u * 1024u)
/* What all outputs here have at least when what has just been received is copied to others past the caches, also where
 * the last cache is larger: the processors of a large machine share it. An allreduce of 64 MiB on two nodes of two ranks
 * took 36.0 ms without, where 480 MiB were said to be the last cache, and 33.2 so. Other copies gained nothing. */
#define ENGINE_WIRE_STREAM_BYTES (32u * 1024u * 1024u)
/* Looks of the net thread at the lanes before it sleeps; each is a system call. 1 MiB took 0.61 to 0.80 ms with 20
 * and 0.27 to 0.62 with 300, 64 MiB 46 and 43 ms; in other runs 64 MiB 34 ms with 200 and 81 with 2000. */
#define ENGINE_WIRE_SPINS 300u
/* Looks of the main thread at a small work before it leaves that to the net thread. 4 B took 17 us with 1, 20
 * with 20, 34 with 100. */
#define ENGINE_WIRE_DRIVE_SPINS 20u
/* Looks of the main thread at a larger work without a move, until it yields: what it waits for may need its core. 1 MiB on
 * two nodes of two ranks, which had two cores together, took 278 to 483 us without in ten runs, and 288 to 333 with 1, 288 to
 * 339 with 8, 284 to 358 with 32; on two of one 216 to 377 and, with 8, 216 to 223. */
#define ENGINE_WIRE_YIELD_LOOKS 8u
/* Most looks of the main thread at a small work. */
#define ENGINE_WIRE_DRIVES 200u
/* A work up to this is moved by the main thread, if there is no other. 1 MiB took 0.41 ms by the net thread and 0.32 so,
 * on two nodes of two ranks, and 0.33 and 0.27 ms on two of one. */
#define ENGINE_WIRE_DRIVE_BYTES (2u * 1024u * 1024u)
/* The steps of the messages with which the nodes tell each other that they have started a tentative work. */
#define ENGINE_WIRE_MEETING UINT32_C(0x80000000)
/* Most works that are started together. */
#define ENGINE_WIRE_GATHER 64u
/* How often deadlines are looked at. */
#define ENGINE_WIRE_TICK_NS (20 * HVI_NS_MS)

/* Not less than 32: the kernel puts a body behind it in a page of its own, and bodies begin at a page or near it (base/copy.h). */
#define ENGINE_WIRE_HEAD_BYTES 48u
#define ENGINE_WIRE_NONE       UINT32_MAX

/* ---- messages ---- */

enum engine_wire_what {
    /* To send: */
    ENGINE_WIRE_SUM,  /* what the local inputs give, which is made first */
    ENGINE_WIRE_DATA, /* operand memory that may lack a page */
    ENGINE_WIRE_PASS, /* what was made or received before */
    /* To receive: */
    ENGINE_WIRE_ADD,    /* added to the local inputs, at .data */
    ENGINE_WIRE_LAST,   /* the same, and that is the result */
    ENGINE_WIRE_PLACE,  /* belongs at .data */
    ENGINE_WIRE_SPREAD, /* and at the same place of the other local outputs */
};

struct engine_wire_message {
    uint64_t at, bytes;  /* in the op's vector */
    unsigned char *data; /* NULL for LAST: all local outputs */
    uint32_t peer;       /* index into the span's nodes */
    uint32_t step;
    uint32_t after; /* to send: the message to receive that has to be over; ENGINE_WIRE_NONE */
    uint32_t next;  /* of the same run */
    uint8_t what, lane;
    bool over;
};

struct engine_wire_messages {
    struct engine_wire_message *list;
    uint32_t count, room, over;
};

/* A work's messages on one lane in one direction. */
struct engine_wire_run {
    struct engine_wire_run *next; /* on the lane */
    struct engine_wire_work *work;
    uint32_t peer; /* index into the work's nodes */
    uint32_t first, last;
    uint32_t at; /* the message whose turn it is */
    uint8_t lane;
    bool sends;
};

/* Something between local operands. */
struct engine_wire_copy {
    const unsigned char *from; /* NULL: the inputs are reduced at .at */
    unsigned char *to;         /* NULL: all local outputs at .at */
    uint64_t at, bytes;
};

enum engine_wire_finish {
    ENGINE_WIRE_FINISH_NOTHING,
    ENGINE_WIRE_FINISH_SLOTS,  /* the sums of all nodes lie in .area, one after the other */
    ENGINE_WIRE_FINISH_ADASUM, /* the vectors of all members lie in .area */
};

/* ---- a work ---- */

struct engine_wire_stage;
struct engine_wire_adasum;

struct engine_wire_work {
    struct engine_wire_work *next;
    struct engine_batch *batch;     /* NULL: posted */
    const struct engine_work *work; /* not looked at after that */
    /* Copies of the span, as messages may have to go on after the batch is posted. */
    uint64_t sequence;
    uint32_t nodes, here, lanes;
    uint32_t *node;
    uint64_t idle_limit_ns;

    /* The plan. */
    struct engine_wire_messages out, in;
    struct engine_wire_run *runs;
    uint32_t run_count;
    struct engine_wire_copy *copies;
    uint32_t copy_count, copy_room, copy_at;
    bool in_order; /* a message to send waits for all before .after, too */
    uint32_t in_prefix;
    uint32_t
        gate; /* tentative: the first ones to receive, which prove that all have started it; else 0 */
    bool tentative;
    enum engine_wire_finish finish;

    /* Where the operands are. By place; NULL: there is none. */
    const unsigned char **in_of;
    unsigned char **out_of;
    /* Of these, those that there are. */
    const void **ins;
    void **outs;
    uint32_t in_count, out_count;
    double prescale;     /* of what .ins has */
    bool one_pass;       /* local inputs and a received sum can be added at once */
    bool streams;        /* copies go past the caches */
    bool spread_streams; /* those of what has just been received */
    /* What lies nowhere else. */
    unsigned char *area;
    unsigned char *slots; /* there, of each node or member; or what has been added so far */
    uint64_t slot_bytes;
    /* Also there: what stands for the operands while some are remote-process memory. */
    unsigned char *staged_in, *staged_out;
    struct engine_wire_stage *stage;
    struct engine_wire_adasum *adasum;

    /* How it goes. */
    bool begun;         /* its inputs are there: messages may go */
    bool finished;      /* all that belongs to messages is done */
    bool writing;       /* then its stage writes outputs */
    uint32_t sending;   /* lanes in the middle of a message */
    uint32_t holding;   /* lanes that write one to its memory although it has failed */
    uint64_t idle_ns;   /* without a byte, from tick to tick */
    uint64_t failed_ns; /* since it failed, from tick to tick */
    int status;         /* HVI_OK: so far */
    bool final;         /* it is posted with this, committed or not */
    bool withdrawn;
    uint32_t culprit; /* number of a node */
    struct engine_fault fault;
    char text[ENGINE_TEXT_BYTES];
    bool cancelled;     /* under struct engine_wire's lock */
    _Atomic bool waits; /* tentative and not committed; relaxed: nothing else is read by it */
};

/* All nodes have started it. */
static inline bool engine_wire_is_committed(const struct engine_wire_work *work)
{
    return work->in_prefix >= work->gate;
}

/* Some operand is remote-process memory. */
static inline bool engine_wire_is_staged(const struct engine_work *work)
{
    return work->bytes > 0 && engine_work_has(work, ENGINE_OPERAND_PROCESS);
}

/* What works are made with. */
struct engine_wire_tools {
    const struct hvi_kernels *kernels;
    uint64_t stream_bytes;
    unsigned char *strip; /* ENGINE_WIRE_STRIP_BYTES */
};
#define ENGINE_WIRE_STRIP_BYTES (64u * 1024u)

/* ---- net_waves.c ---- */

/* place[i]: where, counted from the first, message i of a ring goes. Step s has the messages from first[s] to first[s + 1].
 * False: they go as they come, and nothing is written. Pure. */
bool engine_wire_waves(const uint32_t *first, uint32_t steps, uint32_t lag, uint32_t *place);

/* ---- net_plan.c ---- */

/* A work and its messages. Pure but for memory, of which it needs some: NULL without. The batch has one work, with a span. */
struct engine_wire_work *engine_wire_work_new(struct engine_batch *batch, uint32_t lanes,
                                              uint64_t stream_bytes);
void engine_wire_work_free(struct engine_wire_work *work);
/* Bytes of a local member's input or output. Pure. */
uint64_t engine_wire_in_bytes(const struct engine_work *work, uint32_t place);
uint64_t engine_wire_out_bytes(const struct engine_work *work, uint32_t place);
/* An adasum of more than one member. Pure. */
bool engine_wire_is_adasum(const struct engine_work *work);

/* ---- net_move.c: the net thread ---- */

/* Makes ready what a message sends. HVI_OK, or how the work fails, with *fault_p. */
int engine_wire_prepare(const struct engine_wire_tools *tools, const struct engine_wire_work *work,
                        const struct engine_wire_message *message, const unsigned char **data_p,
                        struct engine_fault *fault_p);
/* Where the bytes of a message go: to operands, or, if `received` has to be added, to `scratch`. */
unsigned char *engine_wire_target(const struct engine_wire_message *message,
                                  unsigned char *scratch);
/* The bytes of a message have come to its target. */
int engine_wire_accept(const struct engine_wire_tools *tools, const struct engine_wire_work *work,
                       const struct engine_wire_message *message, const unsigned char *received,
                       struct engine_fault *fault_p);
/* Looks at memory that the kernel could not read or write. */
int engine_wire_touch(const void *memory, uint64_t bytes, struct engine_fault *fault_p);
int engine_wire_copy(const struct engine_wire_tools *tools, const struct engine_wire_work *work,
                     const struct engine_wire_copy *copy, struct engine_fault *fault_p);
/* Does a piece of what is left when all messages have come, and says in *over_p whether that was the last. */
int engine_wire_finish(const struct engine_wire_tools *tools, struct engine_wire_work *work,
                       bool *over_p, struct engine_fault *fault_p);

/* The local sum that all others wait for, if the work has one. Before anything else. */
int engine_wire_begin(const struct engine_wire_tools *tools, const struct engine_wire_work *work,
                      struct engine_fault *fault_p);

/* ---- net_adasum.c ---- */

/* The work's vectors, combined as on one node. NULL without memory. */
struct engine_wire_adasum *engine_wire_adasum_new(const struct engine_wire_work *work,
                                                  const struct hvi_kernels *kernels);
void engine_wire_adasum_free(struct engine_wire_adasum *adasum);
/* Does one chunk of one step. It touches mapped memory and allocates nothing. */
void engine_wire_adasum_run(struct engine_wire_adasum *adasum);
/* Goes on to the next chunk or step. True: there is none. */
bool engine_wire_adasum_next(struct engine_wire_adasum *adasum);

#endif
