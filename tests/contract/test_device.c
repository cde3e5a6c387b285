/* SPDX-License-Identifier: Apache-2.0
 * The collectives on memory of GPUs, through all there is: ranks with sessions, a real hvdd, its engine, and a worker for each GPU on
 * the fake driver. Ranks are threads of this process; kind x dtype x reduce op x ranks x GPUs, in place and apart, with and without a
 * stream, odd sizes and offsets. Two hvdds, which meet over the mesh on the loopback, are two nodes, each with its share of the
 * four GPUs.
 *
 * On one GPU the bits are those of docs/design/reduction.md. Between GPUs the order of additions is NCCL's, so the numbers there
 * have sums and products that are exact in any order.
 *
 * The test plays the main thread: it fills the ranks' memory, which the fake has for CPUs as well, lets all ranks do the op, and looks
 * at what they have. Seeds are fixed. By default the corners; with HVT_WHOLE in the environment the other layouts of ranks and
 * GPUs on one node, or with "nodes" all on two. */
#include "base/status.h"
#include "base/types.h"
#include "hvd/hvd.h"
#include "tests/fakegpu/cuda_abi.h"
#include "tests/fakegpu/hvt_fakegpu.h"
#include "tests/unit/engine/hvt_reference.h"

#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>

#define RANKS_MOST  8
#define NODES       2
#define PATH        4096
#define PORTS       "9832-9895" /* of no other test */
#define GPUS        4
#define ARENA_BYTES (12u << 20)
#define CHUNK       (2u << 20)
#define GUARD       64u
#define GUARD_BYTE  0xa5
#define DEADLINE_NS (HVT_SANITIZED ? 100000000000 : 20000000000)

/* ---- hvdd ---- */

static char folder[64];
static struct node {
    char address[80], log[80];
    pid_t pid;
} nodes[NODES];

/* Of this build. */
static void path_of(const char *program, char path_p[PATH])
{
    char self[PATH / 2] = "";
    ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
    char *slash = length > 0 ? strrchr(self, '/') : NULL;

    if (slash != NULL)
        *slash = '\0';
    snprintf(path_p, PATH, "%s/../bin/%s", self, program);
}

static bool run_shell(const char *command, const char *path)
{
    char line[PATH + 128];

    snprintf(line, sizeof line, "%s %s >/dev/null", command, path);
    return system(line) == 0;
}

/* The first one listens; `port`: where the second finds it. */
static void run_hvdd(const struct node *node, int ready, int port)
{
    const char *mesh_option = port == 0 ? "mesh-listen" : "mesh-join";
    char program[PATH], runtime[128], mesh[64], key[128], fd[32];
    int log = open(node->log, O_CREAT | O_WRONLY | O_APPEND, 0600);

    path_of("hvdd", program);
    snprintf(runtime, sizeof runtime, "--runtime-dir=%s", node->address);
    snprintf(mesh, sizeof mesh, "--%s=127.0.0.1:%d", mesh_option, port);
    snprintf(key, sizeof key, "--mesh-key=%s/key", folder);
    snprintf(fd, sizeof fd, "--ready-fd=%d", ready);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execl(program, "hvdd", runtime, mesh, key, "--port-range=" PORTS, "--private=yes",
          "--log-level=warning", "--config=/dev/null", "--gpu-idle=100ms", fd, (char *)NULL);
    _exit(127);
}

static bool start_hvdd(uint32_t number, int port)
{
    struct node *node = &nodes[number];
    int ends[2];
    char byte;

    snprintf(node->address, sizeof node->address, "%s/run%u", folder, number);
    snprintf(node->log, sizeof node->log, "%s/log%u", folder, number);
    if (pipe(ends) != 0)
        return false;
    node->pid = fork();
    if (node->pid == 0) {
        close(ends[0]);
        run_hvdd(node, ends[1], port);
    }
    close(ends[1]);
    struct pollfd ready = {.fd = ends[0], .events = POLLIN};
    bool is_ready = poll(&ready, 1, 60000) == 1 && read(ends[0], &byte, 1) == 1;
    close(ends[0]);
    return is_ready;
}

/* Where the first one listens; -1: it does not say. */
static int mesh_port(void)
{
    char path[128];
    int port = -1;

    snprintf(path, sizeof path, "%s/mesh.port", nodes[0].address);
    FILE *file = fopen(path, "r");
    if (file == NULL)
        return -1;
    if (fscanf(file, "%d", &port) != 1)
        port = -1;
    fclose(file);
    return port;
}

