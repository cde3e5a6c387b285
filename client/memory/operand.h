/* SPDX-License-Identifier: Apache-2.0
 * Where one side of an op lies: in shared memory, or (HVI_REGION_FOREIGN) at an address. */
#ifndef HVD_CLIENT_OPERAND_H
#define HVD_CLIENT_OPERAND_H

#include <stdint.h>

struct client_memory_row;
struct client_staging_block;

/* At most one of row, block and inline_cells is set: that is what client_memory_put gives back. */
struct client_operand {
    uint32_t region; /* as the engine knows it */
    uint64_t offset;
    void *shared; /* our mapping of that place; NULL for HVI_REGION_FOREIGN */
    struct client_memory_row *row;
    struct client_staging_block *block;
    uint32_t inline_cell, inline_cells;
};

#endif
