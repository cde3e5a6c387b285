/* SPDX-License-Identifier: Apache-2.0
 * One engine. What order/, mesh/mesh.c and mesh/link.c call is what daemon/engine/nodes.c and its rooms do for them,
 * without ranks' memory and without data. */
#include "tests/sim/sim.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"
#include "daemon/engine/mesh/tree.h"
#include "daemon/engine/order/join.h"
#include "daemon/engine/order/negotiate.h"
#include "daemon/engine/order/schedule.h"
#include "tests/unit/engine/hvt_deaf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As in nodes.c. */
#define GRACE_NS (500 * HVI_NS_MS)
#define STILL_NS (150 * HVI_NS_MS)

struct hvt_costs hvt_costs;

uint64_t __real_hvi_clock_ns(void);

/* ---- what the code costs ---- */

static struct {
    uint64_t ns[HVT_COSTS], times[HVT_COSTS];
    enum hvt_cost call, now;
    uint64_t since_ns;
    bool inside;
} stopwatch;

static void take_time(void)
{
    uint64_t now_ns = __real_hvi_clock_ns();

    stopwatch.ns[stopwatch.now] += now_ns - stopwatch.since_ns;
    stopwatch.since_ns = now_ns;
}

static void begin_cost(enum hvt_cost cost)
{
    const uint64_t pays[HVT_COSTS] = {hvt_costs.submit_ns, hvt_costs.judge_ns, hvt_costs.relay_ns,
                                      hvt_costs.hear_ns,   hvt_costs.say_ns,   hvt_costs.done_ns};

    hvt_clock_pay(pays[cost]);
    stopwatch.times[cost]++;
    stopwatch.call = stopwatch.now = cost;
    stopwatch.inside = true;
    stopwatch.since_ns = __real_hvi_clock_ns();
}

static void end_cost(void)
{
    stopwatch.now = stopwatch.call;
    take_time();
    stopwatch.inside = false;
}

void hvt_node_measured(enum hvt_cost cost, uint64_t *ns_p, uint64_t *times_p)
{
    *ns_p = stopwatch.ns[cost];
    *times_p = stopwatch.times[cost];
}

/* A verdict for all goes on as it has come. */
static bool passes_on(void)
{
    return stopwatch.call == HVT_HEAR;
}

/* Making a message is a cost of its own: the root makes many in a call. */
static void begin_saying(void)
{
    if (!stopwatch.inside || passes_on())
        return;
    take_time();
    hvt_clock_pay(hvt_costs.say_ns);
    stopwatch.times[HVT_SAY]++;
}

static void end_saying(void)
{
    if (!stopwatch.inside || passes_on())
        return;
    stopwatch.now = HVT_SAY;
    stopwatch.since_ns = __real_hvi_clock_ns();
}

/* ---- order's tables ---- */

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
    part->op = NULL;
    let_go(part);
    mine(part)->calls->answered(mine(part), status, text ? text : "", culprit);
}

static void ask_output(struct engine_part *part)
{
    mine(part)->calls->asked(mine(part));
}

static struct engine_op *new_op(void *user)
{
    const struct hvt_node *node = user;

    return hvt_deaf_new_op((int32_t)node->roster.seats);
}

static const struct engine_order_sink sink = {answer, ask_output, let_go, new_op, hvt_deaf_free_op};

/* ---- the job is broken ---- */

static struct engine_op **place_of(struct hvt_node *node, uint64_t sequence)
{
    return &node->running[sequence % HVT_RUNNING];
}

static void fail_running(struct hvt_node *node, void *user, uint64_t value)
{
    (void)user, (void)value;
    for (uint32_t i = 0; i < HVT_RUNNING; i++) {
        struct engine_op *op = node->running[i];
        node->running[i] = NULL;
        if (op)
            engine_op_done(&node->order, op, node->order.broken_status, node->order.broken_text,
                           node->order.broken_culprit);
    }
}

static void broken(void *user, int status, int32_t culprit, const char *text)
{
    struct hvt_node *node = user;

    engine_order_break(&node->order, status, culprit, text);
    engine_negotiate_fail_all(&node->order, status, text, culprit);
    if (node->told)
        return;
    node->told = true;
    snprintf(node->text, sizeof node->text, "%s", text);
    hvt_sim_told(node->job);
    hvt_clock_post(node, hvt_clock_now() + GRACE_NS, fail_running, NULL, 0);
}

/* ---- works ---- */

static void come_back(struct hvt_node *node, void *user, uint64_t sequence)
{
    struct engine_op **place = place_of(node, sequence), *op = *place;

    (void)user;
    if (!op || op->sequence != sequence || !op->withdrawn)
        return;
    *place = NULL;
    engine_schedule_returned(&node->order, op);
}

