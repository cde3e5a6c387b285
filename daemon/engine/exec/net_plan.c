/* SPDX-License-Identifier: Apache-2.0
 * Which messages a work consists of. Every node makes its own part, from what all of them know: so each
 * knows what comes next on a lane, and the heads only confirm it.
 *
 *   allreduce       small: the node's sum to all nodes, which add all sums in the order of nodes.
 *                   Large: a ring. Block b of N goes from node b to b + 1, and each node on the way adds its
 *                   inputs; node b - 1 has the result, which goes round as well:
 *
 *                     step      0        1       2        3        (node 1 of 3)
 *                     sends     block 1  0       2 (sum)  1 (sum)
 *                     receives  block 0  2: sum  1 (sum)  0 (sum)
 *
 *   reducescatter   the first half of that ring, with node b's slices as block b, one node further on
 *   allgather       the second half, with node b's inputs as block b
 *   adasum          an allgather of all inputs, and the rest on every node (net_adasum.c)
 *   broadcast       small: a binomial tree below the root's node. Large: a chain
 *   alltoall        from each node to each
 *   send            one to the other
 *
 * Blocks are cut into chunks, which the lanes take in turn. */
#include "daemon/engine/exec/net.h"

#include "base/status.h"
#include "base/types.h"

#include <stdlib.h>
#include <string.h>

struct plan {
    struct engine_wire_work *net;
    const struct engine_work *work;
    const struct engine_span *span;
    uint64_t chunk;
    bool failed; /* no memory */
    /* Of allgather, reducescatter, adasum: the vector is the members' parts in the order of set ranks. */
    uint64_t *part_at, *part_bytes; /* [members] */
    /* Set ranks by node: those of node b are rank[first[b]] to rank[first[b + 1] - 1]. */
    uint32_t *rank, *first;
    unsigned char *base; /* where the vector is put together */
};

/* ---- members ---- */

static bool takes_part(const struct engine_span *span, uint32_t rank)
{
    return span->home[rank] != UINT32_MAX && !(span->joined && span->joined[rank]);
}

/* Of a member here. */
static uint32_t rank_of(const struct engine_work *work, uint32_t place)
{
    const struct engine_span *span = work->span;
    uint32_t rank = 0;

    while (span->home[rank] != span->here || span->place[rank] != place)
        rank++;
    return rank;
}

static uint64_t sum(const uint64_t *sizes, uint32_t count)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++)
        bytes += sizes[i];
    return bytes;
}

uint64_t engine_wire_in_bytes(const struct engine_work *work, uint32_t place)
{
    uint32_t members = work->span->members;

    if (work->in[place].kind == ENGINE_OPERAND_NONE)
        return 0;
    if (work->kind == HVI_KIND_ALLGATHER)
        return work->sizes[rank_of(work, place)];
    if (work->kind == HVI_KIND_ALLTOALL)
        return sum(work->sizes + (size_t)place * members, members);
    if (work->kind == HVI_KIND_BROADCAST || work->kind == HVI_KIND_SEND)
        return rank_of(work, place) == (uint32_t)work->root ? work->bytes : 0;
    return work->bytes;
}

uint64_t engine_wire_out_bytes(const struct engine_work *work, uint32_t place)
{
    uint32_t members = work->span->members;

    if (work->out[place].kind == ENGINE_OPERAND_NONE)
        return 0;
    if (work->kind == HVI_KIND_REDUCESCATTER)
        return work->sizes[rank_of(work, place)];
    if (work->kind == HVI_KIND_ALLTOALL)
        return sum(work->sizes + (size_t)(work->ranks + place) * members, members);
    return work->bytes;
}

static uint32_t present(const struct engine_span *span)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < span->members; i++)
        count += takes_part(span, i);
    return count;
}

static bool reduces(const struct engine_work *work)
{
    return work->kind == HVI_KIND_ALLREDUCE || work->kind == HVI_KIND_REDUCESCATTER;
}

bool engine_wire_is_adasum(const struct engine_work *work)
{
    return reduces(work) && work->reduce_op == HVI_REDUCE_ADASUM && present(work->span) > 1;
}

static bool group_ranks(struct plan *plan)
{
    const struct engine_span *span = plan->span;
    uint32_t *at = calloc(span->nodes + 1, sizeof *at);

    plan->first = calloc((size_t)span->nodes + 1, sizeof *plan->first);
    plan->rank = calloc((size_t)span->members + 1, sizeof *plan->rank);
    if (!at || !plan->first || !plan->rank) {
        free(at);
        return false;
    }
    for (uint32_t i = 0; i < span->members; i++) {
        if (takes_part(span, i))
            plan->first[span->home[i] + 1]++;
    }
    for (uint32_t b = 0; b < span->nodes; b++)
        at[b + 1] = plan->first[b + 1] += plan->first[b];
    for (uint32_t i = 0; i < span->members; i++) {
        if (takes_part(span, i))
            plan->rank[at[span->home[i]]++] = i;
    }
    free(at);
    return true;
}

