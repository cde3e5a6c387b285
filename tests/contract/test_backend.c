/* SPDX-License-Identifier: Apache-2.0
 * What every backend in engine_backends promises (daemon/engine/exec/backend.h), run against each row,
 * with one thread and with several. A backend is driven as the engine drives it: start, then help
 * until done() has been called. */
#include "daemon/engine/exec/backend.h"

#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/hvt_main.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANKS       4u
#define DEADLINE_NS (20ll * 1000 * 1000 * 1000)

static const uint32_t thread_counts[] = {1, 2, 5};
#define THREAD_COUNTS (int)(sizeof thread_counts / sizeof thread_counts[0])

struct bench {
    const struct engine_backend *backend;
    void *context;
    _Atomic uint32_t done;
    int status;
};

static void on_done(void *user, struct engine_batch *batch)
{
    struct bench *bench = user;

    if (batch->status != HVI_OK)
        bench->status = batch->status;
    atomic_fetch_add_explicit(&bench->done, 1, memory_order_release);
}

static int rows(void)
{
    int count = 0;

    while (engine_backends[count])
        count++;
    return count;
}

/* Test index -> (row, threads). */
static void open_bench(struct bench *bench, int index)
{
    struct engine_backend_config config = {
        .threads = thread_counts[index % THREAD_COUNTS], .done = on_done, .user = bench};

    *bench = (struct bench){.backend = engine_backends[index / THREAD_COUNTS]};
    ck_assert_int_eq(bench->backend->open(&config, &bench->context), HVI_OK);
}

static void finish_somehow(struct bench *bench, uint32_t batches)
{
    uint64_t deadline_ns = hvi_deadline_after(DEADLINE_NS);

    while (atomic_load_explicit(&bench->done, memory_order_acquire) < batches) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "a batch is not reported done");
        if (!bench->backend->help(bench->context))
            sched_yield();
    }
}

static void finish(struct bench *bench, uint32_t batches)
{
    finish_somehow(bench, batches);
    ck_assert_int_eq(bench->status, HVI_OK);
}

/* ---- works over memory of their own ---- */

struct tensor {
    struct engine_work work;
    const void *in[RANKS];
    void *out[RANKS];
    uint64_t sizes[RANKS];
    unsigned char *memory[RANKS]; /* input */
    unsigned char *result[RANKS]; /* output; with a guard byte behind it */
};

static void make(struct tensor *tensor, uint32_t kind, uint32_t dtype, uint64_t count,
                 bool in_place, uint64_t *random)
{
    uint64_t bytes = count * hvi_dtype_bytes(dtype);

    memset(tensor, 0, sizeof *tensor);
    tensor->work = (struct engine_work){.kind = kind,
                                        .dtype = dtype,
                                        .reduce_op = HVI_REDUCE_SUM,
                                        .ranks = RANKS,
                                        .root = -1,
                                        .prescale = 1,
                                        .postscale = 1,
                                        .count = count,
                                        .bytes = bytes};
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        uint64_t own = kind == HVI_KIND_ALLGATHER ? bytes * rank : bytes;
        tensor->sizes[rank] = own;
        tensor->memory[rank] = malloc(own + 1);
        ck_assert_ptr_nonnull(tensor->memory[rank]);
        hvt_reference_fill(dtype, tensor->memory[rank], own / hvi_dtype_bytes(dtype), random);
        tensor->in[rank] = tensor->memory[rank];
    }
    if (kind == HVI_KIND_ALLGATHER)
        tensor->work.bytes = bytes * RANKS * (RANKS - 1) / 2;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        tensor->result[rank] = in_place ? tensor->memory[rank] : malloc(tensor->work.bytes + 1);
        ck_assert_ptr_nonnull(tensor->result[rank]);
        tensor->result[rank][tensor->work.bytes] = 0xa5;
        tensor->out[rank] = tensor->result[rank];
    }
    tensor->work.in = tensor->in;
    tensor->work.out = tensor->out;
    tensor->work.sizes = tensor->sizes;
}

static void drop(struct tensor *tensor)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        if (tensor->result[rank] != tensor->memory[rank])
            free(tensor->result[rank]);
        free(tensor->memory[rank]);
    }
}

static void batch_of(struct engine_batch *batch, struct tensor *tensors, uint32_t count)
{
    memset(batch, 0, sizeof *batch);
    for (uint32_t i = 0; i < count; i++) {
        batch->works[i] = &tensors[i].work;
        batch->bytes += tensors[i].work.bytes;
    }
    batch->count = count;
}

static void run_one(struct bench *bench, struct tensor *tensor)
{
    static struct engine_batch batch;

    batch_of(&batch, tensor, 1);
    ck_assert(bench->backend->accepts(&batch));
    atomic_store(&bench->done, 0);
    bench->backend->start(bench->context, &batch);
    finish(bench, 1);
}

