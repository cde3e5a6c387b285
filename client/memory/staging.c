/* SPDX-License-Identifier: Apache-2.0 */
#include "client/memory/staging.h"

#include "base/assert.h"
#include "base/status.h"
#include "client/device/device.h"
#include "client/error.h"
#include "client/link/control.h"
#include "client/link/link.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#define SHARED_REGION                                                                              \
    (1024u * 1024u) /* smaller blocks than an eighth of this share such a region */

enum pin { NOT_TRIED, TRYING, PINNED, REFUSED };

struct client_staging_region {
    struct hvi_region region;
    uint32_t id;
    enum pin pin;
    uint32_t class_index;
    uint32_t block_count, used_count;
    bool withdrawn; /* its free blocks are in no list */
    struct client_staging_region *prev, *next;
    struct client_staging_block blocks[];
};

static uint64_t class_bytes(uint32_t class_index)
{
    return UINT64_C(1) << (CLIENT_STAGING_MIN_LOG + class_index);
}

/* CLIENT_STAGING_CLASSES when nothing is large enough. */
static uint32_t class_of(uint64_t bytes)
{
    uint32_t class_index = 0;
    while (class_index < CLIENT_STAGING_CLASSES && class_bytes(class_index) < bytes)
        class_index++;
    return class_index;
}

static void push_free(struct client_staging *staging, struct client_staging_block *block)
{
    DL_PREPEND(staging->free_first[block->owner->class_index], block);
}

static void take_free(struct client_staging *staging, struct client_staging_block *block)
{
    DL_DELETE(staging->free_first[block->owner->class_index], block);
}

static struct client_staging_block *pop_free(struct client_staging *staging, uint32_t class_index)
{
    struct client_staging_block *block = staging->free_first[class_index];
    if (!block)
        return NULL;
    take_free(staging, block);
    if (block->owner->used_count++ == 0 && block->owner->pin != PINNED)
        staging->idle_bytes -= block->owner->region.bytes;
    return block;
}

/* Maps and reserves; without the lock. */
static int create(uint32_t class_index, struct client_staging_region **region_p)
{
    uint64_t block_bytes = class_bytes(class_index);
    uint32_t count = block_bytes <= SHARED_REGION / 8 ? (uint32_t)(SHARED_REGION / block_bytes) : 1;
    struct client_staging_region *region =
        calloc(1, sizeof(*region) + count * sizeof(region->blocks[0]));
    if (!region)
        return HVD_ERR_NO_MEMORY;
    int rc = hvi_region_create("hvd-staging", block_bytes * count, &region->region);
    if (rc != HVD_OK) {
        free(region);
        return rc;
    }
    region->class_index = class_index;
    region->block_count = count;
    for (uint32_t i = 0; i < count; i++) {
        region->blocks[i].owner = region;
        region->blocks[i].offset = i * block_bytes;
        region->blocks[i].address = (unsigned char *)region->region.base + i * block_bytes;
    }
    *region_p = region;
    return HVD_OK;
}

static void destroy(struct client_staging_region *region)
{
    if (region->pin == PINNED)
        hvi_region_close_fd(&region->region); /* mapped for ever, as the driver has it */
    else
        hvi_region_fini(&region->region);
    free(region);
}

static void adopt(struct client_staging *staging, struct client_staging_region *region)
{
    DL_PREPEND(staging->regions, region);
    staging->idle_bytes += region->region.bytes;
    for (uint32_t i = 0; i < region->block_count; i++) {
        region->blocks[i].region = region->id;
        push_free(staging, &region->blocks[i]);
    }
}

/* An idle region: away with it. */
static void retire(struct client_staging *staging, struct client_staging_region *region)
{
    HVI_ASSERT(region->used_count == 0);
    for (uint32_t i = 0; i < region->block_count; i++)
        take_free(staging, &region->blocks[i]);
    DL_DELETE(staging->regions, region);
    if (region->pin != PINNED)
        staging->idle_bytes -= region->region.bytes;
    client_control_region_forget(staging->link, region->id);
    destroy(region);
}

/* Makes a region for the class and announces it. Gives up the lock meanwhile. */
static int grow(struct client_staging *staging, uint32_t class_index, const char *what)
{
    struct client_staging_region *region;
    pthread_mutex_unlock(&staging->link->mutex);
    int rc = create(class_index, &region);
    pthread_mutex_lock(&staging->link->mutex);
    if (rc != HVD_OK)
        return client_error(rc,
                            "%s: %" PRIu64
                            " bytes of shared memory to stage ordinary memory: %s; 'hvdctl doctor' "
                            "shows the limits of this machine",
                            what, class_bytes(class_index), hvi_status_text(rc));
    rc = client_control_region_add(staging->link, &region->region, false, what, &region->id);
    hvi_region_close_fd(&region->region);
    if (rc != HVD_OK) {
        destroy(region);
        return rc;
    }
    adopt(staging, region);
    return HVD_OK;
}

int client_staging_get(struct client_staging *staging, uint64_t bytes, const char *what,
                       struct client_staging_block **block_p)
{
    uint32_t class_index = class_of(bytes);
    struct client_staging_block *block;
    if (class_index == CLIENT_STAGING_CLASSES)
        return client_error(HVD_ERR_NO_MEMORY, "%s: %" PRIu64 " bytes are too many", what, bytes);
    block = pop_free(staging, class_index);
    if (!block) {
        staging->link->calls->drain(staging->link->complete); /* finished ops may hold some */
        block = pop_free(staging, class_index);
    }
    while (!block) { /* another thread may take what we make */
        int rc = grow(staging, class_index, what);
        if (rc != HVD_OK)
            return rc;
        block = pop_free(staging, class_index);
    }
    *block_p = block;
    return HVD_OK;
}

void client_staging_put(struct client_staging *staging, struct client_staging_block *block)
{
    struct client_staging_region *region = block->owner;
    if (!region->withdrawn)
        push_free(staging, block);
    if (--region->used_count > 0)
        return;
    for (uint32_t i = 0; region->withdrawn && i < region->block_count; i++)
        push_free(staging, &region->blocks[i]);
    bool pinned = region->pin == PINNED;
    if (!pinned)
        staging->idle_bytes += region->region.bytes;
    if (region->withdrawn || (!pinned && staging->idle_bytes > CLIENT_STAGING_CACHE))
        retire(staging, region);
}

void client_staging_withdraw(struct client_staging *staging,
                             const struct client_staging_block *block)
{
    struct client_staging_region *region = block->owner;
    struct client_staging_block *at, *next;
    if (region->withdrawn)
        return;
    region->withdrawn = true;
    DL_FOREACH_SAFE(staging->free_first[region->class_index], at, next)
    {
        if (at->owner == region)
            take_free(staging, at);
    }
}

/* ---- regions that are registered with the driver ---- */

void client_staging_pin(struct client_staging *staging, const struct client_staging_block *block,
                        int device)
{
    struct client_staging_region *region = block->owner; /* stays: the block is used */
    if (region->pin != NOT_TRIED)
        return;
    region->pin = TRYING;
    pthread_mutex_unlock(&staging->link->mutex);
    bool pinned = client_device_pin(device, region->region.base, region->region.bytes);
    pthread_mutex_lock(&staging->link->mutex);
    region->pin = pinned ? PINNED : REFUSED;
}

void client_staging_fini(struct client_staging *staging)
{
    while (staging->regions) {
        struct client_staging_region *region = staging->regions;
        staging->regions = region->next;
        if (region->pin != TRYING) /* else the process ends, and another thread is at it */
            destroy(region);
    }
    memset(staging, 0, sizeof(*staging));
}
