/* SPDX-License-Identifier: Apache-2.0
 * Question 7. Which memory that is not cudaMalloc's can be taken over by file descriptor, and does NCCL register it?
 *
 * Method. The owner allocates 64 MiB in three ways, fills it and sends what it takes over a UNIX socket: cuMemCreate with a
 * descriptor (SCM_RIGHTS); a memory pool made exportable, its descriptor and the pointer's 64 bytes; cuMemAlloc by legacy
 * handle, for comparison. This process imports, times that, compares every word, calls ncclCommRegister on it with a
 * communicator of one rank, and sums in place with NCCL. At last probe7_torch.py, if a Python with PyTorch and CUDA is there
 * ($HVD_PYTHON or python3): a 64 MiB tensor with expandable segments, whose chunks are imported one after the other into one
 * reservation.
 *
 * Predicted. All four import and hold the right data; import 0.1 to 2 ms; the tensor arrives in 4 chunks of 20 MiB;
 * ncclCommRegister accepts vmm and torch, and legacy without effect. One device cannot show whether a registered buffer is
 * used without a copy: that takes two. Sources: cuda.h, Virtual Memory Management and Stream Ordered Memory Allocator; PyTorch
 * PR 130890; NCCL 2.28.9 src/transport/p2p.cc (legacy needs NCCL_LEGACY_CUDA_REGISTER). */
#include "probe_cuda.h"
#include "probe_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BYTES = 64 << 20, CHUNKS = 64 };
#define BY_FD CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR

static const CUmemLocation nowhere = {.type = CU_MEM_LOCATION_TYPE_DEVICE};

static CUmemLocation here(void)
{
    CUmemLocation location = nowhere;
    location.id = cu_device; /* the ordinal, which is what a CUdevice is */
    return location;
}

/* --- the owner --- */
static void send_filled(const char *verb, CUdeviceptr p, struct probe_msg *m, int fd)
{
    CUstream s = cu_stream();
    cu_fill(s, p, BYTES / 4, 7);
    cu_settle(s, "filling");
    snprintf(m->verb, sizeof m->verb, "%s", verb);
    probe_say(PROBE_PEER_FD, m, fd);
    if (fd >= 0)
        close(fd);
    probe_expect(PROBE_PEER_FD, "released", NULL,
                 NULL); /* the importer lets go first, as the pool demands */
    CU(cuStreamDestroy, s);
}

/* Maps a handle of `bytes` at an address reserved before, for reading and writing on this device. */
static void map(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle)
{
    CUmemAccessDesc access = {.location = here(), .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemMap, at, bytes, 0, handle, 0);
    CU(cuMemSetAccess, at, bytes, &access, 1);
}

