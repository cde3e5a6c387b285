/* SPDX-License-Identifier: Apache-2.0
 * Every row of engine_backends against a plain second opinion: kind x dtype x reduce op x members x
 * where operands lie, with members that have joined, odd sizes and alignments, in place and apart.
 *
 * All operands come from an arena that this process has mapped at .here and a child at .there, an
 * address that is not mapped here: what the backend is told is remote it cannot reach by itself.
 * Seeds are fixed; a failure says everything that is needed to have it again. */
#include "daemon/engine/exec/backend.h"

#include "base/clock.h"
#include "base/fate.h"
#include "base/status.h"
#include "base/types.h"
#include "tests/contract/hvt_rows.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/hvt_main.h"

#include <errno.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define RANKS_MOST  8u
#define ARENA_BYTES (96u * 1024 * 1024)
#define HOLE_BYTES  (8u * 1024 * 1024) /* behind the arena at .there */
#define GUARD       64u
#define GUARD_BYTE  0xa5
#define DEADLINE_NS                                                                                \
    (200ll * 1000 * 1000 * 1000) /* a guard against hanging: the test case has 240 s */

enum memory { MAPPED, REMOTE, MIXED, MEMORIES };
static const char *const memory_texts[] = {"mapped", "remote", "mixed"};

/* ---- the arena ---- */

static struct {
    unsigned char *here, *there;
    uint64_t used;
    struct engine_process child;
} arena;

static void open_arena(void)
{
    int fd = memfd_create("arena", MFD_CLOEXEC);
    pid_t parent = getpid();
    int both = PROT_READ | PROT_WRITE;

    ck_assert_int_eq(ftruncate(fd, ARENA_BYTES), 0);
    arena.here = mmap(NULL, ARENA_BYTES, both, MAP_SHARED, fd, 0);
    arena.there = mmap(NULL, ARENA_BYTES + HOLE_BYTES, PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    ck_assert(arena.here != MAP_FAILED && arena.there != MAP_FAILED);
    ck_assert_ptr_eq(mmap(arena.there, ARENA_BYTES, both, MAP_SHARED | MAP_FIXED, fd, 0),
                     arena.there);
    arena.child.pid = fork();
    if (arena.child.pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        while (getppid() == parent)
            pause();
        _exit(0);
    }
    ck_assert_int_gt(arena.child.pid, 0);
    arena.child.pid_fd = hvi_pidfd_open(arena.child.pid);
    ck_assert_int_ge(arena.child.pid_fd, 0);
    mmap(arena.there, ARENA_BYTES, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    close(fd);
}

static void close_arena(void)
{
    kill(arena.child.pid, SIGKILL);
    waitpid(arena.child.pid, NULL, 0);
    close(arena.child.pid_fd);
    munmap(arena.here, ARENA_BYTES);
    munmap(arena.there, ARENA_BYTES + HOLE_BYTES);
}

static struct engine_operand operand_of(unsigned char *here, bool remote)
{
    struct engine_operand operand = {.kind = ENGINE_OPERAND_NONE};

    if (here && remote) {
        operand.kind = ENGINE_OPERAND_PROCESS;
        operand.address = arena.there + (here - arena.here);
        operand.process = &arena.child;
    } else if (here) {
        operand.kind = ENGINE_OPERAND_MAPPED;
        operand.address = here;
    }
    return operand;
}

static struct engine_operand mapped(void *memory)
{
    return (struct engine_operand){.kind = ENGINE_OPERAND_MAPPED, .address = memory};
}

/* Between guards, `shift` elements off a page. */
static unsigned char *arena_take(uint64_t bytes, uint64_t shift)
{
    uint64_t at = (arena.used + GUARD + 4095) / 4096 * 4096 + shift;

    arena.used = at + bytes + GUARD;
    ck_assert_uint_le(arena.used, ARENA_BYTES);
    memset(arena.here + at - GUARD, GUARD_BYTE, GUARD);
    memset(arena.here + at + bytes, GUARD_BYTE, GUARD);
    return arena.here + at;
}

static bool guards_hold(const unsigned char *place, uint64_t bytes)
{
    for (uint32_t i = 0; i < GUARD; i++) {
        if (place[(int64_t)i - (int64_t)GUARD] != GUARD_BYTE || place[bytes + i] != GUARD_BYTE)
            return false;
    }
    return true;
}

/* ---- a backend ---- */

struct bench {
    const struct engine_backend *backend;
    void *context;
    struct engine_batch batch;
    _Atomic uint32_t done;
};

static const uint32_t thread_counts[] = {1, 3};
#define THREAD_COUNTS (int)(sizeof thread_counts / sizeof thread_counts[0])

static void on_post(void *user, struct engine_batch *batch)
{
    (void)batch;
    atomic_fetch_add_explicit(&((struct bench *)user)->done, 1, memory_order_release);
}

static void open_bench(struct bench *bench, int row, uint32_t threads)
{
    struct engine_backend_config config = {.threads = threads, .post = on_post, .user = bench};

    memset(bench, 0, sizeof *bench);
    bench->backend = hvt_row_at(row);
    ck_assert_int_eq(bench->backend->open(&config, &bench->context), HVI_OK);
}

static int run(struct bench *bench, struct engine_work *work)
{
    uint64_t deadline_ns = hvi_deadline_after(DEADLINE_NS);

    bench->batch.works[0] = work;
    bench->batch.count = 1;
    bench->batch.bytes = work->bytes;
    bench->batch.answer_ns = UINT64_MAX;
    atomic_store(&bench->done, 0);
    ck_assert(bench->backend->accepts(&bench->batch));
    bench->backend->start(bench->context, &bench->batch);
    while (atomic_load_explicit(&bench->done, memory_order_acquire) == 0) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "a batch is not posted");
        if (!bench->backend->help(bench->context))
            sched_yield();
    }
    return bench->batch.status;
}