static bool start_hvdds(void)
{
    char make_key[PATH], key[128];

    snprintf(folder, sizeof folder, "/tmp/hvt-device-XXXXXX");
    if (mkdtemp(folder) == NULL)
        return false;
    snprintf(key, sizeof key, "%s/key", folder);
    path_of("hvdctl key new", make_key);
    setenv("FAKEGPU", "devices=4;free=keeps", 1);
    return run_shell(make_key, key) && start_hvdd(0, 0) && mesh_port() > 0 &&
           start_hvdd(1, mesh_port());
}

/* Whether it has logged nothing, which is printed else. */
static bool stop_hvdd(const struct node *node)
{
    char text[4096];
    int status = -1, fd;
    ssize_t length;

    kill(node->pid, SIGTERM);
    waitpid(node->pid, &status, 0);
    fd = open(node->log, O_RDONLY);
    length = fd < 0 ? 0 : read(fd, text, sizeof text);
    if (length > 0)
        printf("the log of %s:\n%.*s", node->address, (int)length, text);
    return status == 0 && length == 0;
}

/* The second one first: to it the end of the other would be a loss. */
static bool stop_hvdds(void)
{
    bool is_quiet = true;

    for (uint32_t i = NODES; i-- > 0;)
        is_quiet = stop_hvdd(&nodes[i]) && is_quiet;
    return run_shell("rm -r", folder) && is_quiet;
}

/* ---- an op ---- */

/* What all ranks do next. Members that are not in the set, or have joined, do nothing. */
static struct {
    uint32_t kind, dtype, reduce_op;
    int set, root;
    double prescale, postscale;
    bool in_place, streamed;
    uint32_t members;
    int64_t splits[RANKS_MOST][RANKS_MOST]; /* elements, from and to */
    char text[256];
} op;

struct rank {
    int number, gpu, node;
    uint32_t place; /* among the members */
    bool takes_part;
    pthread_t thread;
    struct hvd_session *session;
    hvi_cu_context context;
    hvi_cu_stream stream;
    unsigned char *arena; /* a GPU's */
    uint64_t used, in_count, out_count;
    unsigned char *in, *out;
    unsigned char *expected;
    bool is_near;    /* .expected is to be come close to: as doubles */
    bool is_rounded; /* the same, as it is: what is added has been rounded before */
    char wrong[512];
};

static struct rank ranks[RANKS_MOST];
static int rank_count, gpu_count, node_count, jobs;
static pthread_barrier_t gate;
static int (*task)(struct rank *rank); /* what ranks do when the gate opens; NULL: they end */

static int submit(struct rank *rank, struct hvd_op **op_p)
{
    enum hvd_dtype dtype = (enum hvd_dtype)op.dtype;
    struct hvd_tensor in = hvd_tensor_1d(rank->in, dtype, (int64_t)rank->in_count);
    struct hvd_tensor out = hvd_tensor_1d(rank->out, dtype, (int64_t)rank->out_count);
    enum hvd_reduce_op reduce_op = (enum hvd_reduce_op)op.reduce_op;
    struct hvd_op_options options;

    hvd_op_options_init(&options);
    options.stream = op.streamed ? rank->stream : NULL;
    options.process_set = op.set;
    options.prescale_factor = op.prescale;
    options.postscale_factor = op.postscale;
    switch (op.kind) {
    case HVI_KIND_ALLREDUCE:
        return hvd_allreduce_async(rank->session, "t", &in, &out, reduce_op, &options, op_p);
    case HVI_KIND_REDUCESCATTER:
        return hvd_reducescatter_async(rank->session, "t", &in, &out, reduce_op, &options, op_p);
    case HVI_KIND_BROADCAST:
        return hvd_broadcast_async(rank->session, "t", &in, &out, op.root, &options, op_p);
    case HVI_KIND_ALLGATHER:
        return hvd_allgather_async(rank->session, "t", &in, &out, &options, op_p);
    default:
        return hvd_alltoall_async(rank->session, "t", &in, op.splits[rank->place], &out, &options,
                                  op_p);
    }
}

__attribute__((format(printf, 2, 3))) static int blame(struct rank *rank, const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(rank->wrong, sizeof rank->wrong, format, arguments);
    va_end(arguments);
    return -1;
}

