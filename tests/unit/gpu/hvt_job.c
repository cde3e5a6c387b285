/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/gpu/hvt_job.h"

#include "base/clock.h"
#include "base/status.h"
#include "tests/fakegpu/counts.h"
#include "tests/fakegpu/hvt_fakegpu.h"

#include <fcntl.h>

struct hvt_worker hvt_workers[HVT_GPUS];
struct hvt_rank hvt_ranks[HVT_RANKS];

static hvi_cu_context contexts[HVT_GPUS];
static int count_fds[HVT_GPUS];

static void open_driver(int gpus)
{
    hvi_cu_device device;

    hvt_cu_begin(getenv("FAKEGPU"), "", 0);
    for (int i = 0; i < gpus; i++) {
        HVT_CU(hvt_cu.device_get(&device, i));
        HVT_CU(hvt_cu.context_retain(&contexts[i], device));
    }
}

/* A worker has launched by now. The file has no name then, so nothing is left. */
static void open_counts(int gpu)
{
    char path[100];

    snprintf(path, sizeof(path), "/tmp/hvt-counts-%d-%d", (int)getpid(), (int)hvt_workers[gpu].pid);
    count_fds[gpu] = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_msg(count_fds[gpu] >= 0, "%s", path);
    unlink(path);
}

void hvt_job_start(int gpus, const char *fault, const struct hvt_worker_wish *wish)
{
    char fake[150], counts[50] = "";

    if (wish->counts)
        snprintf(counts, sizeof(counts), ";counts=/tmp/hvt-counts-%d-", (int)getpid());
    snprintf(fake, sizeof(fake), "devices=%d%s%s", gpus, wish->fake != NULL ? wish->fake : "",
             counts);
    setenv("FAKEGPU", fake, 1);
    setenv("FAKEGPU_FAULT", fault, 1);
    for (int i = 0; i < gpus; i++)
        hvt_worker_start(&hvt_workers[i], i, wish);
    for (int i = 0; i < gpus; i++) {
        hvt_worker_expect_state(&hvt_workers[i], HVI_GPU_UP);
        hvt_engine_open(&hvt_workers[i]);
    }
    open_driver(gpus);
    for (int i = 0; i < gpus && wish->counts; i++)
        open_counts(i);
}

struct hvt_asked hvt_job_asked(int gpu)
{
    static struct hvt_asked before[HVT_GPUS];
    struct fakegpu_counts counts;
    const struct hvt_asked was = before[gpu];

    ck_assert_int_eq(pread(count_fds[gpu], &counts, sizeof(counts), 0), sizeof(counts));
    before[gpu] = (struct hvt_asked){atomic_load(&counts.launches), atomic_load(&counts.memops),
                                     atomic_load(&counts.nccl)};
    return (struct hvt_asked){before[gpu].kernels - was.kernels, before[gpu].memops - was.memops,
                              before[gpu].nccl - was.nccl};
}

void hvt_job_attach(uint32_t number, int gpu)
{
    struct hvt_rank *rank = &hvt_ranks[number];

    HVT_CU(hvt_cu.context_set(contexts[gpu]));
    if (rank->memory == 0)
        rank->memory = hvt_cu_alloc(HVT_BYTES);
    else
        hvi_fence_fini(&rank->fences);
    ck_assert_int_eq(hvi_fence_create(&rank->fences), HVI_OK);
    rank->worker = &hvt_workers[gpu];
    rank->page = number + 1;
    rank->turn = 0;
    rank->import = hvt_engine_import(rank->worker, &hvt_cu, rank->memory, HVT_BYTES);
    hvt_engine_page(rank->worker, rank->page, &rank->fences);
}

void hvt_job_end(void)
{
    for (int i = 0; i < HVT_GPUS; i++) {
        if (hvt_workers[i].link_fd > 0)
            hvt_worker_stop(&hvt_workers[i]);
    }
    for (uint32_t i = 0; i < HVT_RANKS; i++) {
        if (hvt_ranks[i].memory == 0)
            continue;
        HVT_CU(hvt_cu.context_set(contexts[hvt_ranks[i].worker->gpu]));
        HVT_CU(hvt_cu.free(hvt_ranks[i].memory));
        hvi_fence_fini(&hvt_ranks[i].fences);
    }
}

void *hvt_job_in(uint32_t rank)
{
    return (void *)(uintptr_t)hvt_ranks[rank].memory;
}

void *hvt_job_out(uint32_t rank)
{
    return (void *)(uintptr_t)(hvt_ranks[rank].memory + HVT_HALF);
}

void hvt_job_fill(uint32_t count)
{
    for (uint32_t rank = 0; rank < HVT_RANKS; rank++) {
        if (hvt_ranks[rank].memory == 0)
            continue;
        float *in = hvt_job_in(rank);
        for (uint32_t i = 0; i < count; i++)
            in[i] = (float)(rank * 1000 + i % 997);
        memset(hvt_job_out(rank), HVT_UNTOUCHED, HVT_HALF);
    }
}

void hvt_job_expect_sum(uint32_t rank, uint32_t size, uint32_t count, float factor)
{
    const float *out = hvt_job_out(rank);

    for (uint32_t i = 0; i < count; i++) {
        const float sum = (float)(size * (size - 1) / 2 * 1000 + size * (i % 997)) * factor;
        if (out[i] != sum) /* an assertion for each would take longer than the op */
            ck_abort_msg("rank %u, element %u: %f instead of %f", rank, i, (double)out[i],
                         (double)sum);
    }
}

void hvt_job_open_gate(uint32_t rank)
{
    hvi_fence_store_ready(&hvt_ranks[rank].fences, 1, hvt_ranks[rank].turn);
}

bool hvt_job_is_released(uint32_t rank)
{
    const uint64_t done = atomic_load(&hvt_ranks[rank].fences.cells[1].done);

    return (int64_t)(done - hvt_ranks[rank].turn) >= 0;
}

void hvt_job_next_turn(uint32_t size)
{
    for (uint32_t rank = 0; rank < size; rank++)
        hvt_ranks[rank].turn++;
}

struct hvi_device_work hvt_job_work(uint16_t kind, uint16_t members, uint64_t count)
{
    return (struct hvi_device_work){.command = HVI_DEVICE_WORK,
                                    .kind = kind,
                                    .members = members,
                                    .dtype = HVI_DTYPE_FLOAT32,
                                    .reduce_op = HVI_REDUCE_SUM,
                                    .root = -1,
                                    .root_member = -1,
                                    .ranks = members,
                                    .count = count,
                                    .bytes = count * sizeof(float),
                                    .prescale = 1,
                                    .postscale = 1};
}

struct hvi_device_member hvt_job_member(uint32_t rank)
{
    return (struct hvi_device_member){.command = HVI_DEVICE_MEMBER,
                                      .place = rank,
                                      .in_import = hvt_ranks[rank].import,
                                      .out_import = hvt_ranks[rank].import,
                                      .out_offset = HVT_HALF,
                                      .page = hvt_ranks[rank].page,
                                      .cell = 1,
                                      .turn = hvt_ranks[rank].turn};
}
