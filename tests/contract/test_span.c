/* SPDX-License-Identifier: Apache-2.0
 * What every row of engine_backends that takes works over several nodes promises, over each row of the transports
 * ($HVT_TRANSPORT): results, the order of works, and what becomes of them when a node, a lane, a rank's memory or the
 * other end's words fail. */
#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "reduce/reduce.h"
#include "tests/contract/hvt_cluster.h"
#include "tests/unit/engine/hvt_reference.h"
#include "tests/unit/hvt_main.h"
#include "tests/unit/hvt_process.h"

#include <fcntl.h>
#include <linux/tcp.h>
#include <linux/userfaultfd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define ANSWER_NS (50ull * 1000 * 1000)
#define LAYOUTS   (int)(sizeof layouts / sizeof layouts[0])
/* Where a sanitizer would take minutes to find the same again. */
#define SOME_LAYOUTS (HVT_SANITIZED ? 4 : LAYOUTS)
#define LAYOUT_STEP  (HVT_SANITIZED ? 2 : 1)
/* The reductions themselves are what unit tests try with each type. */
#define DTYPE_STEP (HVT_SANITIZED ? 3 : 1)
#define KIND_COUNT (int)(sizeof kinds / sizeof kinds[0])

/* Members by node; capitals have joined. The lanes of the last two are sealed. */
static const struct {
    uint32_t nodes, lanes;
    bool tcp;
    const char *members;
} layouts[] = {
    {2, 0, true, "01"},        {2, 1, true, "0011"},    {2, 2, false, "0111"},
    {3, 3, false, "001222"},   {4, 1, false, "012301"}, {5, 0, true, "0123412"},
    {5, 8, false, "43210012"}, {2, 1, false, "0B01"},   {3, 2, false, "0C1A0"},
    {4, 1, false, "0B1D3C2"},  {3, 1, false, "0BC0"},   {6, 1, false, "0123455"},
    {2, 1, true, "0011"},      {3, 2, false, "0012A2"},
};

static const uint32_t kinds[] = {HVI_KIND_ALLREDUCE, HVI_KIND_REDUCESCATTER, HVI_KIND_BROADCAST,
                                 HVI_KIND_ALLGATHER, HVI_KIND_ALLTOALL};

static const struct engine_backend *row;

static bool can_span(const struct engine_backend *backend)
{
    const uint32_t node[2] = {0, 1}, places[2] = {1, 1}, home[2] = {0, 1}, place[2] = {0, 0};
    const struct engine_span span = {
        .nodes = 2, .node = node, .places = places, .members = 2, .home = home, .place = place};
    struct engine_work work = {.kind = HVI_KIND_BARRIER, .ranks = 1, .span = &span};
    static struct engine_batch batch;

    batch = (struct engine_batch){.works = {&work}, .count = 1};
    return backend->accepts(&batch);
}

static void find_row(void)
{
    for (int i = 0; engine_backends[i]; i++) {
        if (can_span(engine_backends[i]))
            row = engine_backends[i];
    }
}

static void open_layout(struct hvt_cluster *cluster, int layout)
{
    hvt_cluster_open(cluster, row, layouts[layout].nodes, layouts[layout].lanes,
                     layouts[layout].tcp);
    cluster->sealed = layout >= LAYOUTS - 2 && strcmp(hvt_transport(), "tcp") == 0;
}

/* A member that is there. */
static int32_t some_member(const struct hvt_op *op, uint64_t *random)
{
    uint32_t i = (uint32_t)(hvt_random(random) % op->members);

    while (op->member[i].joined)
        i = (i + 1) % op->members;
    return (int32_t)i;
}

static void init_op(struct hvt_op *op, struct hvt_cluster *cluster, const char *members,
                    uint32_t kind, uint64_t *random)
{
    hvt_op_init(op, cluster, members, kind);
    if (kind == HVI_KIND_BROADCAST)
        op->model.root = some_member(op, random);
}

/* ---- results ---- */

static const uint64_t counts[] = {0, 1, 2, 5, 1000, 16384, 16385, 100003, 300007};
/* A sanitizer makes the reference slow; the last ones have several chunks more, and nothing else. */
#define COUNTS (int)(sizeof counts / sizeof counts[0] - (HVT_SANITIZED ? 1 : 0))

START_TEST(every_kind_gives_what_it_should_at_every_size_and_layout)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    const int layout = _i * LAYOUT_STEP;
    uint64_t random = (uint64_t)layout, sequence = 0;

    open_layout(&cluster, layout);
    for (int k = 0; k < KIND_COUNT; k++) {
        for (int c = 0; c < COUNTS; c++) {
            init_op(&op, &cluster, layouts[layout].members, kinds[k], &random);
            op.in_place = c % 2 == 1;
            hvt_op_make(&op, counts[c], ++sequence, &random);
            hvt_op_start_all(&op);
            hvt_op_check(&op);
            hvt_op_free(&op);
        }
    }
    hvt_cluster_close(&cluster);
}
END_TEST

/* Blocks of more chunks than a step is ahead of the next (net_waves.c), of several sizes. */
START_TEST(a_ring_in_waves_gives_what_it_should)
{
    static const struct {
        uint32_t nodes, kind;
        const char *members;
        uint64_t count;
    } cases[] = {{2, HVI_KIND_ALLREDUCE, "01", 1200007},
                 {2, HVI_KIND_ALLREDUCE, "0011", 1500001},
                 {3, HVI_KIND_ALLREDUCE, "012", 1800001},
                 {3, HVI_KIND_ALLGATHER, "0122", 700001},
                 {3, HVI_KIND_REDUCESCATTER, "0112", 1900003}};
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = (uint64_t)_i;

    hvt_cluster_open(&cluster, row, cases[_i].nodes, 1, true);
    for (uint64_t sequence = 1; sequence <= 2; sequence++) {
        hvt_op_init(&op, &cluster, cases[_i].members, cases[_i].kind);
        op.in_place = sequence == 2;
        hvt_op_make(&op, cases[_i].count, sequence, &random);
        hvt_op_start_all(&op);
        hvt_op_check(&op);
        hvt_op_free(&op);
    }
    hvt_cluster_close(&cluster);
}
END_TEST

static bool exists(uint32_t dtype, uint32_t reduce_op, double scale)
{
    return hvi_dtype_bytes(dtype) > 0 && reduce_op != HVI_REDUCE_ADASUM &&
           hvi_reduction_check(dtype, reduce_op, scale, scale, NULL, 0) == HVI_OK;
}

/* The reference looks for a float8 among all of them. */
static uint64_t reduced_count(uint32_t dtype, uint32_t reduce_op, bool ring)
{
    bool slow = dtype == HVI_DTYPE_FLOAT8_E4M3 || HVT_SANITIZED;

    return ring && !(slow && reduce_op != HVI_REDUCE_SUM) ? 66001 / hvi_dtype_bytes(dtype) : 301;
}

/* Small and in a ring, scaled and not. */
static void try_reductions(struct hvt_cluster *cluster, const char *members, uint32_t dtype,
                           uint32_t kind, uint64_t *sequence)
{
    static struct hvt_op op;
    uint64_t random = dtype;

    for (uint32_t reduce_op = 0; reduce_op < HVI_REDUCE_COUNT; reduce_op++) {
        for (int way = 0; way < 4; way++) {
            double scale = way % 2 ? 0.75 : 1;
            if (!exists(dtype, reduce_op, scale))
                continue;
            hvt_op_init(&op, cluster, members, kind);
            op.model.dtype = dtype;
            op.model.reduce_op = reduce_op;
            op.model.prescale = op.model.postscale = scale;
            op.in_place = way == 3;
            hvt_op_make(&op, reduced_count(dtype, reduce_op, way >= 2), ++*sequence, &random);
            hvt_op_start_all(&op);
            hvt_op_check(&op);
            hvt_op_free(&op);
        }
    }
}

