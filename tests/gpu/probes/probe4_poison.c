/* SPDX-License-Identifier: Apache-2.0
 * Question 4. What releases a stream that waits for a timeline value when nobody will write that value any more?
 *
 * Method. A stream waits (GEQ) for an ordinary value; a release is tried; the time from just before the release until the
 * stream is done is taken, 100 times each on a slot of its own:
 *   stream_same     cuStreamWriteValue64(INT64_MAX) on another stream of this process, slot in device memory
 *   stream_other    the same by another process that opened the page by IPC
 *   host_same       a plain store of INT64_MAX by this process's CPU into registered shared memory the stream waits on
 *   host_other      the same store by another process that mapped the same memory and knows no CUDA
 *   memcpy          cuMemcpyHtoDAsync of INT64_MAX into a device slot: does it wake the waiter at all, within 3 s?
 * Then: does a wait that is enqueued after the poison pass at once, also for the largest ordinary value?
 *
 * Predicted. Everything releases but perhaps memcpy; stream_* 2 to 4 us plus the submission (5 to 10 us seen by the host);
 * host_* 1 to 2 us more, the device polls over PCIe; memcpy: no, or only by chance. Sources: cuda.h, GEQ is a signed cyclic
 * comparison, so INT64_MAX - v >= 0 for each v >= 0; LMCache: only writes made by the device wake a wait; NCCL's SHM transport
 * registers /dev/shm memory in two processes (src/misc/shmutils.cc). */
#include "probe_cuda.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

enum { PAGE = 65536, SLOT = 64, COUNT = 100, HOST_BYTES = 65536 };
#define POISON    ((uint64_t)INT64_MAX)
#define RELEASE_S 3.0 /* more than a busy host delays what is released */

struct place {
    CUdeviceptr device;      /* slots in device memory */
    CUdeviceptr host_device; /* the device's view of the shared host page */
    _Atomic uint64_t *host;  /* the CPU's view of it */
    CUstream waiter, control;
    struct probe_peer peer;
    int next_slot;
};

static _Atomic uint64_t *host_slot(_Atomic uint64_t *host, uint64_t slot)
{
    return host + slot * SLOT / sizeof *host;
}

/* The other process: with CUDA it writes by its own stream, without it it stores. */
static void obey(CUdeviceptr page, CUstream s, _Atomic uint64_t *host)
{
    struct probe_msg m;
    while (probe_listen(PROBE_PEER_FD, 60, &m, NULL) == 1) {
        struct probe_msg reply = {.verb = "done"};
        double began = probe_now_us();
        if (host)
            atomic_store_explicit(host_slot(host, m.a[0]), POISON, memory_order_seq_cst);
        else
            CU(cuStreamWriteValue64, s, page + m.a[0] * SLOT, POISON,
               CU_STREAM_WRITE_VALUE_DEFAULT);
        memcpy(reply.bytes, &began, sizeof began);
        probe_say(PROBE_PEER_FD, &reply, -1);
    }
}

static void other(const struct probe_options *o)
{
    struct probe_msg m;
    int fd;
    probe_expect(PROBE_PEER_FD, "hello", &m, &fd);
    if (fd >= 0) {
        obey(0, NULL, probe_map_page(fd, HOST_BYTES));
        return;
    }
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    CUdeviceptr page = cu_ipc_open(m.bytes);
    CUstream s = cu_stream();
    cu_settle(s, "nothing");
    probe_say_verb(PROBE_PEER_FD, "ready");
    obey(page, s, NULL);
}

enum how { STREAM_SAME, STREAM_OTHER, HOST_SAME, HOST_OTHER };

static double release(struct place *p, enum how how, uint64_t slot)
{
    struct probe_msg m = {.verb = "poison", .a = {slot}};
    double began = probe_now_us();
    switch (how) {
    case STREAM_SAME:
        CU(cuStreamWriteValue64, p->control, p->device + slot * SLOT, POISON,
           CU_STREAM_WRITE_VALUE_DEFAULT);
        break;
    case HOST_SAME:
        atomic_store_explicit(host_slot(p->host, slot), POISON, memory_order_seq_cst);
        break;
    default:
        probe_say(p->peer.fd, &m, -1);
    }
    return began;
}