static void expect_everywhere(const struct tensor *tensor, const void *expected)
{
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        ck_assert_msg(memcmp(tensor->result[rank], expected, tensor->work.bytes) == 0,
                      "rank %u has something else", rank);
        ck_assert_int_eq(tensor->result[rank][tensor->work.bytes], 0xa5);
    }
}

static const uint64_t counts[] = {0, 1, 3, 1000, 16384, 65535, 65536, 65537, 300001};
#define COUNTS (sizeof counts / sizeof counts[0])

/* The reference is computed before, because the op may be in place. */
static void *reduce_reference(const struct tensor *tensor)
{
    uint32_t size = hvi_dtype_bytes(tensor->work.dtype);
    const struct hvi_reduction reduce = {.dtype = tensor->work.dtype,
                                         .reduce_op = tensor->work.reduce_op,
                                         .ranks = RANKS,
                                         .ins = RANKS,
                                         .in = tensor->in,
                                         .prescale = tensor->work.prescale,
                                         .postscale = tensor->work.postscale};
    unsigned char *expected = malloc(tensor->work.bytes + 1);

    for (uint64_t i = 0; i < tensor->work.count; i++)
        hvt_reference_element(&reduce, i, expected + i * size);
    return expected;
}

START_TEST(an_allreduce_gives_the_reference_bits_at_every_size)
{
    struct bench bench;
    struct tensor tensor;
    uint64_t random = 1;

    open_bench(&bench, _i);
    for (size_t c = 0; c < COUNTS; c++) {
        uint32_t dtype = c % 2 ? HVI_DTYPE_FLOAT32 : HVI_DTYPE_BFLOAT16;
        make(&tensor, HVI_KIND_ALLREDUCE, dtype, counts[c], c % 3 == 0, &random);
        tensor.work.reduce_op = c % 4 ? HVI_REDUCE_SUM : HVI_REDUCE_AVERAGE;
        void *expected = reduce_reference(&tensor);
        run_one(&bench, &tensor);
        expect_everywhere(&tensor, expected);
        free(expected);
        drop(&tensor);
    }
    bench.backend->close(bench.context);
}
END_TEST

START_TEST(a_broadcast_copies_the_root_and_reads_nobody_else)
{
    struct bench bench;
    struct tensor tensor;
    uint64_t random = 2;

    open_bench(&bench, _i);
    for (size_t c = 0; c < COUNTS; c++) {
        make(&tensor, HVI_KIND_BROADCAST, HVI_DTYPE_INT32, counts[c], c % 2, &random);
        tensor.work.root = (int32_t)c % (int32_t)RANKS;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            if ((int32_t)rank != tensor.work.root)
                tensor.in[rank] = NULL;
        }
        void *expected = malloc(tensor.work.bytes + 1);
        memcpy(expected, tensor.in[tensor.work.root], tensor.work.bytes);
        run_one(&bench, &tensor);
        expect_everywhere(&tensor, expected);
        free(expected);
        drop(&tensor);
    }
    bench.backend->close(bench.context);
}
END_TEST

/* Rank r brings r times as much: rank 0 nothing. */
START_TEST(an_allgather_puts_unequal_parts_in_rank_order)
{
    struct bench bench;
    struct tensor tensor;
    uint64_t random = 3;

    open_bench(&bench, _i);
    for (size_t c = 0; c < COUNTS; c++) {
        make(&tensor, HVI_KIND_ALLGATHER, HVI_DTYPE_UINT8, counts[c], false, &random);
        unsigned char *expected = malloc(tensor.work.bytes + 1);
        uint64_t at = 0;
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            memcpy(expected + at, tensor.memory[rank], tensor.sizes[rank]);
            at += tensor.sizes[rank];
        }
        run_one(&bench, &tensor);
        expect_everywhere(&tensor, expected);
        free(expected);
        drop(&tensor);
    }
    bench.backend->close(bench.context);
}
END_TEST

START_TEST(a_barrier_has_no_operands)
{
    struct bench bench;
    struct tensor tensor = {.work = {.kind = HVI_KIND_BARRIER, .ranks = RANKS}};

    open_bench(&bench, _i);
    run_one(&bench, &tensor);
    bench.backend->close(bench.context);
}
END_TEST