START_TEST(every_dtype_and_reduce_op_gives_the_reference_bits)
{
    struct hvt_cluster cluster;
    uint32_t dtype = (uint32_t)(_i * DTYPE_STEP);
    uint64_t sequence = 0;

    hvt_cluster_open(&cluster, row, 3, 1, false);
    try_reductions(&cluster, "00122", dtype, HVI_KIND_ALLREDUCE, &sequence);
    try_reductions(&cluster, "0122B", dtype, HVI_KIND_REDUCESCATTER, &sequence);
    hvt_cluster_close(&cluster);
}
END_TEST

START_TEST(an_adasum_has_the_bits_of_one_node)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 17, sequence = 0;

    open_layout(&cluster, _i);
    for (int way = 0; way < 8; way++) {
        hvt_op_init(&op, &cluster, layouts[_i].members,
                    way % 2 ? HVI_KIND_REDUCESCATTER : HVI_KIND_ALLREDUCE);
        op.model.dtype = way % 3 ? HVI_DTYPE_FLOAT32 : HVI_DTYPE_BFLOAT16;
        op.model.reduce_op = HVI_REDUCE_ADASUM;
        op.model.prescale = way == 5 ? 0.5 : 1;
        op.in_place = way == 2;
        hvt_op_make(&op, way < 4 ? 7 : 50001, ++sequence, &random);
        for (uint32_t i = 0; way >= 6 && i < op.members; i++)
            if (!op.member[i].joined)
                hvt_op_make_remote(&op, i, true, i % 2);
        hvt_op_start_all(&op);
        hvt_op_check(&op);
        hvt_op_free(&op);
    }
    hvt_cluster_close(&cluster);
}
END_TEST

/* Orthogonal vectors, of which an adasum is the sum. Those of hvt_op_make have a NaN somewhere, and so has all of
 * the result. */
static void make_orthogonal(struct hvt_op *op)
{
    for (uint64_t i = 0; i < op->model.bytes / sizeof(float); i++) {
        float value = (float)(1 + i % 5);
        for (uint32_t m = 0; m < 2; m++) {
            ((float *)(void *)op->member[m].in)[i] = i % 2 == m ? value : 0;
            ((float *)(void *)op->member[m].expected)[i] = value;
        }
    }
}

/* Node 0 has received everything while most of its own is still to be sent. */
START_TEST(an_adasum_in_place_writes_nothing_that_is_still_being_sent)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    const int few = 4096;
    uint64_t random = 19;

    hvt_cluster_open(&cluster, row, 2, 1, false);
    for (uint64_t sequence = 1; sequence <= 2; sequence++) {
        hvt_op_init(&op, &cluster, "01", HVI_KIND_ALLREDUCE);
        op.model.reduce_op = HVI_REDUCE_ADASUM;
        op.in_place = true;
        hvt_op_make(&op, sequence == 1 ? 7 : 1000000, sequence, &random);
        make_orthogonal(&op);
        hvt_op_start_all(&op);
        hvt_op_check(&op);
        hvt_op_free(&op);
        /* The first op has asked for the lane. */
        int fd = cluster.fd[0][1][0];
        ck_assert_int_eq(setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &few, sizeof few), 0);
    }
    hvt_cluster_close(&cluster);
}
END_TEST

START_TEST(a_send_goes_from_one_to_the_other)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 3, sequence = 0;

    hvt_cluster_open(&cluster, row, 3, 2, false);
    for (int c = 0; c < COUNTS; c++) {
        hvt_op_init(&op, &cluster, c % 2 ? "02" : "21", HVI_KIND_SEND);
        op.model.root = c % 2;
        hvt_op_make(&op, counts[c], ++sequence, &random);
        hvt_op_start_all(&op);
        hvt_op_check(&op);
        hvt_op_free(&op);
    }
    hvt_cluster_close(&cluster);
}
END_TEST

START_TEST(nothing_moves_in_barriers_joins_and_sets)
{
    static const uint32_t still[] = {HVI_KIND_BARRIER, HVI_KIND_JOIN, HVI_KIND_SET_ADD,
                                     HVI_KIND_SET_REMOVE};
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 1;

    hvt_cluster_open(&cluster, row, 2, 1, false);
    for (size_t i = 0; i < sizeof still / sizeof still[0]; i++) {
        hvt_op_init(&op, &cluster, "01", HVI_KIND_BROADCAST);
        op.model.root = 0;
        hvt_op_make(&op, 0, i + 1, &random);
        op.part[0].work.kind = still[i];
        hvt_op_start(&op, 0);
        ck_assert(op.part[0].posted); /* without the other node */
        ck_assert_int_eq(op.part[0].batch.status, HVI_OK);
        hvt_op_free(&op);
    }
    hvt_cluster_close(&cluster);
}
END_TEST

static bool are_posted_within(const struct hvt_op *op, uint64_t ns)
{
    uint64_t deadline_ns = hvi_deadline_after((int64_t)ns);

    while (!(op->part[0].posted && op->part[1].posted) && !hvi_deadline_passed(deadline_ns))
        usleep(100);
    return op->part[0].posted && op->part[1].posted;
}

/* Makes and starts one which only help() moves; the net thread may still have to fall asleep. */
static uint64_t start_without_help(struct hvt_op *op, struct hvt_cluster *cluster, uint64_t *random)
{
    for (uint64_t sequence = 1; sequence < 100; sequence++) {
        hvt_op_init(op, cluster, "0011", HVI_KIND_ALLREDUCE);
        hvt_op_make(op, 200000, sequence, random);
        hvt_op_start_all(op);
        if (!are_posted_within(op, 5 * HVI_NS_MS))
            return sequence;
        hvt_op_check(op);
        hvt_op_free(op);
    }
    ck_abort_msg("works are never left to the caller");
}

START_TEST(a_work_that_is_left_to_the_caller_goes_on_without_it)
{
    static struct hvt_op op, other;
    struct hvt_cluster cluster;
    uint64_t random = 7;

    hvt_cluster_open(&cluster, row, 2, 1, true);
    uint64_t sequence = start_without_help(&op, &cluster, &random);
    hvt_op_init(&other, &cluster, "01", HVI_KIND_BROADCAST);
    other.model.root = 0;
    hvt_op_make(&other, 3, sequence + 1, &random);
    if (_i == 0)
        hvt_op_start_all(&other);
    for (uint32_t n = 0; n < 2 && _i > 0; n++) {
        if (n == 1 || _i == 1) /* the other one is closed */
            engine_wire_backend_busy(cluster.node[n].context);
    }
    if (_i == 2)
        hvt_cluster_close(&cluster);
    ck_assert(are_posted_within(&op, 10 * HVI_NS_SEC));
    ck_assert_int_eq(op.part[0].batch.status, HVI_OK);
    ck_assert_int_eq(op.part[1].batch.status, HVI_OK);
    hvt_op_expect_outputs(&op);
    if (_i == 0)
        hvt_op_check(&other);
    if (_i != 2)
        hvt_cluster_close(&cluster);
    hvt_op_free(&op);
    hvt_op_free(&other);
}
END_TEST

/* Every member's memory is remote somewhere. */
START_TEST(remote_process_memory_gives_the_same)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 5, sequence = 0;

    open_layout(&cluster, _i);
    for (int k = 0; k < KIND_COUNT; k++) {
        for (int way = 0; way < 6; way++) {
            init_op(&op, &cluster, layouts[_i].members, kinds[k], &random);
            op.model.dtype = way % 3 == 2 ? HVI_DTYPE_FLOAT16 : HVI_DTYPE_FLOAT32;
            op.model.reduce_op = way == 1 ? HVI_REDUCE_AVERAGE : HVI_REDUCE_SUM;
            op.model.prescale = way == 4 ? 0.5 : 1;
            op.in_place = way == 5;
            hvt_op_make(&op, way < 3 ? 999 : 60001, ++sequence, &random);
            for (uint32_t i = 0; i < op.members; i++)
                if (!op.member[i].joined && (i + (uint32_t)way) % 3 != 0)
                    hvt_op_make_remote(&op, i, way % 2 == 0 || way == 5, way != 2);
            hvt_op_start_all(&op);
            hvt_op_check(&op);
            hvt_op_free(&op);
        }
    }
    hvt_cluster_close(&cluster);
}
END_TEST

