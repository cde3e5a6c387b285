/* SPDX-License-Identifier: Apache-2.0
 * Two real workers with a communicator of the fake NCCL, which aborts them if their ops differ. Ranks lie on GPUs as the tests
 * say; a joined rank lies nowhere. */
#include "base/clock.h"
#include "base/status.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/gpu/hvt_job.h"
#include "tests/unit/hvt_main.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <time.h>

#define COMM  5u
#define SMALL 1000u
#define LARGE ((512u << 10) / 4 + 3) /* elements: more than what is packed */

static struct hvt_worker *const both[] = {&hvt_workers[0], &hvt_workers[1]};
static uint32_t ranks; /* of the job */
static int gpus[HVT_RANKS];
static uint32_t comm = COMM; /* its number at both engines */

static void nap(long ms)
{
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

/* `places`: the GPU of each rank, "0110". */
static void attach_all(const char *places)
{
    ranks = (uint32_t)strlen(places);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        gpus[rank] = places[rank] - '0';
        hvt_job_attach(rank, gpus[rank]);
    }
    hvt_job_fill(LARGE);
}

static void start(const char *places)
{
    const struct hvt_worker_wish wish = {0};

    hvt_job_start(2, "", &wish);
    attach_all(places);
    hvt_engines_join(both, 2, COMM);
}

static uint16_t count_on(int gpu)
{
    uint16_t count = 0;

    for (uint32_t rank = 0; rank < ranks; rank++)
        count = (uint16_t)(count + (gpus[rank] == gpu));
    return count;
}

/* What a worker is told of a work: its members, sizes and homes. */
static void add_work(int gpu, struct hvi_device_work work, const uint64_t *sizes, uint64_t offset)
{
    const uint32_t size_count = (uint32_t)hvi_device_count_sizes(work.kind, ranks);
    uint64_t numbers[HVT_RANKS * HVT_RANKS + HVT_RANKS];
    uint32_t count = size_count;

    work.members = count_on(gpu);
    work.ranks = ranks;
    for (uint32_t i = 0; i < size_count; i++)
        numbers[i] = sizes[i];
    for (uint32_t rank = 0; hvi_device_has_homes(work.kind, work.reduce_op) && rank < ranks; rank++)
        numbers[count++] = (uint64_t)gpus[rank];
    work.sizes = (count + 7) / 8;
    hvt_batch_add(&hvt_workers[gpu], &work);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        struct hvi_device_member member = hvt_job_member(rank);
        member.in_offset += offset;
        member.out_offset += offset;
        if (gpus[rank] == gpu)
            hvt_batch_add(&hvt_workers[gpu], &member);
    }
    hvt_batch_numbers(&hvt_workers[gpu], numbers, count);
}

static struct hvi_device_work rooted(struct hvi_device_work work, uint32_t root, int gpu)
{
    work.root = gpus[root];
    work.root_member = -1;
    if (gpus[root] != gpu)
        return work;
    work.root_member = 0;
    for (uint32_t rank = 0; rank < root; rank++)
        work.root_member += gpus[rank] == gpu;
    return work;
}

/* One work of all ranks; `root` -1: it has none. */
static void publish(const struct hvi_device_work *work, int root, const uint64_t *sizes)
{
    hvt_job_next_turn(ranks);
    for (int gpu = 0; gpu < 2; gpu++) {
        hvt_batch_begin(both[gpu], 1, comm, 2, (uint32_t)gpu);
        add_work(gpu, root < 0 ? *work : rooted(*work, (uint32_t)root, gpu), sizes, 0);
        hvt_batch_publish(both[gpu]);
    }
}

static void open_gates(void)
{
    for (uint32_t rank = 0; rank < ranks; rank++)
        hvt_job_open_gate(rank);
}

static void expect_done(void)
{
    for (int gpu = 0; gpu < 2; gpu++)
        hvt_batch_expect(both[gpu], both[gpu]->batches);
    for (uint32_t rank = 0; rank < ranks; rank++)
        ck_assert(hvt_job_is_released(rank));
}

static void run(const struct hvi_device_work *work, int root, const uint64_t *sizes)
{
    publish(work, root, sizes);
    open_gates();
    expect_done();
}

