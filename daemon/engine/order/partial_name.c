/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/engine/order/partial_name.h"

#include "base/types.h"

#include <inttypes.h>
#include <stdio.h>

bool engine_partial_is(uint16_t kind)
{
    return kind == HVI_KIND_SEND || kind == HVI_KIND_RECV || kind == HVI_KIND_SET_OPEN;
}

void engine_partial_name(uint16_t kind, struct engine_pair pair, uint64_t tag, char *name_p,
                         size_t size)
{
    if (kind == HVI_KIND_SET_OPEN)
        snprintf(name_p, size, "tag-%" PRIu64, tag);
    else if (pair.from < 0)
        snprintf(name_p, size, "any-to-%d.tag-%" PRIu64, pair.to, tag);
    else
        snprintf(name_p, size, "%d-to-%d.tag-%" PRIu64, pair.from, pair.to, tag);
}