/* ---- several works ---- */

#define MANY 60

/* Each node starts them in their order, but all of one node before the next node's, or in turn. */
START_TEST(many_works_of_several_sets_are_under_way)
{
    static const char *const sets[] = {"0123", "01", "23", "0213", "30", "1A2", "0312"};
    static struct hvt_op ops[MANY];
    struct hvt_cluster cluster;
    uint64_t random = 11 + (uint64_t)_i;

    hvt_cluster_open(&cluster, row, 4, 1 + (uint32_t)_i, _i % 2);
    for (int i = 0; i < MANY; i++) {
        init_op(&ops[i], &cluster, sets[hvt_random(&random) % 7],
                kinds[hvt_random(&random) % (uint64_t)KIND_COUNT], &random);
        hvt_op_make(&ops[i], hvt_random(&random) % (i % 3 ? 2000 : 150000), (uint64_t)i + 1,
                    &random);
    }
    for (int turn = 0; turn < (_i % 2 ? MANY : 1); turn++) {
        for (uint32_t node = 4; node-- > 0;) {
            for (int i = turn; i < (_i % 2 ? turn + 1 : MANY); i++) {
                for (uint32_t n = 0; n < ops[i].nodes; n++)
                    if (ops[i].node[n] == node)
                        hvt_op_start(&ops[i], n);
            }
        }
    }
    for (int i = 0; i < MANY; i++) {
        hvt_op_check(&ops[i]);
        hvt_op_free(&ops[i]);
    }
    hvt_cluster_close(&cluster);
}
END_TEST

static void expect_another_op(struct hvt_cluster *cluster, const char *members, uint64_t sequence)
{
    static struct hvt_op op;
    uint64_t random = sequence;

    hvt_op_init(&op, cluster, members, HVI_KIND_ALLREDUCE);
    hvt_op_make(&op, 30000, sequence, &random);
    hvt_op_start_all(&op);
    hvt_op_check(&op);
    hvt_op_free(&op);
}

/* ---- small works go together ---- */

static uint32_t segments_sent(const struct hvt_cluster *cluster)
{
    struct tcp_info info = {0};
    socklen_t size = sizeof info;

    ck_assert_int_eq(getsockopt(cluster->fd[0][1][0], IPPROTO_TCP, TCP_INFO, &info, &size), 0);
    return info.tcpi_data_segs_out;
}

static void start_together(struct hvt_cluster *cluster, struct hvt_op *ops, uint32_t count,
                           uint32_t n)
{
    engine_wire_backend_gather(cluster->node[n].context);
    for (uint32_t i = 0; i < count; i++)
        hvt_op_start(&ops[i], n);
    engine_wire_backend_go(cluster->node[n].context);
}

START_TEST(small_works_that_start_together_go_together)
{
    static struct hvt_op ops[MANY];
    struct hvt_cluster cluster;
    uint64_t random = 19;

    hvt_cluster_open(&cluster, row, 2, 1, true);
    expect_another_op(&cluster, "0011", 1);
    for (uint32_t i = 0; i < MANY; i++) {
        init_op(&ops[i], &cluster, "0011", HVI_KIND_ALLREDUCE, &random);
        hvt_op_make(&ops[i], 1 + i, 2 + i, &random);
        for (uint32_t n = 0; n < 2; n++)
            ops[i].part[n].span.tentative = _i;
    }
    uint32_t before = segments_sent(&cluster);
    for (uint32_t n = 0; n < 2; n++)
        start_together(&cluster, ops, MANY, n);
    for (uint32_t i = 0; i < MANY; i++) {
        hvt_op_check(&ops[i]);
        hvt_op_free(&ops[i]);
    }
    ck_assert_uint_le(segments_sent(&cluster) - before, 2 + MANY / 8);
    hvt_cluster_close(&cluster);
}
END_TEST

/* The other node takes nothing before it has started them, too: the connection and what is packed are full. */
START_TEST(small_works_that_find_no_room_wait_for_it)
{
    static struct hvt_op ops[3 * MANY];
    struct hvt_cluster cluster;
    uint64_t random = 23;

    hvt_cluster_open(&cluster, row, 2, 1, _i);
    for (uint32_t i = 0; i < 3 * MANY; i++) {
        init_op(&ops[i], &cluster, "01", HVI_KIND_ALLREDUCE, &random);
        hvt_op_make(&ops[i], i % 7 == 0 ? 40000 : 2000, 1 + i, &random);
    }
    start_together(&cluster, ops, 3 * MANY, 0);
    usleep(3000);
    start_together(&cluster, ops, 3 * MANY, 1);
    for (uint32_t i = 0; i < 3 * MANY; i++) {
        hvt_op_check(&ops[i]);
        hvt_op_free(&ops[i]);
    }
    hvt_cluster_close(&cluster);
}
END_TEST

START_TEST(the_same_layout_gives_the_same_bits_every_time)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    unsigned char *first = NULL;

    for (int run = 0; run < 6; run++) {
        uint64_t random = 23;
        hvt_cluster_open(&cluster, row, 3, 2, run % 2);
        hvt_op_init(&op, &cluster, "0120", HVI_KIND_ALLREDUCE);
        op.model.dtype = HVI_DTYPE_FLOAT16;
        hvt_op_make(&op, 200001, 1, &random);
        for (uint32_t n = 0; n < op.nodes; n++)
            hvt_op_start(&op, (n + (uint32_t)run) % op.nodes);
        hvt_op_wait_all(&op);
        for (uint32_t i = 1; i < op.members; i++)
            ck_assert(memcmp(op.member[0].out, op.member[i].out, op.model.bytes) == 0);
        if (!first) {
            first = malloc(op.model.bytes);
            memcpy(first, op.member[0].out, op.model.bytes);
        }
        ck_assert(memcmp(first, op.member[0].out, op.model.bytes) == 0);
        hvt_op_free(&op);
        hvt_cluster_close(&cluster);
    }
    free(first);
}
END_TEST

static void *do_nothing(void *user)
{
    return user;
}

/* ThreadSanitizer starts one of its own with the first. */
static void start_the_first_thread(void)
{
    pthread_t thread;

    ck_assert_int_eq(pthread_create(&thread, NULL, do_nothing, NULL), 0);
    pthread_join(thread, NULL);
}

/* The kernel shows a thread a moment longer than pthread_join waits. */
static bool is_back_to(int threads)
{
    uint64_t deadline_ns = hvi_deadline_after(10 * HVI_NS_SEC);

    while (hvt_count_threads() != threads && !hvi_deadline_passed(deadline_ns))
        usleep(1000);
    return hvt_count_threads() == threads;
}

START_TEST(a_job_on_one_node_pays_no_thread)
{
    struct hvt_cluster cluster;

    start_the_first_thread();
    usleep(100 * 1000);
    int threads = hvt_count_threads();

    hvt_cluster_open(&cluster, row, 2, 1, false);
    ck_assert_int_eq(hvt_count_threads(), threads);
    hvt_cluster_connect(&cluster, 0, 1, 0);
    ck_assert_int_gt(hvt_count_threads(), threads);
    hvt_cluster_close(&cluster);
    ck_assert(is_back_to(threads));
}
END_TEST