static double step_of(uint32_t dtype)
{
    static const double steps[HVI_DTYPE_COUNT] = {
        [HVI_DTYPE_FLOAT16] = 0x1p-10,    [HVI_DTYPE_BFLOAT16] = 0x1p-7,
        [HVI_DTYPE_FLOAT8_E4M3] = 0x1p-3, [HVI_DTYPE_FLOAT8_E5M2] = 0x1p-2,
        [HVI_DTYPE_FLOAT32] = 0x1p-20,    [HVI_DTYPE_FLOAT64] = 0x1p-45};
    return steps[dtype];
}

static bool is_right(const struct rank *rank, uint64_t at)
{
    uint32_t size = hvi_dtype_bytes(op.dtype);

    if (!rank->is_near && !rank->is_rounded)
        return memcmp(rank->out + at * size, rank->expected + at * size, size) == 0;
    double tiny = op.dtype == HVI_DTYPE_FLOAT64 ? 0x1p-45 : 0x1p-8;
    if (rank->is_rounded)
        tiny += step_of(op.dtype); /* parts are about 1, also where their sum is not */
    double value = hvt_reference_get(op.dtype, rank->out, at);
    double wanted = rank->is_near ? ((double *)(void *)rank->expected)[at]
                                  : hvt_reference_get(op.dtype, rank->expected, at);
    return fabs(value - wanted) <= step_of(op.dtype) * fabs(wanted) + tiny;
}

static int compare(struct rank *rank)
{
    uint32_t size = hvi_dtype_bytes(op.dtype);

    for (uint64_t i = 0; i < rank->out_count; i++) {
        if (!is_right(rank, i))
            return blame(rank, "element %lu of %lu is wrong: %02x and not %02x...",
                         (unsigned long)i, (unsigned long)rank->out_count, rank->out[i * size],
                         rank->expected[i * size]);
    }
    for (uint32_t i = 0; i < GUARD; i++) {
        if (rank->out[-1 - (int)i] != GUARD_BYTE && !op.in_place)
            return blame(rank, "a byte before the output was written");
        if (rank->out[rank->out_count * size + i] != GUARD_BYTE && !op.in_place)
            return blame(rank, "a byte behind the output was written");
    }
    return 0;
}

/* One op. With a stream, what the stream has is looked at before the host knows that the op is over. */
static int do_op(struct rank *rank)
{
    struct hvd_op *it = NULL;

    if (!rank->takes_part)
        return 0;
    if (submit(rank, &it) != HVD_OK)
        return blame(rank, "%s", hvd_last_error());
    if (op.streamed && hvd_op_stream_wait(it, rank->stream) != HVD_OK)
        return blame(rank, "%s", hvd_last_error());
    if (op.streamed && !hvt_cu_ends(rank->stream))
        return blame(rank, "the stream still waits");
    int wrong = op.streamed ? compare(rank) : 0;
    if (hvd_wait(it, DEADLINE_NS) != HVD_OK)
        return blame(rank, "%s; %s", hvd_last_error(), hvd_op_error(it));
    hvd_op_free(it);
    return wrong == 0 ? compare(rank) : wrong;
}

/* ---- ranks ---- */

/* In chunks, as PyTorch's expandable segments: each second rank has such an arena. */
static hvi_cu_ptr map_arena(int gpu)
{
    int (*create)(hvi_cu_allocation *, size_t, const struct fake_allocation_properties *, uint64_t);
    const struct fake_allocation_properties properties = {
        .type = 1, .handle_types = HVI_CU_HANDLE_FD, .location = {1, gpu}};
    const struct hvi_cu_access access = {{1, gpu}, 3};
    void *symbol = hvt_cu_symbol("cuMemCreate");
    hvi_cu_ptr base = 0;

    memcpy(&create, &symbol, sizeof create);
    HVT_CU(hvt_cu.reserve(&base, ARENA_BYTES, 0, 0, 0));
    for (hvi_cu_ptr at = base; at < base + ARENA_BYTES; at += CHUNK) {
        hvi_cu_allocation chunk;
        HVT_CU(create(&chunk, CHUNK, &properties, 0));
        HVT_CU(hvt_cu.map(at, CHUNK, 0, chunk, 0));
        HVT_CU(hvt_cu.allocation_release(chunk));
    }
    HVT_CU(hvt_cu.set_access(base, ARENA_BYTES, &access, 1));
    return base;
}