/* ---- a case ---- */

struct operands {
    struct engine_work work;
    struct engine_operand in[RANKS_MOST], out[RANKS_MOST];
    uint64_t sizes[RANKS_MOST * RANKS_MOST];
    unsigned char *in_here[RANKS_MOST]; /* NULL: joined */
    unsigned char *out_here[RANKS_MOST];
    uint64_t in_bytes[RANKS_MOST], out_bytes[RANKS_MOST];
    bool joined[RANKS_MOST];
    bool in_place;
    enum memory memory;
    uint64_t seed, random, where; /* .where chooses memory: data do not depend on that */
    char text[256];
};

static uint64_t row_sum(const struct operands *o, uint32_t from)
{
    uint64_t sum = 0;

    for (uint32_t to = 0; to < o->work.ranks; to++)
        sum += o->sizes[from * o->work.ranks + to];
    return sum;
}

static uint64_t column_sum(const struct operands *o, uint32_t to)
{
    uint64_t sum = 0;

    for (uint32_t from = 0; from < o->work.ranks; from++)
        sum += o->sizes[from * o->work.ranks + to];
    return sum;
}

static uint64_t slice_at(const struct operands *o, uint32_t rank)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i < rank; i++)
        at += o->sizes[i];
    return at;
}

/* At most `count` elements each, sometimes none; joined members bring none. */
static void choose_sizes(struct operands *o, uint64_t count)
{
    uint32_t size = hvi_dtype_bytes(o->work.dtype), ranks = o->work.ranks;
    bool matrix = o->work.kind == HVI_KIND_ALLTOALL;

    for (uint32_t i = 0; i < (matrix ? ranks * ranks : ranks); i++) {
        bool none = o->joined[matrix ? i / ranks : i] || (matrix && o->joined[i % ranks]);
        o->sizes[i] = none || hvt_random(&o->random) % 5 == 0
                          ? 0
                          : hvt_random(&o->random) % (count + 1) * size;
    }
}

static void choose_bytes(struct operands *o, uint64_t count)
{
    uint64_t whole = count * hvi_dtype_bytes(o->work.dtype);
    uint32_t kind = o->work.kind;

    if (kind != HVI_KIND_ALLREDUCE && kind != HVI_KIND_BROADCAST)
        choose_sizes(o, count);
    if (kind == HVI_KIND_ALLGATHER || kind == HVI_KIND_REDUCESCATTER)
        whole = slice_at(o, o->work.ranks);
    for (uint32_t i = 0; i < o->work.ranks; i++) {
        o->in_bytes[i] = o->out_bytes[i] = whole;
        if (kind == HVI_KIND_ALLGATHER)
            o->in_bytes[i] = o->sizes[i];
        if (kind == HVI_KIND_REDUCESCATTER)
            o->out_bytes[i] = o->sizes[i];
        if (kind == HVI_KIND_ALLTOALL) {
            o->in_bytes[i] = row_sum(o, i);
            o->out_bytes[i] = column_sum(o, i);
        }
    }
    o->work.bytes = kind == HVI_KIND_ALLTOALL ? 0 : whole;
    for (uint32_t i = 0; i < o->work.ranks && kind == HVI_KIND_ALLTOALL; i++) {
        uint64_t most = o->in_bytes[i] > o->out_bytes[i] ? o->in_bytes[i] : o->out_bytes[i];
        o->work.bytes = most > o->work.bytes ? most : o->work.bytes;
    }
    o->work.count = kind == HVI_KIND_ALLREDUCE ? count : 0;
}

static uint64_t shift_of(struct operands *o)
{
    return hvt_random(&o->random) % 9 * hvi_dtype_bytes(o->work.dtype);
}

