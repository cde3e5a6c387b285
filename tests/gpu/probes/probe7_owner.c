/* SPDX-License-Identifier: Apache-2.0
 * Probe 7's other process, which makes the memory that is taken over; probe7_vmm.c says how. */
#include "probe7.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

CUmemLocation probe7_here(void)
{
    /* The ordinal is what a CUdevice is. */
    return (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = cu_device};
}

void probe7_map(CUdeviceptr at, size_t bytes, CUmemGenericAllocationHandle handle)
{
    CUmemAccessDesc access = {.location = probe7_here(),
                              .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CU(cuMemMap, at, bytes, 0, handle, 0);
    CU(cuMemSetAccess, at, bytes, &access, 1);
}

static void send_filled(const char *verb, CUdeviceptr p, struct probe_msg *m, int fd)
{
    CUstream s = cu_stream();
    cu_fill(s, p, PROBE7_BYTES / 4, 7);
    cu_settle(s, "filling");
    snprintf(m->verb, sizeof m->verb, "%s", verb);
    probe_say(PROBE_PEER_FD, m, fd);
    if (fd >= 0)
        close(fd);
    probe_expect(PROBE_PEER_FD, "released", NULL,
                 NULL); /* the importer lets go first, as the pool demands */
    CU(cuStreamDestroy, s);
}

static uint64_t buffer_id(CUdeviceptr p)
{
    unsigned long long id = 0;
    CU(cuPointerGetAttribute, &id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p);
    return id;
}

/* BUFFER_ID of other memory that was mapped at that address, and is unmapped again. */
static uint64_t earlier_id(CUdeviceptr p, const CUmemAllocationProp *prop)
{
    CUmemGenericAllocationHandle handle;
    uint64_t id;
    CU(cuMemCreate, &handle, PROBE7_BYTES, prop, 0);
    probe7_map(p, PROBE7_BYTES, handle);
    id = buffer_id(p);
    CU(cuMemUnmap, p, PROBE7_BYTES);
    CU(cuMemRelease, handle);
    return id;
}

static void offer_vmm(void)
{
    CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                .requestedHandleTypes = PROBE7_BY_FD,
                                .location = probe7_here()};
    CUmemGenericAllocationHandle handle;
    CUdeviceptr p;
    struct probe_msg m = {.a = {PROBE7_BYTES}};
    size_t unit;
    int fd = -1;
    CU(cuMemGetAllocationGranularity, &unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    if (PROBE7_BYTES % unit)
        probe_fail("a granularity of %zu", unit);
    CU(cuMemCreate, &handle, PROBE7_BYTES, &prop, 0);
    CU(cuMemAddressReserve, &p, PROBE7_BYTES, 0, 0, 0);
    uint64_t earlier = earlier_id(p, &prop);
    probe7_map(p, PROBE7_BYTES, handle);
    m.a[1] = buffer_id(p) != earlier;
    CU(cuMemExportToShareableHandle, &fd, handle, PROBE7_BY_FD, 0);
    send_filled("vmm", p, &m, fd);
    CU(cuMemUnmap, p, PROBE7_BYTES);
    CU(cuMemAddressFree, p, PROBE7_BYTES);
    CU(cuMemRelease, handle);
}

static void offer_pool(void)
{
    CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                            .handleTypes = PROBE7_BY_FD,
                            .location = probe7_here()};
    CUmemPoolPtrExportData data;
    CUmemoryPool pool;
    CUdeviceptr p;
    CUstream s = cu_stream();
    struct probe_msg m = {.a = {PROBE7_BYTES}};
    int fd = -1;
    CU(cuMemPoolCreate, &pool, &props);
    CU(cuMemAllocFromPoolAsync, &p, PROBE7_BYTES, pool, s);
    cu_settle(s, "allocating from the pool"); /* the importer may not touch it earlier */
    CU(cuMemPoolExportToShareableHandle, &fd, pool, PROBE7_BY_FD, 0);
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
    struct probe_msg m = {.a = {PROBE7_BYTES}};
    CUipcMemHandle handle;
    CUdeviceptr p = cu_alloc(PROBE7_BYTES);
    CU(cuIpcGetMemHandle, &handle, p);
    memcpy(m.bytes, &handle, sizeof handle);
    send_filled("legacy", p, &m, -1);
    CU(cuMemFree, p);
}

void probe7_owner(const struct probe_options *o)
{
    probe7_become_owner(o);
    cu_attach(o, CU_NEEDS_VMM | CU_NEEDS_POOLS | CU_NEEDS_TWO_PROCESSES);
    if (strcmp(o->variant, "vmm") == 0 || strcmp(o->variant, "other_user_vmm") == 0)
        offer_vmm();
    else if (strcmp(o->variant, "pool") == 0)
        offer_pool();
    else
        offer_legacy();
}