/* Which of its node's ranks it is, and how many these are. */
static void place_on_node(const struct rank *rank, struct hvd_options *options)
{
    options->local_rank = options->local_size = 0;
    for (int i = 0; i < rank_count; i++) {
        options->local_rank += ranks[i].node == rank->node && i < rank->number;
        options->local_size += ranks[i].node == rank->node;
    }
    options->cross_rank = rank->node;
    options->cross_size = node_count;
}

static void begin(struct rank *rank)
{
    struct hvd_options options;
    hvi_cu_device device;
    char job[32];

    HVT_CU(hvt_cu.device_get(&device, rank->gpu));
    HVT_CU(hvt_cu.context_retain(&rank->context, device));
    HVT_CU(hvt_cu.context_set(rank->context));
    rank->stream = hvt_cu_stream();
    rank->arena = (unsigned char *)(uintptr_t)(rank->number % 2 ? map_arena(rank->gpu)
                                                                : hvt_cu_alloc(ARENA_BYTES));
    hvd_options_init(&options);
    snprintf(job, sizeof job, "job%d-%d", (int)getpid(), jobs);
    options.address = nodes[rank->node].address;
    options.job = job;
    options.rank = rank->number;
    options.size = rank_count;
    place_on_node(rank, &options);
    ck_assert_msg(hvd_open(&options, &rank->session) == HVD_OK, "%s", hvd_last_error());
}

static void *run(void *user)
{
    struct rank *rank = user;

    begin(rank);
    pthread_barrier_wait(&gate);
    for (;;) {
        pthread_barrier_wait(&gate);
        if (task == NULL)
            break;
        task(rank);
        pthread_barrier_wait(&gate);
    }
    hvd_close(rank->session);
    return NULL;
}

static const struct layout {
    int ranks, gpus;
    bool alternating; /* neighbours have different GPUs, and nodes; else these have blocks */
    bool spread;      /* each node has a half of the GPUs; else the first has all */
} corners[] = {{2, 1, false, false}, {2, 2, false, false}, {3, 2, true, false},
               {4, 2, false, false}, {3, 2, false, true},  {4, 4, true, true}},
  others[] = {{1, 1, false, false}, {3, 1, false, false}, {3, 3, false, false},
              {4, 1, false, false}, {4, 2, true, false},  {4, 4, false, false},
              {5, 2, false, false}, {5, 3, true, false},  {6, 4, false, false},
              {7, 1, false, false}, {8, 1, false, false}, {8, 2, false, false},
              {8, 3, true, false},  {8, 4, false, false}, {8, 4, true, false}},
  all_spread[] = {{2, 2, false, true}, {3, 2, false, true}, {3, 2, true, true},
                  {3, 3, false, true}, {4, 2, false, true}, {4, 3, true, true},
                  {4, 4, false, true}, {5, 2, false, true}, {5, 3, true, true},
                  {6, 4, true, true},  {7, 2, true, true},  {8, 2, false, true},
                  {8, 3, true, true},  {8, 4, false, true}, {8, 4, true, true}};

static const struct layout *layouts = corners;
static int layout_count = sizeof corners / sizeof corners[0];

static void open_ranks(const struct layout *layout)
{
    rank_count = layout->ranks;
    gpu_count = layout->gpus;
    node_count = layout->spread ? NODES : 1;
    jobs++;
    memset(ranks, 0, sizeof ranks);
    ck_assert_int_eq(pthread_barrier_init(&gate, NULL, (unsigned)rank_count + 1), 0);
    for (int i = 0; i < rank_count; i++) {
        ranks[i].number = i;
        ranks[i].gpu = layout->alternating ? i % gpu_count : i * gpu_count / rank_count;
        ranks[i].node =
            layout->alternating ? ranks[i].gpu % node_count : ranks[i].gpu * node_count / gpu_count;
        ranks[i].place = (uint32_t)i;
        ranks[i].takes_part = true;
    }
    for (int i = 0; i < rank_count; i++)
        ck_assert_int_eq(pthread_create(&ranks[i].thread, NULL, run, &ranks[i]), 0);
    pthread_barrier_wait(&gate);
    op.members = (uint32_t)rank_count;
    op.set = 0;
}

static void all_do(int (*what)(struct rank *rank))
{
    task = what;
    pthread_barrier_wait(&gate);
    if (task == NULL)
        return;
    pthread_barrier_wait(&gate);
    for (int i = 0; i < rank_count; i++)
        ck_assert_msg(ranks[i].wrong[0] == '\0', "%s: rank %d of %d on GPU %d of %d, %d nodes: %s",
                      op.text, i, rank_count, ranks[i].gpu, gpu_count, node_count, ranks[i].wrong);
}

