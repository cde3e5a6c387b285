/* SPDX-License-Identifier: Apache-2.0
 * Question 1. What does it cost to order two processes' streams by values in device memory, and does that still hold while
 * the trainer's kernels occupy the device?
 *
 * Method. The worker allocates a page by cuMemAlloc and exports it; the trainer opens it. A round: the trainer's stream writes
 * `ready`, the worker's stream waits for it and writes `done`, the trainer's stream waits for that. rtt_*: 20 to 50 rounds are
 * enqueued in both processes behind a gate and timed by events on the device, so that no host is in the loop; with "_kernel"
 * the worker also runs a kernel of one thread in each round. submit_*: single rounds timed by the trainer's host from the
 * write's enqueue until the stream is done. submit_event_*: the same round by IPC events, which need a host's word in both
 * directions (a spinning word in shared memory). busy: the trainer's other stream has 300 ms of kernels of 0.5 ms queued that
 * fill the device. All of it again under an MPS server of this probe's own (mps_*), with 32 connections in both processes.
 *
 * Predicted. rtt_memop_idle 2 to 6 us, submit_memop_idle 10 to 20 us, submit_event_idle 10 to 30 us; busy: 2 to 4 ms, a time
 * slice of 2 ms per switch, if the memory operation itself needs the worker's slice; mps_*: 2 to 6 us, busy or not, without a
 * kernel. Sources: LMCache's timeline semaphores (PR 4551); cuda.h, Stream Memory Operations; MPS guide; the slice is an
 * inference from 2.18 ms steps in a report of two ranks on one device (nccl-eBPF). */
#include "probe_cuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE = 65536, READY = 0, DONE = 128, GATE = 256, COUNTER = 384 };

struct turns { /* a host's word to the other host; written by one side each */
    _Alignas(128) _Atomic uint64_t trainer;
    _Alignas(128) _Atomic uint64_t worker;
};

struct side {
    CUdeviceptr page;
    CUevent mine, theirs;
    CUstream stream, control, load;
    struct turns *turns;
    struct probe_peer peer;
    unsigned iterations; /* of cu_work for 0.5 ms */
    uint64_t seq, gate, turn;
    int is_busy;
};

static void spin_until(_Atomic uint64_t *word, uint64_t value)
{
    double end = probe_now_us() + PROBE_WAIT_S * 1e6;
    while (atomic_load_explicit(word, memory_order_acquire) < value) {
        if (probe_now_us() > end)
            probe_fail("the other process did not take its turn in %g s", PROBE_WAIT_S);
    }
}

static CUevent open_event(const void *bytes)
{
    CUipcEventHandle handle;
    CUevent event;
    memcpy(&handle, bytes, sizeof handle);
    CU(cuIpcOpenEventHandle, &event, handle);
    return event;
}

static void export_event(CUevent *event_p, void *bytes)
{
    CUipcEventHandle handle;
    CU(cuEventCreate, event_p, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING);
    CU(cuIpcGetEventHandle, &handle, *event_p);
    memcpy(bytes, &handle, sizeof handle);
}

