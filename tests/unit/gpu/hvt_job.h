/* SPDX-License-Identifier: Apache-2.0
 * A job of up to four ranks on up to two GPUs with real workers: the test is hvdd, the engine and the ranks. A rank's memory has
 * its input, and in its second half its output; its cell is 1. */
#ifndef HVT_JOB_H
#define HVT_JOB_H

#include "base/types.h"
#include "tests/unit/gpu/hvt_worker.h"

#define HVT_GPUS      2
#define HVT_RANKS     4u
#define HVT_BYTES     (4u << 20)      /* of a rank's memory */
#define HVT_HALF      (HVT_BYTES / 2) /* of its input, and of its output */
#define HVT_UNTOUCHED 0x5au           /* every byte of an output */

struct hvt_rank {
    struct hvt_worker *worker;
    uint64_t memory; /* 0: the rank is not there */
    uint32_t import, page;
    struct hvi_fence_page fences;
    uint64_t turn;
};

extern struct hvt_worker hvt_workers[HVT_GPUS];
extern struct hvt_rank hvt_ranks[HVT_RANKS];

/* Workers for so many GPUs, each with an engine; `fault`: of FAKEGPU_FAULT. */
void hvt_job_start(int gpus, const char *fault, const struct hvt_worker_wish *wish);
/* A rank on a GPU, known to its worker's engine. Again, for a new engine: with a new page. */
void hvt_job_attach(uint32_t rank, int gpu);
void hvt_job_end(void);

/* What a worker has asked of the driver and of NCCL since the last time that the test has asked so. */
struct hvt_asked {
    uint64_t kernels, memops, nccl;
};
struct hvt_asked hvt_job_asked(int gpu);

void *hvt_job_in(uint32_t rank);
void *hvt_job_out(uint32_t rank);
/* Element i of rank r becomes r * 1000 + i % 997, in float32, which adds that without rounding; outputs are untouched. */
void hvt_job_fill(uint32_t count);
/* The first `count` elements are what a sum of the first `size` ranks gives, times the factor. */
void hvt_job_expect_sum(uint32_t rank, uint32_t size, uint32_t count, float factor);
/* Of the rank's turn. */
void hvt_job_open_gate(uint32_t rank);
bool hvt_job_is_released(uint32_t rank);
/* Ops have a new turn each. */
void hvt_job_next_turn(uint32_t size);

/* Of float32, a sum, of as many ranks as members. */
struct hvi_device_work hvt_job_work(uint16_t kind, uint16_t members, uint64_t count);
struct hvi_device_member hvt_job_member(uint32_t rank);

#endif