static void close_ranks(void)
{
    all_do(NULL);
    for (int i = 0; i < rank_count; i++)
        pthread_join(ranks[i].thread, NULL);
    pthread_barrier_destroy(&gate);
}

static struct rank *member(uint32_t place)
{
    struct rank *rank = ranks;

    while (!rank->takes_part || rank->place != place)
        rank++;
    return rank;
}

/* ---- inputs ---- */

static uint64_t seed = 1;

static uint64_t below(uint64_t bound)
{
    return hvt_random(&seed) % bound;
}

/* Between guards, some elements off an alignment. */
static unsigned char *take(struct rank *rank, uint64_t count)
{
    uint32_t size = hvi_dtype_bytes(op.dtype);
    uint64_t at = (rank->used + GUARD + 255) / 256 * 256 + below(9) * size;

    rank->used = at + count * size + GUARD;
    ck_assert_uint_le(rank->used, ARENA_BYTES);
    memset(rank->arena + at - GUARD, GUARD_BYTE, GUARD);
    memset(rank->arena + at + count * size, GUARD_BYTE, GUARD);
    return rank->arena + at;
}

static bool is_float(uint32_t dtype)
{
    return step_of(dtype) > 0;
}

static void fill(const struct rank *rank)
{
    static const double small[] = {1, -1, 2, 1, 1, -1, 3};
    bool product = op.reduce_op == HVI_REDUCE_PRODUCT, sum = op.reduce_op <= HVI_REDUCE_SUM;

    if (op.reduce_op == HVI_REDUCE_ADASUM) {
        for (uint64_t i = 0; i < rank->in_count; i++)
            hvt_reference_put(op.dtype, rank->in, i, (double)(int64_t)hvt_random(&seed) / 9.3e18);
    } else if (gpu_count > 1 && is_float(op.dtype)) {
        for (uint64_t i = 0; i < rank->in_count; i++)
            hvt_reference_put(op.dtype, rank->in, i, small[below(sum ? 2 : product ? 6 : 7)]);
    } else {
        hvt_reference_fill(op.dtype, rank->in, rank->in_count, &seed);
    }
}

/* ---- what should come out ---- */

static void expect_reduction(uint64_t count, unsigned char *result)
{
    const void *in[RANKS_MOST];

    for (uint32_t i = 0; i < op.members; i++)
        in[i] = member(i)->in;
    const struct hvi_reduction reduce = {.dtype = op.dtype,
                                         .reduce_op = op.reduce_op,
                                         .ranks = op.members,
                                         .ins = op.members,
                                         .in = in,
                                         .prescale = op.prescale,
                                         .postscale = op.postscale};
    for (uint64_t i = 0; i < count; i++)
        hvt_reference_element(&reduce, i, result + i * hvi_dtype_bytes(op.dtype));
}

static void expect_adasum(uint64_t count, double *result)
{
    double *vectors = calloc(op.members * count + 1, sizeof *vectors);

    for (uint32_t i = 0; i < op.members; i++) {
        for (uint64_t at = 0; at < count; at++)
            vectors[i * count + at] = hvt_reference_get(op.dtype, member(i)->in, at) * op.prescale;
    }
    hvt_reference_adasum(vectors, op.members, count);
    for (uint64_t at = 0; at < count; at++)
        result[at] = vectors[at] * op.postscale;
    free(vectors);
}

/* Between GPUs, an average of these is divided before it is added up, lest it overflow. */
static bool divides_first(void)
{
    bool several = false;

    for (uint32_t i = 1; i < op.members; i++)
        several = several || member(i)->gpu != member(0)->gpu;
    return several && op.reduce_op == HVI_REDUCE_AVERAGE &&
           (op.dtype == HVI_DTYPE_FLOAT16 || op.dtype == HVI_DTYPE_FLOAT8_E4M3 ||
            op.dtype == HVI_DTYPE_FLOAT8_E5M2);
}

static void expect_reduced(uint64_t count)
{
    bool adasum = op.reduce_op == HVI_REDUCE_ADASUM, rounded = divides_first();
    uint32_t size = adasum ? sizeof(double) : hvi_dtype_bytes(op.dtype);
    unsigned char *result = malloc(count * size + 1);
    uint64_t at = 0;

    if (adasum)
        expect_adasum(count, (double *)(void *)result);
    else
        expect_reduction(count, result);
    for (uint32_t i = 0; i < op.members; i++) {
        struct rank *rank = member(i);
        rank->is_near = adasum;
        rank->is_rounded = rounded;
        memcpy(rank->expected, result + at * size, rank->out_count * size);
        at += op.kind == HVI_KIND_REDUCESCATTER ? rank->out_count : 0;
    }
    free(result);
}

