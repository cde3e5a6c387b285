/* SPDX-License-Identifier: Apache-2.0
 * Tensors in memory of a CUDA device.
 *
 *   a row of the table, BUFFER_ID as it was ──► DEVICE: nothing to do
 *   a row, another BUFFER_ID: freed meanwhile ──► the row goes, and then
 *   no row: what does the driver say?
 *      memory of the host ──► ORDINARY, and the granule is remembered
 *      a device's ──► the allocation is made known to the engine ──► a row, DEVICE
 *                      └─ cannot be, or HVD_GPU=staged ──► STAGED, or an error
 *
 * Of a reservation (cuMemCreate; PyTorch's expandable segments) a row has the chunks that tensors were seen in. A tensor that lies
 * partly in them, because its segment has grown or is cut in another way now, makes a larger row, of the old one's chunks and its
 * own; the old one goes. Where that cannot be, because some of the old ones are gone, the row has the tensor's chunks alone.
 *
 * Rows are held while the lock is given up, so that hvd_device_forget finds them in use. */
#include "client/error.h"
#include "client/link/control.h"
#include "client/memory/memory.h"
#include "hvd/hvd.h"

#include <inttypes.h>
#include <stdlib.h>

/* hvd_device_free refuses the memory from now on. */
static void hold_own(struct client_operand *operand)
{
    if (!operand->of_own)
        operand->of_own = client_device_block_hold(operand->data);
}

static void hold(struct client_operand *operand, struct client_memory_row *row)
{
    operand->kind = CLIENT_MEMORY_DEVICE;
    operand->row = row;
    operand->device = row->device;
    row->users++;
}

static void let_go(struct client_memory *memory, struct client_operand *operand)
{
    client_memory_put(memory, operand);
    operand->kind = CLIENT_MEMORY_ORDINARY;
}

/* The row goes, unless another thread has taken it out before. */
static void retire(struct client_memory *memory, struct client_operand *operand)
{
    struct client_memory_row *row = operand->row;
    let_go(memory, operand);
    if (client_table_find(&memory->table, (void *)row->base, row->bytes) == row)
        client_table_retire(&memory->table, row);
    client_table_sweep(&memory->table);
    client_hosts_forget(&memory->hosts);
}

void client_operands_check(struct client_memory *memory, struct client_operand *const *operands,
                           int count)
{
    struct client_memory_row *checked = NULL;
    bool current = true;
    for (int i = 0; i < count; i++) {
        struct client_operand *operand = operands[i];
        struct client_memory_row *row = operand->row;
        if (!row || row->kind != CLIENT_MEMORY_DEVICE)
            continue;
        operand->device = row->device;
        hold_own(operand);
        if (row != checked || row->chunks) {
            client_control_unlock(memory->link);
            current = client_device_is_current(operand->data, operand->bytes, row->buffer_id,
                                               row->chunks);
            client_control_lock(memory->link);
        }
        checked = row;
        if (!current)
            retire(memory, operand);
    }
}

/* What lies in the way is of allocations that are gone. */
static int clear_way(struct client_memory *memory, const struct client_device_memory *known,
                     const char *what)
{
    struct client_memory_row *row;
    while ((row = client_table_overlapping(&memory->table, (uintptr_t)known->base, known->bytes))) {
        if (row->kind != CLIENT_MEMORY_DEVICE)
            return client_error(HVD_ERR_INVALID,
                                "%s: device memory at %#" PRIx64 " lies where this session knows "
                                "memory of the host (%p); hvd_deregister that first",
                                what, known->base, row->given);
        client_table_retire(&memory->table, row);
    }
    return HVD_OK;
}

/* Takes .chunks. */
static int enter(struct client_memory *memory, struct client_device_memory *known, uint32_t region,
                 const char *what, struct client_operand *operand)
{
    struct client_memory_row *row = calloc(1, sizeof(*row));
    if (row)
        *row = (struct client_memory_row){.base = (uintptr_t)known->base,
                                          .given = (void *)(uintptr_t)known->base,
                                          .bytes = known->bytes,
                                          .kind = CLIENT_MEMORY_DEVICE,
                                          .region_id = region,
                                          .region = HVI_REGION_INIT,
                                          .buffer_id = known->buffer_id,
                                          .chunks = known->chunks,
                                          .device = known->device};
    if (row && client_table_enter(&memory->table, row)) {
        known->chunks = NULL;
        hold(operand, row);
        return HVD_OK;
    }
    free(row);
    client_control_region_forget(memory->link, region);
    return client_error(HVD_ERR_NO_MEMORY, "%s: no memory for the session's table", what);
}

/* The row of the allocation, or of all chunks, if there is one. */
static struct client_memory_row *row_of(struct client_memory *memory,
                                        const struct client_device_memory *known)
{
    struct client_memory_row *row =
        client_table_find(&memory->table, (void *)(uintptr_t)known->base, known->bytes);
    if (!row || row->kind != CLIENT_MEMORY_DEVICE || !row->chunks != !known->chunks)
        return NULL;
    bool is_same = row->chunks ? client_device_holds(row->chunks, known->chunks)
                               : row->buffer_id == known->buffer_id;
    return is_same ? row : NULL;
}

