/* SPDX-License-Identifier: Apache-2.0
 * Question 8. Streams share the hardware's queues (CUDA_DEVICE_MAX_CONNECTIONS): of forty streams of which some wait for a
 * value, how many others are stuck behind them, and can a poison still be submitted?
 *
 * Method. A process for each number of connections (8, 32), since the variable is read when CUDA is initialised. It makes 40
 * non-blocking streams, lets G of them (1, 4, 8, 20, far apart) wait for a word of host memory, then launches a kernel of
 * one thread in every other; those not done after 0.3 s are blocked. A plain store opens the gates; all must then finish.
 * Last, in a process of its own: all 39 first streams wait for a word of device memory, and the 40th writes the poison: does
 * it get through within one second?
 *
 * Predicted. With 8 connections each gate blocks 4 other streams, until all are blocked (1, 4, 8, 20 gates: 4, 16, 32, 20);
 * with 32 connections at most one each (1 gate: 0 or 1; 8 gates: 1 to 8); the poison gets through only if its stream shares
 * its queue with no gated stream: no for both, since 40 is more than 32. Sources: CUDA programming guide on CUDA_DEVICE_MAX_CONNECTIONS (8 by default, at most 32); cuda.h,
 * Stream Memory Operations: "may deadlock the application"; that a waiting value blocks its whole queue is an inference. */
#include "probe_cuda.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STREAMS = 40 };

static CUstream streams[STREAMS];
static CUdeviceptr page;

static void make(const struct probe_options *o)
{
    cu_attach(o, 0);
    for (int i = 0; i < STREAMS; i++)
        streams[i] = cu_stream();
    page = cu_alloc(65536);
    CU(cuMemsetD8Async, page, 0, 65536, streams[0]);
    cu_touch(streams[0], page); /* nothing is loaded or allocated later */
    cu_settle(streams[0], "clearing the page");
}

/* Seven is prime to 40, and -1 modulo 8 and 32: gates fall into different queues as long as there are any. */
static int is_gated(int stream, int gates)
{
    for (int k = 0; k < gates; k++) {
        if ((7 * k + 3) % STREAMS == stream)
            return 1;
    }
    return 0;
}

static int count_unfinished(int gates, double wait_s)
{
    double end = probe_now_us() + wait_s * 1e6;
    int unfinished;
    do {
        unfinished = 0;
        for (int i = 0; i < STREAMS; i++) {
            if (gates && is_gated(i, gates))
                continue;
            CUresult result = cu.cuStreamQuery(streams[i]);
            if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY)
                cu_must(result, "cuStreamQuery");
            unfinished += result != CUDA_SUCCESS;
        }
    } while (unfinished && probe_now_us() < end);
    return unfinished;
}

static void try_gates(const char *connections, int gates, _Atomic uint64_t *word, CUdeviceptr gate,
                      uint64_t value)
{
    probe_step("%s connections, %d gated streams", connections, gates);
    for (int i = 0; i < STREAMS; i++) {
        if (is_gated(i, gates))
            CU(cuStreamWaitValue64, streams[i], gate, value, CU_STREAM_WAIT_VALUE_GEQ);
    }
    double began = probe_now_us();
    for (int i = 0; i < STREAMS; i++) {
        if (!is_gated(i, gates))
            cu_touch(streams[i], page + 128u * (unsigned)i);
    }
    int blocked = count_unfinished(gates, 0.3);
    double us = probe_now_us() - began;
    atomic_store(word, value);
    probe_figure(blocked, "streams", "blocked_%s_connections_%d_gates", connections, gates);
    if (!blocked)
        probe_figure(us, "us", "all_done_%s_connections_%d_gates", connections, gates);
    if (count_unfinished(0, PROBE_WAIT_S))
        probe_fail("%s connections, %d gates: streams did not finish after the gates were opened",
                   connections, gates);
}

static void gates(const struct probe_options *o)
{
    const int counts[] = {1, 4, 8, 20};
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    void *word;
    CUdeviceptr gate;
    make(o);
    CU(cuMemHostAlloc, &word, 4096, CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP);
    atomic_store((_Atomic uint64_t *)word, 0);
    CU(cuMemHostGetDevicePointer, &gate, word, 0);
    for (int i = 0; i < 4; i++)
        try_gates(connections, counts[i], word, gate, (uint64_t)i + 1);
}

/* This process may be stuck for good at the end: the first role kills it. */
static void poison(const struct probe_options *o)
{
    const char *connections = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    make(o);
    probe_step("%s connections, a poison behind 39 gates", connections);
    for (int i = 0; i < STREAMS - 1; i++)
        CU(cuStreamWaitValue64, streams[i], page + 8, 1, CU_STREAM_WAIT_VALUE_GEQ);
    double began = probe_now_us();
    CU(cuStreamWriteValue64, streams[STREAMS - 1], page + 8, INT64_MAX,
       CU_STREAM_WRITE_VALUE_DEFAULT);
    int is_through = count_unfinished(0, 1) == 0;
    probe_answer(is_through ? "yes" : "no", "poison_gets_through_%s_connections", connections);
    if (is_through)
        probe_figure(probe_now_us() - began, "us", "poison_%s_connections", connections);
    probe_say_verb(PROBE_PEER_FD, "done");
}

static void first(const struct probe_options *o)
{
    const char *const connections[] = {"8", "32"};
    cu_attach(o, CU_NEEDS_TWO_PROCESSES); /* so that a machine which cannot is refused here */
    for (int i = 0; i < 2; i++) {
        struct probe_msg m;
        setenv("CUDA_DEVICE_MAX_CONNECTIONS", connections[i], 1);
        struct probe_peer peer = probe_start("gates");
        if (probe_listen(peer.fd, PROBE_WAIT_S, &m, NULL) < 0 ||
            probe_end(&peer, PROBE_WAIT_S) != 0)
            probe_fail("the process with %s connections did not end well", connections[i]);
        peer = probe_start("poison");
        probe_expect(peer.fd, "done", NULL, NULL);
        kill(peer.pid, SIGKILL);
        probe_end(&peer, PROBE_WAIT_S);
    }
}

static const struct probe_role roles[] = {
    {"first", first}, {"gates", gates}, {"poison", poison}, {NULL, NULL}};
const struct probe probe = {8, "Forty streams, some gated, and the hardware's queues", NULL, roles};