START_TEST(every_work_of_a_fused_batch_is_done)
{
    static struct tensor tensors[ENGINE_BATCH_WORKS];
    static void *expected[ENGINE_BATCH_WORKS];
    static struct engine_batch batch;
    struct bench bench;
    uint64_t random = 4;

    open_bench(&bench, _i);
    for (uint32_t i = 0; i < ENGINE_BATCH_WORKS; i++) {
        make(&tensors[i], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, i * 4, i % 2, &random);
        expected[i] = reduce_reference(&tensors[i]);
    }
    for (uint32_t count = 1; count <= ENGINE_BATCH_WORKS; count += 85) {
        batch_of(&batch, tensors, count);
        atomic_store(&bench.done, 0);
        bench.backend->start(bench.context, &batch);
        finish(&bench, 1);
        for (uint32_t i = 0; i < count; i++)
            expect_everywhere(&tensors[i], expected[i]);
        for (uint32_t i = 0; i < count; i++) { /* in-place inputs are used up */
            drop(&tensors[i]);
            free(expected[i]);
            make(&tensors[i], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, i * 4, i % 2, &random);
            expected[i] = reduce_reference(&tensors[i]);
        }
    }
    for (uint32_t i = 0; i < ENGINE_BATCH_WORKS; i++) {
        drop(&tensors[i]);
        free(expected[i]);
    }
    bench.backend->close(bench.context);
}
END_TEST

START_TEST(many_batches_may_be_under_way)
{
    enum { BATCHES = 24 };
    static struct tensor tensors[BATCHES];
    static struct engine_batch batches[BATCHES];
    static void *expected[BATCHES];
    struct bench bench;
    uint64_t random = 5;

    open_bench(&bench, _i);
    for (int i = 0; i < BATCHES; i++) {
        make(&tensors[i], HVI_KIND_ALLREDUCE, HVI_DTYPE_INT16, 1000 + 40000u * (uint32_t)i % 300000,
             true, &random);
        expected[i] = reduce_reference(&tensors[i]);
        batch_of(&batches[i], &tensors[i], 1);
    }
    for (int i = 0; i < BATCHES; i++)
        bench.backend->start(bench.context, &batches[i]);
    finish(&bench, BATCHES);
    for (int i = 0; i < BATCHES; i++) {
        expect_everywhere(&tensors[i], expected[i]);
        free(expected[i]);
        drop(&tensors[i]);
    }
    bench.backend->close(bench.context);
}
END_TEST

START_TEST(closing_finishes_what_was_started)
{
    static struct engine_batch batch;
    struct bench bench;
    struct tensor tensor;
    uint64_t random = 6;

    open_bench(&bench, _i);
    make(&tensor, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT64, 400000, true, &random);
    void *expected = reduce_reference(&tensor);
    batch_of(&batch, &tensor, 1);
    bench.backend->start(bench.context, &batch);
    bench.backend->close(bench.context);
    ck_assert_uint_eq(atomic_load(&bench.done), 1);
    expect_everywhere(&tensor, expected);
    free(expected);
    drop(&tensor);
}
END_TEST

/* ---- pages that are not there ---- */

#define LACKING_BYTES (4ull << 20)
#define LACKING       64u /* ops in a fused batch */

/* A page is there, the rest is not: the memfd is cut short under the mapping. */
static unsigned char *map_lacking(void)
{
    int fd = memfd_create("lacking", MFD_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, LACKING_BYTES), 0);
    void *memory = mmap(NULL, LACKING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    ck_assert_int_eq(ftruncate(fd, 4096), 0);
    close(fd);
    return memory;
}

static void expect_missing(const unsigned char *lacking, uint64_t address)
{
    ck_assert_uint_ge(address, (uint64_t)(uintptr_t)lacking + 4096);
    ck_assert_uint_lt(address, (uint64_t)(uintptr_t)lacking + LACKING_BYTES);
}

static const struct {
    uint32_t kind, reduce_op;
    uint64_t count;
    bool writing;
} lackings[] = {
    {HVI_KIND_ALLREDUCE, HVI_REDUCE_SUM, 4096, false},
    {HVI_KIND_ALLREDUCE, HVI_REDUCE_SUM, 4096, true},
    {HVI_KIND_ALLREDUCE, HVI_REDUCE_SUM, 1000000, false},
    {HVI_KIND_ALLREDUCE, HVI_REDUCE_SUM, 1000000, true},
    {HVI_KIND_ALLREDUCE, HVI_REDUCE_ADASUM, 300000, false},
    {HVI_KIND_ALLREDUCE, HVI_REDUCE_ADASUM, 300000, true},
    {HVI_KIND_BROADCAST, HVI_REDUCE_SUM, 300000, true},
    {HVI_KIND_ALLGATHER, HVI_REDUCE_SUM, 100000, false},
    {HVI_KIND_ALLGATHER, HVI_REDUCE_SUM, 100000, true},
};