static bool find_parts(struct plan *plan)
{
    const struct engine_work *work = plan->work;
    bool whole = engine_wire_is_adasum(work);
    uint32_t members = plan->span->members;
    uint64_t at = 0;

    plan->part_at = calloc((size_t)members + 1, sizeof *plan->part_at);
    plan->part_bytes = calloc((size_t)members + 1, sizeof *plan->part_bytes);
    if (!plan->part_at || !plan->part_bytes)
        return false;
    for (uint32_t i = 0; i < members; i++) {
        uint64_t bytes = whole ? work->bytes : work->sizes[i];
        if (whole && !takes_part(plan->span, i))
            bytes = 0;
        plan->part_at[i] = at;
        plan->part_bytes[i] = bytes;
        at += bytes;
    }
    return group_ranks(plan);
}

/* ---- messages ---- */

static uint32_t add(struct plan *plan, bool sends, const struct engine_wire_message *message)
{
    struct engine_wire_messages *to = sends ? &plan->net->out : &plan->net->in;

    if (to->count == to->room) {
        uint32_t room = to->room > 0 ? 2 * to->room : 16;
        void *list = plan->failed ? NULL : realloc(to->list, room * sizeof *to->list);
        if (!list) {
            plan->failed = true;
            return 0;
        }
        to->list = list;
        to->room = room;
    }
    to->list[to->count] = *message;
    return to->count++;
}

/* Cuts a stretch of `model` into chunks, the first of which is number *chunk of its block. Chunk c of a message
 * to send waits for message `after` + c, if that is not ENGINE_WIRE_NONE. */
static void add_stretch(struct plan *plan, bool sends, struct engine_wire_message model,
                        uint32_t *chunk)
{
    uint64_t left = model.bytes;
    uint32_t after = model.after;

    while (left > 0 && !plan->failed) {
        model.bytes = left < plan->chunk ? left : plan->chunk;
        model.lane = (uint8_t)(*chunk % plan->net->lanes);
        model.after = after == ENGINE_WIRE_NONE ? after : after + *chunk;
        add(plan, sends, &model);
        model.at += model.bytes;
        if (model.data)
            model.data += model.bytes;
        left -= model.bytes;
        ++*chunk;
    }
}

static void add_copy(struct plan *plan, const unsigned char *from, unsigned char *to, uint64_t at,
                     uint64_t bytes)
{
    struct engine_wire_work *net = plan->net;

    while (bytes > 0 && (!from || from != to)) {
        uint64_t now = bytes < ENGINE_WIRE_CHUNK_BYTES ? bytes : ENGINE_WIRE_CHUNK_BYTES;
        if (net->copy_count == net->copy_room) {
            uint32_t room = net->copy_room > 0 ? 2 * net->copy_room : 8;
            void *list = plan->failed ? NULL : realloc(net->copies, room * sizeof *net->copies);
            if (!list) {
                plan->failed = true;
                return;
            }
            net->copies = list;
            net->copy_room = room;
        }
        net->copies[net->copy_count++] = (struct engine_wire_copy){from, to, at, now};
        at += now;
        bytes -= now;
        if (from)
            from += now;
        if (to)
            to += now;
    }
}

/* To the same place of all outputs, each chunk while it is in the caches. */
static void copy_to_all(struct plan *plan, const unsigned char *from, uint64_t at, uint64_t bytes)
{
    while (bytes > 0) {
        uint64_t now = bytes < ENGINE_WIRE_CHUNK_BYTES ? bytes : ENGINE_WIRE_CHUNK_BYTES;
        for (uint32_t i = 0; i < plan->net->out_count; i++)
            add_copy(plan, from, (unsigned char *)plan->net->outs[i] + at, at, now);
        from += now;
        at += now;
        bytes -= now;
    }
}

/* ---- tentative works ---- */

/* Every node hears, from one that has heard of half of them, that all have started. */
static void plan_meeting(struct plan *plan)
{
    struct engine_wire_work *net = plan->net;
    uint32_t nodes = net->nodes, step = ENGINE_WIRE_MEETING;

    for (uint32_t d = 1; d < nodes; d *= 2, step++) {
        struct engine_wire_message model = {.what = ENGINE_WIRE_PASS,
                                            .peer = (net->here + d) % nodes,
                                            .step = step,
                                            .after = net->in.count > 0 ? net->in.count - 1
                                                                       : ENGINE_WIRE_NONE};
        add(plan, true, &model);
        model.what = ENGINE_WIRE_PLACE;
        model.peer = (net->here + nodes - d) % nodes;
        model.after = ENGINE_WIRE_NONE;
        add(plan, false, &model);
    }
    net->gate = net->in.count;
}

