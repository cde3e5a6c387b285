/* SPDX-License-Identifier: Apache-2.0
 * Memory the session knows by address: hvd_alloc's, hvd_mem_alloc's and adopted memory, which the engine
 * reduces in place, and registered memory of the caller's, which has a shared twin of the same
 * layout. Needs the session's lock where it does not say otherwise. */
#ifndef HVD_CLIENT_MEMORY_H
#define HVD_CLIENT_MEMORY_H

#include "shm/region.h"

#include <stdbool.h>
#include <stdint.h>

struct client_adoption;
struct client_lasting;
struct client_operand;
struct hvd_session;

struct client_memory {
    uintptr_t base;    /* the caller's first byte */
    const void *given; /* what names the row to hvd_free and hvd_deregister */
    uint64_t bytes;
    bool is_twin;  /* registered: tensors are copied to and from the region */
    uint64_t skew; /* offset in the region of the caller's first byte */
    uint32_t region_id;
    uint32_t users; /* operands of ops */
    struct hvi_region region;
    struct client_adoption *adoption; /* whose pages the region has replaced, or NULL */
    struct client_lasting *lasting;   /* the process's memory that the region is, or NULL */
};

struct client_memory_table {
    struct client_memory **rows; /* by base; they never overlap */
    uint32_t count, capacity;
    struct client_memory *last; /* of the previous look-up */
};

/* The row that holds all of [ptr, ptr + bytes), or NULL. */
struct client_memory *client_memory_find(struct client_memory_table *table, const void *ptr,
                                         uint64_t bytes);
/* Makes `operand` the place of [ptr, ptr + bytes) in `memory` and counts a user. False when the
 * place is not aligned to `element` bytes, as the engine demands, or when adopted memory is no
 * longer what it was: then [ptr, ptr + bytes) is ordinary memory. */
bool client_memory_use(struct client_memory *memory, const void *ptr, uint32_t element,
                       struct client_operand *operand);

/* Session end: unmaps everything; adopted memory becomes private. */
void client_memory_fini(struct client_memory_table *table);

#endif
