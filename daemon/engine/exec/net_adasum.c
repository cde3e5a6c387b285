/* SPDX-License-Identifier: Apache-2.0
 * An adasum over nodes: every node has received the vectors of all members, and combines them as one node does
 * (host_adasum.c), in the same order. So the bits are those of one node with the same members. It costs as
 * many vectors of memory as there are members. */
#include "daemon/engine/exec/net.h"

#include "base/types.h"

#include <stdlib.h>

struct engine_wire_adasum {
    struct engine_work work; /* as if all members were here */
    struct engine_operand *operands;
    struct engine_adasum *adasum;
    struct engine_host_thread thread;
    uint32_t chunks, chunk, steps, step;
};

static void find_operands(struct engine_wire_adasum *self, const struct engine_wire_work *net)
{
    const struct engine_span *span = net->work->span;
    struct engine_operand *in = self->operands, *out = in + span->members;
    uint32_t slot = 0;

    for (uint32_t i = 0; i < span->members; i++) {
        if (span->home[i] == UINT32_MAX || (span->joined && span->joined[i]))
            continue;
        bool here = span->home[i] == span->here;
        in[i].kind = ENGINE_OPERAND_MAPPED;
        in[i].address = here ? (void *)(uintptr_t)net->in_of[span->place[i]]
                             : net->slots + slot * net->slot_bytes;
        slot++;
        if (!here)
            continue;
        out[i].kind = ENGINE_OPERAND_MAPPED;
        out[i].address = net->out_of[span->place[i]];
    }
    self->work.in = in;
    self->work.out = out;
}

struct engine_wire_adasum *engine_wire_adasum_new(const struct engine_wire_work *net,
                                                  const struct hvi_kernels *kernels)
{
    struct engine_wire_adasum *self = calloc(1, sizeof *self);

    if (!self)
        return NULL;
    self->work = *net->work;
    self->work.span = NULL;
    self->work.ranks = net->work->span->members;
    self->work.kinds = 1u << ENGINE_OPERAND_MAPPED | 1u << ENGINE_OPERAND_NONE;
    self->thread = (struct engine_host_thread){
        .kernels = kernels, .buffer = malloc(ENGINE_HOST_BUFFER_BYTES), .stream_bytes = UINT64_MAX};
    self->operands = calloc(2 * (size_t)self->work.ranks, sizeof *self->operands);
    if (self->operands)
        find_operands(self, net);
    if (self->operands && self->thread.buffer)
        self->adasum = engine_adasum_new(&self->work);
    if (!self->adasum) {
        engine_wire_adasum_free(self);
        return NULL;
    }
    self->chunks = engine_adasum_chunks(&self->work);
    self->steps = engine_adasum_steps(&self->work);
    return self;
}

void engine_wire_adasum_free(struct engine_wire_adasum *self)
{
    if (!self)
        return;
    engine_adasum_free(self->adasum);
    free(self->operands);
    free(self->thread.buffer);
    free(self);
}

void engine_wire_adasum_run(struct engine_wire_adasum *self)
{
    struct engine_fault fault; /* of remote-process memory: there is none */

    engine_adasum_run(&self->thread, self->adasum, self->chunk, &fault);
}

bool engine_wire_adasum_next(struct engine_wire_adasum *self)
{
    if (++self->chunk < self->chunks)
        return false;
    self->chunk = 0;
    if (++self->step == self->steps)
        return true;
    engine_adasum_next(self->adasum);
    return false;
}
