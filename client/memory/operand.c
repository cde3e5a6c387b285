/* SPDX-License-Identifier: Apache-2.0
 * What hvd_alloc, hvd_adopt and hvd_register were told of is in the session's table; what is not
 * there is ordinary memory. A tensor in a region is used where it is; registered memory has its
 * twin. What is left is ordinary memory: a small tensor gets inline cells; a large one is named to
 * the engine by its address (HVI_REGION_PROCESS), which reads and writes it there, where that is
 * allowed and faster (remote.c); else it gets a staging block, and so does a tensor that is not
 * aligned to its element.
 * Memory of a CUDA device is in the table too, once it is known to the engine (on_device.c). */
#include "client/memory/operand.h"

#include "client/link/link.h"
#include "client/memory/memory.h"
#include "hvd/hvd.h"

bool client_operand_classify(struct client_memory *memory, void *data, uint64_t bytes,
                             struct client_operand *operand_p)
{
    struct client_memory_row *row =
        bytes > 0 ? client_table_find(&memory->table, data, bytes) : NULL;
    operand_p->data = data;
    operand_p->bytes = bytes;
    if (!row) /* no lazy "or": one branch of the caller's decides about both tensors */
        return (bytes < CLIENT_HOST_ASK) & client_hosts_know(&memory->hosts, data);
    operand_p->kind = row->kind;
    operand_p->row = row;
    row->users++;
    return row->kind != CLIENT_MEMORY_DEVICE;
}

int client_operand_scratch(struct client_memory *memory, const char *what, uint64_t bytes,
                           struct client_operand *operand)
{
    struct client_device_block *of_own = operand->of_own; /* which is copied to and fro */
    operand->of_own = NULL;
    client_memory_put(memory, operand);
    operand->of_own = of_own;
    operand->region = HVI_REGION_INLINE;
    operand->offset = 0;
    operand->shared = memory->link->channel.inline_base;
    if (bytes > 0 && bytes <= CLIENT_INLINE_MAX &&
        client_inline_take(&memory->inline_area, bytes, &operand->inline_cell,
                           &operand->inline_cells)) {
        operand->offset = (uint64_t)operand->inline_cell * HVI_INLINE_CELL;
        operand->shared = memory->link->channel.inline_base + operand->offset;
    } else if (bytes > 0) {
        int rc = client_staging_get(&memory->staging, bytes, what, &operand->block);
        if (rc != HVD_OK)
            return rc;
        operand->region = operand->block->region;
        operand->offset = operand->block->offset;
        operand->shared = operand->block->address;
    }
    return HVD_OK;
}

void client_memory_say_once(struct client_memory *memory, bool *said, const char *text)
{
    if (!*said)
        client_link_log(memory->link, HVD_LOG_INFO, text);
    *said = true;
}

/* Every large op of ordinary memory pays for it. */
static void say_staged(struct client_memory *memory)
{
    client_memory_say_once(
        memory, &memory->said_staged,
        "ordinary memory is copied to and from shared memory, because the engine may not access "
        "this process's memory; 'hvdctl doctor' says more; memory from hvd_alloc or hvd_adopt "
        "needs no copies");
}

/* Names ordinary memory to the engine by its address. False when it needs a copy. */
static bool use_address(struct client_memory *memory, uint32_t element,
                        struct client_operand *operand)
{
    uint64_t bytes = operand->bytes;
    if (bytes < CLIENT_REMOTE_MIN || (uintptr_t)operand->data % element != 0 ||
        memory->remote_policy == CLIENT_REMOTE_NEVER)
        return false;
    bool huge = client_huge_pages_note(&memory->huge_pages, &memory->link->mutex, operand->data,
                                       bytes, false);
    if (!client_remote_wins(memory->remote_policy, bytes, huge, &memory->link->mutex))
        return false;
    if (!(memory->link->channel.features & HVI_FEATURE_PROCESS)) {
        say_staged(memory);
        return false;
    }
    operand->region = HVI_REGION_PROCESS;
    operand->offset = (uint64_t)(uintptr_t)operand->data;
    operand->shared = NULL;
    return true;
}

static bool use_device(struct client_operand *operand)
{
    operand->region = operand->row->region_id;
    operand->offset = (uint64_t)((uintptr_t)operand->data - operand->row->base);
    operand->shared = NULL;
    return true;
}

bool client_operand_direct(struct client_memory *memory, uint32_t element,
                           struct client_operand *operand)
{
    if (operand->kind == CLIENT_MEMORY_ORDINARY)
        return use_address(memory, element, operand);
    if (operand->kind == CLIENT_MEMORY_DEVICE)
        return use_device(operand);
    if (operand->kind == CLIENT_MEMORY_MAPPED) {
        if (operand->row->process_memory) /* its pages came as they were touched */
            client_huge_pages_note(&memory->huge_pages, &memory->link->mutex, operand->data,
                                   operand->bytes, true);
        if (client_table_use(element, operand))
            return true;
        client_memory_put(memory, operand);
        return use_address(memory, element, operand);
    }
    return false;
}

int client_operand_locate(struct client_memory *memory, const char *what, uint32_t element,
                          struct client_operand *operand)
{
    operand->copied = !client_operand_direct(memory, element, operand);
    if (!operand->copied ||
        (operand->kind == CLIENT_MEMORY_TWIN && client_table_use(element, operand)))
        return HVD_OK;
    return client_operand_scratch(memory, what, operand->bytes, operand);
}
