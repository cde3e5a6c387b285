/* SPDX-License-Identifier: Apache-2.0
 * What an engine says when hvdd asks: what it knows of its own node. Engine thread; nothing blocks. */
#ifndef ENGINE_REPORT_H
#define ENGINE_REPORT_H

#include "proto/wire.h"

#include <stdint.h>

struct engine;

/* What this node knows; where memory is short, less. hvi_packet_msg_free frees it. */
void engine_report_fill(struct engine *engine, const struct hvi_engine_query *query,
                        struct hvi_engine_report *report_p);
/* To hvdd, without waiting; leaves rows out, and counts them, until the report fits. As engine_link_send. */
int engine_report_send(struct engine *engine, struct hvi_packet_msg *msg);

/* Of a job that spans nodes: the same with .span, and stalls of any age. */
void engine_report_fill_part(struct engine *engine, const struct hvi_engine_query *query,
                             struct hvi_engine_report *report_p);
/* What the roster says of a node. */
void engine_report_name(const struct engine *engine, uint32_t node, struct hvi_span_row *span_p);

#endif
