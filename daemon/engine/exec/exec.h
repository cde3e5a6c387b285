/* SPDX-License-Identifier: Apache-2.0
 * The room exec/: how ready ops run. It takes them from order/'s list, puts them into batches and gives
 * these to backends; what backends have finished goes back to order/ as ops that are done.
 *
 * Engine thread, except post in dispatch.c, which the backends' threads call, and .posted. Nothing
 * blocks unless it says so. It calls upward only through the table. */
#ifndef ENGINE_EXEC_EXEC_H
#define ENGINE_EXEC_EXEC_H

#include "base/clock.h"
#include "daemon/engine/exec/backend.h"
#include "daemon/engine/exec/task.h"
#include "daemon/engine/order/order.h"

#include <pthread.h>
#include <stdatomic.h>

#define ENGINE_ANSWER_NS (10 * HVI_NS_SEC) /* .answer_ns, if the job has set nothing else */

struct hvi_device_channel;
struct hvi_seal_keys;

struct engine_exec_calls {
    /* The op's batch begins: of GPUs, when its workers have it; an op that fails before never does. */
    void (*started)(void *user, struct engine_op *op);
    /* The memory of a rank's process could not be reached. The op is the receiver's, who ends it with
     * engine_op_done now or later. */
    void (*fault)(void *user, struct engine_op *op, int status, const struct engine_fault *fault);
    /* A page of memory that the engine has mapped could not be had, at this address. The op is the
     * receiver's, as above. */
    void (*missing)(void *user, struct engine_op *op, uint64_t address);
    /* A data connection to this node is needed: engine_dispatch_lane, or engine_dispatch_lost, follows. NULL
     * where there are no other nodes. */
    void (*lane_wanted)(void *user, uint32_t node, uint32_t lane);
    /* A work over several nodes has failed as if the job were over, and nobody has said why yet. It waits for
     * engine_dispatch_explain: to be called when the job breaks, or a little later. NULL: it does not wait. */
    void (*unexplained)(void *user);
    /* These workers of GPUs need a communicator: engine_dispatch_comm follows. NULL: there are no workers. */
    void (*comm_wanted)(void *user, const struct engine_gpu_comm *comm);
    /* As engine_backend_config's. */
    bool (*registers)(void *user, uint32_t import);
    bool (*is_registered)(void *user, uint32_t comm, uint32_t import);
    /* As engine_backend_config's. NULL where there are no other nodes. */
    void (*tell_gpus)(void *user, const struct engine_gpu_comm *comm, uint32_t node,
                      const struct engine_gpu_news *news);
    void (*comm_over)(void *user, uint32_t comm, int status, const char *text);
    /* This worker does not move, or lies: engine_dispatch_worker_lost follows when it is dead, perhaps at once. */
    void (*worker_stuck)(void *user, uint32_t worker, const char *text);
    /* As engine_backend_config's, of each op of the batch; .works: of the first one alone. NULL: never. */
    bool (*is_timed)(void *user);
    void (*took)(void *user, struct engine_op *op, const struct engine_gpu_time *time);
};

struct engine_exec {
    struct engine_order *order;
    const struct engine_exec_calls *calls;
    void *user;
    uint32_t threads; /* that may work at once, the main thread included */
    int wake_fd;      /* eventfd: written when another thread posts a batch */
    uint64_t fusion_bytes;
    uint64_t answer_ns; /* how long memory of a rank's process may take to answer */
    bool group_fusion;  /* groups may be batched with other ops */

    struct engine_batch *free_batches;
    void *backend_contexts[4];    /* one per row of engine_backends */
    struct engine_batch *running; /* batches that are not completed */
    struct engine_batch
        *unexplained; /* failed ones that wait for engine_dispatch_explain, newest first */
    uint32_t remote;  /* batches with remote-process operands that are not completed */
    uint32_t devices; /* the same with operands on GPUs */
    pthread_t main_thread;
    /* Batches that are over, newest first. Any thread adds one, release; engine_dispatch_reap takes
     * all, acquire. */
    struct engine_batch *_Atomic posted;
};

/* ---- dispatch.c ---- */

/* Opens every backend; everything up to the blank line above is set, the rest zero. HVI_OK or the
 * error, logged. */
int engine_dispatch_open(struct engine_exec *exec);
/* Starts what is ready, waits until it is over, completes it and closes the backends. Harmless before
 * engine_dispatch_open. False: threads wait for memory that does not answer and were given up; only the end of
 * the process ends them. */
