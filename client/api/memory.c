/* SPDX-License-Identifier: Apache-2.0
 * hvd_alloc, hvd_free, hvd_register, hvd_adopt, hvd_deregister and hvd_device_forget. Creating a region (the kernel zeroes
 * its pages) and waiting for acknowledgements happen without the lock. */
#include "base/bits.h"
#include "base/status.h"
#include "client/error.h"
#include "client/link/control.h"
#include "client/memory/adopt.h"
#include "client/memory/process_memory.h"
#include "client/session/enter.h"
#include "client/session/session.h"

#include <inttypes.h>
#include <stdlib.h>

#define REGISTER_ALIGN 64u /* a twin keeps the caller's alignment up to a cache line */

static int announce(struct hvd_session *session, struct client_memory_row *row, const char *what)
{
    int rc = client_session_enter(session, what);
    if (rc == HVD_OK) {
        rc = client_table_announce(&session->memory.table, row, what);
        client_session_leave(session);
    }
    return rc;
}

/* Makes a region and a row for it; for hvd_alloc `ptr` is NULL: the region is the memory. */
static int add(struct hvd_session *session, const void *ptr, uint64_t bytes, const char *what,
               void **shared_p)
{
    uint64_t region_bytes, skew = (uintptr_t)ptr % REGISTER_ALIGN;
    struct client_memory_row *row = calloc(1, sizeof(*row));
    if (!row)
        return client_error(HVD_ERR_NO_MEMORY, "%s: out of memory", what);
    int rc = HVD_ERR_INVALID;
    if (hvi_add_checked(skew, bytes, &region_bytes))
        rc = hvi_region_create(ptr ? "hvd-register" : "hvd-alloc", region_bytes, &row->region);
    if (rc != HVD_OK) {
        free(row);
        return client_error(rc,
                            "%s: %" PRIu64 " bytes of shared memory: %s; 'hvdctl doctor' shows the "
                            "limits of this machine",
                            what, bytes, hvi_status_text(rc));
    }
    void *shared = row->region.base;
    row->base = ptr ? (uintptr_t)ptr : (uintptr_t)shared;
    row->given = (const void *)row->base;
    row->bytes = bytes;
    row->kind = ptr ? CLIENT_MEMORY_TWIN : CLIENT_MEMORY_MAPPED;
    row->skew = skew;
    rc = announce(session, row, what);
    hvi_region_close_fd(&row->region);
    if (rc == HVD_OK)
        *shared_p = shared;
    else
        (void)client_table_release(row);
    return rc;
}

static bool touches(struct client_range range, uintptr_t start, uint64_t bytes)
{
    return bytes > 0 && start < range.end && start + bytes > range.start;
}

/* The op, staged or not, will write to its output there. */
static bool writes_to(const struct hvd_op *op, struct client_range range)
{
    if (op->state == CLIENT_OP_PREPARING) /* has no place yet */
        return touches(range, (uintptr_t)op->out.data, op->out.bytes);
    uintptr_t out =
        op->out.region == HVI_REGION_PROCESS ? (uintptr_t)op->out.offset : (uintptr_t)op->copy_to;
    return touches(range, out, op->out_bytes);
}

/* The op's input is read there by its address, or is being copied. */
static bool reads_from(const struct hvd_op *op, struct client_range range)
{
    if (op->state == CLIENT_OP_PREPARING)
        return touches(range, (uintptr_t)op->in.data, op->in.bytes);
    return (op->state == CLIENT_OP_IN_FLIGHT || op->state == CLIENT_OP_SIZED) &&
           op->in.region == HVI_REGION_PROCESS &&
           touches(range, (uintptr_t)op->in.offset, op->in.bytes);
}

/* An op that is not finished has its output there or, with `inputs`, its input: also one that found the memory by
 * no row, because its tensor is not aligned, or is not all in one row. */
static bool is_operand(const struct client_ops *ops, struct client_range range, bool inputs)
{
    for (uint32_t i = 0; i < ops->fresh; i++) {
        const struct hvd_op *op = &ops->slots[i];
        if (op->state != CLIENT_OP_FREE && op->state != CLIENT_OP_FINISHED &&
            (writes_to(op, range) || (inputs && reads_from(op, range))))
            return true;
    }
    return false;
}

/* No op uses the row; else the error says that it does, of `ptr`. With the lock. */
static int check_unused(struct hvd_session *session, const struct client_memory_row *row,
                        const void *ptr, const char *what)
{
    if (row->users > 0)
        client_complete_drain(&session->complete);
    if (row->users == 0)
        return HVD_OK;
    return client_error(HVD_ERR_BUSY,
                        "%s: %p is used by %" PRIu32
                        " operands of ops that are not finished; wait for them first",
                        what, ptr, row->users);
}

