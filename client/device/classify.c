/* SPDX-License-Identifier: Apache-2.0
 * What memory a pointer is, and by which kind of handle another process can open it, in the order of
 * UCX (cuda_ipc_md.c): a legacy handle, a pool's descriptor, a descriptor for each physical chunk; where these have none, a fabric
 * handle for each.
 *
 * BUFFER_ID tells an allocation from a later one at the same address, whose handle may have the very
 * same bytes. In a reservation (PyTorch's expandable segments) each mapped chunk has an address range and a BUFFER_ID of its own, so
 * what a tensor needs is a list of chunks (chunks.c). */
#include "client/device/chunks.h"
#include "client/device/device.h"

#include "base/status.h"
#include "client/error.h"
#include "hvd/hvd.h"
#include "proto/wire.h"

#include <stdatomic.h>
#include <string.h>

/* Grows when libcuda has said something for the first time: what was memory of the host before need not be. */
static _Atomic uint64_t era;

void client_hosts_forget(struct client_hosts *hosts)
{
    memset(hosts->granules, 0, sizeof(hosts->granules));
}

void client_hosts_note(struct client_hosts *hosts, const void *data)
{
    uintptr_t granule = (uintptr_t)data >> CLIENT_HOST_SHIFT;
    /* Relaxed: only that it differs counts. */
    uint64_t now = atomic_load_explicit(&era, memory_order_relaxed);
    if (hosts->era != now)
        client_hosts_forget(hosts);
    hosts->era = now;
    hosts->granules[granule % CLIENT_HOST_GRANULES] = granule;
}

/* 0 to 1, for good. */
static void begin_era(void)
{
    if (atomic_load_explicit(&era, memory_order_relaxed) == 0)
        atomic_store_explicit(&era, 1, memory_order_relaxed);
}

enum asked {
    ASKED_TYPE,
    ASKED_MANAGED,
    ASKED_DEVICE,
    ASKED_LEGACY,
    ASKED_HANDLES,
    ASKED_POOL,
    ASKED_BUFFER,
    ASKED_START,
    ASKED_BYTES,
    ASKED_COUNT
};

/* A thread that has never called CUDA has no context, in which some drivers want to be asked. */
static int attributes_of(const struct hvi_cuda *cuda, unsigned count, int *attributes,
                         void **places, const void *data)
{
    struct client_driver_scope scope;
    hvi_cu_ptr address = (hvi_cu_ptr)(uintptr_t)data;
    int error = cuda->pointer_attributes(count, attributes, places, address);
    if (error != HVI_CU_INVALID_CONTEXT || client_driver_enter_any(&scope) != HVI_CU_OK)
        return error;
    error = cuda->pointer_attributes(count, attributes, places, address);
    client_driver_leave(&scope);
    return error;
}

/* Some answers have 4 bytes and some 8: all are read as 8 of which the rest is 0. */
static int ask(const struct hvi_cuda *cuda, const void *data, uint64_t answers_p[ASKED_COUNT])
{
    int attributes[ASKED_COUNT] = {
        HVI_CU_POINTER_MEMORY_TYPE, HVI_CU_POINTER_IS_MANAGED,   HVI_CU_POINTER_DEVICE,
        HVI_CU_POINTER_LEGACY_IPC,  HVI_CU_POINTER_HANDLE_TYPES, HVI_CU_POINTER_MEMPOOL,
        HVI_CU_POINTER_BUFFER_ID,   HVI_CU_POINTER_RANGE_START,  HVI_CU_POINTER_RANGE_SIZE};
    void *places[ASKED_COUNT];
    memset(answers_p, 0, ASKED_COUNT * sizeof(answers_p[0]));
    for (int i = 0; i < ASKED_COUNT; i++)
        places[i] = &answers_p[i];
    return attributes_of(cuda, ASKED_COUNT, attributes, places, data);
}

