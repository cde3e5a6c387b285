/* SPDX-License-Identifier: Apache-2.0
 * Remote-process memory in works over nodes. It may not answer, so the net thread does not touch it: the host
 * backend's workers do, which can be given up. Before the first message they bring the inputs to the
 * work's own memory (added, where the op adds), and after the last one they take the outputs from there:
 *
 *     in[0], in[1] --host: allreduce--> staged_in ==messages==> staged_out --host: broadcast--> out[0], out[1]
 *
 * Both are batches for one node, with one member more than there are places: the staged memory. Deadlines,
 * faults and cancelling are theirs. */
#include "daemon/engine/exec/net_thread.h"

#include "base/status.h"
#include "base/types.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct engine_wire_stage {
    struct engine_wire *net;
    struct engine_wire_work *owner;
    struct engine_batch batch;
    struct engine_work work;
    struct engine_operand *in, *out; /* [members] */
    uint64_t *sizes;
    uint32_t members; /* places and the staged memory */
    bool over;        /* under the net's lock */
};

struct engine_wire_stage *engine_wire_stage_new(struct engine_wire *net,
                                                struct engine_wire_work *work)
{
    struct engine_wire_stage *stage = calloc(1, sizeof *stage);
    size_t members = (size_t)work->work->ranks + 1;

    if (!stage)
        return NULL;
    stage->net = net;
    stage->owner = work;
    stage->members = (uint32_t)members;
    stage->over = true;
    stage->in = calloc(2 * members, sizeof *stage->in);
    stage->sizes = calloc(members * members, sizeof *stage->sizes);
    if (!stage->in || !stage->sizes) {
        engine_wire_stage_free(stage);
        return NULL;
    }
    stage->out = stage->in + members;
    return stage;
}

void engine_wire_stage_free(struct engine_wire_stage *stage)
{
    if (!stage)
        return;
    free(stage->in);
    free(stage->sizes);
    free(stage);
}

static struct engine_operand staged(void *memory)
{
    return (struct engine_operand){.kind = ENGINE_OPERAND_MAPPED, .address = memory};
}

/* A work of the host's for which the last member is the staged memory. */
static void prepare(struct engine_wire_stage *stage, uint32_t kind)
{
    const struct engine_work *work = stage->owner->work;
    size_t members = stage->members;

    memset(stage->in, 0, 2 * members * sizeof *stage->in);
    memset(stage->sizes, 0, members * members * sizeof *stage->sizes);
    stage->work = (struct engine_work){
        .kind = kind,
        .dtype = work->dtype,
        .reduce_op = HVI_REDUCE_SUM,
        .ranks = stage->members,
        .root = (int32_t)members - 1,
        .prescale = 1,
        .postscale = 1,
        .count = work->count,
        .bytes = work->bytes,
        .in = stage->in,
        .out = stage->out,
        /* Also where it is not true: only workers that may wait do such batches. */
        .kinds = 1u << ENGINE_OPERAND_MAPPED | 1u << ENGINE_OPERAND_PROCESS,
        .sizes = stage->sizes,
    };
}

static void start(struct engine_wire_stage *stage)
{
    struct engine_wire *net = stage->net;

    stage->batch.works[0] = &stage->work;
    stage->batch.count = 1;
    stage->batch.bytes = stage->work.bytes;
    stage->batch.answer_ns = stage->owner->batch->answer_ns;
    stage->over = false;
    pthread_mutex_lock(&net->host_lock);
    engine_backend_host.start(net->host, &stage->batch);
    pthread_mutex_unlock(&net->host_lock);
}

void engine_wire_stage_read(struct engine_wire_stage *stage)
{
    const struct engine_work *work = stage->owner->work;
    uint32_t places = work->ranks;
    bool adds = (work->kind == HVI_KIND_ALLREDUCE || work->kind == HVI_KIND_REDUCESCATTER) &&
                !engine_wire_is_adasum(work);

    prepare(stage, adds ? HVI_KIND_ALLREDUCE : HVI_KIND_ALLGATHER);
    if (adds) {
        if (work->reduce_op != HVI_REDUCE_AVERAGE && work->reduce_op != HVI_REDUCE_ADASUM)
            stage->work.reduce_op = work->reduce_op;
        stage->work.prescale = work->prescale;
    } else {
        stage->work.bytes = 0;
    }
    for (uint32_t i = 0; i < places; i++) {
        if (adds || engine_wire_in_bytes(work, i) > 0)
            stage->in[i] = work->in[i];
        stage->sizes[i] = adds ? 0 : engine_wire_in_bytes(work, i);
        stage->work.bytes += stage->sizes[i];
    }
    stage->out[places] = staged(stage->owner->staged_in);
    start(stage);
}

void engine_wire_stage_write(struct engine_wire_stage *stage)
{
    const struct engine_work *work = stage->owner->work;
    uint32_t places = work->ranks;
    bool parts = work->kind == HVI_KIND_REDUCESCATTER || work->kind == HVI_KIND_ALLTOALL;

    prepare(stage, parts ? HVI_KIND_ALLTOALL : HVI_KIND_BROADCAST);
    if (parts)
        stage->work.bytes = 0;
    for (uint32_t i = 0; i < places; i++) {
        stage->out[i] = work->out[i];
        if (parts)
            stage->sizes[(size_t)places * stage->members + i] = engine_wire_out_bytes(work, i);
        stage->work.bytes += parts ? engine_wire_out_bytes(work, i) : 0;
    }
    stage->in[places] = staged(stage->owner->staged_out);
    start(stage);
}

void engine_wire_stage_cancel(struct engine_wire_stage *stage)
{
    pthread_mutex_lock(&stage->net->host_lock);
    if (!engine_wire_stage_is_over(stage, NULL, NULL))
        engine_backend_host.cancel(stage->net->host, &stage->batch);
    pthread_mutex_unlock(&stage->net->host_lock);
}

bool engine_wire_stage_is_over(struct engine_wire_stage *stage, int *status_p,
                               struct engine_fault *fault_p)
{
    pthread_mutex_lock(&stage->net->lock);
    bool over = stage->over;
    pthread_mutex_unlock(&stage->net->lock);
    if (over && status_p)
        *status_p = stage->batch.status;
    if (over && fault_p)
        *fault_p = stage->batch.fault;
    return over;
}

const struct engine_batch *engine_wire_stage_batch(const struct engine_wire_stage *stage)
{
    return &stage->batch;
}

/* Any thread. */
void engine_wire_stage_post(void *user, struct engine_batch *batch)
{
    struct engine_wire *net = user;
    struct engine_wire_stage *stage =
        (struct engine_wire_stage *)(void *)((char *)batch -
                                             offsetof(struct engine_wire_stage, batch));

    pthread_mutex_lock(&net->lock);
    stage->over = true;
    engine_wire_call(net);
    pthread_mutex_unlock(&net->lock);
}
