/* SPDX-License-Identifier: Apache-2.0
 * An engine on a bench with workers of GPUs that the test plays: the other end of the socket, and of the device
 * channel. GPU n has the UUID 0n0n...; its worker the instance 100 + n. Every wait ends after HVT_DEADLINE_NS. */
#ifndef HVT_GPUS_H
#define HVT_GPUS_H

#include "proto/gpu.h"
#include "shm/device.h"
#include "shm/fence.h"
#include "tests/unit/engine/hvt_ops.h"

#define HVT_GPUS        4
#define HVT_GPU_REGION  7u /* each rank's region of memory of its GPU */
#define HVT_GPU_BYTES   (UINT64_C(1) << 20)
#define HVT_GPU_TEXT    "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x"
#define HVT_BATCH_SLOTS 256u

/* What came over a command ring. */
struct hvt_batch {
    struct hvi_device_batch head;
    struct hvi_device_work works[8];
    struct hvi_device_member members[8][8]; /* by work */
    struct hvi_device_sizes sizes[8][2];
};

struct hvt_worker {
    int socket; /* -1: closed */
    int event_fd, engine_fd;
    uint64_t instance, answers;
    uint64_t device_ns; /* what its streams take, as it says */
    struct hvi_device_channel channel;
};

struct hvt_gpus {
    struct hvt_bench bench;
    struct hvt_node node; /* hvdd's end of the link */
    struct hvt_worker workers[HVT_GPUS];
    struct hvi_fence_page pages[HVT_BENCH_RANKS];
    uint32_t page_numbers[HVT_BENCH_RANKS]; /* as the last worker was told */
    struct hvi_packet packet;
    uint64_t comm_ns; /* of workers that say hello from now on */
    bool is_old;      /* they know no fabric handles */
    bool registers;   /* they register memory, which ranks have made for that */
};

/* A job of `size` ranks, all attached, on a node that starts workers. */
void hvt_gpus_init(struct hvt_gpus *gpus, int32_t size);
/* The engine of any job on such a node, with nobody attached. Ranks are by seat. */
void hvt_gpus_init_start(struct hvt_gpus *gpus, const struct hvi_engine_start *start);
void hvt_gpus_fini(struct hvt_gpus *gpus);
void hvt_gpus_turn(struct hvt_gpus *gpus);

/* ---- workers ---- */

void hvt_gpu_uuid(uint32_t gpu, unsigned char uuid_p[HVI_UUID_BYTES],
                  char text_p[HVI_WIRE_GPU_UUID]);
/* Answers the engine's GpuWanted for this GPU: HVI_OK with a socket, or an error with a sentence. */
void hvt_gpu_answer(struct hvt_gpus *gpus, uint32_t gpu, int status, const char *text);
/* GpuHello, and the engine's GpuWelcome. */
void hvt_gpu_greet(struct hvt_gpus *gpus, uint32_t gpu);
void hvt_gpu_say(struct hvt_gpus *gpus, uint32_t gpu, const struct hvi_gpu_msg *msg, const int *fds,
                 uint32_t fd_count);
/* The next message to the worker is of this kind. False: its socket has ended. */
bool hvt_gpu_hear(struct hvt_gpus *gpus, uint32_t gpu, enum hvi_gpu_kind kind,
                  struct hvi_gpu_msg *msg_p);
void hvt_gpu_expect_nothing(struct hvt_gpus *gpus, uint32_t gpu);
void hvt_gpu_ack(struct hvt_gpus *gpus, uint32_t gpu, uint64_t request, int status,
                 const char *text);
/* Takes the next batch from the ring; fails when there is none. */
struct hvt_batch hvt_gpu_take(struct hvt_gpus *gpus, uint32_t gpu);
bool hvt_gpu_has_batch(struct hvt_gpus *gpus, uint32_t gpu);
/* Answers a batch, and lets the engine work. */
void hvt_gpu_done(struct hvt_gpus *gpus, uint32_t gpu, uint64_t number, int status,
                  const char *text);
/* Writes .done of all members of a batch, as a worker's stream does, and answers it. */
void hvt_gpu_finish(struct hvt_gpus *gpus, uint32_t gpu, const struct hvt_batch *batch);
/* The worker dies. */
void hvt_gpu_die(struct hvt_gpus *gpus, uint32_t gpu);
/* GpuWorker, unasked: that one is gone. */
void hvt_gpu_is_gone(struct hvt_gpus *gpus, uint32_t gpu, const char *text);

/* ---- ranks ---- */

/* The Ack of the rank's last request. */
struct hvi_ack hvt_rank_ack(struct hvt_gpus *gpus, int32_t rank);
/* Sends FenceAdd, and lets the engine work. */
void hvt_rank_send_fences(struct hvt_gpus *gpus, int32_t rank);
/* Sends DeviceAdd of region `region`, and lets the engine work. */
void hvt_rank_send_memory(struct hvt_gpus *gpus, int32_t rank, uint32_t gpu, uint32_t region);
/* Both, with all answers: the rank has HVT_GPU_REGION on that GPU. The worker is started if need be. Returns
 * the import. */
uint32_t hvt_rank_use(struct hvt_gpus *gpus, int32_t rank, uint32_t gpu);
/* As hvt_op, with both operands in HVT_GPU_REGION, and a fence. */
struct hvi_submission hvt_gpu_op(struct hvt_gpus *gpus, int32_t rank, uint16_t kind, uint64_t count,
                                 const char *name, uint32_t cell, uint64_t turn);
/* hvt_gpu_op, and the rank's memory is ready; submits it. */
uint64_t hvt_gpu_run(struct hvt_gpus *gpus, int32_t rank, uint16_t kind, uint64_t count,
                     const char *name, uint32_t cell, uint64_t turn);
uint64_t hvt_gpu_word(const struct hvt_gpus *gpus, int32_t rank, uint32_t cell, bool ready);

#endif
