/* SPDX-License-Identifier: Apache-2.0
 * The real hvdd-gpu on the fake driver; the test is hvdd, an engine, and its ranks: their memory is the test's own, which the
 * CPU reaches. Workers are started before the test opens the driver. */
#ifndef HVT_WORKER_H
#define HVT_WORKER_H

#include "gpu/cuda.h"
#include "proto/gpu.h"
#include "proto/packet.h"
#include "shm/device.h"
#include "shm/fence.h"

#include <sys/types.h>

#define HVT_PATIENCE_NS (20 * (int64_t)HVI_NS_SEC)
#define HVT_GPU_0       "GPU-66616b65-2067-7075-206f-66206e6f0000" /* the first device of the fake */
#define HVT_GENERATION  3u

struct hvt_worker {
    int gpu;
    pid_t pid; /* 0: it has ended */
    uint64_t instance;
    int link_fd, engine_fd, wake_fd, event_fd; /* -1 */
    struct hvi_device_channel channel;
    uint64_t requests, batches, answers;
    uint32_t imports;
    uint32_t filled; /* slots of the batch that is being written */
    uint32_t flags;  /* of the batches that are begun */
    struct hvi_packet packet;
    struct hvi_gpu_msg msg; /* the last one heard */
};

/* What may be said at the start; zeros are the defaults. */
struct hvt_worker_wish {
    uint64_t call_ns, comm_ns;
    const char *uuid; /* NULL: that of the GPU */
    const char *fake; /* more for FAKEGPU; NULL: nothing */
    bool counts;      /* hvt_job_asked is to know */
    const char *attach_path;
};

void hvt_worker_start(struct hvt_worker *worker, int gpu, const struct hvt_worker_wish *wish);
/* GpuStop; it has to end with 0. */
void hvt_worker_stop(struct hvt_worker *worker);
/* Its exit status, or 128 + the signal. */
int hvt_worker_end(struct hvt_worker *worker);
void hvt_worker_send(int fd, const struct hvi_gpu_msg *msg, const int *fds, uint32_t fd_count);
void hvt_worker_hear(struct hvt_worker *worker, int fd);
/* Over the steps of the start. */
void hvt_worker_expect_state(struct hvt_worker *worker, enum hvi_gpu_state_number state);
void hvt_worker_expect_closed(struct hvt_worker *worker, int fd);

/* GpuJob; it has to say that nothing of the job before is left, and has this number then. */
void hvt_worker_pass(struct hvt_worker *worker, const char *job, uint64_t instance);

/* The engine's end. */
void hvt_engine_open(struct hvt_worker *worker);
/* Its halves: the worker is told of the engine; its hello, and the welcome. */
void hvt_engine_tell(struct hvt_worker *worker);
void hvt_engine_greet(struct hvt_worker *worker);
void hvt_engine_close(struct hvt_worker *worker);
void hvt_engine_expect_ack(struct hvt_worker *worker, uint64_t request, int status);
void hvt_engine_page(struct hvt_worker *worker, uint32_t number, const struct hvi_fence_page *page);
/* Memory of the test's, which has a context of this GPU current. Returns its number. */
uint32_t hvt_engine_import(struct hvt_worker *worker, const struct hvi_cuda *cuda,
                           hvi_cu_ptr address, uint64_t bytes);
/* Returns the request. */
uint64_t hvt_engine_release(struct hvt_worker *worker, uint32_t import);
/* A communicator of these, by rank: id, and all join it as `comm`. */
void hvt_engines_join(struct hvt_worker *const *workers, uint32_t count, uint32_t comm);

/* The same with this id. */
void hvt_engines_name(struct hvt_worker *const *workers, uint32_t count, uint32_t comm,
                      const unsigned char *id);
/* It is to join one of `count`, of which the others are not there. No one waits for the answer. */
void hvt_engine_ask_join(struct hvt_worker *worker, uint32_t count);

/* A batch: head, then works, each with its members and numbers; then all of it is published. Returns its number. */
void hvt_batch_begin(struct hvt_worker *worker, uint32_t works, uint32_t comm, uint32_t ranks,
                     uint32_t rank);
void hvt_batch_add(struct hvt_worker *worker, const void *slot);
void hvt_batch_numbers(struct hvt_worker *worker, const uint64_t *numbers, uint32_t count);
uint64_t hvt_batch_publish(struct hvt_worker *worker);
/* The next answer. */
struct hvi_device_done hvt_batch_answer(struct hvt_worker *worker);
bool hvt_batch_is_answered(struct hvt_worker *worker);
/* The next answer, which has to be that of this batch, and good. */
void hvt_batch_expect(struct hvt_worker *worker, uint64_t number);

#endif
