/* SPDX-License-Identifier: Apache-2.0
 * A part with its operands. The caller of order/ makes parts as the beginning of one. */
#ifndef ENGINE_EXEC_SHARE_H
#define ENGINE_EXEC_SHARE_H

#include "daemon/engine/exec/operand.h"
#include "daemon/engine/order/op.h"

struct engine_share {
    struct engine_part part;
    struct engine_operand in, out;
    struct engine_fence fence;
};

static inline struct engine_share *engine_share_of(const struct engine_part *part)
{
    return (struct engine_share *)(uintptr_t)part;
}

#endif