static void fill_input(struct operands *o, uint32_t rank)
{
    uint64_t count = o->in_bytes[rank] / hvi_dtype_bytes(o->work.dtype);
    unsigned char *data = o->in_here[rank];

    if (o->work.reduce_op != HVI_REDUCE_ADASUM) {
        hvt_reference_fill(o->work.dtype, data, count, &o->random);
        return;
    }
    for (uint64_t i = 0; i < count; i++)
        hvt_reference_put(o->work.dtype, data, i, (double)(int64_t)hvt_random(&o->random) / 9.3e18);
}

static void place_one(struct operands *o, uint32_t rank)
{
    uint32_t kind = o->work.kind;

    if (kind != HVI_KIND_BROADCAST || (int32_t)rank == o->work.root || o->in_place)
        o->in_here[rank] = arena_take(o->in_bytes[rank], shift_of(o));
    if (!o->in_place || kind == HVI_KIND_ALLTOALL) {
        o->out_here[rank] = arena_take(o->out_bytes[rank], shift_of(o));
        memset(o->out_here[rank], 0x5a, o->out_bytes[rank]);
    } else if (kind == HVI_KIND_ALLGATHER) {
        o->out_here[rank] = arena_take(o->out_bytes[rank], shift_of(o));
        o->in_here[rank] = o->out_here[rank] + slice_at(o, rank);
    } else {
        o->out_here[rank] =
            o->in_here[rank] + (kind == HVI_KIND_REDUCESCATTER ? slice_at(o, rank) : 0);
    }
    if (o->in_here[rank])
        fill_input(o, rank);
}

/* In place means one memory for both. */
static void point(struct operands *o, uint32_t rank)
{
    bool in_far = o->memory == REMOTE || (o->memory == MIXED && hvt_random(&o->where) % 2);
    bool out_far = o->memory == REMOTE || (o->memory == MIXED && hvt_random(&o->where) % 2);

    if (o->in_place)
        out_far = in_far;
    o->in[rank] = operand_of(o->in_here[rank], in_far);
    o->out[rank] = operand_of(o->out_here[rank], out_far);
    o->work.kinds |= 1u << o->in[rank].kind | 1u << o->out[rank].kind;
}

static void place(struct operands *o)
{
    arena.used = 0;
    for (uint32_t rank = 0; rank < o->work.ranks; rank++) {
        if (!o->joined[rank])
            place_one(o, rank);
        point(o, rank);
    }
    o->work.in = o->in;
    o->work.out = o->out;
    o->work.sizes = o->sizes;
}

/* One member stays; so does a broadcast's root. */
static void choose_joined(struct operands *o)
{
    uint32_t stays = o->work.kind == HVI_KIND_BROADCAST
                         ? (uint32_t)o->work.root
                         : (uint32_t)(hvt_random(&o->random) % o->work.ranks);

    for (uint32_t i = 0; i < o->work.ranks; i++)
        o->joined[i] = i != stays && hvt_random(&o->random) % 3 == 0;
}

static void make(struct operands *o, uint32_t kind, uint32_t dtype, uint32_t reduce_op,
                 uint32_t ranks, enum memory memory, uint64_t count, uint64_t seed)
{
    memset(o, 0, sizeof *o);
    o->seed = o->random = o->where = seed;
    o->memory = memory;
    o->work = (struct engine_work){.kind = kind,
                                   .dtype = dtype,
                                   .reduce_op = reduce_op,
                                   .ranks = ranks,
                                   .root = -1,
                                   .prescale = 1,
                                   .postscale = 1};
    if (kind == HVI_KIND_BROADCAST)
        o->work.root = (int32_t)(hvt_random(&o->random) % ranks);
    if (dtype != HVI_DTYPE_BOOL && hvt_random(&o->random) % 4 == 0) {
        o->work.prescale = 0.5;
        o->work.postscale = 3;
    }
    o->in_place = hvt_random(&o->random) % 3 == 0;
    if (hvt_random(&o->random) % 3 == 0)
        choose_joined(o);
    choose_bytes(o, count);
    place(o);
    snprintf(o->text, sizeof o->text, "%s %s %s, %u members, %s%s, up to %lu elements, seed %lu",
             hvi_kind_text(kind), hvi_dtype_text(dtype), hvi_reduce_text(reduce_op), ranks,
             memory_texts[memory], o->in_place ? ", in place" : "", (unsigned long)count,
             (unsigned long)seed);
}

/* ---- what should come out ---- */

static uint32_t present(const struct operands *o, const void **in_p)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < o->work.ranks; i++) {
        if (o->in_here[i])
            in_p[count++] = o->in_here[i];
    }
    return count;
}

