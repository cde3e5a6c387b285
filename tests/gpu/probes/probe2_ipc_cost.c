/* SPDX-License-Identifier: Apache-2.0
 * Question 2. What do opening and closing an IPC handle cost, do they disturb streams that run or are gated, and what tells a
 * new allocation from an old one at the same address?
 *
 * Method. The owner allocates 2 MiB to 10 GiB (at most half of what is free) by cuMemAlloc and exports it; this process opens
 * and closes it five times, with the device idle. Then beside a chain of kernels that watch the clock: the longest silence
 * inside a kernel and between two of them, without and with opens and closes, and whether the calls came back while the chain
 * still ran. Then beside a stream that waits for a value in host memory which a thread stores after one second: a call that
 * returns earlier did not wait for that stream. Last the owner frees and allocates 2 MiB again: same address, same handle
 * bytes, same BUFFER_ID? And, the first mapping still open (documented as undefined), what a second open then reads.
 *
 * Predicted. open 1.3 ms, close 0.5 ms, both independent of size; neither waits for running streams, close may (unknown);
 * handle bytes: the same on driver 580, although cuda.h says unique; BUFFER_ID always differs. Sources: ucx-py issue 334
 * (V100); LMCache on handles; UCX cuda_ipc_cache.c; cuda.h at cuIpcGetMemHandle, cuPointerGetAttribute. */
#include "probe_cuda.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { CHAIN = 200, WATCH_NS = 200000 };

static uint64_t buffer_id(CUdeviceptr p)
{
    unsigned long long id = 0;
    CU(cuPointerGetAttribute, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p);
    return id;
}

/* Each "alloc" frees what the one before made, if a[1] says so. */
static void owner(const struct probe_options *o)
{
    struct probe_msg m;
    CUdeviceptr p = 0;
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    CUstream s = cu_stream();
    probe_say_verb(PROBE_PEER_FD, "hello");
    while (probe_listen(PROBE_PEER_FD, 60, &m, NULL) == 1) {
        size_t bytes = m.a[0];
        CUipcMemHandle handle;
        if (p && m.a[1])
            CU(cuMemFree, p);
        p = cu_alloc(bytes);
        cu_fill(s, p, (bytes < 1 << 20 ? bytes : 1 << 20) / 4, (uint32_t)m.a[2]);
        cu_settle(s, "filling");
        double began = probe_now_us();
        CU(cuIpcGetMemHandle, &handle, p);
        struct probe_msg reply = {
            .verb = "handle", .a = {p, buffer_id(p), (uint64_t)((probe_now_us() - began) * 1e3)}};
        memcpy(reply.bytes, &handle, sizeof handle);
        probe_say(PROBE_PEER_FD, &reply, -1);
    }
}

static void ask(struct probe_peer *peer, size_t bytes, int is_free_first, unsigned seed,
                struct probe_msg *m_p)
{
    struct probe_msg m = {.verb = "alloc", .a = {bytes, (uint64_t)is_free_first, seed}};
    probe_say(peer->fd, &m, -1);
    probe_expect(peer->fd, "handle", m_p, NULL);
}

static void measure_sizes(const struct probe_options *o, struct probe_peer *peer)
{
    const size_t mib[] = {2, 64, 1024, 10240};
    struct probe_msg m;
    for (int i = 0; i < 4 && !(o->is_quick && mib[i] > 64); i++) {
        double open_us[5], close_us[5];
        probe_step("opening %zu MiB", mib[i]);
        if ((double)mib[i] > cu_free_mib() / 2) {
            probe_note("%zu MiB not tried: %.0f MiB are free", mib[i], cu_free_mib());
            break;
        }
        ask(peer, mib[i] << 20, 1, 1, &m);
        for (int k = 0; k < 5; k++) {
            double began = probe_now_us();
            CUdeviceptr p = cu_ipc_open(m.bytes);
            open_us[k] = probe_now_us() - began;
            if (k == 0 && cu_mismatches(p, (1 << 20) / 4, 1) != 0)
                probe_fail("%zu MiB: what is read is not what was written", mib[i]);
            began = probe_now_us();
            CU(cuIpcCloseMemHandle, p);
            close_us[k] = probe_now_us() - began;
        }
        probe_figure(open_us[0], "us", "open_%zuMiB_first", mib[i]);
        probe_figure(probe_median(open_us, 5), "us", "open_%zuMiB", mib[i]);
        probe_figure(probe_median(close_us, 5), "us", "close_%zuMiB", mib[i]);
    }
    probe_figure((double)m.a[2] / 1e3, "us", "get_handle");
}

