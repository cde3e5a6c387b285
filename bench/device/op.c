/* SPDX-License-Identifier: Apache-2.0
 * An op of 4 bytes: as a rank (op), and what the same costs inside one process (alone): the worker's kernel, and NCCL with one rank.
 *
 * Stream to stream. A chain of ops in one stream, each on the result of the one before; no host waits in between. *gated*: the
 * stream begins when the whole chain is enqueued, so that the device alone is timed. *open*: it begins at once, and the host's
 * calls count where they are slower. Events around the chain give the time, by the number of ops. Each chain begins with new
 * contents, and its result is compared. Names are the same in each chain, so steps are replayed from the second chain on.
 *
 * Host to host. From the submission until hvd_wait has seen the end, one op after the other. */
#include "bench/device/side.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_CHAINS  4
#define BUSY_CHAIN   8 /* ops; without MPS each may take milliseconds */
#define BUSY_CALLS   20
#define BUSY_REPEATS 5
#define LOAD_KERNELS 240 /* 120 ms */
#define FACTORS_MOST 100 /* powers of two that float32 has room for */

struct chain {
    struct side *side;
    const char *name; /* of its figures */
    void (*enqueue)(struct chain *chain, int number);
    hvi_cu_ptr vectors[2]; /* the result is in the first one */
    int members;           /* whose values are added */
    int length;
    bool has_ops; /* in side->ops, to be waited for */
    struct gpu_step step;
    struct gpu_nccl nccl;
    gpu_nccl_comm comm;
};

struct times {
    double device_us, host_us, submit_us; /* of an op */
};

static void reset(struct chain *chain)
{
    struct side *side = chain->side;

    if (chain->has_ops) {
        side_fill(side, chain->vectors[0], 1, HVD_FLOAT32, side->rank);
        return;
    }
    for (int i = 0; i < 2; i++)
        side_fill(side, chain->vectors[i], 1, HVD_FLOAT32, chain->comm == NULL ? i : 1 - i);
}

static struct times run_chain(struct chain *chain, bool is_gated, bool is_busy)
{
    struct side *side = chain->side;
    const double length = chain->length;
    double factor = 1;

    for (int i = 1; i < chain->length; i++)
        factor *= chain->members;
    reset(chain);
    side_meet(side);
    if (is_gated)
        side_close_gate(side);
    if (is_busy)
        side_begin_load(side, LOAD_KERNELS);
    const uint64_t since_ns = side_now_ns();
    side_mark_begin(side);
    for (int i = 0; i < chain->length; i++)
        chain->enqueue(chain, i);
    side_mark_end(side);
    const uint64_t submitted_ns = side_now_ns();
    if (is_gated) {
        side_meet(side);
        side_open_gate(side);
    }
    const double device_us = side_elapsed_us(side);
    const uint64_t over_ns = side_now_ns();
    if (is_busy)
        side_end_load(side);
    side_wait_ops(side, chain->has_ops ? chain->length : 0);
    side_check(side, chain->vectors[0], 1, HVD_FLOAT32, chain->members, factor, chain->name);
    return (struct times){device_us / length, (double)(over_ns - since_ns) / 1e3 / length,
                          (double)(submitted_ns - since_ns) / 1e3 / length};
}

