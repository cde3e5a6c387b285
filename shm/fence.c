/* SPDX-License-Identifier: Apache-2.0
 * The words of fence.h, as CPUs see them.
 *
 * Streams write and wait through the driver; what a CPU stores here releases a stream that waits on the
 * same word (P4 in docs/design/gpu-facts.md). A turn is stored by compare-and-swap, because a worker's
 * stream, the engine and whoever poisons may come at the same time, and the largest value has to
 * stay. Values compare as the driver's wait compares them: cyclic, signed. */
#include "shm/fence.h"

#include "base/assert.h"
#include "base/status.h"
#include "shm/abi.h"

#include <string.h>

static bool is_at_least(uint64_t word, uint64_t turn)
{
    return (int64_t)(word - turn) >= 0;
}

int hvi_fence_create(struct hvi_fence_page *page_p)
{
    struct hvi_region map = HVI_REGION_INIT;
    const struct hvi_fence_head head = {
        .magic = HVI_FENCE_MAGIC, .abi_version = HVI_ABI_VERSION, .cells = HVI_FENCE_CELLS};
    int status = hvi_region_create("hvd-fences", HVI_FENCE_BYTES, &map);
    if (status != HVI_OK)
        return status;
    memcpy(map.base, &head, sizeof(head));
    *page_p = (struct hvi_fence_page){.map = map, .cells = map.base};
    return HVI_OK;
}

int hvi_fence_map(int fd, struct hvi_fence_page *page_p)
{
    struct hvi_region map = HVI_REGION_INIT;
    struct hvi_fence_head head;
    int status = hvi_region_map(fd, HVI_FENCE_BYTES, &map);
    if (status != HVI_OK)
        return status;
    memcpy(&head, map.base, sizeof(head));
    atomic_signal_fence(memory_order_seq_cst); /* compiler only: check the copy, not the original */
    if (head.magic != HVI_FENCE_MAGIC || head.abi_version != HVI_ABI_VERSION ||
        head.cells != HVI_FENCE_CELLS) {
        map.fd = -1; /* stays the caller's */
        hvi_region_fini(&map);
        return HVI_ERR_PROTOCOL;
    }
    *page_p = (struct hvi_fence_page){.map = map, .cells = map.base};
    return HVI_OK;
}

void hvi_fence_fini(struct hvi_fence_page *page)
{
    hvi_region_fini(&page->map);
    page->cells = NULL;
}

static struct hvi_fence *cell_at(const struct hvi_fence_page *page, uint32_t cell)
{
    HVI_ASSERT(cell > 0 && cell < HVI_FENCE_CELLS);
    return &page->cells[cell];
}

static void store(_Atomic uint64_t *word, uint64_t turn)
{
    HVI_ASSERT(turn > 0 && turn < HVI_FENCE_TURNS);
    /* Relaxed: only the exchange below decides. */
    uint64_t seen = atomic_load_explicit(word, memory_order_relaxed);
    /* Seq_cst: what the caller wrote before is visible to a CPU that sees the turn
     * (hvi_fence_is_ready), and to a stream that was released by it. */
    while (!is_at_least(seen, turn) &&
           !atomic_compare_exchange_weak_explicit(word, &seen, turn, memory_order_seq_cst,
                                                  memory_order_relaxed)) {
    }
}

void hvi_fence_store_done(struct hvi_fence_page *page, uint32_t cell, uint64_t turn)
{
    store(&cell_at(page, cell)->done, turn);
}

void hvi_fence_store_ready(struct hvi_fence_page *page, uint32_t cell, uint64_t turn)
{
    store(&cell_at(page, cell)->ready, turn);
}

void hvi_fence_store_skip(struct hvi_fence_page *page, uint32_t cell, uint64_t turn)
{
    store(&cell_at(page, cell)->skip, turn);
}

bool hvi_fence_is_ready(const struct hvi_fence_page *page, uint32_t cell, uint64_t turn)
{
    /* Acquire, pairs with the exchange in store(). */
    return is_at_least(atomic_load_explicit(&cell_at(page, cell)->ready, memory_order_acquire),
                       turn);
}

void hvi_fence_poison(struct hvi_fence_page *page, bool ready_only)
{
    for (uint32_t i = 1; i < HVI_FENCE_CELLS; i++) {
        /* Seq_cst, as store(). */
        atomic_store_explicit(&page->cells[i].ready, HVI_FENCE_POISON, memory_order_seq_cst);
        if (!ready_only)
            atomic_store_explicit(&page->cells[i].done, HVI_FENCE_POISON, memory_order_seq_cst);
    }
}

void hvi_fence_poison_done(struct hvi_fence_page *page)
{
    for (uint32_t i = 1; i < HVI_FENCE_CELLS; i++) /* seq_cst, as store() */
        atomic_store_explicit(&page->cells[i].done, HVI_FENCE_POISON, memory_order_seq_cst);
}

void hvi_fence_skip_all(struct hvi_fence_page *page)
{
    for (uint32_t i = 1; i < HVI_FENCE_CELLS; i++) /* seq_cst, as store() */
        atomic_store_explicit(&page->cells[i].skip, HVI_FENCE_POISON, memory_order_seq_cst);
}
