/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/sim/scenario.h"

#include "base/clock.h"
#include "base/status.h"
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

#define RACK      32u
#define STEPS_MAX 8u /* until a step is replayed */
#define FOREVER   (60 * HVI_NS_SEC)

static struct hvt_sim job;

static void say_ms(hvt_row_fn say, const char *what, uint64_t ns, double most)
{
    struct hvt_row row = {.value = (double)ns / 1e6, .most = most, .unit = "ms"};

    snprintf(row.what, sizeof row.what, "%s", what);
    say(&row);
}

static void say_count(hvt_row_fn say, const char *what, uint64_t count, double most)
{
    struct hvt_row row = {.value = (double)count, .most = most, .unit = ""};

    snprintf(row.what, sizeof row.what, "%s", what);
    say(&row);
}

static bool fails(const char *what)
{
    fprintf(stderr, "hvt-sim: %s: at %.3f s of simulated time\n", what,
            (double)hvt_clock_now() / 1e9);
    hvt_sim_end(&job);
    return false;
}

/* ---- the rendezvous: modelled ---- */

/* Bytes of a roster: for each node its address, port, name and ranks. */
static uint64_t roster_bytes(const struct hvt_layout *layout)
{
    return (uint64_t)layout->nodes * (48 + 3 * (uint64_t)layout->each);
}

#define GATE_HOP_NS      UINT64_C(100000) /* engine to hvdd to gate, or back */
#define GATE_REGISTER_NS UINT64_C(20000)  /* a registration, at the rendezvous */
#define GATE_ROSTER_NS   UINT64_C(50000)  /* a roster, there: encoded, encrypted and sent ... */
#define GATE_BYTE_PS     UINT64_C(2000)   /* ... and each byte of it */

static uint64_t begin(const struct hvt_layout *layout)
{
    const uint64_t each_ns =
        GATE_ROSTER_NS + roster_bytes(layout) * (GATE_BYTE_PS + hvt_network.byte_ps) / 1000;

    hvt_clock_reset(layout->seed);
    hvt_sim_begin(&job, layout->nodes, layout->each);
    uint64_t begun_ns = hvt_clock_now();
    uint64_t met_ns =
        begun_ns + 2 * GATE_HOP_NS + 2 * hvt_network.latency_ns + layout->nodes * GATE_REGISTER_NS;
    /* The proof of a tentative work, step d to the node d further on. */
    for (uint32_t d = 1; d < layout->nodes; d *= 2)
        job.work_ns += hvt_network.latency_ns;
    hvt_sim_meet(&job, met_ns, each_ns);
    return begun_ns;
}

static bool meet(const struct hvt_layout *layout, uint64_t *begun_p)
{
    *begun_p = begin(layout);
    return hvt_clock_run(&job.all_ready, hvt_clock_now() + FOREVER);
}

/* ---- steps ---- */

static bool is_replayed(void)
{
    for (uint32_t i = 0; i < job.nodes; i++) {
        if (!job.node[i].order.schedule.live)
            return false;
    }
    return true;
}

static bool step(const struct hvt_layout *layout, uint64_t *took_p)
{
    hvt_clock_run(NULL, hvt_clock_now() + layout->pause_ns);
    uint64_t begun_ns = hvt_clock_now();

    hvt_sim_step(&job, layout->tensors, 0);
    bool over = hvt_clock_run(&job.all_over, hvt_clock_now() + FOREVER);
    *took_p = job.begun_ns - begun_ns;
    return over && job.failed == 0;
}

bool hvt_scenario_steps(const struct hvt_layout *layout, hvt_row_fn say)
{
    uint64_t begun_ns, took_ns, steps = 1;

    if (!meet(layout, &begun_ns))
        return fails("the nodes have not met");
    say_ms(say, "init: the last node has its links", job.ready_ns - begun_ns, 2000);
    say_count(say, "init: connections", hvt_figures.connections, 0);
    struct hvt_figures before = hvt_figures;
    if (!step(layout, &took_ns))
        return fails("the first step is not over");
    say_ms(say, "first step: the last work has begun everywhere", took_ns, 50);
    say_count(say, "first step: messages, hop by hop", hvt_figures.messages - before.messages, 0);
    say_count(say, "first step: bytes", hvt_figures.bytes - before.bytes, 0);
    while (!is_replayed() && steps < STEPS_MAX) {
        if (!step(layout, &took_ns))
            return fails("a step is not over");
        steps++;
    }
    say_count(say, "steps until they are replayed", steps, STEPS_MAX - 1);
    before = hvt_figures;
    if (!step(layout, &took_ns))
        return fails("a step that is replayed is not over");
    say_ms(say, "replayed step: the last work has begun everywhere", took_ns, 0);
    say_count(say, "replayed step: messages", hvt_figures.messages - before.messages, 0.5);
    if (job.overtaken)
        return fails("reports have overtaken each other");
    hvt_sim_end(&job);
    return true;
}

/* ---- memory ---- */

/* Private_Dirty of hvdd-engine with 8 ranks here and 8 on another node: 3,740 and 3,884 KiB. */
#define ENGINE_BYTES (3740 * 1024.0)

#define MEMORY_MOST 1.2
/* None of it is by ranks; malloc gives a piece that it has, which may be a little larger than what is asked for. */
#define STEP_MOST 1.01

