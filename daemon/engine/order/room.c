/* SPDX-License-Identifier: Apache-2.0
 * The room as a whole: its beginning, its end, and the state in which no op can finish any more. */
#include "daemon/engine/order/order.h"

#include "base/assert.h"
#include "base/status.h"
#include "daemon/engine/order/pair.h"
#include "daemon/engine/order/span.h"

#include <stdio.h>

int engine_order_init(struct engine_order *order, const char *job,
                      const struct engine_roster *roster, const struct engine_order_sink *sink,
                      const struct engine_order_observer *observer, void *user)
{
    order->job = job;
    order->roster = roster;
    order->replay = true;
    order->sink = sink;
    order->observer = observer;
    order->user = user;
    order->broken_culprit = -1;
    return engine_sets_init(&order->sets, roster);
}

void engine_order_fini(struct engine_order *order)
{
    HVI_ASSERT(!order->waiting_first && !order->failed_first && !order->ready_first);
    while (order->free_ops) {
        struct engine_op *op = order->free_ops;
        order->free_ops = op->next;
        order->sink->free_op(op);
    }
    for (uint32_t id = 0; id < order->sets.next_id; id++) {
        if (order->sets.by_id[id])
            engine_pair_forget(order, order->sets.by_id[id]);
    }
    engine_span_close(order);
    engine_sets_fini(&order->sets);
    engine_tensors_fini(&order->tensors);
}

void engine_order_break(struct engine_order *order, int status, int32_t culprit, const char *text)
{
    if (order->broken_status != HVI_OK && culprit >= 0)
        return;
    order->broken_status = status;
    order->broken_culprit = culprit;
    snprintf(order->broken_text, sizeof order->broken_text, "%s", text);
}
