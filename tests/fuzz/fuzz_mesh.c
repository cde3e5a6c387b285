/* SPDX-License-Identifier: Apache-2.0
 * A message between engines, on arbitrary bytes: to the root or to a node in the middle of a job. Whatever
 * it says, every part is answered once, and what is not believed breaks the job. The first byte is the
 * receiver, the second how far the job is. */
#include "fuzz.h"

#include "base/log.h"
#include "base/status.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/order/schedule.h"
#include "tests/unit/engine/hvt_span.h"

#include <string.h>

#define RANKS  4 /* 0 and 2 are on node 0, 1 and 3 on node 1 */
#define STAGES 11

static struct hvt_job job;
static struct hvt_message *seeds[256];
static unsigned seed_count;

static struct hvt_bring make(const char *name, uint16_t kind)
{
    return (struct hvt_bring){.name = name,
                              .kind = kind,
                              .dtype = HVI_DTYPE_FLOAT32,
                              .reduce_op = HVI_REDUCE_SUM,
                              .ndim = 1,
                              .dims = {4},
                              .root = -1,
                              .prescale = 1,
                              .room = 4096};
}

static void bring(int32_t rank, uint32_t which, const struct hvt_bring *what)
{
    hvt_job_bring(&job, rank, which, what);
}

/* Sends and recvs that cross, from any rank too, and sets that members open on one node and on both; in the
 * last of three stages the sends are taken back. */
static void set_out_some(unsigned stage)
{
    static const int64_t both[] = {0, 1}, far[] = {1, 3};
    struct hvt_bring send = make("p", HVI_KIND_SEND), recv = make("p", HVI_KIND_RECV);
    struct hvt_bring open = {.kind = HVI_KIND_SET_OPEN, .integers = both, .integer_count = 2};

    send.root = 1;
    recv.root = 1;
    bring(0, 0, &send);
    bring(0, 1, &recv);
    bring(0, 2, &open);
    send.root = 0;
    bring(1, 0, &send);
    recv.tag = send.tag = 1;
    recv.root = -1;
    bring(1, 1, &recv);
    open.integers = far;
    bring(3, 2, &open);
    if (stage == 6)
        return;
    hvt_job_run(&job);
    open.integers = both;
    bring(1, 2, &open);
    recv.root = 0;
    bring(3, 3, &recv);
    if (stage == 7)
        return;
    send.root = 3;
    bring(2, 3, &send);
    struct engine_op *op = hvt_job_op(&job, 2, 3);
    engine_negotiate_withdraw(&job.node[0].order, &job.parts[2][3].part, HVI_ERR_CANCELLED, "");
    HVT_FUZZ_REQUIRE(op != NULL);
    engine_op_fail(&job.node[0].order, op, HVI_ERR_STALLED, "late", -1);
    struct hvt_bring close = {.name = "c", .kind = HVI_KIND_SET_CLOSE, .set = 1};
    if (job.parts[0][2].over && job.parts[0][2].part.rows == 1)
        bring(0, 4, &close);
}

/* A step is about to repeat; or does, and some of it has started on node 1, which wants it to end. */
static void set_out_to_repeat(bool repeats)
{
    struct hvt_bring sum = make("w", HVI_KIND_ALLREDUCE);

    for (uint32_t turn = 0; turn < (repeats ? 3 : 2); turn++) {
        for (int32_t rank = 0; rank < RANKS; rank++)
            bring(rank, 0, &sum);
        hvt_job_run(&job);
        hvt_job_step(&job);
    }
    for (int32_t rank = 0; rank < RANKS; rank++) {
        if (!repeats || rank % 2 == 1)
            bring(rank, 0, &sum);
    }
    if (!repeats)
        return;
    HVT_FUZZ_REQUIRE(job.node[1].order.schedule.live);
    hvt_job_run_some(&job, 0);
    engine_schedule_halt(&job.node[1].order);
}

