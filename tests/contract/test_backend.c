/* SPDX-License-Identifier: Apache-2.0
 * What every backend in engine_backends that works on one node promises (daemon/engine/exec/backend.h), run
 * against each row, with one thread and with several. Works over several nodes: test_span.c. A backend is driven as the engine drives it: start, then help
 * until the batch has been posted. */
#include "daemon/engine/exec/backend.h"

#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "tests/contract/hvt_rows.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#define RANKS       4u
#define DEADLINE_NS (20ll * 1000 * 1000 * 1000)

static const uint32_t thread_counts[] = {1, 2, 5};
#define THREAD_COUNTS (int)(sizeof thread_counts / sizeof thread_counts[0])

struct bench {
    const struct engine_backend *backend;
    void *context;
    _Atomic uint32_t done;
    _Atomic int status;
};

/* .next of a batch that has been posted. */
static struct engine_batch posted;

static void on_post(void *user, struct engine_batch *batch)
{
    struct bench *bench = user;

    ck_assert_msg(batch->next != &posted, "a batch is posted twice");
    batch->next = &posted;
    if (batch->status != HVI_OK)
        atomic_store_explicit(&bench->status, batch->status, memory_order_relaxed);
    atomic_fetch_add_explicit(&bench->done, 1, memory_order_release);
}

/* Test index -> (row, threads). */
static void open_bench(struct bench *bench, int index)
{
    struct engine_backend_config config = {
        .threads = thread_counts[index % THREAD_COUNTS], .post = on_post, .user = bench};

    *bench = (struct bench){.backend = hvt_row_at(index / THREAD_COUNTS)};
    ck_assert_int_eq(bench->backend->open(&config, &bench->context), HVI_OK);
}

static void finish_somehow(struct bench *bench, uint32_t batches)
{
    uint64_t deadline_ns = hvi_deadline_after(DEADLINE_NS);

    while (atomic_load_explicit(&bench->done, memory_order_acquire) < batches) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "a batch is not posted");
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
    struct engine_operand in[RANKS], out[RANKS];
    uint64_t sizes[RANKS];
    unsigned char *memory[RANKS]; /* input */
    unsigned char *result[RANKS]; /* output; with a guard byte behind it */
};

static struct engine_operand mapped(void *memory)
{
    return (struct engine_operand){.kind = ENGINE_OPERAND_MAPPED, .address = memory};
}

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
        tensor->in[rank] = mapped(tensor->memory[rank]);
    }
    if (kind == HVI_KIND_ALLGATHER)
        tensor->work.bytes = bytes * RANKS * (RANKS - 1) / 2;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        tensor->result[rank] = in_place ? tensor->memory[rank] : malloc(tensor->work.bytes + 1);
        ck_assert_ptr_nonnull(tensor->result[rank]);
        tensor->result[rank][tensor->work.bytes] = 0xa5;
        tensor->out[rank] = mapped(tensor->result[rank]);
    }
    tensor->work.in = tensor->in;
    tensor->work.out = tensor->out;
    tensor->work.kinds = 1u << ENGINE_OPERAND_MAPPED;
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
    batch->answer_ns = UINT64_MAX;
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
    const void *in[RANKS];
    const struct hvi_reduction reduce = {.dtype = tensor->work.dtype,
                                         .reduce_op = tensor->work.reduce_op,
                                         .ranks = RANKS,
                                         .ins = RANKS,
                                         .in = in,
                                         .prescale = tensor->work.prescale,
                                         .postscale = tensor->work.postscale};
    unsigned char *expected = malloc(tensor->work.bytes + 1);

    for (uint32_t rank = 0; rank < RANKS; rank++)
        in[rank] = tensor->in[rank].address;
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
                tensor.in[rank].kind = ENGINE_OPERAND_NONE;
        }
        void *expected = malloc(tensor.work.bytes + 1);
        memcpy(expected, tensor.memory[tensor.work.root], tensor.work.bytes);
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
            tensor.out[2] = mapped(lacking);
        else
            tensor.in[2] = mapped(lacking);
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
    tensors[17].in[1] = mapped(input);
    tensors[40].out[3] = mapped(output);
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

/* ---- plans of several steps ---- */

static void *adasum_alone(struct bench *bench, struct tensor *tensor)
{
    void *result;

    run_one(bench, tensor);
    result = malloc(tensor->work.bytes);
    memcpy(result, tensor->result[0], tensor->work.bytes);
    return result;
}