/* The same for memory that goes away, or is replaced: ops may use it by its address. A twin's stays as it is. */
static int check_addresses(struct hvd_session *session, const struct client_memory_row *row,
                           const void *ptr, const char *what)
{
    struct client_range range = {row->base, row->base + row->bytes};
    if (row->kind == CLIENT_MEMORY_TWIN || !is_operand(&session->ops, range, true))
        return HVD_OK;
    client_complete_drain(&session->complete);
    client_slots_look_all(&session->slots);
    if (!is_operand(&session->ops, range, true))
        return HVD_OK;
    return client_error(HVD_ERR_BUSY,
                        "%s: %p is used by ops that are not finished, which have it as ordinary "
                        "memory; wait for them first",
                        what, ptr);
}

/* Takes the row that `ptr` names out of the table, with the lock. */
static int detach_row(struct hvd_session *session, const void *ptr, bool is_alloc, const char *what,
                      struct client_memory_row **row_p)
{
    if (!client_peers_wait_quiet(&session->memory.peers))
        return client_error(HVD_ERR_BUSY, "%s: another thread of this rank still works on an op",
                            what);
    struct client_memory_row *row = client_table_named(&session->memory.table, ptr, is_alloc);
    if (!row)
        return client_error(HVD_ERR_NOT_FOUND, "%s: %p is not from %s of this session", what, ptr,
                            is_alloc ? "hvd_alloc" : "hvd_register or hvd_adopt");
    int rc = check_unused(session, row, ptr, what);
    if (rc == HVD_OK)
        rc = check_addresses(session, row, ptr, what);
    if (rc != HVD_OK)
        return rc;
    client_table_remove(&session->memory.table, row);
    *row_p = row;
    return HVD_OK;
}

static int drop(struct hvd_session *session, void *ptr, bool is_alloc, const char *what)
{
    struct client_memory_row *row = NULL;
    int rc = client_session_enter(session, what);
    if (rc != HVD_OK)
        return rc;
    rc = detach_row(session, ptr, is_alloc, what, &row);
    if (rc == HVD_OK)
        (void)client_control_region_remove(&session->link, row->region_id);
    client_session_leave(session);
    if (rc != HVD_OK || client_table_release(row))
        return rc;
    return client_error(HVD_ERR_NO_MEMORY,
                        "%s: no memory for a private copy of %p; it is forgotten by this session, "
                        "and its contents stay where they are",
                        what, ptr);
}

int hvd_alloc(struct hvd_session *session, size_t bytes, void **ptr_p)
{
    int rc = client_session_check_fork(session, "hvd_alloc");
    if (rc != HVD_OK)
        return rc;
    if (bytes == 0 || !ptr_p)
        return client_error(HVD_ERR_INVALID, "hvd_alloc: %s",
                            ptr_p ? "0 bytes were asked for" : "ptr_p is NULL");
    return add(session, NULL, bytes, "hvd_alloc", ptr_p);
}

int hvd_free(struct hvd_session *session, void *ptr)
{
    return drop(session, ptr, true, "hvd_free");
}

/* All of it, whichever part `ptr` lies in. */
static int add_process_memory(struct hvd_session *session, const void *ptr,
                              struct client_process_memory *memory, const struct hvi_region *region)
{
    struct client_memory_row *row = calloc(1, sizeof(*row));
    if (!row) {
        client_process_memory_put(memory);
        return client_error(HVD_ERR_NO_MEMORY, "hvd_register: out of memory");
    }
    *row = (struct client_memory_row){.base = (uintptr_t)region->base,
                                      .given = ptr,
                                      .bytes = region->bytes,
                                      .kind = CLIENT_MEMORY_MAPPED,
                                      .region = *region,
                                      .process_memory = memory};
    int rc = announce(session, row, "hvd_register");
    if (rc != HVD_OK)
        (void)client_table_release(row);
    return rc;
}

static int check_range(const struct hvd_session *session, const char *what, const void *ptr,
                       size_t bytes)
{
    int rc = client_session_check_fork(session, what);
    if (rc == HVD_OK && (!ptr || bytes == 0 || (uintptr_t)ptr + bytes < (uintptr_t)ptr))
        rc = client_error(HVD_ERR_INVALID, "%s: [%p, +%zu) is no memory", what, ptr, bytes);
    return rc;
}

int hvd_register(struct hvd_session *session, void *ptr, size_t bytes)
{
    struct hvi_region region;
    void *twin;
    int rc = check_range(session, "hvd_register", ptr, bytes);
    if (rc != HVD_OK)
        return rc;
    struct client_process_memory *memory =
        client_process_memory_hold((uintptr_t)ptr, bytes, &region);
    if (memory)
        return add_process_memory(session, ptr, memory, &region);
    return add(session, ptr, bytes, "hvd_register", &twin);
}

/* With the lock. An op that ends while the contents are copied has written to the pages that go. */
static int check_no_output(struct hvd_session *session, struct client_range range, const void *ptr)
{
    if (!is_operand(&session->ops, range, false))
        return HVD_OK;
    return client_error(HVD_ERR_BUSY, "hvd_adopt: %p is used by ops that are not finished", ptr);
}