static void offer_vmm(void)
{
    CUmemAllocationProp prop = {
        .type = CU_MEM_ALLOCATION_TYPE_PINNED, .requestedHandleTypes = BY_FD, .location = here()};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;
    struct probe_msg m = {.a = {BYTES}};
    size_t unit;
    int fd = -1;
    CU(cuMemGetAllocationGranularity, &unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (BYTES % unit)
        probe_fail("a granularity of %zu", unit);
    CU(cuMemCreate, &handle, BYTES, &prop, 0);
    CU(cuMemAddressReserve, &p, BYTES, 0, 0, 0);
    map(p, BYTES, handle);
    CU(cuMemExportToShareableHandle, &fd, handle, BY_FD, 0);
    send_filled("vmm", p, &m, fd);
    CU(cuMemUnmap, p, BYTES);
    CU(cuMemAddressFree, p, BYTES);
    CU(cuMemRelease, handle);
}

static void offer_pool(void)
{
    CUmemPoolProps props = {
        .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .handleTypes = BY_FD, .location = here()};
    CUmemPoolPtrExportData data;
    CUmemoryPool pool;
    CUdeviceptr p;
    CUstream s = cu_stream();
    struct probe_msg m = {.a = {BYTES}};
    int fd = -1;
    CU(cuMemPoolCreate, &pool, &props);
    CU(cuMemAllocFromPoolAsync, &p, BYTES, pool, s);
    cu_settle(s, "allocating from the pool"); /* the importer may not touch it earlier */
    CU(cuMemPoolExportToShareableHandle, &fd, pool, BY_FD, 0);
    CU(cuMemPoolExportPointer, &data, p);
    memcpy(m.bytes, &data, sizeof data);
    send_filled("pool", p, &m, fd);
    CU(cuMemFreeAsync, p, s);
    cu_settle(s, "freeing to the pool");
    CU(cuMemPoolDestroy, pool);
    CU(cuStreamDestroy, s);
}

static void offer_legacy(void)
{
    struct probe_msg m = {.a = {BYTES}};
    CUipcMemHandle handle;
    CUdeviceptr p = cu_alloc(BYTES);
    CU(cuIpcGetMemHandle, &handle, p);
    memcpy(m.bytes, &handle, sizeof handle);
    send_filled("legacy", p, &m, -1);
    CU(cuMemFree, p);
}

static void owner(const struct probe_options *o)
{
    cu_attach(o, CU_NEEDS_VMM | CU_NEEDS_POOLS | CU_NEEDS_TWO_PROCESSES);
    if (strcmp(o->variant, "vmm") == 0)
        offer_vmm();
    else if (strcmp(o->variant, "pool") == 0)
        offer_pool();
    else
        offer_legacy();
}

/* --- the importer --- */
static void *comm; /* NULL: no NCCL */

static CUmemGenericAllocationHandle import(int fd)
{
    CUmemGenericAllocationHandle handle;
    CU(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd, BY_FD);
    close(fd);
    return handle;
}

/* What is done with a mapping, however it was made. */
static void use(CUdeviceptr p, size_t bytes)
{
    probe_step("NCCL on what was imported");
    if (!comm)
        return;
    const char *why_not = nccl_try_register(comm, p, bytes);
    probe_answer(why_not ? why_not : "accepted", "nccl_register");
    CUstream s = cu_stream();
    nccl_sum_fp32(comm, p, bytes / 4, s); /* of one rank: changes nothing */
    probe_answer(cu_wait(s, PROBE_WAIT_S) ? "yes" : "no", "nccl_sums");
    CU(cuStreamDestroy, s);
}

static void compare(CUdeviceptr p)
{
    probe_figure((double)cu_mismatches(p, BYTES / 4, 7), "words", "wrong");
}

static void take_vmm(struct probe_peer *peer)
{
    struct probe_msg m;
    CUdeviceptr p;
    int fd;
    probe_step("importing a VMM allocation");
    probe_expect(peer->fd, "vmm", &m, &fd);
    double began = probe_now_us();
    CUmemGenericAllocationHandle handle = import(fd);
    CU(cuMemAddressReserve, &p, m.a[0], 0, 0, 0);
    map(p, m.a[0], handle);
    CU(cuMemRelease, handle); /* the mapping keeps it */
    probe_figure(probe_now_us() - began, "us", "import");
    compare(p);
    use(p, m.a[0]);
    began = probe_now_us();
    CU(cuMemUnmap, p, m.a[0]);
    CU(cuMemAddressFree, p, m.a[0]);
    probe_figure(probe_now_us() - began, "us", "unmap");
    probe_say_verb(peer->fd, "released");
}

static void take_pool(struct probe_peer *peer)
{
    struct probe_msg m;
    CUmemPoolPtrExportData data;
    CUmemoryPool pool;
    CUdeviceptr p;
    CUmemLocation location = here();
    CUmemAccess_flags flags;
    int fd;
    probe_step("importing from a memory pool");
    probe_expect(peer->fd, "pool", &m, &fd);
    memcpy(&data, m.bytes, sizeof data);
    double began = probe_now_us();
    CU(cuMemPoolImportFromShareableHandle, &pool, (void *)(intptr_t)fd, BY_FD, 0);
    close(fd);
    CU(cuMemPoolGetAccess, &flags, pool, &location);
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        CUmemAccessDesc access = {.location = here(), .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CU(cuMemPoolSetAccess, pool, &access, 1);
    }
    CU(cuMemPoolImportPointer, &p, pool, &data);
    probe_figure(probe_now_us() - began, "us", "import");
    compare(p);
    use(p, BYTES);
    CU(cuMemFree, p);
    CU(cuMemPoolDestroy, pool);
    probe_say_verb(peer->fd, "released");
}

static void take_legacy(struct probe_peer *peer)
{
    struct probe_msg m;
    probe_step("importing by legacy handle");
    probe_expect(peer->fd, "legacy", &m, NULL);
    double began = probe_now_us();
    CUdeviceptr p = cu_ipc_open(m.bytes);
    probe_figure(probe_now_us() - began, "us", "import");
    compare(p);
    use(p, BYTES);
    CU(cuIpcCloseMemHandle, p);
    probe_say_verb(peer->fd, "released");
}

/* "chunk" {its bytes} with a descriptor each, then "tensor" {offset of the tensor, its bytes}; every word is 0x40e80000. */
static void take_tensor(struct probe_peer *peer)
{
    struct probe_msg m;
    CUmemGenericAllocationHandle handles[CHUNKS];
    size_t bytes[CHUNKS], total = 0;
    CUdeviceptr base;
    int count = 0, fd;
    while (probe_listen(peer->fd, 30, &m, &fd) == 1 && strcmp(m.verb, "chunk") == 0 &&
           count < CHUNKS) {
        bytes[count] = m.a[0];
        total += m.a[0];
        handles[count++] = import(fd);
    }
    if (strcmp(m.verb, "tensor") != 0) {
        probe_refuse("%s", count ? "the Python process ended early" : (const char *)m.bytes);
    }
    CU(cuMemAddressReserve, &base, total, 0, 0, 0);
    CUdeviceptr at = base;
    for (int i = 0; i < count; at += bytes[i++]) {
        map(at, bytes[i], handles[i]);
        CU(cuMemRelease, handles[i]);
    }
    CUstream s = cu_stream();
    uint32_t *words = malloc(m.a[1]);
    size_t wrong = 0;
    if (!words)
        probe_fail("out of memory");
    CU(cuMemcpyDtoHAsync, words, base + m.a[0], m.a[1], s);
    cu_settle(s, "reading the tensor");
    for (size_t i = 0; i < m.a[1] / 4; i++)
        wrong += words[i] != 0x40e80000u; /* 7.25f */
    free(words);
    probe_figure(count, "chunks", "chunks");
    probe_figure((double)(total >> 20), "MiB", "mapped");
    probe_figure((double)wrong, "words", "wrong");
    use(base + m.a[0], m.a[1]);
    probe_say_verb(peer->fd, "released");
}

static struct probe_peer start_python(const struct probe_options *o)
{
    char device[16], script[] = PROBE_FOLDER "/probe7_torch.py", python[256];
    const char *wanted = getenv("HVD_PYTHON");
    snprintf(python, sizeof python, "%s", wanted && *wanted ? wanted : "python3");
    snprintf(device, sizeof device, "%d", o->device);
    char *argv[8] = {python, script, (char[]){"--device"}, device};
    return probe_start_program(argv, 4);
}

static void importer(const struct probe_options *o)
{
    cu_attach(o, CU_NEEDS_VMM | CU_NEEDS_POOLS | CU_NEEDS_TWO_PROCESSES);
    int is_torch = strcmp(o->variant, "torch") == 0;
    struct probe_peer peer = is_torch ? start_python(o) : probe_start("owner");
    const char *why_not = nccl_load();
    if (why_not)
        probe_note("%s", why_not);
    else
        comm = nccl_comm_alone();
    if (is_torch)
        take_tensor(&peer);
    else if (strcmp(o->variant, "vmm") == 0)
        take_vmm(&peer);
    else if (strcmp(o->variant, "pool") == 0)
        take_pool(&peer);
    else
        take_legacy(&peer);
    probe_end(&peer, PROBE_WAIT_S);
}

static const char *const variants[] = {"vmm", "pool", "legacy", "torch", NULL};
static const struct probe_role roles[] = {{"importer", importer}, {"owner", owner}, {NULL, NULL}};
const struct probe probe = {
    7, "Memory by file descriptor: VMM, pools, PyTorch; and NCCL's registration", variants, roles};
