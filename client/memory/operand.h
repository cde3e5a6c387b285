/* SPDX-License-Identifier: Apache-2.0
 * One side of an op: what memory the caller's tensor is, and where the op finds it. An operand is
 * classified first, before a way for its op is chosen; all that follows uses that answer. Needs the
 * session's lock. */
#ifndef HVD_CLIENT_OPERAND_H
#define HVD_CLIENT_OPERAND_H

#include <stdbool.h>
#include <stdint.h>

struct client_device_block;
struct client_memory;
struct client_memory_row;
struct client_staging_block;

enum client_memory_kind {
    CLIENT_MEMORY_ORDINARY, /* this process's own; the session knows nothing of it */
    CLIENT_MEMORY_TWIN,     /* registered: ordinary, with a region for its copies */
    CLIENT_MEMORY_MAPPED,   /* the memory of a region, which the engine has mapped too */
    CLIENT_MEMORY_DEVICE,   /* a CUDA device's, which a worker has opened */
    CLIENT_MEMORY_STAGED, /* a CUDA device's: the op works on a copy of it in memory of the host */
};

/* Holds at most one of row, block and inline_cells, and besides .of_own; client_memory_put gives them back. */
struct client_operand {
    enum client_memory_kind kind;
    uint32_t region; /* as the engine knows it */
    uint64_t offset;
    uint64_t bytes;
    void *data; /* the caller's; NULL: the operand is ours alone */
    void
        *shared; /* our mapping of the region's place; NULL for HVI_REGION_PROCESS and a device's */
    bool copied; /* the op works on a copy of .data */
    struct client_memory_row *row;
    struct client_staging_block *block;
    uint32_t inline_cell, inline_cells;
    int device;                         /* ordinal, of a device's memory */
    struct client_device_block *of_own; /* held: .data is hvd_device_alloc's */
};

/* Says what memory [data, data + bytes) is, and holds the row that knows it; no system call. False when
 * that may be wrong, because a device's memory may lie there now: then client_operand_ask is to be asked. */
bool client_operand_classify(struct client_memory *memory, void *data, uint64_t bytes,
                             struct client_operand *operand_p);
/* Lets go of rows of device memory that was freed since. Gives up the lock. All of an op's are checked before any is asked
 * about: the engine closes what is gone before it opens what is there now, whose handle may be the same. */
void client_operands_check(struct client_memory *memory, struct client_operand *const *operands,
                           int count);
/* Asks the driver, and makes memory of a device known to the engine: then, and only then, the operand is of kind
 * DEVICE, or STAGED where `may_stage`. Gives up the lock, and may wait for the engine. HVD_ERR_UNSUPPORTED and others,
 * with the last error set. `what` is the call; `which` is "in" or "out". */
int client_operand_ask(struct client_memory *memory, const char *what, const char *which,
                       bool may_stage, struct client_operand *operand);
/* Lets the op find a classified tensor of elements of this size where it is, if that is possible
 * without a copy; else lets go of memory that cannot be used so. It and both functions below may give
 * up the lock. */
bool client_operand_direct(struct client_memory *memory, uint32_t element,
                           struct client_operand *operand);
/* The same, or finds shared memory for a copy of it. Errors as client_staging_get. */
int client_operand_locate(struct client_memory *memory, const char *what, uint32_t element,
                          struct client_operand *operand);
/* Shared memory for `bytes`: inline cells or a staging block. Lets go of what the operand holds, but for .of_own. Fails
 * as above. */
int client_operand_scratch(struct client_memory *memory, const char *what, uint64_t bytes,
                           struct client_operand *operand);

#endif
