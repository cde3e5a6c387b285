/* SPDX-License-Identifier: Apache-2.0
 * Question 11. While one thread waits in cuIpcCloseMemHandle for a gated stream (question 2), which calls of another thread
 * return, and which wait too? And what does another process see first of a process with a context that is killed?
 *
 * Method. Stream A waits for a word of host memory. A second thread calls cuIpcCloseMemHandle, then waits in it. This thread
 * makes one call after the other for a stream B, and the calls that concern no stream. A thread without CUDA opens the gate
 * after half a second, or when all calls are done. A call that took more than 0.2 s was blocked; the next is then tried beside
 * a new waiting close. The same beside cuMemFree and cuMemHostUnregister, as far as these wait. At last a process with a context and
 * 1 GiB is killed five times: microseconds until its robust mutex is free, until its sockets are at their end (one opened
 * before CUDA, and one after), until its pidfd is readable, and until it is reaped.
 *
 * Predicted. Close and free wait, unregister waits too. Launches, memory operations and queries return within 100 us;
 * opening, registering and allocating are blocked (one lock of the context), or none is. The mutex is free within 1 ms, the
 * socket of before CUDA ends with the driver's files, after 100 to 400 ms, like the pidfd, and that of after CUDA earlier: Linux
 * gives up a dead process' robust mutexes, then its memory, then its files, the highest number first, then makes it a zombie.
 * Sources: probes 2 and 3 on an H100; the order of files as seen beside the fake driver. */
#include "probe_cuda.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BYTES = 2 << 20, PAGE = 65536, MOST_KILLS = 5 };
#define BLOCKED_S 0.2
#define BUDGET_S  12.0 /* for all but the kills */

enum waiter { CLOSE, FREE, UNREGISTER, WAITERS };
static const char *const waiter_names[] = {"close", "free", "unregister"};

static double gate_s = 0.5; /* 0.3 if quick */

static struct {
    CUstream a, b;
    CUdeviceptr word, gate;
    _Atomic uint64_t *gate_word;
    uint64_t gate_value;
    unsigned char handles[2][CU_IPC_HANDLE_SIZE]; /* for the waiting close, for the open */
    _Atomic int is_early, is_waiter_in, is_waiter_done;
    pthread_t waiter, opener;
    enum waiter kind;
    CUdeviceptr subject; /* of the waiter's call */
    void *subject_page;
    double waiter_us;
} p11;

/* --- the calls of this thread, in the order of importance; each has its preparations before the gate --- */

static CUdeviceptr opened, allocated;
static void *registered;

static void call_launch(void)
{
    cu_touch(p11.b, p11.word);
}

static void call_write(void)
{
    CU(cuStreamWriteValue64, p11.b, p11.word + 128, 1, CU_STREAM_WRITE_VALUE_DEFAULT);
}

static void call_wait(void)
{
    CU(cuStreamWaitValue64, p11.b, p11.word + 256, 0, CU_STREAM_WAIT_VALUE_GEQ);
}

static void call_batch(void)
{
    CUstreamBatchMemOpParams ops[2];
    memset(ops, 0, sizeof ops);
    ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    ops[0].waitValue.address = p11.word + 256;
    ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_64;
    ops[1].writeValue.address = p11.word + 384;
    ops[1].writeValue.value64 = 1;
    CU(cuStreamBatchMemOp, p11.b, 2, ops, 0);
}

static void call_query(void)
{
    CUresult result = cu.cuStreamQuery(p11.b);
    if (result != CUDA_ERROR_NOT_READY)
        cu_must(result, "cuStreamQuery");
}

/* Not a call, but what the calls are for: whether B gets its work done. */
static void call_progress(void)
{
    cu_settle(p11.b, "the other stream's work");
}

static void call_copy(void)
{
    CU(cuMemcpyDtoDAsync, p11.word + 512, p11.word + 1024, 128, p11.b);
}

static void call_open(void)
{
    opened = cu_ipc_open(p11.handles[1]);
}

