/* SPDX-License-Identifier: Apache-2.0
 * hvd_alloc, hvd_free, hvd_register, hvd_adopt, hvd_deregister and the table behind them.
 * What hvd_mem_alloc has made is another process-wide thing (lasting.c), which a row here shares.
 *
 * A row enters the table only after the engine has acknowledged its region and leaves it before the
 * engine is told to forget it, so whatever a submission finds in the table the engine knows.
 * Creating a region (the kernel zeroes its pages) and waiting for acknowledgements happen without
 * the lock.
 *
 * Adopted memory may be unmapped without a word (adopt.c), so each use asks whether it is still
 * there, and a row whose memory has gone makes room for what somebody registers at its place. */
#include "client/memory.h"

#include "base/bits.h"
#include "base/status.h"
#include "client/adopt.h"
#include "client/error.h"
#include "client/lasting.h"
#include "client/link/control.h"
#include "client/session/enter.h"
#include "client/session/session.h"
#include "client/wait.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define REGISTER_ALIGN 64u /* a twin keeps the caller's alignment up to a cache line */

/* Index of the first row whose base is above `address`. */
static uint32_t upper_bound(const struct client_memory_table *table, uintptr_t address)
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

static bool holds(const struct client_memory *memory, uintptr_t address, uint64_t bytes)
{
    return address >= memory->base &&
           hvi_range_fits((uint64_t)(address - memory->base), bytes, memory->bytes);
}

struct client_memory *client_memory_find(struct client_memory_table *table, const void *ptr,
                                         uint64_t bytes)
{
    uintptr_t address = (uintptr_t)ptr;
    if (table->last && holds(table->last, address, bytes))
        return table->last;
    uint32_t above = upper_bound(table, address);
    if (above == 0 || !holds(table->rows[above - 1], address, bytes))
        return NULL;
    table->last = table->rows[above - 1];
    return table->last;
}

bool client_memory_use(struct client_memory *memory, const void *ptr, uint32_t element,
                       struct client_operand *operand)
{
    uint64_t offset = memory->skew + (uint64_t)((uintptr_t)ptr - memory->base);
    if (offset % element || (memory->adoption && !client_adopt_is_intact(memory->adoption)))
        return false;
    *operand = (struct client_operand){.region = memory->region_id,
                                       .offset = offset,
                                       .shared = (unsigned char *)memory->region.base + offset,
                                       .memory = memory};
    memory->users++;
    return true;
}

/* The first row that overlaps [base, base + bytes), or NULL. */
static struct client_memory *overlapping(const struct client_memory_table *table, uintptr_t base,
                                         uint64_t bytes)
{
    uint32_t above = upper_bound(table, base);
    if (above > 0 && base - table->rows[above - 1]->base < table->rows[above - 1]->bytes)
        return table->rows[above - 1];
    bool next = above < table->count && table->rows[above]->base - base < bytes;
    return next ? table->rows[above] : NULL;
}

static bool insert(struct client_memory_table *table, struct client_memory *memory)
{
    if (table->count == table->capacity) {
        uint32_t capacity = table->capacity ? 2 * table->capacity : 16;
        struct client_memory **rows = realloc(table->rows, capacity * sizeof(rows[0]));
        if (!rows)
            return false;
        table->rows = rows;
        table->capacity = capacity;
    }
    uint32_t at = upper_bound(table, memory->base);
    memmove(&table->rows[at + 1], &table->rows[at], (table->count - at) * sizeof(table->rows[0]));
    table->rows[at] = memory;
    table->count++;
    return true;
}

static void take_out(struct client_memory_table *table, struct client_memory *memory)
{
    uint32_t at = upper_bound(table, memory->base) - 1;
    table->count--;
    memmove(&table->rows[at], &table->rows[at + 1], (table->count - at) * sizeof(table->rows[0]));
    if (table->last == memory)
        table->last = NULL;
}

/* Unmaps, or gives adopted and lasting memory back to the caller. False: it stays shared for want of memory. */
static bool release(struct client_memory *memory)
{
    bool done = true;
    if (memory->adoption)
        done = client_adopt_end(memory->adoption);
    else if (memory->lasting)
        client_lasting_put(memory->lasting);
    else
        hvi_region_fini(&memory->region);
    free(memory);
    return done;
}

/* Rows of adopted memory that has gone do not stand in the way of [base, base + bytes). */
static void sweep(struct hvd_session *session, uintptr_t base, uint64_t bytes)
{
    struct client_memory *memory;
    while ((memory = overlapping(&session->memory, base, bytes)) && memory->adoption &&
           memory->users == 0 && !client_adopt_is_intact(memory->adoption)) {
        take_out(&session->memory, memory);
        client_control_region_remove(&session->link, memory->region_id);
        (void)release(memory);
    }
}