struct weight {
    uint64_t root, node;           /* bytes of the first and of the last node's engine */
    uint64_t root_step, node_step; /* of these, what there was not before the first step */
};

static bool weigh(const struct hvt_layout *layout, struct weight *weight_p)
{
    uint64_t took_ns, begun_ns;
    bool over = meet(layout, &begun_ns);
    const struct hvt_node *root = &job.node[0], *node = &job.node[layout->nodes - 1];
    uint64_t root_met = hvt_node_bytes(root), node_met = hvt_node_bytes(node);

    for (uint32_t i = 0; i < 6 && over; i++)
        over = step(layout, &took_ns);
    if (!over || !is_replayed())
        return fails("a step is not over, or not replayed");
    *weight_p = (struct weight){.root = hvt_node_bytes(root), .node = hvt_node_bytes(node)};
    weight_p->root_step = weight_p->root - root_met;
    weight_p->node_step = weight_p->node - node_met;
    hvt_sim_end(&job);
    return true;
}

static void say_times(hvt_row_fn say, const char *what, double value, double most)
{
    struct hvt_row row = {.value = value, .most = most, .unit = "x"};

    snprintf(row.what, sizeof row.what, "%s", what);
    say(&row);
}

bool hvt_scenario_memory(const struct hvt_layout *layout, hvt_row_fn say)
{
    const struct hvt_layout small = {
        2, layout->each, layout->tensors, layout->pause_ns, layout->seed, 0, 0};
    struct weight two, all;

    if (!weigh(&small, &two) || !weigh(layout, &all))
        return false;
    say_count(say, "memory: bytes, of two nodes", two.node, 0);
    say_count(say, "memory: bytes", all.node, 0);
    say_count(say, "memory: bytes of the root, of two nodes", two.root, 0);
    say_count(say, "memory: bytes of the root", all.root, 0);
    say_count(say, "replayed step: bytes of it, of two nodes", two.node_step, 0);
    say_count(say, "replayed step: bytes of it", all.node_step, 0);
    say_times(say, "memory: order/ and mesh/, against two nodes",
              (double)all.node / (double)two.node, 0);
    say_times(say, "memory: the root's engine, against two nodes",
              1 + ((double)all.root - (double)two.root) / ENGINE_BYTES, MEMORY_MOST);
    say_times(say, "memory: an engine, against two nodes",
              1 + ((double)all.node - (double)two.node) / ENGINE_BYTES, MEMORY_MOST);
    say_times(say, "replayed step: memory of it, against two nodes",
              (double)all.node_step / (double)two.node_step, STEP_MOST);
    say_times(say, "replayed step: memory of it at the root, against two nodes",
              (double)all.root_step / (double)two.root_step, STEP_MOST);
    return true;
}

/* ---- failures ---- */

/* All nodes that live, and those that are cut off. */
static bool all_hear(const struct hvt_layout *layout, uint32_t first, uint32_t end, bool dies,
                     uint64_t *took_p)
{
    uint64_t begun_ns, took_ns;

    if (!meet(layout, &begun_ns))
        return fails("the nodes have not met");
    if (!step(layout, &took_ns))
        return fails("the first step is not over");
    hvt_clock_run(NULL, hvt_clock_now() + HVI_NS_SEC + hvt_clock_random(HVI_NS_SEC));
    begun_ns = hvt_clock_now();
    if (dies)
        hvt_node_kill(&job.node[first], HVT_POWER);
    else
        hvt_network_cut(first, end);
    bool told = hvt_clock_run(&job.all_told, begun_ns + 10 * HVI_NS_SEC);
    *took_p = told ? job.told_ns - begun_ns : 10 * HVI_NS_SEC;
    if (!told)
        fprintf(stderr, "hvt-sim: %u of %u nodes were not told\n", job.alive - job.told, job.alive);
    hvt_sim_end(&job);
    return true;
}

bool hvt_scenario_death(const struct hvt_layout *layout, hvt_row_fn say)
{
    const uint32_t victims[] = {0, 1, layout->nodes / 2, layout->nodes - 1};
    char text[64];
    uint64_t took_ns;

    for (uint32_t i = 0; i < 4; i++) {
        if (i > 0 && victims[i] == victims[i - 1])
            continue;
        if (!all_hear(layout, victims[i], 0, true, &took_ns))
            return false;
        snprintf(text, sizeof text, "node %u loses its power: the last node is told", victims[i]);
        say_ms(say, text, took_ns, 2000);
    }
    return true;
}

bool hvt_scenario_rack(const struct hvt_layout *layout, hvt_row_fn say)
{
    const uint32_t last = layout->nodes > RACK ? layout->nodes - RACK : 0;
    const uint32_t racks[] = {0, layout->nodes / 2 < last ? layout->nodes / 2 : last / 2, last};
    char text[64];
    uint64_t took_ns;

    for (uint32_t i = 0; i < 3 && last > 0; i++) {
        if (!all_hear(layout, racks[i], racks[i] + RACK, false, &took_ns))
            return false;
        snprintf(text, sizeof text, "nodes %u to %u are cut off: the last node is told", racks[i],
                 racks[i] + RACK - 1);
        say_ms(say, text, took_ns, 2000);
    }
    return true;
}