static void allreduce(uint64_t count)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, count);

    run(&work, -1, NULL);
    for (uint32_t rank = 0; rank < ranks; rank++)
        hvt_job_expect_sum(rank, ranks, (uint32_t)count, 1);
}

/* ---- reductions ---- */

static void average(void)
{
    struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    work.reduce_op = HVI_REDUCE_AVERAGE;
    work.divisor = ranks;
    work.prescale = 2;
    work.postscale = (double)ranks;
    hvt_job_fill(SMALL);
    run(&work, -1, NULL);
    for (uint32_t rank = 0; rank < ranks; rank++)
        hvt_job_expect_sum(rank, ranks, SMALL, 2);
}

/* Small and large works in turn: what is packed, and what is not. */
static void many_works(void)
{
    const uint32_t counts[5] = {3, SMALL, LARGE, 1, 17};
    uint64_t at = 0;

    hvt_job_fill(3 + SMALL + LARGE + 1 + 17);
    hvt_job_next_turn(ranks);
    for (int gpu = 0; gpu < 2; gpu++) {
        hvt_batch_begin(both[gpu], 5, comm, 2, (uint32_t)gpu);
        at = 0;
        for (int i = 0; i < 5; i++, at += counts[i - 1] * sizeof(float))
            add_work(gpu, hvt_job_work(HVI_KIND_ALLREDUCE, 1, counts[i]), NULL, at);
        hvt_batch_publish(both[gpu]);
    }
    open_gates();
    expect_done();
    for (uint32_t rank = 0; rank < ranks; rank++) {
        hvt_job_expect_sum(rank, ranks, (uint32_t)(at / sizeof(float)), 1);
        ck_assert_uint_eq(((unsigned char *)hvt_job_out(rank))[at], HVT_UNTOUCHED);
    }
}

START_TEST(one_rank_on_each_gpu)
{
    start("01");
    allreduce(SMALL);
    average();
    many_works();
}
END_TEST

START_TEST(more_ranks_on_one_gpu_than_on_the_other)
{
    start("0100");
    allreduce(SMALL);
    average();
    many_works();
}
END_TEST

static void expect_asked(int gpu, uint64_t kernels, uint64_t memops, uint64_t nccl)
{
    const struct hvt_asked asked = hvt_job_asked(gpu);

    ck_assert_msg(asked.kernels == kernels && asked.memops == memops && asked.nccl == nccl,
                  "GPU %d: %u kernels, %u memory operations, %u of NCCL", gpu,
                  (unsigned)asked.kernels, (unsigned)asked.memops, (unsigned)asked.nccl);
}

/* Once all are in their streams, with waits for the gates. */
static void open_late(void)
{
    const uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);

    for (int gpu = 0; gpu < 2; gpu++) {
        while (atomic_load(&both[gpu]->channel.header->launched) < both[gpu]->batches)
            ck_assert(!hvi_deadline_passed(end));
    }
    open_gates();
    expect_done();
}

static void large_work(void)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, LARGE);

    publish(&work, -1, NULL);
    open_late();
}

static void start_counted(const char *places)
{
    const struct hvt_worker_wish wish = {.counts = true};

    hvt_job_start(2, "", &wish);
    attach_all(places);
    hvt_engines_join(both, 2, COMM);
    for (int gpu = 0; gpu < 2; gpu++)
        hvt_job_asked(gpu);
}

/* Works of one batch that are packed. */
static void small_works(uint32_t works)
{
    hvt_job_fill(works * SMALL);
    hvt_job_next_turn(ranks);
    for (int gpu = 0; gpu < 2; gpu++) {
        hvt_batch_begin(both[gpu], works, comm, 2, (uint32_t)gpu);
        for (uint32_t i = 0; i < works; i++)
            add_work(gpu, hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL), NULL,
                     i * SMALL * sizeof(float));
        hvt_batch_publish(both[gpu]);
    }
    open_late();
}

/* ADR 0020 counts them: a wait and what it writes in the end are two memory operations; a look at `skip` is a kernel,
 * before the first one of many blocks and before the first of these behind NCCL. */