/* An adasum needs the whole of one step for the next. Steps of several batches take turns. */
START_TEST(the_steps_of_a_plan_come_one_after_the_other)
{
    enum { BATCHES = 12 };
    static struct tensor tensors[BATCHES];
    static struct engine_batch batches[BATCHES];
    static void *expected[BATCHES];
    struct bench bench;
    uint64_t random = 7;

    open_bench(&bench, _i);
    for (int i = 0; i < BATCHES; i++) {
        make(&tensors[i], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 500 + 17000u * (uint32_t)i, false,
             &random);
        tensors[i].work.reduce_op = i % 3 == 2 ? HVI_REDUCE_SUM : HVI_REDUCE_ADASUM;
        expected[i] = adasum_alone(&bench, &tensors[i]);
        for (uint32_t rank = 0; rank < RANKS; rank++)
            memset(tensors[i].result[rank], 0, tensors[i].work.bytes);
        batch_of(&batches[i], &tensors[i], 1);
    }
    atomic_store(&bench.done, 0);
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

/* ---- cancelling ---- */

START_TEST(a_batch_that_is_cancelled_is_posted_once)
{
    enum { BATCHES = 16 };
    static struct tensor tensors[BATCHES];
    static struct engine_batch batches[BATCHES];
    static void *expected[BATCHES];
    struct bench bench;
    uint64_t random = 8;

    open_bench(&bench, _i);
    for (int i = 0; i < BATCHES; i++) { /* half of them in several steps */
        make(&tensors[i], HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 100000, false, &random);
        expected[i] = i % 4 < 2 ? NULL : reduce_reference(&tensors[i]);
        tensors[i].work.reduce_op = expected[i] ? HVI_REDUCE_SUM : HVI_REDUCE_ADASUM;
        batch_of(&batches[i], &tensors[i], 1);
    }
    for (int i = 0; i < BATCHES; i++)
        bench.backend->start(bench.context, &batches[i]);
    for (int i = 0; i < 20; i++)
        bench.backend->help(bench.context); /* some are begun, some are over */
    for (int i = 0; i < BATCHES; i += 2) {
        bench.backend->cancel(bench.context, &batches[i]);
        bench.backend->cancel(bench.context, &batches[i]);
    }
    finish_somehow(&bench, BATCHES);
    ck_assert_uint_eq(atomic_load(&bench.done), BATCHES);
    if (thread_counts[_i % THREAD_COUNTS] == 1) /* so far it cannot have come */
        ck_assert_int_eq(batches[BATCHES - 2].status, HVI_ERR_CANCELLED);
    for (int i = 0; i < BATCHES; i++) {
        bool whole = batches[i].status == HVI_OK;
        ck_assert(whole || (i % 2 == 0 && batches[i].status == HVI_ERR_CANCELLED));
        ck_assert_int_eq(batches[i].fault.rank, -1);
        if (whole && expected[i])
            expect_everywhere(&tensors[i], expected[i]);
        free(expected[i]);
        drop(&tensors[i]);
    }
    bench.backend->close(bench.context);
}
END_TEST

START_TEST(nothing_of_a_queued_batch_is_done_once_it_is_cancelled)
{
    static struct engine_batch batch;
    struct bench bench;
    struct tensor tensor;
    uint64_t random = 9;

    open_bench(&bench, _i * THREAD_COUNTS); /* nobody but help() does it */
    ck_assert_uint_eq(thread_counts[0], 1);
    make(&tensor, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, 300000, false, &random);
    memset(tensor.result[1], 0x5a, tensor.work.bytes);
    batch_of(&batch, &tensor, 1);
    bench.backend->start(bench.context, &batch);
    bench.backend->cancel(bench.context, &batch);
    ck_assert_uint_eq(atomic_load(&bench.done), 1);
    ck_assert_int_eq(batch.status, HVI_ERR_CANCELLED);
    ck_assert(!bench.backend->help(bench.context));
    for (uint64_t i = 0; i < tensor.work.bytes; i++) {
        if (tensor.result[1][i] != 0x5a)
            ck_abort_msg("byte %lu was written", (unsigned long)i);
    }
    drop(&tensor);
    bench.backend->close(bench.context);
}
END_TEST

START_TEST(what_is_over_is_not_cancelled)
{
    static struct engine_batch batch;
    struct bench bench;
    struct tensor tensor;
    uint64_t random = 10;

    open_bench(&bench, _i);
    for (uint64_t count = 10; count <= 1000000; count *= 100000) { /* at once, and by threads */
        make(&tensor, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, count, false, &random);
        void *expected = reduce_reference(&tensor);
        batch_of(&batch, &tensor, 1);
        atomic_store(&bench.done, 0);
        bench.backend->start(bench.context, &batch);
        finish(&bench, 1);
        bench.backend->cancel(bench.context, &batch);
        ck_assert_int_eq(batch.status, HVI_OK);
        ck_assert_uint_eq(atomic_load(&bench.done), 1);
        expect_everywhere(&tensor, expected);
        free(expected);
        drop(&tensor);
    }
    bench.backend->close(bench.context);
}
END_TEST

/* ---- memory that does not answer ---- */

#define SILENT_BYTES (256u * 1024)
#define ANSWER_NS    (150ull * 1000 * 1000)

static int fault_fd;

static bool cannot_wait(void)
{
    struct uffdio_api api = {.api = UFFD_API};

    fault_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    return fault_fd < 0 || ioctl(fault_fd, UFFDIO_API, &api) != 0;
}

/* An allreduce that reads rank 2's input from this process' own memory, which does not answer. */
struct silence {
    struct tensor tensor;
    struct engine_process process;
    struct engine_batch batch;
    struct uffdio_range range;
};

static void make_silence(struct silence *silence, uint64_t answer_ns)
{
    uint64_t random = 11;
    void *memory =
        mmap(NULL, SILENT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register reg = {
        .mode = UFFDIO_REGISTER_MODE_MISSING,
        .range = {.start = (uint64_t)(uintptr_t)memory, .len = SILENT_BYTES},
    };

    ck_assert_ptr_ne(memory, MAP_FAILED);
    ck_assert_int_eq(ioctl(fault_fd, UFFDIO_REGISTER, &reg), 0);
    make(&silence->tensor, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, SILENT_BYTES / 4, false, &random);
    silence->range = reg.range;
    silence->process = (struct engine_process){.pid = getpid(), .pid_fd = -1};
    silence->tensor.in[2] = (struct engine_operand){
        .kind = ENGINE_OPERAND_PROCESS, .address = memory, .process = &silence->process};
    silence->tensor.work.kinds |= 1u << ENGINE_OPERAND_PROCESS;
    batch_of(&silence->batch, &silence->tensor, 1);
    silence->batch.answer_ns = answer_ns;
}

/* Its pages are zeros now. */
static void answer(const struct silence *silence)
{
    struct uffdio_range range = silence->range;

    ck_assert_int_eq(ioctl(fault_fd, UFFDIO_UNREGISTER, &range), 0);
}

static void drop_silence(struct silence *silence)
{
    munmap((void *)(uintptr_t)silence->range.start, SILENT_BYTES);
    drop(&silence->tensor);
}

static void watch_until_silent(struct bench *bench, const struct silence *silence)
{
    uint64_t deadline_ns = hvi_deadline_after(DEADLINE_NS);
    struct engine_fault fault = {.rank = -1};

    while (!bench->backend->silent(bench->context, &silence->batch, &fault)) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "a batch is not silent");
        bench->backend->watch(bench->context);
        sched_yield();
    }
    ck_assert_int_eq(fault.rank, 2);
    ck_assert(!fault.writing);
    ck_assert_uint_ge(fault.waited_ns, ENGINE_SILENT_NS);
    ck_assert_uint_eq(fault.address, silence->range.start);
}

