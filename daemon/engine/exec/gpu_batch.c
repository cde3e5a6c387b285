/* SPDX-License-Identifier: Apache-2.0
 * A batch as commands for workers. Pure.
 *
 * Each worker gets the same batch, with the members that have their memory there. What it does follows from the
 * batch alone, so that workers of one communicator do the same steps without a word between them:
 * works of a batch are of one set, kind, type and operation, and a member has the same worker in all. */
#include "daemon/engine/exec/gpu.h"

#include "base/types.h"

#include <string.h>

#define SIZES_PER_SLOT (sizeof(struct hvi_device_sizes) / sizeof(uint64_t))

/* UINT16_MAX: the member has no memory. */
static uint16_t worker_of(const struct engine_work *work, uint32_t place)
{
    if (work->in[place].kind == ENGINE_OPERAND_DEVICE)
        return work->in[place].worker;
    if (work->out[place].kind == ENGINE_OPERAND_DEVICE)
        return work->out[place].worker;
    return UINT16_MAX;
}

static uint32_t index_of(const struct engine_gpu_route *route, uint16_t worker)
{
    uint32_t i = 0;

    while (i < route->count && route->workers[i] != worker)
        i++;
    return i;
}

bool engine_gpu_route(const struct engine_batch *batch, struct engine_gpu_route *route_p)
{
    const struct engine_work *first = batch->works[0];

    route_p->count = 0;
    for (uint32_t i = 0; i < first->ranks; i++) {
        uint16_t worker = worker_of(first, i);
        if (worker == UINT16_MAX || index_of(route_p, worker) < route_p->count)
            continue;
        if (worker >= ENGINE_GPU_WORKERS)
            return false;
        route_p->workers[route_p->count++] = worker;
    }
    for (uint32_t w = 1; w < batch->count; w++) {
        if (!engine_gpu_fuses(first, batch->works[w]))
            return false;
    }
    return route_p->count > 0;
}

static uint32_t count_members(const struct engine_work *work, uint16_t worker)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < work->ranks; i++)
        count += worker_of(work, i) == worker;
    return count;
}

static uint64_t count_numbers(const struct engine_work *work, bool with_comm)
{
    uint64_t sizes = work->sizes ? hvi_device_count_sizes(work->kind, work->ranks) : 0;

    if (with_comm && hvi_device_has_homes(work->kind, work->reduce_op))
        return sizes + work->ranks;
    return sizes;
}

static uint64_t count_size_slots(const struct engine_work *work, bool with_comm)
{
    return (count_numbers(work, with_comm) + SIZES_PER_SLOT - 1) / SIZES_PER_SLOT;
}

uint32_t engine_gpu_slots(const struct engine_batch *batch, const struct engine_gpu_route *route,
                          uint32_t index)
{
    uint64_t slots = 1;

    if (batch->count > HVI_DEVICE_WORKS)
        return 0;
    for (uint32_t w = 0; w < batch->count; w++) {
        uint32_t members = count_members(batch->works[w], route->workers[index]);
        if (members > HVI_DEVICE_MEMBERS)
            return 0;
        slots += 1 + members + count_size_slots(batch->works[w], route->count > 1);
    }
    return slots <= HVI_DEVICE_SLOTS ? (uint32_t)slots : 0;
}

static struct hvi_device_work make_work(const struct engine_work *work,
                                        const struct engine_gpu_route *route, uint32_t index,
                                        bool with_comm)
{
    const uint16_t here = route->workers[index];
    struct hvi_device_work command = {
        .command = HVI_DEVICE_WORK,
        .kind = (uint16_t)work->kind,
        .members = (uint16_t)count_members(work, here),
        .dtype = (uint8_t)work->dtype,
        .reduce_op = (uint8_t)work->reduce_op,
        .root = -1,
        .root_member = -1,
        .divisor = work->reduce_op == HVI_REDUCE_AVERAGE ? work->ranks : 0,
        .count = work->count,
        .bytes = work->bytes,
        .prescale = work->prescale,
        .postscale = work->postscale,
        .sizes = (uint32_t)count_size_slots(work, with_comm),
        .ranks = work->ranks,
    };

    if (work->root < 0)
        return command;
    uint16_t there = worker_of(work, (uint32_t)work->root);
    if (with_comm)
        command.root = (int32_t)index_of(route, there);
    if (there == here) {
        command.root_member = 0;
        for (uint32_t i = 0; i < (uint32_t)work->root; i++)
            command.root_member += worker_of(work, i) == here;
    }
    return command;
}