START_TEST(two_gpus_are_asked_for_what_was_predicted)
{
    start_counted("01");
    large_work(); /* way B */
    for (int gpu = 0; gpu < 2; gpu++)
        expect_asked(gpu, 0, 2, 1);
    small_works(5); /* way C */
    for (int gpu = 0; gpu < 2; gpu++)
        expect_asked(gpu, 2, 2, 1);
}
END_TEST

START_TEST(a_gpu_with_several_ranks_is_asked_for_what_was_predicted)
{
    start_counted("0011");
    large_work(); /* way D */
    for (int gpu = 0; gpu < 2; gpu++)
        expect_asked(gpu, 4, 2, 1);
}
END_TEST

START_TEST(nothing_runs_before_the_last_rank_has_come)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    start("01");
    publish(&work, -1, NULL);
    hvt_job_open_gate(0);
    nap(20);
    ck_assert(!hvt_batch_is_answered(both[0]) && !hvt_job_is_released(0));
    hvt_job_open_gate(1);
    expect_done();
    hvt_job_expect_sum(0, 2, SMALL, 1);
}
END_TEST

static void largest(void)
{
    struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    work.reduce_op = HVI_REDUCE_MAX;
    run(&work, -1, NULL);
    for (uint32_t rank = 0; rank < ranks; rank++)
        ck_assert_mem_eq(hvt_job_out(rank), hvt_job_in(ranks - 1), SMALL * sizeof(float));
}

/* 16 bits, which NCCL has not: gathered. */
static void sum_of_int16(void)
{
    struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    work.dtype = HVI_DTYPE_INT16;
    work.bytes = SMALL * sizeof(int16_t);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        for (uint32_t i = 0; i < SMALL; i++)
            ((int16_t *)hvt_job_in(rank))[i] = (int16_t)(rank * 100 + i);
    }
    run(&work, -1, NULL);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        for (uint32_t i = 0; i < SMALL; i++)
            ck_assert_int_eq(((int16_t *)hvt_job_out(rank))[i], (int16_t)(600 + 4 * i));
    }
}

static void adasum(void)
{
    static double vectors[HVT_RANKS * SMALL];
    struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    for (uint32_t i = 0; i < ranks * SMALL; i++)
        vectors[i] = (double)((float *)hvt_job_in(i / SMALL))[i % SMALL];
    hvt_reference_adasum(vectors, ranks, SMALL);
    work.reduce_op = HVI_REDUCE_ADASUM;
    run(&work, -1, NULL);
    for (uint32_t rank = 0; rank < ranks; rank++) {
        for (uint32_t i = 0; i < SMALL; i++)
            ck_assert_double_eq_tol((double)((float *)hvt_job_out(rank))[i], vectors[i],
                                    1e-4 * (1 + vectors[i]));
    }
}

/* Every element of all ranks' inputs, and of their outputs. */
static void average_of(uint32_t dtype, const void *element, uint32_t bytes)
{
    struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    work.dtype = (uint8_t)dtype;
    work.bytes = (uint64_t)SMALL * bytes;
    work.reduce_op = HVI_REDUCE_AVERAGE;
    work.divisor = ranks;
    for (uint32_t i = 0; i < ranks * SMALL; i++)
        memcpy((char *)hvt_job_in(i / SMALL) + (i % SMALL) * bytes, element, bytes);
    run(&work, -1, NULL);
    for (uint32_t rank = 0; rank < ranks; rank++)
        ck_assert_mem_eq(hvt_job_out(rank), hvt_job_in(rank), (size_t)SMALL * bytes);
}

/* Of four: their sum is more than the type has. */
START_TEST(averages_of_narrow_types_do_not_overflow)
{
    static const uint16_t half = 0x7753;           /* 30000 */
    static const uint8_t e4m3 = 0x78, e5m2 = 0x7b; /* 256, 57344 */

    start("0110");
    average_of(HVI_DTYPE_FLOAT16, &half, sizeof(half));
    average_of(HVI_DTYPE_FLOAT8_E4M3, &e4m3, sizeof(e4m3));
    average_of(HVI_DTYPE_FLOAT8_E5M2, &e5m2, sizeof(e5m2));
}
END_TEST