/* Announces memory->region and enters the row. With the lock. */
static int announce(struct hvd_session *session, struct client_memory *memory, const char *what)
{
    int rc = client_link_usable(&session->link, what);
    if (rc != HVD_OK)
        return rc;
    sweep(session, memory->base, memory->bytes);
    if (overlapping(&session->memory, memory->base, memory->bytes))
        return client_error(HVD_ERR_INVALID,
                            "%s: [%#" PRIxPTR ", +%" PRIu64
                            ") overlaps memory that this session has already",
                            what, memory->base, memory->bytes);
    rc = client_control_region_add(&session->link, &memory->region, memory->lasting != NULL, what,
                                   &memory->region_id);
    if (rc != HVD_OK)
        return rc;
    if (overlapping(&session->memory, memory->base, memory->bytes) ||
        !insert(&session->memory, memory)) {
        client_control_region_forget(&session->link, memory->region_id);
        return client_error(HVD_ERR_NO_MEMORY, "%s: no memory for the session's table", what);
    }
    return HVD_OK;
}

/* Makes a region of skew + bytes and a row for it; for hvd_alloc `ptr` is NULL: the region is the
 * memory. */
static int add(struct hvd_session *session, const void *ptr, uint64_t skew, uint64_t bytes,
               const char *what, struct client_memory **memory_p)
{
    uint64_t region_bytes;
    struct client_memory *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return client_error(HVD_ERR_NO_MEMORY, "%s: out of memory", what);
    int rc = HVD_ERR_INVALID;
    if (hvi_add_checked(skew, bytes, &region_bytes))
        rc = hvi_region_create(ptr ? "hvd-register" : "hvd-alloc", region_bytes, &memory->region);
    if (rc != HVD_OK) {
        free(memory);
        return client_error(rc,
                            "%s: %" PRIu64 " bytes of shared memory: %s; 'hvdctl doctor' shows the "
                            "limits of this machine",
                            what, bytes, hvi_status_text(rc));
    }
    memory->base = ptr ? (uintptr_t)ptr : (uintptr_t)memory->region.base;
    memory->given = (const void *)memory->base;
    memory->bytes = bytes;
    memory->is_twin = ptr != NULL;
    memory->skew = skew;
    rc = client_session_enter(session, what);
    if (rc == HVD_OK) {
        rc = announce(session, memory, what);
        client_session_leave(session);
    }
    hvi_region_close_fd(&memory->region);
    if (rc != HVD_OK) {
        hvi_region_fini(&memory->region);
        free(memory);
        return rc;
    }
    *memory_p = memory;
    return HVD_OK;
}

/* The row that `ptr` names, or NULL. */
static struct client_memory *named_by(const struct client_memory_table *table, const void *ptr,
                                      bool is_alloc)
{
    for (uint32_t i = 0; i < table->count; i++) {
        struct client_memory *memory = table->rows[i];
        bool is_from_alloc = !memory->is_twin && !memory->adoption && !memory->lasting;
        if (memory->given == ptr && is_from_alloc == is_alloc)
            return memory;
    }
    return NULL;
}

/* Takes the row that `ptr` names out of the table, with the lock. */
static int detach_row(struct hvd_session *session, const void *ptr, bool is_alloc, const char *what,
                      struct client_memory **memory_p)
{
    if (!client_peers_wait_quiet(session))
        return client_error(HVD_ERR_BUSY, "%s: another thread of this rank still works on an op",
                            what);
    struct client_memory *memory = named_by(&session->memory, ptr, is_alloc);
    if (!memory)
        return client_error(HVD_ERR_NOT_FOUND, "%s: %p is not from %s of this session", what, ptr,
                            is_alloc ? "hvd_alloc" : "hvd_register or hvd_adopt");
    if (memory->users > 0)
        client_wait_drain(session);
    if (memory->users > 0)
        return client_error(HVD_ERR_BUSY,
                            "%s: %p is used by %" PRIu32
                            " operands of ops that are not finished; wait for them first",
                            what, ptr, memory->users);
    take_out(&session->memory, memory);
    *memory_p = memory;
    return HVD_OK;
}

static int drop(struct hvd_session *session, void *ptr, bool is_alloc, const char *what)
{
    struct client_memory *memory = NULL;
    int rc = client_session_enter(session, what);
    if (rc != HVD_OK)
        return rc;
    rc = detach_row(session, ptr, is_alloc, what, &memory);
    if (rc == HVD_OK)
        client_control_region_remove(&session->link, memory->region_id);
    client_session_leave(session);
    if (rc != HVD_OK || release(memory))
        return rc;
    return client_error(HVD_ERR_NO_MEMORY,
                        "%s: no memory for a private copy of %p; it is forgotten by this session, "
                        "and its contents stay where they are",
                        what, ptr);
}

int hvd_alloc(struct hvd_session *session, size_t bytes, void **ptr_p)
{
    struct client_memory *memory;
    int rc = client_session_check_fork(session, "hvd_alloc");
    if (rc != HVD_OK)
        return rc;
    if (bytes == 0 || !ptr_p)
        return client_error(HVD_ERR_INVALID, "hvd_alloc: %s",
                            ptr_p ? "0 bytes were asked for" : "ptr_p is NULL");
    rc = add(session, NULL, 0, bytes, "hvd_alloc", &memory);
    if (rc != HVD_OK)
        return rc;
    *ptr_p = memory->region.base;
    return HVD_OK;
}

