/* SPDX-License-Identifier: Apache-2.0
 * A row enters the table only after the engine has acknowledged its region and leaves it before the
 * engine is told to forget it, so whatever a submission finds in the table the engine knows.
 * What hvd_mem_alloc has made is another process-wide thing (process_memory.c), which a row here shares.
 *
 * Adopted memory may be unmapped without a word (adopt.c), so each use asks whether it is still
 * there, and a row whose memory has gone makes room for what is registered at its place. */
#include "client/memory/table.h"

#include "base/bits.h"
#include "client/error.h"
#include "client/link/control.h"
#include "client/link/link.h"
#include "client/memory/adopt.h"
#include "client/memory/forked.h"
#include "client/memory/process_memory.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

/* Index of the first row whose base is above `address`. */
static uint32_t upper_bound(const struct client_table *table, uintptr_t address)
{
    uint32_t low = 0;
    uint32_t high = table->count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (table->rows[middle]->base <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static bool holds(const struct client_memory_row *row, uintptr_t address, uint64_t bytes)
{
    return address >= row->base &&
           hvi_range_fits((uint64_t)(address - row->base), bytes, row->bytes);
}

struct client_memory_row *client_table_find(struct client_table *table, const void *ptr,
                                            uint64_t bytes)
{
    uintptr_t address = (uintptr_t)ptr;
    for (int i = 0; i < 2; i++) {
        if (table->last[i] && holds(table->last[i], address, bytes))
            return table->last[i];
    }
    /* Small ordinary memory comes here at each op: as a rule it lies beyond all rows. */
    if (table->count == 0 || address < table->rows[0]->base)
        return NULL;
    uint32_t above = upper_bound(table, address);
    if (!holds(table->rows[above - 1], address, bytes))
        return NULL;
    table->last[1] = table->last[0];
    table->last[0] = table->rows[above - 1];
    return table->last[0];
}

bool client_table_use(uint32_t element, struct client_operand *operand)
{
    const struct client_memory_row *row = operand->row;
    uint64_t offset = row->skew + (uint64_t)((uintptr_t)operand->data - row->base);
    if (offset % element || row->withdrawn ||
        (row->adoption && !client_forked_is_intact(row->adoption)))
        return false;
    operand->region = row->region_id;
    operand->offset = offset;
    operand->shared = (unsigned char *)row->region.base + offset;
    return true;
}

struct client_memory_row *client_table_overlapping(const struct client_table *table, uintptr_t base,
                                                   uint64_t bytes)
{
    uint32_t above = upper_bound(table, base);
    if (above > 0 && base - table->rows[above - 1]->base < table->rows[above - 1]->bytes)
        return table->rows[above - 1];
    bool next = above < table->count && table->rows[above]->base - base < bytes;
    return next ? table->rows[above] : NULL;
}

bool client_table_enter(struct client_table *table, struct client_memory_row *row)
{
    if (table->count == table->capacity) {
        uint32_t capacity = table->capacity ? 2 * table->capacity : 16;
        struct client_memory_row **rows = realloc(table->rows, capacity * sizeof(rows[0]));
        if (!rows)
            return false;
        table->rows = rows;
        table->capacity = capacity;
    }
    uint32_t at = upper_bound(table, row->base);
    memmove(&table->rows[at + 1], &table->rows[at], (table->count - at) * sizeof(table->rows[0]));
    table->rows[at] = row;
    table->count++;
    return true;
}

void client_table_remove(struct client_table *table, struct client_memory_row *row)
{
    uint32_t at = upper_bound(table, row->base) - 1;
    table->count--;
    memmove(&table->rows[at], &table->rows[at + 1], (table->count - at) * sizeof(table->rows[0]));
    table->last[0] = table->last[1] = NULL;
}

static void free_row(struct client_memory_row *row)
{
    free(row->chunks);
    free(row);
}

/* Rows of which no op has an operand any more. */
void client_table_sweep(struct client_table *table)
{
    struct client_memory_row **at = &table->gone;
    while (*at) {
        struct client_memory_row *row = *at;
        if (row->users > 0) {
            at = &row->next_gone;
            continue;
        }
        *at = row->next_gone;
        client_control_region_forget(table->link, row->region_id);
        free_row(row);
    }
}

struct client_memory_row *client_table_gone(const struct client_table *table, uintptr_t base,
                                            uint64_t bytes)
{
    struct client_memory_row *found = NULL;
    for (struct client_memory_row *row = table->gone; row; row = row->next_gone) {
        bool overlaps = row->base - base < bytes || base - row->base < row->bytes;
        if (overlaps && (!found || row->users > 0))
            found = row;
    }
    return found;
}

void client_table_take_gone(struct client_table *table, struct client_memory_row *row)
{
    LL_DELETE2(table->gone, row, next_gone);
    row->next_gone = NULL;
}

void client_table_retire(struct client_table *table, struct client_memory_row *row)
{
    client_table_remove(table, row);
    row->next_gone = table->gone;
    table->gone = row;
    client_table_sweep(table);
}

bool client_table_release(struct client_memory_row *row)
{
    bool done = true;
    if (row->adoption)
        done = client_adopt_end(row->adoption);
    else if (row->process_memory)
        client_process_memory_put(row->process_memory);
    else
        hvi_region_fini(&row->region);
    free_row(row);
    return done;
}

/* Rows of adopted memory that has gone do not stand in the way of [base, base + bytes). */
static void sweep(struct client_table *table, uintptr_t base, uint64_t bytes)
{
    struct client_memory_row *row;
    while ((row = client_table_overlapping(table, base, bytes)) && row->adoption &&
           row->users == 0 && !client_forked_is_intact(row->adoption)) {
        client_table_remove(table, row);
        (void)client_control_region_remove(table->link, row->region_id);
        (void)client_table_release(row);
    }
}

int client_table_announce(struct client_table *table, struct client_memory_row *row,
                          const char *what)
{
    int rc = client_link_usable(table->link, what);
    if (rc != HVD_OK)
        return rc;
    sweep(table, row->base, row->bytes);
    if (client_table_overlapping(table, row->base, row->bytes))
        return client_error(HVD_ERR_INVALID,
                            "%s: [%#" PRIxPTR ", +%" PRIu64
                            ") overlaps memory that this session has already",
                            what, row->base, row->bytes);
    rc = client_control_region_add(table->link, &row->region, row->process_memory != NULL, what,
                                   &row->region_id);
    if (rc != HVD_OK)
        return rc;
    if (client_table_overlapping(table, row->base, row->bytes) || !client_table_enter(table, row)) {
        client_control_region_forget(table->link, row->region_id);
        return client_error(HVD_ERR_NO_MEMORY, "%s: no memory for the session's table", what);
    }
    return HVD_OK;
}

struct client_memory_row *client_table_named(const struct client_table *table, const void *ptr,
                                             bool is_alloc)
{
    for (uint32_t i = 0; i < table->count; i++) {
        struct client_memory_row *row = table->rows[i];
        bool is_from_alloc =
            row->kind == CLIENT_MEMORY_MAPPED && !row->adoption && !row->process_memory;
        if (row->given == ptr && is_from_alloc == is_alloc && row->kind != CLIENT_MEMORY_DEVICE)
            return row;
    }
    return NULL;
}

void client_table_fini(struct client_table *table)
{
    for (uint32_t i = 0; i < table->count; i++)
        (void)client_table_release(
            table->rows[i]); /* adopted memory keeps its contents in any case */
    while (table->gone) {
        struct client_memory_row *row = table->gone;
        table->gone = row->next_gone;
        free_row(row);
    }
    free(table->rows);
    memset(table, 0, sizeof(*table));
}