START_TEST(minimum_and_maximum_keep_a_nan)
{
    static const uint8_t ops[2] = {HVI_REDUCE_MIN, HVI_REDUCE_MAX};
    struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    start("01");
    ((float *)hvt_job_in(1))[7] = NAN;
    for (uint32_t op = 0; op < 2; op++) {
        work.reduce_op = ops[op];
        run(&work, -1, NULL);
        for (uint32_t rank = 0; rank < 2; rank++) {
            const float *out = hvt_job_out(rank);
            ck_assert(isnan(out[7]));
            ck_assert_float_eq(out[8], ((float *)hvt_job_in(op))[8]);
        }
    }
}
END_TEST

START_TEST(other_operations_and_types)
{
    start("0110");
    largest();
    adasum();
    sum_of_int16();
}
END_TEST

/* ---- other kinds ---- */

static void broadcast(void)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_BROADCAST, 1, SMALL);

    for (int root = 0; root < (int)ranks; root++) {
        run(&work, root, NULL);
        for (uint32_t rank = 0; rank < ranks; rank++)
            ck_assert_mem_eq(hvt_job_out(rank), hvt_job_in((uint32_t)root), SMALL * sizeof(float));
    }
}

static void allgather(void)
{
    const uint64_t sizes[] = {40, 4, 0, 4000};
    struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLGATHER, 1, 0);
    uint64_t at = 0;

    work.bytes = 4044;
    run(&work, -1, sizes);
    for (uint32_t from = 0; from < ranks; at += sizes[from++]) {
        for (uint32_t rank = 0; rank < ranks; rank++)
            ck_assert_mem_eq((char *)hvt_job_out(rank) + at, hvt_job_in(from), sizes[from]);
    }
}

static void alltoall(void)
{
    const uint64_t sizes[] = {4, 8, 0, 12, 400, 0, 16, 20, 24, 28, 32, 4000, 4, 4, 4, 4};
    struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLTOALL, 1, 0);

    work.bytes = 8192;
    run(&work, -1, sizes);
    for (uint32_t to = 0; to < ranks; to++) {
        uint64_t at = 0;
        for (uint32_t from = 0; from < ranks; from++) {
            uint64_t before = 0;
            for (uint32_t i = 0; i < to; i++)
                before += sizes[from * ranks + i];
            ck_assert_mem_eq((char *)hvt_job_out(to) + at, (char *)hvt_job_in(from) + before,
                             sizes[from * ranks + to]);
            at += sizes[from * ranks + to];
        }
    }
}

static void reducescatter(void)
{
    const uint64_t sizes[] = {40, 2000, 0, 1960};
    struct hvi_device_work work = hvt_job_work(HVI_KIND_REDUCESCATTER, 1, SMALL);
    uint32_t first = 0;

    hvt_job_fill(SMALL);
    run(&work, -1, sizes);
    for (uint32_t rank = 0; rank < ranks; first += (uint32_t)(sizes[rank++] / sizeof(float))) {
        const float *out = hvt_job_out(rank);
        for (uint32_t i = 0; i < sizes[rank] / sizeof(float); i++)
            ck_assert_float_eq(out[i], (float)(6000 + 4 * ((first + i) % 997)));
        ck_assert_uint_eq(((unsigned char *)hvt_job_out(rank))[sizes[rank]], HVT_UNTOUCHED);
    }
}

START_TEST(pieces_go_where_they_belong)
{
    start("0110");
    broadcast();
    allgather();
    alltoall();
    reducescatter();
}
END_TEST

/* From rank 1 to rank 0. */
START_TEST(a_send_between_two_gpus)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_SEND, 1, SMALL);

    start("01");
    hvt_job_next_turn(2);
    for (int gpu = 0; gpu < 2; gpu++) {
        struct hvi_device_work said = rooted(work, 1, gpu);
        struct hvi_device_member member = hvt_job_member((uint32_t)gpu);
        said.ranks = 2;
        *(gpu == 0 ? &member.in_import : &member.out_import) = HVI_DEVICE_NONE;
        hvt_batch_begin(both[gpu], 1, comm, 2, (uint32_t)gpu);
        hvt_batch_add(both[gpu], &said);
        hvt_batch_add(both[gpu], &member);
        hvt_batch_publish(both[gpu]);
    }
    open_gates();
    expect_done();
    ck_assert_mem_eq(hvt_job_out(0), hvt_job_in(1), SMALL * sizeof(float));
}
END_TEST

