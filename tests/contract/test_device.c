/* SPDX-License-Identifier: Apache-2.0
 * The collectives on memory of GPUs, through all there is: ranks with sessions, a real hvdd, its engine, and a worker for each GPU, on
 * the fake driver, or with HVT_GPU=real on the machine's own. Ranks are threads of this process; kind x dtype x reduce op x ranks x
 * GPUs, in place and apart, with and without a stream, odd sizes and offsets. Two hvdds, which meet over the mesh on the loopback, are
 * two nodes, each with its share of the four GPUs.
 *
 * On one GPU the bits are those of docs/design/reduction.md. Between GPUs the order of additions is NCCL's, so the numbers there
 * have sums and products that are exact in any order.
 *
 * The main thread plays the test: it fills a host mirror of each rank's memory, lets all ranks do the op, and judges what they have.
 * The ranks copy mirrors to and from GPUs by the driver. What an op leaves wrong is printed and counted, and the test goes on and
 * fails at its end. It ends at once after an op that cannot be waited for, or a job that is broken.
 *
 * Seeds are fixed. By default the corners; with HVT_WHOLE in the environment the other layouts of ranks and GPUs on one node, or with
 * "nodes" all on two. A real driver gets all layouts of one node whose GPUs exist, each in one job, as it starts slowly.
 *
 * Here ranks share a context; a user's do not. A call into the driver may wait for all streams of its context. Where one of these waits
 * for an op that the calling rank has yet to submit, that would be for ever. So no stream waits before all ranks have submitted their
 * first op with a stream, which registers memory and fences; and a copy out of a GPU is enqueued when its stream has ended. */
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
#include <sys/mman.h>
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
#define LINES_MOST  30
#define FAKE        "devices=4;free=keeps"
#define REAL_MOST_S 90 /* after that no layout begins, and none goes on */

static bool is_real;

/* Of all tests, which are processes of their own. */
static struct totals {
    _Atomic int jobs, ops, wrong_ops;
    _Atomic int wrong[HVI_DTYPE_COUNT][HVI_REDUCE_COUNT]; /* of these; moves are sums */
    struct timespec begun;
} * totals;

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

/* The first one listens; `port`: where the second finds it. On a real driver there is one, without a mesh. */
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
    const char *first_of_mesh = is_real ? NULL : mesh;
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    execl(program, "hvdd", runtime, "--private=yes", "--log-level=warning", "--config=/dev/null",
          "--gpu-idle=100ms", fd, first_of_mesh, key, "--port-range=" PORTS, (char *)NULL);
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
    if (is_real)
        return start_hvdd(0, 0);
    setenv("FAKEGPU", FAKE, 1);
    return run_shell(make_key, key) && start_hvdd(0, 0) && mesh_port() > 0 &&
           start_hvdd(1, mesh_port());
}

/* Its exit status; it is killed if it has not ended in time. */
static int reap_hvdd(const struct node *node)
{
    int status = -1;

    for (int i = 0; i < 3000; i++) {
        if (waitpid(node->pid, &status, WNOHANG) != 0)
            return status;
        hvt_nap(10);
    }
    printf("the hvdd of %s does not end\n", node->address);
    kill(node->pid, SIGKILL);
    waitpid(node->pid, &status, 0);
    return status;
}

/* Whether it has logged nothing, which is printed else. */
static bool stop_hvdd(const struct node *node)
{
    char text[16384];
    ssize_t length;
    int status, fd;

    if (node->pid <= 0) /* it was never started */
        return false;
    kill(node->pid, SIGTERM);
    status = reap_hvdd(node);
    fd = open(node->log, O_RDONLY);
    length = fd < 0 ? 0 : read(fd, text, sizeof text);
    if (length > 0)
        printf("the log of %s:\n%.*s", node->address, (int)length, text);
    if (status != 0)
        printf("the hvdd of %s has ended with status %#x\n", node->address, (unsigned)status);
    return status == 0 && length == 0;
}

/* The second one first: to it the end of the other would be a loss. */
static bool stop_hvdds(void)
{
    bool is_quiet = true;

    for (uint32_t i = is_real ? 1 : NODES; i-- > 0;)
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
    bool is_first; /* of these ranks: streamed, and no stream waits before all have submitted */
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
    hvi_cu_ptr arena;
    unsigned char *mirror; /* of .arena, in memory of the host */
    uint64_t used, in_count, out_count;
    unsigned char *in, *out; /* in .mirror */
    unsigned char *expected;
    bool is_near;    /* .expected is to be come close to: as doubles */
    bool is_rounded; /* the same, as it is: what is added has been rounded before */
    bool is_broken;  /* with .wrong: nothing more can be done with these ranks */
    char wrong[512];
    uint64_t wrong_at; /* the element; WHOLE: .wrong is about none */
};
#define WHOLE UINT64_MAX

