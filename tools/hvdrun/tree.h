/* SPDX-License-Identifier: Apache-2.0
 * How hvdrun gets to all of its hosts: up to --fan-out of them itself; of more, it makes as many groups, whose
 * first host has a relay (relay.h) that starts the agents of the group.
 *
 *   hvdrun ──ssh──> hvdrun --relay on h1 ──────> hvdrun --node there
 *                                        ──ssh──> hvdrun --node on h2
 *          ──ssh──> hvdrun --relay on h3 ...
 *
 * What a relay cannot start, and what it has not heard of when it goes, hvdrun starts itself. Main thread; never
 * blocks. */
#ifndef HVI_TOOLS_HVDRUN_TREE_H
#define HVI_TOOLS_HVDRUN_TREE_H

#include "tools/hvdrun/link.h"

struct run_relay;

struct run_tree {
    const struct run_options *options;
    const struct run_hosts *hosts;
    struct run_link **links; /* by host */
    struct run_relay *relays;
    size_t relay_count;
    size_t fan_out; /* as many processes are started at a time, here and by each relay */
    void (*say)(void *context, const char *text);
    void *context;
};

/* `link_of` gives the link of each host, which has been made and not started. HVI_OK or HVI_ERR_NO_MEMORY;
 * run_tree_fini in both cases. */
int run_tree_init(struct run_tree *tree, struct run_link *(*link_of)(void *context, size_t host),
                  struct run_sink *err);
/* Starts what can be started now. */
void run_tree_start(struct run_tree *tree, uint64_t now_ns);
/* As run_link_settle, run_link_poll, run_link_tick and run_link_next_ns, for the relays. */
void run_tree_settle(struct run_tree *tree);
void run_tree_poll(struct run_tree *tree, struct run_polls *polls, bool reading);
void run_tree_tick(struct run_tree *tree, uint64_t now_ns);
uint64_t run_tree_next_ns(const struct run_tree *tree);
/* Every relay has gone. Each goes when the links of its group have. */
bool run_tree_is_gone(const struct run_tree *tree);
void run_tree_fini(struct run_tree *tree);

#endif