/* ---- communicators ---- */

START_TEST(a_communicator_outlives_its_engine)
{
    static const unsigned char no_id[HVI_NCCL_ID_BYTES] = "no one can join by this";

    start("01");
    allreduce(SMALL);
    for (int gpu = 0; gpu < 2; gpu++)
        hvt_engine_close(both[gpu]);
    for (int gpu = 0; gpu < 2; gpu++)
        hvt_engine_open(both[gpu]);
    ck_assert_uint_ge(both[0]->msg.hello.nccl_version, 21800);
    attach_all("01");
    hvt_engines_name(both, 2, COMM + 1, no_id);
    comm = COMM + 1;
    allreduce(SMALL);
}
END_TEST

/* Ranks 0 and 1 are added in staging memory, and NCCL writes the output of rank 2 itself. */
static void publish_staged(void)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, LARGE);

    publish(&work, -1, NULL);
}

/* What NCCL writes for an op that is cancelled comes from the staging memory, and may not be of the job before. */
START_TEST(workers_that_pass_keep_communicators_and_no_bytes)
{
    static const unsigned char no_id[HVI_NCCL_ID_BYTES] = "no one can join by this";

    start("001");
    publish_staged();
    open_gates();
    expect_done();
    for (int gpu = 0; gpu < 2; gpu++) {
        hvt_engine_close(both[gpu]);
        hvt_worker_pass(both[gpu], "next", both[gpu]->instance);
        hvt_engine_open(both[gpu]);
    }
    attach_all("001");
    hvt_engines_name(both, 2, COMM + 1, no_id);
    comm = COMM + 1;
    publish_staged();
    for (uint32_t rank = 0; rank < ranks; rank++)
        hvi_fence_store_skip(&hvt_ranks[rank].fences, 1, hvt_ranks[rank].turn);
    open_gates();
    expect_done();
    ck_assert_mem_eq(hvt_job_out(2), hvt_job_in(2), LARGE * sizeof(float)); /* and zeros */
    allreduce(SMALL);
}
END_TEST

/* As if they were new ones: nothing names the communicator that they have. */
START_TEST(workers_with_other_numbers_join_anew)
{
    start("01");
    for (int gpu = 0; gpu < 2; gpu++) {
        hvt_engine_close(both[gpu]);
        hvt_worker_pass(both[gpu], "next", 4711 + (uint64_t)gpu);
        hvt_engine_open(both[gpu]);
    }
    attach_all("01");
    hvt_engines_join(both, 2, COMM);
    allreduce(SMALL);
}
END_TEST

/* The first worker has its part of a batch of both, which waits for no stream, and the other has none. */
static void begin_alone(struct hvi_device_work work)
{
    start("01");
    hvt_job_next_turn(2);
    hvt_batch_begin(both[0], 1, comm, 2, 0);
    add_work(0, work, NULL, 0);
    hvt_job_open_gate(0);
    hvt_batch_publish(both[0]);
}

static void kill_the_other(void)
{
    kill(both[1]->pid, SIGKILL);
    ck_assert_int_eq(hvt_worker_end(both[1]), 128 + SIGKILL);
}

/* The other worker dies with an op under way: the engine drops the communicator, and this one serves on. */
START_TEST(a_worker_outlives_the_other_of_its_communicator)
{
    struct hvi_gpu_msg drop = {.kind = HVI_GPU_COMM_DROP, .comm_drop = {COMM, true}};
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    begin_alone(work);
    ck_assert_int_eq(hvt_batch_answer(both[0]).status, HVI_INPROGRESS); /* it has begun */
    kill_the_other();
    nap(50);
    hvt_worker_send(both[0]->engine_fd, &drop, NULL, 0);
    hvt_batch_expect(both[0], both[0]->batches); /* of garbage; the engine knows */
    hvt_batch_begin(both[0], 1, comm, 2, 0);
    add_work(0, work, NULL, 0);
    hvt_batch_publish(both[0]);
    ck_assert_int_eq(hvt_batch_answer(both[0]).status, HVI_ERR_CANCELLED);
}
END_TEST

