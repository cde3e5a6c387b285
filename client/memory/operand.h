/* SPDX-License-Identifier: Apache-2.0
 * One side of an op: what memory the caller's tensor is, and where the op finds it. An operand is
 * classified first, before a way for its op is chosen; all that follows uses that answer. Needs the
 * session's lock. */
#ifndef HVD_CLIENT_OPERAND_H
#define HVD_CLIENT_OPERAND_H

#include <stdbool.h>
#include <stdint.h>

struct client_memory;
struct client_memory_row;
struct client_staging_block;

enum client_memory_kind {
    CLIENT_MEMORY_ORDINARY, /* this process's own; the session knows nothing of it */
    CLIENT_MEMORY_TWIN,     /* registered: ordinary, with a region for its copies */
    CLIENT_MEMORY_MAPPED,   /* the memory of a region, which the engine has mapped too */
};

/* Holds at most one of row, block and inline_cells, which client_memory_put gives back. */
struct client_operand {
    enum client_memory_kind kind;
    uint32_t region; /* as the engine knows it */
    uint64_t offset;
    uint64_t bytes;
    void *data;   /* the caller's; NULL: the operand is ours alone */
    void *shared; /* our mapping of the region's place; NULL for HVI_REGION_PROCESS */
    bool copied;  /* the op works on a copy of .data */
    struct client_memory_row *row;
    struct client_staging_block *block;
    uint32_t inline_cell, inline_cells;
};

/* Says what memory [data, data + bytes) is, and holds the row that knows it. The only place that asks
 * this of a pointer; no system call. */
void client_operand_classify(struct client_memory *memory, void *data, uint64_t bytes,
                             struct client_operand *operand_p);
/* Lets the op find a classified tensor of elements of this size where it is, if that is possible
 * without a copy; else lets go of memory that cannot be used so. It and both functions below may give
 * up the lock. */
bool client_operand_direct(struct client_memory *memory, uint32_t element,
                           struct client_operand *operand);
/* The same, or finds shared memory for a copy of it. Errors as client_staging_get. */
int client_operand_locate(struct client_memory *memory, const char *what, uint32_t element,
                          struct client_operand *operand);
/* Shared memory for `bytes`: inline cells or a staging block. Lets go of what the operand holds. Fails
 * as above. */
int client_operand_scratch(struct client_memory *memory, const char *what, uint64_t bytes,
                           struct client_operand *operand);

#endif
