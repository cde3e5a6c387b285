/* SPDX-License-Identifier: Apache-2.0
 * A session's memory: what it knows by address, what it lends to ordinary memory, and what it has
 * mapped of its peers. Needs the session's lock. */
#ifndef HVD_CLIENT_MEMORY_H
#define HVD_CLIENT_MEMORY_H

#include "client/device/device.h"
#include "client/memory/device_own.h"
#include "client/memory/huge_pages.h"
#include "client/memory/inline.h"
#include "client/memory/operand.h"
#include "client/memory/peer.h"
#include "client/memory/remote.h"
#include "client/memory/staging.h"
#include "client/memory/table.h"

#include <stdbool.h>

struct client_link;

/* HVD_GPU: "staged", "required"; anything else is auto. */
enum client_device_policy {
    CLIENT_DEVICE_AUTO,    /* memory that no worker can open is staged where the op has no stream */
    CLIENT_DEVICE_STAGED,  /* all of it */
    CLIENT_DEVICE_REQUIRED /* none */
};

struct client_memory {
    struct client_link *link;
    struct client_table table;
    struct client_staging staging;
    struct client_inline inline_area;
    struct client_peers peers;
    struct client_huge_pages huge_pages;
    enum client_remote_policy remote_policy;
    bool said_staged; /* that the engine does not offer HVI_FEATURE_PROCESS */
    struct client_hosts hosts;
    struct client_device *device; /* NULL until a tensor on a device was seen */
    enum client_device_policy device_policy;
    bool said_device_staged;
};

/* Of zeroed memory. Reads the environment. */
void client_memory_init(struct client_memory *memory, struct client_link *link);
/* Unmaps everything; adopted memory becomes private. */
void client_memory_fini(struct client_memory *memory);

/* A line for the user's log, unless *said. */
void client_memory_say_once(struct client_memory *memory, bool *said, const char *text);

/* What it has of ours. */
void client_memory_give_back(struct client_memory *memory, struct client_operand *operand);
/* Later ops get other memory than this operand has, unless it is the caller's own: the engine may still write
 * there when the op is over. The operand is to be put as ever. */
void client_memory_withdraw(struct client_memory *memory, const struct client_operand *operand);

/* Gives back what an operand holds; harmless twice. */
static inline void client_memory_put(struct client_memory *memory, struct client_operand *operand)
{
    if (operand->row)
        operand->row->users--;
    operand->row = NULL;
    if (operand->of_own)
        client_device_block_put(operand->of_own);
    operand->of_own = NULL;
    if (operand->block || operand->inline_cells)
        client_memory_give_back(memory, operand);
}

#endif