/* Two small works: they are packed, so that a kernel writes the outputs. */
static void publish_packed(void)
{
    hvt_job_next_turn(ranks);
    for (int gpu = 0; gpu < 2; gpu++) {
        hvt_batch_begin(both[gpu], 2, comm, 2, (uint32_t)gpu);
        for (uint64_t i = 0; i < 2; i++)
            add_work(gpu, hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL), NULL,
                     i * SMALL * sizeof(float));
        hvt_batch_publish(both[gpu]);
    }
}

/* The engine has lost a worker, whose ops on this one were gated. 1: and it drops the communicator before it cancels them. */
START_TEST(a_cancelled_batch_of_two_gpus_writes_no_output_that_is_a_kernels)
{
    struct hvi_gpu_msg drop = {.kind = HVI_GPU_COMM_DROP, .comm_drop = {COMM, true}};

    start("01");
    hvt_job_fill(2 * SMALL);
    publish_packed();
    nap(20);
    for (int gpu = 0; gpu < 2 && _i == 1; gpu++)
        hvt_worker_send(both[gpu]->engine_fd, &drop, NULL, 0);
    for (uint32_t rank = 0; rank < 2; rank++)
        hvi_fence_store_skip(&hvt_ranks[rank].fences, 1, hvt_ranks[rank].turn);
    open_gates();
    expect_done();
    for (uint32_t i = 0; i < 2 * SMALL * sizeof(float); i++) {
        if (((unsigned char *)hvt_job_out(1))[i] != HVT_UNTOUCHED)
            ck_abort_msg("byte %u was written", i);
    }
}
END_TEST

/* One batch, whose part on this GPU is there: it waits in NCCL for the other one. */
static void publish_one(int gpu, const struct hvi_device_work *work)
{
    hvt_batch_begin(both[gpu], 1, comm, 2, (uint32_t)gpu);
    add_work(gpu, *work, NULL, 0);
    hvt_batch_publish(both[gpu]);
    hvt_job_open_gate((uint32_t)gpu);
}

static void await_launched(int gpu)
{
    const uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);

    while (atomic_load(&both[gpu]->channel.header->launched) < both[gpu]->batches)
        ck_assert(!hvi_deadline_passed(end));
}

static void await_poison(const _Atomic uint64_t *word)
{
    const uint64_t end = hvi_deadline_after(HVT_PATIENCE_NS);

    while (atomic_load(word) != HVI_FENCE_POISON) {
        ck_assert(!hvi_deadline_passed(end));
        nap(1);
    }
}

/* A batch of a dead engine hangs in NCCL, and would write the rank's output. */
START_TEST(done_words_are_poisoned_when_no_batch_writes)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);
    const struct hvi_fence *cell;

    start("01");
    hvt_job_next_turn(2);
    publish_one(0, &work);
    nap(20);
    hvt_engine_close(both[0]);
    cell = &hvt_ranks[0].fences.cells[2];
    await_poison(&cell->ready);
    nap(50);
    ck_assert_uint_eq(atomic_load(&cell->done), 0);
    publish_one(1, &work);
    await_poison(&cell->done);
    hvt_batch_expect(both[1], both[1]->batches);
}
END_TEST

START_TEST(a_new_engine_gets_its_hello_when_no_batch_of_the_old_one_writes)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    start("01");
    hvt_job_next_turn(2);
    publish_one(0, &work);
    nap(20);
    hvt_engine_close(both[0]);
    hvt_engine_tell(both[0]);
    struct pollfd hello = {.fd = both[0]->engine_fd, .events = POLLIN};
    ck_assert_int_eq(poll(&hello, 1, 100), 0);
    publish_one(1, &work);
    hvt_engine_greet(both[0]);
    hvt_batch_expect(both[1], both[1]->batches);
}
END_TEST

/* It is no local call: the other worker may be in a join of another communicator. */
START_TEST(a_first_op_may_wait_for_the_other_worker)
{
    const struct hvt_worker_wish wish = {.call_ns = 200 * HVI_NS_MS, .fake = ";connect=first"};
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    hvt_job_start(2, "", &wish);
    attach_all("01");
    hvt_engines_join(both, 2, COMM);
    hvt_job_next_turn(2);
    publish_one(0, &work);
    nap(500);
    publish_one(1, &work);
    expect_done();
    hvt_job_expect_sum(0, 2, SMALL, 1);
}
END_TEST