/* ---- rings ---- */

struct ring {
    uint32_t ahead; /* node i begins with block i + ahead */
    uint32_t steps;
    uint32_t adds; /* of these, the first: what comes is added. Then it is only handed on. */
};

static uint8_t sent_as(const struct ring *ring, uint32_t step)
{
    if (step > 0)
        return ENGINE_WIRE_PASS;
    return ring->adds > 0 ? ENGINE_WIRE_SUM : ENGINE_WIRE_DATA;
}

static uint8_t received_as(const struct plan *plan, const struct ring *ring, uint32_t step)
{
    if (step < ring->adds)
        return step + 1 == ring->adds ? ENGINE_WIRE_LAST : ENGINE_WIRE_ADD;
    return plan->net->finish == ENGINE_WIRE_FINISH_ADASUM ? ENGINE_WIRE_PLACE : ENGINE_WIRE_SPREAD;
}

static unsigned char *place_part(const struct plan *plan, const struct engine_wire_message *model,
                                 uint32_t rank)
{
    uint32_t place = plan->span->place[rank];

    if (model->what == ENGINE_WIRE_DATA)
        return (unsigned char *)(uintptr_t)plan->net->in_of[place];
    if (model->what == ENGINE_WIRE_LAST)
        return plan->net->out_of[place];
    return plan->base ? plan->base + plan->part_at[rank] : NULL;
}

static void add_block(struct plan *plan, bool sends, struct engine_wire_message model,
                      uint32_t block)
{
    const struct engine_work *work = plan->work;
    uint32_t chunk = 0, nodes = plan->net->nodes;

    if (!plan->rank) {
        uint32_t size = hvi_dtype_bytes(work->dtype);
        uint64_t count = work->bytes / size, each = count / nodes, more = count % nodes;
        model.at = (each * block + (block < more ? block : more)) * size;
        model.bytes = (each + (block < more)) * size;
        model.data = model.what == ENGINE_WIRE_LAST ? NULL : plan->base + model.at;
        add_stretch(plan, sends, model, &chunk);
        return;
    }
    for (uint32_t i = plan->first[block]; i < plan->first[block + 1]; i++) {
        uint32_t rank = plan->rank[i];
        model.at = plan->part_at[rank];
        model.bytes = plan->part_bytes[rank];
        model.data = place_part(plan, &model, rank);
        add_stretch(plan, sends, model, &chunk);
    }
}

/* Where the messages of the steps begin, and, behind the last one, where they end. */
struct stairs {
    uint32_t *out, *in; /* [steps + 1] */
};

static void add_steps(struct plan *plan, const struct ring *ring, struct stairs *stairs)
{
    struct engine_wire_work *net = plan->net;
    uint32_t nodes = net->nodes, here = net->here, before = ENGINE_WIRE_NONE;

    for (uint32_t step = 0; step < ring->steps; step++) {
        uint32_t sent = (here + ring->ahead + 2 * nodes - step) % nodes;
        struct engine_wire_message model = {
            .what = sent_as(ring, step), .peer = (here + 1) % nodes, .step = step, .after = before};
        stairs->out[step] = net->out.count;
        before = stairs->in[step] = net->in.count;
        add_block(plan, true, model, sent);
        model.what = received_as(plan, ring, step);
        model.peer = (here + nodes - 1) % nodes;
        model.after = ENGINE_WIRE_NONE;
        add_block(plan, false, model, (sent + nodes - 1) % nodes);
    }
    stairs->out[ring->steps] = net->out.count;
    stairs->in[ring->steps] = net->in.count;
}

static void move_messages(struct plan *plan, struct engine_wire_message *list,
                          const uint32_t *place, uint32_t count)
{
    struct engine_wire_message *moved = malloc(count * sizeof *moved);

    plan->failed = plan->failed || !moved;
    for (uint32_t i = 0; moved && i < count; i++)
        moved[place[i]] = list[i];
    if (moved)
        memcpy(list, moved, count * sizeof *moved);
    free(moved);
}

/* Each wave has a chunk of each step: the more steps, the fewer waves between an addition and what is sent of it. */
static uint32_t lag_of(const struct engine_wire_work *net, uint32_t steps)
{
    uint32_t ahead = ENGINE_WIRE_AHEAD_CHUNKS * net->lanes;

    return ahead >= steps && steps > 1 ? ahead / (steps - 1) : 1;
}

