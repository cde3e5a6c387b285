/* SPDX-License-Identifier: Apache-2.0
 * See process_memory.h. A list, newest first: a process has a few of these, and large ones. The lock
 * is that of forked.c, so that a child finds every row either there or not. */
#include "client/memory/process_memory.h"

#include "client/error.h"
#include "client/memory/forked.h"
#include "hvd/hvd.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <utlist.h>

struct client_process_memory {
    struct hvi_region region;
    struct client_forked pages;
    uint32_t holders; /* sessions that have it registered */
    struct client_process_memory *next;
};

static struct client_process_memory *all;

int hvd_mem_alloc(size_t bytes, void **ptr_p)
{
    if (bytes == 0 || !ptr_p)
        return client_error(HVD_ERR_INVALID, "hvd_mem_alloc: %s",
                            ptr_p ? "0 bytes were asked for" : "ptr_p is NULL");
    struct client_process_memory *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_mem_alloc: out of memory");
    struct client_forked *pages = &memory->pages;
    client_forked_lock();
    int rc = client_forked_create("hvd_mem_alloc", "hvd-mem", bytes, true, pages, &memory->region);
    if (rc == HVD_OK) {
        pages->range.start = (uintptr_t)memory->region.base;
        pages->range.end = pages->last = pages->range.start + memory->region.bytes;
        pages->ours = true;
        client_forked_add(pages);
        LL_PREPEND(all, memory);
        *ptr_p = memory->region.base;
    }
    client_forked_unlock();
    if (rc != HVD_OK)
        free(memory);
    return rc;
}

/* Whether the process that has made it is another one. */
static bool is_inherited(const struct client_process_memory *memory)
{
    return memory->pages.fd < 0;
}

int hvd_mem_free(void *ptr)
{
    int rc = HVD_OK;
    client_forked_lock();
    struct client_process_memory *memory;
    LL_SEARCH_SCALAR(all, memory, region.base, ptr);
    uint32_t holders = memory && !is_inherited(memory) ? memory->holders : 0;
    if (!memory)
        rc = HVD_ERR_NOT_FOUND;
    else if (holders > 0)
        rc = HVD_ERR_BUSY;
    if (rc == HVD_OK) {
        LL_DELETE(all, memory);
        client_forked_remove(&memory->pages);
        memory->region.fd = memory->pages.fd; /* forked.c may have closed it */
    }
    client_forked_unlock();
    if (rc == HVD_ERR_NOT_FOUND)
        return client_error(rc, "hvd_mem_free: %p is not from hvd_mem_alloc", ptr);
    if (rc == HVD_ERR_BUSY)
        return client_error(rc,
                            "hvd_mem_free: %p is registered with %" PRIu32
                            " sessions; call hvd_deregister or hvd_close first",
                            ptr, holders);
    hvi_region_fini(&memory->region);
    free(memory);
    return HVD_OK;
}

struct client_process_memory *client_process_memory_hold(uintptr_t address, uint64_t bytes,
                                                         struct hvi_region *region_p)
{
    client_forked_lock();
    struct client_process_memory *at = all;
    while (at && (address < at->pages.range.start || address >= at->pages.range.end ||
                  bytes > at->pages.range.end - address))
        at = at->next;
    if (at && is_inherited(at))
        at = NULL;
    if (at) {
        at->holders++;
        *region_p = at->region;
    }
    client_forked_unlock();
    return at;
}

void client_process_memory_put(struct client_process_memory *memory)
{
    client_forked_lock();
    memory->holders--;
    client_forked_unlock();
}