START_TEST(a_first_op_of_a_dropped_communicator_ends_the_worker_with_the_reason)
{
    const struct hvt_worker_wish wish = {.fake = ";connect=first"};
    struct hvi_gpu_msg drop = {.kind = HVI_GPU_COMM_DROP, .comm_drop = {COMM, true}};
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    hvt_job_start(2, "", &wish);
    attach_all("01");
    hvt_engines_join(both, 2, COMM);
    hvt_job_next_turn(2);
    publish_one(0, &work);
    nap(50);
    hvt_worker_send(both[0]->engine_fd, &drop, NULL, 0);
    hvt_worker_expect_state(both[0], HVI_GPU_FAILED);
    ck_assert_msg(strstr(both[0]->msg.state.text, "joined or connected") != NULL, "%s",
                  both[0]->msg.state.text);
    ck_assert_int_eq(hvt_worker_end(both[0]), 1);
}
END_TEST

/* The first hangs in NCCL, and the engine reads neither that it has begun nor the ends of the others, as many as there is room
 * for: its own end waits for room. */
/* The first one's end comes when the ring has room for it: behind all others, or behind some. */
static void expect_each_once(void)
{
    bool seen[HVI_DEVICE_DONES + 1] = {false};

    for (uint32_t i = 0; i < HVI_DEVICE_DONES; i++) {
        struct hvi_device_done done;
        do
            done = hvt_batch_answer(both[0]);
        while (done.status == HVI_INPROGRESS);
        ck_assert_msg(done.status == HVI_OK, "%s: %s", hvi_status_name(done.status), done.text);
        ck_assert(done.number >= 1 && done.number <= HVI_DEVICE_DONES && !seen[done.number]);
        seen[done.number] = true;
    }
}

START_TEST(the_end_of_a_batch_waits_for_room)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, 4);
    struct hvi_device_member member;

    start("01");
    hvt_job_next_turn(2);
    publish_one(0, &work);
    nap(150);
    member = hvt_job_member(0);
    member.cell = 0;
    member.out_offset += HVT_HALF / 2; /* the first one writes its own meanwhile */
    for (uint32_t i = 1; i < HVI_DEVICE_DONES; i++) {
        hvt_batch_begin(both[0], 1, 0, 0, 0);
        hvt_batch_add(both[0], &work);
        hvt_batch_add(both[0], &member);
        hvt_batch_publish(both[0]);
        await_launched(0);
    }
    publish_one(1, &work);
    hvt_batch_expect(both[1], both[1]->batches);
    nap(20);
    ck_assert_int_eq(hvt_batch_answer(both[0]).status, HVI_INPROGRESS);
    expect_each_once();
}
END_TEST

/* No engine says anything. */
START_TEST(an_error_of_nccl_ends_the_worker_with_the_reason)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, SMALL);

    begin_alone(work);
    kill_the_other();
    hvt_worker_expect_state(both[0], HVI_GPU_FAILED);
    ck_assert_msg(strstr(both[0]->msg.state.text, "remote process exited") != NULL, "%s",
                  both[0]->msg.state.text);
    ck_assert_int_eq(hvt_worker_end(both[0]), 1);
}
END_TEST

START_TEST(a_join_that_does_not_end_ends_the_worker_with_the_reason)
{
    const struct hvt_worker_wish wish = {.call_ns = 200 * HVI_NS_MS, .comm_ns = 200 * HVI_NS_MS};

    hvt_job_start(1, "hvdd-gpu/nccl-join-hang", &wish);
    hvt_engine_ask_join(both[0], 2);
    hvt_worker_expect_state(both[0], HVI_GPU_FAILED);
    ck_assert_msg(strstr(both[0]->msg.state.text, "ncclCommInitRank") != NULL, "%s",
                  both[0]->msg.state.text);
    ck_assert_int_eq(hvt_worker_end(both[0]), 1);
}
END_TEST

/* ---- registered memory ---- */

/* Of a rank's memory with the communicator. */
static void expect_registration(uint32_t rank, uint32_t with, int status)
{
    struct hvt_worker *worker = hvt_ranks[rank].worker;
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_REGISTER};

    msg.registering.request = ++worker->requests;
    msg.registering.comm = with;
    msg.registering.import = hvt_ranks[rank].import;
    hvt_worker_send(worker->engine_fd, &msg, NULL, 0);
    hvt_engine_expect_ack(worker, msg.registering.request, status);
}

