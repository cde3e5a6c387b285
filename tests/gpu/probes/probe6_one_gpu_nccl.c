/* SPDX-License-Identifier: Apache-2.0
 * Question 6. Do two processes on one device make one NCCL communicator if each has its own NCCL_HOSTID, are the results
 * right, and what does an allreduce take then?
 *
 * Method. Two processes, rank 0 and 1, on the same device, with NCCL_HOSTID=nodeA and nodeB and sockets over lo (the
 * environment of a test with two "nodes"). Time to make the communicator; then allreduce (float32, sum, in place) of 8 B, 1 MiB
 * and 128 MiB: one that is compared element by element on both ranks, then repeated ones, each timed by the host from enqueue
 * until the stream is done. Beside it NCCL in one process: a communicator of one rank, same sizes, same environment.
 *
 * Predicted. It works; 4.4 ms at 8 B and 1 MiB, 51 ms at 128 MiB: multiples of a time slice, not of the socket; one rank alone
 * 10 to 30 us at 8 B. 0 wrong. Sources: NCCL 2.28.9 src/init.cc (equal hostHash and equal busId refuse), src/misc/utils.cc
 * (hostHash from NCCL_HOSTID); nccl-eBPF's report, RTX 5090, NCCL 2.29.7. NVIDIA does not support several ranks per device. */
#include "probe_cuda.h"
#include "probe_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
    int repeats;
} sizes[] = {{"8B", 8, 30}, {"1MiB", 1 << 20, 30}, {"128MiB", 128 << 20, 8}};

static void set_environment(const char *host)
{
    setenv("NCCL_HOSTID", host, 1);
    setenv("NCCL_NET", "Socket", 1);
    setenv("NCCL_IB_DISABLE", "1", 1);
    setenv("NCCL_SOCKET_IFNAME", "lo", 1);
    setenv("NCCL_MNNVL_ENABLE", "0", 1);
    setenv("NCCL_NVLS_ENABLE", "0", 1);
    setenv("NCCL_CUMEM_HOST_ENABLE", "0", 1);
    setenv("NCCL_ALGO", "Ring", 1);
    setenv("NCCL_PROTO", "Simple", 1);
    setenv("NCCL_MAX_CTAS", "1", 1);
    setenv("NCCL_RAS_ENABLE", "0", 1);
}

/* Fills, sums once, and counts the elements that are not what `ranks` ranks must give. Element i of rank r is (i + 3r) % 8. */
static uint64_t sum_once(void *comm, CUdeviceptr p, size_t count, unsigned rank, unsigned ranks,
                         CUstream s)
{
    unsigned long long n = count;
    uint64_t bad = ~0ull;
    float scale = 1; /* the sum, not the mean */
    CUdeviceptr counter = cu_alloc(sizeof bad);
    CU(cuMemsetD8Async, counter, 0, sizeof bad, s);
    cu_launch(cu_kernel("probe_ramp_fp32"), 256, 256, s, (void *[]){&p, &n, &rank});
    nccl_sum_fp32(comm, p, count, s);
    cu_launch(cu_kernel("probe_mean_fp32"), 256, 256, s,
              (void *[]){&p, &n, &ranks, &scale, &counter});
    CU(cuMemcpyDtoHAsync, &bad, counter, sizeof bad, s);
    cu_settle(s, "the compared allreduce");
    CU(cuMemFree, counter);
    return bad;
}

/* Both ranks run this with the same arguments; `name` is given to the one that reports. */
static void run_sizes(void *comm, unsigned rank, unsigned ranks, int is_quick, const char *name)
{
    CUstream s = cu_stream();
    CUdeviceptr p = cu_alloc(128 << 20);
    for (int i = 0; i < 3; i++) {
        double us[30];
        char full[64];
        size_t count = sizes[i].bytes / 4;
        int repeats = is_quick ? 5 : sizes[i].repeats;
        probe_step("allreduce of %s among %u", sizes[i].name, ranks);
        uint64_t bad = sum_once(comm, p, count, rank, ranks, s);
        if (bad || name)
            probe_figure((double)bad, "elements", "%s_%s_wrong%s", name ? name : "other_rank",
                         sizes[i].name, name ? "" : "_too");
        for (int k = 0; k < repeats; k++) {
            double began = probe_now_us();
            nccl_sum_fp32(comm, p, count, s);
            cu_settle(s, "an allreduce");
            us[k] = probe_now_us() - began;
        }
        snprintf(full, sizeof full, "%s_%s", name ? name : "", sizes[i].name);
        if (name)
            probe_percentiles(us, repeats, "us", full);
    }
    CU(cuStreamDestroy, s);
    CU(cuMemFree, p);
}

static void load_nccl(const struct probe_options *o, const char *host)
{
    set_environment(host);
    cu_attach(o, CU_NEEDS_TWO_PROCESSES);
    const char *why_not = nccl_load();
    if (why_not)
        probe_refuse("%s", why_not);
}

static void second(const struct probe_options *o)
{
    struct probe_msg m;
    load_nccl(o, "nodeB");
    probe_say_verb(PROBE_PEER_FD, "hello");
    probe_expect(PROBE_PEER_FD, "id", &m, NULL);
    void *comm = nccl_comm(2, m.bytes, 1);
    run_sizes(comm, 1, 2, o->is_quick, NULL);
    nccl_free(comm);
}

static void first(const struct probe_options *o)
{
    struct probe_msg m = {.verb = "id"};
    load_nccl(o, "nodeA");
    probe_step("a communicator of one rank");
    double began = probe_now_us();
    void *alone = nccl_comm_alone();
    probe_figure((probe_now_us() - began) / 1e3, "ms", "alone_init");
    run_sizes(alone, 0, 1, o->is_quick, "alone");
    nccl_free(alone);

    probe_step("a communicator of two ranks on one device");
    struct probe_peer peer = probe_start("second");
    probe_expect(peer.fd, "hello", NULL, NULL);
    nccl_id(m.bytes);
    probe_say(peer.fd, &m, -1);
    began = probe_now_us();
    void *comm = nccl_comm(2, m.bytes, 0);
    probe_figure((probe_now_us() - began) / 1e3, "ms", "two_init");
    run_sizes(comm, 0, 2, o->is_quick, "two");
    probe_step("freeing the communicator");
    nccl_free(comm);
    if (probe_end(&peer, PROBE_WAIT_S) != 0)
        probe_fail("the second rank did not end well");
}

static const struct probe_role roles[] = {{"first", first}, {"second", second}, {NULL, NULL}};
const struct probe probe = {6, "Two processes on one device in one NCCL communicator", NULL, roles};
