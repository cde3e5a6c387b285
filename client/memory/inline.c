/* SPDX-License-Identifier: Apache-2.0 */
#include "client/memory/inline.h"

#include "base/assert.h"

/* Bit i of the result: bits i .. i + cells - 1 of `word` are all 0. */
static uint64_t run_starts(uint64_t word, uint32_t cells)
{
    uint64_t starts = ~word;
    for (uint32_t i = 1; i < cells; i++)
        starts &= ~word >> i;
    return starts;
}

static uint64_t run_mask(uint32_t cells)
{
    return (UINT64_C(1) << cells) - 1;
}

bool client_inline_take(struct client_inline *area, uint64_t bytes, uint32_t *cell_p,
                        uint32_t *cells_p)
{
    HVI_ASSERT(bytes >= 1 && bytes <= CLIENT_INLINE_MAX);
    uint32_t cells = (uint32_t)((bytes + HVI_INLINE_CELL - 1) / HVI_INLINE_CELL);
    for (uint32_t i = 0; i < CLIENT_INLINE_WORDS; i++) {
        uint32_t word = (area->next + i) % CLIENT_INLINE_WORDS;
        uint64_t starts = run_starts(area->used[word], cells);
        if (!starts)
            continue;
        uint32_t bit = (uint32_t)__builtin_ctzll(starts);
        area->used[word] |= run_mask(cells) << bit;
        area->next = word;
        *cell_p = word * 64 + bit;
        *cells_p = cells;
        return true;
    }
    return false;
}

void client_inline_put(struct client_inline *area, uint32_t cell, uint32_t cells)
{
    uint64_t mask = run_mask(cells) << (cell % 64);
    HVI_ASSERT((area->used[cell / 64] & mask) == mask);
    area->used[cell / 64] &= ~mask;
}
