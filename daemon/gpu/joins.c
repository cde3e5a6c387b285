/* SPDX-License-Identifier: Apache-2.0
 * What engines ask of communicators, as orders of the launch thread. A join that the engine drops, or whose engine ends, may
 * never come back: a peer that has gone does not join. So may the first op of a communicator. They have two seconds more. */
#include "daemon/gpu/engine.h"

#include "base/status.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DROPPED_NS (2 * HVI_NS_SEC)

struct ask {
    struct gpu_order order;
    uint64_t *instances;
};

static void done(struct gpu_order *order)
{
    struct ask *ask = (struct ask *)order; /* its first member */
    struct gpu_engine *engine = order->user;
    struct hvi_gpu_msg msg = {.kind = HVI_GPU_COMM_ID, .comm_id = {.request = order->request}};

    if (order->kind == GPU_ORDER_ID) {
        memcpy(msg.comm_id.id, order->join.id, sizeof(msg.comm_id.id));
        snprintf(msg.comm_id.text, sizeof(msg.comm_id.text), "%s", order->text);
        msg.comm_id.check = order->check;
        msg.comm_id.status = order->status;
        (void)gpu_engine_send(engine, &msg);
    } else if (order->kind == GPU_ORDER_JOIN) {
        (void)gpu_engine_ack(engine, order->request, order->status, order->text);
        engine->joins--;
    } else if (order->kind == GPU_ORDER_REGISTER) {
        (void)gpu_engine_ack(engine, order->request, order->status,
                             order->status == HVI_OK ? "" : order->text);
    } else if (order->abort) {
        engine->aborts--;
    }
    if (!engine->is_leaving)
        engine->deadline_ns = engine->aborts > 0 ? hvi_deadline_after(DROPPED_NS) : 0;
    engine->asks--;
    free(ask->instances);
    free(ask);
    gpu_engine_settle(engine);
}

static struct ask *make_ask(struct gpu_engine *engine, enum gpu_order_kind kind, uint32_t number,
                            uint64_t request)
{
    struct ask *ask = calloc(1, sizeof(*ask));

    if (ask == NULL)
        return NULL;
    ask->order.kind = kind;
    ask->order.done = done;
    ask->order.user = engine;
    ask->order.source = &engine->source;
    ask->order.request = request;
    ask->order.join.owner = &engine->source;
    ask->order.join.number = number;
    engine->asks++;
    return ask;
}

/* They are taken from the message. */
static void take_instances(struct ask *ask, uint64_t **instances, size_t *count)
{
    ask->order.join.count = (uint32_t)*count;
    ask->order.join.instances = ask->instances = *instances;
    *instances = NULL;
    *count = 0;
}

bool gpu_joins_id(struct gpu_engine *engine, struct hvi_gpu_comm_id *said)
{
    uint32_t rank = 0;
    struct ask *ask;

    while (rank < said->instance_count && said->instances[rank] != engine->worker->start.instance)
        rank++;
    if (rank == said->instance_count && rank > 0) /* an older engine does not name them */
        return false;
    ask = make_ask(engine, GPU_ORDER_ID, 0, said->request);
    if (ask == NULL)
        return false;
    ask->order.check = said->check;
    ask->order.join.registered = said->registered;
    ask->order.join.rank = rank;
    ask->order.join.fresh = said->fresh;
    take_instances(ask, &said->instances, &said->instance_count);
    gpu_launch_order(&engine->worker->launch, &ask->order);
    return true;
}

bool gpu_joins_join(struct gpu_engine *engine, struct hvi_gpu_comm_join *said)
{
    struct ask *ask;

    if (said->comm == 0 || said->rank >= said->instance_count ||
        said->instances[said->rank] != engine->worker->start.instance)
        return false;
    ask = make_ask(engine, GPU_ORDER_JOIN, said->comm, said->request);
    if (ask == NULL)
        return false;
    memcpy(ask->order.join.id, said->id, sizeof(ask->order.join.id));
    ask->order.join.rank = said->rank;
    ask->order.join.fresh = said->fresh;
    take_instances(ask, &said->instances, &said->instance_count);
    engine->joins++;
    gpu_launch_order(&engine->worker->launch, &ask->order);
    return true;
}

bool gpu_joins_register(struct gpu_engine *engine, const struct hvi_gpu_register *said)
{
    struct ask *ask = make_ask(engine, GPU_ORDER_REGISTER, said->comm, said->request);

    if (ask == NULL)
        return false;
    if (!gpu_memory_where(engine, said->import, &ask->order.address, &ask->order.bytes)) {
        engine->asks--;
        free(ask);
        return false;
    }
    gpu_launch_order(&engine->worker->launch, &ask->order);
    return true;
}

bool gpu_joins_drop(struct gpu_engine *engine, const struct hvi_gpu_comm_drop *said)
{
    struct ask *ask = make_ask(engine, GPU_ORDER_DROP, said->comm, 0);

    if (ask == NULL)
        return false;
    ask->order.abort = said->abort;
    if (said->abort) {
        engine->aborts++;
        if (!engine->is_leaving)
            engine->deadline_ns = hvi_deadline_after(DROPPED_NS);
        engine->late = "a communicator that its engine has dropped is still joined or connected "
                       "after 2 s";
    }
    gpu_launch_order(&engine->worker->launch, &ask->order);
    return true;
}