/* The fake ends a worker that closes memory which is registered, or that brings some to an op alone. */
START_TEST(registered_memory_is_given_back_before_it_is_closed)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, LARGE);

    start("01");
    expect_registration(0, COMM + 1, HVI_ERR_UNSUPPORTED); /* which is none */
    for (uint32_t rank = 0; rank < 2; rank++) {
        expect_registration(rank, COMM, HVI_OK);
        expect_registration(rank, COMM, HVI_OK); /* it is already */
    }
    publish(&work, -1, NULL);
    open_gates();
    expect_done();
    for (uint32_t rank = 0; rank < 2; rank++)
        hvt_job_expect_sum(rank, 2, LARGE, 1);
    for (uint32_t rank = 0; rank < 2; rank++) {
        struct hvt_worker *worker = hvt_ranks[rank].worker;
        hvt_engine_expect_ack(worker, hvt_engine_release(worker, hvt_ranks[rank].import), HVI_OK);
    }
}
END_TEST

START_TEST(a_registration_that_fails_changes_nothing)
{
    const struct hvi_device_work work = hvt_job_work(HVI_KIND_ALLREDUCE, 1, LARGE);
    const struct hvt_worker_wish wish = {0};

    hvt_job_start(2, "hvdd-gpu/nccl-register", &wish);
    attach_all("01");
    hvt_engines_join(both, 2, COMM);
    for (uint32_t rank = 0; rank < 2; rank++)
        expect_registration(rank, COMM, HVI_ERR_UNSUPPORTED);
    publish(&work, -1, NULL);
    open_gates();
    expect_done();
    for (uint32_t rank = 0; rank < 2; rank++)
        hvt_job_expect_sum(rank, 2, LARGE, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("gpu_together");
    TCase *tcase = tcase_create("together");

    tcase_add_checked_fixture(tcase, NULL, hvt_job_end);
    tcase_add_test(tcase, one_rank_on_each_gpu);
    tcase_add_test(tcase, registered_memory_is_given_back_before_it_is_closed);
    tcase_add_test(tcase, a_registration_that_fails_changes_nothing);
    tcase_add_test(tcase, more_ranks_on_one_gpu_than_on_the_other);
    tcase_add_test(tcase, two_gpus_are_asked_for_what_was_predicted);
    tcase_add_test(tcase, a_gpu_with_several_ranks_is_asked_for_what_was_predicted);
    tcase_add_test(tcase, nothing_runs_before_the_last_rank_has_come);
    tcase_add_test(tcase, other_operations_and_types);
    tcase_add_test(tcase, averages_of_narrow_types_do_not_overflow);
    tcase_add_test(tcase, minimum_and_maximum_keep_a_nan);
    tcase_add_test(tcase, pieces_go_where_they_belong);
    tcase_add_test(tcase, a_send_between_two_gpus);
    tcase_add_test(tcase, a_communicator_outlives_its_engine);
    tcase_add_test(tcase, workers_that_pass_keep_communicators_and_no_bytes);
    tcase_add_test(tcase, workers_with_other_numbers_join_anew);
    tcase_add_test(tcase, a_worker_outlives_the_other_of_its_communicator);
    tcase_add_loop_test(tcase, a_cancelled_batch_of_two_gpus_writes_no_output_that_is_a_kernels, 0,
                        2);
    tcase_add_test(tcase, done_words_are_poisoned_when_no_batch_writes);
    tcase_add_test(tcase, a_new_engine_gets_its_hello_when_no_batch_of_the_old_one_writes);
    tcase_add_test(tcase, a_first_op_may_wait_for_the_other_worker);
    tcase_add_test(tcase, a_first_op_of_a_dropped_communicator_ends_the_worker_with_the_reason);
    tcase_add_test(tcase, the_end_of_a_batch_waits_for_room);
    tcase_add_test(tcase, an_error_of_nccl_ends_the_worker_with_the_reason);
    tcase_add_test(tcase, a_join_that_does_not_end_ends_the_worker_with_the_reason);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
