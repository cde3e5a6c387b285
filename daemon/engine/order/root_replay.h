/* SPDX-License-Identifier: Apache-2.0
 * The root of a job: works that repeat, while they start without it, and when they stop. Within order/; one thread. */
#ifndef ENGINE_ORDER_ROOT_REPLAY_H
#define ENGINE_ORDER_ROOT_REPLAY_H

#include "daemon/engine/order/meeting.h"

/* The message that a report was. */
struct engine_root_late {
    struct engine_root_late *next;
    size_t length;
    unsigned char *bytes;
};

/* Whether the op, which has been assembled, may be of a step that repeats: it is of every node and rank of its set. Memory
 * of GPUs: as engine_schedule_may_repeat_on_gpus says; nodes keep the workers of the last verdict. */
bool engine_root_replay_may(const struct engine_root *root, const struct engine_op *op);
/* What all ranks have brought is what comes next under this name. True: it is not what it was the last time. */
bool engine_root_replay_take_sizes(const struct engine_op *op, struct engine_tensor *name);
/* The op has been assembled, and starts; it `repeats` if it, and its whole group, may. Says REPEATS where a step has
 * repeated often enough. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_root_replay_watch(struct engine_root *root, const struct engine_op *op, bool repeats);
/* To all: works start by the root's word again. Harmless while that is under way. */
void engine_root_replay_halt(struct engine_root *root);
/* All nodes have said how far they have come; works below `least` have started everywhere. */
void engine_root_replay_resume(struct engine_root *root, uint64_t least);
/* A report that came meanwhile: it is judged when works have resumed. HVI_OK, HVI_ERR_NO_MEMORY, HVI_ERR_LIMIT. */
int engine_root_late_keep(struct engine_root *root, uint32_t node,
                          const struct hvi_mesh_report *report);
/* The oldest; NULL: there is none. */
struct engine_root_late *engine_root_late_take(struct engine_root *root);
void engine_root_late_free(struct engine_root_late *late);

#endif
