/* SPDX-License-Identifier: Apache-2.0
 * A question of hvdd's about a job that spans nodes: the engines of all its nodes answer, over their control
 * connections, and hvdd gets one EngineReport for each node, the last one without .more. It has all of them
 * ENGINE_GATHER_NS after it has asked; a node that has not answered by then, or that is lost, has a report
 * with a sentence and no rows.
 *
 *   hvdctl -> hvdd -> engine --ask--> engines of the other nodes
 *                  <- parts  <-answer-
 *
 * For a trace each node is first asked for its clock, ENGINE_MESH_CLOCK_ROUNDS times: of the round with the shortest way there
 * and back, half of that way is the most by which the difference of the clocks can be wrong. The rows of another
 * node are converted to this node's clock. Engine thread; nothing blocks. */
#ifndef ENGINE_GATHER_H
#define ENGINE_GATHER_H

#include "daemon/engine/mesh/mesh.h"
#include "proto/mesh.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stdint.h>

#define ENGINE_GATHER_NS (800ull * 1000 * 1000) /* hvdd waits for 2 s */

struct engine_gather;

struct engine_gather_calls {
    /* What this node knows, with its .span; hvi_packet_msg_free frees it. */
    void (*fill)(void *user, const struct hvi_engine_query *query,
                 struct hvi_engine_report *report_p);
    /* Of a node: job, number, name, address, port, ranks. */
    void (*name)(void *user, uint32_t node, struct hvi_span_row *span_p);
    /* To hvdd, without waiting; rows that do not fit are left out. HVI_ERR_TIMEOUT: the link is full. */
    int (*send)(void *user, struct hvi_packet_msg *msg);
    /* engine_gather_flush follows, when hvdd reads again. */
    void (*await_room)(void *user);
};

struct engine_gathers {
    struct sd_event *event;
    struct engine_mesh *mesh;
    const struct engine_roster *roster;
    const char *job;
    const struct engine_gather_calls *calls;
    void *user;
    /* Zero at first. */
    struct engine_gather *first;
    uint32_t count;
    uint64_t last_number;
};

/* Reports follow. */
void engine_gather_start(struct engine_gathers *gathers, const struct hvi_engine_query *query);
/* Sends hvdd what has come. False: the link is full, and await_room was called. */
bool engine_gather_flush(struct engine_gathers *gathers);
/* What another node asks, or answers. */
void engine_gather_asked(struct engine_gathers *gathers, uint32_t from,
                         const struct hvi_mesh_ask *ask);
void engine_gather_answered(struct engine_gathers *gathers, uint32_t from,
                            const struct hvi_mesh_answer *answer);
/* Drops what is under way. Harmless on a zeroed one. */
void engine_gather_close(struct engine_gathers *gathers);

/* Leaves about half of a report's rows out, and counts them. False: there are none. */
bool engine_gather_halve(struct hvi_engine_report *report);

#endif
