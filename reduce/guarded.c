/* SPDX-License-Identifier: Apache-2.0 */
#include "reduce/guarded.h"

#include "base/pages.h"
#include "base/types.h"

#define PAGE_BYTES 4096u

struct piece {
    const struct hvi_kernels *kernels;
    const struct hvi_reduction *reduction;
    uint64_t first, count;
};

/* A memory error is told with the address of its page, where the range may begin behind. */
static bool is_near(uintptr_t address, uintptr_t first, uint64_t bytes)
{
    return address + (PAGE_BYTES - 1) - first < bytes + (PAGE_BYTES - 1);
}

/* -1: none of them. */
static int operand_at(const struct piece *piece, uintptr_t address)
{
    const struct hvi_reduction *reduction = piece->reduction;
    uint32_t element = hvi_dtype_bytes(reduction->dtype);
    uint64_t skip = piece->first * element, bytes = piece->count * element;

    for (uint32_t i = 0; i < reduction->ins; i++) {
        if (is_near(address, (uintptr_t)reduction->in[i] + skip, bytes) ||
            is_near(address, (uintptr_t)reduction->out[i] + skip, bytes))
            return (int)i;
    }
    return -1;
}

static bool owns(const void *user, uintptr_t address)
{
    return operand_at(user, address) >= 0;
}

static void run(void *user)
{
    const struct piece *piece = user;

    piece->kernels->reduce(piece->reduction, piece->first, piece->count);
}

int hvi_reduce_guarded(const struct hvi_kernels *kernels, const struct hvi_reduction *reduction,
                       uint64_t first, uint64_t count)
{
    struct piece piece = {kernels, reduction, first, count};
    uintptr_t address = 0;

    return hvi_pages_run(run, owns, &piece, &address) ? -1 : operand_at(&piece, address);
}