/* Whether it goes on: behind a wait that was not released nothing more can be measured on that stream. */
static int measure(struct place *p, enum how how, const char *name)
{
    double us[COUNT];
    int released = 0, is_host = how == HOST_SAME || how == HOST_OTHER;
    probe_step("releasing: %s", name);
    for (int i = 0; i < COUNT; i++) {
        uint64_t slot = (uint64_t)p->next_slot++;
        CUdeviceptr at = (is_host ? p->host_device : p->device) + slot * SLOT;
        CU(cuStreamWaitValue64, p->waiter, at, 5, CU_STREAM_WAIT_VALUE_GEQ);
        probe_sleep_us(200); /* the device has come to the wait */
        if (cu.cuStreamQuery(p->waiter) != CUDA_ERROR_NOT_READY)
            probe_fail("%s: the stream did not wait", name);
        double began = release(p, how, slot);
        if (!cu_wait(p->waiter, RELEASE_S))
            break;
        double done = probe_now_us();
        if (how == STREAM_OTHER || how == HOST_OTHER) {
            struct probe_msg m;
            probe_expect(p->peer.fd, "done", &m, NULL);
            memcpy(&began, m.bytes, sizeof began);
        }
        us[released++] = done - began;
    }
    probe_answer(released == COUNT ? "yes" : "no", "%s_releases", name);
    if (released)
        probe_percentiles(us, released, "us", name);
    if (released < COUNT)
        probe_note("%s: a wait was not released in %g s; what would have come later was not tried",
                   name, RELEASE_S);
    return released == COUNT;
}

static void late_waits(struct place *p)
{
    CUdeviceptr slot = p->device; /* poisoned by the first measurement */
    probe_step("waiting after the poison");
    const uint64_t values[] = {0, 6, 1ull << 40, POISON - 1};
    for (int i = 0; i < 4; i++)
        CU(cuStreamWaitValue64, p->waiter, slot, values[i], CU_STREAM_WAIT_VALUE_GEQ);
    probe_answer(cu_wait(p->waiter, RELEASE_S) ? "yes" : "no", "late_waits_pass");
}

static void try_memcpy(struct place *p)
{
    static uint64_t value = POISON;
    CUdeviceptr slot = p->device + (unsigned)p->next_slot++ * SLOT;
    probe_step("releasing: memcpy");
    CU(cuStreamWaitValue64, p->waiter, slot, 5, CU_STREAM_WAIT_VALUE_GEQ);
    probe_sleep_us(200);
    double began = probe_now_us();
    CU(cuMemcpyHtoDAsync, slot, &value, sizeof value, p->control);
    int is_done = cu_wait(p->waiter, RELEASE_S);
    probe_answer(is_done ? "yes" : "no", "memcpy_releases");
    if (is_done)
        probe_figure(probe_now_us() - began, "us", "memcpy");
    CU(cuStreamWriteValue64, p->control, slot, POISON, CU_STREAM_WRITE_VALUE_DEFAULT);
    cu_settle(p->waiter, "a wait released by a stream's write after a copy did not");
}

static void start_other(struct place *p, int host_fd)
{
    struct probe_msg m = {.verb = "hello"};
    CUipcMemHandle handle;
    p->peer = probe_start("other");
    CU(cuIpcGetMemHandle, &handle, p->device);
    memcpy(m.bytes, &handle, sizeof handle);
    probe_say(p->peer.fd, &m, host_fd);
    if (host_fd < 0)
        probe_expect(p->peer.fd, "ready", NULL, NULL);
}

static void end_other(struct place *p)
{
    shutdown(p->peer.fd, SHUT_RDWR); /* it ends when it hears no more */
    probe_end(&p->peer, PROBE_WAIT_S);
}

static void owner(const struct probe_options *o)
{
    struct place p = {0};
    cu_attach(o, CU_NEEDS_IPC | CU_NEEDS_TWO_PROCESSES);
    p.waiter = cu_stream();
    p.control = cu_stream();
    p.device = cu_alloc(PAGE);
    CU(cuMemsetD8Async, p.device, 0, PAGE, p.control);
    cu_settle(p.control, "clearing the page");
    int fd = probe_shared_page(HOST_BYTES);
    void *host = probe_map_page(fd, HOST_BYTES);
    CU(cuMemHostRegister, host, HOST_BYTES,
       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    CU(cuMemHostGetDevicePointer, &p.host_device, host, 0);
    p.host = host;

    if (!measure(&p, STREAM_SAME, "stream_same"))
        return;
    late_waits(&p);
    start_other(&p, -1);
    if (!measure(&p, STREAM_OTHER, "stream_other"))
        return;
    end_other(&p);
    try_memcpy(&p);
    p.next_slot = 0; /* now slots of the host page */
    if (!measure(&p, HOST_SAME, "host_same"))
        return;
    start_other(&p, fd);
    if (!measure(&p, HOST_OTHER, "host_other"))
        return;
    end_other(&p);
    CU(cuMemHostUnregister, host);
}

static const struct probe_role roles[] = {{"owner", owner}, {"other", other}, {NULL, NULL}};
const struct probe probe = {4, "Poison: what releases a stream that waits for a value", NULL,
                            roles};