static struct hvi_device_member make_member(const struct engine_work *work, uint32_t place)
{
    const struct engine_operand *in = &work->in[place], *out = &work->out[place];
    const struct engine_fence *fence = work->fence ? &work->fence[place] : NULL;
    struct hvi_device_member command = {.command = HVI_DEVICE_MEMBER, .place = place};

    if (in->kind == ENGINE_OPERAND_DEVICE) {
        command.in_import = in->import;
        command.in_offset = (uint64_t)(uintptr_t)in->address;
    }
    if (out->kind == ENGINE_OPERAND_DEVICE) {
        command.out_import = out->import;
        command.out_offset = (uint64_t)(uintptr_t)out->address;
    }
    if (fence && fence->page) {
        command.page = fence->id;
        command.cell = fence->cell;
        command.turn = fence->turn;
    }
    return command;
}

/* Number `at` of a work's sizes and homes. */
static uint64_t number_of(const struct engine_work *work, const struct engine_gpu_route *route,
                          uint64_t at)
{
    const uint64_t sizes = work->sizes ? hvi_device_count_sizes(work->kind, work->ranks) : 0;

    if (at < sizes)
        return work->sizes[at];
    uint16_t worker = worker_of(work, (uint32_t)(at - sizes));
    return worker == UINT16_MAX ? HVI_DEVICE_NOWHERE : index_of(route, worker);
}

static uint32_t write_numbers(const struct engine_work *work, const struct engine_gpu_route *route,
                              bool with_comm, struct hvi_ring *ring, uint32_t at)
{
    const uint64_t count = count_numbers(work, with_comm);

    for (uint64_t from = 0; from < count; from += SIZES_PER_SLOT) {
        struct hvi_device_sizes sizes = {{0}};
        for (uint64_t i = 0; i < SIZES_PER_SLOT && from + i < count; i++)
            sizes.values[i] = number_of(work, route, from + i);
        memcpy(hvi_ring_slot(ring, at++), &sizes, sizeof sizes);
    }
    return at;
}

static uint32_t write_work(const struct engine_work *work, const struct engine_gpu_route *route,
                           uint32_t index, bool with_comm, struct hvi_ring *ring, uint32_t at)
{
    const struct hvi_device_work command = make_work(work, route, index, with_comm);

    memcpy(hvi_ring_slot(ring, at++), &command, sizeof command);
    for (uint32_t i = 0; i < work->ranks; i++) {
        if (worker_of(work, i) != route->workers[index])
            continue;
        const struct hvi_device_member member = make_member(work, i);
        memcpy(hvi_ring_slot(ring, at++), &member, sizeof member);
    }
    return write_numbers(work, route, with_comm, ring, at);
}

void engine_gpu_write(const struct engine_batch *batch, const struct engine_gpu_route *route,
                      uint32_t index, uint32_t comm, uint64_t number, struct hvi_ring *ring)
{
    struct hvi_device_batch head = {
        .command = HVI_DEVICE_BATCH,
        .number = number,
        .comm = comm,
        .works = (uint16_t)batch->count,
        .stream = (uint16_t)batch->works[0]->set,
        .comm_ranks = comm != 0 ? route->count : 0,
        .comm_rank = comm != 0 ? index : 0,
    };
    uint32_t at = 1;

    for (uint32_t w = 0; w < batch->count; w++)
        at = write_work(batch->works[w], route, index, comm != 0, ring, at);
    head.slots = at;
    memcpy(hvi_ring_slot(ring, 0), &head, sizeof head);
}

bool engine_gpu_fuses(const struct engine_work *a, const struct engine_work *b)
{
    if (a->set != b->set || a->kind != b->kind || a->dtype != b->dtype ||
        a->reduce_op != b->reduce_op || a->root != b->root || a->ranks != b->ranks ||
        memcmp(&a->prescale, &b->prescale, sizeof a->prescale) != 0 ||
        memcmp(&a->postscale, &b->postscale, sizeof a->postscale) != 0)
        return false;
    for (uint32_t i = 0; i < a->ranks; i++) {
        if (worker_of(a, i) != worker_of(b, i))
            return false;
    }
    return true;
}
