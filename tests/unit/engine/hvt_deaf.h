/* SPDX-License-Identifier: Apache-2.0
 * What order/ needs of its surroundings where a test wants nothing of them: ops from the heap, and an observer that hears
 * nothing. */
#ifndef HVT_DEAF_H
#define HVT_DEAF_H

#include "base/assert.h"
#include "daemon/engine/order/op.h"
#include "daemon/engine/order/order.h"

#include <stdlib.h>

static inline struct engine_op *hvt_deaf_new_op(int32_t seats)
{
    struct engine_op *op = calloc(1, sizeof *op + engine_op_room(seats));

    HVI_ASSERT(op);
    engine_op_init(op, seats, op + 1);
    return op;
}

static inline void hvt_deaf_free_op(struct engine_op *op)
{
    free(op);
}

static inline void hvt_deaf_waits(void *user)
{
    (void)user;
}

static inline void hvt_deaf_came(void *user, struct engine_part *part)
{
    (void)user, (void)part;
}

static inline void hvt_deaf_happens(void *user, struct engine_op *op)
{
    (void)user, (void)op;
}

static inline void hvt_deaf_over(void *user, struct engine_op *op, int status)
{
    (void)user, (void)op, (void)status;
}

static inline void hvt_deaf_changes(void *user, struct engine_set *set)
{
    (void)user, (void)set;
}

static const struct engine_order_observer hvt_deaf_observer = {
    hvt_deaf_waits, hvt_deaf_came,    hvt_deaf_happens, hvt_deaf_happens, hvt_deaf_happens,
    hvt_deaf_over,  hvt_deaf_changes, hvt_deaf_changes, hvt_deaf_happens};

#endif