static void expect_moved(void)
{
    uint32_t size = hvi_dtype_bytes(op.dtype);

    for (uint32_t to = 0; to < op.members; to++) {
        unsigned char *at = member(to)->expected;
        for (uint32_t from = 0; from < op.members; from++) {
            const struct rank *sender = member(from);
            uint64_t skip = 0, count = sender->in_count;
            if (op.kind == HVI_KIND_BROADCAST && sender->number != op.root)
                continue;
            for (uint32_t i = 0; i < to && op.kind == HVI_KIND_ALLTOALL; i++)
                skip += (uint64_t)op.splits[from][i];
            if (op.kind == HVI_KIND_ALLTOALL)
                count = (uint64_t)op.splits[from][to];
            memcpy(at, sender->in + skip * size, count * size);
            at += count * size;
        }
    }
}

/* ---- making ops ---- */

static void choose_counts(uint64_t count)
{
    uint64_t sum = 0;

    for (uint32_t i = 0; i < op.members; i++) {
        struct rank *rank = member(i);
        rank->in_count =
            op.kind == HVI_KIND_ALLGATHER ? below(4) == 0 ? 0 : below(count + 1) : count;
        rank->out_count = count;
        if (op.kind == HVI_KIND_REDUCESCATTER)
            rank->out_count = count / op.members + (i < count % op.members);
        sum += rank->in_count;
    }
    for (uint32_t from = 0; from < op.members && op.kind == HVI_KIND_ALLTOALL; from++) {
        member(from)->in_count = 0;
        for (uint32_t to = 0; to < op.members; to++) {
            op.splits[from][to] = (int64_t)(below(4) == 0 ? 0 : below(count / op.members + 1));
            member(from)->in_count += (uint64_t)op.splits[from][to];
        }
    }
    for (uint32_t to = 0; to < op.members; to++) {
        if (op.kind == HVI_KIND_ALLGATHER)
            member(to)->out_count = sum;
        for (uint32_t from = 0; from < op.members && op.kind == HVI_KIND_ALLTOALL; from++)
            member(to)->out_count =
                (from == 0 ? 0 : member(to)->out_count) + (uint64_t)op.splits[from][to];
    }
}

/* Where a member's input is in its output, or its output in its input. */
static void place(struct rank *rank, uint64_t in_before, uint64_t out_before)
{
    uint32_t size = hvi_dtype_bytes(op.dtype);

    rank->used = 0;
    if (op.kind == HVI_KIND_ALLGATHER && op.in_place) {
        rank->out = take(rank, rank->out_count);
        rank->in = rank->out + in_before * size;
    } else {
        rank->in = take(rank, rank->in_count);
        rank->out = op.in_place ? rank->in + out_before * size : take(rank, rank->out_count);
    }
    if (!op.in_place)
        memset(rank->out, 0x5a, rank->out_count * size);
    rank->expected = malloc(rank->out_count * sizeof(double) + 1);
    fill(rank);
}

static void place_all(void)
{
    uint64_t in_before = 0, out_before = 0;

    for (uint32_t i = 0; i < op.members; i++) {
        struct rank *rank = member(i);
        place(rank, in_before, op.kind == HVI_KIND_REDUCESCATTER ? out_before : 0);
        in_before += rank->in_count;
        out_before += rank->out_count;
    }
}

static void run_op(uint32_t kind, uint32_t dtype, uint32_t reduce_op, uint64_t count)
{
    bool reduces = kind == HVI_KIND_ALLREDUCE || kind == HVI_KIND_REDUCESCATTER;
    bool scales = reduces && dtype != HVI_DTYPE_BOOL && below(4) == 0;

    op.kind = kind;
    op.dtype = dtype;
    op.reduce_op = reduce_op;
    op.root = member((uint32_t)below(op.members))->number;
    op.prescale = scales ? 0.5 : 1;
    op.postscale = scales ? 3 : 1;
    op.in_place = kind != HVI_KIND_ALLTOALL && below(3) == 0;
    op.streamed = below(2) == 0;
    snprintf(op.text, sizeof op.text, "%s %s %s of %lu, set %d%s%s%s", hvi_kind_text(kind),
             hvi_dtype_text(dtype), reduces ? hvi_reduce_text(reduce_op) : "", (unsigned long)count,
             op.set, op.in_place ? ", in place" : "", op.streamed ? ", in streams" : "",
             scales ? ", with scales" : "");
    choose_counts(count);
    place_all();
    if (reduces)
        expect_reduced(count);
    else
        expect_moved();
    all_do(do_op);
    for (uint32_t i = 0; i < op.members; i++)
        free(member(i)->expected);
}