static void worker_rounds(struct side *w, const struct probe_msg *m)
{
    for (uint64_t seq = m->a[0]; seq < m->a[0] + m->a[1]; seq++) {
        CU(cuStreamWaitValue64, w->stream, w->page + READY, seq, CU_STREAM_WAIT_VALUE_GEQ);
        if (m->a[2])
            cu_touch(w->stream, w->page + COUNTER);
        CU(cuStreamWriteValue64, w->stream, w->page + DONE, seq, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    probe_say_verb(PROBE_PEER_FD, "ready");
    cu_settle(w->stream, "the worker's rounds");
}

static void worker_events(struct side *w, const struct probe_msg *m)
{
    probe_say_verb(PROBE_PEER_FD, "ready");
    for (uint64_t turn = m->a[0]; turn < m->a[0] + m->a[1]; turn++) {
        spin_until(&w->turns->trainer, turn);
        CU(cuStreamWaitEvent, w->stream, w->theirs, CU_EVENT_WAIT_DEFAULT);
        CU(cuEventRecord, w->mine, w->stream);
        atomic_store_explicit(&w->turns->worker, turn, memory_order_release);
    }
    cu_settle(w->stream, "the worker's events");
}

static void worker(const struct probe_options *o)
{
    struct side w = {0};
    struct probe_msg m = {.verb = "hello"};
    CUipcMemHandle handle;
    int page_fd = -1;
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    w.stream = cu_stream();
    w.page = cu_alloc(PAGE);
    CU(cuMemsetD8Async, w.page, 0, PAGE, w.stream);
    cu_settle(w.stream, "clearing the page");
    CU(cuIpcGetMemHandle, &handle, w.page);
    memcpy(m.bytes, &handle, sizeof handle);
    export_event(&w.mine, m.bytes + 64);
    probe_say(PROBE_PEER_FD, &m, -1);
    probe_expect(PROBE_PEER_FD, "hello", &m, &page_fd);
    w.theirs = open_event(m.bytes);
    w.turns = probe_map_page(page_fd, sizeof *w.turns);
    while (probe_listen(PROBE_PEER_FD, 60, &m, NULL) == 1) {
        if (strcmp(m.verb, "rounds") == 0)
            worker_rounds(&w, &m);
        else
            worker_events(&w, &m);
    }
}

static void queue_load(struct side *t)
{
    for (int i = 0; t->is_busy && i < 600; i++)
        cu_work(t->load, t->iterations, t->page + COUNTER);
}

/* To be called when a busy measurement is over. */
static void drain_load(struct side *t, const char *what)
{
    if (!t->is_busy)
        return;
    if (cu.cuStreamQuery(t->load) == CUDA_SUCCESS)
        probe_note("%s: the load ended before the measurement did", what);
    cu_settle(t->load, "the trainer's load");
}

static void ask(struct side *t, const char *verb, uint64_t first, int count, int has_kernel)
{
    struct probe_msg m = {.a = {first, (uint64_t)count, (uint64_t)has_kernel}};
    snprintf(m.verb, sizeof m.verb, "%s", verb);
    probe_say(t->peer.fd, &m, -1);
    probe_expect(t->peer.fd, "ready", NULL, NULL);
}

static void trainer_round(struct side *t)
{
    t->seq++;
    CU(cuStreamWriteValue64, t->stream, t->page + READY, t->seq, CU_STREAM_WRITE_VALUE_DEFAULT);
    CU(cuStreamWaitValue64, t->stream, t->page + DONE, t->seq, CU_STREAM_WAIT_VALUE_GEQ);
}

/* Microseconds per round, timed on the device. */
static double batch(struct side *t, int count, int has_kernel)
{
    CUevent begin, end;
    float ms;
    CU(cuEventCreate, &begin, CU_EVENT_DEFAULT);
    CU(cuEventCreate, &end, CU_EVENT_DEFAULT);
    ask(t, "rounds", t->seq + 1, count, has_kernel);
    CU(cuStreamWaitValue64, t->stream, t->page + GATE, ++t->gate, CU_STREAM_WAIT_VALUE_GEQ);
    CU(cuEventRecord, begin, t->stream);
    for (int i = 0; i < count; i++)
        trainer_round(t);
    CU(cuEventRecord, end, t->stream);
    queue_load(t);
    CU(cuStreamWriteValue64, t->control, t->page + GATE, t->gate, CU_STREAM_WRITE_VALUE_DEFAULT);
    cu_settle(t->stream, "a batch of rounds");
    drain_load(t, "batch");
    CU(cuEventElapsedTime, &ms, begin, end);
    CU(cuEventDestroy, begin);
    CU(cuEventDestroy, end);
    return 1e3 * (double)ms / count;
}

static void measure_batches(struct side *t, const char *load, int has_kernel, int is_quick)
{
    double us[10];
    int repeats = t->is_busy || is_quick ? 3 : 10;
    probe_step("rounds by memory operations, %s%s", load, has_kernel ? ", with a kernel" : "");
    for (int i = 0; i < repeats; i++)
        us[i] = batch(t, t->is_busy ? 20 : 50, has_kernel);
    probe_figure(probe_median(us, repeats), "us", "rtt_memop%s_%s", has_kernel ? "_kernel" : "",
                 load);
}

static void measure_singles(struct side *t, const char *load, int is_event, int is_quick)
{
    double us[200];
    char name[64];
    int count = t->is_busy || is_quick ? 40 : 200;
    probe_step("single rounds by %s, %s", is_event ? "events" : "memory operations", load);
    ask(t, is_event ? "events" : "rounds", is_event ? t->turn + 1 : t->seq + 1, count, 0);
    queue_load(t);
    for (int i = 0; i < count; i++) {
        double began = probe_now_us();
        if (is_event) {
            CU(cuEventRecord, t->mine, t->stream);
            atomic_store_explicit(&t->turns->trainer, ++t->turn, memory_order_release);
            spin_until(&t->turns->worker, t->turn);
            CU(cuStreamWaitEvent, t->stream, t->theirs, CU_EVENT_WAIT_DEFAULT);
        } else {
            trainer_round(t);
        }
        cu_settle(t->stream, "a single round");
        us[i] = probe_now_us() - began;
    }
    drain_load(t, is_event ? "single events" : "single rounds");
    snprintf(name, sizeof name, "submit_%s_%s", is_event ? "event" : "memop", load);
    probe_percentiles(us, count, "us", name);
}

static void trainer(const struct probe_options *o)
{
    struct side t = {0};
    struct probe_msg m;
    /* By default a client of MPS has two queues: the load may fill the one in which the gated stream waits. */
    if (strcmp(o->variant, "mps") == 0)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    int is_mps = cu_attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED);
    probe_answer(is_mps ? "yes" : "no", "is_under_mps");
    if (!is_mps && strcmp(o->variant, "mps") == 0)
        probe_refuse("the private MPS server did not take this process");
    t.peer = probe_start("worker");
    probe_expect(t.peer.fd, "hello", &m, NULL);
    t.page = cu_ipc_open(m.bytes);
    t.theirs = open_event(m.bytes + 64);
    int page_fd = probe_shared_page(sizeof *t.turns);
    t.turns = probe_map_page(page_fd, sizeof *t.turns);
    memset(&m, 0, sizeof m);
    snprintf(m.verb, sizeof m.verb, "hello");
    export_event(&t.mine, m.bytes);
    probe_say(t.peer.fd, &m, page_fd);
    t.stream = cu_stream();
    t.control = cu_stream();
    t.load = cu_stream();
    t.iterations = cu_work_for(500, t.page + COUNTER);
    for (t.is_busy = 0; t.is_busy <= 1; t.is_busy++) {
        const char *load = t.is_busy ? "busy" : "idle";
        measure_batches(&t, load, 0, o->is_quick);
        measure_batches(&t, load, 1, o->is_quick);
        measure_singles(&t, load, 0, o->is_quick);
        measure_singles(&t, load, 1, o->is_quick);
    }
    CU(cuIpcCloseMemHandle, t.page);
}

static const char *const variants[] = {"plain", "mps", NULL};
static const struct probe_role roles[] = {{"trainer", trainer}, {"worker", worker}, {NULL, NULL}};
const struct probe probe = {
    1, "Round trip between two processes' streams: memory operations, IPC events, MPS", variants,
    roles};
