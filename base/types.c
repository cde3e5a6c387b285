/* SPDX-License-Identifier: Apache-2.0
 * The rows of types.def as look-ups. Numbers index the tables; numbers without a row stay zero. */
#include "base/types.h"

#include <stddef.h>
#include <string.h>

struct dtype_row {
    uint32_t bytes;
    const char *text;
};

static const struct dtype_row dtypes[] = {
#define HVI_DTYPE(name, number, bytes, text) [number] = {(bytes), (text)},
#include "base/types.def"
#undef HVI_DTYPE
};
_Static_assert(sizeof(dtypes) / sizeof(dtypes[0]) == HVI_DTYPE_COUNT, "HVI_DTYPE_COUNT is stale");

static const char *const reduces[] = {
#define HVI_REDUCE(name, number, text) [number] = (text),
#include "base/types.def"
#undef HVI_REDUCE
};
_Static_assert(sizeof(reduces) / sizeof(reduces[0]) == HVI_REDUCE_COUNT,
               "HVI_REDUCE_COUNT is stale");

static const char *const kinds[] = {
#define HVI_KIND(name, number, text) [number] = (text),
#include "base/types.def"
#undef HVI_KIND
};

static const char *const memories[] = {
#define HVI_MEMORY(name, number, text) [number] = (text),
#include "base/types.def"
#undef HVI_MEMORY
};

static const char *const nccl[] = {
#define HVI_NCCL(name) "NCCL_" #name,
#include "base/types.def"
#undef HVI_NCCL
};

uint32_t hvi_dtype_bytes(uint32_t dtype)
{
    return dtype < HVI_DTYPE_COUNT ? dtypes[dtype].bytes : 0;
}

const char *hvi_dtype_text(uint32_t dtype)
{
    return dtype < HVI_DTYPE_COUNT ? dtypes[dtype].text : "?";
}

bool hvi_reduce_is_known(uint32_t reduce_op)
{
    return reduce_op < HVI_REDUCE_COUNT;
}

const char *hvi_reduce_text(uint32_t reduce_op)
{
    return hvi_reduce_is_known(reduce_op) ? reduces[reduce_op] : "?";
}

bool hvi_kind_is_known(uint32_t kind)
{
    return kind < sizeof(kinds) / sizeof(kinds[0]) && kinds[kind] != NULL;
}

const char *hvi_kind_text(uint32_t kind)
{
    return hvi_kind_is_known(kind) ? kinds[kind] : "?";
}

const char *hvi_memory_text(uint32_t memory)
{
    return memory < sizeof(memories) / sizeof(memories[0]) ? memories[memory] : "?";
}

bool hvi_nccl_is_allowed(const char *variable)
{
    for (size_t i = 0; i < sizeof(nccl) / sizeof(nccl[0]); i++) {
        if (strcmp(variable, nccl[i]) == 0)
            return true;
    }
    return false;
}
