/* SPDX-License-Identifier: Apache-2.0
 * A region is usable as soon as it is mapped. Its page tables are filled afterwards, bit by bit
 * while the loop has nothing better to do: a gigabyte at once would keep every rank waiting for a
 * tenth of a second. Not if its maker has pages come as they are touched: looking brings them too. */
#include "daemon/engine/memory/region.h"

#include "base/huge.h"
#include "base/status.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define READY_BYTES (UINT64_C(1) << 20)
#define SHOWN_BYTES 4097 /* an op that fits into a slot needs no peers */

static uint32_t bucket_of(uint32_t id)
{
    return id % ENGINE_REGION_BUCKETS;
}

void engine_regions_init(struct engine_regions *regions, void *inline_base)
{
    *regions = (struct engine_regions){0};
    regions->inline_area.id = HVI_REGION_INLINE;
    regions->inline_area.map =
        (struct hvi_region){.base = inline_base, .bytes = HVI_INLINE_BYTES, .fd = -1};
    regions->process.id = HVI_REGION_PROCESS;
    regions->process.kind = ENGINE_REGION_PROCESS;
    regions->process.map = (struct hvi_region){.bytes = UINT64_C(1) << 63, .fd = -1};
}

static void free_region(struct engine_region *region)
{
    if (region->kind == ENGINE_REGION_DEVICE)
        region->map.base = NULL;
    else if (region->kept)
        hvi_region_close_fd(&region->map);
    else
        hvi_region_fini(&region->map);
    free(region);
}

void engine_regions_fini(struct engine_regions *regions)
{
    for (uint32_t i = 0; i < ENGINE_REGION_BUCKETS; i++) {
        struct engine_region *next;
        for (struct engine_region *region = regions->buckets[i]; region; region = next) {
            next = region->next;
            free_region(region);
        }
        regions->buckets[i] = NULL;
    }
    regions->fresh = NULL;
    regions->count = 0;
    regions->bytes = regions->process_bytes = regions->device_bytes = 0;
}

struct engine_region *engine_regions_find(const struct engine_regions *regions, uint32_t id)
{
    struct engine_region *region;

    if (id == HVI_REGION_INLINE)
        return (struct engine_region *)&regions->inline_area;
    for (region = regions->buckets[bucket_of(id)]; region; region = region->next) {
        if (region->id == id)
            return region;
    }
    return NULL;
}

struct engine_region *engine_regions_find_operand(const struct engine_regions *regions, uint32_t id)
{
    if (id == HVI_REGION_PROCESS && regions->process_offered)
        return (struct engine_region *)&regions->process;
    return engine_regions_find(regions, id);
}

/* Half of the descriptors there may be stay for sessions. */
static bool is_low(int fd)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_NOFILE, &limit) == 0 && (rlim_t)fd < limit.rlim_cur / 2;
}

static bool is_whole(int fd, uint64_t bytes)
{
    struct stat info;

    return fstat(fd, &info) == 0 && (uint64_t)info.st_blocks * 512 >= bytes;
}

static uint64_t *bytes_of_kind(struct engine_regions *regions, const struct engine_region *region)
{
    if (region->kind == ENGINE_REGION_DEVICE)
        return &regions->device_bytes;
    return region->process_memory ? &regions->process_bytes : &regions->bytes;
}

static void insert(struct engine_regions *regions, struct engine_region *region)
{
    struct engine_region **bucket = &regions->buckets[bucket_of(region->id)];

    region->next = *bucket;
    *bucket = region;
    regions->count++;
    *bytes_of_kind(regions, region) += region->map.bytes;
}

int engine_regions_add(struct engine_regions *regions, const struct hvi_region_add *add, int fd)
{
    struct engine_region *region = calloc(1, sizeof *region);
    if (!region)
        return HVI_ERR_NO_MEMORY;
    int status = hvi_region_map(fd, add->bytes, &region->map);
    if (status != HVI_OK) {
        free(region);
        return status;
    }
    bool whole = is_whole(fd, add->bytes);
    /* The mapping and the seals are what counts; descriptors are scarce. */
    if (add->bytes < SHOWN_BYTES || !is_low(fd))
        hvi_region_close_fd(&region->map);
    region->id = add->region;
    region->process_memory = add->process_memory;
    if (whole) {
        region->fresh_next = regions->fresh;
        regions->fresh = region;
    }
    insert(regions, region);
    return HVI_OK;
}

int engine_regions_add_device(struct engine_regions *regions, uint32_t id, uint64_t bytes,
                              uint16_t worker, uint64_t instance, uint32_t import)
{
    struct engine_region *region = calloc(1, sizeof *region);

    if (!region)
        return HVI_ERR_NO_MEMORY;
    region->kind = ENGINE_REGION_DEVICE;
    region->map = (struct hvi_region){.bytes = bytes, .fd = -1};
    region->id = id;
    region->worker = worker;
    region->instance = instance;
    region->import = import;
    insert(regions, region);
    return HVI_OK;
}

struct engine_region *engine_regions_next_device(const struct engine_regions *regions,
                                                 const struct engine_region *after)
{
    uint32_t bucket = after ? bucket_of(after->id) : 0;
    struct engine_region *region = after ? after->next : regions->buckets[0];

    for (;;) {
        while (region && region->kind != ENGINE_REGION_DEVICE)
            region = region->next;
        if (region || ++bucket >= ENGINE_REGION_BUCKETS)
            return region;
        region = regions->buckets[bucket];
    }
}

/* Reading is enough: shared pages of a memfd are mapped writable at once, several per fault, which
 * is three times cheaper than populating for writing. A kernel that cannot does all this at first
 * use. */
bool engine_regions_ready(struct engine_regions *regions)
{
    struct engine_region *region = regions->fresh;

    if (!region)
        return false;
    uint64_t left = region->map.bytes - region->ready;
    uint64_t step = left < READY_BYTES ? left : READY_BYTES;
    (void)madvise((char *)region->map.base + region->ready, step, MADV_POPULATE_READ);
    region->ready += step;
    if (region->ready == region->map.bytes)
        regions->fresh = region->fresh_next;
    return true;
}

static void forget_fresh(struct engine_regions *regions, const struct engine_region *region)
{
    struct engine_region **link = &regions->fresh;

    while (*link && *link != region)
        link = &(*link)->fresh_next;
    if (*link)
        *link = region->fresh_next;
}

int engine_regions_remove(struct engine_regions *regions, uint32_t id)
{
    struct engine_region **link = &regions->buckets[bucket_of(id)];

    while (*link && (*link)->id != id)
        link = &(*link)->next;
    struct engine_region *region = *link;
    if (!region || id == HVI_REGION_INLINE)
        return HVI_ERR_NOT_FOUND;
    if (region->users > 0)
        return HVI_ERR_BUSY;
    *link = region->next;
    forget_fresh(regions, region);
    if (!region->kept) { /* else it goes on taking room */
        regions->count--;
        *bytes_of_kind(regions, region) -= region->map.bytes;
    }
    free_region(region);
    return HVI_OK;
}