static int look_before(struct hvd_session *session, struct client_range range, const void *ptr)
{
    int rc = client_session_enter(session, "hvd_adopt");
    if (rc != HVD_OK)
        return rc;
    rc = check_no_output(session, range, ptr);
    client_session_leave(session);
    return rc;
}

/* With the lock. */
static int enter_adopted(struct hvd_session *session, struct client_memory_row *row)
{
    struct client_range range = {row->base, row->base + row->bytes};
    int rc = client_table_announce(&session->memory.table, row, "hvd_adopt");
    if (rc != HVD_OK)
        return rc;
    rc = check_no_output(session, range, row->given);
    if (rc == HVD_OK)
        rc = client_adopt_replace(row->adoption, &row->region);
    if (rc != HVD_OK) {
        client_table_remove(&session->memory.table, row);
        client_control_region_forget(&session->link, row->region_id);
    }
    return rc;
}

static int adopt(struct hvd_session *session, const void *ptr, struct client_range range)
{
    int rc = look_before(session, range, ptr);
    if (rc != HVD_OK)
        return rc;
    struct client_memory_row *row = calloc(1, sizeof(*row));
    if (!row)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_adopt: out of memory");
    row->base = range.start;
    row->bytes = range.end - range.start;
    row->given = ptr;
    row->kind = CLIENT_MEMORY_MAPPED;
    rc = client_adopt_prepare(range, &row->region, &row->adoption);
    if (rc == HVD_OK)
        rc = client_session_enter(session, "hvd_adopt");
    if (rc == HVD_OK) {
        rc = enter_adopted(session, row);
        client_session_leave(session);
    }
    if (rc == HVD_OK) {
        client_adopt_touch(range);
    } else {
        client_adopt_cancel(row->adoption, &row->region);
        free(row);
    }
    return rc;
}

int hvd_adopt(struct hvd_session *session, void *ptr, size_t bytes)
{
    struct client_range range;
    int rc = check_range(session, "hvd_adopt", ptr, bytes);
    if (rc == HVD_OK)
        rc = client_adopt_choose(ptr, bytes, &range);
    return rc == HVD_OK ? adopt(session, ptr, range) : rc;
}

int hvd_deregister(struct hvd_session *session, void *ptr)
{
    return drop(session, ptr, false, "hvd_deregister");
}

/* Takes the row of the allocation that holds `ptr` out of the table, and what is left of rows that were in its place. NULL with the last
 * error set. */
static struct client_memory_row *take_device_row(struct hvd_session *session, const void *ptr,
                                                 int *rc_p)
{
    struct client_table *table = &session->memory.table;
    client_complete_drain(&session->complete);
    struct client_memory_row *row = client_table_find(table, ptr, 1), *gone;
    if (row && row->kind != CLIENT_MEMORY_DEVICE)
        row = NULL;
    gone = row ? client_table_gone(table, row->base, row->bytes)
               : client_table_gone(table, (uintptr_t)ptr, 1);
    *rc_p = HVD_OK;
    if (!row && !gone)
        *rc_p = client_error(
            HVD_ERR_NOT_FOUND,
            "hvd_device_forget: this session knows no allocation of device memory that holds %p",
            ptr);
    if (row)
        *rc_p = check_unused(session, row, ptr, "hvd_device_forget");
    if (*rc_p == HVD_OK && gone)
        *rc_p = check_unused(session, gone, ptr, "hvd_device_forget");
    if (*rc_p != HVD_OK)
        return NULL;
    if (row)
        client_table_remove(table, row);
    else
        client_table_take_gone(table, gone);
    client_table_sweep(table); /* a worker closes in order: the last one's Ack speaks for all */
    return row ? row : gone;
}

/* With the lock. */
static int forget(struct hvd_session *session, const void *ptr)
{
    int rc;
    struct client_memory_row *row = take_device_row(session, ptr, &rc);
    if (!row)
        return rc;
    const bool has_gone = client_control_region_remove(&session->link, row->region_id);
    (void)client_table_release(row);
    if (has_gone || session->link.end_status != HVD_OK)
        return HVD_OK;
    return client_error(
        HVD_ERR_TIMEOUT,
        "hvd_device_forget: %p is forgotten, but the GPU's worker has not closed it in %d s: it "
        "closes memory only while no op is in its streams. Memory of a pool "
        "(cuMemAllocFromPoolAsync) must not be freed before this session ends; other memory may be",
        ptr, (int)(CLIENT_ACK_NS / 1000000000));
}

int hvd_device_forget(struct hvd_session *session, void *ptr)
{
    int rc = client_session_enter(session, "hvd_device_forget");
    if (rc != HVD_OK)
        return rc;
    rc = forget(session, ptr);
    client_session_leave(session);
    return rc;
}
