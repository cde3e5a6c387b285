/* SPDX-License-Identifier: Apache-2.0
 * The schedule: the works of a step that repeats, which this node starts without asking the root. Engine
 * thread. */
#ifndef ENGINE_ORDER_SCHEDULE_H
#define ENGINE_ORDER_SCHEDULE_H

#include "proto/mesh.h"

#include <stdbool.h>
#include <stdint.h>

struct engine_op;
struct engine_order;

/* Nothing has moved for a while: asks the root to go on with the word of all nodes. */
void engine_schedule_halt(struct engine_order *order);
/* The work of a withdrawn op has been given back: nothing of it has been done. */
void engine_schedule_returned(struct engine_order *order, struct engine_op *op);

/* ---- within order/ ---- */

/* Whether a work of this op may be started without the root: its kind. */
bool engine_schedule_may_repeat(const struct engine_op *op);
/* The same on memory of GPUs, which these workers have, by set rank. */
bool engine_schedule_may_repeat_on_gpus(const struct engine_op *op, const uint64_t *instances);
/* The op is over: what has failed on GPUs is negotiated the next time. */
void engine_schedule_ended(struct engine_op *op, int status);
/* Drops what it holds. Harmless on a zeroed one. */
void engine_schedule_close(struct engine_order *order);
/* The root has started it. */
void engine_schedule_note(struct engine_order *order, const struct engine_op *op);
/* Every rank of this node has come to the op. False: it is to be reported. */
bool engine_schedule_take(struct engine_order *order, struct engine_op *op);
/* Then, if it is of a kind that is sized late: its outputs are there. */
void engine_schedule_sized(struct engine_order *order, struct engine_op *op);
/* The same of a group, all members of which are held. */
bool engine_schedule_take_group(struct engine_order *order, struct engine_op *leader);
/* Then: all its outputs are there. */
void engine_schedule_group_sized(struct engine_order *order, struct engine_op *leader);
/* A SCHEDULED op waits for its turn no more. */
void engine_schedule_leave(struct engine_order *order, struct engine_op *op);
/* A tentative op is over. */
void engine_schedule_over(struct engine_order *order, struct engine_op *op);
/* True: the report is not to be sent now. */
bool engine_schedule_holds(struct engine_order *order, const struct hvi_mesh_report *report);
/* The verdict is of no op. */
bool engine_schedule_is_meant(uint32_t what);
/* As engine_verdict_hear, of such a verdict. */
int engine_schedule_hear(struct engine_order *order, const struct hvi_mesh_verdict *verdict,
                         char *text_p, size_t text_size);

#endif
