/* SPDX-License-Identifier: Apache-2.0
 * Question 10. What does a round between two processes' streams cost beyond the worker's kernel, when that kernel is long? Does
 * it matter where the words lie, which side waits in a stream, and whether there is MPS? (P11 to P13 of docs/design/gpu.md too.)
 *
 * Method. A round: the trainer's stream writes `ready`; the worker's stream waits for it, runs a kernel of d microseconds that
 * fills the device, and writes `done`; the trainer's stream waits for that. d is 0 (no kernel) to 1000. The words lie in the
 * worker's device memory (CUDA IPC) or in a memfd that both processes register. All figures are microseconds beyond the
 * kernel's own time, which the worker measures alone before (kernel_alone_D). rounds_*: 20 rounds behind a gate that the CPU
 * opens, timed by events on the device. single_*: one round timed by the trainer's host. spin_*: CPU stores `ready`, CPU waits
 * for `done`. write_spin_*: stream and CPU. store_wait_*: CPU and stream. batch64_*: each wait is one of 64 waits of one call,
 * and the other 63 are over already. busy_*, under MPS only: the trainer's other stream has 300 ms of kernels of 0.5 ms queued, with
 * 32 connections in both processes and with the default. A part that hangs is an answer; its processes are killed.
 *
 * Processes. The first role starts a trainer for each part, and each trainer its worker.
 *
 * Predicted. Without MPS: rounds and singles 5 to 15 us while d is below some 20 us, 1000 us and more from 50 us on, wherever the
 * words lie; spin_* 5 to 20 us whatever d is, write_spin_* the same, store_wait_* as single_*. Under MPS: 5 to 25 us whatever d
 * is; busy_32 a few times 500 us; busy_default hangs, since the load fills the queue in which the gated stream waits. A sealed
 * memfd is taken, by both. Sources: the first run of hvdd on a GPU; the MPS guide on its default of two connections. */
#include "probe_cuda.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    PAGE = 65536,
    READY = 0,
    DONE = 128,
    COUNTER = 384,
    OVER = 1024, /* words of value 0, which nobody writes: a wait for 0 is over */
    BATCH = 64,
    ROUNDS = 20,
    SINGLES = 40,
    LOAD = 600,
};
#define START_S 15.0 /* until a part's first measurement */
#define STEP_S  4.0  /* for a measurement; a call that does not return is noticed by this */

static double settle_s = 2.5; /* for a stream, within a measurement; shorter if quick */

struct side {
    CUdeviceptr device, host; /* the words' pages; host 0: none could be registered */
    _Atomic uint64_t *words;  /* host's */
    CUstream stream, other, load;
    CUdeviceptr gate;
    _Atomic uint64_t *gate_word;
    struct probe_peer peer;
    uint64_t seq, gate_value;
    unsigned per_ms;  /* iterations of cu_work for 1 ms, in the worker */
    unsigned of_load; /* and for 0.5 ms, here */
    int is_quick;
};

struct setup {
    const char *name;
    unsigned us; /* the kernel that is wanted; 0: none */
    double alone_us;
    int is_host, is_batched, is_ready_by_cpu, is_done_by_cpu, is_busy;
};

static unsigned iterations_of(const struct side *t, const struct setup *s)
{
    return (unsigned)((double)t->per_ms * s->us / 1e3);
}

static void wait_for(CUstream s, CUdeviceptr page, unsigned offset, uint64_t seq, int is_batched)
{
    CUstreamBatchMemOpParams ops[BATCH];
    if (!is_batched) {
        CU(cuStreamWaitValue64, s, page + offset, seq, CU_STREAM_WAIT_VALUE_GEQ);
        return;
    }
    memset(ops, 0, sizeof ops);
    for (unsigned i = 0; i < BATCH; i++) {
        ops[i].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
        ops[i].waitValue.address = page + OVER + 128 * i;
        ops[i].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    }
    ops[BATCH - 1].waitValue.address = page + offset;
    ops[BATCH - 1].waitValue.value64 = seq;
    CU(cuStreamBatchMemOp, s, BATCH, ops, 0);
}

/* --- the page of host memory --- */

static int sealed_page(void)
{
    int fd = memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || ftruncate(fd, PAGE) < 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0)
        probe_fail("a sealed memfd: %s", strerror(errno));
    return fd;
}

