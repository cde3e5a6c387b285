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
 * And what the client's cache rests on: whether BUFFER_ID differs when other memory is mapped at an address, and from chunk to chunk.
 *
 * Predicted. All four import and hold the right data; import 0.1 to 2 ms; the tensor arrives in 4 chunks of 20 MiB, with 4 ids;
 * ncclCommRegister accepts vmm and torch, and legacy without effect. One device cannot show whether a registered buffer is
 * used without a copy: that takes two. Sources: cuda.h, Virtual Memory Management and Stream Ordered Memory Allocator; PyTorch
 * PR 130890; NCCL 2.28.9 src/transport/p2p.cc (legacy needs NCCL_LEGACY_CUDA_REGISTER). */
#include "probe7.h"
#include "probe_nccl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNKS = 64 };

static void *comm; /* NULL: no NCCL */

static CUmemGenericAllocationHandle import(int fd)
{
    CUmemGenericAllocationHandle handle;
    CU(cuMemImportFromShareableHandle, &handle, (void *)(intptr_t)fd, PROBE7_BY_FD);
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
    probe_figure((double)cu_mismatches(p, PROBE7_BYTES / 4, 7), "words", "wrong");
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
    probe7_map(p, m.a[0], handle);
    CU(cuMemRelease, handle); /* the mapping keeps it */
    probe_figure(probe_now_us() - began, "us", "import");
    probe_answer(m.a[1] ? "yes" : "no", "buffer_id_differs");
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
    CUmemLocation location = probe7_here();
    CUmemAccess_flags flags;
    int fd;
    probe_step("importing from a memory pool");
    probe_expect(peer->fd, "pool", &m, &fd);
    memcpy(&data, m.bytes, sizeof data);
    double began = probe_now_us();
    CU(cuMemPoolImportFromShareableHandle, &pool, (void *)(intptr_t)fd, PROBE7_BY_FD, 0);
    close(fd);
    CU(cuMemPoolGetAccess, &flags, pool, &location);
    if (flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) {
        CUmemAccessDesc access = {.location = probe7_here(),
                                  .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
        CU(cuMemPoolSetAccess, pool, &access, 1);
    }
    CU(cuMemPoolImportPointer, &p, pool, &data);
    probe_figure(probe_now_us() - began, "us", "import");
    compare(p);
    use(p, PROBE7_BYTES);
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
    use(p, PROBE7_BYTES);
    CU(cuIpcCloseMemHandle, p);
    probe_say_verb(peer->fd, "released");
}

/* "chunk" {its bytes, its BUFFER_ID} with a descriptor each, then "tensor" {offset of the tensor, its bytes}; every word is 0x40e80000. */
static void take_tensor(struct probe_peer *peer)
{
    struct probe_msg m = {0};
    CUmemGenericAllocationHandle handles[CHUNKS];
    size_t bytes[CHUNKS], total = 0;
    CUdeviceptr base;
    uint64_t last_id = 0;
    int count = 0, fd, got, ids = 0;
    probe_step("a PyTorch tensor with expandable segments");
    while ((got = probe_listen(peer->fd, 60, &m, &fd)) == 1 && strcmp(m.verb, "chunk") == 0 &&
           count < CHUNKS) {
        bytes[count] = m.a[0];
        total += m.a[0];
        ids += m.a[1] != last_id;
        last_id = m.a[1];
        handles[count++] = import(fd);
    }
    if (got != 1)
        probe_refuse("the Python process %s", got == 0 ? "ended without a word" : "said nothing");
    if (strcmp(m.verb, "tensor") != 0)
        probe_refuse("%s", (const char *)m.bytes);
    CU(cuMemAddressReserve, &base, total, 0, 0, 0);
    CUdeviceptr at = base;
    for (int i = 0; i < count; at += bytes[i++]) {
        probe7_map(at, bytes[i], handles[i]);
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
    probe_figure(ids, "ids", "buffer_ids");
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
    if (probe7_is_of_users(o)) {
        probe7_take_of_users(o);
        return;
    }
    /* Nothing here is disturbed by a late load, and PyTorch and NCCL would load all their kernels, which takes long. */
    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    cu_attach(o, CU_NEEDS_VMM | CU_NEEDS_POOLS | CU_NEEDS_TWO_PROCESSES);
    int is_torch = strcmp(o->variant, "torch") == 0;
    const char *why_not = nccl_load();
    if (why_not)
        probe_note("%s", why_not);
    else
        comm = nccl_comm_alone(); /* may take seconds: before anybody waits for this process */
    struct probe_peer peer = is_torch ? start_python(o) : probe_start("owner");
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

static const char *const variants[] = {
    "vmm", "pool", "legacy", "other_user_vmm", "other_user_legacy", "torch", NULL};
static const struct probe_role roles[] = {
    {"importer", importer}, {"owner", probe7_owner}, {NULL, NULL}};
const struct probe probe = {
    7, "Memory by file descriptor: VMM, pools, PyTorch; and NCCL's registration", variants, roles};