static void reduce_reference(const struct operands *o, unsigned char *result)
{
    const void *in[RANKS_MOST];
    uint32_t size = hvi_dtype_bytes(o->work.dtype);
    const struct hvi_reduction reduce = {.dtype = o->work.dtype,
                                         .reduce_op = o->work.reduce_op,
                                         .ranks = o->work.ranks,
                                         .ins = present(o, in),
                                         .in = in,
                                         .prescale = o->work.prescale,
                                         .postscale = o->work.postscale};

    for (uint64_t i = 0; i < o->work.bytes / size; i++)
        hvt_reference_element(&reduce, i, result + i * size);
}

/* As double: what is compared is closeness. */
static double *adasum_reference(const struct operands *o)
{
    const void *in[RANKS_MOST];
    uint32_t members = present(o, in), dtype = o->work.dtype;
    uint64_t count = o->work.bytes / hvi_dtype_bytes(dtype);
    double *vectors = calloc(members * count + 1, sizeof *vectors);

    for (uint32_t i = 0; i < members; i++) {
        for (uint64_t at = 0; at < count; at++)
            vectors[i * count + at] = hvt_reference_get(dtype, in[i], at) * o->work.prescale;
    }
    hvt_reference_adasum(vectors, members, count);
    for (uint64_t at = 0; at < count; at++)
        vectors[at] *= o->work.postscale;
    return vectors;
}

static void gather_reference(const struct operands *o, unsigned char *result)
{
    for (uint32_t i = 0; i < o->work.ranks; i++) {
        if (o->in_here[i])
            memcpy(result, o->in_here[i], o->in_bytes[i]);
        result += o->in_bytes[i];
    }
}

static void alltoall_reference(const struct operands *o, uint32_t to, unsigned char *result)
{
    for (uint32_t from = 0; from < o->work.ranks; from++) {
        const uint64_t *sizes = o->sizes + from * o->work.ranks;
        uint64_t at = 0;
        for (uint32_t before = 0; before < to; before++)
            at += sizes[before];
        if (sizes[to] > 0)
            memcpy(result, o->in_here[from] + at, sizes[to]);
        result += sizes[to];
    }
}

/* What `rank` should have; computed before the op, because that may be in place. */
static void expect_of(const struct operands *o, uint32_t rank, const unsigned char *reduced,
                      unsigned char *expected)
{
    if (o->work.kind == HVI_KIND_ALLTOALL)
        alltoall_reference(o, rank, expected);
    else if (o->work.kind == HVI_KIND_REDUCESCATTER)
        memcpy(expected, reduced + slice_at(o, rank), o->out_bytes[rank]);
    else
        memcpy(expected, reduced, o->out_bytes[rank]);
}

static void check_guards(const struct operands *o)
{
    for (uint32_t rank = 0; rank < o->work.ranks; rank++) {
        if (o->in_here[rank] && !o->in_place)
            ck_assert_msg(guards_hold(o->in_here[rank], o->in_bytes[rank]), "%s: rank %u's input",
                          o->text, rank);
        if (o->out_here[rank] && (!o->in_place || o->out_bytes[rank] >= o->in_bytes[rank]))
            ck_assert_msg(guards_hold(o->out_here[rank], o->out_bytes[rank]),
                          "%s: rank %u wrote past its output", o->text, rank);
    }
}

static void run_exact(struct bench *bench, struct operands *o)
{
    unsigned char *expected[RANKS_MOST] = {NULL}, *reduced = calloc(1, o->work.bytes + 1);
    bool reduces = o->work.kind == HVI_KIND_ALLREDUCE || o->work.kind == HVI_KIND_REDUCESCATTER;

    if (reduces)
        reduce_reference(o, reduced);
    else if (o->work.kind == HVI_KIND_ALLGATHER)
        gather_reference(o, reduced);
    else if (o->work.kind == HVI_KIND_BROADCAST)
        memcpy(reduced, o->in_here[o->work.root], o->work.bytes);
    for (uint32_t rank = 0; rank < o->work.ranks; rank++) {
        expected[rank] = malloc(o->out_bytes[rank] + 1);
        expect_of(o, rank, reduced, expected[rank]);
    }
    ck_assert_msg(run(bench, &o->work) == HVI_OK, "%s: status %d", o->text, bench->batch.status);
    for (uint32_t rank = 0; rank < o->work.ranks; rank++) {
        if (o->out_here[rank])
            ck_assert_msg(memcmp(o->out_here[rank], expected[rank], o->out_bytes[rank]) == 0,
                          "%s: rank %u has something else", o->text, rank);
        free(expected[rank]);
    }
    check_guards(o);
    free(reduced);
}

/* ---- the suite ---- */

static bool exists(uint32_t dtype, uint32_t reduce_op)
{
    return hvi_reduction_check(dtype, reduce_op, 1, 1, NULL, 0) == HVI_OK;
}