/* 0: it could not be registered, which is an answer. */
static CUdeviceptr take_page(int fd, const char *kind, const char *by, void **at_p)
{
    CUdeviceptr address = 0;
    *at_p = probe_map_page(fd, PAGE);
    double began = probe_now_us();
    CUresult result = cu.cuMemHostRegister(
        *at_p, PAGE, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    double us = probe_now_us() - began;
    probe_answer(result == CUDA_SUCCESS ? "yes" : cu_error(result), "host_register_%s_memfd_%s",
                 kind, by);
    if (result != CUDA_SUCCESS)
        return 0;
    probe_figure(us, "us", "host_register_%s_memfd_%s_took", kind, by);
    CU(cuMemHostGetDevicePointer, &address, *at_p, 0);
    return address;
}

/* --- the worker --- */

static void worker_rounds(struct side *w, const struct probe_msg *m)
{
    CUdeviceptr page = m->a[3] ? w->host : w->device;
    for (uint64_t seq = m->a[0]; seq < m->a[0] + m->a[1]; seq++) {
        wait_for(w->stream, page, READY, seq, (int)m->a[4]);
        if (m->a[2])
            cu_work(w->stream, (unsigned)m->a[2], w->device + COUNTER);
        CU(cuStreamWriteValue64, w->stream, page + DONE, seq, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    probe_say_verb(PROBE_PEER_FD, "ready");
    cu_settle(w->stream, "the worker's rounds");
}

/* A kernel's time, while the trainer has nothing to do. */
static void worker_alone(struct side *w, const struct probe_msg *m)
{
    struct probe_msg reply = {.verb = "alone"};
    CUevent begin, end;
    float ms;
    CU(cuEventCreate, &begin, CU_EVENT_DEFAULT);
    CU(cuEventCreate, &end, CU_EVENT_DEFAULT);
    cu_work(w->stream, (unsigned)m->a[0], w->device + COUNTER);
    CU(cuEventRecord, begin, w->stream);
    for (int i = 0; i < ROUNDS; i++)
        cu_work(w->stream, (unsigned)m->a[0], w->device + COUNTER);
    CU(cuEventRecord, end, w->stream);
    cu_settle(w->stream, "the worker's kernels alone");
    CU(cuEventElapsedTime, &ms, begin, end);
    CU(cuEventDestroy, begin);
    CU(cuEventDestroy, end);
    reply.a[0] = (uint64_t)(1e6 * (double)ms / ROUNDS);
    probe_say(PROBE_PEER_FD, &reply, -1);
}

static void worker(const struct probe_options *o)
{
    struct side w = {0};
    struct probe_msg m = {.verb = "hello"}, reply = {.verb = "pages"};
    CUipcMemHandle handle;
    CUdeviceptr pages[2];
    void *at;
    int fd;
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    w.stream = cu_stream();
    w.device = cu_alloc(PAGE);
    CU(cuMemsetD8Async, w.device, 0, PAGE, w.stream);
    cu_settle(w.stream, "clearing the page");
    CU(cuIpcGetMemHandle, &handle, w.device);
    memcpy(m.bytes, &handle, sizeof handle);
    m.a[0] = cu_work_for(1000, w.device + COUNTER);
    probe_say(PROBE_PEER_FD, &m, -1);
    for (int i = 0; i < 2; i++) {
        probe_expect(PROBE_PEER_FD, "page", NULL, &fd);
        pages[i] = take_page(fd, i ? "plain" : "sealed", "worker", &at);
        reply.a[i] = pages[i] != 0;
    }
    probe_say(PROBE_PEER_FD, &reply, -1);
    probe_expect(PROBE_PEER_FD, "use", &m, NULL);
    w.host = pages[m.a[0]];
    while (probe_listen(PROBE_PEER_FD, 60, &m, NULL) == 1) {
        if (strcmp(m.verb, "rounds") == 0)
            worker_rounds(&w, &m);
        else
            worker_alone(&w, &m);
    }
}

/* --- the trainer: waiting --- */

/* Names what comes, for the first role too. */
static void step(const char *what)
{
    struct probe_msg m = {.verb = "step"};
    probe_step("%s", what);
    snprintf((char *)m.bytes, sizeof m.bytes, "%s", what);
    probe_say(PROBE_PEER_FD, &m, -1);
}

/* Ends this process, and with it the worker. */
_Noreturn static void give_up(const char *name, const char *what)
{
    char text[128];
    snprintf(text, sizeof text, "hung: not done after %g s: %s", settle_s, what);
    probe_answer(text, "%s", name);
    _exit(PROBE_OK);
}

static void settle(CUstream s, const char *name, const char *what)
{
    if (!cu_wait(s, settle_s))
        give_up(name, what);
}

static _Atomic uint64_t *host_word(const struct side *t, unsigned offset)
{
    return t->words + offset / sizeof(uint64_t);
}

static void spin(struct side *t, const char *name)
{
    double end = probe_now_us() + settle_s * 1e6;
    while (atomic_load_explicit(host_word(t, DONE), memory_order_acquire) < t->seq) {
        if (probe_now_us() > end)
            give_up(name, "the word that the CPU looks at");
    }
}

static void open_gate(struct side *t)
{
    atomic_store_explicit(t->gate_word, t->gate_value, memory_order_release);
}

/* --- the trainer: rounds --- */

static void ask(struct side *t, const struct setup *s, int count)
{
    struct probe_msg m = {.verb = "rounds",
                          .a = {t->seq + 1, (uint64_t)count, iterations_of(t, s),
                                (uint64_t)s->is_host, (uint64_t)s->is_batched}};
    probe_say(t->peer.fd, &m, -1);
    probe_expect(t->peer.fd, "ready", NULL, NULL);
}

static void run_round(struct side *t, const struct setup *s)
{
    CUdeviceptr page = s->is_host ? t->host : t->device;
    t->seq++;
    if (!s->is_ready_by_cpu)
        CU(cuStreamWriteValue64, t->stream, page + READY, t->seq, CU_STREAM_WRITE_VALUE_DEFAULT);
    if (!s->is_done_by_cpu)
        wait_for(t->stream, page, DONE, t->seq, s->is_batched);
    if (s->is_ready_by_cpu)
        atomic_store_explicit(host_word(t, READY), t->seq, memory_order_release);
}

static void queue_load(struct side *t, const struct setup *s)
{
    for (int i = 0; s->is_busy && i < LOAD; i++)
        cu_work(t->load, t->of_load, t->device + COUNTER);
}

static void drain_load(struct side *t, const struct setup *s, const char *name)
{
    if (s->is_busy)
        settle(t->load, name, "the trainer's load");
}

/* Microseconds per round beyond the kernel, timed on the device. */
static double batch(struct side *t, const struct setup *s, const char *name)
{
    CUevent begin, end;
    float ms;
    CU(cuEventCreate, &begin, CU_EVENT_DEFAULT);
    CU(cuEventCreate, &end, CU_EVENT_DEFAULT);
    ask(t, s, ROUNDS);
    CU(cuStreamWaitValue64, t->stream, t->gate, ++t->gate_value, CU_STREAM_WAIT_VALUE_GEQ);
    CU(cuEventRecord, begin, t->stream);
    for (int i = 0; i < ROUNDS; i++)
        run_round(t, s);
    CU(cuEventRecord, end, t->stream);
    queue_load(t, s);
    open_gate(t);
    settle(t->stream, name, "rounds behind a gate");
    drain_load(t, s, name);
    CU(cuEventElapsedTime, &ms, begin, end);
    CU(cuEventDestroy, begin);
    CU(cuEventDestroy, end);
    return 1e3 * (double)ms / ROUNDS - s->alone_us;
}

static void measure_rounds(struct side *t, const struct setup *s)
{
    double us[3];
    char name[64];
    int repeats = t->is_quick ? 1 : 3;
    snprintf(name, sizeof name, "%srounds_%s_%u", s->name, s->is_host ? "host" : "device", s->us);
    step(name);
    for (int i = 0; i < repeats; i++)
        us[i] = batch(t, s, name);
    probe_figure(probe_median(us, repeats), "us", "%s", name);
}

static void measure_singles(struct side *t, const struct setup *s)
{
    double us[SINGLES];
    char name[64];
    const char *how = s->is_ready_by_cpu && s->is_done_by_cpu ? "spin"
                      : s->is_ready_by_cpu                    ? "store_wait"
                      : s->is_done_by_cpu                     ? "write_spin"
                                                              : "single";
    snprintf(name, sizeof name, "%s%s_%s_%u", s->name, how, s->is_host ? "host" : "device", s->us);
    step(name);
    ask(t, s, SINGLES);
    queue_load(t, s);
    for (int i = 0; i < SINGLES; i++) {
        double began = probe_now_us();
        run_round(t, s);
        if (s->is_done_by_cpu)
            spin(t, name);
        else
            settle(t->stream, name, "a single round");
        us[i] = probe_now_us() - began - s->alone_us;
    }
    drain_load(t, s, name);
    probe_percentiles(us, SINGLES, "us", name);
}

/* P12: a stream whose first of 64 waits is not over, beside another stream. */
static void measure_starving(struct side *t)
{
    double us[ROUNDS], call_us[ROUNDS];
    step("batch64_other_stream");
    for (int i = 0; i < ROUNDS; i++) {
        double began = probe_now_us();
        wait_for(t->stream, t->host, OVER, 0, 1);
        call_us[i] = probe_now_us() - began;
        settle(t->stream, "batch64_call", "64 waits that are over");
        CU(cuStreamWaitValue64, t->stream, t->gate, ++t->gate_value, CU_STREAM_WAIT_VALUE_GEQ);
        wait_for(t->stream, t->host, OVER, 0, 1);
        began = probe_now_us();
        cu_touch(t->other, t->device + COUNTER);
        settle(t->other, "batch64_other_stream", "a kernel of one thread beside 64 waits");
        us[i] = probe_now_us() - began;
        open_gate(t);
        settle(t->stream, "batch64_other_stream", "64 waits behind an open gate");
    }
    probe_figure(probe_median(call_us, ROUNDS), "us", "batch64_call");
    probe_figure(probe_median(us, ROUNDS), "us", "batch64_other_stream");
}

/* --- the trainer: parts --- */

static void share_pages(struct side *t)
{
    const int fds[2] = {sealed_page(), probe_shared_page(PAGE)};
    struct probe_msg page = {.verb = "page"}, m, use = {.verb = "use"};
    CUdeviceptr pages[2];
    void *at[2];
    for (int i = 0; i < 2; i++) {
        pages[i] = take_page(fds[i], i ? "plain" : "sealed", "trainer", &at[i]);
        probe_say(t->peer.fd, &page, fds[i]);
    }
    probe_expect(t->peer.fd, "pages", &m, NULL);
    for (int i = 1; i >= 0; i--) {
        if (!pages[i] || !m.a[i])
            continue;
        t->host = pages[i];
        t->words = at[i];
        use.a[0] = (uint64_t)i;
    }
    probe_say(t->peer.fd, &use, -1);
    if (!t->host)
        probe_note("no memfd could be registered in both processes: no figures of host memory");
}

/* connections: the worker's, NULL for this process's own. */
static void bring_up(struct side *t, const struct probe_options *o, const char *connections)
{
    struct probe_msg m;
    void *word;
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    if (connections)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    if (strcmp(o->variant, "mps") == 0 && !cu_attribute(CU_DEVICE_ATTRIBUTE_MPS_ENABLED))
        probe_refuse("the private MPS server did not take this process");
    t->is_quick = o->is_quick;
    settle_s = o->is_quick ? 1.5 : settle_s;
    t->peer = probe_start("worker");
    probe_expect(t->peer.fd, "hello", &m, NULL);
    t->per_ms = (unsigned)m.a[0];
    t->device = cu_ipc_open(m.bytes);
    share_pages(t);
    CU(cuMemHostAlloc, &word, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    t->gate_word = word;
    atomic_store(t->gate_word, 0);
    CU(cuMemHostGetDevicePointer, &t->gate, word, 0);
    t->stream = cu_stream();
    t->other = cu_stream();
    t->load = cu_stream();
    t->of_load = cu_work_for(500, t->device + COUNTER);
    cu_touch(t->other, t->device + COUNTER);
    cu_settle(t->other, "a first kernel");
}

/* Has the worker measure the kernel, before what it is compared with. */
static struct setup with_kernel(struct side *t, const char *name, unsigned us, int is_host)
{
    struct setup s = {.name = name, .us = us, .is_host = is_host};
    struct probe_msg m = {.verb = "kernel"};
    if (us == 0)
        return s;
    m.a[0] = iterations_of(t, &s);
    probe_say(t->peer.fd, &m, -1);
    probe_expect(t->peer.fd, "alone", &m, NULL);
    s.alone_us = (double)m.a[0] / 1e3;
    return s;
}

static void rounds(const struct probe_options *o)
{
    const unsigned all[] = {0, 50, 200, 1000, 20, 100, 500};
    struct side t = {0};
    bring_up(&t, o, "32"); /* as hvdd-gpu has it */
    for (int i = 0; i < (o->is_quick ? 4 : 7); i++) {
        for (int is_host = 0; is_host <= (t.host != 0); is_host++) {
            struct setup s = with_kernel(&t, "", all[i], is_host);
            if (all[i] && !is_host)
                probe_figure(s.alone_us, "us", "kernel_alone_%u", all[i]);
            measure_rounds(&t, &s);
            measure_singles(&t, &s);
        }
    }
    for (int i = 0; i < 3 && t.host; i++) {
        struct setup s = with_kernel(&t, "", all[i], 1);
        s.is_ready_by_cpu = s.is_done_by_cpu = 1;
        measure_singles(&t, &s);
        s.is_ready_by_cpu = 0;
        measure_singles(&t, &s);
        s.is_ready_by_cpu = 1;
        s.is_done_by_cpu = 0;
        measure_singles(&t, &s);
    }
    if (t.host) {
        struct setup s = {.name = "batch64_", .is_host = 1, .is_batched = 1};
        measure_rounds(&t, &s);
        measure_singles(&t, &s);
        measure_starving(&t);
    }
}

static void busy(const struct probe_options *o)
{
    const unsigned all[] = {0, 50};
    const char *name = getenv("CUDA_DEVICE_MAX_CONNECTIONS") ? "busy_32_" : "busy_default_";
    struct side t = {0};
    bring_up(&t, o, NULL);
    for (int i = 0; i < 2; i++) {
        struct setup s = with_kernel(&t, name, all[i], t.host != 0);
        s.is_busy = 1;
        measure_singles(&t, &s);
    }
    for (int i = 0; i < 2; i++) {
        struct setup s = with_kernel(&t, name, all[i], t.host != 0);
        s.is_busy = 1;
        measure_rounds(&t, &s);
    }
}

/* --- the first role --- */

/* waitpid's status; -1: the process does not end, although it is killed. */
static int reap(struct probe_peer *peer)
{
    int status = -1;
    for (int i = 0; i < 600 && waitpid(peer->pid, &status, WNOHANG) == 0; i++) {
        status = -1;
        probe_sleep_us(10e3);
    }
    close(peer->fd);
    return status;
}

/* 1: it ended well or hung, which is an answer. */
static int run_part(const char *role, const char *name, const char *connections)
{
    struct probe_msg m;
    char last[128] = "the start", text[256];
    double wait_s = START_S;
    int got;
    if (connections)
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections, 1);
    else
        unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
    struct probe_peer peer = probe_start(role);
    while ((got = probe_listen(peer.fd, wait_s, &m, NULL)) == 1) {
        snprintf(last, sizeof last, "%.*s", (int)sizeof last - 1, (const char *)m.bytes);
        wait_s = STEP_S;
    }
    if (got < 0) {
        kill(peer.pid, SIGKILL);
        snprintf(text, sizeof text, "hung: a call does not return in: %s", last);
        probe_answer(text, "%s_outcome", name);
    }
    double began = probe_now_us();
    int status = reap(&peer);
    if (probe_now_us() - began > 1e6)
        probe_note("%s: the process took %.1f s to end", name, (probe_now_us() - began) / 1e6);
    if (got < 0 || status == 0)
        return 1;
    if (status != -1 && WIFEXITED(status) && WEXITSTATUS(status) == PROBE_REFUSED)
        _exit(PROBE_REFUSED);
    snprintf(text, sizeof text, "wait status %d in: %s", status, last);
    probe_answer(text, "%s_outcome", name);
    return 0;
}

static void first(const struct probe_options *o)
{
    int is_mps = strcmp(o->variant, "mps") == 0;
    int is_well = run_part("rounds", "rounds", is_mps ? "32" : NULL);
    if (is_mps && !o->is_check) {
        is_well &= run_part("busy", "busy_32", "32");
        is_well &= run_part("busy", "busy_default", NULL);
    }
    if (!is_well)
        _exit(PROBE_FAILED);
}

static const char *const variants[] = {"plain", "mps", NULL};
static const struct probe_role roles[] = {
    {"first", first}, {"rounds", rounds}, {"busy", busy}, {"worker", worker}, {NULL, NULL}};
const struct probe probe = {
    10, "Rounds between two processes' streams around a long kernel: where the time goes", variants,
    roles};
