/* SPDX-License-Identifier: Apache-2.0
 * Steps: whether the works of a job repeat. The root's; pure.
 *
 * A round ends before the first tensor that comes a second time. A step is a round with the tensors of the
 * round before it, in whatever order. Where unnamed ops say the same more than once in a step there are no such
 * rounds: then it is a step if the works come in the same order again. */
#ifndef ENGINE_ORDER_STEPS_H
#define ENGINE_ORDER_STEPS_H

#include "daemon/engine/order/tensor.h"

#define ENGINE_STEP_MAX   4096u /* works */
#define ENGINE_STEPS_KEPT (2 * ENGINE_STEP_MAX)

struct engine_steps {
    uint64_t round;                 /* that works are of now */
    struct engine_tensor **list[2]; /* [ENGINE_STEP_MAX] of this round, and of the one before it */
    uint32_t count[2], now;         /* now: which */
    uint32_t known;                 /* of this round, those that are of both */
    uint32_t alike;                 /* rounds like the one before, without another between them */
    uint32_t needed;                /* of these */
    struct engine_tensor **works;   /* [ENGINE_STEPS_KEPT] by number, modulo; in their order */
    uint32_t *reach;                /* [ENGINE_STEPS_KEPT] see steps.c */
    uint64_t first, next;           /* numbers of the oldest that is kept, and of the next one */
    uint32_t period;                /* works since this one came; 0: none is known */
    uint64_t followed;              /* works that were what they were a period before */
    uint64_t look_at;               /* number of the work at which a period is looked for */
};

/* `steps` is zeroed. HVI_OK or HVI_ERR_NO_MEMORY. */
int engine_steps_init(struct engine_steps *steps);
/* Harmless on a zeroed one. */
void engine_steps_fini(struct engine_steps *steps, struct engine_tensors *tensors);
/* A work of it has started. So many works are a step that has repeated often enough; 0: it has not. */
uint32_t engine_steps_note(struct engine_steps *steps, struct engine_tensors *tensors,
                           struct engine_tensor *tensor);
/* Whether the step that is being watched has it. */
bool engine_steps_have(const struct engine_steps *steps, const struct engine_tensor *tensor);
/* Something else has happened. */
void engine_steps_forget(struct engine_steps *steps, struct engine_tensors *tensors);
/* A step has been replayed so often: the less, the longer the next one is watched. */
void engine_steps_learn(struct engine_steps *steps, uint64_t rounds);

#endif
