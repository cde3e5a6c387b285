/* SPDX-License-Identifier: Apache-2.0
 * What a job goes through, and the figures of it. One thread. */
#ifndef HVT_SIM_SCENARIO_H
#define HVT_SIM_SCENARIO_H

#include <stdbool.h>
#include <stdint.h>

struct hvt_layout {
    uint32_t nodes, each, tensors;  /* ranks on each node; tensors of a step */
    uint64_t pause_ns;              /* between two steps */
    uint64_t seed, first, programs; /* random programs: the first one, and how many */
};

/* One line of the table. */
struct hvt_row {
    char what[96];
    double value, most; /* most: the bar; 0: there is none */
    const char *unit;
};

typedef void (*hvt_row_fn)(const struct hvt_row *row);

/* Each says its figures by `say`. False: something did not happen at all; stderr has it. */
bool hvt_scenario_steps(const struct hvt_layout *layout, hvt_row_fn say);
bool hvt_scenario_memory(const struct hvt_layout *layout, hvt_row_fn say);
/* A node of each kind loses its power. */
bool hvt_scenario_death(const struct hvt_layout *layout, hvt_row_fn say);
/* The network between 32 nodes and the others is gone. */
bool hvt_scenario_rack(const struct hvt_layout *layout, hvt_row_fn say);
/* Random programs against the reference of tests/property. */
bool hvt_scenario_random(const struct hvt_layout *layout, hvt_row_fn say);

#endif
