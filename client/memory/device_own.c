/* SPDX-License-Identifier: Apache-2.0
 * See device_own.h. A list, newest first: a process has a few of these, and large ones. Operands of ops hold them. The lock is
 * that of forked.c, so that a child finds every row either there or not; in a child they are of no use, as CUDA is not. */
#include "client/memory/device_own.h"

#include "client/device/device.h"
#include "client/error.h"
#include "client/memory/forked.h"
#include "hvd/hvd.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>
#include <utlist.h>

struct client_device_block {
    struct client_device_block *next;
    struct client_device_own own;
    pid_t pid;      /* that has made it */
    uint32_t users; /* operands of ops */
};

static struct client_device_block *all;
/* Relaxed: a thread that has got an address has got what was written before it. */
static _Atomic uint32_t count;

int hvd_device_alloc(size_t bytes, int device, void **ptr_p)
{
    if (bytes == 0 || !ptr_p)
        return client_error(HVD_ERR_INVALID, "hvd_device_alloc: %s",
                            ptr_p ? "0 bytes were asked for" : "ptr_p is NULL");
    struct client_device_block *block = calloc(1, sizeof(*block));
    if (!block)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_device_alloc: out of memory");
    block->pid = getpid();
    int rc = client_device_make(device, bytes, &block->own);
    if (rc != HVD_OK) {
        free(block);
        return rc;
    }
    client_forked_lock();
    LL_PREPEND(all, block);
    atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
    client_forked_unlock();
    *ptr_p = (void *)(uintptr_t)block->own.base;
    return HVD_OK;
}

/* With the lock. */
static int check(const struct client_device_block *block, const void *ptr)
{
    if (!block)
        return client_error(HVD_ERR_NOT_FOUND, "hvd_device_free: %p is not from hvd_device_alloc",
                            ptr);
    if (block->pid != getpid())
        return client_error(HVD_ERR_FORKED,
                            "hvd_device_free: %p is memory of process %d, and not of its children",
                            ptr, (int)block->pid);
    if (block->users == 0)
        return HVD_OK;
    return client_error(HVD_ERR_BUSY,
                        "hvd_device_free: %p is used by %" PRIu32
                        " operands of ops that are not finished; wait for them first",
                        ptr, block->users);
}

int hvd_device_free(void *ptr)
{
    struct client_device_block *block;
    client_forked_lock();
    LL_SEARCH_SCALAR(all, block, own.base, (uintptr_t)ptr);
    int rc = check(block, ptr);
    if (rc == HVD_OK) {
        LL_DELETE(all, block);
        atomic_fetch_sub_explicit(&count, 1, memory_order_relaxed);
    }
    client_forked_unlock();
    if (rc != HVD_OK)
        return rc;
    rc = client_device_unmake(&block->own);
    free(block);
    return rc;
}

struct client_device_block *client_device_block_hold(const void *address)
{
    if (atomic_load_explicit(&count, memory_order_relaxed) == 0)
        return NULL;
    client_forked_lock();
    struct client_device_block *block = all;
    while (block && (uintptr_t)address - block->own.base >= block->own.bytes)
        block = block->next;
    if (block)
        block->users++;
    client_forked_unlock();
    return block;
}

void client_device_block_put(struct client_device_block *block)
{
    if (!block)
        return;
    client_forked_lock();
    block->users--;
    client_forked_unlock();
}