int hvd_free(struct hvd_session *session, void *ptr)
{
    return drop(session, ptr, true, "hvd_free");
}

/* All of it, whichever part `ptr` lies in. */
static int add_lasting(struct hvd_session *session, const void *ptr, struct client_lasting *lasting)
{
    struct client_memory *memory = calloc(1, sizeof(*memory));
    int rc = HVD_OK;
    if (memory) {
        memory->region = *client_lasting_region(lasting);
        memory->base = (uintptr_t)memory->region.base;
        memory->bytes = memory->region.bytes;
        memory->given = ptr;
        memory->lasting = lasting;
        rc = client_session_enter(session, "hvd_register");
        if (rc == HVD_OK) {
            rc = announce(session, memory, "hvd_register");
            client_session_leave(session);
        }
    } else {
        rc = client_error(HVD_ERR_NO_MEMORY, "hvd_register: out of memory");
    }
    if (rc != HVD_OK) {
        client_lasting_put(lasting);
        free(memory);
    }
    return rc;
}

int hvd_register(struct hvd_session *session, void *ptr, size_t bytes)
{
    struct client_memory *memory;
    int rc = client_session_check_fork(session, "hvd_register");
    if (rc != HVD_OK)
        return rc;
    if (!ptr || bytes == 0 || (uintptr_t)ptr + bytes < (uintptr_t)ptr)
        return client_error(HVD_ERR_INVALID, "hvd_register: [%p, +%zu) is no memory", ptr, bytes);
    struct client_lasting *lasting = client_lasting_hold((uintptr_t)ptr, bytes);
    if (lasting)
        return add_lasting(session, ptr, lasting);
    return add(session, ptr, (uintptr_t)ptr % REGISTER_ALIGN, bytes, "hvd_register", &memory);
}

/* An op in flight, staged or not, will write to its output. */
static bool is_output(const struct client_ops *ops, struct client_range range)
{
    for (uint32_t i = 0; i < ops->fresh; i++) {
        const struct hvd_op *op = &ops->slots[i];
        uintptr_t out = op->out.region == HVI_REGION_FOREIGN ? (uintptr_t)op->out.offset
                                                             : (uintptr_t)op->copy_to;
        if (op->state != CLIENT_OP_FREE && op->state != CLIENT_OP_FINISHED && out < range.end &&
            out + op->out_bytes > range.start)
            return true;
    }
    return false;
}

/* With the lock. */
static int enter_adopted(struct hvd_session *session, struct client_memory *memory)
{
    struct client_range range = {memory->base, memory->base + memory->bytes};
    int rc = announce(session, memory, "hvd_adopt");
    if (rc != HVD_OK)
        return rc;
    if (is_output(&session->ops, range))
        rc = client_error(HVD_ERR_BUSY, "hvd_adopt: %p is used by ops that are not finished",
                          memory->given);
    else
        rc = client_adopt_replace(memory->adoption, &memory->region);
    if (rc != HVD_OK) {
        take_out(&session->memory, memory);
        client_control_region_forget(&session->link, memory->region_id);
    }
    return rc;
}

static int adopt(struct hvd_session *session, const void *ptr, struct client_range range)
{
    struct client_memory *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_adopt: out of memory");
    memory->base = range.start;
    memory->bytes = range.end - range.start;
    memory->given = ptr;
    int rc = client_adopt_prepare(range, &memory->region, &memory->adoption);
    if (rc != HVD_OK) {
        free(memory);
        return rc;
    }
    rc = client_session_enter(session, "hvd_adopt");
    if (rc == HVD_OK) {
        rc = enter_adopted(session, memory);
        client_session_leave(session);
    }
    if (rc != HVD_OK) {
        client_adopt_cancel(memory->adoption, &memory->region);
        free(memory);
        return rc;
    }
    client_adopt_touch(range);
    return HVD_OK;
}

int hvd_adopt(struct hvd_session *session, void *ptr, size_t bytes)
{
    struct client_range range;
    int rc = client_session_check_fork(session, "hvd_adopt");
    if (rc != HVD_OK)
        return rc;
    if (!ptr || bytes == 0 || (uintptr_t)ptr + bytes < (uintptr_t)ptr)
        return client_error(HVD_ERR_INVALID, "hvd_adopt: [%p, +%zu) is no memory", ptr, bytes);
    rc = client_adopt_choose(ptr, bytes, &range);
    return rc == HVD_OK ? adopt(session, ptr, range) : rc;
}

int hvd_deregister(struct hvd_session *session, void *ptr)
{
    return drop(session, ptr, false, "hvd_deregister");
}

void client_memory_fini(struct client_memory_table *table)
{
    for (uint32_t i = 0; i < table->count; i++)
        (void)release(table->rows[i]); /* adopted memory keeps its contents in any case */
    free(table->rows);
    memset(table, 0, sizeof(*table));
}