/* The chunks of rows that share some with the tensor are told with its own. Gives the lock up. */
static void widen(struct client_memory *memory, struct client_device_memory *known)
{
    uint64_t first = known->base, end = known->base + known->bytes;
    struct client_memory_row *row;
    for (uint64_t at = first; at < end; at = row->base + row->bytes) {
        row = client_table_overlapping(&memory->table, (uintptr_t)at, end - at);
        if (!row)
            break;
        if (row->kind == CLIENT_MEMORY_DEVICE && row->chunks && row->base < first)
            first = row->base;
        if (row->kind == CLIENT_MEMORY_DEVICE && row->chunks && row->base + row->bytes > end)
            end = row->base + row->bytes;
    }
    if (first == known->base && end == known->base + known->bytes)
        return;
    client_control_unlock(memory->link);
    client_device_widen(known, first, end);
    client_control_lock(memory->link);
}

/* Gives the lock up. Another thread may do the same at the same time: then the first row stays. */
static int make_known(struct client_memory *memory, struct client_device_memory *known,
                      const char *what, struct client_operand *operand)
{
    uint32_t region = 0;
    if (!memory->device)
        memory->device = client_device_new(memory->link);
    if (!memory->device)
        return client_error(HVD_ERR_NO_MEMORY, "%s: out of memory", what);
    client_control_say_unsent(memory->link);
    if (known->chunks)
        widen(memory, known);
    int rc = clear_way(memory, known, what); /* a worker closes before it opens */
    if (rc != HVD_OK)
        return rc;
    client_control_unlock(memory->link);
    rc = client_device_register(memory->device, known, what, &region);
    client_control_lock(memory->link);
    if (rc != HVD_OK)
        return rc;
    struct client_memory_row *row = row_of(memory, known);
    if (row) {
        client_control_region_forget(memory->link, region);
        hold(operand, row);
        return HVD_OK;
    }
    rc = clear_way(memory, known, what);
    if (rc != HVD_OK) {
        client_control_region_forget(memory->link, region);
        return rc;
    }
    return enter(memory, known, region, what, operand);
}

static int stage(struct client_memory *memory, const struct client_device_memory *known,
                 struct client_operand *operand)
{
    client_memory_say_once(
        memory, &memory->said_device_staged,
        "tensors in device memory are copied to and from memory of the host: no worker can open "
        "them, or HVD_GPU=staged says so; 'hvdctl doctor' says more");
    operand->kind = CLIENT_MEMORY_STAGED;
    operand->device = known->device;
    return HVD_OK;
}

/* An engine of before takes no fabric handles, and some workers cannot open them. */
static void check_handle(const struct client_memory *memory, struct client_device_memory *known)
{
    bool takes =
        client_control_takes_fabric(memory->link) && !(memory->device && memory->device->no_fabric);
    if (known->kind == CLIENT_DEVICE_SHARED && known->handle == HVI_DEVICE_FABRIC && !takes)
        known->kind = CLIENT_DEVICE_UNSHARED;
}

static int use(struct client_memory *memory, struct client_device_memory *known, const char *what,
               const char *which, bool may_stage, struct client_operand *operand)
{
    bool wish = may_stage && memory->device_policy == CLIENT_DEVICE_STAGED;
    may_stage &= memory->device_policy != CLIENT_DEVICE_REQUIRED;
    client_hosts_forget(&memory->hosts);
    hold_own(operand);
    known->registers = operand->of_own != NULL;
    check_handle(memory, known);
    if (wish || (may_stage && known->kind == CLIENT_DEVICE_UNSHARED))
        return stage(memory, known, operand);
    if (memory->device_policy == CLIENT_DEVICE_STAGED)
        return client_error(
            HVD_ERR_UNSUPPORTED,
            "%s: %s (%p) lies in device memory, HVD_GPU=staged wants it copied to memory of the "
            "host, "
            "and the copy cannot wait for a stream; let the stream finish before the call and "
            "give NULL",
            what, which, operand->data);
    if (known->kind == CLIENT_DEVICE_UNSHARED)
        return client_error(
            HVD_ERR_UNSUPPORTED,
            "%s: %s (%p) lies in device memory %s; allocate "
            "it by cudaMalloc, or submit it without a stream, so that it is copied",
            what, which, operand->data,
            known->handle == HVI_DEVICE_FABRIC
                ? "that has fabric handles alone, which the engine or its worker cannot open"
                : "that no other process can open");
    struct client_memory_row *row = row_of(memory, known);
    int rc = HVD_OK;
    if (row)
        hold(operand, row);
    else
        rc = make_known(memory, known, what, operand);
    return rc != HVD_OK && known->kind == CLIENT_DEVICE_UNSHARED && may_stage
               ? stage(memory, known, operand)
               : rc;
}

int client_operand_ask(struct client_memory *memory, const char *what, const char *which,
                       bool may_stage, struct client_operand *operand)
{
    struct client_device_memory known;
    if (operand->bytes == 0 || operand->row)
        return HVD_OK;
    client_control_unlock(memory->link);
    int rc = client_device_classify(operand->data, operand->bytes, what, which, &known);
    client_control_lock(memory->link);
    if (rc != HVD_OK)
        return rc;
    if (known.kind != CLIENT_DEVICE_HOST) {
        rc = use(memory, &known, what, which, may_stage, operand);
        free(known.chunks);
        return rc;
    }
    client_hosts_note(&memory->hosts, operand->data);
    return HVD_OK;
}