static void watch_until_posted(struct bench *bench, uint32_t batches)
{
    uint64_t deadline_ns = hvi_deadline_after(DEADLINE_NS);

    while (atomic_load_explicit(&bench->done, memory_order_acquire) < batches) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "a batch is not posted");
        bench->backend->watch(bench->context);
        sched_yield();
    }
}

/* Threads that were given up end now that their memory has answered. */
static void close_bench(struct bench *bench, int threads)
{
    uint64_t deadline_ns = hvi_deadline_after(DEADLINE_NS);

    while (hvt_count_threads() != threads) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "a thread does not end");
        bench->backend->watch(bench->context);
        sched_yield();
    }
    ck_assert(bench->backend->close(bench->context));
}

START_TEST(a_deadline_ends_its_batch_and_no_other)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static struct silence early, later;
    struct bench bench;

    open_bench(&bench, _i);
    int threads = hvt_count_threads();
    make_silence(&early, ANSWER_NS);
    make_silence(&later, UINT64_MAX);
    bench.backend->start(bench.context, &later.batch);
    bench.backend->start(bench.context, &early.batch);
    watch_until_posted(&bench, 1);
    ck_assert_ptr_eq(early.batch.next, &posted);
    ck_assert_int_eq(early.batch.status, HVI_ERR_STALLED);
    ck_assert_int_eq(early.batch.fault.rank, 2);
    ck_assert_uint_ge(early.batch.fault.waited_ns, ANSWER_NS);
    ck_assert(early.tensor.out[2].late); /* it is read to where the result will be */
    ck_assert(!early.tensor.out[1].late);
    watch_until_silent(&bench, &later);
    answer(&later);
    watch_until_posted(&bench, 2);
    ck_assert_int_eq(later.batch.status, HVI_OK);
    ck_assert(!later.tensor.out[2].late);
    answer(&early);
    close_bench(&bench, threads);
    drop_silence(&early);
    drop_silence(&later);
}
END_TEST

