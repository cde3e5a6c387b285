/* SPDX-License-Identifier: Apache-2.0
 * hvdd-gpu: started by hvdd, or by its unit, with a connected socket as descriptor 3. It has one GPU for one job of one user,
 * through all generations of the job, and then for the user's next job. This file puts the parts together; docs/design/gpu.md
 * says what they do. */
#include "daemon/gpu/can.h"
#include "daemon/gpu/turns.h"
#include "daemon/gpu/worker.h"

#include "base/rights.h"
#include "base/status.h"
#include "proto/started.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#define LINK_FD       3
#define CLOSE_SECONDS 5

static int usage(int exit_code)
{
    fprintf(
        exit_code == 0 ? stdout : stderr,
        "hvdd-gpu %s\n"
        "Has a GPU for a job. hvdd or its unit starts it, with a connected socket as descriptor\n"
        "3; it is of no use by hand. See hvdd(8).\n"
        "\n"
        "  --can [KERNELS [DIRS]]  says which kernels, driver and NCCL a worker would find here,\n"
        "                          with these values of gpu-kernels and gpu-library-path\n"
        "  --turns                 says how long a worker's kernel takes on the first GPU that it\n"
        "                          is shown, alone and beside a process that computes; seconds,\n"
        "                          in which it uses that GPU\n",
        HVD_VERSION_TEXT);
    return exit_code;
}

static bool link_is_socket(void)
{
    int type = 0;
    socklen_t length = sizeof(type);

    return getsockopt(LINK_FD, SOL_SOCKET, SO_TYPE, &type, &length) == 0 && type == SOCK_SEQPACKET;
}