static const uint64_t counts[] = {0, 1, 2, 7, 63, 64, 65, 500, 4099};
#define COUNTS (sizeof counts / sizeof counts[0])

static void run_ranks(struct bench *bench, uint32_t kind, uint32_t dtype, uint32_t reduce_op)
{
    static struct operands o;

    for (uint32_t ranks = 1; ranks <= RANKS_MOST; ranks++) {
        for (uint32_t memory = 0; memory < MEMORIES; memory++) {
            uint64_t seed = ((kind * 64 + dtype) * 64 + reduce_op) * 64 + ranks * 4 + memory;
            make(&o, kind, dtype, reduce_op, ranks, memory, counts[seed * 7 % COUNTS], seed);
            run_exact(bench, &o);
        }
    }
}

/* Test index -> (row, dtype). */
static void open_indexed(struct bench *bench, int index, uint32_t *dtype_p)
{
    *dtype_p = (uint32_t)index % HVI_DTYPE_COUNT;
    open_bench(bench, index / HVI_DTYPE_COUNT, 3);
}

START_TEST(every_reduction_gives_the_reference_bits)
{
    static struct bench bench;
    uint32_t dtype;

    open_indexed(&bench, _i, &dtype);
    for (uint32_t op = 0; op < HVI_REDUCE_COUNT; op++) {
        if (op == HVI_REDUCE_ADASUM || !exists(dtype, op))
            continue;
        run_ranks(&bench, HVI_KIND_ALLREDUCE, dtype, op);
        run_ranks(&bench, HVI_KIND_REDUCESCATTER, dtype, op);
    }
    bench.backend->close(bench.context);
}
END_TEST

START_TEST(every_exchange_puts_the_bytes_where_they_belong)
{
    static struct bench bench;
    uint32_t dtype;

    open_indexed(&bench, _i, &dtype);
    run_ranks(&bench, HVI_KIND_BROADCAST, dtype, HVI_REDUCE_SUM);
    run_ranks(&bench, HVI_KIND_ALLGATHER, dtype, HVI_REDUCE_SUM);
    run_ranks(&bench, HVI_KIND_ALLTOALL, dtype, HVI_REDUCE_SUM);
    bench.backend->close(bench.context);
}
END_TEST

/* Many units and pieces, several of each rank's boundaries among them. */
START_TEST(large_ops_are_cut_into_pieces_without_a_seam)
{
    static const uint32_t kinds[] = {HVI_KIND_ALLREDUCE, HVI_KIND_BROADCAST, HVI_KIND_ALLGATHER,
                                     HVI_KIND_REDUCESCATTER, HVI_KIND_ALLTOALL};
    static const uint32_t dtypes[] = {HVI_DTYPE_FLOAT32, HVI_DTYPE_INT8, HVI_DTYPE_FLOAT16};
    static struct bench bench;
    static struct operands o;

    open_bench(&bench, _i / MEMORIES / THREAD_COUNTS, thread_counts[_i / MEMORIES % THREAD_COUNTS]);
    for (uint32_t i = 0; i < 5 * 3; i++) {
        uint32_t kind = kinds[i % 5], dtype = dtypes[i / 5], ranks = 2 + i % 4;
        uint64_t bytes = kind == HVI_KIND_ALLTOALL ? 700001 : 1500001;
        make(&o, kind, dtype, HVI_REDUCE_SUM, ranks, (enum memory)(_i % MEMORIES),
             bytes / hvi_dtype_bytes(dtype), 1000 + i);
        run_exact(&bench, &o);
    }
    bench.backend->close(bench.context);
}
END_TEST

/* From 4 MiB on a lone thread's units of remote-process memory are as large as they get, and those of seven
 * members do not fit its buffer at once. */
START_TEST(the_largest_units_have_no_seams_either)
{
    static const uint32_t kinds[] = {HVI_KIND_ALLREDUCE, HVI_KIND_BROADCAST,
                                     HVI_KIND_REDUCESCATTER};
    static struct bench bench;
    static struct operands o;

    open_bench(&bench, _i / MEMORIES, 1);
    for (uint32_t i = 0; i < 3; i++) {
        uint32_t dtype = i == 1 ? HVI_DTYPE_INT8 : HVI_DTYPE_FLOAT32;
        make(&o, kinds[i], dtype, HVI_REDUCE_SUM, 7, (enum memory)(_i % MEMORIES),
             (i == 2 ? 1700077u : 5000077u) / hvi_dtype_bytes(dtype), 3000 + i);
        run_exact(&bench, &o);
    }
    bench.backend->close(bench.context);
}
END_TEST

/* ---- adasum ---- */

