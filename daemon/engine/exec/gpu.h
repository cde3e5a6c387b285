/* SPDX-License-Identifier: Apache-2.0
 * The row "gpu": batches on memory of GPUs, as commands for the workers that have these GPUs (shm/device.h).
 *
 * Main thread, as start(); nothing blocks. A worker is a number below ENGINE_GPU_WORKERS. The row takes batches with
 * operands of kind DEVICE. It does nothing with that memory itself. */
#ifndef ENGINE_EXEC_GPU_H
#define ENGINE_EXEC_GPU_H

#include "daemon/engine/exec/backend.h"
#include "shm/device.h"

#define ENGINE_GPU_WORKERS 64u
#define ENGINE_GPU_RANKS   512u /* workers of a work, on all nodes */
#define ENGINE_GPU_TIMEOUT_NS                                                                      \
    UINT64_C(30000000000) /* from begun to the end, if the job has set nothing else */

extern const struct engine_backend engine_backend_gpu;

/* The worker takes batches. Channel and descriptor stay the caller's until engine_gpu_backend_lost. `name`: in sentences. */
void engine_gpu_backend_worker(void *context, uint32_t worker, struct hvi_device_channel *channel,
                               int event_fd, const char *name);
/* Its batches fail with HVI_ERR_WORKER_LOST and the text, now and later; those that other workers have as well, when
 * these have answered. */
void engine_gpu_backend_lost(void *context, uint32_t worker, const char *text);
/* What another node tells of the communicator of these workers. */
void engine_gpu_backend_heard(void *context, const uint64_t *instances, uint32_t count,
                              uint32_t node, const struct engine_gpu_news *news);
/* HVI_OK, or batches that want it fail with this status, and later ones of these workers, too. But after HVI_ERR_NO_MEMORY or _LIMIT a
 * later one asks anew, if all workers are of this node. */
void engine_gpu_backend_comm(void *context, uint32_t comm, int status, const char *text);
/* The session of that page is over, its .ready words are about to be poisoned, and workers are about to forget the page. Batches that
 * wait for one of these words are cancelled, and so are those with a member of it that no worker has yet. No later one may have it. */
void engine_gpu_backend_session_over(void *context, uint32_t page);
/* Takes what workers have answered, and tells other nodes what is new. True if there was something. To be called while a batch
 * of this row has not been posted, after batches were started. */
bool engine_gpu_backend_look(void *context);
/* Tentative works from `least` on, which some node has not started, are posted: ENGINE_BATCH_WITHDRAWN. */
void engine_gpu_backend_withdraw(void *context, uint64_t least);
/* Whether the started batch's work waits for other nodes to start it. */
bool engine_gpu_backend_is_tentative(void *context, const struct engine_batch *batch);
/* A started batch waits for a member's .ready word: the member's place. */
bool engine_gpu_backend_waits(void *context, const struct engine_batch *batch, uint32_t *place_p);
/* How long a batch that has begun may take; 0: ENGINE_GPU_TIMEOUT_NS. */
void engine_gpu_backend_set_timeout(void *context, uint64_t timeout_ns);

/* ---- gpu_batch.c: pure ---- */

/* The workers of a batch, by the lowest member that has memory there: a communicator's ranks. */
struct engine_gpu_route {
    uint32_t count;                       /* of this node; with a span there may be none */
    uint16_t workers[ENGINE_GPU_WORKERS]; /* numbers of the engine's */
    uint16_t rank[ENGINE_GPU_WORKERS];    /* of each, in the communicator */
    uint32_t ranks;                       /* of the communicator, on all nodes; 1: there is none */
    const uint64_t *instances; /* [ranks] with a span; NULL: a rank is an index into .workers */
};

/* `instances` is filled with a span, and the route points to it. False: works of a batch do not have their operands on the
 * same workers, or on too many. */
bool engine_gpu_route(const struct engine_batch *batch, uint64_t instances[ENGINE_GPU_RANKS],
                      struct engine_gpu_route *route_p);
/* Of a work with a span: the node of each rank of the communicator. */
void engine_gpu_nodes(const struct engine_work *work, const struct engine_gpu_route *route,
                      uint32_t *nodes_p);
/* The worker that has the memory of the member at this place; UINT16_MAX: it has none. */
uint16_t engine_gpu_worker_of(const struct engine_work *work, uint32_t place);
/* Slots that the batch takes in the ring of the route's worker `index`. 0: it is too large. */
uint32_t engine_gpu_slots(const struct engine_batch *batch, const struct engine_gpu_route *route,
                          uint32_t index);
/* Of a work with a span: whether no worker's share of it, on any node, is too large. All nodes come to the same end. */
bool engine_gpu_fits(const struct engine_work *work, const struct engine_gpu_route *route);
/* Fills them in. `comm` 0: the route has one worker. `flags`: HVI_DEVICE_TIMED. */
void engine_gpu_write(const struct engine_batch *batch, const struct engine_gpu_route *route,
                      uint32_t index, uint32_t comm, uint64_t number, uint32_t flags,
                      struct hvi_ring *ring);
/* Of a work with a span: slots of the largest share that any worker has of it, on any node, without the batch's own. All nodes
 * come to the same number. */
uint32_t engine_gpu_share(const struct engine_work *work, const struct engine_gpu_route *route);
/* Of a work without a span: slots that no worker's share of it exceeds, whatever the route, without the batch's own. */
uint64_t engine_gpu_most_slots(const struct engine_work *work);
/* Whether two works may be in one batch: workers plan it as one. */
bool engine_gpu_fuses(const struct engine_work *a, const struct engine_work *b);

#endif