/* hvdd decides when a worker ends, not a terminal. */
static void set_signals(void)
{
    signal(SIGINT, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

static void on_failure(void *user, const char *text)
{
    gpu_guard_fail(user, text);
}

/* There is memory to close. */
static void on_closing(void *user)
{
    struct gpu_worker *worker = user;

    gpu_launch_closing(&worker->launch);
}

/* The launch thread's: no stream has anything. */
static bool close_some(void *user, struct gpu_calls *calls, uint64_t end_ns)
{
    struct gpu_worker *worker = user;

    return gpu_imports_close_some(&worker->imports, calls, end_ns);
}

/* Likewise. */
static void before_close(void *user, uint64_t address)
{
    struct gpu_worker *worker = user;

    gpu_comms_deregister(&worker->launch.comms, address);
}

/* The device is there. */
static void go_up(struct gpu_worker *worker)
{
    const struct gpu_device *device = &worker->device;

    if (worker->up)
        return;
    worker->up = true;
    worker->imports.answer = gpu_serve_answer;
    worker->imports.closing = on_closing;
    worker->imports.before_close = before_close;
    worker->imports.failed = on_failure;
    worker->imports.user = worker;
    worker->imports.calls.usual_ns = worker->launch.calls.usual_ns;
    if (gpu_imports_open(&worker->imports, worker->event, &device->cuda, device->context,
                         worker->start.uuid, worker->start.import_bytes_max) == HVI_OK) {
        gpu_link_state(worker, HVI_GPU_UP, "");
        return;
    }
    gpu_guard_fail(worker, "no memory for a thread");
}

/* The thread of the device has come further. */
static int on_device(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct gpu_worker *worker = user;
    int state = gpu_device_state(&worker->device);
    uint64_t count;

    (void)source, (void)events;
    if (read(fd, &count, sizeof(count)) < 0 && state == HVI_INPROGRESS)
        return 0;
    if (state == HVI_INPROGRESS) {
        gpu_link_state(worker, HVI_GPU_STARTING,
                       atomic_load_explicit(&worker->device.step, memory_order_relaxed));
    } else if (state == HVI_OK) {
        go_up(worker);
    } else {
        HVI_LOG(HVI_LOG_WARN, "device", "no-device", worker->device.why, "job=%s",
                worker->start.job);
        gpu_link_state(worker, HVI_GPU_FAILED, worker->device.why);
        sd_event_exit(worker->event, 1);
    }
    return 0;
}

/* The launch thread has something to say. */
static int on_launch(sd_event_source *source, int fd, uint32_t events, void *user)
{
    struct gpu_worker *worker = user;

    (void)source, (void)fd, (void)events;
    gpu_launch_back(&worker->launch);
    if (worker->launch.is_stopped)
        gpu_imports_close_freely(&worker->imports);
    return 0;
}

static int open_launch(struct gpu_worker *worker)
{
    struct gpu_launch *launch = &worker->launch;

    launch->kernels = worker->start.kernels;
    launch->library_path = worker->start.library_path;
    launch->call_ns = worker->start.call_ns;
    launch->comm_ns = worker->start.comm_ns;
    launch->failed = on_failure;
    launch->close = close_some;
    launch->user = worker;
    if (gpu_launch_open(launch) == HVI_OK &&
        sd_event_add_io(worker->event, &worker->launch_event, launch->back_fd, EPOLLIN, on_launch,
                        worker) >= 0)
        return HVI_OK;
    return HVI_ERR_NO_MEMORY;
}

static bool prepare(void *user, const struct hvi_cuda *cuda, char *text_p, size_t text_size)
{
    struct gpu_worker *worker = user;

    return gpu_launch_prepare(&worker->launch, cuda, text_p, text_size);
}

static void run_launch(void *user)
{
    struct gpu_worker *worker = user;

    gpu_launch_run(&worker->launch);
}

static int open_device(struct gpu_worker *worker)
{
    worker->device.prepare = prepare;
    worker->device.serve = run_launch;
    worker->device.user = worker;
    if (gpu_device_open(&worker->device, worker->start.uuid) != HVI_OK)
        return HVI_ERR_NO_MEMORY;
    if (sd_event_add_io(worker->event, &worker->device_event, worker->device.event_fd, EPOLLIN,
                        on_device, worker) >= 0)
        return HVI_OK;
    return HVI_ERR_NO_MEMORY;
}

static int serve(struct gpu_worker *worker)
{
    int code = 1;

    if (sd_event_default(&worker->event) < 0)
        return 1;
    if (open_launch(worker) == HVI_OK && gpu_link_open(worker) == HVI_OK &&
        gpu_guard_open(worker) == HVI_OK && open_device(worker) == HVI_OK)
        code = sd_event_loop(worker->event);
    if (!worker->launch.is_stopped && gpu_device_state(&worker->device) != HVI_ERR_UNSUPPORTED)
        _exit(code);      /* the driver has not returned, and would not let exit() return either */
    alarm(CLOSE_SECONDS); /* calls of the driver, which no guard looks at any more */
    gpu_imports_close(&worker->imports);
    (void)gpu_device_close(&worker->device);
    worker->launch_event = sd_event_source_disable_unref(worker->launch_event);
    gpu_launch_close(&worker->launch);
    worker->guard = sd_event_source_disable_unref(worker->guard);
    worker->device_event = sd_event_source_disable_unref(worker->device_event);
    gpu_link_close(worker);
    sd_event_unref(worker->event);
    return code;
}

int main(int argc, char **argv)
{
    static struct gpu_worker worker = {
        .link_fd = -1, .device = {.event_fd = -1}, .launch = {.wake_fd = -1, .back_fd = -1}};
    int status;

    if (argc >= 2 && argc <= 4 && strcmp(argv[1], "--can") == 0)
        return gpu_can(stdout, argc > 2 ? argv[2] : NULL, argc > 3 ? argv[3] : NULL);
    if (argc == 2 && strcmp(argv[1], "--turns") == 0)
        return gpu_turns(stdout);
    if (argc > 1)
        return usage(strcmp(argv[1], "--help") == 0 ? 0 : 2);
    if (!link_is_socket())
        return usage(2);
    hvi_log_init("hvdd-gpu", HVI_LOG_INFO);
    set_signals();
    if (geteuid() != 0 && !hvi_rights_keep(0)) /* those that hvdd has for engines */
        return 1;
    status = hvi_started_tell(LINK_FD, "hvdd-gpu");
    if (status == HVI_ERR_REFUSED)
        HVI_LOG(HVI_LOG_ERROR, "link", "no-start", "this is not the connection of this user's hvdd",
                "");
    if (status == HVI_OK)
        status = gpu_link_start(&worker, LINK_FD);
    if (status != HVI_OK)
        return status == HVI_ERR_CLOSED ? 0 : 1;
    hvi_log_set_level((enum hvi_log_level)worker.start.log_level);
    if (sched_getaffinity(0, sizeof(worker.may), &worker.may) != 0)
        CPU_ZERO(&worker.may); /* more than such a set can hold */
    worker.cores = worker.may;
    return serve(&worker);
}