START_TEST(closing_finishes_what_was_started)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 29;

    hvt_cluster_open(&cluster, row, 2, 1, true);
    hvt_op_init(&op, &cluster, "01", HVI_KIND_ALLREDUCE);
    hvt_op_make(&op, 1000000, 1, &random);
    hvt_op_start_all(&op);
    hvt_cluster_close(&cluster);
    ck_assert(op.part[0].posted && op.part[1].posted);
    ck_assert_int_eq(op.part[0].batch.status, HVI_OK);
    ck_assert_int_eq(op.part[1].batch.status, HVI_OK);
    hvt_op_expect_outputs(&op);
    hvt_op_free(&op);
}
END_TEST

/* ---- nodes and lanes that are lost ----
 *
 * What fails is over within ENGINE_WIRE_FAILED_NS, so a second is long enough for it. A lane whose connection is cut has
 * failed at once over TCP, and over UCX after a second. */

static void expect_text(const struct hvt_op *op, uint32_t index, const char *text)
{
    ck_assert_msg(strstr(op->part[index].batch.text, text) != NULL, "node %u says: %s",
                  op->node[index], op->part[index].batch.text);
}

static void expect_status(const struct hvt_op *op, uint32_t index, int status)
{
    ck_assert_msg(op->part[index].batch.status == status, "node %u: %s (%s)", op->node[index],
                  hvi_status_text(op->part[index].batch.status), op->part[index].batch.text);
}

START_TEST(a_lane_that_is_cut_fails_the_work_on_every_node)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 31;

    hvt_cluster_open(&cluster, row, 3, 1, true);
    hvt_op_init(&op, &cluster, "0012", HVI_KIND_ALLREDUCE);
    hvt_op_make(&op, 2000000, 1, &random);
    const uint64_t begun_ns = hvi_clock_ns();
    hvt_op_start(&op, 0);
    hvt_op_start(&op, 1);
    shutdown(cluster.fd[0][1][0], SHUT_RDWR); /* node 2 has not sent, so nothing is over */
    hvt_op_wait(&op, 0);
    hvt_op_wait(&op, 1);
    expect_status(&op, 0, HVI_ERR_NODE_LOST);
    expect_status(&op, 1, HVI_ERR_NODE_LOST);
    expect_text(&op, 0, "node 1");
    expect_text(&op, 1, "node 0");
    hvt_op_start(&op, 2);
    hvt_op_wait(&op, 2);
    expect_status(&op, 2, HVI_ERR_NODE_LOST);
    ck_assert_uint_lt(hvi_clock_ns() - begun_ns, hvt_patience(2 * HVI_NS_SEC));
    expect_another_op(&cluster, "02", 2); /* they have kept step */
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

/* At any moment of a large op. */
START_TEST(a_lane_that_is_cut_in_the_middle_hangs_no_node)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 37;

    for (int i = 0; i < 12; i++) {
        hvt_cluster_open(&cluster, row, 3, 2, i % 2);
        init_op(&op, &cluster, "0121", kinds[i % KIND_COUNT], &random);
        hvt_op_make(&op, 400000, 1, &random);
        hvt_op_start_all(&op);
        usleep((useconds_t)(hvt_random(&random) % 3000));
        for (uint32_t a = 0; a < 3; a++)
            if (cluster.fd[a][(a + 1) % 3][i % 2] >= 0)
                shutdown(cluster.fd[a][(a + 1) % 3][i % 2], SHUT_RDWR);
        hvt_op_wait_all(&op);
        for (uint32_t n = 0; n < op.nodes; n++)
            ck_assert(op.part[n].batch.status == HVI_OK ||
                      op.part[n].batch.status == HVI_ERR_NODE_LOST);
        hvt_op_free(&op);
        hvt_cluster_close(&cluster);
    }
}
END_TEST

START_TEST(a_lost_node_fails_its_works_now_and_later)
{
    static struct hvt_op op, later;
    struct hvt_cluster cluster;
    uint64_t random = 41;

    hvt_cluster_open(&cluster, row, 3, 1, false);
    hvt_op_init(&op, &cluster, "012", HVI_KIND_ALLGATHER);
    hvt_op_make(&op, 100000, 1, &random);
    hvt_op_start(&op, 0);
    hvt_op_start(&op, 1);
    for (uint32_t n = 0; n < 2; n++)
        engine_wire_backend_lost(cluster.node[n].context, 2, "node c is gone, says the mesh");
    for (uint32_t n = 0; n < 2; n++) {
        hvt_op_wait(&op, n);
        expect_status(&op, n, HVI_ERR_NODE_LOST);
        expect_text(&op, n, "node c is gone, says the mesh");
    }
    hvt_op_init(&later, &cluster, "20", HVI_KIND_ALLREDUCE);
    hvt_op_make(&later, 10, 2, &random);
    hvt_op_start(&later, 0);
    hvt_op_wait(&later, 0);
    expect_status(&later, 0, HVI_ERR_NODE_LOST);
    expect_text(&later, 0, "node c is gone, says the mesh");
    expect_another_op(&cluster, "011", 3);
    hvt_op_free(&op);
    hvt_op_free(&later);
    hvt_cluster_close(&cluster);
}
END_TEST

/* Nodes 1 and 4 alone send to node 0, or are sent to by it. */
START_TEST(a_lost_node_fails_works_in_which_it_is_no_neighbour)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 42;

    hvt_cluster_open(&cluster, row, 5, 1, false);
    engine_wire_backend_lost(cluster.node[0].context, 2, "node c is gone, says the mesh");
    hvt_op_init(&op, &cluster, "01234", HVI_KIND_ALLGATHER);
    hvt_op_make(&op, 100000, 1, &random);
    hvt_op_start(&op, 0);
    hvt_op_wait(&op, 0);
    expect_status(&op, 0, HVI_ERR_NODE_LOST);
    expect_text(&op, 0, "node c is gone, says the mesh");
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

START_TEST(a_node_that_does_not_come_is_named_when_the_time_is_over)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 43;

    hvt_cluster_open(&cluster, row, 2, 1, true);
    hvt_op_init(&op, &cluster, "01", HVI_KIND_ALLREDUCE);
    hvt_op_make(&op, _i ? 2000000 : 10, 1, &random);
    op.part[0].batch.answer_ns = ANSWER_NS;
    uint64_t begun_ns = hvi_clock_ns();
    hvt_op_start(&op, 0);
    hvt_op_wait(&op, 0);
    ck_assert_uint_ge(hvi_clock_ns() - begun_ns, 2 * ANSWER_NS);
    ck_assert_uint_lt(hvi_clock_ns() - begun_ns, hvt_patience(2 * ANSWER_NS + HVI_NS_SEC));
    expect_status(&op, 0, HVI_ERR_STALLED);
    ck_assert_int_eq(op.part[0].batch.fault.rank, -1);
    expect_text(&op, 0, "node 1 (b) has sent nothing");
    hvt_op_start(&op, 1);
    hvt_op_wait(&op, 1);
    /* Of the small one, all that node 1 needs was sent before. */
    ck_assert_int_eq(op.part[1].batch.status == HVI_OK, _i == 0);
    if (_i == 0)
        expect_another_op(&cluster, "01", 2);
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

START_TEST(a_node_that_cannot_be_connected_to_is_named)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 47;

    hvt_cluster_open(&cluster, row, 2, 1, true);
    cluster.alone = true;
    hvt_op_init(&op, &cluster, "01", HVI_KIND_BROADCAST);
    op.model.root = 1;
    hvt_op_make(&op, 10, 1, &random);
    op.part[0].batch.answer_ns = ANSWER_NS;
    hvt_op_start(&op, 0);
    hvt_op_wait(&op, 0);
    expect_status(&op, 0, HVI_ERR_STALLED);
    expect_text(&op, 0, "node 1 could not be connected to");
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

/* ---- cancelling ---- */

#define HEAD_BYTES 48u