static void order_waves(struct plan *plan, const struct stairs *stairs, uint32_t steps)
{
    struct engine_wire_work *net = plan->net;
    uint32_t lag = lag_of(net, steps), in = stairs->in[0], out = stairs->out[0];
    uint32_t ins = stairs->in[steps] - in, outs = stairs->out[steps] - out;
    uint32_t *place = calloc((ins > outs ? ins : outs) + 1u, sizeof *place);

    plan->failed = !place;
    if (place && engine_wire_waves(stairs->out, steps, lag, place))
        move_messages(plan, net->out.list + out, place, outs);
    if (place && engine_wire_waves(stairs->in, steps, lag, place)) {
        move_messages(plan, net->in.list + in, place, ins);
        for (uint32_t i = out; i < net->out.count; i++) {
            uint32_t *after = &net->out.list[i].after;
            *after = *after == ENGINE_WIRE_NONE ? *after : in + place[*after - in];
        }
    }
    free(place);
}

static void plan_ring(struct plan *plan, const struct ring *ring)
{
    size_t size = (ring->steps + 1) * sizeof(uint32_t);
    struct stairs stairs = {malloc(size), malloc(size)};

    plan->failed = plan->failed || !stairs.out || !stairs.in;
    if (!plan->failed)
        add_steps(plan, ring, &stairs);
    if (!plan->failed)
        order_waves(plan, &stairs, ring->steps);
    free(stairs.out);
    free(stairs.in);
}

/* ---- small allreduces ---- */

/* Slots [first, first + count), counted round the nodes. */
static void add_slots(struct plan *plan, bool sends, struct engine_wire_message model,
                      uint32_t first, uint32_t count)
{
    uint64_t bytes = plan->work->bytes;
    uint32_t chunk = 0, nodes = plan->net->nodes;
    uint32_t straight = first + count > nodes ? nodes - first : count;

    for (int part = 0; part < 2; part++) {
        model.at = bytes * first;
        model.bytes = bytes * straight;
        model.data = plan->base + model.at;
        add_stretch(plan, sends, model, &chunk);
        first = 0;
        straight = count - straight;
    }
}

static void exchange(struct plan *plan, uint32_t step, uint32_t to, uint32_t from, uint32_t count)
{
    const struct engine_wire_work *net = plan->net;
    struct engine_wire_message model = {
        .what = ENGINE_WIRE_PASS, .peer = to, .step = step, .after = ENGINE_WIRE_NONE};
    uint32_t first = net->out.count, before = net->in.count;

    add_slots(plan, true, model, net->here, count);
    for (uint32_t i = first; net->in_order && before > 0 && i < net->out.count; i++)
        net->out.list[i].after = before - 1;
    model.what = ENGINE_WIRE_PLACE;
    model.peer = from;
    add_slots(plan, false, model, from, count);
}

static void plan_small(struct plan *plan)
{
    struct engine_wire_work *net = plan->net;
    uint32_t nodes = net->nodes, here = net->here;

    net->finish = ENGINE_WIRE_FINISH_SLOTS;
    net->slot_bytes = plan->work->bytes;
    plan->base = net->slots;
    if (nodes <= ENGINE_WIRE_DIRECT_NODES) {
        for (uint32_t d = 1; d < nodes; d++)
            exchange(plan, d, (here + d) % nodes, (here + nodes - d) % nodes, 1);
        return;
    }
    /* Before the step with distance d a node has the slots of d nodes, its own first. */
    net->in_order = true;
    for (uint32_t d = 1; d < nodes; d *= 2)
        exchange(plan, d, (here + nodes - d) % nodes, (here + d) % nodes,
                 d < nodes - d ? d : nodes - d);
}

/* ---- the other kinds ---- */

static void plan_broadcast(struct plan *plan)
{
    const struct engine_wire_work *net = plan->net;
    const struct engine_work *work = plan->work;
    uint32_t nodes = net->nodes, root = plan->span->home[work->root];
    uint32_t self = (net->here + nodes - root) % nodes; /* counted from the root's node */
    uint32_t low = self & (~self + 1), chunk = 0, first = net->in.count;
    bool tree = work->bytes <= ENGINE_WIRE_TREE_BYTES;
    struct engine_wire_message model = {
        .what = ENGINE_WIRE_SPREAD, .after = ENGINE_WIRE_NONE, .bytes = work->bytes};

    if (self == 0) {
        model.what = ENGINE_WIRE_DATA;
        model.data = (unsigned char *)(uintptr_t)net->in_of[plan->span->place[work->root]];
        copy_to_all(plan, model.data, 0, work->bytes);
        low = UINT32_C(1) << 31;
    } else {
        model.data = net->outs[0];
        model.peer = (root + (tree ? self - low : self - 1)) % nodes;
        add_stretch(plan, false, model, &chunk);
        model.what = ENGINE_WIRE_PASS;
        model.after = first;
    }
    for (uint32_t d = tree ? low / 2 : 1; d > 0; d /= 2) {
        chunk = 0;
        model.peer = (root + self + d) % nodes;
        if (d < nodes - self)
            add_stretch(plan, true, model, &chunk);
    }
}

