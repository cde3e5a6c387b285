/* SPDX-License-Identifier: Apache-2.0
 * The engines of all nodes of a job, each a bench, that have met over the loopback: their control links and data
 * lanes are real. The test is hvdd and the trainers of every node, and turns the engines one after the other.
 *
 *   node        0      1          node 0 is the root
 *   seat        0  1   0  1
 *   rank        0  2   1  3 */
#ifndef HVT_NODES_H
#define HVT_NODES_H

#include "tests/unit/engine/hvt_ops.h"

#define HVT_NODES 2u
#define HVT_SEATS 2

extern struct hvt_bench hvt_nodes[HVT_NODES];

/* All ranks have attached, with these settings, and all nodes have met. */
void hvt_nodes_open(const struct hvi_setting *settings, size_t count);
/* The engines as hvdd starts them; no rank has come. */
void hvt_nodes_start(void);
/* The ranks attach. */
void hvt_nodes_attach(const struct hvi_setting *settings, size_t count);
/* Each engine gets the list of nodes. They meet when they are turned. */
void hvt_nodes_introduce(void);
/* The same of other benches, with so many ranks on each, which are dealt likewise. */
void hvt_nodes_introduce_benches(struct hvt_bench *const benches[HVT_NODES], int32_t seats);
/* The engine of one node ends; the others are turned as before. */
void hvt_nodes_end(uint32_t node);
void hvt_nodes_close(void);
/* Each node once through all stages. */
void hvt_nodes_turn(void);
/* Turns until `is_so`; fails when that takes too long. */
void hvt_nodes_until(bool (*is_so)(void));
/* Turns until the rank is answered, and takes the answer. */
struct hvi_completion hvt_nodes_take(uint32_t node, int32_t seat, char *text_p, size_t text_size);
/* The same: it has this status and, unless NULL, these words in its sentence. */
struct hvi_completion hvt_nodes_expect(uint32_t node, int32_t seat, int status, const char *words);
void hvt_nodes_expect_all(int status, const char *words);
/* The rank submits an allreduce of one number: its rank. */
void hvt_nodes_bring(uint32_t node, int32_t seat, const char *name);
/* The allreduce has come to its end on every rank. */
void hvt_nodes_expect_sums(void);
/* Every rank brings this one, and has its answer. */
void hvt_nodes_step(const char *name);
/* Whether the works of this step start without a word between nodes. */
bool hvt_nodes_are_replaying(void);
/* hvt_nodes_step, until they do. */
void hvt_nodes_replay(const char *name);
/* Its session ends in good order. */
void hvt_nodes_detach(uint32_t node, int32_t seat);
/* Its socket ends. */
void hvt_nodes_lose(uint32_t node, int32_t seat);
/* hvdd asks this node, and gets a report of every node: by its number, to be freed by hvi_packet_msg_free. */
void hvt_nodes_ask(uint32_t node, const struct hvi_engine_query *query,
                   struct hvi_packet_msg msgs_p[HVT_NODES]);

#endif
