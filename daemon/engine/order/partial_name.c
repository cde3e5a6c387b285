/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/order/partial_name.h"

#include "base/types.h"

#include <stdio.h>

_Static_assert(HVI_RANKS_MAX <= ENGINE_PARTIAL_ANY, "ranks fit into numbers");

bool engine_partial_is(uint16_t kind)
{
    return kind == HVI_KIND_SEND || kind == HVI_KIND_RECV || kind == HVI_KIND_SET_OPEN;
}

void engine_partial_name(uint16_t kind, uint64_t number, char *name_p, size_t size)
{
    uint32_t from = (uint32_t)(number >> 48), to = number >> 32 & 0xffff, tag = (uint32_t)number;

    if (kind == HVI_KIND_SET_OPEN)
        snprintf(name_p, size, "tag-%u", tag);
    else if (from == ENGINE_PARTIAL_ANY)
        snprintf(name_p, size, "any-to-%u.tag-%u", to, tag);
    else
        snprintf(name_p, size, "%u-to-%u.tag-%u", from, to, tag);
}