static void gather_here(struct plan *plan)
{
    for (uint32_t i = plan->first[plan->span->here]; i < plan->first[plan->span->here + 1]; i++) {
        uint32_t rank = plan->rank[i];
        copy_to_all(plan, plan->net->in_of[plan->span->place[rank]], plan->part_at[rank],
                    plan->part_bytes[rank]);
    }
}

static void plan_allgather(struct plan *plan)
{
    uint32_t steps = plan->net->nodes - 1;

    plan->base = plan->net->outs[0];
    plan_ring(plan, &(struct ring){.steps = steps});
    gather_here(plan);
}

static void plan_adasum(struct plan *plan)
{
    uint32_t steps = plan->net->nodes - 1;

    plan->net->finish = ENGINE_WIRE_FINISH_ADASUM;
    plan->net->slot_bytes = plan->work->bytes;
    plan->base = plan->net->slots;
    plan_ring(plan, &(struct ring){.steps = steps});
}

static void plan_reducescatter(struct plan *plan)
{
    uint32_t nodes = plan->net->nodes, here = plan->net->here;

    plan->base = plan->net->slots;
    plan_ring(plan, &(struct ring){.ahead = nodes - 1, .steps = nodes - 1, .adds = nodes - 1});
    for (uint32_t i = plan->first[here]; nodes == 1 && i < plan->first[here + 1]; i++) {
        uint32_t rank = plan->rank[i];
        add_copy(plan, NULL, plan->net->out_of[plan->span->place[rank]], plan->part_at[rank],
                 plan->part_bytes[rank]);
    }
}

static bool is_small(const struct engine_work *work)
{
    return work->kind == HVI_KIND_ALLREDUCE && work->bytes <= ENGINE_WIRE_SMALL_BYTES &&
           work->span->nodes > 1 && work->span->nodes <= HVI_RANKS_MAX && /* inputs of a sum */
           work->bytes * work->span->nodes <= ENGINE_WIRE_SMALL_ALL_BYTES;
}

static void plan_allreduce(struct plan *plan)
{
    uint32_t nodes = plan->net->nodes;

    if (is_small(plan->work)) {
        plan_small(plan);
        return;
    }
    plan->base = plan->net->outs[0];
    plan_ring(plan, &(struct ring){.steps = 2 * (nodes - 1), .adds = nodes - 1});
    if (nodes == 1)
        add_copy(plan, NULL, NULL, 0, plan->work->bytes);
}

/* What goes from one node to another is one vector: by sender, then by receiver. */
static void plan_sent(struct plan *plan, uint32_t from, uint64_t *at)
{
    const struct engine_span *span = plan->span;
    uint32_t place = span->place[from];
    const uint64_t *sizes = plan->work->sizes + (size_t)place * span->members;
    const unsigned char *data = plan->net->in_of[place];

    for (uint32_t to = 0; to < span->members; to++) {
        uint32_t peer = span->home[to], chunk = 0;
        if (takes_part(span, to) && peer != span->here) {
            const struct engine_wire_message model = {
                .what = ENGINE_WIRE_DATA,
                .peer = peer,
                .at = at[peer],
                .bytes = sizes[to],
                .data = (unsigned char *)(uintptr_t)data,
                .after = ENGINE_WIRE_NONE,
            };
            add_stretch(plan, true, model, &chunk);
            at[peer] += sizes[to];
        }
        data += sizes[to];
    }
}

/* `out_at`: by place, where the next part belongs. */
static void plan_received(struct plan *plan, uint32_t from, uint64_t *at, const uint64_t *out_at)
{
    const struct engine_span *span = plan->span;
    uint32_t peer = span->home[from];

    for (uint32_t i = plan->first[span->here]; i < plan->first[span->here + 1]; i++) {
        uint32_t place = span->place[plan->rank[i]], chunk = 0;
        uint64_t bytes =
            plan->work->sizes[(size_t)(plan->work->ranks + place) * span->members + from];
        const struct engine_wire_message model = {
            .what = ENGINE_WIRE_PLACE,
            .peer = peer,
            .at = at[peer],
            .bytes = bytes,
            .data = plan->net->out_of[place] + out_at[place],
            .after = ENGINE_WIRE_NONE,
        };
        add_stretch(plan, false, model, &chunk);
        at[peer] += bytes;
    }
}