/* Runs the chain; meanwhile opens and closes if there is a handle. The longest silences, in microseconds. */
static void watch(const unsigned char *handle, const char *name)
{
    static uint64_t row[CHAIN][3];
    CUstream s = cu_stream();
    CUdeviceptr rows = cu_alloc(sizeof row);
    CUfunction f = cu_kernel("probe_watch");
    unsigned long long ns = WATCH_NS;
    double inside = 0, between = 0;
    int opens = 0;
    for (int i = 0; i < CHAIN; i++) {
        CUdeviceptr at = rows + sizeof row[0] * (unsigned)i;
        cu_launch(f, 1, 1, s, (void *[]){&at, &ns});
    }
    double began = probe_now_us();
    while (handle && probe_now_us() - began < CHAIN * WATCH_NS / 2e3) {
        CU(cuIpcCloseMemHandle, cu_ipc_open(handle));
        opens++;
    }
    if (handle) {
        probe_answer(cu.cuStreamQuery(s) == CUDA_ERROR_NOT_READY ? "no" : "yes",
                     "open_close_waits_for_running_stream");
        probe_figure(opens, "pairs", "open_close_beside_kernels");
    }
    cu_settle(s, "the chain of watching kernels");
    CU(cuMemcpyDtoHAsync, row, rows, sizeof row, s);
    cu_settle(s, "reading the chain's rows");
    for (int i = 0; i < CHAIN; i++) {
        inside = (double)row[i][2] > inside ? (double)row[i][2] : inside;
        double gap = i ? (double)(int64_t)(row[i][0] - row[i - 1][1]) : 0;
        between = gap > between ? gap : between;
    }
    probe_figure(inside / 1e3, "us", "silence_in_kernel_%s", name);
    probe_figure(between / 1e3, "us", "silence_between_kernels_%s", name);
    CU(cuStreamDestroy, s);
    CU(cuMemFree, rows);
}

static void *store_after_a_second(void *word)
{
    probe_sleep_us(1e6);
    atomic_store((_Atomic uint64_t *)word, 1);
    return NULL;
}

/* The gate is opened by a plain store: a lock that the call may hold in the driver cannot stop it. */
static void beside_a_gate(const unsigned char *handle)
{
    void *word;
    CUdeviceptr gate;
    pthread_t thread;
    CUstream s = cu_stream();
    probe_step("opening and closing while a stream is gated");
    CU(cuMemHostAlloc, &word, 4096, CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_PORTABLE);
    atomic_store((_Atomic uint64_t *)word, 0);
    CU(cuMemHostGetDevicePointer, &gate, word, 0);
    CU(cuStreamWaitValue64, s, gate, 1, CU_STREAM_WAIT_VALUE_GEQ);
    if (pthread_create(&thread, NULL, store_after_a_second, word) != 0)
        probe_fail("pthread_create");
    double began = probe_now_us();
    CUdeviceptr p = cu_ipc_open(handle);
    double opened = probe_now_us();
    CU(cuIpcCloseMemHandle, p);
    double closed = probe_now_us();
    pthread_join(thread, NULL);
    probe_figure(opened - began, "us", "open_beside_gated_stream");
    probe_figure(closed - opened, "us", "close_beside_gated_stream");
    probe_answer(closed - began > 0.9e6 ? "yes" : "no", "open_close_waits_for_gated_stream");
    cu_settle(s, "the gated stream");
    CU(cuStreamDestroy, s);
    CU(cuMemFreeHost, word);
}

static void identity(struct probe_peer *peer)
{
    struct probe_msg a, b;
    probe_step("freeing and allocating again");
    ask(peer, 2 << 20, 1, 1, &a);
    CU(cuIpcCloseMemHandle, cu_ipc_open(a.bytes));
    ask(peer, 2 << 20, 1, 2, &b);
    probe_answer(a.a[0] == b.a[0] ? "yes" : "no", "same_address_after_free_alloc");
    probe_answer(memcmp(a.bytes, b.bytes, CU_IPC_HANDLE_SIZE) == 0 ? "yes" : "no",
                 "same_handle_bytes_after_free_alloc");
    probe_answer(a.a[1] != b.a[1] ? "yes" : "no", "buffer_id_differs");
    probe_step("opening again while the freed allocation's mapping is still open");
    CUdeviceptr old = cu_ipc_open(b.bytes), again;
    ask(peer, 2 << 20, 1, 3, &a);
    CUipcMemHandle handle;
    memcpy(&handle, a.bytes, sizeof handle);
    CUresult result = cu.cuIpcOpenMemHandle(&again, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
    if (result != CUDA_SUCCESS) {
        probe_answer(cu_error(result), "stale_open");
        return;
    }
    probe_answer(again == old ? "the old mapping" : "another address", "stale_open");
    const char *what = cu_mismatches(again, (1 << 20) / 4, 3) == 0   ? "the new data"
                       : cu_mismatches(again, (1 << 20) / 4, 2) == 0 ? "the old data"
                                                                     : "neither";
    probe_answer(what, "stale_open_reads");
}

static void importer(const struct probe_options *o)
{
    struct probe_msg m;
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    struct probe_peer peer = probe_start("owner");
    probe_expect(peer.fd, "hello", NULL, NULL);
    measure_sizes(o, &peer);
    ask(&peer, 64 << 20, 1, 1, &m);
    probe_step("a chain of kernels alone");
    watch(NULL, "alone");
    probe_step("a chain of kernels beside opens and closes");
    watch(m.bytes, "beside_open_close");
    beside_a_gate(m.bytes);
    identity(&peer);
}

static const struct probe_role roles[] = {{"importer", importer}, {"owner", owner}, {NULL, NULL}};
const struct probe probe = {2, "Opening and closing IPC handles: cost, disturbance, identity", NULL,
                            roles};