static double step_of(uint32_t dtype)
{
    switch (dtype) {
    case HVI_DTYPE_FLOAT16:
        return 0x1p-10;
    case HVI_DTYPE_BFLOAT16:
        return 0x1p-7;
    case HVI_DTYPE_FLOAT8_E4M3:
        return 0x1p-3;
    case HVI_DTYPE_FLOAT8_E5M2:
        return 0x1p-2;
    case HVI_DTYPE_FLOAT32:
        return 0x1p-20;
    default:
        return 0x1p-45;
    }
}

static void expect_close(const struct operands *o, const double *expected)
{
    uint32_t size = hvi_dtype_bytes(o->work.dtype);
    double step = step_of(o->work.dtype);
    double tiny = o->work.dtype == HVI_DTYPE_FLOAT64 ? step : 0x1p-19; /* float32 inside */

    if (o->work.dtype == HVI_DTYPE_FLOAT8_E4M3 || o->work.dtype == HVI_DTYPE_FLOAT8_E5M2)
        tiny = o->work.dtype == HVI_DTYPE_FLOAT8_E4M3 ? 0x1p-9 : 0x1p-16; /* their subnormals */
    for (uint32_t rank = 0; rank < o->work.ranks; rank++) {
        bool slice = o->work.kind == HVI_KIND_REDUCESCATTER;
        uint64_t from = slice ? slice_at(o, rank) / size : 0;
        for (uint64_t i = 0; o->out_here[rank] && i < o->out_bytes[rank] / size; i++) {
            double value = hvt_reference_get(o->work.dtype, o->out_here[rank], i);
            double wanted = expected[from + i];
            if (fabs(value - wanted) <= step * fabs(wanted) + tiny)
                continue; /* an assertion that holds costs a system call */
            ck_abort_msg("%s: rank %u, element %lu: %g, not %g", o->text, rank, (unsigned long)i,
                         value, wanted);
        }
    }
}

START_TEST(adasum_is_close_to_the_plain_tree_in_double)
{
    static const uint64_t sizes[] = {0, 1, 7, 513, 4100, 32768, 33001};
    static struct bench bench;
    static struct operands o;
    uint32_t dtype;

    open_indexed(&bench, _i, &dtype);
    for (uint32_t i = 0; exists(dtype, HVI_REDUCE_ADASUM) && i < MEMORIES * RANKS_MOST; i++) {
        uint32_t kind = (i / MEMORIES + i) % 2 ? HVI_KIND_REDUCESCATTER : HVI_KIND_ALLREDUCE;
        uint64_t count = sizes[(i * 5 + dtype) % 7];
        make(&o, kind, dtype, HVI_REDUCE_ADASUM, 1 + i / MEMORIES, (enum memory)(i % MEMORIES),
             kind == HVI_KIND_ALLREDUCE ? count : count / 4, 5000 + i);
        double *expected = adasum_reference(&o);
        ck_assert_msg(run(&bench, &o.work) == HVI_OK, "%s: status %d", o.text, bench.batch.status);
        expect_close(&o, expected);
        check_guards(&o);
        free(expected);
    }
    bench.backend->close(bench.context);
}
END_TEST

START_TEST(adasum_has_the_same_bits_for_any_thread_count_and_memory)
{
    static struct bench bench;
    static struct operands o;
    static unsigned char first[200001 * 4];
    static const uint32_t threads[] = {1, 2, 5};

    for (uint32_t i = 0; i < 3 * MEMORIES; i++) {
        open_bench(&bench, _i, threads[i / MEMORIES]);
        make(&o, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, HVI_REDUCE_ADASUM, 7,
             (enum memory)(i % MEMORIES), 200001, 78);
        ck_assert(!o.joined[6]);
        ck_assert_int_eq(run(&bench, &o.work), HVI_OK);
        if (i == 0)
            memcpy(first, o.out_here[6], sizeof first);
        ck_assert_msg(memcmp(first, o.out_here[6], sizeof first) == 0, "%s: %u threads", o.text,
                      threads[i / MEMORIES]);
        bench.backend->close(bench.context);
    }
}
END_TEST

START_TEST(adasum_of_what_has_no_length_is_the_sum)
{
    static struct bench bench;
    float a[3] = {0, 0, 0}, b[3] = {1, 2, 3}, c[3] = {0, 0, 0};
    struct engine_operand operands[] = {mapped(a), {0}, mapped(b), mapped(c)};
    struct engine_work work = {.kind = HVI_KIND_ALLREDUCE,
                               .dtype = HVI_DTYPE_FLOAT32,
                               .reduce_op = HVI_REDUCE_ADASUM,
                               .ranks = 4,
                               .prescale = 1,
                               .postscale = 1,
                               .count = 3,
                               .bytes = sizeof a,
                               .in = operands,
                               .out = operands,
                               .kinds = 1u << ENGINE_OPERAND_MAPPED};

    open_bench(&bench, _i, 1);
    ck_assert_int_eq(run(&bench, &work), HVI_OK);
    for (int i = 0; i < 3; i++) {
        ck_assert(a[i] == (float)(i + 1));
        ck_assert(c[i] == (float)(i + 1));
    }
    bench.backend->close(bench.context);
}
END_TEST