static struct rank ranks[RANKS_MOST];
static int rank_count, gpu_count, node_count, jobs, ops, wrong_ops;
static pthread_barrier_t gate, submitted;
static int (*task)(struct rank *rank); /* what ranks do when the gate opens; NULL: they end */

static void *on_gpu(const struct rank *rank, const unsigned char *in_mirror)
{
    return (void *)(uintptr_t)(rank->arena + (uint64_t)(in_mirror - rank->mirror));
}

static int submit(struct rank *rank, struct hvd_op **op_p)
{
    enum hvd_dtype dtype = (enum hvd_dtype)op.dtype;
    struct hvd_tensor in = hvd_tensor_1d(on_gpu(rank, rank->in), dtype, (int64_t)rank->in_count);
    struct hvd_tensor out = hvd_tensor_1d(on_gpu(rank, rank->out), dtype, (int64_t)rank->out_count);
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
    rank->wrong_at = WHOLE;
    return -1;
}

/* As blame(), of a call that has failed so. Only an error of one op lets the next one have a meaning. */
static int blame_call(struct rank *rank, int rc, const char *more)
{
    rank->is_broken = !hvi_status_is_of_op(rc) || rc == HVD_ERR_TIMEOUT;
    return blame(rank, "%s (%d) %s", hvd_last_error(), rc, more);
}

/* ---- memory ---- */

static int check_driver(struct rank *rank, int error, const char *call)
{
    char text[64] = "";

    if (error == HVI_CU_OK)
        return 0;
    rank->is_broken = true;
    hvi_cuda_describe(&hvt_cu, error, text, sizeof text);
    return blame(rank, "%s: %s", call, text);
}

/* To the GPU, in the rank's stream. An op that is not streamed must find it there. */
static int copy_in(struct rank *rank)
{
    int error = hvt_cu.copy_in(rank->arena, rank->mirror, rank->used, rank->stream);

    if (error == HVI_CU_OK && !op.streamed)
        error = hvt_cu.stream_synchronize(rank->stream);
    return check_driver(rank, error, "the copy to the GPU");
}

/* With nothing in the rank's stream. */
static int copy_out(struct rank *rank)
{
    int error = hvt_cu.copy_out(rank->mirror, rank->arena, rank->used, rank->stream);

    if (error == HVI_CU_OK)
        error = hvt_cu.stream_synchronize(rank->stream);
    return check_driver(rank, error, "the copy from the GPU");
}

/* ---- what an op has left ---- */

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

/* An element as one number. */
static unsigned long bits_of(const unsigned char *data, uint64_t at)
{
    unsigned long bits = 0;
    uint32_t size = hvi_dtype_bytes(op.dtype);

    memcpy(&bits, data + at * size, size);
    return bits;
}

static int blame_element(struct rank *rank, uint64_t at, uint64_t wrong_count)
{
    const int digits = 2 * (int)hvi_dtype_bytes(op.dtype);
    char expected[64];

    if (rank->is_near)
        snprintf(expected, sizeof expected, "about %a", ((double *)(void *)rank->expected)[at]);
    else
        snprintf(expected, sizeof expected, "%s%0*lx", rank->is_rounded ? "about " : "", digits,
                 bits_of(rank->expected, at));
    blame(rank, "element %lu of %lu: got %0*lx, expected %s (%lu are wrong)", (unsigned long)at,
          (unsigned long)rank->out_count, digits, bits_of(rank->out, at), expected,
          (unsigned long)wrong_count);
    rank->wrong_at = at;
    return -1;
}

static int compare(struct rank *rank)
{
    uint32_t size = hvi_dtype_bytes(op.dtype);
    uint64_t first = 0, wrong_count = 0;

    for (uint64_t i = rank->out_count; i-- > 0;) {
        if (is_right(rank, i))
            continue;
        first = i;
        wrong_count++;
    }
    if (wrong_count > 0)
        return blame_element(rank, first, wrong_count);
    for (uint32_t i = 0; i < GUARD; i++) {
        if (rank->out[-1 - (int)i] != GUARD_BYTE && !op.in_place)
            return blame(rank, "byte %u before the output was written", i + 1);
        if (rank->out[rank->out_count * size + i] != GUARD_BYTE && !op.in_place)
            return blame(rank, "byte %u behind the output was written", i);
    }
    return 0;
}