static void withdraw(void *user, uint64_t least, uint64_t top)
{
    struct hvt_node *node = user;

    for (uint64_t sequence = least; sequence < top; sequence++)
        hvt_clock_post(node, hvt_clock_now(), come_back, NULL, sequence);
}

void hvt_node_done(struct hvt_node *node, void *user, uint64_t sequence)
{
    struct engine_op **place = place_of(node, sequence), *op = *place;

    (void)user;
    if (!op || op->sequence != sequence)
        return;
    HVI_ASSERT(!op->withdrawn); /* all nodes have begun it */
    *place = NULL;
    node->replayed += op->replayed;
    begin_cost(HVT_DONE);
    engine_op_done(&node->order, op, HVI_OK, NULL, -1);
    end_cost();
}

static void execute(struct hvt_node *node)
{
    struct engine_order *order = &node->order;

    while (order->ready_first) {
        struct engine_op *op = order->ready_first, **place = place_of(node, op->sequence);
        order->ready_first = op->next;
        order->ready_last = op->next ? order->ready_last : NULL;
        order->ready_count--;
        engine_op_set_state(op, ENGINE_OP_EXECUTING, "the simulator");
        if (!op->set->span) { /* all its ranks are here */
            engine_op_done(order, op, HVI_OK, NULL, -1);
            continue;
        }
        HVI_ASSERT(op->sequence > node->began && !*place);
        node->began = op->sequence;
        *place = op;
        hvt_sim_began(node->job, node, op);
    }
}

/* Nothing has moved for a while in a step that is replayed: as nodes.c. */
static void look_whether_still(struct hvt_node *node, void *user, uint64_t value)
{
    const struct engine_schedule *schedule = &node->order.schedule;

    (void)user, (void)value;
    node->watches = false;
    node->order.now_ns = hvt_clock_now();
    if (engine_schedule_waits(schedule) && schedule->progress == node->progress)
        engine_schedule_halt(&node->order);
}

static void watch_schedule(struct hvt_node *node)
{
    if (node->watches || node->order.schedule.asked ||
        !engine_schedule_waits(&node->order.schedule))
        return;
    node->watches = true;
    node->progress = node->order.schedule.progress;
    hvt_clock_post(node, hvt_clock_now() + STILL_NS, look_whether_still, NULL, 0);
}

static void tick(struct hvt_node *node, void *user, uint64_t value)
{
    (void)user, (void)value;
    node->ticks = false;
    engine_mesh_tick(&node->mesh);
}

void hvt_node_after(struct hvt_node *node)
{
    if (!node->started)
        return;
    node->order.now_ns = hvt_clock_now();
    do
        execute(node);
    while (engine_mesh_run(&node->mesh));
    watch_schedule(node);
    if (node->ticks || !engine_mesh_keeps(&node->mesh))
        return;
    node->ticks = true;
    hvt_clock_post(node, hvt_clock_now() + ENGINE_MESH_TICK_NS, tick, NULL, 0);
}

/* ---- control links ---- */

static void ready(void *user)
{
    struct hvt_node *node = user;

    node->ready = true;
    hvt_sim_ready(node->job);
}

static uint32_t number_at(const unsigned char **at, const unsigned char *end)
{
    uint32_t value = 0;

    for (uint32_t shift = 0; *at < end && shift < 32; shift += 7) {
        value |= (uint32_t)(**at & 127) << shift;
        if (!(*(*at)++ & 128))
            break;
    }
    return value;
}

/* A packet begins with the numbers of the nodes that it comes from and goes to. What is for all goes from 0 to 0. */
static enum hvt_cost cost_of(uint32_t here, const unsigned char *bytes, size_t length)
{
    const unsigned char *at = bytes + 1, *end = bytes + length;
    uint32_t from = number_at(&at, end);

    at++;
    uint32_t to = number_at(&at, end);
    if (here == 0)
        return HVT_JUDGE;
    return to == here || (from == 0 && to == 0) ? HVT_HEAR : HVT_RELAY;
}

static void message(void *user, uint32_t from, const unsigned char *bytes, size_t length)
{
    struct hvt_node *node = user;

    begin_cost(cost_of(node->number, bytes, length));
    node->order.now_ns = hvt_clock_now();
    engine_mesh_message(&node->mesh, from, bytes, length);
    end_cost();
}

static void node_left(void *user, uint32_t node)
{
    (void)user, (void)node;
}

static void node_lost(void *user, uint32_t number, const char *text)
{
    struct hvt_node *node = user;

    node->order.now_ns = hvt_clock_now();
    engine_mesh_node_lost(&node->mesh, number, text);
}

static int send_to(void *user, uint32_t to, const unsigned char *bytes, size_t length)
{
    struct hvt_node *node = user;

    begin_saying();
    hvt_figures.messages++;
    int status = engine_mesh_send(&node->link, to, bytes, length);
    end_saying();
    return status;
}

