/* SPDX-License-Identifier: Apache-2.0
 * The row "gpu", for the files that make it up: gpu.c (which batch starts when, and how it ends), gpu_pack.c (which start as one),
 * gpu_fences.c, gpu_registered.c, gpu_nodes.c (what nodes tell each other) and gpu_answers.c (what workers answer). Main thread, as gpu.h. */
#ifndef ENGINE_EXEC_GPU_ROW_H
#define ENGINE_EXEC_GPU_ROW_H

#include "daemon/engine/exec/gpu.h"

#define ENGINE_GPU_NAME_BYTES 96u

/* A batch that is not posted. */
struct gpu_job {
    struct gpu_job *next, *prev;
    struct engine_batch *batch;
    struct engine_gpu_route route;
    struct gpu_comm *comm; /* NULL: one worker */
    bool queued;
    bool tentative; /* queued: not all nodes are known to have started it */
    /* Up to this work all nodes were found, at one time, to have started the tentative ones; 0: it never was one. */
    uint64_t agreed;
    struct gpu_job *pack,
        *pack_next; /* not queued: its workers have it in one batch with these, from .pack on */
    uint64_t left,
        begun;         /* a bit for each worker of the route, by index; the same in all of a pack */
    uint64_t here_ns;  /* begun on all of these; 0: not yet */
    uint64_t begun_ns; /* on all, those of other nodes included */
    uint64_t
        timed_ns; /* since when workers have it, and say what their streams took; 0: they do not */
    uint32_t works; /* that they have together, of the first of a pack; 0: of another one */
    uint64_t numbers[ENGINE_GPU_WORKERS];
};

/* A work has failed on another node. */
struct gpu_failure {
    struct gpu_failure *next;
    uint64_t sequence;
    int status;
    char text[ENGINE_TEXT_BYTES];
};

/* A node that this one speaks with: the first node with each other one, any other with the first alone, which speaks for all. */
struct gpu_peer {
    uint32_t node;
    struct
        gpu_marks { /* sequences of the newest works that were started, that have begun, and that are over */
        uint64_t started, begun, over;
    } said, told; /* by that node, and to it */
};

struct gpu_comm {
    struct gpu_comm *next;
    uint32_t number;
    int status;      /* HVI_INPROGRESS: it is being made */
    bool registered; /* for registered memory */
    struct engine_gpu_route route;
    char text[ENGINE_TEXT_BYTES];
    /* With a span: [route.ranks], by rank. */
    uint64_t *instances;
    uint32_t *nodes;
    struct gpu_peer *peers;
    uint32_t peer_count;
    uint64_t last;    /* its newest work that was started here */
    uint64_t started; /* likewise, of those that were tentative */
    uint64_t agreed;  /* tentative works up to this one were started on all nodes */
    uint64_t over;    /* the newest that is over here */
    bool has_news;    /* for other nodes: engine_gpu_spread_news */
    struct gpu_failure *failures;
    uint32_t failure_count;
    bool abandoned; /* a work of it will not start here: the nodes are to leave it */
};

struct gpu_worker {
    bool linked, lost;
    struct hvi_device_channel *channel;
    int event_fd;
    char name[ENGINE_GPU_NAME_BYTES];
    char text[ENGINE_TEXT_BYTES]; /* lost: why */
    uint64_t number;              /* of the last batch */
    uint64_t answers;             /* .seq of the last answer */
    uint32_t under_way;           /* batches that are not answered, also of those that are posted */
    uint64_t waited_for[HVI_DEVICE_DONES];  /* by number: not answered; 0: none */
    struct gpu_job *jobs[HVI_DEVICE_DONES]; /* by number; NULL: posted already */
    const char *lie;                        /* it has told one: it is to be ended */
    bool
        ended; /* it is being ended: nothing goes to it or is taken from it; engine_gpu_backend_lost follows */
};

