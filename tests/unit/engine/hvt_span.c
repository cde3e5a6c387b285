/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/unit/engine/hvt_span.h"

#include "base/status.h"
#include "daemon/engine/mesh/tree.h"
#include "daemon/engine/order/join.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/order/partial.h"
#include "daemon/engine/order/schedule.h"
#include "daemon/engine/order/set_ops.h"
#include "daemon/engine/order/sizes.h"
#include "tests/unit/engine/hvt_deaf.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Not check's: fuzzers have no suite. */
#define REQUIRE(condition)                                                                         \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);                        \
            abort();                                                                               \
        }                                                                                          \
    } while (0)

uint64_t hvt_span_random(uint64_t *state)
{
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

/* ---- the tables ---- */

static struct hvt_part *mine(struct engine_part *part)
{
    return (struct hvt_part *)(void *)part;
}

static void let_go(struct engine_part *part)
{
    struct engine_order *order = &mine(part)->node->order;

    engine_tensor_put(&order->tensors, part->tensor);
    if (part->leader)
        engine_tensor_put(&order->tensors, part->leader);
    engine_set_put(part->set);
}

static void answer(struct engine_part *part, int status, const char *text, int32_t culprit)
{
    struct hvt_part *my = mine(part);

    REQUIRE(my->used && !my->over && !my->dropped);
    REQUIRE(status != HVI_OK || !part->output_made || part->copy.out_capacity == part->out_bytes);
    my->over = true;
    my->status = status;
    my->culprit = culprit;
    snprintf(my->text, sizeof my->text, "%s", text ? text : "");
    part->op = NULL;
    let_go(part);
}

static void ask_output(struct engine_part *part)
{
    REQUIRE(!mine(part)->asked);
    mine(part)->asked = true;
}

static void drop(struct engine_part *part)
{
    mine(part)->dropped = true;
    let_go(part);
}

static struct engine_op *new_op(void *user)
{
    const struct hvt_node *node = user;

    return hvt_deaf_new_op((int32_t)node->roster.seats);
}

static const struct engine_order_sink sink = {answer, ask_output, drop, new_op, hvt_deaf_free_op};

/* ---- the bus ---- */

/* Every message of the test is one of the tree's edges. */
static int send(void *user, uint32_t to, const unsigned char *bytes, size_t length)
{
    struct hvt_node *node = user;
    struct hvt_queue *queue = &node->up;
    struct hvt_message *message = malloc(sizeof *message + length);

    if (node->number == 0 || to != engine_mesh_parent(node->number)) {
        REQUIRE(engine_mesh_parent(to) == node->number);
        queue = &node->job->node[to].down;
    }
    REQUIRE(message);
    node->job->messages++;
    message->next = NULL;
    message->length = length;
    memcpy(message->bytes, bytes, length);
    *queue->last = message;
    queue->last = &message->next;
    return HVI_OK;
}

static struct hvt_message *take(struct hvt_queue *queue)
{
    struct hvt_message *message = queue->first;

    if (!message)
        return NULL;
    queue->first = message->next;
    if (!queue->first)
        queue->last = &queue->first;
    return message;
}

static bool deliver(struct hvt_job *job, uint32_t which)
{
    struct hvt_node *node = &job->node[which / 2];
    struct hvt_message *message = take(which % 2 ? &node->down : &node->up);
    uint32_t parent = node->number > 0 ? engine_mesh_parent(node->number) : 0;

    if (!message)
        return false;
    if (which % 2)
        engine_mesh_message(&node->mesh, parent, message->bytes, message->length);
    else
        engine_mesh_message(&job->node[parent].mesh, node->number, message->bytes, message->length);
    free(message);
    return true;
}

static void fail_all(struct hvt_node *node, int status, int32_t culprit, const char *text)
{
    engine_order_break(&node->order, status, culprit, text);
    engine_negotiate_fail_all(&node->order, status, text, culprit);
    for (uint32_t i = 0; i < node->tentative_count; i++)
        engine_op_done(&node->order, node->tentative[i], status, text, culprit);
    node->tentative_count = 0;
}

static void withdraw(void *user, uint64_t least, uint64_t top)
{
    const struct hvt_node *node = user;
    uint32_t found = 0;

    for (uint32_t i = 0; i < node->tentative_count; i++) {
        uint64_t sequence = node->tentative[i]->sequence;
        REQUIRE(sequence < top && node->tentative[i]->withdrawn == (sequence >= least));
        found += sequence >= least;
    }
    REQUIRE(found > 0);
}

static void broken(void *user, int status, int32_t culprit, const char *text)
{
    struct hvt_node *node = user;

    node->breaks++;
    fail_all(node, status, culprit, text);
}

static const struct engine_mesh_way way = {send};
static const struct engine_mesh_calls mesh_calls = {.broken = broken, .withdraw = withdraw};

/* ---- jobs ---- */

static void begin_node(struct hvt_job *job, struct hvt_node *node, const struct engine_node *nodes,
                       uint32_t count)
{
    const struct engine_node *own = &nodes[node->number];

    node->up.last = &node->up.first;
    node->down.last = &node->down.first;
    REQUIRE(engine_roster_init(&node->roster, job->size, own->ranks, own->count) == HVI_OK);
    REQUIRE(engine_order_init(&node->order, "job", &node->roster, &sink, &hvt_deaf_observer,
                              node) == HVI_OK);
    for (uint16_t seat = 0; seat < own->count; seat++)
        job->seat[own->ranks[seat]] = (engine_seat){seat};
    if (count == 1)
        return;
    REQUIRE(engine_roster_set_nodes(&node->roster, nodes, count, node->number) == HVI_OK);
    node->mesh = (struct engine_mesh){.order = &node->order,
                                      .roster = &node->roster,
                                      .way = &way,
                                      .way_user = node,
                                      .calls = &mesh_calls,
                                      .user = node};
    REQUIRE(engine_mesh_open(&node->mesh) == HVI_OK);
}

/* Most of them are not used, and all together are megabytes. */
static void forget_parts(struct hvt_job *job, int32_t ranks)
{
    for (int32_t rank = 0; rank < ranks; rank++) {
        for (uint32_t i = 0; i < HVT_EACH; i++) {
            if (job->parts[rank][i].node) /* it was used, and may have been taken out of use */
                memset(&job->parts[rank][i], 0, sizeof job->parts[rank][i]);
        }
    }
}

void hvt_job_begin(struct hvt_job *job, uint32_t nodes, int32_t size, uint64_t seed, bool deal)
{
    int32_t ranks[HVT_NODES][HVT_RANKS];
    struct engine_node of[HVT_NODES] = {{0}};

    forget_parts(job, HVT_RANKS);
    memset(job, 0, offsetof(struct hvt_job, parts));
    job->nodes = nodes;
    job->size = size;
    job->random = seed * 2654435761u + 88172645463325252u;
    for (int32_t rank = 0; rank < size; rank++) {
        uint32_t home = (uint32_t)rank % nodes;
        if (deal && (uint32_t)rank >= nodes)
            home = (uint32_t)(hvt_span_random(&job->random) >> 20) % nodes;
        job->home[rank] = home;
        ranks[home][of[home].count++] = rank;
        of[home].ranks = ranks[home];
    }
    for (uint32_t i = 0; i < nodes; i++) {
        job->node[i].job = job;
        job->node[i].number = i;
        begin_node(job, &job->node[i], of, nodes);
    }
}

static void empty(struct hvt_queue *queue)
{
    struct hvt_message *message;

    while ((message = take(queue)))
        free(message);
}

void hvt_job_end(struct hvt_job *job)
{
    for (uint32_t i = 0; i < job->nodes; i++) {
        struct hvt_node *node = &job->node[i];
        REQUIRE(!node->order.waiting_first);
        engine_negotiate_fail_all(&node->order, HVI_ERR_JOB_STOPPED, "over", -1);
        engine_mesh_close(&node->mesh);
        empty(&node->up);
        empty(&node->down);
        engine_order_fini(&node->order);
        engine_roster_fini(&node->roster);
    }
}

void hvt_job_step(struct hvt_job *job)
{
    for (int32_t rank = 0; rank < job->size; rank++) {
        for (uint32_t i = 0; i < HVT_EACH; i++) {
            const struct hvt_part *part = &job->parts[rank][i];
            REQUIRE(!part->used || part->over);
        }
    }
    forget_parts(job, job->size);
    memset(job->groups, 0, sizeof job->groups);
}

static void fill(struct hvt_part *my, const struct hvt_bring *bring)
{
    struct engine_part *part = &my->part;
    uint64_t count = 1;

    part->copy = (struct hvi_submission){.kind = bring->kind,
                                         .dtype = bring->dtype,
                                         .reduce_op = bring->reduce_op,
                                         .ndim = bring->ndim,
                                         .root = bring->root,
                                         .anon_seq = bring->tag,
                                         .process_set = bring->set,
                                         .prescale = bring->prescale,
                                         .postscale = 1,
                                         .in_region = 1,
                                         .out_region = HVI_REGION_NONE,
                                         .group = bring->group_size > 0,
                                         .group_size = bring->group_size,
                                         .group_index = bring->group_index};
    for (uint32_t i = 0; i < bring->ndim; i++) {
        part->copy.dims[i] = bring->dims[i];
        count *= (uint64_t)bring->dims[i];
    }
    part->copy.count = count;
    part->in_bytes = count * hvi_dtype_bytes(bring->dtype);
    part->memory = bring->memory;
    part->instance = bring->instance;
    my->room = bring->room;
    my->out_memory = bring->out_memory;
    if (bring->given || !engine_sizes_asks(bring->kind)) {
        part->copy.out_region = 2;
        part->copy.out_capacity = engine_sizes_asks(bring->kind) ? bring->room : part->in_bytes;
    }
    if (bring->kind == HVI_KIND_SEND)
        part->copy.out_region = HVI_REGION_NONE;
    if (bring->kind == HVI_KIND_RECV)
        part->copy.in_region = HVI_REGION_NONE;
    if (bring->integer_count > 0)
        memcpy(my->integers, bring->integers, bring->integer_count * sizeof *bring->integers);
    part->integers = bring->integer_count > 0 ? my->integers : NULL;
    part->integer_count = bring->integer_count;
}

static void refuse(struct hvt_part *my, int status, const char *text)
{
    my->over = true;
    my->status = status;
    my->culprit = my->part.rank;
    snprintf(my->text, sizeof my->text, "%s", text);
}

static struct engine_tensor *tensor_of(struct engine_order *order, const struct hvt_part *my,
                                       const struct hvt_bring *bring)
{
    uint64_t serial = my->part.set ? my->part.set->serial : 0;

    if (engine_partial_is(bring->kind))
        return engine_partial_tensor(&order->tensors, &my->part);
    if (!bring->name)
        return engine_tensor_get_anon(&order->tensors, serial, bring->kind, bring->tag);
    return engine_tensor_get_named(&order->tensors, serial, bring->name,
                                   (uint32_t)strlen(bring->name));
}

struct hvt_part *hvt_job_bring(struct hvt_job *job, int32_t rank, uint32_t which,
                               const struct hvt_bring *bring)
{
    struct hvt_part *my = &job->parts[rank][which];
    struct hvt_node *node = &job->node[job->home[rank]];
    struct engine_order *order = &node->order;
    struct engine_set *set = engine_sets_find(&order->sets, bring->set);
    char text[HVI_TEXT_MAX + 1];
    int status;

    REQUIRE(!my->used);
    my->used = true;
    my->node = node;
    my->part.seat = job->seat[rank];
    my->part.rank = rank;
    my->part.arrived_ns = ++order->now_ns;
    fill(my, bring);
    my->part.set = set;
    my->part.tensor = tensor_of(order, my, bring);
    status = engine_set_check(set, &my->part, text, sizeof text);
    if (status == HVI_OK && engine_partial_is(bring->kind))
        status = engine_partial_check(&my->part, text, sizeof text);
    if (status != HVI_OK) {
        engine_tensor_put(&order->tensors, my->part.tensor);
        refuse(my, status, text);
        return my;
    }
    my->part.set = engine_set_get(set);
    my->part.place = (uint16_t)engine_set_place(set, my->part.seat);
    if (bring->kind == HVI_KIND_JOIN)
        status = engine_join_submit(order, &my->part);
    else if (engine_partial_is(bring->kind))
        status = engine_partial_submit(order, &my->part);
    else if (bring->group_size > 0)
        status = engine_group_take(order, &job->groups[rank], &my->part);
    else
        status = engine_negotiate_submit(order, &my->part);
    REQUIRE(status == HVI_OK);
    return my;
}

struct engine_op *hvt_job_op(struct hvt_job *job, int32_t rank, uint32_t which)
{
    return job->parts[rank][which].part.op;
}

static bool give_outputs(struct hvt_job *job)
{
    bool given = false;

    for (int32_t rank = 0; rank < job->size; rank++) {
        for (uint32_t i = 0; i < HVT_EACH; i++) {
            struct hvt_part *my = &job->parts[rank][i];
            if (!my->used || my->over || !my->asked || my->node->withholds)
                continue;
            my->asked = false;
            if (my->part.memory == ENGINE_MEMORY_ANY)
                my->part.memory = my->out_memory;
            my->part.copy.out_region = 2;
            my->part.copy.out_capacity =
                my->room < my->part.out_bytes ? my->room : my->part.out_bytes;
            engine_negotiate_output(&my->node->order, &my->part);
            given = true;
        }
    }
    return given;
}

/* Who takes part and where, as exec/ tells it to backends. */
static void check_places(const struct hvt_node *node, const struct engine_op *op)
{
    const struct engine_places *places = op->without ? op->without : op->set->span;
    uint32_t seen[HVT_NODES] = {0};

    REQUIRE(places->here < places->nodes && places->node[places->here] == node->number);
    for (uint32_t i = 0; i < op->set->size; i++) {
        uint32_t home = places->home[i], number = node->job->home[engine_set_member(op->set, i)];
        REQUIRE(places->place[i] == seen[number]++);
        if (home == UINT32_MAX)
            REQUIRE(op->joined && op->joined[i]);
        else
            REQUIRE(home < places->nodes && places->node[home] == number);
    }
    for (uint32_t i = 0; i < places->nodes; i++) {
        REQUIRE(i == 0 || places->node[i] > places->node[i - 1]);
        REQUIRE(places->places[i] == seen[places->node[i]]);
    }
    REQUIRE(!op->without == !op->joined);
    for (uint32_t i = 0; i < op->set->places; i++)
        REQUIRE(!op->parts[i] == (op->joined && op->joined[op->set->numbers[i]]));
}

/* The sender and the receiver, one of which is here. */
static void check_pair(const struct hvt_node *node, const struct engine_op *op)
{
    const struct engine_places *two = op->without;
    const int32_t ranks[2] = {op->from, op->to};

    REQUIRE(two->nodes == 2 && two->node[0] < two->node[1] && op->parts_present == 1);
    REQUIRE(two->here < 2 && two->node[two->here] == node->number);
    for (uint32_t i = 0; i < 2; i++) {
        int32_t place = engine_set_find(op->set, ranks[i]);
        REQUIRE(two->home[i] < 2 && two->node[two->home[i]] == node->job->home[ranks[i]]);
        REQUIRE((place >= 0) == (two->home[i] == two->here));
        if (place >= 0)
            REQUIRE(two->place[i] == (uint32_t)place && op->parts[place] &&
                    op->parts[place]->in_bytes == op->bytes);
    }
}

/* Each of ours gets what all send to it, and rows and bytes agree. */
static void check_sizes(const struct engine_op *op)
{
    uint32_t size = op->set->size;

    for (uint32_t i = 0; i < op->set->places; i++) {
        const struct engine_part *part = op->parts[i];
        uint64_t bytes = 0;
        int64_t rows = 0;
        if (!part)
            continue;
        if (op->kind == HVI_KIND_REDUCESCATTER)
            REQUIRE(op->sizes[op->set->numbers[i]] == part->out_bytes);
        if (op->kind == HVI_KIND_ALLGATHER)
            REQUIRE(op->sizes[op->set->numbers[i]] == part->in_bytes);
        for (uint32_t from = 0; op->kind == HVI_KIND_ALLTOALL && from < size; from++) {
            bytes += op->sizes[((size_t)op->set->places + i) * size + from];
            rows += engine_sizes_received(op, i, from);
        }
        if (op->kind == HVI_KIND_ALLTOALL)
            REQUIRE(bytes == part->out_bytes && rows == part->rows);
    }
}

/* Nobody has done a work that some have withdrawn, or were never going to start. */
static void check_done(const struct hvt_job *job)
{
    for (uint64_t i = 0; i <= job->begun_top && i < HVT_SEQUENCES; i++)
        REQUIRE(job->lied || job->done[i] == 0 || job->done[i] == job->nodes);
}

static void note_started(struct hvt_node *node, const struct engine_op *op)
{
    if (node->started_count < sizeof node->started / sizeof node->started[0])
        node->started[node->started_count++] = op->sequence << 16 | (op->tensor->hash & 0xffff);
}

static void note_workers(struct hvt_node *node, const struct engine_op *op)
{
    node->worker_count = !op->instances ? 0 : op->partial ? 2 : op->set->size;
    if (op->instances)
        memcpy(node->workers, op->instances, node->worker_count * sizeof node->workers[0]);
}

/* As the backend: a tentative work ends when all nodes have started it, or when it is withdrawn. */
static bool end_tentative(struct hvt_node *node)
{
    struct hvt_job *job = node->job;
    bool moved = false;

    for (uint32_t i = 0; i < node->tentative_count && !node->holds; i++) {
        struct engine_op *op = node->tentative[i];
        bool all = job->begun[op->sequence % HVT_SEQUENCES] == job->nodes;
        REQUIRE(!(all && op->withdrawn) || job->lied);
        all = all && !op->withdrawn;
        if ((!all && !op->withdrawn) || hvt_span_random(&job->random) >> 20 & 1) {
            moved = moved || all || op->withdrawn;
            continue;
        }
        memmove(&node->tentative[i], &node->tentative[i + 1],
                (--node->tentative_count - i) * sizeof(struct engine_op *));
        i--;
        moved = true;
        if (op->withdrawn) {
            node->withdrawn++;
            engine_schedule_returned(&node->order, op);
            continue;
        }
        node->replayed++;
        job->done[op->sequence % HVT_SEQUENCES]++;
        note_started(node, op);
        engine_op_done(&node->order, op, HVI_OK, NULL, -1);
    }
    return moved;
}

static void begin_tentative(struct hvt_node *node, struct engine_op *op)
{
    REQUIRE(node->tentative_count < HVT_TENTATIVE);
    REQUIRE(op->sequence < HVT_SEQUENCES || node->job->lied);
    node->job->begun[op->sequence % HVT_SEQUENCES]++;
    if (node->job->begun_top < op->sequence)
        node->job->begun_top = op->sequence;
    node->tentative[node->tentative_count++] = op;
}

static bool execute(struct hvt_node *node)
{
    struct engine_order *order = &node->order;
    bool done = false;

    while (order->ready_first) {
        struct engine_op *op = order->ready_first;
        order->ready_first = op->next;
        order->ready_last = op->next ? order->ready_last : NULL;
        order->ready_count--;
        engine_op_set_state(op, ENGINE_OP_EXECUTING, "the test");
        if (op->set->span && (!op->partial || op->without)) {
            REQUIRE(op->sequence > node->sequence);
            if (op->partial)
                check_pair(node, op);
            else
                check_places(node, op);
            check_sizes(op);
            note_workers(node, op);
            node->sequence = op->sequence;
        }
        done = true;
        if (op->tentative && order->broken_status == HVI_OK) {
            begin_tentative(node, op);
            continue;
        }
        if (op->set->span && (!op->partial || op->without))
            note_started(node, op);
        engine_op_done(order, op, HVI_OK, NULL, -1);
    }
    return end_tentative(node) || done;
}

bool hvt_job_run_some(struct hvt_job *job, uint32_t deliveries)
{
    uint32_t queues = job->nodes > 1 ? 2 * job->nodes : 0;
    bool moved = false;

    for (uint32_t i = 0; queues > 0 && i < deliveries; i++) {
        uint32_t from = (uint32_t)(hvt_span_random(&job->random) >> 16) % queues, at = 0;
        while (at < queues && !deliver(job, (from + at) % queues))
            at++;
        moved = moved || at < queues;
    }
    moved = give_outputs(job) || moved;
    if (queues > 0)
        moved = engine_mesh_run(&job->node[0].mesh) || moved;
    for (uint32_t i = 1; i < job->nodes; i++)
        moved = engine_mesh_run(&job->node[i].mesh) || moved;
    for (uint32_t i = 0; i < job->nodes; i++)
        moved = execute(&job->node[i]) || moved;
    return moved;
}

/* The clock. */
static bool halt_what_waits(struct hvt_job *job)
{
    bool asked = false;

    for (uint32_t i = 0; i < job->nodes && !asked; i++) {
        const struct engine_schedule *schedule = &job->node[i].order.schedule;
        asked = engine_schedule_waits(schedule) && !schedule->asked;
        if (asked)
            engine_schedule_halt(&job->node[i].order);
    }
    return asked;
}

/* What is kept for other nodes to say, too, goes a little later. */
static bool let_time_pass(struct hvt_job *job)
{
    bool kept = false;

    for (uint32_t i = 0; i < job->nodes && job->nodes > 1; i++) {
        if (!engine_mesh_keeps(&job->node[i].mesh))
            continue;
        kept = true;
        engine_mesh_tick(&job->node[i].mesh);
    }
    return kept;
}

void hvt_job_run(struct hvt_job *job)
{
    do {
        while (hvt_job_run_some(job, 1 + (uint32_t)(hvt_span_random(&job->random) >> 16) % 8))
            continue;
    } while (let_time_pass(job) || halt_what_waits(job));
    check_done(job);
}

void hvt_job_break(struct hvt_job *job, uint32_t node, int status, int32_t culprit,
                   const char *text)
{
    fail_all(&job->node[node], status, culprit, text);
    if (job->nodes > 1)
        engine_mesh_break(&job->node[node].mesh, status, culprit, text);
}
