/* SPDX-License-Identifier: Apache-2.0
 * Question 9. A kernel of the worker writes out of bounds. What does the worker see, does anybody else notice, how long until
 * a new worker can work, and what does an idle worker cost?
 *
 * Method. This process has a context of its own and watches the device's free memory. A worker starts; its device memory (fall
 * of what is free) and host memory (VmRSS) are taken once it has its context and kernels, and again with an NCCL communicator
 * of one rank. Then it launches a kernel that stores a terabyte off, and tells the error of the stream and of the next three
 * calls before it exits. Times from the order to crash: until the error is seen, until the process is reaped, until a new
 * process has its context, until that has its communicator. Three times. After each, this process's own kernel must work, and
 * the memory must be back.
 *
 * Predicted. CUDA_ERROR_ILLEGAL_ADDRESS (700) at every call afterwards; this process is not affected (without MPS); error
 * within 10 ms, exit 0.1 to 0.5 s, context 0.3 to 1 s, communicator 0.5 to 1.5 s more; about 500 MiB of the device and 200 MiB
 * of the host per idle worker, NCCL a further 100 to 400 MiB. Sources: CUDA driver API, sticky errors; gpu.md's budget of
 * 0.5 GB per worker; the times are estimates. */
#include "probe_cuda.h"
#include "probe_nccl.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void crash(void)
{
    struct probe_msg m = {.verb = "crashed"};
    size_t a, b;
    CUdeviceptr p = cu_alloc(4096), q;
    CUstream s = cu_stream();
    cu_launch(cu_kernel("probe_out_of_bounds"), 1, 32, s, (void *[]){&p});
    double end = probe_now_us() + PROBE_WAIT_S * 1e6;
    CUresult result;
    while ((result = cu.cuStreamQuery(s)) == CUDA_ERROR_NOT_READY && probe_now_us() < end)
        ;
    m.a[0] = (uint64_t)result;
    m.a[1] = (uint64_t)cu.cuCtxSynchronize();
    m.a[2] = (uint64_t)cu.cuMemAlloc(&q, 4096);
    m.a[3] = (uint64_t)cu.cuMemGetInfo(&a, &b);
    probe_say(PROBE_PEER_FD, &m, -1);
    _exit(3); /* as a worker would: no CUDA call in between */
}

static void worker(const struct probe_options *o)
{
    struct probe_msg m;
    cu_attach(o, CU_NEEDS_TWO_PROCESSES);
    CUstream s = cu_stream();
    CUdeviceptr word = cu_alloc(8);
    cu_touch(s, word);
    cu_settle(s, "a first kernel");
    probe_say_verb(PROBE_PEER_FD, "context");
    probe_expect(PROBE_PEER_FD, "go on", NULL, NULL);
    const char *why_not = nccl_load();
    if (why_not) {
        probe_note("no communicator: %s", why_not);
    } else {
        void *comm = nccl_comm_alone();
        CUdeviceptr p = cu_alloc(4096);
        nccl_sum_fp32(comm, p, 1024, s);
        cu_settle(s, "a first allreduce");
    }
    probe_say_verb(PROBE_PEER_FD, "comm");
    probe_expect(PROBE_PEER_FD, "crash", &m, NULL);
    crash();
}

struct watcher {
    CUstream s;
    CUdeviceptr word;
    double free_alone;
};

/* Starts a worker and follows it to its communicator. Times since `from_us`. */
static struct probe_peer bring_up(struct watcher *w, double from_us, double *context_ms_p,
                                  double *comm_ms_p, int is_first)
{
    struct probe_peer peer = probe_start("worker");
    probe_expect(peer.fd, "context", NULL, NULL);
    *context_ms_p = (probe_now_us() - from_us) / 1e3;
    if (is_first) {
        probe_figure(w->free_alone - cu_free_mib(), "MiB", "device_memory_context");
        probe_figure(probe_status_kib(peer.pid, "VmRSS") / 1024, "MiB", "host_memory_context");
    }
    probe_say_verb(peer.fd, "go on");
    probe_expect(peer.fd, "comm", NULL, NULL);
    *comm_ms_p = (probe_now_us() - from_us) / 1e3;
    if (is_first) {
        probe_figure(w->free_alone - cu_free_mib(), "MiB", "device_memory_context_and_comm");
        probe_figure(probe_status_kib(peer.pid, "VmRSS") / 1024, "MiB",
                     "host_memory_context_and_comm");
    }
    return peer;
}

static void tell_errors(const struct probe_msg *m)
{
    const char *const names[] = {"stream", "next_synchronize", "next_alloc", "next_get_info"};
    for (int i = 0; i < 4; i++)
        probe_answer(cu_error((CUresult)m->a[i]), "error_of_%s", names[i]);
}

static void check_self(struct watcher *w)
{
    cu_touch(w->s, w->word);
    double end = probe_now_us() + PROBE_WAIT_S * 1e6;
    CUresult result;
    while ((result = cu.cuStreamQuery(w->s)) == CUDA_ERROR_NOT_READY && probe_now_us() < end)
        ;
    if (result != CUDA_SUCCESS) {
        probe_answer(cu_error(result), "bystander");
        probe_fail("the bystander's context is lost too: %s", cu_error(result));
    }
}

static void watcher(const struct probe_options *o)
{
    struct watcher w = {0};
    struct probe_msg m;
    int repeats = o->is_quick ? 1 : 3;
    double seen[3], reaped[3], context[3], comm[3], unused;
    cu_attach(o, CU_NEEDS_TWO_PROCESSES);
    w.s = cu_stream();
    w.word = cu_alloc(8);
    check_self(&w);
    w.free_alone = cu_free_mib();
    probe_step("starting a worker");
    double began = probe_now_us();
    struct probe_peer peer = bring_up(&w, began, &context[0], &comm[0], 1);
    probe_figure(context[0], "ms", "first_start_until_context");
    probe_figure(comm[0], "ms", "first_start_until_comm");
    for (int i = 0; i < repeats; i++) {
        probe_step("crash %d", i + 1);
        began = probe_now_us();
        probe_say_verb(peer.fd, "crash");
        probe_expect(peer.fd, "crashed", &m, NULL);
        seen[i] = (probe_now_us() - began) / 1e3;
        if (i == 0)
            tell_errors(&m);
        int status = probe_end(&peer, PROBE_WAIT_S);
        reaped[i] = (probe_now_us() - began) / 1e3;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 3)
            probe_note("the worker ended otherwise than by exit: wait status %d", status);
        check_self(&w);
        peer = bring_up(&w, began, &context[i], &comm[i], 0);
    }
    probe_answer("works", "bystander");
    probe_figure(probe_median(seen, repeats), "ms", "crash_until_error_seen");
    probe_figure(probe_median(reaped, repeats), "ms", "crash_until_reaped");
    probe_figure(probe_median(context, repeats), "ms", "crash_until_new_context");
    probe_figure(probe_median(comm, repeats), "ms", "crash_until_new_comm");
    probe_say_verb(peer.fd, "crash");
    probe_expect(peer.fd, "crashed", NULL, NULL);
    probe_end(&peer, PROBE_WAIT_S);
    unused = w.free_alone - cu_free_mib();
    for (double end = probe_now_us() + 2e6; unused > 1 && probe_now_us() < end;
         unused = w.free_alone - cu_free_mib())
        probe_sleep_us(1e4);
    probe_figure(unused, "MiB", "device_memory_left_behind");
}

static const struct probe_role roles[] = {{"watcher", watcher}, {"worker", worker}, {NULL, NULL}};
const struct probe probe = {
    9, "A worker's sticky error: who notices, how long until a new one works", NULL, roles};