/* So many bytes of node 0 have left it: over TCP they have come to node 1's end. */
static void wait_until_sent(const struct hvt_cluster *cluster, uint64_t bytes)
{
    const uint64_t deadline_ns = hvi_deadline_after((int64_t)hvt_patience(2 * HVI_NS_SEC));
    struct engine_lane_row lane = {.bytes_sent = 0};

    while (!engine_wire_backend_row(cluster->node[0].context, 0, &lane) ||
           lane.bytes_sent < bytes) {
        ck_assert_msg(!hvi_deadline_passed(deadline_ns), "%llu bytes have left",
                      (unsigned long long)lane.bytes_sent);
        usleep(100);
    }
}

START_TEST(a_work_that_is_cancelled_ends_at_once_and_the_lanes_keep_step)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 53;

    hvt_cluster_open(&cluster, row, 2, 1, true);
    hvt_op_init(&op, &cluster, "01", HVI_KIND_ALLREDUCE);
    hvt_op_make(&op, _i ? 4000000 : 1000, 1, &random);
    hvt_op_start(&op, 0);
    wait_until_sent(&cluster, HEAD_BYTES + (_i ? 0 : op.model.bytes));
    uint64_t begun_ns = hvi_clock_ns();
    row->cancel(cluster.node[0].context, &op.part[0].batch);
    row->cancel(cluster.node[0].context, &op.part[0].batch);
    hvt_op_wait(&op, 0);
    ck_assert_uint_lt(hvi_clock_ns() - begun_ns, hvt_patience(HVI_NS_SEC));
    expect_status(&op, 0, HVI_ERR_CANCELLED);
    hvt_op_start(&op, 1);
    hvt_op_wait(&op, 1);
    expect_status(&op, 1, _i ? HVI_ERR_NODE_LOST : HVI_OK); /* all of it was sent before */
    if (_i == 0) /* the large one could not be sent to the end of a message */
        expect_another_op(&cluster, "01", 2);
    row->cancel(cluster.node[0].context, &op.part[0].batch);
    expect_status(&op, 0, HVI_ERR_CANCELLED);
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

static uint64_t sent_to(const struct hvt_cluster *cluster, uint32_t node)
{
    struct engine_lane_row lane = {.bytes_sent = 0};
    bool found = false;

    for (uint32_t i = 0; !found && engine_wire_backend_row(cluster->node[0].context, i, &lane); i++)
        found = lane.node == node;
    return found ? lane.bytes_sent : 0;
}

/* More than a connection's buffers hold. */
#define STUCK_BYTES (12u << 20)

/* The messages to both are stuck. */
START_TEST(a_large_work_that_is_cancelled_gives_up_every_node_that_has_not_come)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 57;

    hvt_cluster_open(&cluster, row, 3, 1, true);
    hvt_op_init(&op, &cluster, "012", HVI_KIND_ALLTOALL);
    do
        hvt_op_make(&op, 6000000, 1, &random);
    while ((op.sizes[1] < STUCK_BYTES || op.sizes[2] < STUCK_BYTES) && (hvt_op_free(&op), true));
    hvt_op_start(&op, 0);
    while (sent_to(&cluster, 1) < HEAD_BYTES || sent_to(&cluster, 2) < HEAD_BYTES)
        usleep(100);
    row->cancel(cluster.node[0].context, &op.part[0].batch);
    hvt_op_wait(&op, 0);
    expect_status(&op, 0, HVI_ERR_CANCELLED);
    hvt_op_start(&op, 1);
    hvt_op_start(&op, 2);
    for (uint32_t n = 1; n < 3; n++) {
        hvt_op_wait(&op, n);
        expect_status(&op, n, HVI_ERR_NODE_LOST);
        expect_text(&op, n, "node 0");
    }
    hvt_op_free(&op);
    expect_another_op(&cluster, "12", 2);
    hvt_cluster_close(&cluster);
}
END_TEST

/* ---- tentative works ---- */

#define LACKING_BYTES (8ull << 20)

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

static void make_tentative(struct hvt_op *op)
{
    for (uint32_t n = 0; n < op->nodes; n++)
        op->part[n].span.tentative = true;
}

static bool waits(struct hvt_cluster *cluster, struct hvt_op *op, uint32_t n)
{
    return engine_wire_backend_is_tentative(cluster->node[op->node[n]].context, &op->part[n].batch);
}

START_TEST(a_tentative_work_gives_the_same)
{
    static const uint64_t some[] = {1, 1000, 16385, 300007};
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 91, sequence = 0;

    open_layout(&cluster, _i);
    for (int k = 0; k < KIND_COUNT; k++) {
        init_op(&op, &cluster, layouts[_i].members, kinds[k], &random);
        op.in_place = k % 2 == 0;
        hvt_op_make(&op, some[(k + _i) % 4], ++sequence, &random);
        make_tentative(&op);
        hvt_op_start_all(&op);
        hvt_op_check(&op);
        hvt_op_free(&op);
    }
    hvt_cluster_close(&cluster);
}
END_TEST

/* Doublings, trees and meetings of three steps and more, that come out even and not; and rings of as many. */
static const struct {
    uint32_t nodes;
    const char *members;
} wide[] = {{8, "01234567"}, {9, "0123B456787"}, {17, "0123456789:;<=>?@3"}};

START_TEST(works_of_many_nodes_give_what_they_should)
{
    static const uint64_t some[] = {1000, 1, 20011};
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 131 + (uint64_t)_i, sequence = 0;

    hvt_cluster_open(&cluster, row, wide[_i].nodes, 1, false);
    for (int k = 0; k < KIND_COUNT; k++) {
        for (int way = 0; way < (HVT_SANITIZED ? 2 : 6); way++) {
            init_op(&op, &cluster, wide[_i].members, kinds[k], &random);
            op.in_place = way % 2 == 1;
            hvt_op_make(&op, some[way / 2], ++sequence, &random);
            if (way % 2 == 0)
                make_tentative(&op);
            hvt_op_start_all(&op);
            hvt_op_check(&op);
            hvt_op_free(&op);
        }
    }
    hvt_cluster_close(&cluster);
}
END_TEST

/* What works leave behind that some nodes have started, and all have withdrawn. */
static void leave_works(struct hvt_cluster *cluster, const char *members, uint64_t first,
                        uint64_t *random)
{
    static struct hvt_op op[3];
    static const uint32_t those[] = {HVI_KIND_ALLREDUCE, HVI_KIND_BROADCAST, HVI_KIND_ALLREDUCE};
    static const uint64_t some[] = {1000, 100003, 300007};
    uint32_t late = (uint32_t)(hvt_random(random) % 8);

    for (uint32_t i = 0; i < 3; i++) {
        init_op(&op[i], cluster, members, those[i], random);
        op[i].in_place = i != 1;
        hvt_op_make(&op[i], some[i], first + i, random);
        make_tentative(&op[i]);
        for (uint32_t n = 0; n < op[i].nodes; n++) {
            if (op[i].nodes > 1 && n != late % op[i].nodes && n >= i * op[i].nodes / 3)
                hvt_op_start(&op[i], n);
        }
    }
    usleep(3000);
    for (uint32_t n = 0; n < cluster->nodes; n++)
        engine_wire_backend_withdraw(cluster->node[n].context, first, first + 3);
    for (uint32_t i = 0; i < 3; i++) {
        for (uint32_t n = 0; n < op[i].nodes; n++) {
            if (!op[i].part[n].started)
                continue;
            hvt_op_wait(&op[i], n);
            ck_assert_int_eq(op[i].part[n].batch.status, ENGINE_BATCH_WITHDRAWN);
            ck_assert(!waits(cluster, &op[i], n));
        }
        for (uint32_t m = 0; m < op[i].members; m++) {
            if (i == 1 && !op[i].member[m].joined)
                ck_assert_int_eq(op[i].member[m].out[0], 0x5a);
        }
        hvt_op_free(&op[i]);
    }
}

START_TEST(withdrawn_works_have_done_nothing_and_the_lanes_keep_step)
{
    struct hvt_cluster cluster;
    uint64_t random = 97 + (uint64_t)_i;

    open_layout(&cluster, _i);
    for (uint64_t turn = 0; turn < 4; turn++) {
        leave_works(&cluster, layouts[_i].members, 10 * turn + 1, &random);
        if (turn != 1) /* else what was left piles up */
            expect_another_op(&cluster, layouts[_i].members, 10 * turn + 5);
    }
    hvt_cluster_close(&cluster);
}
END_TEST

