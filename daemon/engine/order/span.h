/* SPDX-License-Identifier: Apache-2.0
 * Ops of sets with members on several nodes: what this node reports to the root of the job. Engine
 * thread. */
#ifndef ENGINE_ORDER_SPAN_H
#define ENGINE_ORDER_SPAN_H

#include "daemon/engine/order/order.h"

/* The roster knows the job's nodes (engine_roster_set_nodes). From now on sets may have members on
 * other nodes. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_span_open(struct engine_order *order, const struct engine_order_span *span, void *user);

/* ---- within order/ ---- */

/* A report about an op of the set, without a tensor. It is there until the next one. */
struct hvi_mesh_report *engine_span_begin(struct engine_order *order, const struct engine_set *set,
                                          uint16_t kind, enum hvi_mesh_what what);
/* To the root: at once, or when what repeats has been halted. */
void engine_span_tell(struct engine_order *order, const struct hvi_mesh_report *report);
/* Harmless where it was not opened. */
void engine_span_close(struct engine_order *order);
/* Every rank of this node has come; `more`: the next member of its group follows. */
void engine_span_report(struct engine_order *order, struct engine_op *op, bool more);
/* The work of a tentative op is withdrawn: the same, but its state stays. */
void engine_span_report_again(struct engine_order *order, struct engine_op *op);
/* All members of a group are complete on this node. */
void engine_span_report_group(struct engine_order *order, struct engine_op *leader);
/* All ranks of this node have joined, `last` as the last. */
void engine_span_report_join(struct engine_order *order, struct engine_op *join, int32_t last);
/* The outputs of a reported op are known. */
void engine_span_sized(struct engine_order *order, struct engine_op *op);
/* A reported op should fail: the root decides. */
void engine_span_give_up(struct engine_order *order, struct engine_op *op, int status,
                         const char *text, int32_t culprit);
/* A rank takes its part back from a reported op: the root gives it back, if it is in time. */
void engine_span_retract(struct engine_order *order, struct engine_op *op);
/* It has failed here; the root says so later to all. */
void engine_span_has_failed(struct engine_order *order, struct engine_op *op, int status,
                            const char *text, int32_t culprit);

#endif
