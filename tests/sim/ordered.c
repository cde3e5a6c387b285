/* SPDX-License-Identifier: Apache-2.0
 * The root hears the reports of each node in the order in which the node has said them (mesh/bundle.c). What a node's
 * order/ gives to its mesh/ is noted here, and so is what the root's mesh/ gives to the root (-Wl,--wrap). */
#include "tests/sim/sim.h"

#include <stdio.h>
#include <string.h>

int __wrap_engine_root_report(struct engine_root *root, uint32_t node,
                              const struct hvi_mesh_report *report, char *text_p, size_t size);
int __real_engine_root_report(struct engine_root *root, uint32_t node,
                              const struct hvi_mesh_report *report, char *text_p, size_t size);
int __wrap_engine_root_report_alike(struct engine_root *root, const uint32_t *nodes, uint32_t count,
                                    const struct hvi_mesh_report *report, char *text_p,
                                    size_t size);
int __real_engine_root_report_alike(struct engine_root *root, const uint32_t *nodes, uint32_t count,
                                    const struct hvi_mesh_report *report, char *text_p,
                                    size_t size);

static uint64_t heard;

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 1099511628211ull;
}

static uint64_t hash_of(const struct hvi_mesh_report *report)
{
    const uint64_t values[] = {report->what, report->seen,     report->set,  report->serial,
                               report->kind, report->sequence, report->more, report->id};
    uint64_t hash = mix(mix(14695981039346656037ull, report->tensor.kind), report->tensor.number);

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        hash = mix(hash, values[i]);
    for (size_t i = 0; i < report->tensor.name_bytes; i++)
        hash = mix(hash, report->tensor.name[i]);
    return hash;
}

/* ---- what a node says ---- */

static void make_room(struct hvt_said *said)
{
    const uint32_t room = said->room ? 2 * said->room : 64;
    uint64_t *hash = hvt_memory_new(room * sizeof *hash);

    for (uint32_t i = 0; i < said->count; i++)
        hash[i] = said->hash[(said->first + i) % said->room];
    hvt_memory_free(said->hash);
    said->hash = hash;
    said->room = room;
    said->first = 0;
}

static void report(void *user, const struct hvi_mesh_report *report)
{
    struct hvt_node *node = user;
    struct hvt_said *said = &node->said;

    if (said->count == said->room)
        make_room(said);
    said->hash[(said->first + said->count++) % said->room] = hash_of(report);
    said->span->report(&node->mesh, report);
}

static void withdraw(void *user, uint64_t least, uint64_t top)
{
    struct hvt_node *node = user;

    node->said.span->withdraw(&node->mesh, least, top);
}

static const struct engine_order_span span = {report, withdraw};

void hvt_ordered_begin(struct hvt_node *node)
{
    node->said.span = node->order.span;
    node->order.span = &span;
    node->order.span_user = node;
}

void hvt_ordered_end(struct hvt_node *node)
{
    hvt_memory_free(node->said.hash);
    node->said = (struct hvt_said){0};
}

/* ---- what the root hears ---- */

static void hear(struct engine_root *root, const uint32_t *nodes, uint32_t count,
                 const struct hvi_mesh_report *report)
{
    struct hvt_node *here =
        (struct hvt_node *)(uintptr_t)((unsigned char *)root - offsetof(struct hvt_node, mesh) -
                                       offsetof(struct engine_mesh, root));
    const uint64_t hash = hash_of(report);
    uint32_t at = 0;

    heard += count;
    for (; at < count; at++) {
        struct hvt_said *said = &here->job->node[nodes[at]].said;
        if (said->count == 0 || said->hash[said->first] != hash)
            break;
        said->first = (said->first + 1) % said->room;
        said->count--;
    }
    if (at == count || here->job->overtaken)
        return;
    here->job->overtaken = true;
    fprintf(stderr,
            "hvt-sim: the root hears a report of node %u, about '%.*s', that is not its next one\n",
            nodes[at], (int)report->tensor.name_bytes, (const char *)report->tensor.name);
}

int __wrap_engine_root_report(struct engine_root *root, uint32_t node,
                              const struct hvi_mesh_report *report, char *text_p, size_t size)
{
    hear(root, &node, 1, report);
    return __real_engine_root_report(root, node, report, text_p, size);
}

int __wrap_engine_root_report_alike(struct engine_root *root, const uint32_t *nodes, uint32_t count,
                                    const struct hvi_mesh_report *report, char *text_p, size_t size)
{
    hvt_clock_pay((count - 1) * hvt_costs.each_ns);
    hear(root, nodes, count, report);
    return __real_engine_root_report_alike(root, nodes, count, report, text_p, size);
}

uint64_t hvt_ordered_heard(void)
{
    return heard;
}