/* A node that comes late has no part in what others had withdrawn before it did. */
START_TEST(a_later_work_waits_until_the_earlier_one_is_withdrawn_here_too)
{
    static struct hvt_op op, later;
    struct hvt_cluster cluster;
    uint64_t random = 101;

    hvt_cluster_open(&cluster, row, 3, 1, true);
    hvt_op_init(&op, &cluster, "012", HVI_KIND_ALLREDUCE);
    hvt_op_make(&op, 1000, 1, &random);
    make_tentative(&op);
    hvt_op_start(&op, 0);
    hvt_op_start(&op, 1);
    usleep(2000);
    ck_assert(waits(&cluster, &op, 0) && waits(&cluster, &op, 1));
    engine_wire_backend_withdraw(cluster.node[0].context, 1, 2);
    hvt_op_wait(&op, 0);
    hvt_op_init(&later, &cluster, "012", HVI_KIND_ALLREDUCE);
    hvt_op_make(&later, 1000, 2, &random);
    hvt_op_start(&later, 0);
    hvt_op_start(&later, 2);
    usleep(2000);
    ck_assert(!op.part[1].posted && !later.part[2].posted);
    engine_wire_backend_withdraw(cluster.node[1].context, 1, 2);
    hvt_op_wait(&op, 1);
    hvt_op_start(&later, 1);
    hvt_op_check(&later);
    hvt_op_free(&op);
    hvt_op_free(&later);
    hvt_cluster_close(&cluster);
}
END_TEST

START_TEST(a_tentative_barrier_waits_for_all_nodes)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 103;

    hvt_cluster_open(&cluster, row, 6, 1, false);
    hvt_op_init(&op, &cluster, "012345", HVI_KIND_BROADCAST);
    op.model.root = 0;
    hvt_op_make(&op, 0, 1, &random);
    make_tentative(&op);
    for (uint32_t n = 0; n < 6; n++)
        op.part[n].work.kind = HVI_KIND_BARRIER;
    for (uint32_t n = 0; n < 6; n++) {
        if (n != 3)
            hvt_op_start(&op, n);
    }
    usleep(3000);
    for (uint32_t n = 0; n < 6; n++)
        ck_assert(!op.part[n].posted);
    hvt_op_start(&op, 3);
    hvt_op_wait_all(&op);
    for (uint32_t n = 0; n < 6; n++)
        expect_status(&op, n, HVI_OK);
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

/* It fails when all nodes have started it: before, it may not have been tried. */
START_TEST(a_tentative_work_that_cannot_be_done_fails_when_all_have_come_or_is_withdrawn)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 107;
    unsigned char *lacking = map_lacking();

    hvt_cluster_open(&cluster, row, 6, 1, true);
    hvt_op_init(&op, &cluster, "012345", HVI_KIND_ALLREDUCE);
    hvt_op_make(&op, _i % 2 ? 10000 : 300000, 1, &random);
    op.part[2].in[0].address = lacking;
    make_tentative(&op);
    for (uint32_t n = 0; n < 5; n++)
        hvt_op_start(&op, n);
    usleep(5000);
    for (uint32_t n = 0; n < 5; n++)
        ck_assert(!op.part[n].posted);
    if (_i < 2)
        hvt_op_start(&op, 5);
    for (uint32_t n = 0; n < 6 && _i >= 2; n++)
        engine_wire_backend_withdraw(cluster.node[n].context, 1, 2);
    for (uint32_t n = 0; n < (_i < 2 ? 6 : 5); n++) {
        hvt_op_wait(&op, n);
        expect_status(&op, n, _i < 2 ? HVI_ERR_NO_MEMORY : ENGINE_BATCH_WITHDRAWN);
        ck_assert_int_eq(op.part[n].batch.fault.missing != 0, n == 2 && _i < 2);
    }
    hvt_op_free(&op);
    expect_another_op(&cluster, "0123450", 2);
    hvt_cluster_close(&cluster);
    munmap(lacking, LACKING_BYTES);
}
END_TEST

/* ---- words of the other end ---- */

/* A broadcast of 1,000 bytes from node 1, which this test is. */
static void make_victim(struct hvt_cluster *cluster, struct hvt_op *op)
{
    uint64_t random = 59;

    hvt_cluster_open(cluster, row, 2, 1, false);
    cluster->alone = true;
    hvt_op_init(op, cluster, "01", HVI_KIND_BROADCAST);
    op->model.dtype = HVI_DTYPE_UINT8;
    op->model.root = 1;
    hvt_op_make(op, 1000, 7, &random);
}

static void write_head(unsigned char *head)
{
    memset(head, 0, HEAD_BYTES);
    memcpy(head, "vhd1", 4);
    head[4] = 1; /* lanes */
    head[8] = 7; /* sequence */
    head[32] = 1000 & 0xff;
    head[33] = 1000 >> 8;
}

/* The work has failed on node 1, which is to blame: no bytes follow. */
static void write_status(unsigned char *head, uint32_t status)
{
    head[32] = head[33] = 0;
    for (int i = 0; i < 4; i++)
        head[20 + i] = (unsigned char)(status >> 8 * i);
    head[40] = 1;
}