static bool exists(uint32_t dtype, uint32_t reduce_op)
{
    char why[128];
    return hvi_reduction_check(dtype, reduce_op, 1, 1, why, sizeof why) == HVI_OK;
}

static uint64_t some_count(void)
{
    static const uint64_t counts[] = {1, 7, 0, 130, 1000, 33};
    return counts[below(sizeof counts / sizeof counts[0])];
}

static void run_type(uint32_t dtype)
{
    for (uint32_t reduce_op = 0; reduce_op < HVI_REDUCE_COUNT; reduce_op++) {
        if (!exists(dtype, reduce_op))
            continue;
        run_op(HVI_KIND_ALLREDUCE, dtype, reduce_op, some_count());
        if (reduce_op != HVI_REDUCE_ADASUM) /* hvd.h has none */
            run_op(HVI_KIND_REDUCESCATTER, dtype, reduce_op, some_count());
    }
    run_op(HVI_KIND_BROADCAST, dtype, HVI_REDUCE_SUM, some_count());
    run_op(HVI_KIND_ALLGATHER, dtype, HVI_REDUCE_SUM, some_count());
    run_op(HVI_KIND_ALLTOALL, dtype, HVI_REDUCE_SUM, some_count());
}

/* ---- layouts ---- */

static void set_up(void)
{
    hvt_cu_begin("devices=4;free=keeps", "", 0);
}

START_TEST(every_kind_type_and_operation)
{
    const struct layout *layout = &layouts[_i];

    open_ranks(layout);
    for (uint32_t dtype = 0; dtype < HVI_DTYPE_COUNT; dtype++)
        run_type(dtype);
    close_ranks();
}
END_TEST

/* Beyond what is packed, and what a kernel's block or a fake's stage takes at once. */
START_TEST(large_ops_have_no_seams)
{
    static const uint32_t kinds[] = {HVI_KIND_ALLREDUCE, HVI_KIND_BROADCAST, HVI_KIND_REDUCESCATTER,
                                     HVI_KIND_ALLTOALL};
    const struct layout *layout = &layouts[_i];

    open_ranks(layout);
    for (uint32_t i = 0; i < 4; i++) {
        run_op(kinds[i], HVI_DTYPE_FLOAT32, HVI_REDUCE_SUM, 300007);
        run_op(kinds[i], HVI_DTYPE_BFLOAT16, HVI_REDUCE_AVERAGE, 65537);
    }
    run_op(HVI_KIND_ALLGATHER, HVI_DTYPE_INT16, HVI_REDUCE_SUM, 100003);
    run_op(HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, HVI_REDUCE_ADASUM, 40001);
    close_ranks();
}
END_TEST

/* ---- sets and joins ---- */

static int set_ranks[RANKS_MOST], set_size, set_id;

static int add_set(struct rank *rank)
{
    struct hvd_op *it = NULL;

    if (hvd_process_set_add_async(rank->session, set_ranks, set_size, &it) != HVD_OK ||
        hvd_wait(it, DEADLINE_NS) != HVD_OK)
        return blame(rank, "%s", hvd_last_error());
    if (rank->number == 0) /* all have the same */
        set_id = hvd_op_process_set(it);
    hvd_op_free(it);
    return 0;
}

static void choose_members(bool (*is_in)(int number))
{
    op.members = 0;
    set_size = 0;
    for (int i = 0; i < rank_count; i++) {
        ranks[i].takes_part = is_in(i);
        if (!ranks[i].takes_part)
            continue;
        ranks[i].place = op.members++;
        set_ranks[set_size++] = i;
    }
}

static bool is_even(int number)
{
    return number % 2 == 0;
}

static bool is_last(int number)
{
    return number == rank_count - 1;
}

static bool is_any(int number)
{
    return number >= 0;
}