static void measure_chain(struct chain *chain, bool is_gated, bool is_busy)
{
    struct side *side = chain->side;
    const int repeats = is_busy ? BUSY_REPEATS : side->options->repeats;
    const char *how = is_busy ? "busy" : is_gated ? "gated" : "open";
    double *device_us = calloc(3 * (size_t)repeats, sizeof(double));
    double *host_us = device_us + repeats, *submit_us = host_us + repeats;

    side->early = 0;
    side_step(is_busy ? "a chain beside a load" : is_gated ? "a chain behind a gate" : "a chain");
    for (int i = is_busy ? -1 : -WARM_CHAINS; i < repeats; i++) {
        const struct times times = run_chain(chain, is_gated, is_busy);
        if (i < 0)
            continue;
        device_us[i] = times.device_us;
        host_us[i] = times.host_us;
        submit_us[i] = times.submit_us;
    }
    side_figure(side, side_median(device_us, repeats), "us", "%s_%s", chain->name, how);
    side_figure(side, device_us[0], "us", "%s_%s_least", chain->name, how);
    if (!is_gated) {
        side_figure(side, side_median(host_us, repeats), "us", "%s_%s_host", chain->name, how);
        side_figure(side, side_median(submit_us, repeats), "us", "%s_%s_submit", chain->name, how);
    }
    if (is_busy)
        side_figure(side, side->early, "chains", "%s_busy_early", chain->name);
    free(device_us);
}

static void measure_chains(struct chain *chain)
{
    const struct side_options *options = chain->side->options;

    chain->length = options->chain;
    if (chain->members > 1 && chain->length > FACTORS_MOST)
        side_fail("--chain is at most %d here", FACTORS_MOST);
    measure_chain(chain, false, false);
    measure_chain(chain, true, false);
    if (!options->is_busy)
        return;
    chain->length = chain->length < BUSY_CHAIN ? chain->length : BUSY_CHAIN;
    measure_chain(chain, false, true);
}

/* ---- a rank ---- */

static void enqueue_op(struct chain *chain, int number)
{
    struct side *side = chain->side;
    const struct hvd_tensor tensor =
        hvd_tensor_1d((void *)(uintptr_t)chain->vectors[0], HVD_FLOAT32, 1);
    struct hvd_op_options options;
    char name[16];

    snprintf(name, sizeof(name), "op%d", number);
    hvd_op_options_init(&options);
    options.stream = side->stream->handle;
    side_fine(hvd_allreduce_async(side->session, name, &tensor, &tensor, HVD_SUM, &options,
                                  &side->ops[number]),
              "hvd_allreduce_async");
    side_fine(hvd_op_stream_wait(side->ops[number], side->stream->handle), "hvd_op_stream_wait");
}

/* Ops that the host waits for, one after the other. */
static void measure_calls(struct chain *chain, const char *how, int calls)
{
    struct side *side = chain->side;
    const struct hvd_tensor in =
        hvd_tensor_1d((void *)(uintptr_t)chain->vectors[0], HVD_FLOAT32, 1);
    const struct hvd_tensor out =
        hvd_tensor_1d((void *)(uintptr_t)chain->vectors[1], HVD_FLOAT32, 1);
    double *us = calloc((size_t)calls, sizeof(*us));

    side_step("ops from host to host");
    reset(chain);
    side_meet(side);
    for (int i = -calls / 10; i < calls; i++) {
        const uint64_t since_ns = side_now_ns();
        side_fine(
            hvd_allreduce_async(side->session, "call", &in, &out, HVD_SUM, NULL, &side->ops[0]),
            "hvd_allreduce_async");
        side_wait_ops(side, 1);
        if (i >= 0)
            us[i] = (double)(side_now_ns() - since_ns) / 1e3;
    }
    side_check(side, chain->vectors[1], 1, HVD_FLOAT32, chain->members, 1, "host to host");
    side_figure(side, side_median(us, calls), "us", "op_%s", how);
    side_figure(side, side_part(us, calls, 0.99), "us", "op_%s_p99", how);
    free(us);
}

void bench_op(const struct side_options *options)
{
    static struct side side;
    struct chain chain = {.side = &side, .name = "op", .enqueue = enqueue_op, .has_ops = true};

    side_open(&side, options, true);
    chain.members = side.size;
    chain.vectors[0] = side_alloc(&side, 256);
    chain.vectors[1] = side_alloc(&side, 256);
    if (options->is_busy)
        side_make_load(&side);
    measure_chains(&chain);
    measure_calls(&chain, "host", options->calls);
    if (options->is_busy) {
        side_meet(&side);
        side_begin_load(&side, LOAD_KERNELS);
        measure_calls(&chain, "host_busy", BUSY_CALLS);
        side_end_load(&side);
    }
    side_meet(&side);
    hvd_close(side.session);
}