static void exchange_here(struct plan *plan, uint32_t from, const uint64_t *out_at)
{
    const struct engine_span *span = plan->span;
    uint32_t place = span->place[from];
    const uint64_t *sizes = plan->work->sizes + (size_t)place * span->members;
    const unsigned char *data = plan->net->in_of[place];

    for (uint32_t to = 0; to < span->members; to++) {
        if (takes_part(span, to) && span->home[to] == span->here)
            add_copy(plan, data, plan->net->out_of[span->place[to]] + out_at[span->place[to]], 0,
                     sizes[to]);
        data += sizes[to];
    }
}

static void plan_alltoall(struct plan *plan)
{
    const struct engine_span *span = plan->span;
    const struct engine_work *work = plan->work;
    uint64_t *at = calloc((size_t)span->nodes * 2 + work->ranks, sizeof *at);

    plan->failed = plan->failed || !at;
    for (uint32_t from = 0; from < span->members && !plan->failed; from++) {
        uint64_t *out_at = at + 2 * (size_t)span->nodes;
        if (takes_part(span, from) && span->home[from] == span->here) {
            plan_sent(plan, from, at);
            exchange_here(plan, from, out_at);
        } else if (takes_part(span, from)) {
            plan_received(plan, from, at + span->nodes, out_at);
        }
        for (uint32_t place = 0; place < work->ranks; place++)
            out_at[place] += work->sizes[(size_t)(work->ranks + place) * span->members + from];
    }
    free(at);
}

static void plan_send(struct plan *plan)
{
    const struct engine_wire_work *net = plan->net;
    const struct engine_work *work = plan->work;
    bool sends = plan->span->home[work->root] == net->here;
    struct engine_wire_message model = {
        .peer = 1 - net->here, .bytes = work->bytes, .after = ENGINE_WIRE_NONE};
    uint32_t chunk = 0;

    if (sends)
        model.data = (unsigned char *)(uintptr_t)net->in_of[plan->span->place[work->root]];
    else
        model.data = net->outs[0];
    model.what = sends ? ENGINE_WIRE_DATA : ENGINE_WIRE_PLACE;
    if (net->nodes == 1)
        copy_to_all(plan, model.data, 0, work->bytes);
    else
        add_stretch(plan, sends, model, &chunk);
}

/* ---- where the operands are ---- */

/* What .area has to hold beside the staged operands. */
static uint64_t slots_bytes(const struct engine_work *work)
{
    if (work->kind == HVI_KIND_ALLREDUCE && is_small(work) && !engine_wire_is_adasum(work))
        return work->bytes * work->span->nodes;
    if (engine_wire_is_adasum(work))
        return work->bytes * present(work->span);
    return work->kind == HVI_KIND_REDUCESCATTER && work->span->nodes > 1 ? work->bytes : 0;
}