static void run_some(void)
{
    run_op(HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, HVI_REDUCE_SUM, 100);
    run_op(HVI_KIND_ALLREDUCE, HVI_DTYPE_INT32, HVI_REDUCE_AVERAGE, 1000);
    run_op(HVI_KIND_BROADCAST, HVI_DTYPE_INT64, HVI_REDUCE_SUM, 55);
    run_op(HVI_KIND_ALLGATHER, HVI_DTYPE_UINT8, HVI_REDUCE_SUM, 77);
    run_op(HVI_KIND_REDUCESCATTER, HVI_DTYPE_FLOAT64, HVI_REDUCE_MAX, 31);
    run_op(HVI_KIND_ALLTOALL, HVI_DTYPE_INT16, HVI_REDUCE_SUM, 200);
}

START_TEST(process_sets_are_on_their_own_gpus)
{
    const struct layout *layout = &layouts[_i];
    bool (*const chosen[])(int number) = {is_even, is_last, is_any};

    open_ranks(layout);
    for (uint32_t i = 0; i < 3; i++) {
        choose_members(chosen[i]);
        if (i < 2 && set_size < rank_count) {
            all_do(add_set);
            op.set = set_id;
        } else {
            op.set = 0;
        }
        if (set_size < rank_count || i == 2)
            run_some();
    }
    close_ranks();
}
END_TEST

static int join(struct rank *rank)
{
    struct hvd_op *it = NULL;

    if (hvd_join_async(rank->session, NULL, &it) != HVD_OK || hvd_wait(it, DEADLINE_NS) != HVD_OK)
        return blame(rank, "%s", hvd_last_error());
    hvd_op_free(it);
    return 0;
}

static struct hvd_op *joining;

static int last_joins(struct rank *rank)
{
    if (is_last(rank->number) && hvd_join_async(rank->session, NULL, &joining) != HVD_OK)
        return blame(rank, "%s", hvd_last_error());
    return 0;
}

static int others_join(struct rank *rank)
{
    if (!is_last(rank->number))
        return join(rank);
    if (hvd_wait(joining, DEADLINE_NS) != HVD_OK)
        return blame(rank, "%s", hvd_last_error());
    hvd_op_free(joining);
    return 0;
}

static bool is_not_last(int number)
{
    return !is_last(number);
}

START_TEST(a_rank_that_has_joined_is_absent)
{
    const struct layout *layout = &layouts[_i];

    if (layout->ranks < 2)
        return;
    open_ranks(layout);
    all_do(last_joins);
    choose_members(is_not_last);
    run_op(HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, HVI_REDUCE_SUM, 100);
    run_op(HVI_KIND_ALLREDUCE, HVI_DTYPE_INT32, HVI_REDUCE_MIN, 400);
    run_op(HVI_KIND_BROADCAST, HVI_DTYPE_INT64, HVI_REDUCE_SUM, 55);
    run_op(HVI_KIND_ALLGATHER, HVI_DTYPE_UINT8, HVI_REDUCE_SUM, 77);
    run_op(HVI_KIND_REDUCESCATTER, HVI_DTYPE_FLOAT64, HVI_REDUCE_MAX, 31);
    all_do(others_join);
    choose_members(is_any);
    run_some();
    close_ranks();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("contract/device");
    TCase *tcase = tcase_create("gpus");
    const char *whole = getenv("HVT_WHOLE");

    if (whole != NULL && strcmp(whole, "nodes") == 0) {
        layouts = all_spread;
        layout_count = sizeof all_spread / sizeof all_spread[0];
    } else if (whole != NULL) {
        layouts = others;
        layout_count = sizeof others / sizeof others[0];
    }
    if (!start_hvdds()) {
        fputs("hvdd does not start\n", stderr);
        return EXIT_FAILURE;
    }
    tcase_set_timeout(tcase, HVT_SANITIZED ? 300 : 100);
    tcase_add_checked_fixture(tcase, set_up, NULL);
    tcase_add_loop_test(tcase, every_kind_type_and_operation, 0, layout_count);
    tcase_add_loop_test(tcase, large_ops_have_no_seams, 0, layout_count);
    tcase_add_loop_test(tcase, process_sets_are_on_their_own_gpus, 0, layout_count);
    tcase_add_loop_test(tcase, a_rank_that_has_joined_is_absent, 0, layout_count);
    suite_add_tcase(suite, tcase);
    int result = hvt_run_suite(suite);
    return stop_hvdds() ? result : EXIT_FAILURE;
}