/* What waits for the message. */
static void set_out_many(unsigned stage)
{
    static const int64_t ranks[] = {0, 1};
    static const int64_t splits[] = {1, 0, 2, 1};
    struct hvt_bring sum = make("w", HVI_KIND_ALLREDUCE), all = make("g", HVI_KIND_ALLGATHER);
    struct hvt_bring to = make("a", HVI_KIND_ALLTOALL), a = sum, b = sum;
    struct hvt_bring join = {.name = "j", .kind = HVI_KIND_JOIN, .root = -1};
    struct hvt_bring add = {
        .name = "s", .kind = HVI_KIND_SET_ADD, .integers = ranks, .integer_count = 2};

    a.name = "x";
    b.name = "y";
    a.group_size = b.group_size = 2;
    b.group_index = 1;
    to.integers = splits;
    to.integer_count = RANKS;
    for (int32_t rank = 0; rank < RANKS; rank++) {
        bool late = stage % 3 == 1 ? rank % 2 == 1 : stage % 3 == 2 && rank % 2 == 0;
        all.dims[0] = rank;
        bring(rank, 0, &add);
        if (late)
            continue;
        bring(rank, 1, &sum);
        bring(rank, 2, &all);
        bring(rank, 3, &to);
        bring(rank, 4, &a);
        bring(rank, 5, &b);
        if (stage >= 3 && rank == 1)
            bring(rank, 6, &join);
    }
    if (stage % 3)
        hvt_job_run(&job);
}

static void set_out(unsigned stage)
{
    if (stage < 6)
        set_out_many(stage);
    else if (stage < 9)
        set_out_some(stage);
    else
        set_out_to_repeat(stage == 10);
}

static void finish(void)
{
    if (job.node[0].order.broken_status == HVI_OK)
        hvt_job_break(&job, 0, HVI_ERR_JOB_STOPPED, -1, "over");
    hvt_job_run(&job);
    for (uint32_t i = 0; i < job.nodes; i++) {
        if (job.node[i].order.broken_status == HVI_OK)
            hvt_job_break(&job, i, HVI_ERR_JOB_STOPPED, -1, "over");
    }
    for (int32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t i = 0; i < HVT_EACH; i++) {
            const struct hvt_part *part = &job.parts[rank][i];
            HVT_FUZZ_REQUIRE(!part->used || part->over);
        }
    }
    hvt_job_end(&job);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    hvi_log_set_level(HVI_LOG_ERROR);
    hvt_job_begin(&job, 2, RANKS, 1 + data[1], false);
    set_out(data[1] % STAGES);
    job.lied = true;
    uint32_t to = data[0] % 2;
    engine_mesh_message(&job.node[to].mesh, 1 - to, data + 2, size - 2);
    hvt_job_run(&job);
    finish();
    return 0;
}

/* The messages of jobs that go well. */
static void keep(struct hvt_queue *queue, unsigned to, unsigned stage)
{
    for (const struct hvt_message *at = queue->first;
         at && seed_count < sizeof seeds / sizeof seeds[0]; at = at->next) {
        struct hvt_message *seed = malloc(sizeof *seed + at->length + 2);
        HVT_FUZZ_REQUIRE(seed != NULL);
        seed->length = at->length + 2;
        seed->bytes[0] = (unsigned char)to;
        seed->bytes[1] = (unsigned char)stage;
        memcpy(seed->bytes + 2, at->bytes, at->length);
        seeds[seed_count++] = seed;
    }
}

static void make_seeds(void)
{
    for (unsigned stage = 0; stage < STAGES; stage++) {
        hvt_job_begin(&job, 2, RANKS, 1 + stage, false);
        set_out(stage);
        do {
            keep(&job.node[1].up, 0, stage);
            keep(&job.node[1].down, 1, stage);
        } while (hvt_job_run_some(&job, 1));
        finish();
    }
}

size_t hvt_fuzz_seed(unsigned index, uint8_t *bytes_p, size_t room)
{
    hvi_log_set_level(HVI_LOG_ERROR);
    if (seed_count == 0)
        make_seeds();
    if (index >= seed_count || seeds[index]->length > room)
        return 0;
    memcpy(bytes_p, seeds[index]->bytes, seeds[index]->length);
    return seeds[index]->length;
}