/* ---- remote-process memory that is not there ---- */

static struct engine_process ended_process(void)
{
    struct engine_process process = {.pid = fork()};

    if (process.pid == 0)
        _exit(0);
    process.pid_fd = hvi_pidfd_open(process.pid);
    ck_assert_int_ge(process.pid_fd, 0);
    ck_assert_int_eq(waitpid(process.pid, NULL, 0), process.pid);
    return process;
}

/* One way for rank 2 of 4 to be wrong; the rest of the row is what must be said. */
enum wrong { HOLE_READ, HOLE_WRITTEN, HOLE_LATER, PROCESS_GONE, NOT_THE_SAME, IS_OVER, WRONGS };
static const struct {
    int status, error;
    bool writing;
} says[WRONGS] = {
    [HOLE_READ] = {HVI_ERR_INVALID, EFAULT, false},
    [HOLE_WRITTEN] = {HVI_ERR_INVALID, EFAULT, true},
    [HOLE_LATER] = {HVI_ERR_INVALID, EFAULT, false},
    [PROCESS_GONE] = {HVI_ERR_RANK_LOST, ESRCH, false},
    [NOT_THE_SAME] = {HVI_ERR_RANK_LOST, ESRCH, false},
    [IS_OVER] = {HVI_ERR_RANK_LOST, ESRCH, false},
};

static uint64_t make_wrong(struct operands *o, enum wrong wrong)
{
    static struct engine_process culprit;
    unsigned char *end = arena.there + ARENA_BYTES; /* nothing is mapped there in the child */

    if (wrong == HOLE_READ)
        o->in[2].address = end + 4096;
    if (wrong == HOLE_WRITTEN)
        o->out[2].address = end + 4096;
    if (wrong == HOLE_LATER)
        o->in[2].address = end - o->work.bytes / 8192 * 4096;
    culprit = arena.child;
    if (wrong == PROCESS_GONE || wrong == NOT_THE_SAME)
        culprit = ended_process();
    if (wrong == PROCESS_GONE) /* nobody has told */
        culprit.pid_fd = arena.child.pid_fd;
    if (wrong == NOT_THE_SAME) /* its pid is another's now */
        culprit.pid = arena.child.pid;
    culprit.over = wrong == IS_OVER;
    o->in[2].process = o->out[2].process = &culprit;
    return (uint64_t)(uintptr_t)(wrong == HOLE_WRITTEN ? o->out[2] : o->in[2]).address;
}

static uint64_t clean_seed(void)
{
    static struct operands o;

    for (uint64_t seed = 1;; seed++) {
        make(&o, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, HVI_REDUCE_SUM, 4, REMOTE, 1, seed);
        if (!o.in_place && o.in_here[0] && o.in_here[1] && o.in_here[2] && o.in_here[3])
            return seed;
    }
}

START_TEST(memory_that_is_not_there_fails_the_op_and_names_the_rank)
{
    static struct bench bench;
    static struct operands o;
    enum wrong wrong = (enum wrong)(_i % WRONGS);
    static const uint64_t sizes[] = {1, 100, 900001};
    uint64_t seed = clean_seed();

    open_bench(&bench, _i / WRONGS / THREAD_COUNTS, thread_counts[_i / WRONGS % THREAD_COUNTS]);
    for (uint32_t i = wrong == HOLE_LATER ? 2 : 0; i < 3; i++) {
        for (uint32_t op = HVI_REDUCE_SUM; op <= HVI_REDUCE_ADASUM; op++) {
            make(&o, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, op, 4, REMOTE, sizes[i], seed);
            uint64_t address = make_wrong(&o, wrong);
            ck_assert_int_eq(run(&bench, &o.work), says[wrong].status);
            ck_assert_int_eq(bench.batch.fault.rank, 2);
            ck_assert_int_eq(bench.batch.fault.error, says[wrong].error);
            ck_assert_int_eq(bench.batch.fault.writing, says[wrong].writing);
            ck_assert_uint_ge(bench.batch.fault.address, address);
            ck_assert_uint_lt(bench.batch.fault.address, address + o.work.bytes);
            if (wrong == HOLE_LATER)
                ck_assert_uint_ge(bench.batch.fault.address,
                                  (uint64_t)(uintptr_t)(arena.there + ARENA_BYTES));
        }
    }
    make(&o, HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, HVI_REDUCE_SUM, 4, REMOTE, 9000, seed);
    run_exact(&bench, &o); /* and the next op is as good as ever */
    ck_assert_int_eq(bench.batch.fault.rank, -1);
    bench.backend->close(bench.context);
}
END_TEST

