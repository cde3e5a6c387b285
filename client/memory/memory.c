/* SPDX-License-Identifier: Apache-2.0 */
#include "client/memory/memory.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static enum client_device_policy device_policy(void)
{
    const char *text = getenv("HVD_GPU");
    if (text && strcmp(text, "staged") == 0)
        return CLIENT_DEVICE_STAGED;
    return text && strcmp(text, "required") == 0 ? CLIENT_DEVICE_REQUIRED : CLIENT_DEVICE_AUTO;
}

void client_memory_init(struct client_memory *memory, struct client_link *link)
{
    memory->link = link;
    memory->table.link = link;
    memory->staging.link = link;
    memory->peers.link = link;
    memory->remote_policy = client_remote_policy();
    memory->device_policy = device_policy();
}

void client_memory_fini(struct client_memory *memory)
{
    client_staging_fini(&memory->staging);
    client_table_fini(&memory->table);
    client_peers_fini(&memory->peers);
    client_huge_pages_fini(&memory->huge_pages);
    client_device_free(memory->device);
    memory->device = NULL;
}

void client_memory_give_back(struct client_memory *memory, struct client_operand *operand)
{
    if (operand->block)
        client_staging_put(&memory->staging, operand->block);
    if (operand->inline_cells)
        client_inline_put(&memory->inline_area, operand->inline_cell, operand->inline_cells);
    operand->block = NULL;
    operand->inline_cells = 0;
}

void client_memory_withdraw(struct client_memory *memory, const struct client_operand *operand)
{
    if (operand->row)
        operand->row->withdrawn = operand->row->kind == CLIENT_MEMORY_TWIN;
    if (operand->block)
        client_staging_withdraw(&memory->staging, operand->block);
}
