/* SPDX-License-Identifier: Apache-2.0
 * A batch as commands for workers. Pure.
 *
 * Each worker gets the same batch, with the members that have their memory there. What it does follows from the
 * batch alone, so that workers of one communicator do the same steps without a word between them:
 * works of a batch are of one set, kind, type and operation, and a member has the same worker in all.
 *
 * With a span, the places that workers hear of are set ranks, and workers are known by their instances: the workers of all
 * nodes, in the order of the lowest set ranks that have memory there, are the ranks of the communicator. */
#include "daemon/engine/exec/gpu.h"

#include "base/types.h"

#include <string.h>

#define SIZES_PER_SLOT (sizeof(struct hvi_device_sizes) / sizeof(uint64_t))

uint16_t engine_gpu_worker_of(const struct engine_work *work, uint32_t place)
{
    if (work->in[place].kind == ENGINE_OPERAND_DEVICE)
        return work->in[place].worker;
    if (work->out[place].kind == ENGINE_OPERAND_DEVICE)
        return work->out[place].worker;
    return UINT16_MAX;
}

/* Of all nodes. */
static uint32_t members_of(const struct engine_work *work)
{
    return work->span ? work->span->members : work->ranks;
}

/* The place here of a member of the set; UINT32_MAX: it is on another node. */
static uint32_t place_of(const struct engine_work *work, uint32_t member)
{
    const struct engine_span *span = work->span;

    if (!span)
        return member;
    return span->home[member] == span->here ? span->place[member] : UINT32_MAX;
}

/* As engine_gpu_worker_of, of a member of the set: UINT16_MAX also if that is on another node. */
static uint16_t worker_here(const struct engine_work *work, uint32_t member)
{
    const uint32_t place = place_of(work, member);

    return place == UINT32_MAX ? UINT16_MAX : engine_gpu_worker_of(work, place);
}

static uint32_t index_of(const struct engine_gpu_route *route, uint16_t worker)
{
    uint32_t i = 0;

    while (i < route->count && route->workers[i] != worker)
        i++;
    return i;
}

static uint32_t rank_of_instance(const uint64_t *instances, uint32_t count, uint64_t instance)
{
    uint32_t i = 0;

    while (i < count && instances[i] != instance)
        i++;
    return i;
}

/* The communicator's rank that has a member's memory; UINT32_MAX: it has none. */
static uint32_t comm_rank_of(const struct engine_work *work, const struct engine_gpu_route *route,
                             uint32_t member)
{
    if (!work->span) {
        const uint32_t index = index_of(route, engine_gpu_worker_of(work, member));
        return index < route->count ? index : UINT32_MAX;
    }
    const uint64_t instance = work->span->instances[member];
    return instance == 0 ? UINT32_MAX : rank_of_instance(route->instances, route->ranks, instance);
}

/* One more member's worker. False: there are too many. */
static bool add_worker(const struct engine_work *work, uint32_t member, uint64_t *instances,
                       struct engine_gpu_route *route)
{
    const uint16_t worker = worker_here(work, member);
    const uint64_t instance = work->span ? work->span->instances[member] : 0;
    const bool is_new = worker != UINT16_MAX && worker < ENGINE_GPU_WORKERS &&
                        index_of(route, worker) == route->count;

    if (worker != UINT16_MAX && worker >= ENGINE_GPU_WORKERS)
        return false;
    if (is_new) {
        route->workers[route->count] = worker;
        route->rank[route->count++] = (uint16_t)route->ranks;
    }
    if (!work->span) {
        route->ranks = route->count;
        return true;
    }
    if (instance == 0 || rank_of_instance(instances, route->ranks, instance) < route->ranks)
        return !is_new; /* two workers here cannot be one for the others */
    if (route->ranks == ENGINE_GPU_RANKS)
        return false;
    instances[route->ranks++] = instance;
    return true;
}

bool engine_gpu_route(const struct engine_batch *batch, uint64_t instances[ENGINE_GPU_RANKS],
                      struct engine_gpu_route *route_p)
{
    const struct engine_work *first = batch->works[0];

    route_p->count = route_p->ranks = 0;
    route_p->instances = first->span ? instances : NULL;
    for (uint32_t i = 0; i < members_of(first); i++) {
        if (!add_worker(first, i, instances, route_p))
            return false;
    }
    for (uint32_t w = 1; w < batch->count; w++) {
        if (!engine_gpu_fuses(first, batch->works[w]))
            return false;
    }
    return route_p->ranks > 0;
}

void engine_gpu_nodes(const struct engine_work *work, const struct engine_gpu_route *route,
                      uint32_t *nodes_p)
{
    const struct engine_span *span = work->span;

    for (uint32_t i = 0; i < span->members; i++) {
        const uint32_t rank = comm_rank_of(work, route, i);
        if (rank != UINT32_MAX)
            nodes_p[rank] = span->node[span->home[i]];
    }
}

static uint32_t count_members(const struct engine_work *work, uint16_t worker)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < work->ranks; i++)
        count += engine_gpu_worker_of(work, i) == worker;
    return count;
}

static uint64_t count_sizes(const struct engine_work *work)
{
    return work->sizes ? hvi_device_count_sizes(work->kind, members_of(work)) : 0;
}

static uint64_t count_numbers(const struct engine_work *work, bool with_comm)
{
    const bool has_homes = with_comm && hvi_device_has_homes(work->kind, work->reduce_op);

    return count_sizes(work) + (has_homes ? members_of(work) : 0);
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
        slots += 1 + members + count_size_slots(batch->works[w], route->ranks > 1);
    }
    return slots <= HVI_DEVICE_SLOTS ? (uint32_t)slots : 0;
}

