/* SPDX-License-Identifier: Apache-2.0
 * A reservation is made of chunks that are mapped one by one; PyTorch's expandable segments have such of 2 and of 20 MiB, and map and
 * unmap them as they like. Nothing tells what belongs to a reservation, so chunks are found by going from one to the next:
 * cuMemGetAddressRange says where the chunk of an address begins and ends (NCCL goes the same way).
 *
 *     |  chunk  |  chunk  |  chunk  |   hole   |  chunk  |
 *          [  tensor  ]                 what is known of it are its two chunks, from their first to their last byte
 *
 * Chunks may have different kinds of handles; all of a range go by one that each of them has.
 *
 * A chunk that another one has taken the place of has another BUFFER_ID. That of a range is made of those of its chunks. */
#include "client/device/chunks.h"

#include "proto/wire.h"

#include <stdlib.h>

bool client_chunks_can(const struct hvi_cuda *cuda)
{
    return cuda->retain && cuda->export_handle && cuda->allocation_release;
}

/* ---- one chunk ---- */

/* With a context. *types: those that the chunk has not are taken out; all, if it lies on another device. */
static int look(const struct hvi_cuda *cuda, int device, uint64_t address,
                struct client_device_chunk *chunk_p, uint64_t *types)
{
    int attributes[] = {HVI_CU_POINTER_BUFFER_ID, HVI_CU_POINTER_HANDLE_TYPES,
                        HVI_CU_POINTER_DEVICE};
    uint64_t answers[3] = {0}; /* some have 4 bytes */
    void *places[] = {&answers[0], &answers[1], &answers[2]};
    hvi_cu_ptr base = 0;
    size_t bytes = 0;
    int error = cuda->address_range(&base, &bytes, address);
    if (error == HVI_CU_OK)
        error = cuda->pointer_attributes(3, attributes, places, address);
    if (error != HVI_CU_OK)
        return error;
    if (base > address || bytes <= address - base) /* so the next one is always further on */
        return HVI_CU_NOT_SUPPORTED;
    *chunk_p = (struct client_device_chunk){.base = base, .bytes = bytes, .buffer_id = answers[0]};
    *types &= (int)(uint32_t)answers[2] == device ? answers[1] : 0;
    return HVI_CU_OK;
}

int client_chunks_export(const struct hvi_cuda *cuda, const struct client_device_chunk *chunk,
                         int type, void *handle_p)
{
    hvi_cu_allocation allocation;
    int error = cuda->retain(&allocation, (void *)(uintptr_t)chunk->base);
    if (error != HVI_CU_OK)
        return error;
    error = cuda->export_handle(handle_p, allocation, type, 0);
    cuda->allocation_release(allocation);
    return error;
}

/* ---- a range ---- */

/* Room for one more, or NULL; the old list is freed then. */
static struct client_device_chunks *grow(struct client_device_chunks *chunks)
{
    uint32_t count = chunks ? chunks->count : 0;
    struct client_device_chunks *grown = chunks;
    if ((count & (count - 1)) == 0) /* at each power of two */
        grown =
            realloc(chunks, sizeof(*chunks) + (count ? 2 * count : 1) * sizeof(chunks->list[0]));
    if (!grown)
        free(chunks);
    else if (!chunks)
        grown->count = 0;
    return grown;
}

/* All chunks from the first byte's to the last one's; NULL with HVI_CU_OK: not all are ours. *types: what each of them has of these. */
static int walk(const struct hvi_cuda *cuda, int device, uint64_t first, uint64_t end,
                uint64_t *types, struct client_device_chunks **chunks_p)
{
    struct client_device_chunks *chunks = NULL;
    int error = HVI_CU_OK;
    for (uint64_t at = first; at < end && (!chunks || chunks->count <= HVI_DEVICE_CHUNKS_MAX);) {
        struct client_device_chunk chunk;
        error = look(cuda, device, at, &chunk, types);
        if (error != HVI_CU_OK || *types == 0) {
            free(chunks);
            chunks = NULL;
            break;
        }
        chunks = grow(chunks);
        if (!chunks)
            return HVI_CU_OUT_OF_MEMORY;
        chunks->list[chunks->count++] = chunk;
        at = chunk.base + chunk.bytes;
    }
    *chunks_p = chunks;
    return error;
}

/* FNV-1a. */
static uint64_t id_of(const struct client_device_chunks *chunks)
{
    uint64_t id = UINT64_C(0xcbf29ce484222325);
    for (uint32_t i = 0; i < chunks->count; i++)
        id = (id ^ chunks->list[i].buffer_id) * UINT64_C(0x100000001b3);
    return id;
}

static void use(struct client_device_memory *memory, struct client_device_chunks *chunks)
{
    const struct client_device_chunk *last = &chunks->list[chunks->count - 1];
    free(memory->chunks);
    memory->chunks = chunks;
    memory->base = chunks->list[0].base;
    memory->bytes = last->base + last->bytes - memory->base;
    memory->buffer_id = id_of(chunks);
}

static int find(const struct client_device_memory *memory, uint64_t first, uint64_t end,
                uint64_t *types, struct client_device_chunks **chunks_p)
{
    struct client_driver_scope scope;
    int error = client_driver_enter(memory->device, &scope);
    if (error != HVI_CU_OK)
        return error;
    error = walk(scope.cuda, memory->device, first, end, types, chunks_p);
    client_driver_leave(&scope);
    return error;
}

int client_chunks_find(struct client_device_memory *memory, uint64_t first, uint64_t bytes)
{
    struct client_device_chunks *chunks = NULL;
    uint64_t types = HVI_CU_HANDLE_FD | HVI_CU_HANDLE_FABRIC;
    int error = find(memory, first, first + bytes, &types, &chunks);
    if (!chunks) {
        memory->kind = CLIENT_DEVICE_UNSHARED;
        return error;
    }
    memory->handle = types & HVI_CU_HANDLE_FD ? HVI_DEVICE_VMM : HVI_DEVICE_FABRIC;
    use(memory, chunks);
    return error;
}

void client_device_widen(struct client_device_memory *memory, uint64_t first, uint64_t end)
{
    struct client_device_chunks *chunks = NULL;
    uint64_t types = memory->handle == HVI_DEVICE_VMM ? HVI_CU_HANDLE_FD : HVI_CU_HANDLE_FABRIC;
    if (find(memory, first, end, &types, &chunks) != HVI_CU_OK || !chunks)
        return;
    if (chunks->count <= HVI_DEVICE_CHUNKS_MAX)
        use(memory, chunks);
    else
        free(chunks);
}

bool client_device_holds(const struct client_device_chunks *whole,
                         const struct client_device_chunks *part)
{
    uint32_t first = 0;
    while (first < whole->count && whole->list[first].base != part->list[0].base)
        first++;
    if (part->count > whole->count - first)
        return false;
    for (uint32_t i = 0; i < part->count; i++)
        if (whole->list[first + i].base != part->list[i].base ||
            whole->list[first + i].buffer_id != part->list[i].buffer_id)
            return false;
    return true;
}