/* Remote-process inputs of a reduction are added when they are read; others come one after the other. */
static bool adds_first(const struct engine_work *work)
{
    return reduces(work) && !engine_wire_is_adasum(work);
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static uint64_t staged_in_bytes(const struct engine_work *work)
{
    uint64_t bytes = 0;

    if (adds_first(work))
        return work->bytes;
    for (uint32_t i = 0; i < work->ranks; i++)
        bytes += engine_wire_in_bytes(work, i);
    return bytes;
}

static bool has_own_parts(const struct engine_work *work)
{
    return work->kind == HVI_KIND_REDUCESCATTER || work->kind == HVI_KIND_ALLTOALL;
}

static uint64_t staged_out_bytes(const struct engine_work *work)
{
    uint64_t bytes = 0;

    if (!has_own_parts(work))
        return work->bytes;
    for (uint32_t i = 0; i < work->ranks; i++)
        bytes += engine_wire_out_bytes(work, i);
    return bytes;
}

static bool make_area(struct engine_wire_work *net)
{
    const struct engine_work *work = net->work;
    uint64_t slots = round_up(slots_bytes(work)), in = 0, out = 0;

    if (engine_wire_is_staged(work)) {
        in = round_up(staged_in_bytes(work));
        out = round_up(staged_out_bytes(work));
    }
    if (slots + in + out == 0)
        return true;
    net->area = aligned_alloc(64, slots + in + out);
    if (!net->area)
        return false;
    net->slots = net->area;
    net->staged_in = net->area + slots;
    net->staged_out = net->staged_in + in;
    return true;
}

static void use_operands(struct engine_wire_work *net)
{
    const struct engine_work *work = net->work;

    for (uint32_t i = 0; i < work->ranks; i++) {
        if (work->in[i].kind != ENGINE_OPERAND_NONE)
            net->ins[net->in_count++] = net->in_of[i] = work->in[i].address;
        if (work->out[i].kind != ENGINE_OPERAND_NONE)
            net->outs[net->out_count++] = net->out_of[i] = work->out[i].address;
    }
}

/* What stands for them. */
static void use_staged(struct engine_wire_work *net)
{
    const struct engine_work *work = net->work;
    unsigned char *in = net->staged_in, *out = net->staged_out;

    for (uint32_t i = 0; i < work->ranks; i++) {
        if (work->in[i].kind != ENGINE_OPERAND_NONE) {
            net->in_of[i] = in;
            in += adds_first(work) ? 0 : engine_wire_in_bytes(work, i);
        }
        if (work->out[i].kind != ENGINE_OPERAND_NONE) {
            net->out_of[i] = out;
            out += has_own_parts(work) ? engine_wire_out_bytes(work, i) : 0;
        }
    }
    net->ins[0] = net->staged_in;
    net->outs[0] = net->staged_out;
    net->in_count = net->out_count = 1;
    if (adds_first(work))
        net->prescale = 1;
}

/* The sum of the inputs here is rounded before another node's is added, as it is on one node (reduction.md).
 * Numbers that are added in their own type are rounded after each addition anyway. */
static bool adds_in_own_type(uint32_t dtype)
{
    return dtype != HVI_DTYPE_FLOAT16 && dtype != HVI_DTYPE_BFLOAT16 &&
           dtype != HVI_DTYPE_FLOAT8_E4M3 && dtype != HVI_DTYPE_FLOAT8_E5M2;
}

static bool find_operands(struct engine_wire_work *net, uint64_t stream_bytes)
{
    const struct engine_work *work = net->work;
    size_t ranks = (size_t)work->ranks + 1;

    net->in_of = calloc(ranks, sizeof *net->in_of);
    net->out_of = calloc(ranks, sizeof *net->out_of);
    net->ins = calloc(ranks, sizeof *net->ins);
    net->outs = calloc(ranks, sizeof *net->outs);
    if (!net->in_of || !net->out_of || !net->ins || !net->outs || !make_area(net))
        return false;
    net->prescale = work->prescale;
    net->streams = work->bytes > stream_bytes / work->ranks;
    net->spread_streams = net->streams || work->bytes > ENGINE_WIRE_STREAM_BYTES / work->ranks;
    if (engine_wire_is_staged(work))
        use_staged(net);
    else
        use_operands(net);
    net->one_pass = (net->in_count == 1 || adds_in_own_type(work->dtype)) && net->prescale == 1;
    return true;
}

/* ---- the whole ---- */

static void plan_kind(struct plan *plan)
{
    const struct engine_work *work = plan->work;

    switch (work->kind) {
    case HVI_KIND_ALLREDUCE:
    case HVI_KIND_REDUCESCATTER:
        if (engine_wire_is_adasum(work))
            plan_adasum(plan);
        else if (work->kind == HVI_KIND_ALLREDUCE)
            plan_allreduce(plan);
        else
            plan_reducescatter(plan);
        break;
    case HVI_KIND_BROADCAST:
        plan_broadcast(plan);
        break;
    case HVI_KIND_ALLGATHER:
        plan_allgather(plan);
        break;
    case HVI_KIND_ALLTOALL:
        plan_alltoall(plan);
        break;
    default:
        plan_send(plan);
    }
}

/* The same on every node. */
static uint64_t chunk_bytes(const struct engine_work *work, uint32_t lanes)
{
    uint64_t least = lanes > 1 ? ENGINE_WIRE_CHUNK_LANES : ENGINE_WIRE_CHUNK_LEAST;
    uint64_t half = round_up(work->bytes / work->span->nodes / 2);

    if (work->kind == HVI_KIND_ALLTOALL || engine_wire_is_adasum(work))
        return ENGINE_WIRE_CHUNK_BYTES;
    if (half < least)
        return least;
    return half < ENGINE_WIRE_CHUNK_BYTES ? half : ENGINE_WIRE_CHUNK_BYTES;
}

/* Most runs that the messages of one direction are in. */
static uint32_t most_runs(const struct engine_wire_work *net, const struct engine_wire_messages *of)
{
    uint32_t all = net->nodes * net->lanes;

    return of->count < all ? of->count : all;
}

/* The numbers of runs of one direction, by peer and lane: of many nodes a plan may use few, so they have no place each. */
struct run_table {
    uint32_t *number; /* [mask + 1], a power of two, half of them ENGINE_WIRE_NONE at least */
    uint32_t mask;
};

static uint32_t *find_run(const struct engine_wire_work *net, const struct run_table *table,
                          const struct engine_wire_message *message)
{
    uint32_t at = (message->peer * net->lanes + message->lane) & table->mask;

    while (table->number[at] != ENGINE_WIRE_NONE &&
           (net->runs[table->number[at]].peer != message->peer ||
            net->runs[table->number[at]].lane != message->lane))
        at = (at + 1) & table->mask;
    return &table->number[at];
}

static void join_run(struct engine_wire_work *net, struct engine_wire_messages *messages,
                     uint32_t index, const struct run_table *table)
{
    struct engine_wire_message *message = &messages->list[index];
    uint32_t *number = find_run(net, table, message);

    message->next = ENGINE_WIRE_NONE;
    if (*number == ENGINE_WIRE_NONE) {
        *number = net->run_count++;
        net->runs[*number] = (struct engine_wire_run){.work = net,
                                                      .peer = message->peer,
                                                      .first = index,
                                                      .at = index,
                                                      .lane = message->lane,
                                                      .sends = messages == &net->out};
    } else {
        messages->list[net->runs[*number].last].next = index;
    }
    net->runs[*number].last = index;
}

static bool join_runs(struct engine_wire_work *net, struct engine_wire_messages *messages)
{
    uint32_t size = 2;

    while (size / 2 < most_runs(net, messages))
        size *= 2;
    const struct run_table table = {malloc(size * sizeof(uint32_t)), size - 1};
    if (!table.number)
        return false;
    memset(table.number, 0xff, size * sizeof *table.number);
    for (uint32_t i = 0; i < messages->count; i++)
        join_run(net, messages, i, &table);
    free(table.number);
    return true;
}

static bool make_runs(struct engine_wire_work *net)
{
    size_t most = (size_t)most_runs(net, &net->out) + most_runs(net, &net->in);

    net->runs = calloc(most + 1, sizeof *net->runs);
    return net->runs && join_runs(net, &net->out) && join_runs(net, &net->in);
}

/* To have all its messages is to know that all nodes have started it. */
static bool is_direct(const struct engine_work *work)
{
    return work->bytes > 0 && is_small(work) && !engine_wire_is_adasum(work);
}

static bool make_plan(struct engine_wire_work *net)
{
    struct plan plan = {.net = net,
                        .work = net->work,
                        .span = net->work->span,
                        .chunk = chunk_bytes(net->work, net->lanes)};
    bool has_parts = net->work->kind == HVI_KIND_ALLGATHER ||
                     net->work->kind == HVI_KIND_REDUCESCATTER || engine_wire_is_adasum(net->work);

    if (has_parts)
        plan.failed = !find_parts(&plan);
    else if (net->work->kind == HVI_KIND_ALLTOALL)
        plan.failed = !group_ranks(&plan);
    if (net->tentative && !is_direct(net->work))
        plan_meeting(&plan);
    if (!plan.failed && net->work->bytes > 0)
        plan_kind(&plan);
    if (net->tentative && is_direct(net->work))
        net->gate = net->in.count;
    free(plan.part_at);
    free(plan.part_bytes);
    free(plan.rank);
    free(plan.first);
    return !plan.failed && make_runs(net);
}

static bool copy_span(struct engine_wire_work *net, const struct engine_span *span)
{
    net->sequence = span->sequence;
    net->tentative = span->tentative;
    net->waits = span->tentative;
    net->nodes = span->nodes;
    net->here = span->here;
    net->node = malloc(span->nodes * sizeof *net->node);
    if (net->node)
        memcpy(net->node, span->node, span->nodes * sizeof *net->node);
    return net->node != NULL;
}

struct engine_wire_work *engine_wire_work_new(struct engine_batch *batch, uint32_t lanes,
                                              uint64_t stream_bytes)
{
    struct engine_wire_work *net = calloc(1, sizeof *net);

    if (!net)
        return NULL;
    net->batch = batch;
    net->work = batch->works[0];
    net->lanes = lanes;
    net->fault = (struct engine_fault){.rank = -1};
    if (!copy_span(net, net->work->span) ||
        (net->work->bytes > 0 && !find_operands(net, stream_bytes)) ||
        ((net->work->bytes > 0 || net->tentative) && !make_plan(net))) {
        engine_wire_work_free(net);
        return NULL;
    }
    return net;
}

void engine_wire_work_free(struct engine_wire_work *net)
{
    free(net->node);
    free(net->out.list);
    free(net->in.list);
    free(net->runs);
    free(net->copies);
    free(net->in_of);
    free(net->out_of);
    free(net->ins);
    free(net->outs);
    free(net->area);
    engine_wire_adasum_free(net->adasum);
    free(net);
}
