/* SPDX-License-Identifier: Apache-2.0
 * See process_memory.h. A list, newest first: a process has a few of these, and large ones. The lock
 * is that of forked.c, so that a child finds every row either there or not. */
#include "client/memory/process_memory.h"

#include "base/status.h"
#include "client/error.h"
#include "client/memory/forked.h"
#include "hvd/hvd.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <utlist.h>

struct client_process_memory {
    struct hvi_region region;
    struct client_forked pages;
    uint32_t holders; /* sessions that have it registered */
    struct client_process_memory *next;
};

static struct client_process_memory *all;

static int make(uint64_t bytes, struct client_process_memory *memory)
{
    static uint32_t count; /* with the lock */
    struct hvi_region *region = &memory->region;
    struct client_forked *pages = &memory->pages;
    snprintf(pages->memfd.name, sizeof(pages->memfd.name), "hvd-mem-%d-%" PRIu32, (int)getpid(),
             count++);
    int rc = hvi_region_create_lazy(pages->memfd.name, bytes, region);
    if (rc != HVD_OK)
        return rc;
    if (!client_forked_identify(region->fd, &pages->memfd)) {
        hvi_region_fini(region);
        return HVD_ERR_NO_MEMORY;
    }
    pages->range.start = (uintptr_t)region->base;
    pages->range.end = pages->last = pages->range.start + region->bytes;
    pages->fd = region->fd;
    pages->ours = true;
    return HVD_OK;
}

int hvd_mem_alloc(size_t bytes, void **ptr_p)
{
    if (bytes == 0 || !ptr_p)
        return client_error(HVD_ERR_INVALID, "hvd_mem_alloc: %s",
                            ptr_p ? "0 bytes were asked for" : "ptr_p is NULL");
    struct client_process_memory *memory = calloc(1, sizeof(*memory));
    if (!memory)
        return client_error(HVD_ERR_NO_MEMORY, "hvd_mem_alloc: out of memory");
    client_forked_lock();
    int rc = make(bytes, memory);
    if (rc == HVD_OK) {
        client_forked_add(&memory->pages);
        LL_PREPEND(all, memory);
    }
    client_forked_unlock();
    if (rc == HVD_OK) {
        *ptr_p = memory->region.base;
        return HVD_OK;
    }
    free(memory);
    return client_error(rc,
                        "hvd_mem_alloc: %zu bytes of shared memory: %s; 'hvdctl doctor' shows the "
                        "limits of this machine",
                        bytes, hvi_status_text(rc));
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

struct client_process_memory *client_process_memory_hold(uintptr_t address, uint64_t bytes)
{
    client_forked_lock();
    struct client_process_memory *at = all;
    while (at && (address < at->pages.range.start || address >= at->pages.range.end ||
                  bytes > at->pages.range.end - address))
        at = at->next;
    if (at && is_inherited(at))
        at = NULL;
    if (at)
        at->holders++;
    client_forked_unlock();
    return at;
}

void client_process_memory_put(struct client_process_memory *memory)
{
    client_forked_lock();
    memory->holders--;
    client_forked_unlock();
}

const struct hvi_region *client_process_memory_region(const struct client_process_memory *memory)
{
    return &memory->region;
}