/* What the stream has is looked at before the host knows that the op is over. */
static int wait_in_stream(struct rank *rank, struct hvd_op *it)
{
    int rc = hvd_op_stream_wait(it, rank->stream);

    if (rc != HVD_OK)
        return blame_call(rank, rc, "from hvd_op_stream_wait");
    if (!hvt_cu_ends(rank->stream)) {
        rank->is_broken = true;
        return blame(rank, "the stream still waits; %s", hvd_op_error(it));
    }
    if (check_driver(rank, hvt_cu.stream_query(rank->stream), "the stream") != 0)
        return -1;
    return copy_out(rank) == 0 ? compare(rank) : -1;
}

static int do_op(struct rank *rank)
{
    struct hvd_op *it = NULL;
    int rc, wrong;

    if (!rank->takes_part)
        return 0;
    wrong = copy_in(rank);
    rc = wrong == 0 ? submit(rank, &it) : HVD_OK;
    if (op.is_first)
        pthread_barrier_wait(&submitted);
    if (rc != HVD_OK)
        return blame_call(rank, rc, "");
    if (wrong == 0 && op.streamed)
        wrong = wait_in_stream(rank, it);
    if (it == NULL || rank->is_broken)
        return -1;
    rc = hvd_wait(it, DEADLINE_NS);
    if (rc != HVD_OK)
        return blame_call(rank, rc, hvd_op_error(it));
    hvd_op_free(it);
    if (wrong == 0)
        wrong = copy_out(rank);
    return wrong == 0 ? compare(rank) : wrong;
}

/* ---- ranks ---- */

static int create_chunk(hvi_cu_allocation *chunk_p, int gpu, int handle_types)
{
    int (*create)(hvi_cu_allocation *, size_t, const struct hvi_cu_allocation_properties *,
                  uint64_t);
    const struct hvi_cu_allocation_properties properties = {
        .type = 1, .handle_types = handle_types, .location = {1, gpu}};
    void *symbol = hvt_cu_symbol("cuMemCreate");

    memcpy(&create, &symbol, sizeof create);
    return create(chunk_p, CHUNK, &properties, 0);
}

/* A real GPU may lack fabric handles. */
static int handle_types_of(const struct rank *rank)
{
    hvi_cu_allocation chunk;

    if (rank->number % 4 != 3 || create_chunk(&chunk, rank->gpu, HVI_CU_HANDLE_FABRIC) != 0)
        return HVI_CU_HANDLE_FD;
    HVT_CU(hvt_cu.allocation_release(chunk));
    return HVI_CU_HANDLE_FABRIC;
}

