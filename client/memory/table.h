/* SPDX-License-Identifier: Apache-2.0
 * Memory the session knows by address: hvd_alloc's, hvd_mem_alloc's and adopted memory, which the engine
 * reduces in place, and registered memory of the caller's, which has a shared twin of the same
 * layout. Needs the session's lock where it does not say otherwise. */
#ifndef HVD_CLIENT_TABLE_H
#define HVD_CLIENT_TABLE_H

#include "client/memory/operand.h"
#include "shm/region.h"

#include <stdbool.h>
#include <stdint.h>

struct client_device_chunks;
struct client_forked;
struct client_process_memory;
struct client_link;

struct client_memory_row {
    uintptr_t base;    /* the caller's first byte */
    const void *given; /* what names the row to hvd_free and hvd_deregister */
    uint64_t bytes;
    enum client_memory_kind kind; /* CLIENT_MEMORY_TWIN, _MAPPED or _DEVICE */
    bool withdrawn; /* the twin is not used any more: the engine may still write to it */
    uint64_t skew;  /* offset in the region of the caller's first byte */
    uint32_t region_id;
    uint32_t users; /* operands of ops */
    struct hvi_region region;
    struct client_forked *adoption;               /* whose pages the region has replaced, or NULL */
    struct client_process_memory *process_memory; /* that the region is, or NULL */
    /* Of a device's memory, whose region is with the worker alone. */
    uint64_t buffer_id;
    struct client_device_chunks *chunks; /* or NULL: it is no reservation's */
    int device;                          /* ordinal */
    struct client_memory_row *next_gone;
};

struct client_table {
    struct client_link *link;
    struct client_memory_row **rows; /* by base; they never overlap */
    uint32_t count, capacity;
    struct client_memory_row *last[2]; /* that were found: an input's and an output's, mostly */
    /* Of device memory that was freed, or is told in a larger row, while ops used it; they go when these are over. */
    struct client_memory_row *gone;
};

/* The row that holds all of [ptr, ptr + bytes), or NULL. */
struct client_memory_row *client_table_find(struct client_table *table, const void *ptr,
                                            uint64_t bytes);
/* Lets the op find operand->data in the row that the operand holds. False when that is not aligned to
 * `element` bytes, as the engine demands, when adopted memory is no longer what it was, or when the
 * twin is withdrawn: then it is ordinary memory. */
bool client_table_use(uint32_t element, struct client_operand *operand);

/* Announces row->region to the engine and enters the row, which is the table's from now on. Gives up
 * the lock while it waits. HVD_ERR_INVALID for an overlap, HVD_ERR_NO_MEMORY, the session's end, or as
 * client_control_region_add, with the last error set. */
int client_table_announce(struct client_table *table, struct client_memory_row *row,
                          const char *what);
/* The row that `ptr` names to hvd_free (`is_alloc`) or hvd_deregister, or NULL. */
struct client_memory_row *client_table_named(const struct client_table *table, const void *ptr,
                                             bool is_alloc);
/* Takes a row out; the engine still knows its region. */
void client_table_remove(struct client_table *table, struct client_memory_row *row);
/* Unmaps what a row that is in no table has, or gives adopted and process memory back to the caller.
 * False: it stays shared for want of memory. Needs no lock. */
bool client_table_release(struct client_memory_row *row);

/* Enters a row of device memory, whose region the engine knows; it is the table's from now on. False: no memory. */
bool client_table_enter(struct client_table *table, struct client_memory_row *row);
/* The first row that overlaps, or NULL. */
struct client_memory_row *client_table_overlapping(const struct client_table *table, uintptr_t base,
                                                   uint64_t bytes);
/* Takes out a row of device memory that is not there any more, and those taken out before that no op uses now. */
void client_table_retire(struct client_table *table, struct client_memory_row *row);
void client_table_sweep(struct client_table *table);
/* Of the rows taken out before that overlap one that an op uses, else any; NULL: there is none. */
struct client_memory_row *client_table_gone(const struct client_table *table, uintptr_t base,
                                            uint64_t bytes);
/* Such a row, which no op uses, is the caller's from now on. */
void client_table_take_gone(struct client_table *table, struct client_memory_row *row);

/* Session end: unmaps everything; adopted memory becomes private. */
void client_table_fini(struct client_table *table);

#endif
