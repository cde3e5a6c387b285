/* SPDX-License-Identifier: Apache-2.0
 * Steps: whether the works of a job repeat. */
#include "daemon/engine/order/steps.h"

#include "base/status.h"

#include <stdlib.h>

#define NEEDED_LEAST 2u
#define NEEDED_MOST  512u
#define WORTH        4u /* a replay that lasts for so many times what it was watched for has paid */

int engine_steps_init(struct engine_steps *steps)
{
    steps->round = 2; /* no tensor is of it, nor of the one before */
    steps->needed = NEEDED_LEAST;
    steps->list[0] = calloc(ENGINE_STEP_MAX, sizeof(struct engine_tensor *));
    steps->list[1] = calloc(ENGINE_STEP_MAX, sizeof(struct engine_tensor *));
    return steps->list[0] && steps->list[1] ? HVI_OK : HVI_ERR_NO_MEMORY;
}

static void clear(struct engine_steps *steps, struct engine_tensors *tensors, uint32_t which)
{
    while (steps->count[which] > 0)
        engine_tensor_put(tensors, steps->list[which][--steps->count[which]]);
}

void engine_steps_fini(struct engine_steps *steps, struct engine_tensors *tensors)
{
    for (uint32_t i = 0; i < 2; i++) {
        clear(steps, tensors, i);
        free(steps->list[i]);
        steps->list[i] = NULL;
    }
}

void engine_steps_forget(struct engine_steps *steps, struct engine_tensors *tensors)
{
    clear(steps, tensors, 0);
    clear(steps, tensors, 1);
    steps->known = steps->alike = 0;
    steps->round += 2;
}

static bool is_alike(const struct engine_steps *steps)
{
    uint32_t count = steps->count[steps->now];

    return count == steps->known && count == steps->count[1 - steps->now];
}

static void next_round(struct engine_steps *steps, struct engine_tensors *tensors)
{
    if (!is_alike(steps))
        steps->alike = 0;
    steps->now = 1 - steps->now;
    clear(steps, tensors, steps->now);
    steps->known = 0;
    steps->round++;
}

uint32_t engine_steps_note(struct engine_steps *steps, struct engine_tensors *tensors,
                           struct engine_tensor *tensor)
{
    if (tensor->last == steps->round)
        next_round(steps, tensors);
    if (steps->count[steps->now] == ENGINE_STEP_MAX) {
        engine_steps_forget(steps, tensors);
        return 0;
    }
    steps->known += tensor->last + 1 == steps->round;
    tensor->last = steps->round;
    tensor->refs++;
    steps->list[steps->now][steps->count[steps->now]++] = tensor;
    if (!is_alike(steps))
        return 0;
    return ++steps->alike >= steps->needed ? steps->count[steps->now] : 0;
}

void engine_steps_learn(struct engine_steps *steps, uint64_t rounds)
{
    if (rounds >= (uint64_t)WORTH * steps->needed)
        steps->needed = steps->needed / 2 > NEEDED_LEAST ? steps->needed / 2 : NEEDED_LEAST;
    else
        steps->needed = 2 * steps->needed < NEEDED_MOST ? 2 * steps->needed : NEEDED_MOST;
}