START_TEST(a_page_that_cannot_be_had_fails_the_work_and_nothing_else)
{
    static struct engine_batch batch;
    struct bench bench;
    struct tensor tensor;
    uint64_t random = 5;

    open_bench(&bench, _i);
    for (size_t i = 0; i < sizeof lackings / sizeof lackings[0]; i++) {
        unsigned char *lacking = map_lacking();
        make(&tensor, lackings[i].kind, HVI_DTYPE_FLOAT32, lackings[i].count, false, &random);
        tensor.work.reduce_op = lackings[i].reduce_op;
        tensor.work.root = 0;
        if (lackings[i].writing)
            tensor.out[2] = lacking;
        else
            tensor.in[2] = lacking;
        batch_of(&batch, &tensor, 1);
        atomic_store(&bench.done, 0);
        bench.status = HVI_OK;
        bench.backend->start(bench.context, &batch);
        finish_somehow(&bench, 1);
        ck_assert_msg(batch.status == HVI_ERR_NO_MEMORY, "case %zu: %d", i, batch.status);
        ck_assert_int_eq(batch.fault.rank, -1);
        expect_missing(lacking, batch.fault.missing);
        drop(&tensor);
        munmap(lacking, LACKING_BYTES);
    }
    bench.status = HVI_OK;
    make(&tensor, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 300000, false, &random);
    void *expected = reduce_reference(&tensor);
    run_one(&bench, &tensor);
    expect_everywhere(&tensor, expected);
    free(expected);
    drop(&tensor);
    bench.backend->close(bench.context);
}
END_TEST

START_TEST(the_others_of_a_fused_batch_are_done)
{
    static struct engine_batch batch;
    static struct tensor tensors[LACKING];
    static void *expected[LACKING];
    unsigned char *input = map_lacking(), *output = map_lacking();
    struct bench bench;
    uint64_t random = 6;

    open_bench(&bench, _i);
    for (uint32_t i = 0; i < LACKING; i++) {
        make(&tensors[i], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 2000, true, &random);
        expected[i] = reduce_reference(&tensors[i]);
    }
    tensors[17].in[1] = input;
    tensors[40].out[3] = output;
    tensors[41].work.missing = 41; /* known before: it is not touched */
    batch_of(&batch, tensors, LACKING);
    bench.backend->start(bench.context, &batch);
    finish(&bench, 1);
    expect_missing(input, tensors[17].work.missing);
    expect_missing(output, tensors[40].work.missing);
    ck_assert_uint_eq(tensors[41].work.missing, 41);
    ck_assert_int_ne(memcmp(tensors[41].result[0], expected[41], tensors[41].work.bytes), 0);
    for (uint32_t i = 0; i < LACKING; i++) {
        if (i != 17 && i != 40 && i != 41) {
            ck_assert_uint_eq(tensors[i].work.missing, 0);
            expect_everywhere(&tensors[i], expected[i]);
        }
        free(expected[i]);
        drop(&tensors[i]);
    }
    bench.backend->close(bench.context);
    munmap(input, LACKING_BYTES);
    munmap(output, LACKING_BYTES);
}
END_TEST

START_TEST(somebody_accepts_host_memory_and_nobody_accepts_the_unknown)
{
    static struct engine_batch batch;
    struct tensor tensor = {.work = {.kind = HVI_KIND_BARRIER, .ranks = RANKS}};
    int host = 0;

    batch_of(&batch, &tensor, 1);
    for (int i = 0; i < rows(); i++) {
        batch.memory_kind = ENGINE_MEMORY_HOST;
        host += engine_backends[i]->accepts(&batch);
        batch.memory_kind = 250;
        ck_assert(!engine_backends[i]->accepts(&batch));
        ck_assert_str_ne(engine_backends[i]->name, "");
    }
    ck_assert_int_eq(host, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("contract/backend");
    TCase *tcase = tcase_create("backend");
    int all = rows() * THREAD_COUNTS;

    tcase_add_loop_test(tcase, an_allreduce_gives_the_reference_bits_at_every_size, 0, all);
    tcase_add_loop_test(tcase, a_broadcast_copies_the_root_and_reads_nobody_else, 0, all);
    tcase_add_loop_test(tcase, an_allgather_puts_unequal_parts_in_rank_order, 0, all);
    tcase_add_loop_test(tcase, a_barrier_has_no_operands, 0, all);
    tcase_add_loop_test(tcase, every_work_of_a_fused_batch_is_done, 0, all);
    tcase_add_loop_test(tcase, many_batches_may_be_under_way, 0, all);
    tcase_add_loop_test(tcase, closing_finishes_what_was_started, 0, all);
    tcase_add_loop_test(tcase, a_page_that_cannot_be_had_fails_the_work_and_nothing_else, 0, all);
    tcase_add_loop_test(tcase, the_others_of_a_fused_batch_are_done, 0, all);
    tcase_add_test(tcase, somebody_accepts_host_memory_and_nobody_accepts_the_unknown);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