START_TEST(the_expected_head_is_taken)
{
    static struct hvt_op op;
    unsigned char head[HEAD_BYTES];
    struct hvt_cluster cluster;

    make_victim(&cluster, &op);
    int fd = hvt_cluster_pretend(&cluster, 0, 1, 0);
    write_head(head);
    ck_assert_int_eq(write(fd, head, HEAD_BYTES), HEAD_BYTES);
    hvt_op_start(&op, 0); /* what comes early waits */
    ck_assert_int_eq(write(fd, op.member[1].in, 500), 500);
    usleep(1000);
    ck_assert_int_eq(write(fd, op.member[1].in + 500, 500), 500);
    hvt_op_wait(&op, 0);
    expect_status(&op, 0, HVI_OK);
    ck_assert(memcmp(op.member[0].out, op.member[1].in, 1000) == 0);
    close(fd);
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

/* Any byte of the head. */
START_TEST(an_unexpected_head_ends_the_lane_and_nothing_is_written)
{
    static struct hvt_op op;
    unsigned char message[HEAD_BYTES + 1000];
    struct hvt_cluster cluster;

    make_victim(&cluster, &op);
    int fd = hvt_cluster_pretend(&cluster, 0, 1, 0);
    memset(message, 0x11, sizeof message);
    write_head(message);
    message[_i] ^= 0x41;
    hvt_op_start(&op, 0);
    ck_assert_int_eq(write(fd, message, sizeof message), (ssize_t)sizeof message);
    hvt_op_wait(&op, 0);
    expect_status(&op, 0, HVI_ERR_NODE_LOST);
    expect_text(&op, 0, "node 1 (b) has sent what does not belong here");
    for (uint32_t i = 0; i < 1000; i++)
        ck_assert_int_eq(op.member[0].out[i], 0x5a);
    close(fd);
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

/* Some of them end in the bits of a known one. */
static const uint32_t no_failures[] = {1,          99,         0x7fffffff, 0x80000000,
                                       0x80000001, 0x8000006a, 0xffffff96, 0xffffffff};
#define NO_FAILURES (int)(sizeof no_failures / sizeof no_failures[0])

/* Node 0 gets a head with this status. */
static void check_told(uint32_t number, int status, const char *text)
{
    static struct hvt_op op;
    unsigned char head[HEAD_BYTES];
    struct hvt_cluster cluster;

    make_victim(&cluster, &op);
    int fd = hvt_cluster_pretend(&cluster, 0, 1, 0);
    write_head(head);
    write_status(head, number);
    hvt_op_start(&op, 0);
    ck_assert_int_eq(write(fd, head, HEAD_BYTES), HEAD_BYTES);
    hvt_op_wait(&op, 0);
    expect_status(&op, 0, status);
    expect_text(&op, 0, text);
    close(fd);
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}

START_TEST(a_status_that_is_no_known_failure_ends_the_lane)
{
    check_told(no_failures[_i], HVI_ERR_NODE_LOST,
               "node 1 (b) has sent what does not belong here: an unknown failure");
}
END_TEST

START_TEST(a_known_failure_is_taken)
{
    check_told(-HVI_ERR_NO_MEMORY, HVI_ERR_NO_MEMORY, "node 1 could not do its part");
}
END_TEST

START_TEST(noise_ends_the_lane)
{
    static struct hvt_op op;
    unsigned char noise[4096];
    struct hvt_cluster cluster;
    uint64_t random = 61;

    make_victim(&cluster, &op);
    int fd = hvt_cluster_pretend(&cluster, 0, 1, 0);
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (unsigned char)hvt_random(&random);
    hvt_op_start(&op, 0);
    ck_assert_int_eq(write(fd, noise, sizeof noise), (ssize_t)sizeof noise);
    hvt_op_wait(&op, 0);
    expect_status(&op, 0, HVI_ERR_NODE_LOST);
    close(fd);
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

/* Noise of the length of a record; and plain bytes where sealed ones belong. */
START_TEST(what_a_sealed_lane_has_not_sent_ends_it_with_the_name_of_the_node)
{
    static struct hvt_op op;
    unsigned char record[4 + 100 + 16] = {100};
    struct hvt_cluster cluster;

    make_victim(&cluster, &op);
    cluster.sealed = true;
    int fd = hvt_cluster_pretend(&cluster, 0, 1, 0);
    if (_i == 1)
        write_head(record);
    hvt_op_start(&op, 0);
    ck_assert_int_eq(write(fd, record, sizeof record), (ssize_t)sizeof record);
    hvt_op_wait(&op, 0);
    expect_status(&op, 0, HVI_ERR_NODE_LOST);
    expect_text(&op, 0, "what came over the connection to node 1 (b) is not what it has sent");
    for (uint32_t i = 0; i < 1000; i++)
        ck_assert_int_eq(op.member[0].out[i], 0x5a);
    close(fd);
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

/* Its pages are read, and written, by the cipher, in this process. */
START_TEST(a_missing_page_below_a_sealed_lane_fails_the_work_and_the_lane_keeps_step)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 68;
    unsigned char *lacking = map_lacking();

    hvt_cluster_open(&cluster, row, 3, 1, false);
    cluster.sealed = true;
    for (uint64_t turn = 0; turn < 2; turn++) {
        init_op(&op, &cluster, "012", HVI_KIND_ALLGATHER, &random);
        do
            hvt_op_make(&op, 300000, 2 * turn + 1, &random);
        while ((turn ? op.member[2].out_bytes : op.member[2].in_bytes) < 9000 &&
               (hvt_op_free(&op), true));
        struct engine_operand *operands = turn ? op.part[2].out : op.part[2].in;
        operands[0].address = lacking;
        hvt_op_start_all(&op);
        hvt_op_wait_all(&op);
        expect_status(&op, 2, HVI_ERR_NO_MEMORY);
        hvt_op_free(&op);
        expect_another_op(&cluster, "0120", 2 * turn + 2);
    }
    hvt_cluster_close(&cluster);
    munmap(lacking, LACKING_BYTES);
}
END_TEST

START_TEST(nodes_with_different_numbers_of_lanes_are_told)
{
    static struct hvt_op op;
    unsigned char message[HEAD_BYTES];
    struct hvt_cluster cluster;

    make_victim(&cluster, &op);
    int fd = hvt_cluster_pretend(&cluster, 0, 1, 0);
    write_head(message);
    message[4] = 2;
    hvt_op_start(&op, 0);
    ck_assert_int_eq(write(fd, message, sizeof message), (ssize_t)sizeof message);
    hvt_op_wait(&op, 0);
    expect_text(&op, 0, "HVD_NET_LANES");
    close(fd);
    hvt_op_free(&op);
    hvt_cluster_close(&cluster);
}
END_TEST

/* ---- memory of ranks ---- */

/* Kinds; inputs and outputs; small and large. */
START_TEST(a_missing_page_fails_the_work_and_the_lanes_keep_step)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 67;
    unsigned char *lacking = map_lacking();

    hvt_cluster_open(&cluster, row, 3, 1 + (uint32_t)_i % 2, _i % 4 < 2);
    for (int k = 0; k < KIND_COUNT; k++) {
        bool writes = _i % 2 != 0;
        init_op(&op, &cluster, "00121", kinds[k], &random);
        if (kinds[k] == HVI_KIND_BROADCAST)
            op.model.root = writes ? 2 : 3;
        do
            hvt_op_make(&op, _i < 4 ? 12000 : 300000, (uint64_t)k * 2 + 1, &random);
        while ((writes ? op.member[3].out_bytes : op.member[3].in_bytes) < 9000 &&
               (hvt_op_free(&op), true));
        struct engine_operand *operands = writes ? op.part[2].out : op.part[2].in;
        operands[0].address = lacking;
        hvt_op_start_all(&op);
        hvt_op_wait_all(&op);
        expect_status(&op, 2, HVI_ERR_NO_MEMORY);
        ck_assert_uint_ge(op.part[2].batch.fault.missing, (uint64_t)(uintptr_t)lacking + 4096);
        ck_assert_uint_lt(op.part[2].batch.fault.missing,
                          (uint64_t)(uintptr_t)lacking + LACKING_BYTES);
        for (uint32_t n = 0; n < 2; n++) {
            int status = op.part[n].batch.status;
            ck_assert_msg(status == HVI_ERR_NO_MEMORY || (status == HVI_OK && writes), "%s (%s)",
                          hvi_status_text(status), op.part[n].batch.text);
            ck_assert_uint_eq(op.part[n].batch.fault.missing, 0);
        }
        hvt_op_free(&op);
        expect_another_op(&cluster, "0120", (uint64_t)k * 2 + 2);
    }
    hvt_cluster_close(&cluster);
    munmap(lacking, LACKING_BYTES);
}
END_TEST

START_TEST(a_process_that_is_over_fails_the_work_and_the_lanes_keep_step)
{
    static struct hvt_op op;
    struct hvt_cluster cluster;
    uint64_t random = 71, sequence = 0;

    hvt_cluster_open(&cluster, row, 3, 1, false);
    for (int way = 0; way < 4; way++) {
        hvt_op_init(&op, &cluster, "001222", HVI_KIND_ALLREDUCE);
        hvt_op_make(&op, way < 2 ? 100 : 100000, ++sequence, &random);
        hvt_op_make_remote(&op, 4, way % 2 == 0, way % 2 == 1);
        op.process.over = true;
        hvt_op_start_all(&op);
        hvt_op_wait_all(&op);
        expect_status(&op, 2, HVI_ERR_RANK_LOST);
        ck_assert_int_eq(op.part[2].batch.fault.rank, 1); /* the place */
        ck_assert_int_eq(op.part[2].batch.fault.writing, way % 2 == 1);
        expect_status(&op, 0, way % 2 ? HVI_OK : HVI_ERR_RANK_LOST);
        ck_assert_int_eq(op.part[0].batch.fault.rank, -1);
        hvt_op_free(&op);
        expect_another_op(&cluster, "012", ++sequence);
    }
    hvt_cluster_close(&cluster);
}
END_TEST

static int fault_fd;

static bool cannot_wait(void)
{
    struct uffdio_api api = {.api = UFFD_API};

    fault_fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK);
    return fault_fd < 0 || ioctl(fault_fd, UFFDIO_API, &api) != 0;
}

#define SILENT_BYTES (256u * 1024)

static struct uffdio_range make_silent(struct hvt_op *op, uint32_t index)
{
    void *memory =
        mmap(NULL, SILENT_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register reg = {
        .mode = UFFDIO_REGISTER_MODE_MISSING,
        .range = {.start = (uint64_t)(uintptr_t)memory, .len = SILENT_BYTES},
    };

    ck_assert_ptr_ne(memory, MAP_FAILED);
    ck_assert_int_eq(ioctl(fault_fd, UFFDIO_REGISTER, &reg), 0);
    op->part[index].in[0].address = memory;
    return reg.range;
}

START_TEST(silent_memory_has_the_deadline_of_its_batch_or_a_cancel)
{
    if (hvt_skip_if(cannot_wait(), "no userfaultfd for faults of the kernel"))
        return;
    static struct hvt_op op;
    struct hvt_cluster cluster;
    struct engine_fault fault = {.rank = -1};
    uint64_t random = 73, deadline_ns = hvi_deadline_after(20 * (int64_t)HVI_NS_SEC);

    hvt_cluster_open(&cluster, row, 2, 1, false);
    hvt_op_init(&op, &cluster, "01", HVI_KIND_ALLREDUCE);
    hvt_op_make(&op, SILENT_BYTES / 4, 1, &random);
    hvt_op_make_remote(&op, 1, true, false);
    struct uffdio_range range = make_silent(&op, 1);
    if (_i == 0)
        op.part[1].batch.answer_ns = 10 * ANSWER_NS; /* so that it is seen before */
    hvt_op_start_all(&op);
    while (!row->silent(cluster.node[1].context, &op.part[1].batch, &fault)) {
        ck_assert(!hvi_deadline_passed(deadline_ns));
        row->watch(cluster.node[1].context);
        sched_yield();
    }
    ck_assert_int_eq(fault.rank, 0);
    ck_assert_uint_eq(fault.address, range.start);
    if (_i == 1)
        row->cancel(cluster.node[1].context, &op.part[1].batch);
    hvt_op_wait_all(&op);
    expect_status(&op, 1, _i == 0 ? HVI_ERR_STALLED : HVI_ERR_CANCELLED);
    ck_assert_int_eq(op.part[1].batch.fault.rank, _i == 0 ? 0 : -1);
    expect_status(&op, 0, _i == 0 ? HVI_ERR_STALLED : HVI_ERR_NODE_LOST);
    expect_another_op(&cluster, "01", 2);
    ck_assert_int_eq(ioctl(fault_fd, UFFDIO_UNREGISTER, &range), 0);
    munmap((void *)(uintptr_t)range.start, SILENT_BYTES);
    hvt_op_free(&op);
    cluster.loses_threads = true; /* the one that was given up may not be back yet */
    hvt_cluster_close(&cluster);
}
END_TEST

/* What is said in bytes of the row "tcp". */
static void add_tcp_tests(TCase *tcase)
{
    tcase_add_test(tcase, a_job_on_one_node_pays_no_thread);
    tcase_add_loop_test(tcase, small_works_that_start_together_go_together, 0, 2);
    tcase_add_test(tcase, the_expected_head_is_taken);
    tcase_add_loop_test(tcase, an_unexpected_head_ends_the_lane_and_nothing_is_written, 0, 48);
    tcase_add_loop_test(tcase, a_status_that_is_no_known_failure_ends_the_lane, 0, NO_FAILURES);
    tcase_add_test(tcase, a_known_failure_is_taken);
    tcase_add_test(tcase, noise_ends_the_lane);
    tcase_add_loop_test(tcase, what_a_sealed_lane_has_not_sent_ends_it_with_the_name_of_the_node, 0,
                        2);
    tcase_add_test(tcase,
                   a_missing_page_below_a_sealed_lane_fails_the_work_and_the_lane_keeps_step);
    tcase_add_test(tcase, nodes_with_different_numbers_of_lanes_are_told);
}

int main(void)
{
    Suite *suite = suite_create("contract/span");
    TCase *tcase = tcase_create("results");

    find_row();
    if (!row)
        return EXIT_FAILURE;
    tcase_add_loop_test(tcase, every_kind_gives_what_it_should_at_every_size_and_layout, 0,
                        LAYOUTS / LAYOUT_STEP);
    tcase_add_loop_test(tcase, a_ring_in_waves_gives_what_it_should, 0, 5);
    tcase_add_loop_test(tcase, every_dtype_and_reduce_op_gives_the_reference_bits, 0,
                        (HVI_DTYPE_COUNT + DTYPE_STEP - 1) / DTYPE_STEP);
    tcase_add_loop_test(tcase, an_adasum_has_the_bits_of_one_node, 0, SOME_LAYOUTS);
    tcase_add_test(tcase, an_adasum_in_place_writes_nothing_that_is_still_being_sent);
    tcase_add_test(tcase, a_send_goes_from_one_to_the_other);
    tcase_add_test(tcase, nothing_moves_in_barriers_joins_and_sets);
    tcase_add_loop_test(tcase, a_work_that_is_left_to_the_caller_goes_on_without_it, 0, 3);
    tcase_add_loop_test(tcase, remote_process_memory_gives_the_same, 0, SOME_LAYOUTS);
    tcase_add_loop_test(tcase, many_works_of_several_sets_are_under_way, 0, 4);
    tcase_add_test(tcase, the_same_layout_gives_the_same_bits_every_time);
    tcase_add_test(tcase, closing_finishes_what_was_started);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("together");
    tcase_set_timeout(tcase, 60);
    tcase_add_loop_test(tcase, small_works_that_find_no_room_wait_for_it, 0, 2);
    suite_add_tcase(suite, tcase);
    tcase = tcase_create("failures");
    tcase_add_test(tcase, a_lane_that_is_cut_fails_the_work_on_every_node);
    tcase_add_test(tcase, a_lane_that_is_cut_in_the_middle_hangs_no_node);
    tcase_add_test(tcase, a_lost_node_fails_its_works_now_and_later);
    tcase_add_test(tcase, a_lost_node_fails_works_in_which_it_is_no_neighbour);
    tcase_add_loop_test(tcase, a_node_that_does_not_come_is_named_when_the_time_is_over, 0, 2);
    tcase_add_test(tcase, a_node_that_cannot_be_connected_to_is_named);
    tcase_add_loop_test(tcase, a_work_that_is_cancelled_ends_at_once_and_the_lanes_keep_step, 0, 2);
    tcase_add_test(tcase, a_large_work_that_is_cancelled_gives_up_every_node_that_has_not_come);
    tcase_add_loop_test(tcase, a_tentative_work_gives_the_same, 0, SOME_LAYOUTS);
    tcase_add_loop_test(tcase, works_of_many_nodes_give_what_they_should, 0, 3);
    tcase_add_loop_test(tcase, withdrawn_works_have_done_nothing_and_the_lanes_keep_step, 0,
                        SOME_LAYOUTS);
    tcase_add_test(tcase, a_later_work_waits_until_the_earlier_one_is_withdrawn_here_too);
    tcase_add_test(tcase, a_tentative_barrier_waits_for_all_nodes);
    tcase_add_loop_test(
        tcase, a_tentative_work_that_cannot_be_done_fails_when_all_have_come_or_is_withdrawn, 0, 4);
    tcase_add_loop_test(tcase, a_missing_page_fails_the_work_and_the_lanes_keep_step, 0, 8);
    tcase_add_test(tcase, a_process_that_is_over_fails_the_work_and_the_lanes_keep_step);
    tcase_add_loop_test(tcase, silent_memory_has_the_deadline_of_its_batch_or_a_cancel, 0, 2);
    suite_add_tcase(suite, tcase);
    if (strcmp(hvt_transport(), "tcp") == 0) {
        tcase = tcase_create("tcp");
        add_tcp_tests(tcase);
        suite_add_tcase(suite, tcase);
    }
    return hvt_run_suite(suite);
}