struct gpu {
    struct engine_backend_config config;
    uint64_t timeout_ns;
    struct gpu_job *jobs; /* not posted, in the order of start() */
    struct gpu_job *free_jobs;
    uint32_t queued;
    struct gpu_comm *comms;
    uint32_t last_comm;
    uint32_t tried_again;       /* communicators that were made anew after a failure */
    uint32_t registered_coming; /* communicators for registered memory that are being made */
    struct gpu_worker *workers; /* [ENGINE_GPU_WORKERS], once there is one */
    uint32_t worker_count;      /* their numbers are below it */
    uint64_t instances[ENGINE_GPU_RANKS];     /* scratch: of the work that is being started */
    struct gpu_job *packed[HVI_DEVICE_WORKS]; /* scratch: of engine_gpu_pack */
    struct engine_batch pack;
};

/* ---- gpu.c ---- */

/* Starts what may start now of the jobs that are queued. */
void engine_gpu_push(struct gpu *gpu);
/* The batch is over, with its status. The job is invalid afterwards. */
void engine_gpu_post(struct gpu *gpu, struct gpu_job *job);
/* The first failure stays. */
void engine_gpu_fail(struct engine_batch *batch, int status, const char *text);
/* The job fails: what a worker has is answered by it, with all of its pack. */
void engine_gpu_fail_job(struct gpu *gpu, struct gpu_job *job, int status, const char *text);

/* ---- gpu_registered.c ---- */

/* Whether the work may go by a communicator for registered memory; and whether all its memory is registered with this one. */
bool engine_gpu_may_register(const struct gpu *gpu, const struct gpu_job *job);
bool engine_gpu_is_registered(const struct gpu *gpu, const struct gpu_job *job,
                              const struct gpu_comm *comm);

/* ---- gpu_pack.c ---- */

/* What goes to the workers when the queued job does: its batch, or gpu->pack, with gpu->packed. */
const struct engine_batch *engine_gpu_pack(struct gpu *gpu, struct gpu_job *job);

/* ---- gpu_fences.c ---- */

/* Whether all members that this worker of the route has, or with `index` UINT32_MAX any worker, have come. */
bool engine_gpu_is_open(const struct gpu_job *job, uint32_t index, uint32_t *place_p);
/* Whether it has a member of that page; without `ready` one that has not come. */
bool engine_gpu_is_of_page(const struct gpu_job *job, uint32_t page, bool ready);
/* The kernels of the job write nothing from here on, and no stream waits for it. */
void engine_gpu_open_all(const struct gpu_job *job);

/* ---- gpu_nodes.c ---- */

bool engine_gpu_is_same(const struct engine_gpu_route *a, const struct engine_gpu_route *b);
void engine_gpu_list_peers(struct gpu_comm *comm, uint32_t here);
struct engine_gpu_comm engine_gpu_describe_comm(const struct gpu_comm *comm);
void engine_gpu_free_comm(struct gpu_comm *comm);
uint64_t engine_gpu_sequence(const struct gpu_job *job);
/* Workers of other nodes take part. */
bool engine_gpu_has_nodes(const struct gpu_job *job);
/* Whether the work is over, or else has begun, on all other nodes. */
bool engine_gpu_is_past(const struct gpu_job *job, bool over);
/* A tentative work has been started here. */
void engine_gpu_note_start(struct gpu_job *job);
/* Tells other nodes what is new. True if works are not tentative any more: engine_gpu_push. */
bool engine_gpu_spread_news(struct gpu *gpu);
/* Whether the work has failed on another node, whose workers may not come to it any more. */
bool engine_gpu_has_failed(const struct gpu_job *job);
/* The work has begun here: nodes are told. */
void engine_gpu_say_begun(struct gpu *gpu, const struct gpu_job *job);
/* All workers here have answered. The job is over, or waits for other nodes. */
void engine_gpu_settle(struct gpu *gpu, struct gpu_job *job);

/* ---- gpu_answers.c ---- */

/* It is ended by the next engine_gpu_backend_look. */
void engine_gpu_lie(struct gpu_worker *worker, const char *text);
/* Its batches fail when it is known to be dead: until then it may write their outputs. The receiver may call
 * engine_gpu_backend_lost at once. */
void engine_gpu_end_worker(struct gpu *gpu, uint32_t number, const char *text);

#endif