uint64_t engine_gpu_most_slots(const struct engine_work *work)
{
    return 1 + (uint64_t)work->ranks + count_size_slots(work, true);
}

/* Most members of a work on one worker, of any node. */
static uint32_t most_members(const struct engine_work *work, const struct engine_gpu_route *route)
{
    uint32_t members[ENGINE_GPU_RANKS] = {0}, most = 0;

    for (uint32_t i = 0; i < members_of(work); i++) {
        const uint32_t rank = comm_rank_of(work, route, i);
        if (rank != UINT32_MAX && ++members[rank] > most)
            most = members[rank];
    }
    return most;
}

uint32_t engine_gpu_share(const struct engine_work *work, const struct engine_gpu_route *route)
{
    const uint64_t slots = 1 + count_size_slots(work, route->ranks > 1) + most_members(work, route);

    return slots < HVI_DEVICE_SLOTS ? (uint32_t)slots : HVI_DEVICE_SLOTS;
}

bool engine_gpu_fits(const struct engine_work *work, const struct engine_gpu_route *route)
{
    return most_members(work, route) <= HVI_DEVICE_MEMBERS &&
           engine_gpu_share(work, route) < HVI_DEVICE_SLOTS;
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
        .divisor = work->reduce_op == HVI_REDUCE_AVERAGE ? members_of(work) : 0,
        .count = work->count,
        .bytes = work->bytes,
        .prescale = work->prescale,
        .postscale = work->postscale,
        .sizes = (uint32_t)count_size_slots(work, with_comm),
        .ranks = members_of(work),
    };

    if (work->root < 0)
        return command;
    if (with_comm)
        command.root = (int32_t)comm_rank_of(work, route, (uint32_t)work->root);
    if (worker_here(work, (uint32_t)work->root) == here) {
        command.root_member = 0;
        for (uint32_t i = 0; i < (uint32_t)work->root; i++)
            command.root_member += worker_here(work, i) == here;
    }
    return command;
}

static struct hvi_device_member make_member(const struct engine_work *work, uint32_t member)
{
    const uint32_t place = place_of(work, member);
    const struct engine_operand *in = &work->in[place], *out = &work->out[place];
    const struct engine_fence *fence = work->fence ? &work->fence[place] : NULL;
    struct hvi_device_member command = {.command = HVI_DEVICE_MEMBER, .place = member};

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

/* With a span an alltoall has the rows and columns of members here, and the others mean nothing here. */
static uint64_t size_of(const struct engine_work *work, uint64_t at)
{
    if (!work->span || work->kind != HVI_KIND_ALLTOALL)
        return work->sizes[at];
    const uint32_t members = members_of(work);
    const uint32_t from = (uint32_t)(at / members), to = (uint32_t)(at % members);
    if (place_of(work, from) != UINT32_MAX)
        return work->sizes[(uint64_t)place_of(work, from) * members + to];
    if (place_of(work, to) != UINT32_MAX)
        return work->sizes[((uint64_t)work->ranks + place_of(work, to)) * members + from];
    return 0;
}

/* Number `at` of a work's sizes and homes. */
static uint64_t number_of(const struct engine_work *work, const struct engine_gpu_route *route,
                          uint64_t at)
{
    const uint64_t sizes = count_sizes(work);

    if (at < sizes)
        return size_of(work, at);
    const uint32_t rank = comm_rank_of(work, route, (uint32_t)(at - sizes));
    return rank == UINT32_MAX ? HVI_DEVICE_NOWHERE : rank;
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
    for (uint32_t i = 0; i < members_of(work); i++) {
        if (worker_here(work, i) != route->workers[index])
            continue;
        const struct hvi_device_member member = make_member(work, i);
        memcpy(hvi_ring_slot(ring, at++), &member, sizeof member);
    }
    return write_numbers(work, route, with_comm, ring, at);
}

void engine_gpu_write(const struct engine_batch *batch, const struct engine_gpu_route *route,
                      uint32_t index, uint32_t comm, uint64_t number, uint32_t flags,
                      struct hvi_ring *ring)
{
    struct hvi_device_batch head = {
        .command = HVI_DEVICE_BATCH,
        .number = number,
        .comm = comm,
        .works = (uint16_t)batch->count,
        .stream = (uint16_t)batch->works[0]->set,
        .comm_ranks = comm != 0 ? route->ranks : 0,
        .comm_rank = comm != 0 ? route->rank[index] : 0,
        .flags = flags,
    };
    uint32_t at = 1;

    for (uint32_t w = 0; w < batch->count; w++)
        at = write_work(batch->works[w], route, index, comm != 0, ring, at);
    head.slots = at;
    memcpy(hvi_ring_slot(ring, 0), &head, sizeof head);
}

/* Every member has its memory on the same worker in both. */
static bool lie_alike(const struct engine_work *a, const struct engine_work *b)
{
    if (a->span)
        return memcmp(a->span->instances, b->span->instances,
                      a->span->members * sizeof a->span->instances[0]) == 0;
    for (uint32_t i = 0; i < a->ranks; i++) {
        if (engine_gpu_worker_of(a, i) != engine_gpu_worker_of(b, i))
            return false;
    }
    return true;
}

bool engine_gpu_fuses(const struct engine_work *a, const struct engine_work *b)
{
    if (!a->span != !b->span || a->set != b->set || a->kind != b->kind || a->dtype != b->dtype ||
        a->reduce_op != b->reduce_op || a->root != b->root || a->ranks != b->ranks ||
        memcmp(&a->prescale, &b->prescale, sizeof a->prescale) != 0 ||
        memcmp(&a->postscale, &b->postscale, sizeof a->postscale) != 0)
        return false;
    return lie_alike(a, b);
}
