/* SPDX-License-Identifier: Apache-2.0
 * Two processes on one GPU, as a trainer and its worker are. Without MPS their kernels never run at the same time: they take turns.
 *
 *   trainer (the child) ── ready ──► worker: kernels with nothing to do, one after the other, each timed
 *                       ◄── go ───── the same, while the trainer copies
 *                       ◄── end ───
 *
 * Each makes a context of its own after the fork. */
#include "daemon/gpu/turns.h"

#include "base/clock.h"
#include "base/status.h"
#include "base/types.h"
#include "daemon/gpu/streams.h"

#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS     101
#define COPIES     8 /* in one of the trainer's streams, while it waits for the other */
#define COPY_BYTES (UINT64_C(16) << 20)
#define WARM_NS    (100 * HVI_NS_MS) /* from go to the first kernel that is timed */
#define ALL_S      20                /* for everything, in either process */

struct side {
    struct hvi_cuda cuda;
    struct gpu_calls calls;
    struct gpu_streams streams;
};

/* False: .calls.why. */
static bool open_side(struct side *side)
{
    struct gpu_calls *calls = &side->calls;
    const struct hvi_cuda *cuda = &side->cuda;
    hvi_cu_context context;
    hvi_cu_device device;

    if (hvi_cuda_open(false, &side->cuda, calls->why, sizeof(calls->why)) != HVI_OK)
        return false;
    calls->cuda = cuda;
    calls->usual_ns = ALL_S * HVI_NS_SEC;
    side->streams.calls = calls;
    return GPU_CALL(calls, "cuInit", cuda->init(0)) &&
           GPU_CALL(calls, "cuDeviceGet", cuda->device_get(&device, 0)) &&
           GPU_CALL(calls, "cuDevicePrimaryCtxRetain", cuda->context_retain(&context, device)) &&
           GPU_CALL(calls, "cuCtxSetCurrent", cuda->context_set(context)) &&
           gpu_streams_open(&side->streams, "");
}

static bool await(struct side *side, const struct gpu_stream *stream)
{
    return GPU_CALL(&side->calls, "cuStreamSynchronize",
                    side->cuda.stream_synchronize(stream->handle));
}

/* ---- the trainer ---- */

/* A copy within its staging memory. */
static struct gpu_step copy_step(const struct side *side)
{
    struct gpu_step step = {.kind = GPU_STEP_SPREAD, .bytes = COPY_BYTES};

    step.reduce = (struct hvd_reduce_args){.dtype = HVI_DTYPE_UINT8,
                                           .reduce_op = HVI_REDUCE_SUM,
                                           .ins = 1,
                                           .outs = 1,
                                           .prescale = 1,
                                           .postscale = 1,
                                           .count = COPY_BYTES};
    step.reduce.in[0] = side->streams.staging;
    step.reduce.out[0] = side->streams.staging + COPY_BYTES;
    return step;
}

/* Until the worker's end of the socket is closed, or a call fails. */
static void keep_busy(struct side *side, int fd)
{
    const struct gpu_step step = copy_step(side);
    struct pollfd item = {.fd = fd, .events = POLLIN};

    for (uint32_t turn = 0; poll(&item, 1, 0) == 0; turn++) {
        struct gpu_stream *stream = &side->streams.streams[turn % 2];
        for (int i = 0; i < COPIES; i++) {
            if (!gpu_streams_launch(&side->streams, stream, &step))
                return;
        }
        if (!await(side, &side->streams.streams[(turn + 1) % 2]))
            return;
    }
}

/* The child. Says "" when it is ready, or why it is not. */
static _Noreturn void train(int fd)
{
    static struct side side;
    char go;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(ALL_S);
    const bool is_open = open_side(&side);
    if (write(fd, is_open ? "" : side.calls.why, is_open ? 1 : strlen(side.calls.why) + 1) > 0 &&
        is_open && read(fd, &go, 1) == 1)
        keep_busy(&side, fd);
    _exit(0);
}

/* ---- the worker ---- */

static int compare(const void *one, const void *other)
{
    const uint64_t a = *(const uint64_t *)one, b = *(const uint64_t *)other;

    return (a > b) - (a < b);
}

/* 0: .calls.why. */
static uint64_t time_kernels(struct side *side)
{
    static const struct gpu_step nothing = {.kind = GPU_STEP_REDUCE};
    struct gpu_stream *stream = &side->streams.streams[0];
    uint64_t ns[ROUNDS];

    for (int i = 0; i < ROUNDS; i++) {
        const uint64_t since_ns = hvi_clock_ns();
        if (!gpu_streams_launch(&side->streams, stream, &nothing) || !await(side, stream))
            return 0;
        ns[i] = hvi_clock_ns() - since_ns;
    }
    qsort(ns, ROUNDS, sizeof(ns[0]), compare);
    return ns[ROUNDS / 2] > 0 ? ns[ROUNDS / 2] : 1;
}

/* What is not measured stays 0; then .calls.why says why. */
static void measure(struct side *side, int fd, uint64_t *idle_ns_p, uint64_t *busy_ns_p)
{
    const struct timespec warm = {.tv_nsec = (long)WARM_NS};
    struct pollfd item = {.fd = fd, .events = POLLIN};
    char told[sizeof(side->calls.why)] = "it has ended";
    const ssize_t length = read(fd, told, sizeof(told) - 1);

    if (length > 0)
        told[length] = '\0';
    if (!open_side(side))
        return;
    *idle_ns_p = time_kernels(side);
    if (*idle_ns_p > 0 && length == 1 && write(fd, "g", 1) == 1) {
        nanosleep(&warm, NULL);
        *busy_ns_p = time_kernels(side);
        if (*busy_ns_p == 0 || poll(&item, 1, 0) == 0)
            return;
        *busy_ns_p = 0;
    }
    gpu_calls_fail(&side->calls, "the process that was to compute", told);
}

int gpu_turns(FILE *out)
{
    static struct side side;
    uint64_t idle_ns = 0, busy_ns = 0;
    int fds[2];
    pid_t pid = -1;

    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0)
        pid = fork();
    if (pid < 0) {
        perror("hvdd-gpu: no second process");
        return 1;
    }
    if (pid == 0) {
        close(fds[0]);
        train(fds[1]);
    }
    close(fds[1]);
    alarm(ALL_S);
    signal(SIGPIPE, SIG_IGN);
    measure(&side, fds[0], &idle_ns, &busy_ns);
    close(fds[0]);
    waitpid(pid, NULL, 0);
    fprintf(out, "idle_ns %" PRIu64 " %s\n", idle_ns, idle_ns > 0 ? "" : side.calls.why);
    fprintf(out, "busy_ns %" PRIu64 " %s\n", busy_ns, busy_ns > 0 ? "" : side.calls.why);
    return fflush(out) == 0 ? 0 : 1;
}