/* ---- more than four gigabytes ---- */

#define TILE_BYTES (48ull * 1024 * 1024) /* 2^32 is no multiple of it: a cut address shows */
#define BIG_BYTES  (90 * TILE_BYTES + 12345 * 4)

/* The same pages again and again; the last tile has pages of its own. */
static unsigned char *tiled(void)
{
    int fd = memfd_create("tiles", MFD_CLOEXEC);
    unsigned char *base = mmap(NULL, BIG_BYTES + TILE_BYTES, PROT_NONE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    ck_assert_int_eq(ftruncate(fd, 2 * TILE_BYTES), 0);
    ck_assert(base != MAP_FAILED);
    for (uint64_t at = 0; at < BIG_BYTES; at += TILE_BYTES) {
        bool last = at + TILE_BYTES > BIG_BYTES;
        void *tile = mmap(base + at, TILE_BYTES, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED | MAP_POPULATE, fd, last ? TILE_BYTES : 0);
        ck_assert_ptr_eq(tile, base + at);
    }
    close(fd);
    return base;
}

static void fill_tile(unsigned char *tile, uint32_t factor)
{
    for (uint32_t i = 0; i < TILE_BYTES / 4; i++)
        ((uint32_t *)(void *)tile)[i] = i * factor;
}

static void expect_tile(const unsigned char *tile, uint64_t bytes, uint32_t factor)
{
    for (uint32_t i = 0; i < bytes / 4; i++) {
        if (((const uint32_t *)(const void *)tile)[i] != i * factor)
            ck_abort_msg("element %u of a tile is %u", i,
                         ((const uint32_t *)(const void *)tile)[i]);
    }
}

START_TEST(more_than_four_gigabytes_arrive_whole)
{
    static struct bench bench;
    unsigned char *source = tiled(), *result = tiled();
    /* A joined member saves the time for a third operand. */
    struct engine_operand in[2] = {{0}, mapped(source)}, out[2] = {{0}, mapped(result)};
    struct engine_work work = {.kind = HVI_KIND_ALLREDUCE,
                               .dtype = HVI_DTYPE_INT32,
                               .reduce_op = HVI_REDUCE_SUM,
                               .ranks = 2,
                               .prescale = 1,
                               .postscale = 1,
                               .count = BIG_BYTES / 4,
                               .bytes = BIG_BYTES,
                               .in = in,
                               .out = out,
                               .kinds = 1u << ENGINE_OPERAND_MAPPED};

    fill_tile(source, 3);
    fill_tile(source + 90 * TILE_BYTES, 5);
    open_bench(&bench, _i, 2);
    ck_assert_int_eq(run(&bench, &work), HVI_OK);
    expect_tile(result, TILE_BYTES, 3);
    expect_tile(result + 90 * TILE_BYTES, BIG_BYTES % TILE_BYTES, 5);
    bench.backend->close(bench.context);
    munmap(source, BIG_BYTES + TILE_BYTES);
    munmap(result, BIG_BYTES + TILE_BYTES);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("contract/collectives");
    TCase *tcase = tcase_create("backend");
    int settings = hvt_rows() * THREAD_COUNTS;
    int all = hvt_rows() * HVI_DTYPE_COUNT;

    tcase_set_timeout(tcase, 240);
    tcase_add_checked_fixture(tcase, open_arena, close_arena);
    tcase_add_loop_test(tcase, every_reduction_gives_the_reference_bits, 0, all);
    tcase_add_loop_test(tcase, every_exchange_puts_the_bytes_where_they_belong, 0, all);
    tcase_add_loop_test(tcase, large_ops_are_cut_into_pieces_without_a_seam, 0,
                        settings * MEMORIES);
    tcase_add_loop_test(tcase, the_largest_units_have_no_seams_either, 0, hvt_rows() * MEMORIES);
    tcase_add_loop_test(tcase, adasum_is_close_to_the_plain_tree_in_double, 0, all);
    tcase_add_loop_test(tcase, adasum_has_the_same_bits_for_any_thread_count_and_memory, 0,
                        hvt_rows());
    tcase_add_loop_test(tcase, adasum_of_what_has_no_length_is_the_sum, 0, hvt_rows());
    tcase_add_loop_test(tcase, memory_that_is_not_there_fails_the_op_and_names_the_rank, 0,
                        settings * WRONGS);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("big");
    tcase_set_timeout(tcase, 240);
    tcase_add_loop_test(tcase, more_than_four_gigabytes_arrive_whole, 0, hvt_rows());
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}