static void choose_handle(const struct hvi_cuda *cuda, const uint64_t answers[ASKED_COUNT],
                          struct client_device_memory *memory)
{
    memory->kind = CLIENT_DEVICE_SHARED;
    if (answers[ASKED_LEGACY]) {
        memory->handle = HVI_DEVICE_LEGACY;
    } else if (answers[ASKED_POOL]) {
        memory->pool = (void *)(uintptr_t)answers[ASKED_POOL];
        memory->handle = HVI_DEVICE_POOL;
        if (!cuda->pool_export || !cuda->pool_export_pointer)
            memory->kind = CLIENT_DEVICE_UNSHARED;
    } else if (client_chunks_can(cuda) &&
               (answers[ASKED_HANDLES] & (HVI_CU_HANDLE_FD | HVI_CU_HANDLE_FABRIC))) {
        memory->handle = HVI_DEVICE_VMM; /* or _FABRIC, as its chunks say */
    } else {
        memory->kind = CLIENT_DEVICE_UNSHARED;
    }
}

static int identify(const struct hvi_cuda *cuda, struct client_device_memory *memory)
{
    hvi_cu_device device;
    struct hvi_cu_uuid uuid;
    int error = cuda->device_get(&device, memory->device);
    if (error == HVI_CU_OK)
        error = cuda->device_uuid(&uuid, device);
    if (error == HVI_CU_OK)
        memcpy(memory->uuid, uuid.bytes, sizeof(memory->uuid));
    return error;
}

int client_device_classify(const void *data, uint64_t bytes, const char *what, const char *which,
                           struct client_device_memory *memory_p)
{
    const char *why;
    char error_text[64];
    uint64_t answers[ASKED_COUNT];
    const struct hvi_cuda *cuda = client_driver_get(&why);
    struct client_device_memory memory = {.kind = CLIENT_DEVICE_HOST};
    *memory_p = memory;
    if (!cuda)
        return HVD_OK;
    int error = ask(cuda, data, answers);
    if (error == HVI_CU_NOT_INITIALIZED || error == HVI_CU_INVALID_VALUE ||
        error == HVI_CU_INVALID_CONTEXT)
        return HVD_OK; /* not a pointer of the driver's; without any context there is none */
    begin_era();
    if (error == HVI_CU_OK &&
        ((uint32_t)answers[ASKED_TYPE] != HVI_CU_MEMORY_DEVICE || (uint32_t)answers[ASKED_MANAGED]))
        return HVD_OK;
    memory.device = (int)(uint32_t)answers[ASKED_DEVICE];
    memory.base = answers[ASKED_START];
    memory.bytes = answers[ASKED_BYTES];
    memory.buffer_id = answers[ASKED_BUFFER];
    if (error == HVI_CU_OK)
        error = identify(cuda, &memory);
    if (error == HVI_CU_OK) {
        client_driver_note(memory.device);
        choose_handle(cuda, answers, &memory);
    }
    if (error == HVI_CU_OK && memory.handle == HVI_DEVICE_VMM)
        error = client_chunks_find(&memory, (uintptr_t)data, bytes);
    if (error != HVI_CU_OK) {
        hvi_cuda_describe(cuda, error, error_text, sizeof(error_text));
        return client_error(HVD_ERR_UNSUPPORTED,
                            "%s: the driver does not say what memory %s (%p) is: %s", what, which,
                            data, error_text);
    }
    *memory_p = memory;
    return HVD_OK;
}

/* BUFFER_ID of the address now; 0: none. */
static uint64_t buffer_id_of(uint64_t address)
{
    const char *why;
    int attribute = HVI_CU_POINTER_BUFFER_ID;
    uint64_t buffer_id = 0;
    void *place = &buffer_id;
    const struct hvi_cuda *cuda = client_driver_get(&why);
    if (!cuda ||
        attributes_of(cuda, 1, &attribute, &place, (void *)(uintptr_t)address) != HVI_CU_OK)
        return 0;
    return buffer_id;
}

bool client_device_is_current(const void *data, uint64_t bytes, uint64_t buffer_id,
                              const struct client_device_chunks *chunks)
{
    uint64_t address = (uintptr_t)data;
    if (!chunks)
        return buffer_id_of(address) == buffer_id;
    for (uint32_t i = 0; i < chunks->count; i++) {
        const struct client_device_chunk *chunk = &chunks->list[i];
        if (chunk->base < address + bytes && address < chunk->base + chunk->bytes &&
            buffer_id_of(chunk->base) != chunk->buffer_id)
            return false;
    }
    return true;
}
