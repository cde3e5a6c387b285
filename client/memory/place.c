/* SPDX-License-Identifier: Apache-2.0
 * Where operands go. In hvd_alloc or adopted memory they are used where they are; registered memory
 * has its twin. What is left is ordinary memory: a small tensor gets inline cells; a large one is
 * named to the engine by its address (HVI_REGION_FOREIGN), which reads and writes it there, where
 * that is allowed and faster (foreign.c); else it gets a staging block, and so does a tensor that
 * is not aligned to its element. */
#include "client/memory/place.h"

#include "client/link/link.h"
#include "client/memory/memory.h"
#include "hvd/hvd.h"

#include <string.h>

int client_place_scratch(struct client_memory *memory, uint64_t bytes, const char *what,
                         struct client_operand *operand_p)
{
    struct client_operand operand = {.region = HVI_REGION_INLINE};
    operand.shared = memory->link->channel.inline_base;
    if (bytes > 0 && bytes <= CLIENT_INLINE_MAX &&
        client_inline_take(&memory->inline_area, bytes, &operand.inline_cell,
                           &operand.inline_cells)) {
        operand.offset = (uint64_t)operand.inline_cell * HVI_INLINE_CELL;
        operand.shared = memory->link->channel.inline_base + operand.offset;
    } else if (bytes > 0) {
        int rc = client_staging_get(&memory->staging, bytes, what, &operand.block);
        if (rc != HVD_OK)
            return rc;
        operand.region = client_staging_region_id(operand.block);
        operand.offset = operand.block->offset;
        operand.shared = client_staging_address(operand.block);
    }
    *operand_p = operand;
    return HVD_OK;
}

/* Said once: every large op of ordinary memory pays for it. */
static void say_staged(struct client_memory *memory)
{
    if (memory->said_staged)
        return;
    memory->said_staged = true;
    client_link_log(memory->link, HVD_LOG_INFO,
                    "ordinary memory is copied to and from shared memory, because the engine "
                    "may not access this process's memory; 'hvdctl doctor' says more; memory "
                    "from hvd_alloc or hvd_adopt needs no copies");
}

/* Names ordinary memory to the engine by its address. False when it needs a copy. */
static bool use_foreign(struct client_memory *memory, const void *data, uint64_t bytes,
                        uint32_t element, struct client_operand *operand_p)
{
    if (bytes < CLIENT_FOREIGN_MIN || (uintptr_t)data % element != 0 ||
        memory->foreign_policy == CLIENT_FOREIGN_NEVER)
        return false;
    bool huge =
        client_huge_pages_note(&memory->huge_pages, &memory->link->mutex, data, bytes, false);
    if (!client_foreign_wins(memory->foreign_policy, bytes, huge, &memory->link->mutex))
        return false;
    if (!(memory->link->channel.features & HVI_FEATURE_FOREIGN)) {
        say_staged(memory);
        return false;
    }
    *operand_p =
        (struct client_operand){.region = HVI_REGION_FOREIGN, .offset = (uint64_t)(uintptr_t)data};
    return true;
}

bool client_place_direct(struct client_memory *memory, const void *data, uint64_t bytes,
                         uint32_t element, struct client_operand *operand_p)
{
    struct client_memory_row *row =
        bytes > 0 ? client_table_find(&memory->table, data, bytes) : NULL;
    if (row && row->lasting) { /* its pages came as they were touched */
        client_huge_pages_note(&memory->huge_pages, &memory->link->mutex, data, bytes, true);
        row = client_table_find(&memory->table, data, bytes);
    }
    if (row && !row->is_twin && client_table_use(row, data, element, operand_p))
        return true;
    return !(row && row->is_twin) && use_foreign(memory, data, bytes, element, operand_p);
}

int client_place_tensor(struct client_memory *memory, const char *what, void *data, uint64_t bytes,
                        uint32_t element, struct client_operand *operand_p, bool *copied_p)
{
    *copied_p = false;
    if (client_place_direct(memory, data, bytes, element, operand_p))
        return HVD_OK;
    *copied_p = true;
    struct client_memory_row *row =
        bytes > 0 ? client_table_find(&memory->table, data, bytes) : NULL;
    if (row && row->is_twin && client_table_use(row, data, element, operand_p))
        return HVD_OK;
    return client_place_scratch(memory, bytes, what, operand_p);
}