/* ---- one process ---- */

static void enqueue_kernel(struct chain *chain, int number)
{
    (void)number;
    side_launch(chain->side, chain->side->stream, &chain->step);
}

static void enqueue_nccl(struct chain *chain, int number)
{
    const void *in = (const void *)(uintptr_t)chain->vectors[1];
    void *out = (void *)(uintptr_t)chain->vectors[0];

    (void)number;
    const int error = chain->nccl.all_reduce(in, out, 1, GPU_NCCL_FLOAT32, GPU_NCCL_SUM,
                                             chain->comm, chain->side->stream->handle);
    if (error != GPU_NCCL_OK)
        side_fail("ncclAllReduce: %s", chain->nccl.error(error));
}

/* One rank, not in place: NCCL copies. In place it does nothing at all. */
static bool open_nccl(struct chain *chain)
{
    struct gpu_nccl_id id;
    char text[600];
    int error;

    if (gpu_nccl_open(NULL, &chain->nccl, text, sizeof(text)) != HVI_OK) {
        side_note(chain->side, "%s", text);
        return false;
    }
    side_step("ncclCommInitRank");
    error = chain->nccl.unique_id(&id);
    if (error == GPU_NCCL_OK)
        error = chain->nccl.init_rank(&chain->comm, 1, id, 0);
    if (error != GPU_NCCL_OK)
        side_note(chain->side, "NCCL: %s", chain->nccl.error(error));
    else
        side_note(chain->side, "NCCL %d", chain->nccl.number);
    return error == GPU_NCCL_OK;
}

/* A tensor of options->bytes from one place to another: what NCCL does with one rank. */
static void measure_nccl_large(struct chain *chain)
{
    struct side *side = chain->side;
    const size_t count = side->options->bytes / 4;
    const hvi_cu_ptr in = side_alloc(side, count * 4), out = side_alloc(side, count * 4);
    double us[9];

    side_fill(side, in, count, HVD_FLOAT32, 0);
    for (int i = -1; i < 9; i++) {
        side_mark_begin(side);
        const int error = chain->nccl.all_reduce((void *)(uintptr_t)in, (void *)(uintptr_t)out,
                                                 count, GPU_NCCL_FLOAT32, GPU_NCCL_SUM, chain->comm,
                                                 side->stream->handle);
        side_mark_end(side);
        if (error != GPU_NCCL_OK)
            side_fail("ncclAllReduce: %s", chain->nccl.error(error));
        const double took_us = side_elapsed_us(side);
        if (i >= 0)
            us[i] = took_us;
    }
    side_check(side, out, count, HVD_FLOAT32, 1, 1, "NCCL");
    side_figure(side, side_median(us, 9), "us", "nccl_large");
}

static void measure_kernel(struct chain *chain, const char *name, int members)
{
    chain->name = name;
    chain->enqueue = enqueue_kernel;
    chain->members = members;
    chain->step = side_reduce_step(chain->vectors, (uint32_t)members, (uint32_t)members, 1);
    measure_chains(chain);
}

void bench_alone(const struct side_options *options)
{
    static struct side side;
    struct chain chain = {.side = &side};

    side_open(&side, options, false);
    chain.vectors[0] = side_alloc(&side, 256);
    chain.vectors[1] = side_alloc(&side, 256);
    if (options->is_busy)
        side_make_load(&side);
    measure_kernel(&chain, "kernel_1", 1);
    measure_kernel(&chain, "kernel_2", 2);
    if (!open_nccl(&chain))
        return;
    chain.name = "nccl";
    chain.enqueue = enqueue_nccl;
    chain.members = 1;
    measure_chains(&chain);
    measure_nccl_large(&chain);
    chain.nccl.destroy(chain.comm);
}