START_TEST(a_batch_that_waits_can_be_cancelled)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static struct silence silence, queued;
    struct bench bench;

    open_bench(&bench, _i);
    int threads = hvt_count_threads();
    make_silence(&silence, UINT64_MAX);
    bench.backend->start(bench.context, &silence.batch);
    watch_until_silent(&bench, &silence);
    bench.backend->cancel(bench.context, &silence.batch);
    watch_until_posted(&bench, 1);
    ck_assert_int_eq(silence.batch.status, HVI_ERR_CANCELLED);
    ck_assert(silence.tensor.out[2].late);
    make_silence(&queued, UINT64_MAX);
    bench.backend->start(bench.context, &queued.batch);
    bench.backend->cancel(bench.context, &queued.batch); /* or it has just begun */
    watch_until_posted(&bench, 2);
    ck_assert_int_eq(queued.batch.status, HVI_ERR_CANCELLED);
    answer(&silence);
    answer(&queued);
    close_bench(&bench, threads);
    drop_silence(&silence);
    drop_silence(&queued);
}
END_TEST

START_TEST(somebody_accepts_host_memory_and_nobody_accepts_the_unknown)
{
    static struct engine_batch batch;
    struct tensor tensor = {.work = {.kind = HVI_KIND_BARRIER, .ranks = RANKS}};
    int host = 0;

    batch_of(&batch, &tensor, 1);
    for (int i = 0; engine_backends[i]; i++) {
        tensor.work.kinds = 1u << ENGINE_OPERAND_MAPPED;
        host += engine_backends[i]->accepts(&batch);
        tensor.work.kinds = 1u << 31;
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
    int all = hvt_rows() * THREAD_COUNTS;

    tcase_add_loop_test(tcase, an_allreduce_gives_the_reference_bits_at_every_size, 0, all);
    tcase_add_loop_test(tcase, a_broadcast_copies_the_root_and_reads_nobody_else, 0, all);
    tcase_add_loop_test(tcase, an_allgather_puts_unequal_parts_in_rank_order, 0, all);
    tcase_add_loop_test(tcase, a_barrier_has_no_operands, 0, all);
    tcase_add_loop_test(tcase, every_work_of_a_fused_batch_is_done, 0, all);
    tcase_add_loop_test(tcase, many_batches_may_be_under_way, 0, all);
    tcase_add_loop_test(tcase, closing_finishes_what_was_started, 0, all);
    tcase_add_loop_test(tcase, a_page_that_cannot_be_had_fails_the_work_and_nothing_else, 0, all);
    tcase_add_loop_test(tcase, the_others_of_a_fused_batch_are_done, 0, all);
    tcase_add_loop_test(tcase, the_steps_of_a_plan_come_one_after_the_other, 0, all);
    tcase_add_loop_test(tcase, a_batch_that_is_cancelled_is_posted_once, 0, all);
    tcase_add_loop_test(tcase, nothing_of_a_queued_batch_is_done_once_it_is_cancelled, 0,
                        hvt_rows());
    tcase_add_loop_test(tcase, what_is_over_is_not_cancelled, 0, all);
    tcase_add_loop_test(tcase, a_deadline_ends_its_batch_and_no_other, 0, all);
    tcase_add_loop_test(tcase, a_batch_that_waits_can_be_cancelled, 0, all);
    tcase_add_test(tcase, somebody_accepts_host_memory_and_nobody_accepts_the_unknown);
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