static void call_register(void)
{
    CU(cuMemHostRegister, registered, PAGE,
       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
}

static void call_alloc(void)
{
    allocated = cu_alloc(BYTES);
}

static const struct call {
    const char *name;
    void (*run)(void);
} calls[] = {
    {"launch", call_launch},     {"write_value", call_write}, {"wait_value", call_wait},
    {"batch_memop", call_batch}, {"query", call_query},       {"progress_of_stream", call_progress},
    {"copy", call_copy},         {"ipc_open", call_open},     {"host_register", call_register},
    {"mem_alloc", call_alloc},
};
enum { CALLS = sizeof calls / sizeof calls[0] };

static void *fresh_page(void)
{
    void *page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        probe_fail("mmap: %s", strerror(errno));
    return page;
}

static void prepare_calls(void)
{
    opened = allocated = 0;
    registered = fresh_page();
}

/* When the gate is open. `first` to `end`: the calls that were made. */
static void undo_calls(int first, int end)
{
    cu_settle(p11.b, "the other stream, when the gate is open");
    for (int i = first; i < end; i++) {
        if (calls[i].run == call_open)
            CU(cuIpcCloseMemHandle, opened);
        if (calls[i].run == call_register)
            CU(cuMemHostUnregister, registered);
        if (calls[i].run == call_alloc)
            CU(cuMemFree, allocated);
    }
    munmap(registered, PAGE);
}

/* --- the waiting call, the gate --- */

static void make_subject(void)
{
    if (p11.kind == CLOSE) {
        p11.subject = cu_ipc_open(p11.handles[0]);
    } else if (p11.kind == FREE) {
        p11.subject = cu_alloc(BYTES);
    } else {
        p11.subject_page = fresh_page();
        CU(cuMemHostRegister, p11.subject_page, PAGE,
           CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    }
}

static void *run_waiter(void *unused)
{
    cu_enter();
    double began = probe_now_us();
    atomic_store(&p11.is_waiter_in, 1);
    if (p11.kind == CLOSE)
        CU(cuIpcCloseMemHandle, p11.subject);
    else if (p11.kind == FREE)
        CU(cuMemFree, p11.subject);
    else
        CU(cuMemHostUnregister, p11.subject_page);
    p11.waiter_us = probe_now_us() - began;
    atomic_store(&p11.is_waiter_done, 1);
    return unused;
}

/* By a plain store: no lock of the driver stops it. */
static void *run_opener(void *unused)
{
    double end = probe_now_us() + gate_s * 1e6;
    while (!atomic_load(&p11.is_early) && probe_now_us() < end)
        probe_sleep_us(500);
    atomic_store(p11.gate_word, p11.gate_value);
    return unused;
}

static void begin_waiting(void)
{
    prepare_calls();
    make_subject();
    p11.is_early = p11.is_waiter_in = p11.is_waiter_done = 0;
    p11.gate_value++;
    CU(cuStreamWaitValue64, p11.a, p11.gate, p11.gate_value, CU_STREAM_WAIT_VALUE_GEQ);
    if (pthread_create(&p11.opener, NULL, run_opener, NULL) != 0 ||
        pthread_create(&p11.waiter, NULL, run_waiter, NULL) != 0)
        probe_fail("pthread_create");
    while (!atomic_load(&p11.is_waiter_in))
        probe_sleep_us(100);
    probe_sleep_us(30e3); /* it is in the driver now, or through */
}

static void end_waiting(int first, int end)
{
    atomic_store(&p11.is_early, 1);
    pthread_join(p11.opener, NULL);
    pthread_join(p11.waiter, NULL);
    cu_settle(p11.a, "the gated stream");
    undo_calls(first, end);
    if (p11.kind == UNREGISTER)
        munmap(p11.subject_page, PAGE);
}

/* Makes the calls from `first` on beside one waiting call, until one was blocked or the gate is open. The next one. */
static int try_calls(int first)
{
    const char *beside = waiter_names[p11.kind];
    int i = first, is_blocked = 0, is_beside;
    begin_waiting();
    is_beside = !atomic_load(&p11.is_waiter_done);
    while (i < CALLS && is_beside && !is_blocked) {
        probe_step("%s beside a waiting %s", calls[i].name, beside);
        double began = probe_now_us();
        calls[i].run();
        double us = probe_now_us() - began;
        is_blocked = us > BLOCKED_S * 1e6;
        is_beside = !atomic_load(&p11.is_waiter_done);
        if (!is_blocked && !is_beside) {
            i++; /* made, but it says nothing: to be made again */
            break;
        }
        probe_answer(is_blocked ? "yes" : "no", "%s_blocked_by_%s", calls[i].name, beside);
        probe_figure(us, "us", "%s_beside_%s", calls[i].name, beside);
        i++;
    }
    int made = i;
    if (i > first && !is_blocked && !is_beside)
        i--;
    end_waiting(first, made);
    if (first == 0)
        probe_answer(made > 0 ? "yes" : "no", "%s_waits_for_gated_stream", beside);
    if (made == 0)
        probe_figure(p11.waiter_us, "us", "%s_took", beside);
    return made == 0 ? CALLS : i;
}

static void measure_calls(double began_us)
{
    for (p11.kind = CLOSE; p11.kind < WAITERS; p11.kind++) {
        for (int next = 0, tries = 0; next < CALLS; tries++) {
            if (tries == CALLS + 3 || probe_now_us() - began_us > BUDGET_S * 1e6) {
                probe_note("%s and what follows not tried beside a waiting %s: no time is left",
                           calls[next].name, waiter_names[p11.kind]);
                break;
            }
            next = try_calls(next);
        }
    }
}

static void bring_up(struct probe_peer *owner)
{
    struct probe_msg m;
    void *word;
    *owner = probe_start("owner");
    probe_expect(owner->fd, "handles", &m, NULL);
    memcpy(p11.handles, m.bytes, sizeof p11.handles);
    p11.a = cu_stream();
    p11.b = cu_stream();
    p11.word = cu_alloc(PAGE);
    CU(cuMemsetD8Async, p11.word, 0, PAGE, p11.b);
    call_launch();
    call_copy();
    cu_settle(p11.b, "a first kernel");
    CU(cuMemHostAlloc, &word, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    p11.gate_word = word;
    atomic_store(p11.gate_word, 0);
    CU(cuMemHostGetDevicePointer, &p11.gate, word, 0);
}

static void owner(const struct probe_options *o)
{
    struct probe_msg m = {.verb = "handles"};
    CUipcMemHandle handle;
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    for (int i = 0; i < 2; i++) {
        /* More than a block of the driver's: two handles of two blocks. */
        CU(cuIpcGetMemHandle, &handle, cu_alloc(4 * BYTES));
        memcpy(m.bytes + i * CU_IPC_HANDLE_SIZE, &handle, sizeof handle);
    }
    probe_say(PROBE_PEER_FD, &m, -1);
    probe_listen(PROBE_PEER_FD, 60, &m, NULL); /* until the end */
}

/* --- kills --- */

static void make_robust(pthread_mutex_t *mutex)
{
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutexattr_destroy(&attributes);
}

static void victim(const struct probe_options *o)
{
    struct probe_msg m;
    int pair[2], fd;
    probe_expect(PROBE_PEER_FD, "page", NULL, &fd);
    pthread_mutex_t *mutex = probe_map_page(fd, PAGE);
    if (pthread_mutex_lock(mutex) != 0)
        probe_fail("a robust mutex");
    cu_attach(o, CU_NEEDS_TWO_PROCESSES);
    size_t bytes = (size_t)(o->is_quick ? 256 : 1024) << 20;
    CUdeviceptr p = cu_alloc(bytes);
    CUstream s = cu_stream();
    CU(cuMemsetD8Async, p, 0, bytes, s);
    cu_settle(s, "clearing memory");
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) < 0)
        probe_fail("socketpair: %s", strerror(errno));
    m = (struct probe_msg){.verb = "late"};
    probe_say(PROBE_PEER_FD, &m, pair[1]);
    close(pair[1]);
    probe_listen(PROBE_PEER_FD, 60, &m, NULL); /* until the kill */
}

enum sign { MUTEX, EARLY_SOCKET, LATE_SOCKET, PIDFD, REAPED, SIGNS };
static const char *const sign_names[] = {"robust_mutex", "socket_of_before_cuda",
                                         "socket_of_after_cuda", "pidfd", "reaped"};

static int is_readable(int fd)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static int is_there(enum sign sign, struct probe_peer *peer, int late, int pidfd,
                    pthread_mutex_t *mutex)
{
    switch (sign) {
    case MUTEX:
        /* Unlocked at once: this thread's list of robust mutexes must not outlive the page. */
        return pthread_mutex_trylock(mutex) == EOWNERDEAD && pthread_mutex_unlock(mutex) == 0;
    case EARLY_SOCKET:
        return is_readable(peer->fd);
    case LATE_SOCKET:
        return is_readable(late);
    case PIDFD:
        return is_readable(pidfd);
    default:
        return waitpid(peer->pid, NULL, WNOHANG) == peer->pid;
    }
}

/* us[SIGNS] since the kill. */
static void kill_one(double *us)
{
    struct probe_msg page = {.verb = "page"};
    int fd = probe_shared_page(PAGE), late, count = 0;
    pthread_mutex_t *mutex = probe_map_page(fd, PAGE);
    make_robust(mutex);
    struct probe_peer peer = probe_start("victim");
    probe_say(peer.fd, &page, fd);
    probe_expect(peer.fd, "late", NULL, &late);
    int pidfd = (int)syscall(SYS_pidfd_open, peer.pid, 0);
    if (pidfd < 0)
        probe_fail("pidfd_open: %s", strerror(errno));
    for (int i = 0; i < SIGNS; i++)
        us[i] = -1;
    double killed = probe_now_us();
    kill(peer.pid, SIGKILL);
    while (count < SIGNS) {
        double now = probe_now_us();
        if (now - killed > PROBE_WAIT_S * 1e6)
            probe_fail("a killed process is not gone after %g s", PROBE_WAIT_S);
        for (enum sign i = MUTEX; i < SIGNS; i++) {
            if (us[i] < 0 && is_there(i, &peer, late, pidfd, mutex)) {
                us[i] = probe_now_us() - killed;
                count++;
            }
        }
    }
    close(pidfd);
    close(late);
    close(fd);
    close(peer.fd);
    munmap(mutex, PAGE);
}

static void measure_kills(int repeats)
{
    double us[MOST_KILLS][SIGNS], column[MOST_KILLS];
    for (int i = 0; i < repeats; i++) {
        probe_step("killing a process with a context, number %d", i + 1);
        kill_one(us[i]);
    }
    for (int sign = 0; sign < SIGNS; sign++) {
        for (int i = 0; i < repeats; i++)
            column[i] = us[i][sign];
        double median = probe_median(column, repeats);
        probe_figure(median, "us", "kill_until_%s_p50", sign_names[sign]);
        probe_figure(column[repeats - 1], "us", "kill_until_%s_most", sign_names[sign]);
    }
}

static void importer(const struct probe_options *o)
{
    struct probe_peer peer;
    double began = probe_now_us();
    gate_s = o->is_quick ? 0.3 : gate_s;
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    bring_up(&peer);
    measure_calls(began);
    probe_step("ending the owner");
    close(peer.fd);
    waitpid(peer.pid, NULL, 0);
    measure_kills(o->is_quick ? 2 : MOST_KILLS);
}

static const struct probe_role roles[] = {
    {"importer", importer}, {"owner", owner}, {"victim", victim}, {NULL, NULL}};
const struct probe probe = {
    11, "Calls beside a close that waits, and the signs of a killed process", NULL, roles};