bool engine_dispatch_close(struct engine_exec *exec);
/* More threads, up to so many in all, as far as they can be had. Blocks while they start. */
void engine_dispatch_grow(struct engine_exec *exec, uint32_t threads);
/* Fuses and starts everything that is ready. */
void engine_dispatch_ready(struct engine_exec *exec);
/* Completes what backends have finished. True if there was something. */
bool engine_dispatch_reap(struct engine_exec *exec);
/* Does one piece of a backend's work; false when there is none. */
bool engine_dispatch_help(struct engine_exec *exec);
/* There is no time for it now. */
void engine_dispatch_busy(struct engine_exec *exec);
/* Fails works whose remote-process memory has not answered for exec->answer_ns, and ends workers of GPUs whose batches take
 * too long. To be called now and then while there are some (.remote, .devices). */
void engine_dispatch_watch(struct engine_exec *exec);
/* A work whose remote-process memory has not answered for ENGINE_SILENT_NS, and what it waits for: the next
 * one from cursor {0} on. NULL: no more. */
struct engine_exec_cursor {
    const struct engine_batch *after;
};
const struct engine_op *engine_dispatch_next_silent(struct engine_exec *exec,
                                                    struct engine_exec_cursor *cursor,
                                                    struct engine_fault *fault_p);
/* Ends everything that is ready and was not started, and cancels what was started: that ends as what has
 * broken the job says. */
void engine_dispatch_drop(struct engine_exec *exec, int status, const char *text);
/* The job is broken: cancels what executes over several nodes. It ends as what has broken the job says. */
void engine_dispatch_cancel_spans(struct engine_exec *exec);
/* The same of works that wait for other nodes to start them. */
void engine_dispatch_cancel_tentative(struct engine_exec *exec);
/* As engine_order_span's withdraw. */
void engine_dispatch_withdraw(struct engine_exec *exec, uint64_t least, uint64_t top);
/* Whether the op, which is tentative and executes, waits for other nodes to start it. */
bool engine_dispatch_is_tentative(const struct engine_exec *exec, const struct engine_op *op);
/* As engine_wire_backend_set_lanes and engine_wire_backend_set_transport. */
void engine_dispatch_set_lanes(struct engine_exec *exec, uint32_t lanes);
int engine_dispatch_set_transport(struct engine_exec *exec, const char *name, const char *address,
                                  char text_p[ENGINE_TEXT_BYTES]);
/* Ends what waits for it: as what has broken the job says, or if nothing has, as it failed. */
void engine_dispatch_explain(struct engine_exec *exec);
/* As engine_wire_backend_lane, engine_wire_backend_lost and engine_wire_backend_row. */
void engine_dispatch_lane(struct engine_exec *exec, uint32_t node, uint32_t lane, int fd,
                          const struct hvi_seal_keys *keys, const char *name);
void engine_dispatch_lost(struct engine_exec *exec, uint32_t node, const char *text);
bool engine_dispatch_lane_row(struct engine_exec *exec, size_t index,
                              struct engine_lane_row *row_p);
/* As engine_gpu_backend_worker, _lost, _comm, _heard, _session_over and _set_timeout. */
void engine_dispatch_worker(struct engine_exec *exec, uint32_t worker,
                            struct hvi_device_channel *channel, int event_fd, const char *name);
void engine_dispatch_worker_lost(struct engine_exec *exec, uint32_t worker, const char *text);
void engine_dispatch_comm(struct engine_exec *exec, uint32_t comm, int status, const char *text);
void engine_dispatch_gpus_heard(struct engine_exec *exec, const uint64_t *instances, uint32_t count,
                                uint32_t node, const struct engine_gpu_news *news);
void engine_dispatch_fences_over(struct engine_exec *exec, uint32_t page);
void engine_dispatch_set_gpu_timeout(struct engine_exec *exec, uint64_t timeout_ns);
/* A work on GPUs that waits for the stream of the rank at this place: the next one from cursor {0} on. NULL: no more. */
const struct engine_op *engine_dispatch_next_gated(struct engine_exec *exec,
                                                   struct engine_exec_cursor *cursor,
                                                   uint32_t *place_p);
/* From now on no transfer of the process' memory begins: what is left of its works fails piece by piece.
 * One that has begun and does not answer is given up by engine_dispatch_watch after ENGINE_SILENT_NS. */
void engine_process_forbid(struct engine_process *process);

#endif
