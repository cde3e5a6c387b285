/* SPDX-License-Identifier: Apache-2.0
 * A job: its nodes, what its ranks submit, and its works. A work is over some time after the last of its nodes has
 * begun it: that stands for the data. */
#include "tests/sim/sim.h"

#include "base/assert.h"
#include "base/clock.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

static struct {
    int32_t *ranks;
    struct engine_node *nodes;
} rosters;

void hvt_sim_begin(struct hvt_sim *job, uint32_t nodes, uint32_t each)
{
    *job = (struct hvt_sim){.nodes = nodes, .each = each, .alive = nodes};
    job->node = hvt_memory_new(nodes * sizeof *job->node);
    rosters.ranks = hvt_memory_new((size_t)nodes * each * sizeof *rosters.ranks);
    rosters.nodes = hvt_memory_new(nodes * sizeof *rosters.nodes);
    for (uint32_t i = 0; i < nodes; i++) {
        int32_t *own = rosters.ranks + (size_t)i * each;
        for (uint32_t seat = 0; seat < each; seat++)
            own[seat] = (int32_t)(i * each + seat);
        rosters.nodes[i] = (struct engine_node){own, each};
        job->node[i].job = job;
        job->node[i].number = i;
    }
}

void hvt_sim_end(struct hvt_sim *job)
{
    for (uint32_t i = 0; i < job->nodes; i++)
        hvt_node_fini(&job->node[i]);
    hvt_network_reset();
    hvt_memory_free(job->parts);
    hvt_memory_free(job->node);
    hvt_memory_free(rosters.ranks);
    hvt_memory_free(rosters.nodes);
}

/* ---- the roster ---- */

static void meet(struct hvt_node *node, void *user, uint64_t value)
{
    (void)user, (void)value;
    hvt_clock_pay(hvt_costs.start_ns);
    hvt_node_start(node, rosters.nodes, node->job->nodes);
}

void hvt_sim_meet(struct hvt_sim *job, uint64_t at_ns, uint64_t apart_ns)
{
    for (uint32_t i = 0; i < job->nodes; i++)
        hvt_clock_post(&job->node[i], at_ns + i * apart_ns, meet, NULL, 0);
}

void hvt_sim_ready(struct hvt_sim *job)
{
    job->ready_ns = hvt_clock_now();
    job->all_ready = ++job->ready == job->nodes;
}

void hvt_sim_told(struct hvt_sim *job)
{
    job->told_ns = hvt_clock_now();
    job->all_told = ++job->told == job->alive;
}

/* ---- what ranks submit ---- */

static void answered(struct hvt_part *part, int status, const char *text, int32_t culprit)
{
    struct hvt_sim *job = part->node->job;

    (void)text, (void)culprit;
    job->failed += status != HVI_OK;
    if (--job->left > 0)
        return;
    job->over_ns = hvt_clock_now();
    job->all_over = true;
}

static const struct hvt_part_calls part_calls = {.answered = answered};

static void fill(struct hvt_part *my, struct hvt_node *node, uint32_t seat)
{
    my->node = node;
    my->calls = &part_calls;
    my->part.seat = (engine_seat){(uint16_t)seat};
    my->part.rank = engine_roster_rank(&node->roster, my->part.seat);
    my->part.in_bytes = 4096;
    my->part.copy = (struct hvi_submission){.kind = HVI_KIND_ALLREDUCE,
                                            .dtype = HVI_DTYPE_FLOAT32,
                                            .ndim = 1,
                                            .root = -1,
                                            .count = 1024,
                                            .dims = {1024},
                                            .prescale = 1,
                                            .postscale = 1,
                                            .in_region = 1,
                                            .out_region = 2,
                                            .out_capacity = 4096};
}

static void submit(struct hvt_node *node, void *user, uint64_t seat)
{
    struct hvt_sim *job = node->job;
    struct hvt_part *part = user;
    char name[32];

    for (uint32_t i = 0; i < job->part_count; i++, part++) {
        fill(part, node, (uint32_t)seat);
        snprintf(name, sizeof name, "layer%u.weight", i);
        hvt_node_submit(node, part, name, NULL);
    }
}

void hvt_sim_step(struct hvt_sim *job, uint32_t count, uint64_t spread_ns)
{
    size_t ranks = (size_t)job->nodes * job->each;

    HVI_ASSERT(job->left == 0);
    hvt_memory_free(job->parts);
    job->parts = hvt_memory_new(ranks * count * sizeof *job->parts);
    job->part_count = count;
    job->left = ranks * count;
    job->all_over = false;
    for (uint32_t i = 0; i < job->nodes; i++) {
        for (uint32_t seat = 0; seat < job->each; seat++)
            hvt_clock_post(&job->node[i], hvt_clock_now() + hvt_clock_random(spread_ns + 1), submit,
                           job->parts + ((size_t)i * job->each + seat) * count, seat);
    }
}

/* ---- works ---- */

void hvt_sim_began(struct hvt_sim *job, const struct hvt_node *node, const struct engine_op *op)
{
    const struct engine_places *places = op->without ? op->without : op->set->span;
    struct hvt_sim_work *work = &job->works[op->sequence % HVT_RUNNING];

    (void)node;
    if (work->sequence != op->sequence)
        *work = (struct hvt_sim_work){.sequence = op->sequence};
    if (++work->begun < places->nodes)
        return;
    job->begun_ns = hvt_clock_now();
    for (uint32_t i = 0; i < places->nodes; i++)
        hvt_clock_post(&job->node[places->node[i]], hvt_clock_now() + job->work_ns, hvt_node_done,
                       NULL, op->sequence);
}