/* In chunks, as PyTorch's expandable segments: each second rank has such an arena, and each fourth by fabric handles. */
static hvi_cu_ptr map_arena(int gpu, int handle_types)
{
    const struct hvi_cu_access access = {{1, gpu}, 3};
    hvi_cu_ptr base = 0;

    HVT_CU(hvt_cu.reserve(&base, ARENA_BYTES, 0, 0, 0));
    for (hvi_cu_ptr at = base; at < base + ARENA_BYTES; at += CHUNK) {
        hvi_cu_allocation chunk;
        HVT_CU(create_chunk(&chunk, gpu, handle_types));
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

/* Registered, so that the driver's copies do not wait for the stream. */
static unsigned char *make_mirror(void)
{
    void *mirror =
        mmap(NULL, ARENA_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(mirror, MAP_FAILED);
    HVT_CU(hvt_cu.host_register(mirror, ARENA_BYTES, 0));
    return mirror;
}

static void take_gpu(struct rank *rank)
{
    hvi_cu_device device;

    HVT_CU(hvt_cu.device_get(&device, rank->gpu));
    HVT_CU(hvt_cu.context_retain(&rank->context, device));
    HVT_CU(hvt_cu.context_set(rank->context));
    rank->stream = hvt_cu_stream();
    rank->arena =
        rank->number % 2 ? map_arena(rank->gpu, handle_types_of(rank)) : hvt_cu_alloc(ARENA_BYTES);
    rank->mirror = make_mirror();
}

static void begin(struct rank *rank)
{
    struct hvd_options options;
    char job[32];

    take_gpu(rank);
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
              {4, 3, false, false}, {5, 1, false, false}, {5, 2, false, false},
              {5, 3, true, false},  {5, 4, false, false}, {6, 1, false, false},
              {6, 2, true, false},  {6, 3, false, false}, {6, 4, false, false},
              {7, 1, false, false}, {7, 2, false, false}, {7, 3, true, false},
              {7, 4, false, false}, {8, 1, false, false}, {8, 2, false, false},
              {8, 3, true, false},  {8, 4, false, false}, {8, 4, true, false}},
  all_spread[] = {
      {2, 2, false, true}, {3, 2, false, true}, {3, 2, true, true},  {3, 3, false, true},
      {4, 2, false, true}, {4, 3, true, true},  {4, 4, false, true}, {5, 2, false, true},
      {5, 3, true, true},  {5, 4, false, true}, {6, 2, false, true}, {6, 3, true, true},
      {6, 4, true, true},  {7, 2, true, true},  {7, 3, false, true}, {7, 4, true, true},
      {8, 2, false, true}, {8, 3, true, true},  {8, 4, false, true}, {8, 4, true, true}};

#define COUNT(layouts) ((int)(sizeof(layouts) / sizeof((layouts)[0])))

static struct layout of_one_node[COUNT(corners) + COUNT(others)]; /* on GPUs that are there */
static const struct layout *layouts = corners;
static int layout_count = COUNT(corners);

static void open_ranks(const struct layout *layout)
{
    rank_count = layout->ranks;
    gpu_count = layout->gpus;
    node_count = layout->spread ? NODES : 1;
    jobs++;
    memset(ranks, 0, sizeof ranks);
    ck_assert_int_eq(pthread_barrier_init(&gate, NULL, (unsigned)rank_count + 1), 0);
    ck_assert_int_eq(pthread_barrier_init(&submitted, NULL, (unsigned)rank_count), 0);
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

static struct rank *member(uint32_t place)
{
    struct rank *rank = ranks;

    while (!rank->takes_part || rank->place != place)
        rank++;
    return rank;
}

/* What the members brought for an element that has come out wrong; an op in place has written over it. */
static void print_inputs(const struct rank *rank)
{
    uint64_t at = rank->wrong_at;

    if (at == WHOLE || op.in_place ||
        (op.kind != HVI_KIND_ALLREDUCE && op.kind != HVI_KIND_REDUCESCATTER))
        return;
    for (uint32_t i = 0; i < rank->place && op.kind == HVI_KIND_REDUCESCATTER; i++)
        at += member(i)->out_count;
    printf("; of");
    for (uint32_t i = 0; i < op.members; i++)
        printf(" %0*lx", 2 * (int)hvi_dtype_bytes(op.dtype), bits_of(member(i)->in, at));
}

/* The first of the ranks for which the op has gone wrong, and how many more there are. */
static void report(const struct rank *rank, int more)
{
    int before = totals->wrong_ops++;

    wrong_ops++;
    totals->wrong[op.dtype][op.reduce_op]++;
    if (before == LINES_MOST)
        puts("failure: further ones are counted");
    if (before >= LINES_MOST)
        return;
    printf("failure: %s: rank %d of %d on GPU %d of %d, %d nodes: %s", op.text, rank->number,
           rank_count, rank->gpu, gpu_count, node_count, rank->wrong);
    print_inputs(rank);
    printf("; %d more ranks\n", more);
}

static void all_do(int (*what)(struct rank *rank))
{
    const struct rank *first = NULL;
    bool is_broken = false;
    int wrong = 0;

    task = what;
    pthread_barrier_wait(&gate);
    if (task == NULL)
        return;
    pthread_barrier_wait(&gate);
    for (int i = rank_count; i-- > 0;) {
        if (ranks[i].wrong[0] == '\0')
            continue;
        first = &ranks[i];
        wrong++;
        is_broken = is_broken || ranks[i].is_broken || what != do_op;
    }
    if (first != NULL)
        report(first, wrong - 1);
    fflush(stdout);
    ck_assert_msg(!is_broken, "%s: what these %d ranks had yet to do is left out", op.text,
                  rank_count);
    for (int i = 0; i < rank_count; i++)
        ranks[i].wrong[0] = '\0';
}

static double seconds(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)(now.tv_sec - totals->begun.tv_sec) +
           (double)(now.tv_nsec - totals->begun.tv_nsec) / 1e9;
}

static void close_ranks(void)
{
    all_do(NULL);
    for (int i = 0; i < rank_count; i++)
        pthread_join(ranks[i].thread, NULL);
    pthread_barrier_destroy(&gate);
    pthread_barrier_destroy(&submitted);
    if (is_real)
        printf("%d ranks on %d GPUs: %d ops, %d of them wrong, %.1f s since the start\n",
               rank_count, gpu_count, ops, wrong_ops, seconds());
    fflush(stdout);
    ck_assert_int_eq(wrong_ops, 0);
    totals->jobs++;
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
    memset(rank->mirror + at - GUARD, GUARD_BYTE, GUARD);
    memset(rank->mirror + at + count * size, GUARD_BYTE, GUARD);
    return rank->mirror + at;
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
    op.streamed = below(2) == 0 || op.is_first;
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
    ck_assert_msg(!is_real || seconds() < REAL_MOST_S, "%s: there is no time left", op.text);
    ops++;
    totals->ops++;
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

/* A fake's settings, also of a fake that plays the real one. */
static void set_up(void)
{
    const char *settings = getenv("FAKEGPU");

    hvt_cu_begin(is_real ? settings != NULL ? settings : "" : FAKE, "", 0);
}

static void open_layout(const struct layout *layout)
{
    open_ranks(layout);
    op.is_first = true;
    run_op(HVI_KIND_ALLREDUCE, HVI_DTYPE_UINT8, HVI_REDUCE_SUM, 64);
    op.is_first = false;
}

/* Each layout begins with another type: so one that breaks a job does not hide the others everywhere. */
static void run_types(int layout)
{
    for (uint32_t i = 0; i < HVI_DTYPE_COUNT; i++)
        run_type((i + (uint32_t)layout * 3) % HVI_DTYPE_COUNT);
}

START_TEST(every_kind_type_and_operation)
{
    open_layout(&layouts[_i]);
    run_types(_i);
    close_ranks();
}
END_TEST

static void run_large(void)
{
    static const uint32_t kinds[] = {HVI_KIND_ALLREDUCE, HVI_KIND_BROADCAST, HVI_KIND_REDUCESCATTER,
                                     HVI_KIND_ALLTOALL};

    for (uint32_t i = 0; i < 4; i++) {
        run_op(kinds[i], HVI_DTYPE_FLOAT32, HVI_REDUCE_SUM, 300007);
        run_op(kinds[i], HVI_DTYPE_BFLOAT16, HVI_REDUCE_AVERAGE, 65537);
    }
    run_op(HVI_KIND_ALLGATHER, HVI_DTYPE_INT16, HVI_REDUCE_SUM, 100003);
    run_op(HVI_KIND_ALLREDUCE, HVI_DTYPE_FLOAT32, HVI_REDUCE_ADASUM, 40001);
}

/* Beyond what is packed, and what a kernel's block or a fake's stage takes at once. */
START_TEST(large_ops_have_no_seams)
{
    open_layout(&layouts[_i]);
    run_large();
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

static void run_sets(void)
{
    bool (*const chosen[])(int number) = {is_even, is_last, is_any};

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
}

START_TEST(process_sets_are_on_their_own_gpus)
{
    open_layout(&layouts[_i]);
    run_sets();
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

/* Of two ranks and more. */
static void run_joins(void)
{
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
}

START_TEST(a_rank_that_has_joined_is_absent)
{
    if (layouts[_i].ranks < 2)
        return;
    open_layout(&layouts[_i]);
    run_joins();
    close_ranks();
}
END_TEST

/* On a real driver a job starts in a second or more. */
START_TEST(one_job_does_all_of_that)
{
    open_layout(&layouts[_i]);
    run_types(_i);
    run_large();
    run_sets();
    if (layouts[_i].ranks > 1)
        run_joins();
    close_ranks();
}
END_TEST

/* ---- which ---- */

/* In a child: what has called CUDA must not fork. */
static void tell_gpus(void)
{
    char text[512] = "", name[128] = "";
    struct hvi_cuda cuda;
    Dl_info library;
    int count = 0;

    alarm(60);
    if (hvi_cuda_open(false, &cuda, text, sizeof text) != 0) {
        puts(text);
    } else if (cuda.init(0) != HVI_CU_OK || cuda.device_count(&count) != HVI_CU_OK) {
        puts("the driver is there, but cuInit or cuDeviceGetCount fails");
    } else if (dladdr(dlsym(cuda.library, "cuInit"), &library) != 0) {
        if (count > 0 && cuda.device_name(name, sizeof name, 0) != HVI_CU_OK)
            name[0] = '\0';
        printf("%d GPUs, the first is \"%s\"; %s, CUDA %d.%d\n", count, name, library.dli_fname,
               cuda.version / 1000, cuda.version % 1000 / 10);
    }
    fflush(stdout);
    _exit(count);
}

static int count_gpus(void)
{
    int status = 0;
    pid_t pid = fork();

    if (pid == 0)
        tell_gpus();
    if (waitpid(pid, &status, 0) == pid && WIFEXITED(status))
        return WEXITSTATUS(status);
    printf("the driver does not say how many GPUs there are; wait status %#x\n", (unsigned)status);
    return 0;
}

static void choose_real(void)
{
    const int gpus = count_gpus();

    layouts = of_one_node;
    layout_count = 0;
    for (int i = 0; i < COUNT(corners) + COUNT(others); i++) {
        const struct layout *layout =
            i < COUNT(corners) ? &corners[i] : &others[i - COUNT(corners)];
        if (!layout->spread && layout->gpus <= gpus)
            of_one_node[layout_count++] = *layout;
    }
    printf("%d layouts of one node; those of two nodes, and of more than %d GPUs, are left out\n",
           layout_count, gpus);
    fflush(stdout);
}

static void choose_layouts(void)
{
    const char *gpu = getenv("HVT_GPU"), *whole = getenv("HVT_WHOLE");

    is_real = gpu != NULL && strcmp(gpu, "real") == 0;
    if (is_real) {
        choose_real();
    } else if (whole != NULL && strcmp(whole, "nodes") == 0) {
        layouts = all_spread;
        layout_count = COUNT(all_spread);
    } else if (whole != NULL) {
        layouts = others;
        layout_count = COUNT(others);
    }
}

static int run_tests(void)
{
    Suite *suite = suite_create("contract/device");
    TCase *tcase = tcase_create("gpus");

    tcase_set_timeout(tcase, is_real ? 60 : HVT_SANITIZED ? 300 : 100);
    tcase_add_checked_fixture(tcase, set_up, NULL);
    if (is_real) {
        tcase_add_loop_test(tcase, one_job_does_all_of_that, 0, layout_count);
    } else {
        tcase_add_loop_test(tcase, every_kind_type_and_operation, 0, layout_count);
        tcase_add_loop_test(tcase, large_ops_have_no_seams, 0, layout_count);
        tcase_add_loop_test(tcase, process_sets_are_on_their_own_gpus, 0, layout_count);
        tcase_add_loop_test(tcase, a_rank_that_has_joined_is_absent, 0, layout_count);
    }
    suite_add_tcase(suite, tcase);
    return hvt_run_suite(suite);
}

static void print_totals(bool is_good)
{
    for (uint32_t dtype = 0; dtype < HVI_DTYPE_COUNT; dtype++) {
        for (uint32_t reduce_op = 0; reduce_op < HVI_REDUCE_COUNT; reduce_op++) {
            int wrong = totals->wrong[dtype][reduce_op];
            if (wrong > 0)
                printf("%s %s: %d ops were wrong\n", hvi_dtype_text(dtype),
                       hvi_reduce_text(reduce_op), wrong);
        }
    }
    printf("%s driver: %d layouts, %d jobs ended well, %d ops, %d of them wrong, %.1f s: %s\n",
           is_real ? "the machine's" : "the fake", layout_count, totals->jobs, totals->ops,
           totals->wrong_ops, seconds(), is_good ? "passed" : "FAILED");
}

int main(void)
{
    int result = EXIT_FAILURE;

    totals = mmap(NULL, sizeof *totals, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (totals == MAP_FAILED)
        return EXIT_FAILURE;
    clock_gettime(CLOCK_MONOTONIC, &totals->begun);
    setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32",
           0); /* a stream that waits holds up no other rank's */
    choose_layouts();
    bool is_up = start_hvdds();
    if (!is_up)
        puts("hvdd does not start");
    else if (layout_count > 0)
        result = run_tests();
    if (!stop_hvdds())
        result = EXIT_FAILURE;
    print_totals(result == EXIT_SUCCESS);
    return result;
}
