/* SPDX-License-Identifier: Apache-2.0
 * The timeline: a Chrome trace of the job's ops, written into a file that somebody else has opened.
 * timeline.c speaks for the main thread, timeline_writer.c is the thread that formats and writes;
 * between them lies a ring of records. The main thread never waits: what does not fit the ring is
 * counted, and the count becomes an event when there is room again. */
#ifndef ENGINE_TIMELINE_H
#define ENGINE_TIMELINE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct engine_watch;
struct engine_asker;
struct engine_gpu_time;
struct engine_op;
struct engine_part;

/* ---- timeline.c: the main thread ---- */

/* Starts a timeline in `fd`, which becomes the engine's whatever happens. The Ack follows when the
 * file is a valid, empty trace, or with the reason why not. */
void engine_timeline_start(struct engine_watch *watch, const struct engine_asker *asker, int fd,
                           const char *path, bool mark_cycles);
/* The Ack follows when everything is in the file; at once if there is no timeline. */
void engine_timeline_stop(struct engine_watch *watch, const struct engine_asker *asker);
/* Stops and waits, a second at most. For the end of the engine. */
void engine_timeline_close(struct engine_watch *watch);

/* What happens to ops; only while watch->timeline is set. */

/* A part has met its op. */
void engine_timeline_part(struct engine_watch *watch, const struct engine_part *part);
/* Every rank has come, and the op waits for its batch. */
void engine_timeline_ready(struct engine_watch *watch, struct engine_op *op);
void engine_timeline_started(struct engine_watch *watch, struct engine_op *op);
void engine_timeline_returns(struct engine_watch *watch, struct engine_op *op);
/* Finished, or failed in whatever state it is. */
void engine_timeline_over(struct engine_watch *watch, struct engine_op *op, int status);
/* A worker's stream took so long for works of which the op's is the first. `gpu`: what the GPU is called. */
void engine_timeline_took(struct engine_watch *watch, const struct engine_op *op,
                          const struct engine_gpu_time *time, const char *gpu);
/* A pass of the main loop that found something to do. */
void engine_timeline_cycle(struct engine_watch *watch);

/* ---- timeline_nodes.c: the main thread; of a job that spans nodes ---- */

struct hvi_mesh_ask;
struct hvi_mesh_answer;

/* The job's nodes have met: what was begun before is theirs, too. */
void engine_timeline_met(struct engine_watch *watch);
/* Not all of them record yet, 0.8 s long at most: an op that runs now may be missing there. */
bool engine_timeline_begins(const struct engine_watch *watch);
/* What another node asks for the timeline that it writes, or answers for ours. False: it is not about one. */
bool engine_timeline_asked(struct engine_watch *watch, uint32_t from,
                           const struct hvi_mesh_ask *ask);
bool engine_timeline_answered(struct engine_watch *watch, uint32_t from,
                              const struct hvi_mesh_answer *answer);
/* No op and no question of that node comes any more. */
void engine_timeline_node_gone(struct engine_watch *watch, uint32_t node);
/* The engine has nothing left to do. True: what a node knows has still to come to where it is written, in
 * 0.8 s at most; ask again after each event. */
bool engine_timeline_stays(struct engine_watch *watch);

/* ---- between the threads ---- */

#define TIMELINE_RING_BYTES (4u * 1024u * 1024u) /* a power of two */
#define TIMELINE_NAME_MAX   255u

enum timeline_what {
    TIMELINE_NAME,    /* payload: what .row is called */
    TIMELINE_BEGIN,   /* .label, .kind */
    TIMELINE_ARRIVED, /* .number: rank */
    TIMELINE_COPIED,  /* .number: rank; payload: nanoseconds (uint64_t) */
    TIMELINE_END,     /* payload: a struct timeline_shape, or nothing */
    TIMELINE_CYCLE,
    TIMELINE_DROPPED, /* .number: how many */
    TIMELINE_TOOK,    /* .label, .kind, .number: works; payload: a struct timeline_took */
};

enum timeline_label {
    TIMELINE_NEGOTIATE, /* NEGOTIATE_ALLREDUCE */
    TIMELINE_OP,        /* ALLREDUCE */
    TIMELINE_QUEUE,
    TIMELINE_EXECUTE, /* HOST_ALLREDUCE */
    TIMELINE_WORKER,  /* GPU_ALLREDUCE: its workers have it */
    TIMELINE_NCCL,    /* NCCL_ALLREDUCE: of a worker's stream, between GPUs */
    TIMELINE_KERNELS, /* KERNELS_ALLREDUCE: the same on one GPU */
};

/* In the ring, each at a multiple of 8 and never across its end: a record of .what SKIP fills up. */
struct timeline_record {
    uint64_t ts_ns; /* CLOCK_MONOTONIC */
    uint64_t number;
    uint32_t row;   /* of the tensor */
    uint32_t bytes; /* with the payload, rounded up */
    uint16_t what, label, kind, payload;
};
#define TIMELINE_SKIP 0xffffu

struct timeline_shape {
    uint32_t dtype, ndim;
    int32_t status;
    uint32_t reserved;
    int64_t dims[8];
};

struct timeline_took {
    uint64_t ns;
    uint32_t stream, reserved;
};

struct timeline_ring {
    _Alignas(64) _Atomic uint64_t head; /* main: release; pairs with the writer's acquire */
    _Alignas(64) _Atomic uint64_t tail; /* writer: release; pairs with the main thread's acquire */
    _Alignas(64) unsigned char bytes[TIMELINE_RING_BYTES];
};

/* What the writer needs. Everything but the atomics and the ring is fixed before it starts. */
struct timeline_writer {
    struct timeline_ring *ring;
    int file_fd, wake_fd, done_fd; /* done_fd: opened, and closed */
    uint64_t start_ns;
    const char *path;
    _Atomic bool stop; /* main: before writing wake_fd */
    /* Writer: set before it blocks on wake_fd; main: taken when it has published. Sequentially
     * consistent with .head on both sides. */
    _Atomic bool sleeping;
    _Atomic int opened; /* HVI_INPROGRESS, HVI_OK or why not; release, pairs with main's acquire */
    char why[256];      /* of .opened */
    _Atomic bool closed;
    _Atomic uint64_t dropped; /* main, before .stop: what no record in the ring tells of */
};

/* The thread's function; `user` is a struct timeline_writer. */
void *engine_timeline_write(void *user);

#endif