static const struct engine_mesh_link_calls link_calls = {ready, message, node_left, node_lost};
static const struct engine_mesh_way way = {send_to};
static const struct engine_mesh_calls mesh_calls = {.broken = broken, .withdraw = withdraw};

/* ---- life ---- */

void hvt_node_connected(struct hvt_node *node, void *user, uint64_t fd)
{
    const struct hvt_node *peer = user;

    hvt_clock_pay(hvt_costs.connect_ns);
    engine_mesh_link_connected(&node->link, peer->number, (int)fd);
}

static void begin_order(struct hvt_node *node, const struct engine_node *nodes, uint32_t count)
{
    const struct engine_node *own = &nodes[node->number];
    int32_t size = (int32_t)(node->job->nodes * node->job->each);

    int status = engine_roster_init(&node->roster, size, own->ranks, own->count);
    if (status == HVI_OK)
        status =
            engine_order_init(&node->order, "job", &node->roster, &sink, &hvt_deaf_observer, node);
    if (status == HVI_OK)
        status = engine_roster_set_nodes(&node->roster, nodes, count, node->number);
    HVI_ASSERT(status == HVI_OK);
}

void hvt_node_start(struct hvt_node *node, const struct engine_node *nodes, uint32_t count)
{
    begin_order(node, nodes, count);
    node->event.node = node;
    node->wants = hvt_memory_new(count);
    node->running = hvt_memory_new(HVT_RUNNING * sizeof(struct engine_op *));
    node->mesh = (struct engine_mesh){.order = &node->order,
                                      .roster = &node->roster,
                                      .way = &way,
                                      .way_user = node,
                                      .calls = &mesh_calls,
                                      .user = node};
    const struct engine_mesh_link_config config = {.event = &node->event,
                                                   .net = &node->net,
                                                   .node = node->number,
                                                   .nodes = count,
                                                   .deadline_ns = hvt_clock_now() + 10 * HVI_NS_SEC,
                                                   .calls = &link_calls,
                                                   .user = node};
    int status = engine_mesh_open(&node->mesh);
    hvt_ordered_begin(node);
    if (status == HVI_OK)
        status = engine_mesh_link_open(&node->link, &config);
    HVI_ASSERT(status == HVI_OK);
    node->started = true;
}

static int submit(struct engine_order *order, struct engine_part *part, struct engine_group *group)
{
    if (part->copy.kind == HVI_KIND_JOIN)
        return engine_join_submit(order, part);
    return group ? engine_group_take(order, group, part) : engine_negotiate_submit(order, part);
}

void hvt_node_submit(struct hvt_node *node, struct hvt_part *my, const char *name,
                     struct engine_group *group)
{
    struct engine_order *order = &node->order;
    struct engine_part *part = &my->part;

    begin_cost(HVT_SUBMIT);
    order->now_ns = part->arrived_ns = hvt_clock_now();
    part->set = engine_set_get(engine_sets_find(&order->sets, part->copy.process_set));
    part->place = (uint16_t)engine_set_place(part->set, part->seat);
    if (name)
        part->tensor = engine_tensor_get_named(&order->tensors, part->set->serial, name,
                                               (uint32_t)strlen(name));
    else
        part->tensor = engine_tensor_get_anon(&order->tensors, part->set->serial, part->copy.kind,
                                              part->copy.anon_seq);
    int status = submit(order, part, group);
    HVI_ASSERT(status == HVI_OK);
    end_cost();
}

void hvt_node_kill(struct hvt_node *node, enum hvt_end_of_node how)
{
    node->dead = true;
    node->job->alive--;
    if (how == HVT_PROCESS)
        hvt_network_close_all(node);
}

uint64_t hvt_node_bytes(const struct hvt_node *node)
{
    return (uint64_t)node->bytes + sizeof node->roster + sizeof node->order + sizeof node->mesh +
           sizeof node->link;
}

void hvt_node_fini(struct hvt_node *node)
{
    int64_t *before = hvt_memory_of(&node->bytes);

    node->dead = true;
    if (node->started) {
        engine_order_break(&node->order, HVI_ERR_JOB_STOPPED, -1, "over");
        fail_running(node, NULL, 0);
        engine_negotiate_fail_all(&node->order, HVI_ERR_JOB_STOPPED, "over", -1);
        engine_mesh_link_close(&node->link);
        engine_mesh_close(&node->mesh);
        engine_order_fini(&node->order);
        engine_roster_fini(&node->roster);
    }
    hvt_memory_of(before);
    hvt_memory_free(node->wants);
    hvt_memory_free(node->running);
    hvt_ordered_end(node);
    hvt_thread_fini(&node->thread);
}
